//! Frames and messages.
//!
//! The first byte selects the limit of the frame and whether the checksum of the payload is
//! corrected, so that mutations reach the decoder of messages. A decoded message must round-trip
//! through its frame.

use crate::Seed;
use miot_proto::batch::Columns;
use miot_proto::wire::{
    Device, DeviceCounters, DeviceKind, DeviceSample, FRAME_HEADER, GREETING, MAX_FRAME, MAX_HELLO, Message,
    Pace, Process, ProcessKey, ProcessLoss, Role, Stream, StreamEnd, StreamKey, VERSION, frame_header,
};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    let limit = if mode & 2 == 0 { MAX_FRAME } else { MAX_HELLO };
    let Some((header, payload)) = bytes.split_first_chunk::<FRAME_HEADER>() else { return };
    let Ok((length, crc)) = frame_header(*header, limit) else { return };
    assert!(length <= limit);
    let message = if mode & 1 == 0 {
        let Some(payload) = payload.get(..length) else { return };
        Message::from_payload(payload, crc)
    } else {
        Message::from_payload(payload, crc32c::crc32c(payload))
    };
    let Ok(message) = message else { return };
    let frame = message.frame();
    let Some((header, payload)) = frame.split_first_chunk::<FRAME_HEADER>() else {
        panic!("the frame has no header");
    };
    assert_eq!(frame_header(*header, frame.len()).map(|(length, _)| length), Ok(payload.len()));
    let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    assert_eq!(
        Message::from_payload(payload, crc),
        Ok(message.clone()),
        "a message round-trips through its frame"
    );
    if let Message::Batch { columns, .. } = message {
        let _ = Columns::decode(&columns);
    }
}

/// Returns one frame of every message, to be read with a corrected checksum, and `hello` also
/// unchanged.
pub fn seeds() -> Vec<Seed> {
    let messages = messages();
    let mut seeds = Vec::new();
    for (name, message) in messages {
        let frame = message.frame();
        seeds.push((name, [&[1], frame.as_slice()].concat()));
        if name == "hello" {
            seeds.push(("untouched", [&[0], frame.as_slice()].concat()));
        }
    }
    seeds
}

/// Returns one message of every kind, with its name.
pub(crate) fn messages() -> Vec<(&'static str, Message)> {
    let key = ProcessKey { boot: 1 << 100, nonce: 2, pid: 3 };
    let (mut scratch, mut columns) = (Vec::new(), Vec::new());
    crate::batch::sample().encode(&mut scratch, &mut columns);
    vec![
        (
            "hello",
            Message::Hello {
                greeting: GREETING,
                version: VERSION,
                role: Role::Node,
                node: "n1".into(),
                session: 9,
            },
        ),
        ("welcome", Message::Welcome { version: VERSION, through: 77 }),
        ("refused", Message::Refused { reason: "no".into(), transient: true }),
        ("process", Message::Process { seq: 1, process: process(key) }),
        ("stream", Message::Stream { seq: 2, stream: stream(key) }),
        ("batch", Message::Batch { seq: 3, stream: 0, after: 1, columns }),
        ("stream-end", Message::StreamEnd { seq: 4, end: stream_end() }),
        (
            "process-end",
            Message::ProcessEnd { seq: 5, key, time: 6, lost: ProcessLoss { no_lane: 1, abi_violations: 2 } },
        ),
        ("heartbeat", Message::Heartbeat { watermark: i64::MIN }),
        ("ack", Message::Ack { through: u64::MAX }),
        ("ping", Message::Ping { sent: 1 }),
        ("pong", Message::Pong { sent: 1, received: 2, answered: 3 }),
        ("bye", Message::Bye),
        (
            "subscribe",
            Message::Subscribe {
                layers: vec!["posix".into()],
                ops: vec!["read".into(), "write".into()],
                paths: vec!["/a/*".into()],
                pids: vec![1],
                nodes: vec![],
                since: Some(1_700_000_000_000_000_000),
            },
        ),
        ("rows", Message::Rows { arrow: vec![1, 2, 3] }),
        ("cut", Message::SubscriptionEnd { reason: "slow".into() }),
        ("given-up", Message::GivenUp { seq: 6, stream: 0, after: 3, ranges: vec![(3, 5), (9, 9)], time: 7 }),
        ("aside", Message::SuspendWatermark),
        ("report", Message::Report { status: b"{}".to_vec() }),
        ("errand", Message::Command { id: 1, command: b"{}".to_vec() }),
        ("outcome", Message::Outcome { id: 1, outcome: b"{}".to_vec() }),
        ("ask", Message::Request { request: b"{}".to_vec() }),
        ("answer", Message::Reply { reply: b"{}".to_vec() }),
        ("devices", Message::Devices { seq: 7, sample: device_sample() }),
        ("pace", Message::Pace { pace: Pace::Unfollowed }),
        ("ack-at-once", Message::AckAtOnce),
    ]
}

fn process(key: ProcessKey) -> Process {
    Process {
        key,
        ppid: 1,
        uid: 1000,
        started: -5,
        rank: Some(4),
        exe: b"/bin/a".to_vec(),
        cmdline: b"a\0b".to_vec(),
        job: vec![],
        cwd: b"/".to_vec(),
    }
}

fn stream(process: ProcessKey) -> Stream {
    Stream { number: 0, key: StreamKey { process, lane: 1, incarnation: 2 }, tid: 3, comm: b"main".to_vec() }
}

fn stream_end() -> StreamEnd {
    StreamEnd { stream: 0, attempts: 9, after: 1, lost_full: 1, lost_nested: 2, filtered: 3, time: 5 }
}

fn device_sample() -> DeviceSample {
    DeviceSample {
        boot: 1,
        uptime: 2,
        time: 3,
        interval: 4,
        devices: vec![Device {
            kind: DeviceKind::Nfs,
            name: b"n1:/home".to_vec(),
            mount: b"/home".to_vec(),
            counters: DeviceCounters { reads: Some(5), ..DeviceCounters::default() },
        }],
    }
}
