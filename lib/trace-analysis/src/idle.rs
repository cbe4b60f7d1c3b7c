//! Idle periods (Carns et al. 2011, section IV, table III), by three definitions:
//!
//! - consecutive intervals with a throughput below 5 % of the peak (Carns et al.);
//! - consecutive intervals without any request in progress (the strict definition of Carns et al.);
//! - time without any request in progress, to the nanosecond: Carns et al. ask for "tools with
//!   smaller granularity".
//!
//! Intervals are those of [`crate::bursts`]. Requests of any kind count as activity, including
//! those that move no data. Only outermost requests count, see [`miot_trace_events::Outermost`].

use crate::bursts::{Bursts, Interval};
use crate::intervals::Intervals;
use miot_proto::op::Layer;
use miot_trace_events::Event;
use serde::Serialize;

/// Percentage of the peak below which an interval is idle (Carns et al., section IV).
pub const PERCENT_OF_PEAK: u64 = 5;
/// Shortest time without any request that is a period, nanoseconds: 1 ms. Shorter times separate
/// two requests of a program that is busy with its I/O.
pub const SHORTEST: u64 = 1_000_000;
/// Maximum number of kept periods, 4 MB. If there are more, the shortest length is doubled and
/// shorter periods are dropped.
const MOST: usize = 1 << 18;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
/// Lengths, in nanoseconds, for which the number of at least as long periods is reported.
pub const LENGTHS: [u64; 18] = [
    SECOND / 1000,
    SECOND / 100,
    SECOND / 10,
    SECOND,
    10 * SECOND,
    60 * SECOND,
    120 * SECOND,
    300 * SECOND,
    600 * SECOND,
    1800 * SECOND,
    HOUR,
    2 * HOUR,
    4 * HOUR,
    8 * HOUR,
    16 * HOUR,
    24 * HOUR,
    72 * HOUR,
    168 * HOUR,
];

/// Definition of an idle period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Definition {
    /// Consecutive intervals with less than [`PERCENT_OF_PEAK`] of the throughput of the busiest
    /// one.
    BelowPeak,
    /// Consecutive intervals in which no request was in progress.
    NoRequestInInterval,
    /// Time in which no request was in progress.
    NoRequest,
}

/// Idle periods by all definitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Idle {
    /// Periods by definition, in the order of [`Definition`].
    pub definitions: Vec<Periods>,
}

/// Idle periods by one definition. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Periods {
    /// Definition.
    pub definition: Definition,
    /// Shortest detectable period: the interval, or the shortest time.
    pub shortest: u64,
    /// Throughput below which an interval is idle, bytes per second; `None` for definitions without
    /// a threshold.
    pub threshold: Option<f64>,
    /// Examined time.
    pub total: u64,
    /// Time in idle periods.
    pub idle: u64,
    /// Number of periods.
    pub count: u64,
    /// First of the longest periods.
    pub longest: Option<Period>,
    /// Periods by minimum length, for those [`LENGTHS`] that some period reaches.
    pub at_least: Vec<AtLeast>,
}

/// One idle period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Period {
    /// Begin in nanoseconds since 1970.
    pub begin: i64,
    /// Length in nanoseconds.
    pub length: u64,
}

/// Periods of at least some length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AtLeast {
    /// Minimum length in nanoseconds.
    pub length: u64,
    /// Number of periods.
    pub count: u64,
    /// Total length in nanoseconds.
    pub time: u64,
    /// Share of the examined time.
    pub share: f64,
}

/// Collects the times without requests.
#[derive(Debug)]
pub struct Silence {
    /// Times with requests. Their gap is the shortest idle period.
    busy: Intervals,
}

impl Default for Silence {
    fn default() -> Silence {
        Silence::bounded(SHORTEST, MOST)
    }
}

impl Silence {
    pub(crate) fn bounded(shortest: u64, most: usize) -> Silence {
        Silence { busy: Intervals::new(shortest, most) }
    }

    /// Adds an outermost request.
    pub fn request(&mut self, event: &Event) {
        if event.layer != Some(Layer::App) {
            self.put(event.begin, event.end);
        }
    }

    pub(crate) fn put(&mut self, begin: i64, end: i64) {
        self.busy.add(begin, end);
    }

    /// Returns the idle periods of a trace, including those of its intervals.
    #[must_use]
    pub fn finish(self, bursts: &Bursts) -> Idle {
        let busy = self.busy.list();
        let gaps =
            busy.windows(2).map(|pair| Period { begin: pair[0].1, length: pair[1].0.abs_diff(pair[0].1) });
        let total = busy.first().zip(busy.last()).map_or(0, |(first, last)| last.1.abs_diff(first.0));
        let none = Periods::of(Definition::NoRequest, self.busy.gap(), None, total, gaps);
        let peak = bursts.series.iter().map(Interval::bytes).max().unwrap_or(0);
        let is_calm = |interval: &Interval| {
            let bytes = u128::from(interval.bytes());
            bytes == 0 || bytes * 100 < u128::from(PERCENT_OF_PEAK) * u128::from(peak)
        };
        let threshold = bursts.total.peak * PERCENT_OF_PEAK as f64 / 100.0;
        let step = bursts.interval;
        let total = step.saturating_mul(bursts.intervals);
        let calm = runs(bursts, is_calm).into_iter();
        let silent = runs(bursts, |_| false).into_iter();
        let definitions = vec![
            Periods::of(Definition::BelowPeak, step, Some(threshold), total, calm),
            Periods::of(Definition::NoRequestInInterval, step, None, total, silent),
            none,
        ];
        Idle { definitions }
    }
}

/// Returns runs of consecutive intervals that are idle or have no requests.
fn runs(bursts: &Bursts, is_idle: impl Fn(&Interval) -> bool) -> Vec<Period> {
    let step = bursts.interval;
    let busy: Vec<i64> = bursts.series.iter().filter(|one| !is_idle(one)).map(|one| one.begin).collect();
    let Some((first, last)) = bursts.series.first().zip(bursts.series.last()) else { return Vec::new() };
    // The time between the ends of the trace and its busy intervals is idle as well.
    let begins =
        std::iter::once(first.begin).chain(busy.iter().map(|begin| begin.saturating_add_unsigned(step)));
    let ends = busy.iter().copied().chain(std::iter::once(last.begin.saturating_add_unsigned(step)));
    let periods = begins.zip(ends).filter(|(begin, end)| end > begin);
    periods.map(|(begin, end)| Period { begin, length: end.abs_diff(begin) }).collect()
}

impl Periods {
    fn of(
        definition: Definition,
        shortest: u64,
        threshold: Option<f64>,
        total: u64,
        periods: impl Iterator<Item = Period>,
    ) -> Periods {
        let mut at_least = LENGTHS.map(|length| AtLeast { length, count: 0, time: 0, share: 0.0 });
        let (mut count, mut idle, mut longest) = (0, 0u64, None::<Period>);
        for period in periods {
            count += 1;
            idle = idle.saturating_add(period.length);
            if longest.is_none_or(|longest| period.length > longest.length) {
                longest = Some(period);
            }
            for row in at_least.iter_mut().filter(|row| row.length <= period.length) {
                row.count += 1;
                row.time += period.length;
                row.share = row.time as f64 / total.max(1) as f64;
            }
        }
        let reported = at_least.into_iter().filter(|row| row.count > 0 && row.length >= shortest);
        Periods { definition, shortest, threshold, total, idle, count, longest, at_least: reported.collect() }
    }
}
