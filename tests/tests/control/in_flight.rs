//! Hanging requests: they are shown while they hang, and become events when their program is
//! killed.

use super::{ControlDirs, INTERRUPTED, losses, totals};
use miot_tests::built::built;
use miot_tests::daemons::preloaded;
use miot_tests::node::Node;
use miot_tests::process::{Background, run, until};
use miot_tests::trace::PrintedEvent;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Waits until the request in flight of a process with this operation on this file is shown, and
/// returns it.
fn shown(node: &Node, pid: u32, op: &str, file: &str) -> Value {
    let mut found = None;
    until("the request is shown in flight", || {
        let mut rows = node.in_flight(&[]).into_iter();
        found = rows.find(|row| {
            row["pid"] == pid
                && row["op"] == op
                && row["file"].as_str().is_some_and(|path| path.ends_with(file))
        });
        found.is_some()
    });
    found.unwrap()
}

fn age(row: &Value) -> i64 {
    row["age"].as_i64().unwrap()
}

#[test]
fn hanging_lock_is_shown_and_becomes_an_interrupted_event() {
    let place = ControlDirs::new("hangs");
    let node = place.node();
    let held = locked(&place);
    let mut program = place.hooked(&node);
    program.send(&format!("lock {}", place.path.join("locked").display()));
    let pid = program.id();
    let first = shown(&node, pid, "flock", "/locked");
    assert_eq!((&first["layer"], &first["comm"]), (&"posix".into(), &"steered".into()));
    assert_eq!(first["node"], "node", "the name that the log-client has");
    until("it grows older", || age(&shown(&node, pid, "flock", "/locked")) > age(&first));
    assert_eq!(node.in_flight(&["--min-age", "1h"]), Vec::<Value>::new());
    let text = node.top(&["--min-age", "1ms"]);
    assert!(text.starts_with("AGE") && text.contains("posix.flock") && text.contains("/locked"), "{text}");
    let csv = node.top(&["--format", "csv"]);
    assert!(csv.starts_with("time,age,node,pid,tid,"), "{csv}");

    let trace = node.trace.clone();
    program.kill(Signal::KILL);
    drop(held);
    let cut_off = |row: &&PrintedEvent| row.pid == pid && row.flags & INTERRUPTED != 0;
    until("the request that was cut off is in the trace", || node.so_far().iter().any(|row| cut_off(&row)));
    assert_eq!(node.in_flight(&[]), Vec::<Value>::new(), "a dead process has no request in flight");
    let rows = node.end();
    let interrupted: Vec<&PrintedEvent> = rows.iter().filter(cut_off).collect();
    let [row] = interrupted[..] else { panic!("{interrupted:?}") };
    assert_eq!((row.layer.as_str(), row.op.as_str(), row.result), ("posix", "flock", -4));
    assert!(row.path.as_deref().is_some_and(|path| path.ends_with("/locked")), "{row:?}");
    // Two calibrations of the same counter differ by a tenth at most.
    assert!(row.duration >= age(&first) / 10 * 9, "{} after {}", row.duration, age(&first));
    assert_eq!(losses(&trace), []);

    let cat = |format: &str| {
        let mut cat = Command::new(&built().miot);
        let cat = cat.args(["cat", "--op", "flock", "--pid", &pid.to_string(), "--format", format]);
        run(cat.arg(&trace)).success().stdout
    };
    assert!(cat("text").contains("flock") && cat("text").contains("= EINTR interrupted"), "{}", cat("text"));
    let json: Value = serde_json::from_str(&cat("json")).unwrap();
    assert_eq!((&json["result"], &json["flags"]), (&(-4).into(), &row.flags.into()));
    let csv = cat("csv");
    let (header, line) = csv.trim_end().split_once('\n').unwrap();
    let column = header.split(',').position(|name| name == "result").unwrap();
    assert_eq!(line.split(',').nth(column), Some("-4"));
    assert_eq!(totals(&trace)["interrupted"], Value::from(1));
    let stat = run(Command::new(&built().miot).arg("stat").arg(&trace)).success().stdout;
    assert!(stat.contains("cut off by the end of their thread or process: 1 request\n"), "{stat}");
}

/// Opens and locks the file `locked`.
fn locked(place: &ControlDirs) -> fs::File {
    let held = fs::File::create(place.path.join("locked")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    held
}

#[test]
fn waiting_lock_is_shown_until_it_is_granted() {
    let place = ControlDirs::new("lock");
    let node = place.node();
    // A request that a filter may leave out is shown as well.
    node.steer(&["set", "--min-duration", "1us"]);
    let held = locked(&place);
    let mut program = place.hooked(&node);
    program.send(&format!("lock {}", place.path.join("locked").display()));
    let row = shown(&node, program.id(), "flock", "/locked");
    drop(held);
    assert_eq!(program.answer(), "ok");
    let gone = |row: &Value| row["pid"] != program.id() || row["op"] != "flock";
    assert!(node.in_flight(&[]).iter().all(gone));
    program.end();
    let rows = node.end();
    let locks: Vec<&PrintedEvent> = rows.iter().filter(|row| row.op == "flock").collect();
    let [lock] = locks[..] else { panic!("{locks:?}") };
    assert_eq!((lock.result, lock.flags & INTERRUPTED), (0, 0));
    assert!(lock.duration >= age(&row) / 10 * 9);
}

#[test]
fn waiting_open_is_shown_with_its_path() {
    let place = ControlDirs::new("open");
    let node = place.node();
    let fifo = place.path.join("fifo");
    let _ = run(Command::new("mkfifo").arg(&fifo)).success();
    let mut cat = Background::start(preloaded("cat", &node.dir).arg("fifo").current_dir(&place.path));
    let row = shown(&node, cat.id(), "open", "/fifo");
    assert_eq!((&row["layer"], &row["comm"]), (&"posix".into(), &"cat".into()));
    drop(fs::File::options().write(true).open(&fifo).unwrap());
    until("cat ends", || !cat.running());
    assert_eq!(node.in_flight(&[]), Vec::<Value>::new());
    let rows = node.end();
    let open =
        rows.iter().find(|row| row.path.as_deref().is_some_and(|path| path.ends_with("/fifo"))).unwrap();
    assert!(open.result >= 0 && open.duration >= age(&row) / 10 * 9, "{open:?}");
}

#[test]
fn request_in_flight_is_shown_with_its_parent_and_both_end() {
    let place = ControlDirs::new("nested");
    let node = place.node();
    let fifo = place.path.join("fifo");
    let _ = run(Command::new("mkfifo").arg(&fifo)).success();
    let mut program = place.own(&node);
    program.send(&format!("nested {}", fifo.display()));
    let row = shown(&node, program.id(), "read", "/fifo");
    assert_eq!((&row["layer"], &row["length"]), (&"client".into(), &7.into()));
    assert_eq!((&row["enclosing_layer"], &row["enclosing_op"]), (&"stdio".into(), &"fread".into()));
    assert!(row["enclosing_age"].as_i64() >= row["age"].as_i64());
    assert!(node.top(&[]).contains("(in stdio.fread, "));
    program.kill(Signal::KILL);
    until("both are in the trace", || node.so_far().len() == 2);
    let rows = node.end();
    let told: Vec<_> =
        rows.iter().map(|row| (row.op.as_str(), row.result, row.flags, row.enclosing)).collect();
    let outer = rows[1].request;
    assert_eq!(told, [("read", -4, INTERRUPTED, Some(outer)), ("fread", -4, INTERRUPTED, None)]);
}
