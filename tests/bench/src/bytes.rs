//! `bytes`: size of an event on the wire, in the live part and sealed, compared with an LTTng trace
//! of the same events.
//!
//! 16 streams of each pattern are sent to a log-server. The same events go through LTTng's
//! tracepoint in the order of their times, with the same fields (`c/lttng_provider.h`); paths are
//! strings. LTTng's trace is measured as it is and compressed by `zstd -3`.

use crate::Bench;
use crate::daemons::folder_bytes;
use crate::fleet::{Fleet, Plan};
use crate::lttng::{self, Lttng, To};
use crate::pattern::{Pattern, Rows};
use crate::pipeline::{compressed, count};
use crate::report::number;
use crate::server::Server;
use crate::worker::Worker;
use anyhow::{Result, ensure};
use miot_proto::batch::Columns;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

const PATTERNS: [Pattern; 4] = [Pattern::Sequential, Pattern::Mixed, Pattern::Ior, Pattern::Metadata];
const STREAMS: u64 = 16;
/// Events in a batch.
const ROWS: u64 = 1024;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let events: u64 = bench.pick(1 << 20, 1 << 18, 1 << 14);
    let lttng = Lttng::start(bench.disk.path())?;
    println!(
        "{:36} {:>7} {:>7} {:>7} {:>7} {:>9}",
        "bytes per event", "wire", "live", "sealed", "CTF", "CTF+zstd"
    );
    let mut rows = Vec::new();
    for pattern in PATTERNS {
        let plan = Plan { pattern, nodes: STREAMS, streams: 1, rows: ROWS, batches: events / STREAMS / ROWS };
        let mut row = ours(bench, plan)?;
        if let Some(lttng) = &lttng {
            let (plain, zstd) = theirs(bench, lttng, plan)?;
            (row["ctf"], row["ctf_zstd"]) = (json!(plain), json!(zstd));
        }
        println!(
            "{:36} {:>7} {:>7} {:>7} {:>7} {:>9}",
            pattern.name(),
            number(&row["wire"], 1),
            number(&row["live"], 1),
            number(&row["sealed"], 1),
            number(&row["ctf"], 1),
            number(&row["ctf_zstd"], 1)
        );
        rows.push(row);
    }
    Ok(Value::Array(rows))
}

fn ours(bench: &Bench, plan: Plan) -> Result<Value> {
    let dir = bench.disk.path().join("bytes");
    let fleet = Fleet::build(plan);
    let server = Server::start(&dir, "")?;
    fleet.ship(server.address())?;
    let trace = server.trace().to_path_buf();
    let live = folder_bytes(&trace.join("live"));
    server.stop()?;
    let of = |bytes: u64| bytes as f64 / plan.events() as f64;
    let found = count(&trace)?;
    ensure!(found.events == plan.events() && found.lost == 0, "{} events of {}", found.events, plan.events());
    let row = json!({
        "pattern": plan.pattern.name(), "events": plan.events(),
        "wire": of(fleet.bytes()), "live": of(live), "sealed": of(folder_bytes(&trace)),
    });
    std::fs::remove_dir_all(&dir)?;
    Ok(row)
}

fn theirs(bench: &Bench, lttng: &Lttng, plan: Plan) -> Result<(f64, Option<f64>)> {
    let (dir, events) = (bench.disk.path().join("ctf"), bench.disk.path().join("events.bin"));
    write_events(plan, &events)?;
    let session = format!("bytes-{:?}", plan.pattern).to_lowercase();
    lttng.record(&session, &To::Local(&dir), true)?;
    let mut command = lttng.worker("replay");
    command.arg(&events);
    let mut worker = Worker::start("lttng", command)?;
    worker.run(plan.events(), 1)?;
    let made = worker.calls();
    worker.finish()?;
    let (discarded, _) = lttng.stop(&session)?;
    let missing = lttng::missing(&dir, made, discarded)?;
    ensure!(missing == 0, "LTTng lost {missing} of {made} events although producers block");
    let of = |bytes: u64| bytes as f64 / plan.events() as f64;
    let found = (of(folder_bytes(&dir)), compressed(&dir).map(of));
    std::fs::remove_dir_all(&dir)?;
    std::fs::remove_file(&events)?;
    Ok(found)
}

/// Writes the events of a plan in order of time, for `c/lttng.c`.
fn write_events(plan: Plan, path: &Path) -> Result<()> {
    /// Bytes of an event: eight numbers and a path padded with zeros.
    const RECORD: usize = 128;
    let mut all: Vec<(i64, Vec<u8>)> = Vec::new();
    for stream in 0..plan.nodes {
        let (mut rows, mut columns) = (Rows::new(plan.pattern, stream, 0), Columns::default());
        (0..plan.rows * plan.batches).for_each(|_| rows.push_to(&mut columns));
        let mut exts = columns.ext.iter().peekable();
        for row in 0..columns.len() {
            let path =
                exts.next_if(|ext| ext.row as usize == row).map_or(&[][..], |ext| columns.paths(ext).0);
            let numbers = [
                u64::from(columns.op[row].number) | u64::from(columns.flags[row]) << 16,
                u64::from(columns.request[row]),
                (columns.time[row] as u64).saturating_sub(columns.duration[row]),
                columns.duration[row],
                columns.handle[row],
                columns.offset[row],
                columns.length[row],
                columns.result[row] as u64,
            ];
            let mut record: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            record.extend_from_slice(&path[..path.len().min(RECORD - record.len() - 1)]);
            record.resize(RECORD, 0);
            all.push((columns.time[row], record));
        }
    }
    all.sort_by_key(|(time, _)| *time);
    Ok(std::fs::write(path, all.into_iter().flat_map(|(_, record)| record).collect::<Vec<u8>>())?)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| bytes per event | on the wire | live part | sealed | CTF | CTF under `zstd -3` |\n|---|--:|--:|--:|--:|--:|\n",
    );
    for row in results.as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row["pattern"].as_str().unwrap_or(""),
            number(&row["wire"], 1),
            number(&row["live"], 1),
            number(&row["sealed"], 1),
            number(&row["ctf"], 1),
            number(&row["ctf_zstd"], 1)
        );
    }
    text
}
