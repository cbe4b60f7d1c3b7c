//! Machines by name.
//!
//! A preset has the parameters of a machine that its manufacturer or a measurement in the open
//! literature states. It is a starting point and does not describe a particular device exactly.

use super::config::{Cache, Config, Disk, Order, Policy, Ssd};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Names with a description of one line each.
pub const ALL: [(&str, &str); 7] = [
    ("cray", "Miller 1990: no queues, up to 15 ms to position, then 9.6 MB/s"),
    ("cray-location", "cray taken literally: completion depends on location alone, at most 15 ms"),
    ("cray-ssd", "cray with an SSD cache of 32 MW (256 MiB) at 1 us per KB"),
    ("disk", "one current 7200 rpm disk, elevator"),
    ("sata", "one SATA SSD"),
    ("nvme", "one NVMe SSD"),
    ("parallel", "8 servers behind a network of 100 Gbit/s, striped by 1 MiB"),
];

/// Returns the machine of this name.
#[must_use]
pub fn named(name: &str) -> Option<Config> {
    Some(match name {
        "cray" => cray(),
        "cray-location" => {
            let disk = Disk { read_rate: 0, write_rate: 0, ..cray_disk() };
            Config { disk, ..cray() }
        }
        "cray-ssd" => Config {
            cache: Cache { size: 0, ..cray().cache },
            ssd: Ssd { size: 256 * MIB, set_up: 10 * US, per_kib: US },
            ..cray()
        },
        "disk" => today(disk_7200()),
        "sata" => today(sata()),
        "nvme" => today(nvme()),
        "parallel" => today(parallel()),
        _ => return None,
    })
}

/// Returns the machine of Miller 1990.
///
/// Section 6.1 prints no number for quantum, switch, file-system code and interrupt. Two venus take
/// 2 × 379 s of processor time and would take 761 s without idling. The difference of 3 s for 2 ×
/// 34,904 requests is 43 us per request, which is divided among them here. Call and interrupt occur
/// once per request to disk, a switch at most twice.
fn cray() -> Config {
    Config {
        processors: 1,
        quantum: 100 * MS,
        switch: 10 * US,
        call: 20 * US,
        interrupt: 10 * US,
        cache: Cache { size: 32 * MIB, block: 4096, policy: Policy::Lru, limit: 0 },
        ssd: Ssd::default(),
        read_ahead: true,
        write_behind: true,
        delay: 0,
        transfer: MIB,
        disk: cray_disk(),
    }
}

/// Returns the disks of Miller 1990.
///
/// 9.6 MB/s and "up to 15 ms" are from sections 2.2 and 6.2: the longest seek and half a rotation
/// at 3600 rpm together take 15 ms. There are no queues. The address space is assumed to be one
/// disk of 1.2 GB; the paper has no number.
pub(super) fn cray_disk() -> Disk {
    Disk {
        queue: false,
        devices: 1,
        stripe: MIB,
        channels: 1,
        order: Order::Fifo,
        read_latency: 0,
        write_latency: 0,
        min_seek: MS,
        max_seek: 6_667 * US,
        rotation: 16_666 * US,
        capacity: 1_200_000_000,
        read_rate: 9_600_000,
        write_rate: 9_600_000,
        link_rate: 0,
    }
}

/// Returns a machine with a current processor and kernel: a system call that is served by the page
/// cache takes about a microsecond, a switch 2 us, an interrupt 2 us (orders of magnitude of
/// lmbench-like measurements on x86-64).
fn today(disk: Disk) -> Config {
    Config {
        quantum: 4 * MS,
        switch: 2 * US,
        call: US,
        interrupt: 2 * US,
        cache: Cache { size: GIB, block: 4096, policy: Policy::Lru, limit: 0 },
        delay: 5_000 * MS,
        disk,
        ..cray()
    }
}

/// Returns a 7200 rpm nearline disk: 8.33 ms per rotation, 8.5 ms average and about 16 ms
/// full-stroke seek, 250 MB/s at the outer edge (data sheets of 16-20 TB nearline SATA disks of
/// about 2020).
fn disk_7200() -> Disk {
    Disk {
        queue: true,
        order: Order::Look,
        read_latency: 100 * US,
        write_latency: 100 * US,
        min_seek: 500 * US,
        max_seek: 16 * MS,
        rotation: 8_333 * US,
        capacity: 16_000 * GIB,
        read_rate: 250_000_000,
        write_rate: 250_000_000,
        ..cray_disk()
    }
}

/// Returns a SATA SSD. The interface (6 Gbit/s) transfers 550 MB/s. Data sheets of TLC drives of
/// about 2020 specify 10,000 reads/s at queue depth 1 and 90,000 at large depth: 100 us, 10 at
/// once.
fn sata() -> Disk {
    Disk {
        queue: true,
        channels: 10,
        read_latency: 100 * US,
        write_latency: 30 * US,
        min_seek: 0,
        max_seek: 0,
        rotation: 0,
        capacity: 1_000 * GIB,
        read_rate: 550_000_000,
        write_rate: 520_000_000,
        ..cray_disk()
    }
}

/// Returns an NVMe SSD with PCIe 4.0 x4 and TLC. Data sheets of 2020-2022 specify 7.0 and 5.0 GB/s,
/// about 70 us for a random read at depth 1 and about 1,000,000 reads per second: 70 at once.
/// Writes go to a buffer in 15 us.
fn nvme() -> Disk {
    Disk {
        channels: 70,
        read_latency: 70 * US,
        write_latency: 15 * US,
        read_rate: 7_000_000_000,
        write_rate: 5_000_000_000,
        ..sata()
    }
}

/// Returns 8 object servers of 2 GB/s each behind a network of 100 Gbit/s. A request to a server
/// and its disk array and back takes 500 us; each server serves 16 at once. Stripes have 1 MiB, the
/// default of Lustre.
fn parallel() -> Disk {
    Disk {
        devices: 8,
        stripe: MIB,
        channels: 16,
        read_latency: 500 * US,
        write_latency: 500 * US,
        capacity: 100_000 * GIB,
        read_rate: 2_000_000_000,
        write_rate: 2_000_000_000,
        link_rate: 12_500_000_000,
        ..sata()
    }
}
