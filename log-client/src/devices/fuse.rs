//! FUSE file systems, GlusterFS among them. The kernel counts only the requests that wait for the
//! file system's process (`/sys/fs/fuse/connections/<minor>/waiting`), readable for root and the
//! user who mounted it. The requests themselves are in the trace if that process, or its clients,
//! are traced.

use super::mounts::Mount;
use super::{DeviceReading, number};
use miot_proto::wire::{DeviceCounters, DeviceKind};
use std::path::Path;

/// Reads all mounts that are readable.
pub(super) fn read(root: &Path, mounts: &[Mount]) -> Vec<DeviceReading> {
    let is_fuse = |mount: &&Mount| mount.kind == b"fuse" || mount.kind.starts_with(b"fuse.");
    let one = |mount: &Mount| {
        let file = root.join(format!("sys/fs/fuse/connections/{}/waiting", mount.minor));
        let counters = DeviceCounters {
            in_flight: number(std::fs::read(file).ok()?.trim_ascii()),
            ..DeviceCounters::default()
        };
        let (name, mount) = (mount.source.clone(), mount.place.clone());
        Some(DeviceReading { kind: DeviceKind::Fuse, name, mount, counters })
    };
    mounts.iter().filter(is_fuse).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_requests_are_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/fs/fuse/connections/45");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("waiting"), "3\n").unwrap();
        let mount = |minor, kind: &[u8]| Mount {
            minor,
            kind: kind.to_vec(),
            source: b"g1:/vol".to_vec(),
            place: b"/mnt".to_vec(),
        };
        let mounts = [mount(45, b"fuse.glusterfs"), mount(46, b"fuse.glusterfs"), mount(45, b"fusectl")];
        let found = read(root.path(), &mounts);
        assert_eq!((found.len(), found[0].counters.in_flight), (1, Some(3)));
    }
}
