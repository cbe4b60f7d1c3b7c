//! Rows of side tables that are kept when their parts are removed.

use super::needed_ids::NeededIds;
use crate::carried::RemovedParts;
use crate::error::Error;
use crate::layout::Layout;
use crate::parquet_file::Batches;
use crate::reader::SAMPLED_BOOTS;
use crate::schema::{self, FILTERED, Table, column, text};
use arrow_array::types::{TimestampNanosecondType, UInt64Type};
use arrow_array::{Array, BooleanArray, RecordBatch, UInt64Array};
use arrow_schema::ArrowError;
use arrow_select::filter::filter_record_batch;
use arrow_select::interleave::interleave_record_batch;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The files with the rows: earlier carried files, and the removed parts.
pub(super) struct Sources<'a> {
    pub(super) layout: &'a Layout,
    pub(super) first: u64,
    pub(super) removed: &'a [u64],
}

impl Sources<'_> {
    fn batches(&self, table: Table) -> Result<Vec<RecordBatch>, Error> {
        let carried = (self.first > 0).then(|| self.layout.carried(table, self.first));
        let sealed = self.removed.iter().map(|part| self.layout.sealed(table, *part));
        let mut all = Vec::new();
        for path in carried.into_iter().chain(sealed).filter(|path| path.exists()) {
            for batch in Batches::all(table, &path)? {
                all.push(batch?);
            }
        }
        Ok(all)
    }
}

/// Returns the rows of a table that are kept, and counts the losses that are removed.
pub(super) fn kept(
    sources: &Sources<'_>,
    table: Table,
    needs: &NeededIds,
    removed: &mut RemovedParts,
) -> Result<Vec<RecordBatch>, Error> {
    let batches = sources.batches(table)?;
    let path = sources.layout.folder(table);
    match table {
        Table::Events => Ok(Vec::new()),
        Table::Processes => filter(&path, &batches, |batch| ids(batch, "process", |id| needs.process(id))),
        Table::Threads => filter(&path, &batches, |batch| ids(batch, "stream", |id| needs.stream(id))),
        Table::Losses => filter(&path, &batches, |batch| losses(batch, needs, removed)),
        Table::Clocks => clocks(&batches, removed.until).map_err(|e| Error::damaged(&path, e)),
        Table::Devices => devices(&batches).map_err(|e| Error::damaged(&path, e)),
        Table::Files => files(&batches, needs).map_err(|e| Error::damaged(&path, e)),
    }
}

fn filter(
    path: &Path,
    batches: &[RecordBatch],
    mut keep: impl FnMut(&RecordBatch) -> Vec<bool>,
) -> Result<Vec<RecordBatch>, Error> {
    let kept = batches.iter().map(|batch| filter_record_batch(batch, &BooleanArray::from(keep(batch))));
    kept.collect::<Result<_, _>>().map_err(|e| Error::damaged(path, e))
}

fn ids(batch: &RecordBatch, name: &str, keep: impl Fn(u64) -> bool) -> Vec<bool> {
    let column = column::<UInt64Type>(batch, name);
    column.map_or_else(Vec::new, |column| column.values().iter().map(|id| keep(*id)).collect())
}

fn losses(batch: &RecordBatch, needs: &NeededIds, removed: &mut RemovedParts) -> Vec<bool> {
    let [process, stream, last, count] =
        ["process", "stream", "last_seq", "count"].map(|name| column::<UInt64Type>(batch, name));
    let (Some(process), Some(stream), Some(last), Some(count), Some(places)) =
        (process, stream, last, count, text(batch, "place"))
    else {
        return vec![false; batch.num_rows()];
    };
    let rows = process.iter().zip(&stream).zip(&last).enumerate();
    rows.map(|(row, ((process, stream), last))| {
        let keep = needs.loss(process, stream, last);
        if !keep {
            let place = places.value(row);
            if place == FILTERED {
                removed.filtered = removed.filtered.saturating_add(count.value(row));
            } else if schema::is_loss(place) {
                removed.lost = removed.lost.saturating_add(count.value(row));
            }
        }
        keep
    })
    .collect()
}

/// Index of a batch and a row of it.
type RowIndex = (usize, usize);

/// Returns node, time and index of each row.
fn indexed_rows(batches: &[RecordBatch]) -> impl Iterator<Item = (&str, i64, RowIndex)> {
    batches.iter().enumerate().flat_map(|(index, batch)| {
        let nodes = text(batch, "node");
        let columns = nodes.zip(column::<TimestampNanosecondType>(batch, "time"));
        columns.into_iter().flat_map(move |(nodes, times)| {
            (0..times.len()).map(move |row| (nodes.value(row), times.value(row), (index, row)))
        })
    })
}

/// Returns the rows that apply after `until`: of each node the last one that begins before, and
/// those after it.
fn clocks(batches: &[RecordBatch], until: i64) -> Result<Vec<RecordBatch>, ArrowError> {
    let mut last: HashMap<&str, (i64, RowIndex)> = HashMap::new();
    let mut order = Vec::new();
    for (node, time, place) in indexed_rows(batches) {
        if time > until {
            order.push(place);
            continue;
        }
        let found = last.entry(node).or_insert((time, place));
        if found.0 <= time {
            *found = (time, place);
        }
    }
    order.extend(last.into_values().map(|(_, place)| place));
    order.sort_unstable();
    pick(batches, &order)
}

/// Returns the rows of the last sample of each node and boot. They identify a sample that is sent
/// again, also one that a spool kept over a reboot.
fn devices(batches: &[RecordBatch]) -> Result<Vec<RecordBatch>, ArrowError> {
    let boots: Vec<_> = batches.iter().map(|batch| text(batch, "boot")).collect();
    let mut last: HashMap<(&str, &str), (i64, Vec<RowIndex>)> = HashMap::new();
    for (node, time, place) in indexed_rows(batches) {
        let boot = boots[place.0].map_or("", |boots| boots.value(place.1));
        let found = last.entry((node, boot)).or_insert((time, Vec::new()));
        if found.0 < time {
            *found = (time, Vec::new());
        }
        if found.0 == time {
            found.1.push(place);
        }
    }
    let mut latest: Vec<_> = last.into_iter().collect();
    latest.sort_unstable_by_key(|(_, (time, _))| std::cmp::Reverse(*time));
    let mut kept: HashMap<&str, usize> = HashMap::new();
    latest.retain(|((node, _), _)| {
        let kept = kept.entry(node).or_default();
        *kept += 1;
        *kept <= SAMPLED_BOOTS
    });
    let mut order: Vec<_> = latest.into_iter().flat_map(|(_, (_, places))| places).collect();
    order.sort_unstable();
    pick(batches, &order)
}

/// Returns one row for each needed file, as if an event had named it, and one for each handle that
/// may be open. These have no attempt number, because the end of the stream covers it.
fn files(batches: &[RecordBatch], needs: &NeededIds) -> Result<Vec<RecordBatch>, ArrowError> {
    let open: Vec<_> = needs.handles().collect();
    let opened: HashSet<u64> = open.iter().map(|(_, _, file)| *file).collect();
    let mut first: HashMap<u64, RowIndex> = HashMap::new();
    let (mut order, mut streams, mut handles) = (Vec::new(), Vec::new(), Vec::new());
    let mut push = |place, stream, handle| {
        order.push(place);
        streams.push(stream);
        handles.push(handle);
    };
    for (index, batch) in batches.iter().enumerate() {
        let [file, stream, handle] =
            ["file", "stream", "handle"].map(|name| column::<UInt64Type>(batch, name));
        let (Some(file), Some(stream), Some(handle)) = (file, stream, handle) else { continue };
        for row in 0..batch.num_rows() {
            let id = file.value(row);
            let record = (stream.is_valid(row) && handle.is_valid(row) && needs.record(stream.value(row)))
                .then(|| (stream.value(row), handle.value(row)));
            let needed = needs.file(id) || opened.contains(&id) || record.is_some();
            if needed && !first.contains_key(&id) {
                first.insert(id, (index, row));
                push((index, row), None, None);
            }
            if let Some((stream, handle)) = record {
                push((index, row), Some(stream), Some(handle));
            }
        }
    }
    for (stream, handle, file) in open {
        // Files that are defined in a kept part are not here.
        if let Some(place) = first.get(&file) {
            push(*place, Some(stream), Some(handle));
        }
    }
    let picked = pick(batches, &order)?;
    let Some(picked) = picked.into_iter().next() else { return Ok(Vec::new()) };
    let mut columns = picked.columns().to_vec();
    let schema = schema::of(Table::Files);
    for (name, values) in [("stream", streams), ("seq", vec![None; order.len()]), ("handle", handles)] {
        columns[schema.index_of(name)?] = Arc::new(UInt64Array::from(values));
    }
    schema::batch(Table::Files, columns).map(|batch| vec![batch])
}

fn pick(batches: &[RecordBatch], order: &[RowIndex]) -> Result<Vec<RecordBatch>, ArrowError> {
    if order.is_empty() {
        return Ok(Vec::new());
    }
    let batches: Vec<&RecordBatch> = batches.iter().collect();
    interleave_record_batch(&batches, order).map(|batch| vec![batch])
}
