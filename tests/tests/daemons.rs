//! The three tiers as daemons, started by hand on loopback: two nodes with programs that are traced
//! with only `LD_PRELOAD` and `MIOT_DIR`, and followed with `miot tail -f`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::control;
use miot_tests::built::{built, root};
use miot_tests::daemons::{client, free_port, preloaded, server, sweeps};
use miot_tests::process::{Background, run, until};
use miot_tests::steered::Steered;
use miot_tests::test_dir::fresh;
use miot_tests::trace::{PrintedEvent, rows};
use miot_tests::traced::{assert_good, events};
use rustix::process::Signal;
use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Creates a folder in shared memory that is removed with the test.
fn shared() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn copy(place: &Path, name: &str, dir: &Path, blocks: usize) {
    let out = place.join(name);
    let mut dd = preloaded("dd", dir);
    dd.args(["if=/dev/zero", "bs=512"]).arg(format!("of={}", out.display())).arg(format!("count={blocks}"));
    let _ = run(&mut dd).success();
}

/// Rows of all complete lines printed so far.
fn printed(tail: &Background) -> Vec<PrintedEvent> {
    let text = tail.printed();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    rows(whole).unwrap()
}

/// Number of writes of a node to the file of this name.
fn writes(rows: &[PrintedEvent], node: &str, name: &str) -> usize {
    let to =
        |row: &&PrintedEvent| row.path.as_deref().is_some_and(|path| path.ends_with(&format!("/{name}")));
    rows.iter().filter(to).filter(|row| row.node == node && row.op == "write" && row.result == 512).count()
}

#[test]
fn two_nodes_are_merged_and_followed() {
    let place = fresh("daemons");
    let (trace, port) = (place.join("trace"), free_port());
    let server = server(port, &trace);
    let folders = [shared(), shared()];
    let dirs = folders.each_ref().map(|folder| folder.path().join("miot"));
    let clients = [client(port, "node-a", &dirs[0]), client(port, "node-b", &dirs[1])];
    let mut tail = Command::new(&built().miot);
    tail.args(["tail", "-f", "--format", "json", &format!("127.0.0.1:{port}")]);
    let mut tail = Background::start(&mut tail);

    // Programs run on both nodes at the same time, repeatedly until tail is connected and shows
    // both.
    let mut rounds = 0;
    until("tail shows writes of both nodes", || {
        assert!(tail.running(), "{}", tail.printed());
        rounds += 1;
        std::thread::scope(|scope| {
            scope.spawn(|| copy(&place, "a", &dirs[0], 100));
            scope.spawn(|| copy(&place, "b", &dirs[1], 100));
        });
        let shown = printed(&tail);
        writes(&shown, "node-a", "a") > 0 && writes(&shown, "node-b", "b") > 0
    });
    // From here on tail is connected, so new events appear.
    copy(&place, "last-a", &dirs[0], 77);
    copy(&place, "last-b", &dirs[1], 88);
    until("tail shows all writes of programs that ended", || {
        let shown = printed(&tail);
        writes(&shown, "node-a", "last-a") == 77 && writes(&shown, "node-b", "last-b") == 88
    });
    let shown = printed(&tail);
    assert!(shown.is_sorted_by_key(|row| row.time), "tail shows the merged order");
    drop(tail.stop(Signal::TERM));

    // Another program reads the live part while it grows.
    let python = root().join("target/test-venv/bin/python");
    let live = run(Command::new(python).arg(root().join("tests/programs/live.py")).arg(&trace)).success();
    let live: usize = live.stdout.trim().parse().unwrap();
    assert!(live >= rounds * 200 + 165, "{live} events in the live part after {rounds} rounds");

    for client in clients {
        client.end();
    }
    let (status, text) = server.stop(Signal::INT);
    assert!(status.success(), "log-server: {status}\n{text}");
    let all = events(&trace);
    for (node, name, count) in [
        ("node-a", "a", rounds * 100),
        ("node-b", "b", rounds * 100),
        ("node-a", "last-a", 77),
        ("node-b", "last-b", 88),
    ] {
        assert_eq!(writes(&all, node, name), count, "{name}");
    }
    assert!(all.is_sorted_by_key(|row| row.time));
    let processes: HashSet<(String, u64)> = all.iter().map(|row| (row.node.clone(), row.process)).collect();
    assert_eq!(processes.len(), 2 * rounds + 2, "each program is a process of its own");
    assert_good(&trace);
}

#[test]
fn program_without_a_log_client_runs_untraced() {
    let place = fresh("daemons-none");
    copy(&place, "out-alone", &place.join("none"), 10);
    assert_eq!(fs::metadata(place.join("out-alone")).unwrap().len(), 5120);
    assert!(!place.join("none").exists(), "a producer creates no MIOT directory");
}

/// As after an upgrade of the node to another major version and back, with running programs.
#[test]
fn control_page_of_another_version_disables_recording() {
    let place = fresh("daemons-version");
    let (trace, port) = (place.join("trace"), free_port());
    let server = server(port, &trace);
    let folder = shared();
    let dir = folder.path().join("miot");
    let page = dir.join(control::FILE);
    let before = client(port, "node", &dir);
    let mut other = fs::read(&page).unwrap();
    drop(before.stop(Signal::TERM));
    other[control::word::MAGIC + 7] = b'2';
    fs::write(&page, &other).unwrap();

    let text = place.join("text");
    fs::write(&text, "as without the hook\n").unwrap();
    let ended = run(preloaded("cat", &dir).arg(&text)).success();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("as without the hook\n", ""));
    let mut command = preloaded(env!("CARGO_BIN_EXE_steered"), &dir);
    let mut program = Steered::start(command.arg(place.join("data")));
    program.tell("pwrite 1000");
    let segments = || {
        let names = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_some_and(|end| end == "seg")).count()
    };
    assert_eq!(segments(), 0);
    assert_eq!(fs::read(&page).unwrap(), other, "only a log-client writes it");

    // The program checks again from time to time.
    let after = client(port, "node", &dir);
    until("it is recorded", || {
        program.tell("pwrite 1000");
        segments() == 1
    });
    program.tell("pwrite 1000");
    program.end();
    for (name, daemon) in [("log-client", after), ("log-server", server)] {
        let (status, text) = daemon.stop(Signal::TERM);
        assert!(status.success(), "{name}: {status}\n{text}");
    }
    let all = events(&trace);
    let offsets: Vec<i64> =
        all.iter().filter(|row| row.op == "pwrite").map(|row| row.offset.unwrap()).collect();
    assert!(offsets.len() >= 1000 && offsets[0] >= 1000, "{} from {:?}", offsets.len(), offsets.first());
    assert!(offsets.windows(2).all(|pair| pair[1] == pair[0] + 1), "all events from the first on");
}

#[test]
fn program_that_outlives_the_log_client_is_not_harmed() {
    let place = fresh("daemons-outlive");
    let (trace, port) = (place.join("trace"), free_port());
    let server = server(port, &trace);
    let folder = shared();
    let dir = folder.path().join("miot");
    let client = client(port, "node", &dir);
    // Writes before and after the end of the log-client, one byte at a time.
    let script =
        "i=0; while [ $i -lt 400 ]; do echo x; i=$((i+1)); [ -e stop ] || sleep 0.01; done > out; sync out";
    let mut shell = preloaded("sh", &dir);
    let mut program = Background::start(shell.args(["-c", script]).current_dir(&place));
    until("the program writes", || fs::metadata(place.join("out")).is_ok_and(|m| m.len() > 20));
    client.end();
    fs::write(place.join("stop"), "").unwrap();
    until("the program ends", || !program.running());
    assert_eq!(fs::metadata(place.join("out")).unwrap().len(), 800);
    server.end();
    let delivered = events(&trace).iter().filter(|row| row.op == "write").count();
    assert!((10..=400).contains(&delivered), "{delivered}");
}

/// Number of sweeps of a log-client in two seconds. At least 25 in the usual pace of an idle node.
fn sweeps_in_two_seconds(dir: &Path) -> u64 {
    let before = sweeps(dir);
    std::thread::sleep(Duration::from_secs(2));
    sweeps(dir) - before
}

/// Nodes without events sweep about once a second. A request on any of them wakes all: its own node
/// by the doorbell, the others by the log-server, which needs their watermarks.
#[test]
fn idle_nodes_sleep_until_a_request_on_any_of_them() {
    let place = fresh("daemons-idle");
    let (trace, port) = (place.join("trace"), free_port());
    let server = server(port, &trace);
    let folders = [shared(), shared()];
    let dirs = folders.each_ref().map(|folder| folder.path().join("miot"));
    let clients = [client(port, "node-a", &dirs[0]), client(port, "node-b", &dirs[1])];
    // A running program with a lane, which then waits for input.
    let mut waiting = preloaded("sh", &dirs[0]);
    waiting.args(["-c", "echo started > waiting; read line; echo first > after"]).current_dir(&place);
    let mut waiting = waiting.stdin(Stdio::piped()).spawn().unwrap();
    let mut tail = Command::new(&built().miot);
    tail.args(["tail", "-f", "--format", "json", &format!("127.0.0.1:{port}")]);
    let tail = Background::start(&mut tail);

    until("both nodes sleep long", || dirs.each_ref().map(|dir| sweeps_in_two_seconds(dir)) <= [6, 6]);
    let before = dirs.each_ref().map(|dir| sweeps(dir));
    waiting.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(waiting.wait().unwrap().success());
    until("tail shows the write after the sleep", || {
        printed(&tail).iter().any(|row| row.path.as_deref().is_some_and(|path| path.ends_with("/after")))
    });
    // In the usual pace both make far more sweeps until they sleep again.
    until("both nodes woke", || std::iter::zip(&dirs, before).all(|(dir, before)| sweeps(dir) > before + 20));
    until("both nodes sleep long again", || dirs.each_ref().map(|dir| sweeps_in_two_seconds(dir)) <= [6, 6]);

    // A program that starts on a sleeping node is recorded from its first request.
    copy(&place, "started", &dirs[1], 50);
    drop(tail.stop(Signal::TERM));
    for client in clients {
        client.end();
    }
    server.end();
    let all = events(&trace);
    assert_eq!((writes(&all, "node-b", "started"), all.is_sorted_by_key(|row| row.time)), (50, true));
    assert_good(&trace);
}
