//! How close a replay came to its trace.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A step that went another way than in the trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Operation.
    pub operation: String,
    /// What it was on, as far as that is known.
    pub path: String,
    /// Process id in the trace.
    pub pid: u32,
    /// As in the trace: negative = −errno.
    pub recorded: i64,
    /// As it went here.
    pub replayed: i64,
}

/// Differences that are kept.
const EXAMPLES: usize = 100;
/// How late a step may be and be told from later ones: a day.
const LATEST: u64 = 86_400_000_000_000;

/// What a process says at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What its requests were like.
    pub fidelity: Fidelity,
    /// When the last ended, nanoseconds on the clock that all processes of a machine share.
    pub(super) ended: i64,
}

/// What a replay was like; that of several threads is merged. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fidelity {
    /// Requests that were made.
    pub requests: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Bytes that the same requests moved in the trace.
    pub recorded_bytes: u64,
    /// Sum of the durations of the requests here.
    pub time: u64,
    /// The same in the trace.
    pub recorded_time: u64,
    /// Requests that failed in the trace and succeeded here.
    pub failed_only_in_trace: u64,
    /// Requests that succeeded in the trace and failed here.
    pub failed_only_here: u64,
    /// Requests that failed or succeeded in both, with another result.
    pub other_result: u64,
    /// Pairs of requests of two processes for the same, at the same time, of which each went as the other did in the trace.
    pub exchanged: u64,
    /// The first of all these.
    pub differences: Vec<Difference>,
    /// How late steps began after their time: nanoseconds, as far as they can be told from others, and how many.
    pub late_counts: BTreeMap<u64, u64>,
}

/// How steps were late, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Half of them were no later.
    pub p50: u64,
    /// 90 of 100.
    pub p90: u64,
    /// 99 of 100.
    pub p99: u64,
    /// 999 of 1000.
    pub p999: u64,
    /// None was later.
    pub max: u64,
    /// Mean.
    pub mean: u64,
}

/// How late the steps of a thread were.
#[derive(Debug)]
pub(super) struct Late(Option<Histogram<u64>>);

impl Late {
    pub(super) fn new() -> Late {
        Late(Histogram::new_with_bounds(1, LATEST, 2).ok())
    }

    pub(super) fn add(&mut self, nanoseconds: u64) {
        if let Late(Some(late)) = self {
            late.saturating_record(nanoseconds.max(1));
        }
    }
}

impl Fidelity {
    /// Requests with another result than in the trace.
    #[must_use]
    pub fn differ(&self) -> u64 {
        self.failed_only_in_trace + self.failed_only_here + self.other_result
    }

    pub(super) fn differs(&mut self, difference: Difference) {
        let count = match (difference.recorded < 0, difference.replayed < 0) {
            (true, false) => &mut self.failed_only_in_trace,
            (false, true) => &mut self.failed_only_here,
            _ => &mut self.other_result,
        };
        *count += 1;
        if self.differences.len() < EXAMPLES {
            self.differences.push(difference);
        }
    }

    pub(super) fn was_late(&mut self, late: &Late) {
        for value in late.0.iter().flat_map(|late| late.iter_recorded()) {
            *self.late_counts.entry(value.value_iterated_to()).or_default() += value.count_at_value();
        }
    }

    /// Adds that of another thread.
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
        self.differences.truncate(EXAMPLES);
        for (late, count) in other.late_counts {
            *self.late_counts.entry(late).or_default() += count;
        }
    }

    /// Of two that wanted the same at once, such as to remove a file, either may be the one that succeeds: what was ordered in
    /// the trace is ordered here.
    pub(super) fn settle(&mut self) {
        let mut left: Vec<Difference> = Vec::new();
        for one in std::mem::take(&mut self.differences) {
            let twin = left.iter().position(|other| {
                let is_same = (&one.operation, &one.path) == (&other.operation, &other.path);
                let is_turned = (one.recorded, one.replayed) == (other.replayed, other.recorded);
                is_same
                    && is_turned
                    && !one.path.is_empty()
                    && one.pid != other.pid
                    && (one.recorded < 0) != (one.replayed < 0)
            });
            match twin {
                Some(twin) => {
                    left.remove(twin);
                    self.failed_only_here -= 1;
                    self.failed_only_in_trace -= 1;
                    self.exchanged += 1;
                }
                None => left.push(one),
            }
        }
        self.differences = left;
    }

    /// How late steps began; `None` where they had no time.
    #[must_use]
    pub fn late(&self) -> Option<Quantiles> {
        let mut late = Histogram::<u64>::new_with_bounds(1, LATEST, 2).ok()?;
        for (value, count) in &self.late_counts {
            late.saturating_record_n(*value, *count);
        }
        let at = |quantile| late.value_at_quantile(quantile);
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(at);
        (!late.is_empty()).then(|| Quantiles {
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
    use super::{Difference, Fidelity, Late};

    #[test]
    fn of_two_that_wanted_the_same_either_succeeds() {
        let removes = |path: &str, pid, recorded, replayed| Difference {
            operation: "remove".into(),
            path: path.into(),
            pid,
            recorded,
            replayed,
        };
        let mut all = Fidelity::default();
        all.differs(removes("a", 1, 0, -2));
        all.differs(removes("b", 2, -2, 0));
        all.differs(removes("a", 2, -2, 0));
        all.differs(removes("b", 2, 0, -2));
        all.settle();
        assert_eq!((all.exchanged, all.failed_only_here, all.failed_only_in_trace), (1, 1, 1));
        assert_eq!(
            all.differences,
            [removes("b", 2, -2, 0), removes("b", 2, 0, -2)],
            "of one process: in order"
        );
    }

    #[test]
    fn parts_are_added_up() {
        let mut all = Fidelity::default();
        assert_eq!(all.late(), None);
        for part in 0..10 {
            let mut late = Late::new();
            (1..=100).for_each(|value| late.add(value + 100 * part));
            let mut one = Fidelity { requests: 100, ..Fidelity::default() };
            one.was_late(&late);
            for (recorded, replayed) in [(-2, 0), (5, -28), (5, 4), (-2, -13)] {
                one.differs(Difference {
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
        all.settle();
        assert_eq!((all.differ(), all.exchanged), (40, 0));
        let late = all.late().unwrap();
        for (found, expected) in [(late.p50, 500), (late.p90, 900), (late.p99, 990), (late.max, 1000)] {
            assert!(found.abs_diff(expected) <= expected / 50, "{late:?}");
        }
    }
}
