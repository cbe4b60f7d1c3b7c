//! Maximum and estimated error of a corrected time, as in RFC 5905. Pure.
//!
//! **The maximum error** follows from the bounds alone. **The estimated error** adds one
//! assumption: the fastest delays in both directions are equal, each half of the least round trip.
//! Then neither bound of the offset can be reached: both are too wide by one such delay. The
//! remaining half-width is `rest`: queueing delays that even the fastest exchanges had, and the
//! drift since. No value within it is preferred, and the standard deviation of such a uniform
//! distribution is `rest / √3` (JCGM 100:2008, 4.3.7). The applied offset differs from the middle
//! by a known `lean`, so the standard error is `√(rest² / 3 + lean²)` (4.3.1, E.3). The whole
//! error, `rest + |lean|`, is at most twice that.
//!
//! **The least round trip** is estimated from the exchanges, because the fastest exchange had a
//! queueing delay too. Queueing delays are modeled as exponentially distributed; the least of `n`
//! with mean `s` is `s / n` on average, and half of them are below `s · ln 2`. So the least round
//! trip is the fastest one minus `(median − fastest) / (n · ln 2)`: the unbiased estimate of the
//! origin of such a distribution, with the median instead of the mean because single delays are
//! very long. It is subtracted twice: once for its mean, once for its standard deviation, which is
//! equal.

use super::estimate::Bounds;
use std::collections::VecDeque;
use std::f64::consts::LN_2;

/// Number of recent round trips that are evaluated.
const RECENT_TRIPS: usize = 32;
/// With fewer exchanges, their scatter is unknown.
const MIN_TRIPS: usize = 4;

/// Errors in nanoseconds. `i64::MAX`: unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockErrors {
    /// Maximum error under the assumptions about the clocks.
    pub(super) maximum: i64,
    /// Standard error if both directions are equal; at most `maximum`.
    pub(super) estimated: i64,
}

impl ClockErrors {
    /// Errors of an applied offset.
    pub(super) fn of(applied: i64, offset: Bounds<i64>, least_round_trip: Option<f64>) -> ClockErrors {
        let maximum = offset.max_distance(applied);
        let estimated = least_round_trip.map_or(maximum, |least| {
            let width = offset.high.saturating_sub(offset.low) as f64;
            let rest = ((width - least) / 2.0).max(0.0);
            let lean = applied.saturating_sub(offset.middle()) as f64;
            standard(rest).hypot(lean).ceil() as i64
        });
        ClockErrors { maximum, estimated: estimated.min(maximum) }
    }

    /// Maximum of each error.
    pub(super) fn max(self, other: ClockErrors) -> ClockErrors {
        ClockErrors {
            maximum: self.maximum.max(other.maximum),
            estimated: self.estimated.max(other.estimated),
        }
    }

    /// Adds an independent error of at most `more`.
    pub(super) fn and(self, more: i64) -> ClockErrors {
        let estimated = (self.estimated as f64).hypot(standard(more as f64)).ceil() as i64;
        let maximum = self.maximum.saturating_add(more);
        ClockErrors { maximum, estimated: estimated.min(maximum) }
    }

    /// Errors to state in the trace: slightly larger, so that not every exchange begins a new
    /// piece.
    pub(super) fn with_margin(self) -> ClockErrors {
        let more = |error: i64| error.saturating_add(error / 8).saturating_add(100);
        ClockErrors { maximum: more(self.maximum), estimated: more(self.estimated) }
    }
}

/// Standard deviation of a uniform distribution within ±`half`.
fn standard(half: f64) -> f64 {
    half / 3f64.sqrt()
}

/// Durations of exchanges.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrips {
    recent: VecDeque<i64>,
    /// The fastest of all.
    fastest: i64,
    count: usize,
}

impl RoundTrips {
    /// Adds a round trip, nanoseconds.
    pub(super) fn add(&mut self, round_trip: i64) {
        self.fastest = if self.count == 0 { round_trip } else { self.fastest.min(round_trip) };
        self.count += 1;
        self.recent.push_back(round_trip);
        if self.recent.len() > RECENT_TRIPS {
            self.recent.pop_front();
        }
    }

    /// The shortest recent round trip, nanoseconds; 0 without an exchange.
    pub(super) fn shortest(&self) -> i64 {
        self.recent.iter().copied().min().unwrap_or(0)
    }

    /// Least delay of both directions together, nanoseconds; `None` while too little is known. It
    /// is that of all exchanges: a path that has become longer may be longer in one direction only.
    pub(super) fn least(&self) -> Option<f64> {
        if self.count < MIN_TRIPS {
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
    fn least_delay_is_not_an_error() {
        let errors = |applied, least| ClockErrors::of(applied, OFFSET, least);
        assert_eq!(errors(1600, None), ClockErrors { maximum: 600, estimated: 600 });
        // Uniform distributions of half-width 600, 100 and 0.
        assert_eq!(errors(1600, Some(0.0)), ClockErrors { maximum: 600, estimated: 347 });
        assert_eq!(errors(1600, Some(1000.0)), ClockErrors { maximum: 600, estimated: 58 });
        assert_eq!(errors(1600, Some(1200.0)).estimated, 0);
        assert_eq!(errors(1600, Some(1e9)).estimated, 0);
        // A known distance from the middle counts fully.
        assert_eq!(errors(1900, Some(1200.0)), ClockErrors { maximum: 900, estimated: 300 });
        let nothing = ClockErrors { maximum: i64::MAX, estimated: i64::MAX };
        assert_eq!(nothing.and(5).with_margin(), nothing);
    }

    #[test]
    fn twice_the_estimate_covers_equal_directions() {
        for least in (0..=1200).step_by(50) {
            let rest: i64 = (1200 - least) / 2;
            for applied in (1600 - rest..=1600 + rest).step_by(10) {
                let worst = rest + (applied - 1600).abs();
                let estimated = ClockErrors::of(applied, OFFSET, Some(least as f64)).estimated;
                assert!(worst <= 2 * estimated, "{least} {applied}: {worst} of {estimated}");
            }
        }
    }

    #[test]
    fn least_round_trip_is_below_the_fastest() {
        let mut trips = RoundTrips::default();
        assert_eq!((trips.shortest(), trips.least()), (0, None));
        for trip in [900, 700, 1100] {
            trips.add(trip);
            assert_eq!(trips.least(), None);
        }
        trips.add(800);
        let least = trips.least().unwrap();
        assert!(least > 500.0 && least < 600.0, "{least}");
        // With more exchanges, the fastest is closer; a single endless delay does not matter.
        (0..100).for_each(|_| trips.add(900));
        trips.add(i64::MAX);
        let least = trips.least().unwrap();
        assert!(least > 690.0 && least < 700.0, "{least}");
        // A path that is longer now is not known to be longer in both directions.
        (0..100).for_each(|_| trips.add(5000));
        assert_eq!(trips.shortest(), 5000);
        assert!(trips.least().unwrap() < 700.0);
    }
}
