//! `miot bench`: what its processes do, seen by the hook, and what it says of it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::namespace::with_tmpfs;
use miot_tests::place::fresh;
use miot_tests::process::{Ended, run, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

fn bench(dir: &Path, arguments: &[&str]) -> Ended {
    run(Command::new(&built().miot).arg("bench").arg("--dir").arg(dir).args(arguments))
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

/// Each run by hand: bytes by all processes, calls.
#[test]
fn it_does_what_it_says() {
    let dir = fresh("bench-does");
    let suite = dir.join("suite.toml");
    let runs = [
        ("a", "pattern = 'strided'\nblock = 4096\ncount = 10", (0, 3 * 10 * 4096, 30)),
        (
            "b",
            "pattern = 'segmented'\nblock = '8 KiB'\ncount = 4\noperation = 'read'\nverify = 'all'",
            (3 * 4 * 8192, 0, 12),
        ),
        (
            "c",
            "pattern = 'sequential'\nblock = 1000\ncount = 7\noperation = 'read-modify-write'\nfile-per-process = true",
            (21000, 21000, 42),
        ),
        ("d", "pattern = 'rank-zero'\nblock = 100\ncount = 5\nsync = 'each'", (0, 1500, 15)),
        (
            "e",
            "pattern = 'segmented'\nblock = 4096\ncount = 2\ncache = 'direct'\noperation = 're-write'",
            (0, 3 * 8192, 6),
        ),
    ];
    let text: Vec<String> =
        runs.iter().map(|(name, lines, _)| format!("[[run]]\nname = '{name}'\n{lines}\n")).collect();
    fs::write(&suite, format!("processes = 3\nrepetitions = 2\n{}", text.join(""))).unwrap();
    let target = dir.join("target");
    fs::create_dir(&target).unwrap();
    let ended = bench(&target, &[suite.to_str().unwrap(), "--format", "json"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let outcomes: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.len(), runs.len());
    for (outcome, (name, _, (read, written, calls))) in outcomes.iter().zip(runs) {
        assert_eq!(outcome["run"]["name"], name);
        let repetitions = outcome["repetitions"].as_array().unwrap();
        assert_eq!(repetitions.len(), 2);
        for one in repetitions {
            assert_eq!(
                (one["read"].as_u64(), one["written"].as_u64()),
                (Some(read), Some(written)),
                "{name}"
            );
            assert_eq!(one["calls"], calls, "{name}");
            let [start, accesses, barrier, aggregate] = ["start", "accesses", "barrier", "aggregate"]
                .map(|part| one["times"][part].as_f64().unwrap());
            assert!(start >= 0.0 && accesses > 0.0 && barrier >= 0.0);
            assert!((start + accesses + barrier - aggregate).abs() < 1e-8);
            let bandwidth = (read + written) as f64 / 1048576.0 / aggregate;
            assert!((one["bandwidth"].as_f64().unwrap() / bandwidth - 1.0).abs() < 1e-9);
        }
    }
    assert!(is_empty(&target), "what it made is removed");
}

/// A process that computes for a known time between its bursts has it within T.
#[test]
fn computation_between_bursts_is_within_the_time() {
    let dir = fresh("bench-bursts");
    let arguments =
        ["--pattern", "segmented", "--block", "4K", "--count", "6", "--burst", "2", "--compute", "20ms"];
    let ended =
        bench(&dir, &[&arguments[..], &["-n", "1", "--repetitions", "1", "--format", "json"]].concat());
    let outcome: Value = serde_json::from_str(&ended.stdout).unwrap();
    // Two pauses of three bursts.
    assert!(outcome["repetitions"][0]["times"]["accesses"].as_f64().unwrap() >= 0.040);
}

#[test]
fn what_cannot_be_measured_is_said_and_nothing_stays() {
    let dir = fresh("bench-wrong");
    let cases: [(&[&str], &str); 5] = [
        (&[], "nothing to measure"),
        (&["--pattern", "sequential"], "the same bytes"),
        (&["--pattern", "strided", "--stride", "1K"], "stride"),
        (&["--pattern", "segmented", "--block", "100", "--cache", "direct"], "4096"),
        (&["none.toml"], "none.toml"),
    ];
    for (arguments, expected) in cases {
        let ended = bench(&dir, arguments);
        assert_eq!(ended.code(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
    let missing = bench(&dir.join("missing"), &["--pattern", "segmented"]);
    assert!(missing.stderr.contains("missing"), "{}", missing.stderr);
    assert!(is_empty(&dir));
}

#[test]
fn a_full_file_system_is_said_and_emptied() {
    let dir = fresh("bench-full");
    // What is left there is listed after it, in the same namespace.
    let script = "\"$0\" bench --dir \"$1\" --pattern segmented --block 1M --count 8 -n 2; code=$?; ls \"$1\"; exit $code";
    let words = ["sh", "-c", script, built().miot.to_str().unwrap(), dir.to_str().unwrap()];
    let ended = run(&mut with_tmpfs(&dir, "4m", &words));
    assert_eq!(ended.code(), 1);
    assert!(ended.stderr.contains("No space left") && ended.stderr.contains("rank"), "{}", ended.stderr);
    assert_eq!(ended.stdout, "", "nothing stays");
}

/// Starts a benchmark that goes on for long, and waits until its processes access the file.
fn long_one(dir: &Path) -> std::process::Child {
    let arguments =
        ["--pattern", "segmented", "--block", "4K", "--count", "4", "--burst", "1", "--compute", "60s"];
    let child = Command::new(&built().miot)
        .arg("bench")
        .arg("--dir")
        .arg(dir)
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let made = dir.join(format!("miot-bench-{}/file", child.id()));
    until("both processes have written", || fs::metadata(&made).is_ok_and(|file| file.len() > 4 * 4096));
    child
}

fn ranks_of(parent: u32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_killed_rank_is_named_and_nothing_stays() {
    let dir = fresh("bench-killed");
    let child = long_one(&dir);
    let ranks = ranks_of(child.id());
    assert_eq!(ranks.len(), 2);
    // The first is heard first; the other one goes with it.
    kill_process(Pid::from_raw(ranks[0]).unwrap(), Signal::KILL).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(said.contains("rank 0 has ended before"), "{said}");
    assert!(is_empty(&dir));
}

#[test]
fn a_signal_ends_it_and_nothing_stays() {
    let dir = fresh("bench-signal");
    let child = long_one(&dir);
    let ranks = ranks_of(child.id());
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    assert!(is_empty(&dir));
    for rank in ranks {
        assert!(!Path::new(&format!("/proc/{rank}")).exists(), "rank {rank} still runs");
    }
}
