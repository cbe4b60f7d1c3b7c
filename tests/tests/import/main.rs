//! `miot import`: recordings of real programs by other tools, compared with other readers of the
//! same text and with `miot run` of the same program.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod dxt;
mod strace;
mod text;

use miot_tests::built::built;
use miot_tests::process::{Ended, run};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

pub(crate) fn import<S: AsRef<OsStr>>(trace: &Path, arguments: &[S]) -> Ended {
    run(Command::new(&built().miot).arg("import").arg("-o").arg(trace).args(arguments))
}
