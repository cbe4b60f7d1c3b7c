//! Real producers, a real log-client, and a server that checks: each recorded event arrives once
//! and in order.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::producer::{play, recorded, start};
use common::{Client, Judge, Script, Server, config, segments, until};
use miot_log_client::{Config, Error, LogClient};
use miot_proto::control;
use miot_proto::wire::{Message, PROMPT_ANSWERS};
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

/// Does something only in the processes that the other tests start.
#[test]
fn producer() {
    play();
}

/// Checks for no gap and no repeat, from the first attempt on.
fn assert_complete(judge: &Judge) {
    for (key, events) in &judge.streams {
        for (index, (attempt, _)) in events.iter().enumerate() {
            assert_eq!(*attempt, index as u64, "in {key:?}, ended {:?}", judge.ends.get(key));
        }
    }
}

#[test]
fn all_recorded_events_arrive() {
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
    // The last message is not acknowledged, so wait for it.
    server.wait_for(|judge| judge.said_bye);
    assert_eq!((report.abi_violations, report.clamped, report.undelivered), (0, 0, 0), "{report:?}");
    assert_eq!(segments(dir.path()), [""; 0]);
}

/// Answers to questions about the clock wait for other messages after the first ones, and a
/// log-client that stops asks for acknowledgments.
#[test]
fn node_of_thousands_sends_few_messages() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script { crowded: true, ..Script::default() });
    let client = Client::start(config(dir.path(), &server.address));
    let total = recorded(start(dir.path(), "2 1000"));
    server.wait_for(|judge| judge.events() == total && judge.pongs > PROMPT_ANSWERS + 2);
    let sent = server.connections().concat();
    assert!(!sent.contains(&Message::AckAtOnce));
    let is_pong = |message: &Message| matches!(message, Message::Pong { .. });
    let pongs: Vec<usize> = (0..sent.len()).filter(|at| is_pong(&sent[*at])).collect();
    let alone = pongs[PROMPT_ANSWERS..].iter().filter(|at| is_pong(&sent[*at - 1])).count();
    assert_eq!(alone, 0, "{sent:?}");
    let report = client.stop().unwrap();
    assert_eq!((report.events, report.undelivered), (total as u64, 0));
    server.wait_for(|judge| judge.said_bye);
    let asked = server.connections().concat().iter().filter(|m| **m == Message::AckAtOnce).count();
    assert_eq!(asked, 1);
}

#[test]
fn node_memory_limit_stops_new_lanes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script::default());
    let mut settings = config(dir.path(), &server.address);
    settings.node_bytes = 128 << 10;
    let client = Client::start(settings);
    let page = || std::fs::read(dir.path().join("shm").join(control::FILE)).unwrap();
    let wait_until_full = |wanted: u8| until(|| page()[control::word::NODE_FULL] == wanted);
    let mut first = start(dir.path(), "8 100 0 twice");
    wait_until_full(1);
    assert_eq!(recorded(start(dir.path(), "2 50")), 0);
    writeln!(first.stdin.take().unwrap()).unwrap();
    assert_eq!(recorded(first), 1600, "an open lane stays usable");
    wait_until_full(0);
    assert_eq!(recorded(start(dir.path(), "2 50")), 100);
    client.stop().unwrap();
    let lost: u64 = server
        .connections()
        .iter()
        .flatten()
        .filter_map(|message| match message {
            Message::ProcessEnd { lost, .. } => Some(lost.no_lane),
            _ => None,
        })
        .sum();
    assert_eq!(lost, 100);
}

/// Memory of the segments in a directory, bytes.
fn taken(dir: &Path) -> u64 {
    let folder = std::fs::read_dir(dir.join("shm")).unwrap().map(Result::unwrap);
    let segments = folder.filter(|entry| entry.file_name().to_string_lossy().ends_with(".seg"));
    segments.map(|entry| entry.metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn waiting_segments_count_as_memory_of_the_node() {
    let server = Server::start(Script::default());
    let (one, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let client = Client::start(config(one.path(), &server.address));
    let mut alone = start(one.path(), "1 100 0 twice");
    server.wait_for(|judge| judge.events() >= 100);
    let bytes = taken(one.path());
    writeln!(alone.stdin.take().unwrap()).unwrap();
    assert_eq!(recorded(alone), 200);
    client.stop().unwrap();

    let mut settings = config(dir.path(), &server.address);
    (settings.segments, settings.node_bytes) = (1, bytes + bytes / 2);
    let client = Client::start(settings);
    let wait_until_full = |wanted: u8| {
        let page = || std::fs::read(dir.path().join("shm").join(control::FILE)).unwrap();
        until(|| page()[control::word::NODE_FULL] == wanted);
    };
    let mut read = start(dir.path(), "1 100 0 twice");
    server.wait_for(|judge| judge.events() >= 300);
    let mut waiting = start(dir.path(), "1 100 0 twice");
    wait_until_full(1);
    for child in [&mut read, &mut waiting] {
        writeln!(child.stdin.take().unwrap()).unwrap();
    }
    assert_eq!((recorded(read), recorded(waiting)), (200, 200));
    wait_until_full(0);
    client.stop().unwrap();
    server.wait_for(|judge| judge.events() == 600);
}

#[test]
fn memory_limit_holds_before_segments_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = config(dir.path(), "127.0.0.1:1");
    settings.node_bytes = 1 << 20;
    let page = dir.path().join("shm").join(control::FILE);
    let full = |settings: &Config| {
        let _prepared = LogClient::prepare(settings.clone()).unwrap();
        std::fs::read(&page).unwrap()[control::word::NODE_FULL]
    };
    assert_eq!(full(&settings), 0);
    std::fs::write(dir.path().join("shm/7-00000000000000ff.seg"), vec![1; 2 << 20]).unwrap();
    assert_eq!(full(&settings), 1);
    settings.node_bytes = 1 << 30;
    assert_eq!(full(&settings), 0);
}

#[test]
fn control_page_is_stale_after_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script::default());
    let settings = config(dir.path(), &server.address);
    drop(LogClient::prepare(settings.clone()).unwrap());
    let page = std::fs::File::open(dir.path().join("shm").join(control::FILE)).unwrap();
    let age = |seconds| page.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    age(control::STALE_SECONDS as u64 + 2);
    assert_eq!(recorded(start(dir.path(), "1 50")), 0);
    assert_eq!(segments(dir.path()), [""; 0]);
    age(control::STALE_SECONDS as u64 / 2);
    assert_eq!(recorded(start(dir.path(), "1 50")), 50);
    age(control::STALE_SECONDS as u64 + 2);
    let client = Client::start(settings);
    assert_eq!(recorded(start(dir.path(), "1 50")), 50);
    server.wait_for(|judge| judge.events() == 100);
    age(control::STALE_SECONDS as u64 + 2);
    until(|| page.metadata().unwrap().modified().unwrap().elapsed().is_ok_and(|age| age.as_secs() < 30));
    client.stop().unwrap();
}

/// The 20 000 records of a burst (Cho, Kim and Lee) fit into the lanes while they grow, and a
/// sleeping log-client is woken.
#[test]
fn burst_after_idleness_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script::default());
    let mut settings = config(dir.path(), &server.address);
    settings.when_full = control::WhenFull::DropNewest;
    settings.idle = Duration::from_secs(1);
    let (first, largest) = (Config::default().lane_slots, Config::default().lane_slots_max);
    (settings.lane_slots, settings.lane_slots_max) = (first, largest);
    let client = Client::start(settings);
    let asleep = || {
        let page = std::fs::read(dir.path().join("shm").join(control::FILE)).unwrap();
        page[control::word::SLEEPING] == 1
    };
    until(asleep);
    let mut child = start(dir.path(), "4 20000 0 twice");
    server.wait_for(|judge| judge.events() >= 80_000);
    until(asleep);
    writeln!(child.stdin.take().unwrap()).unwrap();
    assert_eq!(recorded(child), 160_000);
    let report = client.stop().unwrap();
    assert_eq!((report.events, report.lost_full, report.lost_no_lane), (160_000, 0, 0));
}

#[test]
fn killed_process_loses_no_committed_events() {
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
fn segments_of_dead_processes_are_delivered_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script::default());
    let mut settings = config(dir.path(), &server.address);
    settings.when_full = miot_proto::control::WhenFull::DropNewest;
    // Recording is on, but no log-client reads.
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
fn broken_connections_lose_nothing() {
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
fn successor_continues_with_living_processes() {
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
fn temporary_refusal_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script { busy: 3, ..Script::default() });
    let client = Client::start(config(dir.path(), &server.address));
    until(|| server.connections().len() > 3);
    client.stop().unwrap();
}

#[test]
fn permanent_refusal_ends_the_log_client() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script { refuse: true, ..Script::default() });
    let error = Client::start(config(dir.path(), &server.address)).wait().unwrap_err();
    assert!(matches!(&error, Error::Refused { reason, .. } if reason == "not today"), "{error}");
}

#[test]
fn stop_without_a_server_reports_undelivered_messages() {
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

/// Space that the spool claims at a time: it stays below its limit.
const CLAIM: u64 = 2 << 20;

/// Bytes of the files in the spool.
fn spooled(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("shm/spool")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn silent_server_fills_the_spool_up_to_its_limit() {
    const SPOOL: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Script { silent: true, ..Script::default() });
    let client = Client::start(miot_log_client::Config {
        spool_bytes: SPOOL,
        stop: Duration::from_millis(200),
        ..config(dir.path(), &server.address)
    });
    let child = start(dir.path(), "1 40000 0 long");
    until(|| spooled(dir.path()) > SPOOL - CLAIM);
    // Now the lanes are not read; the program waits until the log-client ends.
    let report = client.stop().unwrap();
    let kept = recorded(child);
    assert!(spooled(dir.path()) <= SPOOL, "{report:?}");
    assert!(report.left_in_lanes && report.undelivered > 0, "{report:?}");
    assert!(report.events < kept as u64 && kept < 40_000, "{kept}: what is left in the lanes was not lost");
    // The next log-client delivers what is left in lanes and spool.
    let answering = Server::start(Script::default());
    let after = Client::start(config(dir.path(), &answering.address)).stop().unwrap();
    assert_eq!((report.events + after.events, after.undelivered), (kept as u64, 0));
    assert_eq!(answering.judge().events(), kept);
    assert_eq!((segments(dir.path()), spooled(dir.path())), (vec![], 0));
}

/// Starts the daemon, in order to kill it.
fn daemon(dir: &Path, server: &Server) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_log-client"));
    command
        .env("MIOT_CLIENT_WHEN_FULL", "wait")
        .env("MIOT_CLIENT_WAIT", "60s")
        .env("MIOT_CLIENT_LOG", "warn");
    command.args(["--node", "test", "--server", &server.address, "--dir"]).arg(dir.join("shm"));
    command.spawn().unwrap()
}

#[test]
fn killed_log_client_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let silent = Server::start(Script { silent: true, ..Script::default() });
    let mut killed = daemon(dir.path(), &silent);
    until(|| dir.path().join("shm/control").exists());
    let mut child = start(dir.path(), "2 20000 0 twice");
    // All records were taken from the lanes, and nothing was acknowledged.
    silent.wait_for(|judge| judge.events() == 40_000);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let server = Server::start(Script { cut_after: vec![1, 5], ..Script::default() });
    let mut successor = daemon(dir.path(), &server);
    server.wait_for(|judge| judge.events() == 40_000);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let total = recorded(child);
    server.wait_for(|judge| judge.processes_ended == 1);
    let pid = rustix::process::Pid::from_child(&successor);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(successor.wait().unwrap().success());
    let judge = server.judge();
    assert_complete(&judge);
    assert_eq!((judge.events(), total), (80_000, 80_000));
    assert_eq!((segments(dir.path()), spooled(dir.path())), (vec![], 0));
}

#[test]
fn stop_ends_in_time_with_full_spool_and_many_streams() {
    const SPOOL: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    // A port on which no process listens any more.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let client = Client::start(miot_log_client::Config {
        spool_bytes: SPOOL,
        when_full: miot_proto::control::WhenFull::DropNewest,
        stop: Duration::from_millis(200),
        ..config(dir.path(), &server)
    });
    let mut child = start(dir.path(), "400 100 0 long twice");
    // All threads hold a lane, and their records exceed the spool.
    until(|| spooled(dir.path()) > SPOOL - CLAIM);
    let report = client.stop().unwrap();
    assert!(report.undelivered > 0, "{report:?}");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    recorded(child);
}

/// Log-clients with the policy keep-newest are killed repeatedly while they give up the oldest
/// events: the remaining events and those reported as given up are all events, each once.
#[test]
fn given_up_events_are_reported_once_despite_kills() {
    const SPOOL: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let silent = Server::start(Script { silent: true, ..Script::default() });
    let start_client = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_log-client"));
        command.env("MIOT_CLIENT_WHEN_FULL", "wait").env("MIOT_CLIENT_WAIT", "60s");
        command.env("MIOT_CLIENT_LOG", "error").env("MIOT_CLIENT_LANE_SLOTS_MAX", "1024");
        command.args(["--spool-full", "keep-newest", "--spool-bytes", "16 MiB"]);
        command.args(["--node", "test", "--server", &silent.address, "--dir"]).arg(dir.path().join("shm"));
        command.spawn().unwrap()
    };
    let mut client = start_client();
    until(|| dir.path().join("shm/control").exists());
    let mut child = start(dir.path(), "2 20000 0 long");
    let spool = dir.path().join("shm/spool");
    let oldest = || {
        let names = std::fs::read_dir(&spool).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".spool")).min()
    };
    // Each time the oldest file has just been condensed, or is being condensed.
    for _ in 0..6 {
        let before = oldest();
        until(|| oldest() != before && (spooled(dir.path()) > SPOOL * 3 / 4) || has_exited(&mut child));
        client.kill().unwrap();
        client.wait().unwrap();
        client = start_client();
    }
    assert_eq!(recorded(child), 40_000);
    client.kill().unwrap();
    client.wait().unwrap();
    let server = Server::start(Script::default());
    Client::start(config(dir.path(), &server.address)).stop().unwrap();
    let judge = server.judge();
    let mut given_up = 0;
    for (key, events) in &judge.streams {
        let mut numbers: Vec<u64> = events.iter().map(|(attempt, _)| *attempt).collect();
        let lost = judge.given_up.get(key).cloned().unwrap_or_default();
        given_up += lost.len();
        numbers.extend(lost);
        numbers.sort_unstable();
        let all: Vec<u64> = (0..numbers.len() as u64).collect();
        assert!(
            numbers == all,
            "in {key:?}, ended {:?}: {} events and losses",
            judge.ends.get(key),
            all.len()
        );
        assert_eq!(judge.ends.get(key).map(|end| end.attempts), Some(all.len() as u64));
    }
    assert!(given_up > 10_000, "{given_up}");
    assert_eq!(judge.events() + given_up, 40_000);
    assert_eq!((segments(dir.path()), spooled(dir.path())), (vec![], 0));
}

fn has_exited(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

/// No server answers and the spool is full: a program continues as the policy of its lanes says,
/// and each attempt is an event or a loss in the end. If it blocked, this test would not end.
#[test]
fn full_spool_does_not_block_programs() {
    for when_full in
        [control::WhenFull::DropNewest, control::WhenFull::OverwriteOldest, control::WhenFull::Wait]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = config(dir.path(), "127.0.0.1:1");
        settings.when_full = when_full;
        settings.wait = Duration::from_millis(20);
        settings.spool_bytes = 16 << 20;
        settings.stop = Duration::from_millis(200);
        let client = Client::start(settings);
        let kept = recorded(start(dir.path(), "2 20000 0 long")) as u64;
        let before = client.stop().unwrap();
        assert!(before.undelivered > 0, "{before:?}");
        let server = Server::start(Script::default());
        let after = Client::start(config(dir.path(), &server.address)).stop().unwrap();
        let judge = server.judge();
        let attempts: u64 = judge.ends.values().map(|end| end.attempts).sum();
        let lost: u64 = judge.ends.values().map(|end| end.lost_full).sum();
        assert_eq!(
            (judge.events() as u64, attempts),
            (before.events + after.events, 40_000),
            "{when_full:?}"
        );
        assert!(judge.events() < 40_000, "{when_full:?}: the spool never was full");
        match when_full {
            // Overwritten records were recorded, and the lane does not count them as lost.
            control::WhenFull::OverwriteOldest => assert_eq!(kept, 40_000),
            _ => assert_eq!((kept, lost), (judge.events() as u64, 40_000 - kept), "{when_full:?}"),
        }
    }
}
