//! State of a cluster as the log-server sees it, and the reports of nodes about themselves.
//!
//! Processes exchange these types as JSON: in [`Message::Report`](crate::wire::Message::Report), in
//! the replies to `miot ctl --server`, at `/api/status`. Any version may add JSON keys, and none
//! may rename them: a missing key is read as its default, an unknown one is ignored. Times are
//! those of the log-server, in nanoseconds since 1970, unless stated otherwise.

use crate::command::StandingCommand;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum size of a [`Message::Report`](crate::wire::Message::Report), bytes.
pub const MAX_REPORT: usize = 64 << 10;
/// Maximum number of requests in flight in a report; these are the oldest.
pub const MAX_IN_FLIGHT: usize = 8;

/// Number of requests that were lost or excluded, by place as in the table `losses` (`lane_full`,
/// `spool_full`, `filtered` ...).
pub type Losses = BTreeMap<String, u64>;

/// State of the log-server and its nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// State of the log-server.
    pub server: ServerStatus,
    /// All nodes that connected since its start or are in its trace, by name.
    pub nodes: Vec<NodeStatus>,
    /// Commands stored for nodes that connect later, in the order of their application.
    pub orders: Vec<StandingCommand>,
}

/// State of the log-server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// Version of the program.
    pub version: String,
    /// Current time.
    pub time: i64,
    /// Time of its start.
    pub started: i64,
    /// Time since its start, seconds.
    pub uptime_s: f64,
    /// Path of the trace directory.
    pub trace: String,
    /// Whether the trace can be written and synced; if not, see `failure`.
    pub durable: bool,
    /// Reason why the trace cannot be written.
    pub failure: Option<String>,
    /// Distance of the merge to the current time, nanoseconds. It grows while a node holds the
    /// merge back and is 0 if there is nothing to merge.
    pub merge_lag_ns: i64,
    /// Number of events that wait for the merge.
    pub waiting: u64,
    /// Number of events stored since the start.
    pub events: u64,
    /// Events per second over [`Self::rates_of`].
    pub events_per_second: f64,
    /// Number of bytes received from nodes since the start.
    pub bytes: u64,
    /// Bytes per second over [`Self::rates_of`].
    pub bytes_per_second: f64,
    /// Interval of the rates; `None` if nothing has been counted yet.
    pub rates_of: Option<RateWindow>,
    /// Number of live parts and parts that are being sealed.
    pub live_parts: u64,
    /// Number of sealed parts.
    pub sealed_parts: u64,
    /// Free space of the trace's file system for this user, bytes.
    pub disk_free: u64,
    /// Size of that file system, bytes.
    pub disk_total: u64,
    /// Memory in use for events that are not durable, bytes.
    pub memory: u64,
    /// Limit of that memory (setting `memory`), bytes.
    pub memory_limit: u64,
    /// Number of connected nodes.
    pub connections: u64,
    /// Number of readers of the live trace.
    pub subscribers: u64,
    /// Number of subscriptions that the log-server ended because the subscriber or itself was too
    /// slow.
    pub subscribers_cut: u64,
    /// Number of refused connections.
    pub turned_away: u64,
    /// Sealed parts that wait for their upload; `None` if the log-server has no object store.
    pub upload: Option<UploadStatus>,
    /// The broker; `None` if the log-server has none.
    pub broker: Option<BrokerStatus>,
    /// Losses of all nodes since the start.
    pub losses: Losses,
    /// Name of the cluster; empty if it has none.
    pub cluster: String,
    /// Partition of the ids of its trace.
    pub partition: u16,
    /// All events that completed before this time are in the trace; later ones are marked late.
    /// `None` before the first merge.
    pub final_time: Option<i64>,
}

/// The broker through which nodes send.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerStatus {
    /// Addresses of the broker.
    pub url: String,
    /// The log-server is connected to it.
    pub connected: bool,
    /// Number of connections so far.
    pub connects: u64,
    /// Reason why there is no connection.
    pub error: Option<String>,
    /// Number of messages that the log-server has not read, at most 10 s ago.
    pub messages: u64,
    /// Their size, bytes.
    pub bytes: u64,
    /// Maximum size, bytes; 0: no limit.
    pub limit: u64,
}

/// Sealed parts that wait for their upload to an object store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UploadStatus {
    /// Address of the store.
    pub store: String,
    /// Number of parts.
    pub parts: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Time since the oldest of them was sealed, seconds.
    pub oldest_s: f64,
}

/// Interval over which a rate was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateWindow {
    /// Start of the interval.
    pub from: i64,
    /// End of the interval.
    pub to: i64,
}

/// State of a node as the log-server sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Name of the node.
    pub node: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Start of the current or last connection.
    pub connected_since: Option<i64>,
    /// Number of connections since the start of the log-server.
    pub connects: u64,
    /// Address and port of the peer.
    pub address: String,
    /// Time of the last message.
    pub last_heard: Option<i64>,
    /// Number of events received since the start of the log-server, including repeated ones.
    pub events: u64,
    /// Events per second over [`Self::rates_of`].
    pub events_per_second: f64,
    /// Number of bytes received since the start of the log-server.
    pub bytes: u64,
    /// Bytes per second over [`Self::rates_of`].
    pub bytes_per_second: f64,
    /// Interval of the rates; `None` if nothing has been counted yet.
    pub rates_of: Option<RateWindow>,
    /// Watermark: the node has sent all events before this time.
    pub watermark: Option<i64>,
    /// Distance of the watermark to the current time, nanoseconds.
    pub lag_ns: Option<i64>,
    /// Whether the merge waits for this node.
    pub holds_back: bool,
    /// Losses since the start of the log-server, as in the trace.
    pub losses: Losses,
    /// Clock of the node; `None` while it is unknown.
    pub clock: Option<ClockStatus>,
    /// Last report of the node; `None` if its log-client has a version that sends none.
    pub report: Option<NodeReport>,
    /// Time of that report.
    pub reported: Option<i64>,
}

/// Estimate of a node's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockStatus {
    /// Offset added to the node's times, nanoseconds.
    pub offset_ns: i64,
    /// Growth of the offset, nanoseconds per second.
    pub drift_ppb: i64,
    /// Maximum error of the node's times, nanoseconds.
    pub uncertainty_ns: i64,
    /// Standard error of the node's times, nanoseconds, if both directions take equally long.
    /// `None` from an earlier version of the log-server.
    pub estimated_error_ns: Option<i64>,
    /// Shortest round trip, nanoseconds.
    pub round_trip_ns: i64,
}

/// Report of a log-client about itself, sent about once per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    /// Version of the program.
    pub version: String,
    /// Time since its start, seconds.
    pub uptime_s: f64,
    /// Whether it is connected to the log-server.
    pub connected: bool,
    /// Number of connections since its start.
    pub connects: u64,
    /// Number of records taken from lanes since its start.
    pub events: u64,
    /// Size of the messages with these records, bytes.
    pub bytes: u64,
    /// Number of sweeps since its start.
    pub sweeps: u64,
    /// Number of processes being read.
    pub processes: u64,
    /// Number of processes found since its start.
    pub processes_seen: u64,
    /// Number of lanes being read.
    pub lanes: u64,
    /// Size of all segments, bytes.
    pub segment_bytes: u64,
    /// Limit of that size (setting `node_bytes`), bytes.
    pub segment_limit: u64,
    /// The limit is reached: producers create no lanes.
    pub segments_full: bool,
    /// Batches and other messages that are not acknowledged.
    pub spool: SpoolStatus,
    /// Log-server that gets new records; empty from an earlier version.
    pub server: String,
    /// Spools of other log-servers, which wait for these.
    pub other_spools: Vec<ServerSpool>,
    /// Losses by place: current counts of the lanes in use, plus those of all other lanes since its
    /// start.
    pub losses: Losses,
    /// Number of requests in flight.
    pub in_flight: u64,
    /// Oldest requests in flight, at most [`MAX_IN_FLIGHT`].
    pub oldest: Vec<InFlightStatus>,
    /// Settings of the node.
    pub settings: SettingsStatus,
    /// Jobs and processes with settings of their own.
    pub exceptions: Vec<ExceptionStatus>,
}

/// State of a log-client's spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpoolStatus {
    /// Size of the files, bytes.
    pub bytes: u64,
    /// Limit of that size (setting `spool_bytes`), bytes.
    pub limit: u64,
    /// Number of messages that are not acknowledged.
    pub messages: u64,
    /// The spool is full: the log-client takes no records from lanes.
    pub full: bool,
}

/// Spool of a log-server that gets no new records of a node: messages that only this log-server
/// gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerSpool {
    /// Address of the log-server.
    pub server: String,
    /// Number of the spool.
    pub number: u64,
    /// Directory on the node.
    pub path: String,
    /// Size of the files, bytes.
    pub bytes: u64,
    /// Number of messages that are not acknowledged.
    pub messages: u64,
}

/// Request in flight: it has started and not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InFlightStatus {
    /// Time since its start, nanoseconds.
    pub age_ns: u64,
    /// Process id in the PID namespace of the process.
    pub pid: u32,
    /// Thread id in the PID namespace of the process.
    pub tid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Job id; empty if there is none.
    pub job: String,
    /// Layer and operation, e.g. `posix.read`.
    pub op: String,
}

/// Settings of a node, a job or a process, as texts of `miot ctl set`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingsStatus {
    /// Whether recording is on.
    pub enabled: bool,
    /// Recorded layers.
    pub layers: String,
    /// Recorded operations.
    pub ops: String,
    /// Minimum duration of recorded requests, nanoseconds.
    pub min_duration_ns: u64,
    /// One request in this number is recorded.
    pub sample: u64,
    /// Policy for a full lane.
    pub when_full: String,
    /// Whether the flight recorder is on: the latest events stay in memory until a snapshot.
    pub flight_recorder: bool,
    /// Number of snapshots.
    pub snapshots: u64,
}

/// Settings of one job or one process that differ from those of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExceptionStatus {
    /// Job id.
    pub job: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Number of its running processes.
    pub processes: u64,
    /// Its settings.
    pub settings: SettingsStatus,
}
