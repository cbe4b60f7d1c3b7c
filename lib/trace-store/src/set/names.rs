//! Files of handles that were opened before their process moved to another log-server.
//!
//! The log-server at which a process arrives does not get the names of its open files again. They
//! are in the trace that the process has left, under the same handle, which is never reused.

use crate::error::Error;
use crate::reader::Reader;
use crate::schema::{Table, column, text};
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, Int64Array, RecordBatch};
use arrow_schema::ArrowError;
use miot_proto::op::{self, Layer, ResultMeaning};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Columns that are needed to find a file.
pub(crate) const NEEDED: [&str; 3] = ["process", "handle", "file"];

/// Files by process and handle, of processes that several traces have.
#[derive(Clone, Debug, Default)]
pub(crate) struct MovedFiles(Arc<HashMap<(u64, u64), u64>>);

/// Permanent identity of a process: node, boot, nonce, process id.
type Identity = (String, String, String, u64);

impl MovedFiles {
    /// Reads them from the traces of a set.
    pub(crate) fn read(readers: &[&Reader]) -> Result<MovedFiles, Error> {
        let mut identities: HashMap<Identity, Vec<(usize, u64)>> = HashMap::new();
        for (index, reader) in readers.iter().enumerate() {
            for batch in reader.own_batches(Table::Processes) {
                add_processes(&batch?, index, &mut identities);
            }
        }
        identities.retain(|_, found| found.len() > 1);
        if identities.is_empty() {
            return Ok(MovedFiles::default());
        }
        let opening = opening();
        let opens = |layer: &str, op: &str| opening.contains(&(layer, op));
        let mut known = Vec::new();
        for (index, reader) in readers.iter().enumerate() {
            let own = identities.values().flatten().filter(|(of, _)| *of == index);
            let processes: HashSet<u64> = own.map(|(_, process)| *process).collect();
            known.push(reader.handles(&processes, opens)?);
        }
        let mut by_process: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
        for ((process, handle), file) in known.into_iter().flatten() {
            by_process.entry(process).or_default().push((handle, file));
        }
        let mut files = HashMap::new();
        for same in identities.values() {
            for (_, from) in same {
                for (handle, file) in by_process.get(from).into_iter().flatten() {
                    for (_, process) in same {
                        files.entry((*process, *handle)).or_insert(*file);
                    }
                }
            }
        }
        Ok(MovedFiles(Arc::new(files)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns events with the files of handles that were opened in another trace.
    pub(crate) fn fill(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let [process, handle, file] = NEEDED.map(|name| column::<UInt64Type>(&batch, name));
        let (Some(process), Some(handle), Some(file), false) = (process, handle, file, self.is_empty())
        else {
            return Ok(batch);
        };
        let found = |row: usize| {
            let is_unknown = file.is_null(row) && handle.is_valid(row);
            is_unknown.then(|| self.0.get(&(process.value(row), handle.value(row))).copied()).flatten()
        };
        if (0..batch.num_rows()).all(|row| found(row).is_none()) {
            return Ok(batch);
        }
        let own = |row: usize| file.is_valid(row).then(|| file.value(row));
        let rows = (0..batch.num_rows()).map(|row| own(row).or_else(|| found(row)).map(u64::cast_signed));
        let files: Int64Array = rows.collect();
        let mut columns = batch.columns().to_vec();
        columns[batch.schema().index_of("file")?] = Arc::new(files);
        RecordBatch::try_new(batch.schema(), columns)
    }
}

fn add_processes(batch: &RecordBatch, index: usize, identities: &mut HashMap<Identity, Vec<(usize, u64)>>) {
    let [node, boot, nonce] = ["node", "boot", "nonce"].map(|name| text(batch, name));
    let (Some(ids), Some(node), Some(boot), Some(nonce)) =
        (column::<UInt64Type>(batch, "process"), node, boot, nonce)
    else {
        return;
    };
    let Some(pids) = super::numbers(batch, "pid") else { return };
    for row in (0..batch.num_rows()).filter(|row| boot.is_valid(*row) && nonce.is_valid(*row)) {
        let name = |column: &arrow_array::StringArray| column.value(row).to_owned();
        let identity = (name(node), name(boot), name(nonce), pids[row]);
        identities.entry(identity).or_default().push((index, ids.value(row)));
    }
}

/// Layers and operations that open a file by its path.
fn opening() -> HashSet<(&'static str, &'static str)> {
    let opens = op::all_operations().filter(|info| info.result == ResultMeaning::Fd && info.paths > 0);
    let named = opens.filter_map(|info| Some((Layer::from_number(info.op.layer)?, info.name)));
    // FUSE events have the operations of the client layer.
    let with_fuse = |(layer, name): (Layer, &'static str)| {
        let fuse = (layer == Layer::Client).then_some((Layer::Fuse.name(), name));
        std::iter::once((layer.name(), name)).chain(fuse)
    };
    named.flat_map(with_fuse).collect()
}
