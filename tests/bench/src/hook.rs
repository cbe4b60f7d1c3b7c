//! `hook`: overhead of the preloaded `posix` hook per call, in a loop of `pread` or `stat`,
//! compared with minimal wrappers in C.
//!
//! Every variant runs in its own process, all of them on the same processor. The overhead of a
//! variant is the median over the repetitions of its difference to the plain run of the same
//! repetition.

use crate::daemons;
use crate::op::again;
use crate::played::{Played, Reads};
use crate::process::Aside;
use crate::report::{interval, number};
use crate::stats::{Summary, median_with_interval};
use crate::worker::{self, Worker};
use crate::{Bench, machine};
use anyhow::Result;
use miot_proto::control::Settings;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Program in `c/` that makes the calls.
const PROGRAM: &str = "calls";

/// A call that is made in a loop.
struct Call {
    name: &'static str,
    label: &'static str,
    place: &'static str,
    file: PathBuf,
    /// Calls per run. Their records fill less than half a lane.
    burst: u64,
}

/// A variant of making the call.
struct Way {
    key: &'static str,
    label: &'static str,
    preload: Option<PathBuf>,
    /// Value of `MIOT_DIR`. A log-client need not exist there.
    node: PathBuf,
}

impl Way {
    /// Command of the program in this variant.
    fn command(&self, program: &Path, call: &Call) -> Command {
        let mut command = if self.key == "strace" {
            let mut strace = Command::new("strace");
            strace.args(["-f", "-e", "trace=pread64,newfstatat", "-o", "/dev/null"]).arg(program);
            strace
        } else {
            Command::new(program)
        };
        command.arg(call.name).arg(&call.file).env("MIOT_DIR", &self.node);
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        command
    }
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let aside = Aside::step()?;
    let (dir, shm) = (bench.disk.path(), bench.memory.path());
    let on = Played::start(&shm.join("on"), Reads::Copies, &Played::ample())?;
    let off = Settings { enabled: false, ..Settings::default() };
    let off = Played::start(&shm.join("off"), Reads::Nothing, &off)?;
    let left_out = Played::start(&shm.join("left-out"), Reads::Nothing, &Played::ample())?;
    left_out.leave_out(PROGRAM)?;
    let ways = ways(dir, [&on, &off, &left_out], &shm.join("nobody"))?;
    let program = worker::compile(PROGRAM, dir, &[])?;
    let call = |name, label, place, file, burst| Call { name, label, place, file, burst };
    let calls = [
        call("pread", "`pread` of 4 KiB", "tmpfs", shm.join("data"), bench.pick(15_000, 15_000, 1000)),
        call("pread", "`pread` of 4 KiB", "disk", dir.join("data"), bench.pick(15_000, 15_000, 1000)),
        // Its path takes further slots.
        call("stat", "`stat` of a path", "tmpfs", shm.join("data"), bench.pick(3_000, 3_000, 300)),
    ];
    let mut results = Vec::new();
    for call in &calls {
        let title = format!("{}, {}", call.label, call.place);
        println!("{title:55} {:>9} {:>9} {:>12}", "ns", "added", "instructions");
        let mut workers = Vec::new();
        for way in &ways {
            let mut command = way.command(&program, call);
            aside.pin(&mut command);
            workers.push(Worker::start(way.key, command)?);
        }
        let mut times = vec![Vec::new(); ways.len()];
        for repetition in 0..=bench.pick(60, 7, 2) {
            let mut order: Vec<usize> = (0..ways.len()).collect();
            if repetition % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let ns = time(bench, call, &ways[at], &mut workers[at], &on)?;
                if repetition > 0 {
                    times[at].push(ns);
                }
            }
        }
        for worker in workers {
            worker.finish()?;
        }
        let mut plain_instructions = None;
        for (way, own) in ways.iter().zip(&times) {
            let instructions = if way.key == "strace" {
                None
            } else {
                let command = again(&way.command(&program, call));
                Some(worker::instructions(way.key, command, bench.pick(1000, 300, 20))?)
            };
            let plain = *plain_instructions.get_or_insert(instructions.unwrap_or(0.0));
            let differences: Vec<f64> = own.iter().zip(&times[0]).map(|(own, plain)| own - plain).collect();
            let row = json!({
                "call": call.name, "label": call.label, "place": call.place, "key": way.key, "way": way.label, "ns": Summary::of(own.clone()),
                "added_ns": median_with_interval(&differences),
                "added_instructions": instructions.map(|own| own - plain),
            });
            println!(
                "{:55} {:>9} {:>9} {:>12}",
                way.label,
                number(&row["ns"]["median"], 1),
                number(&row["added_ns"]["median"], 1),
                number(&row["added_instructions"], 0)
            );
            results.push(row);
        }
    }
    Ok(json!({ "calls": results, "miot_lost": on.losses(), "processors": machine::processors() }))
}

fn ways(dir: &Path, [on, off, left_out]: [&Played; 3], nobody: &Path) -> Result<Vec<Way>> {
    let wrapper = |name: &str, flags: &[&str]| -> Result<PathBuf> {
        let path = worker::compile("wrapper", dir, &[&["-shared", "-fPIC", "-ldl"], flags].concat())?;
        let renamed = dir.join(name);
        std::fs::rename(path, &renamed)?;
        Ok(renamed)
    };
    let (empty, floor) = (wrapper("wrapper-empty.so", &[])?, wrapper("wrapper-floor.so", &["-DFLOOR"])?);
    let hook = daemons::built("libmiot_posix.so")?;
    let way = |key, label, preload: Option<&PathBuf>, node: &Path| Way {
        key,
        label,
        preload: preload.cloned(),
        node: node.into(),
    };
    let mut ways = vec![
        way("plain", "plain", None, nobody),
        way("empty", "wrapper that only forwards the call", Some(&empty), nobody),
        way("floor", "floor wrapper: 2 × rdtsc + 64-byte store", Some(&floor), nobody),
        way("hook", "MIOT posix hook, recording", Some(&hook), on.dir()),
        way("off", "MIOT posix hook, switched off", Some(&hook), off.dir()),
        way("left-out", "MIOT posix hook, program left out", Some(&hook), left_out.dir()),
        way("dormant", "MIOT posix hook, no log-client on the node", Some(&hook), nobody),
    ];
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok() {
        ways.push(way("strace", "strace", None, nobody));
    } else {
        eprintln!("strace IS SKIPPED: it is not installed");
    }
    Ok(ways)
}

/// Nanoseconds of one call. CPU time, but wall time under strace, because a traced process waits
/// for its tracer.
fn time(bench: &Bench, call: &Call, way: &Way, worker: &mut Worker, on: &Played) -> Result<f64> {
    if way.key == "strace" {
        let count = bench.pick(1000, 1000, 100);
        return Ok(worker.run(count, 1)?.wall_ns / count as f64);
    }
    let (runs, count) = (bench.pick(4, 2, 1), call.burst);
    let mut ns = 0.0;
    for _ in 0..runs {
        ns += worker.run(count, 1)?.cpu_ns;
        on.catch_up()?;
    }
    Ok(ns / (count * runs) as f64)
}

/// Overhead of a variant on `pread` on one file system, nanoseconds.
pub(crate) fn added(results: &Value, place: &str, key: &str) -> Option<f64> {
    let calls = results["calls"].as_array()?;
    calls.iter().find(|row| row["call"] == "pread" && row["place"] == place && row["key"] == key)?["added_ns"]
        ["median"]
        .as_f64()
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| call | file on | way | ns | added ns | 95 % interval | added instructions |\n|---|---|---|--:|--:|--:|--:|\n",
    );
    for row in results["calls"].as_array().into_iter().flatten() {
        let word = |key: &str| row[key].as_str().unwrap_or("").to_string();
        let added = &row["added_ns"];
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            word("label"),
            word("place"),
            word("way"),
            number(&row["ns"]["median"], 0),
            number(&added["median"], 1),
            interval(added, 1),
            number(&row["added_instructions"], 0)
        );
    }
    let _ = writeln!(text, "\nLost while measuring: {}.", results["miot_lost"]);
    text
}
