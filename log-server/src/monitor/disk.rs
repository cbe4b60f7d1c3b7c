//! The trace directory as a thing that takes room.

use rustix::fs::StatVfs;
use std::path::Path;

/// What there is, and what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Disk {
    /// Parts that are being appended to, or sealed.
    pub(super) live: u64,
    /// Parts in Parquet.
    pub(super) sealed: u64,
    /// Bytes.
    pub(super) free: u64,
    /// Bytes.
    pub(super) total: u64,
}

impl Disk {
    /// What can be seen; 0 for what cannot.
    pub(super) fn look(trace: &Path) -> Disk {
        let parts = miot_trace_store::count_parts(trace).unwrap_or_default();
        let space = rustix::fs::statvfs(trace).ok();
        let bytes = |blocks: fn(&StatVfs) -> u64| {
            space.as_ref().map_or(0, |space| blocks(space).saturating_mul(space.f_frsize))
        };
        Disk {
            live: parts.live,
            sealed: parts.sealed,
            free: bytes(|space| space.f_bavail),
            total: bytes(|space| space.f_blocks),
        }
    }
}
