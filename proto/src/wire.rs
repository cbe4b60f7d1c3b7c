//! Frames and messages between log-client, log-server and `miot tail`.
//!
//! ```text
//! frame:  u32 length of the payload · u32 CRC-32C of the payload · u32 CRC-32C of these 8 bytes ·
//!         payload
//! ```
//!
//! The header has a checksum of its own, so that a damaged length is detected at once, and not
//! after that many bytes have been received. The payload is a [`Message`] in the encoding of
//! postcard (serde; a varint tag and the fields in order, so variants and fields are append-only).
//! A batch contains its columns as one byte string, see [`crate::batch`].
//!
//! A connection of a log-client:
//!
//! 1. `Hello` → `Welcome` (or `Refused`, and the server closes).
//! 2. `Process`, `Stream`, `Batch`, `GivenUp`, `StreamEnd`, `ProcessEnd`, `Devices`, each with a
//!    sequence number. The numbers ascend through the session, over all its connections; numbers of
//!    messages that were given up are skipped. `Heartbeat` follows each sweep, or
//!    `SuspendWatermark`. `Ack { through }` means that all numbers up to and including `through`
//!    are durable. A server with thousands of nodes sends it rarely, until the log-client sends
//!    `AckAtOnce`. Messages that are not acknowledged are sent again, in order, on the next
//!    connection. The server drops those that it already has, by stream and attempt number.
//! 3. The server sends `Ping`, the log-client replies `Pong`, to measure the offset of the clocks:
//!    at once, or, at the pace [`Pace::Crowded`], with its next messages ([`PROMPT_ANSWERS`]).
//! 4. `Bye` after the last acknowledgment.
//!
//! If both sides have minor version [`COMMANDS_SINCE_MINOR`] or later, the log-client also reports
//! its state (`Report`), and the server sends commands (`Command`), to which the log-client replies
//! after their execution (`Outcome`). None of these are repeated on another connection. From minor
//! version [`PACE_SINCE_MINOR`] on, the server says how soon it needs events and watermarks
//! (`Pace`).
//!
//! A connection of an operator: `Hello` with [`Role::Operator`] → `Welcome`, then any number of
//! `Request` → `Reply`.
//!
//! A connection of a probe: `Hello` with [`Role::Probe`] → `Welcome` and `Member`, then `Ping` →
//! `Pong` until the probe closes it.
//!
//! A connection of `miot tail`: `Hello` with [`Role::Tail`] → `Welcome`, then `Subscribe` → `Rows`
//! until either side closes it. With a start time in the past, the rows of the trace come first and
//! new ones follow, each row once. `Final` follows the rows that it covers.
//!
//! If a site has several log-servers, a log-client sends `Members` after `Welcome`, and `Resume`
//! for each process and stream that it has moved from another log-server ([`SETS_SINCE_MINOR`]).

mod devices;
mod frame;

pub use devices::{Device, DeviceCounters, DeviceKind, DeviceSample};
pub use frame::{FrameError, frame_header, frame_header_of};

use serde::{Deserialize, Serialize};

/// Version of the messages. A server accepts every client with its own major version. Since minor
/// version 3 a batch may contain rows of kind [`crate::batch::REFUSED`]; an earlier server does not
/// count them in `losses`.
pub const VERSION: Version = Version { major: 3, minor: 5 };
/// First minor version in which log-clients send reports and accept commands. Earlier ones are sent
/// no such messages.
pub const COMMANDS_SINCE_MINOR: u16 = 1;
/// First minor version in which log-clients understand [`Pace`]. Earlier ones are not sent
/// it.
pub const PACE_SINCE_MINOR: u16 = 2;
/// First minor version in which log-clients understand [`Pace::Crowded`]. Earlier ones are sent
/// [`Pace::Unfollowed`] instead.
pub const CROWDED_SINCE_MINOR: u16 = 4;
/// First minor version of log-servers that can be members of a set: they understand
/// [`Message::Resume`] and [`Message::Members`], and send [`Message::Member`] and
/// [`Message::Final`]. Earlier peers are sent none of these.
pub const SETS_SINCE_MINOR: u16 = 4;
/// First minor version in which log-clients can ask for acknowledgments with
/// [`Message::AckAtOnce`]. Earlier ones get each acknowledgment at once, and earlier log-servers
/// are not asked.
pub const ACK_AT_ONCE_SINCE_MINOR: u16 = 5;
/// At the pace [`Pace::Crowded`], so many `Ping` of a connection are answered at once, so that the
/// clock is known soon. Later ones are answered with the next messages of the log-client.
pub const PROMPT_ANSWERS: usize = 16;
/// First bytes of every `Hello`. A client of another protocol is detected by them.
pub const GREETING: [u8; 8] = *b"MIOTWIRE";
/// Maximum payload of a frame, bytes.
pub const MAX_FRAME: usize = 16 << 20;
/// Maximum payload of the first frame on a connection, bytes. It is small because the peer is not
/// identified yet.
pub const MAX_HELLO: usize = 4096;
/// Maximum number of devices in a [`DeviceSample`].
pub const MAX_DEVICES: usize = 1024;
/// Maximum length of the name and of the mount point of a [`Device`], bytes.
pub const MAX_DEVICE_NAME: usize = 512;
/// Maximum number of ranges in a [`Message::GivenUp`]: they take no more memory than the largest
/// frame.
pub const MAX_RANGES: usize = MAX_FRAME / 16;
/// Maximum number of log-servers in a set: one for each partition.
pub const MAX_MEMBERS: usize = 1024;
/// Size of the header of a frame, bytes.
pub const FRAME_HEADER: usize = 12;
/// Default TCP port of the log-server.
pub const DEFAULT_PORT: u16 = 4747;

/// Version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Must be equal on both sides.
    pub major: u16,
    /// May differ. A higher one has more variants and fields.
    pub minor: u16,
}

/// Role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The log-client of a node.
    Node,
    /// A reader of the merged trace.
    Tail,
    /// An operator, who requests the state of the cluster or sends commands.
    Operator,
    /// A test of whether `node` would be accepted, and of the server's clock (`miot doctor`).
    Probe,
}

/// Permanent identity of one process image of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessKey {
    /// Boot id of the node's kernel.
    pub boot: u128,
    /// [`crate::segment::header::NONCE`] of its segment.
    pub nonce: u64,
    /// Process id.
    pub pid: u32,
}

/// Permanent identity of one stream of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamKey {
    /// Process of the stream.
    pub process: ProcessKey,
    /// Index in the lane table.
    pub lane: u32,
    /// Incarnation of the lane, from 1.
    pub incarnation: u32,
}

/// Description of a process, sent before its first stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Permanent identity.
    pub key: ProcessKey,
    /// Parent's process id.
    pub ppid: u32,
    /// Owner of the segment file, i.e. the effective user id according to the kernel.
    pub uid: u32,
    /// Creation of the segment (first traced request), nanoseconds since 1970 by the node's clock.
    pub started: i64,
    /// MPI rank, if known.
    pub rank: Option<u32>,
    /// Path of the executable.
    #[serde(with = "serde_bytes")]
    pub exe: Vec<u8>,
    /// Command line, arguments separated by NUL.
    #[serde(with = "serde_bytes")]
    pub cmdline: Vec<u8>,
    /// Origin of the process, encoded as in [`crate::job`].
    #[serde(with = "serde_bytes")]
    pub job: Vec<u8>,
    /// Working directory at the creation of the segment.
    #[serde(with = "serde_bytes")]
    pub cwd: Vec<u8>,
}

/// Description of a stream, sent before its first batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Number of the stream, unique in its session.
    pub number: u32,
    /// Permanent identity.
    pub key: StreamKey,
    /// Thread id.
    pub tid: u32,
    /// Thread name.
    #[serde(with = "serde_bytes")]
    pub comm: Vec<u8>,
}

/// Losses of a process that do not appear as gaps in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessLoss {
    /// Number of records lost because a thread could not get a lane.
    pub no_lane: u64,
    /// Number of invalid records of a faulty or hostile producer, without those that are rows of
    /// kind [`crate::batch::REFUSED`] in a stream.
    pub abi_violations: u64,
}

/// Totals of a stream at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// Number of the stream.
    pub stream: u32,
    /// Number of records offered to the lane: the last attempt number + 1 if none was lost after
    /// it.
    pub attempts: u64,
    /// Attempt number after the last record that was taken from the lane, see [`Message::Batch`].
    pub after: u64,
    /// Number of these records that were lost because the lane was full.
    pub lost_full: u64,
    /// Number of further records that were lost because they came from a signal handler that
    /// interrupted a record. They have no attempt number and leave no gap.
    pub lost_nested: u64,
    /// Number of requests that the filter of the control page excluded. They are not losses and
    /// have no attempt number.
    pub filtered: u64,
    /// Time at which the log-client detected the end, nanoseconds since 1970 by the node's clock.
    /// No event of the stream is later.
    pub time: i64,
}

/// Where a process or stream continues whose earlier records were sent to other log-servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resume {
    /// A stream.
    Stream {
        /// Number of the stream.
        stream: u32,
        /// First attempt number that is sent to this server. Lower ones that the server does not
        /// have are in the traces of other servers: as records, or as losses.
        from: u64,
        /// See [`StreamEnd::lost_nested`]: those reported to other servers.
        lost_nested: u64,
        /// See [`StreamEnd::filtered`]: those reported to other servers.
        filtered: u64,
        /// When the stream was moved, nanoseconds since 1970 by the node's clock.
        time: i64,
    },
    /// A process.
    Process {
        /// Identity of the process.
        key: ProcessKey,
        /// See [`ProcessLoss::no_lane`]: those reported to other servers.
        no_lane: u64,
        /// When the process was moved, nanoseconds since 1970 by the node's clock.
        time: i64,
    },
}

/// Identity of a log-server in a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberIdentity {
    /// Name of the cluster (setting `cluster`); empty if it has none.
    pub cluster: String,
    /// Partition of the ids of its trace.
    pub partition: u16,
}

impl MemberIdentity {
    /// Returns why two log-servers cannot be in one set; `None` if they can.
    #[must_use]
    pub fn conflict_with(&self, other: &MemberIdentity) -> Option<String> {
        let name = |cluster: &str| match cluster {
            "" => "no name (setting `cluster`)".to_owned(),
            name => format!("`{name}`"),
        };
        if self.cluster != other.cluster {
            return Some(format!(
                "their clusters differ: one has {}, the other {}",
                name(&self.cluster),
                name(&other.cluster)
            ));
        }
        (self.partition == other.partition).then(|| {
            format!("both have partition {}: give each another number (setting `partition`)", self.partition)
        })
    }
}

/// A log-server of the set that a log-client has in its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetMember {
    /// Address, `host:port`.
    pub address: String,
    /// Its identity; `None` if it has not answered yet.
    pub identity: Option<MemberIdentity>,
}

/// Message: the payload of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// First message on a connection, from the client.
    Hello {
        /// [`GREETING`].
        greeting: [u8; 8],
        /// [`VERSION`] of the client.
        version: Version,
        /// Role of the client.
        role: Role,
        /// Name of the node, or of the client's host.
        node: String,
        /// Random number of the session, whose sequence numbers start at 1. A log-client that
        /// replaces a killed one continues its session.
        session: u64,
    },
    /// Positive reply of the server to `Hello`.
    Welcome {
        /// [`VERSION`] of the server.
        version: Version,
        /// All sequence numbers of this session up to this one are already durable; 0 if none.
        through: u64,
    },
    /// Negative reply of the server, which then closes the connection.
    Refused {
        /// Text for the user: what was expected, what was found, what to do.
        reason: String,
        /// A later attempt may succeed without any change: data was damaged in transit, or memory
        /// is short at present.
        transient: bool,
    },
    /// See [`Process`].
    Process {
        /// Sequence number.
        seq: u64,
        /// Description of the process.
        process: Process,
    },
    /// See [`Stream`].
    Stream {
        /// Sequence number.
        seq: u64,
        /// Description of the stream.
        stream: Stream,
    },
    /// Batch: consecutive records of a stream.
    Batch {
        /// Sequence number.
        seq: u64,
        /// Number of the stream.
        stream: u32,
        /// Attempt number after the last record that was taken from the lane before this batch; at
        /// most that of the first record in it. Missing numbers from here on were lost in the lane.
        /// Missing numbers below were taken from it and lost later.
        after: u64,
        /// Encoded [`crate::batch::Columns`].
        #[serde(with = "serde_bytes")]
        columns: Vec<u8>,
    },
    /// See [`StreamEnd`].
    StreamEnd {
        /// Sequence number.
        seq: u64,
        /// Totals of the stream.
        end: StreamEnd,
    },
    /// End of a process: it is gone, and all its streams have ended.
    ProcessEnd {
        /// Sequence number.
        seq: u64,
        /// Identity of the process.
        key: ProcessKey,
        /// Time at which the log-client detected the end, nanoseconds since 1970 by the node's
        /// clock.
        time: i64,
        /// Losses outside its streams.
        lost: ProcessLoss,
    },
    /// The node has sent every event that completed before `watermark`. The log-client repeats the
    /// message while the watermark does not advance, to show that the node is alive and the merge
    /// must wait for it.
    Heartbeat {
        /// Nanoseconds since 1970 by the node's clock.
        watermark: i64,
    },
    /// Acknowledgment: all messages up to and including `through` are durable and survive a failure
    /// of the server.
    Ack {
        /// Sequence number.
        through: u64,
    },
    /// Request of a clock measurement.
    Ping {
        /// Clock of the sender, nanoseconds since 1970.
        sent: i64,
    },
    /// Reply to `Ping`.
    Pong {
        /// `sent` of the `Ping`.
        sent: i64,
        /// Clock of the receiver at the arrival of the `Ping`, nanoseconds since 1970.
        received: i64,
        /// Clock of the receiver at its reply, nanoseconds since 1970.
        answered: i64,
    },
    /// The log-client ends: the session has no further messages, and the node no longer holds the
    /// merge back.
    Bye,
    /// Subscription of `miot tail`.
    Subscribe {
        /// Only these layers (names); empty = all.
        layers: Vec<String>,
        /// Only these operations (names); empty = all.
        ops: Vec<String>,
        /// Only paths that match one of these globs; empty = all.
        paths: Vec<String>,
        /// Only these process ids; empty = all.
        pids: Vec<u32>,
        /// Only these nodes; empty = all.
        nodes: Vec<String>,
        /// Only events that completed at or after this time, nanoseconds since 1970, including past
        /// ones. `None`: only events from now on.
        since: Option<i64>,
    },
    /// Merged events in order, for `miot tail`: one Arrow IPC stream with one record batch in the
    /// schema of `miot_trace_store::schema::rows()`.
    Rows {
        /// Arrow IPC stream.
        #[serde(with = "serde_bytes")]
        arrow: Vec<u8>,
    },
    /// The server ends the subscription.
    SubscriptionEnd {
        /// Text for the user.
        reason: String,
    },
    /// Records of a stream that were taken from its lane and then dropped in favor of newer ones,
    /// because the spool was full. The message has their position in the stream: before its later
    /// batches and its end. Records that the server has received nevertheless are not lost.
    GivenUp {
        /// Sequence number.
        seq: u64,
        /// Number of the stream.
        stream: u32,
        /// See `after` of [`Message::Batch`].
        after: u64,
        /// First and last attempt numbers, ascending, at most [`MAX_RANGES`]. Numbers between two
        /// ranges were lost in the lane. If empty, no record was dropped, but records below `after`
        /// that have not been received were taken from the lane and will not be sent any more,
        /// because the spool was damaged.
        ranges: Vec<(u64, u64)>,
        /// Completion time of the last of them, nanoseconds since 1970 by the node's clock.
        time: i64,
    },
    /// The node is alive, but the merge must not wait for it: it may send events of any time at an
    /// unknown later time, e.g. as a flight recorder. Valid until the next `Heartbeat` with a
    /// higher watermark than the last one.
    SuspendWatermark,
    /// State of a log-client: a [`crate::status::NodeReport`] as JSON, at most
    /// [`crate::status::MAX_REPORT`] bytes.
    Report {
        /// JSON.
        #[serde(with = "serde_bytes")]
        status: Vec<u8>,
    },
    /// Command to a log-client: a [`crate::command::NodeCommand`] as JSON.
    Command {
        /// Id for the matching `Outcome`, unique on the connection.
        id: u64,
        /// JSON, at most [`crate::command::MAX_COMMAND`] bytes.
        #[serde(with = "serde_bytes")]
        command: Vec<u8>,
    },
    /// Outcome of a command: a [`crate::command::CommandOutcome`] as JSON.
    Outcome {
        /// Id of the command.
        id: u64,
        /// JSON, at most [`crate::status::MAX_REPORT`] bytes.
        #[serde(with = "serde_bytes")]
        outcome: Vec<u8>,
    },
    /// Request of an operator: a [`crate::command::OperatorRequest`] as JSON.
    Request {
        /// JSON, at most [`crate::command::MAX_COMMAND`] bytes.
        #[serde(with = "serde_bytes")]
        request: Vec<u8>,
    },
    /// Reply to an operator: a [`crate::command::OperatorReply`] as JSON.
    Reply {
        /// JSON.
        #[serde(with = "serde_bytes")]
        reply: Vec<u8>,
    },
    /// See [`DeviceSample`]. Sent before a `Heartbeat` whose watermark exceeds its time.
    Devices {
        /// Sequence number.
        seq: u64,
        /// The sample.
        sample: DeviceSample,
    },
    /// See [`Pace`]. From a server to a log-client.
    Pace {
        /// The pace from now on, until the next one or the end of the connection.
        pace: Pace,
    },
    /// See [`Resume`]. Follows the definition of its process or stream, before its records.
    Resume {
        /// Sequence number.
        seq: u64,
        /// The process or stream.
        resume: Resume,
    },
    /// Identity of the server, to a probe.
    Member {
        /// See [`MemberIdentity`].
        member: MemberIdentity,
    },
    /// The other log-servers of the set, from a log-client. The server refuses the node if one of
    /// them has its partition, or belongs to another cluster. At most [`MAX_MEMBERS`].
    Members {
        /// All members except the receiver.
        others: Vec<SetMember>,
    },
    /// To a subscriber: all events that completed before `time` were sent. Later ones that
    /// completed before it are marked late.
    Final {
        /// Nanoseconds since 1970.
        time: i64,
    },
    /// The log-client waits for acknowledgments, because it stops or its spool is full. Until the
    /// end of the connection the server sends each of them at once.
    AckAtOnce,
}

/// How soon the server needs the events and watermarks of a node. It is a hint: no event is lost or
/// out of order without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// At once: somebody follows the trace, and events of one node wait for the watermarks of all.
    /// The pace of a new connection.
    #[default]
    Live,
    /// Some time later: nobody follows the trace.
    Unfollowed,
    /// No node has sent events for some seconds, so nothing waits for a watermark. A node without
    /// events may send one per second.
    Idle,
    /// Nobody follows the trace, and so many nodes are connected that each should send less than
    /// one message per second. Only for log-clients since [`CROWDED_SINCE_MINOR`].
    Crowded,
}

/// Returns the field `seq` of a message that has one, with the borrow of the message.
macro_rules! seq {
    ($message:expr) => {
        match $message {
            Message::Process { seq, .. }
            | Message::Stream { seq, .. }
            | Message::Batch { seq, .. }
            | Message::GivenUp { seq, .. }
            | Message::StreamEnd { seq, .. }
            | Message::ProcessEnd { seq, .. }
            | Message::Devices { seq, .. }
            | Message::Resume { seq, .. } => Some(seq),
            _ => None,
        }
    };
}

impl Message {
    /// Returns the sequence number of a message that is kept until it is acknowledged; `None` for
    /// other messages.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        seq!(self).copied()
    }

    /// Returns a mutable reference to [`Message::seq`].
    pub fn seq_mut(&mut self) -> Option<&mut u64> {
        seq!(self)
    }
}
