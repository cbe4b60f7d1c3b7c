//! Losses that were reported by nodes or found as gaps.

use super::Store;
use super::merge::{EndedStream, Gap};
use crate::columns::side_tables::{self, LossRow};
use crate::error::Error;
use crate::ids::{NodeId, ProcessId, StreamId};
use miot_trace_store::Table;
use miot_trace_store::schema::{is_elsewhere, is_loss};
use std::collections::HashMap;

/// Rows of `losses` that were not written yet, and totals.
#[derive(Debug, Default)]
pub(super) struct Losses {
    rows: Vec<LossRow>,
    /// Lost events since the start. Filtered events are not lost.
    total: u64,
    /// Events by node and place since the start, filtered events included.
    by_node: HashMap<NodeId, HashMap<&'static str, u64>>,
}

impl Losses {
    fn add(&mut self, node: NodeId, row: LossRow) {
        if !is_elsewhere(row.place) {
            let count = self.by_node.entry(node).or_default().entry(row.place).or_default();
            *count = count.saturating_add(row.count);
        }
        if is_loss(row.place) {
            self.total = self.total.saturating_add(row.count);
        }
        self.rows.push(row);
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Number of lost events since the start.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Places and counts of a node since the start.
    pub(super) fn of(&self, node: NodeId) -> impl Iterator<Item = (&'static str, u64)> {
        self.by_node.get(&node).into_iter().flatten().map(|(place, count)| (*place, *count))
    }
}

impl Store {
    /// Adds the part of a gap that the trace does not contain yet.
    pub(super) fn add_gap(&mut self, gap: &Gap) {
        let Some(stream) = self.catalog.streams.get(&gap.stream) else { return };
        let Some(process) = self.catalog.processes.get(&stream.process) else { return };
        for (first, last) in stream.unreported(gap) {
            let row = LossRow {
                time: gap.time,
                node: self.catalog.node_name(process.node).to_owned(),
                process: Some(process.id),
                stream: Some(gap.stream),
                place: gap.place,
                count: (last - first).saturating_add(1),
                range: Some((first, last)),
            };
            self.losses.add(process.node, row);
        }
    }

    /// Ends a stream, and adds the losses that its end reports.
    pub(super) fn end_stream(&mut self, ended: &EndedStream) {
        let new = self.catalog.stream_ended(ended);
        let Some(process) = self.catalog.streams.get(&ended.stream).map(|s| s.process) else { return };
        for (place, count) in new {
            self.add_total(ended.end.time, process, Some(ended.stream), place, count);
        }
    }

    /// Adds a loss of which only the number of events is known.
    pub(super) fn add_total(
        &mut self,
        time: i64,
        process: ProcessId,
        stream: Option<StreamId>,
        place: &'static str,
        count: u64,
    ) {
        let node = self.catalog.processes.get(&process).map_or(NodeId(0), |p| p.node);
        let name = self.catalog.node_name(node).to_owned();
        let row = LossRow { time, node: name, process: Some(process), stream, place, count, range: None };
        self.losses.add(node, row);
    }

    pub(super) fn write_losses(&mut self) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.losses.rows);
        if !rows.is_empty() {
            self.append(Table::Losses, side_tables::losses(&rows)?)?;
        }
        Ok(())
    }
}
