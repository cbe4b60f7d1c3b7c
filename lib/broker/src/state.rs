//! State of a broker as it is displayed.

/// State of the connection of a log-server to the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerState {
    /// The log-server is connected and reads the stream.
    pub connected: bool,
    /// Number of connections to the broker so far.
    pub connects: u64,
    /// The stream, at most 10 s ago; `None` without a connection.
    pub stream: Option<StreamState>,
    /// Reason why there is no connection.
    pub error: Option<String>,
}

/// State of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// Messages that no log-server has read.
    pub messages: u64,
    /// Their size, bytes.
    pub bytes: u64,
    /// Maximum size, bytes; `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Largest message, bytes.
    pub max_payload: usize,
}
