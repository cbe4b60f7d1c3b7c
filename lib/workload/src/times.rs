//! Times of a measurement, as pio-bench has them: between two barriers, S until the first access by any process, T until the
//! end of the last, B until the second barrier.
//!
//! The first barrier has ended when the first process leaves it, and the second when the last one has. Counted from the last
//! one to leave the first, accesses of the others would be left out wherever there are more processes than processors, and
//! the bandwidth would be overstated.

use serde::{Deserialize, Serialize};

/// Moments of one process, nanoseconds of a clock that all processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moments {
    /// The first barrier was left.
    pub ready: u64,
    /// Its first access began; `None`: it had none.
    pub first: Option<u64>,
    /// Its last access ended.
    pub last: Option<u64>,
    /// The second barrier was left.
    pub done: u64,
}

impl Moments {
    /// Counted from when the first barrier was left: for processes whose clocks have nothing to do with each other, as if all left
    /// it at once.
    #[must_use]
    pub fn since_ready(self) -> Moments {
        let since = |moment: u64| moment.saturating_sub(self.ready);
        Moments { ready: 0, first: self.first.map(since), last: self.last.map(since), done: since(self.done) }
    }
}

/// Parts of the aggregate time, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// S: from the first process to leave the first barrier to the first access.
    pub start: f64,
    /// T: from the first access to the end of the last.
    pub accesses: f64,
    /// B: from there to the last process to leave the second barrier.
    pub barrier: f64,
    /// S + T + B.
    pub aggregate: f64,
}

impl Times {
    /// From the moments of all processes: S = min first − min ready, T = max last − min first, B = max done − max last.
    /// `None` if no process accessed anything.
    #[must_use]
    pub fn of(moments: &[Moments]) -> Option<Times> {
        let ready = moments.iter().map(|m| m.ready).min()?;
        let first = moments.iter().filter_map(|m| m.first).min()?;
        let last = moments.iter().filter_map(|m| m.last).max()?;
        let done = moments.iter().map(|m| m.done).max()?;
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
    use super::{Moments, Times};

    #[test]
    fn the_three_parts_make_the_whole() {
        let moments = [(1_000, 5_000, 90_000, 100_000), (2_000, 3_000, 95_000, 101_000)]
            .map(|(ready, first, last, done)| Moments { ready, first: Some(first), last: Some(last), done });
        let idle = Moments { ready: 2_500, first: None, last: None, done: 100_500 };
        let times = Times::of(&[moments[0], moments[1], idle]).unwrap();
        let nanoseconds = |seconds: f64| (seconds * 1e9).round() as i64;
        assert_eq!(nanoseconds(times.start), 2_000);
        assert_eq!(nanoseconds(times.accesses), 92_000);
        assert_eq!(nanoseconds(times.barrier), 6_000);
        assert_eq!(nanoseconds(times.aggregate), 100_000);
        let apart = [moments[0].since_ready(), moments[1].since_ready()];
        assert_eq!((apart[1].first, apart[1].last, apart[1].done), (Some(1_000), Some(93_000), 99_000));
        assert_eq!(nanoseconds(Times::of(&apart).unwrap().aggregate), 99_000);
        assert!(Times::of(&[idle]).is_none());
        assert!(Times::of(&[]).is_none());
    }
}
