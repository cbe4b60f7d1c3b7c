//! A node's clock, as the server sees it: what is added to the node's times, and how wrong that may be.
//!
//! | module | role |
//! |---|---|
//! | `estimate` | what exchanges tell: bounds of offset and drift |
//! | `error` | how wrong that may be, and how wrong it probably is |
//! | `line` | what is applied: straight pieces, one after the other |
//!
//! [`NodeClock`] puts them together. The line aims at the middle of the bounds, where the error is least in the
//! worst case. A new piece is begun when the one in force may soon be more wrong than was written about it,
//! or when a good deal less can be claimed; it begins after everything that was converted, where the last one ends, and
//! leans towards the bounds. So no time that was given is ever given differently, watermarks do not go
//! back, and the order within a stream stays. Only a clock that was stepped makes a jump. [`miot_trace_store::clocks`]
//! has the formula of a piece. A clock that cannot be told from the server's is left alone.

mod error;
mod estimate;
mod line;
#[cfg(test)]
mod tests;

pub use estimate::Sample;
pub use line::PIECES;

use error::{Errors, RoundTrips};
use estimate::{Bounds, Estimate, LIMIT, WANDER};
use line::Line;
use miot_proto::batch::Columns;
use miot_trace_store::Piece;
use std::time::Duration;

/// Shortest and longest time between two exchanges of a node that answers.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
/// Between two exchanges the bounds may widen by an eighth of half the round trip, or by this, nanoseconds: finer than
/// that no two requests on different nodes depend on each other.
const FINE: f64 = 5e3;
/// A claim holds for one and a half pauses, and this: an answer may be late, nanoseconds.
const LATE: f64 = 10e6;
/// An error is slewed away within this many pauses, ...
const SLEW_PAUSES: f64 = 4.0;
/// ... but not faster than the kernel slews a clock.
const SLEW: f64 = 500e-6;
/// An error that is not slewed away: 20 seconds of slewing.
const STEP: i64 = 10_000_000;
/// A longer time without exchanges is bridged by a straight line, nanoseconds.
const GAP: i64 = 1_000_000_000;
/// The drift of an earlier connection counts until it is known better than this.
const ROUGH: f64 = 50e-6;
/// Without any exchange.
const NOTHING_KNOWN: Errors = Errors { most: i64::MAX, estimated: i64::MAX };
/// Unit of [`Piece::drift`].
const BILLION: f64 = 1e9;

/// Why a piece was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The first of this node.
    First,
    /// Exchanges told more, or the piece before was about to be more wrong than had been claimed.
    Exchange,
    /// The node was away: a straight line from where it was to where it is.
    Gap,
    /// The node's clock, or the server's, was stepped, or the node did not answer in time to know better.
    Step,
}

impl Reason {
    /// As in the column `reason`.
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
    /// What is applied, and from when on.
    pub piece: Piece,
    /// While it holds, merged times are at most this wrong, nanoseconds. `i64::MAX`: nothing is known.
    pub uncertainty: i64,
    /// While it holds, the standard error of merged times, nanoseconds, if the fastest way there takes as long as the
    /// fastest way back; at most `uncertainty`.
    pub estimated_error: i64,
    /// Of the shortest exchange it rests on, nanoseconds; 0 if there was none.
    pub round_trip: i64,
    /// Why.
    pub reason: Reason,
}

impl Correction {
    fn errors(&self) -> Errors {
        Errors { most: self.uncertainty, estimated: self.estimated_error }
    }

    /// True if errors are still as was written. The estimate is one to within a half: so three times it covers the error
    /// whenever both ways are equal.
    fn holds(&self, errors: Errors) -> bool {
        errors.most <= self.uncertainty
            && errors.estimated <= self.estimated_error.saturating_add(self.estimated_error / 2)
    }

    /// True if a good deal less can be claimed.
    fn is_much_more_than(&self, errors: Errors) -> bool {
        errors.most <= self.uncertainty / 8 * 7 || errors.estimated <= self.estimated_error / 2
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct NodeClock {
    line: Line,
    /// What was claimed last.
    claim: Option<Correction>,
    /// The drift before this connection.
    prior: Option<f64>,
    estimate: Option<Estimate>,
    round_trips: RoundTrips,
    /// No piece was begun on this connection.
    returned: bool,
}

impl NodeClock {
    /// The clock of a node that connects: what was applied to its times before, and the latest merged time
    /// that was.
    #[must_use]
    pub fn new<'a>(before: impl IntoIterator<Item = &'a Correction>, reached: Option<i64>) -> NodeClock {
        let before: Vec<&Correction> = before.into_iter().collect();
        let claim = before.last().map(|last| **last);
        NodeClock {
            line: Line::new(before, reached),
            claim,
            prior: claim.map(|claim| claim.piece.drift as f64 / BILLION),
            estimate: None,
            round_trips: RoundTrips::default(),
            returned: claim.is_some(),
        }
    }

    /// Takes in an exchange. Returns false if it contradicts those before it.
    pub fn add(&mut self, sample: Sample) -> bool {
        let agrees = match &mut self.estimate {
            None => {
                self.estimate = Some(Estimate::new(sample));
                true
            }
            Some(estimate) => estimate.add(sample),
        };
        if !agrees {
            self.round_trips = RoundTrips::default();
        }
        self.round_trips.add(sample.round_trip());
        agrees
    }

    /// The merged time of a node's time. What lies after `latest` is cut to that.
    pub fn time(&mut self, node: i64, latest: i64) -> i64 {
        self.line.time(node, latest)
    }

    /// Converts the times of a batch, and marks ties. What lies after `latest` is cut to that, and marked late; how many
    /// there were.
    pub fn convert(&mut self, rows: &mut Columns, latest: i64) -> usize {
        self.line.convert(rows, latest)
    }

    /// The node's time of a server's time that is not before the last exchange, as far as it is known.
    #[must_use]
    pub fn estimated(&self, server: i64) -> i64 {
        let offset = |estimate: &Estimate| estimate.offset_at(estimate.at()).middle();
        self.estimate.as_ref().map_or(server, |estimate| server.saturating_sub(offset(estimate)))
    }

    /// What was claimed last.
    #[must_use]
    pub fn claim(&self) -> Option<Correction> {
        self.claim
    }

    /// True if another exchange may well tell more at once: what is known is less than a fast one alone would tell.
    #[must_use]
    pub fn is_worth_asking_again(&self) -> bool {
        self.estimate.as_ref().is_some_and(|estimate| {
            let offset = estimate.offset_at(estimate.at());
            offset.high.saturating_sub(offset.low) > self.round_trip()
        })
    }

    /// How long to wait before the next exchange: while the drift is hardly known not long, and seldom where the round
    /// trip is long.
    #[must_use]
    pub fn pause(&self) -> Duration {
        Duration::from_secs_f64(self.pause_ns() / BILLION)
    }

    fn pause_ns(&self) -> f64 {
        let bounds = |pause: Duration| pause.as_nanos() as f64;
        let Some(estimate) = &self.estimate else { return bounds(PAUSE.0) };
        let drift = estimate.drift();
        let widens = FINE.max(self.round_trip() as f64 / 16.0);
        (widens / drift.error(self.drift(estimate))).clamp(bounds(PAUSE.0), bounds(PAUSE.1))
    }

    /// How far the drift may be from the middle of its bounds.
    #[cfg(test)]
    fn drift_bounds(&self) -> f64 {
        self.estimate
            .as_ref()
            .map_or(f64::NAN, |estimate| (estimate.drift().high - estimate.drift().low) / 2.0)
    }

    fn round_trip(&self) -> i64 {
        self.round_trips.shortest()
    }

    fn drift(&self, estimate: &Estimate) -> f64 {
        let drift = estimate.drift();
        match drift.high - drift.low > 2.0 * ROUGH {
            true => self.prior.unwrap_or(0.0).clamp(drift.low, drift.high),
            false => drift.middle(),
        }
    }

    /// True if nothing has told this clock from the server's so far. It is left alone then: on one machine the two
    /// are the same, and nodes that keep their clocks in step know better than a round trip does.
    fn may_be_equal(&self, estimate: &Estimate, offset: Bounds<i64>) -> bool {
        let (before, drift) = (self.claim.map(|claim| claim.piece).unwrap_or_default(), estimate.drift());
        (before.offset, before.drift) == (0, 0)
            && (offset.low..=offset.high).contains(&0)
            && (drift.low..=drift.high).contains(&0.0)
    }

    /// At the node's time `node`: begins new pieces if it matters, and returns them, to be written before anything that
    /// is converted from now on.
    pub fn decide(&mut self, node: i64) -> Vec<Correction> {
        let Some(estimate) = &self.estimate else { return self.assume(node) };
        let offset = estimate.offset_at(node);
        let equal = self.may_be_equal(estimate, offset);
        let rate = if equal { 0.0 } else { self.drift(estimate) };
        let aim = |offset: Bounds<i64>| if equal { 0 } else { offset.middle() };
        let Some(before) = self.claim else {
            let straight = piece(node, aim(offset), rate);
            let errors = self.errors(estimate, straight, node).claimed();
            return vec![self.begin(straight, errors, Reason::First)];
        };
        let gap = node.saturating_sub(self.line.free_from());
        if gap < -GAP {
            self.line.set_back(node);
        }
        let returned = self.returned && gap > GAP;
        let bent = if returned { (WANDER * gap as f64 / 2.0) as i64 } else { 0 };
        let errors = self.errors(estimate, self.line.covering(node), node).and(bent);
        let (_, could_claim, _) = self.next(estimate, node, rate, aim);
        if before.holds(errors) && !before.is_much_more_than(could_claim) {
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
                let ends = before.errors().max(self.errors_at(&estimate, aim(offset), node));
                pieces.push(self.begin(piece(from, was, lean), ends.and(bent).claimed(), Reason::Gap));
            } else {
                let back = aim(offset).saturating_sub((rate * gap as f64) as i64);
                let errors = could_claim.and(2 * bent).claimed();
                pieces.push(self.begin(piece(from, back, rate), errors, Reason::Step));
            }
        }
        let (piece, errors, reason) = self.next(&estimate, node, rate, aim);
        pieces.push(self.begin(piece, errors, reason));
        pieces
    }

    /// The piece that can be begun at a node's time, with what can be claimed of it: one that goes on where the line is and leans
    /// towards where it aims, or jumps there.
    fn next(
        &self,
        estimate: &Estimate,
        node: i64,
        rate: f64,
        aim: impl Fn(Bounds<i64>) -> i64,
    ) -> (Piece, Errors, Reason) {
        let from = self.line.knot(self.line.free_from().max(node));
        let (was, aim) = (self.line.offset(from), aim(estimate.offset_at(from)));
        let missing = aim.saturating_sub(was);
        let (piece, reason) = if missing.saturating_abs() > STEP {
            (piece(from, aim, rate), Reason::Step)
        } else {
            let time = (SLEW_PAUSES * self.pause_ns()).max(GAP as f64 / 2.0);
            let slew = (missing as f64 / time).clamp(-SLEW, SLEW);
            (piece(from, was, rate + slew), Reason::Exchange)
        };
        (piece, self.errors(estimate, piece, from).claimed(), reason)
    }

    /// How wrong a piece may be between a node's time and the exchange after the next: at one of the ends.
    fn errors(&self, estimate: &Estimate, piece: Piece, node: i64) -> Errors {
        let at = |node: i64| {
            let applied = piece.merged(node).0.saturating_sub(node);
            self.errors_at(estimate, applied, node)
        };
        at(node).max(at(node.saturating_add((1.5 * self.pause_ns() + LATE) as i64)))
    }

    fn errors_at(&self, estimate: &Estimate, applied: i64, node: i64) -> Errors {
        Errors::of(applied, estimate.offset_at(node), self.round_trips.least())
    }

    /// Without a single answer: what was applied before, or nothing.
    fn assume(&mut self, node: i64) -> Vec<Correction> {
        match self.claim {
            Some(_) => Vec::new(),
            None => vec![self.begin(piece(node, 0, 0.0), NOTHING_KNOWN, Reason::First)],
        }
    }

    fn begin(&mut self, piece: Piece, errors: Errors, reason: Reason) -> Correction {
        self.line.push(piece);
        let Errors { most: uncertainty, estimated: estimated_error } = errors;
        let round_trip = self.round_trip();
        let correction = Correction { piece, uncertainty, estimated_error, round_trip, reason };
        self.claim = Some(correction);
        correction
    }
}

/// A piece from a node's time on.
fn piece(node: i64, offset: i64, drift: f64) -> Piece {
    Piece { time: node.saturating_add(offset), offset, drift: (drift * BILLION).round() as i64 }
}
