//! Events as most analyses need them: rows of a batch, with names resolved once a batch.

use crate::column;
use crate::link::Nodes;
use crate::ops::{Numbers, Operations};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array as _, ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use miot_proto::event::flag;
use miot_proto::op::{Layer, OpClass, OpInfo, ResultMeaning};
use miot_trace_store::schema::NameKey;

/// The columns that [`Events`] needs, for [`miot_trace_store::Select`].
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

/// One completed request.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Nanoseconds since 1970.
    pub begin: i64,
    /// Completion, nanoseconds since 1970; never before `begin`.
    pub end: i64,
    /// Number of the node, see [`Names::nodes`].
    pub node: u32,
    /// Process of the trace.
    pub process: u64,
    /// Process id on its node.
    pub pid: u32,
    /// Thread id on its node.
    pub tid: u32,
    /// Stream of the trace.
    pub stream: u64,
    /// Number of the layer and operation, see [`Names::operation`].
    pub op: usize,
    /// Its layer; `None`: a later version's.
    pub layer: Option<Layer>,
    /// What the table of operations says; `None`: a later version's operation.
    pub info: Option<&'static OpInfo>,
    /// The file.
    pub file: Option<u64>,
    /// The other file: source of a copy, new name of a rename.
    pub file2: Option<u64>,
    /// Open file of the process.
    pub handle: Option<u64>,
    /// Byte offset in the file.
    pub offset: Option<i64>,
    /// Bytes asked for.
    pub length: Option<i64>,
    /// The operation's own argument.
    pub arg: Option<i64>,
    /// As recorded: negative = −errno.
    pub result: i64,
    /// Bits of [`flag`].
    pub flags: u16,
    /// Number of the request in its stream.
    pub request: u32,
    /// Number of the request of the same stream within which this one ran.
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
    /// Read, write, copy, sync or metadata; metadata for an unknown operation.
    #[must_use]
    pub fn class(&self) -> OpClass {
        self.info.map_or(OpClass::Meta, |info| info.class)
    }

    /// Nanoseconds from begin to completion.
    #[must_use]
    pub fn duration(&self) -> u64 {
        self.end.abs_diff(self.begin)
    }

    /// Bytes moved; 0 if it failed, or moves none.
    #[must_use]
    pub fn moved(&self) -> u64 {
        match self.info {
            Some(info) if info.result == ResultMeaning::Bytes => u64::try_from(self.result).unwrap_or(0),
            _ => 0,
        }
    }

    /// The request failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.result < 0
    }

    /// The request gave a new open file.
    #[must_use]
    pub fn opens(&self) -> bool {
        let opens = |info: &OpInfo| {
            info.result == ResultMeaning::Fd || matches!(info.name, "open" | "create" | "opendir")
        };
        !self.failed() && self.handle.is_some() && self.info.is_some_and(opens)
    }

    /// Its thread or process died in it; its `end` is when that was noticed.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.flags & flag::INTERRUPTED != 0
    }
}

/// What numbers of operations and nodes stand for, the same for all batches of a trace.
#[derive(Debug, Default)]
pub struct Names {
    operations: Operations,
    nodes: Nodes,
}

impl Names {
    /// Layer and operation of a number, by name.
    ///
    /// # Panics
    /// If no event had this number.
    #[must_use]
    pub fn operation(&self, number: usize) -> (&str, &str) {
        let named = self.operations.get(number);
        (&named.layer, &named.op)
    }

    /// Names of nodes by their number.
    #[must_use]
    pub fn nodes(&self) -> Vec<&str> {
        self.nodes.names()
    }
}

/// The events of a batch.
#[derive(Debug)]
pub struct Events<'a> {
    rows: usize,
    names: &'a mut Names,
    numbers: Numbers<'a>,
    layers: Vec<Option<Layer>>,
    nodes: Vec<u32>,
    node: &'a [u32],
    time: &'a [i64],
    duration: &'a [i64],
    process: &'a [u64],
    pid: &'a [u32],
    tid: &'a [u32],
    stream: &'a [u64],
    request: &'a [u32],
    result: &'a [i64],
    flags: &'a [u16],
    file: &'a PrimitiveArray<UInt64Type>,
    file2: &'a PrimitiveArray<UInt64Type>,
    handle: &'a PrimitiveArray<UInt64Type>,
    offset: &'a PrimitiveArray<Int64Type>,
    length: &'a PrimitiveArray<Int64Type>,
    arg: &'a PrimitiveArray<Int64Type>,
    enclosing: &'a PrimitiveArray<UInt32Type>,
    cpu_time: &'a PrimitiveArray<Int64Type>,
    caller: &'a PrimitiveArray<UInt32Type>,
    mpi_rank: &'a PrimitiveArray<UInt32Type>,
    etypes: &'a PrimitiveArray<Int64Type>,
    type_extent: &'a PrimitiveArray<Int64Type>,
}

impl<'a> Events<'a> {
    /// `None` if the batch does not have [`COLUMNS`].
    pub fn of(batch: &'a RecordBatch, names: &'a mut Names) -> Option<Events<'a>> {
        fn values<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Option<&'a [T::Native]> {
            column::<T>(batch, name).map(|column| column.values().as_ref())
        }
        let numbers = names.operations.of(batch)?;
        let layers = numbers.layers().iter().map(|name| Layer::from_name(name.unwrap_or(""))).collect();
        let node = batch.column_by_name("node")?.as_dictionary_opt::<NameKey>()?;
        let node_names = node.values().as_string_opt::<i32>()?;
        Some(Events {
            rows: batch.num_rows(),
            numbers,
            layers,
            nodes: node_names.iter().map(|name| names.nodes.number(name.unwrap_or(""))).collect(),
            names,
            node: node.keys().values(),
            time: values::<TimestampNanosecondType>(batch, "time")?,
            duration: values::<Int64Type>(batch, "duration")?,
            process: values::<UInt64Type>(batch, "process")?,
            pid: values::<UInt32Type>(batch, "pid")?,
            tid: values::<UInt32Type>(batch, "tid")?,
            stream: values::<UInt64Type>(batch, "stream")?,
            request: values::<UInt32Type>(batch, "request")?,
            result: values::<Int64Type>(batch, "result")?,
            flags: values::<UInt16Type>(batch, "flags")?,
            file: column(batch, "file")?,
            file2: column(batch, "file2")?,
            handle: column(batch, "handle")?,
            offset: column(batch, "offset")?,
            length: column(batch, "length")?,
            arg: column(batch, "arg")?,
            enclosing: column(batch, "enclosing")?,
            cpu_time: column(batch, "cpu_time")?,
            caller: column(batch, "caller_tid")?,
            mpi_rank: column(batch, "mpi_rank")?,
            etypes: column(batch, "etypes")?,
            type_extent: column(batch, "type_extent")?,
        })
    }

    fn get(&mut self, row: usize) -> Event {
        fn value<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>, row: usize) -> Option<T::Native> {
            array.is_valid(row).then(|| array.value(row))
        }
        let op = self.names.operations.number(&mut self.numbers, row);
        let end = self.time[row];
        Event {
            begin: end.saturating_sub(self.duration[row].max(0)),
            end,
            node: self.nodes.get(self.node[row] as usize).copied().unwrap_or(u32::MAX),
            process: self.process[row],
            pid: self.pid[row],
            tid: self.tid[row],
            stream: self.stream[row],
            op,
            layer: self.layers.get(self.numbers.layer(row)).copied().flatten(),
            info: self.names.operations.get(op).info,
            file: value(self.file, row),
            file2: value(self.file2, row),
            handle: value(self.handle, row),
            offset: value(self.offset, row),
            length: value(self.length, row),
            arg: value(self.arg, row),
            result: self.result[row],
            flags: self.flags[row],
            request: self.request[row],
            enclosing: value(self.enclosing, row),
            cpu_time: value(self.cpu_time, row),
            caller: value(self.caller, row),
            mpi_rank: value(self.mpi_rank, row),
            etypes: value(self.etypes, row),
            type_extent: value(self.type_extent, row),
        }
    }
}

impl Iterator for Events<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let row = self.time.len() - self.rows;
        (self.rows > 0).then(|| {
            self.rows -= 1;
            self.get(row)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Event;
    use miot_proto::op::{Layer, by_name};

    /// A POSIX request of process 1 to file 1.
    pub(crate) fn event(op: &str, begin: i64, took: i64, result: i64) -> Event {
        Event {
            begin,
            end: begin.saturating_add(took),
            node: 0,
            process: 1,
            pid: 1,
            tid: 1,
            stream: 1,
            op: 0,
            layer: Some(Layer::Posix),
            info: by_name("posix", op),
            file: Some(1),
            file2: None,
            handle: None,
            offset: None,
            length: None,
            arg: None,
            result,
            flags: 0,
            request: 1,
            enclosing: None,
            cpu_time: None,
            caller: None,
            mpi_rank: None,
            etypes: None,
            type_extent: None,
        }
    }
}
