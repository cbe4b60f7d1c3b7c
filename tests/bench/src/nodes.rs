//! `nodes`: one log-server with 1, 16 and 256 nodes that send at full speed.
//!
//! One thread [simulates](crate::fleet) the nodes and reports its CPU time: it copies prepared
//! frames into sockets. *Durable* is the time to the last acknowledgment, when every event is in
//! the live part, in order, and synced. *Sealed* is the time to the end of the log-server, which
//! seals before it ends. Every run is checked: the trace holds each event, and no loss.

use crate::Bench;
use crate::daemons::folder_bytes;
use crate::fleet::{Fleet, Plan};
use crate::pattern::Pattern;
use crate::pipeline::count;
use crate::report::number;
use crate::server::Server;
use crate::stats::Summary;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Instant;

/// A number of nodes, and what they send.
#[derive(Clone, Copy)]
struct Load {
    nodes: u64,
    /// Events in a batch: with more nodes each batch is smaller.
    rows: u64,
    /// Length of the run, in runs of the other loads.
    length: u64,
}

/// The last load shows whether a longer run keeps the rate.
const LOADS: [Load; 4] = [
    Load { nodes: 1, rows: 4096, length: 1 },
    Load { nodes: 16, rows: 1024, length: 1 },
    Load { nodes: 256, rows: 256, length: 1 },
    Load { nodes: 256, rows: 256, length: 4 },
];

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let events = bench.pick(4_000_000, 1_000_000, 20_000);
    println!(
        "{:28} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7}",
        "nodes",
        "nodes",
        "durable/s",
        "sealed/s",
        "server ns",
        "kernel ns",
        "faults/M",
        "player ns",
        "wire B",
        "live B",
        "final B"
    );
    let mut rows = Vec::new();
    for round in 0..bench.pick(3, 1, 1) {
        let loads =
            [Pattern::Sequential, Pattern::Mixed].into_iter().flat_map(|p| LOADS.map(|load| (p, load)));
        let others = [Pattern::Ior, Pattern::Metadata].map(|pattern| (pattern, LOADS[1]));
        for (pattern, Load { nodes, rows: per_batch, length }) in loads.chain(others) {
            let batches = (events * length / nodes / per_batch).max(1);
            let plan = Plan { pattern, nodes, streams: 1, rows: per_batch, batches };
            rows.push(measure(bench, plan, round)?);
        }
    }
    Ok(Value::Array(rows))
}

fn measure(bench: &Bench, plan: Plan, round: usize) -> Result<Value> {
    let fleet = Fleet::build(plan);
    let dir = bench.disk.path().join("nodes");
    let server = Server::start(&dir, "")?;
    let started = Instant::now();
    let shipped = fleet.ship(server.address())?;
    let (trace, live) = (server.trace().to_path_buf(), folder_bytes(&server.trace().join("live")));
    let usage = server.stop()?;
    let sealed = started.elapsed();
    let (events, rows) = (plan.events(), count(&trace)?);
    ensure!(
        rows.events == events && rows.lost == 0,
        "{} events of {events}, {} lost",
        rows.events,
        rows.lost
    );
    let of = |value: f64| value / events as f64;
    let row = json!({
        "pattern": plan.pattern.name(), "nodes": plan.nodes, "round": round, "events": events,
        "durable_per_s": events as f64 / shipped.wall.as_secs_f64(),
        "sealed_per_s": events as f64 / sealed.as_secs_f64(),
        "server_ns": of(usage.cpu * 1e9),
        "kernel_ns": of(usage.kernel * 1e9),
        "faults_per_million": of(usage.faults as f64 * 1e6),
        "player_ns": of(shipped.cpu * 1e9),
        "wire_bytes": of(fleet.bytes() as f64),
        "live_bytes": of(live as f64),
        "final_bytes": of(folder_bytes(&trace) as f64),
    });
    std::fs::remove_dir_all(&dir)?;
    println!(
        "{:28} {:5} {:9.2} {:9.2} {:9.1} {:9.1} {:9.0} {:9.1} {:7.1} {:7.1} {:7.1}",
        plan.pattern.name(),
        plan.nodes,
        row["durable_per_s"].as_f64().unwrap_or(0.0) / 1e6,
        row["sealed_per_s"].as_f64().unwrap_or(0.0) / 1e6,
        row["server_ns"].as_f64().unwrap_or(0.0),
        row["kernel_ns"].as_f64().unwrap_or(0.0),
        row["faults_per_million"].as_f64().unwrap_or(0.0),
        row["player_ns"].as_f64().unwrap_or(0.0),
        row["wire_bytes"].as_f64().unwrap_or(0.0),
        row["live_bytes"].as_f64().unwrap_or(0.0),
        row["final_bytes"].as_f64().unwrap_or(0.0),
    );
    Ok(row)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| | nodes | M events | M events/s, durable | M events/s, sealed | log-server, ns | nodes played, ns | bytes on the wire | live | sealed |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for Runs { pattern, nodes, events, runs } in groups(results) {
        let median =
            |key: &str| json!(Summary::of(runs.iter().filter_map(|run| run[key].as_f64()).collect()).median);
        let millions =
            |key: &str| median(key).as_f64().map_or("–".into(), |rate| format!("{:.2}", rate / 1e6));
        let _ = writeln!(
            text,
            "| {pattern} | {nodes} | {:.0} | {} | {} | {} | {} | {} | {} | {} |",
            events as f64 / 1e6,
            millions("durable_per_s"),
            millions("sealed_per_s"),
            number(&median("server_ns"), 0),
            number(&median("player_ns"), 0),
            number(&median("wire_bytes"), 1),
            number(&median("live_bytes"), 1),
            number(&median("final_bytes"), 1),
        );
    }
    text
}

/// Runs of one load.
struct Runs<'a> {
    pattern: &'a str,
    nodes: u64,
    events: u64,
    runs: Vec<&'a Value>,
}

/// Returns the runs of each load, in order of appearance.
fn groups(results: &Value) -> Vec<Runs<'_>> {
    let mut groups: Vec<Runs<'_>> = Vec::new();
    for run in results.as_array().into_iter().flatten() {
        let number = |key: &str| run[key].as_u64();
        let load = run["pattern"].as_str().zip(number("nodes")).zip(number("events"));
        let Some(((pattern, nodes), events)) = load else { continue };
        match groups
            .iter_mut()
            .find(|group| (group.pattern, group.nodes, group.events) == (pattern, nodes, events))
        {
            Some(group) => group.runs.push(run),
            None => groups.push(Runs { pattern, nodes, events, runs: vec![run] }),
        }
    }
    groups
}

/// Returns the median of a figure over the shortest runs of a pattern on a number of nodes, which
/// are as long as those of the other loads.
pub(crate) fn of_shortest(results: &Value, pattern: Pattern, nodes: u64, key: &str) -> Option<f64> {
    let fits = |group: &Runs<'_>| group.pattern == pattern.name() && group.nodes == nodes;
    let shortest = groups(results).into_iter().filter(fits).min_by_key(|group| group.events)?;
    Some(Summary::of(shortest.runs.iter().filter_map(|run| run[key].as_f64()).collect()).median)
}
