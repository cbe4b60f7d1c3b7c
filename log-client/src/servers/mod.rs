//! Several log-servers: which one gets the records of this node, and when that changes.
//!
//! | module | role |
//! |---|---|
//! | `preference` | order of preference of a node, by rendezvous hashing |
//! | `spool_dirs` | one spool for each log-server, in numbered directories |
//! | `spools` | the spool in use and those that are not delivered yet |
//! | `members` | the log-servers of the set, and what is known of them |
//! | `probe` | asks a log-server for its identity |
//! | `delivery` | connections to all log-servers that have a spool |
//! | `rules` | when a node leaves its log-server, and when it returns |
//! | `assignment` | asks the log-servers, and moves the streams as the rules say |
//!
//! # Exactly once, without an agreement between log-servers
//!
//! A record is written to one spool, and a spool is offered to one log-server. To change the
//! log-server, the sweeper ends all streams in the old spool and continues them in a new one, at
//! the attempt numbers at which they ended ([`crate::segment`], `moving`). The old spool stays
//! until its own log-server has acknowledged it. The new spool becomes the current one in one step,
//! the rename of a file. A log-client that is killed before it continues with the old spool; the
//! new one was never offered to anybody and is removed.

mod assignment;
mod delivery;
mod members;
mod preference;
mod probe;
mod rules;
mod spool_dirs;
mod spools;

pub(crate) use assignment::{Assignment, ServerSet};
pub(crate) use members::Members;
pub use preference::preference;
#[cfg(any(test, feature = "testing"))]
pub(crate) use rules::{Rules, Step};
pub(crate) use spool_dirs::{OpenedSpools, SpoolDirs};
pub(crate) use spools::Spools;
