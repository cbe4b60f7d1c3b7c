//! Conversion between the time of a node and the time of the trace, exact to the nanosecond.
//!
//! The log-server converts the times of each node by a line of linear pieces, and writes each piece
//! as one row of `clocks`. A piece applies from the merged time `time` on, until the next one of
//! its node:
//!
//! ```text
//! start  = time − offset                                     node time at which the piece begins
//! merged = time + floor((node − start) · (10⁹ + drift) / 10⁹)
//! node   = start + ceil((merged − time) · 10⁹ / (10⁹ + drift)) + tie
//! ```
//!
//! If the clock of a node is faster than that of the server (`drift < 0`), sometimes two of its
//! nanoseconds have the same merged time. `tie` is 1 for the later one, else 0; the log-server
//! stores it in bit 15 of the `flags` of an event ([`flag::TIE`]). Floor and ceil round towards −∞
//! and +∞. The first piece of a node also applies before its start.

use crate::error::Error;
use crate::reader::Reader;
use crate::schema::{Table, column};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType};
use arrow_array::{Array as _, RecordBatch};
use miot_proto::event::flag;
use std::collections::HashMap;

/// Nanoseconds per second: the unit of [`ClockPiece::drift`] is parts per billion.
const BILLION: i64 = 1_000_000_000;

/// Largest drift of a piece, in either direction, parts per billion: 1 ‰, plus a margin for
/// slewing.
pub const MAX_DRIFT: i64 = 10_000_000;

/// Time before the first piece of a node in which its maximum error grows by 1 ns, nanoseconds:
/// clocks gain at most 1 ‰ on each other, as the log-server assumes (RFC 5905: each at most
/// 500 ppm).
const BEFORE_FIRST_PER_NS: i64 = 1000;

/// One linear piece of the conversion from node time to merged time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockPiece {
    /// Merged time from which it applies, nanoseconds since 1970.
    pub time: i64,
    /// Difference between merged time and node time at that point, nanoseconds.
    pub offset: i64,
    /// Change of the offset, nanoseconds per second of node time; within ±[`MAX_DRIFT`].
    pub drift: i64,
}

impl ClockPiece {
    /// Returns the node time at which the piece begins.
    #[must_use]
    pub fn start(&self) -> i64 {
        self.time.saturating_sub(self.offset)
    }

    /// Returns the merged time of a node time, and whether that is a tie: whether the previous
    /// nanosecond of the node has the same merged time.
    #[inline]
    #[must_use]
    pub fn merged(&self, node: i64) -> (i64, bool) {
        let span = node.saturating_sub(self.start());
        // Whole seconds and the remainder are computed separately, so that no product overflows.
        let (seconds, rest) = (span.div_euclid(BILLION), span.rem_euclid(BILLION));
        let gained = rest * self.drift;
        let gain = seconds * self.drift + gained.div_euclid(BILLION);
        let tie = self.drift < 0 && gained.rem_euclid(BILLION) >= BILLION + self.drift;
        (self.time.saturating_add(span).saturating_add(gain), tie)
    }

    /// Returns the node time of a merged time: the earlier one of two, or with `tie` the later one.
    #[must_use]
    pub fn node(&self, merged: i64, tie: bool) -> i64 {
        let (span, billion) = (i128::from(merged) - i128::from(self.time), i128::from(BILLION));
        let rate = billion + i128::from(self.drift);
        let node = i128::from(self.start()) - (-span * billion).div_euclid(rate) + i128::from(tie);
        node.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// Error of merged times while a piece applies, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeError {
    /// Maximum error. `i64::MAX`: unknown.
    pub uncertainty: i64,
    /// Standard error, assuming that the fastest messages take equally long in both directions.
    /// `None` in a trace of a version that did not estimate it.
    pub estimated: Option<i64>,
}

/// Clock pieces of all nodes of a trace.
#[derive(Clone, Debug, Default)]
pub struct Corrections {
    nodes: HashMap<String, Vec<(ClockPiece, TimeError)>>,
}

impl Corrections {
    /// Reads the table `clocks`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn read(reader: &Reader) -> Result<Corrections, Error> {
        let mut corrections = Corrections::default();
        for batch in reader.batches(Table::Clocks) {
            corrections.add_batch(&batch?);
        }
        Ok(corrections)
    }

    /// Adds rows of `clocks`, in the order in which they were written.
    pub fn add_batch(&mut self, batch: &RecordBatch) {
        let names = batch.column_by_name("node").and_then(|names| names.as_string_opt::<i32>());
        for (row, (piece, error)) in pieces(batch).into_iter().zip(errors(batch)).enumerate() {
            if let Some(names) = names
                && !names.is_null(row)
            {
                let pieces = self.nodes.entry(names.value(row).to_owned()).or_default();
                // In order of time, unless a clock was found to be ahead and set back: then the
                // later row counts.
                pieces.truncate(pieces.partition_point(|(before, _)| before.time <= piece.time));
                pieces.push((piece, error));
            }
        }
    }

    /// The node's own time of an event: of its merged `time` and its `flags`. `None` if nothing was
    /// written about the node.
    #[must_use]
    pub fn node_time(&self, node: &str, time: i64, flags: u16) -> Option<i64> {
        let (piece, _) = self.at(node, time)?;
        Some(piece.node(time, flags & flag::TIE != 0))
    }

    /// Returns the error of a merged time of a node. `None` if the node has no rows. Before the
    /// first piece nothing was measured, and the errors grow by 1 ms per second.
    #[must_use]
    pub fn error(&self, node: &str, time: i64) -> Option<TimeError> {
        let (first, error) = self.at(node, time)?;
        let gained = first.time.saturating_sub(time).max(0) / BEFORE_FIRST_PER_NS;
        let grown = |error: i64| error.saturating_add(gained);
        Some(TimeError { uncertainty: grown(error.uncertainty), estimated: error.estimated.map(grown) })
    }

    fn at(&self, node: &str, time: i64) -> Option<&(ClockPiece, TimeError)> {
        let pieces = self.nodes.get(node)?;
        pieces.get(pieces.partition_point(|(piece, _)| piece.time <= time).saturating_sub(1))
    }
}

/// Returns the pieces of a batch of `clocks`, one per row; none if the columns are missing.
#[must_use]
pub fn pieces(batch: &RecordBatch) -> Vec<ClockPiece> {
    let (Some(times), Some(offsets)) =
        (column::<TimestampNanosecondType>(batch, "time"), column::<Int64Type>(batch, "offset"))
    else {
        return Vec::new();
    };
    let drifts = column::<Int64Type>(batch, "drift");
    let piece = |row: usize| ClockPiece {
        time: times.value(row),
        offset: offsets.value(row),
        drift: drifts.as_ref().map_or(0, |drifts| drifts.value(row).clamp(-MAX_DRIFT, MAX_DRIFT)),
    };
    (0..batch.num_rows()).map(piece).collect()
}

/// Returns the errors of times while the pieces apply, one per row of a batch of `clocks`.
#[must_use]
pub fn errors(batch: &RecordBatch) -> Vec<TimeError> {
    let [uncertainties, estimated] =
        ["uncertainty", "estimated_error"].map(|name| column::<Int64Type>(batch, name));
    let error = |row: usize| TimeError {
        uncertainty: uncertainties.as_ref().map_or(i64::MAX, |column| column.value(row)),
        estimated: estimated.as_ref().filter(|column| column.is_valid(row)).map(|column| column.value(row)),
    };
    (0..batch.num_rows()).map(error).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array, StringArray, TimestampNanosecondArray};
    use proptest::prelude::*;
    use std::sync::Arc;

    const START: i64 = 1_700_000_000 * BILLION;

    fn piece() -> impl Strategy<Value = ClockPiece> {
        let drift = prop_oneof![-MAX_DRIFT..=MAX_DRIFT, -200_000i64..200_000, Just(0)];
        (START - BILLION..START + BILLION, -10 * BILLION..10 * BILLION, drift)
            .prop_map(|(time, offset, drift)| ClockPiece { time, offset, drift })
    }

    proptest! {
        #[test]
        fn conversion_back_is_exact(piece in piece(), spans in prop::collection::vec(-3600 * BILLION..86_400 * BILLION, 1..50)) {
            for node in spans.iter().map(|span| piece.start() + span) {
                // Neighbours too: ties are rare.
                for node in node - 3..=node + 3 {
                    let (merged, tie) = piece.merged(node);
                    prop_assert_eq!(piece.node(merged, tie), node);
                    prop_assert_eq!(tie, piece.merged(node - 1).0 == merged);
                    prop_assert!(piece.merged(node - 1).0 <= merged);
                }
            }
        }

        #[test]
        fn conversion_matches_the_documented_formula(piece in piece(), span in -3600 * BILLION..86_400 * BILLION) {
            let exact = i128::from(span) * i128::from(BILLION + piece.drift);
            let exact = i128::from(piece.time) + exact.div_euclid(i128::from(BILLION));
            prop_assert_eq!(i128::from(piece.merged(piece.start() + span).0), exact);
        }

        #[test]
        fn conversion_accepts_any_number(time: i64, offset: i64, drift in -MAX_DRIFT..=MAX_DRIFT, at: i64, tie: bool) {
            let piece = ClockPiece { time, offset, drift };
            let _ = (piece.merged(at), piece.node(at, tie));
        }
    }

    #[test]
    fn the_piece_in_force_counts() {
        let mut corrections = Corrections::default();
        let early = ClockPiece { time: 1000, offset: 10, drift: 0 };
        let late = ClockPiece { time: 2000, offset: -10, drift: 0 };
        let error = |uncertainty| TimeError { uncertainty, estimated: Some(uncertainty / 4) };
        corrections.nodes.insert("a".into(), vec![(early, error(40)), (late, error(20))]);
        for (time, expected) in [(500, 40), (1999, 40), (2000, 20)] {
            assert_eq!(corrections.error("a", time), Some(error(expected)));
        }
        let long_before = TimeError { uncertainty: 40 + 5000, estimated: Some(10 + 5000) };
        assert_eq!(corrections.error("a", 1000 - 5_000_000), Some(long_before));
        for (time, node) in [(500, 490), (1000, 990), (1999, 1989), (2000, 2010), (5000, 5010)] {
            assert_eq!(corrections.node_time("a", time, 0), Some(node));
        }
        assert_eq!((corrections.node_time("b", 1000, 0), corrections.error("b", 1000)), (None, None));
    }

    #[test]
    fn trace_of_an_earlier_version_has_no_estimate() -> Result<(), arrow_schema::ArrowError> {
        let (node, time) = (StringArray::from(vec!["a"]), TimestampNanosecondArray::from(vec![1000]));
        let columns: [(&str, ArrayRef); 6] = [
            ("time", Arc::new(time.with_timezone("UTC"))),
            ("node", Arc::new(node)),
            ("offset", Arc::new(Int64Array::from(vec![10]))),
            ("uncertainty", Arc::new(Int64Array::from(vec![7]))),
            ("round_trip", Arc::new(Int64Array::from(vec![9]))),
            ("drift", Arc::new(Int64Array::from(vec![0]))),
        ];
        let old = RecordBatch::try_from_iter(columns)?;
        let mut corrections = Corrections::default();
        corrections.add_batch(&old);
        assert_eq!(corrections.node_time("a", 1500, 0), Some(1490));
        assert_eq!(corrections.error("a", 1500), Some(TimeError { uncertainty: 7, estimated: None }));
        Ok(())
    }
}
