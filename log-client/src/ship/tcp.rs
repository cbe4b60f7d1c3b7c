//! Transport over TCP.

use super::Peer;
use super::stream::{FromServer, ToServer, both_ways};
use super::transport::{ConnectOutcome, Receiver, Sender, ServerMessage, Transport};
use miot_proto::wire::{
    FRAME_HEADER, GREETING, MAX_HELLO, Message, Role, SETS_SINCE_MINOR, VERSION, Version, frame_header,
};
use miot_tls::failure::refusal;
use rustix::net::sockopt;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for the TLS handshake, and for the server's first answer. After a restart of the
/// log-server the handshakes of all nodes wait for its processor.
const GREETING_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to a log-server over TCP.
#[derive(Debug)]
pub(crate) struct Tcp {
    peer: Peer,
}

impl Tcp {
    pub(crate) fn new(peer: Peer) -> Tcp {
        Tcp { peer }
    }
}

impl Transport for Tcp {
    type Sender = ToServer;
    type Receiver = FromServer;

    async fn connect(&mut self, session: u64) -> io::Result<ConnectOutcome<ToServer, FromServer>> {
        let (reader, writer, answer) = match ask(&self.peer, Role::Node, session).await {
            Ok(answered) => answered,
            // The server's verdict on our certificate arrives with its first answer.
            Err(error) => {
                let (reason, transient) = refusal(&error).ok_or(error)?;
                return Ok(if transient {
                    ConnectOutcome::NotNow(reason)
                } else {
                    ConnectOutcome::Refused(reason)
                });
            }
        };
        Ok(outcome(answer, &self.peer, writer, reader))
    }
}

/// The outcome of a greeting, from its answer.
pub(super) fn outcome<S, R>(answer: Message, peer: &Peer, sender: S, receiver: R) -> ConnectOutcome<S, R> {
    match answer {
        Message::Welcome { version, .. } if version.major != VERSION.major => {
            ConnectOutcome::Refused(other_version(version))
        }
        Message::Welcome { version, .. } if peer.set.is_some() && version.minor < SETS_SINCE_MINOR => {
            ConnectOutcome::NotNow(
                "it has an earlier version, which cannot be in a set of log-servers".into(),
            )
        }
        Message::Welcome { through, version } => {
            ConnectOutcome::Welcome { sender, receiver, through, minor: version.minor }
        }
        Message::Refused { reason, transient: true } => ConnectOutcome::NotNow(reason),
        Message::Refused { reason, .. } => ConnectOutcome::Refused(reason),
        // Earlier log-servers may acknowledge batches of an earlier connection first.
        _ => ConnectOutcome::NotNow("the log-server has not answered the greeting first".into()),
    }
}

fn other_version(version: Version) -> String {
    format!(
        "the log-server uses version {}.{} of the protocol, this log-client {}.{}",
        version.major, version.minor, VERSION.major, VERSION.minor
    )
}

/// Connects to a log-server and introduces this node. Returns both directions and the answer.
///
/// # Errors
/// Any temporary failure; also the server's verdict on the certificate, see [`refusal`].
pub(crate) async fn ask(
    peer: &Peer,
    role: Role,
    session: u64,
) -> io::Result<(FromServer, ToServer, Message)> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    // The name is resolved again each time: the log-server may have moved.
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(&peer.server)).await.map_err(late)??;
    detect_dead_network(&stream, peer.dead_after)?;
    let connecting = both_ways(stream, &peer.server, peer.tls.as_deref());
    let (mut reader, mut writer) = timeout(GREETING_TIMEOUT, connecting).await.map_err(late)??;
    let hello = greeting(peer, role, session);
    let asked = async {
        writer.send(&hello).await?;
        receive(&mut reader).await
    };
    let answer = timeout(GREETING_TIMEOUT, asked).await.map_err(late)??;
    Ok((reader, writer, answer))
}

/// The frame with which a connection begins.
pub(super) fn greeting(peer: &Peer, role: Role, session: u64) -> Vec<u8> {
    Message::Hello { greeting: GREETING, version: VERSION, role, node: peer.node.clone(), session }.frame()
}

impl Sender for ToServer {
    async fn send(&mut self, frames: &[u8]) -> io::Result<()> {
        self.write_all(frames).await?;
        self.flush().await
    }

    async fn finish(&mut self) {
        let _ = self.shutdown().await;
    }
}

impl Receiver for FromServer {
    async fn next(&mut self) -> io::Result<ServerMessage> {
        next_message(self).await
    }
}

/// Receives the next message that a log-client needs.
///
/// # Errors
/// The connection has ended.
pub(super) async fn next_message(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<ServerMessage> {
    loop {
        return Ok(match receive(reader).await? {
            Message::Ack { through } => ServerMessage::Acknowledged(through),
            Message::Ping { sent } => ServerMessage::ClockQuery(sent),
            Message::Refused { reason, .. } => ServerMessage::Refused(reason),
            Message::Command { id, command } => ServerMessage::Command(id, command),
            Message::Pace { pace } => ServerMessage::Pace(pace),
            Message::Welcome { version, .. } if version.major != VERSION.major => {
                ServerMessage::Refused(other_version(version))
            }
            Message::Welcome { through, version } => ServerMessage::Welcome { through, minor: version.minor },
            // Messages of a higher minor version are not needed.
            _ => continue,
        });
    }
}

/// Sets the options that detect a dead network within `dead_after`, with or without data to send.
fn detect_dead_network(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, dead_after / 2)?;
    sockopt::set_tcp_keepintvl(stream, dead_after / 8)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(dead_after.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// Receives a message. The server sends only short ones.
///
/// # Errors
/// The connection has ended.
pub(crate) async fn receive(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Message> {
    let odd = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut header = [0; FRAME_HEADER];
    reader.read_exact(&mut header).await?;
    let (length, crc) = frame_header(header, MAX_HELLO).map_err(odd)?;
    let mut payload = vec![0; length];
    reader.read_exact(&mut payload).await?;
    Message::from_payload(&payload, crc).map_err(odd)
}
