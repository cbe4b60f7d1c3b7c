//! Asks a log-server for its identity, without becoming one of its nodes.

use crate::ship::{Peer, ask};
use miot_proto::wire::{MemberIdentity, Message, Role, SETS_SINCE_MINOR, VERSION};
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum time of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the identity of the log-server of `peer`.
///
/// # Errors
/// The log-server is not reachable, refuses this node, or has an earlier version.
pub(super) async fn probe(peer: &Peer) -> io::Result<MemberIdentity> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PROBE_TIMEOUT:?}"));
    timeout(PROBE_TIMEOUT, identity(peer)).await.map_err(late)?
}

async fn identity(peer: &Peer) -> io::Result<MemberIdentity> {
    let (mut reader, _writer, answer) = ask(peer, Role::Probe, 0).await?;
    match answer {
        Message::Welcome { version, .. }
            if version.major != VERSION.major || version.minor < SETS_SINCE_MINOR =>
        {
            Err(io::Error::other(
                "it has an earlier version of MIOT, which cannot be in a set of log-servers",
            ))
        }
        Message::Welcome { .. } => match crate::ship::receive(&mut reader).await? {
            Message::Member { member } => Ok(member),
            _ => Err(io::Error::other("it does not tell its partition")),
        },
        Message::Refused { reason, .. } => Err(io::Error::other(reason)),
        _ => Err(io::Error::other("the peer is not a MIOT log-server")),
    }
}
