//! Tests of the simulator: closed forms, invariants, and a plain model of the cache.

#![allow(clippy::unwrap_used)]

mod closed;
mod invariants;
mod paper;

use super::config::{Cache, Config, Disk, Order, Policy, Ssd};
use super::{Outcome, Request, Workload, simulate};

const BLOCK: u64 = 4096;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Returns a machine on which only the disk takes time: 2 ms to position, 1 ns per byte.
fn plain() -> Config {
    Config {
        processors: 1,
        quantum: 100 * MS,
        switch: 0,
        call: 0,
        interrupt: 0,
        cache: Cache { size: 0, block: BLOCK, policy: Policy::Lru, limit: 0 },
        ssd: Ssd::default(),
        read_ahead: false,
        write_behind: false,
        delay: 0,
        transfer: 1 << 30,
        disk: Disk {
            queue: false,
            devices: 1,
            stripe: 1 << 20,
            channels: 1,
            order: Order::Fifo,
            read_latency: 2 * MS,
            write_latency: 2 * MS,
            min_seek: 0,
            max_seek: 0,
            rotation: 0,
            capacity: 1 << 30,
            read_rate: 1_000_000_000,
            write_rate: 1_000_000_000,
            link_rate: 0,
        },
    }
}

fn request(cpu: u64, write: bool, offset: u64, length: u64) -> Request {
    Request { cpu, offset, length, file: 0, write, is_async: false, sequential: false }
}

/// Returns the time in which a disk of `plain` serves this many bytes.
fn service(bytes: u64) -> u64 {
    2 * MS + bytes
}

fn run(config: &Config, workload: &Workload) -> Outcome {
    simulate(config, workload).unwrap()
}
