//! Logs: lines on standard error, or entries with fields if that is the journal of systemd.

use crate::journal::Journal;
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// A library whose logs repeat those of MIOT. A filter that names it overrides this.
const QUIET: &str = "async_nats=off";

/// Logs cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoggingError {
    /// The filter is not valid.
    #[error("--log: {0}")]
    Filter(#[from] ParseError),
    /// The process has logs already.
    #[error("cannot set up logs: {0}")]
    AlreadySet(#[from] TryInitError),
}

/// Sets up the logs of the process. `filter`: error, warn, info, debug, or a filter such as
/// `miot_log_client=debug`; without it `$RUST_LOG`, else info. `identifier`: name of the program in
/// the journal.
///
/// # Errors
/// [`LoggingError`].
pub fn start(identifier: &'static str, filter: Option<&str>) -> Result<(), LoggingError> {
    let filter = match filter {
        Some(filter) => EnvFilter::try_new(format!("{QUIET},{filter}"))?,
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("{QUIET},info"))),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let started = match Journal::of_standard_error(identifier) {
        Some(journal) => registry.with(journal).try_init(),
        None => {
            let colors = std::io::stderr().is_terminal();
            let lines = tracing_subscriber::fmt::layer().with_ansi(colors).with_writer(std::io::stderr);
            registry.with(lines).try_init()
        }
    };
    Ok(started?)
}
