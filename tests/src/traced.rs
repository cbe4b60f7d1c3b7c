//! Running programs under `miot run` and reading what came of it.

use crate::built::built;
use crate::process::{Ended, run};
use crate::trace::{Row, rows};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// `miot run -o TRACE -- COMMAND…`, to be run in `directory`.
#[must_use]
pub fn command<S: AsRef<OsStr>>(directory: &Path, trace: &Path, words: &[S]) -> Command {
    let mut miot = Command::new(&built().miot);
    miot.arg("run").arg("-o").arg(trace).arg("--").args(words).current_dir(directory);
    miot
}

/// The same, run to its end.
#[must_use]
pub fn traced<S: AsRef<OsStr>>(directory: &Path, trace: &Path, words: &[S]) -> Ended {
    run(&mut command(directory, trace, words))
}

/// The events of a trace directory, in its order.
///
/// # Panics
/// If `miot cat` fails or prints what is no event.
#[must_use]
pub fn events(trace: &Path) -> Vec<Row> {
    let cat = run(Command::new(&built().miot).args(["cat", "--format", "json"]).arg(trace)).success();
    rows(&cat.stdout).unwrap_or_else(|e| panic!("{e}"))
}

/// `miot fsck` finds nothing wrong with a trace directory.
///
/// # Panics
/// If it does.
#[track_caller]
pub fn assert_good(trace: &Path) {
    let report = run(Command::new(&built().miot).arg("fsck").arg(trace));
    assert_eq!(report.code(), 0, "{}{}", report.stdout, report.stderr);
}
