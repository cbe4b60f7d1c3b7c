//! Block devices: `/proc/diskstats`. Source: the kernel's Documentation/admin-guide/iostats.rst.

use super::{DeviceReading, from_ms, lines, number, words};
use miot_proto::wire::{DeviceCounters, DeviceKind};

/// Bytes of the unit in which the kernel counts, whatever the sector size of the device.
const SECTOR: u64 = 512;

/// Parses `/proc/diskstats`; devices that were never used are left out.
///
/// ```text
/// major minor name | reads merged sectors ms | writes merged sectors ms |
///                  | in flight, ms busy, ms weighted
///                  | discards merged sectors ms (Linux 4.18) | flushes ms (Linux 5.5)
/// ```
pub(super) fn parse(text: &[u8]) -> Vec<DeviceReading> {
    lines(text).filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<DeviceReading> {
    let mut words = words(line).skip(2);
    let name = words.next()?.to_vec();
    let fields: Vec<u64> = words.map_while(number).collect();
    let [
        reads,
        reads_merged,
        read,
        read_ms,
        writes,
        writes_merged,
        written,
        write_ms,
        in_flight,
        busy,
        weighted,
        rest @ ..,
    ] = &fields[..]
    else {
        return None;
    };
    let (discards, discard_ms) = (rest.first(), rest.get(3));
    let (flushes, flush_ms) = (rest.get(4), rest.get(5));
    let sum = |one: Option<&u64>, other: Option<&u64>| {
        one.map(|one| one.saturating_add(other.copied().unwrap_or(0)))
    };
    if *reads == 0 && *writes == 0 {
        return None;
    }
    let counters = DeviceCounters {
        reads: Some(*reads),
        writes: Some(*writes),
        others: sum(discards, flushes),
        read_bytes: Some(read.saturating_mul(SECTOR)),
        write_bytes: Some(written.saturating_mul(SECTOR)),
        read_time: Some(from_ms(*read_ms)),
        write_time: Some(from_ms(*write_ms)),
        other_time: sum(discard_ms, flush_ms).map(from_ms),
        reads_merged: Some(*reads_merged),
        writes_merged: Some(*writes_merged),
        busy: Some(from_ms(*busy)),
        queue_time: Some(from_ms(*weighted)),
        in_flight: Some(*in_flight),
        retransmits: None,
    };
    Some(DeviceReading { kind: DeviceKind::Block, name, mount: Vec::new(), counters })
}

/// Name of a device's directory in sysfs, where "!" replaces "/".
pub(super) fn in_sysfs(name: &[u8]) -> String {
    String::from_utf8_lossy(name).replace('/', "!")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_kernel_versions_are_parsed() {
        let old = " 259 0 nvme0n1 1 2 3 4 5 6 7 8 9 10 11\n";
        let new = " 104 0 cciss/c0d0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        let text = format!("{old}{new}   7 1 loop1 0 0 0 0 0 0 0 0 0 0 0\nshort 1 2\n\n");
        let found = parse(text.as_bytes());
        let [nvme, cciss] = &found[..] else { panic!("{found:?}") };
        assert_eq!(nvme.name, b"nvme0n1");
        assert_eq!((nvme.counters.others, nvme.counters.other_time), (None, None));
        assert_eq!(nvme.counters.read_bytes, Some(3 * 512));
        assert_eq!((nvme.counters.in_flight, nvme.counters.queue_time), (Some(9), Some(11_000_000)));
        assert_eq!((cciss.counters.others, cciss.counters.other_time), (Some(28), Some(32_000_000)));
        assert_eq!(in_sysfs(&cciss.name), "cciss!c0d0");
    }
}
