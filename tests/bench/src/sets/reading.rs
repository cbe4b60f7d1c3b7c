//! Rows per second of four traces, beside one trace with the same rows.

use super::{MOST, Set, check, joined};
use crate::fleet::{Fleet, Plan};
use crate::pattern::Pattern;
use crate::stats::{Summary, median_with_interval};
use crate::{Bench, daemons, process};
use anyhow::{Context as _, Result, ensure};
use arrow_array::RecordBatch;
use arrow_array::types::{TimestampNanosecondType, UInt32Type, UInt64Type};
use miot_trace_store::set::SetState;
use miot_trace_store::{Reader, Select, schema};
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Nodes of each log-server, and events of a batch.
const NODES: u64 = 16;
const ROWS: u64 = 1024;

/// Number of rows in the output of a command.
type CountRows = fn(&mut dyn Read) -> Result<u64>;

/// Commands, the trace follows the words.
const COMMANDS: [(&str, &[&str], CountRows); 2] =
    [("cat", &["cat"], lines), ("stat", &["stat", "--format", "json"], total)];

/// Resources of one run of a command.
struct Reading {
    seconds: f64,
    cpu: f64,
}

pub(super) fn run(bench: &Bench) -> Result<Value> {
    let dir = bench.disk.path().join("reading");
    let per_server = bench.pick(2_000_000, 400_000, NODES * ROWS);
    let batches = per_server / NODES / ROWS;
    let plan = Plan { pattern: Pattern::Mixed, nodes: NODES * MOST as u64, streams: 1, rows: ROWS, batches };
    let (traces, one) = record(&dir, plan)?;
    println!("{:8} {:>10} {:>12} {:>12} {:>8}", "reading", "rows", "4 traces/s", "1 trace/s", "ratio");
    let mut rows = Vec::new();
    for (name, words, count) in COMMANDS {
        let measure = |trace: &str| measure(words, trace, count, plan.events());
        let (set, whole) = (joined(&traces), one.display().to_string());
        let mut pairs = Vec::new();
        for round in 0..=bench.pick(9, 3, 1) {
            let pair = if round % 2 == 0 {
                let first = measure(&set)?;
                (first, measure(&whole)?)
            } else {
                let first = measure(&whole)?;
                (measure(&set)?, first)
            };
            // The first repetition warms the page cache.
            if round > 0 {
                pairs.push(pair);
            }
        }
        rows.push(row(name, plan.events(), &pairs));
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(Value::Array(rows))
}

/// Records a set and compacts it. Returns the traces of the set, and the one of both with the same
/// rows.
fn record(dir: &Path, plan: Plan) -> Result<(Vec<PathBuf>, PathBuf)> {
    let set = Set::start(dir, MOST)?;
    let traces = set.traces();
    Fleet::build(plan).ship_to_set(&set.addresses(), |_| Ok(()))?;
    set.stop()?;
    check(&traces, plan)?;
    let one = dir.join("one");
    let mut compact = Command::new(daemons::built("miot")?);
    process::said(compact.arg("compact").arg(joined(&traces)).arg("-o").arg(&one))?;
    let state = SetState::examine(&traces)?;
    let (of_set, of_one) = (Reader::of_set(&state, |dir| Reader::open(dir))?, Reader::open(&one)?);
    let (mut of_set, mut of_one, mut rows) = (keys(&of_set)?, keys(&of_one)?, 0);
    loop {
        let pair = (of_set.next().transpose()?, of_one.next().transpose()?);
        ensure!(pair.0 == pair.1, "row {rows} of the set and of the compacted trace differ: {pair:?}");
        if pair.0.is_none() {
            break;
        }
        rows += 1;
    }
    ensure!(rows == plan.events(), "{rows} rows of {} events", plan.events());
    Ok((traces, one))
}

/// Time, process and number of an event.
type Key = (i64, u32, u64);

/// Returns the keys of all events, in order.
fn keys(reader: &Reader) -> Result<impl Iterator<Item = Result<Key>>> {
    let batches = reader.scan(&Select::columns(&["time", "pid", "seq"]))?;
    Ok(batches.flat_map(|batch| match batch.map_err(Into::into).and_then(|batch| keys_of(&batch)) {
        Ok(keys) => keys.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }))
}

fn keys_of(batch: &RecordBatch) -> Result<Vec<Key>> {
    let times = schema::column::<TimestampNanosecondType>(batch, "time").context("no column `time`")?;
    let pids = schema::column::<UInt32Type>(batch, "pid").context("no column `pid`")?;
    let numbers = schema::column::<UInt64Type>(batch, "seq").context("no column `seq`")?;
    let keys = times.values().iter().zip(pids.values()).zip(numbers.values());
    Ok(keys.map(|((time, pid), number)| (*time, *pid, *number)).collect())
}

/// Runs a command and checks the number of rows that it has read.
fn measure(words: &[&str], trace: &str, count: CountRows, expected: u64) -> Result<Reading> {
    let mut command = Command::new(daemons::built("miot")?);
    command.args(words).arg(trace).stdin(Stdio::null()).stdout(Stdio::piped());
    let started = Instant::now();
    let mut child = process::ends_with_us(&mut command).spawn().context("miot")?;
    let counted = count(&mut child.stdout.take().context("no pipe")?);
    let usage = process::wait_for(&mut child)?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(usage.success, "{command:?} ended with an error: {usage:?}");
    let found = counted?;
    ensure!(found == expected, "{command:?} has read {found} rows of {expected}");
    Ok(Reading { seconds, cpu: usage.cpu })
}

/// One line per row.
fn lines(output: &mut dyn Read) -> Result<u64> {
    let (mut chunk, mut lines) = (vec![0; 1 << 16], 0);
    loop {
        match output.read(&mut chunk)? {
            0 => return Ok(lines),
            read => lines += chunk[..read].iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
}

/// The number of events in a summary.
fn total(output: &mut dyn Read) -> Result<u64> {
    let summary: Value = serde_json::from_reader(output)?;
    summary["totals"]["events"].as_u64().context("no number of events in the summary")
}

fn row(command: &str, events: u64, pairs: &[(Reading, Reading)]) -> Value {
    let ratios: Vec<f64> = pairs.iter().map(|(set, one)| one.seconds / set.seconds).collect();
    let ratio = median_with_interval(&ratios);
    let median = |of: &dyn Fn(&(Reading, Reading)) -> f64| Summary::of(pairs.iter().map(of).collect()).median;
    let per_s = |seconds: f64| events as f64 / seconds;
    let (set, one) = (per_s(median(&|pair| pair.0.seconds)), per_s(median(&|pair| pair.1.seconds)));
    println!("{command:8} {events:10} {set:12.0} {one:12.0} {:8.2}", ratio.median);
    json!({
        "command": command, "rows": events, "set_per_s": set, "one_per_s": one, "ratio": ratio,
        "set_ns": median(&|pair| pair.0.cpu) * 1e9 / events as f64,
        "one_ns": median(&|pair| pair.1.cpu) * 1e9 / events as f64,
    })
}
