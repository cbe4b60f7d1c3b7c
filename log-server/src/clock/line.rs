//! What is applied to the times of one node: a line of straight pieces, continuous unless a clock was
//! stepped, that never runs backwards and is never changed where it has been used. Pure.

use super::Correction;
use miot_proto::batch::Columns;
use miot_proto::event::flag;
use miot_trace_store::Piece;
use std::collections::VecDeque;

/// Pieces kept: what arrives from longer ago is converted with the oldest.
pub const PIECES: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// In order of their starts.
    pieces: VecDeque<Piece>,
    /// The latest node's time that was converted.
    reached: i64,
}

impl Line {
    /// The line of a node whose times were converted up to the merged time `reached`.
    pub(super) fn new<'a>(pieces: impl IntoIterator<Item = &'a Correction>, reached: Option<i64>) -> Line {
        let mut line = Line { pieces: VecDeque::new(), reached: i64::MIN };
        pieces.into_iter().for_each(|correction| line.push(correction.piece));
        if let (Some(reached), Some(piece)) = (reached, line.pieces.back()) {
            line.reached = piece.node(reached, true);
        }
        line
    }

    /// The first node's time that no one has seen converted.
    pub(super) fn free_from(&self) -> i64 {
        self.reached.saturating_add(1)
    }

    /// The node's clock was set back: its times come a second time.
    pub(super) fn set_back(&mut self, node: i64) {
        self.reached = node;
    }

    /// Adds a piece that begins after all that was converted.
    pub(super) fn push(&mut self, piece: Piece) {
        while self.pieces.pop_back_if(|last| last.start() >= piece.start()).is_some() {}
        self.pieces.push_back(piece);
        if self.pieces.len() > PIECES {
            self.pieces.pop_front();
        }
    }

    /// The piece that covers a node's time.
    pub(super) fn covering(&self, node: i64) -> Piece {
        self.piece_at(node).0
    }

    /// What is added to a node's time.
    pub(super) fn offset(&self, node: i64) -> i64 {
        self.at(node).0.saturating_sub(node)
    }

    /// The first node's time from here on at which a piece may begin: one that is no tie, or the merged time at which
    /// it begins would belong to two pieces.
    pub(super) fn knot(&self, node: i64) -> i64 {
        if self.at(node).1 { node.saturating_add(1) } else { node }
    }

    /// The merged time of a node's time, and whether it is a tie.
    fn at(&self, node: i64) -> (i64, bool) {
        self.covering(node).merged(node)
    }

    /// The merged time of a node's time. What lies after `latest` is cut to that.
    pub(super) fn time(&mut self, node: i64, latest: i64) -> i64 {
        let (time, _) = self.at(node);
        if time > latest {
            return latest;
        }
        self.reached = self.reached.max(node);
        time
    }

    /// Converts the times of a batch. What lies after `latest` is cut to that, and marked late and moved; how many there
    /// were.
    pub(super) fn convert(&mut self, rows: &mut Columns, latest: i64) -> usize {
        let mut cut = 0;
        let (mut piece, mut from, mut until) = (Piece::default(), i64::MAX, i64::MIN);
        for (row, (time, flags)) in rows.time.iter_mut().zip(&mut rows.flags).enumerate() {
            let node = *time;
            // Rows are in order and pieces long: nearly always it is the piece of the row before.
            if node < from || node >= until {
                (piece, from, until) = self.piece_at(node);
            }
            let (merged, tie) = piece.merged(node);
            // Only this side marks rows.
            *flags &= !(flag::TIE | flag::LATE);
            if merged > latest {
                let moved = rows.op.get(row).map_or(flag::MOVED, |op| flag::moved(*op));
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

    /// The piece that covers a node's time, from where, and until where.
    fn piece_at(&self, node: i64) -> (Piece, i64, i64) {
        let after = self.pieces.partition_point(|piece| piece.start() <= node);
        let until = self.pieces.get(after).map_or(i64::MAX, Piece::start);
        match self.pieces.get(after.saturating_sub(1)) {
            Some(piece) if after > 0 => (*piece, piece.start(), until),
            Some(piece) => (*piece, i64::MIN, until.min(piece.start())),
            None => (Piece { time: node, ..Piece::default() }, node, node),
        }
    }
}
