//! Code that the log-client and the log-server share because both are daemons of a system:
//! configuration, logs, signals, the service manager, HTTP for monitoring, and privileges.
//!
//! | module | role |
//! |---|---|
//! | [`config`] | loads settings from defaults, a file, the environment and options |
//! | [`settings`] | writes settings as TOML, compares them, explains errors in them |
//! | [`program`] | the frame of `main`: logs, exit codes, and reloading of certificates |
//! | [`logging`] | logs on standard error, or in the journal of systemd |
//! | `journal` | entries of the journal with fields |
//! | [`signals`] | stop and reload |
//! | [`notify`] | reports to the service manager: ready, reloading, stopping |
//! | [`watchdog`] | lets the service manager restart a daemon with a loop that does not progress |
//! | [`http`] | HTTP listener: which connection may see which pages, limits |
//! | [`exposition`] | metrics in the text format of Prometheus |
//! | [`privileges`] | gives up root and capabilities |
//!
//! Without a service manager the notifications and the watchdog do nothing and cost nothing.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod config;
pub mod exposition;
pub mod http;
mod journal;
pub mod logging;
pub mod notify;
pub mod privileges;
pub mod program;
pub mod settings;
pub mod signals;
pub mod watchdog;

pub use exposition::Exposition;
pub use http::{Http, Pages};
pub use privileges::{User, user_name};
pub use watchdog::{Liveness, Watchdog};
