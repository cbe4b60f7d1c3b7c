//! Broken, hostile or too many peers: each gets a reason, and no other peer is affected.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hostile;
mod support;

use arrow_array::RecordBatch;
use miot_log_server::{Config, Error, LogServer};
use miot_proto::status::MAX_REPORT;
use miot_proto::wire::{
    Device, DeviceCounters, DeviceKind, DeviceSample, GREETING, MAX_DEVICE_NAME, MAX_DEVICES, MAX_FRAME,
    MAX_RANGES, Message, ProcessLoss, Role, VERSION, Version, frame_header_of,
};
use miot_trace_store::{Reader, Table};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::{Node, Peer, Server, WATCHDOG, hello, read, status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Asserts that a node is served afterwards.
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
async fn wrong_greetings_are_refused_with_a_reason() {
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
    let wrong_greetings = [
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
    let count = wrong_greetings.len() as u64;
    for (bytes, reason) in wrong_greetings {
        let mut peer = Peer::connect(server.address).await;
        let _ = peer.socket.write_all(&bytes).await;
        let found = peer.refusal().await;
        assert!(found.contains(reason), "{found}");
    }
    assert_eq!(status(&server).await.server.turned_away, count);
    serves(server).await;
}

#[tokio::test]
async fn other_major_version_is_refused() {
    let server = Server::start().await;
    let version = Version { major: VERSION.major + 1, minor: 0 };
    let greeting =
        Message::Hello { greeting: GREETING, version, role: Role::Node, node: "x".into(), session: 1 };
    let mut peer = Peer::connect(server.address).await;
    peer.send(&greeting).await;
    let reason = peer.refusal().await;
    let (ours, theirs) = (VERSION.major, VERSION.major + 1);
    let expected =
        [format!("speaks version {ours}.{}", VERSION.minor), format!("the peer speaks {theirs}.0")];
    assert!(expected.iter().all(|part| reason.contains(part)), "{reason}");
    let version = Version { major: VERSION.major, minor: 99 };
    let greeting =
        Message::Hello { greeting: GREETING, version, role: Role::Node, node: "x".into(), session: 1 };
    let mut peer = Peer::connect(server.address).await;
    peer.send(&greeting).await;
    assert!(
        matches!(peer.receive().await, Some(Message::Welcome { .. })),
        "a later minor version is accepted"
    );
    serves(server).await;
}

#[tokio::test]
async fn protocol_violation_ends_the_connection() {
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
        (Some(given_up(vec![(5, 7), (7, 9)])), "are not valid"),
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

/// A sample of `count` idle devices with names of `name` bytes.
fn devices(seq: u64, count: usize, name: usize) -> Message {
    let (name, mount, counters) = (vec![b'd'; name], Vec::new(), DeviceCounters::default());
    let devices = vec![Device { kind: DeviceKind::Block, name, mount, counters }; count];
    Message::Devices { seq, sample: DeviceSample { boot: 1, uptime: seq, time: 10, interval: 1, devices } }
}

#[tokio::test]
async fn decoded_size_is_charged() {
    let server = Server::start_with(|config| config.silent_after = Duration::from_secs(3600)).await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.heartbeat(1).await;
    let seq = node.next();
    let sample = devices(seq, MAX_DEVICES, 0);
    node.peer.send(&sample).await;
    let least = (MAX_DEVICES * size_of::<Device>()) as u64;
    assert!(least > 10 * sample.frame().len() as u64);
    // The sample waits for the next heartbeat.
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
async fn torn_frame_is_ignored() {
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
    assert_eq!(trace.rows().len(), 1, "the batch before the torn frame is stored");
}

#[tokio::test]
async fn connections_are_limited() {
    let server = Server::start_with(|config| config.connections = 2).await;
    let _a = Node::connect(&server, "a", 1).await;
    let b = Node::connect(&server, "b", 1).await;
    let mut c = Peer::connect(server.address).await;
    c.send(&hello(Role::Node, "c", 1)).await;
    assert!(c.refusal().await.contains("2 connections already"));
    drop(b);
    // Its place is free once the server has noticed the disconnection.
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
async fn silent_connections_keep_no_node_out() {
    let server = Server::start_with(|config| config.connections = 4).await;
    let mut node = Node::connect(&server, "a", 1).await;
    let mut silent_peers = Vec::new();
    for _ in 0..400 {
        let mut silent = Peer::connect(server.address).await;
        let _ = silent.socket.write_all(&[7]).await;
        silent_peers.push(silent);
    }
    let mut other = Node::connect(&server, "b", 1).await;
    // The oldest connection was closed.
    assert_eq!(silent_peers[0].socket.read(&mut [0; 8]).await.unwrap_or(0), 0);
    for node in [&mut node, &mut other] {
        node.process(10).await;
        node.all_acked().await;
    }
    drop(silent_peers);
    server.finish().await;
}

#[tokio::test]
async fn node_with_too_many_streams_is_refused() {
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
    // A new connection does not help: limits apply to the node.
    let mut node = Node::connect(&server, "many", 2).await;
    node.process(77).await;
    assert!(node.peer.refusal().await.contains("more than 5 processes"));
    // The node is served again after some have ended.
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

/// Sends eight batches of equal size that hardly compress. Returns when they are durable.
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

/// Minimum duration. The last batch of each node is not waited for.
fn at_least(nodes: &[&Node], rate: usize) -> Duration {
    let sent: usize = nodes.iter().map(|node| node.peer.sent).sum();
    Duration::from_secs_f64(sent as f64 * 3.0 / 4.0 / rate as f64)
}

#[tokio::test]
async fn node_rate_delays_and_loses_nothing() {
    let server = Server::start_with(|config| config.node_rate = 256 << 10).await;
    let start = Instant::now();
    let mut node = Node::connect(&server, "a", 1).await;
    flood(&mut node).await;
    assert!(start.elapsed() >= at_least(&[&node], 256 << 10), "{:?}", start.elapsed());
    assert_eq!(server.finish().await.rows().len(), 8 * 8192);
}

#[tokio::test]
async fn total_rate_delays_and_loses_nothing() {
    let server = Server::start_with(|config| config.rate = 512 << 10).await;
    let start = Instant::now();
    let mut a = Node::connect(&server, "a", 1).await;
    let mut b = Node::connect(&server, "b", 1).await;
    tokio::join!(flood(&mut a), flood(&mut b));
    assert!(start.elapsed() >= at_least(&[&a, &b], 512 << 10), "{:?}", start.elapsed());
    assert_eq!(server.finish().await.rows().len(), 2 * 8 * 8192);
}

/// One node sends events and no heartbeat: the others are merged anyway, and its memory is bounded.
#[tokio::test]
async fn memory_of_one_node_is_bounded() {
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
    // 21 MiB of rows: more than its memory, so they can be stored only if the merge continues
    // without it.
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
async fn second_log_client_of_a_node_replaces_the_first() {
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
async fn silent_peers_do_not_delay_a_stop() {
    let server = Server::start().await;
    let mut silent = Peer::connect(server.address).await;
    let mut partly = Peer::connect(server.address).await;
    partly.socket.write_all(&[1, 0, 0]).await.unwrap();
    server.finish().await;
    assert_eq!(silent.socket.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn port_in_use_is_an_error_before_the_trace_exists() {
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
async fn directory_that_is_not_a_trace_stays_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let config = Config { listen: "127.0.0.1:0".into(), trace: dir.path().into(), ..Config::default() };
    let error = LogServer::bind(config).await.err().unwrap();
    assert!(matches!(error, Error::Trace(_)), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// A small memory limit: the node that is ahead must wait for the one that is behind.
#[tokio::test]
async fn node_ahead_waits_for_the_node_behind() {
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
    // About 56 MiB of rows are sent; half of them do not fit.
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

/// A small file system; `None` without the right to mount.
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

/// A server whose disk has no space for the events of a node.
struct FullDisk {
    server: Server,
    node: Node,
    /// Removing this file frees space.
    ballast: PathBuf,
    disk: Small,
}

impl FullDisk {
    async fn new() -> Option<FullDisk> {
        let Some(disk) = Small::mount("8m") else {
            eprintln!("skipped: no permission to mount a tmpfs");
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
async fn full_disk_stops_acknowledgments_and_loses_nothing() {
    let Some(FullDisk { ballast, server, mut node, disk: _disk }) = FullDisk::new().await else { return };
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let reason = server.readiness(503).await;
    assert!(reason.contains("cannot be written") && reason.contains("No space"), "{reason}");
    assert_eq!(
        server.get("/healthz").await,
        (200, "ok\n".into()),
        "a full disk is not a reason for a restart"
    );
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
async fn stop_with_a_full_disk_counts_unstored_events() {
    let Some(FullDisk { server, node: _node, disk: _disk, .. }) = FullDisk::new().await else { return };
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (result, trace) = server.stop().await;
    let error = result.unwrap_err();
    assert!(matches!(error, Error::NotStored { events: 30_000, .. }), "{error}");
    let found = miot_trace_store::fsck::check(&trace.dir);
    assert!(found.is_good() && found.events == 0, "{found:?}");
}
