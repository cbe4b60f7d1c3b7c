//! What carries messages to the log-server and brings back what is safe there.
//!
//! All that shipping needs of a carrier: it takes frames in order, says how far a session had come when it is taken up
//! again, and passes on acknowledgements. What is repeated, kept and freed is not its business, so a broker that keeps
//! messages in order and acknowledges them (a NATS JetStream stream for each node, say, with the number of a message
//! as its id) can carry the same frames. The bytes of frames are lent, not copied, and everything is resolved at compile
//! time.

use std::io;

/// See the module.
pub(crate) trait Transport {
    /// The half that sends.
    type Sender: Sender;
    /// The half that hears.
    type Receiver: Receiver;

    /// Reaches the log-server and takes up `session` there.
    ///
    /// # Errors
    /// Whatever may be over the next time.
    async fn connect(&mut self, session: u64) -> io::Result<Answer<Self::Sender, Self::Receiver>>;
}

/// What the far end says to a session.
#[derive(Debug)]
pub(crate) enum Answer<S, R> {
    /// It has everything up to this number; the rest is to be sent, in order, definitions in force before it. And whether it
    /// wants reports and has errands.
    Welcome(S, R, u64, bool),
    /// It does not want this node, and why. Only a person can change that.
    Refused(String),
    /// It does not want this node now, and why.
    NotNow(String),
}

/// Takes frames.
pub(crate) trait Sender {
    /// Takes whole frames, after all those before. Returning does not mean that they have arrived.
    ///
    /// # Errors
    /// The connection is over.
    async fn send(&mut self, frames: &[u8]) -> io::Result<()>;

    /// Nothing more is to be sent. Whether that arrives changes nothing.
    async fn finish(&mut self);
}

/// Brings news.
pub(crate) trait Receiver {
    /// The next news. May be dropped only together with the connection.
    ///
    /// # Errors
    /// The connection is over.
    async fn next(&mut self) -> io::Result<News>;
}

/// What the far end says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Everything up to this number outlives whatever happens there.
    Acknowledged(u64),
    /// What time is it here? To be answered with this number.
    Asked(i64),
    /// It ends the connection, and why.
    Refused(String),
    /// Something is to be done, see [`miot_proto::steer`]; to be answered with this number.
    Errand(u64, Vec<u8>),
}
