//! Requests work when tracing fails, and tracing works when the mount fails.

use crate::client;
use miot_tests::built::built;
use miot_tests::gluster::Gluster;
use miot_tests::node::Node;
use miot_tests::process::{Background, signal_id, until};
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use rustix::process::Signal;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Requests of the client layer on a file.
fn on<'a>(rows: &'a [PrintedEvent], path: &str) -> Vec<&'a PrintedEvent> {
    client(rows).into_iter().filter(|row| row.path.as_deref() == Some(path)).collect()
}

/// Operations of a file in the trace so far.
fn ops(node: &Node, path: &str) -> Vec<String> {
    on(&node.so_far(), path).iter().map(|row| row.op.clone()).collect()
}

#[test]
fn recording_follows_volume_options_with_open_files() {
    let place = fresh("gluster-options");
    let Some(mut gluster) = Gluster::start(&place) else { return };
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    gluster.volume("traced", true);
    // With a second copy of the tracer in the process: the preloaded hook.
    let mount = gluster.mount_with(
        "traced",
        Command::new("glusterfs").env("MIOT_DIR", &node.dir).env("LD_PRELOAD", &built().hook),
    );
    let mut open = fs::File::create(mount.seen().join("open")).unwrap();
    open.write_all(b"before").unwrap();

    // The open file moves to the new graph and has a name there.
    gluster.ask_for("traced", "user.miot", "all");
    until("the new graph records", || {
        open.write_all(b"after").unwrap();
        ops(&node, "/open").iter().any(|op| op == "write")
    });
    // Other options of the volume keep the translator in the graph.
    gluster.cli(&["volume", "set", "traced", "performance.read-ahead", "on"]);
    assert!(gluster.volume_file("traced").contains("type debug/miot"));

    // The same graph with another option.
    let mut number = 0;
    for (value, data, meta) in [("data", true, false), ("meta", false, true), ("none", false, false)] {
        gluster.ask_for("traced", "user.miot", value);
        until("the option is followed", || {
            number += 1;
            let (name, mark) = (format!("{value}-{number}"), format!("mark-{number}"));
            mount.shell(&format!("echo some > {name}; cat {name}"));
            // Later events show that no earlier ones are still to come.
            node.steer(&["snapshot"]);
            mount.shell(&format!("mkdir {mark}"));
            std::thread::sleep(std::time::Duration::from_millis(300));
            let ops = ops(&node, &format!("/{name}"));
            let has = |op: &str| ops.iter().any(|found| found == op);
            has("write") == data && has("create") == meta
        });
    }
    // Without paths: the requests are recorded, but without a name.
    gluster.ask_for("traced", "user.miot-paths", "off");
    gluster.ask_for("traced", "user.miot", "all");
    until("paths are left out", || {
        mount.shell("mkdir unnamed && rmdir unnamed");
        let rows = node.so_far();
        rows.iter().any(|row| row.layer == "client" && row.op == "rmdir" && row.path.is_none())
    });
    // Remove the translator from the graph.
    gluster.ask_for("traced", "user.miot", "off");
    assert!(!gluster.volume_file("traced").contains("type debug/miot"));
    open.write_all(b"end").unwrap();
    drop(open);
    assert!(mount.shell("cat open").stdout.ends_with("afterend"));
    let served = mount.id();
    mount.end();
    let rows = node.end();
    assert!(
        rows.iter().any(|row| row.layer != "client" && row.pid == served),
        "the preloaded hook records as well"
    );
}

#[test]
fn mount_works_without_tracing_and_tracing_without_mount() {
    let place = fresh("gluster-trouble");
    let Some(mut gluster) = Gluster::start(&place) else { return };
    gluster.volume("traced", true);
    gluster.ask_for("traced", "user.miot", "all");

    // No log-client at all.
    let mount = gluster.mount("traced", &place.join("none"));
    mount.shell("mkdir quiet; echo some > quiet/file; cat quiet/file; rm -r quiet");
    mount.end();

    // Off and on again.
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    let mount = gluster.mount("traced", &node.dir);
    for (name, switch) in [("first", "off"), ("second", "on"), ("third", "on")] {
        mount.shell(&format!("echo some > {name}; cat {name}; mv {name} {name}-moved; rm {name}-moved"));
        node.steer(&[switch]);
    }
    // No request remains in the process, and its counters equal the trace.
    let requests = |rows: &[PrintedEvent]| client(rows).len() as u64;
    until("the last request is in the trace", || !on(&node.so_far(), "/third-moved").is_empty());
    let dump = statedump(&gluster.room.seen(Path::new("/run/gluster")), mount.id());
    assert!(dump.contains("\n[xlator.debug.miot.traced-miot]\nrecord=all\npaths=on\n"), "{dump}");
    let number = |key: &str| -> u64 {
        dump.lines()
            .find_map(|line| line.strip_prefix(key)?.parse().ok())
            .unwrap_or_else(|| panic!("{key} {dump}"))
    };
    assert_eq!(number("callpool.cnt="), 0, "{dump}");
    assert_eq!(number("dropped="), 0);
    until("all requests are in the trace", || requests(&node.so_far()) >= number("recorded="));

    // Kill the mount process under load.
    let load = "fio --name=load --numjobs=3 --thread --bs=4k --size=4m --ioengine=psync --rw=randrw --time_based --runtime=60";
    let mut load = Background::start(&mut gluster.inside(&mount.dir, load));
    until("there is load", || client(&node.so_far()).iter().filter(|row| row.op == "write").count() > 500);
    let killed = mount.id();
    mount.kill();
    until("the load fails", || !load.running());

    // Another mount continues, and the log-client is killed during its requests.
    let mount = gluster.mount("traced", &node.dir);
    mount.shell("echo some > fourth");
    until("the new mount records", || !on(&node.so_far(), "/fourth").is_empty());
    node.freeze();
    mount.shell("for i in $(seq 100); do echo some > fifth-$i; done");
    node.signal(Signal::CONT);
    mount.end();
    let rows = node.end();
    assert!(!on(&rows, "/first-moved").is_empty());
    assert!(on(&rows, "/second").is_empty(), "tracing was off");
    assert!(!on(&rows, "/third").is_empty());
    assert!(rows.iter().filter(|row| row.pid == killed && row.op == "write").count() > 500);
    assert_eq!(
        rows.iter()
            .filter(|row| row.op == "create"
                && row.path.as_deref().is_some_and(|path| path.starts_with("/fifth")))
            .count(),
        100
    );
}

/// Returns the state dump that GlusterFS writes for a process on request.
fn statedump(folder: &Path, id: u32) -> String {
    signal_id(id, Signal::USR1);
    let mut found = String::new();
    until("there is a state dump", || {
        let mut files = fs::read_dir(folder).unwrap().flatten();
        let dump = files.find(|file| file.file_name().to_string_lossy().starts_with("glusterdump."));
        found = dump.map(|file| fs::read_to_string(file.path()).unwrap_or_default()).unwrap_or_default();
        found.contains("DUMP-END-TIME")
    });
    found
}
