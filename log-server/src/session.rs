//! One connection.
//!
//! A node's session decodes and checks what it reads, so that the store gets only what makes sense, and
//! corrects the node's times. For this it must know how far the clocks are apart, so it first
//! asks, and holds back what comes meanwhile. A broken rule of the protocol ends the connection with a reason.

mod node;
mod operator;
mod probe;
mod subscriber;

use crate::budget::Budget;
use crate::error::Refusal;
use crate::frames::{Frames, ReadError};
use crate::nodes::Pace;
use crate::shared::Shared;
use miot_proto::wire::{FrameError, GREETING, MAX_HELLO, Message, Role, VERSION, Version};
use miot_tls::Certificate;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Longest time for the first message.
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Longest time for a last message to a peer that does not read.
pub(crate) const LAST_WORD_WITHIN: Duration = Duration::from_secs(5);
/// What the first bytes of TLS, a handshake record of version 3, are as the length of a frame.
const TLS_RECORD: usize = 0x0316;
/// Longest name of a node, bytes.
const MAX_NAME: usize = 255;

/// A session's part in the end of the server.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Becomes true when the server is to stop.
    pub(crate) stop: watch::Receiver<bool>,
    /// Held as long as the session may still tell the store something.
    pub(crate) reading: mpsc::Sender<()>,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The store ended it, and has said why.
    #[error("closed by this side")]
    Closed,
    #[error("nothing came for {0:?}")]
    Silent(Duration),
}

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// What it has proved to be; `None` without TLS.
    pub(crate) certificate: Option<Certificate>,
}

/// Serves one connection to its end. Says in the log how that came, once.
pub(crate) async fn serve<R, W>(
    reader: R,
    writer: W,
    peer: Peer,
    conn: u64,
    shared: Arc<Shared>,
    ending: Ending,
) where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut frames = Frames::new(reader);
    let (mut writer, mut ending) = (writer, ending);
    let Peer { address, .. } = peer;
    let greeting = tokio::select! {
        greeting = hello(&mut frames, peer.certificate.as_ref()) => greeting,
        _ = ending.stop.wait_for(|stop| *stop) => return,
    };
    let Hello { role, node, session, version } = match greeting {
        Ok(Some(hello)) => hello,
        Ok(None) => return tracing::debug!(peer = %address, "connected and said nothing"),
        Err(end) => {
            shared.turned_away(address, &end.to_string());
            return last_word(&mut writer, &end).await;
        }
    };
    if role == Role::Node {
        let place = match shared.limits.node(&node) {
            Ok(place) => place,
            Err(refusal) => return refuse(&shared, writer, address, refusal).await,
        };
        shared.limits.known(conn);
        let name = node.clone();
        let caller = node::Caller { node, session, place, address, version };
        return match node::serve(frames, writer, conn, caller, shared, ending).await {
            Ok(()) | Err(End::Closed) => {}
            Err(end) => {
                tracing::warn!(peer = %address, node = name, reason = %end, "node's connection ended")
            }
        };
    }
    let _place = match shared.limits.subscriber() {
        Ok(place) => place,
        Err(refusal) => return refuse(&shared, writer, address, refusal).await,
    };
    shared.limits.known(conn);
    match role {
        // Served above.
        Role::Node => {}
        Role::Tail => {
            tracing::info!(peer = %address, host = node, "subscriber connected");
            let monitor = Arc::clone(&shared.monitor);
            monitor.subscribers.fetch_add(1, Ordering::Relaxed);
            let served = subscriber::serve(frames, writer, conn, shared, ending).await;
            monitor.subscribers.fetch_sub(1, Ordering::Relaxed);
            match served {
                Ok(()) => tracing::info!(peer = %address, host = node, "subscriber disconnected"),
                Err(end) => {
                    tracing::warn!(peer = %address, host = node, reason = %end, "subscriber's connection ended")
                }
            }
        }
        Role::Operator => {
            let rights = operator::rights(peer.certificate.as_ref(), address, &shared.config);
            let who = peer.certificate.as_ref().map_or(node, |certificate| certificate.names.join(","));
            if let Err(end) = operator::serve(frames, writer, (who, rights), shared, ending).await {
                tracing::warn!(peer = %address, reason = %end, "operator's connection ended");
            }
        }
        Role::Probe => {
            // The server does not wait for it when it stops.
            drop(ending);
            tracing::info!(peer = %address, host = node, "asked whether it is served");
            if let Err(end) = probe::serve(frames, writer).await {
                tracing::debug!(peer = %address, host = node, reason = %end, "probe ended");
            }
        }
    }
}

/// Tells a peer that there is no room for it.
async fn refuse<W: AsyncWrite + Unpin>(shared: &Shared, writer: W, address: SocketAddr, refusal: Refusal) {
    shared.turned_away(address, &refusal.to_string());
    turn_away(writer, refusal).await;
}

/// Tells a peer why it is not served.
pub(crate) async fn turn_away<W: AsyncWrite + Unpin>(mut writer: W, refusal: Refusal) {
    last_word(&mut writer, &End::Refused(refusal)).await;
}

struct Hello {
    role: Role,
    node: String,
    session: u64,
    version: Version,
}

/// The first message, which must fit the certificate; `None` if the peer went without one.
async fn hello<R: AsyncRead + Unpin>(
    frames: &mut Frames<R>,
    certificate: Option<&Certificate>,
) -> Result<Option<Hello>, End> {
    let text = |version: Version| format!("{}.{}", version.major, version.minor);
    let strange = |found: String| Refusal::Greeting { ours: text(VERSION), found };
    // Nobody is known yet, so this is not charged to a node: the limit on connections bounds it.
    let (budget, pace) = (Budget::new(MAX_HELLO), Pace::default());
    let first = match timeout(HELLO_WITHIN, frames.next(MAX_HELLO, &budget, &pace)).await {
        Err(_) => return Err(Refusal::Slow(HELLO_WITHIN).into()),
        Ok(Err(ReadError::Frame(error))) => {
            let found = match error {
                FrameError::Header { length } if length & 0xffff == TLS_RECORD => {
                    "TLS, for which this log-server has no `tls_certificate`".into()
                }
                FrameError::TooLong { length, limit } => {
                    format!("a first message of {length} bytes; at most {limit} are allowed")
                }
                FrameError::Header { .. } | FrameError::Checksum => {
                    return Err(Refusal::Damaged { ours: text(VERSION) }.into());
                }
                FrameError::Message(reason) => reason,
            };
            return Err(strange(found).into());
        }
        Ok(Err(error)) => return Err(error.into()),
        Ok(Ok(None)) => return Ok(None),
        Ok(Ok(Some((message, _)))) => message,
    };
    let Message::Hello { greeting, version, role, node, session } = first else {
        return Err(strange("a message other than the greeting".into()).into());
    };
    if greeting != GREETING {
        return Err(strange(format!("greeting `{}`", greeting.escape_ascii())).into());
    }
    if version.major != VERSION.major {
        return Err(Refusal::Version { ours: text(VERSION), theirs: text(version) }.into());
    }
    if node.is_empty() || node.len() > MAX_NAME || node.chars().any(char::is_control) {
        return Err(Refusal::Name.into());
    }
    if let Some(certificate) = certificate {
        let role = match role {
            Role::Node => miot_tls::Role::Node,
            Role::Tail if certificate.role == Some(miot_tls::Role::Operator) => miot_tls::Role::Operator,
            Role::Tail => miot_tls::Role::Reader,
            // What a reader may ask is looked at with each question.
            Role::Operator if certificate.role == Some(miot_tls::Role::Reader) => miot_tls::Role::Reader,
            Role::Operator => miot_tls::Role::Operator,
            Role::Probe => certificate.role.unwrap_or(miot_tls::Role::Node),
        };
        certificate.allows(role, &node).map_err(Refusal::Certificate)?;
    }
    Ok(Some(Hello { role, node, session, version }))
}

/// What to tell a peer, if it is its own fault that the connection ends.
fn last_words(end: &End) -> Option<Message> {
    let passing = match end {
        End::Refused(refusal) => refusal.is_passing(),
        End::Read(ReadError::Frame(error)) => {
            matches!(error, FrameError::Header { .. } | FrameError::Checksum)
        }
        End::Silent(_) => true,
        End::Read(_) | End::Io(_) | End::Closed => return None,
    };
    Some(Message::Refused { reason: end.to_string(), passing })
}

/// Says [`last_words`].
async fn last_word<W: AsyncWrite + Unpin>(writer: &mut W, end: &End) {
    let Some(words) = last_words(end) else { return };
    let frame = words.frame();
    let _ = timeout(LAST_WORD_WITHIN, async {
        writer.write_all(&frame).await?;
        writer.shutdown().await
    })
    .await;
}
