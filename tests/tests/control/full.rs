//! Lanes that fill, because the log-client stands still or is not to read them: the three policies,
//! the flight recorder.

use super::{LATE, Loss, Place, losses, numbers, own, refused};
use miot_tests::process::until;
use miot_tests::trace::Row;
use rustix::process::Signal;
use std::fs;

/// What a program records while the log-client stands still, and a little after that: the rows, and
/// what was lost.
fn with_a_stopped_log_client(name: &str, policy: &[&str], while_stopped: i64) -> (Vec<Row>, Vec<Loss>) {
    let place = Place::new(name);
    let node = place.node();
    node.steer(&[&["set"], policy].concat());
    let mut program = place.own(&node);
    node.freeze();
    program.tell(&format!("own {while_stopped}"));
    node.signal(Signal::CONT);
    // Namespaces again: everything committed so far has been read.
    node.steer(&["snapshot"]);
    program.tell("own 10");
    program.end();
    let trace = node.trace.clone();
    (node.end(), losses(&trace))
}

/// The one loss there is lies between these two events.
fn lies_between(loss: &Loss, before: Option<&Row>, after: &Row) {
    assert_eq!(loss.place, "lane_full");
    let (first, last) = loss.range.unwrap();
    assert_eq!((last - first + 1, loss.stream), (loss.count, after.stream));
    assert_eq!((before.map_or(0, |row| row.seq + 1), after.seq), (first, last + 1));
}

#[test]
fn drop_newest_loses_what_comes_while_lanes_are_full() {
    let (rows, losses) = with_a_stopped_log_client("drop", &["--when-full", "drop-newest"], 100_000);
    let kept = rows.len() as i64 - 10;
    assert!((10_000..100_000).contains(&kept), "{kept}: lanes grow, but not for ever");
    assert_eq!(own(&rows), numbers(&[(0, kept), (100_000, 100_010)]));
    let [loss] = &losses[..] else { panic!("{losses:?}") };
    assert_eq!(loss.count, 100_000 - kept as u64);
    lies_between(loss, Some(&rows[kept as usize - 1]), &rows[kept as usize]);
}

#[test]
fn overwrite_oldest_loses_what_came_first() {
    let (rows, losses) =
        with_a_stopped_log_client("overwrite", &["--when-full", "overwrite-oldest"], 100_000);
    let kept = rows.len() as i64 - 10;
    // 512 slots, an eighth of which is given up at a time.
    assert!((448..=512).contains(&kept), "{kept}");
    assert_eq!(own(&rows), numbers(&[(100_000 - kept, 100_010)]));
    let [loss] = &losses[..] else { panic!("{losses:?}") };
    assert_eq!(loss.count, 100_000 - kept as u64);
    lies_between(loss, None, &rows[0]);
}

#[test]
fn wait_waits_only_so_long_for_a_log_client_that_stands_still() {
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
fn programs_that_wait_go_on_when_another_policy_is_chosen_also_without_a_log_client() {
    let place = Place::new("relief");
    let node = place.node();
    node.steer(&["set", "--when-full", "wait", "--wait", "1d"]);
    let mut program = place.own(&node);
    node.freeze();
    program.send("own 100000");
    until("it waits for room", || sleeps(program.id()));
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

/// True if the process sleeps in `clock_nanosleep`, which is where the policy `wait` waits.
fn sleeps(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
    text.starts_with(&format!("{} ", libc::SYS_clock_nanosleep))
        || text.starts_with(&format!("{} ", libc::SYS_nanosleep))
}

#[test]
fn wait_loses_nothing_while_the_log_client_reads() {
    let place = Place::new("wait-all");
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
fn a_flight_recorder_delivers_the_latest_on_a_snapshot_and_after_a_kill() {
    let place = Place::new("recorder");
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
    until("what a killed program leaves behind is delivered", || own(&node.so_far()).last() == Some(&14_999));
    node.steer(&["set", "--flight-recorder", "off"]);
    let mut program = place.own(&node);
    program.tell("own 2000");
    // What lanes of running programs hold when the log-client stops is delivered as well.
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

/// The node cannot promise that nothing earlier is to come while a lane that is not read holds
/// something. The log-server waits for it as for a node that is silent, and no longer:
/// `silent_after`, six times that after a batch.
#[test]
fn what_a_killed_program_leaves_in_a_flight_recorder_does_not_wait_for_those_that_live() {
    let place = Place::new("recorder-others");
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
    // What came after its time had been merged is marked, and nothing else: its time is its own.
    let of = |process: &dyn Fn(&&Row) -> bool| own(&rows.iter().filter(process).cloned().collect::<Vec<_>>());
    assert_eq!(of(&|row| row.pid == pid), numbers(&[(0, 200)]));
    assert_eq!(of(&|row| row.pid != pid), numbers(&[(0, 301)]));
    let (early, late): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.flags & LATE == 0);
    assert_eq!((early.len(), late.len()), (201, 300), "one of the living ended after the last of the dead");
    assert!(early.is_sorted_by_key(|row| row.time) && late.is_sorted_by_key(|row| row.time));
    assert!(late.last().unwrap().time < early[199].time, "times are not moved");
}
