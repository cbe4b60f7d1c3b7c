//! `apps`: overhead of the `posix` hook in real programs on real file systems, with both daemons
//! running.
//!
//! The variants of a program run in turn, and the order reverses with each round. The overhead is
//! the median over the rounds of the ratio to the plain run of the same round, with its 95 %
//! interval.

pub(crate) mod mounts;
pub(crate) mod programs;

use crate::daemons::{self, Daemons};
use crate::report::{interval, number};
use crate::stats::{Summary, median_with_interval};
use crate::{Bench, pipeline, process, worker};
use anyhow::{Context, Result, ensure};
use mounts::{Ext4, Gluster};
use programs::{App, Length, Measure, Took, once};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let dir = bench.disk.path();
    let daemons = Daemons::start(&dir.join("daemons"), &bench.memory.path().join("node"), "drop-newest")?;
    let libraries = [wrapper(bench)?, daemons::built("libmiot_posix.so")?];
    libraries.iter().try_for_each(|library| worker::expect_preloads(library))?;
    let mut results = Vec::new();
    println!(
        "{:46} {:10} {:>12} {:>9} {:>18} {:>9} {:>12} {:>9}",
        "program", "on", "plain", "hook %", "95 % interval", "CPU %", "instructions", "%"
    );
    let ext4 = available("ext4 on a loop device", Ext4::mount(dir));
    if let Some(ext4) = &ext4 {
        let place = ext4.dir();
        let mut apps = programs::fio(bench, "ext4", place);
        apps.push(programs::storm(bench, "ext4", place)?);
        apps.extend(available("git", programs::git(bench, "ext4", place)));
        apps.push(programs::sqlite(bench, "ext4", place)?);
        compare(bench, &apps, &daemons, &libraries, &mut results)?;
    }
    drop(ext4);
    // Starting and stopping it takes half a minute: more than all the rest of a smoke run.
    let gluster = if bench.is_smoke() { None } else { available("GlusterFS", Gluster::mount(dir)) };
    if let Some(gluster) = &gluster {
        let mut apps = programs::fio(bench, "GlusterFS", gluster.dir());
        apps.push(programs::storm(bench, "GlusterFS", gluster.dir())?);
        compare(bench, &apps, &daemons, &libraries, &mut results)?;
    }
    drop(gluster);
    let trace = daemons.trace().to_path_buf();
    let ended = daemons.stop()?;
    let rows = pipeline::count(&trace)?;
    let per_event = |seconds: f64| seconds * 1e9 / rows.events.max(1) as f64;
    Ok(json!({
        "programs": results,
        "trace": {
            "events": rows.events,
            "lost": rows.lost,
            "bytes_per_event": daemons::folder_bytes(&trace) as f64 / rows.events.max(1) as f64,
            "client_ns_per_event": per_event(ended.client.cpu),
            "server_ns_per_event": per_event(ended.server.cpu),
        },
    }))
}

/// Returns the value, or prints what is missing and returns `None`.
pub(crate) fn available<T>(what: &str, made: Result<T>) -> Option<T> {
    made.inspect_err(|error| eprintln!("{what} IS SKIPPED: {error:#}")).ok()
}

/// Builds the wrapper of `pread` and `pwrite` that is the lower bound for any hook.
fn wrapper(bench: &Bench) -> Result<PathBuf> {
    worker::compile("wrapper", bench.disk.path(), &["-shared", "-fPIC", "-ldl", "-DFLOOR"])
}

fn compare(
    bench: &Bench,
    apps: &[App],
    daemons: &Daemons,
    libraries: &[PathBuf; 2],
    results: &mut Vec<Value>,
) -> Result<()> {
    let [floor, hook] = libraries;
    for app in apps {
        let is_fio = matches!(app.measure, Measure::Fio { .. });
        // The wrapper covers only fio's calls.
        let ways: Vec<Option<&Path>> =
            [None, Some(hook.as_path())].into_iter().chain(is_fio.then_some(Some(floor.as_path()))).collect();
        let prepared = |way: Option<&Path>, length| {
            let mut command = (app.command)(length);
            command.env("MIOT_DIR", daemons.node());
            if let Some(library) = way {
                command.env("LD_PRELOAD", library);
            }
            command
        };
        let before = daemons.records()?;
        let mut runs = 0;
        let mut took = vec![Vec::<Took>::new(); ways.len()];
        for round in usize::from(!app.warms_up)..=app.repetitions {
            let mut order: Vec<usize> = (0..ways.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                (app.reset)()?;
                quiet(daemons);
                let run = once(prepared(ways[at], Length::Timed), app.measure)
                    .with_context(|| format!("{} on {}", app.what, app.place))?;
                runs += u64::from(ways[at] == Some(hook.as_path()));
                if round > 0 {
                    took[at].push(run);
                }
            }
        }
        let recorded = app.expect_recorded(daemons.records()? - before, runs)?;
        let mut instructions = Vec::new();
        for way in ways.iter().take(2) {
            (app.reset)()?;
            // Valgrind takes a second to start.
            let counted = !bench.is_smoke() || results.is_empty();
            instructions.push(if counted { count(prepared(*way, Length::Counted))? } else { None });
        }
        (app.reset)()?;
        let mut row = row(app, &took, &instructions);
        row["recorded"] = recorded;
        results.push(row);
    }
    Ok(())
}

/// Waits until the daemons have finished the work of the last run.
pub(crate) fn quiet(daemons: &Daemons) {
    let patience = Instant::now() + Duration::from_secs(20);
    let spent = || daemons.pids().iter().map(|pid| process::threads_cpu(*pid)).sum::<Duration>();
    let (mut before, step) = (spent(), Duration::from_millis(60));
    while Instant::now() < patience {
        std::thread::sleep(step);
        let now = spent();
        if now.abs_diff(before) < step / 20 {
            return;
        }
        before = now;
    }
}

/// Number of user-mode instructions of a run, counted by cachegrind. `None` where valgrind is not
/// installed.
fn count(command: Command) -> Result<Option<f64>> {
    let mut counted = Command::new("valgrind");
    counted
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--"])
        .arg(command.get_program())
        .args(command.get_args());
    for (key, value) in command.get_envs() {
        counted.env(key, value.unwrap_or_default());
    }
    let Ok(output) = counted.stdin(Stdio::null()).output() else { return Ok(None) };
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "under valgrind: {text}");
    let refs = text.lines().find(|line| line.contains("I   refs:") || line.contains("I refs:"));
    let digits: String = refs
        .and_then(|line| line.rsplit_once(':'))
        .map(|(_, number)| number.chars().filter(char::is_ascii_digit).collect())
        .unwrap_or_default();
    Ok(digits.parse().ok())
}

fn row(app: &App, took: &[Vec<Took>], instructions: &[Option<f64>]) -> Value {
    let [plain, hook] = [&took[0], &took[1]];
    let percent = |own: &[Took], of: fn(&Took) -> f64| {
        let ratios: Vec<f64> =
            own.iter().zip(plain).map(|(own, plain)| (of(own) / of(plain) - 1.0) * 100.0).collect();
        median_with_interval(&ratios)
    };
    let summary = |runs: &[Took], of: fn(&Took) -> f64| Summary::of(runs.iter().map(of).collect());
    let wall: fn(&Took) -> f64 = |run| run.wall;
    let cpu: fn(&Took) -> f64 = |run| run.cpu;
    let added = instructions[0].zip(instructions[1]).map(|(plain, hook)| (hook / plain - 1.0) * 100.0);
    let row = json!({
        "what": app.what, "place": app.place, "unit": app.measure.unit(),
        "wall": [summary(plain, wall), summary(hook, wall)],
        "cpu": [summary(plain, cpu), summary(hook, cpu)],
        "wall_percent": percent(hook, wall), "cpu_percent": percent(hook, cpu),
        "floor_percent": took.get(2).map(|floor| percent(floor, wall)),
        "instructions": instructions, "instructions_percent": added,
    });
    println!(
        "{:46} {:10} {:>12} {:>9} {:>18} {:>9} {:>12} {:>9}",
        app.what,
        app.place,
        number(&row["wall"][0]["median"], 1),
        number(&row["wall_percent"]["median"], 2),
        interval(&row["wall_percent"], 2),
        number(&row["cpu_percent"]["median"], 2),
        number(&row["instructions"][0], 0),
        number(&row["instructions_percent"], 2)
    );
    row
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| program | on | plain | unit | added by the hook, % | 95 % interval | by the floor wrapper, % | CPU plain | CPU added, % | user instructions, millions | added, % |\n|---|---|--:|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in results["programs"].as_array().into_iter().flatten() {
        let word = |key: &str| row[key].as_str().unwrap_or("").to_string();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            word("what"),
            word("place"),
            number(&row["wall"][0]["median"], 0),
            word("unit"),
            number(&row["wall_percent"]["median"], 2),
            interval(&row["wall_percent"], 2),
            number(&row["floor_percent"]["median"], 2),
            number(&row["cpu"][0]["median"], 0),
            number(&row["cpu_percent"]["median"], 2),
            row["instructions"][0].as_f64().map_or("–".into(), |count| format!("{:.1}", count / 1e6)),
            number(&row["instructions_percent"], 2)
        );
    }
    let trace = &results["trace"];
    let _ = writeln!(
        text,
        "\nThe daemons ran beside it: {} events recorded, {} lost (policy `drop-newest`), {} bytes per event sealed, log-client {} ns and log-server {} ns of CPU per event.",
        trace["events"],
        trace["lost"],
        number(&trace["bytes_per_event"], 1),
        number(&trace["client_ns_per_event"], 0),
        number(&trace["server_ns_per_event"], 0)
    );
    text
}
