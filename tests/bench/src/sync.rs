//! `sync`: cost of acknowledging only durable batches, by the minimum time between two commits.
//!
//! *Flat out*: 16 nodes send at full speed. *One by one*: a node sends a batch, and the next one
//! after the acknowledgment. That time is the minimum for which a log-client keeps an event.

use crate::Bench;
use crate::fleet::{Fleet, Plan};
use crate::pattern::Pattern;
use crate::pipeline::count;
use crate::report::number;
use crate::server::Server;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let events = bench.pick(2_000_000, 500_000, 20_000);
    println!(
        "{:>12} {:>10} {:>10} {:>10} {:>10}",
        "commit_every", "M ev/s", "server ns", "ack p50 ms", "ack p99 ms"
    );
    let mut rows = Vec::new();
    for round in 0..bench.pick(3, 1, 1) {
        for commit_every in ["0ms", "10ms", "50ms", "200ms"] {
            rows.push(measure(bench, events, commit_every, round)?);
        }
    }
    Ok(Value::Array(rows))
}

fn measure(bench: &Bench, events: u64, commit_every: &str, round: usize) -> Result<Value> {
    let dir = bench.disk.path().join("sync");
    let settings = format!("commit_every = {commit_every:?}");
    let plan = Plan {
        pattern: Pattern::Mixed,
        nodes: 16,
        streams: 1,
        rows: 1024,
        batches: (events / 16 / 1024).max(1),
    };
    let server = Server::start(&dir, &settings)?;
    let shipped = Fleet::build(plan).ship(server.address())?;
    let trace = server.trace().to_path_buf();
    let usage = server.stop()?;
    let found = count(&trace)?;
    ensure!(found.events == plan.events() && found.lost == 0, "{} events of {}", found.events, plan.events());
    std::fs::remove_dir_all(&dir)?;

    let few =
        Plan { pattern: Pattern::Mixed, nodes: 1, streams: 1, rows: 100, batches: bench.pick(50, 30, 4) };
    let server = Server::start(&dir, &settings)?;
    let mut delays = Fleet::build(few).ship_one_by_one(server.address())?;
    let trace = server.trace().to_path_buf();
    server.stop()?;
    let found = count(&trace)?;
    ensure!(found.events == few.events() && found.lost == 0, "{} events of {}", found.events, few.events());
    ensure!(!delays.is_empty(), "no batch was acknowledged alone");
    std::fs::remove_dir_all(&dir)?;
    delays.sort_by(f64::total_cmp);
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share).round() as usize];

    let row = json!({
        "commit_every": commit_every, "round": round,
        "events_per_s": plan.events() as f64 / shipped.wall.as_secs_f64(),
        "server_ns": usage.cpu * 1e9 / plan.events() as f64,
        "ack_p50_ms": at(0.5), "ack_p99_ms": at(0.99),
    });
    println!(
        "{commit_every:>12} {:>10.2} {:>10} {:>10} {:>10}",
        row["events_per_s"].as_f64().unwrap_or(0.0) / 1e6,
        number(&row["server_ns"], 0),
        number(&row["ack_p50_ms"], 1),
        number(&row["ack_p99_ms"], 1)
    );
    Ok(row)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| `commit_every` | M events/s, durable | log-server, ns per event, sealed | shipped to acknowledged, p50, ms | p99, ms |\n\
         |---|--:|--:|--:|--:|\n",
    );
    for (commit_every, cells) in crate::report::medians(
        results,
        "commit_every",
        &["events_per_s", "server_ns", "ack_p50_ms", "ack_p99_ms"],
    ) {
        let _ = writeln!(
            text,
            "| {commit_every} | {:.2} | {:.0} | {:.1} | {:.1} |",
            cells[0] / 1e6,
            cells[1],
            cells[2],
            cells[3]
        );
    }
    text
}
