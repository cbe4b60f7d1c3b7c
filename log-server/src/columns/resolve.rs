//! The file of each row: a pass over the merged rows that replaces handles and paths by file ids.
//!
//! A handle may be defined in one stream and used in another whose batches arrive earlier. In the
//! merged order, the definition completes before the use, so the pass follows the merged order. It
//! looks up a handle only if the handle differs from the previous one of the stream, or if the
//! handles of the process changed.

use crate::columns::ops::{OpFacts, Ops};
use crate::columns::side_tables::{FileRow, RecordId};
use crate::ids::catalog::{Catalog, Process};
use crate::ids::{NodeId, ProcessId, StreamId};
use crate::store::merge::{MergeStep, RowRef};
use miot_proto::batch::{Columns, ExtRow};
use miot_proto::event::{EXT_WORDS, NONE, RecordKind, word};
use miot_trace_store::IdMap;
use std::borrow::Cow;

/// Values of a column that few rows have: index in the order, and value.
pub type Sparse<V> = Vec<(usize, V)>;

/// Events of a step with their files.
#[derive(Debug, Default)]
pub struct Resolved<'a> {
    /// The events, in the order of the trace.
    pub order: Vec<RowRef>,
    /// The first `late` events are late.
    pub late: usize,
    /// Operation of each event.
    pub facts: Vec<OpFacts>,
    /// File of each event; 0: none.
    pub files: Vec<u64>,
    /// Second file of events with two.
    pub files2: Sparse<u64>,
    /// Words of the extensions, by [`Ext::words`](miot_proto::event::Ext::words).
    pub words: [Sparse<u64>; EXT_WORDS],
    /// Rows of `files` that these events need.
    pub new_files: Vec<FileRow<'a>>,
}

/// Position of the pass in one source.
struct Cursor<'a> {
    columns: &'a Columns,
    stream: StreamId,
    process: usize,
    /// Extensions of the rows not yet visited.
    exts: &'a [ExtRow],
    /// The source has records that are not requests.
    mixed: bool,
    /// The handle looked up last, its file, and the version of the look-up.
    handle: u64,
    version: u64,
    file: u64,
}

/// Finds the files of a step. All its streams must be in the catalog.
pub fn resolve<'a, T>(catalog: &mut Catalog, ops: &mut Ops, step: &'a MergeStep<T>) -> Resolved<'a> {
    // The processes of this step, taken out of the map so that each row costs only an index.
    let mut processes: Vec<Process> = Vec::new();
    let mut cursors: Vec<Cursor<'_>> = Vec::with_capacity(step.sources.len());
    let mut process_indices: IdMap<ProcessId, usize> = IdMap::default();
    for source in &step.sources {
        let id = catalog.streams.get(&source.stream).map_or(ProcessId(0), |stream| stream.process);
        if let Some(process) = catalog.processes.remove(&id) {
            process_indices.insert(id, processes.len());
            processes.push(process);
        }
        let columns = &*source.columns;
        let (start, end) = (source.start, source.start + source.len);
        let first = columns.ext.partition_point(|ext| (ext.row as usize) < start);
        let after = columns.ext.partition_point(|ext| (ext.row as usize) < end);
        cursors.push(Cursor {
            columns,
            stream: source.stream,
            process: process_indices.get(&id).copied().unwrap_or(usize::MAX),
            exts: &columns.ext[first..after],
            mixed: columns.kind[start..end].iter().any(|kind| *kind != RecordKind::Request as u8),
            handle: 0,
            version: u64::MAX,
            file: 0,
        });
    }
    let mut resolver = Resolver { catalog, ops, out: Resolved::default() };
    for cursor in cursors.iter().filter(|cursor| cursor.mixed) {
        if let Some(process) = processes.get_mut(cursor.process) {
            resolver.define_new_handles(cursor, process);
        }
    }
    resolver.out.order.reserve_exact(step.order.len());
    resolver.out.facts.reserve_exact(step.order.len());
    resolver.out.files.reserve_exact(step.order.len());
    for (index, at) in step.order.iter().enumerate() {
        let cursor = &mut cursors[at.source as usize];
        if let Some(process) = processes.get_mut(cursor.process) {
            let before = resolver.out.order.len();
            resolver.add_row(cursor, process, *at);
            resolver.out.late += usize::from(index < step.late && resolver.out.order.len() > before);
        }
    }
    let out = resolver.out;
    catalog.processes.extend(processes.into_iter().map(|process| (process.id, process)));
    out
}

struct Resolver<'w, 'a> {
    catalog: &'w mut Catalog,
    ops: &'w mut Ops,
    out: Resolved<'a>,
}

impl<'a> Resolver<'_, 'a> {
    #[inline]
    fn add_row(&mut self, cursor: &mut Cursor<'a>, process: &mut Process, at: RowRef) {
        let row = at.row as usize;
        let handle = cursor.columns.handle[row];
        if cursor.mixed && cursor.columns.kind[row] != RecordKind::Request as u8 {
            self.add_record(cursor, process, row);
            return;
        }
        let facts = self.ops.facts_of(cursor.columns.op[row]);
        let is_extended = cursor.exts.first().is_some_and(|ext| ext.row == at.row);
        if !is_extended {
            let file = cursor.lookup(process, handle);
            self.out.files.push(file);
        } else {
            self.add_extended(cursor, process, row, facts);
        }
        if facts.closes && cursor.columns.result[row] >= 0 && handle != 0 {
            process.handles.close(handle);
        }
        self.out.facts.push(facts);
        self.out.order.push(at);
    }

    /// Adds a request with an extension: paths or other words.
    fn add_extended(&mut self, cursor: &mut Cursor<'a>, process: &mut Process, row: usize, facts: OpFacts) {
        let Some(ext) = cursor.take_ext() else { return };
        let columns = cursor.columns;
        let (path1, path2) = columns.paths(&ext);
        let handle = cursor.columns.handle[row];
        let index_in_order = self.out.order.len();
        let mut file2 = None;
        let file = if path1.is_empty() {
            cursor.lookup(process, handle)
        } else if facts.attribute {
            file2 = Some(self.file_id(process.node, path1.into()));
            cursor.lookup(process, handle)
        } else {
            let file = self.file_id(process.node, path1.into());
            if facts.opens && is_handle(handle) && cursor.columns.result[row] >= 0 {
                process.handles.define(handle, file);
            }
            file
        };
        self.out.files.push(file);
        if !path2.is_empty() {
            let path2 = if facts.is_binary { hexadecimal(path2).into() } else { path2.into() };
            file2 = Some(self.file_id(process.node, path2));
        } else if let Some(handle2) = ext.words[word::HANDLE2] {
            file2 = process.handles.get(handle2).or(file2);
        }
        self.out.files2.extend(file2.map(|file| (index_in_order, file)));
        for (values, word) in self.out.words.iter_mut().zip(ext.words) {
            values.extend(word.filter(|word| *word != NONE).map(|word| (index_in_order, word)));
        }
    }

    /// Defines handles that are named in this step and nowhere before: their requests may come
    /// earlier, where a lane has overwritten the record that named them first. A handle number is
    /// never reused, so it denotes the same file all the time.
    fn define_new_handles(&mut self, cursor: &Cursor<'a>, process: &mut Process) {
        let columns = cursor.columns;
        for ext in cursor.exts {
            let (row, path) = (ext.row as usize, columns.paths(ext).0);
            let handle = columns.handle[row];
            let is_name =
                columns.kind[row] == RecordKind::File as u8 && is_handle(handle) && !path.is_empty();
            if is_name && process.handles.get(handle).is_none() {
                let file = self.intern_path(process.node, path).0;
                process.handles.define(handle, file);
            }
        }
    }

    /// Adds a path record, which names a handle. Records of other kinds are from a later version
    /// and are not interpreted; they are rows of `files` too, so that no attempt number is missing.
    fn add_record(&mut self, cursor: &mut Cursor<'a>, process: &mut Process, row: usize) {
        let ext = if cursor.exts.first().is_some_and(|ext| ext.row as usize == row) {
            cursor.take_ext()
        } else {
            None
        };
        let columns = cursor.columns;
        let path = ext.map_or(&[][..], |ext| columns.paths(&ext).0);
        let handle = cursor.columns.handle[row];
        let file = self.intern_path(process.node, path).0;
        let is_name =
            cursor.columns.kind[row] == RecordKind::File as u8 && is_handle(handle) && !path.is_empty();
        // Named again: the file may have been renamed meanwhile; the handle keeps its first name.
        if is_name && process.handles.get(handle).is_none() {
            process.handles.define(handle, file);
        }
        let attempt = cursor.columns.attempt[row];
        let stream = self.catalog.streams.get(&cursor.stream);
        let in_trace = stream.is_some_and(|stream| stream.has_row_beyond(attempt));
        let record = (!in_trace).then_some(RecordId { stream: cursor.stream, attempt, handle });
        self.out.new_files.push(FileRow { file, node: process.node, path: path.into(), record });
    }

    fn file_id(&mut self, node: NodeId, path: Cow<'a, [u8]>) -> u64 {
        let (file, new) = self.intern_path(node, &path);
        if new {
            self.out.new_files.push(FileRow { file, node, path, record: None });
        }
        file
    }

    fn intern_path(&mut self, node: NodeId, path: &[u8]) -> (u64, bool) {
        let Catalog { nodes, next_file, .. } = &mut *self.catalog;
        nodes.get_mut(node.0).map_or((0, false), |node| node.paths.intern(path, next_file))
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
