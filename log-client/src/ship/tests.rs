//! What is kept, repeated and freed.

use super::outbox::{Inbox, channel};
use super::pending::Pending;
use crate::facts::{Fact, Sink};
use miot_proto::batch::Columns;
use miot_proto::wire::{
    FRAME_HEADER, Message, Process, ProcessKey, ProcessLoss, Stream, StreamEnd, StreamKey, frame_header,
};
use std::sync::Arc;

const KEY: ProcessKey = ProcessKey { boot: 1, nonce: 2, pid: 3 };

fn process() -> Fact<'static> {
    let text = Vec::new;
    let (exe, cmdline, job, cwd) = (text(), text(), text(), text());
    Fact::Process(Process { key: KEY, ppid: 1, uid: 0, started: 0, rank: None, exe, cmdline, job, cwd })
}

fn stream(number: u32) -> Fact<'static> {
    let key = StreamKey { process: KEY, lane: number, incarnation: 1 };
    Fact::Stream(Stream { number, key, tid: 3, comm: Vec::new() })
}

fn stream_end(stream: u32) -> Fact<'static> {
    Fact::StreamEnd(StreamEnd { stream, attempts: 0, lost_full: 1, lost_nested: 2, time: 0 })
}

fn take_in(pending: &mut Pending, inbox: &Inbox) {
    inbox.receiver.try_iter().for_each(|outgoing| pending.push(outgoing));
}

/// What goes over the wire next, in short.
fn sent(pending: &mut Pending) -> Vec<String> {
    let mut bytes = Vec::new();
    pending.take(&mut bytes, usize::MAX, || 99);
    names(&bytes)
}

fn names(mut bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() {
        let (length, crc) = frame_header(*header, 1 << 20).unwrap();
        names.push(match Message::from_payload(&rest[..length], crc).unwrap() {
            Message::Process { seq, .. } => format!("process {seq}"),
            Message::Stream { seq, stream } => format!("stream {seq} is {}", stream.number),
            Message::Batch { seq, stream, .. } => format!("batch {seq} of {stream}"),
            Message::StreamEnd { seq, end } => format!("end {seq} of {}", end.stream),
            Message::ProcessEnd { seq, .. } => format!("gone {seq}"),
            Message::Heartbeat { watermark } => format!("all before {watermark}"),
            Message::Pong { sent, answered } => format!("pong {sent} {answered}"),
            other => format!("{other:?}"),
        });
        bytes = &rest[length..];
    }
    names
}

#[test]
fn messages_are_numbered_and_sent_in_order_with_their_watermarks() {
    let (mut outbox, inbox) = channel(1 << 20);
    let mut pending = Pending::new(Arc::clone(&inbox.link));
    let columns = Columns::default();
    for fact in [process(), stream(0), Fact::Batch { stream: 0, columns: &columns }, Fact::Watermark(5)] {
        outbox.send(fact);
    }
    outbox.send(Fact::Watermark(6));
    take_in(&mut pending, &inbox);
    assert_eq!(sent(&mut pending), ["process 1", "stream 2 is 0", "batch 3 of 0", "all before 6"]);
    outbox.send(Fact::Watermark(7));
    take_in(&mut pending, &inbox);
    pending.ask(41);
    assert_eq!(sent(&mut pending), ["pong 41 99", "all before 7"]);
    assert_eq!(sent(&mut pending), [""; 0]);
}

#[test]
fn a_new_connection_gets_the_definitions_in_force_and_what_was_not_acknowledged() {
    let (mut outbox, inbox) = channel(1 << 20);
    let mut pending = Pending::new(Arc::clone(&inbox.link));
    let columns = Columns::default();
    let batch = |stream| Fact::Batch { stream, columns: &columns };
    for fact in
        [process(), stream(0), stream(1), batch(0), stream_end(0), batch(1), stream(2), Fact::Watermark(9)]
    {
        outbox.send(fact);
    }
    take_in(&mut pending, &inbox);
    assert_eq!(sent(&mut pending).len(), 8);

    // Nothing was acknowledged: everything again.
    assert_eq!(names(&pending.restart(0)), [""; 0]);
    let all = sent(&mut pending);
    assert_eq!(all[..2], ["process 1", "stream 2 is 0"]);
    assert_eq!(all[6..], ["stream 7 is 2", "all before 9"]);

    // The end of stream 0 is not safe yet, so stream 0 must be known.
    assert_eq!(names(&pending.restart(4)), ["process 0", "stream 0 is 0", "stream 0 is 1"]);
    assert_eq!(sent(&mut pending), ["end 5 of 0", "batch 6 of 1", "stream 7 is 2", "all before 9"]);

    // Now it is.
    pending.acknowledge(6);
    assert_eq!(names(&pending.restart(6)), ["process 0", "stream 0 is 1"]);
    assert_eq!(sent(&mut pending), ["stream 7 is 2", "all before 9"]);

    // A server that has forgotten cannot have back what it acknowledged.
    assert_eq!(names(&pending.restart(0)), ["process 0", "stream 0 is 1"]);
    for fact in [
        stream_end(1),
        stream_end(2),
        Fact::ProcessEnd { key: KEY, time: 0, lost: ProcessLoss { no_lane: 4, abi_violations: 0 } },
    ] {
        outbox.send(fact);
    }
    outbox.end();
    take_in(&mut pending, &inbox);
    assert!(!pending.is_done());
    pending.acknowledge(10);
    assert!(pending.is_done());
    assert_eq!(names(&pending.restart(10)), [""; 0]);
    let shipped = outbox.shipped();
    assert_eq!((shipped.lost_full, shipped.lost_nested, shipped.lost_no_lane), (3, 6, 4));
}

#[test]
fn memory_is_counted_until_it_is_acknowledged() {
    let (mut outbox, inbox) = channel(40);
    let mut pending = Pending::new(Arc::clone(&inbox.link));
    assert!(outbox.has_room());
    outbox.send(process());
    outbox.send(stream(0));
    outbox.send(stream(1));
    assert!(!outbox.has_room());
    take_in(&mut pending, &inbox);
    assert_eq!(sent(&mut pending).len(), 3);
    assert!(!outbox.has_room(), "sent is not acknowledged");
    pending.acknowledge(3);
    assert!(outbox.has_room());
    pending.acknowledge(u64::MAX);
    assert_eq!(pending.left(), 0);
}

#[test]
fn an_outbox_nobody_reads_takes_no_more() {
    let (mut outbox, inbox) = channel(100);
    drop(inbox);
    outbox.send(process());
    assert!(!outbox.has_room());
}
