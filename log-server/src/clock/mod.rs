//! A node's clock relative to the server's clock: the correction of the node's times, and the error
//! of that correction.
//!
//! | module | role |
//! |---|---|
//! | `estimate` | bounds of offset and drift from exchanges of messages |
//! | `error` | maximum and estimated error |
//! | `line` | the applied correction: consecutive linear pieces |
//!
//! [`NodeClock`] combines them. The line aims at the middle of the bounds, where the worst-case
//! error is least. A new piece begins when the current piece may soon exceed the error that was
//! written about it, or when a much smaller error can be stated. It begins after all converted
//! times, at the end of the previous piece, and slopes towards the bounds. So a converted time
//! never changes, watermarks do not go back, and the order within a stream is kept. Only a step of
//! a clock causes a jump. [`miot_trace_store::clocks`] has the formula of a piece. A clock that
//! cannot be distinguished from the server's is not corrected.

mod error;
mod estimate;
mod line;
#[cfg(test)]
mod tests;

pub use estimate::Exchange;
pub use line::MAX_PIECES;

use error::{ClockErrors, RoundTrips};
use estimate::{Bounds, ClockEstimate, LIMIT, WANDER};
use line::CorrectionLine;
use miot_proto::batch::Columns;
use miot_proto::wire::PROMPT_ANSWERS;
use miot_trace_store::ClockPiece;
use std::time::Duration;

/// Shortest and longest time between two exchanges with a node that answers.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
/// Between two exchanges the bounds may widen by an eighth of half the round trip, or by this,
/// nanoseconds: no requests on different nodes depend on each other at a finer scale.
const FINEST_WIDENING_NS: f64 = 5e3;
/// A stated error must hold for 1.5 pauses plus this, because an answer may be late; nanoseconds.
const LATE_ANSWER_NS: f64 = 10e6;
/// An error is slewed away within this number of pauses, ...
const SLEW_PAUSES: f64 = 4.0;
/// ... but not faster than the kernel slews a clock.
const SLEW: f64 = 500e-6;
/// A larger error is corrected by a step: 20 seconds of slewing, nanoseconds.
const STEP_NS: i64 = 10_000_000;
/// A longer time without exchanges is bridged by one linear piece, nanoseconds.
const GAP_NS: i64 = 1_000_000_000;
/// The drift of an earlier connection is used until it is known better than this.
const ROUGH_DRIFT: f64 = 50e-6;
/// Errors before the first exchange.
const UNKNOWN_ERRORS: ClockErrors = ClockErrors { maximum: i64::MAX, estimated: i64::MAX };
/// Unit of [`ClockPiece::drift`].
const BILLION: f64 = 1e9;

/// Reason for a new piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The first piece of this node.
    First,
    /// Exchanges gave a smaller error, or the error of the previous piece was about to exceed the
    /// stated one.
    Exchange,
    /// The node was disconnected: a linear piece from its last position to the present one.
    Gap,
    /// The node's clock or the server's clock was stepped, or the node did not answer in time to
    /// know better.
    Step,
}

impl Reason {
    /// Value in the column `reason`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reason::First => "first",
            Reason::Exchange => "exchange",
            Reason::Gap => "gap",
            Reason::Step => "step",
        }
    }
}

/// One row of `clocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correction {
    /// The applied piece, with its start.
    pub piece: ClockPiece,
    /// Maximum error of merged times while the piece holds, nanoseconds. `i64::MAX`: unknown.
    pub uncertainty: i64,
    /// Standard error of merged times while the piece holds, nanoseconds, if the fastest delays in
    /// both directions are equal; at most `uncertainty`.
    pub estimated_error: i64,
    /// Round trip of the shortest exchange used, nanoseconds; 0 without an exchange.
    pub round_trip: i64,
    /// Reason for the piece.
    pub reason: Reason,
}

impl Correction {
    fn errors(&self) -> ClockErrors {
        ClockErrors { maximum: self.uncertainty, estimated: self.estimated_error }
    }

    /// True if `errors` are still within the stated ones. The estimate may be exceeded by half:
    /// three times the estimate then covers the error whenever both directions are equal.
    fn holds(&self, errors: ClockErrors) -> bool {
        errors.maximum <= self.uncertainty
            && errors.estimated <= self.estimated_error.saturating_add(self.estimated_error / 2)
    }

    /// True if `errors` are much smaller than the stated ones.
    fn far_exceeds(&self, errors: ClockErrors) -> bool {
        errors.maximum <= self.uncertainty / 8 * 7 || errors.estimated <= self.estimated_error / 2
    }
}

/// How often the clock of a node is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEffort {
    /// As often as its stability requires.
    Full,
    /// Less often: no node sends events, so a larger error matters little.
    Relaxed,
    /// Still less often: there are thousands of nodes.
    Low,
}

impl ClockEffort {
    /// Factor of the error between two exchanges, and so about of their distance.
    fn factor(self) -> f64 {
        match self {
            ClockEffort::Full => 1.0,
            ClockEffort::Relaxed => 4.0,
            ClockEffort::Low => 64.0,
        }
    }

    /// Number of exchanges of a connection before this effort applies: with many, the fastest was
    /// hardly delayed. With thousands of nodes, the questions themselves would be most messages.
    fn after_exchanges(self) -> usize {
        match self {
            ClockEffort::Full => 0,
            ClockEffort::Relaxed => 64,
            ClockEffort::Low => PROMPT_ANSWERS,
        }
    }
}

/// The clock of one node, see the module.
#[derive(Clone, Debug)]
pub struct NodeClock {
    line: CorrectionLine,
    /// The last piece with its stated errors.
    current: Option<Correction>,
    /// Drift of an earlier connection.
    prior: Option<f64>,
    estimate: Option<ClockEstimate>,
    round_trips: RoundTrips,
    /// Number of exchanges that agree.
    exchanges: usize,
    /// True until a piece begins on this connection.
    returned: bool,
    effort: ClockEffort,
}

impl NodeClock {
    /// Creates the clock of a node that connects. `before`: earlier pieces; `reached`: the latest
    /// merged time that was converted.
    #[must_use]
    pub fn new<'a>(before: impl IntoIterator<Item = &'a Correction>, reached: Option<i64>) -> NodeClock {
        let before: Vec<&Correction> = before.into_iter().collect();
        let current = before.last().map(|last| **last);
        NodeClock {
            line: CorrectionLine::new(before, reached),
            current,
            prior: current.map(|current| current.piece.drift as f64 / BILLION),
            estimate: None,
            round_trips: RoundTrips::default(),
            exchanges: 0,
            returned: current.is_some(),
            effort: ClockEffort::Full,
        }
    }

    /// Sets how often the clock is measured. Returns false if that is not new.
    pub fn set_effort(&mut self, effort: ClockEffort) -> bool {
        std::mem::replace(&mut self.effort, effort) != effort
    }

    /// Adds an exchange. Returns false if it contradicts the earlier ones.
    pub fn add(&mut self, exchange: Exchange) -> bool {
        let (agrees, drift) = match &mut self.estimate {
            None => (true, self.estimate.insert(ClockEstimate::new(exchange)).drift()),
            Some(estimate) => (estimate.add(exchange), estimate.drift()),
        };
        if !agrees {
            (self.round_trips, self.exchanges) = (RoundTrips::default(), 0);
        }
        self.exchanges += 1;
        let round_trip = exchange.round_trip(drift);
        // That of an answer after seconds is known only as well as the drift.
        if round_trip.high - round_trip.low <= round_trip.high / 8 {
            self.round_trips.add(round_trip.low);
        }
        agrees
    }

    /// Converts a node's time to merged time. A result after `latest` becomes `latest`.
    pub fn time(&mut self, node: i64, latest: i64) -> i64 {
        self.line.time(node, latest)
    }

    /// Converts the times of a batch and marks ties. A result after `latest` becomes `latest` and
    /// is marked late. Returns the number of these rows.
    pub fn convert(&mut self, rows: &mut Columns, latest: i64) -> usize {
        self.line.convert(rows, latest)
    }

    /// Estimates the node's time of a server's time that is not before the last exchange.
    #[must_use]
    pub fn estimated(&self, server: i64) -> i64 {
        let offset = |estimate: &ClockEstimate| estimate.offset_at(estimate.at()).middle();
        self.estimate.as_ref().map_or(server, |estimate| server.saturating_sub(offset(estimate)))
    }

    /// The last piece with its stated errors.
    #[must_use]
    pub fn current(&self) -> Option<Correction> {
        self.current
    }

    /// True if another exchange is likely to improve the bounds at once: they are wider than those
    /// of a single fast exchange.
    #[must_use]
    pub fn is_worth_asking_again(&self) -> bool {
        self.estimate.as_ref().is_some_and(|estimate| {
            let offset = estimate.offset_at(estimate.at());
            self.effort_now() == ClockEffort::Full
                && offset.high.saturating_sub(offset.low) > self.round_trip()
        })
    }

    /// Time until the next exchange: short while the drift is poorly known, long where the round
    /// trip is long.
    #[must_use]
    pub fn pause(&self) -> Duration {
        Duration::from_secs_f64(self.pause_ns() / BILLION)
    }

    fn pause_ns(&self) -> f64 {
        let bounds = |pause: Duration| pause.as_nanos() as f64;
        let Some(estimate) = &self.estimate else { return bounds(PAUSE.0) };
        let drift = estimate.drift();
        let widens = FINEST_WIDENING_NS.max(self.round_trip() as f64 / 16.0);
        let widens = self.effort_now().factor() * widens;
        (widens / drift.max_distance(self.drift(estimate))).clamp(bounds(PAUSE.0), bounds(PAUSE.1))
    }

    /// Less than full effort only once enough exchanges have shown how fast the path is.
    fn effort_now(&self) -> ClockEffort {
        let is_known = self.exchanges >= self.effort.after_exchanges();
        if is_known { self.effort } else { ClockEffort::Full }
    }

    /// Half the width of the bounds of the drift.
    #[cfg(test)]
    fn drift_bounds(&self) -> f64 {
        self.estimate
            .as_ref()
            .map_or(f64::NAN, |estimate| (estimate.drift().high - estimate.drift().low) / 2.0)
    }

    fn round_trip(&self) -> i64 {
        self.round_trips.shortest()
    }

    fn drift(&self, estimate: &ClockEstimate) -> f64 {
        let drift = estimate.drift();
        match drift.high - drift.low > 2.0 * ROUGH_DRIFT {
            true => self.prior.unwrap_or(0.0).clamp(drift.low, drift.high),
            false => drift.middle(),
        }
    }

    /// True if this clock cannot be distinguished from the server's so far. It is not corrected
    /// then: on one machine the two are the same clock, and nodes with synchronized clocks are more
    /// accurate than a round trip.
    fn may_be_equal(&self, estimate: &ClockEstimate, offset: Bounds<i64>) -> bool {
        let (before, drift) =
            (self.current.map(|current| current.piece).unwrap_or_default(), estimate.drift());
        (before.offset, before.drift) == (0, 0)
            && (offset.low..=offset.high).contains(&0)
            && (drift.low..=drift.high).contains(&0.0)
    }

    /// Begins new pieces at the node's time `node` if they matter. The caller must write them
    /// before anything that is converted from now on.
    pub fn decide(&mut self, node: i64) -> Vec<Correction> {
        let Some(estimate) = &self.estimate else { return self.assume(node) };
        let offset = estimate.offset_at(node);
        let equal = self.may_be_equal(estimate, offset);
        let rate = if equal { 0.0 } else { self.drift(estimate) };
        let aim = |offset: Bounds<i64>| if equal { 0 } else { offset.middle() };
        let Some(before) = self.current else {
            let straight = piece(node, aim(offset), rate);
            let errors = self.errors(estimate, straight, node).with_margin();
            return vec![self.begin(straight, errors, Reason::First)];
        };
        let gap = node.saturating_sub(self.line.free_from());
        if gap < -GAP_NS {
            self.line.set_back(node);
        }
        let returned = self.returned && gap > GAP_NS;
        let bent = if returned { (WANDER * gap as f64 / 2.0) as i64 } else { 0 };
        let errors = self.errors(estimate, self.line.covering(node), node).and(bent);
        let (_, could_state, _) = self.next(estimate, node, rate, aim);
        if before.holds(errors) && !before.far_exceeds(could_state) {
            self.returned = false;
            return Vec::new();
        }
        let estimate = estimate.clone();
        self.returned = false;
        let mut pieces = Vec::new();
        if returned {
            let from = self.line.knot(self.line.free_from());
            let was = self.line.offset(from);
            let lean = aim(offset).saturating_sub(was) as f64 / node.saturating_sub(from).max(1) as f64;
            if lean.abs() <= LIMIT {
                // Pieces that begin after `from` apply to no time.
                let at_start = self.line.stated_errors(from).unwrap_or(before.errors());
                let ends = at_start.max(self.errors_at(&estimate, aim(offset), node));
                pieces.push(self.begin(piece(from, was, lean), ends.and(bent).with_margin(), Reason::Gap));
            } else {
                let back = aim(offset).saturating_sub((rate * gap as f64) as i64);
                let errors = could_state.and(2 * bent).with_margin();
                pieces.push(self.begin(piece(from, back, rate), errors, Reason::Step));
            }
        }
        let (piece, errors, reason) = self.next(&estimate, node, rate, aim);
        pieces.push(self.begin(piece, errors, reason));
        pieces
    }

    /// Returns the piece that can begin at a node's time, and the errors that can be stated for it:
    /// it continues the line and slopes towards the middle of the bounds, or steps there.
    fn next(
        &self,
        estimate: &ClockEstimate,
        node: i64,
        rate: f64,
        aim: impl Fn(Bounds<i64>) -> i64,
    ) -> (ClockPiece, ClockErrors, Reason) {
        let from = self.line.knot(self.line.free_from().max(node));
        let (was, aim) = (self.line.offset(from), aim(estimate.offset_at(from)));
        let missing = aim.saturating_sub(was);
        let (piece, reason) = if missing.saturating_abs() > STEP_NS {
            (piece(from, aim, rate), Reason::Step)
        } else {
            let time = (SLEW_PAUSES * self.pause_ns()).max(GAP_NS as f64 / 2.0);
            let slew = (missing as f64 / time).clamp(-SLEW, SLEW);
            (piece(from, was, rate + slew), Reason::Exchange)
        };
        (piece, self.errors(estimate, piece, from).with_margin(), reason)
    }

    /// Errors of a piece between a node's time and the exchange after the next: the maximum is at
    /// one of the ends.
    fn errors(&self, estimate: &ClockEstimate, piece: ClockPiece, node: i64) -> ClockErrors {
        let at = |node: i64| {
            let applied = piece.merged(node).0.saturating_sub(node);
            self.errors_at(estimate, applied, node)
        };
        at(node).max(at(node.saturating_add((1.5 * self.pause_ns() + LATE_ANSWER_NS) as i64)))
    }

    fn errors_at(&self, estimate: &ClockEstimate, applied: i64, node: i64) -> ClockErrors {
        ClockErrors::of(applied, estimate.offset_at(node), self.round_trips.least())
    }

    /// Without any answer: the earlier correction, or none.
    fn assume(&mut self, node: i64) -> Vec<Correction> {
        match self.current {
            Some(_) => Vec::new(),
            None => vec![self.begin(piece(node, 0, 0.0), UNKNOWN_ERRORS, Reason::First)],
        }
    }

    fn begin(&mut self, piece: ClockPiece, errors: ClockErrors, reason: Reason) -> Correction {
        let ClockErrors { maximum: uncertainty, estimated: estimated_error } = errors;
        let round_trip = self.round_trip();
        let correction = Correction { piece, uncertainty, estimated_error, round_trip, reason };
        self.line.push(correction);
        self.current = Some(correction);
        correction
    }
}

/// Creates a piece that begins at a node's time.
fn piece(node: i64, offset: i64, drift: f64) -> ClockPiece {
    ClockPiece { time: node.saturating_add(offset), offset, drift: (drift * BILLION).round() as i64 }
}
