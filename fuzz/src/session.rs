//! Sessions of hostile peers and of an honest node, with the store of the log-server.
//!
//! The bytes are actions of the hostile peers: connect with a certificate of their own; send
//! arbitrary bytes, frames with correct checksums, or well-formed messages with unusual numbers;
//! reply to `Ping` with correct or false times; disconnect. The honest node sends all the time.
//!
//! Checks: the events of the honest node are in the trace, each once, in order, in its one stream
//! and none of them late; no other event is in its stream; the trace is valid; memory is bounded
//! and freed.

use crate::Seed;
use crate::input::Input;
use crate::scratch::Scratch;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use miot_log_client::testing::samples;
use miot_log_server::Config;
use miot_log_server::testing::{TestServer, now};
use miot_proto::batch::Columns;
use miot_proto::event::{Event, Ext, RecordKind, flag};
use miot_proto::op::posix;
use miot_proto::wire::{
    Device, DeviceCounters, DeviceKind, DeviceSample, GREETING, Message, Process, ProcessKey, ProcessLoss,
    Role, Stream, StreamEnd, StreamKey, VERSION, frame_header_of,
};
use miot_tls::Certificate;
use miot_trace_store::fsck;
use miot_trace_store::reader::Reader;
use miot_trace_store::schema::{self, NameKey};
use std::path::Path;

/// Maximum number of steps; further ones are ignored.
const STEPS: usize = 120;
/// Maximum number of hostile connections at a time.
const PEERS: usize = 4;
/// Memory limit of the server, bytes.
const MEMORY: usize = 64 << 20;
/// Maximum size of a decoded batch, which the server cannot know before decoding, bytes.
const DECODED: usize = 24 << 20;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let dir = Scratch::new("session");
    Scenario::new(dir.path()).run(&mut Input(bytes));
}

fn certificate(name: &str, role: miot_tls::Role) -> Certificate {
    Certificate {
        subject: name.into(),
        issuer: "fuzz".into(),
        serial: "1".into(),
        names: vec![name.into()],
        addresses: Vec::new(),
        role: Some(role),
        authority: false,
        not_before: Default::default(),
        not_after: Default::default(),
    }
}

struct Scenario<'a> {
    dir: &'a Path,
    stage: TestServer,
    honest: usize,
    /// Last sequence number of the honest node.
    seq: u64,
    /// Completion times of its events, indexed by attempt number.
    times: Vec<i64>,
    acknowledged: u64,
    /// Hostile connections with the `sent` times of their unanswered `Ping` messages.
    hostile: Vec<(usize, Vec<i64>)>,
}

impl<'a> Scenario<'a> {
    fn new(dir: &'a Path) -> Scenario<'a> {
        let config = Config {
            trace: dir.to_owned(),
            memory: MEMORY as u64,
            node_streams: 20,
            // No node may be treated as silent because this machine is slow.
            silent_after: std::time::Duration::from_secs(3600),
            ..Config::default()
        };
        let mut stage = TestServer::new(config).unwrap_or_else(|error| panic!("{error}"));
        let honest = stage.connect(Some(certificate("honest", miot_tls::Role::Node)));
        let mut scenario =
            Scenario { dir, stage, honest, seq: 0, times: Vec::new(), acknowledged: 0, hostile: Vec::new() };
        scenario.connect_honest();
        scenario
    }

    fn run(mut self, input: &mut Input<'_>) {
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            let step = input.byte();
            let peer = usize::from(step >> 4);
            match step & 15 {
                0 => self.connect(input),
                1 => {
                    let length = input.number(2) as usize;
                    let bytes = input.bytes(length % 4096).to_vec();
                    self.send(peer, &bytes);
                }
                2 => {
                    let length = input.number(2) as usize;
                    let payload = input.bytes(length % 4096);
                    let frame = [&frame_header_of(payload)[..], payload].concat();
                    self.send(peer, &frame);
                }
                3..=9 => {
                    let frame = message(input).frame();
                    self.send(peer, &frame);
                }
                // Part of a message.
                10 => {
                    let frame = message(input).frame();
                    let half = frame.len() * usize::from(input.byte()) / 256;
                    self.send(peer, &frame[..half]);
                }
                11 => self.reply_pings(peer, input.byte(), input.number(4)),
                12 => {
                    if let Some(at) = peer.checked_rem(self.hostile.len()) {
                        let (number, _) = self.hostile.remove(at);
                        self.stage.close(number);
                    }
                }
                13 => self.settle(),
                14 => self.connect_honest(),
                _ => self.send_honest_batch(u64::from(step >> 4) + 1),
            }
        }
        self.check_trace();
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let mode = input.byte();
        if self.hostile.len() == PEERS {
            let (number, _) = self.hostile.remove(0);
            self.stage.close(number);
        }
        let (own, role) = if mode & 1 == 0 {
            (miot_tls::Role::Node, Role::Node)
        } else {
            (miot_tls::Role::Reader, Role::Tail)
        };
        let number = self.stage.connect(Some(certificate("liar", own)));
        self.hostile.push((number, Vec::new()));
        let hello = |role, node: &str| Message::Hello {
            greeting: GREETING,
            version: VERSION,
            role,
            node: node.into(),
            session: u64::from(mode >> 5),
        };
        let greeting = match mode >> 1 & 15 {
            0 => return,
            // Name or role of another peer: refused.
            1 => hello(role, "honest"),
            2 => hello(Role::Node, "liar"),
            _ => hello(role, "liar"),
        };
        self.stage.send(number, &greeting.frame());
        self.settle();
    }

    fn send(&mut self, peer: usize, bytes: &[u8]) {
        if let Some(peer) = peer.checked_rem(self.hostile.len()) {
            self.stage.send(self.hostile[peer].0, bytes);
        }
    }

    /// Replies to the server's `Ping` messages, with correct or false times.
    fn reply_pings(&mut self, peer: usize, mode: u8, offset: u64) {
        let Some(peer) = peer.checked_rem(self.hostile.len()) else { return };
        let number = self.hostile[peer].0;
        // At least as many as the server sends before it knows a clock.
        for _ in 0..10 {
            for sent in std::mem::take(&mut self.hostile[peer].1) {
                let answered = match mode % 4 {
                    0 | 1 => now(),
                    2 => now().wrapping_add(offset as i64 * 1000),
                    _ => time(mode, offset),
                };
                self.stage.send(number, &pong(sent, answered).frame());
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        if let Err(error) = self.stage.run_until_idle() {
            panic!("the server fails: {error}");
        }
        for message in self.stage.take_messages(self.honest) {
            match message {
                Message::Ping { sent } => {
                    self.stage.send(self.honest, &pong(sent, now()).frame());
                }
                Message::Ack { through } => self.acknowledged = self.acknowledged.max(through),
                Message::Refused { reason, .. } => panic!("the honest node is refused: {reason}"),
                _ => {}
            }
        }
        for (number, pings) in &mut self.hostile {
            pings.extend(self.stage.take_messages(*number).into_iter().filter_map(|message| match message {
                Message::Ping { sent } => Some(sent),
                _ => None,
            }));
        }
        let limit = MEMORY / 4 * 5 + (PEERS + 2) * DECODED;
        assert!(self.stage.memory() <= limit, "{} bytes reserved", self.stage.memory());
    }

    /// Connects the honest node, or reconnects it.
    fn connect_honest(&mut self) {
        if self.seq > 0 {
            // The server has read everything that it sent: nothing must be sent again.
            self.settle();
            self.stage.close(self.honest);
            self.settle();
            self.honest = self.stage.connect(Some(certificate("honest", miot_tls::Role::Node)));
        }
        let hello = Message::Hello {
            greeting: GREETING,
            version: VERSION,
            role: Role::Node,
            node: "honest".into(),
            session: 1,
        };
        self.send_honest(&hello);
        // The server sends eight `Ping` messages.
        for _ in 0..10 {
            self.settle();
        }
        let again = self.seq > 0;
        let key = honest_key();
        let [process, stream] = definitions(key, 0, now());
        for mut message in [process, stream] {
            if !again {
                self.seq += 1;
                if let Some(seq) = message.seq_mut() {
                    *seq = self.seq;
                }
            }
            self.send_honest(&message);
        }
    }

    fn send_honest(&mut self, message: &Message) {
        self.stage.send(self.honest, &message.frame());
    }

    fn send_honest_batch(&mut self, rows: u64) {
        let first = self.times.len() as u64;
        let mut columns = Columns::default();
        for attempt in first..first + rows {
            let time = now().max(self.times.last().copied().unwrap_or(0));
            self.times.push(time);
            let path: &[u8] = if attempt == 0 { b"/honest" } else { b"" };
            row(&mut columns, attempt, time, 7, path);
        }
        self.seq += 1;
        let message =
            Message::Batch { seq: self.seq, stream: 0, after: first, columns: samples::packed(&columns) };
        self.send_honest(&message);
        let watermark = self.times.last().map_or(0, |time| time + 1);
        self.send_honest(&Message::Heartbeat { watermark });
        self.settle();
    }

    fn check_trace(mut self) {
        self.send_honest_batch(1);
        self.settle();
        let (dir, times) = (self.dir, std::mem::take(&mut self.times));
        let left = self.stage.finish().unwrap_or_else(|error| panic!("the server fails: {error}"));
        assert_eq!(left, 0, "memory is freed");
        let report = fsck::check(dir);
        assert!(report.is_good(), "{report:?}");
        let reader = Reader::open(dir).unwrap_or_else(|error| panic!("{error}"));
        let mut found = Vec::new();
        let mut streams = Vec::new();
        for batch in reader.events() {
            let batch = batch.unwrap_or_else(|error| panic!("{error}"));
            let nodes = column(&batch, "node").as_dictionary::<NameKey>();
            let names = nodes.values().as_string::<i32>();
            let seqs = numbers::<UInt64Type>(&batch, "seq");
            let ids = numbers::<UInt64Type>(&batch, "stream");
            let times = column(&batch, "time").as_primitive::<TimestampNanosecondType>();
            let flags = numbers::<UInt32Type>(&batch, "flags");
            for row in 0..batch.num_rows() {
                let is_honest = nodes.key(row).is_some_and(|key| names.value(key) == "honest");
                if is_honest {
                    assert_eq!(
                        flags.value(row) & u32::from(flag::LATE),
                        0,
                        "an event of the honest node is late"
                    );
                    found.push((times.value(row), seqs.value(row)));
                    streams.push(ids.value(row));
                } else {
                    assert!(
                        !streams.contains(&ids.value(row)),
                        "a foreign event is in the honest node's stream"
                    );
                }
            }
        }
        streams.dedup();
        assert_eq!(streams.len(), 1, "the honest node has one stream");
        let expected: Vec<_> = times.into_iter().zip(0..).collect();
        assert_eq!(found, expected, "the trace has the events of the honest node");
    }
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a ArrayRef {
    batch.column_by_name(name).unwrap_or_else(|| panic!("column {name} is missing"))
}

fn numbers<T: ArrowPrimitiveType>(batch: &RecordBatch, name: &str) -> PrimitiveArray<T> {
    schema::column(batch, name).unwrap_or_else(|| panic!("column {name} is missing"))
}

fn pong(sent: i64, answered: i64) -> Message {
    Message::Pong { sent, received: answered, answered }
}

fn honest_key() -> ProcessKey {
    ProcessKey { boot: 1, nonce: 1, pid: 10 }
}

fn process_of(key: ProcessKey, started: i64, text: Vec<u8>) -> Process {
    Process { started, cmdline: text, ..samples::process(key) }
}

/// Returns the definitions of a process and of its stream, with sequence number 0.
fn definitions(key: ProcessKey, number: u32, started: i64) -> [Message; 2] {
    let process = process_of(key, started, Vec::new());
    [
        Message::Process { seq: 0, process },
        Message::Stream { seq: 0, stream: samples::stream(number, key, 0) },
    ]
}

fn row(columns: &mut Columns, attempt: u64, time: i64, handle: u64, path: &[u8]) {
    let op = if path.is_empty() { posix::READ } else { posix::OPEN };
    let event = Event { op, handle, ..samples::read(attempt) };
    let ext = Ext { path1: path, ..Ext::default() };
    let ext = (!path.is_empty()).then_some(&ext);
    columns.push(RecordKind::Request as u8, attempt, time, 1, &event, ext);
}

/// Reads a number: mostly a small one, otherwise a limit of a type or any.
fn number(input: &mut Input<'_>) -> u64 {
    let byte = input.byte();
    match byte {
        0..=199 => u64::from(byte),
        200..=209 => u64::MAX,
        210..=219 => u64::MAX - 1,
        220..=229 => 1 << 63,
        230..=239 => 1 << 32,
        _ => input.word(),
    }
}

/// Returns a time near the present, or an extreme one.
fn time(mode: u8, offset: u64) -> i64 {
    match mode % 8 {
        0..=3 => now().wrapping_add((offset as i64).wrapping_sub(1 << 20).wrapping_mul(1000)),
        4 => i64::MIN,
        5 => i64::MAX,
        6 => offset as i64,
        _ => now().wrapping_add(3_600_000_000_000),
    }
}

fn any_time(input: &mut Input<'_>) -> i64 {
    time(input.byte(), input.number(3))
}

fn any_key(input: &mut Input<'_>) -> ProcessKey {
    match input.byte() % 8 {
        0 => honest_key(),
        n => ProcessKey { boot: 1, nonce: 1, pid: u32::from(n % 4) },
    }
}

fn any_batch(input: &mut Input<'_>) -> Vec<u8> {
    let mode = input.byte();
    if mode & 0xf0 == 0xf0 {
        let length = input.number(2) as usize;
        return input.bytes(length % 4096).to_vec();
    }
    let (mut columns, mut attempt, step) = (Columns::default(), number(input), u64::from(mode >> 4));
    let (kind, offset) = (input.byte(), input.number(3));
    for n in 0..u64::from(mode & 15) {
        let path: &[u8] = if n % 3 == 2 { b"/liar" } else { b"" };
        row(&mut columns, attempt, time(kind, offset.wrapping_add(n)), n, path);
        attempt = attempt.wrapping_add(step);
    }
    samples::packed(&columns)
}

fn any_sample(input: &mut Input<'_>) -> DeviceSample {
    let device = |input: &mut Input<'_>| Device {
        kind: DeviceKind::Block,
        name: vec![b'd'; number(input).min(2000) as usize],
        mount: Vec::new(),
        counters: DeviceCounters {
            reads: Some(number(input)),
            busy: Some(number(input)),
            ..DeviceCounters::default()
        },
    };
    let devices = (0..input.byte() % 4).map(|_| device(input)).collect();
    let (uptime, interval) = (number(input), number(input));
    DeviceSample { boot: u128::from(input.byte()), uptime, time: any_time(input), interval, devices }
}

/// Returns a JSON object with one number, or arbitrary bytes.
fn any_json(input: &mut Input<'_>) -> Vec<u8> {
    match input.byte() % 2 {
        0 => format!("{{\"uptime_s\":{}}}", number(input)).into_bytes(),
        _ => {
            let length = usize::from(input.byte());
            input.bytes(length).to_vec()
        }
    }
}

/// Returns a message of any kind that a peer may send, with arbitrary numbers.
fn message(input: &mut Input<'_>) -> Message {
    let (kind, seq) = (input.byte(), number(input));
    let stream = u32::from(input.byte() % 32);
    match kind % 16 {
        0 | 1 => {
            let text = vec![b'x'; number(input).min(70_000) as usize];
            Message::Process { seq, process: process_of(any_key(input), any_time(input), text) }
        }
        2..=4 => {
            let key =
                StreamKey { process: any_key(input), lane: u32::from(input.byte() % 4), incarnation: 1 };
            let comm = vec![0x1b; number(input).min(100) as usize];
            Message::Stream { seq, stream: Stream { number: stream, key, tid: 1, comm } }
        }
        5..=8 => Message::Batch { seq, stream, after: number(input), columns: any_batch(input) },
        9 => Message::StreamEnd {
            seq,
            end: StreamEnd {
                stream,
                attempts: number(input),
                after: number(input),
                lost_full: number(input),
                lost_nested: number(input),
                filtered: number(input),
                time: any_time(input),
            },
        },
        10 => {
            let lost = ProcessLoss { no_lane: number(input), abi_violations: number(input) };
            Message::ProcessEnd { seq, key: any_key(input), time: any_time(input), lost }
        }
        11 => {
            let ranges = (0..input.byte() % 4).map(|_| (number(input), number(input))).collect();
            Message::GivenUp { seq, stream, after: number(input), ranges, time: any_time(input) }
        }
        12 | 13 => Message::Heartbeat { watermark: any_time(input) },
        14 => match seq % 9 {
            0 => Message::SuspendWatermark,
            1 => Message::Bye,
            2 => {
                Message::Pong { sent: any_time(input), received: any_time(input), answered: any_time(input) }
            }
            3 => Message::Ack { through: number(input) },
            4 => Message::Devices { seq: number(input), sample: any_sample(input) },
            5 => Message::Report { status: any_json(input) },
            6 => Message::Outcome { id: number(input), outcome: any_json(input) },
            7 => Message::AckAtOnce,
            _ => Message::Request { request: any_json(input) },
        },
        _ => {
            let length = usize::from(input.byte());
            let pattern = String::from_utf8_lossy(input.bytes(length)).into_owned();
            let ops = if seq % 2 == 0 { vec![] } else { vec!["read".into(), pattern.clone()] };
            let since = (seq % 3 > 0).then(|| any_time(input));
            Message::Subscribe {
                layers: vec![],
                ops,
                paths: vec![pattern],
                pids: vec![stream],
                nodes: vec![],
                since,
            }
        }
    }
}

/// Returns sessions of a hostile node that follows the protocol at first, and of readers.
pub fn seeds() -> Vec<Seed> {
    const CONNECT: u8 = 0;
    const MESSAGE: u8 = 3;
    const ANSWER: u8 = 11;
    const CLOSE: u8 = 12;
    const SETTLE: u8 = 13;
    const RETURN: u8 = 14;
    const HONEST: u8 = 15;
    let process = |seq: u8, key: u8| [MESSAGE, 0, seq, 0, 0, key, 0, 0, 0, 0];
    let stream = |seq: u8, number: u8, key: u8| [MESSAGE, 2, seq, number, key, 0, 0];
    let batch =
        |seq: u8, rows: u8, attempt: u8| [MESSAGE, 5, seq, 0, attempt, 0x10 | rows, attempt, 0, 0, 0, 0x10];
    let heartbeat = [MESSAGE, 12, 0, 0, 0, 0, 0, 0x10];
    let end = [MESSAGE, 9, 9, 0, 20, 12, 0, 0, 0, 0, 0, 0, 0x10];
    let begin = [&[CONNECT, 6, ANSWER, 0, 0, 0, 0, 0][..], &process(1, 1), &stream(2, 0, 1)].concat();
    let stolen = [&[CONNECT, 6][..], &process(1, 0), &stream(2, 0, 0), &batch(3, 5, 0)].concat();
    let both = [&begin[..], &batch(3, 3, 0), &[HONEST | 0x30], &batch(4, 5, 7), &heartbeat].concat();
    let raw = [&[CONNECT, 0, 1, 40, 0][..], &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9], &[0; 40]].concat();
    vec![
        ("honest", vec![HONEST, HONEST | 0xf0, RETURN, HONEST]),
        ("fair", [&both[..], &end, &[SETTLE, HONEST, CLOSE, HONEST]].concat()),
        ("stolen", [&stolen[..], &[HONEST, ANSWER, 0, 0, 0, 0, 0, RETURN, HONEST]].concat()),
        ("wrong-name", vec![CONNECT, 2, HONEST, CONNECT, 5, HONEST]),
        (
            "clock",
            [&[CONNECT, 6, ANSWER, 3, 5, 0, 0, 0][..], &both, &[ANSWER, 2, 0, 0, 0, 1, SETTLE]].concat(),
        ),
        ("reader", vec![CONNECT, 7, MESSAGE, 15, 0, 0, 2, b'/', b'*', HONEST, SETTLE]),
        ("rules", [&begin[..], &stream(3, 0, 5), &batch(0, 3, 200), &batch(5, 3, 0), &end, &end].concat()),
        ("raw", raw),
    ]
}
