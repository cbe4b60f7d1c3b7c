//! Batches of events of which the tests know every row.

use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::{
    ArrayRef, Int64Array, RecordBatch, TimestampNanosecondArray, UInt16Array, UInt32Array, UInt64Array,
    new_null_array,
};
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Table, schema};
use std::sync::Arc;

#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) node: &'static str,
    pub(crate) layer: &'static str,
    pub(crate) op: &'static str,
    pub(crate) process: u64,
    pub(crate) tid: u32,
    pub(crate) file: Option<u64>,
    pub(crate) file2: Option<u64>,
    pub(crate) result: i64,
    pub(crate) begin: i64,
    pub(crate) took: i64,
    pub(crate) request: u32,
    pub(crate) enclosing: Option<u32>,
    pub(crate) caller: Option<u32>,
    pub(crate) length: Option<i64>,
    pub(crate) flags: u16,
}

pub(crate) fn row(op: &'static str, file: u64, result: i64, begin: i64, took: i64) -> Row {
    let (layer, file) = ("posix", Some(file));
    Row {
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
        length: None,
        flags: 0,
    }
}

pub(crate) fn batch(rows: &[Row]) -> RecordBatch {
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
        let u64s =
            |f: fn(&Row) -> u64| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(rows.iter().map(f))) };
        let u32s =
            |f: fn(&Row) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(rows.iter().map(f))) };
        let i64s =
            |f: fn(&Row) -> i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(rows.iter().map(f))) };
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
            "file" => Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.file))),
            "file2" => Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.file2))),
            "handle" => u64s(|_| 1),
            "flags" => Arc::new(UInt16Array::from_iter_values(rows.iter().map(|r| r.flags))),
            "result" => i64s(|r| r.result),
            "stream" => u64s(|r| u64::from(r.tid)),
            "request" => u32s(|r| r.request),
            "caller_tid" => Arc::new(UInt32Array::from_iter(rows.iter().map(|r| r.caller))),
            "length" => Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.length))),
            "enclosing" => Arc::new(UInt32Array::from_iter(rows.iter().map(|r| r.enclosing))),
            _ => new_null_array(field.data_type(), rows.len()),
        }
    });
    // Columns that no analysis looks at may be null here.
    let fields = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>();
    let columns = columns.collect();
    RecordBatch::try_new(Arc::new(arrow_schema::Schema::new(fields)), columns).unwrap()
}
