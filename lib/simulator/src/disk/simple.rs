//! The paper's disks: the completion time of an access depends on its location and its distance
//! from the previous access, not on other accesses in progress (section 6.1).

use super::access::{position, transfer};
use crate::config::Disk;

#[derive(Debug, Default)]
pub(super) struct Simple {
    head: Option<u64>,
    pub(super) busy: u64,
}

impl Simple {
    /// Returns the duration of an access.
    #[inline]
    pub(super) fn access(&mut self, disk: &Disk, address: u64, bytes: u64, write: bool) -> u64 {
        let takes = position(disk, self.head, address, write) + transfer(disk, bytes, write);
        self.head = Some(address.saturating_add(bytes));
        self.busy = self.busy.saturating_add(takes);
        takes
    }
}
