//! `miot top` on a log-server shows the requests that hang on its nodes, with their age.

use miot_tests::built::built;
use miot_tests::daemons::preloaded;
use miot_tests::node::Node;
use miot_tests::process::until;
use miot_tests::steered::Steered;
use miot_tests::tmux::Terminal;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;

#[test]
fn hanging_request_of_a_node_is_shown_at_the_log_server() {
    let (place, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let node = Node::start(place.path(), shared.path());
    // Wide enough for whole paths.
    let terminal = Terminal::new(250, 24);
    terminal.line(&format!("{} top 127.0.0.1:{} --view in-flight", built().miot.display(), node.port));
    let _ = terminal.shows("0 in flight; the oldest of each node");

    let locked = place.path().join("locked");
    let held = File::create(&locked).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let mut program = preloaded(env!("CARGO_BIN_EXE_steered"), &node.dir);
    let mut program = Steered::start(program.env("MIOT_JOB", "nightly").arg(place.path().join("data")));
    program.send(&format!("lock {}", locked.display()));
    let row =
        || -> Vec<String> { terminal.shows("posix.flock").split_whitespace().map(str::to_owned).collect() };
    let (first, pid) = (row(), program.id().to_string());
    assert_eq!(first[1..5], ["node", &pid, "posix.flock", "nightly"], "{first:?}");
    assert!(first[5].ends_with("/steered"), "{first:?}");
    let _ = terminal.shows("1 in flight; the oldest of each node");
    until("it grows older", || row()[0] != first[0]);

    drop(held);
    assert_eq!(program.answer(), "ok");
    let _ = terminal.shows("0 in flight; the oldest of each node");
    terminal.keys(&["q"]);
    let _ = terminal.shows("ready>");
    program.end();
    let _ = node.end();
}
