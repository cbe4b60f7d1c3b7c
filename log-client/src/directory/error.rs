//! Reasons why a running log-client cannot be controlled.

use crate::config::recording::ChoiceError;
use miot_proto::control::{MAGIC, MAX_EXCEPTIONS};
use miot_proto::units;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The text of each variant names what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The directory has no control page.
    #[error(
        "no log-client serves {dir}, it has no control page: start log-client, or give its directory (--dir, MIOT_DIR)"
    )]
    NoLogClient {
        /// The MIOT directory.
        dir: PathBuf,
    },
    /// The page belongs to another user.
    #[error("{path} cannot be written by user {user}{}: only the user who runs the log-client and root may control it", .owner.map_or(String::new(), |owner| format!(", it belongs to user {owner}")))]
    NotOurs {
        /// The page, or the lock file beside it.
        path: PathBuf,
        /// Owner of the file, where it is known.
        owner: Option<u32>,
        /// User of this process.
        user: u32,
    },
    /// The file is not a control page.
    #[error(
        "{path} is not a control page: found {found}; a log-client of this version replaces it when it starts"
    )]
    NoPage {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        found: String,
    },
    /// A page of another version of MIOT.
    #[error("{path} is a control page of another version, {found} instead of {}: install the same MIOT everywhere on the node", MAGIC.to_le_bytes().escape_ascii())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its first word.
        found: String,
    },
    /// The log-client has stopped cleanly.
    #[error("the log-client of {dir} (process {pid}) has ended: start it again")]
    Ended {
        /// The MIOT directory.
        dir: PathBuf,
        /// Its process id.
        pid: u64,
    },
    /// The log-client ended without a clean stop.
    #[error(
        "the log-client of {dir} (process {pid}) is dead, its lock is free: start it again, it continues where the dead one stopped"
    )]
    Dead {
        /// The MIOT directory.
        dir: PathBuf,
        /// Its process id.
        pid: u64,
    },
    /// The log-client is alive, but does not sweep.
    #[error(
        "the log-client of {dir} (process {pid}) holds its lock, but has not swept for {}: is it stopped (SIGSTOP, a debugger)?",
        units::format_duration(WAITED)
    )]
    Silent {
        /// The MIOT directory.
        dir: PathBuf,
        /// Its process id.
        pid: u64,
    },
    /// The log-client does not sweep; another user cannot find out more.
    #[error(
        "the log-client of {dir} (process {pid}) has not swept for {}: it is dead or stopped, ask the user who runs it",
        units::format_duration(WAITED)
    )]
    Still {
        /// The MIOT directory.
        dir: PathBuf,
        /// Its process id.
        pid: u64,
    },
    /// Another process holds the settings lock.
    #[error("another process has held the settings lock of {dir} for {}: is another miot ctl stopped?", units::format_duration(*.waited))]
    Busy {
        /// The MIOT directory.
        dir: PathBuf,
        /// Time waited for the lock.
        waited: Duration,
    },
    /// The requested settings conflict.
    #[error(transparent)]
    Choice(ChoiceError),
    /// A system call failed.
    #[error("{what} {path}: {source}")]
    Path {
        /// The operation that failed.
        what: &'static str,
        /// The file concerned.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Time that [`Control::check_reader`](super::Control::check_reader) waits.
const WAITED: Duration = super::control::SWEEP_TIMEOUT;

impl ControlError {
    pub(super) fn path(what: &'static str, path: &Path, source: impl Into<io::Error>) -> ControlError {
        ControlError::Path { what, path: path.to_owned(), source: source.into() }
    }
}

/// Reason why an exception cannot be made or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExceptionError {
    /// The change contains settings that exist only for the whole node.
    #[error("--when-full, --wait and --flight-recorder apply to the whole node: omit --job and --pid")]
    NodeSetting,
    /// The table of the control page is full.
    #[error(
        "a node has at most {MAX_EXCEPTIONS} exceptions for jobs and processes: remove some with `miot ctl \
         --server HOST:PORT reset --job ID`"
    )]
    TooMany,
    /// The control page cannot be changed.
    #[error(transparent)]
    Control(#[from] ControlError),
}
