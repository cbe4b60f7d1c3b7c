//! Cycles in the data rate of a process (Miller 1990, section 5.3: "the bursts came in cycles",
//! "request rate peaks were generally evenly spaced through the program's execution").
//!
//! The bytes that a process reads and writes are distributed over its lifetime, those of each
//! request evenly over its duration, in samples of 1 ms. If there are more than [`SAMPLES`], pairs
//! of samples are merged. Periods are searched by autocorrelation in the samples of the processes
//! that moved the most bytes, and of the trace as a whole. Periods from 4 samples up to a quarter
//! of a lifetime are found, see `cycles/find.rs`; `--since` and `--until` select a shorter time,
//! with finer samples.
//!
//! Memory: one series of at most [`SAMPLES`] for each of at most [`PROCESSES`] processes. If there
//! are more processes, those with the fewest bytes are dropped; the result contains their number.

mod autocorrelation;
mod find;

use arrow_array::RecordBatch;
use miot_proto::op::{Layer, OpClass};
use miot_trace_events::Event;
use miot_trace_events::outermost::{OutermostEvents, each_outermost};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Maximum number of samples of a series, which determine a period at least to a thousandth of the
/// lifetime of the process.
pub const SAMPLES: usize = 4096;
/// Maximum number of processes with a series: 32 MB.
pub const PROCESSES: usize = 1024;
/// Number of processes whose periods are searched: those that moved the most bytes.
const EXAMINED: usize = 256;
/// Initial length of a sample in nanoseconds.
const FINEST: i64 = 1_000_000;

/// Cycles of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cycles {
    /// Cycles of all processes together; `None` if nothing moved.
    pub all: Option<Rhythm>,
    /// Cycles of single processes, the one that moved the most bytes first.
    pub processes: Vec<Rhythm>,
    /// Number of processes that moved data and were not examined, because others moved more.
    pub not_examined: u64,
}

/// Cycles in the data rate of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rhythm {
    /// Id of the process in the trace; `None` for all processes.
    pub process: Option<u64>,
    /// Process id on its node; `None` for all processes.
    pub pid: Option<u32>,
    /// Begin of the first request that moved data, nanoseconds since 1970.
    pub begin: i64,
    /// End of the last request that moved data.
    pub end: i64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Length of a sample in nanoseconds.
    pub sample: u64,
    /// Periods, the strongest first; empty if the rate does not repeat more than by chance.
    pub cycles: Vec<Cycle>,
}

/// A period of the data rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cycle {
    /// Length in nanoseconds.
    pub period: u64,
    /// Autocorrelation of the rate at this shift: the share of its variance that repeats, 1 if all
    /// cycles are equal.
    pub strength: f64,
    /// Contrast that a period by chance does not reach.
    pub bound: f64,
    /// Number of cycles from `begin` to `end`.
    pub count: u64,
    /// Mean bytes read and written in one cycle.
    pub bytes: u64,
}

/// Rate of one process.
#[derive(Debug)]
struct Series {
    /// Begin of the first sample, nanoseconds since 1970.
    origin: i64,
    sample: i64,
    samples: Vec<u64>,
    end: i64,
    bytes: u64,
    pid: u32,
}

/// Collects the rates of processes.
#[derive(Debug, Default)]
pub struct Rates {
    events: OutermostEvents,
    all: Option<Series>,
    processes: HashMap<u64, Series>,
    let_go: HashSet<u64>,
}

impl Rates {
    /// Adds events, in order. A batch without [`miot_trace_events::events::FEWEST_COLUMNS`] adds
    /// nothing.
    pub fn add(&mut self, batch: &RecordBatch) {
        each_outermost(self, |analysis| &mut analysis.events, batch, Self::request);
    }

    /// Adds an outermost request.
    pub fn request(&mut self, event: &Event) {
        let bytes = match event.class() {
            OpClass::Copy => event.moved().saturating_mul(2),
            _ => event.moved(),
        };
        if bytes == 0 || event.layer == Some(Layer::App) {
            return;
        }
        self.all.get_or_insert_with(|| Series::new(event)).put(event, bytes);
        if self.let_go.contains(&event.process) {
            return;
        }
        self.processes.entry(event.process).or_insert_with(|| Series::new(event)).put(event, bytes);
        if self.processes.len() > PROCESSES {
            self.drop_smaller_half();
        }
    }

    fn drop_smaller_half(&mut self) {
        let mut sizes: Vec<(u64, u64)> =
            self.processes.iter().map(|(id, series)| (series.bytes, *id)).collect();
        sizes.sort_unstable();
        for (_, id) in sizes.into_iter().take(PROCESSES / 2) {
            self.processes.remove(&id);
            self.let_go.insert(id);
        }
    }

    /// Returns the result.
    #[must_use]
    pub fn finish(self) -> Cycles {
        let mut processes: Vec<(u64, Series)> = self.processes.into_iter().collect();
        processes.sort_unstable_by_key(|(id, series)| (Reverse(series.bytes), *id));
        let left = processes.len().saturating_sub(EXAMINED);
        processes.truncate(EXAMINED);
        Cycles {
            all: self.all.as_ref().map(|series| Rhythm { pid: None, ..series.rhythm(None) }),
            processes: processes.iter().map(|(id, series)| series.rhythm(Some(*id))).collect(),
            not_examined: (self.let_go.len() + left) as u64,
        }
    }
}

impl Series {
    fn new(event: &Event) -> Series {
        Series {
            origin: event.begin,
            sample: FINEST,
            samples: Vec::new(),
            end: event.end,
            bytes: 0,
            pid: event.pid,
        }
    }

    /// Returns the sample of a time. Times before the first sample belong to it.
    fn number(&self, time: i64) -> u64 {
        if time <= self.origin { 0 } else { time.abs_diff(self.origin) / self.sample.unsigned_abs() }
    }

    fn put(&mut self, event: &Event, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.end = self.end.max(event.end);
        let last = event.end.saturating_sub(1).max(event.begin);
        while self.number(last) >= SAMPLES as u64 {
            self.sample = self.sample.saturating_mul(2);
            self.samples = self
                .samples
                .chunks(2)
                .map(|pair| pair.iter().fold(0u64, |a, b| a.saturating_add(*b)))
                .collect();
        }
        let (from, to) = (self.number(event.begin) as usize, self.number(last) as usize);
        if self.samples.len() <= to {
            self.samples.resize(to + 1, 0);
        }
        let duration = u128::from(event.duration());
        let mut before = 0;
        for number in from..=to {
            let now = if number == to {
                bytes
            } else {
                let next = i128::from(self.origin) + (number as i128 + 1) * i128::from(self.sample);
                let elapsed = (next - i128::from(event.begin)) as u128;
                (u128::from(bytes) * elapsed.min(duration) / duration.max(1)) as u64
            };
            self.samples[number] = self.samples[number].saturating_add(now - before);
            before = now;
        }
    }

    fn rhythm(&self, process: Option<u64>) -> Rhythm {
        let cycle = |found: find::Period, alone: bool| {
            let count = count(&self.samples, found.period, alone);
            Cycle {
                period: (found.period * self.sample as f64) as u64,
                strength: found.strength,
                bound: found.bound,
                count,
                bytes: self.bytes / count.max(1),
            }
        };
        let found = find::periods(&self.samples);
        let alone = found.len() == 1;
        Rhythm {
            process,
            pid: Some(self.pid),
            begin: self.origin,
            end: self.end,
            bytes: self.bytes,
            sample: self.sample.unsigned_abs(),
            cycles: found.into_iter().map(|found| cycle(found, alone)).collect(),
        }
    }
}

/// Returns the number of cycles. If nothing moves in most of a cycle, the bursts are counted one by
/// one, so that late bursts do not falsify the number; otherwise it is the time divided by the
/// period.
fn count(samples: &[u64], period: f64, alone: bool) -> u64 {
    let active = samples.iter().filter(|sample| **sample > 0).count();
    let by_time = (samples.len() as f64 / period).round() as u64;
    if !alone || 2 * active > samples.len() {
        return by_time;
    }
    let next = |from: f64| {
        let from = from.max(0.0) as usize;
        samples.iter().skip(from).position(|sample| *sample > 0).map(|at| (from + at) as f64)
    };
    let (mut count, mut begin) = (0, next(0.0));
    while let Some(at) = begin {
        count += 1;
        begin = next(at + 0.75 * period);
    }
    count
}

#[cfg(test)]
mod tests;
