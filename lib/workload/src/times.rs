//! Times of a measurement between two barriers, as defined by pio-bench: S until the first access
//! of any process, T until the end of the last access, B until the second barrier.
//!
//! The first barrier ends when the first process leaves it, the second when the last process leaves
//! it. If the first one ended with the last process, then with more processes than processors the
//! time would not include early accesses of the others, and the bandwidth would be overstated.

use serde::{Deserialize, Serialize};

/// Timestamps of one process, nanoseconds of a clock that all processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTimestamps {
    /// It left the first barrier.
    pub ready: u64,
    /// Its first access began; `None` without accesses.
    pub first: Option<u64>,
    /// Its last access ended; `None` without accesses.
    pub last: Option<u64>,
    /// It left the second barrier.
    pub done: u64,
}

impl RankTimestamps {
    /// Returns the timestamps relative to when the process left the first barrier. For processes
    /// without a common clock, as if all of them left the barrier at the same time.
    #[must_use]
    pub fn since_ready(self) -> RankTimestamps {
        let since = |timestamp: u64| timestamp.saturating_sub(self.ready);
        RankTimestamps {
            ready: 0,
            first: self.first.map(since),
            last: self.last.map(since),
            done: since(self.done),
        }
    }
}

/// Parts of the aggregate time, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// S: from the first process to leave the first barrier to the first access.
    pub start: f64,
    /// T: from the first access to the end of the last access.
    pub accesses: f64,
    /// B: from the end of the last access until the last process leaves the second barrier.
    pub barrier: f64,
    /// S + T + B.
    pub aggregate: f64,
}

impl Times {
    /// Computes the times from the timestamps of all processes: S = min first − min ready, T = max
    /// last − min first, B = max done − max last. `None` if no process accessed anything.
    #[must_use]
    pub fn of(timestamps: &[RankTimestamps]) -> Option<Times> {
        let ready = timestamps.iter().map(|m| m.ready).min()?;
        let first = timestamps.iter().filter_map(|m| m.first).min()?;
        let last = timestamps.iter().filter_map(|m| m.last).max()?;
        let done = timestamps.iter().map(|m| m.done).max()?;
        let seconds = |from: u64, to: u64| (i128::from(to) - i128::from(from)) as f64 / 1e9;
        Some(Times {
            start: seconds(ready, first),
            accesses: seconds(first, last),
            barrier: seconds(last, done),
            aggregate: seconds(ready, done),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{RankTimestamps, Times};

    #[test]
    fn parts_add_up_to_the_aggregate_time() {
        let timestamps = [(1_000, 5_000, 90_000, 100_000), (2_000, 3_000, 95_000, 101_000)].map(
            |(ready, first, last, done)| RankTimestamps { ready, first: Some(first), last: Some(last), done },
        );
        let idle = RankTimestamps { ready: 2_500, first: None, last: None, done: 100_500 };
        let times = Times::of(&[timestamps[0], timestamps[1], idle]).unwrap();
        let nanoseconds = |seconds: f64| (seconds * 1e9).round() as i64;
        assert_eq!(nanoseconds(times.start), 2_000);
        assert_eq!(nanoseconds(times.accesses), 92_000);
        assert_eq!(nanoseconds(times.barrier), 6_000);
        assert_eq!(nanoseconds(times.aggregate), 100_000);
        let apart = [timestamps[0].since_ready(), timestamps[1].since_ready()];
        assert_eq!((apart[1].first, apart[1].last, apart[1].done), (Some(1_000), Some(93_000), 99_000));
        assert_eq!(nanoseconds(Times::of(&apart).unwrap().aggregate), 99_000);
        assert!(Times::of(&[idle]).is_none());
        assert!(Times::of(&[]).is_none());
    }
}
