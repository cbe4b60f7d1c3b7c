//! The frame of a daemon's `main`: logs, exit codes, and reloading of certificates.

use crate::logging;
use std::fmt::Display;
use std::process::ExitCode;

/// Exit code for wrong options or a wrong configuration.
pub const WRONG_USAGE: u8 = 2;

/// An error and the exit code that it ends the program with.
pub type Failure<E> = (u8, E);

/// Starts the logs of the program `name` with the filter `log` (see [`logging::start`]), runs
/// `body`, and prints its error to standard error. Returns the exit code: 0, the code of the error,
/// or [`WRONG_USAGE`] for a wrong filter.
pub fn run_main<E: Display>(
    name: &'static str,
    log: Option<&str>,
    body: impl FnOnce() -> Result<(), Failure<E>>,
) -> ExitCode {
    if let Err(error) = logging::start(name, log) {
        eprintln!("{name}: {error}");
        return ExitCode::from(WRONG_USAGE);
    }
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            eprintln!("{name}: {error}");
            ExitCode::from(code)
        }
    }
}

/// Reads certificate, key and authority again with `reload`, and logs the result. After an error
/// the daemon keeps the files that it read before.
pub fn reload_tls(reload: impl FnOnce() -> Result<(), miot_tls::Error>) {
    match reload() {
        Ok(()) => {
            tracing::info!("certificate, key and authority reloaded for new connections")
        }
        Err(error) => {
            tracing::error!(%error, "cannot reload certificate, key and authority, the loaded ones stay in use")
        }
    }
}
