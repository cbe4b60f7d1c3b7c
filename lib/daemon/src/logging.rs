//! Logs: lines on standard error; where that is the journal of systemd, entries with fields.

use crate::journal::Journal;
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Sets the logs of the process up. `filter`: error, warn, info, debug, or a filter such as
/// `miot_log_client=debug`; without it `$RUST_LOG`, else info. `identifier`: the program's name in the journal.
///
/// # Errors
/// What is wrong with the filter, for whoever gave it; or that logs are set up already.
pub fn start(identifier: &'static str, filter: Option<&str>) -> Result<(), String> {
    let filter = match filter {
        Some(filter) => EnvFilter::try_new(filter).map_err(|error| format!("--log: {error}"))?,
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let started = match Journal::of_standard_error(identifier) {
        Some(journal) => registry.with(journal).try_init(),
        None => {
            let colours = std::io::stderr().is_terminal();
            let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(std::io::stderr);
            registry.with(lines).try_init()
        }
    };
    started.map_err(|error| format!("cannot set the logs up: {error}"))
}
