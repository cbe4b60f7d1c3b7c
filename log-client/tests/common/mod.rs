//! A log-server that keeps and checks every message; a log-client in a thread.

pub(crate) mod producer;

use miot_log_client::{Config, Error, LogClient, RunSummary};
use miot_proto::batch::Columns;
use miot_proto::control::WhenFull;
use miot_proto::wire::{
    FRAME_HEADER, MAX_FRAME, Message, Pace, Role, StreamEnd, StreamKey, VERSION, frame_header,
};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Far longer than any test needs, so that only a hang reaches it.
const WATCHDOG: Duration = Duration::from_secs(300);

/// Behavior of the server.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// Connections end after these numbers of messages; those after the last one stay.
    pub(crate) cut_after: Vec<usize>,
    /// Nothing is acknowledged on the connections that end.
    pub(crate) forgetful: bool,
    /// Nothing is acknowledged at all.
    pub(crate) silent: bool,
    /// As with thousands of nodes: the pace is [`Pace::Crowded`], and nothing is acknowledged
    /// before the log-client asks for it. Each answer is followed by the next question.
    pub(crate) crowded: bool,
    /// Every connection is refused permanently.
    pub(crate) refuse: bool,
    /// Number of connections that are refused temporarily.
    pub(crate) busy: usize,
}

/// A server on its own port.
pub(crate) struct Server {
    pub(crate) address: String,
    connections: Arc<Mutex<Vec<Vec<Message>>>>,
}

impl Server {
    pub(crate) fn start(script: Script) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&connections);
        std::thread::spawn(move || {
            // Numbers count from 1 in each session.
            let mut through = HashMap::new();
            for (index, stream) in listener.incoming().enumerate() {
                kept.lock().unwrap().push(Vec::new());
                if index < script.busy {
                    let _ = refuse(stream.unwrap(), true);
                    continue;
                }
                let cut = script.cut_after.get(index).copied();
                // After any end of a connection, the next one is accepted.
                let _ = serve(stream.unwrap(), &script, cut, &mut through, &kept);
            }
        });
        Server { address, connections }
    }

    /// All messages, by connection.
    pub(crate) fn connections(&self) -> Vec<Vec<Message>> {
        self.connections.lock().unwrap().clone()
    }

    pub(crate) fn judge(&self) -> Judge {
        Judge::of(&self.connections())
    }

    /// Waits until the messages so far satisfy a condition.
    pub(crate) fn wait_for(&self, condition: impl Fn(&Judge) -> bool) {
        until(|| condition(&self.judge()));
    }
}

/// Waits until a condition holds.
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "not after {WATCHDOG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn serve(
    mut stream: TcpStream,
    script: &Script,
    cut: Option<usize>,
    sessions: &mut HashMap<u64, u64>,
    kept: &Mutex<Vec<Vec<Message>>>,
) -> std::io::Result<()> {
    let hello = receive(&mut stream)?;
    let Message::Hello { role: Role::Node, session, .. } = hello else { panic!("{hello:?}") };
    let through = sessions.entry(session).or_default();
    if script.refuse {
        return refuse(stream, false);
    }
    stream.write_all(&Message::Welcome { version: VERSION, through: *through }.frame())?;
    if script.crowded {
        stream.write_all(&Message::Pace { pace: Pace::Crowded }.frame())?;
    }
    stream.write_all(&Message::Ping { sent: 42 }.frame())?;
    let (mut acknowledges, mut received) = (!script.silent && !script.crowded, *through);
    for count in 0.. {
        if cut.is_some_and(|cut| count >= cut) {
            return Ok(());
        }
        let message = receive(&mut stream)?;
        received = received.max(message.seq().unwrap_or(0));
        acknowledges |= script.crowded && message == Message::AckAtOnce;
        if script.crowded && matches!(message, Message::Pong { .. }) {
            stream.write_all(&Message::Ping { sent: 42 }.frame())?;
        }
        kept.lock().unwrap().last_mut().unwrap().push(message);
        if acknowledges && received > *through && !(script.forgetful && cut.is_some()) {
            *through = received;
            stream.write_all(&Message::Ack { through: *through }.frame())?;
        }
    }
    Ok(())
}

fn refuse(mut stream: TcpStream, transient: bool) -> std::io::Result<()> {
    stream.write_all(&Message::Refused { reason: "not today".into(), transient }.frame())
}

fn receive(stream: &mut TcpStream) -> std::io::Result<Message> {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header)?;
    let (length, crc) = frame_header(header, MAX_FRAME).unwrap();
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Message::from_payload(&payload, crc).unwrap())
}

/// The messages received, without repeats. Construction panics if the rules of the protocol are
/// violated.
#[derive(Default)]
pub(crate) struct Judge {
    /// Attempt numbers and times of each stream, as first received.
    pub(crate) streams: BTreeMap<StreamKey, Vec<(u64, i64)>>,
    /// Attempt numbers given up in each stream.
    pub(crate) given_up: BTreeMap<StreamKey, Vec<u64>>,
    pub(crate) ends: HashMap<StreamKey, StreamEnd>,
    pub(crate) processes_ended: usize,
    pub(crate) paths: usize,
    pub(crate) watermarks: usize,
    pub(crate) pongs: usize,
    pub(crate) said_bye: bool,
}

impl Judge {
    pub(crate) fn events(&self) -> usize {
        self.streams.values().map(Vec::len).sum()
    }

    fn of(connections: &[Vec<Message>]) -> Judge {
        let mut judge = Judge::default();
        let mut watermark = i64::MIN;
        for messages in connections {
            // Stream numbers are valid on one connection only.
            let (mut processes, mut numbers, mut last) = (Vec::new(), HashMap::new(), 0);
            let gives_up = messages.iter().any(|message| matches!(message, Message::GivenUp { .. }));
            for message in messages {
                if let Some(seq) = message.seq().filter(|seq| *seq > 0) {
                    // Numbers of messages that were given up are left out.
                    let in_order = if gives_up { seq > last } else { last == 0 || seq == last + 1 };
                    assert!(in_order, "message {seq} after {last}");
                    last = seq;
                } else if message.seq().is_some() {
                    assert_eq!(last, 0, "definitions are repeated before all else");
                }
                match message {
                    Message::Process { process, .. } => processes.push(process.key),
                    Message::Stream { stream, .. } => {
                        assert!(processes.contains(&stream.key.process), "a stream of an unknown process");
                        numbers.insert(stream.number, stream.key);
                        judge.streams.entry(stream.key).or_default();
                    }
                    Message::Batch { stream, columns, .. } => {
                        let columns = Columns::decode(columns).unwrap();
                        let events = judge.streams.get_mut(&numbers[stream]).unwrap();
                        let given_up =
                            judge.given_up.get(&numbers[stream]).and_then(|given_up| given_up.last());
                        for (attempt, time) in columns.attempt.iter().zip(&columns.time) {
                            let last = events.last().copied().unwrap_or((u64::MAX, 0));
                            let is_new = events.is_empty() || *attempt > last.0;
                            if is_new && given_up.is_none_or(|last| attempt > last) {
                                assert!(*time >= last.1, "time runs backwards");
                                assert!(
                                    *time >= watermark,
                                    "an event below a watermark: {}",
                                    watermark - time
                                );
                                let end = judge.ends.get(&numbers[stream]);
                                assert!(
                                    end.is_none_or(|end| *attempt >= end.attempts),
                                    "attempt {attempt} after {end:?}"
                                );
                                events.push((*attempt, *time));
                                judge.paths += columns
                                    .ext
                                    .iter()
                                    .filter(|e| columns.attempt[e.row as usize] == *attempt)
                                    .count();
                            }
                        }
                    }
                    Message::GivenUp { stream, ranges, .. } => {
                        // Events that already arrived, or were given up before, are not given up.
                        let given_up = judge.given_up.entry(numbers[stream]).or_default();
                        let came = judge.streams[&numbers[stream]].last().map(|event| event.0);
                        let next = came.max(given_up.last().copied()).map_or(0, |last| last + 1);
                        given_up.extend(ranges.iter().flat_map(|(first, last)| (*first).max(next)..=*last));
                    }
                    Message::SuspendWatermark
                    | Message::Devices { .. }
                    | Message::Report { .. }
                    | Message::AckAtOnce => {}
                    Message::StreamEnd { end, .. } => {
                        judge.ends.insert(numbers[&end.stream], *end);
                    }
                    Message::ProcessEnd { key, .. } => {
                        assert!(processes.contains(key), "an unknown process ends");
                        judge.processes_ended += 1;
                    }
                    Message::Heartbeat { watermark: time } => {
                        watermark = watermark.max(*time);
                        judge.watermarks += 1;
                    }
                    Message::Pong { sent, .. } => {
                        assert_eq!(*sent, 42);
                        judge.pongs += 1;
                    }
                    Message::Bye => judge.said_bye = true,
                    other => panic!("a log-client does not send {other:?}"),
                }
            }
        }
        judge
    }
}

/// A log-client in a thread of its own.
pub(crate) struct Client {
    stop: Option<oneshot::Sender<()>>,
    thread: JoinHandle<Result<RunSummary, Error>>,
}

impl Client {
    pub(crate) fn start(config: Config) -> Client {
        let client = LogClient::prepare(config).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(client.run(async { drop(stopped.await) }))
        });
        Client { stop: Some(stop), thread }
    }

    /// Waits for its end without requesting it.
    pub(crate) fn wait(self) -> Result<RunSummary, Error> {
        self.thread.join().unwrap()
    }

    pub(crate) fn stop(mut self) -> Result<RunSummary, Error> {
        drop(self.stop.take());
        self.thread.join().unwrap()
    }
}

/// Settings for a test: small lanes, so that they wrap and grow, and nothing is lost.
pub(crate) fn config(dir: &Path, server: &str) -> Config {
    Config {
        dir: dir.join("shm"),
        node: "test".into(),
        server: server.into(),
        when_full: WhenFull::Wait,
        wait: Duration::from_secs(60),
        lane_slots: 256,
        lane_slots_max: 1024,
        stop: Duration::from_secs(60),
        ..Config::default()
    }
}

/// Names of the segments in the directory.
pub(crate) fn segments(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join("shm")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".seg")).collect()
}
