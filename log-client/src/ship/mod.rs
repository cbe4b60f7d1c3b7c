//! Delivery of spooled messages to the log-server.
//!
//! ```text
//! sweeper thread                                  tokio task
//! Outbox: encode, number, frame ──► spool ──► connection ──► Transport ══► log-server
//!                                     ▲──────────── Ack ◄──────────┘
//! ```
//!
//! # Sequence numbers and retransmission
//!
//! * `Process`, `Stream`, `Batch`, `StreamEnd` and `ProcessEnd` carry sequence numbers, from 1 and
//!   without gaps in a session. They are sent in order and kept until acknowledged. A log-client
//!   that finds the spool of a killed one continues its session and its numbers.
//! * On a new connection, messages covered by `Welcome.through` are dropped, and all others are
//!   sent again in order with their original numbers. A server that has lost what it acknowledged
//!   (`through` below an earlier `Ack`) sees the numbers start above `through + 1`: the messages
//!   before no longer exist here.
//! * Stream numbers are valid only on one connection. So before that, the definitions of all
//!   processes and streams whose own message was acknowledged but whose end was not are sent with
//!   number 0, processes before their streams. A definition is idempotent: the server identifies it
//!   by its key. Number 0 is never acknowledged.
//! * `Heartbeat` has no number. It is sent after all messages that it covers, and again after a
//!   retransmission, so it is true on every connection.
//! * The server detects repeated batches by stream key and attempt number.

mod backoff;
#[cfg(feature = "broker")]
mod broker;
mod connection;
#[cfg(test)]
mod faulty;
mod stream;
mod tcp;
#[cfg(test)]
mod tests;
mod transport;

#[cfg(any(test, feature = "testing"))]
pub(crate) use backoff::Backoff;
#[cfg(feature = "broker")]
pub(crate) use broker::Broker;
pub(crate) use connection::{NodeServices, ship};
pub(crate) use tcp::{Tcp, ask, receive};

use crate::config::Config;
use crate::servers::Members;
use miot_tls::TlsClient;
use std::sync::Arc;
use std::time::Duration;

/// The log-server, and the identity of this node.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Address of the log-server, or of the broker before it.
    pub(crate) server: String,
    pub(crate) node: String,
    /// A connection without any input for this long is closed.
    pub(crate) dead_after: Duration,
    /// `None`: neither encryption nor authentication.
    pub(crate) tls: Option<Arc<TlsClient>>,
    /// `None`: the only log-server.
    pub(crate) set: Option<Arc<Members>>,
}

impl Peer {
    pub(crate) fn new(config: &Config, tls: Option<Arc<TlsClient>>) -> Peer {
        let server = config.members().swap_remove(0);
        let node = config.node.clone();
        Peer { server, node, dead_after: config.dead_after, tls, set: None }
    }

    /// A member of a set of log-servers.
    pub(crate) fn of_set(self, set: Arc<Members>) -> Peer {
        Peer { set: Some(set), ..self }
    }

    /// The log-server at another address.
    pub(crate) fn at(&self, server: &str) -> Peer {
        Peer { server: server.to_owned(), ..self.clone() }
    }
}
