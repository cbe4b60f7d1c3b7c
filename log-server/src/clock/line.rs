//! The correction of the times of one node: consecutive linear pieces, continuous unless a clock
//! was stepped. The line never runs backwards and never changes where it was used. Pure.

use super::Correction;
use super::error::ClockErrors;
use miot_proto::batch::Columns;
use miot_proto::event::flag;
use miot_trace_store::ClockPiece;
use std::collections::VecDeque;

/// Number of pieces that are kept, and those that times may still be converted with. Older times
/// are converted with the oldest piece.
pub const MAX_PIECES: usize = 64;
/// Maximum number of all pieces.
pub const MOST_PIECES: usize = 1 << 14;

/// The line, see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct CorrectionLine {
    /// Sorted by start, with the stated errors.
    pieces: VecDeque<Correction>,
    /// Latest node's time that was converted.
    reached: i64,
}

impl CorrectionLine {
    /// Creates the line of a node whose times were converted up to the merged time `reached`.
    pub(super) fn new<'a>(
        pieces: impl IntoIterator<Item = &'a Correction>,
        reached: Option<i64>,
    ) -> CorrectionLine {
        let mut line = CorrectionLine { pieces: VecDeque::new(), reached: i64::MIN };
        pieces.into_iter().for_each(|correction| line.push(*correction));
        if let Some(reached) = reached.and_then(|reached| line.node(reached)) {
            line.reached = reached;
        }
        line
    }

    /// Latest node's time that is converted to a merged time. `None` without a piece.
    pub(super) fn node(&self, merged: i64) -> Option<i64> {
        let after = self.pieces.partition_point(|correction| correction.piece.time <= merged);
        let correction = self.pieces.get(after.saturating_sub(1))?;
        Some(correction.piece.node(merged, true))
    }

    /// Latest node's time that was converted.
    pub(super) fn reached(&self) -> i64 {
        self.reached
    }

    /// First node's time that was not converted yet.
    pub(super) fn free_from(&self) -> i64 {
        self.reached.saturating_add(1)
    }

    /// Records that the node's clock was set back: its times repeat.
    pub(super) fn set_back(&mut self, node: i64) {
        self.reached = node;
    }

    /// Adds a piece that begins after all converted times.
    pub(super) fn push(&mut self, correction: Correction) {
        let start = correction.piece.start();
        while self.pieces.pop_back_if(|last| last.piece.start() >= start).is_some() {}
        self.pieces.push_back(correction);
        let reached = self.reached;
        let is_needed = |second: &Correction| second.piece.start() > reached;
        while self.pieces.len() > MOST_PIECES
            || self.pieces.len() > MAX_PIECES && !self.pieces.get(1).is_some_and(is_needed)
        {
            self.pieces.pop_front();
        }
    }

    /// Piece of a node's time.
    pub(super) fn covering(&self, node: i64) -> ClockPiece {
        self.piece_at(node).0
    }

    /// Errors that are stated for a node's time.
    pub(super) fn stated_errors(&self, node: i64) -> Option<ClockErrors> {
        let after = self.pieces.partition_point(|correction| correction.piece.start() <= node);
        self.pieces.get(after.saturating_sub(1)).map(Correction::errors)
    }

    /// Offset that is added to a node's time, nanoseconds.
    pub(super) fn offset(&self, node: i64) -> i64 {
        self.at(node).0.saturating_sub(node)
    }

    /// First node's time from `node` on at which a piece may begin: not at a tie, because the
    /// merged time at which the piece begins would belong to two pieces.
    pub(super) fn knot(&self, node: i64) -> i64 {
        if self.at(node).1 { node.saturating_add(1) } else { node }
    }

    /// Merged time of a node's time, and whether it is a tie.
    fn at(&self, node: i64) -> (i64, bool) {
        self.covering(node).merged(node)
    }

    /// Converts a node's time to merged time. A result after `latest` becomes `latest`.
    pub(super) fn time(&mut self, node: i64, latest: i64) -> i64 {
        let (time, _) = self.at(node);
        if time > latest {
            return latest;
        }
        self.reached = self.reached.max(node);
        time
    }

    /// Converts the times of a batch. A result after `latest` becomes `latest` and is marked late
    /// and moved. Returns the number of these rows.
    pub(super) fn convert(&mut self, rows: &mut Columns, latest: i64) -> usize {
        let mut cut = 0;
        let (mut piece, mut from, mut until) = (ClockPiece::default(), i64::MAX, i64::MIN);
        for (row, (time, flags)) in rows.time.iter_mut().zip(&mut rows.flags).enumerate() {
            let node = *time;
            // Rows are in order and pieces are long: nearly always the piece of the previous row
            // applies.
            if node < from || node >= until {
                (piece, from, until) = self.piece_at(node);
            }
            let (merged, tie) = piece.merged(node);
            // Only the server sets these marks.
            *flags &= !(flag::TIE | flag::LATE);
            if merged > latest {
                let moved = rows.op.get(row).map_or(flag::MOVED, |op| flag::moved_bit(*op));
                (*time, *flags) = (latest, *flags | flag::LATE | moved);
                cut += 1;
                continue;
            }
            *time = merged;
            *flags |= if tie { flag::TIE } else { 0 };
            self.reached = self.reached.max(node);
        }
        cut
    }

    /// Piece of a node's time, with its start and end.
    fn piece_at(&self, node: i64) -> (ClockPiece, i64, i64) {
        let piece = |at: usize| self.pieces.get(at).map(|correction| correction.piece);
        let after = self.pieces.partition_point(|correction| correction.piece.start() <= node);
        let until = piece(after).map_or(i64::MAX, |next| next.start());
        match piece(after.saturating_sub(1)) {
            Some(piece) if after > 0 => (piece, piece.start(), until),
            Some(piece) => (piece, i64::MIN, until.min(piece.start())),
            None => (ClockPiece { time: node, ..ClockPiece::default() }, node, node),
        }
    }
}
