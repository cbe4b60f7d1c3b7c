//! Messages from sessions to the store, and the store's answers.

use crate::clock::{Correction, Reached};
use crate::ids::{ConnId, Seq};
use crate::live::past::JoinRequest;
use crate::live::tail::Subscription;
use crate::store::budget::Charge;
use crate::store::merge::GivenUp;
use crate::store::watermarks::FlowControl;
use miot_proto::batch::Columns;
use miot_proto::wire::{DeviceSample, Message, Process, ProcessKey, ProcessLoss, Resume, Stream, StreamEnd};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// An input of the store. All times are in the server's clock.
#[derive(Debug)]
pub(crate) struct Input {
    /// The connection that it comes from.
    pub(crate) conn: ConnId,
    /// Memory of the input, until its rows are durable.
    pub(crate) charge: Charge,
    /// Memory of the input in the queue to the store.
    pub(crate) queued: Charge,
    pub(crate) kind: InputKind,
}

/// Contents of an [`Input`], by the part of the store that handles them.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all inputs are of nodes")]
pub(crate) enum InputKind {
    /// A node connected.
    Connect(ConnectRequest),
    /// An input of a node that has connected.
    Node(NodeInput),
    /// A reader subscribes to rows.
    Reader(ReaderInput),
    /// All sessions have stopped reading: the store writes everything to the trace and ends.
    Finish,
}

/// An input of a node. Messages with a sequence number are acknowledged once they are durable.
#[derive(Debug)]
pub(crate) enum NodeInput {
    /// New pieces of the correction of the node's times: rows of `clocks`.
    Clock(Vec<Correction>),
    /// See [`Message::Process`].
    Process { seq: Seq, process: Process },
    /// See [`Message::Stream`].
    Stream { seq: Seq, stream: Stream },
    /// See [`Message::Batch`]. `number` is the short number of the stream in its session; `after`
    /// is the attempt number that the node expected before this batch.
    Batch { seq: Seq, number: u32, after: u64, columns: Arc<Columns> },
    /// See [`Message::GivenUp`]. `number` is the short number of the stream in its session.
    GivenUp { seq: Seq, number: u32, given_up: GivenUp },
    /// See [`Message::StreamEnd`].
    StreamEnd { seq: Seq, end: StreamEnd },
    /// See [`Message::ProcessEnd`].
    ProcessEnd { seq: Seq, key: ProcessKey, time: i64, lost: ProcessLoss },
    /// See [`Message::Resume`].
    Resume { seq: Seq, resume: Resume },
    /// See [`Message::Devices`].
    Devices { seq: Seq, sample: DeviceSample },
    /// See [`Message::Heartbeat`].
    Heartbeat { watermark: i64 },
    /// See [`Message::SuspendWatermark`].
    Aside,
    /// See [`Message::AckAtOnce`].
    AckAtOnce,
    /// See [`Message::Bye`].
    Bye,
    /// The connection ended.
    Closed,
}

/// An input of a remote reader.
#[derive(Debug)]
pub(crate) enum ReaderInput {
    /// Subscribe to rows from now on.
    Subscribe(Box<Subscription>),
    /// Subscribe after all earlier rows were read.
    Join(JoinRequest),
}

/// Introduction of a node.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    /// Name of the node.
    pub(crate) node: String,
    /// Random number of the log-client process.
    pub(crate) session: u64,
    /// Back-pressure between the session and the store.
    pub(crate) flow: Arc<FlowControl>,
    /// Receives the acknowledged sequence number. The store drops it when it has finished with the
    /// session.
    pub(crate) acks: watch::Sender<Seq>,
    /// The node cannot ask for acknowledgments, so it gets each of them at once.
    pub(crate) ack_at_once: bool,
    /// Receives all other messages for the node.
    pub(crate) out: mpsc::UnboundedSender<Message>,
    /// Receives the answer. The store drops it to refuse the node.
    pub(crate) reply: oneshot::Sender<Connected>,
}

/// Answer to a [`ConnectRequest`].
#[derive(Clone, Debug)]
pub(crate) struct Connected {
    /// All messages of the session up to this one are durable.
    pub(crate) through: Seq,
    /// The latest pieces of the correction of this node's times.
    pub(crate) corrections: Vec<Correction>,
    /// The latest merged time of this node, nanoseconds since 1970.
    pub(crate) reached: Option<Reached>,
}
