//! Rows of the tables beside events, as record batches. These are few, so they are built row by row.

use crate::clock::Correction;
use arrow_array::{
    ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray, UInt32Array,
    UInt64Array,
};
use arrow_schema::ArrowError;
use miot_proto::job::Job;
use miot_proto::wire::{self, ProcessKey};
use miot_trace_store::{Table, escape, schema};
use std::borrow::Cow;
use std::sync::Arc;

/// A row of `processes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    id: u64,
    node: String,
    key: ProcessKey,
    ppid: u32,
    uid: u32,
    rank: Option<u32>,
    job: Option<String>,
    job_system: Option<String>,
    job_step: Option<String>,
    user: Option<String>,
    cgroup: Option<String>,
    block_sizes: Option<String>,
    exe: String,
    cmdline: String,
    cwd: String,
    started: i64,
}

impl ProcessRow {
    /// The row of a process with this id, on the node of this name.
    #[must_use]
    pub fn new(id: u64, node: &str, process: &wire::Process) -> ProcessRow {
        let text = |bytes: &[u8]| escape::path(bytes).0.into_owned();
        let some = |bytes: &[u8]| (!bytes.is_empty()).then(|| text(bytes));
        let job = Job::read(&process.job);
        ProcessRow {
            id,
            node: node.to_owned(),
            key: process.key,
            ppid: process.ppid,
            uid: process.uid,
            rank: process.rank,
            job: some(job.id),
            job_system: some(job.system),
            job_step: some(job.step),
            user: some(job.user),
            cgroup: some(job.cgroup),
            block_sizes: some(job.block_sizes),
            exe: text(&process.exe),
            cmdline: command_line(&process.cmdline),
            cwd: text(&process.cwd),
            started: process.started,
        }
    }
}

/// A row of `threads`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRow {
    stream: u64,
    process: u64,
    node: String,
    pid: u32,
    tid: u32,
    lane: u32,
    incarnation: u32,
    comm: String,
}

impl ThreadRow {
    /// The row of a stream with this id, of the process with that id.
    #[must_use]
    pub fn new(id: u64, process: u64, node: &str, stream: &wire::Stream) -> ThreadRow {
        ThreadRow {
            stream: id,
            process,
            node: node.to_owned(),
            pid: stream.key.process.pid,
            tid: stream.tid,
            lane: stream.key.lane,
            incarnation: stream.key.incarnation,
            comm: escape::path(&stream.comm).0.into_owned(),
        }
    }
}

/// A row of `files`. In a storm of metadata there are nearly as many as events, so it borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow<'a> {
    /// Id.
    pub file: u64,
    /// Index of the node.
    pub node: usize,
    /// Its path.
    pub path: Cow<'a, [u8]>,
    /// Stream, attempt number and handle of the record that named a handle.
    pub record: Option<(u64, u64, u64)>,
}

/// A row of `losses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossRow {
    /// When it was noticed, nanoseconds since 1970.
    pub time: i64,
    /// Name of the node.
    pub node: String,
    /// Id.
    pub process: Option<u64>,
    /// Id.
    pub stream: Option<u64>,
    /// Where.
    pub place: &'static str,
    /// How many.
    pub count: u64,
    /// First and last attempt number.
    pub range: Option<(u64, u64)>,
}

/// Rows of `processes`.
///
/// # Errors
/// None that inputs can bring about.
pub fn processes(rows: &[ProcessRow]) -> Result<RecordBatch, ArrowError> {
    let columns: Vec<ArrayRef> = vec![
        u64s(rows, |r| r.id),
        text(rows, |r| &r.node),
        u32s(rows, |r| r.key.pid),
        u32s(rows, |r| r.ppid),
        u32s(rows, |r| r.uid),
        Arc::new(UInt32Array::from_iter(rows.iter().map(|r| r.rank))),
        maybe(rows, |r| r.job.as_deref()),
        text(rows, |r| &r.exe),
        text(rows, |r| &r.cmdline),
        text(rows, |r| &r.cwd),
        times(rows, |r| r.started),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| format!("{:032x}", r.key.boot)))),
        u64s(rows, |r| r.key.nonce),
        maybe(rows, |r| r.job_system.as_deref()),
        maybe(rows, |r| r.job_step.as_deref()),
        maybe(rows, |r| r.user.as_deref()),
        maybe(rows, |r| r.cgroup.as_deref()),
        maybe(rows, |r| r.block_sizes.as_deref()),
    ];
    RecordBatch::try_new(schema::of(Table::Processes), columns)
}

/// Rows of `threads`.
///
/// # Errors
/// None that inputs can bring about.
pub fn threads(rows: &[ThreadRow]) -> Result<RecordBatch, ArrowError> {
    let columns = vec![
        u64s(rows, |r| r.stream),
        u64s(rows, |r| r.process),
        text(rows, |r| &r.node),
        u32s(rows, |r| r.pid),
        u32s(rows, |r| r.tid),
        u32s(rows, |r| r.lane),
        u32s(rows, |r| r.incarnation),
        text(rows, |r| &r.comm),
    ];
    RecordBatch::try_new(schema::of(Table::Threads), columns)
}

/// Rows of `files`; `name` gives the names of nodes.
///
/// # Errors
/// None that inputs can bring about.
pub fn files<'a>(
    rows: &'a [FileRow<'a>],
    name: impl Fn(usize) -> &'a str,
) -> Result<RecordBatch, ArrowError> {
    let paths: Vec<_> = rows.iter().map(|r| escape::path(&r.path)).collect();
    let columns: Vec<ArrayRef> = vec![
        u64s(rows, |r| r.file),
        text(rows, |r| name(r.node)),
        Arc::new(StringArray::from_iter_values(paths.iter().map(|(text, _)| text))),
        Arc::new(BinaryArray::from_iter(paths.iter().map(|(_, raw)| *raw))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.record.map(|(stream, _, _)| stream)))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.record.map(|(_, seq, _)| seq)))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.record.map(|(_, _, handle)| handle)))),
    ];
    RecordBatch::try_new(schema::of(Table::Files), columns)
}

/// Rows of `losses`.
///
/// # Errors
/// None that inputs can bring about.
pub fn losses(rows: &[LossRow]) -> Result<RecordBatch, ArrowError> {
    let columns: Vec<ArrayRef> = vec![
        times(rows, |r| r.time),
        text(rows, |r| &r.node),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.process))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.stream))),
        text(rows, |r| r.place),
        u64s(rows, |r| r.count),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.range.map(|(first, _)| first)))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.range.map(|(_, last)| last)))),
    ];
    RecordBatch::try_new(schema::of(Table::Losses), columns)
}

/// A row of `devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// End of the interval, nanoseconds since 1970.
    pub time: i64,
    /// Name of the node.
    pub node: String,
    /// Of the interval, nanoseconds.
    pub interval: u64,
    /// Boot id of the node, as the trace writes it.
    pub boot: String,
    /// Nanoseconds since that boot.
    pub uptime: u64,
    /// What it did.
    pub device: wire::Device,
}

/// Rows of `devices`.
///
/// # Errors
/// None that inputs can bring about.
pub fn devices(rows: &[DeviceRow]) -> Result<RecordBatch, ArrowError> {
    let count = |value: fn(&wire::Counters) -> Option<u64>| {
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| value(&r.device.counters)))) as ArrayRef
    };
    let intervals = rows.iter().map(|r| i64::try_from(r.interval).unwrap_or(i64::MAX));
    let names: Vec<_> = rows.iter().map(|r| escape::path(&r.device.name).0).collect();
    let mounts: Vec<_> = rows.iter().map(|r| escape::path(&r.device.mount).0).collect();
    let columns: Vec<ArrayRef> = vec![
        times(rows, |r| r.time),
        text(rows, |r| &r.node),
        Arc::new(Int64Array::from_iter_values(intervals)),
        text(rows, |r| r.device.kind.name()),
        Arc::new(StringArray::from_iter_values(&names)),
        Arc::new(StringArray::from_iter(mounts.iter().map(|m| (!m.is_empty()).then_some(m)))),
        count(|c| c.reads),
        count(|c| c.writes),
        count(|c| c.others),
        count(|c| c.read_bytes),
        count(|c| c.write_bytes),
        count(|c| c.read_time),
        count(|c| c.write_time),
        count(|c| c.other_time),
        count(|c| c.reads_merged),
        count(|c| c.writes_merged),
        count(|c| c.busy),
        count(|c| c.queue_time),
        count(|c| c.in_flight),
        count(|c| c.retransmits),
        text(rows, |r| &r.boot),
        u64s(rows, |r| r.uptime),
    ];
    RecordBatch::try_new(schema::of(Table::Devices), columns)
}

/// Rows of `clocks` about one node.
///
/// # Errors
/// None that inputs can bring about.
pub fn clocks(node: &str, rows: &[Correction]) -> Result<RecordBatch, ArrowError> {
    let i64s = |value: fn(&Correction) -> i64| {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(value))) as ArrayRef
    };
    let columns = vec![
        times(rows, |r| r.piece.time),
        text(rows, |_| node),
        i64s(|r| r.piece.offset),
        i64s(|r| r.uncertainty),
        i64s(|r| r.round_trip),
        i64s(|r| r.piece.drift),
        text(rows, |r| r.reason.name()),
        i64s(|r| r.estimated_error),
    ];
    RecordBatch::try_new(schema::of(Table::Clocks), columns)
}

fn u64s<R>(rows: &[R], value: impl Fn(&R) -> u64) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(rows.iter().map(value)))
}

fn u32s<R>(rows: &[R], value: impl Fn(&R) -> u32) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(rows.iter().map(value)))
}

fn times<R>(rows: &[R], value: impl Fn(&R) -> i64) -> ArrayRef {
    Arc::new(TimestampNanosecondArray::from_iter_values(rows.iter().map(value)).with_timezone("UTC"))
}

fn text<'a, R>(rows: &'a [R], value: impl Fn(&'a R) -> &'a str) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(rows.iter().map(value)))
}

fn maybe<'a, R>(rows: &'a [R], value: impl Fn(&'a R) -> Option<&'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter(rows.iter().map(value)))
}

/// Arguments separated by NUL, as one would type them.
fn command_line(arguments: &[u8]) -> String {
    if arguments.is_empty() {
        return String::new();
    }
    let arguments = arguments.strip_suffix(&[0]).unwrap_or(arguments);
    let quoted = arguments.split(|b| *b == 0).map(|argument| quote(&escape::path(argument).0));
    quoted.collect::<Vec<_>>().join(" ")
}

fn quote(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed_again() {
        assert_eq!(
            command_line(b"dd\0if=/dev/zero\0of=a b\0\0it's\0"),
            r"dd if=/dev/zero 'of=a b' '' 'it'\''s'"
        );
        assert_eq!(command_line(b"ls\0"), "ls");
        assert_eq!(command_line(b"a\xff\0"), r"'a\xff'");
        assert_eq!(command_line(b""), "");
    }
}
