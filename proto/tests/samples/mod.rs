//! One sample of each record, batch and message, with a different value in every field.

use miot_proto::batch::Columns;
use miot_proto::event::{self, Caller, Communicator, Event, Ext, RecordKind, flag};
use miot_proto::op;
use miot_proto::wire::{
    Device, DeviceCounters, DeviceKind, DeviceSample, GREETING, MemberIdentity, Message, Pace, Process,
    ProcessKey, ProcessLoss, Resume, Role, SetMember, Stream, StreamEnd, StreamKey, Version,
};

pub(crate) const ATTEMPT: u32 = 0xa1a2_a3a4;

/// Version in the frozen greetings; the current version is higher.
const VERSION: Version = Version { major: 2, minor: 1 };

fn read() -> Event {
    Event {
        op: op::posix::PREAD,
        request: 0x1112_1314,
        enclosing: 0x2122_2324,
        end: 0x3132_3334_3536_3738,
        duration: 0x4142_4344_4546,
        flags: flag::DIRECT | 1 << flag::OP_SHIFT,
        handle: 0x5152_5354_5556_5758,
        offset: 0x6162_6364_6566_6768,
        length: 0x7172_7374_7576_7778,
        result: -5,
    }
}

/// Returns the event and the extension of the record with this name.
pub(crate) fn expected(name: &str) -> (Event, Option<Ext<'static>>) {
    let copy = Event { op: op::posix::COPY_FILE_RANGE, ..read() };
    match name {
        "request" => (read(), None),
        "saturated" => {
            let flags = read().flags | flag::DURATION_SATURATED;
            (Event { duration: (1 << 48) - 1, flags, ..read() }, None)
        }
        "file" => (
            Event { op: op::Op { layer: 0, number: 0 }, ..read() },
            Some(Ext { path1: b"/not\xffutf8", ..Ext::default() }),
        ),
        "two_paths" => (
            Event { op: op::posix::RENAME, ..read() },
            Some(Ext {
                path1: b"/a/rather/long/name/that/takes/more/than/one/slot/of/the/lane",
                path2: b"/b",
                ..Ext::default()
            }),
        ),
        "all_words" => (
            copy,
            Some(Ext {
                handle2: Some(7),
                offset2: Some(1 << 40),
                cpu_time: Some(99),
                path1: b"/p",
                path2: b"q",
                ..Ext::default()
            }),
        ),
        "mpi" => (
            Event { op: op::mpi_io::READ_AT_ALL, ..read() },
            Some(Ext {
                caller: Some(Caller { tid: 4321, uid: 1000 }),
                communicator: Some(Communicator { rank: 3, size: 64 }),
                etypes: Some(512),
                type_size: Some(8),
                type_extent: Some(64),
                ..Ext::default()
            }),
        ),
        _ => panic!("no sample {name}"),
    }
}

/// Returns the bytes of all records as in a lane, with their names.
pub(crate) fn records() -> Vec<(&'static str, Vec<u8>)> {
    ["request", "saturated", "file", "two_paths", "all_words", "mpi"]
        .into_iter()
        .map(|name| {
            let (mut event, ext) = expected(name);
            if name == "saturated" {
                (event.duration, event.flags) = (u64::MAX, read().flags);
            }
            let ext = ext.unwrap_or_default();
            let slots = event::slots_for(&ext);
            let kind = if name == "file" { RecordKind::File } else { RecordKind::Request };
            let mut words = vec![0; slots * event::WORDS];
            words[..event::WORDS].copy_from_slice(&event.slot(kind, slots as u8, ATTEMPT));
            if slots > 1 {
                event::write_ext(&ext, |slot, word, value| words[slot * event::WORDS + word] = value);
            }
            (name, words.iter().flat_map(|word| word.to_le_bytes()).collect())
        })
        .collect()
}

/// Returns a batch with constant and varying columns, extensions, a gap and unused fields.
pub(crate) fn columns() -> Columns {
    let mut columns = Columns::default();
    for i in 0..6u64 {
        let event = Event {
            request: 10 + i as u32,
            enclosing: if i % 2 == 0 { 0 } else { 9 + i as u32 },
            end: 0,
            duration: 0,
            offset: if i == 4 { event::NONE } else { i * 4096 },
            length: if i == 4 { event::NONE } else { 4096 },
            result: if i == 5 { -28 } else { 4096 },
            ..read()
        };
        let ext = (i % 3 == 0).then_some(Ext {
            path1: b"/data/file",
            path2: b"\xfe",
            cpu_time: Some(i),
            ..Ext::default()
        });
        let attempt = if i > 2 { i + 1000 } else { i };
        columns.push(1, attempt, 1_700_000_000_000_000_000 + i as i64 * 1000, 800 + i, &event, ext.as_ref());
    }
    columns
}

fn counters() -> DeviceCounters {
    DeviceCounters {
        reads: Some(1),
        writes: Some(200),
        others: Some(3),
        read_bytes: Some(1 << 40),
        write_bytes: Some(5),
        read_time: Some(6),
        write_time: Some(7),
        other_time: Some(8),
        reads_merged: Some(9),
        writes_merged: Some(10),
        busy: Some(11),
        queue_time: Some(12),
        in_flight: Some(13),
        retransmits: Some(14),
    }
}

fn process(key: ProcessKey) -> Process {
    Process {
        key,
        ppid: 1,
        uid: 1000,
        started: 1_700_000_000_123_456_789,
        rank: Some(3),
        exe: b"/usr/bin/dd".to_vec(),
        cmdline: b"dd\0if=\xff".to_vec(),
        job: b"77".to_vec(),
        cwd: b"/home".to_vec(),
    }
}

fn stream(process: ProcessKey) -> Stream {
    Stream { number: 5, key: StreamKey { process, lane: 2, incarnation: 9 }, tid: 4322, comm: b"dd".to_vec() }
}

fn stream_end() -> StreamEnd {
    StreamEnd {
        stream: 5,
        attempts: 1 << 33,
        after: 1 << 32,
        lost_full: 300,
        lost_nested: 2,
        filtered: 70,
        time: -7,
    }
}

fn device_sample(boot: u128) -> DeviceSample {
    let disk = Device { kind: DeviceKind::Block, name: b"sda".to_vec(), mount: vec![], counters: counters() };
    let volume = Device {
        kind: DeviceKind::Fuse,
        name: b"gluster:/vol".to_vec(),
        mount: b"/mnt".to_vec(),
        counters: DeviceCounters { in_flight: Some(3), ..DeviceCounters::default() },
    };
    DeviceSample {
        boot,
        uptime: 1 << 40,
        time: 1_700_000_000_000_000_000,
        interval: 10_000_000_000,
        devices: vec![disk, volume],
    }
}

/// Returns one of each message.
pub(crate) fn messages() -> Vec<(&'static str, Message)> {
    let key = ProcessKey { boot: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10, nonce: 0xfeed_beef, pid: 4321 };
    let hello = |role| Message::Hello {
        greeting: GREETING,
        version: VERSION,
        role,
        node: "node-1".to_owned(),
        session: 0x1234_5678_9abc_def0,
    };
    vec![
        ("hello", hello(Role::Node)),
        ("hello_tail", hello(Role::Tail)),
        ("welcome", Message::Welcome { version: VERSION, through: 300 }),
        ("refused", Message::Refused { reason: "no".to_owned(), transient: true }),
        ("process", Message::Process { seq: 1, process: process(key) }),
        ("stream", Message::Stream { seq: 2, stream: stream(key) }),
        ("batch", Message::Batch { seq: 3, stream: 5, after: 129, columns: vec![0, 127, 128, 255] }),
        ("stream_end", Message::StreamEnd { seq: 4, end: stream_end() }),
        (
            "process_end",
            Message::ProcessEnd {
                seq: 5,
                key,
                time: 1_700_000_000_000_000_000,
                lost: ProcessLoss { no_lane: 1, abi_violations: 2 },
            },
        ),
        ("heartbeat", Message::Heartbeat { watermark: i64::MAX }),
        ("ack", Message::Ack { through: u64::MAX }),
        ("ping", Message::Ping { sent: 1 }),
        ("pong", Message::Pong { sent: 1, received: -2, answered: -1 }),
        ("bye", Message::Bye),
        (
            "subscribe",
            Message::Subscribe {
                layers: vec!["posix".to_owned()],
                ops: vec!["read".to_owned(), "write".to_owned()],
                paths: vec!["/data/**".to_owned()],
                pids: vec![1, 70_000],
                nodes: Vec::new(),
                since: Some(1_700_000_000_000_000_000),
            },
        ),
        ("rows", Message::Rows { arrow: b"ARROW1".to_vec() }),
        ("cut", Message::SubscriptionEnd { reason: "too slow".to_owned() }),
        (
            "given_up",
            Message::GivenUp {
                seq: 6,
                stream: 5,
                after: 2,
                ranges: vec![(3, 200), (1 << 33, 1 << 34)],
                time: -7,
            },
        ),
        ("aside", Message::SuspendWatermark),
        ("hello_operator", hello(Role::Operator)),
        ("report", Message::Report { status: br#"{"version":"0.1.0"}"#.to_vec() }),
        ("errand", Message::Command { id: 1, command: br#"{"scope":"node","action":"snapshot"}"#.to_vec() }),
        ("outcome", Message::Outcome { id: 1, outcome: br#"{"done":"on"}"#.to_vec() }),
        ("ask", Message::Request { request: br#""status""#.to_vec() }),
        ("answer", Message::Reply { reply: br#"{"refused":"no"}"#.to_vec() }),
        ("hello_probe", hello(Role::Probe)),
        ("devices", Message::Devices { seq: 7, sample: device_sample(key.boot) }),
        ("pace", Message::Pace { pace: Pace::Unfollowed }),
        (
            "resume_stream",
            Message::Resume {
                seq: 8,
                resume: Resume::Stream { stream: 3, from: 900, lost_nested: 1, filtered: 2, time: -5 },
            },
        ),
        (
            "resume_process",
            Message::Resume { seq: 9, resume: Resume::Process { key, no_lane: 4, time: 1_700_000_000 } },
        ),
        (
            "member",
            Message::Member { member: MemberIdentity { cluster: "north".to_owned(), partition: 1023 } },
        ),
        (
            "members",
            Message::Members {
                others: vec![
                    SetMember { address: "b:4747".to_owned(), identity: None },
                    SetMember {
                        address: "c:4747".to_owned(),
                        identity: Some(MemberIdentity { cluster: String::new(), partition: 7 }),
                    },
                ],
            },
        ),
        ("final", Message::Final { time: 1_700_000_000_000_000_000 }),
        ("ack_at_once", Message::AckAtOnce),
    ]
}
