//! The summary of a trace with known rows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use miot_proto::event::flag;
use miot_trace_analysis::{Report, Summary};
use miot_trace_events::testing::{EventValues, batch, row};
use miot_trace_store::{FileNames, schema};
use std::sync::Arc;

fn names() -> FileNames {
    let mut names = FileNames::default();
    names.put(1, "/a");
    names.put(2, "/b");
    names
}

fn summary(batches: &[&[EventValues]]) -> Report {
    let mut summary = Summary::new();
    batches.iter().for_each(|rows| summary.add(&batch(rows)));
    summary.finish(&names(), &[], 10)
}

#[test]
fn a_small_trace_adds_up() {
    let mut other = row("write", 2, 50, 2000, 100);
    (other.process, other.tid) = (2, 20);
    let first =
        [row("open", 1, 3, 1000, 500), row("read", 1, 4096, 1600, 300), row("read", 1, -5, 1700, 100)];
    let report = summary(&[&first, &[row("read", 1, 0, 1900, 20), other]]);
    let totals = report.totals;
    assert_eq!(
        (totals.events, totals.requests, totals.processes, totals.threads, totals.files),
        (5, 5, 2, 2, 2)
    );
    assert_eq!((totals.bytes_read, totals.bytes_written, totals.time), (4096, 50, 1020));
    assert_eq!((totals.begin, totals.end, totals.wall), (1000, 2100, 1100));
    let ops: Vec<_> = report
        .operations
        .iter()
        .map(|o| (o.op.as_str(), o.count, o.failed, o.bytes, o.time, o.max))
        .collect();
    assert_eq!(
        ops,
        [("open", 1, 0, 0, 500, 500), ("read", 3, 1, 4096, 420, 300), ("write", 1, 0, 50, 100, 100)]
    );
    assert_eq!(
        (report.operations[1].mean, report.operations[1].p50, report.operations[1].p99),
        (140.0, 100, 300)
    );
    let file = &report.files[0];
    assert_eq!(
        (file.path.as_str(), file.requests, file.opens, file.reads, file.bytes_read),
        ("/a", 4, 1, 3, 4096)
    );
    assert_eq!(
        report.processes.iter().map(|p| (p.pid, p.time)).collect::<Vec<_>>(),
        [(101, 920), (102, 100)]
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["operations"][1]["class"], "read");
}

#[test]
fn files_are_counted_by_path() {
    let mut names = names();
    // The same path on another node, or used again after a million other paths.
    names.put(3, "/a");
    let mut summary = Summary::new();
    let rows = [row("read", 1, 10, 1000, 100), row("read", 3, 5, 1100, 50), row("write", 2, 1, 1200, 10)];
    summary.add(&batch(&rows));
    // Files without a known path cannot be identified with each other.
    summary.add(&batch(&[row("read", 8, 1, 1300, 1), row("read", 9, 1, 1400, 1)]));
    let report = summary.finish(&names, &[], 10);
    assert_eq!(report.totals.files, 4);
    let first = &report.files[0];
    assert_eq!((first.file, first.path.as_str(), first.requests, first.bytes_read), (1, "/a", 2, 15));
}

#[test]
fn child_requests_count_in_their_operation_only() {
    let mut outer = row("fwrite", 1, 100, 1000, 500);
    outer.layer = "stdio";
    let mut inner = row("write", 1, 4096, 1100, 300);
    inner.enclosing = Some(1);
    let report = summary(&[&[inner, outer]]);
    assert_eq!((report.totals.events, report.totals.requests, report.totals.bytes_written), (2, 1, 100));
    assert_eq!((report.totals.time, report.files[0].writes, report.processes[0].time), (500, 1, 500));
    assert_eq!(report.operations.iter().map(|o| o.bytes).sum::<u64>(), 4196);
}

#[test]
fn served_requests_count_in_their_operation_only() {
    let own = row("write", 1, 100, 1000, 500);
    let served = |caller, begin| EventValues {
        layer: "fuse",
        process: 2,
        tid: 77,
        caller: Some(caller),
        ..row("write", 1, 100, begin, 10)
    };
    let report = summary(&[&[own, served(10, 2000), served(99, 3000)]]);
    assert_eq!((report.totals.events, report.totals.requests, report.totals.bytes_written), (3, 2, 200));
}

#[test]
fn a_copy_reads_one_file_and_writes_the_other() {
    let mut copy = row("copy_file_range", 1, 700, 0, 10);
    copy.file2 = Some(2);
    let report = summary(&[&[copy]]);
    assert_eq!((report.totals.bytes_read, report.totals.bytes_written), (700, 700));
    let moved: Vec<_> =
        report.files.iter().map(|f| (f.path.as_str(), f.bytes_read, f.bytes_written)).collect();
    assert_eq!(moved, [("/a", 0, 700), ("/b", 700, 0)]);
}

#[test]
fn batches_may_number_their_names_differently() {
    let (a, b) = (
        [row("read", 1, 1, 0, 1), row("write", 1, 1, 0, 1)],
        [row("write", 1, 1, 0, 1), row("4:250", 1, 9, 0, 1)],
    );
    let report = summary(&[&a, &b]);
    let mut ops: Vec<_> = report.operations.iter().map(|o| (o.op.as_str(), o.count, o.bytes)).collect();
    ops.sort_unstable();
    assert_eq!(ops, [("4:250", 1, 0), ("read", 1, 1), ("write", 2, 2)]);
}

#[test]
fn losses_and_processes_are_reported() {
    let losses = |place: &str, count| {
        let columns: [(&str, ArrayRef); 2] = [
            ("place", Arc::new(StringArray::from(vec![place]))),
            ("count", Arc::new(UInt64Array::from(vec![count]))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let columns: [(&str, ArrayRef); 4] = [
        ("process", Arc::new(UInt64Array::from(vec![1]))),
        ("rank", Arc::new(UInt32Array::from(vec![Some(7)]))),
        ("node", Arc::new(StringArray::from(vec!["n1"]))),
        ("cmdline", Arc::new(StringArray::from(vec!["cp a b"]))),
    ];
    let processes = RecordBatch::try_from_iter(columns).unwrap();
    let mut summary = Summary::new();
    summary.add(&batch(&[row("read", 1, 1, 0, 1)]));
    [("lane_full", 5), ("no_lane", 1), ("lane_full", 2), (schema::FILTERED, 100)]
        .iter()
        .for_each(|(p, c)| summary.add_losses(&losses(p, *c)));
    let report = summary.finish(&FileNames::default(), &[processes], 0);
    assert_eq!((report.totals.lost, report.totals.filtered), (8, 100));
    let losses = report.losses.iter().map(|loss| (loss.place.as_str(), loss.times, loss.count));
    assert_eq!(losses.collect::<Vec<_>>(), [("filtered", 1, 100), ("lane_full", 2, 7), ("no_lane", 1, 1)]);
    let process = &report.processes[0];
    assert_eq!((process.node.as_str(), process.rank, process.cmdline.as_str()), ("n1", Some(7), "cp a b"));
    assert_eq!((report.files.len(), report.totals.files), (0, 1));
}

#[test]
fn interrupted_requests_count_as_interrupted_and_failed() {
    let cut_off = EventValues { flags: flag::INTERRUPTED | flag::APPEND, ..row("read", 1, -4, 0, 9) };
    let report = summary(&[&[cut_off, EventValues { flags: flag::APPEND, ..row("read", 1, -4, 0, 9) }]]);
    assert_eq!((report.totals.events, report.totals.interrupted, report.operations[0].failed), (2, 1, 2));
}

#[test]
fn an_empty_trace_is_all_zero() {
    let report = summary(&[]);
    assert_eq!(report.totals, Default::default());
    assert!(report.operations.is_empty());
}
