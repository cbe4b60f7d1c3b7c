//! How wrong a time may be, and how wrong it probably is: the maximum error and the estimated error of RFC 5905. Pure.
//!
//! **The most** rests on bounds alone. **The estimate** adds one assumption: that the fastest way there and the
//! fastest way back take equally long, each half of the least round trip. Then neither bound of the offset can be reached:
//! both are too wide by one such way. What remains on either side of their middle is `rest`: queues that even the fastest
//! exchanges waited in, and what the drift may have done since. Nothing prefers one place within it, and the standard
//! deviation of such a distribution is `rest / √3` (JCGM 100:2008, 4.3.7). What is applied is away from the middle by a known
//! `lean`, so the standard error is `√(rest² / 3 + lean²)` (4.3.1, E.3). The whole error, `rest + |lean|`, is never more
//! than twice that.
//!
//! **The least round trip** is estimated from the exchanges: the fastest of them waited as well. Waiting times are taken as
//! exponentially distributed; of `n` with mean `s` the least is `s / n` on average, and half of them are below
//! `s · ln 2`. So the least round trip is the fastest one minus `(median − fastest) / (n · ln 2)`, the unbiased estimate of
//! where such a distribution begins, but with the median in place of the mean, for now and then a wait is very long. That is
//! taken off twice: once for its mean, once for its deviation, which is equal to it.

use super::estimate::Bounds;
use std::collections::VecDeque;
use std::f64::consts::LN_2;

/// Round trips by which they are judged.
const RECENT: usize = 32;
/// With fewer nothing is known of their scatter.
const FEW: usize = 4;

/// Nanoseconds. `i64::MAX`: nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errors {
    /// Under what is assumed of the clocks, never more than this.
    pub(super) most: i64,
    /// The standard error, if both ways are equally long; not more than `most`.
    pub(super) estimated: i64,
}

impl Errors {
    /// Of an offset that is applied.
    pub(super) fn of(applied: i64, offset: Bounds<i64>, least_round_trip: Option<f64>) -> Errors {
        let most = offset.error(applied);
        let estimated = least_round_trip.map_or(most, |least| {
            let width = offset.high.saturating_sub(offset.low) as f64;
            let rest = ((width - least) / 2.0).max(0.0);
            let lean = applied.saturating_sub(offset.middle()) as f64;
            standard(rest).hypot(lean).ceil() as i64
        });
        Errors { most, estimated: estimated.min(most) }
    }

    /// The larger of each.
    pub(super) fn max(self, other: Errors) -> Errors {
        Errors { most: self.most.max(other.most), estimated: self.estimated.max(other.estimated) }
    }

    /// With another error of at most `more`, that does not depend on this one.
    pub(super) fn and(self, more: i64) -> Errors {
        let estimated = (self.estimated as f64).hypot(standard(more as f64)).ceil() as i64;
        let most = self.most.saturating_add(more);
        Errors { most, estimated: estimated.min(most) }
    }

    /// What is claimed where this is to be expected: a little more, so that not every exchange begins a new piece.
    pub(super) fn claimed(self) -> Errors {
        let more = |error: i64| error.saturating_add(error / 8).saturating_add(100);
        Errors { most: more(self.most), estimated: more(self.estimated) }
    }
}

/// Standard deviation of what may be anywhere within ±`half`.
fn standard(half: f64) -> f64 {
    half / 3f64.sqrt()
}

/// How long exchanges took.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrips {
    recent: VecDeque<i64>,
    /// Of all.
    fastest: i64,
    count: usize,
}

impl RoundTrips {
    /// Takes in another one, nanoseconds.
    pub(super) fn add(&mut self, round_trip: i64) {
        self.fastest = if self.count == 0 { round_trip } else { self.fastest.min(round_trip) };
        self.count += 1;
        self.recent.push_back(round_trip);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// The shortest of late, nanoseconds; 0 if there was none.
    pub(super) fn shortest(&self) -> i64 {
        self.recent.iter().copied().min().unwrap_or(0)
    }

    /// How long both ways together take at least, nanoseconds; `None` while too little is known. It is that of all: a
    /// path that has become longer may have become so one way.
    pub(super) fn least(&self) -> Option<f64> {
        if self.count < FEW {
            return None;
        }
        let mut sorted: Vec<i64> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        let scatter = sorted[sorted.len() / 2].saturating_sub(self.fastest) as f64;
        Some((self.fastest as f64 - 2.0 * scatter / (LN_2 * self.count as f64)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSET: Bounds<i64> = Bounds { low: 1000, high: 2200 };

    #[test]
    fn what_the_fastest_ways_take_is_no_error() {
        let errors = |applied, least| Errors::of(applied, OFFSET, least);
        assert_eq!(errors(1600, None), Errors { most: 600, estimated: 600 });
        // As if of a rectangle of ±600, ±100, and nothing.
        assert_eq!(errors(1600, Some(0.0)), Errors { most: 600, estimated: 347 });
        assert_eq!(errors(1600, Some(1000.0)), Errors { most: 600, estimated: 58 });
        assert_eq!(errors(1600, Some(1200.0)).estimated, 0);
        assert_eq!(errors(1600, Some(1e9)).estimated, 0);
        // Where it is not applied in the middle, that is known.
        assert_eq!(errors(1900, Some(1200.0)), Errors { most: 900, estimated: 300 });
        let nothing = Errors { most: i64::MAX, estimated: i64::MAX };
        assert_eq!(nothing.and(5).claimed(), nothing);
    }

    #[test]
    fn twice_the_estimate_covers_all_that_is_possible_with_equal_ways() {
        for least in (0..=1200).step_by(50) {
            let rest: i64 = (1200 - least) / 2;
            for applied in (1600 - rest..=1600 + rest).step_by(10) {
                let worst = rest + (applied - 1600).abs();
                let estimated = Errors::of(applied, OFFSET, Some(least as f64)).estimated;
                assert!(worst <= 2 * estimated, "{least} {applied}: {worst} of {estimated}");
            }
        }
    }

    #[test]
    fn the_least_round_trip_is_below_the_fastest_by_what_that_waited() {
        let mut trips = RoundTrips::default();
        assert_eq!((trips.shortest(), trips.least()), (0, None));
        for trip in [900, 700, 1100] {
            trips.add(trip);
            assert_eq!(trips.least(), None);
        }
        trips.add(800);
        let least = trips.least().unwrap();
        assert!(least > 500.0 && least < 600.0, "{least}");
        // The more there were, the closer is the fastest; and one that waits for ever is no matter.
        (0..100).for_each(|_| trips.add(900));
        trips.add(i64::MAX);
        let least = trips.least().unwrap();
        assert!(least > 690.0 && least < 700.0, "{least}");
        // A path that is longer now is not longer in both directions, as far as anybody knows.
        (0..100).for_each(|_| trips.add(5000));
        assert_eq!(trips.shortest(), 5000);
        assert!(trips.least().unwrap() < 700.0);
    }
}
