//! The central daemon of MIOT. It receives the streams of all nodes, merges them into one order
//! and writes the trace directory.
//!
//! ```text
//!  nodes ══TCP══► net ► session ──Input──► store ─────────────────────► trace directory
//!                        decode, check,     catalog: ids                  ▲
//!                        correct times      merge: order by watermarks    │ sink: commit, seal
//!                        (tokio tasks)      resolve, events: columns ─────┘
//!                  ◄══Ack══                 (one thread)  └──► tail ══TCP══► readers
//! ```
//!
//! | module | role |
//! |---|---|
//! | `net` | listening, TLS handshakes, frames, and limits on connections, memory and rates |
//! | `session` | one connection: the greeting, the roles of peers, the rules of the protocol |
//! | `shared` | state that sessions, HTTP pages and the store share |
//! | [`store`] | the thread that owns the trace: memory budget, watermarks, merge, commits, acknowledgments |
//! | [`ids`] | ids of nodes, processes, streams and files, and their state in the existing trace |
//! | [`columns`] | merged rows as record batches: operations, files of events, side tables |
//! | [`clock`] | offset, drift and error of a node's clock, and the correction of its times |
//! | [`live`] | remote readers (past and future rows), live activity for `miot top`, the web page |
//! | `monitor` | status of the server and its nodes: HTTP, metrics |
//! | `steering` | commands of operators for nodes: stored and forwarded |
//! | [`settings`] | the configuration, and the keys that change at run time |
//! | [`cli`] | the command line of `log-server` |
//! | [`error`] | errors that stop a server, and reasons for refusing a peer |
//! | `allocator` | makes the C library keep freed memory |
//!
//! Guarantees:
//!
//! * An acknowledged event is in the trace exactly once, no matter what is sent repeatedly.
//! * Rows that are not marked late are in the order of (time, stream, attempt number).
//! * A gap in the attempt numbers of a stream is a row in `losses`.
//! * A peer can exhaust its own connection, and no more memory than is configured.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod allocator;
pub mod cli;
pub mod clock;
pub mod columns;
pub mod error;
pub mod ids;
pub mod live;
mod monitor;
mod net;
mod session;
pub mod settings;
mod shared;
mod steering;
pub mod store;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use allocator::keep_freed_memory;
pub use error::Error;
pub use net::{ListeningServer, LogServer};
pub use session::collect_messages;
pub use settings::config::{self, Config};
pub use settings::tuning::Tuning;
pub use store::RunSummary;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The server's clock: the machine's clock at one moment plus the monotonic time since then. Steps
/// of the machine's clock are ignored on purpose: they would shift all nodes against each other and
/// against the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    start: Instant,
    /// Nanoseconds since 1970 at `start`.
    time: i64,
}

impl ServerClock {
    /// The clock of this process.
    pub(crate) fn of_process() -> ServerClock {
        static CLOCK: OnceLock<ServerClock> = OnceLock::new();
        // Of several pairs of readings, the pair with the shortest gap is the most accurate.
        let read = |_| {
            let before = Instant::now();
            let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanoseconds);
            let gap = before.elapsed();
            (gap, before + gap / 2, since)
        };
        *CLOCK.get_or_init(|| {
            let closest = (0..16).map(read).min().map(|(_, start, time)| (start, time));
            let (start, time) = closest.unwrap_or_else(|| (Instant::now(), 0));
            ServerClock { start, time: time.saturating_add(test_offset()) }
        })
    }

    /// Nanoseconds since 1970 at `now`.
    pub(crate) fn at(self, now: Instant) -> i64 {
        self.time.saturating_add(nanoseconds(now.saturating_duration_since(self.start)))
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the server's time in nanoseconds since 1970.
fn now() -> i64 {
    ServerClock::of_process().at(Instant::now())
}

/// Artificial error of the server's clock, nanoseconds: `MIOT_TEST_CLOCK=offset=3600s`. For tests
/// only, in which log-servers of one machine stand for machines with different clocks.
fn test_offset() -> i64 {
    let Ok(text) = std::env::var("MIOT_TEST_CLOCK") else { return 0 };
    let seconds = text.strip_prefix("offset=").and_then(|text| text.strip_suffix('s')?.parse::<i64>().ok());
    match seconds {
        Some(seconds) => tracing::warn!(seconds, "the clock has an artificial error (MIOT_TEST_CLOCK)"),
        None => tracing::error!(text, "MIOT_TEST_CLOCK is not of the form offset=3600s, ignoring it"),
    }
    seconds.unwrap_or(0).saturating_mul(1_000_000_000)
}

/// Locks `mutex`, also after a panic of another thread: no code here leaves guarded data
/// half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
