//! Runs programs under `miot run` and reads their trace.

use crate::built::built;
use crate::process::{Ended, run};
use crate::trace::{PrintedEvent, rows};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Command `miot run -o TRACE -- COMMAND…` in `directory`.
#[must_use]
pub fn command<S: AsRef<OsStr>>(directory: &Path, trace: &Path, words: &[S]) -> Command {
    let mut miot = Command::new(&built().miot);
    miot.arg("run").arg("-o").arg(trace).arg("--").args(words).current_dir(directory);
    miot
}

/// Runs `miot run -o TRACE -- COMMAND…` in `directory` to its end.
#[must_use]
pub fn traced<S: AsRef<OsStr>>(directory: &Path, trace: &Path, words: &[S]) -> Ended {
    run(&mut command(directory, trace, words))
}

/// Returns the events of a trace directory in stored order.
///
/// # Panics
/// If `miot cat` fails or prints a line that is not an event.
#[must_use]
pub fn events(trace: &Path) -> Vec<PrintedEvent> {
    let cat = run(Command::new(&built().miot).args(["cat", "--format", "json"]).arg(trace)).success();
    rows(&cat.stdout).unwrap_or_else(|e| panic!("{e}"))
}

/// Checks that `miot fsck` finds no problem in a trace directory.
///
/// # Panics
/// If it finds one.
#[track_caller]
pub fn assert_good(trace: &Path) {
    let report = run(Command::new(&built().miot).arg("fsck").arg(trace));
    assert_eq!(report.code(), 0, "{}{}", report.stdout, report.stderr);
}
