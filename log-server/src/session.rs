//! One connection.
//!
//! A node's session decodes and checks what it reads, so that the store gets only what makes sense, and
//! corrects the node's times. For this it must know how far the clocks are apart, so it first
//! asks, and holds back what comes meanwhile. A broken rule of the protocol ends the connection with a reason.

mod node;
mod subscriber;

use crate::budget::{Budget, Charge};
use crate::config::Config;
use crate::error::Refusal;
use crate::frames::{Frames, ReadError};
use crate::input::{Input, What};
use crate::nodes::Pace;
use crossbeam::channel::Sender;
use miot_proto::wire::{FrameError, GREETING, MAX_HELLO, Message, Role, VERSION, Version};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Longest time for the first message.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Longest time for a last message to a peer that does not read.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(5);
/// Longest name of a node, bytes.
const MAX_NAME: usize = 255;

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// For all that is not durable.
    pub(crate) budget: Arc<Budget>,
    /// For what the store has not taken yet: if it is slow nothing more is decoded, so that batches are merged
    /// while they are in the cache.
    pub(crate) queue: Arc<Budget>,
    pub(crate) store: Sender<Input>,
}

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

/// Serves one connection to its end. Says in the log how that came, once.
pub(crate) async fn serve<R, W>(
    reader: R,
    writer: W,
    peer: SocketAddr,
    conn: u64,
    shared: Arc<Shared>,
    ending: Ending,
) where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut frames = Frames::new(reader);
    let (mut writer, mut ending) = (writer, ending);
    let greeting = tokio::select! {
        greeting = hello(&mut frames) => greeting,
        _ = ending.stop.wait_for(|stop| *stop) => return,
    };
    match greeting {
        Ok(Some(Hello { role: Role::Node, node, session })) => {
            let name = node.clone();
            match node::serve(frames, writer, conn, node, session, shared, ending).await {
                Ok(()) | Err(End::Closed) => {}
                Err(end) => tracing::warn!(%peer, node = name, reason = %end, "node's connection ended"),
            }
        }
        Ok(Some(Hello { role: Role::Tail, node, .. })) => {
            tracing::info!(%peer, host = node, "subscriber connected");
            match subscriber::serve(frames, writer, conn, shared, ending).await {
                Ok(()) => tracing::info!(%peer, host = node, "subscriber disconnected"),
                Err(end) => {
                    tracing::warn!(%peer, host = node, reason = %end, "subscriber's connection ended")
                }
            }
        }
        Ok(None) => tracing::debug!(%peer, "connected and said nothing"),
        Err(end) => {
            tracing::warn!(%peer, reason = %end, "connection turned away");
            last_word(&mut writer, &end).await;
        }
    }
}

/// Tells a peer that there is no room for it.
pub(crate) async fn turn_away<W: AsyncWrite + Unpin>(mut writer: W, limit: usize) {
    last_word(&mut writer, &End::Refused(Refusal::Full(limit))).await;
}

struct Hello {
    role: Role,
    node: String,
    session: u64,
}

/// The first message; `None` if the peer went without one.
async fn hello<R: AsyncRead + Unpin>(frames: &mut Frames<R>) -> Result<Option<Hello>, End> {
    let text = |version: Version| format!("{}.{}", version.major, version.minor);
    let strange = |found: String| Refusal::Greeting { ours: text(VERSION), found };
    // Nobody is known yet, so this is not charged to a node: the limit on connections bounds it.
    let (budget, pace) = (Budget::new(MAX_HELLO), Pace::default());
    let first = match timeout(HELLO_WITHIN, frames.next(MAX_HELLO, &budget, &pace)).await {
        Err(_) => return Err(Refusal::Slow(HELLO_WITHIN).into()),
        Ok(Err(ReadError::Frame(error))) => {
            let found = match error {
                FrameError::TooLong { length, limit } => {
                    format!("a first message of {length} bytes; at most {limit} are allowed")
                }
                other => other.to_string(),
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
    Ok(Some(Hello { role, node, session }))
}

/// What to tell a peer, if it is its own fault that the connection ends.
fn last_words(end: &End) -> Option<String> {
    match end {
        End::Refused(refusal) => Some(refusal.to_string()),
        End::Read(ReadError::Frame(error)) => Some(error.to_string()),
        End::Silent(_) => Some(end.to_string()),
        End::Read(_) | End::Io(_) | End::Closed => None,
    }
}

/// Says [`last_words`].
async fn last_word<W: AsyncWrite + Unpin>(writer: &mut W, end: &End) {
    let Some(reason) = last_words(end) else { return };
    let frame = Message::Refused { reason }.frame();
    let _ = timeout(LAST_WORD_WITHIN, async {
        writer.write_all(&frame).await?;
        writer.shutdown().await
    })
    .await;
}

/// A message that takes no memory to speak of.
fn input(shared: &Shared, conn: u64, what: What) -> Input {
    Input { conn, charge: Charge::none(&shared.budget), queued: Charge::none(&shared.queue), what }
}
