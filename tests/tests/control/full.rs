//! Lanes that fill because the log-client is stopped or does not read them: the three policies and
//! the flight recorder.

use super::{ControlDirs, LATE, Loss, losses, numbers, own, refused};
use miot_tests::process::until;
use miot_tests::trace::PrintedEvent;
use rustix::process::Signal;
use std::fs;

/// Runs a program while the log-client is stopped, and for some requests afterwards. Returns the
/// rows and the losses.
fn with_a_stopped_log_client(
    name: &str,
    policy: &[&str],
    while_stopped: i64,
) -> (Vec<PrintedEvent>, Vec<Loss>) {
    let place = ControlDirs::new(name);
    let node = place.node();
    node.steer(&[&["set"], policy].concat());
    let mut program = place.own(&node);
    node.freeze();
    program.tell(&format!("own {while_stopped}"));
    node.signal(Signal::CONT);
    // After a snapshot everything committed so far has been read.
    node.steer(&["snapshot"]);
    program.tell("own 10");
    program.end();
    let trace = node.trace.clone();
    (node.end(), losses(&trace))
}

/// Checks that the only loss lies between these two events.
fn lies_between(loss: &Loss, before: Option<&PrintedEvent>, after: &PrintedEvent) {
    assert_eq!(loss.place, "lane_full");
    let (first, last) = loss.range.unwrap();
    assert_eq!((last - first + 1, loss.stream), (loss.count, after.stream));
    assert_eq!((before.map_or(0, |row| row.seq + 1), after.seq), (first, last + 1));
}

#[test]
fn drop_newest_loses_events_while_lanes_are_full() {
    let (rows, losses) = with_a_stopped_log_client("drop", &["--when-full", "drop-newest"], 100_000);
    let kept = rows.len() as i64 - 10;
    assert!((10_000..100_000).contains(&kept), "{kept}: lanes grow up to a limit");
    assert_eq!(own(&rows), numbers(&[(0, kept), (100_000, 100_010)]));
    let [loss] = &losses[..] else { panic!("{losses:?}") };
    assert_eq!(loss.count, 100_000 - kept as u64);
    lies_between(loss, Some(&rows[kept as usize - 1]), &rows[kept as usize]);
}

#[test]
fn overwrite_oldest_loses_the_oldest_events() {
    let (rows, losses) =
        with_a_stopped_log_client("overwrite", &["--when-full", "overwrite-oldest"], 100_000);
    let kept = rows.len() as i64 - 10;
    // 512 slots, of which an eighth is released at a time.
    assert!((448..=512).contains(&kept), "{kept}");
    assert_eq!(own(&rows), numbers(&[(100_000 - kept, 100_010)]));
    let [loss] = &losses[..] else { panic!("{losses:?}") };
    assert_eq!(loss.count, 100_000 - kept as u64);
    lies_between(loss, None, &rows[0]);
}

#[test]
fn wait_has_a_limit_while_the_log_client_is_stopped() {
    let (rows, losses) =
        with_a_stopped_log_client("wait", &["--when-full", "wait", "--wait", "200ms"], 100_000);
    let kept = rows.len() as i64 - 10;
    assert!((10_000..100_000).contains(&kept), "{kept}");
    assert_eq!(own(&rows), numbers(&[(0, kept), (100_000, 100_010)]));
    let [loss] = &losses[..] else { panic!("{losses:?}") };
    assert_eq!(loss.count, 100_000 - kept as u64);
    lies_between(loss, Some(&rows[kept as usize - 1]), &rows[kept as usize]);
}

#[test]
fn waiting_programs_continue_after_a_change_of_policy() {
    let place = ControlDirs::new("relief");
    let node = place.node();
    node.steer(&["set", "--when-full", "wait", "--wait", "1d"]);
    let mut program = place.own(&node);
    node.freeze();
    program.send("own 100000");
    until("it waits for a free slot", || sleeps(program.id()));
    let (code, text) = refused(&node.dir, &["set", "--when-full", "drop-newest"]);
    assert!(
        code == 1 && text.contains("the settings were changed") && text.contains("SIGSTOP"),
        "{code} {text}"
    );
    assert_eq!(program.answer(), "ok");
    node.signal(Signal::CONT);
    program.end();
    let trace = node.trace.clone();
    let rows = node.end();
    let [loss] = &losses(&trace)[..] else { panic!("one loss") };
    assert_eq!((loss.place.as_str(), rows.len() as u64 + loss.count), ("lane_full", 100_000));
}

/// True if the process sleeps in `clock_nanosleep`, which the policy `wait` calls.
fn sleeps(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
    text.starts_with(&format!("{} ", libc::SYS_clock_nanosleep))
        || text.starts_with(&format!("{} ", libc::SYS_nanosleep))
}

#[test]
fn wait_loses_no_event_while_the_log_client_reads() {
    let place = ControlDirs::new("wait-all");
    let node = place.node();
    node.steer(&["set", "--when-full", "wait"]);
    let mut program = place.own(&node);
    program.tell("own 300000");
    program.end();
    let trace = node.trace.clone();
    assert_eq!(own(&node.end()), numbers(&[(0, 300_000)]));
    assert_eq!(losses(&trace), []);
}

#[test]
fn flight_recorder_delivers_on_snapshot_and_kill() {
    let place = ControlDirs::new("recorder");
    let node = place.node();
    node.steer(&["set", "--flight-recorder", "on"]);
    let mut program = place.own(&node);
    program.tell("own 5000");
    let said = node.steer(&["snapshot"]);
    program.tell("own 5000");
    node.signal(Signal::USR1);
    until("the snapshot of SIGUSR1 is taken", || node.status()["snapshots_done"] == 2);
    program.tell("own 5000");
    program.kill(Signal::KILL);
    until("the events of a killed program are delivered", || own(&node.so_far()).last() == Some(&14_999));
    node.steer(&["set", "--flight-recorder", "off"]);
    let mut program = place.own(&node);
    program.tell("own 2000");
    // Lanes of running programs are delivered as well when the log-client stops.
    node.steer(&["set", "--flight-recorder", "on", "--min-duration", "1h"]);
    program.tell("own 1000");
    node.steer(&["set", "--min-duration", "0"]);
    program.tell("own 100");
    let trace = node.trace.clone();
    let rows = node.end();
    drop(program);

    let all = own(&rows);
    let (recorded, ordinary) = all.split_at(all.len() - 2100);
    assert_eq!(ordinary, numbers(&[(0, 2000), (3000, 3100)]));
    let mut kept = Vec::new();
    for end in [5000, 10_000, 15_000] {
        let run: Vec<i64> =
            recorded.iter().copied().filter(|offset| (end - 5000..end).contains(offset)).collect();
        let length = run.len() as i64;
        assert!((448..=512).contains(&length), "{length} before {end}");
        assert_eq!(run, numbers(&[(end - length, end)]));
        kept.push(length as u64);
    }
    assert_eq!(recorded.len() as u64, kept.iter().sum::<u64>());
    assert!(said.contains(&format!(" {} records", kept[0])), "{said}");
    let (filtered, losses): (Vec<_>, Vec<_>) =
        losses(&trace).into_iter().partition(|loss| loss.place == "filtered");
    assert_eq!(filtered.iter().map(|loss| loss.count).collect::<Vec<_>>(), [1000]);
    assert_eq!(
        losses.iter().map(|loss| loss.count).collect::<Vec<_>>(),
        kept.iter().map(|n| 5000 - n).collect::<Vec<_>>()
    );
    let mut before = None;
    let mut at = 0;
    for (loss, kept) in losses.iter().zip(kept) {
        lies_between(loss, before, &rows[at]);
        at += kept as usize;
        before = Some(&rows[at - 1]);
    }
}

/// The node's watermark cannot advance while a lane that is not read holds events. The log-server
/// waits for it as for a silent node, and no longer: `silent_after`, or six times that after a
/// batch.
#[test]
fn killed_flight_recorder_does_not_wait_for_running_ones() {
    let place = ControlDirs::new("recorder-others");
    let node = place.node();
    node.steer(&["set", "--flight-recorder", "on"]);
    let (mut living, mut dying) = (place.own(&node), place.own(&node));
    living.tell("own 300");
    let pid = dying.id();
    dying.tell("own 200");
    living.tell("own 1");
    dying.kill(Signal::KILL);
    until("the records of the dead are in the trace", || node.so_far().len() == 200);
    assert!(node.so_far().iter().all(|row| row.pid == pid));
    assert!(node.steer(&["snapshot"]).contains(" 301 records read"));
    until("the snapshot is in the trace", || node.so_far().len() == 501);
    living.end();
    let trace = node.trace.clone();
    let rows = node.end();
    assert_eq!(losses(&trace), []);
    // Only events that arrived after their time had been merged are marked. Their times are
    // unchanged.
    let of = |process: &dyn Fn(&&PrintedEvent) -> bool| {
        own(&rows.iter().filter(process).cloned().collect::<Vec<_>>())
    };
    assert_eq!(of(&|row| row.pid == pid), numbers(&[(0, 200)]));
    assert_eq!(of(&|row| row.pid != pid), numbers(&[(0, 301)]));
    let (early, late): (Vec<&PrintedEvent>, Vec<&PrintedEvent>) =
        rows.iter().partition(|row| row.flags & LATE == 0);
    assert_eq!(
        (early.len(), late.len()),
        (201, 300),
        "one event of a running program ended after the last of the killed one"
    );
    assert!(early.is_sorted_by_key(|row| row.time) && late.is_sorted_by_key(|row| row.time));
    assert!(late.last().unwrap().time < early[199].time, "times are not moved");
}
