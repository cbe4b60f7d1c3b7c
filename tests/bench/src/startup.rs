//! `startup`: overhead of the hook in short-lived programs, as in a shell loop.
//!
//! Each round starts the same small program once in every variant and waits for it, so that all
//! variants see the same machine. The order changes from round to round, because a program that
//! recorded leaves work for the log-client, which may slow down the next variant. The overhead is
//! the median over the rounds of the difference to the plain run of the round.

use crate::daemons::{self, Daemons};
use crate::played::{Recorded, recorded_in};
use crate::report::number;
use crate::stats::{Summary, median_with_interval};
use crate::{Bench, pipeline, process, worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of I/O calls of `c/short.c`.
const CALLS: u64 = 5;

struct Way {
    key: &'static str,
    label: &'static str,
    preload: Option<PathBuf>,
    /// Value of `MIOT_DIR`.
    node: PathBuf,
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let dir = bench.disk.path();
    let daemons = Daemons::start(&dir.join("daemons"), &bench.memory.path().join("node"), "drop-newest")?;
    let program = worker::compile("short", dir, &[])?;
    let empty = worker::compile("empty", dir, &["-shared", "-fPIC"])?;
    let hook = daemons::built("libmiot_posix.so")?;
    let mpi = daemons::built("libmiot_mpi.so")?;
    [&empty, &hook, &mpi].into_iter().try_for_each(|library| worker::expect_preloads(library))?;
    let nobody = bench.memory.path().join("nobody");
    let way = |key, label, preload: Option<&PathBuf>, node: &Path| Way {
        key,
        label,
        preload: preload.cloned(),
        node: node.into(),
    };
    let ways = [
        way("plain", "plain", None, &nobody),
        way("empty", "an empty preloaded library", Some(&empty), &nobody),
        // The posix hook loads the mpi hook beside it only for programs with MPI.
        way("dormant", "MIOT posix and mpi hooks, no log-client", Some(&hook), &nobody),
        way("recording", "MIOT posix and mpi hooks, recording", Some(&hook), daemons.node()),
        way("mpi", "MIOT mpi hook alone, no log-client", Some(&mpi), &nobody),
    ];
    let file = bench.memory.path().join("short");
    let rounds = bench.pick(10_000, 1_000, 20);
    let (mut wall, mut cpu) = (vec![Vec::new(); ways.len()], vec![Vec::new(); ways.len()]);
    for round in 0..rounds as usize {
        for step in 0..ways.len() {
            let at = order(round, step, ways.len());
            let way = &ways[at];
            let mut command = command(&program, &file, way);
            let started = Instant::now();
            let mut child = command.spawn().context("short")?;
            let usage = process::wait_for(&mut child)?;
            wall[at].push(started.elapsed().as_nanos() as f64 / 1e3);
            cpu[at].push(usage.cpu * 1e6);
            ensure!(usage.success, "{}: the program failed", way.label);
        }
    }
    let left = clean_after(&daemons)?;
    let trace = daemons.trace().to_path_buf();
    let ended = daemons.stop()?;
    let rows = pipeline::count(&trace)?;
    // Each program's process and file are rows of their own tables, not events.
    let wanted = CALLS * rounds;
    ensure!(
        rows.events == wanted && rows.lost == 0,
        "{} events of {wanted}, {} lost",
        rows.events,
        rows.lost
    );
    ensure!(recorded_in(&nobody) == Recorded::default(), "a dormant program has recorded");
    let results: Vec<Value> = ways
        .iter()
        .enumerate()
        .map(|(at, way)| {
            let added: Vec<f64> = wall[at].iter().zip(&wall[0]).map(|(own, plain)| own - plain).collect();
            let mean = cpu[at].iter().sum::<f64>() / cpu[at].len() as f64;
            json!({
                "key": way.key, "way": way.label, "us": Summary::of(wall[at].clone()),
                "added_us": median_with_interval(&added), "cpu_us": mean,
            })
        })
        .collect();
    println!("{:45} {:>9} {:>9} {:>9}", "one short program, µs", "wall", "added", "CPU");
    for row in &results {
        println!(
            "{:45} {:>9} {:>9} {:>9}",
            row["way"].as_str().unwrap_or(""),
            number(&row["us"]["median"], 1),
            number(&row["added_us"]["median"], 1),
            number(&row["cpu_us"], 1)
        );
    }
    Ok(json!({
        "ways": results, "programs": rounds, "events": rows.events, "lost": rows.lost,
        "segments_left": left, "client_us": ended.client.cpu * 1e6 / rounds as f64,
        "server_us": ended.server.cpu * 1e6 / rounds as f64,
    }))
}

fn command(program: &Path, file: &Path, way: &Way) -> Command {
    let mut command = Command::new(program);
    command.arg(file).env("MIOT_DIR", &way.node).stdin(Stdio::null());
    if let Some(library) = &way.preload {
        command.env("LD_PRELOAD", library);
    }
    command
}

/// Returns the variant of a step. Each variant takes each position equally often, and follows each
/// other one, forwards and backwards.
fn order(round: usize, step: usize, ways: usize) -> usize {
    let forwards = (round / 2 + step) % ways;
    if round.is_multiple_of(2) { forwards } else { ways - 1 - forwards }
}

/// Waits until the log-client has removed the segments of the programs. Returns the number of
/// remaining segments.
fn clean_after(daemons: &Daemons) -> Result<usize> {
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        let names = std::fs::read_dir(daemons.node())?.flatten().map(|entry| entry.file_name());
        let left = names.filter(|name| name.to_string_lossy().ends_with(miot_proto::segment::SUFFIX)).count();
        if left == 0 || Instant::now() > patience {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = format!(
        "| one program of {CALLS} I/O calls, {} of each | µs, median | added µs, median | 95 % interval | CPU µs, mean |\n|---|--:|--:|--:|--:|\n",
        results["programs"]
    );
    for row in results["ways"].as_array().into_iter().flatten() {
        let added = &row["added_us"];
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} to {} | {} |",
            row["way"].as_str().unwrap_or(""),
            number(&row["us"]["median"], 1),
            number(&added["median"], 1),
            number(&added["low"], 1),
            number(&added["high"], 1),
            number(&row["cpu_us"], 1)
        );
    }
    let _ = writeln!(
        text,
        "\n{} events delivered, {} lost, {} segments left; {} µs of CPU per program in the log-client, {} µs in the log-server.",
        results["events"],
        results["lost"],
        results["segments_left"],
        number(&results["client_us"], 0),
        number(&results["server_us"], 0)
    );
    text
}
