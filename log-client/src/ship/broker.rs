//! Transport through a broker.

use super::Peer;
use super::tcp::{greeting, next_message, outcome, receive};
use super::transport::{ConnectOutcome, Receiver, Sender, ServerMessage, Transport};
use miot_broker::Settings;
use miot_broker::node::{Connection, Overtaking, Progress, connect};
use miot_proto::wire::Role;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

/// Maximum wait for the log-server's answer to the greeting. Then messages are sent without it, and
/// wait in the broker.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Maximum wait until the broker has stored the last messages of a connection.
const FINISH_WITHIN: Duration = Duration::from_secs(2);

/// Connects to a log-server through a broker.
#[derive(Debug)]
pub(crate) struct Broker {
    peer: Peer,
    settings: Settings,
}

/// Bytes to the broker.
#[derive(Debug)]
pub(crate) struct ToBroker {
    writer: WriteHalf<DuplexStream>,
    overtaking: Overtaking,
    progress: Progress,
}

/// Bytes from the broker.
#[derive(Debug)]
pub(crate) struct FromBroker {
    reader: ReadHalf<DuplexStream>,
    progress: Progress,
}

impl Broker {
    pub(crate) fn new(peer: Peer, settings: Settings) -> Broker {
        Broker { peer, settings }
    }
}

impl Transport for Broker {
    type Sender = ToBroker;
    type Receiver = FromBroker;

    async fn connect(&mut self, session: u64) -> io::Result<ConnectOutcome<ToBroker, FromBroker>> {
        let connected = connect(&self.settings, &self.peer.node).await;
        let Connection { stream, overtaking, progress } = connected.map_err(io::Error::other)?;
        let (reader, writer) = split(stream);
        let mut sender = ToBroker { writer, overtaking, progress: progress.clone() };
        let mut receiver = FromBroker { reader, progress };
        let hello = greeting(&self.peer, Role::Node, session);
        sender.send(&hello).await?;
        let progress = &receiver.progress;
        // At the end of the connection, the reason is read instead of an answer.
        if timeout(ANSWER_WITHIN, progress.until(|state| state.answered)).await.is_ok() {
            let answer = receive(&mut receiver.reader).await.map_err(|error| receiver.reason(error))?;
            return Ok(outcome(answer, &self.peer, sender, receiver));
        }
        if progress.state().stored < hello.len() as u64 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the broker has not stored the greeting within 3 s",
            ));
        }
        Ok(ConnectOutcome::Unanswered { sender, receiver })
    }
}

impl Sender for ToBroker {
    const OVERTAKES: bool = true;

    async fn send(&mut self, frames: &[u8]) -> io::Result<()> {
        let sent = self.writer.write_all(frames).await;
        sent.map_err(|error| reason(&self.progress, error))
    }

    async fn send_now(&mut self, frames: &[u8]) -> io::Result<()> {
        self.overtaking.send(frames).await.map_err(io::Error::other)
    }

    async fn finish(&mut self) {
        let _ = self.writer.shutdown().await;
        let _ = timeout(FINISH_WITHIN, self.progress.until(|state| state.finished)).await;
    }
}

impl FromBroker {
    fn reason(&self, error: io::Error) -> io::Error {
        reason(&self.progress, error)
    }
}

impl Receiver for FromBroker {
    async fn next(&mut self) -> io::Result<ServerMessage> {
        next_message(&mut self.reader).await.map_err(|error| self.reason(error))
    }
}

/// The reason why the connection ended, if it is known, instead of the end of its bytes.
fn reason(progress: &Progress, error: io::Error) -> io::Error {
    progress.reason().map_or(error, io::Error::other)
}
