//! Connections of a log-client.

use crate::error::Error;
use crate::link::Link;
use crate::message::{HEADER, Header, Kind};
use crate::settings::{Settings, token};
use crate::stream;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::publish::PublishAck;
use async_nats::{Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

/// Largest number of bytes in a message: the size at which the log-client writes.
pub(crate) const MAX_BYTES: usize = 256 << 10;
/// Space of a message for what NATS adds to it: subjects and headers count.
const OVERHEAD: usize = 512;
/// Messages that JetStream has not acknowledged, at most.
const MAX_IN_FLIGHT: usize = 16;
/// Time between two knocks while no log-server answers.
const KNOCK_EVERY: Duration = Duration::from_secs(2);
/// Time in which a new log-server must answer a connection that began without one.
const NEW_SERVER_WITHIN: Duration = Duration::from_secs(10);

type Stored = Pin<Box<dyn Future<Output = Result<PublishAck, PublishError>> + Send>>;

/// A connection through the broker to a log-server, as bytes. The broker need not have a log-server
/// yet.
#[derive(Debug)]
pub struct Connection {
    /// Bytes in both directions. The end of reading: see [`Progress::reason`].
    pub stream: DuplexStream,
    /// Way past what waits in the broker.
    pub overtaking: Overtaking,
    /// How far the connection has come.
    pub progress: Progress,
}

/// Sends frames that overtake what waits in the broker, and that may be lost.
#[derive(Clone, Debug)]
pub struct Overtaking {
    link: Link,
    subject: String,
    connection: u64,
}

impl Overtaking {
    /// Sends whole frames.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub async fn send(&self, frames: &[u8]) -> Result<(), Error> {
        let header = Header { connection: self.connection, index: 0, read: 0, kind: Kind::Data };
        let sent = self.link.client.publish(self.subject.clone(), header.message(frames)).await;
        sent.map_err(|error| self.link.request_failed("send a message", &error))
    }
}

/// How far a connection has come.
#[derive(Clone, Debug)]
pub struct Progress {
    reason: Arc<Mutex<Option<String>>>,
    state: watch::Receiver<State>,
}

/// Counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Bytes sent to the broker.
    pub sent: u64,
    /// Bytes of them that the broker has stored.
    pub stored: u64,
    /// Bytes of them that the log-server has read.
    pub read: u64,
    /// The log-server has answered.
    pub answered: bool,
    /// The log-client has ended writing, and the broker has stored everything.
    pub finished: bool,
}

impl Progress {
    /// Reason why the connection ended, if it has ended and not by the log-client itself.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counters.
    #[must_use]
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Waits until `holds` is true of the counters. Returns false if the connection ended before.
    pub async fn until(&self, holds: impl Fn(State) -> bool) -> bool {
        self.state.clone().wait_for(|state| holds(*state)).await.is_ok()
    }
}

/// Connects to the broker, creates the stream if it is missing, and opens a connection for `node`.
///
/// # Errors
/// [`Error`].
pub async fn connect(settings: &Settings, node: &str) -> Result<Connection, Error> {
    let up = settings.up(node)?;
    let link = Link::connect(settings, format!("MIOT log-client {node}"), Some(node)).await?;
    stream::open(&link).await?;
    let subscribe = |subject: String| {
        let link = &link;
        async move {
            let subscribed = link.client.subscribe(subject.clone()).await;
            subscribed.map_err(|error| link.request_failed(&format!("subscribe to {subject}"), &error))
        }
    };
    let token = token(node);
    let down = subscribe(settings.subject("down", &token)).await?;
    let servers = subscribe(settings.announcement()).await?;
    let flushed = link.client.flush().await;
    flushed.map_err(|error| link.request_failed("subscribe", &error))?;

    let (stream, near) = duplex(2 * MAX_BYTES);
    let (from_daemon, to_daemon) = split(near);
    let (state, progress) = watch::channel(State::default());
    let reason = Arc::new(Mutex::new(None));
    let progress = Progress { reason: Arc::clone(&reason), state: progress };
    let connection = fastrand::u64(..);
    let overtaking = Overtaking { link: link.clone(), subject: settings.subject("now", &token), connection };
    let pump = Pump { link, up, knock: settings.subject("knock", &token), connection, state };
    tokio::spawn(async move {
        let mut to_daemon = to_daemon;
        match pump.run(from_daemon, &mut to_daemon, down, servers).await {
            Ok(()) => {
                pump.state.send_modify(|state| state.finished = true);
                // Before, the log-client would read an end that is none.
                pump.state.closed().await;
            }
            Err(error) => *reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string()),
        }
    });
    Ok(Connection { stream, overtaking, progress })
}

struct Pump {
    link: Link,
    up: String,
    knock: String,
    connection: u64,
    state: watch::Sender<State>,
}

impl Pump {
    /// Runs until the log-client has ended writing and all is stored, or until an error.
    async fn run(
        &self,
        from_daemon: ReadHalf<DuplexStream>,
        to_daemon: &mut WriteHalf<DuplexStream>,
        down: Subscriber,
        servers: Subscriber,
    ) -> Result<(), Error> {
        tokio::select! {
            biased;
            error = self.link.broken() => Err(error),
            ended = self.down(to_daemon, down, servers) => ended,
            sent = self.up(from_daemon) => sent,
        }
    }

    async fn up(&self, mut from_daemon: ReadHalf<DuplexStream>) -> Result<(), Error> {
        let limit = MAX_BYTES.min(self.link.max_payload().saturating_sub(HEADER + OVERHEAD)).max(1);
        let (mut buffer, mut index) = (vec![0; limit], 0);
        let mut in_flight: VecDeque<(usize, Stored)> = VecDeque::new();
        let mut state = self.state.subscribe();
        loop {
            let has_space = {
                let state = state.borrow_and_update();
                state.sent < state.read + self.link.settings.window
            };
            let is_free = has_space && in_flight.len() < MAX_IN_FLIGHT;
            tokio::select! {
                biased;
                stored = first(&mut in_flight) => self.stored(stored)?,
                length = from_daemon.read(&mut buffer), if is_free => {
                    let length = length.unwrap_or(0);
                    let kind = if length == 0 { Kind::End } else { Kind::Data };
                    let header = Header { connection: self.connection, index, read: 0, kind };
                    let sent = self.publish(header.message(&buffer[..length])).await?;
                    in_flight.push_back((length, sent));
                    self.state.send_modify(|state| state.sent += length as u64);
                    if index == 0 {
                        self.knock().await?;
                    }
                    index += 1;
                    if length == 0 {
                        break;
                    }
                }
                _ = state.changed(), if !has_space => {}
            }
        }
        while !in_flight.is_empty() {
            let stored = first(&mut in_flight).await;
            self.stored(stored)?;
        }
        Ok(())
    }

    async fn publish(&self, message: Bytes) -> Result<Stored, Error> {
        let sent = self.link.jetstream.publish(self.up.clone(), message).await;
        Ok(Box::pin(sent.map_err(|error| self.not_stored(&error))?.into_future()))
    }

    /// Records that a message is stored, or returns why it is not.
    fn stored(&self, (length, stored): (usize, Result<PublishAck, PublishError>)) -> Result<(), Error> {
        stored.map_err(|error| self.not_stored(&error))?;
        self.state.send_modify(|state| state.stored += length as u64);
        Ok(())
    }

    fn not_stored(&self, error: &PublishError) -> Error {
        let reason = match error.kind() {
            PublishErrorKind::StreamNotFound => {
                format!(
                    "the stream `{}` is gone, as after a restart without its store",
                    self.link.settings.stream
                )
            }
            _ => stream::with_source(error),
        };
        self.link.request_failed("store a message", &reason)
    }

    async fn knock(&self) -> Result<(), Error> {
        let sent = self.link.client.publish(self.knock.clone(), Bytes::new()).await;
        sent.map_err(|error| self.link.request_failed("send a message", &error))
    }

    /// Passes on the bytes of the log-server.
    async fn down(
        &self,
        to_daemon: &mut WriteHalf<DuplexStream>,
        mut down: Subscriber,
        mut servers: Subscriber,
    ) -> Result<(), Error> {
        let (mut next, mut answer_by): (u64, Option<Instant>) = (0, None);
        let mut knocks = interval(KNOCK_EVERY);
        knocks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = || Error::Broken("the subscription ended".into());
        loop {
            let message = tokio::select! {
                message = down.next() => message.ok_or_else(ended)?,
                server = servers.next() => {
                    server.ok_or_else(ended)?;
                    if next > 0 {
                        return Err(Error::Ended("the log-server was restarted".into()));
                    }
                    self.knock().await?;
                    answer_by.get_or_insert(Instant::now() + NEW_SERVER_WITHIN);
                    continue;
                }
                _ = knocks.tick(), if next == 0 => {
                    self.knock().await?;
                    continue;
                }
                () = sleep_until(answer_by.unwrap_or_else(Instant::now)), if answer_by.is_some() => {
                    return Err(Error::Ended("a new log-server has not answered".into()));
                }
            };
            let Some((header, bytes)) = self.own(&message) else { continue };
            if header.kind == Kind::Reset {
                return Err(Error::Ended(String::from_utf8_lossy(bytes).into_owned()));
            }
            if header.index != next {
                return Err(Error::Ended("a message of the log-server was lost in the broker".into()));
            }
            (next, answer_by) = (next + 1, None);
            self.state.send_modify(|state| (state.read, state.answered) = (header.read, true));
            // A log-client that no longer reads ends the connection itself.
            let _ = to_daemon.write_all(bytes).await;
            if header.kind == Kind::End {
                let _ = to_daemon.shutdown().await;
            }
        }
    }

    /// A message of this connection. Others are of earlier connections of this node.
    fn own<'m>(&self, message: &'m Message) -> Option<(Header, &'m [u8])> {
        Header::split(&message.payload).filter(|(header, _)| header.connection == self.connection)
    }
}

/// Waits for the oldest message in flight; forever if there is none.
async fn first(in_flight: &mut VecDeque<(usize, Stored)>) -> (usize, Result<PublishAck, PublishError>) {
    match in_flight.front_mut() {
        Some((length, stored)) => {
            let first = (*length, stored.await);
            in_flight.pop_front();
            first
        }
        None => std::future::pending().await,
    }
}
