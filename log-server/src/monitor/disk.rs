//! Disk space and parts of the trace directory.

use miot_proto::status::UploadStatus;
use miot_trace_store::upload;
use rustix::fs::StatVfs;
use std::path::Path;

/// Number of parts, and space of the file system.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Disk {
    /// Number of parts that are being appended to, or sealed.
    pub(super) live: u64,
    /// Number of parts in Parquet.
    pub(super) sealed: u64,
    /// Free space, bytes.
    pub(super) free: u64,
    /// Size of the file system, bytes.
    pub(super) total: u64,
    /// Parts that wait for their upload, if there is an object store.
    pub(super) upload: Option<UploadStatus>,
}

impl Disk {
    /// Measures the directory; 0 for unavailable values.
    pub(super) fn measure(trace: &Path, store: Option<&str>) -> Disk {
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
            upload: store.map(|store| {
                let waiting = upload::backlog(trace, store).unwrap_or_default();
                UploadStatus {
                    store: store.to_owned(),
                    parts: waiting.parts,
                    bytes: waiting.bytes,
                    oldest_s: waiting.oldest.as_secs_f64(),
                }
            }),
        }
    }
}
