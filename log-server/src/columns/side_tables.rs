//! Rows of all tables except `events`, as record batches. They are few, so they are built row by
//! row.

use crate::clock::Correction;
use crate::ids::{NodeId, ProcessId, StreamId};
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
    id: ProcessId,
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
    world_size: Option<u32>,
    exe: String,
    cmdline: String,
    cwd: String,
    started: i64,
}

impl ProcessRow {
    /// Creates the row of the process `id` on the node with this name.
    #[must_use]
    pub fn new(id: ProcessId, node: &str, process: &wire::Process) -> ProcessRow {
        let text = |bytes: &[u8]| escape::path(bytes).0.into_owned();
        let some = |bytes: &[u8]| (!bytes.is_empty()).then(|| text(bytes));
        let job = Job::from_bytes(&process.job);
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
            world_size: std::str::from_utf8(job.world_size).ok().and_then(|size| size.parse().ok()),
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
    stream: StreamId,
    process: ProcessId,
    node: String,
    pid: u32,
    tid: u32,
    lane: u32,
    incarnation: u32,
    comm: String,
}

impl ThreadRow {
    /// Creates the row of the stream `id` of the process `process`.
    #[must_use]
    pub fn new(id: StreamId, process: ProcessId, node: &str, stream: &wire::Stream) -> ThreadRow {
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

/// A row of `files`. It borrows its path: with many metadata requests there are nearly as many
/// files as events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow<'a> {
    /// Id of the file.
    pub file: u64,
    /// Number of the node.
    pub node: NodeId,
    /// Path of the file.
    pub path: Cow<'a, [u8]>,
    /// The record that named a handle, if a record did.
    pub record: Option<RecordId>,
}

/// Identifies a path record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId {
    /// Id of the stream.
    pub stream: StreamId,
    /// Attempt number of the record.
    pub attempt: u64,
    /// Handle that the record names.
    pub handle: u64,
}

/// A row of `losses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossRow {
    /// Time at which the loss was detected, nanoseconds since 1970.
    pub time: i64,
    /// Name of the node.
    pub node: String,
    /// Id of the process.
    pub process: Option<ProcessId>,
    /// Id of the stream.
    pub stream: Option<StreamId>,
    /// Place of the loss.
    pub place: &'static str,
    /// Number of lost events.
    pub count: u64,
    /// First and last attempt number, if known.
    pub range: Option<(u64, u64)>,
}

/// Returns rows of `processes`.
///
/// # Errors
/// Never for valid input.
pub fn processes(rows: &[ProcessRow]) -> Result<RecordBatch, ArrowError> {
    let columns: Vec<ArrayRef> = vec![
        u64s(rows, |r| r.id.0),
        text(rows, |r| &r.node),
        u32s(rows, |r| r.key.pid),
        u32s(rows, |r| r.ppid),
        u32s(rows, |r| r.uid),
        Arc::new(UInt32Array::from_iter(rows.iter().map(|r| r.rank))),
        optional_text(rows, |r| r.job.as_deref()),
        text(rows, |r| &r.exe),
        text(rows, |r| &r.cmdline),
        text(rows, |r| &r.cwd),
        times(rows, |r| r.started),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| format!("{:032x}", r.key.boot)))),
        u64s(rows, |r| r.key.nonce),
        optional_text(rows, |r| r.job_system.as_deref()),
        optional_text(rows, |r| r.job_step.as_deref()),
        optional_text(rows, |r| r.user.as_deref()),
        optional_text(rows, |r| r.cgroup.as_deref()),
        optional_text(rows, |r| r.block_sizes.as_deref()),
        Arc::new(UInt32Array::from_iter(rows.iter().map(|r| r.world_size))),
    ];
    schema::batch(Table::Processes, columns)
}

/// Returns rows of `threads`.
///
/// # Errors
/// Never for valid input.
pub fn threads(rows: &[ThreadRow]) -> Result<RecordBatch, ArrowError> {
    let columns = vec![
        u64s(rows, |r| r.stream.0),
        u64s(rows, |r| r.process.0),
        text(rows, |r| &r.node),
        u32s(rows, |r| r.pid),
        u32s(rows, |r| r.tid),
        u32s(rows, |r| r.lane),
        u32s(rows, |r| r.incarnation),
        text(rows, |r| &r.comm),
    ];
    schema::batch(Table::Threads, columns)
}

/// Returns rows of `files`; `name` returns the name of a node.
///
/// # Errors
/// Never for valid input.
pub fn files<'a>(
    rows: &'a [FileRow<'a>],
    name: impl Fn(NodeId) -> &'a str,
) -> Result<RecordBatch, ArrowError> {
    let paths: Vec<_> = rows.iter().map(|r| escape::path(&r.path)).collect();
    let columns: Vec<ArrayRef> = vec![
        u64s(rows, |r| r.file),
        text(rows, |r| name(r.node)),
        Arc::new(StringArray::from_iter_values(paths.iter().map(|(text, _)| text))),
        Arc::new(BinaryArray::from_iter(paths.iter().map(|(_, raw)| *raw))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.record.map(|record| record.stream.0)))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.record.map(|record| record.attempt)))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.record.map(|record| record.handle)))),
    ];
    schema::batch(Table::Files, columns)
}

/// Returns rows of `losses`.
///
/// # Errors
/// Never for valid input.
pub fn losses(rows: &[LossRow]) -> Result<RecordBatch, ArrowError> {
    let columns: Vec<ArrayRef> = vec![
        times(rows, |r| r.time),
        text(rows, |r| &r.node),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.process.map(|id| id.0)))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.stream.map(|id| id.0)))),
        text(rows, |r| r.place),
        u64s(rows, |r| r.count),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.range.map(|(first, _)| first)))),
        Arc::new(UInt64Array::from_iter(rows.iter().map(|r| r.range.map(|(_, last)| last)))),
    ];
    schema::batch(Table::Losses, columns)
}

/// A row of `devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// End of the interval, nanoseconds since 1970.
    pub time: i64,
    /// Name of the node.
    pub node: String,
    /// Length of the interval, nanoseconds.
    pub interval: u64,
    /// Boot id of the node, in the format of the trace.
    pub boot: String,
    /// Nanoseconds since that boot.
    pub uptime: u64,
    /// The device and its counters.
    pub device: wire::Device,
}

/// Returns rows of `devices`.
///
/// # Errors
/// Never for valid input.
pub fn devices(rows: &[DeviceRow]) -> Result<RecordBatch, ArrowError> {
    let count = |value: fn(&wire::DeviceCounters) -> Option<u64>| {
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
    schema::batch(Table::Devices, columns)
}

/// Returns rows of `clocks` about one node.
///
/// # Errors
/// Never for valid input.
pub fn clocks(rows: &[(&str, Correction)]) -> Result<RecordBatch, ArrowError> {
    let i64s = |value: fn(&Correction) -> i64| {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(_, row)| value(row)))) as ArrayRef
    };
    let columns = vec![
        times(rows, |(_, r)| r.piece.time),
        text(rows, |(node, _)| node),
        i64s(|r| r.piece.offset),
        i64s(|r| r.uncertainty),
        i64s(|r| r.round_trip),
        i64s(|r| r.piece.drift),
        text(rows, |(_, r)| r.reason.name()),
        i64s(|r| r.estimated_error),
    ];
    schema::batch(Table::Clocks, columns)
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

fn optional_text<'a, R>(rows: &'a [R], value: impl Fn(&'a R) -> Option<&'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter(rows.iter().map(value)))
}

/// Converts NUL-separated arguments to a shell command line.
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
    fn command_line_is_quoted_for_a_shell() {
        assert_eq!(
            command_line(b"dd\0if=/dev/zero\0of=a b\0\0it's\0"),
            r"dd if=/dev/zero 'of=a b' '' 'it'\''s'"
        );
        assert_eq!(command_line(b"ls\0"), "ls");
        assert_eq!(command_line(b"a\xff\0"), r"'a\xff'");
        assert_eq!(command_line(b""), "");
    }
}
