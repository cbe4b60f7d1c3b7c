//! Bringing facts to the log-server.
//!
//! ```text
//! sweeper thread                                  tokio task
//! Outbox: encode, number, frame ──► spool ──► connection ──► Transport ══► log-server
//!                                     ▲──────────── Ack ◄──────────┘
//! ```
//!
//! # Sequence numbers and repeats
//!
//! * `Process`, `Stream`, `Batch`, `StreamEnd` and `ProcessEnd` carry numbers from 1, without a gap, in a session.
//!   They are sent in order and kept until acknowledged. A log-client that finds the spool of one that was
//!   killed goes on with its session and its numbers.
//! * On a new connection, what `Welcome.through` covers is dropped, and everything else is sent again in
//!   order with the numbers it had. A server that has forgotten what it acknowledged (`through` smaller than
//!   an earlier `Ack`) sees the numbers start higher than `through + 1`: those before are gone from here.
//! * Stream numbers mean something only on one connection, so before that, the definitions of all processes
//!   and streams whose own message was acknowledged but whose end was not, are sent with number 0, processes
//!   before their streams. A definition is idempotent: the server knows it by its key. Number 0 is never
//!   acknowledged.
//! * `Heartbeat` has no number. It is sent after everything that was found before it, and again after a
//!   repeat, so it is true on every connection.
//! * Batches that the server already has are known by stream key and attempt number.

mod connection;
#[cfg(test)]
mod faulty;
mod outbox;
mod retry;
mod stream;
mod tcp;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use connection::{Office, ship};
pub(crate) use outbox::{Outbox, Shipped};
pub(crate) use tcp::Tcp;

use miot_tls::TlsClient;
use std::sync::Arc;
use std::time::Duration;

/// Whom to talk to, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) server: String,
    pub(crate) node: String,
    /// A connection on which nothing comes for so long is given up.
    pub(crate) dead_after: Duration,
    /// Without it nobody proves who they are.
    pub(crate) tls: Option<Arc<TlsClient>>,
}
