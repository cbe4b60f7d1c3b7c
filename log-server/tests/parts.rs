//! Sealing of the live part of a running log-server, by size and by age.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use miot_trace_store::Reader;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Node, Record, Server, WATCHDOG, read};

/// Waits for `at_least` sealed parts. Returns their numbers.
async fn sealed(trace: &Path, at_least: usize) -> Vec<u64> {
    let start = Instant::now();
    loop {
        let reader = Reader::open(trace).unwrap();
        let sealed: Vec<u64> =
            reader.parts().filter(|(_, sealed)| *sealed).map(|(number, _)| number).collect();
        if sealed.len() >= at_least {
            return sealed;
        }
        assert!(start.elapsed() < WATCHDOG, "{sealed:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sends `count` rows from attempt number `first` on, and waits until they are durable.
async fn deliver(node: &mut Node, first: u64, count: u64) {
    let rows: Vec<Record> = (first..first + count).map(|n| read(n, n as i64, 0)).collect();
    node.batch(0, &rows).await;
    node.heartbeat((first + count) as i64).await;
    node.all_acked().await;
}

async fn connected(server: &Server) -> Node {
    let mut node = Node::connect(server, "a", 1).await;
    node.process(10).await;
    node.stream(0, 10, 0).await;
    node
}

#[tokio::test]
async fn part_is_sealed_at_its_size() {
    let server = Server::start_with(|config| config.seal_bytes = 256 << 10).await;
    let mut node = connected(&server).await;
    for batch in 0..20 {
        deliver(&mut node, batch * 1000, 1000).await;
    }
    // A row of a live part takes more than 50 bytes: 20 000 rows are at least three parts of this
    // size.
    let parts = sealed(&server.trace, 3).await;
    assert_eq!(parts, (0..parts.len() as u64).collect::<Vec<_>>());
    assert!(parts.len() < 20, "{parts:?}: one part for each batch");
    assert_eq!(server.finish().await.rows().len(), 20_000);
}

#[tokio::test]
async fn part_is_sealed_at_its_age() {
    let server = Server::start_with(|config| config.seal_after = Duration::from_millis(200)).await;
    let mut node = connected(&server).await;
    for part in 0..3 {
        deliver(&mut node, part * 10, 10).await;
        // No more rows arrive, so only the age can seal the part.
        sealed(&server.trace, part as usize + 1).await;
    }
    assert_eq!(server.finish().await.rows().len(), 30);
}
