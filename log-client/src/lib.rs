//! The per-node daemon of MIOT. It finds the segments of traced processes, drains them without
//! trusting their content, and ships their events to the log-server.
//!
//! ```text
//!  segments ──pread──► sweeper thread ──► spool ──► tokio task ══TCP══► log-server
//!           ◄─pwrite── segment: check, parse        ship: send, resend
//!                      clock: ticks to time         ◄── acknowledge
//!                      watermark: all sent up to here
//! ```
//!
//! | module | role |
//! |---|---|
//! | [`cli`] | the command line of `log-client` |
//! | [`config`], [`error`] | settings; errors that prevent or end a run |
//! | `directory` | the MIOT directory: one log-client per directory, the control page |
//! | `sweeper` | finds segments, detects the end of processes, schedules sweeps and sleeps |
//! | `segment` | parses one segment: untrusted bytes in, records out |
//! | `clock` | converts raw ticks to nanoseconds since 1970, monotonically |
//! | `watermark` | the watermark of the node: definition and proof |
//! | [`in_flight`] | for tools: lists the requests in flight on this node |
//! | `pace` | how soon the log-server needs events and watermarks |
//! | `facts`, `survey` | data that the sweeper passes to shipping and to reporting |
//! | `report` | status reports to the log-server; commands from the log-server |
//! | `spool` | unacknowledged messages, in files that survive the log-client |
//! | [`servers`] | several log-servers: which one gets new records, and when that changes |
//! | `ship` | connection, transmission and retransmission |
//!
//! Guarantees: no byte of a segment can crash, block or stall the log-client. Events that a process
//! committed are delivered even if the process was killed. No event is delivered below a watermark
//! that was already sent. A log-client that is killed, at any instruction, loses nothing: all
//! records that it took from the lanes are in the spool, and the next log-client continues from
//! there.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod cli;
mod client;
mod clock;
pub mod config;
mod devices;
mod directory;
pub mod error;
mod facts;
pub mod in_flight;
mod pace;
mod report;
mod segment;
pub mod servers;
mod ship;
mod spool;
mod survey;
mod sweeper;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod until;
mod watermark;

pub use client::{LogClient, RunSummary};
pub use config::Config;
pub use directory::{Control, ControlError, ControlView, IN_MEMORY, ReaderStatus, SnapshotStatus};
pub use error::Error;
