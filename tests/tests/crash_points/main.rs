//! The log-server is stopped at any step: killed at a system call, or with its machine. The trace
//! has all acknowledged batches and is readable at once, and the next server continues it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod kill;
mod peer;
mod power;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use miot_tests::test_dir::fresh;
use miot_trace_store::{Reader, Table, fsck};
use peer::Plan;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of tries: from the environment, or the number that is feasible on every change.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| if text == "all" { usize::MAX } else { text.parse().unwrap() })
}

/// Creates a directory of the test below the target directory.
fn place(name: &str) -> PathBuf {
    fresh(&format!("crash-points/{name}"))
}

/// A log-server that seals parts, and removes old ones, after a few batches.
fn server(mut command: Command, port: u16, trace: &Path) -> Command {
    command.arg("--listen").arg(format!("127.0.0.1:{port}")).arg("--trace").arg(trace);
    command.env("MIOT_SERVER_LOG", "error");
    for (key, value) in [
        ("SEAL_ROWS", "24"),
        ("KEEP_BYTES", "12 KiB"),
        ("MERGE_EVERY", "1ms"),
        ("COMMIT_EVERY", "1ms"),
        ("SILENT_AFTER", "60s"),
    ] {
        command.env(format!("MIOT_SERVER_{key}"), value);
    }
    command
}

/// Checks a trace after a crash, or at the end. Every row of the plan up to the end of its stream
/// is there once and in its place, unless it was removed with its part. At least the first `acked`
/// batches are complete.
#[track_caller]
fn judge(trace: &Path, plan: &Plan, acked: usize, what: &str) {
    if acked == 0 && !trace.join("miot-trace.json").exists() {
        return;
    }
    let report = fsck::check(trace);
    // A torn end may look like a damaged message. No other damage is permitted.
    let torn = |problem: &fsck::Problem| problem.text.contains("bytes are no message");
    assert!(report.problems.iter().all(torn), "{what}: {report}");
    let reader = Reader::open(trace).unwrap();
    let mut found: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for batch in reader.rows().unwrap() {
        let batch = batch.unwrap();
        let tids = miot_trace_store::schema::column::<UInt32Type>(&batch, "tid").unwrap();
        let seqs = miot_trace_store::schema::column::<UInt64Type>(&batch, "seq").unwrap();
        let paths = batch.column_by_name("path").unwrap().as_string::<i32>();
        for row in 0..batch.num_rows() {
            let (tid, seq) = (tids.value(row), seqs.value(row));
            assert_eq!(Some(paths.value(row)), plan.path(tid, seq).as_deref(), "{what}: {tid} {seq}");
            found.entry(tid).or_default().push(seq);
        }
    }
    let mut ends = HashMap::new();
    let mut rows = 0;
    for (tid, seqs) in &found {
        assert!(seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{what}: thread {tid}: {seqs:?}");
        rows += seqs.len() as u64;
        ends.insert(*tid, seqs.last().unwrap() + 1);
    }
    for (tid, end) in plan.ends(acked) {
        // A whole stream may have been removed.
        if let Some(found) = ends.get(&tid) {
            assert!(*found >= end, "{what}: thread {tid} has {found} of {end} rows that were acknowledged");
        }
    }
    let all: u64 = plan.ends(acked).values().sum();
    let removed = reader.removed().unwrap().events;
    assert!(rows + removed >= all, "{what}: {rows} rows and {removed} removed ones of {all}");
    let losses: usize = reader.table(Table::Losses).unwrap().iter().map(|batch| batch.num_rows()).sum();
    assert_eq!(losses, 0, "{what}: nothing was lost");
}

/// A new server continues with the remaining trace, and the node with its remaining batches.
fn go_on(trace: &Path, plan: &Plan, acked: usize, what: &str) {
    let port = miot_tests::daemons::free_port();
    let mut command = server(Command::new(&miot_tests::built::built().log_server), port, trace);
    let mut server = miot_tests::process::Background::start(&mut command);
    let reached = peer::run(plan, acked, port, || server.running());
    let printed = server.end();
    assert_eq!(reached, plan.batches.len(), "{what}: not everything was acknowledged\n{printed}");
    judge(trace, plan, reached, what);
    let report = fsck::check(trace);
    assert!(report.is_good() && report.to_string().contains("complete,"), "{what}: {report}");
    let reader = Reader::open(trace).unwrap();
    let rows: u64 = reader.count(Table::Events).unwrap().values().sum();
    let all: u64 = plan.ends(reached).values().sum();
    assert_eq!(rows + reader.removed().unwrap().events, all, "{what}: each row once, there or removed");
}
