//! Connections of log-clients and log-servers through a broker: a NATS server with JetStream.
//!
//! ```text
//! log-client ══► STREAM.up.NODE ═══ JetStream ═══► log-server     frames, kept until read
//!            ◄── STREAM.down.NODE ── NATS ───────                 frames, progress
//!            ──► STREAM.now.NODE ─── NATS ──────►                 frames that overtake others
//!            ──► STREAM.knock.NODE ─ NATS ──────►                 a connection begins
//!            ◄── STREAM.server ───── NATS ───────                 a log-server begins
//! ```
//!
//! A connection carries the same bytes as a TCP connection: frames of the protocol, from the
//! greeting on. Each message of the broker has a header (`message`) with the number of its
//! connection and its index in it. A message that is missing ends the connection, and the
//! log-client sends everything again that is not acknowledged. So the broker may lose, repeat or
//! forget anything: a spool is freed by the log-server's own acknowledgments only, and those arrive
//! as frames.
//!
//! While no log-server is there, a connection begins all the same: the greeting and everything
//! after it wait in the broker, up to [`Settings::window`], and are read when a log-server comes,
//! even if the node is gone by then.
//!
//! | module | role |
//! |---|---|
//! | `settings` | address, credentials, names of subjects |
//! | `message` | header of a message |
//! | `frames` | ends of frames among the bytes of a connection |
//! | `link` | connection to the broker, and its end |
//! | `state` | state of a broker as it is displayed |
//! | `stream` | the stream of JetStream: created, checked |
//! | `node` | connections of a log-client |
//! | `server` | connections to a log-server |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod credentials;
mod error;
#[cfg(feature = "nats")]
mod frames;
#[cfg(feature = "nats")]
mod link;
#[cfg(feature = "nats")]
mod message;
#[cfg(feature = "nats")]
pub mod node;
#[cfg(feature = "nats")]
pub mod server;
mod settings;
mod state;
#[cfg(feature = "nats")]
pub mod stream;

pub use error::Error;
pub use settings::{MIN_WINDOW, Settings};
pub use state::{BrokerState, StreamState};
