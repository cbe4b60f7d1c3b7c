//! Switching recording on and off, and selecting what is recorded, in running programs.

use super::{ControlDirs, Loss, losses, numbers, offsets, own, totals};
use miot_tests::built::built;
use miot_tests::node::Node;
use miot_tests::process::{run, until};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::process::Command;

#[test]
fn off_and_on_take_effect_with_the_next_request() {
    let place = ControlDirs::new("off");
    let node = place.node();
    let mut program = place.hooked(&node);
    program.tell("pwrite 100");
    assert!(node.steer(&["off"]).starts_with("node: off; layers all; operations all; "));
    program.tell("pwrite 50");
    node.steer(&["on"]);
    program.tell("pwrite 30");
    node.steer(&["off"]);
    program.tell("pwrite 5000");
    node.steer(&["on"]);
    program.tell("pwrite 1");
    program.end();
    let trace = node.trace.clone();
    let rows = node.end();
    assert_eq!(offsets(&rows, "posix", "pwrite"), numbers(&[(0, 100), (150, 180), (5180, 5181)]));
    assert_eq!(losses(&trace), []);
    let of_file = rows.iter().filter(|row| row.op == "pwrite").map(|row| row.path.as_deref().unwrap());
    assert!(of_file.clone().all(|path| path.ends_with("/data")), "{:?}", of_file.collect::<Vec<_>>());
}

#[test]
fn program_started_while_off_is_recorded_after_on() {
    let place = ControlDirs::new("starts-off");
    let node = place.node();
    node.steer(&["off"]);
    let mut program = place.hooked(&node);
    program.tell("pwrite 10000");
    node.steer(&["on"]);
    program.tell("pwrite 5");
    program.end();
    node.steer(&["set", "--min-duration", "1h"]);
    let mut program = place.hooked(&node);
    program.tell("pwrite 700");
    node.steer(&["set", "--min-duration", "0"]);
    program.tell("pwrite 6");
    program.end();
    let trace = node.trace.clone();
    let rows = node.end();
    assert_eq!(offsets(&rows, "posix", "pwrite"), numbers(&[(10_000, 10_005), (700, 706)]));
    let mut of_file = rows.iter().filter(|row| row.op == "pwrite").map(|row| row.path.as_deref().unwrap());
    assert!(of_file.all(|path| path.ends_with("/data")), "what was opened unseen has its name");
    // Besides the writes, these are the open of the file and Rust's reads at start.
    let left_out = losses(&trace);
    assert!(
        matches!(&left_out[..], [Loss { place, count: 701.., .. }] if place == "filtered"),
        "{left_out:?}"
    );
}

#[test]
fn layers_and_operations_are_selected_while_running() {
    let place = ControlDirs::new("choice");
    let node = place.node();
    let mut program = place.hooked(&node);
    let mut expected: HashMap<&str, usize> = HashMap::new();
    let mut does = |choice: &[&str], order: &str, recorded: &[(&'static str, usize)]| {
        node.steer(&[&["set"], choice].concat());
        program.tell(order);
        recorded.iter().for_each(|(op, times)| *expected.entry(op).or_default() += times);
    };
    does(&["--ops=posix.pread,fstat"], "four 10", &[("pread", 10), ("fstat", 10)]);
    does(&["--ops=-lseek,-read,-write"], "four 7", &[("pread", 7), ("pwrite", 7), ("fstat", 7)]);
    does(&["--ops=all", "--layers=-posix"], "four 100", &[]);
    does(&["--layers=stdio"], "fwrite 5", &[("fopen", 1), ("fwrite", 5), ("fflush", 5), ("fclose", 1)]);
    does(&["--layers=posix,client", "--ops=posix.pwrite"], "four 3", &[("pwrite", 3)]);
    does(&["--ops=none"], "four 100", &[]);
    does(&["--ops=pread", "--layers=all"], "four 2", &[("pread", 2)]);
    program.end();
    let trace = node.trace.clone();
    let mut found: HashMap<&str, usize> = HashMap::new();
    let rows = node.end();
    let of_file = rows.iter().filter(|row| row.path.as_deref().is_some_and(|path| path.ends_with("/data")));
    // Before the first selection the program opened the file. Rust's own calls are not part of the
    // test.
    let chosen = ["pread", "pwrite", "lseek", "fstat", "fopen", "fwrite", "fflush", "fclose"];
    of_file
        .filter(|row| chosen.contains(&row.op.as_str()))
        .for_each(|row| *found.entry(&row.op).or_default() += 1);
    assert_eq!(found, expected);
    assert_eq!(losses(&trace), []);
}

#[test]
fn minimum_duration_is_exact_and_filtered_events_are_counted() {
    let place = ControlDirs::new("duration");
    let node = place.node();
    let mut program = place.own(&node);
    let ticks = match program.tell("clock").as_str() {
        "ok counter" => node.status()["tsc_hz"].as_u64().unwrap() / 10_000,
        _ => 100_000,
    };
    let spans = [0, 1, ticks / 2, ticks - 1, ticks, ticks + 1, 10 * ticks, ticks - 1, 1000 * ticks, ticks];
    let order = format!("spans {}", spans.map(|span| span.to_string()).join(","));
    program.tell(&order);
    node.steer(&["set", "--min-duration", "100us"]);
    program.tell(&order);
    node.steer(&["set", "--min-duration", "0"]);
    program.tell(&order);
    program.end();
    let trace = node.trace.clone();
    let rows = node.end();
    assert_eq!(own(&rows), [numbers(&[(0, 10)]), vec![4, 5, 6, 8, 9], numbers(&[(0, 10)])].concat());
    let left_out = losses(&trace);
    assert!(
        matches!(&left_out[..], [Loss { place, count: 5, range: None, .. }] if place == "filtered"),
        "{left_out:?}"
    );
    let totals = totals(&trace);
    assert_eq!((&totals["filtered"], &totals["lost"]), (&Value::from(5), &Value::from(0)));
}

/// Four kinds of requests alternate, and one in four is kept. The kept requests of each kind follow
/// the binomial distribution. A fair sample is farther than five standard deviations from its mean
/// in one of 1.7 million cases.
#[test]
fn sample_is_counted_exactly_and_is_fair() {
    const ROUNDS: u64 = 40_000;
    let place = ControlDirs::new("sample");
    let node = place.node();
    node.steer(&["set", "--sample", "1/4", "--when-full", "wait"]);
    let mut program = place.own(&node);
    program.tell(&format!("loop {ROUNDS}"));
    program.end();
    let trace = node.trace.clone();
    let rows = node.end();
    let losses = losses(&trace);
    assert!(losses.iter().all(|loss| loss.place == "filtered"), "{losses:?}");
    let filtered: u64 = losses.iter().map(|loss| loss.count).sum();
    assert_eq!(rows.len() as u64 + filtered, 4 * ROUNDS);
    let (mean, deviation) = (ROUNDS as f64 / 4.0, (ROUNDS as f64 * 0.25 * 0.75).sqrt());
    for op in ["read", "write", "flush", "seek"] {
        let count = rows.iter().filter(|row| row.op == op).count() as f64;
        assert!((count - mean).abs() < 5.0 * deviation, "{count} times {op}, {mean} expected");
    }
    let totals = totals(&trace);
    assert_eq!((&totals["filtered"], &totals["lost"]), (&Value::from(filtered), &Value::from(0)));
}

#[test]
fn reloaded_configuration_applies_and_a_wrong_one_does_not() {
    let place = ControlDirs::new("configuration");
    let file = place.path.join("log-client.toml");
    fs::write(&file, "ops = [\"-client.read\"]\n").unwrap();
    let node = Node::with_configuration(&place.path, place.shared.path(), &file);
    let mut program = place.own(&node);
    program.tell("own 100");
    fs::write(&file, "").unwrap();
    node.signal(Signal::HUP);
    until("all operations are recorded", || node.status()["ops"] == "all");
    program.tell("own 20");

    let mistakes = [
        ("sample = \"1/10\"", "1/16"),
        ("smaple = 1", "sample"),
        ("idle = ", "line 1"),
        ("lane_slots = 100", "256"),
    ];
    for (number, (mistake, hint)) in mistakes.iter().enumerate() {
        fs::write(&file, format!("{mistake}\nenabled = false\n")).unwrap();
        let check = run(Command::new(&built().log_client).arg("--check").arg("--config").arg(&file));
        assert!(check.code() == 2 && check.stderr.contains(hint), "{}: {}", check.code(), check.stderr);
        node.signal(Signal::HUP);
        let refused = || node.log().matches("cannot reload the configuration").count() == number + 1;
        until("the log-client reports the error", refused);
        assert!(node.log().lines().last().is_some_and(|line| !line.is_empty()) && node.log().contains(hint));
        program.tell("own 1");
    }
    assert_eq!(node.status()["enabled"], true);

    fs::write(&file, "idle = \"10ms\"\nmin_duration = \"1h\"\nsample = \"1/2\"\nwhen_full = \"wait\"\n")
        .unwrap();
    let check = run(Command::new(&built().log_client).arg("--check").arg("--config").arg(&file)).success();
    assert!(check.stdout.contains("\nmin_duration = \"1h\"\n"), "{}", check.stdout);
    node.signal(Signal::HUP);
    until("the new settings are in effect", || node.status()["sample"] == 2);
    let status = node.status();
    assert_eq!(
        (&status["when_full"], &status["min_duration_ns"]),
        (&"wait".into(), &3_600_000_000_000u64.into())
    );
    until("the need for a restart is logged", || node.log().contains("changed settings require a restart"));
    program.tell("own 30");
    program.end();
    let trace = node.trace.clone();
    assert_eq!(own(&node.end()), numbers(&[(100, 124)]));
    let left_out = losses(&trace);
    assert!(matches!(&left_out[..], [Loss { place, count: 30, .. }] if place == "filtered"), "{left_out:?}");
}
