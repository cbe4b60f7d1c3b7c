//! Events and batches for tests.
#![allow(clippy::unwrap_used)]

use crate::events::Event;

use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, TimestampNanosecondArray, new_null_array};
use arrow_schema::Schema;
use miot_proto::op::{Layer, by_name};
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Table, schema};
use std::sync::Arc;

/// Values of the columns of an event; all other columns are null.
#[derive(Clone, Copy, Debug)]
pub struct EventValues {
    /// Name of the node.
    pub node: &'static str,
    /// Name of the layer.
    pub layer: &'static str,
    /// Name of the operation.
    pub op: &'static str,
    /// Process of the trace; the process id is this number + 100.
    pub process: u64,
    /// Thread id and stream.
    pub tid: u32,
    /// File.
    pub file: Option<u64>,
    /// The other file.
    pub file2: Option<u64>,
    /// Result.
    pub result: i64,
    /// Begin in nanoseconds.
    pub begin: i64,
    /// Duration in nanoseconds.
    pub took: i64,
    /// Number of the request.
    pub request: u32,
    /// Number of the parent request.
    pub enclosing: Option<u32>,
    /// Thread that the request was served for.
    pub caller: Option<u32>,
    /// Byte offset.
    pub offset: Option<i64>,
    /// Bytes requested.
    pub length: Option<i64>,
    /// Offset in elementary types.
    pub etypes: Option<i64>,
    /// Extent of a file type.
    pub type_extent: Option<i64>,
    /// Flags.
    pub flags: u16,
}

/// Returns a POSIX request of process 1 on `n1`.
#[must_use]
pub fn row(op: &'static str, file: u64, result: i64, begin: i64, took: i64) -> EventValues {
    let (layer, file) = ("posix", Some(file));
    EventValues {
        node: "n1",
        layer,
        op,
        process: 1,
        tid: 10,
        file,
        file2: None,
        result,
        begin,
        took,
        request: 0,
        enclosing: None,
        caller: None,
        offset: None,
        length: None,
        etypes: None,
        type_extent: None,
        flags: 0,
    }
}

/// Returns a batch of the table `events` with these events.
///
/// # Panics
/// Never for valid values.
#[must_use]
pub fn batch(rows: &[EventValues]) -> RecordBatch {
    let mut layer = StringDictionaryBuilder::<NameKey>::new();
    let mut op = StringDictionaryBuilder::<NameKey>::new();
    let mut node = StringDictionaryBuilder::<NameKey>::new();
    for row in rows {
        layer.append_value(row.layer);
        op.append_value(row.op);
        node.append_value(row.node);
    }
    let (layer, op): (ArrayRef, ArrayRef) = (Arc::new(layer.finish()), Arc::new(op.finish()));
    let node: ArrayRef = Arc::new(node.finish());
    let schema = schema::of(Table::Events);
    let columns = schema.fields().iter().map(|field| -> ArrayRef {
        let u64s = |f: fn(&EventValues) -> u64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| f(row) as i64)))
        };
        let u32s = |f: fn(&EventValues) -> u32| -> ArrayRef {
            Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| f(row) as i32)))
        };
        let maybe = |f: fn(&EventValues) -> Option<u64>| -> ArrayRef {
            Arc::new(Int64Array::from_iter(rows.iter().map(|row| f(row).map(|value| value as i64))))
        };
        let i64s = |f: fn(&EventValues) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(rows.iter().map(f)))
        };
        match field.name().as_str() {
            "time" => {
                let times = rows.iter().map(|r| r.begin + r.took);
                Arc::new(TimestampNanosecondArray::from_iter_values(times).with_timezone("UTC"))
            }
            "duration" => i64s(|r| r.took),
            "layer" => Arc::clone(&layer),
            "op" => Arc::clone(&op),
            "node" => Arc::clone(&node),
            "process" => u64s(|r| r.process),
            "pid" => u32s(|r| r.process as u32 + 100),
            "tid" => u32s(|r| r.tid),
            "file" => maybe(|r| r.file),
            "file2" => maybe(|r| r.file2),
            "handle" => u64s(|_| 1),
            "flags" => u32s(|r| r.flags.into()),
            "result" => i64s(|r| r.result),
            "stream" => u64s(|r| u64::from(r.tid)),
            "request" => u64s(|r| r.request.into()),
            "caller_tid" => {
                Arc::new(Int32Array::from_iter(rows.iter().map(|r| r.caller.map(|tid| tid as i32))))
            }
            "offset" => Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.offset))),
            "length" => Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.length))),
            "etypes" => Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.etypes))),
            "type_extent" => Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.type_extent))),
            "enclosing" => maybe(|r| r.enclosing.map(u64::from)),
            _ => new_null_array(field.data_type(), rows.len()),
        }
    });
    // Columns that no analysis reads may be null here.
    let fields = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>();
    let columns = columns.collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Returns a POSIX request of process 1 to file 1.
#[must_use]
pub fn event(op: &str, begin: i64, took: i64, result: i64) -> Event {
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
