//! `streams`: memory of a log-server with many streams.
//!
//! Every stream has delivered a few events and is still open, and its node is still connected.

use crate::Bench;
use crate::fleet::{Fleet, Plan};
use crate::pattern::Pattern;
use crate::pipeline::count;
use crate::process;
use crate::report::number;
use crate::server::Server;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Maximum number of streams of one node.
const PER_NODE: u64 = 1000;
/// Events of each stream.
const EVENTS: u64 = 8;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    println!("{:>10} {:>6} {:>12} {:>12} {:>12}", "streams", "nodes", "before MiB", "after MiB", "peak MiB");
    let mut rows = Vec::new();
    for streams in
        bench.pick(vec![1, 1000, 10_000, 100_000, 300_000], vec![1, 1000, 10_000, 100_000], vec![1, 1000])
    {
        rows.push(measure(bench, streams)?);
    }
    Ok(Value::Array(rows))
}

fn measure(bench: &Bench, streams: u64) -> Result<Value> {
    let nodes = streams.div_ceil(PER_NODE);
    let plan =
        Plan { pattern: Pattern::Sequential, nodes, streams: streams / nodes, rows: EVENTS, batches: 1 };
    let dir = bench.disk.path().join("streams");
    let server = Server::start(&dir, "")?;
    let mib = |key: &str| process::status(server.pid(), key) as f64 / 1024.0;
    let before = mib("VmRSS");
    let connections = Fleet::build_open(plan).ship_and_stay(server.address())?;
    let (after, peak) = (mib("VmRSS"), mib("VmHWM"));
    drop(connections);
    let trace = server.trace().to_path_buf();
    server.stop()?;
    let found = count(&trace)?;
    ensure!(found.events == plan.events() && found.lost == 0, "{} events of {}", found.events, plan.events());
    std::fs::remove_dir_all(&dir)?;
    println!("{streams:10} {nodes:6} {before:12.1} {after:12.1} {peak:12.1}");
    Ok(json!({
        "streams": streams, "nodes": nodes, "before_mib": before, "after_mib": after, "peak_mib": peak,
        "bytes_per_stream": (after - before) * 1024.0 * 1024.0 / streams as f64,
    }))
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| streams | nodes | resident memory before, MiB | with all streams open, MiB | at most, MiB | bytes per stream |\n\
         |--:|--:|--:|--:|--:|--:|\n",
    );
    for row in results.as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row["streams"],
            row["nodes"],
            number(&row["before_mib"], 1),
            number(&row["after_mib"], 1),
            number(&row["peak_mib"], 1),
            if row["streams"] == 1 { "–".into() } else { number(&row["bytes_per_stream"], 0) },
        );
    }
    text
}
