//! Accesses over time and offset of the files that moved the most bytes.
//!
//! Which files these are is known only after the trace was read, and there is no memory for the
//! accesses of all files. So the bytes of each file are added up first, which takes few columns.

use super::pass::Pass;
use crate::source::Source;
use miot_proto::op::{OpClass, ResultMeaning};
use miot_trace_analysis::Place;
use miot_trace_analysis::offsets::{Accesses, Grid};
use miot_trace_analysis::programs::is_system;
use miot_trace_events::operations::{BatchOperations, NamedOperation, OperationTable};
use miot_trace_events::{ById, Event, EventColumns, IdMap, IdSet};
use miot_trace_store::{FileNames, Reader};
use serde::Serialize;
use std::cmp::Reverse;

/// Number of files whose accesses are shown.
const SHOWN_FILES: usize = 8;
/// Number of files with a grid while the trace is read, 32 KiB each. If other files move more bytes
/// in outermost requests, the trace is read again.
const GRIDS: usize = 512;
/// Columns from which the bytes of each file follow.
const BYTES_COLUMNS: &[&str] = &["time", "layer", "op", "file", "result"];

/// Positions of the outermost requests in a file.
#[derive(Debug, Serialize)]
pub(super) struct FileAccesses {
    pub(super) file: u64,
    pub(super) path: String,
    /// Bytes read and written.
    pub(super) bytes: u64,
    #[serde(flatten)]
    pub(super) accesses: Accesses,
}

/// Sums of a file while the trace is read.
#[derive(Debug, Default)]
struct Moved {
    bytes: u64,
    grid: Option<Grid>,
}

/// Files with bytes that outermost requests moved, and their accesses.
#[derive(Debug, Default)]
pub(super) struct AccessedFiles {
    by_id: IdMap<u64, Moved>,
    grids: usize,
    /// Files that get a grid; `None` for all, because there are few.
    candidates: Option<IdSet<u64>>,
}

impl AccessedFiles {
    /// Returns the files before the trace is read. Reads the sizes of all requests if there are too
    /// many files for a grid each.
    pub(super) fn of(source: &Source, reader: &Reader, names: &FileNames) -> anyhow::Result<AccessedFiles> {
        let candidates = match names.len() > GRIDS {
            true => Some(candidates(source, reader, names)?),
            false => None,
        };
        Ok(AccessedFiles { candidates, ..AccessedFiles::default() })
    }

    /// Adds an outermost request.
    pub(super) fn add(&mut self, event: &Event, place: &Place) {
        let (Some(file), true, moved @ 1..) = (event.file, is_data(event.class()), event.moved()) else {
            return;
        };
        let of = self.by_id.entry(file).or_default();
        of.bytes = of.bytes.saturating_add(moved);
        let may_begin = || {
            let candidates = self.candidates.as_ref();
            self.grids < GRIDS && candidates.is_none_or(|candidates| candidates.contains(&file))
        };
        if of.grid.is_some() || may_begin() {
            let before = of.grid.is_some();
            Grid::add(&mut of.grid, event, place);
            self.grids += usize::from(!before && of.grid.is_some());
        }
    }

    /// Returns the accesses to the files that moved the most bytes. Reads the trace again if one of
    /// them has no grid.
    pub(super) fn accesses(
        &mut self,
        source: &Source,
        reader: &Reader,
        names: &FileNames,
    ) -> anyhow::Result<Vec<FileAccesses>> {
        let shown = largest(self.by_id.iter().map(|(file, of)| (*file, of.bytes)), names, SHOWN_FILES);
        if shown.iter().any(|file| self.by_id[file].grid.is_none()) {
            self.by_id.retain(|file, _| shown.contains(file));
            self.by_id.values_mut().for_each(|of| of.grid = None);
            let is_shown = |file: Option<u64>| file.is_some_and(|file| shown.contains(&file));
            let pass = Pass { batches: &mut |_| (), is_needed: &is_shown };
            pass.read(source, reader, names, &mut |event, place, outermost| {
                let of = event.file.filter(|_| outermost).and_then(|file| self.by_id.get_mut(&file));
                of.into_iter().for_each(|of| Grid::add(&mut of.grid, event, place));
            })?;
        }
        let accesses = shown.iter().filter_map(|file| {
            let of = self.by_id.get(file)?;
            let path = names.get(*file).unwrap_or_default().to_owned();
            Some(FileAccesses { file: *file, path, bytes: of.bytes, accesses: of.grid.as_ref()?.finish() })
        });
        Ok(accesses.collect())
    }
}

fn is_data(class: OpClass) -> bool {
    matches!(class, OpClass::Read | OpClass::Write | OpClass::Copy)
}

/// Returns the files with the most bytes, by all requests: also by those that are not outermost.
fn candidates(source: &Source, reader: &Reader, names: &FileNames) -> anyhow::Result<IdSet<u64>> {
    let moves = |named: &NamedOperation| {
        named.info.is_some_and(|info| is_data(info.class) && info.result == ResultMeaning::Bytes)
    };
    let (mut operations, mut are_moving) = (OperationTable::default(), Vec::new());
    let mut bytes = ById::<u64>::default();
    for batch in source.scan(reader, BYTES_COLUMNS)? {
        let batch = batch?;
        let Some(mut of_batch) = BatchOperations::of(&batch) else { continue };
        let columns = EventColumns::of(&batch, &["result"])?;
        for row in 0..columns.rows() {
            let number = operations.number(&mut of_batch, row);
            // Numbers are assigned in order.
            if number == are_moving.len() {
                are_moving.push(moves(operations.get(number)));
            }
            if let (true, Some(file), moved @ 1..) =
                (are_moving[number], columns.file.get(row), columns.result.value(row))
            {
                let of = bytes.get(file);
                *of = of.saturating_add(moved.unsigned_abs());
            }
        }
    }
    Ok(largest(bytes.into_sorted(), names, GRIDS).into_iter().collect())
}

/// Returns the files with the most bytes, of those with any. System files are returned only if
/// there are no others.
fn largest(files: impl Iterator<Item = (u64, u64)>, names: &FileNames, most: usize) -> Vec<u64> {
    let is_system = |file: u64| names.get(file).is_none_or(is_system);
    let with_bytes = files.filter(|(_, bytes)| *bytes > 0);
    let mut all: Vec<_> = with_bytes.map(|(file, bytes)| (is_system(file), Reverse(bytes), file)).collect();
    if all.iter().any(|(is_system, ..)| !is_system) {
        all.retain(|(is_system, ..)| !is_system);
    }
    if most < all.len() {
        all.select_nth_unstable(most);
        all.truncate(most);
    }
    all.sort_unstable();
    all.into_iter().map(|(.., file)| file).collect()
}
