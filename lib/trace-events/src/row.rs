//! Events for people and programs: a row with the names of its node, files and thread, and the
//! columns under which it is printed and exported.

use crate::columns::{EventColumns, MissingColumn, narrow};
use crate::message::{attributes, message};
use crate::text;
use arrow_array::RecordBatch;
use miot_trace_store::{Corrections, schema};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// One event with its names resolved.
#[derive(Debug)]
pub struct EventRow<'a> {
    /// Completion, nanoseconds since 1970.
    pub time: i64,
    /// Nanoseconds from begin to completion.
    pub duration: i64,
    /// Name of the node.
    pub node: &'a str,
    /// Process of the trace.
    pub process: u64,
    /// Process id on its node.
    pub pid: u32,
    /// Thread id on its node.
    pub tid: u32,
    /// Name of the thread.
    pub comm: Option<&'a str>,
    /// Name of the layer.
    pub layer: &'a str,
    /// Name of the operation.
    pub op: &'a str,
    /// Path of the file.
    pub path: Option<&'a str>,
    /// Path of the other file: source of a copy, new name of a rename.
    pub path2: Option<&'a str>,
    /// Byte offset in the file.
    pub offset: Option<i64>,
    /// Byte offset in the other file.
    pub offset2: Option<i64>,
    /// Bytes requested.
    pub length: Option<i64>,
    /// Argument of the operation.
    pub arg: Option<i64>,
    /// Bytes moved or another value; a negative value is −errno.
    pub result: i64,
    /// Bits of [`miot_proto::event::flag`].
    pub flags: u16,
    /// Number of the open file in its process.
    pub handle: Option<u64>,
    /// File of the trace.
    pub file: Option<u64>,
    /// The other file.
    pub file2: Option<u64>,
    /// Stream of the trace.
    pub stream: u64,
    /// Attempt number in the stream.
    pub seq: u64,
    /// Number of the request in its stream.
    pub request: u32,
    /// Number of the parent request in the same stream.
    pub enclosing: Option<u32>,
    /// CPU time of the thread at completion, nanoseconds.
    pub cpu_time: Option<i64>,
    /// Thread on the same node that the request was served for.
    pub caller_tid: Option<u32>,
    /// User that the request was served for.
    pub caller_uid: Option<u32>,
    /// Rank in the communicator of an MPI file.
    pub mpi_rank: Option<u32>,
    /// Size of that communicator.
    pub mpi_size: Option<u32>,
    /// Offset in elementary types of the view (MPI-IO).
    pub etypes: Option<i64>,
    /// Bytes of the datatype of one element (MPI-IO).
    pub type_size: Option<i64>,
    /// Extent of that datatype, or of the file type of a view that is set.
    pub type_extent: Option<i64>,
    /// Text of a message of a debug log, or attributes of a region.
    pub message: Option<String>,
}

/// Columns of a batch that a [`EventRow`] requires.
const REQUIRED: &[&str] = &[
    "time",
    "duration",
    "node",
    "process",
    "pid",
    "tid",
    "comm",
    "layer",
    "op",
    "path",
    "path2",
    "offset",
    "offset2",
    "length",
    "arg",
    "result",
    "flags",
    "handle",
    "file",
    "file2",
    "stream",
    "seq",
    "request",
    "enclosing",
    "cpu_time",
    "caller_tid",
    "caller_uid",
    "mpi_rank",
    "mpi_size",
    "etypes",
    "type_size",
    "type_extent",
];

/// Returns the columns of a batch in the schema of [`miot_trace_store::schema::rows`].
///
/// # Errors
/// [`MissingColumn`] if the batch has another schema.
pub fn columns(batch: &RecordBatch) -> Result<EventColumns<'_>, MissingColumn> {
    EventColumns::of(batch, REQUIRED)
}

impl<'a> EventRow<'a> {
    /// Returns the event of a row of [`columns`].
    #[must_use]
    pub fn of(columns: &EventColumns<'a>, row: usize) -> EventRow<'a> {
        let (layer, op) = (columns.layer.value(row), columns.op.value(row));
        let (path, path2) = (columns.path.get(row), columns.path2.get(row));
        EventRow {
            time: columns.time.value(row),
            duration: columns.duration.value(row),
            node: columns.node.value(row),
            process: columns.process.value(row),
            pid: columns.pid.value(row),
            tid: columns.tid.value(row),
            comm: columns.comm.get(row),
            layer,
            op,
            path,
            path2,
            offset: columns.offset.get(row),
            offset2: columns.offset2.get(row),
            length: columns.length.get(row),
            arg: columns.arg.get(row),
            result: columns.result.value(row),
            flags: columns.flags.value(row) as u16,
            handle: columns.handle.get(row),
            file: columns.file.get(row),
            file2: columns.file2.get(row),
            stream: columns.stream.value(row),
            seq: columns.seq.value(row),
            request: narrow(columns.request.value(row)),
            enclosing: columns.enclosing.get(row).map(narrow),
            cpu_time: columns.cpu_time.get(row),
            caller_tid: columns.caller_tid.get(row),
            caller_uid: columns.caller_uid.get(row).map(narrow),
            mpi_rank: columns.mpi_rank.get(row),
            mpi_size: columns.mpi_size.get(row),
            etypes: columns.etypes.get(row),
            type_size: columns.type_size.get(row),
            type_extent: columns.type_extent.get(row),
            message: message(layer, op, path, path2)
                .or_else(|| attributes(layer, op, path2, columns.arg.get(row))),
        }
    }
}

impl EventRow<'_> {
    /// Replaces the merged time by the time of the node's own clock, if it is known.
    pub fn use_node_time(&mut self, corrections: &Corrections) {
        if let Some(own) = corrections.node_time(self.node, self.time, self.flags) {
            self.time = own;
        }
    }
}

/// Type of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Nanoseconds since 1970, a signed number of 64 bits.
    Time,
    /// A signed number of 64 bits.
    Signed,
    /// An unsigned number of this many bits.
    Unsigned(u8),
    /// A string.
    Text,
}

/// Value of a column in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Nanoseconds since 1970.
    Time(i64),
    /// A signed number.
    Signed(i64),
    /// An unsigned number.
    Unsigned(u64),
    /// A string.
    Text(Cow<'a, str>),
}

/// A column under which rows are printed and exported.
pub struct Column {
    /// Name.
    pub name: &'static str,
    /// Type of the values.
    pub column_type: ColumnType,
    value: for<'a> fn(&'a EventRow<'a>) -> Option<Value<'a>>,
}

impl Column {
    /// Returns the value of the column in a row; `None` for a null.
    #[must_use]
    pub fn value<'a>(&self, row: &'a EventRow<'a>) -> Option<Value<'a>> {
        (self.value)(row)
    }

    /// Returns the column of this name in [`COLUMNS`].
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Column> {
        COLUMNS.iter().find(|column| column.name == name)
    }
}

impl fmt::Debug for Column {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

/// Converts a field of a row to a value.
trait ToValue {
    fn to_value(&self) -> Option<Value<'_>>;
}

macro_rules! to_value {
    ($($variant:ident: $($number:ty)*;)*) => {
        $($(impl ToValue for $number {
            fn to_value(&self) -> Option<Value<'_>> {
                Some(Value::$variant((*self).into()))
            }
        })*)*
    };
}

to_value! { Signed: i64; Unsigned: u16 u32 u64; }

impl ToValue for &str {
    fn to_value(&self) -> Option<Value<'_>> {
        Some(Value::Text((*self).into()))
    }
}

impl ToValue for String {
    fn to_value(&self) -> Option<Value<'_>> {
        Some(Value::Text(self.as_str().into()))
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Option<Value<'_>> {
        self.as_ref().and_then(ToValue::to_value)
    }
}

use ColumnType::{Signed, Text, Time, Unsigned};

macro_rules! columns {
    ($($name:ident: $type:expr,)*) => {
        &[
            Column { name: "time", column_type: Time, value: |row| Some(Value::Time(row.time)) },
            $(Column { name: stringify!($name), column_type: $type, value: |row| row.$name.to_value() },)*
        ]
    };
}

/// All columns, in the order in which they are printed.
pub const COLUMNS: &[Column] = columns! {
    duration: Signed,
    node: Text,
    process: Unsigned(64),
    pid: Unsigned(32),
    tid: Unsigned(32),
    comm: Text,
    layer: Text,
    op: Text,
    path: Text,
    path2: Text,
    offset: Signed,
    offset2: Signed,
    length: Signed,
    arg: Signed,
    result: Signed,
    flags: Unsigned(16),
    handle: Unsigned(64),
    file: Unsigned(64),
    file2: Unsigned(64),
    stream: Unsigned(64),
    seq: Unsigned(64),
    request: Unsigned(32),
    enclosing: Unsigned(32),
    cpu_time: Signed,
    caller_tid: Unsigned(32),
    caller_uid: Unsigned(32),
    mpi_rank: Unsigned(32),
    mpi_size: Unsigned(32),
    etypes: Signed,
    type_size: Signed,
    type_extent: Signed,
    message: Text,
};

/// Returns all columns in the order of [`miot_trace_store::schema::rows`], then `message`, which is
/// not a column of a trace.
#[must_use]
pub fn columns_by_schema() -> Vec<&'static Column> {
    schema::row_columns().map(|(name, _)| name).chain(["message"]).filter_map(Column::named).collect()
}

/// Serializes a row as an object without the columns that are null.
impl Serialize for EventRow<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize_columns(self, COLUMNS, to)
    }
}

/// Serializes some columns of a row as an object, without those that are null.
pub(crate) fn serialize_columns<'c, S: Serializer>(
    row: &EventRow<'_>,
    columns: impl IntoIterator<Item = &'c Column>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut object = to.serialize_map(None)?;
    for column in columns {
        match column.value(row) {
            None => {}
            Some(Value::Time(time)) => object.serialize_entry(column.name, &text::time(time))?,
            Some(Value::Signed(number)) => object.serialize_entry(column.name, &number)?,
            Some(Value::Unsigned(number)) => object.serialize_entry(column.name, &number)?,
            Some(Value::Text(text)) => object.serialize_entry(column.name, &text)?,
        }
    }
    object.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::DataType;

    #[test]
    fn columns_have_the_types_of_the_schema() {
        let columns = columns_by_schema();
        assert_eq!(columns.len(), COLUMNS.len());
        assert_eq!(REQUIRED.len(), COLUMNS.len() - 1);
        for ((name, data_type), column) in schema::row_columns().zip(columns) {
            // Ids and the like are printed as the unsigned numbers that producers write.
            let expected = match data_type {
                DataType::Timestamp(..) => &[Time][..],
                DataType::Int64 => &[Signed, Unsigned(32), Unsigned(64)],
                DataType::Int32 => &[Unsigned(16), Unsigned(32)],
                _ => &[Text],
            };
            assert_eq!(column.name, name);
            assert!(expected.contains(&column.column_type), "{column:?}");
            assert!(REQUIRED.contains(&name), "{name}");
        }
    }
}
