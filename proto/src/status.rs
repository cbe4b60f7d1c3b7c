//! The state of a cluster as the log-server sees it, and what nodes report of themselves.
//!
//! Between processes these types are JSON: in [`Message::Report`](crate::wire::Message::Report), in the answers of
//! `miot ctl --server`, at `/api/status`. Fields may be added in any version and must not be renamed: what is missing is
//! read as its default, what is not known is skipped. Times are the log-server's, in nanoseconds since 1970, unless said
//! otherwise.

use crate::command::StandingCommand;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest [`Message::Report`](crate::wire::Message::Report), bytes.
pub const MAX_REPORT: usize = 64 << 10;
/// Requests in flight that a node tells of, the oldest.
pub const MAX_IN_FLIGHT: usize = 8;

/// Requests that are missing, or were left out on purpose, by the names of the table `losses` (`lane_full`, `spool_full`,
/// `filtered` ...).
pub type Losses = BTreeMap<String, u64>;

/// Everything that is known now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// The log-server.
    pub server: ServerStatus,
    /// All nodes that it has heard of since its start, or has in its trace, by name.
    pub nodes: Vec<NodeStatus>,
    /// What it remembers for nodes that come, in the order in which it counts.
    pub orders: Vec<StandingCommand>,
}

/// The log-server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// Of the program.
    pub version: String,
    /// Now.
    pub time: i64,
    /// When it was started.
    pub started: i64,
    /// Since then, seconds.
    pub uptime_s: f64,
    /// The trace directory.
    pub trace: String,
    /// The trace can be written and synced. If not: `failure`.
    pub durable: bool,
    /// Why it cannot.
    pub failure: Option<String>,
    /// How far the merge is behind the clock, nanoseconds. Grows while a node holds it back; 0 with nothing to merge.
    pub merge_lag_ns: i64,
    /// Events that wait to be merged.
    pub waiting: u64,
    /// Events stored since the start.
    pub events: u64,
    /// Over the last seconds.
    pub events_per_second: f64,
    /// Bytes received from nodes since the start.
    pub bytes: u64,
    /// Over the last seconds.
    pub bytes_per_second: f64,
    /// Those last seconds; `None` if nothing has been counted yet.
    pub rates_of: Option<RateWindow>,
    /// Parts being appended to or being sealed.
    pub live_parts: u64,
    /// Parts in Parquet.
    pub sealed_parts: u64,
    /// Of the file system of the trace, for this user, bytes.
    pub disk_free: u64,
    /// Its size, bytes.
    pub disk_total: u64,
    /// Memory for events that are not durable, bytes in use.
    pub memory: u64,
    /// Its limit (`memory`).
    pub memory_limit: u64,
    /// Connections of nodes.
    pub connections: u64,
    /// Readers of the live trace.
    pub subscribers: u64,
    /// Subscribers cut off: they, or the log-server, were too slow.
    pub subscribers_cut: u64,
    /// Connections turned away.
    pub turned_away: u64,
    /// Of all nodes, since the start.
    pub losses: Losses,
}

/// From when to when something was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateWindow {
    /// Begin.
    pub from: i64,
    /// End.
    pub to: i64,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// It has a connection.
    pub connected: bool,
    /// Since when; of the last one, if it is gone.
    pub connected_since: Option<i64>,
    /// Connections since the log-server's start.
    pub connects: u64,
    /// Address and port it came from.
    pub address: String,
    /// When the last message came.
    pub last_heard: Option<i64>,
    /// Events received since the log-server's start, repeats included.
    pub events: u64,
    /// Over the last seconds.
    pub events_per_second: f64,
    /// Bytes received likewise.
    pub bytes: u64,
    /// Over the last seconds.
    pub bytes_per_second: f64,
    /// Those last seconds; `None` if nothing has been counted yet.
    pub rates_of: Option<RateWindow>,
    /// Everything before this time has been sent.
    pub watermark: Option<i64>,
    /// How far the watermark is behind the clock, nanoseconds.
    pub lag_ns: Option<i64>,
    /// The merge waits for it.
    pub holds_back: bool,
    /// Losses since the log-server's start, as they are in the trace.
    pub losses: Losses,
    /// Its clock; `None` while it is not known.
    pub clock: Option<ClockStatus>,
    /// What it last said of itself; `None` if it never did: its log-client is of a version that does not.
    pub report: Option<NodeReport>,
    /// When that came.
    pub reported: Option<i64>,
}

/// What is known of a node's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockStatus {
    /// What is added to the node's times, nanoseconds.
    pub offset_ns: i64,
    /// By how much the offset grows, nanoseconds per second.
    pub drift_ppb: i64,
    /// The times of the node may be wrong by so much.
    pub uncertainty_ns: i64,
    /// They probably are by so much: the standard error, if both ways are equally long. `None`: a log-server of before.
    pub estimated_error_ns: Option<i64>,
    /// Shortest round trip.
    pub round_trip_ns: i64,
}

/// What a log-client says of itself, about once a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    /// Of the program.
    pub version: String,
    /// Since its start, seconds.
    pub uptime_s: f64,
    /// Connected to the log-server.
    pub connected: bool,
    /// Connections since its start.
    pub connects: u64,
    /// Records taken from lanes since its start.
    pub events: u64,
    /// Bytes of the messages made of them.
    pub bytes: u64,
    /// Sweeps since its start.
    pub sweeps: u64,
    /// Processes being read.
    pub processes: u64,
    /// Processes found since its start.
    pub processes_seen: u64,
    /// Lanes (threads) being read.
    pub lanes: u64,
    /// Shared memory of all segments, bytes.
    pub segment_bytes: u64,
    /// Its limit (`node_bytes`).
    pub segment_limit: u64,
    /// It is used up: no lanes are made.
    pub segments_full: bool,
    /// What is not acknowledged.
    pub spool: SpoolStatus,
    /// By place: of lanes in use as they count now, of others since its start.
    pub losses: Losses,
    /// Requests in flight.
    pub in_flight: u64,
    /// The oldest of them, at most [`MAX_IN_FLIGHT`].
    pub oldest: Vec<InFlightStatus>,
    /// What is recorded.
    pub settings: SettingsStatus,
    /// What is recorded otherwise, of some jobs and processes.
    pub exceptions: Vec<ExceptionStatus>,
}

/// The spool of a log-client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpoolStatus {
    /// Bytes in files.
    pub bytes: u64,
    /// Their limit (`spool_bytes`).
    pub limit: u64,
    /// Messages that are not acknowledged.
    pub messages: u64,
    /// Nothing more is taken from lanes for want of room.
    pub full: bool,
}

/// A request that has begun and not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InFlightStatus {
    /// Since it began, nanoseconds.
    pub age_ns: u64,
    /// As the process sees it.
    pub pid: u32,
    /// As the process sees it.
    pub tid: u32,
    /// Executable.
    pub exe: String,
    /// Job id, if there is one.
    pub job: String,
    /// Layer and operation, `posix.read`.
    pub op: String,
}

/// What a node records, in the words of `miot ctl set`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingsStatus {
    /// Recording at all.
    pub enabled: bool,
    /// Layers.
    pub layers: String,
    /// Operations.
    pub ops: String,
    /// Requests that take less are left out.
    pub min_duration_ns: u64,
    /// One request in so many is kept.
    pub sample: u64,
    /// When a lane is full.
    pub when_full: String,
    /// Keeps the latest in memory, until a snapshot.
    pub flight_recorder: bool,
    /// Snapshots taken.
    pub snapshots: u64,
}

/// What is recorded of one job, or one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExceptionStatus {
    /// Job id.
    pub job: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Processes of it that are there now.
    pub processes: u64,
    /// What holds for it.
    pub settings: SettingsStatus,
}
