//! Ghost entries: identities of blocks that were evicted recently.

use std::collections::{HashSet, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Ghosts {
    order: VecDeque<(u32, u64)>,
    names: HashSet<(u32, u64)>,
    most: usize,
}

impl Ghosts {
    pub(super) fn new(most: usize) -> Ghosts {
        Ghosts { most, ..Ghosts::default() }
    }

    pub(super) fn add(&mut self, name: (u32, u64)) {
        if self.names.insert(name) {
            self.order.push_back(name);
        }
        while self.order.len() > self.most {
            if let Some(oldest) = self.order.pop_front() {
                self.names.remove(&oldest);
            }
        }
    }

    /// Returns true if the block has a ghost entry. An entry stays until newer ones displace it.
    pub(super) fn has(&self, name: (u32, u64)) -> bool {
        self.names.contains(&name)
    }
}
