//! The clock corrections that were applied to the times of each node.

use crate::clock::{Correction, Reached};
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
    reached: HashMap<NodeId, Reached>,
    /// Rows of `clocks` were written and are not durable.
    is_uncommitted: bool,
}

impl AppliedClocks {
    /// Creates the state of a trace with these corrections, the latest merged time of each node's
    /// events, and the last device samples of each node.
    pub(super) fn new(
        corrections: HashMap<NodeId, VecDeque<Correction>>,
        reached: HashMap<NodeId, Reached>,
        samples: &LastSamples,
        catalog: &mut Catalog,
    ) -> AppliedClocks {
        let mut clocks = AppliedClocks { corrections, reached, is_uncommitted: false };
        for (node, pieces) in &clocks.corrections {
            if let Some(start) = start_of_last(pieces) {
                clocks.reached.entry(*node).or_insert(exactly(start));
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
        let reached = self.reached.get(&node).map_or(i64::MAX, |reached| reached.time);
        pieces.iter().for_each(|piece| push_correction(corrections, *piece, reached));
        if let Some(start) = start_of_last(corrections) {
            self.reached.entry(node).or_insert(exactly(start));
        }
        self.is_uncommitted = true;
    }

    /// Records a merged time of a node.
    pub(super) fn advance(&mut self, node: NodeId, time: i64) {
        let reached = self.reached.entry(node).or_insert(exactly(time));
        if time >= reached.time {
            *reached = exactly(time);
        }
    }

    /// Latest corrections of a node, and its latest merged time.
    pub(super) fn of(&self, node: NodeId) -> (Vec<Correction>, Option<Reached>) {
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

fn exactly(time: i64) -> Reached {
    Reached { time, is_exact: true }
}

/// Start of the last piece: a node without an event or a watermark has reached it. Otherwise its
/// clock line would restart at `i64::MIN`, and its times would be converted to 1970.
fn start_of_last(pieces: &VecDeque<Correction>) -> Option<i64> {
    pieces.back().map(|last| last.piece.time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Exchange, NodeClock};

    /// Its connection broke after its clock was measured, and before it sent anything.
    #[test]
    fn node_that_has_sent_nothing_returns_with_its_times() {
        const NOW: i64 = 1_700_000_000_000_000_000;
        const SECOND: i64 = 1_000_000_000;
        let mut clocks = AppliedClocks::new(
            HashMap::new(),
            HashMap::new(),
            &LastSamples::default(),
            &mut Catalog::new(0, None),
        );
        for at in [NOW, NOW + 3 * SECOND] {
            let (corrections, reached) = clocks.of(NodeId(0));
            let mut clock = NodeClock::new(&corrections, reached);
            clock.add(Exchange::new(at, (at + 7 * SECOND, at + 7 * SECOND), at + 1000));
            clocks.add(NodeId(0), &clock.decide(at + 7 * SECOND));
            let time = clock.time(at + 6 * SECOND, i64::MAX);
            assert!(time.abs_diff(at - SECOND) < 1_000_000, "{time}, at {at}");
        }
    }
}
