//! The per-node daemon of MIOT: finds the segments of traced processes, drains them without trusting them,
//! and ships their events to the log-server.
//!
//! ```text
//!  segments ──pread──► sweeper thread ──► spool ──► tokio task ══TCP══► log-server
//!           ◄─pwrite── segment: check, parse        ship: send, resend
//!                      clock: ticks to time         ◄── acknowledge
//!                      watermark: the promise
//! ```
//!
//! | module | role |
//! |---|---|
//! | [`config`], [`error`] | settings, and what can stop a log-client |
//! | `home` | the MIOT directory: one log-client, the control page |
//! | `sweeper` | finds segments and the end of processes; when to sweep, when to sleep |
//! | `segment` | one segment: hostile bytes in, records out |
//! | `clock` | raw ticks to nanoseconds since 1970, never backwards |
//! | `watermark` | what the node may promise, and why |
//! | [`in_flight`] | for tools: what hangs on this node |
//! | `facts` | what passes from sweeping to shipping |
//! | `report` | how this log-client is, for the log-server, and what that wants of it |
//! | `spool` | what is not acknowledged, in files that outlive a log-client |
//! | `ship` | numbering, connection, what is sent again |
//! | `random` | waits that differ from node to node |
//!
//! Guarantees: no byte of a segment can crash, block or wedge the log-client; what a process committed is
//! delivered also when the process was killed; no event is delivered below a watermark already sent. A
//! log-client that is itself killed, at any instruction, loses nothing: what it had taken from the lanes is in the
//! spool, and the next log-client goes on.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod client;
mod clock;
pub mod config;
mod devices;
pub mod error;
mod facts;
mod home;
pub mod in_flight;
mod random;
mod report;
mod segment;
mod ship;
mod spool;
mod sweeper;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod until;
mod watermark;

pub use client::{LogClient, Report};
pub use config::Config;
pub use error::Error;
pub use home::{Control, ControlError, IN_MEMORY, Reader, Snapshots, View};
