//! What can stop a log-server.

use miot_proto::batch::BatchError;
use miot_trace_store as store;

/// Why a log-server does not run, or did not end as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting makes no sense.
    #[error("configuration: {0}")]
    Config(String),
    /// Certificates or keys cannot be used.
    #[error("configuration: {0}")]
    Tls(#[from] miot_tls::Error),
    /// Privileges cannot be given up.
    #[error("{0}")]
    Privileges(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", if source.kind() == std::io::ErrorKind::AddrInUse { "; stop the other program, or choose another port with --listen" } else { "" })]
    Listen {
        /// As configured.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The address for HTTP cannot be listened on.
    #[error(transparent)]
    Http(#[from] miot_daemon::http::Unavailable),
    /// What operators have ordered cannot be read.
    #[error("{path}: {reason}; mend it, or remove it and steer the nodes again")]
    Orders {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The trace directory cannot be opened.
    #[error(transparent)]
    Trace(#[from] store::Error),
    /// The server was stopped while the trace directory could not be written.
    #[error(
        "{events} events are not in the trace, because it cannot be written: {source}. \
         Their log-clients still have them and will send them again"
    )]
    NotStored {
        /// How many.
        events: u64,
        /// Why.
        source: Box<store::Error>,
    },
    /// A part of this program cannot be started.
    #[error("cannot start {what}: {source}")]
    Start {
        /// Which.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// The thread that writes the trace ended before it was told to.
    #[error("the thread that writes the trace {0}")]
    Thread(&'static str),
    /// Rows could not be put into columns: a fault of this program.
    #[error("rows do not fit their columns: {0}")]
    Columns(#[from] arrow_schema::ArrowError),
}

impl Error {
    /// True if the trace, or a file of it that was being written, was deleted, renamed or replaced.
    #[must_use]
    pub fn is_trace_gone(&self) -> bool {
        matches!(self, Error::Trace(store::Error::Gone { .. }))
    }
}

/// Why a peer is turned away. The text is for the people there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("this is a MIOT log-server, version {ours}; what was received is not its protocol ({found})")]
    Greeting { ours: String, found: String },
    #[error(
        "this is a MIOT log-server, version {ours}; what was received was damaged on the way, or is not its protocol"
    )]
    Damaged { ours: String },
    #[error(
        "this log-server speaks version {ours} of the protocol, you speak {theirs}: the first numbers must be equal; install the same version of MIOT on both sides"
    )]
    Version { ours: String, theirs: String },
    #[error("this log-server serves {0} connections already, which is its limit (`connections`)")]
    Full(usize),
    #[error(
        "this log-server speaks TLS only: say `tls_certificate`, `tls_key` and `tls_authority` (miot tail: \
         --tls-certificate, --tls-key, --tls-authority), with files of `miot pki`"
    )]
    Plain,
    #[error("{0}")]
    Certificate(String),
    #[error("this node has {0} connections already, which is its limit (`node_connections`)")]
    NodeFull(usize),
    #[error("a node's name has 1 to 255 bytes and no control characters")]
    Name,
    #[error("the first message did not come within {0:?}")]
    Slow(std::time::Duration),
    #[error("a batch cannot be read: {0}")]
    Batch(#[from] BatchError),
    #[error(
        "this node has more than {1} {0} that have not ended, which is the limit (`node_streams`); what was \
         acknowledged is kept, the rest stays at the node"
    )]
    Streams(&'static str, usize),
    #[error("{0}")]
    Rule(&'static str),
    #[error("subscription: {0}")]
    Filter(String),
}

impl Refusal {
    /// True if it may be otherwise the next time, without anybody doing anything.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Refusal::Damaged { .. } | Refusal::Slow(_) | Refusal::Full(_) | Refusal::NodeFull(_))
    }
}
