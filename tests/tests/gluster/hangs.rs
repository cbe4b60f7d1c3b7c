//! Requests that hang because a brick does not answer are shown in flight.

use crate::client;
use miot_tests::gluster::Gluster;
use miot_tests::node::Node;
use miot_tests::process::{Background, signal_id, until};
use miot_tests::test_dir::fresh;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Stops the processes of the bricks, and continues them when dropped.
struct Stopped(Vec<u32>);

impl Stopped {
    fn new(bricks: Vec<u32>) -> Stopped {
        assert!(!bricks.is_empty(), "no brick runs");
        bricks.iter().for_each(|brick| signal_id(*brick, Signal::STOP));
        Stopped(bricks)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|brick| signal_id(*brick, Signal::CONT));
    }
}

/// Waits until a request of the mount for this thread is shown in flight, and returns it.
fn shown(node: &Node, mount: u32, caller: u32) -> Value {
    let mut found = None;
    until("the request is shown in flight", || {
        let mut rows = node.in_flight(&[]).into_iter();
        found = rows.find(|row| row["pid"] == mount && row["caller_tid"] == caller);
        found.is_some()
    });
    found.unwrap()
}

/// Python program that opens the file `dir/data`, creates a file beside `go`, waits for `go`, and
/// makes a call.
fn program(name: &str, call: &str, go: &Path) -> String {
    let opened = go.with_file_name(name);
    format!(
        "exec python3 -c '
import mmap, os, time
fd = os.open(\"dir/data\", os.O_RDWR | os.O_DIRECT)
buffer = mmap.mmap(-1, 8192)
open(\"{}\", \"w\")
while not os.path.exists(\"{}\"): time.sleep(0.05)
{call}'",
        opened.display(),
        go.display()
    )
}

#[test]
fn requests_on_a_brick_that_hangs_are_shown_with_path_offset_and_length() {
    let place = fresh("gluster-hangs");
    let Some(mut gluster) = Gluster::start(&place) else { return };
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    gluster.volume("traced", false);
    gluster.ask_for("traced", "user.miot", "all");
    let mount = gluster.mount("traced", &node.dir);
    mount.shell("mkdir dir; dd if=/dev/zero of=dir/data bs=4096 count=64 status=none");
    let in_flight = || node.in_flight(&[]).into_iter().filter(|row| row["pid"] == mount.id()).count();

    // The files are opened before the brick stops, so that reads and writes hang.
    let go = place.join("go");
    let calls = [
        ("writes", "os.pwritev(fd, [buffer], 32768)"),
        ("reads", "os.preadv(fd, [buffer], 65536)"),
        ("makes", "os.mkdir(\"new\")"),
    ];
    let mut programs = calls.map(|(name, call)| {
        let program = Background::start(&mut gluster.inside(&mount.dir, &program(name, call, &go)));
        until("the file is open", || place.join(name).exists());
        program
    });
    until("nothing is in flight", || in_flight() == 0);
    let stopped = Stopped::new(gluster.bricks("traced"));
    fs::write(&go, "").unwrap();
    let [write, read, make] = programs.each_ref().map(|program| shown(&node, mount.id(), program.id()));
    assert_eq!(
        (&write["layer"], &write["op"], &write["file"]),
        (&"client".into(), &"write".into(), &"/dir/data".into())
    );
    assert_eq!((&write["offset"], &write["length"]), (&32768.into(), &8192.into()), "{write}");
    assert!(write["handle"].as_u64().is_some_and(|handle| handle > 0), "{write}");
    assert_eq!((&read["op"], &read["file"]), (&"read".into(), &"/dir/data".into()), "{read}");
    assert_eq!((&read["offset"], &read["length"]), (&65536.into(), &8192.into()), "{read}");
    // The kernel asks for the attributes of the directory first if it does not know them any more.
    assert!(make["file"].as_str().is_some_and(|file| file == "/" || file == "/new"), "{make}");
    assert_eq!(make["offset"], Value::Null, "{make}");
    let age = |row: &Value| row["age"].as_u64().unwrap();
    let older = age(&write) + 1_000_000;
    until("it grows older", || age(&shown(&node, mount.id(), programs[0].id())) > older);
    let text = node.top(&[]);
    assert!(text.contains("client.write") && text.contains("/dir/data (for thread "), "{text}");
    assert_eq!(node.in_flight(&["--min-age", "1h"]), Vec::<Value>::new());

    drop(stopped);
    until("the programs end", || programs.iter_mut().all(|program| !program.running()));
    until("nothing is in flight", || in_flight() == 0);
    mount.end();
    let rows = node.end();
    let ended = client(&rows);
    let of = |op: &str, offset: i64| {
        let of = ended.iter().filter(|row| row.op == op && row.offset == Some(offset));
        of.map(|row| (row.path.as_deref(), row.result)).collect::<Vec<_>>()
    };
    assert_eq!(of("write", 32768).last(), Some(&(Some("/dir/data"), 8192)));
    assert_eq!(of("read", 65536), [(Some("/dir/data"), 8192)]);
    assert!(ended.iter().any(|row| row.op == "mkdir" && row.path.as_deref() == Some("/new")));
}
