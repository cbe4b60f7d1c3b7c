//! What the daemons of MIOT share as services of a system: logs, signals, and what they tell the service manager.
//!
//! | module | role |
//! |---|---|
//! | [`logging`] | logs for a terminal, or with fields for the journal |
//! | `journal` | one entry of the journal |
//! | [`signals`] | stop, reload |
//! | [`notify`] | ready, reloading, stopping: the service manager is told, if there is one |
//! | [`settings`] | as a file has them, and what is different in others |
//! | [`watchdog`] | a daemon whose work stands still is restarted |
//!
//! Without a service manager all of it does nothing, at no cost.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod journal;
pub mod logging;
pub mod notify;
pub mod settings;
pub mod signals;
pub mod watchdog;

pub use watchdog::{Heart, Watchdog};
