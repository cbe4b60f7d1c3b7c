//! What a restarted server reads from its trace besides ids and stream ends.

use crate::catalog::Catalog;
use crate::clock::Correction;
use crate::merge::Key;
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Int64Type, UInt64Type};
use arrow_array::{PrimitiveArray, RecordBatch};
use miot_trace_store::{Error, Reader, Recovered, Table};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// What an earlier server left.
#[derive(Debug, Default)]
pub struct History {
    /// No row in order may come before this one.
    pub last: Option<Key>,
    /// What was last applied to the times of each node.
    pub corrections: HashMap<usize, Correction>,
}

impl History {
    /// Reads it, and marks in the catalog the ends that the trace tells of already.
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
        Ok(History { last: (!recovered.streams.is_empty()).then_some(last), corrections })
    }
}

/// Ends are told by losses without a range, which would be told twice if the node repeats them.
fn settle(batch: &RecordBatch, catalog: &mut Catalog) {
    let [processes, streams, firsts] =
        ["process", "stream", "first_seq"].map(|name| column::<UInt64Type>(batch, name));
    let (Some(processes), Some(streams), Some(firsts)) = (processes, streams, firsts) else { return };
    for ((process, stream), first) in processes.iter().zip(streams).zip(firsts) {
        if first.is_none() {
            catalog.settle(process, stream);
        }
    }
}

fn correct(batch: &RecordBatch, catalog: &mut Catalog, corrections: &mut HashMap<usize, Correction>) {
    let [offsets, errors, trips] =
        ["offset", "uncertainty", "round_trip"].map(|name| column::<Int64Type>(batch, name));
    let nodes = batch.column_by_name("node").and_then(|c| c.as_string_opt::<i32>());
    let (Some(nodes), Some(offsets), Some(errors), Some(trips)) = (nodes, offsets, errors, trips) else {
        return;
    };
    for row in 0..batch.num_rows() {
        if let Some(node) = catalog.node(nodes.value(row)) {
            let correction = Correction {
                offset: offsets.value(row),
                uncertainty: errors.value(row),
                round_trip: trips.value(row),
            };
            corrections.insert(node, correction);
        }
    }
}

/// Fills in the handles of processes that an earlier server knew and that are still there. In a process
/// that is not, nothing asks for them.
///
/// # Errors
/// Those of [`Reader`].
pub fn load_handles(trace: &Path, processes: &HashSet<u64>, catalog: &mut Catalog) -> Result<(), Error> {
    for ((process, handle), file) in Reader::open(trace)?.handles(processes)? {
        if let Some(process) = catalog.processes.get_mut(&process)
            && process.handles.get(handle).is_none()
        {
            process.handles.define(handle, file);
        }
    }
    Ok(())
}

fn column<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Option<&'a PrimitiveArray<T>> {
    batch.column_by_name(name)?.as_primitive_opt::<T>()
}
