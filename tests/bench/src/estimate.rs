//! `estimate`: how far estimates of an application's I/O time are from what it takes, on two kinds of storage that differ much: the tables 3 and 4
//! of Méndez et al. (2012), with the I/O of NAS BT-IO on four ranks.
//!
//! The model is made of one run in memory. Then, in each round and on each storage, the application runs and is traced, and `miot estimate`
//! measures the phases with `miot bench` under MPI.

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
    cells: String,
    dumps: String,
}

impl Application {
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
        said(command.arg(&self.program).arg("full").arg(&file).args([&self.cells, &self.dumps]))?;
        Ok(std::fs::remove_file(file)?)
    }

    fn miot(&self, words: &[&str]) -> Result<String> {
        said(Command::new(&self.miot).args(words))
    }
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let (disk, memory) = (bench.disk.path(), bench.memory.path());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/mpi/btio.c");
    let application = Application {
        program: mpi::compile(&source, &disk.join("btio"))?,
        miot: daemons::built("miot")?,
        cells: bench.pick(96, 96, 24).to_string(),
        dumps: bench.pick(8, 4, 2).to_string(),
    };
    // As in `apps`: file systems of our own take longer than all the rest of a smoke run.
    let ext4 = if bench.is_smoke() { None } else { available("ext4", Ext4::mount_with(disk, "sync")) };
    let mut storages = vec![("tmpfs", memory)];
    match &ext4 {
        Some(ext4) => storages.push(("ext4, each write durable (mount -o sync)", ext4.dir())),
        None => storages.push(("the disk of this machine", disk)),
    }
    let (trace, model) = (disk.join("trace"), disk.join("btio.toml"));
    let [trace_name, model_name] = [&trace, &model].map(|path| path.to_string_lossy().into_owned());
    application.run(memory, &trace)?;
    application.miot(&["model", "save", &trace_name, "-o", &model_name])?;
    let commands = application.miot(&["estimate", &model_name])?;
    print!("{commands}");
    let mut found: BTreeMap<(usize, String), Rounds> = BTreeMap::new();
    for _ in 0..bench.pick(7, 3, 1) {
        for (at, (name, dir)) in storages.iter().enumerate() {
            application.run(dir, &trace)?;
            let text = application.miot(&[
                "estimate",
                &model_name,
                "--mpi",
                LAUNCHER,
                "--repetitions",
                "5",
                "--format",
                "json",
                "--run",
                &format!("{name}={}", dir.display()),
                "--measured",
                &format!("{name}={trace_name}"),
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
    Ok(json!({
        "application": format!("BT-IO, FULL, {RANKS} ranks, {} cells a side, {} dumps", application.cells, application.dumps),
        "choice": least(&rows, "estimated_s"), "least": least(&rows, "measured_s"),
        "commands": commands.lines().collect::<Vec<_>>(), "rows": rows,
    }))
}

/// The storage with the least time for all phases.
fn least(rows: &[Value], key: &str) -> Value {
    let all = rows.iter().filter(|row| row["phases"] == "all");
    let time = |row: &&Value| row[key]["median"].as_f64().unwrap_or(f64::INFINITY);
    let best = all.min_by(|one, other| time(one).total_cmp(&time(other)));
    best.map_or(Value::Null, |row| row["storage"].clone())
}

pub(crate) fn table(results: &Value) -> String {
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
