//! The paper's disks: when an access completes depends on its place and how far that is from the access before it, not on
//! what else is under way (section 6.1).

use super::access::{position, transfer};
use crate::config::Disk;

#[derive(Debug, Default)]
pub(super) struct Simple {
    head: Option<u64>,
    pub(super) busy: u64,
}

impl Simple {
    /// How long an access takes.
    #[inline]
    pub(super) fn access(&mut self, disk: &Disk, address: u64, bytes: u64, write: bool) -> u64 {
        let takes = position(disk, self.head, address, write) + transfer(disk, bytes, write);
        self.head = Some(address.saturating_add(bytes));
        self.busy = self.busy.saturating_add(takes);
        takes
    }
}
