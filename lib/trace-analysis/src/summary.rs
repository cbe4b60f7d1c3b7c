//! Summary of a trace: totals, and figures of each operation, file and process.
//!
//! Child requests (e.g. a POSIX write of an MPI-IO write) are in the row of their own operation.
//! Totals, files and processes count only outermost requests, so that no byte and no nanosecond is
//! counted twice, and no annotations of the application. A request that a file-system client served
//! for a traced thread is not an outermost request either.

mod report;

pub use report::{FileRow, LossRow, OperationRow, ProcessRow, Report, Totals};

use crate::{column, text};
use arrow_array::RecordBatch;
use arrow_array::types::UInt64Type;
use hdrhistogram::Histogram;
use miot_proto::event::flag;
use miot_proto::op::{Layer, OpClass, ResultMeaning};
use miot_trace_events::operations::{BatchOperations, OperationTable};
use miot_trace_events::{ById, EventColumns, IdSet, NodeNumbers};
use miot_trace_store::FileNames;
use std::collections::{BTreeMap, HashSet};

/// Required columns of events.
pub const COLUMNS: &[&str] = &[
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
    "result",
    "flags",
    "stream",
    "enclosing",
    "caller_tid",
];

/// Maximum duration of the histogram: 1 hour. Longer durations count as this one.
const LONGEST: u64 = 3_600_000_000_000;
/// Significant digits of percentiles.
const DIGITS: u8 = 2;

/// Sums of bytes, requests and durations.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    requests: u64,
    opens: u64,
    reads: u64,
    writes: u64,
    bytes_read: u64,
    bytes_written: u64,
    time: u64,
}

impl Tally {
    fn add(&mut self, request: &RequestTally, duration: u64) {
        self.requests += 1;
        self.opens += u64::from(request.opens);
        self.reads += u64::from(request.class == OpClass::Read);
        self.writes += u64::from(matches!(request.class, OpClass::Write | OpClass::Copy));
        self.bytes_read = self.bytes_read.saturating_add(request.read);
        self.bytes_written = self.bytes_written.saturating_add(request.written);
        self.time = self.time.saturating_add(duration);
    }

    fn merge(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.opens += other.opens;
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.bytes_written = self.bytes_written.saturating_add(other.bytes_written);
        self.time = self.time.saturating_add(other.time);
    }
}

/// One request with the values that a tally needs.
struct RequestTally {
    class: OpClass,
    opens: bool,
    read: u64,
    written: u64,
}

#[derive(Debug)]
struct Operation {
    count: u64,
    failed: u64,
    bytes: u64,
    time: u64,
    longest: u64,
    durations: Option<Histogram<u64>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Process {
    tally: Tally,
    /// Number of events, including child requests.
    events: u64,
    pid: u32,
}

/// Collects a summary. Memory grows with the number of files, streams and processes, not with the
/// number of events.
#[derive(Debug, Default)]
pub struct Summary {
    operations: OperationTable,
    by_operation: Vec<Operation>,
    by_file: ById<Tally>,
    by_process: ById<Process>,
    /// Streams seen, to count threads.
    streams: ById<bool>,
    threads: HashSet<(u64, u32)>,
    /// Pairs of node and thread.
    traced: IdSet<(u32, u32)>,
    nodes: NodeNumbers,
    total: Tally,
    events: u64,
    interrupted: u64,
    /// Number of events whose `time` is not their completion time.
    moved: u64,
    first: Option<i64>,
    last: Option<i64>,
    losses: BTreeMap<String, (u64, u64)>,
}

impl Summary {
    /// Returns an empty summary.
    #[must_use]
    pub fn new() -> Summary {
        Summary::default()
    }

    /// Adds events, in any order. A batch without the columns of events adds nothing.
    pub fn add(&mut self, events: &RecordBatch) {
        let _ = self.try_add(events);
    }

    fn try_add(&mut self, batch: &RecordBatch) -> Option<()> {
        let mut numbers = BatchOperations::of(batch)?;
        let nodes = self.nodes.column(batch)?;
        let columns = EventColumns::of(batch, COLUMNS).ok()?;
        self.events += batch.num_rows() as u64;
        let interrupted =
            columns.flags.values().iter().filter(|flags| **flags & i32::from(flag::INTERRUPTED) != 0);
        self.interrupted += interrupted.count() as u64;
        for row in 0..batch.num_rows() {
            let (end, took) =
                (columns.time.value(row), u64::try_from(columns.duration.value(row)).unwrap_or(0));
            let result = columns.result.value(row);
            let begin = end.saturating_sub_unsigned(took);
            self.first = Some(self.first.map_or(begin, |first| first.min(begin)));
            self.last = Some(self.last.map_or(end, |last| last.max(end)));
            let number = self.operations.number(&mut numbers, row);
            let info = self.operations.get(number).info;
            let mark = info.map_or(flag::MOVED, |info| flag::moved_bit(info.op));
            self.moved += u64::from(columns.flags.value(row) & i32::from(mark) != 0);
            let moved = match info {
                Some(info) if info.result == ResultMeaning::Bytes => u64::try_from(result).unwrap_or(0),
                _ => 0,
            };
            self.operation(number).add(took, result < 0, moved);
            let seen = self.streams.get(columns.stream.value(row));
            if !std::mem::replace(seen, true) {
                self.threads.insert((columns.process.value(row), columns.tid.value(row)));
                self.traced.insert((nodes.number(row), columns.tid.value(row)));
            }
            let owner = self.by_process.get(columns.process.value(row));
            owner.pid = columns.pid.value(row);
            owner.events += 1;
            let is_served = || {
                let caller = columns.caller_tid.get(row);
                caller.is_some_and(|caller| self.traced.contains(&(nodes.number(row), caller)))
            };
            // Annotations of the application are not I/O.
            let is_note = info.is_some_and(|info| info.op.layer == Layer::App as u8);
            if is_note || columns.enclosing.get(row).is_some() || is_served() {
                continue;
            }
            let class = info.map_or(OpClass::Meta, |i| i.class);
            let request = RequestTally {
                class,
                opens: result >= 0
                    && columns.handle.get(row).is_some()
                    && info.is_some_and(|i| {
                        i.result == ResultMeaning::Fd || matches!(i.name, "open" | "create" | "opendir")
                    }),
                read: if matches!(class, OpClass::Read | OpClass::Copy) { moved } else { 0 },
                written: if matches!(class, OpClass::Write | OpClass::Copy) { moved } else { 0 },
            };
            owner.tally.add(&request, took);
            self.total.add(&request, took);
            if let Some(file) = columns.file.get(row) {
                // A copy is a read of one file and a write of the other.
                let read = if class == OpClass::Copy { 0 } else { request.read };
                self.by_file.get(file).add(&RequestTally { read, ..request }, took);
            }
            if let Some(file2) = columns.file2.get(row).filter(|_| class == OpClass::Copy) {
                let source = RequestTally { class: OpClass::Read, opens: false, read: moved, written: 0 };
                self.by_file.get(file2).add(&source, took);
            }
        }
        Some(())
    }

    /// Adds rows of the table `losses`.
    pub fn add_losses(&mut self, losses: &RecordBatch) {
        let (Some(counts), Some(places)) = (column::<UInt64Type>(losses, "count"), text(losses, "place"))
        else {
            return;
        };
        for row in 0..losses.num_rows() {
            let (times, count) = self.losses.entry(places.value(row).to_owned()).or_default();
            *times += 1;
            *count = count.saturating_add(counts.value(row));
        }
    }

    /// Returns the result, with the names of files and the data of processes (batches of the table
    /// `processes`). Rows are ordered by total time; at most `files` files are included.
    #[must_use]
    pub fn finish(self, names: &FileNames, processes: &[RecordBatch], files: usize) -> Report {
        report::finish(self, names, processes, files)
    }

    fn operation(&mut self, number: usize) -> &mut Operation {
        if number >= self.by_operation.len() {
            self.by_operation.resize_with(number + 1, Operation::new);
        }
        &mut self.by_operation[number]
    }
}

impl Operation {
    fn new() -> Operation {
        let durations = Histogram::new_with_bounds(1, LONGEST, DIGITS).ok();
        Operation { count: 0, failed: 0, bytes: 0, time: 0, longest: 0, durations }
    }

    fn add(&mut self, took: u64, failed: bool, bytes: u64) {
        self.count += 1;
        self.failed += u64::from(failed);
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time.saturating_add(took);
        self.longest = self.longest.max(took);
        if let Some(durations) = &mut self.durations {
            durations.saturating_record(took.max(1));
        }
    }
}
