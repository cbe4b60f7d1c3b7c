//! The clock corrections that were applied to the times of each node.

use crate::clock::Correction;
use crate::ids::NodeId;
use crate::ids::catalog::Catalog;
use crate::ids::history::push_correction;
use miot_trace_store::LastSamples;
use std::collections::{HashMap, VecDeque};

/// Latest corrections and latest merged times of all nodes.
#[derive(Debug)]
pub(super) struct AppliedClocks {
    corrections: HashMap<NodeId, VecDeque<Correction>>,
    /// The latest merged time of each node, of an event or a watermark.
    reached: HashMap<NodeId, i64>,
    /// Rows of `clocks` were written and are not durable.
    is_uncommitted: bool,
}

impl AppliedClocks {
    /// Creates the state of a trace with these corrections, its last event at `last_time`, and the
    /// last device samples of each node.
    pub(super) fn new(
        corrections: HashMap<NodeId, VecDeque<Correction>>,
        last_time: Option<i64>,
        samples: &LastSamples,
        catalog: &mut Catalog,
    ) -> AppliedClocks {
        let mut clocks = AppliedClocks { corrections, reached: HashMap::new(), is_uncommitted: false };
        for (node, pieces) in &clocks.corrections {
            // Without an event in the trace, the start of the last piece was reached. Otherwise the
            // clock line would restart at `i64::MIN` and timestamps would be converted to 1970.
            let start = pieces.back().map(|last| last.piece.time);
            if let Some(time) = last_time.max(start) {
                clocks.reached.insert(*node, time);
            }
        }
        // Times of a node that sent only samples were converted too.
        for ((node, _), (_, time)) in samples {
            if let Some(node) = catalog.node(node) {
                clocks.advance(node, *time);
            }
        }
        clocks
    }

    /// Adds pieces of the correction of a node. They must be written to `clocks`.
    pub(super) fn add(&mut self, node: NodeId, pieces: &[Correction]) {
        let corrections = self.corrections.entry(node).or_default();
        pieces.iter().for_each(|piece| push_correction(corrections, *piece));
        self.is_uncommitted = true;
    }

    /// Records a merged time of a node.
    pub(super) fn advance(&mut self, node: NodeId, time: i64) {
        let reached = self.reached.entry(node).or_insert(time);
        *reached = time.max(*reached);
    }

    /// Latest corrections of a node, and its latest merged time.
    pub(super) fn of(&self, node: NodeId) -> (Vec<Correction>, Option<i64>) {
        let corrections = self.corrections.get(&node).into_iter().flatten().copied().collect();
        (corrections, self.reached.get(&node).copied())
    }

    pub(super) fn is_uncommitted(&self) -> bool {
        self.is_uncommitted
    }

    pub(super) fn committed(&mut self) {
        self.is_uncommitted = false;
    }
}
