//! Bringing facts to the log-server.
//!
//! ```text
//! sweeper thread                      tokio task
//! Outbox: encode, number, frame ──►  Pending: not acknowledged yet ──► connection ──► log-server
//!         crossbeam channel                   ▲─────────── Ack ◄──────────┘
//! ```
//!
//! # Sequence numbers and repeats
//!
//! * `Process`, `Stream`, `Batch`, `StreamEnd` and `ProcessEnd` carry numbers from 1, without a gap, for the
//!   life of this log-client (its session). They are sent in order and kept until acknowledged.
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
//!
//! # Memory
//!
//! What is not acknowledged is held up to `memory` bytes. When it is full, [`Outbox::has_room`] tells the
//! sweeper to leave the lanes alone, which makes the producers' own policy decide. Not yet: a spool on disk,
//! so a log-client that is killed loses what it held. What the sweeper needs for that is there: it gives a
//! lane's slots back only after the sink took their records.

mod connection;
mod outbox;
mod pending;
#[cfg(test)]
mod tests;

pub(crate) use connection::{Left, Peer, ship};
pub(crate) use outbox::{Outbox, Shipped, channel};
