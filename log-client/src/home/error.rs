//! Why a running log-client cannot be steered.

use crate::config::recorded::ChoiceError;
use miot_proto::control::MAGIC;
use miot_proto::units;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// See the variants; each `Display` says what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Nobody has made a control page there.
    #[error(
        "no log-client serves {dir}, it has no control page: start log-client, or name its directory (--dir, MIOT_DIR)"
    )]
    NoLogClient {
        /// The MIOT directory.
        dir: PathBuf,
    },
    /// The page is another user's.
    #[error("{path} cannot be written by user {user}{}: only the user who runs the log-client and root may steer it", .owner.map_or(String::new(), |owner| format!(", it belongs to user {owner}")))]
    NotOurs {
        /// The page, or the lock file beside it.
        path: PathBuf,
        /// Who owns it, where it is known.
        owner: Option<u32>,
        /// Who we are.
        user: u32,
    },
    /// The file is no control page.
    #[error(
        "{path} is no control page: found {found}; a log-client of this version replaces it when it starts"
    )]
    NoPage {
        /// The file.
        path: PathBuf,
        /// What is odd about it.
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
    /// The log-client has ended in an orderly way.
    #[error("the log-client of {dir} (process {pid}) has ended: start it again")]
    Ended {
        /// The MIOT directory.
        dir: PathBuf,
        /// Its process id.
        pid: u64,
    },
    /// The log-client ended without a word.
    #[error(
        "the log-client of {dir} (process {pid}) is dead, nobody holds its lock: start it again, it goes on where the dead one was"
    )]
    Dead {
        /// The MIOT directory.
        dir: PathBuf,
        /// Its process id.
        pid: u64,
    },
    /// The log-client lives, but does not sweep.
    #[error(
        "the log-client of {dir} (process {pid}) holds its lock, but has not swept for {}: is it stopped (SIGSTOP, a debugger)?",
        units::format_duration(LONG)
    )]
    Silent {
        /// The MIOT directory.
        dir: PathBuf,
        /// Its process id.
        pid: u64,
    },
    /// The log-client does not sweep; more cannot be seen by another user.
    #[error(
        "the log-client of {dir} (process {pid}) has not swept for {}: it is dead or stopped, ask the user who runs it",
        units::format_duration(LONG)
    )]
    Still {
        /// The MIOT directory.
        dir: PathBuf,
        /// Its process id.
        pid: u64,
    },
    /// Somebody else is changing the settings.
    #[error("somebody else has been changing the settings of {dir} for {}: is another miot ctl stopped?", units::format_duration(*.waited))]
    Busy {
        /// The MIOT directory.
        dir: PathBuf,
        /// How long that took.
        waited: Duration,
    },
    /// The wanted settings do not go together.
    #[error(transparent)]
    Choice(ChoiceError),
    /// The system refused.
    #[error("{what} {path}: {source}")]
    Path {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// As long as [`Control::check_reader`](super::Control::check_reader) waits.
const LONG: Duration = super::control::LONGEST_SWEEP;

impl ControlError {
    pub(super) fn path(what: &'static str, path: &Path, source: impl Into<io::Error>) -> ControlError {
        ControlError::Path { what, path: path.to_owned(), source: source.into() }
    }
}
