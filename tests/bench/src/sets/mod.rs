//! `sets`: several log-servers of one cluster, and readers of all their traces.
//!
//! *Scaling* compares the events per second of one, two and four log-servers, each with the same
//! small quota of the processors. *Reading* compares `miot cat` and `miot stat` of four traces with
//! those of one trace with the same rows. *Following* is the time from a completion to the line of
//! `miot tail -f` on four log-servers.

mod following;
mod reading;
mod scaling;

use crate::Bench;
use crate::fleet::{FIRST_PID, Plan};
use crate::pipeline::count;
use crate::process::Usage;
use crate::report::{interval, number};
use crate::server::Server;
use anyhow::{Context, Result, bail, ensure};
use arrow_array::types::{UInt32Type, UInt64Type};
use miot_trace_store::{Reader, Select, schema};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Log-servers of the largest set.
const MOST: usize = 4;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let scaling = scaling::run(bench)?;
    let reading = reading::run(bench)?;
    let following = following::run(bench)?;
    Ok(json!({ "scaling": scaling, "reading": reading, "following": following }))
}

/// Running log-servers of one set.
struct Set {
    servers: Vec<Server>,
}

impl Set {
    /// Starts log-servers with their traces below `dir`.
    fn start(dir: &Path, count: usize) -> Result<Set> {
        let start = |partition: usize| {
            let settings = format!("partition = {partition}\ncluster = \"bench\"\nhttp = \"off\"\n");
            Server::start(&dir.join(format!("p{partition}")), &settings)
        };
        Ok(Set { servers: (0..count).map(start).collect::<Result<_>>()? })
    }

    fn addresses(&self) -> Vec<&str> {
        self.servers.iter().map(Server::address).collect()
    }

    /// Trace directories, by partition.
    fn traces(&self) -> Vec<PathBuf> {
        self.servers.iter().map(|server| server.trace().to_path_buf()).collect()
    }

    /// Stops all log-servers at the same time. Everything is sealed when this returns.
    fn stop(self) -> Result<Vec<Usage>> {
        std::thread::scope(|scope| {
            let stopping: Vec<_> =
                self.servers.into_iter().map(|server| scope.spawn(|| server.stop())).collect();
            let ended = stopping.into_iter().map(|thread| match thread.join() {
                Ok(ended) => ended,
                Err(_) => bail!("the thread that stops a log-server has failed"),
            });
            ended.collect()
        })
    }
}

/// Traces of a set, in the form that `miot` takes.
fn joined(traces: &[PathBuf]) -> String {
    traces.iter().map(|trace| trace.display().to_string()).collect::<Vec<_>>().join(",")
}

/// Checks that every event of a plan is in one trace once: in that of the log-server to which its
/// node sends.
fn check(traces: &[PathBuf], plan: Plan) -> Result<()> {
    let of_node = (plan.rows * plan.batches) as usize;
    let mut seen = vec![vec![false; of_node]; plan.nodes as usize];
    for (partition, trace) in traces.iter().enumerate() {
        ensure!(count(trace)?.lost == 0, "{}: events are lost", trace.display());
        for batch in Reader::open(trace)?.scan(&Select::columns(&["pid", "seq"]))? {
            let batch = batch?;
            let pids = schema::column::<UInt32Type>(&batch, "pid").context("no column `pid`")?;
            let numbers = schema::column::<UInt64Type>(&batch, "seq").context("no column `seq`")?;
            for (pid, number) in pids.values().iter().zip(numbers.values()) {
                let node = pid.wrapping_sub(FIRST_PID) as usize;
                let event = seen.get_mut(node).and_then(|node| node.get_mut(*number as usize));
                let is_first = event.map(|event| !std::mem::replace(event, true));
                ensure!(
                    is_first == Some(true) && node % traces.len() == partition,
                    "event {number} of node {node} in partition {partition} is {}",
                    if is_first == Some(false) { "there twice" } else { "unexpected there" }
                );
            }
        }
    }
    let missing: usize = seen.iter().map(|node| node.iter().filter(|seen| !**seen).count()).sum();
    ensure!(missing == 0, "{missing} events of {} are in no trace", plan.events());
    Ok(())
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = scaling_table(&results["scaling"]);
    text.push_str("\n| | rows | 4 traces, M rows/s | one trace, M rows/s | × | 95 % interval | 4 traces, CPU ns per row | one trace, CPU ns per row |\n|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for row in results["reading"].as_array().into_iter().flatten() {
        let millions =
            |key: &str| row[key].as_f64().map_or("–".into(), |rate| format!("{:.2}", rate / 1e6));
        let _ = writeln!(
            text,
            "| `miot {}` | {} | {} | {} | {} | {} | {} | {} |",
            row["command"].as_str().unwrap_or(""),
            row["rows"],
            millions("set_per_s"),
            millions("one_per_s"),
            number(&row["ratio"]["median"], 2),
            interval(&row["ratio"], 2),
            number(&row["set_ns"], 0),
            number(&row["one_ns"], 0),
        );
    }
    text.push_str(
        "\n| completion to `miot tail -f` of 4 log-servers, ms | p50 | p99 | longest |\n|---|--:|--:|--:|\n",
    );
    for row in results["following"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            row["what"].as_str().unwrap_or(""),
            number(&row["p50_ms"], 1),
            number(&row["p99_ms"], 1),
            number(&row["max_ms"], 1)
        );
    }
    text
}

fn scaling_table(results: &Value) -> String {
    if let Some(reason) = results["skipped"].as_str() {
        return format!("Scaling: not measured, {reason}.\n");
    }
    let mut text = format!(
        "Each log-server has {:.0} % of a processor; medians of the rounds.\n\n\
         | log-servers | events | M events/s, durable | × | 95 % interval | M events/s, sealed | × | CPU per event, ns | × | 95 % interval | throttled periods | nodes played, of a processor |\n\
         |--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        results["quota"].as_f64().unwrap_or(0.0) * 100.0
    );
    let percent =
        |value: &Value| value.as_f64().map_or("–".into(), |share| format!("{:.0} %", share * 100.0));
    for row in results["sets"].as_array().into_iter().flatten() {
        let millions =
            |key: &str| row[key].as_f64().map_or("–".into(), |rate| format!("{:.3}", rate / 1e6));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row["servers"],
            row["events"],
            millions("durable_per_s"),
            number(&row["durable_ratio"]["median"], 2),
            interval(&row["durable_ratio"], 2),
            millions("sealed_per_s"),
            number(&row["sealed_ratio"]["median"], 2),
            number(&row["server_ns"], 0),
            number(&row["cost_ratio"]["median"], 2),
            interval(&row["cost_ratio"], 2),
            percent(&row["throttled"]),
            percent(&row["player_share"]),
        );
    }
    text
}
