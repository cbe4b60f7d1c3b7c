//! Results of a simulation.

use super::disk::DiskTotals;
use super::rates::Rates;
use serde::Serialize;

/// Result of a simulation. Times are in nanoseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Time until the last process ended.
    pub elapsed: u64,
    /// Time until the last transfer was done, which may be later with write-behind.
    pub drained: u64,
    /// Times of each processor.
    pub processors: Vec<Processor>,
    /// Times and counts of each process.
    pub processes: Vec<Process>,
    /// Totals of the cache.
    pub cache: CacheTotals,
    /// Totals of the disks.
    pub disk: DiskTotals,
    /// Bytes over time.
    pub rates: Rates,
}

/// Times of a processor. `run + overhead + idle` is [`Outcome::elapsed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Processor {
    /// Time in programs.
    pub run: u64,
    /// Time in system calls, switches, interrupts, and moving data of the SSD.
    pub overhead: u64,
    /// Idle time.
    pub idle: u64,
    /// Number of switches from one process to another.
    pub switches: u64,
    /// Number of interrupts served.
    pub interrupts: u64,
}

/// Times and counts of a process. `run + overhead + ready + blocked` is `ended - started`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Name of the program.
    pub name: String,
    /// Time at which the process was first ready.
    pub started: u64,
    /// Time at which its last request had completed and its computation was done.
    pub ended: u64,
    /// Time in its program.
    pub run: u64,
    /// Time on a processor outside its program, including interrupts of other processes.
    pub overhead: u64,
    /// Time that it waited for a processor.
    pub ready: u64,
    /// Time that it waited for transfers or for a free block in the cache.
    pub blocked: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes requested by reads.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Number of times it waited for transfers.
    pub waits: u64,
    /// Number of times it waited because no block of the cache could be replaced.
    pub room_waits: u64,
}

/// Totals of the cache, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheTotals {
    /// Blocks requested by reads.
    pub read: u64,
    /// Blocks found in the first level.
    pub memory_hits: u64,
    /// Blocks found in the SSD, if there is one.
    pub ssd_hits: u64,
    /// Blocks that were already being read, ahead or for another process.
    pub late_hits: u64,
    /// Blocks that had to be read.
    pub misses: u64,
    /// Blocks written by programs.
    pub written: u64,
    /// Blocks read ahead.
    pub read_ahead: u64,
    /// Blocks read ahead that were requested later.
    pub read_ahead_used: u64,
}

impl CacheTotals {
    /// Returns the fraction of the requested blocks that did not have to be read from disk for the
    /// request; `None` if none was requested.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.read > 0).then(|| 1.0 - self.misses as f64 / self.read as f64)
    }
}

impl Outcome {
    /// Returns the idle time of all processors.
    #[must_use]
    pub fn idle(&self) -> u64 {
        self.processors.iter().map(|processor| processor.idle).sum()
    }

    /// Returns the time of all processors in programs.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.processors.iter().map(|processor| processor.run).sum()
    }

    /// Returns the overhead of all processors.
    #[must_use]
    pub fn overhead(&self) -> u64 {
        self.processors.iter().map(|processor| processor.overhead).sum()
    }

    /// Returns the fraction of time in which processors were not idle.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let all = self.elapsed as f64 * self.processors.len() as f64;
        if all == 0.0 { 1.0 } else { 1.0 - self.idle() as f64 / all }
    }
}
