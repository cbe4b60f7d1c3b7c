//! `estimate`: error of estimated I/O times of applications on two very different kinds of storage,
//! as in tables 3 and 4 of Méndez et al. (2012). The applications are NAS BT-IO on four ranks, and
//! checkpoints with one rank per processor.
//!
//! A model is made of one run of each application in memory. Then, in each round and on each
//! storage, the application runs traced, and `miot estimate` measures the phases with `miot bench`
//! under MPI.

use crate::apps::available;
use crate::apps::mounts::Ext4;
use crate::machine::processors;
use crate::memory::Kept;
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

const LAUNCHER: &str = "mpiexec.mpich";
/// Mount options. With data in the journal, ext4 allocates memory in single pages, which [`Kept`]
/// holds, and not in blocks that were returned to the host.
const DURABLE: &str = "sync,data=journal";

/// Times of a family of phases by `miot estimate` and by the application, round by round.
#[derive(Default)]
struct Rounds {
    estimated: Vec<f64>,
    measured: Vec<f64>,
    error: Vec<f64>,
    bytes: u64,
}

/// An application to be estimated.
struct Application {
    miot: PathBuf,
    program: PathBuf,
    name: String,
    ranks: u64,
    /// Arguments before and after the name of its file.
    before: &'static [&'static str],
    after: [u32; 2],
    model: String,
    /// Benchmark commands that reproduce its phases.
    commands: String,
}

impl Application {
    /// BT-IO, `full` or `simple`.
    fn btio(
        scratch: &Path,
        variant: &'static [&'static str],
        [cells, dumps]: [u32; 2],
    ) -> Result<Application> {
        let name = format!(
            "BT-IO, {}, 4 ranks, {cells} cells a side, {dumps} dumps",
            variant.concat().to_uppercase()
        );
        Application::new(scratch, "btio", name, 4, variant, [cells, dumps])
    }

    /// Checkpoints with one rank per processor.
    fn checkpoint(scratch: &Path, [steps, requests]: [u32; 2]) -> Result<Application> {
        let ranks = processors() as u64;
        let name = format!("Checkpoints, {ranks} ranks, {steps} times {requests} requests of 1 MiB each");
        Application::new(scratch, "checkpoint", name, ranks, &[], [steps, requests])
    }

    fn new(
        scratch: &Path,
        program: &str,
        name: String,
        ranks: u64,
        before: &'static [&'static str],
        after: [u32; 2],
    ) -> Result<Application> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../programs/mpi/{program}.c"));
        Ok(Application {
            miot: daemons::built("miot")?,
            program: mpi::compile(&source, &scratch.join(program))?,
            model: scratch.join(format!("{program}{}.toml", before.concat())).to_string_lossy().into_owned(),
            commands: String::new(),
            name,
            ranks,
            before,
            after,
        })
    }

    /// Creates a model from a run with its file in a directory.
    fn modelled(mut self, on: &Path) -> Result<Application> {
        let trace = Path::new(&self.model).with_extension("trace");
        self.run(on, &trace)?;
        self.miot(&["model", "save", &trace.to_string_lossy(), "-o", &self.model])?;
        self.commands = self.miot(&["estimate", &self.model])?;
        Ok(self)
    }

    /// Command that traces a program, whose arguments are to be appended.
    fn traced(&self, trace: &Path) -> Result<Command> {
        if trace.exists() {
            std::fs::remove_dir_all(trace)?;
        }
        let mut command = Command::new(&self.miot);
        command.args(["run", "--quiet", "--communication", "-o"]).arg(trace).arg("--");
        Ok(command)
    }

    /// Runs the application traced, with its file in a directory.
    fn run(&self, on: &Path, trace: &Path) -> Result<()> {
        let file = on.join("data");
        let mut command = self.traced(trace)?;
        command
            .args([LAUNCHER, "-n", &self.ranks.to_string()])
            .arg(&self.program)
            .args(self.before)
            .arg(&file)
            .args(self.after.map(|number| number.to_string()));
        said(&mut command)?;
        Ok(std::fs::remove_file(file)?)
    }

    fn miot(&self, words: &[&str]) -> Result<String> {
        said(Command::new(&self.miot).args(words))
    }
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let (disk, memory) = (bench.disk.path(), bench.memory.path());
    // As in `apps`: creating file systems takes longer than all the rest of a smoke run.
    let ext4 =
        if bench.is_smoke() { None } else { available("ext4", Ext4::mount_whole(disk, 2 << 30, DURABLE)) };
    let mut storages = vec![("tmpfs", memory)];
    match &ext4 {
        Some(ext4) => storages.push(("ext4, each write durable", ext4.dir())),
        None => storages.push(("the disk of this machine", disk)),
    }
    let _kept = Kept::new(bench.pick(3072, 2048, 16))?;
    let applications = [
        Application::btio(disk, &["full"], bench.pick([96, 20], [96, 4], [24, 2]))?,
        Application::checkpoint(disk, bench.pick([4, 160], [4, 64], [2, 8]))?,
        Application::btio(disk, &["simple"], bench.pick([96, 2], [48, 2], [24, 1]))?,
    ];
    let mut results = Vec::new();
    for application in applications {
        let application = application.modelled(memory)?;
        let rows = compare(&application, &storages, bench.pick(5, 2, 1))?;
        results.push(json!({
            "application": application.name,
            "choice": least(&rows, "estimated_s"), "least": least(&rows, "measured_s"),
            "commands": application.commands.lines().collect::<Vec<_>>(), "rows": rows,
        }));
    }
    Ok(Value::Array(results))
}

/// Compares estimates with the application's times, in turn on each storage.
fn compare(application: &Application, storages: &[(&str, &Path)], rounds: usize) -> Result<Vec<Value>> {
    let trace = Path::new(&application.model).with_extension("trace");
    let mut found: BTreeMap<(usize, String), Rounds> = BTreeMap::new();
    // The first write to a new file system takes longer.
    for (_, dir) in storages {
        application.run(dir, &trace)?;
    }
    for _ in 0..rounds {
        for (at, (name, dir)) in storages.iter().enumerate() {
            application.run(dir, &trace)?;
            // Where ranks wait for time slices, the tracer changes the time, so both are traced.
            let mut command = if application.ranks > processors() as u64 {
                let mut command = application.traced(&trace.with_extension("estimate"))?;
                command.arg(&application.miot);
                command
            } else {
                Command::new(&application.miot)
            };
            command
                .args(["estimate", &application.model, "--mpi", LAUNCHER, "--format", "json"])
                .args(["--repetitions", "20"])
                .args(["--run", &format!("{name}={}", dir.display())])
                .args(["--measured", &format!("{name}={}", trace.display())]);
            let text = said(&mut command)?;
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
    println!("{}, {rounds} rounds", application.name);
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

/// Storage with the least time for all phases.
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
         | storage | phases | MiB | Time(CH) s | Time(MD) s | share % | error % |\n|---|---|--:|--:|--:|--:|--:|\n",
        results["application"].as_str().unwrap_or("")
    );
    let rows = results["rows"].as_array().map_or([].as_slice(), Vec::as_slice);
    let measured = |row: &Value| row["measured_s"]["median"].as_f64().unwrap_or(f64::NAN);
    for row in rows {
        let all = rows.iter().find(|it| it["phases"] == "all" && it["storage"] == row["storage"]);
        let error = &row["error_percent"];
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {} | {} | {:.1} | {} ({} to {}) |",
            row["storage"].as_str().unwrap_or(""),
            row["phases"].as_str().unwrap_or(""),
            row["bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 20),
            number(&row["estimated_s"]["median"], 3),
            number(&row["measured_s"]["median"], 3),
            100.0 * measured(row) / all.map_or(f64::NAN, measured),
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
