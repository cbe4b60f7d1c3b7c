//! A monotone, continuous, piecewise linear map from ticks to nanoseconds since 1970.
//!
//! A knot is set at the present and never moved. So a tick is always converted to the same time,
//! except that the oldest pieces are dropped after [`PIECES`]. Rates are positive, so the map never
//! runs backwards.

use std::collections::VecDeque;

/// Number of pieces kept: one hour. Older ticks are converted with the oldest piece.
const PIECES: usize = 3600;

/// Number of readings kept for estimating the rate: the longest baseline, in seconds.
const HISTORY: usize = 64;

/// A difference to the node's clock is slewed away over this time, nanoseconds, ...
const HORIZON_NS: f64 = 4e9;

/// ... but at this rate at most, the limit of the kernel's `adjtime`.
const MAX_SLEW: f64 = 500e-6;

/// A difference, nanoseconds, that is too large for clock drift between two refinements.
const STEP_NS: i64 = 50_000_000;

/// Fractional bits of [`Piece::rate`].
const RATE_BITS: u32 = 32;

/// The same moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockReading {
    pub(crate) ticks: u64,
    /// Nanoseconds since 1970.
    pub(crate) time: i64,
}

/// One linear piece, valid from `ticks` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    ticks: u64,
    time: i64,
    /// Nanoseconds per tick times 2³², slewed towards the node's clock.
    rate: u64,
    /// The same without slewing.
    true_rate: u64,
}

impl Piece {
    /// Converts a tick to a time. Any tick has a time; it is clamped to 1970 and 2262.
    #[inline]
    pub(crate) fn time(&self, ticks: u64) -> i64 {
        let span = scale(ticks.abs_diff(self.ticks), self.rate);
        let span = i64::try_from(span).unwrap_or(i64::MAX);
        if ticks >= self.ticks {
            self.time.saturating_add(span)
        } else {
            self.time.saturating_sub(span).max(0)
        }
    }

    /// Converts a number of ticks to nanoseconds.
    #[inline]
    pub(crate) fn span(&self, ticks: u64) -> u64 {
        scale(ticks, self.true_rate)
    }

    #[inline]
    fn covers(&self, ticks: u64) -> bool {
        ticks >= self.ticks
    }
}

/// A piece with its end, for converting many ticks of about the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundedPiece {
    piece: Piece,
    /// Ticks from which the next piece is valid, and its time.
    end: ClockReading,
}

impl BoundedPiece {
    #[inline]
    pub(crate) fn covers(&self, ticks: u64) -> bool {
        self.piece.covers(ticks) && ticks < self.end.ticks
    }

    /// Converts a tick to a time.
    #[inline]
    pub(crate) fn time(&self, ticks: u64) -> i64 {
        // Rounding must not carry a piece past its successor.
        self.piece.time(ticks).min(self.end.time)
    }
}

/// The map of one clock, see the module.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// Never empty, in ascending order.
    pieces: VecDeque<Piece>,
    readings: VecDeque<ClockReading>,
    /// Nanoseconds per tick, over the longest available baseline.
    rate: f64,
    stepped: bool,
}

impl Timeline {
    pub(crate) fn new(first: ClockReading, second: ClockReading) -> Timeline {
        let rate = rate(first, second).unwrap_or(1.0);
        let (rate_bits, true_rate) = (fixed(rate), fixed(rate));
        let piece = Piece { ticks: second.ticks, time: second.time, rate: rate_bits, true_rate };
        Timeline { pieces: [piece].into(), readings: [first, second].into(), rate, stepped: false }
    }

    /// The current piece.
    #[inline]
    pub(crate) fn last(&self) -> Piece {
        self.pieces[self.pieces.len() - 1]
    }

    /// Converts a tick to a time.
    #[inline]
    pub(crate) fn time(&self, ticks: u64) -> i64 {
        let last = self.last();
        if last.covers(ticks) { last.time(ticks) } else { self.piece_at(ticks).time(ticks) }
    }

    /// The piece with which this tick is converted.
    #[cold]
    pub(crate) fn piece_at(&self, ticks: u64) -> BoundedPiece {
        let at = self.pieces.partition_point(|piece| piece.covers(ticks)).saturating_sub(1);
        let next = self.pieces.get(at + 1).map(|next| ClockReading { ticks: next.ticks, time: next.time });
        let end = next.unwrap_or(ClockReading { ticks: u64::MAX, time: i64::MAX });
        BoundedPiece { piece: self.pieces[at], end }
    }

    /// Sets a knot at the present and slews towards the node's clock. Returns a step of the
    /// difference since the last refinement, nanoseconds, if there was one. If the node's clock is
    /// ahead, ticks stood still during a suspension, and the time jumps.
    pub(crate) fn refine(&mut self, now: ClockReading) -> Option<i64> {
        let last = self.last();
        if now.ticks <= last.ticks {
            return None;
        }
        let mut time = last.time(now.ticks);
        let before = self.readings[self.readings.len() - 1];
        let expected = (now.ticks - before.ticks.min(now.ticks)) as f64 * self.rate;
        let step = now.time.saturating_sub(before.time).saturating_sub(expected as i64);
        let step = (step.abs() > STEP_NS).then_some(step);
        if step.is_some() {
            self.readings.clear();
        }
        self.readings.push_back(now);
        if self.readings.len() > HISTORY {
            self.readings.pop_front();
        }
        if let Some(rate) = rate(self.readings[0], now) {
            // A machine's clock does not change its rate by a thousandth; only a suspension appears
            // to.
            if (rate / self.rate - 1.0).abs() < 1e-3 {
                self.rate = rate;
            }
        }
        if step.is_some_and(|step| step > 0) {
            time = time.max(now.time);
        }
        let ahead = now.time.saturating_sub(time);
        let lean = (ahead as f64 / HORIZON_NS).clamp(-MAX_SLEW, MAX_SLEW);
        let (rate, true_rate) = (fixed(self.rate * (1.0 + lean)), fixed(self.rate));
        self.pieces.push_back(Piece { ticks: now.ticks, time, rate, true_rate });
        if self.pieces.len() > PIECES {
            self.pieces.pop_front();
        }
        // One warning per step, not per second of slewing.
        let reported = std::mem::replace(&mut self.stepped, step.is_some());
        if reported { None } else { step }
    }
}

fn rate(first: ClockReading, second: ClockReading) -> Option<f64> {
    let ticks = second.ticks.checked_sub(first.ticks).filter(|ticks| *ticks > 0)?;
    let time = second.time.checked_sub(first.time).filter(|time| *time > 0)?;
    Some(time as f64 / ticks as f64)
}

#[inline]
fn scale(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> RATE_BITS) as u64
}

fn fixed(rate: f64) -> u64 {
    // Saturates; 0 would stop the time.
    ((rate * (1u64 << RATE_BITS) as f64) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: i64 = 1_000_000_000;
    const START: i64 = 1_700_000_000 * SECOND;

    /// A clock of `per_tick` ns whose wall clock is read with errors and steps.
    fn line(per_tick: f64, errors: &[i64]) -> Timeline {
        let reading = |ticks: u64, error: i64| ClockReading {
            ticks,
            time: START + (ticks as f64 * per_tick) as i64 + error,
        };
        let mut line = Timeline::new(reading(1_000_000, 0), reading(61_000_000, 30));
        for (second, error) in errors.iter().enumerate() {
            let ticks = 61_000_000 + ((second + 1) as f64 * 1e9 / per_tick) as u64;
            line.refine(reading(ticks, *error));
        }
        line
    }

    proptest! {
        #[test]
        fn time_never_runs_backwards(
            per_tick in 0.2f64..20.0,
            errors in prop::collection::vec(prop_oneof![-500i64..500, -5 * SECOND..5 * SECOND], 0..40),
            mut ticks in prop::collection::vec(0u64..200_000_000_000, 2..200),
        ) {
            let line = line(per_tick, &errors);
            ticks.extend(line.pieces.iter().flat_map(|p| [p.ticks - 1, p.ticks, p.ticks + 1]));
            ticks.sort_unstable();
            for pair in ticks.windows(2) {
                prop_assert!(line.time(pair[0]) <= line.time(pair[1]), "{pair:?}");
            }
        }

        #[test]
        fn converted_times_do_not_change(errors in prop::collection::vec(-2 * SECOND..2 * SECOND, 1..40), at in 0.0f64..1.0) {
            let mut line = line(0.4, &errors);
            let present = line.last().ticks;
            let asked = (present as f64 * at) as u64;
            let time = line.time(asked);
            line.refine(ClockReading { ticks: present + 1_000_000, time: START });
            prop_assert_eq!(line.time(asked), time);
        }

        #[test]
        fn any_tick_has_a_time(ticks: u64, rate in 1u64.., start: u64, time in 0i64..) {
            let piece = Piece { ticks: start, time, rate, true_rate: rate };
            prop_assert!(piece.time(ticks) >= 0);
        }
    }

    #[test]
    fn jittering_wall_clock_is_followed_closely() {
        let errors: Vec<i64> = (0..60).map(|i| if i % 2 == 0 { 80 } else { -80 }).collect();
        let line = line(0.4, &errors);
        let ticks = line.last().ticks;
        let truth = START + (ticks as f64 * 0.4) as i64;
        assert!((line.time(ticks) - truth).abs() < 1000, "{}", line.time(ticks) - truth);
    }

    fn reading(second: i64, step: i64) -> ClockReading {
        ClockReading { ticks: second as u64 * 1_000_000_000, time: START + second * SECOND + step }
    }

    #[test]
    fn time_jumps_over_a_suspension() {
        let mut line = Timeline::new(reading(0, 0), reading(1, 0));
        assert_eq!(line.refine(reading(2, 0)), None);
        let before = line.time(2_900_000_000);
        assert_eq!(line.refine(reading(3, 3600 * SECOND)), Some(3600 * SECOND));
        assert_eq!(line.refine(reading(4, 3600 * SECOND)), None);
        assert!((line.time(5_000_000_000) - (START + 3605 * SECOND)).abs() < 1000);
        assert_eq!(line.time(2_900_000_000), before);
    }

    #[test]
    fn ticks_ahead_are_reported_once_and_slewed() {
        let mut line = Timeline::new(reading(0, 0), reading(1, 0));
        assert_eq!(line.refine(reading(2, 0)), None);
        assert_eq!(line.refine(reading(3, -SECOND)), Some(-SECOND));
        assert_eq!(line.refine(reading(4, -SECOND)), None);
        let moved = line.time(5_000_000_000) - (START + 5 * SECOND);
        assert!((-1_100_000..-900_000).contains(&moved), "two seconds at 500 ppm, not {moved} ns");
        assert_eq!(line.last().span(1_000_000_000), 1_000_000_000);
    }
}
