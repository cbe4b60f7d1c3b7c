//! `cluster`: one log-server with 10 000 nodes of one event per second each, over TLS, and its
//! restart.
//!
//! One thread simulates the nodes: each has a certificate and a connection of its own, sweeps at
//! the pace that the log-server asks for, sends what a log-client sends (watermarks, reports,
//! answers to clock queries, with the next messages or at once), keeps batches until they are
//! acknowledged, and reconnects with the back-off of the log-client. The thread reports its own CPU
//! time.
//!
//! *Lag* is the age of the time up to which the trace is final, read every 50 ms: the watermarks of
//! all nodes have passed it, and what is before it is merged and synced. *Acknowledged* is the time
//! from the sending of a batch to its acknowledgment. The run is checked: the trace holds each
//! event once, and no loss.

use crate::Bench;
use crate::daemons::free_port;
use crate::pipeline::count;
use crate::process::{allow_many_files, cpu_seconds, said, status, this_thread_cpu};
use crate::report::number;
use crate::server::Server;
use anyhow::{Context, Result, bail, ensure};
use arrow_array::types::Int32Type;
use fastrand::Rng;
use miot_log_client::testing::connection_waits;
use miot_proto::batch::Columns;
use miot_proto::event::{Event, RecordKind, flag};
use miot_proto::op::posix;
use miot_proto::status::NodeReport;
use miot_proto::wire::{
    FRAME_HEADER, GREETING, Message, PROMPT_ANSWERS, Pace, Process, ProcessKey, ProcessLoss, Role, Stream,
    StreamEnd, StreamKey, VERSION, frame_header,
};
use miot_tls::{Files, TlsClient};
use miot_trace_store::{Corrections, Reader, final_time, schema};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::client::TlsStream;

/// Time between two events of a node.
const EVENT_EVERY: Duration = Duration::from_secs(1);
/// Longest time until all nodes are connected, or are done.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time between two measurements of the lag: the log-server writes its final time as often.
const LAG_EVERY: Duration = Duration::from_millis(50);

/// The stated errors are those of times so long before the restart, nanoseconds: the log-server
/// learns the correction of times that it does not know yet from the first exchanges after it.
const BEFORE_RESTART_NS: i64 = 5_000_000_000;

/// Times of a log-client (`log-client/src/sweeper/sleep.rs`, `log-client/src/ship/connection.rs`).
struct Intervals {
    /// Between two sweeps.
    sweep: Duration,
    /// Between two reports.
    report: Duration,
    /// A report goes with the messages of a sweep if it is due within this time.
    early: Duration,
}

fn intervals(pace: Pace) -> Intervals {
    let (sweep, report, early) = match pace {
        Pace::Live => (80, 1000, 250),
        Pace::Unfollowed => (250, 1000, 250),
        Pace::Idle => (1000, 1000, 250),
        Pace::Crowded => (1600, 10_000, 3000),
    };
    let [sweep, report, early] = [sweep, report, early].map(Duration::from_millis);
    Intervals { sweep, report, early }
}

/// What all nodes have done.
#[derive(Default)]
struct Totals {
    connected: u64,
    connects: u64,
    events: u64,
    acknowledged: u64,
    /// Milliseconds from sending to acknowledgment.
    delays: Vec<f64>,
    messages: u64,
    /// No more events are made.
    ends: bool,
    done: u64,
    refused: Option<String>,
}

type Shared = Rc<RefCell<Totals>>;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let nodes: u64 = bench.pick(10_000, 10_000, 50);
    let steady = Duration::from_secs(bench.pick(60, 20, 2));
    allow_many_files()?;
    let dir = bench.disk.path().join("cluster");
    let pki = bench.memory.path().join("pki");
    let names: Vec<String> = (0..nodes).map(|node| format!("node{node:05}")).collect();
    certificates(&pki, &names)?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let settings = format!(
        "connections = 20000\ntls_certificate = {:?}\ntls_key = {:?}\ntls_authority = {:?}\n",
        pki.join("server/127.0.0.1.pem"),
        pki.join("server/127.0.0.1.key"),
        pki.join("ca.pem")
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let row = local.block_on(&runtime, play(&dir, &pki, &names, &address, &settings, steady))?;
    println!("{}", table(&json!([row])));
    std::fs::remove_dir_all(&dir)?;
    Ok(json!([row]))
}

async fn play(
    dir: &Path,
    pki: &Path,
    names: &[String],
    address: &str,
    settings: &str,
    steady: Duration,
) -> Result<Value> {
    let nodes = names.len() as u64;
    let shared = Shared::default();
    let server = Server::start_on(dir, address, settings)?;
    let begin = Instant::now();
    for (number, name) in names.iter().enumerate() {
        let authority = pki.join("ca.pem");
        let (certificate, key) = (pki.join(format!("node/{name}.pem")), pki.join(format!("node/{name}.key")));
        let files = Files::new(Some(&certificate), Some(&key), Some(&authority))?;
        let tls = TlsClient::load(files.context("three files")?, miot_tls::Role::Node)?;
        let node = Node::new(number as u64, name.clone(), address.to_string(), tls, Rc::clone(&shared));
        drop(tokio::task::spawn_local(node.live()));
    }
    until("all nodes are connected", &shared, |totals| totals.connected == nodes).await?;
    let connect = begin.elapsed();
    let connect_cpu = cpu_seconds(server.pid());
    // The pace settles within seconds of the first batches.
    sleep(steady.min(Duration::from_secs(10))).await;
    let before = (cpu_seconds(server.pid()), this_thread_cpu(), Instant::now());
    let (events, messages) = {
        let mut totals = shared.borrow_mut();
        totals.delays.clear();
        (totals.events, totals.messages)
    };
    let mut lags = lags(server.trace(), steady).await?;
    let (seconds, measured) = (before.2.elapsed().as_secs_f64(), now());
    let server_share = (cpu_seconds(server.pid()) - before.0) / seconds;
    let driver_share = (this_thread_cpu() - before.1) / seconds;
    let (events, messages, mut delays) = {
        let mut totals = shared.borrow_mut();
        (totals.events - events, totals.messages - messages, std::mem::take(&mut totals.delays))
    };
    let memory = status(server.pid(), "VmHWM") as f64 / 1024.0;
    ensure!(!delays.is_empty(), "no batch was acknowledged");

    server.kill();
    until("all connections have ended", &shared, |totals| totals.connected == 0).await?;
    let begin = Instant::now();
    let server = Server::start_on(dir, address, settings)?;
    until("all nodes are connected again", &shared, |totals| totals.connected == nodes).await?;
    let reconnect = begin.elapsed();
    shared.borrow_mut().ends = true;
    until("all nodes are done", &shared, |totals| totals.done == nodes).await?;
    let trace = server.trace().to_path_buf();
    let memory_after = status(server.pid(), "VmHWM") as f64 / 1024.0;
    server.stop()?;

    let totals = shared.borrow();
    let rows = count(&trace)?;
    ensure!(
        rows.events == totals.events && totals.acknowledged == totals.events && rows.lost == 0,
        "{} events made, {} acknowledged, {} in the trace, {} lost",
        totals.events,
        totals.acknowledged,
        rows.events,
        rows.lost
    );
    let late = late(&trace)?;
    let mut errors = stated_errors(&trace, names, measured - BEFORE_RESTART_NS)?;
    let quantiles = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        [0.5, 0.99].map(|share| values[((values.len() - 1) as f64 * share).round() as usize])
    };
    let ([lag_p50, lag_p99], [delay_p50, delay_p99]) = (quantiles(&mut lags), quantiles(&mut delays));
    let [error_p50, error_p99] = quantiles(&mut errors);
    Ok(json!({
        "nodes": nodes, "seconds": seconds, "events": totals.events,
        "events_per_s": events as f64 / seconds,
        "messages_per_s": messages as f64 / seconds,
        "server_share": server_share, "driver_share": driver_share,
        "memory_mib": memory.max(memory_after),
        "lag_p50_ms": lag_p50, "lag_p99_ms": lag_p99,
        "delay_p50_ms": delay_p50, "delay_p99_ms": delay_p99,
        "connect_s": connect.as_secs_f64(), "connect_server_cpu_s": connect_cpu,
        "reconnect_s": reconnect.as_secs_f64(), "connects": totals.connects,
        "late": late,
        "error_p50_ms": error_p50, "error_p99_ms": error_p99,
    }))
}

/// Measures for `time` how far the final time of a trace is behind, milliseconds.
async fn lags(trace: &Path, time: Duration) -> Result<Vec<f64>> {
    let (begin, mut lags) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        sleep(LAG_EVERY).await;
        let until = final_time::read(trace);
        // The file may be half written.
        lags.extend(until.map(|until| (now() - until) as f64 / 1e6));
    }
    ensure!(!lags.is_empty(), "the trace has no final time");
    Ok(lags)
}

/// Waits until `is_so`.
async fn until(what: &str, shared: &Shared, is_so: impl Fn(&Totals) -> bool) -> Result<()> {
    let start = Instant::now();
    loop {
        {
            let totals = shared.borrow();
            if let Some(reason) = &totals.refused {
                bail!("{reason}");
            }
            if is_so(&totals) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "not after {PATIENCE:?}: {what}; {} connected",
                totals.connected
            );
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// The stated maximum errors of the times of all nodes at a time, milliseconds.
fn stated_errors(trace: &Path, names: &[String], time: i64) -> Result<Vec<f64>> {
    let corrections = Corrections::read(&Reader::open(trace)?)?;
    let errors: Vec<_> = names.iter().filter_map(|name| corrections.error(name, time)).collect();
    ensure!(errors.len() == names.len(), "the clocks of {} nodes are known", errors.len());
    Ok(errors.iter().map(|error| error.uncertainty as f64 / 1e6).collect())
}

/// Number of events of a trace that are marked late.
fn late(trace: &Path) -> Result<usize> {
    let mut late = 0;
    for batch in Reader::open(trace)?.events() {
        let batch = batch?;
        let values = schema::column::<Int32Type>(&batch, "flags").context("no column `flags`")?;
        late += values.iter().flatten().filter(|value| value & i32::from(flag::LATE) != 0).count();
    }
    Ok(late)
}

fn certificates(pki: &Path, names: &[String]) -> Result<()> {
    let miot = crate::daemons::built("miot")?;
    let issue = |words: &[&str], names: &[String]| {
        said(Command::new(&miot).arg("pki").arg(words[0]).arg(pki).args(&words[1..]).args(names)).map(drop)
    };
    issue(&["init"], &[])?;
    issue(&["server", "--name", "127.0.0.1"], &[])?;
    issue(&["node"], names)
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// A simulated log-client.
struct Node {
    name: String,
    address: String,
    tls: TlsClient,
    shared: Shared,
    random: Rng,
    key: ProcessKey,
    /// Number of the last message.
    last: u64,
    /// Messages that are not acknowledged: number, frame, events, time of the first sending.
    kept: VecDeque<(u64, Vec<u8>, u64, Instant)>,
    /// Number of events so far.
    events: u64,
    next_event: Instant,
    acknowledged: u64,
    ended: bool,
}

impl Node {
    fn new(number: u64, name: String, address: String, tls: TlsClient, shared: Shared) -> Node {
        let random = Rng::with_seed(number);
        let key = ProcessKey { boot: 7, nonce: number + 1, pid: 1000 };
        let mut node = Node {
            name,
            address,
            tls,
            shared,
            random,
            key,
            last: 0,
            kept: VecDeque::new(),
            events: 0,
            next_event: Instant::now(),
            acknowledged: 0,
            ended: false,
        };
        for define in [Node::process, Node::stream] {
            let message = define(&node, node.last + 1);
            node.keep(&message, 0);
        }
        node
    }

    fn process(&self, seq: u64) -> Message {
        let process = Process {
            key: self.key,
            ppid: 1,
            uid: 1000,
            started: now(),
            rank: None,
            exe: b"/usr/bin/simulation".to_vec(),
            cmdline: b"simulation\0--steps=1000".to_vec(),
            job: b"4711".to_vec(),
            cwd: b"/scratch/run".to_vec(),
        };
        Message::Process { seq, process }
    }

    fn stream(&self, seq: u64) -> Message {
        let key = StreamKey { process: self.key, lane: 0, incarnation: 1 };
        Message::Stream { seq, stream: Stream { number: 1, key, tid: 1000, comm: b"worker".to_vec() } }
    }

    fn keep(&mut self, message: &Message, events: u64) -> Vec<u8> {
        self.last += 1;
        let frame = message.frame();
        self.kept.push_back((self.last, frame.clone(), events, Instant::now()));
        frame
    }

    /// Connects again and again until everything is done.
    async fn live(mut self) {
        let mut next_wait = connection_waits(self.key.nonce);
        loop {
            let before = self.acknowledged;
            match self.connection().await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.shared.borrow_mut().refused = Some(error.to_string());
                    break;
                }
                Err(_) => {}
            }
            if self.acknowledged > before {
                next_wait = connection_waits(self.key.nonce);
            }
            sleep(next_wait()).await;
        }
        self.shared.borrow_mut().done += 1;
    }

    /// One connection. Returns true if everything is acknowledged and the process has ended.
    async fn connection(&mut self) -> io::Result<bool> {
        const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
        const GREETING_TIMEOUT: Duration = Duration::from_secs(30);
        let socket =
            timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.address)).await.map_err(io::Error::other)??;
        socket.set_nodelay(true)?;
        let connecting = self.tls.connect(&self.address, socket);
        let mut stream = timeout(GREETING_TIMEOUT, connecting).await.map_err(io::Error::other)??;
        let (greeting, version, role) = (GREETING, VERSION, Role::Node);
        let hello = Message::Hello { greeting, version, role, node: self.name.clone(), session: 1 };
        stream.write_all(&hello.frame()).await?;
        let mut input = Vec::new();
        let welcome =
            timeout(GREETING_TIMEOUT, next(&mut stream, &mut input)).await.map_err(io::Error::other)??;
        let through = match welcome {
            Message::Welcome { through, .. } => through,
            Message::Refused { reason, transient: false } => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            other => return Err(io::Error::other(format!("{other:?}"))),
        };
        if self.events == 0 {
            self.next_event = Instant::now() + EVENT_EVERY.mul_f64(self.random.f64());
        }
        {
            let mut totals = self.shared.borrow_mut();
            totals.connected += 1;
            totals.connects += 1;
        }
        let outcome = self.serve(stream, input, through).await;
        self.shared.borrow_mut().connected -= 1;
        outcome
    }

    async fn serve(
        &mut self,
        mut stream: TlsStream<TcpStream>,
        mut input: Vec<u8>,
        through: u64,
    ) -> io::Result<bool> {
        self.acknowledge(through);
        // The definitions in force, then everything that the log-server does not have.
        let mut out = Vec::new();
        if self.kept.front().is_none_or(|(first, ..)| *first > 1) {
            self.process(0).append_frame(&mut out);
            self.stream(0).append_frame(&mut out);
        }
        self.kept.iter().for_each(|(_, frame, ..)| out.extend_from_slice(frame));
        let (mut pace, mut questions, mut answered) = (Pace::Live, Vec::new(), 0);
        let mut sweep_at = Instant::now() + intervals(pace).sweep.mul_f64(self.random.f64());
        let mut report_at = Instant::now() + intervals(pace).report.mul_f64(self.random.f64());
        loop {
            let answers_wait = pace == Pace::Crowded && answered >= PROMPT_ANSWERS;
            if !out.is_empty() || !answers_wait && !questions.is_empty() {
                answered += questions.len();
                for (sent, received) in questions.drain(..) {
                    Message::Pong { sent, received, answered: now() }.append_frame(&mut out);
                }
                stream.write_all(&out).await?;
                out.clear();
                self.shared.borrow_mut().messages += 1;
            }
            if self.ended && self.kept.is_empty() {
                let _ = stream.shutdown().await;
                return Ok(true);
            }
            tokio::select! {
                message = next(&mut stream, &mut input) => match message? {
                    Message::Ping { sent } => questions.push((sent, now())),
                    Message::Ack { through } => self.acknowledge(through),
                    Message::Pace { pace: new } => {
                        pace = new;
                        let sweep = intervals(pace).sweep.mul_f64(self.random.f64());
                        sweep_at = sweep_at.min(Instant::now() + sweep);
                    }
                    _ => {}
                },
                () = sleep_until(sweep_at.min(report_at)) => {
                    let (at, Intervals { sweep, report, early }) = (Instant::now(), intervals(pace));
                    if at >= sweep_at {
                        self.sweep(&mut out);
                        sweep_at = at + sweep;
                    }
                    if at >= report_at || !out.is_empty() && at + early >= report_at {
                        self.report(&mut out);
                        report_at = report_at.max(at) + report;
                    }
                }
            }
        }
    }

    fn report(&self, out: &mut Vec<u8>) {
        let report = NodeReport {
            version: env!("CARGO_PKG_VERSION").into(),
            connected: true,
            events: self.events,
            processes: 1,
            lanes: 1,
            server: self.address.clone(),
            ..NodeReport::default()
        };
        if let Ok(status) = serde_json::to_vec(&report) {
            Message::Report { status }.append_frame(out);
        }
    }

    /// What a sweep finds: the events that are due, and the watermark.
    fn sweep(&mut self, out: &mut Vec<u8>) {
        let at = Instant::now();
        let mut times = Vec::new();
        while at >= self.next_event && !self.ended {
            times.push(now() - i64::try_from((at - self.next_event).as_nanos()).unwrap_or(0));
            self.next_event += EVENT_EVERY;
        }
        if !times.is_empty() {
            out.extend_from_slice(&self.batch(&times));
            self.shared.borrow_mut().events += times.len() as u64;
        }
        if self.shared.borrow().ends && !self.ended {
            self.ended = true;
            let (time, attempts) = (now(), self.events);
            let end = StreamEnd {
                stream: 1,
                attempts,
                after: attempts,
                lost_full: 0,
                lost_nested: 0,
                filtered: 0,
                time,
            };
            let seq = self.last + 1;
            out.extend_from_slice(&self.keep(&Message::StreamEnd { seq, end }, 0));
            let (seq, key, lost) = (self.last + 1, self.key, ProcessLoss::default());
            out.extend_from_slice(&self.keep(&Message::ProcessEnd { seq, key, time, lost }, 0));
            Message::AckAtOnce.append_frame(out);
        }
        Message::Heartbeat { watermark: now() }.append_frame(out);
    }

    fn batch(&mut self, times: &[i64]) -> Vec<u8> {
        let (mut columns, mut scratch, mut encoded) = (Columns::default(), Vec::new(), Vec::new());
        let (seq, after) = (self.last + 1, self.events);
        for time in times {
            let event = Event {
                op: posix::PWRITE,
                request: self.events as u32 + 1,
                enclosing: 0,
                end: 0,
                duration: 0,
                flags: 0,
                handle: 1,
                offset: self.events * 4096,
                length: 4096,
                result: 4096,
            };
            columns.push(RecordKind::Request as u8, self.events, *time, 5000, &event, None);
            self.events += 1;
        }
        columns.encode(&mut scratch, &mut encoded);
        self.keep(&Message::Batch { seq, stream: 1, after, columns: encoded }, times.len() as u64)
    }

    fn acknowledge(&mut self, through: u64) {
        let mut totals = self.shared.borrow_mut();
        while let Some((_, _, events, sent)) = self.kept.pop_front_if(|(number, ..)| *number <= through) {
            if events > 0 {
                self.acknowledged += events;
                totals.acknowledged += events;
                totals.delays.push(sent.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
}

/// Receives the next message. What was read of it stays in `input` if this is dropped.
async fn next(stream: &mut TlsStream<TcpStream>, input: &mut Vec<u8>) -> io::Result<Message> {
    const MAX: usize = 1 << 20;
    loop {
        if let Some(header) = input.first_chunk::<FRAME_HEADER>() {
            let (length, crc) = frame_header(*header, MAX).map_err(io::Error::other)?;
            if let Some(payload) = input.get(FRAME_HEADER..FRAME_HEADER + length) {
                let message = Message::from_payload(payload, crc).map_err(io::Error::other);
                input.drain(..FRAME_HEADER + length);
                return message;
            }
        }
        if stream.read_buf(input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| nodes | events/s | messages/s | log-server, of a core | driver, of a core | memory, MiB | \
         lag p50, ms | p99, ms | acknowledged p50, ms | p99, ms | connected after, s | reconnected after, s | \
         late | stated clock error p50, ms | p99, ms |\n\
         |--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in results.as_array().into_iter().flatten() {
        let percent = |key: &str| format!("{:.0} %", row[key].as_f64().unwrap_or(0.0) * 100.0);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row["nodes"],
            number(&row["events_per_s"], 0),
            number(&row["messages_per_s"], 0),
            percent("server_share"),
            percent("driver_share"),
            number(&row["memory_mib"], 0),
            number(&row["lag_p50_ms"], 0),
            number(&row["lag_p99_ms"], 0),
            number(&row["delay_p50_ms"], 0),
            number(&row["delay_p99_ms"], 0),
            number(&row["connect_s"], 1),
            number(&row["reconnect_s"], 1),
            row["late"],
            number(&row["error_p50_ms"], 2),
            number(&row["error_p99_ms"], 2),
        );
    }
    text
}
