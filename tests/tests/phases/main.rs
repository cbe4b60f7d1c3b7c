//! Phases of MPI programs with known I/O, the models derived from them, and estimates.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bad_input;
mod btio;
mod estimates;
mod hosts;
mod models;
mod patterns;
mod views;

use miot_tests::built::built;
use miot_tests::mpi::{compile, traced};
use miot_tests::process::{Ended, run};
use miot_tests::test_dir::fresh;
use miot_trace_analysis::model::Model;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

fn place(name: &str) -> PathBuf {
    fresh(&format!("phases-{name}"))
}

/// Runs `miot COMMAND…` to its end.
fn miot<S: AsRef<OsStr>>(words: &[S]) -> Ended {
    run(Command::new(&built().miot).args(words))
}

/// Output of `miot phases --format json` for a trace.
fn phases(trace: &Path, options: &[&str]) -> Model {
    let mut words = vec!["phases".as_ref(), trace.as_os_str(), "--format".as_ref(), "json".as_ref()];
    words.extend(options.iter().map(OsStr::new));
    let said = miot(&words).success().stdout;
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Runs `phases.c` traced in a mode, with numbers of ranks, steps, requests and bytes. Options may
/// request communication events as well.
fn ran(name: &str, options: &[&str], ranks: u32, mode: &str, numbers: [u32; 3]) -> PathBuf {
    let place = place(name);
    let program = compile(&place, "phases", "phases.c", &[]);
    let mut words = vec![program.into_os_string(), mode.into(), place.join("data").into_os_string()];
    words.extend(numbers.map(|number| number.to_string().into()));
    let trace = place.join("trace");
    let ended = traced(&trace, ranks, options, &words);
    if mode == "dies" {
        assert_ne!(ended.code(), 0);
    } else {
        let _ = ended.success();
    }
    trace
}
