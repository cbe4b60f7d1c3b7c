//! Controlling a running node. Changed settings apply to running programs exactly from the first
//! request after `miot ctl`. The numbers of filtered, lost and kept events add up.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bell;
mod choice;
mod full;
mod in_flight;
mod who;

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use miot_tests::built::built;
use miot_tests::daemons::preloaded;
use miot_tests::node::Node;
use miot_tests::process::run;
use miot_tests::steered::Steered;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_trace_store::{Reader, Table};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bit 3 of the flags: interrupted by the end of the thread or process.
const INTERRUPTED: u64 = 1 << 3;
/// Bit 7: arrived after its time had been merged.
const LATE: u64 = 1 << 7;

struct ControlDirs {
    /// Directory on disk.
    path: PathBuf,
    /// Directory in shared memory, removed with the test.
    shared: tempfile::TempDir,
}

impl ControlDirs {
    fn new(name: &str) -> ControlDirs {
        let path = fresh(&format!("control-{name}"));
        ControlDirs { path, shared: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    fn node(&self) -> Node {
        Node::start(&self.path, self.shared.path())
    }

    /// Starts the program `steered` with the hook.
    fn hooked(&self, node: &Node) -> Steered {
        let mut command = preloaded(env!("CARGO_BIN_EXE_steered"), &node.dir);
        Steered::start(command.arg(self.path.join("data")))
    }

    /// Starts the program `steered` without the hook, as a client that records its own requests.
    fn own(&self, node: &Node) -> Steered {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steered"));
        Steered::start(command.env(miot_proto::control::DIR_ENV, &node.dir).arg(self.path.join("data")))
    }
}

/// A row of the table `losses`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Loss {
    place: String,
    stream: u64,
    count: u64,
    range: Option<(u64, u64)>,
}

fn losses(trace: &Path) -> Vec<Loss> {
    let mut losses = Vec::new();
    for batch in Reader::open(trace).unwrap().table(Table::Losses).unwrap() {
        let number = |name: &str| miot_trace_store::schema::column::<UInt64Type>(&batch, name).unwrap();
        let (stream, count) = (number("stream"), number("count"));
        let (first, last) = (number("first_seq"), number("last_seq"));
        let places = batch.column_by_name("place").unwrap().as_string::<i32>();
        losses.extend((0..batch.num_rows()).map(|row| Loss {
            place: places.value(row).to_owned(),
            stream: stream.value(row),
            count: count.value(row),
            range: first.is_valid(row).then(|| (first.value(row), last.value(row))),
        }));
    }
    losses
}

/// Totals of `miot stat --format json` on a trace.
fn totals(trace: &Path) -> HashMap<String, Value> {
    let stat = run(Command::new(&built().miot).args(["stat", "--format", "json"]).arg(trace)).success();
    let report: Value = serde_json::from_str(&stat.stdout).unwrap();
    report["totals"].as_object().unwrap().clone().into_iter().collect()
}

/// Offsets of the events of an operation, in stored order.
fn offsets(rows: &[PrintedEvent], layer: &str, op: &str) -> Vec<i64> {
    let of = rows.iter().filter(|row| (row.layer.as_str(), row.op.as_str()) == (layer, op));
    of.map(|row| row.offset.unwrap()).collect()
}

fn own(rows: &[PrintedEvent]) -> Vec<i64> {
    offsets(rows, "client", "read")
}

/// Numbers of half-open ranges.
fn numbers(ranges: &[(i64, i64)]) -> Vec<i64> {
    ranges.iter().flat_map(|(from, to)| *from..*to).collect()
}

/// Runs `miot ctl` on a directory. Returns its exit code and its standard error.
fn refused(dir: &Path, words: &[&str]) -> (i32, String) {
    let ended = run(Command::new(&built().miot).arg("ctl").args(words).arg("--dir").arg(dir));
    (ended.code(), ended.stderr)
}
