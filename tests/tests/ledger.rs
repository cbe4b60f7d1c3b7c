//! Damage to the trace of real daemons: its events are there or reported as lost, and events that
//! are acknowledged after the damage are in the new trace.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::built;
use miot_tests::daemons::{
    client, client_command, free_port, preloaded, ready, server, server_command, started,
};
use miot_tests::process::{run, until};
use miot_tests::test_dir::fresh;
use miot_tests::traced::events;
use miot_trace_store::{Reader, Table, fsck};
use rustix::process::Signal;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const LIVE: &str = "live/part-000000.events.arrows";

fn copy(place: &Path, name: &str, dir: &Path, blocks: usize) {
    let out = place.join(name);
    let mut dd = preloaded("dd", dir);
    dd.args(["if=/dev/zero", "bs=64"]).arg(format!("of={}", out.display())).arg(format!("count={blocks}"));
    let _ = run(&mut dd).success();
}

fn count(trace: &Path) -> u64 {
    let counts = Reader::open(trace).and_then(|reader| reader.count(Table::Events));
    counts.map_or(0, |counts| counts.values().sum())
}

/// Number of writes of 64 bytes to the file of this name.
fn writes(trace: &Path, name: &str) -> usize {
    let rows = events(trace);
    let to = |path: Option<&str>| path.is_some_and(|path| path.ends_with(&format!("/{name}")));
    rows.iter().filter(|row| to(row.path.as_deref()) && row.op == "write" && row.result == 64).count()
}

fn miot(arguments: &[&str], trace: &Path) -> (i32, String) {
    let ended = run(Command::new(&built().miot).args(arguments).arg(trace));
    (ended.code(), ended.stdout)
}

#[test]
fn damaged_live_file_is_counted_to_the_event() {
    let place = fresh("ledger-live");
    let (trace, port) = (place.join("trace"), free_port());
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = shared.path().join("miot");
    let first = server(port, &trace);
    let client = client(port, "node", &dir);
    copy(&place, "x", &dir, 20_000);
    until("everything is in the trace", || count(&trace) >= 20_000);
    let _ = first.stop(Signal::KILL);
    let before = count(&trace);
    let live = OpenOptions::new().write(true).open(trace.join(LIVE)).unwrap();
    live.write_all_at(&[0; 64], live.metadata().unwrap().len() / 2).unwrap();
    let (code, said) = miot(&["fsck"], &trace);
    assert!(code == 1 && said.contains("which the ledger has"), "{said}");

    let second = server(port, &trace);
    client.end();
    let (status, printed) = second.stop(Signal::TERM);
    assert!(status.success() && printed.contains("acknowledged events are lost"), "{printed}");
    let report = fsck::check(&trace);
    assert!(report.is_good() && report.damaged > 0, "{report}");
    assert_eq!(report.events + report.damaged, before, "{report}");
    let (code, said) = miot(&["fsck"], &trace);
    assert!(code == 0 && said.contains("lost by damage") && !said.contains(" complete,"), "{said}");
}

#[test]
fn removed_part_is_reported_by_a_repair() {
    let place = fresh("ledger-part");
    let (trace, port) = (place.join("trace"), free_port());
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = shared.path().join("miot");
    let mut command = server_command(&format!("127.0.0.1:{port}"), &trace);
    let server = ready(command.env("MIOT_SERVER_SEAL_ROWS", "2000"));
    let mut command = client_command(&format!("127.0.0.1:{port}"), "node", &dir);
    let client = started(&mut command, &dir);
    for round in 1..=4u64 {
        copy(&place, &format!("x{round}"), &dir, 3000);
        until("it is in the trace", || count(&trace) >= round * 3000);
    }
    client.end();
    server.end();
    let before = fsck::check(&trace);
    assert!(before.is_good() && before.to_string().contains(" complete,"), "{before}");
    assert!(before.sealed_parts > 2, "{before}");
    // The last part too: no part follows that could reveal its absence.
    for part in [1, before.parts - 1] {
        fs::remove_file(trace.join(format!("events/part-{part:06}.parquet"))).unwrap();
        assert_eq!(miot(&["fsck"], &trace).0, 1);
        let (code, said) = miot(&["fsck", "--repair"], &trace);
        assert_eq!(code, 3, "{said}");
        let report = fsck::check(&trace);
        assert!(report.is_good() && report.damaged > 0, "{report}");
        assert_eq!(report.events + report.damaged, before.events, "{report}");
    }
}

#[test]
fn removed_trace_is_restarted_and_gets_new_events_only() {
    type Take = fn(&Path);
    let takes: [(&str, Take); 4] = [
        ("removed", |trace| until("it is removed", || fs::remove_dir_all(trace).is_ok() || !trace.exists())),
        ("moved", |trace| fs::rename(trace, trace.with_extension("moved")).unwrap()),
        ("replaced", |trace| {
            let copy = trace.join("live/copy");
            fs::copy(trace.join(LIVE), &copy).unwrap();
            fs::rename(copy, trace.join(LIVE)).unwrap();
        }),
        ("live", |trace| until("it is removed", || fs::remove_dir_all(trace.join("live")).is_ok())),
    ];
    for (what, take) in takes {
        let place = fresh(&format!("ledger-{what}"));
        let (trace, port) = (place.join("trace"), free_port());
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let dir = shared.path().join("miot");
        let mut server = server(port, &trace);
        let client = client(port, "node", &dir);
        copy(&place, "before", &dir, 500);
        until("it is in the trace", || count(&trace) >= 500);
        let before = count(&trace);
        take(&trace);
        copy(&place, "after", &dir, 3000);
        until("the server reports it and continues", || {
            assert!(server.running(), "{what}: {}", server.printed());
            server.printed().matches("log-server is ready").count() == 2
        });
        client.end();
        let (status, printed) = server.stop(Signal::TERM);
        assert!(status.success(), "{what}: {printed}");
        assert!(printed.contains("another program changed the trace"), "{what}: {printed}");
        assert_eq!(writes(&trace, "after"), 3000, "{what}: {printed}");
        let report = fsck::check(&trace);
        assert_eq!(
            report.count(fsck::ProblemKind::Gap) + report.count(fsck::ProblemKind::Incomplete),
            0,
            "{what}: {report}"
        );
        match what {
            "replaced" => assert_eq!(writes(&trace, "before"), 500),
            // The log-server may still have had the rows in memory, and sealed them.
            "live" => assert!(
                report.damaged >= before || report.lost == 0 && writes(&trace, "before") == 500,
                "{what}: {report}"
            ),
            _ => assert!(report.is_good() && report.lost == 0, "{what}: {report}"),
        }
    }
}
