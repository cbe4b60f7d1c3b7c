//! Remote readers of the merged trace.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use miot_proto::wire::Message;
use miot_trace_store::schema;
use std::time::Duration;
use support::{Node, Peer, Record, Row, Server, open, read, rows, tail};

/// The next batches of rows, until there are at least so many.
async fn receive(peer: &mut Peer, count: usize) -> Vec<Row> {
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
async fn readers_get_what_they_asked_for_in_order_and_with_names() {
    let server = Server::start().await;
    let mut a = node(&server, "a", 1).await;
    let mut b = node(&server, "b", 2).await;
    // Files from before they came have names too.
    a.batch(0, &[open(0, 10, 1, "/data/before.nc")]).await;
    for n in [&mut a, &mut b] {
        n.heartbeat(15).await;
    }
    a.all_acked().await;
    let mut all = tail(&server, &[], &[], &[]).await;
    let mut opens = tail(&server, &["open"], &[], &[]).await;
    let mut some = tail(&server, &[], &["/data/*.nc"], &["a"]).await;
    let mut none = tail(&server, &["unlink"], &[], &[]).await;
    // The subscriptions come before the batches if they are seen to be served.
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
        assert!(matches!(reader.receive().await, Some(Message::Cut { reason }) if reason.contains("stops")));
        assert_eq!(reader.receive().await, None);
    }
}

#[tokio::test]
async fn a_wish_that_makes_no_sense_is_refused() {
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

#[tokio::test]
async fn a_reader_that_does_not_read_is_cut_off_and_delays_nobody() {
    let server = Server::start_with(|config| config.tail_memory = 1 << 20).await;
    let mut lazy = tail(&server, &[], &[], &[]).await;
    let mut node = node(&server, "a", 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    const BATCH: u64 = 5_000;
    for n in 0..40 {
        let rows: Vec<_> = (n * BATCH..(n + 1) * BATCH)
            .map(|i| Record { offset: i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2, ..read(i, i as i64, 0) })
            .collect();
        node.batch(0, &rows).await;
        node.heartbeat(((n + 1) * BATCH) as i64).await;
    }
    node.all_acked().await;
    let mut received = 0;
    let reason = loop {
        match lazy.receive().await {
            Some(Message::Rows { .. }) => received += 1,
            Some(Message::Cut { reason }) => break reason,
            other => panic!("expected rows or the end, got {other:?} after {received}"),
        }
    };
    assert!(reason.contains("more slowly"), "{reason}");
    assert_eq!(lazy.receive().await, None);
    let trace = server.finish().await;
    assert_eq!(trace.rows().len(), 40 * BATCH as usize);
}
