//! `op`: what one recorded operation costs its thread.
//!
//! Every way runs in a process of its own; the driver asks each in turn for a short run, many times over,
//! and takes medians of the thread's CPU time. Instructions are counted by single-stepping.

use crate::lttng::{Lttng, To};
use crate::played::{Played, Reads};
use crate::stats::Summary;
use crate::worker::{self, Worker};
use crate::{Bench, machine};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// One way of recording that is measured.
struct Way {
    key: &'static str,
    label: &'static str,
    /// Operations per run.
    count: u64,
    /// Runs per repetition.
    runs: u64,
    /// Operations to step through.
    steps: u64,
    command: Box<dyn Fn() -> Result<Command>>,
}

/// Less than half a lane: no run waits for the reader, none is dropped, whatever the reader does meanwhile.
const BURST: u64 = 15_000;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let shm = bench.memory.path();
    let copied = Played::start(&shm.join("copied"), Reads::Copies, true)?;
    let skipped = Played::start(&shm.join("skipped"), Reads::Skips, true)?;
    let full = Played::start(&shm.join("full"), Reads::Nothing, true)?;
    let off = Played::start(&shm.join("off"), Reads::Nothing, false)?;
    let lttng = Lttng::start(bench.disk.path())?;
    if let Some(lttng) = &lttng {
        lttng.record("miot-bench-op", &To::Local(&bench.disk.path().join("lttng-trace")), false)?;
    }
    let mut ways = own_ways(&copied, &skipped, &full, &off, &shm.join("nobody"));
    ways.extend(formatted_ways(bench)?);
    if let Some(lttng) = &lttng {
        for (key, label, way) in
            [("lttng", "LTTng-UST, begin and end", "pair"), ("lttng-end", "LTTng-UST, one tracepoint", "end")]
        {
            let worker = lttng.worker(way);
            let copy = move || Ok(again(&worker));
            ways.push(Way { key, label, count: 100_000, runs: 1, steps: 300, command: Box::new(copy) });
        }
    }

    let mut workers = Vec::new();
    for way in &ways {
        workers.push(Worker::start(way.key, (way.command)()?)?);
    }
    let mut times = vec![Vec::new(); ways.len()];
    for repetition in 0..bench.either(41, 7) {
        for ((way, worker), times) in ways.iter().zip(&mut workers).zip(&mut times) {
            let mut ns = 0.0;
            for _ in 0..way.runs {
                ns += worker.run(way.count, 1)?.cpu_ns;
                std::thread::sleep(Duration::from_millis(1));
            }
            // The first runs of a worker set up its lane and warm its memory.
            if repetition > 0 {
                times.push(ns / (way.count * way.runs) as f64);
            }
        }
    }
    let losses = copied.losses() + skipped.losses();
    for worker in workers {
        worker.finish()?;
    }
    let discarded =
        lttng.as_ref().map(|lttng| lttng.stop("miot-bench-op")).transpose()?.map(|(discarded, _)| discarded);
    // Stepping is slow and not timed; LTTng has a new session for it.
    if let Some(lttng) = &lttng {
        lttng.record("miot-bench-step", &To::Local(&bench.disk.path().join("lttng-steps")), false)?;
    }
    let results = results(&ways, times, bench)?;
    if let Some(lttng) = &lttng {
        lttng.stop("miot-bench-step")?;
    }
    print(&results);
    Ok(
        json!({ "ways": results, "miot_lost": losses, "lttng_discarded": discarded, "lttng": lttng.is_some() }),
    )
}

/// The same command once more.
pub(crate) fn again(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(key, value),
            None => copy.env_remove(key),
        };
    }
    copy
}

fn own_ways(copied: &Played, skipped: &Played, full: &Played, off: &Played, nobody: &Path) -> Vec<Way> {
    let own = |key, label, way: &'static str, dir: &Path| {
        let dir = dir.to_path_buf();
        let command = move || {
            let mut command = worker::own(way)?;
            command.env("MIOT_DIR", &dir);
            Ok(command)
        };
        Way { key, label, count: BURST, runs: 20, steps: 1000, command: Box::new(command) }
    };
    vec![
        own("nothing", "the loop alone", "nothing", nobody),
        own("clock", "2 × rdtsc", "clock", nobody),
        own("floor", "floor: 2 × rdtsc + 64-byte store", "floor", nobody),
        own("miot", "MIOT begin + end, lane read by another process", "miot", copied.dir()),
        own("miot-unread", "MIOT begin + end, nobody reads the slots", "miot", skipped.dir()),
        own("miot-full", "MIOT begin + end, lane full: drop and count", "miot-idle", full.dir()),
        own("miot-off", "MIOT switched off", "miot-idle", off.dir()),
        own("miot-dormant", "MIOT dormant: no log-client on the node", "miot-idle", nobody),
    ]
}

fn formatted_ways(bench: &Bench) -> Result<Vec<Way>> {
    let program = worker::compile("formatted", bench.disk.path(), &[])?;
    let (disk, memory) = (bench.disk.path().join("formatted.log"), bench.memory.path().join("formatted.log"));
    let way = |key, label, log: &Path, zone: Option<&'static str>| {
        let (program, log) = (program.clone(), log.to_path_buf());
        let command = move || {
            let mut command = Command::new(&program);
            command.arg(&log).env_remove("TZ").envs(zone.map(|zone| ("TZ", zone)));
            Ok(command)
        };
        Way { key, label, count: 10_000, runs: 1, steps: 100, command: Box::new(command) }
    };
    Ok(vec![
        way("formatted-disk", "formatted log line, file on disk", &disk, None),
        way("formatted-tmpfs", "formatted log line, file on tmpfs", &memory, None),
        way(
            "formatted-tz",
            "formatted log line, tmpfs, time zone cached (TZ set)",
            &memory.with_extension("tz"),
            Some("UTC"),
        ),
    ])
}

fn results(ways: &[Way], times: Vec<Vec<f64>>, bench: &Bench) -> Result<Vec<Value>> {
    let ghz = machine::tsc_ghz();
    let (mut all, mut bare) = (Vec::<Value>::new(), (0.0, 0.0));
    for (way, times) in ways.iter().zip(times) {
        let steps = bench.either(way.steps, way.steps / 10);
        let instructions = worker::instructions(way.key, (way.command)()?, steps)?;
        let time = Summary::of(times);
        if way.key == "nothing" {
            bare = (time.median, instructions);
        }
        // The loop and its clobbered arguments are not part of what is compared.
        let net = |value: f64, bare: f64| if way.key == "nothing" { value } else { (value - bare).max(0.0) };
        let ns = net(time.median, bare.0);
        all.push(json!({
            "key": way.key,
            "label": way.label,
            "ns": ns,
            "tsc_cycles": ns * ghz,
            "instructions": net(instructions, bare.1),
            "gross": time,
        }));
    }
    let floor =
        all.iter().find(|way| way["key"] == "floor").and_then(|way| way["ns"].as_f64()).unwrap_or(0.0);
    for way in &mut all {
        way["times_floor"] = json!(way["ns"].as_f64().unwrap_or(0.0) / floor);
    }
    Ok(all)
}

fn print(results: &[Value]) {
    println!("{:55} {:>9} {:>9} {:>12} {:>8}", "one operation", "ns", "cycles", "instructions", "× floor");
    for way in results {
        let number = |key: &str| way[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:55} {:9.1} {:9.0} {:12.0} {:8.2}",
            way["label"].as_str().unwrap_or(""),
            number("ns"),
            number("tsc_cycles"),
            number("instructions"),
            number("times_floor")
        );
    }
}
