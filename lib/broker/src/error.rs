//! Reasons why a broker cannot be used.

use std::path::PathBuf;

/// Reason why a broker cannot be used, or a connection through it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is invalid.
    #[error("{key}: {reason}")]
    Setting {
        /// Key of the configuration.
        key: &'static str,
        /// What was expected and what was found.
        reason: String,
    },
    /// A file cannot be read.
    #[error("{key}: cannot read {path}: {source}")]
    Read {
        /// Key of the configuration.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The broker cannot be reached, or refuses the credentials.
    #[error("cannot connect to the broker {url}: {reason}")]
    Connect {
        /// Addresses of the broker.
        url: String,
        /// Reason, without secrets.
        reason: String,
    },
    /// The broker has no JetStream.
    #[error(
        "the broker {url} has no JetStream ({reason}): start nats-server with `--jetstream`, or enable it for the \
         account of this user"
    )]
    NoJetStream {
        /// Addresses of the broker.
        url: String,
        /// Answer of the broker.
        reason: String,
    },
    /// The user of the broker may not do what is necessary.
    #[error("the broker refuses it: {0}; give the user of `broker_credentials` the permissions of the guide")]
    Permission(String),
    /// The stream exists, and cannot be used.
    #[error(
        "the stream `{stream}` of the broker has another configuration: expected {expected}, found {found}; remove it \
         (`nats stream rm {stream}`: log-clients send again what it has), or choose another `broker_stream`"
    )]
    OtherStream {
        /// Name of the stream.
        stream: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// Another log-server reads the stream.
    #[error(
        "another log-server ({other}) reads the stream `{stream}`: stop one of them, or give each its own \
         `broker_stream`"
    )]
    Taken {
        /// Name of the stream.
        stream: String,
        /// The other log-server, as it describes itself.
        other: String,
    },
    /// A request of JetStream failed.
    #[error("the broker cannot {what}: {reason}")]
    Request {
        /// The request.
        what: String,
        /// Answer of the broker.
        reason: String,
    },
    /// The connection to the broker ended.
    #[error("the connection to the broker ended: {0}")]
    Broken(String),
    /// The log-server ended the connection.
    #[error("{0}")]
    Ended(String),
}
