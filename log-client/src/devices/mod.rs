//! Activity of the node's devices: samples of the kernel's counters at an interval, as in iostat.
//!
//! This is the `iostat-mon` of Carns et al., *Understanding and Improving Computational Science
//! Storage Access through Continuous Characterization* (MSST 2011, section II-B). It recorded
//! bandwidth, amount of data, percent utilization and average response time for each block device
//! of file servers, once a minute. Here mounted network file systems are sampled as well, as far as
//! the client's kernel counts: [`nfs`], [`lustre`], [`fuse`].
//!
//! Counters are shipped as differences between two samples, so that they can be added up; readers
//! compute ratios. With Δ the interval and the names of [`DeviceCounters`], as iostat(1) (sysstat)
//! computes them:
//!
//! | quantity | formula | iostat |
//! |---|---|---|
//! | utilization | busy / Δ | `%util` |
//! | response time | (read_time + write_time + other_time) / (reads + writes + others) | `await` |
//! | response time of reads, of writes | read_time / reads, write_time / writes | `r_await`, `w_await` |
//! | queue length | queue_time / Δ | `aqu-sz` |
//! | service time | busy / (reads + writes) | `svctm`, of a device that serves one request at a time |
//!
//! The sweeper's thread reads the counters once per `devices_every`, in some hundred microseconds
//! (`examples/devices_cost.rs`). No read waits for a server. Nothing is read while the spool is
//! full; the next interval is longer then, and nothing is missing.

mod block;
mod fuse;
mod lustre;
pub(crate) mod mounts;
mod nfs;

use crate::clock::{boottime_ns, node_ns};
use miot_proto::wire::{Device, DeviceCounters, DeviceKind, DeviceSample, MAX_DEVICE_NAME, MAX_DEVICES};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The kernel's millisecond counters have 32 bits.
const WRAP_NS: u64 = (1 << 32) * 1_000_000;

/// A device with its counters since the kernel began to count.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceReading {
    kind: DeviceKind,
    name: Vec<u8>,
    mount: Vec<u8>,
    counters: DeviceCounters,
}

type Key = (DeviceKindNumber, Vec<u8>, Vec<u8>);
type DeviceKindNumber = u8;

/// Sampler of the node's devices.
#[derive(Debug)]
pub(crate) struct Devices {
    /// Sampling interval; zero: never.
    every: Duration,
    boot: u128,
    root: PathBuf,
    before: HashMap<Key, DeviceCounters>,
    /// Time since boot of the last reading, nanoseconds.
    read: u64,
    due: Instant,
}

impl Devices {
    /// Takes the first reading, the baseline of the first sample.
    pub(crate) fn new(every: Duration, boot: u128) -> Devices {
        Devices::under(Path::new("/"), every, boot)
    }

    /// `root`: directory that contains `proc` and `sys`.
    pub(crate) fn under(root: &Path, every: Duration, boot: u128) -> Devices {
        let mut devices = Devices {
            every,
            boot,
            root: root.into(),
            before: HashMap::new(),
            read: 0,
            due: Instant::now() + every,
        };
        if !every.is_zero() {
            devices.read = boottime_ns();
            devices.before = devices.readings().into_iter().map(|r| (key(&r), r.counters)).collect();
        }
        devices
    }

    /// True if the next sample is due.
    pub(crate) fn is_due(&self) -> bool {
        !self.every.is_zero() && Instant::now() >= self.due
    }

    /// Takes a sample: activity since the last one. `None` if there are no devices, or sampling is
    /// off.
    pub(crate) fn sample(&mut self) -> Option<DeviceSample> {
        if self.every.is_zero() {
            return None;
        }
        self.due = Instant::now() + self.every;
        let (uptime, time) = (boottime_ns(), node_ns());
        let readings = self.readings();
        let mut before = std::mem::take(&mut self.before);
        let mut devices = Vec::new();
        for reading in readings {
            let key = key(&reading);
            let counters = before.remove(&key).and_then(|before| since(&before, &reading.counters));
            self.before.insert(key, reading.counters);
            let DeviceReading { kind, name, mount, .. } = reading;
            devices.extend(counters.map(|counters| Device { kind, name, mount, counters }));
        }
        let interval = uptime.saturating_sub(std::mem::replace(&mut self.read, uptime));
        (!devices.is_empty()).then_some(DeviceSample { boot: self.boot, uptime, time, interval, devices })
    }

    /// All devices that were ever used. Unreadable ones are left out.
    fn readings(&self) -> Vec<DeviceReading> {
        let read = |path: &str| std::fs::read(self.root.join(path)).unwrap_or_default();
        let mut found = block::parse(&read("proc/diskstats"));
        found.retain(|disk| {
            !self.root.join("sys/class/block").join(block::in_sysfs(&disk.name)).join("partition").exists()
        });
        found.extend(nfs::parse(&read("proc/self/mountstats")));
        let mounts = mounts::parse(&read("proc/self/mountinfo"));
        found.extend(lustre::read(&self.root, &mounts));
        found.extend(fuse::read(&self.root, &mounts));
        found.truncate(MAX_DEVICES);
        for reading in &mut found {
            reading.name.truncate(MAX_DEVICE_NAME);
            reading.mount.truncate(MAX_DEVICE_NAME);
        }
        found
    }
}

fn key(reading: &DeviceReading) -> Key {
    (reading.kind as u8, reading.name.clone(), reading.mount.clone())
}

/// The difference of two readings; `None` if request counts decreased: then it is another device
/// with the same name.
fn since(before: &DeviceCounters, now: &DeviceCounters) -> Option<DeviceCounters> {
    let count = |of: fn(&DeviceCounters) -> Option<u64>| match (of(before), of(now)) {
        (Some(before), Some(now)) => Ok(Some(now.checked_sub(before).ok_or(())?)),
        _ => Ok(None),
    };
    let time = |of: fn(&DeviceCounters) -> Option<u64>| {
        let (before, now) = (of(before)?, of(now)?);
        Some(now.checked_sub(before).unwrap_or_else(|| (now + WRAP_NS).saturating_sub(before)))
    };
    let counts = || -> Result<DeviceCounters, ()> {
        Ok(DeviceCounters {
            reads: count(|c| c.reads)?,
            writes: count(|c| c.writes)?,
            others: count(|c| c.others)?,
            read_bytes: count(|c| c.read_bytes)?,
            write_bytes: count(|c| c.write_bytes)?,
            reads_merged: count(|c| c.reads_merged)?,
            writes_merged: count(|c| c.writes_merged)?,
            retransmits: count(|c| c.retransmits)?,
            read_time: time(|c| c.read_time),
            write_time: time(|c| c.write_time),
            other_time: time(|c| c.other_time),
            busy: time(|c| c.busy),
            queue_time: time(|c| c.queue_time),
            in_flight: now.in_flight,
        })
    };
    counts().ok()
}

/// Converts milliseconds to nanoseconds.
fn from_ms(milliseconds: u64) -> u64 {
    milliseconds.saturating_mul(1_000_000)
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii)
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISKS: &str = "   8       0 sda 10 1 16 100 20 2 32 200 0 150 300 3 0 8 30 4 40\n";

    fn place(diskstats: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        std::fs::create_dir_all(root.path().join("sys/class/block/sda1/partition")).unwrap();
        put(&root, diskstats);
        root
    }

    fn put(root: &tempfile::TempDir, diskstats: &str) {
        std::fs::write(root.path().join("proc/diskstats"), diskstats).unwrap();
    }

    #[test]
    fn samples_are_differences_with_ascending_times() {
        let root = place(&format!("{DISKS}   8       1 sda1 5 0 5 5 5 0 5 5 0 5 5\n"));
        let mut devices = Devices::under(root.path(), Duration::from_secs(10), 7);
        assert!(!devices.is_due());
        put(
            &root,
            "   8 0 sda 13 1 24 103 20 2 32 200 1 155 310 3 0 8 30 4 40\n   8 1 sda1 9 0 9 9 9 0 9 9 0 9 9\n",
        );
        let sample = devices.sample().unwrap();
        let [sda] = &sample.devices[..] else { panic!("{sample:?}: partitions are left out") };
        assert_eq!((&sda.name[..], &sda.mount[..], sda.kind), (&b"sda"[..], &b""[..], DeviceKind::Block));
        let expected = DeviceCounters {
            reads: Some(3),
            writes: Some(0),
            others: Some(0),
            read_bytes: Some(8 * 512),
            write_bytes: Some(0),
            read_time: Some(3_000_000),
            write_time: Some(0),
            other_time: Some(0),
            reads_merged: Some(0),
            writes_merged: Some(0),
            busy: Some(5_000_000),
            queue_time: Some(10_000_000),
            in_flight: Some(1),
            retransmits: None,
        };
        assert_eq!(sda.counters, expected);
        assert_eq!(sample.boot, 7);
        let second = devices.sample().unwrap();
        assert!(second.uptime > sample.uptime && second.time > sample.time);
        assert_eq!(second.interval, second.uptime - sample.uptime);
    }

    #[test]
    fn reused_device_name_restarts_and_wrapped_counter_continues() {
        let root = place(DISKS);
        let mut devices = Devices::under(root.path(), Duration::from_secs(10), 7);
        put(&root, "   8 0 sda 1 0 8 1 0 0 0 0 0 1 1\n");
        assert_eq!(devices.sample(), None, "fewer requests than before");
        put(&root, "   8 0 sda 2 0 16 4294967295 0 0 0 0 0 1 1\n");
        assert_eq!(devices.sample().unwrap().devices[0].counters.read_time, Some(from_ms(4_294_967_294)));
        put(&root, "   8 0 sda 3 0 16 4 0 0 0 0 0 1 1\n");
        assert_eq!(devices.sample().unwrap().devices[0].counters.read_time, Some(from_ms(5)));
    }

    #[test]
    fn disabled_sampling_takes_no_samples() {
        let root = place(DISKS);
        let mut devices = Devices::under(root.path(), Duration::ZERO, 7);
        assert!(!devices.is_due() && devices.sample().is_none());
    }
}
