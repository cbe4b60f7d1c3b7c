//! Errors that stop a log-server, and reasons for refusing a peer.

use crate::live::tail::FilterError;
use miot_proto::batch::BatchError;
use miot_trace_store as store;
use std::path::PathBuf;

/// Reason why a log-server does not run, or did not end regularly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is invalid.
    #[error("configuration: {0}")]
    Config(String),
    /// The broker of the configuration is not usable.
    #[error("configuration: {0}")]
    Broker(#[from] miot_broker::Error),
    /// Certificates or keys are not usable.
    #[error("configuration: {0}")]
    Tls(#[from] miot_tls::Error),
    /// Privileges cannot be dropped.
    #[error("{0}")]
    Privileges(#[from] miot_daemon::privileges::PrivilegeError),
    /// The trace directory cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    CreateTrace {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", if source.kind() == std::io::ErrorKind::AddrInUse { "; stop the other program, or choose another port with --listen" } else { "" })]
    Listen {
        /// The configured address.
        address: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The address for HTTP cannot be listened on.
    #[error(transparent)]
    Http(#[from] miot_daemon::http::Unavailable),
    /// The stored commands of operators cannot be read.
    #[error("{path}: {reason}; repair it, or remove it and send the commands again")]
    Orders {
        /// The file.
        path: std::path::PathBuf,
        /// Reason.
        reason: String,
    },
    /// The trace directory cannot be opened.
    #[error(transparent)]
    Trace(#[from] store::Error),
    /// The server was stopped while the trace directory could not be written.
    #[error(
        "{events} events are not in the trace because it cannot be written: {source}; \
         the log-clients still have them and will send them again"
    )]
    NotStored {
        /// Number of events.
        events: u64,
        /// Reason.
        source: Box<store::Error>,
    },
    /// A part of this program cannot start.
    #[error("cannot start {what}: {source}")]
    Start {
        /// Name of the part.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The thread that writes the trace ended early.
    #[error("the thread that writes the trace {0}")]
    Thread(&'static str),
    /// Rows do not match their columns: a bug of this program.
    #[error("rows do not match their columns: {0}")]
    Columns(#[from] arrow_schema::ArrowError),
}

impl Error {
    /// True if the trace, or a file of it that was being written, was deleted, renamed or replaced.
    #[must_use]
    pub fn is_trace_gone(&self) -> bool {
        matches!(self, Error::Trace(store::Error::Replaced { .. }))
    }
}

/// Reason why a peer is refused. The peer displays the text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("this is a MIOT log-server, version {ours}; the received data is not its protocol ({found})")]
    Greeting { ours: String, found: String },
    #[error(
        "this is a MIOT log-server, version {ours}; the received data was damaged on the way, or is not its protocol"
    )]
    Damaged { ours: String },
    #[error(
        "this log-server speaks version {ours} of the protocol, the peer speaks {theirs}: the major numbers must be equal; \
         install the same version of MIOT on both sides"
    )]
    Version { ours: String, theirs: String },
    #[error("this log-server has {0} connections already, which is its limit (`connections`)")]
    Full(usize),
    #[error(
        "this log-server speaks TLS only: set `tls_certificate`, `tls_key` and `tls_authority` (miot tail: \
         --tls-certificate, --tls-key, --tls-authority) to files created by `miot pki`"
    )]
    Plain,
    #[error("{0}")]
    Certificate(#[from] miot_tls::NotAllowed),
    #[error("this node has {0} connections already, which is its limit (`node_connections`)")]
    NodeFull(usize),
    #[error("the name of a node must have 1 to 255 bytes and no control characters")]
    Name,
    #[error(
        "through a broker, only the log-client of the node {expected:?} may use this subject: others connect to `listen`"
    )]
    Broker { expected: String },
    #[error("no first message within {0:?}")]
    Slow(std::time::Duration),
    #[error("a batch cannot be read: {0}")]
    Batch(#[from] BatchError),
    #[error(
        "this node has more than {limit} {what} that have not ended, which is the limit (`node_streams`); \
         acknowledged events are kept, all others stay at the node"
    )]
    Streams { what: &'static str, limit: usize },
    #[error(
        "`servers` of this node has {address} beside this log-server, but {conflict}; nothing is stored until this is \
         repaired, all events stay at the node"
    )]
    Set { address: String, conflict: String },
    #[error("{0}")]
    Rule(&'static str),
    #[error("subscription: {0}")]
    Filter(#[from] FilterError),
}

impl Refusal {
    /// True if a later attempt may succeed without any change.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Refusal::Damaged { .. } | Refusal::Slow(_) | Refusal::Full(_) | Refusal::NodeFull(_))
    }
}
