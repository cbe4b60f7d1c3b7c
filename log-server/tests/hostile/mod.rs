//! Hostile sessions from a seed that break all rules, while an honest node delivers events.

use crate::support::random::{Random, seed};
use crate::support::{Node, Peer, Record, Server, columns, hello, now, open, process_key, read};
use miot_proto::event::flag;
use miot_proto::wire::{
    Device, DeviceCounters, DeviceKind, DeviceSample, FRAME_HEADER, Message, Process, ProcessKey,
    ProcessLoss, Role, Stream, StreamEnd, StreamKey, frame_header_of,
};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// Number of concurrent hostile sessions, and number of sessions of each attacker.
const ATTACKERS: u64 = 6;
const SESSIONS: u64 = 15;

impl Random {
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn time(&mut self) -> i64 {
        let now = now();
        let far = [i64::MIN, i64::MIN + 1, -1, 0, 1, now, now + 9_000_000_000, now + 3_600_000_000_000];
        self.of(&[&far[..], &[i64::MAX - 1, i64::MAX]].concat())
    }

    fn number(&mut self) -> u64 {
        let some = self.below(100);
        self.of(&[0, 1, 2, some, u64::MAX - 1, u64::MAX, 1 << 63, 1 << 32])
    }
}

/// Key of a process of the attacker, or of the honest node.
fn key(random: &mut Random) -> ProcessKey {
    match random.below(3) {
        0 => process_key(10),
        _ => ProcessKey { boot: 7, nonce: random.below(3), pid: random.below(3) as u32 },
    }
}

fn batch(random: &mut Random) -> Vec<u8> {
    let rows: Vec<Record> = (0..random.below(20))
        .map(|i| match random.below(4) {
            0 => open(random.number(), random.time(), random.number(), "/honest"),
            1 => read(i, random.time(), 7),
            _ => read(random.number(), random.time(), random.number()),
        })
        .collect();
    let (mut plain, mut packed) = (Vec::new(), Vec::new());
    columns(&rows).encode(&mut plain, &mut packed);
    match random.below(6) {
        // The header announces a huge size, and part of it is sent.
        0 => [&(12u32 << 20).to_le_bytes()[..], &[0x1f, 0, 1, 0], &[0xff; 50_000]].concat(),
        1 => [&u32::MAX.to_le_bytes()[..], &packed[4..]].concat(),
        2 => {
            let at = random.below(packed.len() as u64) as usize;
            packed[at] ^= 1 << random.below(8);
            packed
        }
        _ => packed,
    }
}

fn message(random: &mut Random) -> Message {
    let (seq, stream) = (random.number(), random.below(4) as u32);
    let text =
        |random: &mut Random| vec![random.next() as u8; random.of(&[0, 1, 15, 16, 64, 65, 4096, 70_000])];
    match random.below(18) {
        0 | 1 => {
            let process = Process {
                key: key(random),
                ppid: 1,
                uid: 0,
                started: random.time(),
                rank: Some(u32::MAX),
                exe: text(random),
                cmdline: text(random),
                job: Vec::new(),
                cwd: Vec::new(),
            };
            Message::Process { seq, process }
        }
        2..=4 => {
            let key = StreamKey { process: key(random), lane: 0, incarnation: 1 };
            let comm = if random.below(8) == 0 { text(random) } else { b"\x1b[2J\n".to_vec() };
            Message::Stream { seq, stream: Stream { number: stream, key, tid: 1, comm } }
        }
        5..=8 => Message::Batch { seq, stream, after: random.number(), columns: batch(random) },
        9 => {
            let end = StreamEnd {
                stream,
                attempts: random.number(),
                lost_full: random.number(),
                lost_nested: random.number(),
                filtered: random.number(),
                after: random.number(),
                time: random.time(),
            };
            Message::StreamEnd { seq, end }
        }
        10 => {
            let lost = ProcessLoss { no_lane: random.number(), abi_violations: random.number() };
            Message::ProcessEnd { seq, key: key(random), time: random.time(), lost }
        }
        11 => Message::Heartbeat { watermark: random.time() },
        12 => {
            let ranges = (0..random.below(5)).map(|_| (random.number(), random.number())).collect();
            Message::GivenUp { seq, stream, after: random.number(), ranges, time: random.time() }
        }
        13 => {
            let counters = DeviceCounters { reads: Some(random.number()), ..DeviceCounters::default() };
            let device =
                Device { kind: DeviceKind::Block, name: text(random), mount: text(random), counters };
            let devices = vec![device; random.below(3) as usize];
            let (boot, uptime, time) = (random.below(3).into(), random.number(), random.time());
            Message::Devices {
                seq,
                sample: DeviceSample { boot, uptime, time, interval: random.number(), devices },
            }
        }
        14 => Message::Report { status: random.of(&[&b"{}"[..], b"[]", b"{\"oldest\":[{},{}]}"]).to_vec() },
        15 => Message::Outcome { id: random.number(), outcome: text(random) },
        16 => Message::Pong { sent: random.time(), received: random.time(), answered: random.time() },
        _ => match random.below(6) {
            0 => Message::Bye,
            1 => Message::Ack { through: random.number() },
            2 => hello(Role::Node, "honest", 1),
            3 => Message::Rows { arrow: vec![0; 100] },
            4 => Message::SuspendWatermark,
            _ => Message::Heartbeat { watermark: i64::MAX },
        },
    }
}

/// A valid start of a session: a process and a stream with the keys of the honest node.
fn valid(random: &mut Random) -> [Message; 3] {
    let text = Vec::new;
    let (key, started) = (process_key(10), random.time());
    let (exe, cmdline, job, cwd) = (text(), text(), text(), text());
    let process = Process { key, ppid: 1, uid: 0, started, rank: None, exe, cmdline, job, cwd };
    let key = StreamKey { process: key, lane: 0, incarnation: 1 };
    let stream = Stream { number: 0, key, tid: 1, comm: text() };
    let rows: Vec<Record> = (0..5).map(|n| read(n, random.time(), 7)).collect();
    let (mut plain, mut packed) = (Vec::new(), Vec::new());
    columns(&rows).encode(&mut plain, &mut packed);
    let after = random.number();
    [
        Message::Process { seq: 1, process },
        Message::Stream { seq: 2, stream },
        Message::Batch { seq: 3, stream: 0, after, columns: packed },
    ]
}

/// A frame that may be damaged.
fn frame(random: &mut Random, message: &Message) -> Vec<u8> {
    let mut frame = message.frame();
    match random.below(12) {
        0 => {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << random.below(8);
        }
        // Damaged before the checksum was computed.
        1 => {
            let at = FRAME_HEADER + random.below((frame.len() - FRAME_HEADER) as u64) as usize;
            frame[at] ^= 1 << random.below(8);
            let header = frame_header_of(&frame[FRAME_HEADER..]);
            frame[..FRAME_HEADER].copy_from_slice(&header);
        }
        // Any length, with a matching checksum of the header.
        2 => {
            frame[..4].copy_from_slice(&(random.next() as u32).to_le_bytes());
            let sum = crc32c(&frame[..8]);
            frame[8..FRAME_HEADER].copy_from_slice(&sum.to_le_bytes());
        }
        3 => frame.truncate(random.below(frame.len() as u64) as usize),
        _ => {}
    }
    frame
}

/// CRC-32C (Castagnoli), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

/// Runs one hostile connection. Its outcome does not matter.
async fn session(address: SocketAddr, mut random: Random) {
    let mut peer = Peer::connect(address).await;
    let kind = random.below(8);
    let mut bytes = match kind {
        0 => (0..random.below(9000)).map(|_| random.next() as u8).collect(),
        1 => {
            let greeting = hello(Role::Node, "half", 1).frame();
            greeting[..random.below(greeting.len() as u64) as usize].to_vec()
        }
        2 => {
            let mut bytes = hello(Role::Tail, "t\u{7f}ail", 1).frame();
            bytes.extend(hello(Role::Tail, "tail", 1).frame());
            bytes
        }
        3 => hello(Role::Tail, "tail", 1).frame(),
        _ => {
            let name = random.of(&["hostile", "liar", "h\u{202e}idden", "flooder"]);
            hello(Role::Node, name, random.below(3)).frame()
        }
    };
    if kind >= 4 {
        valid(&mut random).iter().for_each(|message| message.append_frame(&mut bytes));
    }
    if kind >= 2 {
        for _ in 0..random.below(40) {
            let message = message(&mut random);
            bytes.extend(frame(&mut random, &message));
        }
    }
    // The server may close the connection at any time.
    let _ = tokio::time::timeout(Duration::from_secs(5), peer.socket.write_all(&bytes)).await;
    while random.below(4) > 0 {
        if peer.poll(Duration::from_millis(random.below(60))).await.is_none() {
            break;
        }
    }
}

#[tokio::test]
async fn hostile_peers_do_not_affect_an_honest_node() {
    let seed = seed();
    let server = Server::start_with(|config| {
        // Long enough that the honest node does not count as silent on a busy machine.
        config.silent_after = Duration::from_secs(10);
        config.seal_rows = 500;
    })
    .await;
    let mut honest = Node::connect(&server, "honest", 1).await;
    honest.process(10).await;
    honest.stream(0, 10, 0).await;
    let address = server.address;
    let attack = (0..ATTACKERS).map(|attacker| {
        tokio::spawn(async move {
            for n in 0..SESSIONS {
                session(address, Random::new(seed ^ (attacker << 32 | n))).await;
            }
        })
    });
    let attack: Vec<_> = attack.collect();
    let (mut attempt, mut times) = (0, Vec::new());
    while attempt < 400 || !attack.iter().all(tokio::task::JoinHandle::is_finished) {
        let time = now();
        honest.batch(0, &[open(attempt, time, 7, "/honest"), read(attempt + 1, time, 7)]).await;
        times.extend([time, time]);
        attempt += 2;
        honest.heartbeat(time + 1).await;
        while let Some(message) = honest.peer.poll(Duration::from_millis(2)).await {
            match message {
                Message::Ack { through } => honest.acked = through,
                Message::Ping { sent } => honest.pong(sent).await,
                Message::Pace { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    for attacker in attack {
        attacker.await.unwrap();
    }
    honest.all_acked().await;
    let (report, trace) = server.stop().await;
    report.unwrap();
    trace.check();
    let rows = trace.rows();
    println!("{} rows of the honest node, {} of others", times.len(), rows.len() - times.len());
    let found: Vec<_> = rows.iter().filter(|r| r.node == "honest").collect();
    let expected: Vec<_> = times.iter().zip(0..).map(|(time, seq)| (*time, seq)).collect();
    assert_eq!(found.iter().map(|r| (r.time, r.seq)).collect::<Vec<_>>(), expected);
    assert!(found.iter().all(|r| r.path.as_deref() == Some("/honest") && r.flags & flag::LATE == 0));
    assert!(found.iter().all(|r| r.stream == found[0].stream), "the honest node has one stream");
    assert!(rows.len() > times.len(), "events of hostile peers are stored");
    let limit = now() + 60_000_000_000;
    assert!(rows.iter().all(|r| r.time < limit), "an event is in the far future");
}
