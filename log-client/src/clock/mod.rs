//! From raw ticks to the node's nanoseconds since 1970.
//!
//! Segments carry raw ticks of one of two clocks ([`Clock`]). Each has a [`Timeline`]: a continuous,
//! monotone, piecewise linear map onto the node's clock: `CLOCK_BOOTTIME` and what it lacked to `CLOCK_REALTIME` when the
//! log-client started. That clock is kept in step with the wall clock, goes on while the node is suspended, and is never
//! stepped: who sets the wall clock moves nothing in the trace. A timeline starts from two readings at least [`BASELINE`]
//! apart and gets a new piece about every second that leans towards the node's clock, never steeper than 500 ppm. After a
//! suspension, which raw ticks do not count, it jumps forward. Durations are made of ticks by the rate alone, whatever
//! times lean or jump by. The log-server asks this clock for its offset.

mod skew;
mod source;
mod timeline;

pub(crate) use source::{boottime_ns, node_ns, ticks};
pub(crate) use timeline::{Piece, Reading, Timeline};

use miot_proto::segment::Clock;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least distance between the two readings a timeline starts from: with readings good to about 100 ns,
/// 20 ms give a rate good to 10 ppm, which the first refinements improve a hundredfold.
const BASELINE: Duration = Duration::from_millis(20);

/// How often the timelines are refined.
const REFINE_EVERY: Duration = Duration::from_secs(1);

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    pub(crate) tsc: u64,
    pub(crate) raw: u64,
}

impl Now {
    pub(crate) fn read() -> Now {
        Now { tsc: ticks(Clock::Tsc), raw: ticks(Clock::MonotonicRaw) }
    }

    pub(crate) fn of(&self, clock: Clock) -> u64 {
        match clock {
            Clock::Tsc => self.tsc,
            Clock::MonotonicRaw => self.raw,
        }
    }
}

/// The first readings, from which [`Clocks`] are made once enough time has passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calibration {
    tsc: Reading,
    raw: Reading,
    taken: Instant,
}

impl Calibration {
    pub(crate) fn begin() -> Calibration {
        Calibration {
            tsc: source::read(Clock::Tsc),
            raw: source::read(Clock::MonotonicRaw),
            taken: Instant::now(),
        }
    }

    /// Takes the second readings, after a wait if it would be too soon.
    pub(crate) fn finish(self) -> Clocks {
        std::thread::sleep(BASELINE.saturating_sub(self.taken.elapsed()));
        let tsc = Timeline::new(self.tsc, source::read(Clock::Tsc));
        let raw = Timeline::new(self.raw, source::read(Clock::MonotonicRaw));
        let shared = NodeClock(Arc::new(Mutex::new(tsc.last())));
        Clocks { tsc, raw, refined: Instant::now(), shared }
    }
}

/// The timelines of both clocks.
#[derive(Debug)]
pub(crate) struct Clocks {
    tsc: Timeline,
    raw: Timeline,
    refined: Instant,
    shared: NodeClock,
}

impl Clocks {
    pub(crate) fn of(&self, clock: Clock) -> &Timeline {
        match clock {
            Clock::Tsc => &self.tsc,
            Clock::MonotonicRaw => &self.raw,
        }
    }

    /// Ticks per second of the time stamp counter.
    pub(crate) fn tsc_hz(&self) -> u64 {
        // Nanoseconds of 2³² ticks: exact enough, and no division by a rate that is cut off.
        let nanoseconds = u128::from(self.tsc.last().span(1 << 32).max(1));
        u64::try_from((1_000_000_000u128 << 32) / nanoseconds).unwrap_or(u64::MAX)
    }

    /// Refines both timelines if it is time to. Called between sweeps, so that no moment a sweep has
    /// converted lies after the knot that is set here.
    pub(crate) fn refine(&mut self) {
        if self.refined.elapsed() < REFINE_EVERY {
            return;
        }
        self.refined = Instant::now();
        for (clock, line) in [(Clock::Tsc, &mut self.tsc), (Clock::MonotonicRaw, &mut self.raw)] {
            if let Some(step) = line.refine(source::read(clock)) {
                let step_ms = step / 1_000_000;
                match step > 0 {
                    true => tracing::warn!(?clock, step_ms, "the node was suspended; times go on after it"),
                    false => tracing::warn!(?clock, step_ms, "ticks ran ahead; times follow slowly"),
                }
            }
        }
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner) = self.tsc.last();
    }

    /// The node's clock for other threads.
    pub(crate) fn shared(&self) -> NodeClock {
        self.shared.clone()
    }

    /// Timelines that are not refined.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn fixed(tsc: Timeline, raw: Timeline) -> Clocks {
        let shared = NodeClock(Arc::new(Mutex::new(tsc.last())));
        Clocks { tsc, raw, refined: Instant::now(), shared }
    }
}

/// The node's clock, for whoever needs only the present.
#[derive(Clone, Debug)]
pub(crate) struct NodeClock(Arc<Mutex<Piece>>);

impl NodeClock {
    /// Nanoseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        let piece = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        piece.time(ticks(Clock::Tsc))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_tell_the_time() {
        let clocks = Calibration::begin().finish();
        for clock in [Clock::Tsc, Clock::MonotonicRaw] {
            let before = node_ns();
            let told = clocks.of(clock).time(ticks(clock));
            let after = node_ns();
            // A bound on the error, not on speed.
            assert!(
                (before - 1_000_000..=after + 1_000_000).contains(&told),
                "{clock:?} {before} {told} {after}"
            );
        }
    }
}
