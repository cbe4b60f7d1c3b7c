//! The session of a log-client.

use super::{End, Ending, LAST_WORD_WITHIN, Shared, input, last_words};
use crate::budget::Charge;
use crate::clock::{Correction, Estimate, Sample};
use crate::error::Refusal;
use crate::frames::Frames;
use crate::input::{Input, Open, What};
use crate::nodes::Pace;
use crate::now;
use miot_proto::batch::{Columns, ExtRow};
use miot_proto::wire::{MAX_FRAME, Message, ProcessKey, VERSION};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

/// Exchanges before the first times are corrected.
const FIRST_PINGS: u32 = 8;
/// Longest time for them.
const FIRST_PINGS_WITHIN: Duration = Duration::from_millis(500);
/// Messages held back for them, bytes.
const MAX_HELD: usize = 8 << 20;
/// Between two later exchanges.
const PING_EVERY: Duration = Duration::from_secs(10);
/// A connection on which nothing comes for so long, pings unanswered, is dead.
const DEAD_AFTER: Duration = Duration::from_secs(60);
/// A time this far ahead of the server's clock is wrong, and would wait in the merge until then.
const MAX_AHEAD: i64 = 60_000_000_000;
/// When the server stops: a node that sends nothing for so long has sent what it had.
const QUIET: Duration = Duration::from_millis(100);
/// When the server stops: a node is read for no longer than this.
const DRAIN: Duration = Duration::from_secs(2);
/// Processes and streams of one connection that have not ended.
const MAX_PROCESSES: usize = 1 << 18;
/// See [`MAX_PROCESSES`].
const MAX_STREAMS: u32 = 1 << 22;

pub(super) async fn serve<R, W>(
    mut frames: Frames<R>,
    writer: W,
    conn: u64,
    node: String,
    session: u64,
    shared: Arc<Shared>,
    ending: Ending,
) -> Result<(), End>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let pace = Arc::new(Pace::default());
    let (acks_in, acks) = watch::channel(0);
    let (out, out_queue) = mpsc::unbounded_channel();
    let (reply, opened) = oneshot::channel();
    let open = Open { node, session, pace: Arc::clone(&pace), acks: acks_in, out: out.clone(), reply };
    tell(&shared, input(&shared, conn, What::Open(open)))?;
    let mut writing = tokio::spawn(write(writer, acks, out_queue));
    let Ok(opened) = opened.await else {
        // The store will not have this node, and has said why.
        drop(out);
        let _ = timeout(LAST_WORD_WITHIN, writing).await;
        return Err(End::Closed);
    };
    let _ = out.send(Message::Welcome { version: VERSION, through: opened.through });
    let mut session = Session {
        conn,
        shared: Arc::clone(&shared),
        out,
        known: Known::default(),
        clock: Clock::new(opened.correction),
        held: Vec::new(),
        held_bytes: 0,
        warned: false,
    };
    let result = session.run(&mut frames, &pace, ending.stop, &mut writing).await;
    // What was held back is as good as received.
    let _ = session.release();
    if let Err(Some(reason)) = result.as_ref().map_err(last_words) {
        let _ = session.out.send(Message::Refused { reason });
    }
    drop(session);
    let patience = match result {
        Ok(Stop::Draining) => DEAD_AFTER,
        _ => {
            let _ = tell(&shared, input(&shared, conn, What::Closed));
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
                Some(message) => {
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
    }
    writer.shutdown().await
}

struct Session {
    conn: u64,
    shared: Arc<Shared>,
    out: mpsc::UnboundedSender<Message>,
    known: Known,
    clock: Clock,
    /// Came before the clock was known.
    held: Vec<(Message, Decoded, Charge)>,
    held_bytes: usize,
    /// A time in the future was logged.
    warned: bool,
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
        let mut draining = None;
        loop {
            let quiet = Instant::now() + if draining.is_some() { QUIET } else { DEAD_AFTER };
            let until = draining.map_or(quiet, |end: Instant| end.min(quiet));
            let shared = Arc::clone(&self.shared);
            let next = async {
                shared.queue.room().await;
                frames.next(MAX_FRAME, &shared.budget, pace).await
            };
            let (message, charge) = tokio::select! {
                biased;
                // The store has said its last word to this node.
                _ = &mut *writing => return Err(End::Closed),
                _ = stop.wait_for(|stop| *stop), if draining.is_none() => {
                    draining = Some(Instant::now() + DRAIN);
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
                    None if pace.paused.load(Ordering::Relaxed) => continue,
                    None => return Err(End::Silent(DEAD_AFTER)),
                },
            };
            self.message(message, charge)?;
        }
    }

    fn message(&mut self, message: Message, mut charge: Charge) -> Result<(), End> {
        if let Message::Pong { sent, answered } = message {
            if self.clock.answer(sent, answered) {
                if self.clock.known.is_none() && self.clock.estimate.samples() < FIRST_PINGS {
                    self.ping();
                } else {
                    self.clock_known()?;
                }
            }
            return Ok(());
        }
        self.known.check(&message)?;
        let rows = match &message {
            Message::Batch { columns, .. } => Some(Columns::decode(columns).map_err(Refusal::Batch)?),
            _ => None,
        };
        if let Some(rows) = &rows {
            charge.set(weight(rows));
        }
        match self.clock.known {
            Some(correction) => self.forward(message, rows, charge, correction.offset),
            None => {
                self.held_bytes += rows.as_ref().map_or(256, weight);
                self.held.push((message, rows, charge));
                if self.held_bytes > MAX_HELD { self.clock_known() } else { Ok(()) }
            }
        }
    }

    /// Time for a question, or time to go on without an answer.
    fn tick(&mut self) -> Result<(), End> {
        if self.clock.known.is_none() {
            return self.clock_known();
        }
        self.ping();
        Ok(())
    }

    fn ping(&mut self) {
        let sent = now();
        self.clock.asked = Some((sent, Instant::now()));
        self.clock.due = self.clock.next_due();
        let _ = self.out.send(Message::Ping { sent });
    }

    /// The first exchanges are over: from here on times are corrected.
    fn clock_known(&mut self) -> Result<(), End> {
        self.clock.due = Instant::now() + PING_EVERY;
        if self.clock.known.is_none() {
            let correction = self.clock.estimate.correction(self.clock.before);
            self.clock.known = Some(correction);
            tell(&self.shared, input(&self.shared, self.conn, What::Clock(correction)))?;
            return self.release();
        }
        Ok(())
    }

    /// Passes on what was held back.
    fn release(&mut self) -> Result<(), End> {
        let offset = self.clock.known.or(self.clock.before).unwrap_or_default().offset;
        self.held_bytes = 0;
        for (message, rows, charge) in std::mem::take(&mut self.held) {
            self.forward(message, rows, charge, offset)?;
        }
        Ok(())
    }

    fn forward(&mut self, message: Message, rows: Decoded, charge: Charge, offset: i64) -> Result<(), End> {
        let latest = now().saturating_add(MAX_AHEAD);
        let at = |time: i64| time.saturating_add(offset).min(latest);
        let what = match message {
            Message::Process { seq, mut process } => {
                process.started = at(process.started);
                What::Process(seq, process)
            }
            Message::Stream { seq, stream } => What::Stream(seq, stream),
            Message::Batch { seq, stream, .. } => {
                let mut rows = rows.unwrap_or_default();
                if offset != 0 {
                    rows.time.iter_mut().for_each(|time| *time = time.saturating_add(offset));
                }
                if rows.time.iter().any(|time| *time > latest) {
                    rows.time.iter_mut().for_each(|time| *time = (*time).min(latest));
                    self.warn_of_future();
                }
                What::Batch(seq, stream, rows)
            }
            Message::StreamEnd { seq, mut end } => {
                end.time = at(end.time);
                What::StreamEnd(seq, end)
            }
            Message::ProcessEnd { seq, key, time, lost } => What::ProcessEnd(seq, key, at(time), lost),
            Message::Heartbeat { watermark } => What::Heartbeat(at(watermark)),
            Message::Bye => What::Bye,
            _ => return Ok(()),
        };
        let queued = match &what {
            What::Batch(_, _, rows) => self.shared.queue.charge(weight(rows)),
            _ => Charge::none(&self.shared.queue),
        };
        tell(&self.shared, Input { conn: self.conn, charge, queued, what })
    }

    fn warn_of_future(&mut self) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!("events lie more than a minute in the future: their times are cut to that");
        }
    }
}

/// The clock of a node, while it is connected.
struct Clock {
    estimate: Estimate,
    before: Option<Correction>,
    /// What is applied.
    known: Option<Correction>,
    /// The question that is out: our time, and the moment.
    asked: Option<(i64, Instant)>,
    opened: Instant,
    /// When something is to be done about it.
    due: Instant,
}

impl Clock {
    fn new(before: Option<Correction>) -> Clock {
        let opened = Instant::now();
        Clock { estimate: Estimate::default(), before, known: None, asked: None, opened, due: opened }
    }

    fn next_due(&self) -> Instant {
        match self.known {
            None => self.opened + FIRST_PINGS_WITHIN,
            Some(_) => Instant::now() + PING_EVERY,
        }
    }

    /// Takes an answer; false if it answers nothing that was asked.
    fn answer(&mut self, sent: i64, answered: i64) -> bool {
        let Some((_, asked)) = self.asked.take_if(|(asked, _)| *asked == sent) else { return false };
        let round_trip = i64::try_from(asked.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.estimate.add(Sample::new(sent, answered, round_trip));
        true
    }
}

/// What was defined on this connection: the rules of the protocol that need no more than this.
#[derive(Debug, Default)]
struct Known {
    processes: HashSet<ProcessKey>,
    streams: u32,
}

impl Known {
    fn check(&mut self, message: &Message) -> Result<(), Refusal> {
        let known = |stream: u32| stream < self.streams;
        let rule = match message {
            Message::Process { process, .. } => {
                self.processes.insert(process.key);
                (self.processes.len() <= MAX_PROCESSES, "more processes than one connection may have")
            }
            Message::Stream { stream, .. } => {
                if !self.processes.contains(&stream.key.process) {
                    return Err(Refusal::Rule("a stream before its process"));
                }
                if stream.number == self.streams && self.streams < MAX_STREAMS {
                    self.streams += 1;
                }
                (stream.number < self.streams, "the numbers of streams must be dense, and at most 4194304")
            }
            Message::Batch { stream, .. } => (known(*stream), "a batch before its stream"),
            Message::StreamEnd { end, .. } => (known(end.stream), "the end of a stream before the stream"),
            Message::ProcessEnd { key, .. } => {
                self.processes.remove(key);
                (true, "")
            }
            Message::Heartbeat { .. } | Message::Bye => (true, ""),
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
