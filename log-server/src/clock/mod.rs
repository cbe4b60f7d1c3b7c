//! A node's clock relative to the server's clock: the correction of the node's times, and the error
//! of that correction.
//!
//! | module | role |
//! |---|---|
//! | `estimate` | bounds of offset and drift from exchanges of messages |
//! | `error` | maximum and estimated error |
//! | `correction` | a piece of the applied correction, with its stated errors |
//! | `line` | the applied correction: consecutive linear pieces |
//! | `effort` | how often a clock is measured |
//!
//! [`NodeClock`] combines them. The line aims at the middle of the bounds, where the worst-case
//! error is least. A new piece begins when the current piece may soon exceed the error that was
//! written about it, or when a much smaller error can be stated. It begins after all converted
//! times, at the end of the previous piece, and slopes towards the bounds. So a converted time
//! never changes, watermarks do not go back, and the order within a stream is kept. Only an error
//! of more than 10 ms causes a jump: a clock was stepped, or its node did not answer for long. A
//! stated error holds until the exchange after the next is due. If later times are converted before
//! that exchange, a piece with a larger error begins first. [`miot_trace_store::clocks`] has the
//! formula of a piece. A clock that cannot be distinguished from the server's is not corrected.

mod correction;
mod effort;
mod error;
mod estimate;
mod line;
#[cfg(test)]
mod tests;

pub use correction::{Correction, Reason};
pub use effort::ClockEffort;
pub use estimate::Exchange;
pub use line::{MAX_PIECES, MOST_PIECES};

use error::{ClockErrors, RoundTrips};
use estimate::{Bounds, ClockEstimate, LIMIT, WANDER};
use line::CorrectionLine;
use miot_proto::batch::Columns;
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

/// The latest merged time that was converted for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Nanoseconds since 1970.
    pub time: i64,
    /// False if it is only known that no later time was converted.
    pub is_exact: bool,
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
    /// Node's time until which the errors of the last piece hold.
    stated_until: i64,
    /// Pieces that began because times after `stated_until` were converted.
    restated: Vec<Correction>,
    effort: ClockEffort,
}

impl NodeClock {
    /// Creates the clock of a node that connects. `before`: earlier pieces.
    #[must_use]
    pub fn new<'a>(before: impl IntoIterator<Item = &'a Correction>, reached: Option<Reached>) -> NodeClock {
        let before: Vec<&Correction> = before.into_iter().collect();
        let current = before.last().map(|last| **last);
        let line = CorrectionLine::new(before, reached.map(|reached| reached.time));
        // An error was stated for all times that were converted.
        let stated_until = match (current, reached) {
            (Some(last), Some(Reached { is_exact: false, .. })) => last.piece.start(),
            _ => line.reached(),
        };
        NodeClock {
            line,
            current,
            prior: current.map(|current| current.piece.drift as f64 / BILLION),
            estimate: None,
            round_trips: RoundTrips::default(),
            exchanges: 0,
            returned: current.is_some(),
            stated_until,
            restated: Vec::new(),
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

    /// Converts a node's time to merged time. A result after `latest` becomes `latest`. The caller
    /// must write what [`Self::take_restated`] returns before the result.
    pub fn time(&mut self, node: i64, latest: i64) -> i64 {
        self.state_errors_until(node, latest);
        self.line.time(node, latest)
    }

    /// Converts the times of a batch and marks ties. A result after `latest` becomes `latest` and
    /// is marked late. Returns the number of these rows. The caller must write what
    /// [`Self::take_restated`] returns before the rows.
    pub fn convert(&mut self, rows: &mut Columns, latest: i64) -> usize {
        let last = self.line.node(latest).unwrap_or(i64::MAX);
        if let Some(last) = rows.time.iter().rev().find(|time| **time <= last) {
            self.state_errors_until(*last, latest);
        }
        self.line.convert(rows, latest)
    }

    /// Takes the pieces that began because times were converted for which no error was stated.
    pub fn take_restated(&mut self) -> Vec<Correction> {
        std::mem::take(&mut self.restated)
    }

    /// Begins a piece on the same line, with larger errors, if the stated ones may be exceeded at a
    /// node's time: the node was not asked in time, or its answer comes later than its events.
    fn state_errors_until(&mut self, node: i64, latest: i64) {
        let Some(before) = self.current else { return };
        if node <= self.stated_until {
            return;
        }
        let from = match self.line.reached() > self.stated_until {
            true => before.piece.start(),
            false => self.line.free_from().max(self.stated_until).max(before.piece.start()),
        };
        let from = self.line.knot(from);
        // A time after `latest` is not converted.
        if node < from || self.line.node(latest).is_some_and(|latest| node > latest) {
            return;
        }
        // For longer and longer: not each message begins a piece.
        let longer = match &self.estimate {
            Some(estimate) => node.saturating_sub(estimate.at()),
            None => self.stated_until.saturating_sub(before.piece.start()).saturating_mul(2),
        };
        let until = node.saturating_add(longer.max(GAP_NS));
        let span = until.saturating_sub(from);
        let (time, _) = before.piece.merged(from);
        let straight = ClockPiece { time, offset: time.saturating_sub(from), ..before.piece };
        let errors = match &self.estimate {
            Some(estimate) => before.errors().max(self.errors_of(estimate, straight, until)).and(bend(span)),
            None => {
                let gains = LIMIT + straight.drift.abs() as f64 / BILLION;
                before.errors().and((gains * span as f64).ceil() as i64)
            }
        };
        if !before.holds(errors) {
            let restated = self.begin(straight, errors, Reason::Exchange);
            self.restated.push(restated);
        }
        self.stated_until = until;
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

    /// States larger errors for the last piece, if times may be converted with it that it did not
    /// hold for: it is not known exactly which times were converted before.
    fn state_errors_of_last(&mut self, node: i64) -> Option<Correction> {
        let (estimate, before) = (self.estimate.as_ref()?, self.current?);
        if self.line.reached() <= self.stated_until {
            return None;
        }
        let bent = bend(node.saturating_sub(before.piece.start()));
        let errors = before.errors().max(self.errors_of(estimate, before.piece, node)).and(bent);
        self.stated_until = self.line.reached();
        (!before.holds(errors)).then(|| self.begin(before.piece, errors, Reason::Gap))
    }

    /// Begins new pieces at the node's time `node` if they matter. The caller must write them
    /// before anything that is converted from now on.
    pub fn decide(&mut self, node: i64) -> Vec<Correction> {
        let mut pieces: Vec<Correction> = self.state_errors_of_last(node).into_iter().collect();
        let Some(estimate) = &self.estimate else { return self.assume(node) };
        let offset = estimate.offset_at(node);
        let equal = self.may_be_equal(estimate, offset);
        let rate = if equal { 0.0 } else { self.drift(estimate) };
        let aim = |offset: Bounds<i64>| if equal { 0 } else { offset.middle() };
        let Some(before) = self.current else {
            let straight = piece(node, aim(offset), rate);
            let errors = self.errors(estimate, straight, node).with_margin();
            self.stated_until = node.saturating_add(self.horizon_ns());
            return vec![self.begin(straight, errors, Reason::First)];
        };
        if node.saturating_sub(self.line.free_from()) < -GAP_NS {
            self.line.set_back(node);
            self.stated_until = node;
        }
        // Until here, the stated errors hold.
        let from = self.line.knot(self.line.free_from().max(self.stated_until));
        let gap = node.saturating_sub(from).max(0);
        let bent = bend(gap);
        let at = node.max(before.piece.start());
        // Between two times for which the stated errors hold, they hold if the offset cannot bend
        // out of them.
        let within = |errors: ClockErrors| before.holds(errors.and(4 * bent));
        let (_, could_state, _) = self.next(estimate, node, rate, aim);
        if within(self.errors(estimate, before.piece, at)) && !before.far_exceeds(could_state) {
            self.returned = false;
            self.stated_until = self.stated_until.max(at.saturating_add(self.horizon_ns()));
            return pieces;
        }
        let is_bridged = gap > 0 && !within(self.errors_of(estimate, before.piece, at));
        let estimate = estimate.clone();
        if std::mem::take(&mut self.returned) && gap > GAP_NS || is_bridged {
            let was = self.line.offset(from);
            let lean = aim(offset).saturating_sub(was) as f64 / gap as f64;
            if gap > GAP_NS && lean.abs() > LIMIT {
                let back = aim(offset).saturating_sub((rate * gap as f64) as i64);
                let gained = (estimate.drift().max_distance(rate) * gap as f64).ceil() as i64;
                let errors = could_state.and(gained).with_margin();
                pieces.push(self.begin_jump(piece(from, back, rate), errors));
            } else {
                // Pieces that begin after `from` apply to no time.
                let at_start = self.line.stated_errors(from).unwrap_or(before.errors());
                let line = piece(from, was, lean.clamp(-LIMIT, LIMIT));
                let ends = at_start.max(self.errors_of(&estimate, line, node));
                pieces.push(self.begin(line, ends.and(bent).with_margin(), Reason::Gap));
            }
        }
        let (piece, errors, reason) = self.next(&estimate, node, rate, aim);
        pieces.push(match reason {
            Reason::Step => self.begin_jump(piece, errors),
            _ => self.begin(piece, errors, reason),
        });
        self.stated_until = piece.start().saturating_add(self.horizon_ns());
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

    /// Errors of a piece from a node's time on, while they must hold: the maximum is at one of the
    /// ends.
    fn errors(&self, estimate: &ClockEstimate, piece: ClockPiece, node: i64) -> ClockErrors {
        let until = node.saturating_add(self.horizon_ns());
        self.errors_of(estimate, piece, node).max(self.errors_of(estimate, piece, until))
    }

    /// Duration for which stated errors must hold: until the exchange after the next.
    fn horizon_ns(&self) -> i64 {
        (1.5 * self.pause_ns() + LATE_ANSWER_NS) as i64
    }

    /// Errors of a piece at a node's time.
    fn errors_of(&self, estimate: &ClockEstimate, piece: ClockPiece, node: i64) -> ClockErrors {
        let applied = piece.merged(node).0.saturating_sub(node);
        ClockErrors::of(applied, estimate.offset_at(node), self.round_trips.least())
    }

    /// Without any answer: the earlier correction, or none.
    fn assume(&mut self, node: i64) -> Vec<Correction> {
        match self.current {
            Some(_) => Vec::new(),
            None => {
                self.stated_until = i64::MAX;
                vec![self.begin(piece(node, 0, 0.0), UNKNOWN_ERRORS, Reason::First)]
            }
        }
    }

    /// Begins a piece that is not continuous. If it jumps back, merged times after its begin may
    /// belong to the piece before, and have its errors.
    fn begin_jump(&mut self, piece: ClockPiece, errors: ClockErrors) -> Correction {
        let is_back = piece.offset < self.line.offset(piece.start());
        let before = self.line.stated_errors(piece.start());
        let before = before.filter(|before| is_back && *before != UNKNOWN_ERRORS);
        self.begin(piece, before.map_or(errors, |before| errors.max(before)), Reason::Step)
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

/// Maximum distance of an offset from a straight line between its values at two times, nanoseconds.
fn bend(span: i64) -> i64 {
    (WANDER * span as f64 / 2.0).ceil() as i64
}

/// Creates a piece that begins at a node's time.
fn piece(node: i64, offset: i64, drift: f64) -> ClockPiece {
    ClockPiece { time: node.saturating_add(offset), offset, drift: (drift * BILLION).round() as i64 }
}
