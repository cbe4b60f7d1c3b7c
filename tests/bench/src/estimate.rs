//! `estimate`: how far estimates of an application's I/O time are from what it takes, on two kinds of storage that differ much: the tables 3 and 4
//! of Méndez et al. (2012), with the I/O of NAS BT-IO on four ranks.
//!
//! A model is made of one run in memory of each variant. Then, in each round and on each storage, the application runs and is traced, and `miot
//! estimate` measures the phases with `miot bench` under MPI.

use crate::apps::available;
use crate::apps::mounts::Ext4;
use crate::process::said;
use crate::report::number;
use crate::stats::Summary;
use crate::{Bench, daemons, mpi};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;

const RANKS: &str = "4";
const LAUNCHER: &str = "mpiexec.mpich";

/// What `miot estimate` and the application say of a family of phases, round by round.
#[derive(Default)]
struct Rounds {
    estimated: Vec<f64>,
    measured: Vec<f64>,
    error: Vec<f64>,
    bytes: u64,
}

struct Application {
    program: PathBuf,
    miot: PathBuf,
    /// `full` or `simple`.
    variant: &'static str,
    cells: String,
    dumps: String,
    model: String,
    /// How a benchmark mimics its phases.
    commands: String,
}

impl Application {
    /// Compiles it, and makes a model of a run with its file in a directory.
    fn new(
        variant: &'static str,
        [cells, dumps]: [u32; 2],
        scratch: &Path,
        on: &Path,
    ) -> Result<Application> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/mpi/btio.c");
        let model = scratch.join(format!("{variant}.toml")).to_string_lossy().into_owned();
        let mut application = Application {
            program: mpi::compile(&source, &scratch.join("btio"))?,
            miot: daemons::built("miot")?,
            variant,
            cells: cells.to_string(),
            dumps: dumps.to_string(),
            model,
            commands: String::new(),
        };
        let trace = scratch.join("trace");
        application.run(on, &trace)?;
        application.miot(&["model", "save", &trace.to_string_lossy(), "-o", &application.model])?;
        application.commands = application.miot(&["estimate", &application.model])?;
        Ok(application)
    }

    fn says(&self) -> String {
        let Application { variant, cells, dumps, .. } = self;
        format!("BT-IO, {}, {RANKS} ranks, {cells} cells a side, {dumps} dumps", variant.to_uppercase())
    }

    /// Runs it with its file in a directory, and traces it.
    fn run(&self, on: &Path, trace: &Path) -> Result<()> {
        let file = on.join("data");
        if trace.exists() {
            std::fs::remove_dir_all(trace)?;
        }
        let mut command = Command::new(&self.miot);
        command
            .args(["run", "--quiet", "--communication", "-o"])
            .arg(trace)
            .args(["--", LAUNCHER, "-n", RANKS]);
        said(command.arg(&self.program).arg(self.variant).arg(&file).args([&self.cells, &self.dumps]))?;
        Ok(std::fs::remove_file(file)?)
    }

    fn miot(&self, words: &[&str]) -> Result<String> {
        said(Command::new(&self.miot).args(words))
    }
}

/// Some virtual machines give free memory back to their host after two seconds, and a write into the page cache that has to ask for it
/// takes several times as long. An application would then pay for memory that repetitions of a benchmark get from one another, so both begin
/// right after this much has been used, in large pages as the page cache takes it.
fn warm(mib: usize) -> Result<()> {
    let length = mib << 20;
    // SAFETY: a mapping of its own, written within its bounds and unmapped before its address is forgotten.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let memory = libc::mmap(null_mut(), length, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        anyhow::ensure!(
            memory != libc::MAP_FAILED,
            "no {mib} MiB of memory: {}",
            std::io::Error::last_os_error()
        );
        libc::madvise(memory, length, libc::MADV_HUGEPAGE);
        memory.cast::<u8>().write_bytes(1, length);
        libc::munmap(memory, length);
    }
    Ok(())
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let (disk, memory) = (bench.disk.path(), bench.memory.path());
    // As in `apps`: file systems of our own take longer than all the rest of a smoke run.
    let ext4 = if bench.is_smoke() { None } else { available("ext4", Ext4::mount_with(disk, "sync")) };
    let mut storages = vec![("tmpfs", memory)];
    match &ext4 {
        Some(ext4) => storages.push(("ext4, each write durable (mount -o sync)", ext4.dir())),
        None => storages.push(("the disk of this machine", disk)),
    }
    let mut applications = Vec::new();
    for (variant, size) in
        [("full", bench.pick([96, 4], [96, 4], [24, 2])), ("simple", bench.pick([96, 2], [48, 2], [24, 1]))]
    {
        let application = Application::new(variant, size, disk, memory)?;
        let rounds = bench.pick(3, 2, 1);
        let rows = compare(&application, &storages, rounds, || warm(bench.pick(1024, 1024, 16)))?;
        applications.push(json!({
            "application": application.says(),
            "choice": least(&rows, "estimated_s"), "least": least(&rows, "measured_s"),
            "commands": application.commands.lines().collect::<Vec<_>>(), "rows": rows,
        }));
    }
    Ok(Value::Array(applications))
}

/// Estimates beside what the application takes, in turn on each storage.
fn compare(
    application: &Application,
    storages: &[(&str, &Path)],
    rounds: usize,
    warm: impl Fn() -> Result<()>,
) -> Result<Vec<Value>> {
    let trace = Path::new(&application.model).with_extension("trace");
    let mut found: BTreeMap<(usize, String), Rounds> = BTreeMap::new();
    for _ in 0..rounds {
        for (at, (name, dir)) in storages.iter().enumerate() {
            warm()?;
            application.run(dir, &trace)?;
            warm()?;
            let text = application.miot(&[
                "estimate",
                &application.model,
                "--mpi",
                LAUNCHER,
                "--repetitions",
                "5",
                "--format",
                "json",
                "--run",
                &format!("{name}={}", dir.display()),
                "--measured",
                &format!("{name}={}", trace.display()),
            ])?;
            let report: Value = serde_json::from_str(&text)?;
            for row in report["estimates"].as_array().into_iter().flatten() {
                let phases = row["phases"].as_str().unwrap_or("?").to_owned();
                let rounds = found.entry((at, phases)).or_default();
                let figure = |key: &str| row[key].as_f64().with_context(|| format!("no {key} in {row}"));
                rounds.estimated.push(figure("seconds")?);
                rounds.measured.push(figure("measured_seconds")?);
                rounds.error.push(figure("error_relative")?);
                rounds.bytes = row["bytes"].as_u64().unwrap_or(0);
            }
        }
    }
    let mut rows = Vec::new();
    println!("{}, {rounds} rounds", application.says());
    println!("{:42} {:8} {:>11} {:>11} {:>8}", "storage", "phases", "Time(CH) s", "Time(MD) s", "error %");
    for ((at, phases), rounds) in found {
        let row = json!({
            "storage": storages[at].0, "phases": phases, "bytes": rounds.bytes,
            "estimated_s": Summary::of(rounds.estimated), "measured_s": Summary::of(rounds.measured),
            "error_percent": Summary::of(rounds.error),
        });
        let cell = |key: &str, digits| number(&row[key]["median"], digits);
        println!(
            "{:42} {phases:8} {:>11} {:>11} {:>8}",
            storages[at].0,
            cell("estimated_s", 3),
            cell("measured_s", 3),
            cell("error_percent", 1)
        );
        rows.push(row);
    }
    Ok(rows)
}

/// The storage with the least time for all phases.
fn least(rows: &[Value], key: &str) -> Value {
    let all = rows.iter().filter(|row| row["phases"] == "all");
    let time = |row: &&Value| row[key]["median"].as_f64().unwrap_or(f64::INFINITY);
    let best = all.min_by(|one, other| time(one).total_cmp(&time(other)));
    best.map_or(Value::Null, |row| row["storage"].clone())
}

pub(crate) fn table(results: &Value) -> String {
    results.as_array().into_iter().flatten().map(of_application).collect::<Vec<_>>().join("\n")
}

fn of_application(results: &Value) -> String {
    let mut text = format!(
        "{}. Medians over the rounds; in brackets the least and the greatest error.\n\n\
         | storage | phases | MiB | Time(CH) s | Time(MD) s | error % |\n|---|---|--:|--:|--:|--:|\n",
        results["application"].as_str().unwrap_or("")
    );
    for row in results["rows"].as_array().into_iter().flatten() {
        let error = &row["error_percent"];
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {} | {} | {} ({} to {}) |",
            row["storage"].as_str().unwrap_or(""),
            row["phases"].as_str().unwrap_or(""),
            row["bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 20),
            number(&row["estimated_s"]["median"], 3),
            number(&row["measured_s"]["median"], 3),
            number(&error["median"], 1),
            number(&error["min"], 1),
            number(&error["max"], 1)
        );
    }
    let name = |key: &str| results[key].as_str().unwrap_or("–").to_owned();
    let _ = writeln!(
        text,
        "\nChosen by the estimate: {}. Least time when measured: {}. As commands of IOR:\n\n```\n{}\n```",
        name("choice"),
        name("least"),
        results["commands"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    );
    text
}
