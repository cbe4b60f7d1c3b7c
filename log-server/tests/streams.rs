//! Many streams of many nodes at once: merged in order, each event once, with memory for open
//! streams only. `MIOT_STREAMS_NODES` and `MIOT_STREAMS` set the numbers; docs/dev/testing.md has
//! the full size.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampNanosecondType, UInt64Type};
use miot_proto::event::flag;
use miot_proto::wire::{Message, Role};
use miot_trace_store::schema::column;
use miot_trace_store::{Reader, fsck};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Child;
use support::daemon::{log_server, start};
use support::{Peer, Record, columns, hello, now, read};
use tokio::io::AsyncWriteExt;

/// Number of batches of each stream, and of rows in each batch.
const BATCHES: u64 = 2;
const ROWS: u64 = 3;
/// Time between two events of a stream, nanoseconds; the events of all other streams are in
/// between.
const STEP: i64 = 1_000_000;
/// Number of generations of streams: each ends before the next begins.
const GENERATIONS: u32 = 3;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Resident memory, bytes.
fn resident(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// A well-behaved node.
struct Node {
    peer: Peer,
    number: u64,
    seq: u64,
    acknowledged: u64,
}

impl Node {
    async fn connect(address: SocketAddr, number: u64) -> Node {
        let mut peer = Peer::connect(address).await;
        peer.send(&hello(Role::Node, &format!("node{number:04}"), 1)).await;
        assert!(matches!(peer.receive().await, Some(Message::Welcome { .. })));
        Node { peer, number, seq: 0, acknowledged: 0 }
    }

    fn next(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Opens the streams of a generation and sends their events. `begin`: time of the first event.
    async fn deliver(&mut self, generation: u32, nodes: u64, streams: u64, begin: i64) {
        let pid = 1000 + generation;
        let definitions = support::Definitions::new(pid);
        let mut frames = Vec::new();
        definitions.process(self.next()).append_frame(&mut frames);
        for lane in 0..streams {
            let number = number_of(generation, streams, lane);
            definitions.stream(self.next(), number, lane as u32).append_frame(&mut frames);
        }
        for batch in 0..BATCHES {
            for lane in 0..streams {
                // On each node, the events of a step are in another order.
                let place = (lane * nodes + self.number) as i64 * STEP / (streams * nodes) as i64;
                let rows: Vec<Record> = (batch * ROWS..(batch + 1) * ROWS)
                    .map(|attempt| read(attempt, begin + attempt as i64 * STEP + place, 7))
                    .collect();
                let (mut scratch, mut packed) = (Vec::new(), Vec::new());
                columns(&rows).encode(&mut scratch, &mut packed);
                let (stream, after) = (number_of(generation, streams, lane), batch * ROWS);
                Message::Batch { seq: self.next(), stream, after, columns: packed }.append_frame(&mut frames);
            }
            let watermark = begin + ((batch + 1) * ROWS) as i64 * STEP;
            Message::Heartbeat { watermark }.append_frame(&mut frames);
        }
        self.send(&frames).await;
    }

    /// Ends all streams of a generation.
    async fn end(&mut self, generation: u32, streams: u64, time: i64) {
        let definitions = support::Definitions::new(1000 + generation);
        let mut frames = Vec::new();
        for lane in 0..streams {
            let stream = number_of(generation, streams, lane);
            definitions.stream_end(self.next(), stream, BATCHES * ROWS, time).append_frame(&mut frames);
        }
        definitions.process_end(self.next(), time).append_frame(&mut frames);
        Message::Heartbeat { watermark: time + 1 }.append_frame(&mut frames);
        self.send(&frames).await;
    }

    /// Sends frames, and answers questions until everything is acknowledged.
    async fn send(&mut self, frames: &[u8]) {
        for piece in frames.chunks(16 << 10) {
            self.peer.socket.write_all(piece).await.unwrap();
        }
        while self.acknowledged < self.seq {
            match self.peer.receive().await.expect("the server does not close connections") {
                Message::Ack { through } => self.acknowledged = through,
                Message::Ping { sent } => {
                    let time = now();
                    self.peer.send(&Message::Pong { sent, received: time, answered: time }).await;
                }
                Message::Pace { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Short numbers are not reused in a session.
fn number_of(generation: u32, streams: u64, lane: u64) -> u32 {
    generation * streams as u32 + lane as u32
}

async fn all<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

#[tokio::test]
async fn many_streams_are_merged_in_bounded_memory() {
    let (nodes, streams) = (setting("MIOT_STREAMS_NODES", 100), setting("MIOT_STREAMS", 200));
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    // No node may count as silent because this machine is slow.
    let (mut server, address) = start(log_server().env("MIOT_SERVER_SILENT_AFTER", "10min"), &trace);
    let mut fleet = all((0..nodes).map(|number| Node::connect(address, number))).await;
    let before = resident(&server);
    let mut open = Vec::new();
    for generation in 0..GENERATIONS {
        // After all watermarks.
        let begin = now() + STEP;
        fleet = all(fleet.into_iter().map(|mut node| async move {
            node.deliver(generation, nodes, streams, begin).await;
            node
        }))
        .await;
        open.push(resident(&server).saturating_sub(before) / (nodes * streams));
        let end = now();
        fleet = all(fleet.into_iter().map(|mut node| async move {
            node.end(generation, streams, end).await;
            node
        }))
        .await;
    }
    println!(
        "{nodes} nodes, {streams} streams each: resident memory {} KiB before, {open:?} bytes more per open stream, by \
         generations",
        before >> 10
    );
    drop(fleet);
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());

    let report = fsck::check(&trace);
    assert!(report.is_good(), "{report:?}");
    let (mut next, mut rows, mut latest): (HashMap<u64, u64>, u64, i64) = (HashMap::new(), 0, i64::MIN);
    for batch in Reader::open(&trace).unwrap().events() {
        let batch = batch.unwrap();
        let (ids, seqs) =
            (column::<UInt64Type>(&batch, "stream").unwrap(), column::<UInt64Type>(&batch, "seq").unwrap());
        let times = batch["time"].as_primitive::<TimestampNanosecondType>();
        let flags = batch["flags"].as_primitive::<Int32Type>();
        for row in 0..batch.num_rows() {
            assert_eq!(flags.value(row) & i32::from(flag::LATE), 0, "late event");
            assert!(times.value(row) >= latest, "out of order");
            latest = times.value(row);
            let expected = next.entry(ids.value(row)).or_default();
            assert_eq!(seqs.value(row), *expected, "not in the order of its stream, or repeated");
            *expected += 1;
            rows += 1;
        }
    }
    assert_eq!(rows, nodes * streams * BATCHES * ROWS * u64::from(GENERATIONS));
    assert_eq!(next.len() as u64, nodes * streams * u64::from(GENERATIONS));
    // Ended streams are removed: memory does not grow by the same amount with each generation.
    let (first, last) = (open[0], open[open.len() - 1]);
    assert!(last < 2 * first.max(1000), "{open:?} bytes per open stream");
    assert!(first < 16 << 10, "{first} bytes per open stream");
}
