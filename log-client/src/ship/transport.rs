//! Interface of a transport, which carries messages to the log-server and acknowledgments back.
//!
//! Requirements of shipping: a transport takes frames in order, reports how far a session had come
//! when it is resumed, and passes on acknowledgments. It does not retransmit, store or free frames.
//! So a broker that keeps messages in order and acknowledges them can carry the same frames (e.g. a
//! NATS JetStream stream per node, with the sequence number as message id). Frames are borrowed,
//! not copied, and all calls are resolved at compile time.

use miot_proto::wire::Pace;
use std::io;

/// A transport, see the module.
pub(crate) trait Transport {
    /// The sending half of a connection.
    type Sender: Sender;
    /// The receiving half of a connection.
    type Receiver: Receiver;

    /// Connects to the log-server and resumes `session`.
    ///
    /// # Errors
    /// Any temporary failure.
    async fn connect(&mut self, session: u64) -> io::Result<ConnectOutcome<Self::Sender, Self::Receiver>>;
}

/// Answer of the log-server to a session.
#[derive(Debug)]
pub(crate) enum ConnectOutcome<S, R> {
    /// Accepted. The server has everything up to `through`; the rest must be sent, in order, after
    /// the definitions in force. `minor`: minor version of the server.
    Welcome { sender: S, receiver: R, through: u64, minor: u16 },
    /// No log-server has answered yet, and what is sent waits for one. Everything that is not
    /// acknowledged must be sent, in order, after the definitions in force.
    #[cfg_attr(not(feature = "broker"), allow(dead_code, reason = "only a broker keeps messages"))]
    Unanswered { sender: S, receiver: R },
    /// Permanently refused, with the reason. Only an administrator can change that.
    Refused(String),
    /// Temporarily refused, with the reason.
    NotNow(String),
}

/// Sending half.
pub(crate) trait Sender {
    /// [`send_now`](Self::send_now) may overtake earlier frames.
    const OVERTAKES: bool = false;

    /// Sends whole frames, after all earlier ones. A return does not mean that they have arrived.
    ///
    /// # Errors
    /// The connection has ended.
    async fn send(&mut self, frames: &[u8]) -> io::Result<()>;

    /// Sends whole frames that may overtake earlier ones, and that may be lost.
    ///
    /// # Errors
    /// The connection has ended.
    async fn send_now(&mut self, frames: &[u8]) -> io::Result<()> {
        self.send(frames).await
    }

    /// Closes the sending half. Delivery of the close is not required.
    async fn finish(&mut self);
}

/// Receiving half.
pub(crate) trait Receiver {
    /// Receives the next message. May be dropped only together with the connection.
    ///
    /// # Errors
    /// The connection has ended.
    async fn next(&mut self) -> io::Result<ServerMessage>;
}

/// A message of the log-server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerMessage {
    /// The answer to a connection that began unanswered, see [`ConnectOutcome::Welcome`].
    Welcome { through: u64, minor: u16 },
    /// Everything up to this sequence number is durable at the log-server.
    Acknowledged(u64),
    /// Clock query; the answer repeats this number.
    ClockQuery(i64),
    /// The log-server ends the connection, with the reason.
    Refused(String),
    /// A command, see [`miot_proto::command`]; the outcome repeats this id.
    Command(u64, Vec<u8>),
    /// How soon the log-server needs events and watermarks.
    Pace(Pace),
}
