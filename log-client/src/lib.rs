//! The per-node daemon of MIOT: finds the segments of traced processes, drains them without trusting them,
//! and ships their events to the log-server.
//!
//! ```text
//!  segments ──pread──► sweeper thread ──crossbeam──► tokio task ══TCP══► log-server
//!           ◄─pwrite── segment: check, parse          ship: keep, resend
//!                      clock: ticks to time           ◄── acknowledge
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
//! | `facts` | what passes from sweeping to shipping |
//! | `ship` | numbering, memory, connection, what is sent again |
//!
//! Guarantees: no byte of a segment can crash, block or wedge the log-client; what a process committed is
//! delivered also when the process was killed; no event is delivered below a watermark already sent. A
//! log-client that is itself killed loses what the log-server has not acknowledged; a clean stop loses
//! nothing if the log-server answers within [`Config::stop`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod client;
mod clock;
pub mod config;
pub mod error;
mod facts;
mod home;
mod segment;
mod ship;
mod sweeper;
mod watermark;

pub use client::{LogClient, Report};
pub use config::Config;
pub use error::Error;
#[doc(hidden)]
pub use segment::sweep_bytes;
