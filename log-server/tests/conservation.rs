//! Random broken connections and server crashes: in the end each row is in the trace once. The seed
//! is printed; `MIOT_SEED=n` runs one seed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use miot_proto::wire::Message;
use std::collections::BTreeSet;
use std::time::Duration;
use support::random::{Random, given_seed};
use support::{Node, Record, Server, open, read};

const STREAMS: u32 = 3;

/// A log-client that keeps all batches that are not acknowledged.
struct Client {
    name: String,
    node: Option<Node>,
    /// Sent batches, from sequence number 1 on; definitions are always repeated with number 0.
    sent: Vec<(u32, Vec<Record>)>,
    acked: u64,
    next: [u64; STREAMS as usize],
    time: i64,
    lost: u64,
}

impl Client {
    fn new(name: &str) -> Client {
        Client { name: name.into(), node: None, sent: vec![], acked: 0, next: [0; 3], time: 0, lost: 0 }
    }

    async fn connect(&mut self, server: &Server) {
        let mut node = Node::connect(server, &self.name, 7).await;
        assert!(node.through <= self.sent.len() as u64);
        self.acked = self.acked.max(node.through);
        node.process_as(0, 10).await;
        for stream in 0..STREAMS {
            node.stream_as(0, stream, 10, stream).await;
        }
        for (seq, (stream, rows)) in (1..).zip(&self.sent).skip(self.acked as usize) {
            node.batch_as(seq, *stream, rows).await;
        }
        node.acked = self.acked;
        self.node = Some(node);
    }

    async fn batch(&mut self, random: &mut Random) {
        let stream = random.below(u64::from(STREAMS)) as u32;
        let next = &mut self.next[stream as usize];
        let mut rows = Vec::new();
        for _ in 0..=random.below(30) {
            if *next > 0 && random.below(20) == 0 {
                let gap = 1 + random.below(5);
                self.lost += gap;
                *next += gap;
            }
            self.time += random.below(3) as i64;
            let handle = u64::from(stream) + 1;
            let first = *next == 0;
            rows.push(if first { open(0, self.time, handle, "/x") } else { read(*next, self.time, handle) });
            *next += 1;
        }
        self.sent.push((stream, rows.clone()));
        if let Some(node) = &mut self.node {
            node.batch_as(self.sent.len() as u64, stream, &rows).await;
        }
    }

    /// Handles the messages that arrive within some milliseconds.
    async fn listen(&mut self) {
        let Some(node) = &mut self.node else { return };
        while let Some(message) = node.peer.poll(Duration::from_millis(3)).await {
            match message {
                Message::Ack { through } => {
                    assert!(
                        through > node.acked && through <= self.sent.len() as u64,
                        "acknowledged {through}"
                    );
                    node.acked = through;
                    self.acked = through;
                }
                Message::Ping { sent } => node.pong(sent).await,
                Message::Pace { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

async fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut server = Server::start_with(|config| config.seal_rows = 500).await;
    let mut clients = [Client::new("a"), Client::new("b")];
    for _ in 0..150 {
        match random.below(30) {
            0 => {
                clients.iter_mut().for_each(|client| client.node = None);
                server = server.crash().await;
            }
            1 | 2 => clients[random.below(2) as usize].node = None,
            _ => {
                let client = &mut clients[random.below(2) as usize];
                if client.node.is_none() {
                    client.connect(&server).await;
                }
                client.batch(&mut random).await;
                if random.below(2) == 0 {
                    let watermark = client.time;
                    client.node.as_mut().unwrap().heartbeat(watermark).await;
                }
                if random.below(4) == 0 {
                    client.listen().await;
                }
            }
        }
    }
    for client in &mut clients {
        if client.node.is_none() {
            client.connect(&server).await;
        }
        let node = client.node.as_mut().unwrap();
        node.heartbeat(i64::MAX / 2).await;
    }
    for client in &mut clients {
        let all = client.sent.len() as u64;
        client.node.as_mut().unwrap().acked(all).await;
    }
    let (report, trace) = server.stop().await;
    report.unwrap();
    trace.check();
    let mut found = BTreeSet::new();
    for row in trace.rows() {
        assert_eq!(row.path.as_deref(), Some("/x"), "{row:?}");
        assert!(found.insert((row.node, row.stream, row.seq)), "row stored twice");
    }
    let sent: usize = clients.iter().flat_map(|c| &c.sent).map(|(_, rows)| rows.len()).sum();
    assert_eq!(found.len(), sent);
    let recorded: u64 = trace.losses().iter().map(|(_, count, _)| count).sum();
    assert_eq!(recorded, clients.iter().map(|c| c.lost).sum::<u64>());
}

#[tokio::test]
async fn every_row_is_stored_once_despite_failures() {
    let seeds = given_seed().map_or_else(|| (1..=12).collect(), |seed| vec![seed]);
    for seed in seeds {
        eprintln!("seed {seed}");
        run(seed).await;
    }
}
