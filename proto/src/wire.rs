//! Frames and messages between log-client, log-server and tail.
//!
//! ```text
//! frame:  u32 length of the payload · u32 CRC-32C of the payload · u32 CRC-32C of these 8 bytes · payload
//! ```
//!
//! The header has a checksum of its own, so that a damaged length is noticed at once and not when as many bytes have come.
//! The payload is a [`Message`] in postcard's encoding (serde; a varint tag and the fields in order, so
//! variants and fields are append-only). A batch carries its columns as one byte string, see
//! [`crate::batch`].
//!
//! One connection, from the log-client's side:
//!
//! 1. `Hello` → `Welcome` (or `Refused`, and the server closes).
//! 2. `Process`, `Stream`, `Batch`, `GivenUp`, `StreamEnd`, `ProcessEnd`, `Devices`, each with a sequence number that counts
//!    up through the session, over all its connections (numbers of what was given up are left out); `Heartbeat`
//!    whenever a sweep is over, or `Aside`. `Ack { through }` says that all numbers up to and including `through` are durable; what is not
//!    acknowledged is sent again, in order, on the next connection. The server drops what it already has,
//!    by stream and attempt number.
//! 3. The server asks `Ping`, the log-client answers `Pong`: the offset of the clocks.
//! 4. `Bye` after the last acknowledgement.
//!
//! Beside these, both sides of version [`COMMANDS_SINCE_MINOR`] and later: the log-client says how it is (`Report`), the server has errands for
//! it (`Errand`), which the log-client answers when they are done (`Outcome`). None of this is repeated on another connection.
//!
//! From an operator's side: `Hello` with [`Role::Operator`] → `Welcome`, then `Ask` → `Answer`, as often as wanted.
//!
//! A probe: `Hello` with [`Role::Probe`] → `Welcome`, then `Ping` → `Pong` until it closes.
//!
//! From tail's side: `Hello` with [`Role::Tail`] → `Welcome`, then `Subscribe` → `Rows` until either side closes:
//! of a time in the past first what the trace holds, then what comes, each row once.

use crate::bounded;
use serde::{Deserialize, Serialize};

/// Version of the messages. A server speaks with any client whose major part is its own.
pub const VERSION: Version = Version { major: 3, minor: 1 };
/// From this minor version on, log-clients report and can be steered. To others nothing of that is said.
pub const COMMANDS_SINCE_MINOR: u16 = 1;
/// First bytes of every `Hello`, so that whoever speaks another protocol is told so.
pub const GREETING: [u8; 8] = *b"MIOTWIRE";
/// Largest payload of a frame, bytes.
pub const MAX_FRAME: usize = 16 << 20;
/// Largest payload of the first frame on a connection: nobody is known yet.
pub const MAX_HELLO: usize = 4096;
/// Most devices in a [`DeviceSample`].
pub const MAX_DEVICES: usize = 1024;
/// Longest name, and longest mount, of a [`Device`], bytes.
pub const MAX_DEVICE_NAME: usize = 512;
/// Most ranges in a [`Message::GivenUp`]: they take no more memory than the largest frame.
pub const MAX_RANGES: usize = MAX_FRAME / 16;
/// Bytes before the payload.
pub const FRAME_HEADER: usize = 12;
/// Default TCP port of the log-server.
pub const DEFAULT_PORT: u16 = 4747;

/// Major and minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Must be equal.
    pub major: u16,
    /// May differ; a higher one has more variants and fields.
    pub minor: u16,
}

/// Who is calling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The log-client of a node.
    Node,
    /// A reader of the merged trace.
    Tail,
    /// Somebody who asks how the cluster is, or steers it.
    Operator,
    /// Somebody who only wants to know whether `node` would be served, and what time it is (`miot doctor`).
    Probe,
}

/// Names one process image of a node for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessKey {
    /// Kernel's boot id of the node.
    pub boot: u128,
    /// [`crate::segment::header::NONCE`] of its segment.
    pub nonce: u64,
    /// Process id.
    pub pid: u32,
}

/// Names one stream of a node for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamKey {
    /// Whose.
    pub process: ProcessKey,
    /// Index in the lane table.
    pub lane: u32,
    /// How often the lane was claimed, from 1.
    pub incarnation: u32,
}

/// What is known of a process; sent before its first stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its name for ever.
    pub key: ProcessKey,
    /// Parent's process id.
    pub ppid: u32,
    /// Owner of the segment file: the effective user id the kernel vouches for.
    pub uid: u32,
    /// Creation of the segment (the first traced request), node's nanoseconds since 1970.
    pub started: i64,
    /// MPI rank, if one was found.
    pub rank: Option<u32>,
    /// Executable.
    #[serde(with = "serde_bytes")]
    pub exe: Vec<u8>,
    /// Command line, arguments separated by NUL.
    #[serde(with = "serde_bytes")]
    pub cmdline: Vec<u8>,
    /// What it belongs to, as [`crate::job`] has it.
    #[serde(with = "serde_bytes")]
    pub job: Vec<u8>,
    /// Working directory at creation.
    #[serde(with = "serde_bytes")]
    pub cwd: Vec<u8>,
}

/// What is known of a stream; sent before its first batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Short number on this connection; in a session no other stream has it.
    pub number: u32,
    /// Its name for ever.
    pub key: StreamKey,
    /// Thread id.
    pub tid: u32,
    /// Thread name.
    #[serde(with = "serde_bytes")]
    pub comm: Vec<u8>,
}

/// Why records of a process are missing that no gap in a stream shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessLoss {
    /// A thread got no lane.
    pub no_lane: u64,
    /// Records that made no sense, from a broken or hostile producer.
    pub abi_violations: u64,
}

/// Totals of a stream at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// Short number of the stream.
    pub stream: u32,
    /// Records the lane was asked to take; the last attempt number + 1 if none was lost after it.
    pub attempts: u64,
    /// See [`Message::Batch`]: the attempt number that follows the last record that was taken from the lane.
    pub after: u64,
    /// Of these, lost because the lane was full.
    pub lost_full: u64,
    /// Lost besides, because they came from a signal handler inside another record: these have no
    /// attempt number and leave no gap.
    pub lost_nested: u64,
    /// Requests that the filter of the control page left out: not asked for, so no loss, and without an attempt
    /// number.
    pub filtered: u64,
    /// When it was noticed, node's nanoseconds since 1970: nothing of the stream is later.
    pub time: i64,
}

/// What a counter is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A block device.
    Block,
    /// A mounted NFS.
    Nfs,
    /// A mounted Lustre.
    Lustre,
    /// A mounted file system of a program.
    Fuse,
}

impl DeviceKind {
    /// Its name in the trace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Block => "block",
            DeviceKind::Nfs => "nfs",
            DeviceKind::Lustre => "lustre",
            DeviceKind::Fuse => "fuse",
        }
    }
}

/// What a device did in an interval. `None`: its kernel does not count that. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Of which kind.
    pub kind: DeviceKind,
    /// Name of the block device, or of what is mounted; at most [`MAX_DEVICE_NAME`] bytes.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Where it is mounted, no longer; empty for a block device.
    #[serde(with = "serde_bytes")]
    pub mount: Vec<u8>,
    /// See [`DeviceCounters`].
    pub counters: DeviceCounters,
}

/// Counters of a device, over an interval or since the kernel began to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Reads completed.
    pub reads: Option<u64>,
    /// Writes completed.
    pub writes: Option<u64>,
    /// Other requests completed: discards and flushes, or requests that move no data.
    pub others: Option<u64>,
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Bytes written.
    pub write_bytes: Option<u64>,
    /// Time that the reads took, summed up.
    pub read_time: Option<u64>,
    /// Time that the writes took, summed up.
    pub write_time: Option<u64>,
    /// Time that the others took, summed up.
    pub other_time: Option<u64>,
    /// Reads that were joined with others before they were served.
    pub reads_merged: Option<u64>,
    /// Writes that were joined with others before they were served.
    pub writes_merged: Option<u64>,
    /// Time in which at least one request was under way.
    pub busy: Option<u64>,
    /// Integral of the number of requests under way over time.
    pub queue_time: Option<u64>,
    /// Requests under way at the end. No sum.
    pub in_flight: Option<u64>,
    /// Requests that were sent again.
    pub retransmits: Option<u64>,
}

/// What all devices of a node did in an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Kernel's boot id of the node.
    pub boot: u128,
    /// End of the interval, nanoseconds since that boot: with it the name of the sample for ever, ascending.
    pub uptime: u64,
    /// The same moment, node's nanoseconds since 1970.
    pub time: i64,
    /// Length of the interval, nanoseconds.
    pub interval: u64,
    /// Those that there are, at most [`MAX_DEVICES`].
    pub devices: Vec<Device>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// First on a connection, from the caller.
    Hello {
        /// [`GREETING`].
        greeting: [u8; 8],
        /// [`VERSION`] of the caller.
        version: Version,
        /// What the caller wants.
        role: Role,
        /// Name of the node (or of the host that tails).
        node: String,
        /// Random number of a run of sequence numbers, which start at 1. A log-client that takes over from one that
        /// was killed goes on with its session.
        session: u64,
    },
    /// The server's answer.
    Welcome {
        /// [`VERSION`] of the server.
        version: Version,
        /// All numbers of this session up to this one are durable already; 0 if none.
        through: u64,
    },
    /// The server's other answer; it closes the connection.
    Refused {
        /// For people: what was expected, what was found, what to do.
        reason: String,
        /// It may be otherwise the next time, without anybody doing anything: what came was damaged on the way, or there
        /// is no room at present.
        transient: bool,
    },
    /// See [`Process`].
    Process {
        /// Sequence number.
        seq: u64,
        /// The facts.
        process: Process,
    },
    /// See [`Stream`].
    Stream {
        /// Sequence number.
        seq: u64,
        /// The facts.
        stream: Stream,
    },
    /// Consecutive records of a stream.
    Batch {
        /// Sequence number.
        seq: u64,
        /// Short number of the stream.
        stream: u32,
        /// The attempt number that follows the last record taken from the lane before these; at most that of the
        /// first of these. Numbers missing from here on were lost in the lane; those missing below were taken
        /// from it and did not get here.
        after: u64,
        /// [`crate::batch::Columns`], encoded.
        #[serde(with = "serde_bytes")]
        columns: Vec<u8>,
    },
    /// See [`StreamEnd`].
    StreamEnd {
        /// Sequence number.
        seq: u64,
        /// The totals.
        end: StreamEnd,
    },
    /// The process is gone and all its streams have ended.
    ProcessEnd {
        /// Sequence number.
        seq: u64,
        /// Which.
        key: ProcessKey,
        /// When it was noticed, node's nanoseconds since 1970.
        time: i64,
        /// What it lost outside its streams.
        lost: ProcessLoss,
    },
    /// Every event of this node that completed before `watermark` has been sent. Said again now and then while it does
    /// not move, to show that the node lives and is worth waiting for.
    Heartbeat {
        /// Node's nanoseconds since 1970.
        watermark: i64,
    },
    /// All numbers up to and including `through` survive whatever happens to the server.
    Ack {
        /// Sequence number.
        through: u64,
    },
    /// Clock question.
    Ping {
        /// The asker's clock, nanoseconds since 1970.
        sent: i64,
    },
    /// Clock answer.
    Pong {
        /// `sent` of the question.
        sent: i64,
        /// The answerer's clock when the question was there, nanoseconds since 1970.
        received: i64,
        /// The answerer's clock when it answered, nanoseconds since 1970.
        answered: i64,
    },
    /// The log-client ends: no more from this session, the node no longer holds the merge back.
    Bye,
    /// Tail's wish.
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
        /// Only events that completed at or after this, nanoseconds since 1970, from the past on; `None`: what comes
        /// from now on.
        since: Option<i64>,
    },
    /// Merged events in order, for tail: one Arrow IPC stream with one record batch in the schema of
    /// `miot_trace_store::schema::rows()`.
    Rows {
        /// Arrow IPC stream.
        #[serde(with = "serde_bytes")]
        arrow: Vec<u8>,
    },
    /// The server cuts the subscriber off.
    SubscriptionEnd {
        /// For people.
        reason: String,
    },
    /// Records of a stream that were taken from its lane and then given up for newer ones, because the spool was full.
    /// In their place in the stream: before its later batches and its end. What the server has all the same is not lost.
    GivenUp {
        /// Sequence number.
        seq: u64,
        /// Short number of the stream.
        stream: u32,
        /// See [`Message::Batch`].
        after: u64,
        /// First and last attempt numbers, ascending; what is missing between two ranges was lost in the lane. At most
        /// [`MAX_RANGES`]. None: nothing is given up, but what has not come below `after` was taken from the lane and does not
        /// come any more, because the spool was damaged.
        ranges: Vec<(u64, u64)>,
        /// Completion of the last of them, node's nanoseconds since 1970.
        time: i64,
    },
    /// The node lives, and is not to be waited for: it has events of any time to tell and cannot say when it will,
    /// as a flight recorder. Holds until the next `Heartbeat` that goes beyond the last one.
    SuspendWatermark,
    /// How a log-client is: a [`crate::status::NodeReport`] as JSON, at most [`crate::status::MAX_REPORT`] bytes.
    Report {
        /// JSON.
        #[serde(with = "serde_bytes")]
        status: Vec<u8>,
    },
    /// What a log-client is to do: a [`crate::command::NodeCommand`] as JSON.
    Command {
        /// For the answer; not used twice on a connection.
        id: u64,
        /// JSON, at most [`crate::command::MAX_COMMAND`] bytes.
        #[serde(with = "serde_bytes")]
        command: Vec<u8>,
    },
    /// What became of an errand: a [`crate::command::CommandOutcome`] as JSON.
    Outcome {
        /// Of the errand.
        id: u64,
        /// JSON, at most [`crate::status::MAX_REPORT`] bytes.
        #[serde(with = "serde_bytes")]
        outcome: Vec<u8>,
    },
    /// An operator's [`crate::command::OperatorRequest`] as JSON.
    Request {
        /// JSON, at most [`crate::command::MAX_COMMAND`] bytes.
        #[serde(with = "serde_bytes")]
        request: Vec<u8>,
    },
    /// The server's [`crate::command::OperatorReply`] as JSON.
    Reply {
        /// JSON.
        #[serde(with = "serde_bytes")]
        reply: Vec<u8>,
    },
    /// See [`DeviceSample`]. Sent before a `Heartbeat` that goes beyond its time.
    Devices {
        /// Sequence number.
        seq: u64,
        /// The facts.
        sample: DeviceSample,
    },
}

/// Why a frame could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The length is more than the limit in force.
    TooLong {
        /// What the frame claims, bytes.
        length: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The checksum does not fit the header.
    Header {
        /// What stands where the length should be.
        length: usize,
    },
    /// The checksum does not fit the payload.
    Checksum,
    /// The payload is not a message of this version.
    Message(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooLong { length, limit } => {
                write!(
                    f,
                    "a frame of {length} bytes, at most {limit} are allowed here: the peer does not speak MIOT's protocol"
                )
            }
            FrameError::Header { length } if *length == u32::from_le_bytes(*b"HTTP") as usize => {
                f.write_str("the peer does not speak MIOT's protocol but HTTP: it is the port of a page (`http`), expected that of the log-server (`listen`)")
            }
            FrameError::Header { .. } => f.write_str(
                "a frame's header does not fit its checksum: the connection damages data, or the peer does not speak MIOT's protocol",
            ),
            FrameError::Checksum => f.write_str("a frame's checksum is wrong: the connection damages data"),
            FrameError::Message(reason) => {
                write!(f, "a frame is not a message of version {}.{}: {reason}", VERSION.major, VERSION.minor)
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// The field `seq` of a message that has one, borrowed as the message is.
macro_rules! seq {
    ($message:expr) => {
        match $message {
            Message::Process { seq, .. }
            | Message::Stream { seq, .. }
            | Message::Batch { seq, .. }
            | Message::GivenUp { seq, .. }
            | Message::StreamEnd { seq, .. }
            | Message::ProcessEnd { seq, .. }
            | Message::Devices { seq, .. } => Some(seq),
            _ => None,
        }
    };
}

impl Message {
    /// Appends the message as one frame.
    pub fn append_frame(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_HEADER]);
        // Writing to a Vec cannot fail, and no type here refuses to be serialized.
        if let Ok(filled) = postcard::to_extend(self, std::mem::take(out)) {
            *out = filled;
        }
        let header = frame_header_of(&out[start + FRAME_HEADER..]);
        out[start..start + FRAME_HEADER].copy_from_slice(&header);
    }

    /// The message as one frame.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_frame(&mut out);
        out
    }

    /// The number of a message that is kept until it is acknowledged; `None` for the others.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        seq!(self).copied()
    }

    /// [`Message::seq`], to be set.
    pub fn seq_mut(&mut self) -> Option<&mut u64> {
        seq!(self)
    }

    /// Reads a payload whose frame header said `crc`.
    ///
    /// # Errors
    /// [`FrameError::Checksum`] or [`FrameError::Message`].
    pub fn from_payload(payload: &[u8], crc: u32) -> Result<Message, FrameError> {
        if crc32c::crc32c(payload) != crc {
            return Err(FrameError::Checksum);
        }
        bounded::check(payload).map_err(FrameError::Message)?;
        match postcard::take_from_bytes(payload) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(FrameError::Message(format!("{} bytes left over", rest.len()))),
            Err(error) => Err(FrameError::Message(error.to_string())),
        }
    }
}

/// The header of the frame with this payload.
#[must_use]
pub fn frame_header_of(payload: &[u8]) -> [u8; FRAME_HEADER] {
    let mut header = [0; FRAME_HEADER];
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let sum = crc32c::crc32c(&header[..8]);
    header[8..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Length and checksum of the payload from a frame header, checked against the limit in force.
///
/// # Errors
/// [`FrameError::Header`], [`FrameError::TooLong`].
pub fn frame_header(header: [u8; FRAME_HEADER], limit: usize) -> Result<(usize, u32), FrameError> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if crc32c::crc32c(&header[..8]) != u32::from_le_bytes([i, j, k, l]) {
        return Err(FrameError::Header { length });
    }
    if length > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    Ok((length, u32::from_le_bytes([e, f, g, h])))
}
