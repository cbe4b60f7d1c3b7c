//! Small traces with known rows.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, UInt64Type};
use arrow_array::{
    ArrayRef, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt16Array, UInt32Array,
    UInt64Array, new_null_array,
};
use arrow_schema::DataType;
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Reader, Table, Writer, schema};
use std::path::Path;
use std::sync::Arc;

/// Creates a directory in memory, for tests with thousands of traces. On a disk they would wait for
/// its syncs most of the time.
pub fn dir_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ev {
    pub time: i64,
    pub stream: u64,
    pub seq: u64,
    pub file: Option<u64>,
    pub flags: u16,
}

pub fn ev(time: i64, stream: u64, seq: u64) -> Ev {
    Ev { time, stream, seq, file: Some(1), flags: 0 }
}

pub fn times(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(TimestampNanosecondArray::from_iter_values(values).with_timezone("UTC"))
}

/// Events of process 1 on node `n<stream % 3>`.
pub fn events(rows: &[Ev]) -> RecordBatch {
    let n = rows.len();
    let mut node = StringDictionaryBuilder::<NameKey>::new();
    let mut layer = StringDictionaryBuilder::<NameKey>::new();
    let mut op = StringDictionaryBuilder::<NameKey>::new();
    for row in rows {
        node.append_value(format!("n{}", row.stream % 3));
        layer.append_value("posix");
        op.append_value(if row.seq % 2 == 0 { "read" } else { "write" });
    }
    let u64s =
        |f: fn(&Ev) -> u64| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(rows.iter().map(f))) };
    let u32s =
        |f: fn(&Ev) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(rows.iter().map(f))) };
    let i64s = |f: fn(&Ev) -> i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(rows.iter().map(f))) };
    let none =
        |name: &str| new_null_array(schema::of(Table::Events).field_with_name(name).unwrap().data_type(), n);
    let columns: Vec<ArrayRef> = vec![
        times(rows.iter().map(|r| r.time)),
        i64s(|r| r.time % 1000),
        Arc::new(node.finish()),
        u64s(|_| 1),
        u32s(|_| 100),
        u32s(|r| r.stream as u32 + 100),
        Arc::new(layer.finish()),
        Arc::new(op.finish()),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.file))),
        none("file2"),
        u64s(|_| 3),
        i64s(|r| r.seq as i64 * 4096),
        none("offset2"),
        i64s(|_| 4096),
        none("arg"),
        i64s(|_| 4096),
        Arc::new(UInt16Array::from_iter_values(rows.iter().map(|r| r.flags))),
        u64s(|r| r.stream),
        u64s(|r| r.seq),
        u32s(|r| r.seq as u32 + 1),
        none("enclosing"),
        none("cpu_time"),
        none("caller_tid"),
        none("caller_uid"),
        none("mpi_rank"),
        none("mpi_size"),
        none("etypes"),
        none("type_size"),
        none("type_extent"),
    ];
    schema::batch(Table::Events, columns).unwrap()
}

pub fn processes(ids: &[u64]) -> RecordBatch {
    let n = ids.len();
    let text = |s: &str| -> ArrayRef { Arc::new(StringArray::from(vec![s; n])) };
    let u32s = |v: u32| -> ArrayRef { Arc::new(UInt32Array::from(vec![v; n])) };
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from(ids.to_vec())),
        text("n1"),
        u32s(100),
        u32s(1),
        u32s(0),
        Arc::new(UInt32Array::from(vec![None; n])),
        Arc::new(StringArray::from(vec![None::<&str>; n])),
        text("/bin/cp"),
        text("cp a b"),
        text("/"),
        times(vec![7; n]),
        text("0123456789abcdef0123456789abcdef"),
        Arc::new(UInt64Array::from(vec![77; n])),
    ];
    // The job of a process may be unknown.
    let schema = schema::of(Table::Processes);
    let unknown = schema.fields()[columns.len()..].iter();
    columns.extend(unknown.map(|field| new_null_array(field.data_type(), n)));
    schema::batch(Table::Processes, columns).unwrap()
}

pub fn threads(streams: &[u64]) -> RecordBatch {
    let n = streams.len();
    let u32s = |v: u32| -> ArrayRef { Arc::new(UInt32Array::from(vec![v; n])) };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from(streams.to_vec())),
        Arc::new(UInt64Array::from(vec![1; n])),
        Arc::new(StringArray::from(vec!["n1"; n])),
        u32s(100),
        Arc::new(UInt32Array::from_iter_values(streams.iter().map(|s| *s as u32 + 100))),
        u32s(0),
        u32s(1),
        Arc::new(StringArray::from_iter_values(streams.iter().map(|s| format!("thread-{s}")))),
    ];
    schema::batch(Table::Threads, columns).unwrap()
}

/// Returns files with path `/data/<id>`, and the handle record that named each, if any.
pub fn files(ids: &[(u64, Option<(u64, u64)>)]) -> RecordBatch {
    let n = ids.len();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(ids.iter().map(|i| i.0))),
        Arc::new(StringArray::from(vec!["n1"; n])),
        Arc::new(StringArray::from_iter_values(ids.iter().map(|i| format!("/data/{}", i.0)))),
        new_null_array(&DataType::Binary, n),
        Arc::new(UInt64Array::from_iter(ids.iter().map(|i| i.1.map(|r| r.0)))),
        Arc::new(UInt64Array::from_iter(ids.iter().map(|i| i.1.map(|r| r.1)))),
        Arc::new(UInt64Array::from_iter(ids.iter().map(|i| i.1.map(|r| r.1 + 50)))),
    ];
    schema::batch(Table::Files, columns).unwrap()
}

/// Returns a loss with a gap in a stream.
pub fn loss(stream: u64, first: u64, last: u64) -> RecordBatch {
    let one = |v: u64| -> ArrayRef { Arc::new(UInt64Array::from(vec![v])) };
    let columns: Vec<ArrayRef> = vec![
        times([1]),
        Arc::new(StringArray::from(vec!["n1"])),
        one(1),
        one(stream),
        Arc::new(StringArray::from(vec!["lane_full"])),
        one(last - first + 1),
        one(first),
        one(last),
    ];
    schema::batch(Table::Losses, columns).unwrap()
}

/// Returns a device sample of a node: one row per device, with the time as `uptime` and `writes`.
pub fn sample(time: i64, node: &str, devices: &[&str]) -> RecordBatch {
    sample_of_boot(1, time, node, devices)
}

/// As `sample`, of a given boot.
pub fn sample_of_boot(boot: u128, time: i64, node: &str, devices: &[&str]) -> RecordBatch {
    let n = devices.len();
    let schema = schema::of(Table::Devices);
    let column = |name: &str, kind: &DataType| -> ArrayRef {
        match name {
            "time" => times(vec![time; n]),
            "node" => Arc::new(StringArray::from(vec![node; n])),
            "interval" => Arc::new(Int64Array::from(vec![10; n])),
            "kind" => Arc::new(StringArray::from(vec!["block"; n])),
            "device" => Arc::new(StringArray::from(devices.to_vec())),
            "boot" => Arc::new(StringArray::from(vec![format!("{boot:032x}"); n])),
            "uptime" | "writes" => Arc::new(UInt64Array::from(vec![time as u64; n])),
            _ => new_null_array(kind, n),
        }
    };
    let columns = schema.fields().iter().map(|field| column(field.name(), field.data_type())).collect();
    schema::batch(Table::Devices, columns).unwrap()
}

/// Returns process 1 with streams 1 to 3, and file 1.
pub fn sides(writer: &mut Writer) {
    writer.append(Table::Processes, &processes(&[1])).unwrap();
    writer.append(Table::Threads, &threads(&[1, 2, 3])).unwrap();
    writer.append(Table::Files, &files(&[(1, None)])).unwrap();
}

/// Returns the events `from..to` of three streams in turn.
pub fn turn(from: u64, to: u64) -> Vec<Ev> {
    (from..to).map(|i| ev(1_000_000 + i as i64 * 10, i % 3 + 1, i / 3)).collect()
}

/// The events with other offsets and lengths: about 15 bytes each in Parquet.
pub fn incompressible(events: &RecordBatch, random: &mut fastrand::Rng) -> RecordBatch {
    let schema = events.schema();
    let columns = schema.fields().iter().zip(events.columns()).map(|(field, column)| {
        if !["offset", "length"].contains(&field.name().as_str()) {
            return Arc::clone(column);
        }
        let values = (0..events.num_rows()).map(|_| random.i64(0..i64::MAX));
        Arc::new(Int64Array::from_iter_values(values)) as ArrayRef
    });
    RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap()
}

/// Returns the events of a batch.
pub fn rows_of(batch: &RecordBatch) -> Vec<Ev> {
    let u64s = |name: &str| schema::column::<UInt64Type>(batch, name).unwrap();
    let time =
        batch.column_by_name("time").unwrap().as_primitive::<arrow_array::types::TimestampNanosecondType>();
    let flags = batch.column_by_name("flags").unwrap().as_primitive::<Int32Type>();
    let (stream, seq, file) = (u64s("stream"), u64s("seq"), u64s("file"));
    (0..batch.num_rows())
        .map(|i| Ev {
            time: time.value(i),
            stream: stream.value(i),
            seq: seq.value(i),
            file: file.iter().nth(i).unwrap(),
            flags: flags.value(i) as u16,
        })
        .collect()
}

pub fn read_all(dir: &Path) -> Vec<Ev> {
    read_from(&Reader::open(dir).unwrap())
}

pub fn read_from(reader: &Reader) -> Vec<Ev> {
    reader.events().flat_map(|b| rows_of(&b.unwrap())).collect()
}

/// Copies a directory.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
