//! Mounted NFS file systems: `/proc/self/mountstats`, as mountstats(8) of nfs-utils reads it.
//! Reading it contacts no server.

use super::mounts::unescape;
use super::{DeviceReading, from_ms, lines, number, words};
use miot_proto::wire::{DeviceCounters, DeviceKind};

/// Index of the bytes read over the network in the line `bytes:`.
const SERVER_READ: usize = 4;
/// Index of the bytes written over the network.
const SERVER_WRITE: usize = 5;

/// The NFS mounts, each export once.
///
/// Fields per operation: requests, transmissions, major timeouts, bytes sent, bytes received, ms
/// queued, ms of round trips, total ms (and errors, since Linux 5.3). The total is the time of a
/// request, since it includes waiting.
pub(super) fn parse(text: &[u8]) -> Vec<DeviceReading> {
    let mut found: Vec<DeviceReading> = Vec::new();
    // True within the lines of a mount that is reported.
    let mut inside = false;
    for line in lines(text) {
        let parts: Vec<&[u8]> = words(line).collect();
        if let [b"device", name, b"mounted", b"on", mount, b"with", b"fstype", kind, ..] = parts[..] {
            let reading = DeviceReading {
                kind: DeviceKind::Nfs,
                name: unescape(name),
                mount: unescape(mount),
                counters: DeviceCounters::default(),
            };
            inside =
                matches!(kind, b"nfs" | b"nfs4") && !found.iter().any(|other| other.name == reading.name);
            if inside {
                found.push(reading);
            }
            continue;
        }
        let Some(reading) = found.last_mut().filter(|_| inside) else { continue };
        let Some((label, values)) = parts.split_first() else { continue };
        let Some(label) = label.strip_suffix(b":") else { continue };
        let values: Vec<u64> = values.iter().map_while(|word| number(word)).collect();
        match (label, &values[..]) {
            (b"bytes", values) => {
                reading.counters.read_bytes = values.get(SERVER_READ).copied();
                reading.counters.write_bytes = values.get(SERVER_WRITE).copied();
            }
            (operation, [requests, sent, _, _, _, _, _, total, ..]) if is_operation(operation) => {
                let counters = &mut reading.counters;
                let (count, time) = match operation {
                    b"READ" => (&mut counters.reads, &mut counters.read_time),
                    b"WRITE" => (&mut counters.writes, &mut counters.write_time),
                    _ => (&mut counters.others, &mut counters.other_time),
                };
                add(count, *requests);
                add(time, from_ms(*total));
                add(&mut counters.retransmits, sent.saturating_sub(*requests));
            }
            _ => {}
        }
    }
    found
}

fn is_operation(label: &[u8]) -> bool {
    !label.is_empty() && label.iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_')
}

fn add(to: &mut Option<u64>, more: u64) {
    *to = Some(to.unwrap_or(0).saturating_add(more));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Format of Linux 6.1, shortened.
    const SAMPLE: &str = "device /dev/sda1 mounted on / with fstype ext4
device n1:/home mounted on /home/my\\040own with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576
\tage:\t2813
\tcaps:\tcaps=0x3ffbffff,wtmult=512,dtsize=1048576
\tevents:\t1 2 3 4 5 6 7 8 9 10
\tbytes:\t1000 2000 0 0 4096 8192 1 2
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 1 0 0 30 30 0 30 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 3 5 0 600 4500 1 20 30 0
\t       WRITE: 2 2 0 9000 300 0 40 50 0
\t      GETATTR: 7 7 0 1400 1700 0 6 8 0
device n1:/home mounted on /again with fstype nfs4 statvers=1.1
\tbytes:\t1 1 1 1 1 1 1 1
device proc mounted on /proc with fstype proc
\tbytes:\t9 9 9 9 9 9 9 9
";

    /// Format of Linux 3.10, complete: two transports, a cache, and no error counts.
    const OLD: &str = "no device mounted on / with fstype rootfs
device fs:/data mounted on /data with fstype nfs statvers=1.1
\topts:\trw,vers=3,rsize=32768,wsize=32768,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,proto=tcp,timeo=600,retrans=2,sec=sys,local_lock=none
\tage:\t1523
\tcaps:\tcaps=0x3fef,wtmult=512,dtsize=32768,bsize=0,namlen=255
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t61 1409 3 18 33 12 1441 64 0 8 0 4 0 2 31 0 0 2 0 0 0 0 0 0 0 0 0
\tbytes:\t7340032 1048576 0 0 5242880 1048577 1280 256
\tfsc:\t0 0 0 0 0
\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)
\txprt:\ttcp 875 1 1 0 14 241 241 0 398 0
\txprt:\ttcp 0 0 1 0 14 12 12 0 12 0
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0
\t     GETATTR: 61 61 0 7320 6832 3 19 24
\t        READ: 160 163 1 21760 5263360 40 310 362
\t       WRITE: 32 32 0 1053056 4352 900 55 958
\t READDIRPLUS: 8 8 0 1152 4096 0 6 6
\t      COMMIT: 2 2 0 296 256 0 70 70

device fs:/home mounted on /home with fstype nfs statvers=1.1
\tage:\t1
\tbytes:\t0 0 0 0 0 0 0 0
\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)
\tper-op statistics
\t        READ: 0 0 0 0 0 0 0 0
";

    #[test]
    fn format_without_error_counts_is_parsed() {
        let found = parse(OLD.as_bytes());
        let [data, home] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&data.name[..], &home.mount[..]), (&b"fs:/data"[..], &b"/home"[..]));
        let expected = DeviceCounters {
            reads: Some(160),
            writes: Some(32),
            others: Some(71),
            read_bytes: Some(5_242_880),
            write_bytes: Some(1_048_577),
            read_time: Some(362_000_000),
            write_time: Some(958_000_000),
            other_time: Some(100_000_000),
            retransmits: Some(3),
            ..DeviceCounters::default()
        };
        assert_eq!(data.counters, expected);
        assert_eq!((home.counters.reads, home.counters.writes), (Some(0), None));
    }

    #[test]
    fn only_nfs_mounts_are_parsed() {
        let found = parse(SAMPLE.as_bytes());
        let [home] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&home.name[..], &home.mount[..]), (&b"n1:/home"[..], &b"/home/my own"[..]));
        let expected = DeviceCounters {
            reads: Some(3),
            writes: Some(2),
            others: Some(8),
            read_bytes: Some(4096),
            write_bytes: Some(8192),
            read_time: Some(30_000_000),
            write_time: Some(50_000_000),
            other_time: Some(8_000_000),
            retransmits: Some(2),
            ..DeviceCounters::default()
        };
        assert_eq!(home.counters, expected);
        assert_eq!(parse(b"device a mounted on b with fstype nfs\n\tbytes:\tx\n\tREAD: 1 2\n").len(), 1);
    }
}
