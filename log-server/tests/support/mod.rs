//! A server in this process, and hand-made frames of nodes and readers.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod daemon;
pub mod random;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampNanosecondType, UInt64Type};
use arrow_array::{Array, RecordBatch};
use miot_log_server::{Config, Error, LogServer, RunSummary};
use miot_proto::batch::Columns;
use miot_proto::command::{OperatorReply, OperatorRequest};
use miot_proto::event::{Event, Ext, NONE, RecordKind};
use miot_proto::op::{Op, posix};
use miot_proto::status::ClusterStatus;
use miot_proto::wire::{
    self, FRAME_HEADER, GREETING, MAX_FRAME, Message, Process, ProcessKey, ProcessLoss, Role, Stream,
    StreamEnd, StreamKey, VERSION,
};
use miot_trace_store::schema::{self, NameKey};
use miot_trace_store::{Options, Reader, Table, Writer, fsck};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A test that takes longer than this hangs.
pub const WATCHDOG: Duration = Duration::from_secs(60);

pub struct Server {
    pub address: SocketAddr,
    pub http: Option<SocketAddr>,
    pub trace: PathBuf,
    pub config: Config,
    dir: Option<TempDir>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<RunSummary, Error>>,
}

impl Server {
    pub async fn start() -> Server {
        Server::start_with(|_| {}).await
    }

    pub async fn start_with(set: impl FnOnce(&mut Config)) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            listen: "127.0.0.1:0".into(),
            trace: dir.path().join("trace"),
            merge_every: Duration::from_millis(2),
            commit_every: Duration::from_millis(2),
            ..Config::default()
        };
        set(&mut config);
        Server::start_in(Some(dir), config).await
    }

    async fn start_in(dir: Option<TempDir>, config: Config) -> Server {
        let server = LogServer::bind(config.clone()).await.unwrap();
        let (address, http) = (server.local_addr(), server.http_addr());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Server { address, http, trace: config.trace.clone(), config, dir, stop, running }
    }

    /// Sends an HTTP request. Returns status and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let mut socket = TcpStream::connect(self.http.unwrap()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Waits until `/readyz` answers with this status. Returns the reason.
    pub async fn readiness(&self, expected: u16) -> String {
        let start = Instant::now();
        loop {
            let (status, reason) = self.get("/readyz").await;
            if status == expected {
                return reason;
            }
            assert!(start.elapsed() < WATCHDOG, "{status} {reason}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn stop(self) -> (Result<RunSummary, Error>, Trace) {
        let _ = self.stop.send(());
        let result = tokio::time::timeout(WATCHDOG, self.running).await.unwrap().unwrap();
        (result, Trace { dir: self.trace, _keep: self.dir })
    }

    /// Stops the server. Asserts a clean stop and a sound trace.
    pub async fn finish(self) -> Trace {
        let (result, trace) = self.stop().await;
        result.unwrap();
        trace.check();
        trace
    }

    /// Ends the server like a crash: no more commits, no sealing. Starts another server on the same
    /// trace.
    pub async fn crash(self) -> Server {
        self.crash_with(&[]).await
    }

    /// Like [`Server::crash`], with rows that the crashed server made durable before the rest of
    /// their commit.
    pub async fn crash_with(self, rows: &[(Table, RecordBatch)]) -> Server {
        self.running.abort();
        let _ = self.running.await;
        // The thread of the store ends when its sessions are gone.
        let mut writer = loop {
            match Writer::open(&self.trace, Options::default()) {
                Ok((writer, _)) => break writer,
                Err(miot_trace_store::Error::InUse { .. }) => {
                    tokio::time::sleep(Duration::from_millis(10)).await
                }
                Err(error) => panic!("{error}"),
            }
        };
        let ledger = files_of(&self.trace.join("ledger"));
        for (table, batch) in rows {
            writer.append(*table, batch).unwrap();
        }
        writer.commit().unwrap();
        drop(writer);
        // The ledger is written after all rows of a commit are durable.
        ledger.into_iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        let config = Config { listen: "127.0.0.1:0".into(), ..self.config };
        Server::start_in(self.dir, config).await
    }
}

fn files_of(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

pub struct Trace {
    pub dir: PathBuf,
    _keep: Option<TempDir>,
}

/// Place, count, first and last attempt number.
pub type Loss = (String, u64, Option<(u64, u64)>);

/// The columns of a row that tests check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRow {
    pub time: i64,
    pub node: String,
    pub stream: u64,
    pub seq: u64,
    pub op: String,
    pub path: Option<String>,
    pub path2: Option<String>,
    pub offset: Option<i64>,
    pub result: i64,
    pub flags: u16,
}

impl Trace {
    pub fn check(&self) {
        let report = fsck::check(&self.dir);
        assert!(report.is_good(), "{report:#?}");
    }

    pub fn rows(&self) -> Vec<TraceRow> {
        let reader = Reader::open(&self.dir).unwrap();
        let batches: Vec<RecordBatch> = reader.rows().unwrap().collect::<Result<_, _>>().unwrap();
        batches.iter().flat_map(rows).collect()
    }

    /// Stream and attempt number of each path record.
    pub fn records(&self) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        for batch in Reader::open(&self.dir).unwrap().table(Table::Files).unwrap() {
            out.extend(u64s(&batch, "stream").iter().zip(&u64s(&batch, "seq")).filter_map(|(s, n)| s.zip(n)));
        }
        out
    }

    pub fn losses(&self) -> Vec<Loss> {
        let mut out = Vec::new();
        for batch in Reader::open(&self.dir).unwrap().table(Table::Losses).unwrap() {
            let place = batch.column_by_name("place").unwrap().as_string::<i32>();
            let count = u64s(&batch, "count");
            let (first, last) = (u64s(&batch, "first_seq"), u64s(&batch, "last_seq"));
            for i in 0..batch.num_rows() {
                let range = first.is_valid(i).then(|| (first.value(i), last.value(i)));
                out.push((place.value(i).to_owned(), count.value(i), range));
            }
        }
        out
    }
}

fn u64s(batch: &RecordBatch, name: &str) -> arrow_array::UInt64Array {
    schema::column::<UInt64Type>(batch, name).unwrap()
}

pub fn rows(batch: &RecordBatch) -> Vec<TraceRow> {
    let column = |name: &str| batch.column_by_name(name).unwrap();
    let text = |name: &str, row: usize| {
        let column = column(name).as_string::<i32>();
        column.is_valid(row).then(|| column.value(row).to_owned())
    };
    let key = |name: &str, row: usize| {
        let column = column(name).as_dictionary::<NameKey>();
        column.values().as_string::<i32>().value(column.key(row).unwrap()).to_owned()
    };
    let offset = column("offset").as_primitive::<Int64Type>();
    (0..batch.num_rows())
        .map(|i| TraceRow {
            time: column("time").as_primitive::<TimestampNanosecondType>().value(i),
            node: key("node", i),
            stream: u64s(batch, "stream").value(i),
            seq: u64s(batch, "seq").value(i),
            op: key("op", i),
            path: text("path", i),
            path2: text("path2", i),
            offset: offset.is_valid(i).then(|| offset.value(i)),
            result: column("result").as_primitive::<Int64Type>().value(i),
            flags: column("flags").as_primitive::<Int32Type>().value(i) as u16,
        })
        .collect()
}

/// One record of a batch.
#[derive(Clone, Debug)]
pub struct Record {
    pub attempt: u64,
    pub time: i64,
    pub op: Op,
    pub handle: u64,
    pub offset: u64,
    pub length: u64,
    pub result: i64,
    pub path1: String,
    pub path2: String,
    pub handle2: Option<u64>,
    pub kind: RecordKind,
}

pub fn read(attempt: u64, time: i64, handle: u64) -> Record {
    Record {
        attempt,
        time,
        op: posix::READ,
        handle,
        offset: attempt.wrapping_mul(10),
        length: 10,
        result: 10,
        path1: String::new(),
        path2: String::new(),
        handle2: None,
        kind: RecordKind::Request,
    }
}

pub fn open(attempt: u64, time: i64, handle: u64, path: &str) -> Record {
    Record {
        op: posix::OPEN,
        offset: NONE,
        length: 0,
        result: 3,
        path1: path.into(),
        ..read(attempt, time, handle)
    }
}

pub fn columns(records: &[Record]) -> Columns {
    let mut columns = Columns::default();
    for r in records {
        let event = Event {
            op: r.op,
            request: (r.attempt as u32).wrapping_add(1),
            enclosing: 0,
            end: 0,
            duration: 5,
            flags: 0,
            handle: r.handle,
            offset: r.offset,
            length: r.length,
            result: r.result,
        };
        let ext = Ext {
            path1: r.path1.as_bytes(),
            path2: r.path2.as_bytes(),
            handle2: r.handle2,
            ..Ext::default()
        };
        columns.push(r.kind as u8, r.attempt, r.time, 5, &event, (!ext.is_empty()).then_some(&ext));
    }
    columns
}

pub fn process_key(pid: u32) -> ProcessKey {
    ProcessKey { boot: 77, nonce: u64::from(pid) * 3, pid }
}

/// Definitions and ends of a process and its streams.
pub struct Definitions {
    key: ProcessKey,
}

impl Definitions {
    pub fn new(pid: u32) -> Definitions {
        Definitions { key: process_key(pid) }
    }

    pub fn process(&self, seq: u64) -> Message {
        let process = Process {
            key: self.key,
            ppid: 1,
            uid: 0,
            started: 1,
            rank: None,
            exe: b"/bin/x".to_vec(),
            cmdline: b"x\0y z".to_vec(),
            job: vec![],
            cwd: b"/".to_vec(),
        };
        Message::Process { seq, process }
    }

    pub fn stream(&self, seq: u64, number: u32, lane: u32) -> Message {
        let key = StreamKey { process: self.key, lane, incarnation: 1 };
        let comm = format!("t{lane}").into_bytes();
        Message::Stream { seq, stream: Stream { number, key, tid: self.key.pid + lane, comm } }
    }

    pub fn stream_end(&self, seq: u64, stream: u32, attempts: u64, time: i64) -> Message {
        let (lost_full, lost_nested, filtered) = (0, 0, 0);
        let end = StreamEnd { stream, attempts, after: attempts, lost_full, lost_nested, filtered, time };
        Message::StreamEnd { seq, end }
    }

    pub fn process_end(&self, seq: u64, time: i64) -> Message {
        Message::ProcessEnd { seq, key: self.key, time, lost: ProcessLoss::default() }
    }
}

/// A connection to the server.
pub struct Peer {
    pub socket: TcpStream,
    /// Size of the sent frames, bytes.
    pub sent: usize,
}

impl Peer {
    pub async fn connect(address: SocketAddr) -> Peer {
        Peer { socket: TcpStream::connect(address).await.unwrap(), sent: 0 }
    }

    pub async fn send(&mut self, message: &Message) {
        let frame = message.frame();
        self.sent += frame.len();
        self.socket.write_all(&frame).await.unwrap();
    }

    /// Receives the next message other than a final time; `None` at the end of the connection.
    pub async fn receive(&mut self) -> Option<Message> {
        loop {
            let mut header = [0; FRAME_HEADER];
            tokio::time::timeout(WATCHDOG, self.socket.read_exact(&mut header)).await.unwrap().ok()?;
            let (length, crc) = wire::frame_header(header, MAX_FRAME).unwrap();
            let mut payload = vec![0; length];
            self.socket.read_exact(&mut payload).await.ok()?;
            let message = Message::from_payload(&payload, crc).unwrap();
            if !matches!(message, Message::Final { .. }) {
                return Some(message);
            }
        }
    }

    /// Receives the next message, if one begins within `wait`.
    pub async fn poll(&mut self, wait: Duration) -> Option<Message> {
        // Readiness alone is not enough: it may be outdated.
        tokio::time::timeout(wait, self.socket.peek(&mut [0])).await.ok()?.ok()?;
        self.receive().await
    }

    /// Receives messages up to a refusal, and the end after it. Returns the reason.
    pub async fn refusal(&mut self) -> String {
        loop {
            match self.receive().await {
                Some(Message::Refused { reason, .. }) => {
                    assert_eq!(self.receive().await, None, "no message follows a refusal");
                    return reason;
                }
                Some(_) => {}
                None => panic!("closed without a reason"),
            }
        }
    }
}

/// A simulated log-client.
pub struct Node {
    pub peer: Peer,
    /// Offset of its clock, nanoseconds.
    pub skew: i64,
    pub seq: u64,
    pub through: u64,
    pub acked: u64,
}

pub fn hello(role: Role, node: &str, session: u64) -> Message {
    Message::Hello { greeting: GREETING, version: VERSION, role, node: node.into(), session }
}

impl Node {
    pub async fn connect(server: &Server, name: &str, session: u64) -> Node {
        let mut peer = Peer::connect(server.address).await;
        peer.send(&hello(Role::Node, name, session)).await;
        match peer.receive().await {
            Some(Message::Welcome { through, .. }) => {
                Node { peer, skew: 0, seq: through, through, acked: through }
            }
            other => panic!("expected a welcome, got {other:?}"),
        }
    }

    pub fn next(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub async fn process(&mut self, pid: u32) {
        let seq = self.next();
        self.process_as(seq, pid).await;
    }

    pub async fn process_as(&mut self, seq: u64, pid: u32) {
        self.peer.send(&Definitions::new(pid).process(seq)).await;
    }

    pub async fn stream(&mut self, number: u32, pid: u32, lane: u32) {
        let seq = self.next();
        self.stream_as(seq, number, pid, lane).await;
    }

    pub async fn stream_as(&mut self, seq: u64, number: u32, pid: u32, lane: u32) {
        self.peer.send(&Definitions::new(pid).stream(seq, number, lane)).await;
    }

    pub async fn process_end(&mut self, pid: u32, time: i64, lost: ProcessLoss) {
        let seq = self.next();
        self.peer.send(&Message::ProcessEnd { seq, key: process_key(pid), time, lost }).await;
    }

    pub async fn batch(&mut self, stream: u32, records: &[Record]) {
        let seq = self.next();
        self.batch_as(seq, stream, records).await;
    }

    pub async fn batch_as(&mut self, seq: u64, stream: u32, records: &[Record]) {
        let (mut scratch, mut bytes) = (Vec::new(), Vec::new());
        columns(records).encode(&mut scratch, &mut bytes);
        self.peer.send(&Message::Batch { seq, stream, after: 0, columns: bytes }).await;
    }

    pub async fn heartbeat(&mut self, watermark: i64) {
        self.peer.send(&Message::Heartbeat { watermark }).await;
    }

    pub async fn end(&mut self, stream: u32, attempts: u64, lost_nested: u64) {
        let seq = self.next();
        let end = StreamEnd { stream, attempts, after: 0, lost_full: 0, lost_nested, filtered: 0, time: 1 };
        self.peer.send(&Message::StreamEnd { seq, end }).await;
    }

    /// Answers pings until everything up to `seq` is acknowledged.
    pub async fn acked(&mut self, seq: u64) {
        while self.acked < seq {
            match self.peer.receive().await {
                Some(Message::Ack { through }) => self.acked = through,
                Some(Message::Ping { sent }) => self.pong(sent).await,
                Some(Message::Pace { .. }) => {}
                other => panic!("expected an acknowledgment of {seq}, have {}, got {other:?}", self.acked),
            }
        }
    }

    pub async fn pong(&mut self, sent: i64) {
        let answered = now() + self.skew;
        self.peer.send(&Message::Pong { sent, received: answered, answered }).await;
    }

    pub async fn all_acked(&mut self) {
        self.acked(self.seq).await;
    }
}

/// Connects a remote reader with these filters.
pub async fn tail(server: &Server, ops: &[&str], paths: &[&str], nodes: &[&str]) -> Peer {
    tail_since(server, ops, paths, nodes, None).await
}

/// Connects a remote reader of rows since a time, and of later rows.
pub async fn tail_since(
    server: &Server,
    ops: &[&str],
    paths: &[&str],
    nodes: &[&str],
    since: Option<i64>,
) -> Peer {
    let mut peer = Peer::connect(server.address).await;
    peer.send(&hello(Role::Tail, "reader", 0)).await;
    assert!(matches!(peer.receive().await, Some(Message::Welcome { .. })));
    let texts = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
    let request = Message::Subscribe {
        layers: vec![],
        ops: texts(ops),
        paths: texts(paths),
        pids: vec![],
        nodes: texts(nodes),
        since,
    };
    peer.send(&request).await;
    peer
}

/// Requests the status of the log-server and its nodes.
pub async fn status(server: &Server) -> ClusterStatus {
    let mut peer = Peer::connect(server.address).await;
    peer.send(&hello(Role::Operator, "operator", 0)).await;
    assert!(matches!(peer.receive().await, Some(Message::Welcome { .. })));
    peer.send(&Message::Request { request: serde_json::to_vec(&OperatorRequest::Status).unwrap() }).await;
    let Some(Message::Reply { reply }) = peer.receive().await else { panic!("no answer") };
    match serde_json::from_slice(&reply).unwrap() {
        OperatorReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}
