//! The session of an operator: status queries, and commands for nodes.

use super::{PeerAddress, SessionEnd, Shutdown, send_final_message};
use crate::error::Refusal;
use crate::live::activity::ActivityRequest;
use crate::live::page;
use crate::net::frames::Frames;
use crate::settings::config::Config;
use crate::shared::Shared;
use crate::store::budget::Budget;
use crate::store::watermarks::FlowControl;
use miot_proto::command::{MAX_COMMAND, OperatorReply, OperatorRequest};
use miot_proto::wire::{MAX_FRAME, Message, VERSION};
use miot_tls::{Certificate, Role};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Maximum time between two requests.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// Maximum length of an answer, bytes: with its tag and length it fits into a frame.
const MAX_REPLY: usize = MAX_FRAME - 1024;
/// Maximum time to wait for the answers of nodes.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Rights of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Control,
    /// Read-only access, and the reason why there is no more.
    ReadOnly(&'static str),
}

/// An operator after the greeting.
#[derive(Debug)]
pub(super) struct Operator {
    /// Names of the certificate, or the name of the host.
    pub(super) name: String,
    pub(super) rights: Rights,
}

/// With certificates, the role decides. Without certificates, only operators on this machine may
/// send commands.
pub(super) fn rights(certificate: Option<&Certificate>, peer: PeerAddress, config: &Config) -> Rights {
    match certificate {
        Some(certificate) if certificate.role == Some(Role::Operator) => Rights::Control,
        Some(_) => Rights::ReadOnly(
            "your certificate has the role of a reader, which may not control nodes; create one with `miot pki operator`",
        ),
        None if config.allow_insecure || matches!(peer, PeerAddress::Socket(at) if at.ip().is_loopback()) => {
            Rights::Control
        }
        None => Rights::ReadOnly("without TLS, nodes can be controlled only from the log-server's machine"),
    }
}

pub(super) async fn serve<R, W>(
    mut frames: Frames<R>,
    mut writer: W,
    Operator { name, rights }: Operator,
    shared: Arc<Shared>,
    mut shutdown: Shutdown,
) -> Result<(), SessionEnd>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    // The server does not wait for operators when it stops.
    drop(shutdown.reading);
    send(&mut writer, &Message::Welcome { version: VERSION, through: 0 }).await?;
    let (budget, flow) = (Budget::new(2 * MAX_COMMAND), FlowControl::default());
    loop {
        let next = timeout(MAX_IDLE, frames.next(2 * MAX_COMMAND, &budget, &flow));
        let message = tokio::select! {
            message = next => message,
            _ = shutdown.stop.wait_for(|stop| *stop) => return Ok(()),
        };
        let message = match message {
            Err(_) => Err(SessionEnd::Silent(MAX_IDLE)),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some((Message::Request { request }, _)))) => Ok(request),
            Ok(Ok(Some(_))) => Err(Refusal::Rule("an operator sent a message other than a request").into()),
        };
        let request = match message {
            Ok(request) => request,
            Err(end) => {
                send_final_message(&mut writer, &end).await;
                return Err(end);
            }
        };
        let reply = answer(&request, &name, rights, &shared).await;
        let mut reply = serde_json::to_vec(&reply).unwrap_or_default();
        if reply.len() > MAX_REPLY {
            let refused = OperatorReply::Refused(format!(
                "the answer has {} bytes, the maximum is {MAX_REPLY}; use /api/status and /api/watch over HTTP",
                reply.len()
            ));
            reply = serde_json::to_vec(&refused).unwrap_or_default();
        }
        send(&mut writer, &Message::Reply { reply }).await?;
    }
}

async fn answer(request: &[u8], name: &str, rights: Rights, shared: &Arc<Shared>) -> OperatorReply {
    let (nodes, command, wait) = match (serde_json::from_slice(request), rights) {
        (Err(error), _) => {
            return OperatorReply::Refused(format!("this log-server cannot parse the request: {error}"));
        }
        (Ok(OperatorRequest::Status), _) => return OperatorReply::Status(Box::new(shared.status())),
        (Ok(OperatorRequest::Watch { window, top, step, steps }), _) => {
            let request = ActivityRequest { window, top: top as usize, step, steps: steps as usize };
            let activity = page::activity(shared, request).await;
            let busy = || OperatorReply::Refused("too many concurrent requests, try again".to_owned());
            return activity.map_or_else(busy, |activity| OperatorReply::Watched(Box::new(activity)));
        }
        (Ok(OperatorRequest::Steer { .. }), Rights::ReadOnly(reason)) => {
            return OperatorReply::Refused(reason.to_owned());
        }
        (Ok(OperatorRequest::Steer { nodes, command, timeout_ms }), Rights::Control) => {
            (nodes, command, Duration::from_millis(timeout_ms).min(MAX_WAIT))
        }
    };
    tracing::info!(operator = name, nodes, ?command, "sending a command to nodes");
    let known = shared.monitor.node_names();
    let reply = shared.steering.steer(&nodes, command, known, wait).await;
    reply.unwrap_or_else(|error| OperatorReply::Refused(error.to_string()))
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut W, message: &Message) -> Result<(), SessionEnd> {
    let sending = async {
        writer.write_all(&message.frame()).await?;
        writer.flush().await
    };
    Ok(timeout(MAX_IDLE, sending).await.map_err(std::io::Error::from)??)
}
