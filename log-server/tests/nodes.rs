//! Nodes over TCP: their events are in the trace, once and in order.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use arrow_array::types::{Int32Type, Int64Type};
use miot_log_server::columns::side_tables::{FileRow, RecordId, files};
use miot_log_server::ids::{NodeId, StreamId};
use miot_proto::event::{RecordKind, flag};
use miot_proto::op::posix;
use miot_proto::wire::{Message, Pace, ProcessLoss, StreamEnd};
use miot_trace_store::schema::column;
use miot_trace_store::{Reader, Table};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;
use support::{Node, Record, Server, open, read};
use tokio::task::JoinSet;

#[tokio::test]
async fn rows_of_two_nodes_are_in_one_order() {
    let server = Server::start().await;
    let mut a = Node::connect(&server, "a", 1).await;
    let mut b = Node::connect(&server, "b", 2).await;
    for node in [&mut a, &mut b] {
        node.process(10).await;
        node.stream(0, 10, 0).await;
    }
    a.batch(0, &[open(0, 10, 1, "/a"), read(1, 30, 1), read(2, 50, 1)]).await;
    b.batch(0, &[open(0, 20, 1, "/b"), read(1, 40, 1), read(2, 60, 1)]).await;
    a.heartbeat(100).await;
    b.heartbeat(55).await;
    // All rows up to 55 are known; 60 waits for the next heartbeat of b.
    a.all_acked().await;
    b.acked(2).await;
    b.heartbeat(100).await;
    b.all_acked().await;
    let trace = server.finish().await;
    let rows: Vec<_> =
        trace.rows().into_iter().map(|r| (r.time, r.node, r.path.unwrap(), r.offset)).collect();
    let expected = [
        (10, "a", "/a", None),
        (20, "b", "/b", None),
        (30, "a", "/a", Some(10)),
        (40, "b", "/b", Some(10)),
        (50, "a", "/a", Some(20)),
        (60, "b", "/b", Some(20)),
    ];
    let expected: Vec<_> = expected.map(|(t, n, p, o)| (t, n.to_owned(), p.to_owned(), o)).into();
    assert_eq!(rows, expected);
}

/// With thousands of nodes an acknowledgment waits for the next question about the clock, unless
/// the node asks for it.
#[tokio::test]
async fn acknowledgments_are_rare_with_thousands_of_nodes() {
    const NODES: usize = 2000;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let server = Server::start_with(|config| config.connections = 2 * NODES).await;
    let mut others = JoinSet::new();
    for number in 1..NODES {
        let mut node = Node::connect(&server, &format!("n{number}"), 1).await;
        node.peer.send(&Message::Bye).await;
        // Connections that answer no questions are closed after a while.
        others.spawn(async move {
            while let Some(message) = node.peer.receive().await {
                if let Message::Ping { sent } = message {
                    node.pong(sent).await;
                }
            }
        });
    }
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[read(0, 10, 1)]).await;
    node.heartbeat(100).await;
    let (mut acknowledged, mut is_crowded) = (false, false);
    while !(acknowledged && is_crowded) {
        match node.peer.receive().await {
            Some(Message::Ack { through }) => acknowledged = through == node.seq,
            Some(Message::Pace { pace }) => is_crowded |= pace == Pace::Crowded,
            Some(Message::Ping { sent }) => node.pong(sent).await,
            other => panic!("{other:?}"),
        }
    }
    // The next question stays without an answer, so that no other one comes for ten seconds.
    while !matches!(node.peer.receive().await, Some(Message::Ping { .. })) {}
    let mut sent = 0;
    for attempt in 1.. {
        sent += 1;
        node.batch(0, &[read(attempt, 100 * attempt as i64, 1)]).await;
        node.heartbeat(100 * attempt as i64 + 50).await;
        // The first batch may end a pause of the cluster: that is another message. On a busy
        // machine the ten seconds may be over.
        let mut has_message = attempt == 1;
        while let Some(message) = node.peer.poll(Duration::from_millis(500)).await {
            has_message |= matches!(message, Message::Ping { .. });
            assert!(has_message || !matches!(message, Message::Ack { .. }), "{message:?}");
        }
        if !has_message {
            break;
        }
    }
    node.peer.send(&Message::AckAtOnce).await;
    node.all_acked().await;
    others.shutdown().await;
    let trace = server.finish().await;
    assert_eq!(trace.rows().len(), 1 + sent);
}

#[tokio::test]
async fn rows_sent_again_after_a_reconnection_are_stored_once() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[read(0, 10, 0), read(1, 11, 0)]).await;
    node.heartbeat(50).await;
    node.acked(3).await;
    // These are received, but not durable, when the connection breaks.
    node.batch(0, &[read(2, 60, 0), read(3, 61, 0)]).await;
    drop(node);

    let mut node = Node::connect(&server, "a", 1).await;
    assert_eq!(node.through, 3);
    node.process_as(0, 10).await;
    node.stream_as(0, 0, 10, 0).await;
    node.batch_as(4, 0, &[read(2, 60, 0), read(3, 61, 0)]).await;
    node.batch_as(5, 0, &[read(4, 62, 0)]).await;
    node.heartbeat(100).await;
    node.acked(5).await;
    drop(node);

    // A restarted log-client drains its lanes from an earlier position.
    let mut node = Node::connect(&server, "a", 2).await;
    assert_eq!(node.through, 0);
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[read(3, 61, 0), read(4, 62, 0), read(5, 110, 0)]).await;
    node.heartbeat(200).await;
    node.all_acked().await;
    let trace = server.finish().await;
    let rows: Vec<_> = trace.rows().iter().map(|r| (r.stream, r.seq, r.time)).collect();
    assert_eq!(rows, [(1, 0, 10), (1, 1, 11), (1, 2, 60), (1, 3, 61), (1, 4, 62), (1, 5, 110)]);
    assert_eq!(trace.losses(), []);
}

#[tokio::test]
async fn restarted_server_continues_its_trace() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[open(0, 10, 7, "/data"), read(1, 11, 7)]).await;
    node.heartbeat(50).await;
    node.all_acked().await;
    node.batch(0, &[read(2, 60, 7), read(3, 61, 7)]).await;
    let server = server.crash().await;

    let mut node = Node::connect(&server, "a", 1).await;
    assert_eq!(node.through, 0, "the server lost the session");
    node.process_as(0, 10).await;
    node.stream_as(0, 0, 10, 0).await;
    // The acknowledgment of 3 was lost.
    node.batch_as(3, 0, &[open(0, 10, 7, "/data"), read(1, 11, 7)]).await;
    node.batch_as(4, 0, &[read(2, 60, 7), read(3, 61, 7)]).await;
    node.heartbeat(100).await;
    node.acked(4).await;
    let trace = server.finish().await;
    let rows: Vec<_> = trace.rows().into_iter().map(|r| (r.stream, r.seq, r.path.unwrap())).collect();
    let data = || "/data".to_owned();
    assert_eq!(rows, [(1, 0, data()), (1, 1, data()), (1, 2, data()), (1, 3, data())]);
}

/// A crash between the sync of `files` and that of `events`.
#[tokio::test]
async fn path_record_that_outlived_its_events_is_stored_once() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[open(0, 10, 7, "/data")]).await;
    node.heartbeat(50).await;
    node.all_acked().await;
    let named = Record { kind: RecordKind::File, path1: "/data".into(), ..read(2, 61, 7) };
    let record = RecordId { stream: StreamId(1), attempt: named.attempt, handle: named.handle };
    let row = FileRow { file: 1, node: NodeId(0), path: b"/data"[..].into(), record: Some(record) };
    let server = server.crash_with(&[(Table::Files, files(&[row], |_| "a").unwrap())]).await;

    let mut node = Node::connect(&server, "a", 2).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[read(1, 60, 7), named, read(3, 62, 7)]).await;
    node.heartbeat(100).await;
    node.all_acked().await;
    let trace = server.finish().await;
    let rows: Vec<_> = trace.rows().into_iter().map(|r| (r.seq, r.path.unwrap())).collect();
    assert_eq!(rows, [0, 1, 3].map(|seq| (seq, "/data".to_owned())));
    assert_eq!(trace.records(), [(1, 2)]);
    assert_eq!(trace.losses(), []);
}

#[tokio::test]
async fn late_events_of_a_silent_node_are_marked() {
    let server = Server::start_with(|config| config.silent_after = Duration::from_millis(300)).await;
    let mut a = Node::connect(&server, "a", 1).await;
    let mut b = Node::connect(&server, "b", 2).await;
    for node in [&mut a, &mut b] {
        node.process(10).await;
        node.stream(0, 10, 0).await;
    }
    b.heartbeat(5).await;
    a.batch(0, &[read(0, 10, 0), read(1, 20, 0)]).await;
    // b is silent from here on; a continues.
    while a.acked < 3 {
        a.heartbeat(100).await;
        if let Some(message) = a.peer.poll(Duration::from_millis(50)).await {
            match message {
                Message::Ack { through } => a.acked = through,
                Message::Ping { sent } => a.pong(sent).await,
                Message::Pace { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    b.batch(0, &[read(0, 15, 0), read(1, 30, 0)]).await;
    a.heartbeat(200).await;
    b.heartbeat(200).await;
    b.all_acked().await;
    let trace = server.finish().await;
    let rows: Vec<_> =
        trace.rows().into_iter().map(|r| (r.node, r.time, r.flags & flag::LATE != 0)).collect();
    let row = |node: &str, time, late| (node.to_owned(), time, late);
    // In a sealed part, late events are at their position in time.
    assert_eq!(rows, [row("a", 10, false), row("b", 15, true), row("a", 20, false), row("b", 30, false)]);
}

#[tokio::test]
async fn losses_are_recorded_with_their_place() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.batch(0, &[read(2, 10, 0), read(3, 11, 0), read(7, 12, 0)]).await;
    let seq = node.next();
    let end =
        StreamEnd { stream: 0, attempts: 10, after: 0, lost_full: 0, lost_nested: 4, filtered: 90, time: 1 };
    node.peer.send(&Message::StreamEnd { seq, end }).await;
    let lost = ProcessLoss { no_lane: 6, abi_violations: 1 };
    for _ in 0..2 {
        node.process_end(10, 13, lost).await;
    }
    node.heartbeat(100).await;
    node.all_acked().await;
    let (report, trace) = server.stop().await;
    assert_eq!(report.unwrap().losses, 2 + 3 + 2 + 4 + 7, "filtered events are not lost");
    trace.check();
    let mut losses = trace.losses();
    losses.sort();
    let row = |place: &str, count, range| (place.to_owned(), count, range);
    assert_eq!(
        losses,
        [
            row("abi_violation", 1, None),
            row("filtered", 90, None),
            row("lane_full", 2, Some((0, 1))),
            row("lane_full", 2, Some((8, 9))),
            row("lane_full", 3, Some((4, 6))),
            row("nested", 4, None),
            row("no_lane", 6, None),
        ]
    );
}

#[tokio::test]
async fn repeated_totals_are_recorded_once() {
    let mut server = Server::start().await;
    // By a log-client that ends, by one that is killed and reports twice, after a crash of the
    // server, and by another log-client.
    for (session, nested, no_lane) in [(1, 3, 2), (2, 5, 2), (2, 5, 2), (3, 5, 6)] {
        let mut node = Node::connect(&server, "a", session).await;
        node.process(10).await;
        node.stream(0, 10, 0).await;
        node.end(0, 0, nested).await;
        node.process_end(10, 13, ProcessLoss { no_lane, abi_violations: 0 }).await;
        node.heartbeat(100).await;
        node.all_acked().await;
        server = server.crash().await;
    }
    let mut losses = server.finish().await.losses();
    losses.sort();
    let row = |place: &str, count| (place.to_owned(), count, None);
    assert_eq!(losses, [row("nested", 2), row("nested", 3), row("no_lane", 2), row("no_lane", 4)]);
}

#[tokio::test]
async fn node_returns_with_its_open_streams() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.stream(1, 10, 1).await;
    node.batch(1, &[read(0, 10, 0)]).await;
    node.end(0, 0, 0).await;
    node.heartbeat(50).await;
    node.all_acked().await;
    let through = node.acked;
    drop(node);

    let mut node = Node::connect(&server, "a", 1).await;
    node.process_as(0, 10).await;
    node.stream_as(0, 1, 10, 1).await;
    // A log-client that takes over assigns another number to the same stream; and there is a new
    // stream.
    node.stream_as(through + 1, 7, 10, 1).await;
    node.stream_as(through + 2, 900, 10, 2).await;
    node.batch_as(through + 3, 1, &[read(1, 60, 0)]).await;
    node.batch_as(through + 4, 7, &[read(1, 60, 0), read(2, 61, 0)]).await;
    node.batch_as(through + 5, 900, &[read(0, 62, 0)]).await;
    node.heartbeat(100).await;
    node.acked(through + 5).await;
    let rows: Vec<_> = server.finish().await.rows().iter().map(|r| (r.stream, r.seq)).collect();
    assert_eq!(rows, [(2, 0), (2, 1), (2, 2), (3, 0)]);
}

#[tokio::test]
async fn process_that_outlives_its_log_client_keeps_its_files() {
    let server = Server::start().await;
    for session in [1, 2] {
        let mut node = Node::connect(&server, "a", session).await;
        node.process(10).await;
        node.stream(0, 10, 0).await;
        match session {
            1 => node.batch(0, &[open(0, 10, 7, "/data")]).await,
            _ => node.batch(0, &[read(1, 20, 7)]).await,
        }
        node.end(0, session, 0).await;
        node.process_end(10, 13, ProcessLoss::default()).await;
        node.heartbeat(100).await;
        node.all_acked().await;
    }
    let paths: Vec<_> = server.finish().await.rows().into_iter().map(|r| r.path).collect();
    assert_eq!(paths, [Some("/data".to_owned()), Some("/data".to_owned())]);
}

#[tokio::test]
async fn handle_is_known_to_a_batch_that_arrives_earlier() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.stream(1, 10, 1).await;
    // The batch that uses the handle arrives before the one that opens it; a record in between
    // opens /other.
    let named = Record { kind: RecordKind::File, path1: "/other".into(), ..read(1, 25, 6) };
    node.batch(1, &[read(0, 20, 5), named, read(2, 30, 6)]).await;
    node.batch(0, &[open(0, 10, 5, "/opened"), read(1, 40, 6), read(2, 41, 99)]).await;
    let renamed = Record { op: posix::RENAME, path1: "/x".into(), path2: "/y".into(), ..read(3, 50, 0) };
    let copied = Record { op: posix::COPY_FILE_RANGE, handle2: Some(5), ..read(4, 60, 6) };
    let failed = Record { result: -2, ..open(5, 61, 0, "/missing") };
    node.batch(0, &[renamed, copied, failed]).await;
    node.heartbeat(100).await;
    node.all_acked().await;
    let trace = server.finish().await;
    let rows = trace.rows();
    let rows: Vec<_> = rows.iter().map(|r| (r.time, r.path.as_deref(), r.path2.as_deref())).collect();
    assert_eq!(
        rows,
        [
            (10, Some("/opened"), None),
            (20, Some("/opened"), None),
            (30, Some("/other"), None),
            (40, Some("/other"), None),
            (41, None, None),
            (50, Some("/x"), Some("/y")),
            (60, Some("/other"), Some("/opened")),
            (61, Some("/missing"), None),
        ]
    );
}

/// What a broken or hostile producer may send, and what a program may pass as a size: no number
/// becomes a negative one of another meaning.
#[tokio::test]
async fn numbers_that_are_no_signed_ones_are_absent_or_the_greatest() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(3_000_000_000).await;
    node.stream(0, 3_000_000_000, 0).await;
    let great = u64::MAX - 1;
    let error_as_size = Record { length: great, ..read(1, 20, 5) };
    let seek = Record { op: posix::LSEEK, offset: great, length: 1, ..read(2, 30, 5) };
    let none = Record { length: u64::MAX, offset: u64::MAX, ..read(3, 40, u64::MAX) };
    node.batch(0, &[read(0, 10, great), error_as_size, seek, none]).await;
    let beyond = read(i64::MAX as u64, 50, 1);
    node.batch(0, &[beyond]).await;
    node.heartbeat(100).await;
    node.all_acked().await;
    let trace = server.finish().await;
    trace.check();
    let batches = Reader::open(&trace.dir).unwrap().table(Table::Events).unwrap();
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 4, "the last one has no number");
    let of = |name: &str| -> Vec<Option<i64>> {
        batches
            .iter()
            .flat_map(|batch| column::<Int64Type>(batch, name).unwrap().iter().collect::<Vec<_>>())
            .collect()
    };
    assert_eq!(of("handle"), [None, Some(5), Some(5), None]);
    assert_eq!(of("length"), [Some(10), Some(i64::MAX), None, None]);
    assert_eq!(of("offset"), [Some(0), Some(10), Some(-2), None], "a program may seek backwards");
    let pids = column::<Int32Type>(&batches[0], "pid").unwrap();
    assert_eq!(pids.values()[0], i32::MAX);
}

/// Regression test: a hostile process writes such a number into its segment. The node was refused,
/// and so were the events of all its other processes.
#[tokio::test]
async fn node_with_a_stream_of_too_many_numbers_is_served() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.stream(1, 10, 1).await;
    node.batch(0, &[read(0, 10, 1)]).await;
    let (lost_full, lost_nested, filtered) = (0, 0, u64::MAX);
    let end =
        StreamEnd { stream: 0, attempts: u64::MAX, after: 1, lost_full, lost_nested, filtered, time: 20 };
    let seq = node.next();
    node.peer.send(&Message::StreamEnd { seq, end }).await;
    node.batch(1, &[read(0, 30, 1)]).await;
    node.heartbeat(100).await;
    node.all_acked().await;
    let trace = server.finish().await;
    trace.check();
    assert_eq!(trace.rows().len(), 2);
    let greatest = i64::MAX as u64;
    let expected = [("lane_full", greatest - 1, Some((1, greatest - 1))), ("filtered", greatest, None)];
    let losses = trace.losses();
    for (place, count, range) in expected {
        assert!(losses.contains(&(place.to_owned(), count, range)), "{losses:?}");
    }
}

#[tokio::test]
async fn clock_with_an_offset_is_corrected() {
    let server = Server::start().await;
    let ahead = 5_000_000_000;
    let mut a = Node::connect(&server, "a", 1).await;
    a.skew = ahead;
    let mut b = Node::connect(&server, "b", 2).await;
    for node in [&mut a, &mut b] {
        node.process(10).await;
        node.stream(0, 10, 0).await;
        node.acked(2).await;
    }
    let start = support::now();
    a.batch(0, &[read(0, start + ahead, 0)]).await;
    b.batch(0, &[read(0, start + 2_000_000_000, 0)]).await;
    for node in [&mut a, &mut b] {
        node.heartbeat(start + 20_000_000_000).await;
    }
    a.all_acked().await;
    b.all_acked().await;
    let trace = server.finish().await;
    let rows = trace.rows();
    assert_eq!(rows.iter().map(|r| r.node.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!((rows[0].time - start).abs() < 1_000_000_000, "off by {}", rows[0].time - start);
    assert_eq!(rows[1].time, start + 2_000_000_000, "a clock without an offset is not corrected");
}

#[tokio::test]
async fn stop_stores_all_messages_already_sent() {
    let server = Server::start().await;
    let mut node = Node::connect(&server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    for n in 0..200 {
        node.batch(0, &[read(2 * n, n as i64, 0), read(2 * n + 1, n as i64, 0)]).await;
    }
    // There is no heartbeat and no acknowledgment yet.
    let stopping = tokio::spawn(server.stop());
    node.all_acked().await;
    assert_eq!(node.peer.receive().await, None);
    let (report, trace) = stopping.await.unwrap();
    let report = report.unwrap();
    assert_eq!((report.events, report.parts), (400, 1));
    assert_eq!(trace.rows().len(), 400);
    trace.check();
}

#[tokio::test]
async fn node_after_goodbye_does_not_hold_back() {
    let server = Server::start_with(|config| config.silent_after = Duration::from_secs(3600)).await;
    let mut a = Node::connect(&server, "a", 1).await;
    let mut b = Node::connect(&server, "b", 2).await;
    b.process(10).await;
    b.stream(0, 10, 0).await;
    b.batch(0, &[read(0, 10, 0)]).await;
    b.heartbeat(100).await;
    b.acked(2).await;
    a.peer.send(&Message::Bye).await;
    b.all_acked().await;
    assert_eq!(server.finish().await.rows().len(), 1);
}
