//! Mounted Lustre file systems: the file `stats` of each client mount (`lctl get_param
//! llite.*.stats`).
//!
//! It is in `/proc/fs/lustre/llite` before about Lustre 2.10, and in debugfs since, which only root
//! may read.

use super::mounts::Mount;
use super::{DeviceReading, lines, number, words};
use miot_proto::wire::{DeviceCounters, DeviceKind};
use std::path::Path;

const FOLDERS: [&str; 2] = ["proc/fs/lustre/llite", "sys/kernel/debug/lustre/llite"];
/// Lines that do not count requests.
const NO_REQUESTS: [&[u8]; 5] =
    [b"snapshot_time", b"start_time", b"elapsed_time", b"read_bytes", b"write_bytes"];

/// Reads all client mounts that are visible.
pub(super) fn read(root: &Path, mounts: &[Mount]) -> Vec<DeviceReading> {
    let folder = |folder: &&str| std::fs::read_dir(root.join(folder)).ok();
    let Some(entries) = FOLDERS.iter().find_map(folder) else { return Vec::new() };
    let one = |entry: std::fs::DirEntry| {
        let text = std::fs::read(entry.path().join("stats")).ok()?;
        let name = entry.file_name().into_encoded_bytes();
        let mount = place(&name, mounts).unwrap_or_default();
        Some(DeviceReading { kind: DeviceKind::Lustre, name, mount, counters: parse(&text) })
    };
    entries.flatten().filter_map(one).collect()
}

/// Mount point of an instance: `scratch-ffff8881` is the file system `scratch`, mounted from
/// `mgs@tcp:/scratch`. `None` if the file system is mounted twice, because the mounts cannot be
/// distinguished.
fn place(instance: &[u8], mounts: &[Mount]) -> Option<Vec<u8>> {
    let end = instance.iter().rposition(|byte| *byte == b'-')?;
    let is_it = |mount: &&Mount| {
        let name =
            mount.source.split(|byte| *byte == b':').next_back().and_then(|path| path.strip_prefix(b"/"));
        let name = name.map(|path| path.split(|byte| *byte == b'/').next().unwrap_or_default());
        mount.kind == b"lustre" && name == Some(&instance[..end])
    };
    let mut found = mounts.iter().filter(is_it);
    let first = found.next()?;
    found.next().is_none().then(|| first.place.clone())
}

/// Parses lines `name count samples [unit] min max sum sum-of-squares`; the last four only where
/// values are recorded.
fn parse(text: &[u8]) -> DeviceCounters {
    let mut counters = DeviceCounters::default();
    let mut reads_of_bytes = (None, None);
    for line in lines(text) {
        let parts: Vec<&[u8]> = words(line).collect();
        let [name, count, b"samples", unit, values @ ..] = &parts[..] else { continue };
        let Some(count) = number(count) else { continue };
        let sum = values.get(2).and_then(|sum| number(sum));
        let time = sum.filter(|_| unit.starts_with(b"[us")).map(|us| us.saturating_mul(1000));
        match *name {
            b"read_bytes" => (counters.read_bytes, reads_of_bytes.0) = (sum, Some(count)),
            b"write_bytes" => (counters.write_bytes, reads_of_bytes.1) = (sum, Some(count)),
            b"read" => (counters.reads, counters.read_time) = (Some(count), time),
            b"write" => (counters.writes, counters.write_time) = (Some(count), time),
            name if NO_REQUESTS.contains(&name) => {}
            _ => {
                counters.others = Some(counters.others.unwrap_or(0).saturating_add(count));
                if let Some(time) = time {
                    counters.other_time = Some(counters.other_time.unwrap_or(0).saturating_add(time));
                }
            }
        }
    }
    // Earlier versions have no lines for the requests themselves, and no line exists before the
    // first request.
    counters.reads = Some(counters.reads.or(reads_of_bytes.0).unwrap_or(0));
    counters.writes = Some(counters.writes.or(reads_of_bytes.1).unwrap_or(0));
    counters.others = Some(counters.others.unwrap_or(0));
    counters.read_bytes = Some(counters.read_bytes.unwrap_or(0));
    counters.write_bytes = Some(counters.write_bytes.unwrap_or(0));
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Format of Lustre 2.15.
    const NEW: &str = "snapshot_time             1700000000.123456789 secs.nsecs
start_time                1690000000.0 secs.nsecs
elapsed_time              10000000.1 secs.nsecs
read_bytes                3 samples [bytes] 4096 1048576 2101248 9000
write_bytes               2 samples [bytes] 10 20 30 500
read                      3 samples [usecs] 10 200 300 40000
write                     2 samples [usecs] 5 7 12 74
open                      5 samples [usecs] 1 2 7 11
close                     5 samples [usecs] 1 1 5 5
";
    /// Format of Lustre 2.7.
    const OLD: &str = "snapshot_time             1700000000.123456 secs.usecs
read_bytes                3 samples [bytes] 4096 1048576 2101248
open                      5 samples [regs]
";

    #[test]
    fn both_formats_are_parsed() {
        let expected = DeviceCounters {
            reads: Some(3),
            writes: Some(2),
            others: Some(10),
            read_bytes: Some(2_101_248),
            write_bytes: Some(30),
            read_time: Some(300_000),
            write_time: Some(12_000),
            other_time: Some(12_000),
            ..DeviceCounters::default()
        };
        assert_eq!(parse(NEW.as_bytes()), expected);
        let expected = DeviceCounters {
            reads: Some(3),
            writes: Some(0),
            others: Some(5),
            read_bytes: Some(2_101_248),
            write_bytes: Some(0),
            ..DeviceCounters::default()
        };
        assert_eq!(parse(OLD.as_bytes()), expected);
    }

    #[test]
    fn instance_has_the_mount_point_of_its_file_system() {
        let mount = |source: &[u8], place: &[u8]| Mount {
            minor: 1,
            kind: b"lustre".to_vec(),
            source: source.to_vec(),
            place: place.to_vec(),
        };
        let one =
            [mount(b"10.0.0.1@tcp:10.0.0.2@tcp:/scratch", b"/scratch"), mount(b"m@o2ib:/home/sub", b"/home")];
        assert_eq!(place(b"scratch-ffff88", &one), Some(b"/scratch".to_vec()));
        assert_eq!(place(b"home-ffff88", &one), Some(b"/home".to_vec()));
        assert_eq!(place(b"work-ffff88", &one), None);
        let two = [mount(b"m@tcp:/scratch", b"/a"), mount(b"m@tcp:/scratch", b"/b")];
        assert_eq!(place(b"scratch-ffff88", &two), None);
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/kernel/debug/lustre/llite/scratch-ffff88");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("stats"), NEW).unwrap();
        let found = read(root.path(), &one);
        assert_eq!((found.len(), &found[0].mount[..]), (1, &b"/scratch"[..]));
    }
}
