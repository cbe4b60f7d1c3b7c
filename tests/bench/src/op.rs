//! `op`: cost of one recorded operation for its thread.
//!
//! Every variant runs in its own process, all of them on the same processor, on which nothing else
//! runs. The driver requests some short runs from each in turn, many times, and reverses the order
//! each time. Compared values are medians over these repetitions of the thread's CPU time, minus
//! that of the empty loop in the same repetition. Instructions are counted by single-stepping.

use crate::lttng::{self, Lttng, To};
use crate::played::{Played, Reads};
use crate::process::Aside;
use crate::proof::{Expected, Proof, Watched};
use crate::stats::{Summary, median_with_interval};
use crate::worker::{self, Worker};
use crate::{Bench, machine};
use anyhow::{Result, ensure};
use miot_proto::control::{Settings, WhenFull};
use miot_tracer::op::posix;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// A measured way of recording.
struct Way {
    key: &'static str,
    label: &'static str,
    /// Operations per run.
    count: u64,
    /// Runs per repetition.
    runs: u64,
    /// Number of operations to single-step.
    steps: u64,
    /// Lanes and their reader, and what the operations must leave in them.
    watched: Watched,
    /// The log file with a line per operation.
    log: Option<PathBuf>,
    command: Box<dyn Fn() -> Result<Command>>,
}

impl Way {
    /// Returns the nanoseconds of one operation.
    fn repetition(&self, worker: &mut Worker) -> Result<f64> {
        let reader = self.watched.lanes.played();
        if let Some(reader) = reader {
            reader.wake();
        }
        let mut ns = 0.0;
        for _ in 0..self.runs {
            ns += worker.run(self.count, 1)?.cpu_ns;
            if let Some(reader) = reader {
                reader.catch_up()?;
            }
        }
        if let Some(reader) = reader {
            reader.sleep();
        }
        Ok(ns / (self.count * self.runs) as f64)
    }
}

/// Less than half a lane: no run waits for the reader and none drops events, whatever the reader's
/// progress.
const BURST: u64 = 15_000;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let aside = Aside::step()?;
    let shm = bench.memory.path();
    let lttng = Lttng::start(bench.disk.path())?;
    if let Some(lttng) = &lttng {
        lttng.record("miot-bench-op", &To::Local(&bench.disk.path().join("lttng-trace")), false)?;
    }
    let mut ways = own_ways(bench, shm)?;
    ways.extend(formatted_ways(bench)?);
    if let Some(lttng) = &lttng {
        for (key, label, way) in
            [("lttng", "LTTng-UST, begin and end", "pair"), ("lttng-end", "LTTng-UST, one tracepoint", "end")]
        {
            let worker = lttng.worker(way);
            let copy = move || Ok(again(&worker));
            let (count, runs, steps) = (bench.pick(100_000, 50_000, 1_000), 1, bench.pick(300, 30, 3));
            let watched = Watched::nobody(&shm.join("nobody"));
            ways.push(Way { key, label, count, runs, steps, watched, log: None, command: Box::new(copy) });
        }
    }

    let mut workers = Vec::new();
    for way in &ways {
        let mut command = (way.command)()?;
        aside.pin(&mut command);
        workers.push(Worker::start(way.key, command)?);
    }
    let proofs = ways.iter().map(|way| way.watched.start()).collect::<Result<Vec<_>>>()?;
    let mut times = vec![Vec::new(); ways.len()];
    for repetition in 0..=bench.pick(40, 7, 2) {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let ns = ways[at].repetition(&mut workers[at])?;
            // The first runs of a worker set up its lane and warm its memory.
            if repetition > 0 {
                times[at].push(ns);
            }
        }
    }
    let counts = prove(bench, &ways, workers, proofs, lttng.as_ref())?;
    // Stepping is slow and not timed. LTTng gets a new session for it.
    if let Some(lttng) = &lttng {
        lttng.record("miot-bench-step", &To::Local(&bench.disk.path().join("lttng-steps")), false)?;
    }
    let mut results = results(&ways, &times)?;
    for (row, recorded) in results.iter_mut().zip(counts.recorded) {
        row["recorded"] = recorded;
    }
    if let Some(lttng) = &lttng {
        lttng.stop("miot-bench-step")?;
    }
    print(&results);
    Ok(json!({
        "ways": results, "first": crate::first::run(bench, &aside)?, "miot_lost": counts.lost,
        "lttng_discarded": counts.discarded, "lttng": lttng.is_some(),
    }))
}

/// What the ways have recorded.
struct Counts {
    /// Of each way.
    recorded: Vec<Value>,
    /// Records lost, except where the lane is full on purpose.
    lost: u64,
    /// Events that LTTng has discarded.
    discarded: Option<u64>,
}

/// Ends the workers. Fails unless each has recorded exactly what its row names.
fn prove(
    bench: &Bench,
    ways: &[Way],
    workers: Vec<Worker>,
    proofs: Vec<Proof>,
    lttng: Option<&Lttng>,
) -> Result<Counts> {
    let (mut recorded, mut lost, mut tracepoints) = (Vec::new(), 0, 0);
    for ((way, worker), proof) in ways.iter().zip(workers).zip(proofs) {
        let calls = worker.calls();
        let counts = proof.end(&worker, calls)?;
        if way.watched.expected != Expected::Lossy {
            lost += counts["lost"].as_u64().unwrap_or(0);
        }
        recorded.push(counts);
        worker.finish()?;
        if let Some(log) = &way.log {
            let lines = std::fs::read(log)?.iter().filter(|byte| **byte == b'\n').count() as u64;
            ensure!(lines == calls, "{}: {lines} lines of {calls} calls", way.key);
        }
        tracepoints += match way.key {
            "lttng" => 2 * calls,
            "lttng-end" => calls,
            _ => 0,
        };
    }
    let discarded = lttng.map(|lttng| {
        let (discarded, _) = lttng.stop("miot-bench-op")?;
        lttng::missing(&bench.disk.path().join("lttng-trace"), tracepoints, discarded)
    });
    Ok(Counts { recorded, lost, discarded: discarded.transpose()? })
}

/// Returns a copy of the command.
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

/// Ways that the worker of this package implements, each with the lanes and the reader that it
/// needs.
fn own_ways(bench: &Bench, shm: &Path) -> Result<Vec<Way>> {
    let (runs, steps) = (bench.pick(20, 10, 1), bench.pick(1000, 300, 20));
    let way = |key, label, way: &'static str, watched: Watched| {
        let dir = watched.lanes.dir().to_path_buf();
        let command = move || {
            let mut command = worker::own(way)?;
            command.env("MIOT_DIR", &dir);
            Ok(command)
        };
        Way { key, label, count: BURST, runs, steps, watched, log: None, command: Box::new(command) }
    };
    let nobody = Watched::nobody(&shm.join("nobody"));
    let mut ways = vec![
        way("nothing", "the loop alone", "nothing", nobody.clone()),
        way("clock", "2 × rdtsc", "clock", nobody.clone()),
        way("floor", "floor: 2 × rdtsc + 64-byte store", "floor", nobody.clone()),
    ];
    let ample = Played::ample;
    let small = Settings { lane_slots: 256, lane_slots_max: 256, ..Settings::default() };
    let overwrite = Settings { when_full: WhenFull::OverwriteOldest, ..ample() };
    let mut without_reads = ample();
    without_reads.choose(posix::READ, false);
    let all = Expected::Slots(1);
    for (key, label, reads, settings, expected) in [
        ("miot", "MIOT begin + end, lane read by another process", Reads::Copies, ample(), all),
        ("miot-unread", "MIOT begin + end, nobody reads the slots", Reads::Skips, ample(), all),
        ("miot-full", "MIOT begin + end, lane full: drop and count", Reads::Nothing, small, Expected::Lossy),
        (
            "miot-overwrite",
            "MIOT begin + end, lane full: overwrite the oldest",
            Reads::Nothing,
            overwrite.clone(),
            all,
        ),
        (
            "miot-overwrite-read",
            "MIOT begin + end, policy overwrite-oldest, lane read",
            Reads::Copies,
            overwrite,
            all,
        ),
        (
            "miot-short",
            "MIOT begin + end, left out as too short",
            Reads::Copies,
            Settings { min_duration_ns: 1_000_000_000, ..ample() },
            Expected::LeftOut,
        ),
        (
            "miot-sampled",
            "MIOT begin + end, one in 16 kept",
            Reads::Copies,
            Settings { sample_shift: 4, ..ample() },
            Expected::Sampled,
        ),
        (
            "miot-unchosen",
            "MIOT begin + end, operation not chosen",
            Reads::Nothing,
            without_reads,
            Expected::Nothing,
        ),
        (
            "miot-off",
            "MIOT switched off",
            Reads::Nothing,
            Settings { enabled: false, ..Settings::default() },
            Expected::Nothing,
        ),
    ] {
        let reader = Rc::new(Played::start(&shm.join(key), reads, &settings)?);
        reader.sleep();
        // The worker `miot` requires that it records.
        let worker = if ["miot-unchosen", "miot-off"].contains(&key) { "miot-idle" } else { "miot" };
        ways.push(way(key, label, worker, Watched::played(&reader, expected)));
    }
    ways.push(way("miot-dormant", "MIOT dormant: no log-client on the node", "miot-idle", nobody));
    Ok(ways)
}

fn formatted_ways(bench: &Bench) -> Result<Vec<Way>> {
    let program = worker::compile("formatted", bench.disk.path(), &[])?;
    let nobody = Watched::nobody(&bench.memory.path().join("nobody"));
    let (count, steps) = (bench.pick(10_000, 5_000, 100), bench.pick(100, 20, 2));
    let (disk, memory) = (bench.disk.path().join("formatted.log"), bench.memory.path().join("formatted.log"));
    let way = |key, label, log: &Path, zone: Option<&'static str>| {
        let (program, log, watched) = (program.clone(), log.to_path_buf(), nobody.clone());
        let written = Some(log.clone());
        let command = move || {
            let mut command = Command::new(&program);
            command.arg(&log).env_remove("TZ").envs(zone.map(|zone| ("TZ", zone)));
            Ok(command)
        };
        Way { key, label, count, runs: 1, steps, watched, log: written, command: Box::new(command) }
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

fn results(ways: &[Way], times: &[Vec<f64>]) -> Result<Vec<Value>> {
    let ghz = machine::tsc_ghz();
    let at = |key: &str| ways.iter().position(|way| way.key == key).unwrap_or(0);
    let (bare, floor, own) = (at("nothing"), at("floor"), at("miot"));
    // The loop and its clobbered arguments are subtracted.
    let net = |way: usize| -> Vec<f64> {
        let pairs = times[way].iter().zip(&times[bare]);
        pairs.map(|(gross, loop_alone)| if way == bare { *gross } else { gross - loop_alone }).collect()
    };
    let beside = |way: usize, other: usize| -> Vec<f64> {
        net(way).iter().zip(net(other)).map(|(own, other)| own / other).collect()
    };
    let mut bare_instructions = 0.0;
    let mut all = Vec::new();
    for (index, way) in ways.iter().enumerate() {
        let mut instructions = worker::instructions(way.key, (way.command)()?, way.steps, &way.watched)?;
        if index == bare {
            bare_instructions = instructions;
        } else {
            instructions = (instructions - bare_instructions).max(0.0);
        }
        let ns = median_with_interval(&net(index));
        all.push(json!({
            "key": way.key, "label": way.label, "ns": ns, "tsc_cycles": ns.median * ghz,
            "instructions": instructions, "gross": Summary::of(times[index].clone()),
            "times_floor": median_with_interval(&beside(index, floor)),
            "times_miot": median_with_interval(&beside(index, own)),
        }));
    }
    Ok(all)
}

fn print(results: &[Value]) {
    println!("{:55} {:>9} {:>9} {:>12} {:>8}", "one operation", "ns", "cycles", "instructions", "× floor");
    for way in results {
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        println!(
            "{:55} {:9.1} {:9.0} {:12.0} {:8.2}",
            way["label"].as_str().unwrap_or(""),
            number(&way["ns"]["median"]),
            number(&way["tsc_cycles"]),
            number(&way["instructions"]),
            number(&way["times_floor"]["median"])
        );
    }
}
