//! The result of a summary.

use super::{Operation, Process, Summary, Tally};
use crate::{column, text};
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use miot_proto::op::Layer;
use miot_trace_store::FileNames;
use miot_trace_store::schema::{FILTERED, is_loss};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Summary of a trace. Times are in nanoseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Totals of the whole trace.
    pub totals: Totals,
    /// Operations, the one with the most time first; regions and notes of programs last.
    pub operations: Vec<OperationRow>,
    /// Files, the one with the most time first.
    pub files: Vec<FileRow>,
    /// Processes, the one with the most time first.
    pub processes: Vec<ProcessRow>,
    /// Missing events by place, including events filtered on purpose.
    pub losses: Vec<LossRow>,
}

/// Totals of the whole trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Events, including child requests.
    pub events: u64,
    /// Outermost requests.
    pub requests: u64,
    /// Processes with events.
    pub processes: u64,
    /// Threads with events.
    pub threads: u64,
    /// Paths with outermost requests; each file without a known path counts separately.
    pub files: u64,
    /// Bytes read by outermost requests.
    pub bytes_read: u64,
    /// Bytes written by outermost requests.
    pub bytes_written: u64,
    /// Begin of the earliest request, nanoseconds since 1970; 0 if there is none.
    pub begin: i64,
    /// End of the latest request, nanoseconds since 1970; 0 if there is none.
    pub end: i64,
    /// Time from `begin` to `end`.
    pub wall: u64,
    /// Sum of the durations of outermost requests; more than `wall` if they overlap.
    pub time: u64,
    /// Events lost.
    pub lost: u64,
    /// Requests filtered on purpose, because they were too short or not in the sample. They are not
    /// losses.
    pub filtered: u64,
    /// Events of requests that never completed, because their thread or process ended during them.
    pub interrupted: u64,
    /// Events whose time is not their completion time: that time would have violated the order of
    /// their stream or the watermark of their node, or was in the future.
    pub times_moved: u64,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationRow {
    /// Layer.
    pub layer: String,
    /// Operation.
    pub op: String,
    /// Class of the operation (`read`, `write`, `copy`, `sync`, `meta`).
    pub class: &'static str,
    /// Events.
    pub count: u64,
    /// Events with a negative result.
    pub failed: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Sum of durations.
    pub time: u64,
    /// Mean duration.
    pub mean: f64,
    /// Median duration, to two digits.
    pub p50: u64,
    /// 99th percentile of durations, to two digits.
    pub p99: u64,
    /// Longest duration.
    pub max: u64,
}

/// One file. Counts outermost requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileRow {
    /// Id of the file in the trace.
    pub file: u64,
    /// Path; empty if the trace does not contain it.
    pub path: String,
    /// Requests.
    pub requests: u64,
    /// Requests that opened the file.
    pub opens: u64,
    /// Requests that read the file.
    pub reads: u64,
    /// Requests that wrote the file.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Sum of durations.
    pub time: u64,
}

/// One process. Counts outermost requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessRow {
    /// Id of the process in the trace.
    pub process: u64,
    /// Name of the node; empty if the trace does not contain it.
    pub node: String,
    /// Process id on the node.
    pub pid: u32,
    /// MPI rank.
    pub rank: Option<u32>,
    /// Command line; empty if the trace does not contain it.
    pub cmdline: String,
    /// Requests.
    pub requests: u64,
    /// Requests that opened a file.
    pub opens: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Sum of durations.
    pub time: u64,
}

/// Missing events of one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LossRow {
    /// Place: see `losses` in [`miot_trace_store::schema`].
    pub place: String,
    /// Number of occurrences.
    pub times: u64,
    /// Events lost.
    pub count: u64,
}

pub(super) fn finish(summary: Summary, names: &FileNames, processes: &[RecordBatch], top: usize) -> Report {
    let (begin, end) = (summary.first.unwrap_or(0), summary.last.unwrap_or(0));
    let losses: Vec<LossRow> =
        summary.losses.into_iter().map(|(place, (times, count))| LossRow { place, times, count }).collect();
    let (filtered, lost) =
        losses.iter().fold((0u64, 0u64), |(filtered, lost), row| match row.place.as_str() {
            FILTERED => (filtered.saturating_add(row.count), lost),
            place if !is_loss(place) => (filtered, lost),
            _ => (filtered, lost.saturating_add(row.count)),
        });
    let operations = summary.operations;
    let mut by_operation: Vec<OperationRow> = summary
        .by_operation
        .into_iter()
        .enumerate()
        .filter(|(_, operation)| operation.count > 0)
        .map(|(number, operation)| operation_row(operations.get(number), &operation))
        .collect();
    by_operation.sort_by(|a, b| (b.time, b.count, &a.layer, &a.op).cmp(&(a.time, a.count, &b.layer, &b.op)));
    // Regions and notes of programs, which are no requests, come last.
    by_operation.sort_by_key(|row| row.layer == Layer::App.name());
    let mut files = by_path(summary.by_file.into_sorted().filter(|(_, tally)| tally.requests > 0), names);
    let file_count = files.len() as u64;
    files.sort_by_key(|(id, t)| (Reverse(t.time), *id));
    files.truncate(top);
    let facts = facts(processes);
    let mut by_process: Vec<ProcessRow> = summary
        .by_process
        .into_sorted()
        .filter(|(_, process)| process.events > 0)
        .map(|(id, process)| process_row(id, &process, facts.get(&id)))
        .collect();
    by_process.sort_by_key(|row| (Reverse(row.time), row.process));
    Report {
        totals: Totals {
            events: summary.events,
            requests: summary.total.requests,
            processes: by_process.len() as u64,
            threads: summary.threads.len() as u64,
            files: file_count,
            bytes_read: summary.total.bytes_read,
            bytes_written: summary.total.bytes_written,
            begin,
            end,
            wall: end.abs_diff(begin),
            time: summary.total.time,
            lost,
            filtered,
            interrupted: summary.interrupted,
            times_moved: summary.moved,
        },
        operations: by_operation,
        files: files.into_iter().map(|(id, tally)| file_row(id, &tally, names)).collect(),
        processes: by_process,
        losses,
    }
}

/// Merges ids with the same path into one file, under the first id. The same path on another node
/// has another id, and so has a path that was used again after many others
/// ([`miot_trace_store::schema`]).
fn by_path(files: impl Iterator<Item = (u64, Tally)>, names: &FileNames) -> Vec<(u64, Tally)> {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut paths: Vec<(u64, Tally)> = Vec::new();
    for (file, tally) in files {
        let number = names.get(file).map_or(paths.len(), |path| *numbers.entry(path).or_insert(paths.len()));
        match paths.get_mut(number) {
            Some((_, sum)) => sum.merge(&tally),
            None => paths.push((file, tally)),
        }
    }
    paths
}

fn operation_row(
    named: &miot_trace_events::operations::NamedOperation,
    operation: &Operation,
) -> OperationRow {
    let quantile = |q: f64| {
        let value = operation.durations.as_ref().map_or(0, |d| d.value_at_quantile(q));
        value.min(operation.longest)
    };
    OperationRow {
        layer: named.layer.clone(),
        op: named.op.clone(),
        class: named.info.map_or("meta", |i| i.class.name()),
        count: operation.count,
        failed: operation.failed,
        bytes: operation.bytes,
        time: operation.time,
        mean: operation.time as f64 / operation.count as f64,
        p50: quantile(0.5),
        p99: quantile(0.99),
        max: operation.longest,
    }
}

fn file_row(file: u64, tally: &Tally, names: &FileNames) -> FileRow {
    FileRow {
        file,
        path: names.get(file).unwrap_or_default().to_owned(),
        requests: tally.requests,
        opens: tally.opens,
        reads: tally.reads,
        writes: tally.writes,
        bytes_read: tally.bytes_read,
        bytes_written: tally.bytes_written,
        time: tally.time,
    }
}

#[derive(Default)]
struct Facts {
    node: String,
    rank: Option<u32>,
    cmdline: String,
}

fn process_row(process: u64, found: &Process, facts: Option<&Facts>) -> ProcessRow {
    ProcessRow {
        process,
        node: facts.map(|f| f.node.clone()).unwrap_or_default(),
        pid: found.pid,
        rank: facts.and_then(|f| f.rank),
        cmdline: facts.map(|f| f.cmdline.clone()).unwrap_or_default(),
        requests: found.tally.requests,
        opens: found.tally.opens,
        bytes_read: found.tally.bytes_read,
        bytes_written: found.tally.bytes_written,
        time: found.tally.time,
    }
}

fn facts(processes: &[RecordBatch]) -> HashMap<u64, Facts> {
    let mut facts = HashMap::new();
    for batch in processes {
        let (Some(ids), Some(ranks)) =
            (column::<UInt64Type>(batch, "process"), column::<UInt32Type>(batch, "rank"))
        else {
            continue;
        };
        let (Some(nodes), Some(cmdlines)) = (text(batch, "node"), text(batch, "cmdline")) else { continue };
        facts.extend((0..batch.num_rows()).map(|row| {
            let rank = ranks.is_valid(row).then(|| ranks.value(row));
            let (node, cmdline) = (nodes.value(row).to_owned(), cmdlines.value(row).to_owned());
            (ids.value(row), Facts { node, rank, cmdline })
        }));
    }
    facts
}
