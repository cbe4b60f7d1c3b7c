//! A program with its own seccomp filters, which kill it for every call that it does not make
//! itself.

use super::{SandboxDirs, losses};
use miot_tests::compile::compile;
use miot_tests::daemons::preloaded;
use miot_tests::process::{Ended, run};
use miot_tests::trace::PrintedEvent;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ways to install a filter and to use it, see `tests/programs/confined.c`.
const HOWS: [&str; 15] = [
    "not",
    "refused",
    "prctl",
    "errno",
    "syscall",
    "indirect",
    "all",
    "strict",
    "clock",
    "thread",
    "all-thread",
    "child",
    "child-errno",
    "exec",
    "exec-errno",
];
/// Requests of each kind before and after the filter.
const AFTER: usize = 300;
const BEFORE: [usize; 2] = [0, 3];

/// Command that runs the program in its own folder.
fn confined(place: &SandboxDirs, program: &Path, dir: &Path, how: &str, before: usize) -> Command {
    let folder = place.path.join(folder(how, before));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("data"), "some data").unwrap();
    let mut command = preloaded(program.to_str().unwrap(), dir);
    command.args([how, &before.to_string(), &AFTER.to_string()]).current_dir(folder);
    command
}

fn folder(how: &str, before: usize) -> String {
    format!("{how}-{before}")
}

fn program(place: &SandboxDirs) -> PathBuf {
    compile(&place.path, "confined", &["confined.c"], &[])
}

#[track_caller]
fn assert_lives(ended: &Ended, how: &str, before: usize) {
    assert_eq!((ended.code(), ended.stdout.as_str()), (0, "ok\n"), "{how} after {before}: {}", ended.stderr);
}

#[test]
fn dormant_hook_makes_no_denied_call() {
    let place = SandboxDirs::new("dormant");
    let program = program(&place);
    for (how, before) in HOWS.iter().flat_map(|how| BEFORE.map(|before| (*how, before))) {
        assert_lives(&run(&mut confined(&place, &program, &place.nobody(), how, before)), how, before);
    }
}

#[test]
fn confined_program_is_recorded_as_far_as_possible() {
    let place = SandboxDirs::new("recorded");
    let (program, node) = (program(&place), place.node());
    for (how, before) in HOWS.iter().flat_map(|how| BEFORE.map(|before| (*how, before))) {
        assert_lives(&run(&mut confined(&place, &program, &node.dir, how, before)), how, before);
    }
    let trace = node.trace.clone();
    let rows = node.end();
    let requests = |how: &str, before: usize, op: &str| {
        let file = format!("/{}/data", folder(how, before));
        let of = |row: &&PrintedEvent| {
            row.op == op && row.path.as_deref().is_some_and(|path| path.ends_with(&file))
        };
        rows.iter().filter(of).count()
    };
    for (how, before) in HOWS.iter().flat_map(|how| BEFORE.map(|before| (*how, before))) {
        let counts = ["open", "read", "close"].map(|op| requests(how, before, op));
        let all = match how {
            // The filter of the child and of the executed program is unknown.
            "exec" | "exec-errno" => before,
            "strict" => {
                assert_eq!(counts, [before + 1, before, before], "{how}: it has no clock");
                continue;
            }
            "clock" => before,
            "thread" | "all-thread" => before + 10 + 5 + 3 * AFTER,
            _ => before + AFTER,
        };
        assert_eq!(counts, [all; 3], "{how} after {before}");
    }
    // Without a clock there are no events, and they are counted: the reads in strict mode, and the
    // requests of two threads.
    let without = BEFORE.len() * (AFTER + 2 * 3 * AFTER);
    let lost = losses(&trace);
    assert!(lost.get("no_lane").is_some_and(|count| *count >= without as u64), "{lost:?}");
    assert_eq!(lost.len(), 1, "{lost:?}");
}

#[test]
fn declared_inherited_filter_allows_recording() {
    let place = SandboxDirs::new("inherited");
    let (program, node) = (program(&place), place.node());
    // A filter that denies nothing important, with an error, so that a wrong declaration does no
    // harm.
    let mut denied = confined(&place, &program, &node.dir, "exec-errno", 1);
    assert_lives(&run(denied.env("MIOT_SECCOMP", "record")), "exec-errno", 1);
    let mut allowed = confined(&place, &program, &node.dir, "exec-anything", 2);
    assert_lives(&run(allowed.env("MIOT_SECCOMP", "record")), "exec-anything", 2);
    let mut cautious = confined(&place, &program, &node.dir, "exec-anything", 3);
    assert_lives(&run(&mut cautious), "exec-anything", 3);
    let rows = node.end();
    let reads = |how: &str, before: usize| {
        let file = format!("/{}/data", folder(how, before));
        let of = |row: &&PrintedEvent| {
            row.op == "read" && row.path.as_deref().is_some_and(|path| path.ends_with(&file))
        };
        rows.iter().filter(of).count()
    };
    assert_eq!(reads("exec-errno", 1), 1, "denied requests are not recorded");
    assert_eq!(reads("exec-anything", 2), 2 + 2 * AFTER);
    assert_eq!(reads("exec-anything", 3), 3, "the filter is not declared");
}

/// The kernel sends SIGXFSZ to a process that makes a file too long, and a segment is a file.
#[test]
fn file_size_limit_does_not_kill_the_program() {
    let place = SandboxDirs::new("limit");
    let node = place.node();
    fs::write(place.path.join("data"), "some data").unwrap();
    for blocks in ["0", "1", "16", "64"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f $0 && LD_PRELOAD=$1 cat data", blocks]);
        shell.arg(&miot_tests::built::built().hook).env(miot_proto::control::DIR_ENV, &node.dir);
        let ended = run(shell.current_dir(&place.path));
        assert_eq!((ended.code(), ended.stdout.as_str()), (0, "some data"), "{blocks}: {}", ended.stderr);
    }
    let _ = node.end();
}

/// `miot run` has the same filter as its command, and probes it with a process that may be killed.
#[test]
fn miot_run_probes_an_inherited_filter() {
    let place = SandboxDirs::new("run");
    let (program, hook) = (program(&place), &miot_tests::built::built().miot);
    fs::write(place.path.join("data"), "some data").unwrap();
    let trace = place.path.join("run-trace");
    let mut confined = Command::new(&program);
    confined.args(["exec-anything-run", "0", "5"]).arg(hook).args(["run", "-o"]).arg(&trace);
    confined.arg("--").arg(&program).args(["not", "2", "3"]).current_dir(&place.path);
    let ended = run(&mut confined).success();
    assert!(ended.stdout.contains("ok\n"), "{}{}", ended.stdout, ended.stderr);
    let rows = miot_tests::traced::events(&trace);
    assert_eq!(rows.iter().filter(|row| row.op == "read").count(), 5, "{rows:#?}");
}
