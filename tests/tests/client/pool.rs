//! The example clients: requests that begin on the caller's thread and end on a worker's thread.

use crate::messages::flags;
use miot_tests::built::{built, root};
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, command, events};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn c_client(place: &Path) -> PathBuf {
    let program = place.join("pool");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    let _ =
        run(cc.arg(root().join("tracer-client/examples/c/pool.c")).args(flags()).arg("-pthread")).success();
    program
}

fn rust_client() -> PathBuf {
    let program = built().folder.join("examples/pool");
    if std::env::var_os("MIOT_TESTS_BUILT").is_some() {
        return program;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "-p", "miot-tracer", "--example", "pool", "--manifest-path"]);
    cargo.arg(root().join("Cargo.toml")).arg("--target-dir").arg(built().folder.parent().unwrap());
    if built().folder.ends_with("release") {
        cargo.arg("--release");
    }
    let _ = run(&mut cargo).success();
    program
}

/// Runs a client. Returns its output and its requests in the trace.
fn traced(place: &Path, words: &[std::ffi::OsString], code: i32) -> (String, Vec<PrintedEvent>) {
    fs::create_dir(place.join("data")).unwrap();
    let ended = run(&mut command(place, &place.join("trace"), words));
    assert_eq!(ended.code(), code, "{}", ended.stderr);
    assert_good(&place.join("trace"));
    (ended.stdout, events(&place.join("trace")))
}

fn data<'a>(rows: &'a [PrintedEvent], op: &'a str) -> impl Iterator<Item = &'a PrintedEvent> {
    rows.iter().filter(move |row| row.layer == "client" && row.op == op)
}

/// Compares requests and bytes of each operation with the client's own counts.
fn compare(rows: &[PrintedEvent], said: &str) {
    for op in ["read", "write"] {
        let bytes: i64 = data(rows, op).map(|row| row.result.max(0)).sum();
        let line = format!("{op} {} {bytes}", data(rows, op).count());
        assert!(said.lines().any(|said| said == line), "{line}, but the client says\n{said}");
        // Each was begun by one thread and ended by another, and rows are in the order of
        // completion.
        assert!(data(rows, op).all(|row| row.flags & 4 != 0 && row.duration > 0));
    }
    assert!(data(rows, "write").any(|row| row.path.as_deref().is_some_and(|path| path.ends_with("/data/0"))));
}

#[test]
fn c_client_counts_match_the_trace() {
    let place = fresh("client-pool-c");
    let words = [c_client(&place).into(), place.join("data").into(), "8".into(), "2000".into()];
    let (said, rows) = traced(&place, &words, 0);
    compare(&rows, &said);
    let failed =
        rows.iter().filter(|row| row.result == -i64::from(libc::EBADF) && row.layer == "client").count();
    assert_eq!(failed, 160, "one in a hundred");
    // Each served request has recorded a message.
    let served =
        |row: &&PrintedEvent| row.message.as_deref().is_some_and(|said| said.starts_with("serving "));
    assert_eq!(rows.iter().filter(served).count(), 16_000);
}

#[test]
fn rust_client_counts_match_the_trace() {
    let place = fresh("client-pool-rust");
    let words = [rust_client().into(), place.join("data").into(), "8".into(), "2000".into()];
    let (said, rows) = traced(&place, &words, 0);
    compare(&rows, &said);
    assert_eq!(data(&rows, "read").count() + data(&rows, "write").count(), 16_000);
}

/// After SIGKILL the trace has the requests that workers had completed, regardless of the thread
/// that began them.
#[test]
fn killed_client_leaves_its_completed_requests() {
    let place = fresh("client-pool-killed");
    let pool = c_client(&place);
    let script = format!("timeout -s KILL 1 {} data 8 100000000", pool.display());
    let (_, rows) = traced(&place, &["sh".into(), "-c".into(), script.into()], 137);
    let served: Vec<&PrintedEvent> =
        rows.iter().filter(|row| row.layer == "client" && row.flags & 4 != 0).collect();
    assert!(served.len() > 100, "{} requests in a second", served.len());
    assert!(served.iter().all(|row| matches!(row.op.as_str(), "read" | "write") && row.duration > 0));
    // A worker serves one request at a time: it records a message and completes the request. In its
    // stream the two alternate.
    let workers: std::collections::BTreeSet<u32> = served.iter().map(|row| row.tid).collect();
    assert_eq!(workers.len(), 4);
    for worker in workers {
        let of = |row: &&PrintedEvent| row.tid == worker && (row.op == "debug" || row.flags & 4 != 0);
        let steps: Vec<bool> = rows.iter().filter(of).map(|row| row.op == "debug").collect();
        let missing = steps.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert_eq!(missing, 0, "of {} records of thread {worker}", steps.len());
    }
}
