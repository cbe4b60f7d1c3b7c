//! Distribution of the throughput of a trace over time (Carns et al. 2011, section IV, figure 7):
//! bytes per interval, the distribution of the rates, and the share of time during which the rate
//! is below a fraction of its peak.
//!
//! Intervals begin at multiples of their length since 1970. The bytes of a request are distributed
//! evenly over its duration. The bytes that a request has moved before some moment are rounded
//! down, so that no byte is lost or counted twice. Only the outermost requests count, see
//! [`miot_trace_events::Outermost`]. The first and the last interval of a trace are treated like
//! all others, although the trace may not cover them completely.
//!
//! Only intervals with requests take memory. If there are more than [`MOST`], pairs of intervals
//! are merged, so that a trace of any length fits. Pairs are also merged if a single request spans
//! an eighth of [`MOST`]. The result contains the final interval.

use arrow_array::RecordBatch;
use miot_proto::op::{Layer, OpClass};
use miot_trace_events::Event;
use miot_trace_events::outermost::{OutermostEvents, each_outermost};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// One minute, as in the study of Carns et al.
pub const INTERVAL: u64 = 60_000_000_000;
/// Maximum number of intervals with requests: 12 days of seconds, two years of minutes, in about 60
/// MB.
pub const MOST: usize = 1 << 20;
/// Fractions of the peak for which the share of time below is reported; 0.33 and 0.05 are those of
/// Carns et al.
pub const FRACTIONS: [f64; 8] = [0.01, 0.05, 0.1, 0.25, 0.33, 0.5, 0.75, 0.9];
/// Reported quantiles.
pub const QUANTILES: [f64; 9] = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99];

/// Activity in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Begin in nanoseconds since 1970.
    pub begin: i64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Requests of any kind in progress at some moment of the interval.
    pub requests: u64,
}

impl Interval {
    /// Returns the bytes read and written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }

    fn merge(&mut self, other: &Interval) {
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
        self.requests = self.requests.saturating_add(other.requests);
    }
}

/// Distribution of the throughput of a trace over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bursts {
    /// Length of an interval, nanoseconds.
    pub interval: u64,
    /// Requested length of an interval; less than `interval` if there were too many.
    pub asked: u64,
    /// Begin of the first request, nanoseconds since 1970; 0 without requests.
    pub begin: i64,
    /// End of the last request; 0 without requests.
    pub end: i64,
    /// Number of intervals from the one with the first begin to the one with the last end,
    /// including those without requests.
    pub intervals: u64,
    /// Throughput of reads and writes.
    pub total: Throughput,
    /// Throughput of reads.
    pub read: Throughput,
    /// Throughput of writes.
    pub written: Throughput,
    /// Intervals with requests, in order of time.
    pub series: Vec<Interval>,
}

/// Distribution of the throughput over intervals. Rates are in bytes per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Throughput {
    /// Total bytes.
    pub bytes: u64,
    /// Number of intervals in which bytes moved.
    pub active: u64,
    /// Mean over all intervals.
    pub mean: f64,
    /// Rate of the interval with the most bytes.
    pub peak: f64,
    /// Begin of the first interval with the peak rate, nanoseconds since 1970; `None` if nothing
    /// moved.
    pub peak_at: Option<i64>,
    /// Quantiles at [`QUANTILES`]: the smallest rate that at least this share of all intervals does
    /// not exceed.
    pub quantiles: Vec<Quantile>,
    /// Shares at [`FRACTIONS`].
    pub below: Vec<Below>,
}

/// A quantile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantile {
    /// Share of intervals.
    pub share: f64,
    /// Bytes per second.
    pub rate: f64,
}

/// Share of time below a fraction of the peak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Below {
    /// Fraction of the peak.
    pub of_peak: f64,
    /// Share of intervals whose throughput is less than this fraction.
    pub share: f64,
}

/// Distributes the requests of a trace over intervals.
#[derive(Debug)]
pub struct Spread {
    events: OutermostEvents,
    asked: u64,
    interval: i64,
    most: usize,
    /// Intervals by number since 1970; `begin` is set at the end.
    intervals: BTreeMap<i64, Interval>,
    /// Interval in which the last request ended. Most requests need no other.
    current: (i64, Interval),
    /// Times of this interval, nanoseconds since 1970; empty after a change of the intervals.
    covered: Range<i64>,
    times: Option<(i64, i64)>,
}

impl Spread {
    /// Returns a collector with intervals of this many nanoseconds.
    #[must_use]
    pub fn new(interval: u64) -> Spread {
        Spread::bounded(interval, MOST)
    }

    fn bounded(interval: u64, most: usize) -> Spread {
        Spread {
            events: OutermostEvents::default(),
            asked: interval,
            interval: i64::try_from(interval.max(1)).unwrap_or(i64::MAX),
            most: most.max(4),
            intervals: BTreeMap::new(),
            current: (0, Interval::default()),
            covered: 0..0,
            times: None,
        }
    }

    /// Adds events, in order. A batch without [`miot_trace_events::events::FEWEST_COLUMNS`] adds
    /// nothing.
    pub fn add(&mut self, batch: &RecordBatch) {
        each_outermost(self, |analysis| &mut analysis.events, batch, Self::request);
    }

    /// Adds an outermost request.
    pub fn request(&mut self, event: &Event) {
        if event.layer == Some(Layer::App) {
            return;
        }
        let (begin, end) = (event.begin, event.end);
        let (first, last) = self.times.unwrap_or((begin, end));
        self.times = Some((first.min(begin), last.max(end)));
        let moved = event.moved();
        let (read, written) = match event.class() {
            OpClass::Read => (moved, 0),
            OpClass::Write => (0, moved),
            OpClass::Copy => (moved, moved),
            OpClass::Sync | OpClass::Meta => (0, 0),
        };
        let last = end.saturating_sub(1).max(begin);
        if self.covered.contains(&begin) && self.covered.contains(&last) {
            return self.current.1.merge(&Interval { begin: 0, read, written, requests: 1 });
        }
        // A request over very many intervals would take time proportional to their number.
        let longest = (self.most as i64 / 8).max(4);
        while last.div_euclid(self.interval).saturating_sub(begin.div_euclid(self.interval)) >= longest {
            self.double();
        }
        let (from, to) = (begin.div_euclid(self.interval), last.div_euclid(self.interval));
        if from == to {
            return self.put(to, Interval { begin: 0, read, written, requests: 1 });
        }
        let duration = u128::from(event.duration());
        let until = |bytes: u64, number: i64| {
            let elapsed = (i128::from(number + 1) * i128::from(self.interval) - i128::from(begin)) as u128;
            (u128::from(bytes) * elapsed.min(duration) / duration) as u64
        };
        let parts = (from..=to).scan((0, 0), |before, number| {
            let now = (until(read, number), until(written, number));
            let part = Interval { begin: 0, read: now.0 - before.0, written: now.1 - before.1, requests: 1 };
            *before = now;
            Some((number, part))
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().for_each(|(number, part)| {
            self.intervals.entry(number).or_default().merge(&part);
        });
        self.bound();
    }

    fn put(&mut self, number: i64, part: Interval) {
        if self.current.0 != number {
            self.settle();
            self.current.0 = number;
            self.bound();
        }
        let begin = self.current.0.checked_mul(self.interval);
        let end = begin.and_then(|begin| begin.checked_add(self.interval));
        self.covered = begin.zip(end).map_or(0..0, |(begin, end)| begin..end);
        self.current.1.merge(&part);
    }

    fn settle(&mut self) {
        let (number, interval) = (self.current.0, std::mem::take(&mut self.current.1));
        if interval.requests > 0 {
            self.intervals.entry(number).or_default().merge(&interval);
        }
    }

    fn bound(&mut self) {
        while self.intervals.len() > self.most {
            self.double();
        }
    }

    fn double(&mut self) {
        self.settle();
        self.covered = 0..0;
        self.current.0 = self.current.0.div_euclid(2);
        self.interval = self.interval.saturating_mul(2);
        let mut merged: BTreeMap<i64, Interval> = BTreeMap::new();
        for (number, interval) in std::mem::take(&mut self.intervals) {
            merged.entry(number.div_euclid(2)).or_default().merge(&interval);
        }
        self.intervals = merged;
    }

    /// Returns the result.
    #[must_use]
    pub fn finish(mut self) -> Bursts {
        self.settle();
        self.bound();
        let Some((begin, end)) = self.times else {
            return Bursts { interval: self.asked, asked: self.asked, ..Bursts::default() };
        };
        let step = self.interval;
        let series = self
            .intervals
            .into_iter()
            .map(|(number, interval)| Interval { begin: number.saturating_mul(step), ..interval })
            .collect();
        Bursts { asked: self.asked, ..Bursts::of(step.unsigned_abs(), (begin, end), series) }
    }
}

impl Bursts {
    /// Returns the distribution for intervals of this length (nanoseconds) between the first begin
    /// and the last end of requests. `series` contains the intervals with requests, in order of
    /// time.
    #[must_use]
    pub fn of(interval: u64, (begin, end): (i64, i64), series: Vec<Interval>) -> Bursts {
        let ends = series.first().zip(series.last());
        let intervals =
            ends.map_or(0, |(first, last)| last.begin.abs_diff(first.begin) / interval.max(1) + 1);
        let throughput = |bytes: fn(&Interval) -> u64| Throughput::of(&series, bytes, intervals, interval);
        Bursts {
            interval,
            asked: interval,
            begin,
            end,
            intervals,
            total: throughput(Interval::bytes),
            read: throughput(|interval| interval.read),
            written: throughput(|interval| interval.written),
            series,
        }
    }
}

impl Throughput {
    fn of(series: &[Interval], bytes: fn(&Interval) -> u64, intervals: u64, step: u64) -> Throughput {
        let seconds = step as f64 / 1e9;
        let rate = |bytes: u64| bytes as f64 / seconds;
        let total = series.iter().map(bytes).fold(0, u64::saturating_add);
        let peak = series.iter().max_by_key(|interval| (bytes(interval), Reverse(interval.begin)));
        let peak = peak.filter(|interval| bytes(interval) > 0);
        let most = peak.map_or(0, bytes);
        let mut sorted: Vec<u64> = series.iter().map(bytes).filter(|bytes| *bytes > 0).collect();
        sorted.sort_unstable();
        let active = sorted.len() as u64;
        let idle = intervals.saturating_sub(active);
        // `sorted` does not contain intervals without bytes, which are the smallest.
        let at = |share: f64| {
            let rank = ((share * intervals as f64).ceil() as u64).clamp(1, intervals.max(1));
            rank.checked_sub(idle + 1).and_then(|rank| sorted.get(rank as usize)).copied().unwrap_or(0)
        };
        let below = |fraction: f64| {
            let calm = sorted.partition_point(|bytes| (*bytes as f64) < fraction * most as f64) as u64;
            (idle + calm) as f64 / intervals.max(1) as f64
        };
        Throughput {
            bytes: total,
            active,
            mean: rate(total) / intervals.max(1) as f64,
            peak: rate(most),
            peak_at: peak.map(|interval| interval.begin),
            quantiles: QUANTILES.map(|share| Quantile { share, rate: rate(at(share)) }).to_vec(),
            below: FRACTIONS.map(|of_peak| Below { of_peak, share: below(of_peak) }).to_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
