//! What sessions tell the store, and what it tells them.

use crate::budget::Charge;
use crate::clock::Correction;
use crate::merge::GivenUp;
use crate::nodes::Pace;
use crate::past::Join;
use crate::tail::Subscription;
use miot_proto::batch::Columns;
use miot_proto::wire::{Message, Process, ProcessKey, ProcessLoss, Sample, Stream, StreamEnd};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// Something from a session. Times are in the server's clock.
#[derive(Debug)]
pub(crate) struct Input {
    /// Number of the connection, never used twice.
    pub(crate) conn: u64,
    /// Memory it takes.
    pub(crate) charge: Charge,
    /// Room it takes in the queue to the store.
    pub(crate) queued: Charge,
    /// What it is.
    pub(crate) what: What,
}

/// See [`Input`].
#[derive(Debug)]
pub(crate) enum What {
    /// A node introduced itself.
    Open(Open),
    /// What is applied to its times, piece by piece: rows of `clocks`.
    Clock(Vec<Correction>),
    /// See [`Message::Process`].
    Process(u64, Process),
    /// See [`Message::Stream`].
    Stream(u64, Stream),
    /// Sequence number, short number of the stream, where the node had got to before, rows.
    Batch(u64, u32, u64, Columns),
    /// Sequence number, short number of the stream, what the node gave up.
    GivenUp(u64, u32, GivenUp),
    /// See [`Message::StreamEnd`].
    StreamEnd(u64, StreamEnd),
    /// See [`Message::ProcessEnd`].
    ProcessEnd(u64, ProcessKey, i64, ProcessLoss),
    /// See [`Message::Devices`].
    Devices(u64, Sample),
    /// See [`Message::Heartbeat`].
    Heartbeat(i64),
    /// See [`Message::Aside`].
    Aside,
    /// See [`Message::Bye`].
    Bye,
    /// Nothing more will come on this connection.
    Closed,
    /// A reader wants rows.
    Subscribe(Subscription),
    /// A reader has read what there was, and wants what comes.
    Join(Join),
    /// All sessions have stopped reading: put everything in the trace and end.
    Finish,
}

/// A node's introduction.
#[derive(Debug)]
pub(crate) struct Open {
    /// Its name.
    pub(crate) node: String,
    /// Random number of this log-client process.
    pub(crate) session: u64,
    /// For back-pressure.
    pub(crate) pace: Arc<Pace>,
    /// Where acknowledgements go; closed when the store wants nothing more of the session.
    pub(crate) acks: watch::Sender<u64>,
    /// Where other messages to the node go.
    pub(crate) out: mpsc::UnboundedSender<Message>,
    /// Where the answer goes.
    pub(crate) reply: oneshot::Sender<Opened>,
}

/// The answer to [`Open`].
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    /// All messages of the session up to this one are durable.
    pub(crate) through: u64,
    /// What was applied to this node's times before, the latest pieces.
    pub(crate) corrections: Vec<Correction>,
    /// The latest of these times, merged.
    pub(crate) reached: Option<i64>,
}
