//! The session of a log-client.
//!
//! | module | role |
//! |---|---|
//! | `handshake` | introduction to the store, the task that writes, the end of the session |
//! | `convert` | from a message to an input of the store, in the server's time |
//! | `clock` | exchanges that measure the node's clock |
//! | `limits` | limits and rules of the protocol |

mod clock;
mod convert;
mod handshake;
mod limits;

pub(crate) use convert::{Converted, input_of};
pub(super) use handshake::{Introduction, serve};
pub(crate) use limits::{DEAD_AFTER, OpenDefinitions, memory_size};

use super::SessionEnd;
use crate::clock::ClockEffort;
use crate::error::Refusal;
use crate::ids::ConnId;
use crate::monitor::Traffic;
use crate::net::frames::Frames;
use crate::net::limits::NodePermit;
use crate::now;
use crate::shared::Shared;
use crate::store::budget::Charge;
use crate::store::input::{Input, InputKind, NodeInput};
use crate::store::watermarks::FlowControl;
use clock::ClockSync;
use handshake::WriterTask;
use limits::{BASE_SIZE, DRAIN, MAX_AHEAD_NS, MAX_HELD, QUIET};
use miot_proto::batch::{BatchDecoder, Columns};
use miot_proto::control::MAX_EXCEPTIONS;
use miot_proto::status::{MAX_IN_FLIGHT, MAX_REPORT, NodeReport};
use miot_proto::wire::{CROWDED_SINCE_MINOR, MAX_FRAME, Message, Pace, SetMember};
use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::AsyncRead;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep, sleep_until};

/// Regular end of reading.
enum ReadEnd {
    /// The node closed the connection.
    Closed,
    /// The server stops.
    Stopping,
}

/// Waits for a change of the pace; forever if there is none.
async fn next_pace(mut pace: Option<watch::Receiver<Pace>>) -> (Pace, Option<watch::Receiver<Pace>>) {
    if let Some(receiver) = &mut pace
        && receiver.changed().await.is_ok()
    {
        let new = *receiver.borrow_and_update();
        return (new, pace);
    }
    std::future::pending().await
}

/// Sets a timer to this time, unless it ends earlier: its owner checks the time then, and sets it
/// again. Times move with each message, and each move would touch the timers of other sessions.
fn set_at_latest(timer: Pin<&mut Sleep>, time: Instant) {
    if time < timer.deadline() || timer.is_elapsed() {
        timer.reset(time);
    }
}

struct Session {
    conn: ConnId,
    /// Name of the node.
    node: String,
    traffic: Arc<Traffic>,
    shared: Arc<Shared>,
    out: mpsc::UnboundedSender<Message>,
    definitions: OpenDefinitions,
    permit: NodePermit,
    flow: Arc<FlowControl>,
    /// Time until which the node must not be read, if its rate is limited.
    readable_at: Option<Instant>,
    clock: ClockSync,
    /// Minor version of the node.
    minor: u16,
    /// Messages that arrived before the clock was known.
    held: Vec<DecodedMessage>,
    held_bytes: usize,
    /// A time in the future was logged.
    warned: bool,
    /// Number of events with times in the future.
    future_events: u64,
}

/// A checked message, the rows of a batch, and its memory.
struct DecodedMessage {
    message: Message,
    rows: Option<Arc<Columns>>,
    charge: Charge,
}

impl Session {
    /// Reads messages until the connection or the server ends. `pace` is `None` for a node that
    /// does not understand it.
    async fn run<R: AsyncRead + Unpin>(
        &mut self,
        frames: &mut Frames<R>,
        mut stop: watch::Receiver<bool>,
        pace: Option<watch::Receiver<Pace>>,
        writing: &mut WriterTask,
    ) -> Result<ReadEnd, SessionEnd> {
        self.ping();
        let (mut draining, mut heard) = (None, Instant::now());
        // These wait as long as the session: a new one for each message would cost as much as the
        // message.
        let mut stopping = pin!(async move {
            let _ = stop.wait_for(|stop| *stop).await;
        });
        let mut pace_change = pin!(next_pace(pace));
        let mut clock_timer = pin!(sleep_until(self.clock.due));
        let mut quiet_timer = pin!(sleep_until(heard + DEAD_AFTER));
        loop {
            // Only whole messages of the node count, not questions of the server.
            let quiet = heard + if draining.is_some() { QUIET } else { DEAD_AFTER };
            let until = draining.map_or(quiet, |end: Instant| end.min(quiet));
            set_at_latest(clock_timer.as_mut(), self.clock.due);
            set_at_latest(quiet_timer.as_mut(), until);
            let (shared, memory) = (Arc::clone(&self.shared), Arc::clone(self.permit.memory()));
            let (flow, readable_at) = (Arc::clone(&self.flow), self.readable_at);
            let next = async {
                if let Some(at) = readable_at {
                    sleep_until(at).await;
                }
                shared.queue.below_limit().await;
                frames.next(MAX_FRAME, &memory, &flow).await
            };
            let (message, charge) = tokio::select! {
                biased;
                // The store has sent its final message to this node.
                _ = &mut *writing => return Err(SessionEnd::Closed),
                () = &mut stopping, if draining.is_none() => {
                    heard = Instant::now();
                    draining = Some(heard + DRAIN);
                    continue;
                }
                () = &mut clock_timer => {
                    if Instant::now() >= self.clock.due {
                        self.clock_due()?;
                    }
                    continue;
                }
                (new, receiver) = &mut pace_change => {
                    pace_change.set(next_pace(receiver));
                    self.pace_changed(new)?;
                    continue;
                }
                message = next => match message? {
                    Some(message) => message,
                    None => return Ok(ReadEnd::Closed),
                },
                () = &mut quiet_timer => match draining {
                    _ if Instant::now() < until => continue,
                    Some(_) => return Ok(ReadEnd::Stopping),
                    // A node that is not read is not silent.
                    None if self.is_waiting() => {
                        heard = Instant::now();
                        continue;
                    }
                    None => return Err(SessionEnd::Silent(DEAD_AFTER)),
                },
            };
            heard = Instant::now();
            self.readable_at = self.permit.sent(frames.last_size());
            self.traffic.heard(frames.last_size());
            self.message(message, charge)?;
        }
    }

    /// Tells the node that the pace has changed.
    fn pace_changed(&mut self, pace: Pace) -> Result<(), SessionEnd> {
        let understood = pace != Pace::Crowded || self.minor >= CROWDED_SINCE_MINOR;
        let _ = self.out.send(Message::Pace { pace: if understood { pace } else { Pace::Unfollowed } });
        self.set_clock_effort(match pace {
            Pace::Live | Pace::Unfollowed => ClockEffort::Full,
            Pace::Idle => ClockEffort::Relaxed,
            Pace::Crowded => ClockEffort::Low,
        })
    }

    /// True while the session does not read, for lack of memory or because of a rate limit.
    fn is_waiting(&self) -> bool {
        self.flow.is_waiting() || self.readable_at.is_some_and(|at| at > Instant::now())
    }

    fn send_to_store(&self, input: Input) -> Result<(), SessionEnd> {
        self.flow.sent.fetch_add(1, Ordering::AcqRel);
        self.shared.store.send(input).map_err(|_| SessionEnd::Closed)
    }

    /// Handles a message, or checks and forwards it.
    fn message(&mut self, mut message: Message, mut charge: Charge) -> Result<(), SessionEnd> {
        match message {
            Message::Pong { sent, received, answered } => return self.pong(sent, (received, answered)),
            Message::Report { status } => return self.report(&status),
            Message::Members { others } => return self.check_members(&others),
            Message::Outcome { id, outcome } => {
                if outcome.len() > MAX_REPORT {
                    return Err(Refusal::Rule("an outcome of more than 64 KiB").into());
                }
                self.shared.steering.outcome(&self.node, self.conn, id, &outcome);
                return Ok(());
            }
            _ => {}
        }
        self.definitions.check(&message)?;
        let rows = match &mut message {
            Message::Batch { columns, .. } => Some(self.decode(&std::mem::take(columns))?),
            _ => None,
        };
        match (&message, &rows) {
            (_, Some(rows)) => {
                charge.set(memory_size(rows));
                self.traffic.events(rows.len());
                self.shared.pace.note_batch();
            }
            (Message::GivenUp { ranges, .. }, _) => charge.set(BASE_SIZE + size_of_val(ranges.as_slice())),
            (Message::Devices { sample, .. }, _) => {
                let names = sample.devices.iter().map(|device| device.name.len() + device.mount.len());
                let names = names.sum::<usize>();
                charge.set(BASE_SIZE + size_of_val(sample.devices.as_slice()) + names);
            }
            _ => {}
        }
        let message = DecodedMessage { message, rows, charge };
        if self.clock.known {
            return self.forward(message);
        }
        self.held_bytes += message.charge.bytes();
        self.held.push(message);
        if self.held_bytes > MAX_HELD { self.clock_known() } else { Ok(()) }
    }

    fn decode(&self, batch: &[u8]) -> Result<Arc<Columns>, Refusal> {
        thread_local! {
            static DECODER: RefCell<BatchDecoder> = RefCell::default();
        }
        let mut rows = self.shared.batches.take();
        let decoded = DECODER.with_borrow_mut(|decoder| decoder.decode(batch, Arc::make_mut(&mut rows)));
        decoded.map(|()| rows).map_err(Refusal::Batch)
    }

    /// Refuses the node if its set has two log-servers of one partition, or of different clusters:
    /// ids of their traces would not be unique.
    fn check_members(&self, others: &[SetMember]) -> Result<(), SessionEnd> {
        let own = self.shared.config.identity();
        match others.iter().find_map(|other| Some((other, other.identity.as_ref()?.conflict_with(&own)?))) {
            None => Ok(()),
            Some((other, conflict)) => Err(Refusal::Set { address: other.address.clone(), conflict }.into()),
        }
    }

    /// Stores a status report of the node. An unreadable report is ignored: it is only displayed.
    fn report(&mut self, status: &[u8]) -> Result<(), SessionEnd> {
        if status.len() > MAX_REPORT {
            return Err(Refusal::Rule("a report of more than 64 KiB").into());
        }
        match serde_json::from_slice::<NodeReport>(status) {
            Ok(mut report) => {
                // Nearly empty elements take much more memory than bytes of JSON.
                report.oldest.truncate(MAX_IN_FLIGHT);
                report.exceptions.truncate(MAX_EXCEPTIONS);
                self.shared.monitor.node_reported(&self.node, report);
            }
            Err(error) => tracing::debug!(node = self.node, %error, "cannot parse a status report"),
        }
        Ok(())
    }

    /// Forwards the messages that were held back.
    fn release(&mut self) -> Result<(), SessionEnd> {
        self.held_bytes = 0;
        for message in std::mem::take(&mut self.held) {
            self.forward(message)?;
        }
        Ok(())
    }

    /// Converts the times of a message and sends it to the store.
    fn forward(&mut self, message: DecodedMessage) -> Result<(), SessionEnd> {
        let DecodedMessage { message, rows, charge } = message;
        let converted = input_of(message, rows, &mut self.clock.node, now());
        let Some(Converted { input, pieces, future_events }) = converted else { return Ok(()) };
        self.correct_with(pieces)?;
        if future_events > 0 {
            self.count_future_events(future_events);
        }
        let queued = match &input {
            NodeInput::Batch { columns, .. } => self.shared.queue.charge(memory_size(columns)),
            _ => Charge::none(&self.shared.queue),
        };
        self.send_to_store(Input { conn: self.conn, charge, queued, kind: InputKind::Node(input) })
    }

    /// Counts events with impossible times. Their times were cut and they were marked, because
    /// their order is meaningless.
    fn count_future_events(&mut self, events: usize) {
        self.future_events += events as u64;
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                "events are more than {} s in the future: their times are cut to that, and they are marked late",
                MAX_AHEAD_NS / 1_000_000_000
            );
        }
    }
}
