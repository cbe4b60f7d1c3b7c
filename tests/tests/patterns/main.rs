//! `miot stat --show`: throughput, idle periods, cycles, patterns and findings of programs with
//! known I/O.
//!
//! Expected values are derived from the program's arguments, or, for times, from the times of its
//! events by other methods than the tool's.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bad;
mod findings;
mod sharing;
mod system;
mod time;

use miot_tests::built::built;
use miot_tests::compile::compile;
use miot_tests::process::{Ended, run};
use miot_tests::test_dir::fresh;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with `tests/programs/pattern.c`, compiled.
struct PatternProgram {
    folder: PathBuf,
    program: PathBuf,
}

impl PatternProgram {
    fn new(name: &str) -> PatternProgram {
        let folder = fresh(&format!("patterns-{name}"));
        let program = compile(&folder, "pattern", &["pattern.c"], &[]);
        PatternProgram { folder, program }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Creates a file of zeros.
    fn file(&self, bytes: u64) {
        std::fs::File::create(self.data()).unwrap().set_len(bytes).unwrap();
    }

    /// Runs the program traced with this number of ranks, or without any. `words` are the mode and
    /// its numbers.
    fn traced(&self, ranks: usize, words: &str) -> Trace {
        self.scripted(ranks, words, "")
    }

    /// Runs the program traced with the highest scheduling priority that root can request.
    fn undisturbed(&self, words: &str) -> Trace {
        self.started_by("chrt --fifo 1 ", 0, words, "")
    }

    /// Like [`PatternProgram::traced`], with the script `meanwhile` in parallel.
    fn scripted(&self, ranks: usize, words: &str, meanwhile: &str) -> Trace {
        self.started_by("", ranks, words, meanwhile)
    }

    fn started_by(&self, starter: &str, ranks: usize, words: &str, meanwhile: &str) -> Trace {
        let (mode, numbers) = words.split_once(' ').unwrap_or((words, ""));
        let call = format!("{starter}{} {mode} {} {numbers}", self.program.display(), self.data().display());
        let script = if ranks == 0 {
            format!("exec {call}")
        } else {
            format!(
                "set -e; all=; for rank in $(seq 0 {}); do MIOT_RANK=$rank {call} & all=\"$all $!\"; done; {meanwhile}
                 for one in $all; do wait $one; done",
                ranks - 1
            )
        };
        let trace = Trace(self.folder.join("trace"));
        let _ = std::fs::remove_dir_all(&trace.0);
        let mut miot = Command::new(&built().miot);
        miot.args(["run", "--quiet", "-o"]).arg(&trace.0).args(["--", "sh", "-c", &script]);
        let _ = run(miot.env("MIOT_JOB", "known")).success();
        trace
    }
}

/// A trace directory.
struct Trace(PathBuf);

impl Trace {
    fn shown(&self, what: &str, options: &[&str]) -> Ended {
        shown(&self.0, what, options)
    }

    fn json(&self, what: &str, options: &[&str]) -> Value {
        let told = self.shown(what, &[&["--format", "json"], options].concat()).success().stdout;
        let value: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(value["missing"]["lost"], 0, "{value:#}");
        value
    }
}

fn shown(trace: &Path, what: &str, options: &[&str]) -> Ended {
    run(Command::new(&built().miot).arg("stat").arg(trace).args(["--show", what]).args(options))
}

/// Row of a list for this executable.
fn of_program<'a>(rows: &'a Value, exe: &str) -> &'a Value {
    let found = rows.as_array().unwrap().iter().find(|row| row["exe"].as_str().unwrap().ends_with(exe));
    found.unwrap_or_else(|| panic!("no {exe} in {rows:#}"))
}

/// Row of a list for the file of this name.
fn of_file<'a>(rows: &'a Value, name: &str) -> &'a Value {
    let found = rows.as_array().unwrap().iter().find(|row| row["path"].as_str().unwrap().ends_with(name));
    found.unwrap_or_else(|| panic!("no {name} in {rows:#}"))
}
