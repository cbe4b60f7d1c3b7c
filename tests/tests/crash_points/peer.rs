//! A scripted node. It sends its batches in order, a few ahead of the acknowledgments, and sends
//! unacknowledged ones again after a crash.

use miot_proto::batch::Columns;
use miot_proto::event::{Event, Ext, NONE, RecordKind};
use miot_proto::op::posix;
use miot_proto::wire::{
    FRAME_HEADER, GREETING, MAX_FRAME, Message, Process, ProcessKey, Role, Stream, StreamKey, VERSION,
    frame_header,
};
use miot_tests::process::WATCHDOG;
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const STREAMS: u32 = 2;
const ROWS: u64 = 6;
/// Number of batches that are sent before the first of them is acknowledged.
const AHEAD: usize = 2;
const PID: u32 = 700;

/// Batches of a node.
pub(crate) struct Plan {
    pub(crate) batches: Vec<Planned>,
}

pub(crate) struct Planned {
    pub(crate) stream: u32,
    first: u64,
    time: i64,
}

impl Plan {
    pub(crate) fn new(batches: usize) -> Plan {
        let begin = now() - 60_000_000_000;
        let planned = (0..batches).map(|index| Planned {
            stream: index as u32 % STREAMS,
            first: (index as u64 / u64::from(STREAMS)) * ROWS,
            time: begin + index as i64 * 1_000_000,
        });
        Plan { batches: planned.collect() }
    }

    /// Path of a row: each batch opens a file and reads it.
    pub(crate) fn path(&self, tid: u32, seq: u64) -> Option<String> {
        let stream = tid.checked_sub(PID)?;
        let batch = (seq / ROWS) * u64::from(STREAMS) + u64::from(stream);
        (batch < self.batches.len() as u64).then(|| format!("/data/{batch}"))
    }

    /// Number of rows of each thread in the first `batches` batches.
    pub(crate) fn ends(&self, batches: usize) -> HashMap<u32, u64> {
        let mut ends = HashMap::new();
        for batch in &self.batches[..batches] {
            ends.insert(PID + batch.stream, batch.first + ROWS);
        }
        ends
    }

    fn message(&self, index: usize) -> Message {
        let batch = &self.batches[index];
        let mut columns = Columns::default();
        for row in 0..ROWS {
            let open = row == 0;
            let event = Event {
                op: if open { posix::OPEN } else { posix::READ },
                request: (batch.first + row) as u32 + 1,
                enclosing: 0,
                end: 0,
                duration: 5,
                flags: 0,
                handle: index as u64 + 1,
                offset: if open { NONE } else { row * 10 },
                length: 10,
                result: 10,
            };
            let path = format!("/data/{index}");
            let ext = Ext { path1: path.as_bytes(), ..Ext::default() };
            let time = batch.time + row as i64 * 1000;
            columns.push(RecordKind::Request as u8, batch.first + row, time, 5, &event, open.then_some(&ext));
        }
        let (mut scratch, mut bytes) = (Vec::new(), Vec::new());
        columns.encode(&mut scratch, &mut bytes);
        Message::Batch { seq: index as u64 + 1, stream: batch.stream, after: batch.first, columns: bytes }
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}

/// Sends unacknowledged batches to the server at a port until all are acknowledged or the server
/// has ended. Returns the total number of acknowledged batches.
pub(crate) fn run(plan: &Plan, acked: usize, port: u16, mut alive: impl FnMut() -> bool) -> usize {
    let begun = Instant::now();
    let socket = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(socket) => break socket,
            Err(_) if !alive() => return acked,
            Err(error) => assert!(begun.elapsed() < WATCHDOG, "no server: {error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    socket.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut peer = Peer { socket, acked };
    match peer.deliver(plan) {
        Ok(()) => {}
        Err(error) => assert!(
            !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
            "the server does not answer: {error}"
        ),
    }
    peer.acked
}

struct Peer {
    socket: TcpStream,
    acked: usize,
}

impl Peer {
    fn send(&mut self, message: &Message) -> io::Result<()> {
        self.socket.write_all(&message.frame())
    }

    fn receive(&mut self) -> io::Result<Message> {
        let mut header = [0; FRAME_HEADER];
        self.socket.read_exact(&mut header)?;
        let (length, crc) = frame_header(header, MAX_FRAME).map_err(io::Error::other)?;
        let mut payload = vec![0; length];
        self.socket.read_exact(&mut payload)?;
        Message::from_payload(&payload, crc).map_err(io::Error::other)
    }

    fn deliver(&mut self, plan: &Plan) -> io::Result<()> {
        self.send(&Message::Hello {
            greeting: GREETING,
            version: VERSION,
            role: Role::Node,
            node: "n".into(),
            session: 9,
        })?;
        loop {
            match self.receive()? {
                Message::Welcome { through, .. } => {
                    let through = through as usize;
                    assert!(through <= plan.batches.len(), "acknowledged {through}");
                    self.acked = self.acked.max(through);
                    break;
                }
                Message::Ping { sent } => {
                    self.send(&Message::Pong { sent, received: now(), answered: now() })?
                }
                other => panic!("expected a welcome, got {other:?}"),
            }
        }
        let key = ProcessKey { boot: 77, nonce: 5, pid: PID };
        let process = Process {
            key,
            ppid: 1,
            uid: 0,
            started: 1,
            rank: None,
            exe: b"/bin/x".to_vec(),
            cmdline: b"x\0".to_vec(),
            job: vec![],
            cwd: b"/".to_vec(),
        };
        self.send(&Message::Process { seq: 0, process })?;
        for number in 0..STREAMS {
            let key = StreamKey { process: key, lane: number, incarnation: 1 };
            let stream = Stream { number, key, tid: PID + number, comm: b"x".to_vec() };
            self.send(&Message::Stream { seq: 0, stream })?;
        }
        let mut next = self.acked;
        while self.acked < plan.batches.len() {
            if next < plan.batches.len() && next < self.acked + AHEAD {
                self.send(&plan.message(next))?;
                // No event before the next batch will follow.
                let watermark = plan.batches.get(next + 1).map_or_else(now, |batch| batch.time);
                self.send(&Message::Heartbeat { watermark })?;
                next += 1;
                continue;
            }
            match self.receive()? {
                Message::Ack { through } => {
                    assert!(through as usize <= next, "acknowledged {through} of {next}");
                    self.acked = self.acked.max(through as usize);
                }
                Message::Ping { sent } => {
                    self.send(&Message::Pong { sent, received: now(), answered: now() })?
                }
                Message::Refused { reason, .. } => panic!("refused: {reason}"),
                _ => {}
            }
        }
        Ok(())
    }
}
