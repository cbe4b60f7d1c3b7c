//! The session of a log-client.

use super::{End, Ending, LAST_WORD_WITHIN, last_words};
use crate::budget::Charge;
use crate::clock::{NodeClock, Sample};
use crate::error::Refusal;
use crate::frames::Frames;
use crate::input::{Input, Open, What};
use crate::limits::NodePlace;
use crate::merge::GivenUp;
use crate::monitor::Traffic;
use crate::nodes::Pace;
use crate::now;
use crate::shared::Shared;
use miot_proto::batch::{Columns, ExtRow};
use miot_proto::control::MOST_EXCEPTIONS;
use miot_proto::status::{MAX_REPORT, MOST_IN_FLIGHT, NodeReport};
use miot_proto::wire::{MAX_DEVICE_NAME, MAX_FRAME, Message, ProcessKey, VERSION, Version};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

/// Exchanges before the first times are corrected.
const FIRST_PINGS: u32 = 8;
/// Longest time for them.
const FIRST_PINGS_WITHIN: Duration = Duration::from_millis(500);
/// Longest time for the first of them, where nothing is known of the node's clock yet.
const FIRST_PING_WITHIN: Duration = Duration::from_secs(2);
/// Messages held back for them, bytes.
const MAX_HELD: usize = 8 << 20;
/// A question that has not been answered for so long is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Questions asked at once after an answer that was long on its way.
const IN_A_ROW: u32 = 3;
/// In place of the time of a question that has not been written yet.
const NOT_SENT: i64 = i64::MIN;
/// A connection on which nothing comes for so long, pings unanswered, is dead.
const DEAD_AFTER: Duration = Duration::from_secs(60);
/// A time this far ahead of the server's clock is wrong, and would wait in the merge until then.
const MAX_AHEAD: i64 = 10_000_000_000;
/// When the server stops: a node that sends nothing for so long has sent what it had.
const QUIET: Duration = Duration::from_millis(100);
/// When the server stops: a node is read for no longer than this.
const DRAIN: Duration = Duration::from_secs(2);
/// Longest name of a thread, bytes; the kernel's have 15.
const MAX_COMM: usize = 64;
/// Longest descriptions of a process, bytes; a log-client has less than a page of them.
const MAX_STRINGS: usize = 64 << 10;

/// A node that has introduced itself.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) node: String,
    pub(super) session: u64,
    pub(super) place: NodePlace,
    pub(super) address: SocketAddr,
    pub(super) version: Version,
}

pub(super) async fn serve<R, W>(
    mut frames: Frames<R>,
    writer: W,
    conn: u64,
    Caller { node, session, place, address, version }: Caller,
    shared: Arc<Shared>,
    ending: Ending,
) -> Result<(), End>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let pace = Arc::new(Pace { memory: Some(Arc::clone(place.memory())), ..Pace::default() });
    let (acks_in, acks) = watch::channel(0);
    let (out, out_queue) = mpsc::unbounded_channel();
    let (reply, opened) = oneshot::channel();
    let name = node.clone();
    let open = Open { node, session, pace: Arc::clone(&pace), acks: acks_in, out: out.clone(), reply };
    tell(&shared, shared.input(conn, What::Open(open)))?;
    let sent = Arc::new(AtomicI64::new(NOT_SENT));
    let mut writing = tokio::spawn(write(writer, acks, out_queue, Arc::clone(&sent)));
    let Ok(opened) = opened.await else {
        // The store will not have this node, and has said why.
        drop(out);
        let _ = timeout(LAST_WORD_WITHIN, writing).await;
        return Err(End::Closed);
    };
    let _ = out.send(Message::Welcome { version: VERSION, through: opened.through });
    let traffic = shared.monitor.connected(&name, conn, address);
    shared.steering.connected(&name, conn, version, out.clone());
    let mut session = Session {
        conn,
        node: name,
        traffic,
        shared: Arc::clone(&shared),
        out,
        known: Known::new(shared.config.node_streams),
        place,
        pace: Arc::clone(&pace),
        readable_at: None,
        clock: Clock::new(NodeClock::new(&opened.corrections, opened.reached), sent),
        held: Vec::new(),
        held_bytes: 0,
        warned: false,
        cut: 0,
    };
    let result = session.run(&mut frames, &pace, ending.stop, &mut writing).await;
    shared.monitor.disconnected(&session.node, conn);
    shared.steering.disconnected(&session.node, conn);
    // What was held back is as good as received.
    if !session.clock.known {
        let _ = session.clock_known();
    }
    if let Err(Some(words)) = result.as_ref().map_err(last_words) {
        let _ = session.out.send(words);
    }
    if session.cut > 0 {
        tracing::warn!(node = session.node, events = session.cut, "had times in the future");
    }
    drop(session);
    let patience = match result {
        Ok(Stop::Draining) => DEAD_AFTER,
        _ => {
            let _ = tell(&shared, shared.input(conn, What::Closed));
            LAST_WORD_WITHIN
        }
    };
    drop(ending.reading);
    // It ends when the store has nothing more to acknowledge: when the server stops, once all is durable.
    if !matches!(result, Err(End::Closed)) && timeout(patience, &mut writing).await.is_err() {
        writing.abort();
    }
    result.map(|_| ())
}

/// How reading ended well.
enum Stop {
    /// The node closed the connection.
    Closed,
    /// The server stops.
    Draining,
}

type Writing = tokio::task::JoinHandle<std::io::Result<()>>;

fn tell(shared: &Shared, input: Input) -> Result<(), End> {
    shared.store.send(input).map_err(|_| End::Closed)
}

/// Sends acknowledgements and other messages, until neither the store nor the session has more to say.
async fn write<W>(
    mut writer: W,
    mut acks: watch::Receiver<u64>,
    mut queue: mpsc::UnboundedReceiver<Message>,
    sent: Arc<AtomicI64>,
) -> std::io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let (mut more_messages, mut more_acks, mut frame) = (true, true, Vec::new());
    while more_messages || more_acks {
        frame.clear();
        tokio::select! {
            biased;
            message = queue.recv(), if more_messages => match message {
                Some(mut message) => {
                    if let Message::Ping { sent: at } = &mut message {
                        *at = now();
                        sent.store(*at, Ordering::Relaxed);
                    }
                    message.put_frame(&mut frame);
                    if matches!(message, Message::Refused { .. }) {
                        (more_messages, more_acks) = (false, false);
                    }
                }
                None => more_messages = false,
            },
            changed = acks.changed(), if more_acks => match changed {
                Ok(()) => Message::Ack { through: *acks.borrow_and_update() }.put_frame(&mut frame),
                Err(_) => more_acks = false,
            },
        }
        writer.write_all(&frame).await?;
        writer.flush().await?;
    }
    writer.shutdown().await
}

struct Session {
    conn: u64,
    /// Its name.
    node: String,
    traffic: Arc<Traffic>,
    shared: Arc<Shared>,
    out: mpsc::UnboundedSender<Message>,
    known: Known,
    place: NodePlace,
    pace: Arc<Pace>,
    /// When the node may be read again, if its rate is limited.
    readable_at: Option<Instant>,
    clock: Clock,
    /// Came before the clock was known.
    held: Vec<(Message, Decoded, Charge)>,
    held_bytes: usize,
    /// A time in the future was logged.
    warned: bool,
    /// Events whose times were in the future.
    cut: u64,
}

/// The rows of a batch.
type Decoded = Option<Columns>;

impl Session {
    async fn run<R: AsyncRead + Unpin>(
        &mut self,
        frames: &mut Frames<R>,
        pace: &Pace,
        mut stop: watch::Receiver<bool>,
        writing: &mut Writing,
    ) -> Result<Stop, End> {
        self.ping();
        let (mut draining, mut heard) = (None, Instant::now());
        loop {
            // Questions of this side do not count: a message must have come, and whole.
            let quiet = heard + if draining.is_some() { QUIET } else { DEAD_AFTER };
            let until = draining.map_or(quiet, |end: Instant| end.min(quiet));
            let (shared, memory) = (Arc::clone(&self.shared), Arc::clone(self.place.memory()));
            let readable_at = self.readable_at;
            let next = async {
                if let Some(at) = readable_at {
                    tokio::time::sleep_until(at).await;
                }
                shared.queue.room().await;
                frames.next(MAX_FRAME, &memory, pace).await
            };
            let (message, charge) = tokio::select! {
                biased;
                // The store has said its last word to this node.
                _ = &mut *writing => return Err(End::Closed),
                _ = stop.wait_for(|stop| *stop), if draining.is_none() => {
                    heard = Instant::now();
                    draining = Some(heard + DRAIN);
                    continue;
                }
                () = tokio::time::sleep_until(self.clock.due) => {
                    self.tick()?;
                    continue;
                }
                message = next => match message? {
                    Some(message) => message,
                    None => return Ok(Stop::Closed),
                },
                () = tokio::time::sleep_until(until) => match draining {
                    Some(_) => return Ok(Stop::Draining),
                    // Not being read is not being silent.
                    None if pace.is_waiting() || self.readable_at.is_some_and(|at| at > Instant::now()) => {
                        heard = Instant::now();
                        continue;
                    }
                    None => return Err(End::Silent(DEAD_AFTER)),
                },
            };
            heard = Instant::now();
            self.readable_at = self.place.sent(frames.last());
            self.traffic.heard(frames.last());
            self.message(message, charge)?;
        }
    }

    fn tell(&self, input: Input) -> Result<(), End> {
        self.pace.sent.fetch_add(1, Ordering::AcqRel);
        tell(&self.shared, input)
    }

    fn message(&mut self, mut message: Message, mut charge: Charge) -> Result<(), End> {
        match message {
            Message::Pong { sent, received, answered } => return self.pong(sent, (received, answered)),
            Message::Report { status } => return self.report(&status),
            Message::Outcome { id, outcome } => {
                if outcome.len() > MAX_REPORT {
                    return Err(Refusal::Rule("an outcome of more than 64 KiB").into());
                }
                self.shared.steering.outcome(&self.node, self.conn, id, &outcome);
                return Ok(());
            }
            _ => {}
        }
        self.known.check(&message)?;
        let rows = match &mut message {
            Message::Batch { columns, .. } => {
                Some(Columns::decode(&std::mem::take(columns)).map_err(Refusal::Batch)?)
            }
            _ => None,
        };
        match (&message, &rows) {
            (_, Some(rows)) => {
                charge.set(weight(rows));
                self.traffic.events(rows.len());
            }
            (Message::GivenUp { ranges, .. }, _) => charge.set(512 + size_of_val(ranges.as_slice())),
            (Message::Devices { sample, .. }, _) => {
                let names = sample.devices.iter().map(|device| device.name.len() + device.mount.len());
                charge.set(512 + size_of_val(sample.devices.as_slice()) + names.sum::<usize>());
            }
            _ => {}
        }
        if self.clock.known {
            return self.forward(message, rows, charge);
        }
        self.held_bytes += charge.bytes();
        self.held.push((message, rows, charge));
        if self.held_bytes > MAX_HELD { self.clock_known() } else { Ok(()) }
    }

    /// What the node says of itself. It is for people, and one that cannot be read is the node's own matter.
    fn report(&mut self, status: &[u8]) -> Result<(), End> {
        if status.len() > MAX_REPORT {
            return Err(Refusal::Rule("a report of more than 64 KiB").into());
        }
        match serde_json::from_slice::<NodeReport>(status) {
            Ok(mut report) => {
                // Elements of which next to nothing is said take much more memory than bytes.
                report.oldest.truncate(MOST_IN_FLIGHT);
                report.exceptions.truncate(MOST_EXCEPTIONS);
                self.shared.monitor.reported(&self.node, report);
            }
            Err(error) => tracing::debug!(node = self.node, %error, "a report that makes no sense"),
        }
        Ok(())
    }

    /// Takes an answer; ignores one that answers nothing that was asked.
    fn pong(&mut self, sent: i64, times: (i64, i64)) -> Result<(), End> {
        let back = now();
        let is_asked = sent != NOT_SENT && self.clock.sent.load(Ordering::Relaxed) == sent;
        if self.clock.asked.take_if(|_| is_asked).is_none() {
            return Ok(());
        }
        self.clock.answers += 1;
        if !self.clock.node.add(Sample::new(sent, times, back)) {
            tracing::info!(node = self.node, "the clock of this node was stepped, or its rate has changed");
        }
        if self.clock.known {
            if self.clock.in_a_row < IN_A_ROW && self.clock.node.is_worth_asking_again() {
                self.clock.in_a_row += 1;
                self.ping();
            } else {
                self.clock.in_a_row = 0;
                self.clock.due = Instant::now() + self.clock.node.pause();
            }
            self.decide(times.1)
        } else if self.clock.answers < FIRST_PINGS {
            self.ping();
            Ok(())
        } else {
            self.clock_known()
        }
    }

    /// Begins new pieces if it matters.
    fn decide(&mut self, node_time: i64) -> Result<(), End> {
        let pieces = self.clock.node.decide(node_time);
        let Some(last) = pieces.last() else { return Ok(()) };
        self.shared.monitor.clock(&self.node, last);
        let limit = self.shared.tuning.get().clock_uncertainty.as_nanos() as i64;
        let doubtful = last.uncertainty > limit;
        if doubtful != std::mem::replace(&mut self.clock.doubtful, doubtful) {
            let (node, uncertainty_us, limit_us) = (&self.node, last.uncertainty / 1000, limit / 1000);
            match doubtful {
                true if last.uncertainty == i64::MAX => {
                    tracing::warn!(
                        node,
                        "the clock of this node is not known: it has answered no question yet"
                    )
                }
                true => tracing::warn!(
                    node,
                    uncertainty_us,
                    limit_us,
                    round_trip_us = last.round_trip / 1000,
                    "the times of this node may be wrong by more than `clock_uncertainty`"
                ),
                false => tracing::info!(
                    node,
                    uncertainty_us,
                    limit_us,
                    "the clock of this node is known well enough"
                ),
            }
        }
        self.tell(self.shared.input(self.conn, What::Clock(pieces)))
    }

    /// Time for a question, or time to go on without an answer.
    fn tick(&mut self) -> Result<(), End> {
        if !self.clock.known {
            if self.clock.is_worth_waiting_for() {
                self.clock.due = Instant::now() + FIRST_PINGS_WITHIN;
                return Ok(());
            }
            return self.clock_known();
        }
        match self.clock.asked {
            // The answer is on its way, behind rows perhaps. Meanwhile less is known from moment to moment.
            Some(asked) if asked.elapsed() < ASK_AGAIN => {
                self.clock.due = Instant::now() + self.clock.node.pause();
                self.decide(self.clock.node.estimated(now()))
            }
            _ => {
                self.ping();
                Ok(())
            }
        }
    }

    fn ping(&mut self) {
        self.clock.asked = Some(Instant::now());
        self.clock.sent.store(NOT_SENT, Ordering::Relaxed);
        if self.clock.known {
            self.clock.due = Instant::now() + self.clock.node.pause();
        }
        let _ = self.out.send(Message::Ping { sent: NOT_SENT });
    }

    /// The first exchanges are over: from here on times are corrected.
    fn clock_known(&mut self) -> Result<(), End> {
        self.clock.known = true;
        self.clock.due = Instant::now() + self.clock.node.pause();
        self.decide(self.clock.node.estimated(now()))?;
        self.release()
    }

    /// Passes on what was held back.
    fn release(&mut self) -> Result<(), End> {
        self.held_bytes = 0;
        for (message, rows, charge) in std::mem::take(&mut self.held) {
            self.forward(message, rows, charge)?;
        }
        Ok(())
    }

    fn forward(&mut self, message: Message, rows: Decoded, charge: Charge) -> Result<(), End> {
        let latest = now().saturating_add(MAX_AHEAD);
        let clock = &mut self.clock.node;
        let mut at = |time: i64| clock.time(time, latest);
        let what = match message {
            Message::Process { seq, mut process } => {
                process.started = at(process.started);
                What::Process(seq, process)
            }
            Message::Stream { seq, stream } => What::Stream(seq, stream),
            Message::Batch { seq, stream, after, .. } => {
                let mut rows = rows.unwrap_or_default();
                let cut = clock.convert(&mut rows, latest);
                if cut > 0 {
                    self.cut_future(cut);
                }
                What::Batch(seq, stream, after, rows)
            }
            Message::GivenUp { seq, stream, after, ranges, time } => {
                What::GivenUp(seq, stream, GivenUp { after, ranges, time: at(time) })
            }
            Message::StreamEnd { seq, mut end } => {
                end.time = at(end.time);
                What::StreamEnd(seq, end)
            }
            Message::ProcessEnd { seq, key, time, lost } => What::ProcessEnd(seq, key, at(time), lost),
            Message::Devices { seq, mut sample } => {
                sample.time = at(sample.time);
                What::Devices(seq, sample)
            }
            Message::Heartbeat { watermark } => What::Heartbeat(at(watermark)),
            Message::Aside => What::Aside,
            Message::Bye => What::Bye,
            _ => return Ok(()),
        };
        let queued = match &what {
            What::Batch(_, _, _, rows) => self.shared.queue.charge(weight(rows)),
            _ => Charge::none(&self.shared.queue),
        };
        self.tell(Input { conn: self.conn, charge, queued, what })
    }

    /// Times that cannot be are cut, and the rows marked: their order says nothing.
    fn cut_future(&mut self, events: usize) {
        self.cut += events as u64;
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                "events lie more than {} s in the future: their times are cut to that, and they are marked late",
                MAX_AHEAD / 1_000_000_000
            );
        }
    }
}

/// The clock of a node, while it is connected, and the questions about it.
struct Clock {
    node: NodeClock,
    /// Times are converted; before, messages are held back.
    known: bool,
    /// More uncertain than it should be, and said to be.
    doubtful: bool,
    answers: u32,
    opened: Instant,
    /// When the question was put that is out.
    asked: Option<Instant>,
    /// When it was sent, by the server's clock: whoever writes it says so.
    sent: Arc<AtomicI64>,
    /// Questions that were asked at once after an answer that told little.
    in_a_row: u32,
    /// When something is to be done about it.
    due: Instant,
}

impl Clock {
    fn new(node: NodeClock, sent: Arc<AtomicI64>) -> Clock {
        let opened = Instant::now();
        Clock {
            node,
            known: false,
            doubtful: false,
            answers: 0,
            opened,
            asked: None,
            sent,
            in_a_row: 0,
            due: opened + FIRST_PINGS_WITHIN,
        }
    }

    /// Without one answer the times of a clock of which nothing is known would be taken as they are.
    fn is_worth_waiting_for(&self) -> bool {
        self.answers == 0 && self.node.claim().is_none() && self.opened.elapsed() < FIRST_PING_WITHIN
    }
}

/// What was defined on this connection and has not ended: the rules of the protocol that need no more than this.
#[derive(Debug)]
struct Known {
    processes: HashSet<ProcessKey>,
    streams: HashSet<u32>,
    /// Of each.
    limit: usize,
}

impl Known {
    fn new(limit: usize) -> Known {
        Known { processes: HashSet::new(), streams: HashSet::new(), limit }
    }

    fn check(&mut self, message: &Message) -> Result<(), Refusal> {
        let is_definition = matches!(message, Message::Process { .. } | Message::Stream { .. });
        if message.seq() == Some(0) && !is_definition {
            // Its memory is charged until its number is acknowledged.
            return Err(Refusal::Rule("only a process or stream that is told again has no number"));
        }
        let rule = match message {
            Message::Process { process, .. } => {
                let strings = [&process.exe, &process.cmdline, &process.job, &process.cwd];
                if strings.iter().map(|s| s.len()).sum::<usize>() > MAX_STRINGS {
                    return Err(Refusal::Rule("a process with more than 64 KiB of names"));
                }
                self.processes.insert(process.key);
                if self.processes.len() > self.limit {
                    return Err(Refusal::Streams("processes", self.limit));
                }
                (true, "")
            }
            Message::Stream { stream, .. } => {
                if !self.processes.contains(&stream.key.process) {
                    return Err(Refusal::Rule("a stream before its process"));
                }
                if stream.comm.len() > MAX_COMM {
                    return Err(Refusal::Rule("a thread with a name of more than 64 bytes"));
                }
                self.streams.insert(stream.number);
                if self.streams.len() > self.limit {
                    return Err(Refusal::Streams("streams", self.limit));
                }
                (true, "")
            }
            Message::Batch { stream, .. } => (self.streams.contains(stream), "a batch before its stream"),
            Message::GivenUp { stream, ranges, .. } => {
                let ascending = ranges.is_sorted_by(|a, b| a.1 < b.0);
                let sound = ascending && ranges.iter().all(|(first, last)| first <= last && *last < u64::MAX);
                if !self.streams.contains(stream) {
                    return Err(Refusal::Rule("records are given up before their stream"));
                }
                (sound, "the attempt numbers of what was given up make no sense")
            }
            Message::StreamEnd { end, .. } => {
                (self.streams.remove(&end.stream), "the end of a stream before the stream")
            }
            Message::ProcessEnd { key, .. } => {
                self.processes.remove(key);
                (true, "")
            }
            Message::Devices { sample, .. } => {
                let fits = |name: &Vec<u8>| name.len() <= MAX_DEVICE_NAME;
                let sound = sample.devices.iter().all(|device| fits(&device.name) && fits(&device.mount));
                (sound, "a device with a name or mount of more than 512 bytes")
            }
            Message::Heartbeat { .. } | Message::Aside | Message::Bye => (true, ""),
            _ => (false, "a message that only the log-server sends, or a second greeting"),
        };
        if rule.0 { Ok(()) } else { Err(Refusal::Rule(rule.1)) }
    }
}

/// Bytes a batch takes in memory.
fn weight(rows: &Columns) -> usize {
    const ROW: usize = 1 + 2 + 2 + 4 + 4 + 7 * 8;
    512 + rows.len() * ROW + rows.ext.len() * size_of::<ExtRow>() + rows.text.len()
}
