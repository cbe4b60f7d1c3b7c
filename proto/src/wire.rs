//! Frames and messages between log-client, log-server and tail.
//!
//! ```text
//! frame:  u32 length of the payload · u32 CRC-32C of the payload · payload
//! ```
//!
//! The payload is a [`Message`] in postcard's encoding (serde; a varint tag and the fields in order, so
//! variants and fields are append-only). A batch carries its columns as one byte string, see
//! [`crate::batch`].
//!
//! One connection, from the log-client's side:
//!
//! 1. `Hello` → `Welcome` (or `Refused`, and the server closes).
//! 2. `Process`, `Stream`, `Batch`, `StreamEnd`, `ProcessEnd`, each with a sequence number that counts up
//!    by one through the life of the log-client, over all its connections; `Heartbeat` whenever a sweep is
//!    over. `Ack { through }` says that all numbers up to and including `through` are durable; what is not
//!    acknowledged is sent again, in order, on the next connection. The server drops what it already has,
//!    by stream and attempt number.
//! 3. The server asks `Ping`, the log-client answers `Pong`: the offset of the clocks.
//! 4. `Bye` after the last acknowledgement.
//!
//! From tail's side: `Hello` with [`Role::Tail`] → `Welcome`, then `Subscribe` → `Rows` until either side closes.

use serde::{Deserialize, Serialize};

/// Version of the messages. A server speaks with any client whose major part is its own.
pub const VERSION: Version = Version { major: 1, minor: 0 };
/// First bytes of every `Hello`, so that whoever speaks another protocol is told so.
pub const GREETING: [u8; 8] = *b"MIOTWIRE";
/// Largest payload of a frame, bytes.
pub const MAX_FRAME: usize = 16 << 20;
/// Largest payload of the first frame on a connection: nobody is known yet.
pub const MAX_HELLO: usize = 4096;
/// Bytes before the payload.
pub const FRAME_HEADER: usize = 8;
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
    /// Job id, if one was found.
    #[serde(with = "serde_bytes")]
    pub job: Vec<u8>,
    /// Working directory at creation.
    #[serde(with = "serde_bytes")]
    pub cwd: Vec<u8>,
}

/// What is known of a stream; sent before its first batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Short number for this session, from 0, dense.
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
    /// Of these, lost because the lane was full.
    pub lost_full: u64,
    /// Lost besides, because they came from a signal handler inside another record: these have no
    /// attempt number and leave no gap.
    pub lost_nested: u64,
    /// When it was noticed, node's nanoseconds since 1970: nothing of the stream is later.
    pub time: i64,
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
        /// Random number of this log-client process: its sequence numbers start at 1.
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
    /// Every event of this node that completed before `watermark` has been sent.
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
    },
    /// Merged events in order, for tail: one Arrow IPC stream with one record batch in the schema of
    /// `miot_trace_store::schema::rows()`.
    Rows {
        /// Arrow IPC stream.
        #[serde(with = "serde_bytes")]
        arrow: Vec<u8>,
    },
    /// The server cuts the subscriber off.
    Cut {
        /// For people.
        reason: String,
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
            FrameError::Checksum => f.write_str("a frame's checksum is wrong: the connection damages data"),
            FrameError::Message(reason) => {
                write!(f, "a frame is not a message of version {}.{}: {reason}", VERSION.major, VERSION.minor)
            }
        }
    }
}

impl std::error::Error for FrameError {}

impl Message {
    /// Appends the message as one frame.
    pub fn put_frame(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_HEADER]);
        // Writing to a Vec cannot fail, and no type here refuses to be serialized.
        if let Ok(filled) = postcard::to_extend(self, std::mem::take(out)) {
            *out = filled;
        }
        let payload = &out[start + FRAME_HEADER..];
        let (length, crc) = (payload.len() as u32, crc32c::crc32c(payload));
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The message as one frame.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put_frame(&mut out);
        out
    }

    /// Reads a payload whose frame header said `crc`.
    ///
    /// # Errors
    /// [`FrameError::Checksum`] or [`FrameError::Message`].
    pub fn from_payload(payload: &[u8], crc: u32) -> Result<Message, FrameError> {
        if crc32c::crc32c(payload) != crc {
            return Err(FrameError::Checksum);
        }
        match postcard::take_from_bytes(payload) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(FrameError::Message(format!("{} bytes left over", rest.len()))),
            Err(error) => Err(FrameError::Message(error.to_string())),
        }
    }
}

/// Length and checksum from a frame header, checked against the limit in force.
///
/// # Errors
/// [`FrameError::TooLong`].
pub fn frame_header(header: [u8; FRAME_HEADER], limit: usize) -> Result<(usize, u32), FrameError> {
    let [a, b, c, d, e, f, g, h] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    Ok((length, u32::from_le_bytes([e, f, g, h])))
}
