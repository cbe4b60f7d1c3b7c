//! Remote readers of merged rows.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use miot_proto::event::flag;
use miot_proto::wire::Message;
use miot_trace_store::schema;
use std::time::Duration;
use support::random::{Random, seed};
use support::{Node, Peer, Record, Server, Trace, TraceRow, open, read, rows, status, tail, tail_since};

/// Receives batches of rows until there are at least `count` rows.
async fn receive(peer: &mut Peer, count: usize) -> Vec<TraceRow> {
    let mut out = Vec::new();
    while out.len() < count {
        match peer.receive().await {
            Some(Message::Rows { arrow }) => {
                let batches: Vec<RecordBatch> =
                    StreamReader::try_new(arrow.as_slice(), None).unwrap().collect::<Result<_, _>>().unwrap();
                assert_eq!(batches.len(), 1);
                assert_eq!(batches[0].schema().fields(), schema::rows().fields());
                out.extend(rows(&batches[0]));
            }
            other => panic!("expected rows, got {other:?}"),
        }
    }
    out
}

async fn node(server: &Server, name: &str, session: u64) -> Node {
    let mut node = Node::connect(server, name, session).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node.acked(2).await;
    node
}

#[tokio::test]
async fn readers_get_matching_rows_in_order_with_names() {
    let server = Server::start().await;
    let mut a = node(&server, "a", 1).await;
    let mut b = node(&server, "b", 2).await;
    // Files opened before the readers connect have names too.
    a.batch(0, &[open(0, 10, 1, "/data/before.nc")]).await;
    for n in [&mut a, &mut b] {
        n.heartbeat(15).await;
    }
    a.all_acked().await;
    let mut all = tail(&server, &[], &[], &[]).await;
    let mut opens = tail(&server, &["open"], &[], &[]).await;
    let mut some = tail(&server, &[], &["/data/*.nc"], &["a"]).await;
    let mut none = tail(&server, &["unlink"], &[], &[]).await;
    // Waits until the subscriptions are served, so that they precede the batches.
    tokio::time::sleep(Duration::from_millis(300)).await;

    a.batch(0, &[read(1, 20, 1), open(2, 40, 2, "/data/sub/x.nc"), read(3, 60, 2)]).await;
    b.batch(0, &[open(0, 30, 1, "/data/b.nc"), read(1, 50, 1)]).await;
    for n in [&mut a, &mut b] {
        n.heartbeat(100).await;
    }
    let got: Vec<_> =
        receive(&mut all, 5).await.into_iter().map(|r| (r.time, r.node, r.path.unwrap())).collect();
    let row = |time, node: &str, path: &str| (time, node.to_owned(), path.to_owned());
    assert_eq!(
        got,
        [
            row(20, "a", "/data/before.nc"),
            row(30, "b", "/data/b.nc"),
            row(40, "a", "/data/sub/x.nc"),
            row(50, "b", "/data/b.nc"),
            row(60, "a", "/data/sub/x.nc"),
        ]
    );
    assert_eq!(receive(&mut opens, 2).await.iter().map(|r| r.time).collect::<Vec<_>>(), [30, 40]);
    assert_eq!(receive(&mut some, 1).await.iter().map(|r| r.time).collect::<Vec<_>>(), [20]);
    server.finish().await;
    for reader in [&mut all, &mut opens, &mut some, &mut none] {
        assert!(
            matches!(reader.receive().await, Some(Message::SubscriptionEnd { reason }) if reason.contains("stops"))
        );
        assert_eq!(reader.receive().await, None);
    }
}

#[tokio::test]
async fn invalid_request_is_refused() {
    let server = Server::start().await;
    for (ops, paths, reason) in [
        (vec!["oepn"], vec![], "no operation `oepn`"),
        (vec![], vec!["/a/{b"], "unclosed"),
        (vec!["read"; 2000], vec![], "at most 1000"),
    ] {
        let found = tail(&server, &ops, &paths, &[]).await.refusal().await;
        assert!(found.contains(reason), "{found}");
    }
    server.finish().await;
}

/// Number of batches of a flood.
const BATCHES: u64 = 40;
/// Number of rows in a batch of a flood.
const BATCH: u64 = 5_000;

/// Sends a batch of rows that hardly compress, and a heartbeat after it.
async fn flood(node: &mut Node, n: u64) {
    let rows: Vec<_> = (n * BATCH..(n + 1) * BATCH)
        .map(|i| Record { offset: i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2, ..read(i, i as i64, 0) })
        .collect();
    node.batch(0, &rows).await;
    node.heartbeat(((n + 1) * BATCH) as i64).await;
}

#[tokio::test]
async fn reader_that_does_not_read_is_cut_off() {
    let server = Server::start_with(|config| config.tail_memory = 1 << 20).await;
    let mut lazy = tail(&server, &[], &[], &[]).await;
    let mut node = node(&server, "a", 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for n in 0..BATCHES {
        flood(&mut node, n).await;
    }
    node.all_acked().await;
    let mut received = 0;
    let reason = loop {
        match lazy.receive().await {
            Some(Message::Rows { .. }) => received += 1,
            Some(Message::SubscriptionEnd { reason }) => break reason,
            other => panic!("expected rows or the end, got {other:?} after {received}"),
        }
    };
    assert!(reason.contains("more slowly"), "{reason}");
    assert_eq!(lazy.receive().await, None);
    assert_eq!(status(&server).await.server.subscribers_cut, 1);
    let trace = server.finish().await;
    assert_eq!(trace.rows().len(), (BATCHES * BATCH) as usize);
}

/// Completion of the last event of a test.
const LAST: i64 = 1 << 40;

/// Receives all rows up to the last event.
async fn receive_all(mut peer: Peer) -> Vec<TraceRow> {
    let mut out: Vec<TraceRow> = Vec::new();
    while out.last().is_none_or(|row| row.time < LAST) {
        match peer.receive().await {
            Some(Message::Rows { arrow }) => {
                for batch in StreamReader::try_new(arrow.as_slice(), None).unwrap() {
                    out.extend(rows(&batch.unwrap()));
                }
            }
            other => panic!("expected rows, got {other:?} after {} rows", out.len()),
        }
    }
    out
}

fn key(row: &TraceRow) -> (i64, u64, u64) {
    (row.time, row.stream, row.seq)
}

/// Values of a row that are equal in the trace and at readers.
fn identity(row: &TraceRow) -> ((i64, u64, u64), u16, Option<String>) {
    (key(row), row.flags, row.path.clone())
}

/// Asserts that a reader received the rows of the trace from `since` on, each once, in the order of
/// the trace except for late rows.
fn judge(got: &[TraceRow], trace: &Trace, since: i64) {
    let mut expected: Vec<_> = trace.rows().iter().filter(|r| r.time >= since).map(identity).collect();
    let mut found: Vec<_> = got.iter().map(identity).collect();
    let on_time: Vec<_> = got.iter().filter(|r| r.flags & flag::LATE == 0).map(key).collect();
    assert!(on_time.is_sorted_by(|a, b| a < b), "rows are not in order");
    expected.sort();
    found.sort();
    if found.len() != expected.len() {
        let missing: Vec<_> = expected.iter().filter(|row| found.binary_search(row).is_err()).collect();
        let first = expected.iter().position(|row| Some(&row) == missing.first()).unwrap_or(0);
        println!("since {since}, {} missing from place {first} on", missing.len());
        missing.iter().for_each(|row| println!("{row:?}"));
        let others: std::collections::BTreeSet<_> = found.windows(2).filter(|two| two[0] == two[1]).collect();
        println!("{} twice", others.len());
    }
    assert_eq!(found.len(), expected.len(), "since {since}");
    assert!(found == expected, "rows or names differ");
}

/// Creates the next batch of a node, with times from `time` on.
fn records(random: &mut Random, seq: &mut u64, time: &mut i64) -> Vec<Record> {
    let count = 1 + random.below(60);
    (0..count)
        .map(|_| {
            *time += random.below(3) as i64;
            *seq += 1;
            match random.below(20) {
                0 => open(*seq - 1, *time, 7, &format!("/f{}", random.below(9))),
                _ => read(*seq - 1, *time, 7),
            }
        })
        .collect()
}

/// Readers of earlier rows connect while parts are written, sealed and begun; some rows are late.
#[tokio::test]
async fn earlier_and_live_rows_join_without_gap_or_repeat() {
    let mut random = Random::new(seed());
    let server = Server::start_with(|config| {
        config.seal_rows = 300;
        config.tail_memory = 1 << 30;
    })
    .await;
    let mut a = node(&server, "a", 1).await;
    let mut b = node(&server, "b", 2).await;
    let (mut seqs, mut time, mut readers) = ((0, 0), 0, Vec::new());
    for _ in 0..120 {
        let (mut times, late) = ((time, time), random.below(8) == 0);
        a.batch(0, &records(&mut random, &mut seqs.0, &mut times.0)).await;
        if late {
            // An event arrives that is older than the watermark.
            b.heartbeat(times.0 + 200).await;
        }
        b.batch(0, &records(&mut random, &mut seqs.1, &mut times.1)).await;
        time = times.0.max(times.1);
        for node in [&mut a, &mut b] {
            node.heartbeat(time).await;
        }
        if random.below(3) == 0 {
            a.all_acked().await;
        }
        if random.below(6) == 0 {
            let since = if random.below(2) == 0 { 0 } else { random.below(time as u64 + 1) as i64 };
            let peer = tail_since(&server, &[], &[], &[], Some(since)).await;
            readers.push((since, tokio::spawn(receive_all(peer))));
        }
    }
    let some = tail_since(&server, &["open"], &["/f[0-4]"], &["a"], Some(time / 2)).await;
    let some = tokio::spawn(receive_all(some));
    // Late events of a delayed node are stored before the last event, at which readers end.
    for node in [&mut a, &mut b] {
        node.heartbeat(LAST).await;
    }
    for node in [&mut a, &mut b] {
        node.all_acked().await;
    }
    a.batch(0, &[open(seqs.0, LAST, 7, "/f0")]).await;
    for node in [&mut a, &mut b] {
        node.heartbeat(LAST + 1).await;
    }
    for node in [&mut a, &mut b] {
        node.all_acked().await;
    }
    let mut got = Vec::new();
    for (since, reader) in readers {
        got.push((since, reader.await.unwrap()));
    }
    let found = some.await.unwrap();
    let trace = server.finish().await;
    println!("{} readers, {} rows", got.len(), trace.rows().len());
    got.iter().for_each(|(since, rows)| judge(rows, &trace, *since));
    let wanted = |r: &&TraceRow| {
        let path = r.path.as_deref().is_some_and(|path| path <= "/f4");
        r.time >= time / 2 && r.op == "open" && r.node == "a" && path
    };
    assert_eq!(found.len(), trace.rows().iter().filter(wanted).count());
}

#[tokio::test]
async fn many_concurrent_readers_get_all_rows() {
    let server = Server::start_with(|config| config.seal_rows = 2000).await;
    let mut node = node(&server, "a", 1).await;
    let mut readers = Vec::new();
    let (mut random, mut seq, mut time) = (Random::new(7), 0, 0);
    for n in 0..100 {
        if n % 2 == 0 {
            let since = if n % 4 == 0 { 0 } else { time };
            let peer = tail_since(&server, &[], &[], &[], Some(since)).await;
            readers.push((since, tokio::spawn(receive_all(peer))));
        }
        node.batch(0, &records(&mut random, &mut seq, &mut time)).await;
        node.heartbeat(time).await;
    }
    node.batch(0, &[read(seq, LAST, 0)]).await;
    node.heartbeat(LAST + 1).await;
    node.all_acked().await;
    assert_eq!(readers.len(), 50);
    let mut got = Vec::new();
    for (since, reader) in readers {
        got.push((since, reader.await.unwrap()));
    }
    let trace = server.finish().await;
    got.iter().for_each(|(since, rows)| judge(rows, &trace, *since));
}

#[tokio::test]
async fn stalled_reader_of_earlier_rows_delays_nothing() {
    let server = Server::start_with(|config| config.seal_rows = 20_000).await;
    let mut node = node(&server, "a", 1).await;
    let mut lazy = Vec::new();
    for n in 0..BATCHES {
        flood(&mut node, n).await;
        if n == 10 {
            // More than the maximum number of readers of earlier rows.
            for _ in 0..12 {
                lazy.push(tail_since(&server, &[], &[], &[], Some(0)).await);
            }
        }
    }
    node.all_acked().await;
    let trace = server.finish().await;
    assert_eq!(trace.rows().len(), (BATCHES * BATCH) as usize);
}
