//! `pipeline`: from lanes to sealed, ordered files, everything on this machine, without losses.
//!
//! The time runs from the first event to the end of the last daemon, so it includes draining,
//! sealing and the syncs. The peer is LTTng-UST with producers that block instead of dropping,
//! streamed to its relay daemon or written locally, and then ordered by babeltrace2 (decode, merge
//! and count). Its buffers are those shared among threads, one stream per processor, which is its
//! cheapest mode.

use crate::Bench;
use crate::daemons::{self, Daemons};
use crate::lttng::{self, Lttng, To};
use crate::process;
use crate::worker::{self, Worker};
use anyhow::{Result, ensure};
use miot_trace_store::{Reader, Table, schema};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Contents of a trace directory.
pub(crate) struct Rows {
    pub(crate) events: u64,
    pub(crate) lost: u64,
}

/// Counts the events of a trace directory and its losses.
pub(crate) fn count(trace: &Path) -> Result<Rows> {
    let reader = Reader::open(trace)?;
    let lost = reader
        .table(Table::Losses)?
        .iter()
        .filter_map(|batch| {
            let counts = schema::column::<arrow_array::types::UInt64Type>(batch, "count")?;
            Some(counts.iter().flatten().sum::<u64>())
        })
        .sum();
    Ok(Rows { events: reader.count(Table::Events)?.values().sum(), lost })
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let events = bench.pick(6_000_000, 500_000, 20_000);
    let lttng = Lttng::start(bench.disk.path())?;
    let mut results = Vec::new();
    println!(
        "{:34} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "pipeline",
        "M ev/s",
        "producer",
        "client",
        "server",
        "ordering",
        "kernel",
        "faults/M",
        "live B",
        "final B"
    );
    for round in 0..bench.pick(3, 1, 1) {
        for (way, streams) in [("miot", 1), ("miot", 2), ("miot", 16), ("miot-mixed", 2)] {
            results.push(ours(bench, way, streams, events, round)?);
        }
        if let Some(lttng) = &lttng {
            for (relay, streams) in [(false, 2), (true, 1), (true, 2), (true, 16)] {
                results.push(theirs(bench, lttng, relay, streams, events, round)?);
            }
        }
    }
    Ok(json!({ "events": events, "runs": results, "lttng": lttng.is_some() }))
}

fn ours(bench: &Bench, way: &str, streams: u64, events: u64, round: usize) -> Result<Value> {
    let name = format!("{way}-{streams}-{round}");
    let dir = bench.disk.path().join(&name);
    let daemons = Daemons::start(&dir, &bench.memory.path().join(&name), "wait")?;
    let mut command = worker::own(way)?;
    command.env("MIOT_DIR", daemons.node());
    let mut worker = Worker::start(way, command)?;
    let started = Instant::now();
    let run = worker.run(events, streams)?;
    let produced = started.elapsed().as_secs_f64();
    worker.finish()?;
    let trace = daemons.trace().to_path_buf();
    let ended = daemons.stop()?;
    let wall = started.elapsed().as_secs_f64();
    let rows = count(&trace)?;
    // Each run starts with one operation per thread, and the worker with one to check that it
    // records.
    let wanted = events / streams * streams + streams + 1;
    ensure!(
        rows.events == wanted && rows.lost == 0,
        "{name}: {} events of {wanted}, {} lost",
        rows.events,
        rows.lost
    );
    let final_bytes = daemons::folder_bytes(&trace);
    std::fs::remove_dir_all(&dir)?;
    let per_event = |seconds: f64| seconds * 1e9 / wanted as f64;
    Ok(row(json!({
        "who": format!("MIOT{}", if way == "miot" { "" } else { ", mixed requests" }), "streams": streams, "round": round,
        "events_per_s": wanted as f64 / wall,
        "recorded_per_s": wanted as f64 / produced,
        "producer_ns": run.cpu_ns / wanted as f64,
        "client_ns": per_event(ended.client.cpu),
        "server_ns": per_event(ended.server.cpu),
        "ordering_ns": 0.0,
        "kernel_ns": per_event(ended.client.kernel + ended.server.kernel),
        "faults_per_million": (ended.client.faults + ended.server.faults) as f64 * 1e6 / wanted as f64,
        "stop_seconds": ended.stop_seconds,
        "live_bytes": ended.live_bytes as f64 / wanted as f64,
        "final_bytes": final_bytes as f64 / wanted as f64,
    })))
}

fn theirs(
    bench: &Bench,
    lttng: &Lttng,
    relay: bool,
    streams: u64,
    events: u64,
    round: usize,
) -> Result<Value> {
    let name = format!("lttng-{}-{streams}-{round}", if relay { "relay" } else { "local" });
    let dir = bench.disk.path().join(&name);
    std::fs::create_dir_all(&dir)?;
    let mut relay_daemon = None;
    let mut to = To::Local(&dir);
    if relay {
        let (daemon, [control, data]) = lttng.relay(&dir)?;
        relay_daemon = Some(daemon);
        to = To::Relay(control, data);
    }
    lttng.record(&name, &to, true)?;
    let mut worker = Worker::start("lttng", lttng.worker("end"))?;
    let daemons = lttng.pids()?;
    let used = |pids: &[u32]| pids.iter().map(|pid| process::cpu_seconds(*pid)).sum::<f64>();
    let (before, started) = (used(&daemons), Instant::now());
    let run = worker.run(events, streams)?;
    let produced = started.elapsed().as_secs_f64();
    worker.finish()?;
    let (discarded, stopped) = lttng.stop(&name)?;
    let consumer = used(&daemons) - before;
    let relay_cpu = relay_daemon.as_mut().map_or(0.0, |daemon| process::terminate(daemon).cpu);
    let recorded = (stopped - started).as_secs_f64();
    let ordering = Instant::now();
    let (found, ordered) = lttng::order(&dir)?;
    let wall = recorded + ordering.elapsed().as_secs_f64();
    let final_bytes = daemons::folder_bytes(&dir);
    let zstd = compressed(&dir);
    std::fs::remove_dir_all(&dir)?;
    let wanted = events / streams * streams + streams;
    let lost = wanted - found.min(wanted);
    if lost > 0 || discarded > 0 {
        eprintln!("{name}: {lost} events are missing although producers block; LTTng says {discarded}");
    }
    let per_event = |seconds: f64| seconds * 1e9 / wanted as f64;
    Ok(row(json!({
        "who": format!("LTTng-UST, {}", if relay { "relay daemon" } else { "local" }), "streams": streams, "round": round,
        "events_per_s": wanted as f64 / wall,
        "recorded_per_s": wanted as f64 / produced,
        "producer_ns": run.cpu_ns / wanted as f64,
        "client_ns": per_event(consumer),
        "server_ns": per_event(relay_cpu),
        "ordering_ns": per_event(ordered.cpu),
        "live_bytes": final_bytes as f64 / wanted as f64,
        "final_bytes": final_bytes as f64 / wanted as f64,
        "lost": lost, "discarded": discarded,
        "zstd_bytes": zstd.map(|bytes| bytes as f64 / wanted as f64),
    })))
}

/// Size of a folder as one compressed archive, if `zstd` is installed.
pub(crate) fn compressed(dir: &Path) -> Option<u64> {
    let mut tar =
        Command::new("tar").arg("-C").arg(dir).args(["-cf", "-", "."]).stdout(Stdio::piped()).spawn().ok()?;
    let zstd = Command::new("zstd")
        .args(["-3", "-c"])
        .stdin(tar.stdout.take()?)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let bytes = zstd.ok().and_then(|mut zstd| {
        let bytes = std::io::copy(&mut zstd.stdout.take()?, &mut std::io::sink()).ok();
        zstd.wait().ok()?.success().then_some(bytes?)
    });
    tar.wait().ok()?;
    bytes
}

fn row(result: Value) -> Value {
    let number = |key: &str| result[key].as_f64().unwrap_or(f64::NAN);
    println!(
        "{:34} {:8.2} {:9.1} {:9.1} {:9.1} {:9.1} {:9.1} {:9.0} {:7.1} {:7.1}",
        format!("{}, {} streams", result["who"].as_str().unwrap_or(""), result["streams"]),
        number("events_per_s") / 1e6,
        number("producer_ns"),
        number("client_ns"),
        number("server_ns"),
        number("ordering_ns"),
        number("kernel_ns"),
        number("faults_per_million"),
        number("live_bytes"),
        number("final_bytes"),
    );
    result
}
