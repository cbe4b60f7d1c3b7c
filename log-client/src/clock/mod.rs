//! Conversion of raw ticks to the node's clock, nanoseconds since 1970.
//!
//! Segments carry raw ticks of one of two clocks ([`Clock`]). Each has a [`Timeline`]: a
//! continuous, monotone, piecewise linear map to the node's clock.
//!
//! The node's clock is `CLOCK_BOOTTIME` plus its difference to `CLOCK_REALTIME` when the log-client
//! started. It is kept in step with the wall clock (by NTP), continues while the node is suspended,
//! and is never stepped: setting the wall clock changes no time in the trace. The log-server
//! measures its offset against this clock.
//!
//! A timeline starts from two readings at least [`BASELINE`] apart. About every second it gets a
//! new piece, which is slewed towards the node's clock by at most 500 ppm. After a suspension,
//! which raw ticks do not count, it jumps forward. Durations are converted by the rate alone,
//! without slewing and jumps.

mod skew;
mod source;
mod timeline;

pub(crate) use source::{boottime_ns, node_ns, ticks};
pub(crate) use timeline::{BoundedPiece, ClockReading, Piece, Timeline};

use miot_proto::segment::Clock;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum distance between the two readings a timeline starts from. With readings accurate to
/// about 100 ns, 20 ms give a rate accurate to 10 ppm; the first refinements improve it a
/// hundredfold.
const BASELINE: Duration = Duration::from_millis(20);

/// Interval of refinements.
const REFINE_EVERY: Duration = Duration::from_secs(1);

/// One moment on both clocks, raw ticks.
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

/// The first readings. [`Clocks`] are made from them once enough time has passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calibration {
    tsc: ClockReading,
    raw: ClockReading,
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

    /// Takes the second readings, after waiting until [`BASELINE`] has passed.
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
        // Nanoseconds per 2³² ticks: precise enough, and avoids dividing by the truncated rate.
        let nanoseconds = u128::from(self.tsc.last().span(1 << 32).max(1));
        u64::try_from((1_000_000_000u128 << 32) / nanoseconds).unwrap_or(u64::MAX)
    }

    /// Refines both timelines if [`REFINE_EVERY`] has passed. Called between sweeps, so that no
    /// moment a sweep has converted is after the new knot.
    pub(crate) fn refine(&mut self) {
        if self.refined.elapsed() < REFINE_EVERY {
            return;
        }
        self.refined = Instant::now();
        for (clock, line) in [(Clock::Tsc, &mut self.tsc), (Clock::MonotonicRaw, &mut self.raw)] {
            if let Some(step) = line.refine(source::read(clock)) {
                let step_ms = step / 1_000_000;
                match step > 0 {
                    true => tracing::warn!(?clock, step_ms, "the node was suspended, times jump forward"),
                    false => tracing::warn!(?clock, step_ms, "ticks ran ahead, times are slewed"),
                }
            }
        }
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner) = self.tsc.last();
    }

    /// The node's clock, for other threads.
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

/// The node's clock, for threads that need only the present.
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
    fn both_clocks_match_the_node_clock() {
        let clocks = Calibration::begin().finish();
        for clock in [Clock::Tsc, Clock::MonotonicRaw] {
            let before = node_ns();
            let time = clocks.of(clock).time(ticks(clock));
            let after = node_ns();
            // A bound on the error, not on speed.
            assert!(
                (before - 1_000_000..=after + 1_000_000).contains(&time),
                "{clock:?} {before} {time} {after}"
            );
        }
    }
}
