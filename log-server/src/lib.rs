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
//! | [`config`], [`tuning`], [`error`] | settings, which of them change at run time, and what can stop a server |
//! | `net`, `tls`, `session`, `frames` | connections: limits, who is who, greeting, rules of the protocol, decoding |
//! | `shared` | what sessions, pages and the store have in common |
//! | `limits` | who may connect, and what one node may use |
//! | [`budget`], [`nodes`] | back-pressure, and which node holds the merge back |
//! | [`clock`] | how far a node's clock is off |
//! | [`merge`] | the order of the trace; drops repeats, finds gaps |
//! | [`catalog`], [`handles`], [`resolve`] | ids of processes, streams, files; which file a row is about |
//! | [`history`] | what a restarted server must know of its trace |
//! | [`ops`], [`rows`], [`side`] | rows as record batches |
//! | [`sink`], [`acks`], `store` | durable, then acknowledged |
//! | `allocator` | keeps freed memory |
//! | `monitor` | how server and nodes are: HTTP, metrics |
//! | `steer` | what operators want of nodes, remembered and passed on |
//! | `watch`, `page` | what happens now, for `miot top` and browsers |
//! | [`tail`], `past` | remote readers of the merged rows, those to come and those that were |
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
mod limits;
pub mod merge;
mod monitor;
mod net;
pub mod nodes;
pub mod ops;
mod page;
mod past;
pub mod resolve;
pub mod rows;
mod session;
mod shared;
pub mod side;
pub mod sink;
mod steer;
mod store;
pub mod tail;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod tls;
pub mod tuning;
mod watch;

pub use allocator::keep_freed_memory;
pub use config::Config;
pub use error::Error;
pub use net::{Listening, LogServer};
pub use store::Report;
pub use tuning::Tuning;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The server's clock, nanoseconds since 1970: this machine's at the first call, and the time since then. So steps of the
/// machine's clock are not followed, as they would step all nodes against each other and against the trace.
fn now() -> i64 {
    static START: OnceLock<(Instant, i64)> = OnceLock::new();
    let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    // The closest of some pairs of readings.
    let read = |_| {
        let before = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanoseconds);
        let gap = before.elapsed();
        (gap, before + gap / 2, since)
    };
    let (start, time) = START.get_or_init(|| {
        let closest = (0..16).map(read).min().map(|(_, start, time)| (start, time));
        closest.unwrap_or_else(|| (Instant::now(), 0))
    });
    time.saturating_add(nanoseconds(start.elapsed()))
}

/// Locks. What is guarded here is never left half changed, so it does not matter whether another thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
