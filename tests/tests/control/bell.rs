//! The doorbell: a burst that exceeds the lanes wakes a sleeping log-client.

use super::{ControlDirs, losses, numbers, own};
use miot_proto::control::{FILE, word};
use miot_tests::node::Node;
use miot_tests::process::until;
use std::fs;
use std::time::{Duration, Instant};

/// Slots of the only lane of the program.
const LANE: i64 = 4096;
/// Long enough for a wake-up, but shorter than a sleep.
const PAUSE: Duration = Duration::from_millis(700);

/// Reads a word of the control page directly, because `miot ctl` would wake the log-client.
fn word_of(node: &Node, at: usize) -> u64 {
    let page = fs::read(node.dir.join(FILE)).unwrap();
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

/// Waits until the log-client has slept its full time and has just started to sleep again.
fn falls_asleep(node: &Node) {
    let (mut sweeps, mut since) = (word_of(node, word::SWEEPS), Instant::now());
    until("it sleeps a second at a time", || {
        let now = word_of(node, word::SWEEPS);
        let slept = (now != sweeps).then(|| std::mem::replace(&mut since, Instant::now()).elapsed());
        sweeps = now;
        slept.is_some_and(|slept| slept > PAUSE)
    });
    until("it sleeps", || word_of(node, word::SLEEPING) == 1);
}

/// Waits for a sweep that starts after this call and has ended. Returns whether that took less time
/// than a log-client that is not woken sleeps.
fn is_read_soon(node: &Node) -> bool {
    let (start, sweeps) = (Instant::now(), word_of(node, word::SWEEPS));
    // Sweeps are counted when they start.
    until("the burst is read", || word_of(node, word::SWEEPS) >= sweeps + 2);
    start.elapsed() < PAUSE
}

#[test]
fn burst_wakes_a_sleeping_log_client_and_loses_no_event() {
    let place = ControlDirs::new("bell");
    let file = place.path.join("log-client.toml");
    let text =
        format!("idle = \"1s\"\nlane_slots = {LANE}\nlane_slots_max = {LANE}\nwhen_full = \"drop-newest\"\n");
    fs::write(&file, text).unwrap();
    let node = Node::with_configuration(&place.path, place.shared.path(), &file);
    let mut program = place.own(&node);
    program.tell("own 1");
    let mut woken = 0;
    for _ in 0..3 {
        falls_asleep(&node);
        for burst in 0..8 {
            // More than half of the lane. The lane cannot hold two of these.
            program.tell(&format!("own {}", LANE * 5 / 8));
            woken += u32::from(is_read_soon(&node) && burst == 0);
        }
    }
    // On a busy machine a woken log-client may run late, or be interrupted between its last look at
    // the lane and its sleep.
    assert!(woken > 0, "the log-client was not woken");
    program.end();
    let trace = node.trace.clone();
    assert_eq!(own(&node.end()), numbers(&[(0, 1 + 24 * (LANE * 5 / 8))]));
    assert_eq!(losses(&trace), []);
}
