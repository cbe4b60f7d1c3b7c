//! Which file each row is about: the walk over the merged rows that turns handles and paths into file ids.
//!
//! A handle may be defined in one stream and used in another whose batches come earlier; in the merged
//! order the definition completes before the use. So the walk goes along the merged order, and looks a
//! handle up only where it differs from the one before in the stream, or something changed in the process.

use crate::catalog::{Catalog, Process};
use crate::merge::{At, Step};
use crate::ops::{OpFacts, Ops};
use crate::side::FileRow;
use miot_proto::batch::{Columns, ExtRow};
use miot_proto::event::{EXT_WORDS, Kind, NONE, word};
use std::borrow::Cow;
use std::collections::HashMap;

/// A value of a column that few rows have: which row of the order, and what.
pub type Sparse<V> = Vec<(usize, V)>;

/// The rows of a step that are events, with what the walk found.
#[derive(Debug, Default)]
pub struct Resolved<'a> {
    /// The events, in order.
    pub order: Vec<At>,
    /// The first so many are late.
    pub late: usize,
    /// What is known of the operation of each event.
    pub facts: Vec<OpFacts>,
    /// File of each event, 0 if none.
    pub files: Vec<u64>,
    /// The other file.
    pub files2: Sparse<u64>,
    /// Words of the extensions, by [`Ext::words`](miot_proto::event::Ext::words).
    pub words: [Sparse<u64>; EXT_WORDS],
    /// Rows for `files` that these events need.
    pub new_files: Vec<FileRow<'a>>,
}

/// One source on the walk.
struct Cursor<'a> {
    columns: &'a Columns,
    stream: u64,
    process: usize,
    /// Extensions from the next row on.
    exts: &'a [ExtRow],
    /// It has records that are not requests.
    mixed: bool,
    /// The handle looked up last, what it stands for, and the version at which it did.
    handle: u64,
    version: u64,
    file: u64,
}

/// Walks along a step. Every stream of it must be in the catalog.
pub fn resolve<'a, T>(catalog: &mut Catalog, ops: &mut Ops, step: &'a Step<T>) -> Resolved<'a> {
    // The processes of this step, taken out of the map so that each row costs an index.
    let mut processes: Vec<Process> = Vec::new();
    let mut cursors: Vec<Cursor<'_>> = Vec::with_capacity(step.sources.len());
    let mut places: HashMap<u64, usize> = HashMap::new();
    for source in &step.sources {
        let id = catalog.streams.get(&source.stream).map_or(0, |stream| stream.process);
        if let Some(process) = catalog.processes.remove(&id) {
            places.insert(id, processes.len());
            processes.push(process);
        }
        let columns = &*source.columns;
        let (start, end) = (source.start, source.start + source.len);
        let first = columns.ext.partition_point(|ext| (ext.row as usize) < start);
        let after = columns.ext.partition_point(|ext| (ext.row as usize) < end);
        cursors.push(Cursor {
            columns,
            stream: source.stream,
            process: places.get(&id).copied().unwrap_or(usize::MAX),
            exts: &columns.ext[first..after],
            mixed: columns.kind[start..end].iter().any(|kind| *kind != Kind::Request as u8),
            handle: 0,
            version: u64::MAX,
            file: 0,
        });
    }
    let mut walk = Walk { catalog, ops, out: Resolved::default() };
    for cursor in cursors.iter().filter(|cursor| cursor.mixed) {
        if let Some(process) = processes.get_mut(cursor.process) {
            walk.names(cursor, process);
        }
    }
    walk.out.order.reserve_exact(step.order.len());
    walk.out.facts.reserve_exact(step.order.len());
    walk.out.files.reserve_exact(step.order.len());
    for (index, at) in step.order.iter().enumerate() {
        let cursor = &mut cursors[at.source as usize];
        if let Some(process) = processes.get_mut(cursor.process) {
            let before = walk.out.order.len();
            walk.row(cursor, process, *at);
            walk.out.late += usize::from(index < step.late && walk.out.order.len() > before);
        }
    }
    let out = walk.out;
    catalog.processes.extend(processes.into_iter().map(|process| (process.id, process)));
    out
}

struct Walk<'w, 'a> {
    catalog: &'w mut Catalog,
    ops: &'w mut Ops,
    out: Resolved<'a>,
}

impl<'a> Walk<'_, 'a> {
    #[inline]
    fn row(&mut self, cursor: &mut Cursor<'a>, process: &mut Process, at: At) {
        let row = at.row as usize;
        let handle = cursor.columns.handle[row];
        if cursor.mixed && cursor.columns.kind[row] != Kind::Request as u8 {
            self.record(cursor, process, row);
            return;
        }
        let facts = self.ops.of(cursor.columns.op[row]);
        let extended = cursor.exts.first().is_some_and(|ext| ext.row == at.row);
        if !extended {
            let file = cursor.lookup(process, handle);
            self.out.files.push(file);
        } else {
            self.extended(cursor, process, row, facts);
        }
        if facts.closes && cursor.columns.result[row] >= 0 && handle != 0 {
            process.handles.close(handle);
        }
        self.out.facts.push(facts);
        self.out.order.push(at);
    }

    /// A request with paths or other words.
    fn extended(&mut self, cursor: &mut Cursor<'a>, process: &mut Process, row: usize, facts: OpFacts) {
        let Some(ext) = cursor.take_ext() else { return };
        let columns = cursor.columns;
        let (path1, path2) = columns.paths(&ext);
        let handle = cursor.columns.handle[row];
        let place = self.out.order.len();
        let mut file2 = None;
        let file = if path1.is_empty() {
            cursor.lookup(process, handle)
        } else if facts.attribute {
            file2 = Some(self.intern(process.node, path1.into()));
            cursor.lookup(process, handle)
        } else {
            let file = self.intern(process.node, path1.into());
            if facts.opens && is_handle(handle) && cursor.columns.result[row] >= 0 {
                process.handles.define(handle, file);
            }
            file
        };
        self.out.files.push(file);
        if !path2.is_empty() {
            let path2 = if facts.raw { hexadecimal(path2).into() } else { path2.into() };
            file2 = Some(self.intern(process.node, path2));
        } else if let Some(handle2) = ext.words[word::HANDLE2] {
            file2 = process.handles.get(handle2).or(file2);
        }
        self.out.files2.extend(file2.map(|file| (place, file)));
        for (values, word) in self.out.words.iter_mut().zip(ext.words) {
            values.extend(word.filter(|word| *word != NONE).map(|word| (place, word)));
        }
    }

    /// Handles that are named in this step and nowhere before: their requests may come earlier, where a lane has overwritten
    /// the record that named them first. A handle is never used again, so it stands for the same file all the time.
    fn names(&mut self, cursor: &Cursor<'a>, process: &mut Process) {
        let columns = cursor.columns;
        for ext in cursor.exts {
            let (row, path) = (ext.row as usize, columns.paths(ext).0);
            let handle = columns.handle[row];
            let is_name = columns.kind[row] == Kind::File as u8 && is_handle(handle) && !path.is_empty();
            if is_name && process.handles.get(handle).is_none() {
                let file = self.intern_quietly(process.node, path).0;
                process.handles.define(handle, file);
            }
        }
    }

    /// A record that says what a handle stands for. Other kinds are of a later version and say nothing to us;
    /// they too must be accounted for.
    fn record(&mut self, cursor: &mut Cursor<'a>, process: &mut Process, row: usize) {
        let ext = if cursor.exts.first().is_some_and(|ext| ext.row as usize == row) {
            cursor.take_ext()
        } else {
            None
        };
        let columns = cursor.columns;
        let path = ext.map_or(&[][..], |ext| columns.paths(&ext).0);
        let handle = cursor.columns.handle[row];
        let file = self.intern_quietly(process.node, path).0;
        let is_name = cursor.columns.kind[row] == Kind::File as u8 && is_handle(handle) && !path.is_empty();
        // Named again: it may have been renamed meanwhile, and keeps the name that it had.
        if is_name && process.handles.get(handle).is_none() {
            process.handles.define(handle, file);
        }
        let attempt = cursor.columns.attempt[row];
        let stream = self.catalog.streams.get(&cursor.stream);
        let in_trace = stream.is_some_and(|stream| stream.is_beyond(attempt));
        let record = (!in_trace).then_some((cursor.stream, attempt, handle));
        self.out.new_files.push(FileRow { file, node: process.node, path: path.into(), record });
    }

    fn intern(&mut self, node: usize, path: Cow<'a, [u8]>) -> u64 {
        let (file, new) = self.intern_quietly(node, &path);
        if new {
            self.out.new_files.push(FileRow { file, node, path, record: None });
        }
        file
    }

    fn intern_quietly(&mut self, node: usize, path: &[u8]) -> (u64, bool) {
        let Catalog { nodes, next_file, .. } = &mut *self.catalog;
        nodes.get_mut(node).map_or((0, false), |node| node.paths.intern(path, next_file))
    }
}

impl Cursor<'_> {
    #[inline]
    fn lookup(&mut self, process: &Process, handle: u64) -> u64 {
        if handle == self.handle && process.handles.version() == self.version {
            return self.file;
        }
        let file = if is_handle(handle) { process.handles.get(handle).unwrap_or(0) } else { 0 };
        (self.handle, self.version, self.file) = (handle, process.handles.version(), file);
        file
    }

    fn take_ext(&mut self) -> Option<ExtRow> {
        let (first, rest) = self.exts.split_first()?;
        self.exts = rest;
        Some(*first)
    }
}

fn hexadecimal(bytes: &[u8]) -> Vec<u8> {
    let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[inline]
fn is_handle(handle: u64) -> bool {
    handle != 0 && handle != NONE
}
