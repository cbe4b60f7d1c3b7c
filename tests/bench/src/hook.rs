//! `hook`: overhead of the preloaded `posix` hook per call, in a loop of `pread` or `stat`,
//! compared with minimal wrappers in C.
//!
//! Every variant runs in its own process, all of them on the same processor. Two processes of one
//! variant differ, by where their memory and code lie, so each round begins new ones. In a round
//! the variants take turns, and the median of the turns counts. The overhead of a variant is the
//! median over the rounds of its difference to the plain process of the same round. *× floor* is
//! the ratio of two medians.

use crate::daemons;
use crate::op::again;
use crate::played::{Played, Reads};
use crate::process::Aside;
use crate::proof::{Expected, Watched};
use crate::report::{interval, number};
use crate::stats::{Summary, median_with_interval, ratio_of_medians};
use crate::worker::{self, Worker};
use crate::{Bench, machine};
use anyhow::Result;
use miot_proto::control::Settings;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

/// Bursts before the first measured one: each slot of the lane has been written then.
const WARM_UP: u64 = 6;
/// Program in `c/` that makes the calls.
const PROGRAM: &str = "calls";

/// A call that is made in a loop.
struct Call {
    name: &'static str,
    label: &'static str,
    place: &'static str,
    file: PathBuf,
    /// Requests that a call consists of.
    requests: u64,
    /// Calls per run. Their records fill less than half a lane.
    burst: u64,
}

impl Call {
    /// The wrapper that stores what the hook must store.
    fn floor(&self) -> &'static str {
        if self.name == "pread" { "floor" } else { "paths" }
    }
}

/// A variant of making the call.
struct Way {
    key: &'static str,
    label: &'static str,
    preload: Option<PathBuf>,
    /// Value of `MIOT_DIR`, and what the calls must leave there.
    watched: Watched,
}

impl Way {
    /// Whether the variant differs from all others for this call.
    fn is_for(&self, call: &Call) -> bool {
        self.key != "paths" || call.name != "pread"
    }

    /// The variant, with the records of this call.
    fn of(&self, call: &Call) -> Way {
        let mut watched = self.watched.clone();
        if watched.expected != Expected::Nothing {
            watched.expected = Expected::Requests(call.requests);
        }
        Way { key: self.key, label: self.label, preload: self.preload.clone(), watched }
    }

    /// Command of the program in this variant.
    fn command(&self, program: &Path, call: &Call) -> Command {
        let mut command = if self.key == "strace" {
            let mut strace = Command::new("strace");
            strace
                .args(["-f", "-e", "trace=pread64,newfstatat,openat,close", "-o", "/dev/null"])
                .arg(program);
            strace
        } else {
            Command::new(program)
        };
        command.arg(call.name).arg(&call.file).env("MIOT_DIR", self.watched.lanes.dir());
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        command
    }
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let aside = Aside::step()?;
    let (dir, shm) = (bench.disk.path(), bench.memory.path());
    let played = |name: &str, reads, settings: &Settings| -> Result<Rc<Played>> {
        Ok(Rc::new(Played::start(&shm.join(name), reads, settings)?))
    };
    let on = played("on", Reads::Copies, &Played::ample())?;
    let off = played("off", Reads::Nothing, &Settings { enabled: false, ..Settings::default() })?;
    let left_out = played("left-out", Reads::Nothing, &Played::ample())?;
    left_out.leave_out(PROGRAM)?;
    let ways = ways(dir, [&on, &off, &left_out], &shm.join("nobody"))?;
    let program = worker::compile(PROGRAM, dir, &[])?;
    let call = |name, label, place, requests, burst| {
        let file = if place == "tmpfs" { shm } else { dir }.join("data");
        Call { name, label, place, file, requests, burst }
    };
    let calls = [
        call("pread", "`pread` of 4 KiB", "tmpfs", 1, bench.pick(15_000, 15_000, 1000)),
        call("pread", "`pread` of 4 KiB", "disk", 1, bench.pick(15_000, 15_000, 1000)),
        // Their path takes further slots.
        call("stat", "`stat` of a path", "tmpfs", 1, bench.pick(3_000, 3_000, 300)),
        call("open", "`open` of a path and `close`", "tmpfs", 2, bench.pick(3_000, 3_000, 300)),
    ];
    let mut results = Vec::new();
    for call in &calls {
        results.extend(measure(bench, &aside, &program, call, &ways, &on)?);
    }
    Ok(json!({ "calls": results, "miot_lost": on.recorded().lost, "processors": machine::processors() }))
}

/// Measures a call in all variants.
fn measure(
    bench: &Bench,
    aside: &Aside,
    program: &Path,
    call: &Call,
    ways: &[Way],
    on: &Played,
) -> Result<Vec<Value>> {
    let ways: Vec<Way> = ways.iter().filter(|way| way.is_for(call)).map(|way| way.of(call)).collect();
    let (mut times, mut recorded) = (vec![Vec::new(); ways.len()], Vec::new());
    for _ in 0..bench.pick(60, 7, 2) {
        let round = round(bench, (aside, program), call, &ways, on)?;
        times.iter_mut().zip(round.ns).for_each(|(all, ns)| all.push(ns));
        recorded = round.recorded;
    }
    let mut instructions = Vec::new();
    for way in &ways {
        let command = again(&way.command(program, call));
        let count = bench.pick(1000, 300, 20);
        let counted =
            (way.key != "strace").then(|| worker::instructions(way.key, command, count, &way.watched));
        instructions.push(counted.transpose()?);
    }
    let mut rows = rows(call, &ways, &times, &instructions);
    for (row, recorded) in rows.iter_mut().zip(recorded) {
        row["recorded_in_last_round"] = recorded;
    }
    print(call, &rows);
    Ok(rows)
}

/// What one process of each variant took, and recorded.
struct Round {
    /// Nanoseconds of a call, median of the turns.
    ns: Vec<f64>,
    recorded: Vec<Value>,
}

fn round(
    bench: &Bench,
    (aside, program): (&Aside, &Path),
    call: &Call,
    ways: &[Way],
    on: &Played,
) -> Result<Round> {
    let mut workers = Vec::new();
    for way in ways {
        let mut command = way.command(program, call);
        aside.pin(&mut command);
        workers.push(Worker::start(way.key, command)?);
    }
    let proofs = ways.iter().map(|way| way.watched.start()).collect::<Result<Vec<_>>>()?;
    // The kernel's part of strace leaves other code and data in the caches: its turns are the last.
    let (mut order, last): (Vec<usize>, Vec<usize>) =
        (0..ways.len()).partition(|at| ways[*at].key != "strace");
    for at in &order {
        let bursts = bench.pick(WARM_UP, WARM_UP, 1);
        time(bench, call, &ways[*at], &mut workers[*at], on, bursts)?;
    }
    let mut turns = vec![Vec::new(); ways.len()];
    let mut sequence = Vec::new();
    for _ in 0..bench.pick(3, 3, 1) {
        fastrand::shuffle(&mut order);
        sequence.extend_from_slice(&order);
    }
    for at in sequence.into_iter().chain(last) {
        turns[at].push(time(bench, call, &ways[at], &mut workers[at], on, 1)?);
    }
    let mut recorded = Vec::new();
    for ((way, worker), proof) in ways.iter().zip(workers).zip(proofs) {
        if let Some(library) = &way.preload {
            worker.expect_mapped(library)?;
        }
        recorded.push(proof.end(&worker, worker.calls())?);
        worker.finish()?;
    }
    Ok(Round { ns: turns.into_iter().map(|turns| Summary::of(turns).median).collect(), recorded })
}

/// Returns a row for each variant. Comparisons are of the same round.
fn rows(call: &Call, ways: &[Way], times: &[Vec<f64>], instructions: &[Option<f64>]) -> Vec<Value> {
    let at = |key: &str| ways.iter().position(|way| way.key == key).unwrap_or(0);
    let (plain, empty, floor) = (&times[0], &times[at("empty")], &times[at(call.floor())]);
    let difference = |own: &[f64], other: &[f64]| -> Vec<f64> {
        own.iter().zip(other).map(|(own, other)| own - other).collect()
    };
    let floor = difference(floor, empty);
    let mut rows = Vec::new();
    for ((way, own), counted) in ways.iter().zip(times).zip(instructions) {
        let beyond = difference(own, empty);
        let pairs: Vec<(f64, f64)> = beyond.iter().copied().zip(floor.iter().copied()).collect();
        rows.push(json!({
            "call": call.name, "label": call.label, "place": call.place, "key": way.key, "way": way.label,
            "ns": Summary::of(own.clone()), "added_ns": median_with_interval(&difference(own, plain)),
            "beyond_empty_ns": median_with_interval(&beyond), "times_floor": ratio_of_medians(&pairs),
            "added_instructions": counted.zip(instructions[0]).map(|(own, plain)| own - plain),
        }));
    }
    rows
}

fn print(call: &Call, rows: &[Value]) {
    let title = format!("{}, {}", call.label, call.place);
    println!("{title:55} {:>9} {:>9} {:>9} {:>12}", "ns", "added", "× floor", "instructions");
    for row in rows {
        println!(
            "{:55} {:>9} {:>9} {:>9} {:>12}",
            row["way"].as_str().unwrap_or(""),
            number(&row["ns"]["median"], 1),
            number(&row["added_ns"]["median"], 1),
            number(&row["times_floor"]["median"], 2),
            number(&row["added_instructions"], 0)
        );
    }
}

fn ways(dir: &Path, [on, off, left_out]: [&Rc<Played>; 3], nobody: &Path) -> Result<Vec<Way>> {
    let wrapper = |name: &str, flags: &[&str]| -> Result<PathBuf> {
        let path = worker::compile("wrapper", dir, &[&["-shared", "-fPIC", "-ldl"], flags].concat())?;
        let renamed = dir.join(name);
        std::fs::rename(path, &renamed)?;
        Ok(renamed)
    };
    let (empty, floor) = (wrapper("wrapper-empty.so", &[])?, wrapper("wrapper-floor.so", &["-DFLOOR"])?);
    let paths = wrapper("wrapper-paths.so", &["-DFLOOR", "-DPATHS"])?;
    let hook = daemons::built("libmiot_posix.so")?;
    let way = |key, label, preload: Option<&PathBuf>, watched: &Watched| Way {
        key,
        label,
        preload: preload.cloned(),
        watched: watched.clone(),
    };
    let nobody = &Watched::nobody(nobody);
    let [on, off, left_out] =
        [(on, Expected::Requests(1)), (off, Expected::Nothing), (left_out, Expected::Nothing)]
            .map(|(played, expected)| Watched::played(played, expected));
    let mut ways = vec![
        way("plain", "plain", None, nobody),
        way("empty", "wrapper that only forwards the call", Some(&empty), nobody),
        way("floor", "floor wrapper: 2 × rdtsc + 64-byte store", Some(&floor), nobody),
        way("paths", "floor wrapper that stores the path too", Some(&paths), nobody),
        way("hook", "MIOT posix hook, recording", Some(&hook), &on),
        way("off", "MIOT posix hook, switched off", Some(&hook), &off),
        way("left-out", "MIOT posix hook, program left out", Some(&hook), &left_out),
        way("dormant", "MIOT posix hook, no log-client on the node", Some(&hook), nobody),
    ];
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok() {
        ways.push(way("strace", "strace", None, nobody));
    } else {
        eprintln!("strace IS SKIPPED: it is not installed");
    }
    Ok(ways)
}

/// Nanoseconds of one call in some bursts. CPU time, but wall time under strace, because a traced
/// process waits for its tracer.
fn time(bench: &Bench, call: &Call, way: &Way, worker: &mut Worker, on: &Played, bursts: u64) -> Result<f64> {
    if way.key == "strace" {
        let count = bench.pick(1000, 1000, 100);
        return Ok(worker.run(count, 1)?.wall_ns / count as f64);
    }
    let mut ns = 0.0;
    for _ in 0..bursts {
        ns += worker.run(call.burst, 1)?.cpu_ns;
        on.catch_up()?;
    }
    Ok(ns / (call.burst * bursts) as f64)
}

/// Results of a variant of a call on tmpfs.
pub(crate) fn row<'a>(results: &'a Value, call: &str, key: &str) -> Option<&'a Value> {
    let calls = results["calls"].as_array()?;
    calls.iter().find(|row| row["call"] == call && row["place"] == "tmpfs" && row["key"] == key)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| call | file on | way | ns | added ns | 95 % interval | × floor | 95 % interval | added instructions |\n|---|---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in results["calls"].as_array().into_iter().flatten() {
        let word = |key: &str| row[key].as_str().unwrap_or("").to_string();
        let added = &row["added_ns"];
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            word("label"),
            word("place"),
            word("way"),
            number(&row["ns"]["median"], 0),
            number(&added["median"], 1),
            interval(added, 1),
            number(&row["times_floor"]["median"], 2),
            interval(&row["times_floor"], 2),
            number(&row["added_instructions"], 0)
        );
    }
    let _ = writeln!(
        text,
        "\n× floor is the time beyond the wrapper that only forwards, beside that of the floor wrapper, for calls with a path of the one that stores the path too. Lost while measuring: {}.",
        results["miot_lost"]
    );
    text
}
