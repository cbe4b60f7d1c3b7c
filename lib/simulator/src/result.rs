//! Results of a simulation.

use super::disk::DiskTotals;
use super::rates::Rates;
use serde::Serialize;

/// Times in nanoseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Until the last process ended.
    pub elapsed: u64,
    /// Until the last transfer was done, which with write-behind may be later.
    pub drained: u64,
    /// One per processor.
    pub processors: Vec<Processor>,
    /// One per process.
    pub processes: Vec<Process>,
    /// What the cache did.
    pub cache: CacheTotals,
    /// What the disks did.
    pub disk: DiskTotals,
    /// Bytes over time.
    pub rates: Rates,
}

/// `run + overhead + idle` is [`Outcome::elapsed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Processor {
    /// In programs.
    pub run: u64,
    /// In system calls, switches, interrupts, and moving data of the SSD.
    pub overhead: u64,
    /// Nothing to do.
    pub idle: u64,
    /// From one process to another.
    pub switches: u64,
    /// Served.
    pub interrupts: u64,
}

/// `run + overhead + ready + blocked` is `ended - started`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Of its program.
    pub name: String,
    /// When it was ready for the first time.
    pub started: u64,
    /// When its last request had completed and its computing was done.
    pub ended: u64,
    /// In its program.
    pub run: u64,
    /// On a processor, but not in its program; interrupts that others caused included.
    pub overhead: u64,
    /// Waiting for a processor.
    pub ready: u64,
    /// Waiting for transfers or room in the cache.
    pub blocked: u64,
    /// Requests.
    pub reads: u64,
    /// Requests.
    pub writes: u64,
    /// Bytes asked for.
    pub bytes_read: u64,
    /// Bytes.
    pub bytes_written: u64,
    /// Times it waited for transfers.
    pub waits: u64,
    /// Times it waited because no block of the cache could be replaced.
    pub room_waits: u64,
}

/// What the cache did. Counts are of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheTotals {
    /// Asked for by reads.
    pub read: u64,
    /// Were in the first level.
    pub memory_hits: u64,
    /// Were in the SSD, where there is one.
    pub ssd_hits: u64,
    /// Were on their way: read ahead, or for somebody else.
    pub late_hits: u64,
    /// Had to be read.
    pub misses: u64,
    /// Written by programs.
    pub written: u64,
    /// Read ahead.
    pub read_ahead: u64,
    /// Of these, asked for later.
    pub read_ahead_used: u64,
}

impl CacheTotals {
    /// Part of the blocks asked for that did not have to be fetched from disk for it; `None`: none was asked for.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.read > 0).then(|| 1.0 - self.misses as f64 / self.read as f64)
    }
}

impl Outcome {
    /// All processors' idle time.
    #[must_use]
    pub fn idle(&self) -> u64 {
        self.processors.iter().map(|processor| processor.idle).sum()
    }

    /// All processors' time in programs.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.processors.iter().map(|processor| processor.run).sum()
    }

    /// All processors' overhead.
    #[must_use]
    pub fn overhead(&self) -> u64 {
        self.processors.iter().map(|processor| processor.overhead).sum()
    }

    /// Part of the time in which processors were not idle.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let all = self.elapsed as f64 * self.processors.len() as f64;
        if all == 0.0 { 1.0 } else { 1.0 - self.idle() as f64 / all }
    }
}
