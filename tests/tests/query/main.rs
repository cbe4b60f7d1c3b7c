//! `miot query`: figures of a program with known requests, traces that are being written, several
//! traces, an object store, errors and their messages, the shell, and every example of
//! `docs/guide/query.md`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../../lib/trace-store/tests/common/mod.rs"]
mod common;
mod docs;
mod figures;
mod growing;
mod remote;
mod shell;
mod workers;
mod wrong;

use miot_tests::built::{built, program, root};
use miot_tests::process::{Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_trace_store::{Options, Table, Writer, count_parts};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Command `miot query` with these arguments.
fn query<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Command {
    let _ = program("miot-query");
    let mut command = Command::new(&built().miot);
    command.arg("query").args(words);
    command
}

fn asked<S: AsRef<std::ffi::OsStr>>(words: &[S]) -> Ended {
    run(&mut query(words))
}

/// Rows of a query as CSV, without the header.
#[track_caller]
fn rows(trace: &Path, sql: &str) -> Vec<String> {
    let ended = asked(&[trace.to_str().unwrap(), sql, "--format", "csv"]).success();
    ended.stdout.lines().skip(1).map(str::to_owned).collect()
}

/// The only value of a query.
#[track_caller]
fn value(trace: &Path, sql: &str) -> String {
    let rows = rows(trace, sql);
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0].clone()
}

/// Creates a trace of parts with these numbers of events, of alternating streams. The last part
/// stays live if `live`.
fn parts(dir: &Path, counts: &[u64], live: bool) -> Option<Writer> {
    let mut writer = Writer::create(dir, Options::default()).unwrap();
    common::sides(&mut writer);
    let mut at = 0;
    for (number, count) in counts.iter().enumerate() {
        writer.append(Table::Events, &common::events(&common::turn(at, at + count))).unwrap();
        at += count;
        writer.commit().unwrap();
        if number + 1 < counts.len() {
            writer.seal().unwrap();
        }
    }
    if live {
        let sealed = counts.len() as u64 - 1;
        until("the parts are sealed", || count_parts(dir).unwrap().sealed == sealed);
        return Some(writer);
    }
    writer.finish().unwrap();
    None
}

fn python() -> PathBuf {
    let python = root().join("target/test-venv/bin/python");
    assert!(python.exists(), "{} is missing: run tests/setup.sh", python.display());
    python
}

/// Path of the trace of a test.
fn place(name: &str) -> PathBuf {
    fresh(&format!("query-{name}"))
}
