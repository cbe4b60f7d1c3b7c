//! Differences between a replay and its trace.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A step with another result than in the trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the operation.
    pub operation: String,
    /// Path, empty if it is unknown.
    pub path: String,
    /// Process id in the trace.
    pub pid: u32,
    /// Result in the trace; negative = −errno.
    pub recorded: i64,
    /// Result in the replay; negative = −errno.
    pub replayed: i64,
}

/// Differences that are kept as examples.
const MAX_EXAMPLES: usize = 100;
/// Largest lateness that is distinguished, nanoseconds: one day.
const MAX_LATENESS_NS: u64 = 86_400_000_000_000;

/// Result of a process, which it writes when it ends.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Results of its requests.
    pub fidelity: Fidelity,
    /// End of the last request, nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) ended: i64,
}

/// Results of the requests of one thread, or of several after [`merge`](Self::merge). Times are
/// nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fidelity {
    /// Replayed requests.
    pub requests: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Bytes that these requests moved in the trace.
    pub recorded_bytes: u64,
    /// Sum of the durations of the requests in the replay.
    pub time: u64,
    /// The same in the trace.
    pub recorded_time: u64,
    /// Requests that failed in the trace only.
    pub failed_only_in_trace: u64,
    /// Requests that failed in the replay only.
    pub failed_only_here: u64,
    /// Requests that failed in both or in neither, with different results.
    pub other_result: u64,
    /// Pairs of concurrent equal requests of two processes with exchanged results: each has the
    /// result that the other had in the trace.
    pub exchanged: u64,
    /// The first differences, as examples.
    pub differences: Vec<Difference>,
    /// Number of steps by lateness, nanoseconds. Neighboring values share a histogram bucket.
    pub late_counts: BTreeMap<u64, u64>,
}

/// Quantiles of the lateness of steps, nanoseconds: from when a step was due to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatenessQuantiles {
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
    /// Mean.
    pub mean: u64,
}

/// Lateness of the steps of a thread; `None` if the histogram cannot be created.
#[derive(Debug)]
pub(super) struct LatenessHistogram(Option<Histogram<u64>>);

impl LatenessHistogram {
    pub(super) fn new() -> LatenessHistogram {
        LatenessHistogram(Histogram::new_with_bounds(1, MAX_LATENESS_NS, 2).ok())
    }

    pub(super) fn add(&mut self, nanoseconds: u64) {
        if let LatenessHistogram(Some(histogram)) = self {
            histogram.saturating_record(nanoseconds.max(1));
        }
    }
}

impl Fidelity {
    /// Number of requests with another result than in the trace.
    #[must_use]
    pub fn differ(&self) -> u64 {
        self.failed_only_in_trace + self.failed_only_here + self.other_result
    }

    pub(super) fn add_difference(&mut self, difference: Difference) {
        let count = match (difference.recorded < 0, difference.replayed < 0) {
            (true, false) => &mut self.failed_only_in_trace,
            (false, true) => &mut self.failed_only_here,
            _ => &mut self.other_result,
        };
        *count += 1;
        if self.differences.len() < MAX_EXAMPLES {
            self.differences.push(difference);
        }
    }

    pub(super) fn add_lateness(&mut self, lateness: &LatenessHistogram) {
        for value in lateness.0.iter().flat_map(|histogram| histogram.iter_recorded()) {
            *self.late_counts.entry(value.value_iterated_to()).or_default() += value.count_at_value();
        }
    }

    /// Adds the results of another thread or process.
    pub fn merge(&mut self, other: Fidelity) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.recorded_bytes += other.recorded_bytes;
        self.time += other.time;
        self.recorded_time += other.recorded_time;
        self.failed_only_in_trace += other.failed_only_in_trace;
        self.failed_only_here += other.failed_only_here;
        self.other_result += other.other_result;
        self.exchanged += other.exchanged;
        self.differences.extend(other.differences);
        self.differences.truncate(MAX_EXAMPLES);
        for (late, count) in other.late_counts {
            *self.late_counts.entry(late).or_default() += count;
        }
    }

    /// Removes pairs of differences that are not errors: of two concurrent equal requests, such as
    /// two removals of a file, either one may be the one that succeeds. (Requests that were ordered
    /// in the trace are ordered in the replay.)
    pub(super) fn remove_exchanged(&mut self) {
        let mut remaining: Vec<Difference> = Vec::new();
        for one in std::mem::take(&mut self.differences) {
            let twin = remaining.iter().position(|other| {
                let is_same = (&one.operation, &one.path) == (&other.operation, &other.path);
                let is_exchanged = (one.recorded, one.replayed) == (other.replayed, other.recorded);
                is_same
                    && is_exchanged
                    && !one.path.is_empty()
                    && one.pid != other.pid
                    && (one.recorded < 0) != (one.replayed < 0)
            });
            match twin {
                Some(twin) => {
                    remaining.remove(twin);
                    self.failed_only_here -= 1;
                    self.failed_only_in_trace -= 1;
                    self.exchanged += 1;
                }
                None => remaining.push(one),
            }
        }
        self.differences = remaining;
    }

    /// Returns the lateness of the steps; `None` if no step had a due time.
    #[must_use]
    pub fn lateness(&self) -> Option<LatenessQuantiles> {
        let mut late = Histogram::<u64>::new_with_bounds(1, MAX_LATENESS_NS, 2).ok()?;
        for (value, count) in &self.late_counts {
            late.saturating_record_n(*value, *count);
        }
        let at = |quantile| late.value_at_quantile(quantile);
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(at);
        (!late.is_empty()).then(|| LatenessQuantiles {
            p50,
            p90,
            p99,
            p999,
            max: late.max(),
            mean: late.mean() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Difference, Fidelity, LatenessHistogram};

    #[test]
    fn exchanged_results_are_not_differences() {
        let removes = |path: &str, pid, recorded, replayed| Difference {
            operation: "remove".into(),
            path: path.into(),
            pid,
            recorded,
            replayed,
        };
        let mut all = Fidelity::default();
        all.add_difference(removes("a", 1, 0, -2));
        all.add_difference(removes("b", 2, -2, 0));
        all.add_difference(removes("a", 2, -2, 0));
        all.add_difference(removes("b", 2, 0, -2));
        all.remove_exchanged();
        assert_eq!((all.exchanged, all.failed_only_here, all.failed_only_in_trace), (1, 1, 1));
        assert_eq!(
            all.differences,
            [removes("b", 2, -2, 0), removes("b", 2, 0, -2)],
            "two requests of one process have an order"
        );
    }

    #[test]
    fn merge_adds_results_and_lateness() {
        let mut all = Fidelity::default();
        assert_eq!(all.lateness(), None);
        for part in 0..10 {
            let mut late = LatenessHistogram::new();
            (1..=100).for_each(|value| late.add(value + 100 * part));
            let mut one = Fidelity { requests: 100, ..Fidelity::default() };
            one.add_lateness(&late);
            for (recorded, replayed) in [(-2, 0), (5, -28), (5, 4), (-2, -13)] {
                one.add_difference(Difference {
                    operation: "read".into(),
                    path: String::new(),
                    pid: 1,
                    recorded,
                    replayed,
                });
            }
            all.merge(one);
        }
        assert_eq!((all.requests, all.differ(), all.differences.len()), (1000, 40, 40));
        assert_eq!((all.failed_only_in_trace, all.failed_only_here, all.other_result), (10, 10, 20));
        all.remove_exchanged();
        assert_eq!((all.differ(), all.exchanged), (40, 0));
        let late = all.lateness().unwrap();
        for (found, expected) in [(late.p50, 500), (late.p90, 900), (late.p99, 990), (late.max, 1000)] {
            assert!(found.abs_diff(expected) <= expected / 50, "{late:?}");
        }
    }
}
