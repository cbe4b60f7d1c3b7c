//! The session of somebody who asks how the cluster is, or steers it.

use super::{End, Ending, last_word};
use crate::budget::Budget;
use crate::config::Config;
use crate::error::Refusal;
use crate::frames::Frames;
use crate::nodes::Pace;
use crate::page;
use crate::shared::Shared;
use crate::watch::Wanted;
use miot_proto::steer::{MAX_ORDER, Reply, Request};
use miot_proto::wire::{MAX_FRAME, Message, VERSION};
use miot_tls::{Certificate, Role};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Longest time between two questions.
const SILENT: Duration = Duration::from_secs(60);
/// Longest answer, bytes: with its tag and length it fits into a frame.
const MAX_REPLY: usize = MAX_FRAME - 1024;
/// Longest that nodes are waited for.
const MOST_PATIENCE: Duration = Duration::from_secs(600);

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Steer,
    /// Ask how the cluster is, and why no more than that.
    Look(&'static str),
}

/// With certificates the role decides; without, steering is for this machine.
pub(super) fn rights(certificate: Option<&Certificate>, peer: SocketAddr, config: &Config) -> Rights {
    match certificate {
        Some(certificate) if certificate.role == Some(Role::Operator) => Rights::Steer,
        Some(_) => Rights::Look(
            "your certificate is one of a reader, who may look and not steer; make one with `miot pki operator`",
        ),
        None if peer.ip().is_loopback() || config.allow_insecure => Rights::Steer,
        None => Rights::Look("without TLS nodes are steered from the log-server's machine alone"),
    }
}

pub(super) async fn serve<R, W>(
    mut frames: Frames<R>,
    mut writer: W,
    (who, rights): (String, Rights),
    shared: Arc<Shared>,
    mut ending: Ending,
) -> Result<(), End>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    // A server that stops does not wait for operators.
    drop(ending.reading);
    say(&mut writer, &Message::Welcome { version: VERSION, through: 0 }).await?;
    let (budget, pace) = (Budget::new(2 * MAX_ORDER), Pace::default());
    loop {
        let next = timeout(SILENT, frames.next(2 * MAX_ORDER, &budget, &pace));
        let message = tokio::select! {
            message = next => message,
            _ = ending.stop.wait_for(|stop| *stop) => return Ok(()),
        };
        let message = match message {
            Err(_) => Err(End::Silent(SILENT)),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some((Message::Ask { request }, _)))) => Ok(request),
            Ok(Ok(Some(_))) => Err(Refusal::Rule("an operator asks, and says nothing else").into()),
        };
        let request = match message {
            Ok(request) => request,
            Err(end) => {
                last_word(&mut writer, &end).await;
                return Err(end);
            }
        };
        let reply = answer(&request, &who, rights, &shared).await;
        let mut reply = serde_json::to_vec(&reply).unwrap_or_default();
        if reply.len() > MAX_REPLY {
            let refused = Reply::Refused(format!(
                "the answer has {} bytes, at most {MAX_REPLY} fit; over HTTP there are /api/status and /api/watch",
                reply.len()
            ));
            reply = serde_json::to_vec(&refused).unwrap_or_default();
        }
        say(&mut writer, &Message::Answer { reply }).await?;
    }
}

async fn answer(request: &[u8], who: &str, rights: Rights, shared: &Arc<Shared>) -> Reply {
    let (nodes, errand, patience) = match (serde_json::from_slice(request), rights) {
        (Err(error), _) => return Reply::Refused(format!("this log-server does not understand: {error}")),
        (Ok(Request::Status), _) => return Reply::Status(Box::new(shared.status())),
        (Ok(Request::Watch { window, top, step, steps }), _) => {
            let wanted = Wanted { window, top: top as usize, step, steps: steps as usize };
            let watched = page::watched(shared, wanted).await;
            let busy = || Reply::Refused("too many ask the log-server at once".to_owned());
            return watched.map_or_else(busy, |watched| Reply::Watched(Box::new(watched)));
        }
        (Ok(Request::Steer { .. }), Rights::Look(reason)) => return Reply::Refused(reason.to_owned()),
        (Ok(Request::Steer { nodes, errand, patience_ms }), Rights::Steer) => {
            (nodes, errand, Duration::from_millis(patience_ms).min(MOST_PATIENCE))
        }
    };
    tracing::info!(operator = who, nodes, ?errand, "nodes are steered");
    let known = shared.monitor.names();
    shared.steering.steer(&nodes, errand, known, patience).await.unwrap_or_else(Reply::Refused)
}

async fn say<W: AsyncWrite + Unpin>(writer: &mut W, message: &Message) -> Result<(), End> {
    let sending = async {
        writer.write_all(&message.frame()).await?;
        writer.flush().await
    };
    Ok(timeout(SILENT, sending).await.map_err(std::io::Error::from)??)
}
