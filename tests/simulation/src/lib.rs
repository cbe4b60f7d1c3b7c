//! A deterministic simulation of a cluster: up to 100 000 nodes and 64 log-servers, in virtual
//! time.
//!
//! # What is real, and what is simulated
//!
//! | part | code |
//! |---|---|
//! | which log-server a node prefers, when it leaves and when it returns | log-client (`servers/preference.rs`, `rules.rs`) |
//! | waits between two attempts to connect | log-client (`ship/backoff.rs`) |
//! | watermark of a node, stopped threads, moved times | log-client (`watermark.rs`, `sweeper/node_watermark.rs`) |
//! | rules of the protocol, correction of clocks, conversion of times | log-server (`session/node`, `clock/`) |
//! | memory budgets, sessions, acknowledgments, silent nodes, merge, final time, restart | log-server (`store/`, the whole store) |
//! | trace directory, its check, reading of a set | trace store |
//! | lanes, files of the spool, sockets, TLS, encoding of frames | simulated here |
//!
//! A simulated lane is a queue with a capacity, a simulated spool a numbered queue: spools of
//! 100 000 nodes would be as many open directories and locks. Their files have tests of their own.
//!
//! # Why a loop of its own
//!
//! `turmoil` and `madsim` simulate hosts of asynchronous code. Neither fits here:
//!
//! - The decisions that are tested are synchronous: state machines that get the time as an
//!   argument. The store of a log-server is a thread that waits on a channel, which neither of the
//!   two runs.
//! - `turmoil` gives each host a tokio runtime of its own and lets each one run in each step. With
//!   100 000 hosts and steps of 1 ms that are 100 million turns for each second of virtual time.
//! - `madsim` replaces tokio, and every crate that opens sockets, under a compiler flag of its own:
//!   then another program is tested than the one that is installed.
//!
//! A heap of events in the order of virtual time takes less than 1 µs per event. One thread runs
//! everything, all random numbers come from the seed, and no clock is read: a seed gives the same
//! run again.
//!
//! | module | role |
//! |---|---|
//! | [`plan`] | size, settings, faults and deliberate bugs of a run |
//! | `queue` | the heap of events |
//! | `node` | a node: lane, log-client, spools |
//! | `spool` | numbered messages for one log-server, and their connection |
//! | `network` | delays and partitions |
//! | `servers` | log-servers and the ends of their connections |
//! | `world` | the loop |
//! | `faults` | what happens to log-servers, network and nodes |
//! | [`judge`] | conservation: what must hold at the end |
//! | [`figures`] | balance, time until all nodes are back, connections per second |

pub mod figures;
pub mod judge;
pub mod plan;

mod faults;
mod network;
mod node;
mod queue;
mod servers;
mod spool;
mod world;

pub use judge::Verdict;
pub use plan::{Bug, Fault, Plan};
pub use world::{Outcome, run};

/// Virtual time, nanoseconds since the start of the simulation.
pub(crate) type Time = u64;

/// One second.
pub(crate) const SECOND: Time = 1_000_000_000;
/// One millisecond.
pub(crate) const MILLISECOND: Time = 1_000_000;
/// The true time at the start, nanoseconds since 1970.
pub(crate) const EPOCH: i64 = 1_800_000_000_000_000_000;
