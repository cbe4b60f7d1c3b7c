//! `analysis`: time and memory of analyzing a long trace, compared with DuckDB on the same files.
//!
//! The trace is synthetic ([`synthetic`]), once with full length and once with a tenth of it. The
//! memory of an analysis must not depend on the length.

mod checks;
pub(crate) mod synthetic;

use crate::Bench;
use crate::machine::processors;
use crate::process::{self, Measured};
use crate::report::number;
use crate::stats::Summary;
use anyhow::{Context, Result, bail, ensure};
use checks::Check;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Maximum memory of an analysis, MiB.
const ALLOWED_MIB: f64 = 512.0;
/// Timeout: longer than any analysis takes.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);

/// Analyses: arguments of `miot`, in which DIR is the trace and OUT the output; and whether the
/// output is right.
const ANALYSES: [(&str, &[&str], Check); 10] = [
    ("stat", &["stat", "DIR"], checks::summary),
    ("stat --by job", &["stat", "DIR", "--by", "job"], checks::counters),
    ("stat --by file", &["stat", "DIR", "--by", "file"], checks::counters),
    ("stat --by layer", &["stat", "DIR", "--by", "layer"], checks::layers),
    ("stat --show bursts", &["stat", "DIR", "--show", "bursts"], checks::bursts),
    ("stat --show idle", &["stat", "DIR", "--show", "idle"], checks::idle),
    ("stat --show cycles", &["stat", "DIR", "--show", "cycles"], checks::cycles),
    ("stat --show patterns", &["stat", "DIR", "--show", "patterns"], checks::patterns),
    ("stat --show findings", &["stat", "DIR", "--show", "findings"], checks::findings),
    ("report", &["report", "DIR", "-o", "OUT"], checks::report),
];

/// Queries in SQL for both engines.
const QUERIES: [(&str, &str); 2] = [
    (
        "group by node, layer, operation",
        "SELECT node, layer, op, count(*) AS requests, sum(duration) AS duration, max(duration) AS longest, \
         sum(CASE WHEN result > 0 THEN result ELSE 0 END) AS bytes \
         FROM events GROUP BY node, layer, op ORDER BY node, layer, op",
    ),
    (
        "join processes and files, group by job and path",
        "SELECT p.job, f.path, count(*) AS requests, sum(CASE WHEN e.result > 0 THEN e.result ELSE 0 END) AS bytes \
         FROM events e JOIN processes p ON e.process = p.process \
         JOIN (SELECT DISTINCT file, path FROM files) f ON e.file = f.file \
         WHERE e.layer = 'posix' AND e.op IN ('read', 'pread', 'write', 'pwrite') \
         GROUP BY p.job, f.path ORDER BY bytes DESC, f.path LIMIT 100",
    ),
];

const DUCKDB: &str = "
import csv, duckdb, sys
trace, sql, threads = sys.argv[1:]
db = duckdb.connect()
db.execute(f\"SET threads = {threads}\")
db.execute(\"SET memory_limit = '1GiB'\")
# It goes to standard output.
db.execute(\"SET enable_progress_bar = false\")
for table in ['events', 'processes', 'files']:
    db.execute(f\"CREATE VIEW {table} AS SELECT * FROM '{trace}/{table}/*.parquet'\")
rows = db.execute(sql)
out = csv.writer(sys.stdout, lineterminator='\\n')
out.writerow([column[0] for column in rows.description])
out.writerows(rows.fetchall())
";

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let events: u64 = match std::env::var("MIOT_ANALYSIS_EVENTS") {
        Ok(asked) => asked.parse().context("MIOT_ANALYSIS_EVENTS is no number")?,
        Err(_) => bench.pick(100_000_000, 1_000_000, 50_000),
    };
    let programs = Programs::find()?;
    let (mut analyses, mut queries) = (Vec::new(), Vec::new());
    let mut traces = Vec::new();
    // Long analyses are repeated less often.
    for (events, repetitions) in [(events, bench.pick(1, 2, 1)), (events / 10, bench.pick(3, 3, 1))] {
        let dir = bench.disk.path().join(format!("analysis-{events}"));
        println!("making a trace of {events} events");
        let written = synthetic::write(&dir, events)?;
        traces.push(json!({
            "events": events, "parts": std::fs::read_dir(dir.join("events"))?.count(),
            "mib": mib(crate::daemons::folder_bytes(&dir.join("events"))),
        }));
        println!("{events} events\n{:>50} {:>9} {:>9}", "", "seconds", "peak MiB");
        for (name, arguments, check) in ANALYSES {
            let runs = (0..repetitions).map(|_| programs.miot(arguments, &dir));
            analyses.push(figures(name, "miot", events, &runs.collect::<Result<Vec<_>>>()?));
            // In a run of its own: writing the tables as JSON takes time.
            check(&programs.miot_json(arguments, &dir)?, &written)
                .with_context(|| format!("{name} has not read the whole trace"))?;
        }
        for (name, sql) in QUERIES {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..repetitions {
                let (ours_said, run) = programs.miot_query(sql, &dir)?;
                ours.push(run);
                if let Some((said, run)) = programs.duckdb(sql, &dir)? {
                    ensure!(said == ours_said, "miot query and DuckDB differ: {ours_said}\n{said}");
                    theirs.push(run);
                }
            }
            queries.push(figures(name, "miot query", events, &ours));
            if !theirs.is_empty() {
                queries.push(figures(name, "DuckDB", events, &theirs));
            }
        }
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(json!({
        "threads": processors(), "traces": traces, "analyses": analyses, "queries": queries,
        "allowed_mib": ALLOWED_MIB,
    }))
}

struct Programs {
    miot: PathBuf,
    python: Option<PathBuf>,
}

impl Programs {
    fn find() -> Result<Programs> {
        let miot = std::env::current_exe()?.with_file_name("miot");
        for name in ["miot", "miot-query"] {
            ensure!(miot.with_file_name(name).exists(), "{name} is not built beside miot-bench");
        }
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-venv/bin/python");
        if !python.exists() {
            eprintln!("analysis beside DuckDB IS SKIPPED: tests/setup.sh installs it");
        }
        Ok(Programs { miot, python: Some(python).filter(|python| python.exists()) })
    }

    fn miot(&self, arguments: &[&str], dir: &Path) -> Result<Measured> {
        Ok(measured(self.command(arguments, dir, "/dev/null").stdout(Stdio::null()))?.1)
    }

    /// Returns the output of an analysis as JSON.
    fn miot_json(&self, arguments: &[&str], dir: &Path) -> Result<Value> {
        let mut command = self.command(arguments, dir, "-");
        command.args(["--format", "json"]).stderr(Stdio::inherit());
        let output = command.output().with_context(|| format!("{command:?}"))?;
        ensure!(output.status.success(), "{command:?} failed");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn command(&self, arguments: &[&str], dir: &Path, out: &str) -> Command {
        let mut command = Command::new(&self.miot);
        command.args(arguments.iter().map(|word| match *word {
            "DIR" => dir.as_os_str(),
            "OUT" => out.as_ref(),
            word => word.as_ref(),
        }));
        command
    }

    fn miot_query(&self, sql: &str, dir: &Path) -> Result<(String, Measured)> {
        measured(
            Command::new(&self.miot)
                .arg("query")
                .arg(dir)
                .args([sql, "--format", "csv"])
                .stdout(Stdio::piped()),
        )
    }

    fn duckdb(&self, sql: &str, dir: &Path) -> Result<Option<(String, Measured)>> {
        let Some(python) = &self.python else { return Ok(None) };
        let threads = processors().to_string();
        measured(
            Command::new(python).args(["-c", DUCKDB]).arg(dir).args([sql, &threads]).stdout(Stdio::piped()),
        )
        .map(Some)
    }
}

/// Returns the output of a command and its resource usage. The output is shorter than a pipe's
/// capacity.
fn measured(command: &mut Command) -> Result<(String, Measured)> {
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    let out = child.stdout.take();
    let reader = std::thread::spawn(move || out.map_or(Ok(String::new()), std::io::read_to_string));
    let measured = process::measure(&mut child, PATIENCE);
    let said = match reader.join() {
        Ok(said) => said?,
        Err(_) => bail!("its output could not be read"),
    };
    ensure!(measured.usage.success, "{command:?} failed");
    Ok((said, measured))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn figures(name: &str, by: &str, events: u64, runs: &[Measured]) -> Value {
    let seconds = Summary::of(runs.iter().map(|run| run.seconds).collect());
    let peak = runs.iter().map(|run| mib(run.peak)).fold(0.0, f64::max);
    println!("{:>50} {:9.2} {peak:9.0}", format!("{name} ({by})"), seconds.median);
    json!({
        "name": name, "by": by, "events": events, "events_per_s": events as f64 / seconds.median,
        "seconds": seconds, "cpu_s": Summary::of(runs.iter().map(|run| run.usage.cpu).collect()), "peak_mib": peak,
    })
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::new();
    for trace in results["traces"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "- {} events in {} parts, {} MiB",
            trace["events"],
            trace["parts"],
            number(&trace["mib"], 0)
        );
    }
    text += "\n| | events | seconds | million events/s | CPU seconds | memory at most, MiB | DuckDB's seconds | times DuckDB's |\n|---|--:|--:|--:|--:|--:|--:|--:|\n";
    let queries = results["queries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ours = queries.iter().filter(|row| row["by"] == "miot query");
    for row in results["analyses"].as_array().into_iter().flatten().chain(ours) {
        let same = |other: &&Value| {
            other["name"] == row["name"] && other["events"] == row["events"] && other["by"] == "DuckDB"
        };
        let duckdb = queries.iter().find(same).and_then(|row| row["seconds"]["median"].as_f64());
        let seconds = row["seconds"]["median"].as_f64().unwrap_or(f64::NAN);
        let (theirs, times) = duckdb.map_or(("".into(), "".into()), |theirs| {
            (format!("{theirs:.1}"), format!("{:.2}", seconds / theirs))
        });
        let _ = writeln!(
            text,
            "| {} `{}` | {} | {seconds:.1} | {:.1} | {} | {} | {theirs} | {times} |",
            row["by"].as_str().unwrap_or(""),
            row["name"].as_str().unwrap_or(""),
            row["events"],
            row["events_per_s"].as_f64().unwrap_or(f64::NAN) / 1e6,
            number(&row["cpu_s"]["median"], 1),
            number(&row["peak_mib"], 0),
        );
    }
    text
}
