//! What can go wrong in a log-client as a whole. What a producer does wrong is never an error here: it is
//! counted, see [`crate::Report::abi_violations`].

use std::io;
use std::path::PathBuf;

/// Why a log-client could not start, or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be read, or has a key or value that is not known.
    #[error("configuration: {0}")]
    Config(String),
    /// A setting has no sense.
    #[error("setting `{key}`: {reason}")]
    Setting {
        /// The key.
        key: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// Certificates or keys cannot be used.
    #[error("configuration: {0}")]
    Tls(#[from] miot_tls::Error),
    /// Privileges cannot be given up.
    #[error("{0}")]
    Privileges(String),
    /// The MIOT directory, or a file in it, could not be set up.
    #[error("{what} {path}: {source}")]
    Path {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The MIOT directory belongs to somebody else, who could steer the producers behind our back.
    #[error(
        "{path} belongs to user {owner}, not to user {user} who runs this log-client: if a log-client of theirs runs, that one is enough; else remove it or choose another directory"
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who we are.
        user: u32,
    },
    /// There is one already.
    #[error("another log-client{} serves {path}: one is enough, stop it or choose another directory", .pid.map_or(String::new(), |pid| format!(" (process {pid})")))]
    Running {
        /// The directory.
        path: PathBuf,
        /// Its process id, where it is known.
        pid: Option<u32>,
    },
    /// The log-server does not want us.
    #[error("the log-server {server} refuses this node: {reason}")]
    Refused {
        /// Which server.
        server: String,
        /// What it said.
        reason: String,
    },
    /// The system refused something without which there is no log-client.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
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
