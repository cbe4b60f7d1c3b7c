//! Peers that are broken, hostile, or too many: each is told why, and nobody else notices.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hostile;
mod support;

use arrow_array::RecordBatch;
use miot_log_server::{Config, Error, LogServer};
use miot_proto::status::MAX_REPORT;
use miot_proto::wire::{
    Counters, Device, DeviceKind, GREETING, MAX_DEVICE_NAME, MAX_DEVICES, MAX_FRAME, MAX_RANGES, Message,
    ProcessLoss, Role, Sample, VERSION, Version, frame_header_of,
};
use miot_trace_store::{Reader, Table};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::{Node, Peer, Server, WATCHDOG, hello, read, status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// After whatever came before, a node is served.
async fn serves(server: Server) {
    let mut node = Node::connect(&server, "good", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[read(0, 10, 0)]).await;
    node.heartbeat(100).await;
    node.all_acked().await;
    assert_eq!(server.finish().await.rows().len(), 1);
}

#[tokio::test]
async fn strangers_are_told_whom_they_reached() {
    let server = Server::start().await;
    let wrong_greeting = Message::Hello {
        greeting: *b"SOMEBODY",
        version: VERSION,
        role: Role::Node,
        node: "x".into(),
        session: 1,
    };
    let mut flipped = hello(Role::Node, "x", 1).frame();
    flipped[20] ^= 1;
    let mut damaged_length = hello(Role::Node, "x", 1).frame();
    damaged_length[2] ^= 1;
    let no_message = [&frame_header_of(&[200])[..], &[200]].concat();
    let strangers = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "not its protocol"),
        (vec![0xff; 100_000], "not its protocol"),
        (no_message, "not its protocol"),
        (vec![0; 12], "not its protocol"),
        (damaged_length, "damaged on the way"),
        (Message::Bye.frame(), "other than the greeting"),
        (wrong_greeting.frame(), "greeting `SOMEBODY`"),
        (flipped, "damaged on the way"),
        (hello(Role::Node, "", 1).frame(), "name"),
        (hello(Role::Node, "a\nb", 1).frame(), "name"),
        (hello(Role::Node, &"n".repeat(300), 1).frame(), "name"),
        (hello(Role::Node, &"n".repeat(5000), 1).frame(), "at most 4096"),
    ];
    let count = strangers.len() as u64;
    for (bytes, reason) in strangers {
        let mut peer = Peer::connect(server.address).await;
        let _ = peer.socket.write_all(&bytes).await;
        let found = peer.refusal().await;
        assert!(found.contains(reason), "{found}");
    }
    assert_eq!(status(&server).await.server.turned_away, count);
    serves(server).await;
}

#[tokio::test]
async fn another_version_is_told_which_one_is_spoken() {
    let server = Server::start().await;
    let version = Version { major: VERSION.major + 1, minor: 0 };
    let greeting =
        Message::Hello { greeting: GREETING, version, role: Role::Node, node: "x".into(), session: 1 };
    let mut peer = Peer::connect(server.address).await;
    peer.send(&greeting).await;
    let reason = peer.refusal().await;
    let (ours, theirs) = (VERSION.major, VERSION.major + 1);
    let told = [format!("speaks version {ours}.{}", VERSION.minor), format!("you speak {theirs}.0")];
    assert!(told.iter().all(|part| reason.contains(part)), "{reason}");
    let version = Version { major: VERSION.major, minor: 99 };
    let greeting =
        Message::Hello { greeting: GREETING, version, role: Role::Node, node: "x".into(), session: 1 };
    let mut peer = Peer::connect(server.address).await;
    peer.send(&greeting).await;
    assert!(
        matches!(peer.receive().await, Some(Message::Welcome { .. })),
        "a later minor version is welcome"
    );
    serves(server).await;
}

#[tokio::test]
async fn a_broken_rule_ends_the_connection_with_a_reason() {
    let server = Server::start_with(|config| config.silent_after = Duration::from_millis(100)).await;
    let batch = |columns| Message::Batch { seq: 3, stream: 0, after: 0, columns };
    let given_up = |ranges| Message::GivenUp { seq: 3, stream: 0, after: 0, ranges, time: 1 };
    let bomb = [&(12u32 << 20).to_le_bytes()[..], &[0; 60]].concat();
    for (message, reason) in [
        (Some(Message::Batch { seq: 3, stream: 9, after: 0, columns: vec![] }), "batch before its stream"),
        (Some(batch(vec![])), "cannot be read"),
        (Some(batch(bomb)), "cannot be read"),
        (Some(batch(vec![7; 5000])), "cannot be read"),
        (Some(hello(Role::Node, "again", 1)), "second greeting"),
        (Some(Message::Ack { through: 9 }), "only the log-server sends"),
        (Some(Message::Batch { seq: 0, stream: 0, after: 0, columns: vec![] }), "has no number"),
        (Some(given_up(vec![(5, 7), (7, 9)])), "make no sense"),
        (
            Some(given_up(vec![(0, 0); MAX_RANGES + 1])),
            "1048577 ranges of records that were given up, at most 1048576",
        ),
        (Some(devices(3, MAX_DEVICES + 1, 1)), "1025 devices in a sample, at most 1024"),
        (Some(devices(3, 1, MAX_DEVICE_NAME + 1)), "more than 512 bytes"),
        (Some(Message::Report { status: vec![b' '; MAX_REPORT + 1] }), "report of more than"),
        (Some(Message::Outcome { id: 1, outcome: vec![b' '; MAX_REPORT + 1] }), "outcome of more than"),
        (None, "at most 16777216"),
    ] {
        let mut node = Node::connect(&server, "bad", 1).await;
        node.process_as(0, 10).await;
        node.stream_as(0, 0, 10, 0).await;
        match message {
            Some(message) => node.peer.send(&message).await,
            None => {
                let header = frame_header_of(&vec![0; MAX_FRAME + 1]);
                node.peer.socket.write_all(&header).await.unwrap();
            }
        }
        let found = node.peer.refusal().await;
        assert!(found.contains(reason), "{found}");
    }
    let mut node = Node::connect(&server, "bad", 1).await;
    node.stream_as(0, 0, 10, 0).await;
    assert!(node.peer.refusal().await.contains("before its process"));
    serves(server).await;
}

/// A sample of so many devices that did nothing, with names of so many bytes.
fn devices(seq: u64, count: usize, name: usize) -> Message {
    let (name, mount, counters) = (vec![b'd'; name], Vec::new(), Counters::default());
    let devices = vec![Device { kind: DeviceKind::Block, name, mount, counters }; count];
    Message::Devices { seq, sample: Sample { boot: 1, uptime: seq, time: 10, interval: 1, devices } }
}

#[tokio::test]
async fn what_is_larger_in_memory_than_on_the_wire_is_charged_with_what_it_takes() {
    let server = Server::start_with(|config| config.silent_after = Duration::from_secs(3600)).await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.heartbeat(1).await;
    let seq = node.next();
    let sample = devices(seq, MAX_DEVICES, 0);
    node.peer.send(&sample).await;
    let least = (MAX_DEVICES * size_of::<Device>()) as u64;
    assert!(least > 10 * sample.frame().len() as u64);
    // It waits for the next heartbeat.
    tokio::time::timeout(WATCHDOG, async {
        while status(&server).await.server.memory < least {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    node.heartbeat(100).await;
    node.all_acked().await;
    let trace = server.finish().await;
    let rows = Reader::open(&trace.dir).unwrap().table(Table::Devices).unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), MAX_DEVICES);
}

#[tokio::test]
async fn half_a_frame_is_no_message() {
    let server = Server::start_with(|config| config.silent_after = Duration::from_millis(100)).await;
    let mut node = Node::connect(&server, "torn", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[read(0, 10, 0)]).await;
    node.acked(2).await;
    let frame = Message::Heartbeat { watermark: 1000 }.frame();
    node.peer.socket.write_all(&frame[..frame.len() - 1]).await.unwrap();
    drop(node);
    let mut other = Node::connect(&server, "other", 2).await;
    other.process(10).await;
    other.acked(1).await;
    let trace = server.finish().await;
    assert_eq!(trace.rows().len(), 1, "the batch before it counts");
}

#[tokio::test]
async fn connections_have_a_limit() {
    let server = Server::start_with(|config| config.connections = 2).await;
    let _a = Node::connect(&server, "a", 1).await;
    let b = Node::connect(&server, "b", 1).await;
    let mut c = Peer::connect(server.address).await;
    c.send(&hello(Role::Node, "c", 1)).await;
    assert!(c.refusal().await.contains("2 connections already"));
    drop(b);
    // Its place is free once the server has seen it go.
    loop {
        let mut c = Peer::connect(server.address).await;
        c.send(&hello(Role::Node, "c", 1)).await;
        if matches!(c.receive().await, Some(Message::Welcome { .. })) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.finish().await;
}

#[tokio::test]
async fn a_crowd_that_says_nothing_keeps_nobody_out() {
    let server = Server::start_with(|config| config.connections = 4).await;
    let mut node = Node::connect(&server, "a", 1).await;
    let mut crowd = Vec::new();
    for _ in 0..400 {
        let mut stranger = Peer::connect(server.address).await;
        let _ = stranger.socket.write_all(&[7]).await;
        crowd.push(stranger);
    }
    let mut other = Node::connect(&server, "b", 1).await;
    // The first of them had to make room.
    assert_eq!(crowd[0].socket.read(&mut [0; 8]).await.unwrap_or(0), 0);
    for node in [&mut node, &mut other] {
        node.process(10).await;
        node.all_acked().await;
    }
    drop(crowd);
    server.finish().await;
}

#[tokio::test]
async fn a_node_with_too_many_streams_is_refused_and_keeps_what_was_acknowledged() {
    let server = Server::start_with(|config| config.node_streams = 5).await;
    let mut good = Node::connect(&server, "good", 1).await;
    good.process(10).await;
    good.heartbeat(100).await;
    let mut node = Node::connect(&server, "many", 1).await;
    for pid in 0..5 {
        node.process(pid).await;
        node.stream(pid, pid, 0).await;
    }
    for pid in 0..5 {
        node.batch(pid, &[read(0, 10 + i64::from(pid), 0)]).await;
    }
    node.heartbeat(50).await;
    node.all_acked().await;
    node.stream(5, 0, 1).await;
    assert!(node.peer.refusal().await.contains("more than 5 streams"));
    // Also if it comes again with others: what is known of a node counts, not of a connection.
    let mut node = Node::connect(&server, "many", 2).await;
    node.process(77).await;
    assert!(node.peer.refusal().await.contains("more than 5 processes"));
    // When some have ended there is room again.
    let mut node = Node::connect(&server, "many", 1).await;
    node.process_as(0, 1).await;
    node.stream_as(0, 1, 1, 0).await;
    node.seq = node.through;
    node.end(1, 1, 0).await;
    node.process_end(1, 60, ProcessLoss::default()).await;
    node.heartbeat(70).await;
    node.all_acked().await;
    node.process(77).await;
    node.stream(9, 77, 0).await;
    node.batch(9, &[read(0, 90, 0)]).await;
    for node in [&mut node, &mut good] {
        node.heartbeat(100).await;
        node.all_acked().await;
    }
    assert_eq!(server.finish().await.rows().len(), 6);
}

/// Eight batches of the same size that hardly compress; returns when they are durable.
async fn flood(node: &mut Node) {
    node.process(10).await;
    node.stream(0, 10, 0).await;
    for n in 0..8 {
        let offset = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let rows: Vec<_> = (n * 8192..(n + 1) * 8192)
            .map(|i| support::Record { offset: offset(i), ..read(i, i as i64, 0) })
            .collect();
        node.batch(0, &rows).await;
        node.heartbeat(((n + 1) * 8192) as i64).await;
    }
    node.all_acked().await;
}

/// How long this takes at least. The last batch of each node is not waited for.
fn at_least(nodes: &[&Node], rate: usize) -> Duration {
    let sent: usize = nodes.iter().map(|node| node.peer.sent).sum();
    Duration::from_secs_f64(sent as f64 * 3.0 / 4.0 / rate as f64)
}

#[tokio::test]
async fn a_rate_makes_a_node_wait_and_loses_nothing() {
    let server = Server::start_with(|config| config.node_rate = 256 << 10).await;
    let start = Instant::now();
    let mut node = Node::connect(&server, "a", 1).await;
    flood(&mut node).await;
    assert!(start.elapsed() >= at_least(&[&node], 256 << 10), "{:?}", start.elapsed());
    assert_eq!(server.finish().await.rows().len(), 8 * 8192);
}

#[tokio::test]
async fn a_rate_of_all_makes_all_wait_and_loses_nothing() {
    let server = Server::start_with(|config| config.rate = 512 << 10).await;
    let start = Instant::now();
    let mut a = Node::connect(&server, "a", 1).await;
    let mut b = Node::connect(&server, "b", 1).await;
    tokio::join!(flood(&mut a), flood(&mut b));
    assert!(start.elapsed() >= at_least(&[&a, &b], 512 << 10), "{:?}", start.elapsed());
    assert_eq!(server.finish().await.rows().len(), 2 * 8 * 8192);
}

/// One node sends and never promises; the others are merged all the same, and what it may use is bounded.
#[tokio::test]
async fn a_node_that_uses_up_its_memory_leaves_the_others_theirs() {
    let server = Server::start_with(|config| {
        config.memory = 128 << 20;
        config.node_memory = Some(17 << 20);
        config.silent_after = Duration::from_secs(3600);
    })
    .await;
    let mut good = Node::connect(&server, "good", 1).await;
    good.process(10).await;
    good.stream(0, 10, 0).await;
    let mut greedy = Node::connect(&server, "greedy", 1).await;
    greedy.process(10).await;
    greedy.stream(0, 10, 0).await;
    greedy.heartbeat(1).await;
    greedy.acked(2).await;
    // 21 MiB of rows: more than it may have, so that they can only be stored if the merge goes on without it.
    for n in 0..15 {
        let rows: Vec<_> = (n * 20_000..(n + 1) * 20_000).map(|i| read(i, i as i64, 0)).collect();
        greedy.batch(0, &rows).await;
        good.batch(0, &[read(n, (n * 20_000) as i64, 0)]).await;
        good.heartbeat(((n + 1) * 20_000) as i64).await;
    }
    greedy.heartbeat(1 << 40).await;
    good.heartbeat(1 << 40).await;
    good.all_acked().await;
    greedy.all_acked().await;
    assert_eq!(server.finish().await.rows().len(), 15 * 20_001);
}

#[tokio::test]
async fn a_second_log_client_of_a_node_replaces_the_first() {
    let server = Server::start().await;
    let mut first = Node::connect(&server, "a", 1).await;
    let mut second = Node::connect(&server, "a", 2).await;
    let reason = first.peer.refusal().await;
    assert!(reason.contains("another log-client connected as node `a`"), "{reason}");
    second.process(10).await;
    second.all_acked().await;
    server.finish().await;
}

#[tokio::test]
async fn whoever_only_connects_does_not_keep_the_server_from_stopping() {
    let server = Server::start().await;
    let mut silent = Peer::connect(server.address).await;
    let mut partly = Peer::connect(server.address).await;
    partly.socket.write_all(&[1, 0, 0]).await.unwrap();
    server.finish().await;
    assert_eq!(silent.socket.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_port_in_use_is_told_before_anything_is_made() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("other");
    let config = Config { listen: server.address.to_string(), trace: trace.clone(), ..Config::default() };
    let error = LogServer::bind(config).await.err().unwrap();
    assert!(matches!(error, Error::Listen { .. }));
    assert!(error.to_string().contains("choose another port"), "{error}");
    assert!(!trace.exists());
}

#[tokio::test]
async fn a_directory_of_something_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let config = Config { listen: "127.0.0.1:0".into(), trace: dir.path().into(), ..Config::default() };
    let error = LogServer::bind(config).await.err().unwrap();
    assert!(matches!(error, Error::Trace(_)), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// A memory limit so small that the node that is ahead must wait for the one that is behind.
#[tokio::test]
async fn a_node_that_is_ahead_waits_and_the_one_behind_is_read() {
    let server = Server::start_with(|config| {
        config.memory = 32 << 20;
        config.silent_after = Duration::from_secs(3600);
    })
    .await;
    let mut behind = Node::connect(&server, "behind", 1).await;
    let mut ahead = Node::connect(&server, "ahead", 2).await;
    for node in [&mut behind, &mut ahead] {
        node.process(10).await;
        node.stream(0, 10, 0).await;
    }
    behind.heartbeat(0).await;
    const BATCH: u64 = 20_000;
    const BATCHES: u64 = 40;
    let sending = tokio::spawn(async move {
        for n in 0..BATCHES {
            let rows: Vec<_> = (n * BATCH..(n + 1) * BATCH).map(|i| read(i, i as i64, 0)).collect();
            ahead.batch(0, &rows).await;
            ahead.heartbeat(((n + 1) * BATCH) as i64).await;
        }
        ahead.all_acked().await;
    });
    // About 56 MiB of rows are on their way; half of them do not fit.
    for n in 0..BATCHES {
        tokio::time::sleep(Duration::from_millis(20)).await;
        behind.batch(0, &[read(n, (n * BATCH) as i64, 0)]).await;
        behind.heartbeat(((n + 1) * BATCH) as i64).await;
    }
    behind.all_acked().await;
    sending.await.unwrap();
    let (report, trace) = server.stop().await;
    assert_eq!(report.unwrap().events, BATCHES * (BATCH + 1));
    trace.check();
    assert_eq!(miot_trace_store::fsck::check(&trace.dir).late, 0);
}

/// A small file system of its own; `None` without the right to mount.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(bytes: &str) -> Option<Small> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let status = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(dir.path())
            .status();
        status.is_ok_and(|s| s.success()).then_some(Small(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

/// A server whose disk has no room for what a node has sent.
struct FullDisk {
    server: Server,
    node: Node,
    /// With it gone there is room.
    ballast: PathBuf,
    disk: Small,
}

impl FullDisk {
    async fn new() -> Option<FullDisk> {
        let Some(disk) = Small::mount("8m") else {
            eprintln!("skipped: no right to mount a tmpfs");
            return None;
        };
        let ballast = disk.0.path().join("ballast");
        std::fs::write(&ballast, vec![1; (8 << 20) - (200 << 10)]).unwrap();
        let server = Server::start_with(|config| {
            config.trace = disk.0.path().join("trace");
            config.http = Some("127.0.0.1:0".into());
        })
        .await;
        let mut node = Node::connect(&server, "a", 1).await;
        node.process(10).await;
        node.stream(0, 10, 0).await;
        node.acked(2).await;
        assert_eq!(server.get("/readyz").await, (200, "ready\n".into()));
        let rows: Vec<_> =
            (0..30_000).map(|i| support::Record { offset: i * i * 7919, ..read(i, i as i64, 0) }).collect();
        node.batch(0, &rows).await;
        node.heartbeat(1 << 30).await;
        Some(FullDisk { server, node, ballast, disk })
    }
}

#[tokio::test]
async fn a_full_disk_stops_acknowledgements_and_loses_nothing() {
    let Some(FullDisk { ballast, server, mut node, disk: _disk }) = FullDisk::new().await else { return };
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let reason = server.readiness(503).await;
    assert!(reason.contains("cannot be written") && reason.contains("No space"), "{reason}");
    assert_eq!(server.get("/healthz").await, (200, "ok\n".into()), "it is no reason to restart it");
    let acks = tokio::time::timeout(Duration::from_millis(10), node.acked(3)).await;
    assert!(acks.is_err(), "acknowledged {} with a full disk", node.acked);
    std::fs::remove_file(&ballast).unwrap();
    node.acked(3).await;
    server.readiness(200).await;
    let (report, trace) = server.stop().await;
    assert_eq!(report.unwrap().events, 30_000);
    trace.check();
}

#[tokio::test]
async fn a_stop_with_a_full_disk_says_what_is_missing() {
    let Some(FullDisk { server, node: _node, disk: _disk, .. }) = FullDisk::new().await else { return };
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (result, trace) = server.stop().await;
    let error = result.unwrap_err();
    assert!(matches!(error, Error::NotStored { events: 30_000, .. }), "{error}");
    let found = miot_trace_store::fsck::check(&trace.dir);
    assert!(found.is_good() && found.events == 0, "{found:?}");
}
