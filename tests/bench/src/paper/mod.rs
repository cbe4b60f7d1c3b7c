//! `paper`: the table and the figures of Cho, Kim and Lee, *Shared Memory based Parallel File
//! System Logging Method*.
//!
//! Table I: a line of a formatted debug log compared with the same line recorded raw, in the same
//! client. Fig. 7: four patterns through a file-system client (the stub of PVFS's library with its
//! preloaded hook), without logging, with MIOT, with the formatted log of I/O and of everything,
//! and with both logs recorded raw. Fig. 6: CPU usage of the log-client meanwhile.

mod client;
mod load;
mod passes;
mod response;

use crate::Bench;
use crate::daemons::Daemons;
use crate::report::number;
use anyhow::{Context, Result, ensure};
use client::{Client, IO, LINES, Pass, Service, WAYS, succeed};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::Command;

/// Transfer size of Fig. 7, bytes.
const TRANSFER: u64 = 64 << 10;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let node = bench.memory.path().join("node");
    let client = Client::build(bench.disk.path(), &node)?;
    let daemons = Daemons::start_client_alone(&bench.disk.path().join("daemons"), &node, "drop-newest")?;
    let response = response::run(bench, &client)?;
    let steps = steps(&client)?;
    let recorded = expect_records(&client, &daemons)?;
    let passes = passes::run(bench, &client)?;
    let cpu = load::run(bench, &client, &daemons)?;
    let ended = daemons.stop()?;
    Ok(json!({
        "response": response, "steps": steps, "passes": passes, "cpu": cpu, "transfer": TRANSFER,
        "lines": format!("{},{}", LINES.0, LINES.1), "events": ended.events, "lost": ended.lost,
        "recorded": recorded,
    }))
}

/// Makes a pass in each way. Fails unless each records what its name says: requests, log lines, or
/// nothing. Returns the records of each.
fn expect_records(client: &Client, daemons: &Daemons) -> Result<Value> {
    const BYTES: u64 = 1 << 20;
    let pass = |pattern| Pass { pattern, bytes: BYTES, transfer: TRANSFER, service: Service::Undelayed };
    client.pass(&WAYS[0], pass("write"))?;
    let (mut before, mut rows) = (daemons.records()?, Vec::new());
    for way in &WAYS {
        client.pass(way, pass("read"))?;
        let now = daemons.records()?;
        let lines = match way.mask {
            0 => 0,
            // The stand-in counts two lines more than it writes (tests/programs/pvfs/library.c).
            IO => LINES.0 - 2,
            _ => LINES.1 - 2,
        };
        let least = BYTES / TRANSFER * (1 + lines);
        let found = now - before;
        let plausible = if way.is_hooked { found >= least } else { found == 0 };
        ensure!(plausible, "{}: {found} records of a pass that makes {least} if it is recorded", way.name);
        rows.push(json!({ "way": way.name, "records": found }));
        before = now;
    }
    Ok(Value::Array(rows))
}

/// Measures the cost of each step of instrumenting a client: docs/hooks/instrument.md.
fn steps(client: &Client) -> Result<Value> {
    let text = succeed(Command::new(&client.program).arg("steps").env("MIOT_DIR", &client.node))?;
    let ghz = crate::machine::tsc_ghz();
    let mut rows = Vec::new();
    for line in text.lines() {
        let (cycles, step) = line.split_once(' ').context("a step without a name")?;
        let cycles: f64 = cycles.parse()?;
        println!("{step:55} {cycles:7.1} cycles {:6.1} ns", cycles / ghz);
        rows.push(json!({ "step": step, "cycles": cycles, "ns": cycles / ghz }));
    }
    Ok(Value::Array(rows))
}

/// Figures that have a target.
pub(crate) struct Figures<'a> {
    /// Table I: a formatted line beside its raw copy.
    pub(crate) ratio: &'a Value,
    /// Fig. 7: what MIOT adds to each pass, %.
    pub(crate) added: Vec<&'a Value>,
    /// Fig. 6: mean CPU usage of the log-client, %.
    pub(crate) load: Option<&'a Value>,
}

pub(crate) fn figures(results: &Value) -> Figures<'_> {
    Figures {
        ratio: &results["response"]["ratio"],
        added: passes::added(&results["passes"]).collect(),
        load: load::mean(&results["cpu"]),
    }
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = response::table(&results["response"]);
    text.push_str("\n| step, recorded | cycles | ns |\n|---|--:|--:|\n");
    for row in results["steps"].as_array().into_iter().flatten() {
        let step = row["step"].as_str().unwrap_or("");
        let _ = writeln!(text, "| {step} | {} | {} |", number(&row["cycles"], 0), number(&row["ns"], 1));
    }
    text.push_str(&passes::table(&results["passes"]));
    text.push_str(&load::table(&results["cpu"]));
    let _ = writeln!(text, "\n{} events, of which lost: {}.", results["events"], results["lost"]);
    text
}
