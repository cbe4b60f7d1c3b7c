//! `bench`: `miot bench` compared with fio for patterns of one process, and with an MPI-IO program
//! for patterns on a shared file; its own overhead; and whether known delays appear in the right
//! place.
//!
//! In each round both measure the same, one directly after the other, and the order reverses. The
//! compared value is the median over the rounds of the ratio.

use crate::apps::available;
use crate::apps::mounts::Ext4;
use crate::memory::Kept;
use crate::process::said;
use crate::report::{interval, number};
use crate::stats::{Summary, median_with_interval};
use crate::{Bench, daemons, mpi};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const LAUNCHER: [&str; 3] = ["mpiexec.mpich", "-n", "2"];

/// A pattern of one process, in the form of either program.
struct Single {
    what: &'static str,
    /// A run of a suite.
    ours: String,
    fio: Vec<String>,
}

/// A pattern of two processes on a shared file.
struct Shared {
    what: &'static str,
    direction: &'static str,
    pattern: &'static str,
    manner: &'static str,
}

const SHARED: [Shared; 4] = [
    Shared {
        what: "write, strided, independent",
        direction: "write",
        pattern: "strided",
        manner: "independent",
    },
    Shared {
        what: "write, segmented, independent",
        direction: "write",
        pattern: "segmented",
        manner: "independent",
    },
    Shared {
        what: "write, strided, collective",
        direction: "write",
        pattern: "strided",
        manner: "collective",
    },
    Shared {
        what: "read, strided, independent",
        direction: "read",
        pattern: "strided",
        manner: "independent",
    },
];

/// Repetitions of the only run of a suite.
fn repetitions(text: &str) -> Result<Vec<Value>> {
    let outcome: Value = serde_json::from_str(text.trim()).with_context(|| text.to_owned())?;
    Ok(outcome["repetitions"].as_array().cloned().unwrap_or_default())
}

fn bandwidth(text: &str) -> Result<f64> {
    let all = repetitions(text)?;
    Ok(Summary::of(all.iter().filter_map(|one| one["bandwidth"].as_f64()).collect()).median)
}

/// Writes a suite with one run to a file.
fn suite(dir: &Path, processes: u64, run: &str, repetitions: usize) -> Result<PathBuf> {
    let path = dir.join("suite.toml");
    // A fixed number of repetitions.
    let head = format!(
        "processes = {processes}\nrepetitions = {repetitions}\nprecision = 1e-9\n[[run]]\nname = \"x\"\n"
    );
    std::fs::write(&path, head + run)?;
    Ok(path)
}

fn ours(launcher: &[&str], on: &Path, suite: &Path) -> Result<String> {
    let miot = daemons::built("miot")?;
    let mut command = match launcher {
        [] => Command::new(&miot),
        [name, options @ ..] => {
            let mut command = Command::new(name);
            command.args(options).arg(&miot);
            command
        }
    };
    command.arg("bench").args(if launcher.is_empty() { None } else { Some("--mpi") });
    said(command.arg(suite).args(["--format", "json", "--dir"]).arg(on))
}

/// Runs fio on a new file, like `miot bench`: pages that have been read before cost less.
fn fio(on: &Path, options: &[String]) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args([
        "--name=x",
        "--ioengine=psync",
        "--thread",
        "--output-format=json",
        "--scramble_buffers=0",
        "--iomem_align=4096",
    ]);
    command.args(["--fallocate=none", "--gtod_reduce=1"]);
    let file = on.join("fio");
    let text = said(command.args(options).arg("--filename").arg(&file))?;
    std::fs::remove_file(file)?;
    let report: Value = serde_json::from_str(&text[text.find('{').unwrap_or(0)..])?;
    let job = &report["jobs"][0];
    let direction = if options.iter().any(|option| option.contains("read")) { "read" } else { "write" };
    let done = job[direction]["io_bytes"].as_u64().unwrap_or(0);
    ensure!(done > 0 && job["error"] == 0, "fio has moved {done} bytes: {}", job["error"]);
    let bytes = job[direction]["bw_bytes"].as_f64().context("fio reports no bandwidth")?;
    Ok(bytes / f64::from(1 << 20))
}

fn singles(bench: &Bench, on_disk: bool) -> Vec<Single> {
    let mib = if on_disk { bench.pick(256, 128, 4) } else { bench.pick(1024, 512, 8) };
    let (direct, cache) = if on_disk { ("1", "direct") } else { ("0", "keep") };
    let fio = |rw: &str, block: &str, more: &[&str]| -> Vec<String> {
        let mut options = vec![
            format!("--rw={rw}"),
            format!("--bs={block}"),
            format!("--size={mib}m"),
            format!("--direct={direct}"),
        ];
        options.extend(more.iter().map(|option| (*option).to_owned()));
        options
    };
    let run = |pattern: &str, operation: &str| {
        format!("{pattern}\noperation = \"{operation}\"\ncache = \"{cache}\"\nverify = \"none\"\n")
    };
    let in_order = |block: u64| {
        format!("pattern = \"sequential\"\nblock = {}\ncount = {}", block << 10, (mib << 10) / block)
    };
    let strided = format!("pattern = \"strided\"\nblock = 65536\ncount = {}\nstride = 131072", mib * 8);
    let anywhere = |block: u64| {
        let starts = shuffled((mib << 10) / block).into_iter().map(|place| place * (block << 10));
        let starts: Vec<String> = starts.map(|start| start.to_string()).collect();
        format!("pattern = \"looped\"\nblock = {}\nstarts = [[{}]]", block << 10, starts.join(","))
    };
    let size = format!("--io_size={}m", mib / 2);
    let mut singles = vec![
        Single {
            what: "write again, sequential, 1 MiB",
            ours: run(&in_order(1024), "re-write"),
            fio: fio("write", "1m", &["--overwrite=1"]),
        },
        Single {
            what: "read, random, 64 KiB",
            ours: run(&anywhere(64), "read"),
            fio: fio("randread", "64k", &[]),
        },
        Single {
            what: "read, sequential, 1 MiB",
            ours: run(&in_order(1024), "read"),
            fio: fio("read", "1m", &[]),
        },
        Single {
            what: "write again, strided, 64 KiB of 128",
            ours: run(&strided, "re-write"),
            fio: fio("write:64k", "64k", &["--overwrite=1", &size]),
        },
    ];
    if on_disk {
        singles.truncate(2);
    }
    singles
}

/// The numbers below `count` in a fixed pseudo-random order.
fn shuffled(count: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..all.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(at, (random >> 33) as usize % (at + 1));
    }
    all
}

/// Runs both in turn, round by round.
fn compare(
    rounds: usize,
    mut ours: impl FnMut() -> Result<f64>,
    mut theirs: impl FnMut() -> Result<f64>,
) -> Result<Value> {
    let (mut own, mut other, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (ours, theirs) = if round % 2 == 0 {
            let first = ours()?;
            (first, theirs()?)
        } else {
            let first = theirs()?;
            (ours()?, first)
        };
        own.push(ours);
        other.push(theirs);
        ratios.push(ours / theirs);
    }
    Ok(json!({
        "miot": Summary::of(own), "other": Summary::of(other), "ratio": median_with_interval(&ratios),
    }))
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let (disk, memory) = (bench.disk.path(), bench.memory.path());
    let rounds = bench.pick(15, 5, 1);
    let _kept = Kept::new(bench.pick(3072, 2048, 16))?;
    let mut rows = Vec::new();
    println!("{:8} {:38} {:14} {:>10} {:>10} {:>7}", "on", "pattern", "beside", "miot", "other", "ratio");
    let mut add = |place: &str, what: &str, beside: &str, mut row: Value| {
        let cell = |key: &str, digits| number(&row[key]["median"], digits);
        let figures = [cell("miot", 0), cell("other", 0), cell("ratio", 3)];
        println!("{place:8} {what:38} {beside:14} {:>10} {:>10} {:>7}", figures[0], figures[1], figures[2]);
        row["on"] = place.into();
        row["pattern"] = what.into();
        row["beside"] = beside.into();
        rows.push(row);
    };
    let ext4 = if bench.is_smoke() { None } else { available("ext4", Ext4::mount(disk)) };
    let places = [Some(("tmpfs", memory)), ext4.as_ref().map(|ext4| ("ext4", ext4.dir()))];
    for (name, on) in places.into_iter().flatten() {
        for single in singles(bench, name != "tmpfs") {
            let suite = suite(disk, 1, &single.ours, 1)?;
            let row = compare(rounds, || bandwidth(&ours(&[], on, &suite)?), || fio(on, &single.fio))?;
            add(name, single.what, "fio", row);
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/shared.c");
    let program = mpi::compile(&source, &disk.join("shared"))?;
    let (block, count) = (1u64 << 20, bench.pick(512u64, 256, 4));
    for shared in &SHARED {
        let is_collective = shared.manner == "collective";
        let run = format!(
            "pattern = \"{}\"\nblock = {block}\ncount = {count}\noperation = \"{}\"\ninterface = \"mpi-io\"\ncollective = {is_collective}\nverify = \"none\"\n",
            shared.pattern, shared.direction
        );
        let suite = suite(disk, 2, &run, 3)?;
        let theirs = || -> Result<f64> {
            let mut command = Command::new(LAUNCHER[0]);
            command.args(&LAUNCHER[1..]).arg(&program);
            command.args([shared.direction, shared.pattern, shared.manner]).arg(memory.join("shared"));
            let text = said(command.args([block.to_string(), count.to_string(), "3".to_owned()]))?;
            Ok(Summary::of(text.lines().filter_map(|line| line.parse().ok()).collect()).median)
        };
        let row = compare(rounds, || bandwidth(&ours(&LAUNCHER, memory, &suite)?), theirs)?;
        add("tmpfs", shared.what, "MPI-IO program", row);
    }
    let (own, delays) = (own_time(bench)?, delays(bench)?);
    println!("{}", itself(&own, &delays));
    Ok(json!({ "rows": rows, "own_ns": own, "delays": delays }))
}

/// Nanoseconds of a call without the I/O.
fn own_time(bench: &Bench) -> Result<Value> {
    let count = bench.pick(1_000_000u64, 1_000_000, 1000);
    let run = format!(
        "pattern = \"sequential\"\nblock = 4096\ncount = {count}\noperation = \"none\"\nfile-per-process = true\n"
    );
    let suite = suite(bench.disk.path(), 1, &run, bench.pick(10, 5, 1))?;
    let all = repetitions(&ours(&[], bench.memory.path(), &suite)?)?;
    let of = |one: &Value| Some(one["times"]["accesses"].as_f64()? * 1e9 / one["calls"].as_f64()?);
    Ok(json!(Summary::of(all.iter().filter_map(of).collect())))
}

/// Injected delays in milliseconds, and the measured S, T and B: both ranks start late, the second
/// one later, and it runs longer.
fn delays(bench: &Bench) -> Result<Value> {
    let run = "pattern = \"segmented\"\nblock = 4096\ncount = 1\nlate = [\"100ms\", \"150ms\"]\nlinger = [\"0s\", \"80ms\"]\n";
    let path = suite(bench.disk.path(), 2, run, bench.pick(10, 5, 1))?;
    let mut ways = serde_json::Map::new();
    for (name, launcher) in [("processes", &[][..]), ("mpi", &LAUNCHER)] {
        let all = repetitions(&ours(launcher, bench.memory.path(), &path)?)?;
        let part = |part: &str| {
            Summary::of(all.iter().filter_map(|one| Some(one["times"][part].as_f64()? * 1e3)).collect())
        };
        ways.insert(
            name.into(),
            json!({ "s_ms": part("start"), "t_ms": part("accesses"), "b_ms": part("barrier") }),
        );
    }
    Ok(Value::Object(ways))
}

fn itself(own: &Value, delays: &Value) -> String {
    let mut text = format!(
        "A call with the I/O left out takes {} ns (least {}, greatest {}).\n\n\
         | ranks are late by 100 and 150 ms, and the second lingers for 80 | S ms | T ms | B ms |\n|---|--:|--:|--:|\n| injected | 100 | 50 | 80 |\n",
        number(&own["median"], 0),
        number(&own["min"], 0),
        number(&own["max"], 0)
    );
    for (name, found) in delays.as_object().into_iter().flatten() {
        let cell = |key: &str| number(&found[key]["median"], 2);
        let _ = writeln!(text, "| found, {name} | {} | {} | {} |", cell("s_ms"), cell("t_ms"), cell("b_ms"));
    }
    text
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| on | pattern | beside | miot bench, MiB/s | the other, MiB/s | ratio | 95 % interval |\n|---|---|---|--:|--:|--:|--:|\n",
    );
    for row in results["rows"].as_array().into_iter().flatten() {
        let words = ["on", "pattern", "beside"].map(|key| row[key].as_str().unwrap_or(""));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            words.join(" | "),
            number(&row["miot"]["median"], 0),
            number(&row["other"]["median"], 0),
            number(&row["ratio"]["median"], 3),
            interval(&row["ratio"], 3)
        );
    }
    text + "\n" + &itself(&results["own_ns"], &results["delays"])
}
