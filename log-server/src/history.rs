//! What a restarted server reads from its trace besides ids and stream ends.

use crate::catalog::Catalog;
use crate::clock::{Correction, PIECES, Reason};
use crate::merge::Key;
use crate::ops::Ops;
use arrow_array::RecordBatch;
use arrow_array::types::{Int64Type, UInt64Type};
use miot_trace_store::schema::{column, text};
use miot_trace_store::{Error, LastSamples, Reader, Recovered, Table, clocks};
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;

/// What an earlier server left.
#[derive(Debug, Default)]
pub struct History {
    /// No row in order may come before this one.
    pub last: Option<Key>,
    /// What was applied to the times of each node, the latest pieces.
    pub corrections: HashMap<usize, VecDeque<Correction>>,
    /// The last sample of devices of each node and boot, see [`Reader::last_samples`].
    pub samples: LastSamples,
}

impl History {
    /// Reads it, and notes in the catalog the losses that the trace tells of already.
    ///
    /// # Errors
    /// Those of [`Reader`].
    pub fn read(trace: &Path, recovered: &Recovered, catalog: &mut Catalog) -> Result<History, Error> {
        let reader = Reader::open(trace)?;
        for batch in reader.batches(Table::Losses) {
            settle(&batch?, catalog);
        }
        let mut corrections = HashMap::new();
        for batch in reader.batches(Table::Clocks) {
            correct(&batch?, catalog, &mut corrections);
        }
        // The row itself is not known, only its time: whatever has the same time counts as before it.
        let last = Key { time: recovered.last_time, stream: u64::MAX, seq: u64::MAX };
        let samples = reader.last_samples()?;
        Ok(History { last: (!recovered.streams.is_empty()).then_some(last), corrections, samples })
    }
}

/// Losses without a range would be told twice if the node repeats them.
fn settle(batch: &RecordBatch, catalog: &mut Catalog) {
    let [processes, streams, firsts, counts] =
        ["process", "stream", "first_seq", "count"].map(|name| column::<UInt64Type>(batch, name));
    let places = text(batch, "place");
    let (Some(processes), Some(streams), Some(firsts), Some(counts), Some(places)) =
        (processes, streams, firsts, counts, places)
    else {
        return;
    };
    for (row, ((process, stream), first)) in processes.iter().zip(streams).zip(firsts).enumerate() {
        if first.is_none() {
            catalog.is_told_of(process, stream, places.value(row), counts.value(row));
        }
    }
}

fn correct(
    batch: &RecordBatch,
    catalog: &mut Catalog,
    corrections: &mut HashMap<usize, VecDeque<Correction>>,
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
            remember(corrections.entry(node).or_default(), correction);
        }
    }
}

/// Adds a piece to what was applied to the times of a node.
pub(crate) fn remember(corrections: &mut VecDeque<Correction>, correction: Correction) {
    corrections.push_back(correction);
    if corrections.len() > PIECES {
        corrections.pop_front();
    }
}

/// Fills in the handles of processes that an earlier server knew and that are still there. In a process
/// that is not, nothing asks for them.
///
/// # Errors
/// Those of [`Reader`].
pub fn load_handles(trace: &Path, processes: &HashSet<u64>, catalog: &mut Catalog) -> Result<(), Error> {
    let opening = Ops::opening();
    let opens = |layer: &str, op: &str| opening.iter().any(|known| (&*known.0, &*known.1) == (layer, op));
    for ((process, handle), file) in Reader::open(trace)?.handles(processes, opens)? {
        if let Some(process) = catalog.processes.get_mut(&process)
            && process.handles.get(handle).is_none()
        {
            process.handles.define(handle, file);
        }
    }
    Ok(())
}
