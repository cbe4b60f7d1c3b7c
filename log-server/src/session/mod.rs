//! One connection.
//!
//! A node's session decodes and checks its messages, so that the store gets only valid input, and
//! corrects the node's times. The correction needs the difference of the clocks, so a session
//! measures that first, and holds messages back meanwhile. A violation of the protocol ends the
//! connection with a reason.
//!
//! | module | role |
//! |---|---|
//! | `node` | sessions of log-clients |
//! | `pace` | how soon the server needs events and watermarks |
//! | `subscriber` | sessions of remote readers |
//! | `operator` | status queries and commands |
//! | `probe` | checks whether a node would be served |

mod node;
mod operator;
mod pace;
mod probe;
mod subscriber;

#[cfg(feature = "testing")]
pub(crate) use node::{Converted, DEAD_AFTER, OpenDefinitions, input_of, memory_size};
pub(crate) use pace::ClusterPace;
pub use pace::collect_messages;
pub(crate) use pace::has_many_nodes;

use crate::error::Refusal;
use crate::ids::ConnId;
use crate::net::frames::{Frames, ReadError};
use crate::shared::Shared;
use crate::store::budget::Budget;
use crate::store::watermarks::FlowControl;
use miot_proto::wire::{FrameError, GREETING, MAX_HELLO, Message, Role, SETS_SINCE_MINOR, VERSION, Version};
use miot_tls::Certificate;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Maximum time for the first message.
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(30);
/// Maximum time for a final message to a peer that does not read.
pub(crate) const FINAL_MESSAGE_WITHIN: Duration = Duration::from_secs(5);
/// The first bytes of TLS, a handshake record of version 3, read as the length of a frame.
const TLS_RECORD: usize = 0x0316;
/// Maximum length of a node's name, bytes.
const MAX_NAME: usize = 255;

/// Shutdown of the server, for one session.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown {
    /// Becomes true when the server stops.
    pub(crate) stop: watch::Receiver<bool>,
    /// The session holds this as long as it may send inputs to the store.
    pub(crate) reading: mpsc::Sender<()>,
}

/// Reason for the end of a session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The store ended the session, and has sent the reason.
    #[error("closed by this side")]
    Closed,
    #[error("no message was received for {0:?}")]
    Silent(Duration),
}

/// Where a peer is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerAddress {
    Socket(SocketAddr),
    /// Anywhere beyond the broker.
    #[cfg_attr(not(feature = "broker"), allow(dead_code, reason = "there is no broker"))]
    Broker,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddress::Socket(address) => address.fmt(f),
            PeerAddress::Broker => f.write_str("broker"),
        }
    }
}

/// The peer of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: PeerAddress,
    /// Verified certificate; `None` without TLS.
    pub(crate) certificate: Option<Certificate>,
    /// The only node that may use the connection, if it leads through a broker; the broker has
    /// authenticated it.
    pub(crate) through_broker: Option<String>,
}

/// Serves one connection to its end. Logs the reason of the end once.
pub(crate) async fn serve<R, W>(
    reader: R,
    mut writer: W,
    peer: Peer,
    conn: ConnId,
    shared: Arc<Shared>,
    mut shutdown: Shutdown,
) where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut frames = Frames::new(reader);
    let address = peer.address;
    let greeting = tokio::select! {
        greeting = read_hello(&mut frames, &peer) => greeting,
        _ = shutdown.stop.wait_for(|stop| *stop) => return,
    };
    let hello = match greeting {
        Ok(Some(hello)) => hello,
        Ok(None) => return tracing::debug!(peer = %address, "connection closed before the greeting"),
        Err(end) => {
            shared.connection_refused(address, &end.to_string());
            return send_final_message(&mut writer, &end).await;
        }
    };
    if hello.role == Role::Node {
        return serve_node(frames, writer, conn, address, hello, shared, shutdown).await;
    }
    let _permit = match shared.limits.subscriber() {
        Ok(permit) => permit,
        Err(refusal) => return refuse(&shared, writer, address, refusal).await,
    };
    shared.limits.identified(conn);
    let host = hello.node;
    match hello.role {
        // Served above.
        Role::Node => {}
        Role::Tail => {
            tracing::info!(peer = %address, host, "subscriber connected");
            let monitor = Arc::clone(&shared.monitor);
            monitor.subscribers.fetch_add(1, Ordering::Relaxed);
            let served = subscriber::serve(frames, writer, conn, hello.version, shared, shutdown).await;
            monitor.subscribers.fetch_sub(1, Ordering::Relaxed);
            match served {
                Ok(()) => tracing::info!(peer = %address, host, "subscriber disconnected"),
                Err(end) => {
                    tracing::warn!(peer = %address, host, reason = %end, "subscriber's connection ended")
                }
            }
        }
        Role::Operator => {
            let rights = operator::rights(peer.certificate.as_ref(), address, &shared.config);
            let name = peer.certificate.as_ref().map_or(host, |certificate| certificate.names.join(","));
            let operator = operator::Operator { name, rights };
            if let Err(end) = operator::serve(frames, writer, operator, shared, shutdown).await {
                tracing::warn!(peer = %address, reason = %end, "operator's connection ended");
            }
        }
        Role::Probe => {
            // The server does not wait for a probe when it stops.
            drop(shutdown);
            tracing::info!(peer = %address, host, "probe connected");
            let member = (hello.version.minor >= SETS_SINCE_MINOR).then(|| shared.config.identity());
            if let Err(end) = probe::serve(frames, writer, member).await {
                tracing::debug!(peer = %address, host, reason = %end, "probe ended");
            }
        }
    }
}

async fn serve_node<R, W>(
    frames: Frames<R>,
    writer: W,
    conn: ConnId,
    address: PeerAddress,
    Hello { node, session, version, .. }: Hello,
    shared: Arc<Shared>,
    shutdown: Shutdown,
) where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let permit = match shared.limits.node(&node) {
        Ok(permit) => permit,
        Err(refusal) => return refuse(&shared, writer, address, refusal).await,
    };
    shared.limits.identified(conn);
    let name = node.clone();
    let introduction = node::Introduction { node, session, permit, address, version };
    match node::serve(frames, writer, conn, introduction, shared, shutdown).await {
        Ok(()) | Err(SessionEnd::Closed) => {}
        Err(end) => tracing::warn!(peer = %address, node = name, reason = %end, "node's connection ended"),
    }
}

/// Refuses a peer because of a limit.
async fn refuse<W: AsyncWrite + Unpin>(shared: &Shared, writer: W, address: PeerAddress, refusal: Refusal) {
    shared.connection_refused(address, &refusal.to_string());
    send_refusal(writer, refusal).await;
}

/// Sends the reason of a refusal to a peer.
pub(crate) async fn send_refusal<W: AsyncWrite + Unpin>(mut writer: W, refusal: Refusal) {
    send_final_message(&mut writer, &SessionEnd::Refused(refusal)).await;
}

/// Greeting of a peer.
struct Hello {
    role: Role,
    /// Name of the node, or of the peer's host.
    node: String,
    session: u64,
    version: Version,
}

/// Reads and checks the first message, which must match the certificate. `None` if the peer closed
/// the connection before it.
async fn read_hello<R: AsyncRead + Unpin>(
    frames: &mut Frames<R>,
    peer: &Peer,
) -> Result<Option<Hello>, SessionEnd> {
    let wrong_greeting = |found: String| Refusal::Greeting { ours: text_of(VERSION), found };
    // The node is not known yet, so this memory is not charged to it: the limit on connections
    // bounds it.
    let (budget, flow) = (Budget::new(MAX_HELLO), FlowControl::default());
    let first = match timeout(HELLO_WITHIN, frames.next(MAX_HELLO, &budget, &flow)).await {
        Err(_) => return Err(Refusal::Slow(HELLO_WITHIN).into()),
        Ok(Err(ReadError::Frame(error))) => return Err(refusal_of_frame(error).into()),
        Ok(Err(error)) => return Err(error.into()),
        Ok(Ok(None)) => return Ok(None),
        Ok(Ok(Some((message, _)))) => message,
    };
    let Message::Hello { greeting, version, role, node, session } = first else {
        return Err(wrong_greeting("a message other than the greeting".into()).into());
    };
    if greeting != GREETING {
        return Err(wrong_greeting(format!("greeting `{}`", greeting.escape_ascii())).into());
    }
    if version.major != VERSION.major {
        return Err(Refusal::Version { ours: text_of(VERSION), theirs: text_of(version) }.into());
    }
    if node.is_empty() || node.len() > MAX_NAME || node.chars().any(char::is_control) {
        return Err(Refusal::Name.into());
    }
    if let Some(expected) = &peer.through_broker
        && (role != Role::Node || node != *expected)
    {
        return Err(Refusal::Broker { expected: expected.clone() }.into());
    }
    if let Some(certificate) = &peer.certificate {
        certificate.allows(required_role(role, certificate), &node).map_err(Refusal::from)?;
    }
    Ok(Some(Hello { role, node, session, version }))
}

fn text_of(version: Version) -> String {
    format!("{}.{}", version.major, version.minor)
}

/// The refusal of a first frame that cannot be read.
fn refusal_of_frame(error: FrameError) -> Refusal {
    let found = match error {
        FrameError::Header { length } if length & 0xffff == TLS_RECORD => {
            "TLS, for which this log-server has no `tls_certificate`".into()
        }
        FrameError::TooLong { length, limit } => {
            format!("a first message of {length} bytes; at most {limit} are allowed")
        }
        FrameError::Header { .. } | FrameError::Checksum => {
            return Refusal::Damaged { ours: text_of(VERSION) };
        }
        FrameError::Message(reason) => reason,
    };
    Refusal::Greeting { ours: text_of(VERSION), found }
}

/// The role that the certificate of a peer must have.
fn required_role(role: Role, certificate: &Certificate) -> miot_tls::Role {
    match role {
        Role::Node => miot_tls::Role::Node,
        Role::Tail if certificate.role == Some(miot_tls::Role::Operator) => miot_tls::Role::Operator,
        Role::Tail => miot_tls::Role::Reader,
        // The rights of a reader are checked with each request.
        Role::Operator if certificate.role == Some(miot_tls::Role::Reader) => miot_tls::Role::Reader,
        Role::Operator => miot_tls::Role::Operator,
        Role::Probe => certificate.role.unwrap_or(miot_tls::Role::Node),
    }
}

/// The message that a peer gets if the connection ends because of the peer.
fn final_message(end: &SessionEnd) -> Option<Message> {
    let transient = match end {
        SessionEnd::Refused(refusal) => refusal.is_temporary(),
        SessionEnd::Read(ReadError::Frame(error)) => {
            matches!(error, FrameError::Header { .. } | FrameError::Checksum)
        }
        SessionEnd::Silent(_) => true,
        SessionEnd::Read(_) | SessionEnd::Io(_) | SessionEnd::Closed => return None,
    };
    Some(Message::Refused { reason: end.to_string(), transient })
}

/// Sends the [`final_message`], if there is one, and closes the connection.
async fn send_final_message<W: AsyncWrite + Unpin>(writer: &mut W, end: &SessionEnd) {
    let Some(message) = final_message(end) else { return };
    let frame = message.frame();
    let _ = timeout(FINAL_MESSAGE_WITHIN, async {
        writer.write_all(&frame).await?;
        writer.shutdown().await
    })
    .await;
}
