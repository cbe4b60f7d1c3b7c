//! Events for analyses: rows of a batch as numbers, with layer and operation resolved once per
//! batch.

use crate::columns::{EventColumns, narrow};
use crate::nodes::{NodeColumn, NodeNumbers};
use crate::operations::{BatchOperations, OperationTable};
use arrow_array::RecordBatch;
use miot_proto::event::flag;
use miot_proto::op::{Layer, OpClass, OpInfo, ResultMeaning};

/// Columns of all fields of [`Event`], for [`miot_trace_store::Select`].
pub const COLUMNS: &[&str] = &[
    "time",
    "duration",
    "node",
    "process",
    "pid",
    "tid",
    "layer",
    "op",
    "file",
    "file2",
    "handle",
    "offset",
    "length",
    "arg",
    "result",
    "flags",
    "stream",
    "request",
    "enclosing",
    "cpu_time",
    "caller_tid",
    "mpi_rank",
    "etypes",
    "type_extent",
];

/// Columns that [`Events`] requires: enough for analyses of times, sizes and processes, which need
/// neither files nor offsets. Fields of other columns that a batch does not have are `None` or 0.
pub const FEWEST_COLUMNS: &[&str] = &[
    "time",
    "duration",
    "node",
    "process",
    "pid",
    "tid",
    "layer",
    "op",
    "result",
    "stream",
    "enclosing",
    "caller_tid",
];

/// Columns of analyses of files and of the bytes in them: [`COLUMNS`] without the numbers of
/// requests and ranks.
pub const FILE_COLUMNS: &[&str] = &[
    "time",
    "duration",
    "node",
    "process",
    "pid",
    "tid",
    "layer",
    "op",
    "file",
    "file2",
    "handle",
    "offset",
    "length",
    "arg",
    "result",
    "flags",
    "stream",
    "enclosing",
    "cpu_time",
    "caller_tid",
    "etypes",
    "type_extent",
];

/// One completed request.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Nanoseconds since 1970.
    pub begin: i64,
    /// Completion, nanoseconds since 1970; never before `begin`.
    pub end: i64,
    /// Number of the node, see [`EventNames::nodes`].
    pub node: u32,
    /// Process of the trace.
    pub process: u64,
    /// Process id on its node.
    pub pid: u32,
    /// Thread id on its node.
    pub tid: u32,
    /// Stream of the trace.
    pub stream: u64,
    /// Number of the layer and operation, see [`EventNames::operation`].
    pub op: usize,
    /// Layer; `None` for a layer of a later version.
    pub layer: Option<Layer>,
    /// Entry of the table of operations; `None` for an operation of a later version.
    pub info: Option<&'static OpInfo>,
    /// The file.
    pub file: Option<u64>,
    /// The other file: source of a copy, new name of a rename.
    pub file2: Option<u64>,
    /// Open file of the process.
    pub handle: Option<u64>,
    /// Byte offset in the file.
    pub offset: Option<i64>,
    /// Bytes requested.
    pub length: Option<i64>,
    /// Argument of the operation.
    pub arg: Option<i64>,
    /// Result as recorded; a negative value is −errno.
    pub result: i64,
    /// Bits of [`flag`].
    pub flags: u16,
    /// Number of the request in its stream.
    pub request: u32,
    /// Number of the parent request in the same stream.
    pub enclosing: Option<u32>,
    /// CPU time of the thread at completion, nanoseconds.
    pub cpu_time: Option<i64>,
    /// Thread on the same node that the request was served for.
    pub caller: Option<u32>,
    /// Rank in the communicator of an MPI file.
    pub mpi_rank: Option<u32>,
    /// Offset in elementary types of the view (MPI-IO).
    pub etypes: Option<i64>,
    /// Extent of the file type of a view that is set.
    pub type_extent: Option<i64>,
}

impl Event {
    /// Returns the class of the operation; metadata for an unknown operation.
    #[must_use]
    pub fn class(&self) -> OpClass {
        self.info.map_or(OpClass::Meta, |info| info.class)
    }

    /// Returns the nanoseconds from begin to completion.
    #[must_use]
    pub fn duration(&self) -> u64 {
        self.end.abs_diff(self.begin)
    }

    /// Returns the bytes moved; 0 if the request failed or moves none.
    #[must_use]
    pub fn moved(&self) -> u64 {
        match self.info {
            Some(info) if info.result == ResultMeaning::Bytes => u64::try_from(self.result).unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns true if the request failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.result < 0
    }

    /// Returns true if the request opened a file.
    #[must_use]
    pub fn opens(&self) -> bool {
        let opens = |info: &OpInfo| {
            info.result == ResultMeaning::Fd || matches!(info.name, "open" | "create" | "opendir")
        };
        !self.failed() && self.handle.is_some() && self.info.is_some_and(opens)
    }

    /// Returns true if the thread or process ended during the request. `end` is then the time of
    /// detection.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.flags & flag::INTERRUPTED != 0
    }
}

/// Names of the numbers of operations and nodes, the same for all batches of a trace.
#[derive(Debug, Default)]
pub struct EventNames {
    operations: OperationTable,
    nodes: NodeNumbers,
}

impl EventNames {
    /// Returns the names of the layer and the operation of a number.
    ///
    /// # Panics
    /// If no event had this number.
    #[must_use]
    pub fn operation(&self, number: usize) -> (&str, &str) {
        let named = self.operations.get(number);
        (&named.layer, &named.op)
    }

    /// Returns the names of the nodes, by number.
    #[must_use]
    pub fn nodes(&self) -> Vec<&str> {
        self.nodes.names()
    }
}

/// The events of a batch, also as an iterator.
#[derive(Debug)]
pub struct Events<'a> {
    next: usize,
    names: &'a mut EventNames,
    columns: EventColumns<'a>,
    operations: BatchOperations<'a>,
    /// Layer by its key in the batch.
    layers: Vec<Option<Layer>>,
    /// Number and entry of an operation, by the keys of its layer and itself.
    known: Vec<Option<(usize, Option<&'static OpInfo>)>>,
    nodes: NodeColumn<'a>,
}

impl<'a> Events<'a> {
    /// Returns the events of a batch; `None` if the batch does not have [`FEWEST_COLUMNS`].
    pub fn of(batch: &'a RecordBatch, names: &'a mut EventNames) -> Option<Events<'a>> {
        let operations = BatchOperations::of(batch)?;
        let layers: Vec<_> =
            operations.layers().iter().map(|name| Layer::from_name(name.unwrap_or(""))).collect();
        let known = vec![None; layers.len() * operations.op_keys()];
        let nodes = names.nodes.column(batch)?;
        let columns = EventColumns::of(batch, FEWEST_COLUMNS).ok()?;
        Some(Events { next: 0, names, columns, operations, layers, known, nodes })
    }

    /// Returns the number of events.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.rows()
    }

    /// Returns the file of an event; see [`Event::file`].
    #[inline]
    #[must_use]
    pub fn file(&self, row: usize) -> Option<u64> {
        self.columns.file.get(row)
    }

    /// Returns the layer of an event; see [`Event::layer`].
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    #[must_use]
    pub fn layer(&self, row: usize) -> Option<Layer> {
        self.layers.get(self.operations.keys(row).0).copied().flatten()
    }

    /// Returns the stream, the number of the node and the thread of an event.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub(crate) fn thread(&self, row: usize) -> (u64, u32, u32) {
        (self.columns.stream.value(row), self.nodes.number(row), self.columns.tid.value(row))
    }

    /// Returns the number and the entry of the operation of a row.
    #[inline]
    fn operation(&mut self, row: usize) -> (usize, Option<&'static OpInfo>) {
        let (layer, op) = self.operations.keys(row);
        match self.known.get(layer * self.operations.op_keys() + op) {
            Some(Some(known)) => *known,
            _ => self.new_operation(row),
        }
    }

    fn new_operation(&mut self, row: usize) -> (usize, Option<&'static OpInfo>) {
        let (layer, op) = self.operations.keys(row);
        let number = self.names.operations.number(&mut self.operations, row);
        let known = (number, self.names.operations.get(number).info);
        self.known[layer * self.operations.op_keys() + op] = Some(known);
        known
    }

    /// Returns the event of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn get(&mut self, row: usize) -> Event {
        let (op, info) = self.operation(row);
        let columns = &self.columns;
        let end = columns.time.value(row);
        Event {
            begin: end.saturating_sub(columns.duration.value(row).max(0)),
            end,
            node: self.nodes.number(row),
            process: columns.process.value(row),
            pid: columns.pid.value(row),
            tid: columns.tid.value(row),
            stream: columns.stream.value(row),
            op,
            layer: self.layer(row),
            info,
            file: columns.file.get(row),
            file2: columns.file2.get(row),
            handle: columns.handle.get(row),
            offset: columns.offset.get(row),
            length: columns.length.get(row),
            arg: columns.arg.get(row),
            result: columns.result.value(row),
            flags: columns.flags.value(row) as u16,
            request: narrow(columns.request.value(row)),
            enclosing: columns.enclosing.get(row).map(narrow),
            cpu_time: columns.cpu_time.get(row),
            caller: columns.caller_tid.get(row),
            mpi_rank: columns.mpi_rank.get(row),
            etypes: columns.etypes.get(row),
            type_extent: columns.type_extent.get(row),
        }
    }
}

impl Iterator for Events<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let row = self.next;
        (row < self.columns.rows()).then(|| {
            self.next += 1;
            self.get(row)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, FEWEST_COLUMNS, FILE_COLUMNS};

    #[test]
    fn shorter_lists_of_columns_are_parts_of_the_longer_ones() {
        for (part, whole) in [(FEWEST_COLUMNS, FILE_COLUMNS), (FILE_COLUMNS, COLUMNS)] {
            assert!(part.iter().all(|column| whole.contains(column)), "{part:?} and {whole:?}");
        }
    }
}
