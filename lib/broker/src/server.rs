//! Connections to a log-server.

use crate::error::Error;
use crate::frames::FramePosition;
use crate::link::Link;
use crate::message::{Header, Kind};
use crate::node::MAX_BYTES;
use crate::settings::{Settings, node_of, token};
use crate::state::BrokerState;
use crate::stream;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::Stream;
use async_nats::{RequestErrorKind, Subscriber};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use std::collections::HashMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Messages of a node that are requested at a time; some MiB.
const BATCH: usize = 8;
/// Time after which JetStream sends a message again that was not confirmed. A message is confirmed
/// when a session reads it, so this is longer than a session may be held up.
const ACK_WAIT: Duration = Duration::from_secs(600);
/// Bytes that were read since the last report to the node, at most.
const REPORT_BYTES: u64 = 1 << 20;
/// A node without a connection for this long is no longer read; its next connection knocks.
const IDLE: Duration = Duration::from_secs(60);
/// Interval at which the state of the stream is read.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// Messages that overtake others and wait for the reader of their node, at most.
const MAX_OVERTAKING: usize = 16;
/// Bytes of them that wait for the end of a frame, at most.
const MAX_WAITING: usize = 4 << 10;

/// A connection of a node.
#[derive(Debug)]
pub struct Incoming {
    /// Name of the node. The broker vouches for it, by the permissions of its users.
    pub node: String,
    /// Bytes in both directions.
    pub stream: DuplexStream,
}

/// Reads the stream until an error, and hands each connection of a node to `incoming`.
/// `description` identifies this log-server to people.
///
/// # Errors
/// [`Error`]; all connections have ended then.
pub async fn serve(
    settings: &Settings,
    description: &str,
    incoming: &mpsc::Sender<Incoming>,
    state: &watch::Sender<BrokerState>,
) -> Result<(), Error> {
    let link = Link::connect(settings, format!("MIOT log-server {description}"), None).await?;
    let jetstream = stream::open(&link).await?;
    let subscribe = async |subject: String| {
        let subscribed = link.client.subscribe(subject.clone()).await;
        subscribed.map_err(|error| link.request_failed(&format!("subscribe to {subject}"), &error))
    };
    let claims = subscribe(settings.claim()).await?;
    let overtaking = subscribe(settings.subject("now", "*")).await?;
    let knocks = subscribe(settings.subject("knock", "*")).await?;
    claim(&link).await?;
    publish(&link, settings.announcement(), description.to_owned().into()).await?;
    state.send_modify(|state| {
        (state.connected, state.error) = (true, None);
        state.connects += 1;
        state.stream = Some(stream::state_of(&jetstream, &link));
    });
    let mut nodes = Nodes {
        link: link.clone(),
        jetstream,
        incoming: incoming.clone(),
        tasks: JoinSet::new(),
        served: HashMap::new(),
    };
    tokio::select! {
        error = link.broken() => Err(error),
        result = nodes.serve([knocks, overtaking, claims], description, state) => result,
    }
}

async fn publish(link: &Link, subject: String, message: Bytes) -> Result<(), Error> {
    let sent = link.client.publish(subject, message).await;
    sent.map_err(|error| link.request_failed("send a message", &error))
}

/// Asks whether another log-server reads the stream. One that is gone does not answer, even if the
/// broker has not noticed it yet.
async fn claim(link: &Link) -> Result<(), Error> {
    match link.client.request(link.settings.claim(), Bytes::new()).await {
        Ok(answer) => {
            let other = String::from_utf8_lossy(&answer.payload).into_owned();
            Err(Error::Taken { stream: link.settings.stream.clone(), other })
        }
        Err(error) if matches!(error.kind(), RequestErrorKind::NoResponders | RequestErrorKind::TimedOut) => {
            Ok(())
        }
        Err(error) => Err(link.request_failed("ask for other log-servers", &error)),
    }
}

struct Nodes {
    link: Link,
    jetstream: Stream,
    incoming: mpsc::Sender<Incoming>,
    tasks: JoinSet<(String, Result<(), Error>)>,
    /// Tokens of the nodes that are read, and the way to their readers of what overtakes.
    served: HashMap<String, mpsc::Sender<Bytes>>,
}

impl Nodes {
    async fn serve(
        &mut self,
        [mut knocks, mut overtaking, mut claims]: [Subscriber; 3],
        description: &str,
        state: &watch::Sender<BrokerState>,
    ) -> Result<(), Error> {
        for token in self.waiting().await? {
            self.add(&token);
        }
        let mut statuses = interval(STATUS_EVERY);
        statuses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = || Error::Broken("the subscription ended".into());
        loop {
            tokio::select! {
                knock = knocks.next() => {
                    let subject = knock.ok_or_else(ended)?.subject;
                    self.add(subject.rsplit('.').next().unwrap_or_default());
                }
                message = overtaking.next() => {
                    let message = message.ok_or_else(ended)?;
                    let reader = self.served.get(message.subject.rsplit('.').next().unwrap_or_default());
                    // What does not fit is lost, like an answer that takes too long.
                    let _ = reader.map(|reader| reader.try_send(message.payload));
                }
                claim = claims.next() => {
                    if let Some(reply) = claim.ok_or_else(ended)?.reply {
                        publish(&self.link, reply.to_string(), description.to_owned().into()).await?;
                    }
                }
                Some(ended) = self.tasks.join_next() => {
                    if let Ok((token, result)) = ended {
                        if let Err(error) = result {
                            tracing::warn!(node = node_of(&token), %error, "a node's messages in the broker cannot be read");
                        }
                        self.served.remove(&token);
                    }
                }
                _ = statuses.tick() => {
                    let info = self.jetstream.info().await.map(drop);
                    info.map_err(|error| self.link.request_failed("read the state of the stream", &error))?;
                    let status = stream::state_of(&self.jetstream, &self.link);
                    state.send_modify(|state| state.stream = Some(status));
                }
            }
        }
    }

    /// Tokens of the nodes that have messages in the stream.
    async fn waiting(&self) -> Result<Vec<String>, Error> {
        let failed = |error: &dyn std::error::Error| {
            self.link.request_failed("list the nodes in the stream", &stream::with_source(error))
        };
        let all = self.link.settings.subject("up", "*");
        let mut subjects = self.jetstream.info_with_subjects(all).await.map_err(|error| failed(&error))?;
        let mut tokens = Vec::new();
        while let Some((subject, _)) = subjects.try_next().await.map_err(|error| failed(&error))? {
            tokens.extend(subject.rsplit('.').next().map(str::to_owned));
        }
        Ok(tokens)
    }

    fn add(&mut self, token: &str) {
        let Some(node) = node_of(token) else { return };
        if !self.served.contains_key(token) {
            let (overtaken_by, overtaking) = mpsc::channel(MAX_OVERTAKING);
            self.served.insert(token.to_owned(), overtaken_by);
            let reading = NodeReader {
                link: self.link.clone(),
                jetstream: self.jetstream.clone(),
                node,
                incoming: self.incoming.clone(),
                overtaking,
                current: None,
                ended: None,
            };
            let token = token.to_owned();
            self.tasks.spawn(async move { (token, reading.run().await) });
        }
    }
}

/// Reads the messages of one node.
struct NodeReader {
    link: Link,
    jetstream: Stream,
    node: String,
    incoming: mpsc::Sender<Incoming>,
    overtaking: mpsc::Receiver<Bytes>,
    current: Option<Current>,
    /// The latest connection that has ended.
    ended: Option<u64>,
}

/// The connection of a node.
struct Current {
    connection: u64,
    next: u64,
    to_session: WriteHalf<DuplexStream>,
    /// Position in the frames of the node.
    position: FramePosition,
    /// Frames that wait for the end of another one.
    waiting: Vec<u8>,
    /// Bytes that the session has got.
    read: watch::Sender<u64>,
}

impl NodeReader {
    async fn run(mut self) -> Result<(), Error> {
        let (link, name) = (self.link.clone(), token(&self.node));
        let what = format!("read the messages of {}", self.node);
        let failed = |error: &dyn std::error::Error| link.request_failed(&what, &stream::with_source(error));
        // Messages that an earlier log-server got and did not confirm come again, in order.
        let _ = self.jetstream.delete_consumer(&name).await;
        let config = pull::Config {
            durable_name: Some(name.clone()),
            filter_subject: self.link.settings.subject("up", &name),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            ..pull::Config::default()
        };
        let created = self.jetstream.create_consumer(config).await;
        let consumer: PullConsumer = created.map_err(|error| failed(&error))?;
        let messages = consumer.stream().max_messages_per_batch(BATCH).messages().await;
        let mut messages = messages.map_err(|error| failed(&error))?;
        let mut last = Instant::now();
        loop {
            let message = tokio::select! {
                biased;
                Some(message) = self.overtaking.recv() => {
                    self.overtake(&message).await;
                    continue;
                }
                message = timeout(IDLE, messages.next()) => message,
            };
            let message = match message {
                Ok(Some(message)) => message.map_err(|error| failed(&error)),
                Ok(None) => Err(Error::Broken("the consumer ended".into())),
                Err(_) if self.is_connected() || last.elapsed() < IDLE => continue,
                Err(_) => {
                    let _ = self.jetstream.delete_consumer(&name).await;
                    return Ok(());
                }
            };
            match message {
                Ok(message) => {
                    last = Instant::now();
                    self.message(&message.payload).await?;
                    let confirmed = message.ack().await;
                    confirmed.map_err(|error| self.link.request_failed("confirm a message", &error))?;
                }
                Err(error) => {
                    if let Some(Current { connection, .. }) = self.current.take() {
                        self.reset(connection, &error.to_string()).await?;
                    }
                    return Err(error);
                }
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.current.as_ref().is_some_and(|current| !current.read.is_closed())
    }

    async fn message(&mut self, message: &[u8]) -> Result<(), Error> {
        let Some((header, bytes)) = Header::split(message) else {
            tracing::warn!(node = self.node, "a message in the broker is not from a log-client, ignoring it");
            return Ok(());
        };
        if self.current.as_ref().is_none_or(|current| current.connection != header.connection) {
            if header.index != 0 {
                // The rest of a connection that has ended here, or whose beginning was lost.
                if self.ended != Some(header.connection) {
                    self.ended = Some(header.connection);
                    self.reset(
                        header.connection,
                        "the log-server does not know this connection, as after its restart",
                    )
                    .await?;
                }
                return Ok(());
            }
            if self.ended == Some(header.connection) {
                return Ok(());
            }
            self.begin(header.connection).await;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if header.index < current.next {
            return Ok(());
        }
        if header.index > current.next {
            self.end().await;
            return self.reset(header.connection, "a message of this node was lost in the broker").await;
        }
        current.next += 1;
        // Waits while the session does not read, for lack of memory or because of a rate limit.
        let mut written = current.to_session.write_all(bytes).await;
        current.position.advance(bytes);
        if current.position.is_between() && !current.waiting.is_empty() {
            written = written.and(current.to_session.write_all(&current.waiting).await);
            current.waiting.clear();
        }
        current.read.send_modify(|read| *read += bytes.len() as u64);
        if written.is_err() || header.kind == Kind::End {
            self.end().await;
        }
        Ok(())
    }

    /// Passes on frames between two others.
    async fn overtake(&mut self, message: &[u8]) {
        let Some((header, frames)) = Header::split(message) else { return };
        let current = self.current.as_mut().filter(|current| current.connection == header.connection);
        let Some(current) = current else { return };
        if current.position.is_between() {
            // If the session has ended, the next message finds that out.
            let _ = current.to_session.write_all(frames).await;
        } else if current.waiting.len() < MAX_WAITING {
            current.waiting.extend_from_slice(frames);
        }
    }

    /// Begins a connection; an earlier one of the node ends.
    async fn begin(&mut self, connection: u64) {
        self.end().await;
        let (stream, near) = duplex(2 * MAX_BYTES);
        let (from_session, to_session) = split(near);
        let (read, progress) = watch::channel(0);
        let down = self.link.settings.subject("down", &token(&self.node));
        let answers = Answers { link: self.link.clone(), down, connection, index: 0 };
        if self.incoming.send(Incoming { node: self.node.clone(), stream }).await.is_ok() {
            tokio::spawn(answers.run(from_session, progress));
            self.current = Some(Current {
                connection,
                next: 0,
                to_session,
                position: FramePosition::default(),
                waiting: Vec::new(),
                read,
            });
        }
    }

    /// Ends the current connection: the session reads its end.
    async fn end(&mut self) {
        if let Some(mut current) = self.current.take() {
            self.ended = Some(current.connection);
            let _ = current.to_session.shutdown().await;
        }
    }

    /// Asks the node to connect again.
    async fn reset(&self, connection: u64, reason: &str) -> Result<(), Error> {
        let header = Header { connection, index: 0, read: 0, kind: Kind::Reset };
        let down = self.link.settings.subject("down", &token(&self.node));
        publish(&self.link, down, header.message(reason.as_bytes())).await
    }
}

/// Sends what a session writes.
struct Answers {
    link: Link,
    down: String,
    connection: u64,
    index: u64,
}

impl Answers {
    /// Runs until the session ends, or the connection to the broker.
    async fn run(mut self, mut from_session: ReadHalf<DuplexStream>, mut progress: watch::Receiver<u64>) {
        let link = self.link.clone();
        tokio::select! {
            _ = link.broken() => {}
            _ = self.send(&mut from_session, &mut progress) => {}
        }
    }

    async fn send(
        &mut self,
        from_session: &mut ReadHalf<DuplexStream>,
        progress: &mut watch::Receiver<u64>,
    ) -> Result<(), Error> {
        let (mut buffer, mut reported, mut is_read) = (vec![0; 4 << 10], 0, true);
        loop {
            tokio::select! {
                length = from_session.read(&mut buffer) => {
                    let length = length.unwrap_or(0);
                    reported = *progress.borrow();
                    let kind = if length == 0 { Kind::End } else { Kind::Data };
                    self.message(kind, reported, &buffer[..length]).await?;
                    if length == 0 {
                        return Ok(());
                    }
                }
                more = progress.changed(), if is_read => {
                    is_read = more.is_ok();
                    let read = *progress.borrow_and_update();
                    if read - reported >= REPORT_BYTES {
                        reported = read;
                        self.message(Kind::Data, read, &[]).await?;
                    }
                }
            }
        }
    }

    async fn message(&mut self, kind: Kind, read: u64, bytes: &[u8]) -> Result<(), Error> {
        let header = Header { connection: self.connection, index: self.index, read, kind };
        self.index += 1;
        publish(&self.link, self.down.clone(), header.message(bytes)).await
    }
}
