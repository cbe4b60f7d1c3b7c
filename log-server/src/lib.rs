//! The central daemon of MIOT: receives the streams of all nodes, merges them into one order, and writes
//! the trace directory.
//!
//! ```text
//!  nodes ══TCP══► net ► session ──Input──► store ─────────────────────► trace directory
//!                        decode, check,     catalog: ids                  ▲
//!                        correct times      merge: order by watermarks    │ sink: commit, retry, seal
//!                        (tokio tasks)      resolve, rows: columns ───────┘
//!                  ◄══Ack══                 (one thread)  └──► tail ══TCP══► readers
//! ```
//!
//! | module | role |
//! |---|---|
//! | [`config`], [`error`] | settings, and what can stop a server |
//! | `net`, `session`, `frames` | connections: limits, greeting, rules of the protocol, decoding |
//! | [`budget`], [`nodes`] | back-pressure, and which node holds the merge back |
//! | [`clock`] | how far a node's clock is off |
//! | [`merge`] | the order of the trace; drops repeats, finds gaps |
//! | [`catalog`], [`handles`], [`resolve`] | ids of processes, streams, files; which file a row is about |
//! | [`history`] | what a restarted server must know of its trace |
//! | [`ops`], [`rows`], [`side`] | rows as record batches |
//! | [`sink`], [`acks`], `store` | durable, then acknowledged |
//! | `allocator` | keeps freed memory |
//! | [`tail`] | remote readers of the merged rows |
//!
//! Guarantees: an event that was acknowledged is in the trace once, whatever is repeated; rows that are not
//! marked late are in order of (time, stream, attempt number); a gap in a stream's attempt numbers is a row
//! in `losses`; a peer can use up its own connection and no more memory than is configured.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod acks;
mod allocator;
pub mod budget;
pub mod catalog;
pub mod clock;
pub mod config;
pub mod error;
mod frames;
pub mod handles;
pub mod history;
mod input;
pub mod merge;
mod net;
pub mod nodes;
pub mod ops;
pub mod resolve;
pub mod rows;
mod session;
pub mod side;
pub mod sink;
mod store;
pub mod tail;

pub use allocator::keep_freed_memory;
pub use config::Config;
pub use error::Error;
pub use net::LogServer;
pub use store::Report;

/// Nanoseconds since 1970 by this machine's clock.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
