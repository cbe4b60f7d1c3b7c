//! State that a restarted server reads from its trace, besides ids and ends of streams.

use crate::clock::{Correction, MAX_PIECES, MOST_PIECES, Reached, Reason};
use crate::columns::ops::Ops;
use crate::ids::catalog::Catalog;
use crate::ids::{NodeId, ProcessId, StreamId};
use crate::store::merge::RowKey;
use arrow_array::RecordBatch;
use arrow_array::types::{Int64Type, UInt64Type};
use miot_trace_store::schema::{column, text};
use miot_trace_store::{Error, LastSamples, Reader, RecoveredTrace, Table, clocks};
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;

/// State of an earlier server process.
#[derive(Debug, Default)]
pub struct History {
    /// Key of the last row: later rows must sort after it, or are late.
    pub last: Option<RowKey>,
    /// Latest pieces of the clock correction of each node.
    pub corrections: HashMap<NodeId, VecDeque<Correction>>,
    /// Latest merged time of each node. Of sealed parts only the time of their latest event is
    /// known, so it may be too late.
    pub reached: HashMap<NodeId, Reached>,
    /// Last device sample of each node and boot, see [`Reader::last_samples`].
    pub samples: LastSamples,
}

impl History {
    /// Reads the state, and records in the catalog the losses that the trace already contains.
    ///
    /// # Errors
    /// Those of [`Reader`].
    pub fn read(trace: &Path, recovered: &RecoveredTrace, catalog: &mut Catalog) -> Result<History, Error> {
        let reader = Reader::open(trace)?;
        for batch in reader.batches(Table::Losses) {
            read_losses(&batch?, catalog);
        }
        let mut reached = HashMap::new();
        for stream in &recovered.streams {
            if let Some(node) = catalog.node(&stream.node) {
                let sealed = Reached { time: recovered.sealed_until, is_exact: false };
                let latest = reached.entry(node).or_insert(sealed);
                if stream.live_until >= latest.time {
                    *latest = Reached { time: stream.live_until, is_exact: true };
                }
            }
        }
        // Of a node without events nothing is known.
        reached.retain(|_, latest: &mut Reached| latest.time > 0);
        let mut corrections = HashMap::new();
        for batch in reader.batches(Table::Clocks) {
            read_corrections(&batch?, catalog, &mut corrections);
        }
        // Only the time of the last row is known: all rows with the same time count as earlier.
        let last = RowKey { time: recovered.last_time, stream: StreamId(u64::MAX), attempt: u64::MAX };
        let samples = reader.last_samples()?;
        Ok(History { last: (!recovered.streams.is_empty()).then_some(last), corrections, reached, samples })
    }
}

/// Records losses without a range: they would be counted twice if the node repeats them.
fn read_losses(batch: &RecordBatch, catalog: &mut Catalog) {
    let [processes, streams, firsts, counts] =
        ["process", "stream", "first_seq", "count"].map(|name| column::<UInt64Type>(batch, name));
    let places = text(batch, "place");
    let (Some(processes), Some(streams), Some(firsts), Some(counts), Some(places)) =
        (processes, streams, firsts, counts, places)
    else {
        return;
    };
    for (row, ((process, stream), first)) in processes.iter().zip(&streams).zip(&firsts).enumerate() {
        if first.is_none() {
            let (process, stream) = (process.map(ProcessId), stream.map(StreamId));
            catalog.add_reported_loss(process, stream, places.value(row), counts.value(row));
        }
    }
}

fn read_corrections(
    batch: &RecordBatch,
    catalog: &mut Catalog,
    corrections: &mut HashMap<NodeId, VecDeque<Correction>>,
) {
    let trips = column::<Int64Type>(batch, "round_trip");
    let nodes = text(batch, "node");
    let (Some(nodes), Some(trips)) = (nodes, trips) else {
        return;
    };
    for (row, (piece, error)) in clocks::pieces(batch).into_iter().zip(clocks::errors(batch)).enumerate() {
        if let Some(node) = catalog.node(nodes.value(row)) {
            let correction = Correction {
                piece,
                uncertainty: error.uncertainty,
                estimated_error: error.estimated.unwrap_or(error.uncertainty),
                round_trip: trips.value(row),
                reason: Reason::First,
            };
            push_correction(corrections.entry(node).or_default(), correction, i64::MAX);
        }
    }
}

/// Appends a piece to the clock correction of a node, whose times were converted up to the merged
/// time `reached`. Removes pieces that no time is converted with any more.
pub(crate) fn push_correction(corrections: &mut VecDeque<Correction>, correction: Correction, reached: i64) {
    while corrections.pop_back_if(|last| last.piece.time >= correction.piece.time).is_some() {}
    corrections.push_back(correction);
    let is_needed = |second: &Correction| second.piece.time > reached;
    while corrections.len() > MOST_PIECES
        || corrections.len() > MAX_PIECES && !corrections.get(1).is_some_and(is_needed)
    {
        corrections.pop_front();
    }
}

/// Reads the handles of running processes that an earlier server knew. Other processes need no
/// handles.
///
/// # Errors
/// Those of [`Reader`].
pub fn load_handles(
    trace: &Path,
    processes: &HashSet<ProcessId>,
    catalog: &mut Catalog,
) -> Result<(), Error> {
    let opening = Ops::opening();
    let opens = |layer: &str, op: &str| opening.iter().any(|known| (&*known.0, &*known.1) == (layer, op));
    let processes = processes.iter().map(|process| process.0).collect();
    for ((process, handle), file) in Reader::open(trace)?.handles(&processes, opens)? {
        if let Some(process) = catalog.processes.get_mut(&ProcessId(process))
            && process.handles.get(handle).is_none()
        {
            process.handles.define(handle, file);
        }
    }
    Ok(())
}
