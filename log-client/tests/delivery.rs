//! Real producers, a real log-client, a server that judges: what is recorded arrives once and in order.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::producer::{play, recorded, start};
use common::{Client, Judge, Script, Server, config, segments};
use miot_log_client::Error;
use std::io::Write;
use std::time::Duration;

/// Does nothing but for the processes that the other tests start.
#[test]
fn producer() {
    play();
}

/// No gap, no repeat, from the first attempt on.
fn assert_complete(judge: &Judge) {
    for (key, events) in &judge.streams {
        for (index, (attempt, _)) in events.iter().enumerate() {
            assert_eq!(*attempt, index as u64, "in {key:?}, ended {:?}", judge.ends.get(key));
        }
    }
}

#[test]
fn everything_that_threads_record_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script::default());
    let client = Client::start(config(dir.path(), &server.address));
    let children: Vec<_> = (0..3).map(|_| start(dir.path(), "4 20000")).collect();
    let total: usize = children.into_iter().map(recorded).sum();
    assert_eq!(total, 240_000);
    let report = client.stop().unwrap();
    let judge = server.judge();
    assert_complete(&judge);
    assert_eq!((judge.events(), report.events), (total, total as u64));
    assert_eq!(judge.paths, total / 100);
    assert_eq!((judge.ends.len(), judge.processes_ended), (judge.streams.len(), 3));
    assert!(judge.watermarks > 0 && judge.pongs > 0);
    // The last word is not waited for.
    server.wait_for(|judge| judge.said_bye);
    assert_eq!((report.abi_violations, report.clamped, report.undelivered), (0, 0, 0), "{report:?}");
    assert_eq!(segments(dir.path()), [""; 0]);
}

#[test]
fn a_killed_process_loses_nothing_that_it_committed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script::default());
    let client = Client::start(config(dir.path(), &server.address));
    let total = recorded(start(dir.path(), "2 5000 0 killed"));
    server.wait_for(|judge| judge.processes_ended == 1);
    assert_eq!(segments(dir.path()), [""; 0], "while the log-client runs");
    let judge = server.judge();
    assert_complete(&judge);
    assert_eq!(judge.events(), total);
    client.stop().unwrap();
}

#[test]
fn leftovers_of_processes_that_died_alone_are_delivered_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script::default());
    let mut settings = config(dir.path(), &server.address);
    settings.when_full = miot_proto::control::WhenFull::DropNewest;
    // Recording is on, but nobody reads.
    let prepared = miot_log_client::LogClient::prepare(settings.clone()).unwrap();
    let kept = recorded(start(dir.path(), "2 100 0 killed"));
    assert_eq!((kept, segments(dir.path()).len()), (200, 1));
    drop(prepared);
    let client = Client::start(settings);
    let report = client.stop().unwrap();
    assert_eq!((report.events, server.judge().events()), (200, 200));
    assert_eq!(segments(dir.path()), [""; 0]);
}

#[test]
fn broken_connections_repeat_but_lose_nothing() {
    for forgetful in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let server =
            Server::start(Script { cut_after: vec![0, 1, 3, 10, 40], forgetful, ..Script::default() });
        let client = Client::start(config(dir.path(), &server.address));
        let total = recorded(start(dir.path(), "3 10000 100"));
        let report = client.stop().unwrap();
        assert_eq!(server.connections().len(), 6);
        let judge = server.judge();
        assert_complete(&judge);
        assert_eq!(judge.events(), total);
        assert_eq!((judge.ends.len(), report.undelivered), (judge.streams.len(), 0));
    }
}

#[test]
fn a_successor_goes_on_with_living_processes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script::default());
    let settings = config(dir.path(), &server.address);
    let first = Client::start(settings.clone());
    let mut child = start(dir.path(), "2 20000 0 twice");
    server.wait_for(|judge| judge.events() == 40_000);
    let before = first.stop().unwrap();
    assert_eq!(segments(dir.path()).len(), 1, "the segment of a living process stays");
    let second = Client::start(settings);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let total = recorded(child);
    let after = second.stop().unwrap();
    let judge = server.judge();
    assert_complete(&judge);
    assert_eq!(judge.events(), total);
    assert_eq!((before.events, before.events + after.events), (40_000, total as u64));
    assert!(after.events > 0, "recording goes on");
}

#[test]
fn a_refusal_ends_the_log_client() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script { refuse: true, ..Script::default() });
    let error = Client::start(config(dir.path(), &server.address)).wait().unwrap_err();
    assert!(matches!(&error, Error::Refused { reason, .. } if reason == "not today"), "{error}");
}

#[test]
fn a_stop_without_a_server_says_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script { silent: true, ..Script::default() });
    let client = Client::start(miot_log_client::Config {
        stop: Duration::from_millis(300),
        ..config(dir.path(), &server.address)
    });
    let total = recorded(start(dir.path(), "1 1000"));
    let report = client.stop().unwrap();
    assert_eq!((report.events, report.undelivered > 0), (total as u64, true));
}

#[test]
fn a_server_that_never_acknowledges_takes_no_more_than_the_memory_allowed() {
    const MEMORY: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script { silent: true, ..Script::default() });
    let client = Client::start(miot_log_client::Config {
        memory: MEMORY,
        wait: Duration::from_millis(20),
        stop: Duration::from_millis(200),
        ..config(dir.path(), &server.address)
    });
    let kept = recorded(start(dir.path(), "1 40000 0 long"));
    let report = client.stop().unwrap();
    // The last copy of each lane goes over the edge.
    assert!((MEMORY..MEMORY + (1 << 20)).contains(&report.bytes), "{report:?}");
    assert!(report.left_in_lanes && report.lost_full > 0 && report.undelivered > 0, "{report:?}");
    assert!(report.events < kept as u64, "what is left in the lanes was not lost");
    assert_eq!(kept as u64 + report.lost_full, 40_000);
}

#[test]
fn a_stop_ends_in_time_with_no_server_no_memory_and_many_streams() {
    let dir = tempfile::tempdir().unwrap();
    // A port that nobody listens on any more.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let client = Client::start(miot_log_client::Config {
        memory: 16 << 20,
        when_full: miot_proto::control::WhenFull::DropNewest,
        stop: Duration::from_millis(200),
        ..config(dir.path(), &server)
    });
    let mut child = start(dir.path(), "400 100 0 long twice");
    // All threads hold a lane, and what they recorded is more than the memory.
    while segments(dir.path()).is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    let report = client.stop().unwrap();
    // How far the sweep had come by then depends on the machine; that nothing arrived does not.
    assert!(report.undelivered > 0, "{report:?}");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    recorded(child);
}
