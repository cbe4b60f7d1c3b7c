//! A piece of the correction with the errors that are stated for it: one row of `clocks`.

use super::error::ClockErrors;
use miot_trace_store::ClockPiece;

/// Reason for a new piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The first piece of this node.
    First,
    /// Exchanges gave a smaller error, or the error of the previous piece was about to exceed the
    /// stated one, or the node had not answered in time.
    Exchange,
    /// The node was disconnected or did not answer: a linear piece from its last position to the
    /// present one.
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
    pub(super) fn errors(&self) -> ClockErrors {
        ClockErrors { maximum: self.uncertainty, estimated: self.estimated_error }
    }

    /// True if `errors` are still within the stated ones. The estimate may be exceeded by half:
    /// three times the estimate then covers the error whenever both directions are equal.
    pub(super) fn holds(&self, errors: ClockErrors) -> bool {
        errors.maximum <= self.uncertainty
            && errors.estimated <= self.estimated_error.saturating_add(self.estimated_error / 2)
    }

    /// True if `errors` are much smaller than the stated ones.
    pub(super) fn far_exceeds(&self, errors: ClockErrors) -> bool {
        errors.maximum <= self.uncertainty / 8 * 7 || errors.estimated <= self.estimated_error / 2
    }
}
