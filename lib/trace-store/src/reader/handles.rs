//! The files of open handles, for a writer that continues a trace.

use super::Reader;
use crate::error::Error;
use crate::parquet_file::Batches;
use crate::part_rows::PartRows;
use crate::schema::{Table, column};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array as _, PrimitiveArray, RecordBatch};
use parquet::file::statistics::Statistics;
use std::collections::{HashMap, HashSet};

impl Reader {
    /// Returns the file of each handle of these processes, by process and handle. The sources are
    /// handle records, and events of operations for which `opens` (layer, operation) is true; the
    /// file of another operation may not be that of its handle. For a writer that continues a trace
    /// whose processes still run. Reads only row groups of sealed parts that may contain one of the
    /// processes.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn handles(
        &self,
        processes: &HashSet<u64>,
        opens: impl Fn(&str, &str) -> bool,
    ) -> Result<HashMap<(u64, u64), u64>, Error> {
        let mut handles = HashMap::new();
        let mut streams = HashMap::new();
        for batch in self.batches(Table::Threads) {
            let batch = batch?;
            if let (Some(ids), Some(of)) =
                (column::<UInt64Type>(&batch, "stream"), column::<UInt64Type>(&batch, "process"))
            {
                let wanted = ids.values().iter().zip(of.values()).filter(|(_, p)| processes.contains(p));
                streams.extend(wanted.map(|(stream, process)| (*stream, *process)));
            }
        }
        for batch in self.batches(Table::Files) {
            add_handles(&batch?, "stream", |_, stream| streams.get(&stream).copied(), &mut handles);
        }
        let mut add_events = |batch: &RecordBatch| {
            let Some(opening) = OpeningRows::of(batch, &opens) else { return };
            let wanted =
                |row, process| (processes.contains(&process) && opening.contains(row)).then_some(process);
            add_handles(batch, "process", wanted, &mut handles);
        };
        for part in &self.parts {
            let path = self.layout.sealed(Table::Events, part.number);
            match self.part_rows(part, Table::Events)? {
                PartRows::Sealed(_) => {
                    let columns = ["process", "layer", "op", "file", "handle", "result"];
                    let batches = Batches::some(Table::Events, &path, &columns, |group| {
                        // Column 3 is `process`; see the schema.
                        match group.column(3).statistics() {
                            Some(Statistics::Int64(s)) => {
                                let min = s.min_opt().map_or(0, |v| *v as u64);
                                let max = s.max_opt().map_or(u64::MAX, |v| *v as u64);
                                processes.iter().any(|process| (min..=max).contains(process))
                            }
                            _ => true,
                        }
                    });
                    match batches {
                        // The part was removed in between.
                        Err(error) if error.is_not_found() && self.layout.first()? > part.number => {}
                        batches => {
                            for batch in batches? {
                                add_events(&batch?);
                            }
                        }
                    }
                }
                rows => {
                    for batch in rows {
                        add_events(&batch?);
                    }
                }
            }
        }
        Ok(handles)
    }
}

/// The rows of a batch of events that opened their handle.
struct OpeningRows {
    layers: Vec<usize>,
    ops: Vec<usize>,
    /// By layer, then by operation.
    opens: Vec<Vec<bool>>,
    results: PrimitiveArray<Int64Type>,
}

impl OpeningRows {
    fn of(batch: &RecordBatch, opens: &impl Fn(&str, &str) -> bool) -> Option<OpeningRows> {
        let names = |name| {
            let column = batch.column_by_name(name)?.as_any_dictionary_opt()?;
            Some((column.normalized_keys(), column.values().as_string_opt::<i32>()?))
        };
        let ((layers, layer_names), (ops, op_names)) = (names("layer")?, names("op")?);
        let of_layer =
            |layer: &str| op_names.iter().map(|op| op.is_some_and(|op| opens(layer, op))).collect();
        let opens = layer_names.iter().map(|layer| of_layer(layer.unwrap_or(""))).collect();
        Some(OpeningRows { layers, ops, opens, results: column::<Int64Type>(batch, "result")? })
    }

    fn contains(&self, row: usize) -> bool {
        self.opens[self.layers[row]][self.ops[row]] && self.results.value(row) >= 0
    }
}

/// Adds the files of handles. Handles are never reused, so the first row of a handle counts.
fn add_handles(
    batch: &RecordBatch,
    by: &str,
    process_of: impl Fn(usize, u64) -> Option<u64>,
    handles: &mut HashMap<(u64, u64), u64>,
) {
    let (Some(owner), Some(handle), Some(file)) = (
        column::<UInt64Type>(batch, by),
        column::<UInt64Type>(batch, "handle"),
        column::<UInt64Type>(batch, "file"),
    ) else {
        return;
    };
    for row in 0..batch.num_rows() {
        if owner.is_valid(row)
            && handle.is_valid(row)
            && file.is_valid(row)
            && let Some(process) = process_of(row, owner.value(row))
        {
            handles.entry((process, handle.value(row))).or_insert(file.value(row));
        }
    }
}
