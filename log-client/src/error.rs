//! Errors of a log-client as a whole. Invalid data of a producer is never an error here: it is
//! counted, see [`crate::RunSummary::abi_violations`].

use std::io;
use std::path::PathBuf;

/// Reason why a log-client could not start, or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be read, or has an unknown key or value.
    #[error("configuration: {0}")]
    Config(String),
    /// A setting is invalid.
    #[error("setting `{key}`: {reason}")]
    Setting {
        /// Key of the setting.
        key: &'static str,
        /// The reason, and what would be valid.
        reason: String,
    },
    /// The broker of the configuration cannot be used.
    #[error("configuration: {0}")]
    Broker(#[from] miot_broker::Error),
    /// Certificates or keys cannot be used.
    #[error("configuration: {0}")]
    Tls(#[from] miot_tls::Error),
    /// Privileges cannot be dropped.
    #[error("{0}")]
    Privileges(#[from] miot_daemon::privileges::PrivilegeError),
    /// The MIOT directory, or a file in it, cannot be set up.
    #[error("{what} {path}: {source}")]
    Path {
        /// The operation that failed.
        what: &'static str,
        /// The file concerned.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The MIOT directory belongs to another user, who could change the settings of the producers.
    #[error(
        "{path} belongs to user {owner}, not to user {user} of this log-client: use the log-client of that user, remove the directory, or choose another one"
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// Owner of the directory.
        owner: u32,
        /// User that runs this log-client.
        user: u32,
    },
    /// Another log-client serves the directory.
    #[error("another log-client{} serves {path}: stop it or choose another directory", .pid.map_or(String::new(), |pid| format!(" (process {pid})")))]
    Running {
        /// The directory.
        path: PathBuf,
        /// Process id of the other log-client, where it is known.
        pid: Option<u32>,
    },
    /// The log-server refused this node.
    #[error("the log-server {server} refuses this node: {reason}")]
    Refused {
        /// The log-server.
        server: String,
        /// Reason given by the log-server.
        reason: String,
    },
    /// Two log-servers of the configuration cannot be in one set.
    #[error("setting `servers`: {reason}")]
    Set {
        /// Which ones, and why.
        reason: String,
    },
    /// The system refused something that a log-client cannot do without.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn path(what: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Error {
        Error::Path { what, path: path.into(), source: source.into() }
    }

    pub(crate) fn system(what: &'static str, source: impl Into<io::Error>) -> Error {
        Error::System { what, source: source.into() }
    }
}
