//! Storage, retransmission and release of messages.

use super::connection::ship;
use super::faulty::FaultyTransport;
use super::transport::{ConnectOutcome, Sender, ServerMessage, Transport};
use crate::clock::{ClockReading, Clocks, Timeline};
use crate::config::SpoolFull;
use crate::facts::{Fact, Sink};
use crate::spool::tests::{KEY, names};
use crate::spool::{Outbox, Reader, Spool, Writer};
use crate::testing::samples;
use miot_proto::batch::Columns;
use miot_proto::wire::{MAX_FRAME, ProcessLoss, StreamEnd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn process() -> Fact<'static> {
    Fact::Process(samples::process(KEY))
}

fn stream(number: u32) -> Fact<'static> {
    Fact::Stream(samples::stream(number, KEY, number))
}

fn stream_end(stream: u32) -> Fact<'static> {
    Fact::StreamEnd(StreamEnd { lost_full: 1, lost_nested: 2, ..samples::stream_end(stream, 0, 0) })
}

fn both_ends(dir: &Path) -> (Outbox, Reader) {
    let (spool, recovered) =
        Spool::open(&dir.join("spool"), MAX_FRAME as u64, SpoolFull::KeepOldest, "test", 1).unwrap();
    let spool = Arc::new(spool);
    (Outbox::new(Writer::new(Arc::clone(&spool), recovered.watermark)), Reader::new(spool))
}

/// Short names of the messages that would be sent next.
fn sent(reader: &mut Reader) -> Vec<String> {
    let mut bytes = Vec::new();
    reader.take(&mut bytes, usize::MAX);
    names(&bytes)
}

/// Short names of the messages that a new connection starts with.
fn restart(reader: &mut Reader, through: u64) -> Vec<String> {
    let mut bytes = Vec::new();
    reader.restart(through, &mut bytes);
    names(&bytes)
}

#[test]
fn messages_are_numbered_and_sent_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (mut outbox, mut reader) = both_ends(dir.path());
    let columns = Columns::default();
    for fact in
        [process(), stream(0), Fact::Batch { stream: 0, after: 0, columns: &columns }, Fact::Watermark(5)]
    {
        outbox.send(fact);
    }
    outbox.send(Fact::Watermark(6));
    let all = sent(&mut reader);
    assert_eq!(all, ["process 1", "stream 2 is 0", "batch 3 of 0", "all before 5", "all before 6"]);
    outbox.send(Fact::Watermark(7));
    outbox.send(Fact::Watermark(8));
    assert_eq!(sent(&mut reader), ["all before 8"], "no message in between");
    assert_eq!(sent(&mut reader), [""; 0]);
    outbox.send(Fact::Watermark(9));
    outbox.send(stream(1));
    assert_eq!(sent(&mut reader), ["stream 4 is 1", "all before 9"], "a watermark may be late");
}

#[test]
fn new_connection_gets_definitions_and_unacknowledged_messages() {
    let dir = tempfile::tempdir().unwrap();
    let (mut outbox, mut reader) = both_ends(dir.path());
    let columns = Columns::default();
    let batch = |stream| Fact::Batch { stream, after: 0, columns: &columns };
    for fact in
        [process(), stream(0), stream(1), batch(0), stream_end(0), batch(1), stream(2), Fact::Watermark(9)]
    {
        outbox.send(fact);
    }
    assert_eq!(sent(&mut reader).len(), 8);

    // Nothing was acknowledged: everything is sent again.
    assert_eq!(restart(&mut reader, 0), [""; 0]);
    let all = sent(&mut reader);
    assert_eq!(all[..2], ["process 1", "stream 2 is 0"]);
    assert_eq!(all[6..], ["stream 7 is 2", "all before 9"]);

    // The end of stream 0 is not acknowledged yet, so stream 0 must be defined.
    assert_eq!(restart(&mut reader, 4), ["process 0", "stream 0 is 0", "stream 0 is 1"]);
    assert_eq!(sent(&mut reader), ["end 5 of 0", "batch 6 of 1", "stream 7 is 2", "all before 9"]);

    // Now it is acknowledged.
    reader.spool().acknowledge(6);
    assert_eq!(restart(&mut reader, 6), ["process 0", "stream 0 is 1"]);
    assert_eq!(sent(&mut reader), ["stream 7 is 2", "all before 9"]);

    // A server that has lost data cannot get back what it acknowledged.
    assert_eq!(restart(&mut reader, 0), ["process 0", "stream 0 is 1"]);
    for fact in [
        stream_end(1),
        stream_end(2),
        Fact::ProcessEnd { key: KEY, time: 0, lost: ProcessLoss { no_lane: 4, abi_violations: 0 } },
    ] {
        outbox.send(fact);
    }
    outbox.end();
    assert!(!reader.spool().is_done());
    reader.spool().acknowledge(10);
    assert!(reader.spool().is_done());
    assert_eq!(restart(&mut reader, 10), [""; 0]);
    let shipped = outbox.shipped();
    assert_eq!((shipped.lost_full, shipped.lost_nested, shipped.lost_no_lane), (3, 6, 4));
}

fn node_clock() -> crate::clock::NodeClock {
    let reading = |ticks: u64| ClockReading { ticks, time: ticks as i64 };
    let line = Timeline::new(reading(0), reading(1_000_000));
    Clocks::fixed(line.clone(), line).shared()
}

/// Connections are refused, break anywhere and lose acknowledgments. Each message still arrives
/// with its number, and messages that the server reported to have are not sent again.
#[test]
fn each_message_arrives_over_faulty_connections() {
    let seed: u64 = std::env::var("MIOT_SEED").map_or(3, |seed| seed.parse().unwrap());
    eprintln!("MIOT_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (mut repeats, mut answers, mut connections) = (0, 0, 0);
    for round in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let (mut outbox, reader) = both_ends(dir.path());
        let columns = Columns::default();
        outbox.send(process());
        for number in 0..8 {
            outbox.send(stream(number));
            outbox.send(Fact::Batch { stream: number, after: 0, columns: &columns });
            outbox.send(Fact::Watermark(i64::from(number)));
            if number % 2 == 0 {
                outbox.send(stream_end(number));
            }
        }
        outbox.end();
        let spool = Arc::clone(reader.spool());
        let (transport, server) =
            FaultyTransport::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(round));
        let peer = super::Peer {
            server: "nowhere".into(),
            node: "test".into(),
            dead_after: Duration::from_secs(60),
            tls: None,
            set: None,
        };
        runtime.block_on(ship(transport, &peer, reader, node_clock(), None)).unwrap();
        let server = server.lock().unwrap();
        assert!(spool.is_done() && server.said_bye);
        let numbers: Vec<u64> = server.kept[&spool.session()].keys().copied().collect();
        assert_eq!(numbers, (1..=spool.last()).collect::<Vec<_>>(), "in round {round}");
        repeats += server.repeats;
        answers += server.answers;
        connections += server.connections;
    }
    assert!(connections > 12, "{connections}: too few broke");
    assert!(
        repeats == 0 && answers > 0,
        "{repeats} messages were sent again that the server had reported to have"
    );
}

#[test]
fn outbox_is_blocked_if_no_watermark_covers_waiting_messages() {
    let dir = tempfile::tempdir().unwrap();
    let (mut outbox, reader) = both_ends(dir.path());
    let mut columns = Columns::default();
    columns.push(1, 10, 10, 1, &samples::read(10), None);
    outbox.send(process());
    outbox.send(stream(0));
    outbox.send(Fact::Watermark(5));
    assert!(!outbox.is_blocked(), "the watermark covers the messages");
    outbox.send(Fact::Batch { stream: 0, after: 0, columns: &columns });
    outbox.send(Fact::Watermark(10));
    reader.spool().acknowledge(2);
    assert!(outbox.is_blocked(), "another event of time 10 may follow");
    outbox.send(Fact::Watermark(11));
    assert!(!outbox.is_blocked());
    reader.spool().acknowledge(3);
    assert!(!outbox.is_blocked(), "no message waits");
}

/// Receives nothing on its first connection, like one with a dead network.
struct SilentTransport(u32);

struct SilentSender(tokio::sync::mpsc::UnboundedSender<ServerMessage>, bool);

impl Transport for SilentTransport {
    type Sender = SilentSender;
    type Receiver = tokio::sync::mpsc::UnboundedReceiver<ServerMessage>;

    async fn connect(&mut self, _: u64) -> std::io::Result<ConnectOutcome<SilentSender, Self::Receiver>> {
        self.0 += 1;
        let (news, receiver) = tokio::sync::mpsc::unbounded_channel();
        let sender = SilentSender(news, self.0 > 1);
        Ok(ConnectOutcome::Welcome { sender, receiver, through: 0, minor: 0 })
    }
}

impl Sender for SilentSender {
    async fn send(&mut self, _: &[u8]) -> std::io::Result<()> {
        if self.1 {
            let _ = self.0.send(ServerMessage::Acknowledged(u64::MAX));
        }
        Ok(())
    }

    async fn finish(&mut self) {}
}

/// Without the timeout this test does not end.
#[test]
fn silent_connection_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut outbox, reader) = both_ends(dir.path());
    outbox.send(process());
    outbox.end();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let dead_after = Duration::from_millis(10);
    let peer =
        super::Peer { server: "nowhere".into(), node: "test".into(), dead_after, tls: None, set: None };
    runtime.block_on(ship(SilentTransport(0), &peer, reader, node_clock(), None)).unwrap();
}
