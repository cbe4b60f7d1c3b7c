//! Programs that run with and without the hook, their preparation, and the measurement of a run.

use crate::stats::Repeat;
use crate::{Bench, process, worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One program on one file system.
pub(crate) struct App {
    pub(crate) what: String,
    pub(crate) place: &'static str,
    /// Number of runs of each variant. An additional one first lays out files and warms caches. For
    /// programs that are measured in slices, the number of rounds.
    pub(crate) repeat: Repeat,
    /// The figure whose interval must be narrow.
    pub(crate) judged: Judged,
    /// Returns the command. `Length` selects a short one for counting instructions.
    pub(crate) command: Box<dyn Fn(Length) -> Command>,
    /// Called before each run.
    pub(crate) reset: Box<dyn Fn() -> Result<()>>,
    pub(crate) measure: Measure,
    /// Number of requests that a run makes at least.
    pub(crate) requests: u64,
}

impl App {
    /// Returns whether the program is measured in slices of its time instead of whole runs.
    pub(crate) fn is_sliced(&self) -> bool {
        matches!(self.measure, Measure::Fio { .. })
    }

    /// Fails unless the recorded runs have made their requests, each of which is recorded or
    /// counted as lost, and no more other calls than they may. Returns the counts for the row.
    pub(crate) fn expect_recorded(&self, records: u64, made: Made) -> Result<Value> {
        let Made { runs, requests, more } = made;
        ensure!(
            runs > 0 && made.allows(records),
            "{} on {}: {records} records of {runs} runs with {requests} requests and {more:?} other calls",
            self.what,
            self.place
        );
        Ok(json!({ "runs": runs, "requests": requests, "more": more, "records": records }))
    }
}

/// What recorded runs have done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// Number of runs.
    pub(crate) runs: u64,
    /// Number of requests of all runs. Each must be recorded or counted as lost.
    pub(crate) requests: u64,
    /// Maximum number of other calls of all runs. `None`: unknown.
    pub(crate) more: Option<u64>,
}

impl Made {
    /// Returns whether the runs can have this number of records.
    fn allows(self, records: u64) -> bool {
        records.checked_sub(self.requests).is_some_and(|others| self.more.is_none_or(|more| others <= more))
    }
}

/// Figure of a program that has a target.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// Added time, %.
    Percent,
    /// Added time beside that of the floor wrapper.
    TimesFloor,
}

/// Returns repetitions that end when the interval is this narrow. `seconds` limits those of a full
/// run.
pub(crate) fn repeat(bench: &Bench, half_width: f64, seconds: u64) -> Repeat {
    Repeat {
        least: bench.pick(7, 3, 1),
        most: bench.pick(60, 5, 1),
        half_width,
        time: Duration::from_secs(bench.pick(seconds, seconds / 10, 0)),
    }
}

/// Returns rounds of slices that end when the interval is this narrow. `seconds` limits those of a
/// full run. Of fewer than six values, even the interval from the least to the greatest holds the
/// median with less than 95 % (order statistics: 1 − 2 · 0.5ⁿ).
fn rounds(bench: &Bench, half_width: f64, seconds: u64) -> Repeat {
    Repeat {
        least: bench.pick(7, 1, 1),
        most: bench.pick(60, 5, 1),
        half_width,
        time: Duration::from_secs(bench.pick(seconds, 8, 0)),
    }
}

/// Length of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Timed,
    Counted,
    /// Until a signal ends it.
    Sliced,
}

/// Compared quantity of a run.
#[derive(Clone, Copy)]
pub(crate) enum Measure {
    /// Time from start to end of the process, in milliseconds.
    Process,
    /// fio's own figures, in nanoseconds per request. Its log may lack up to `in_flight` requests
    /// of its report, which complete at its end.
    Fio { requests: u64, in_flight: u64 },
}

impl Measure {
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Measure::Process => "ms",
            Measure::Fio { .. } => "ns per request",
        }
    }
}

/// Wall time and CPU time of one run.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
}

/// Runs a command once.
pub(crate) fn once(mut command: Command, measure: Measure) -> Result<Took> {
    let name = command.get_program().to_string_lossy().into_owned();
    let started = Instant::now();
    let Measure::Fio { requests, .. } = measure else {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("{name} is not installed"))?;
        let usage = process::wait_for(&mut child)?;
        let wall = started.elapsed().as_secs_f64() * 1e3;
        ensure!(usage.success, "{name} failed, status {:#x}", usage.status);
        return Ok(Took { wall, cpu: usage.cpu * 1e3 });
    };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("fio")?;
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        std::io::Read::read_to_string(&mut out, &mut text)?;
    }
    let usage = process::wait(&mut child, Duration::from_secs(120));
    ensure!(usage.success, "{command:?} failed, status {:#x}: {text}", usage.status);
    let report: Value = serde_json::from_str(&text[text.find('{').context("fio printed no JSON")?..])?;
    let job = &report["jobs"][0];
    let (mut done, mut latency) = (0.0, 0.0);
    for direction in ["read", "write"] {
        let ios = job[direction]["total_ios"].as_f64().unwrap_or(0.0);
        done += ios;
        latency += ios * job[direction]["clat_ns"]["mean"].as_f64().unwrap_or(0.0);
    }
    ensure!(done >= requests as f64, "fio made {done} of {requests} requests");
    let share = (job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0)) / 100.0;
    let cpu_ms = job["job_runtime"].as_f64().unwrap_or(0.0) * share;
    Ok(Took { wall: latency / done, cpu: cpu_ms * 1e6 / done })
}

/// fio with one thread and 4 KiB requests, in five modes.
pub(crate) fn fio(bench: &Bench, place: &'static str, dir: &Path) -> Vec<App> {
    let slow = place == "GlusterFS";
    let mut apps = Vec::new();
    for (label, rw, direct, engine) in [
        ("fio, random read, page cache", "randread", false, "psync"),
        ("fio, random write, page cache", "randwrite", false, "psync"),
        ("fio, random read, direct", "randread", true, "psync"),
        ("fio, random write, direct", "randwrite", true, "psync"),
        ("fio, libaio, 32 random reads at a time, direct", "randread", true, "libaio"),
    ] {
        let requests = match (slow, direct) {
            (true, _) => bench.pick(4_000, 1_000, 100),
            (false, true) => bench.pick(5_000, 1_000, 100),
            (false, false) => bench.pick(300_000, 50_000, 1_000),
        };
        // In a smoke run, one of each kind is enough.
        if bench.is_smoke() && direct == rw.ends_with("read") {
            continue;
        }
        let file = dir.join("fio");
        let command = move |length| {
            let requests = if length == Length::Counted {
                requests.min(if direct { 5_000 } else { 100_000 })
            } else {
                requests
            };
            let mut command = Command::new("fio");
            command
                .args(["--name=bench", "--bs=4k", "--iodepth=32", "--size=64m"])
                .args(["--output-format=json", "--randrepeat=1", "--fallocate=none", "--invalidate=0"])
                .arg(format!("--rw={rw}"))
                .arg(format!("--ioengine={engine}"))
                .arg(format!("--direct={}", u8::from(direct)))
                .arg(format!("--filename={}", file.display()));
            match length {
                // A process, because after a signal fio 3.33 may wait forever for a thread that has
                // ended (compare fio's issue 1934).
                Length::Sliced => command.args(["--time_based", "--runtime=1d"]),
                _ => command.args(["--thread".to_string(), format!("--io_size={}k", requests * 4)]),
            };
            command
        };
        // A read from the page cache of a GlusterFS mount makes no request to its server.
        let judged = match (slow, direct, rw) {
            (false, false, _) | (true, false, "randread") => Judged::TimesFloor,
            _ => Judged::Percent,
        };
        apps.push(App {
            what: label.into(),
            place,
            repeat: match judged {
                Judged::TimesFloor => rounds(bench, 0.1, 100),
                Judged::Percent => rounds(bench, 0.6, 200),
            },
            judged,
            command: Box::new(command),
            reset: Box::new(|| Ok(())),
            measure: Measure::Fio { requests, in_flight: if engine == "libaio" { 32 } else { 0 } },
            requests,
        });
    }
    apps
}

/// Creates, stats and removes many files: from one process where the file system answers at once,
/// from many where each waits for a server.
pub(crate) fn storm(bench: &Bench, place: &'static str, dir: &Path) -> Result<App> {
    let program = worker::compile("storm", bench.disk.path(), &[])?;
    let slow = place == "GlusterFS";
    let files = if slow { bench.pick(3_000, 500, 100) } else { bench.pick(100_000, 5_000, 200) };
    let (processes, by) = if slow { (16, " by 16 processes") } else { (1, "") };
    let folder = dir.join("storm");
    std::fs::create_dir_all(&folder)?;
    let command = move |length| {
        // Valgrind counts each process separately.
        let (files, processes) =
            if length == Length::Counted { (files.min(5_000), 1) } else { (files, processes) };
        let mut command = Command::new(&program);
        command.arg(&folder).arg(files.to_string()).arg(processes.to_string());
        command
    };
    Ok(App {
        what: format!("create, stat, unlink of {files} files{by}"),
        place,
        repeat: if slow { repeat(bench, 1.0, 60) } else { repeat(bench, 0.5, 45) },
        judged: Judged::Percent,
        command: Box::new(command),
        reset: Box::new(|| Ok(())),
        measure: Measure::Process,
        requests: 3 * files,
    })
}

/// `git status` in an unchanged tree.
pub(crate) fn git(bench: &Bench, place: &'static str, dir: &Path) -> Result<App> {
    /// Files per folder.
    const EACH: u64 = 100;
    let tree = dir.join("tree");
    let files = bench.pick(50_000, 5_000, 200);
    for folder in 0..files / EACH {
        let folder = tree.join(format!("part-{:02}/folder-{folder:03}", folder % 20));
        std::fs::create_dir_all(&folder)?;
        for file in 0..EACH {
            let text = format!("file {file} of {}\n", folder.display());
            std::fs::write(folder.join(format!("source-{file:02}.txt")), text)?;
        }
    }
    let git = {
        let tree = tree.clone();
        move || {
            let mut command = Command::new("git");
            // Without the configuration of the user.
            command
                .arg("-C")
                .arg(&tree)
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .env("GIT_CONFIG_NOSYSTEM", "1");
            command
        }
    };
    for step in [
        &["init", "-q"][..],
        &["-c", "core.fsync=none", "add", "."],
        &[
            "-c",
            "user.name=b",
            "-c",
            "user.email=b@localhost",
            "-c",
            "gc.auto=0",
            "commit",
            "-q",
            "-m",
            "all",
        ],
    ] {
        ensure!(
            git().args(step).status().context("git is not installed")?.success(),
            "git {}",
            step.join(" ")
        );
    }
    Ok(App {
        what: format!("`git status`, {files} files"),
        place,
        repeat: repeat(bench, 1.0, 40),
        judged: Judged::Percent,
        command: Box::new(move |_| {
            let mut command = git();
            command.args(["status", "--porcelain"]);
            command
        }),
        reset: Box::new(|| Ok(())),
        measure: Measure::Process,
        requests: files,
    })
}

/// sqlite3 with a script of inserts and queries on a new database.
pub(crate) fn sqlite(bench: &Bench, place: &'static str, dir: &Path) -> Result<App> {
    let script = |rows: u64, single: u64| {
        // Without waiting for the disk, whose time varies by more than any hook costs.
        let mut text = String::from(
            "PRAGMA synchronous = OFF;\nCREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, value INTEGER);\n\
             CREATE INDEX by_value ON t (value);\n",
        );
        for row in 0..single {
            let _ =
                writeln!(text, "INSERT INTO t (name, value) VALUES ('single {row}', {});", row * 7919 % 1000);
        }
        let _ = write!(
            text,
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})\n\
             INSERT INTO t (name, value) SELECT 'row ' || i, i * 7919 % 10007 FROM n;\n\
             SELECT count(*), sum(value) FROM t WHERE value BETWEEN 100 AND 5000;\n\
             SELECT value, count(*) FROM t GROUP BY value ORDER BY 2 DESC LIMIT 10;\n\
             SELECT name FROM t WHERE name LIKE '%77%' ORDER BY name LIMIT 5;\n"
        );
        text
    };
    let (timed, counted) = (dir.join("timed.sql"), dir.join("counted.sql"));
    let single = bench.pick(2_000, 200, 20);
    std::fs::write(&timed, script(bench.pick(200_000, 10_000, 500), single))?;
    std::fs::write(&counted, script(2_000, 200))?;
    let database = dir.join("bench.db");
    let removed = database.clone();
    Ok(App {
        what: "sqlite3, inserts and queries".into(),
        place,
        repeat: repeat(bench, 0.25, 45),
        judged: Judged::Percent,
        command: Box::new(move |length| {
            let script = if length == Length::Counted { &counted } else { &timed };
            let mut command = Command::new("sqlite3");
            command.arg(&database).arg(format!(".read {}", script.display()));
            command
        }),
        reset: Box::new(move || match std::fs::remove_file(&removed) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }),
        measure: Measure::Process,
        requests: single,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_must_be_those_of_the_recorded_runs() {
        let made = Made { runs: 2, requests: 1000, more: Some(20) };
        for (records, allowed) in [(999, false), (1000, true), (1020, true), (1021, false)] {
            assert_eq!(made.allows(records), allowed, "{records}");
        }
        assert!(Made { more: None, ..made }.allows(5000));
    }
}
