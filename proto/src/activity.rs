//! Current activity: rates and latencies over a window of time, by cluster, node, job, process,
//! file and operation, and time series of the last hour.
//!
//! Processes exchange these types as JSON. Any version may add fields; a missing field is read as
//! its default. `miot-trace-analysis` computes them.

use crate::status::ClusterStatus;
use serde::{Deserialize, Serialize};

/// Longest [`ActivityWindow::Seconds`].
pub const MAX_WINDOW_SECONDS: u32 = 60;
/// Longest [`ActivityHistory`].
pub const MAX_HISTORY_SECONDS: usize = 3600;

/// Time span of an [`ActivitySnapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivityWindow {
    /// The last whole seconds, at most [`MAX_WINDOW_SECONDS`].
    Seconds(u32),
    /// Everything since the start of the observation.
    Whole,
}

/// Time series with one value per step, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityHistory {
    /// Start of the first step, seconds since 1970.
    pub begin: i64,
    /// Length of a step, seconds.
    pub step: u32,
    /// Completed requests without a parent.
    pub requests: Vec<u64>,
    /// Failed ones among [`ActivityHistory::requests`].
    pub failed: Vec<u64>,
    /// Bytes read.
    pub bytes_read: Vec<u64>,
    /// Bytes written.
    pub bytes_written: Vec<u64>,
    /// Events lost.
    pub lost: Vec<u64>,
    /// Longest duration, nanoseconds.
    pub max: Vec<u64>,
    /// Upper bound of the first row of [`ActivityHistory::latencies`], nanoseconds. The bound of
    /// each further row is twice that of the previous row.
    pub first_row: u64,
    /// Requests by duration, per step: rows in ascending order of duration, without empty rows at
    /// the end.
    pub latencies: Vec<Vec<u32>>,
}

/// Status and activity of a cluster: all that `miot top` and the web page show.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterActivity {
    /// State of the log-server and its nodes.
    pub status: ClusterStatus,
    /// Current activity.
    pub snapshot: ActivitySnapshot,
    /// Time series.
    pub history: ActivityHistory,
}

/// Activity within a window. Durations are nanoseconds, points in time nanoseconds since 1970.
///
/// Rows are a selection: those with the most requests, the most bytes, the most time, the longest
/// request and the most losses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivitySnapshot {
    /// Start of the window.
    pub begin: i64,
    /// End of the window.
    pub end: i64,
    /// Observed part of the window, seconds. Rates are sums divided by it.
    pub seconds: f64,
    /// Events since the start of the observation, including requests with a parent.
    pub events: u64,
    /// Events that were not counted because they arrived faster than they could be processed.
    pub skipped: u64,
    /// Requests excluded since the start of the observation by minimum duration or sampling. Not a
    /// loss.
    pub filtered: u64,
    /// Totals of the cluster.
    pub cluster: ActivityRow,
    /// By node.
    pub nodes: ActivityGroup,
    /// By job of the batch system. Processes without a job have an empty name.
    pub jobs: ActivityGroup,
    /// By process.
    pub processes: ActivityGroup,
    /// By file.
    pub files: ActivityGroup,
    /// By operation. Unlike all other groups it includes requests with a parent.
    pub operations: ActivityGroup,
    /// Losses since the start of the observation, by node and place.
    pub losses: Vec<ActivityLoss>,
}

/// Rows of one kind, e.g. all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityGroup {
    /// Selected rows, in descending order of requests.
    pub rows: Vec<ActivityRow>,
    /// Number of distinct objects in the window, as far as they were counted separately.
    pub count: u64,
    /// Requests in the window that no row contains.
    pub others: u64,
}

/// Activity of one object of a group, or of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityRow {
    /// Name of the node, job id, command of the process, path of the file, or `layer.operation`.
    /// Empty if unknown.
    pub name: String,
    /// Id in the trace (processes and files).
    pub id: Option<u64>,
    /// Node (processes and files).
    pub node: Option<String>,
    /// Process id on the node (processes).
    pub pid: Option<u32>,
    /// User id (processes).
    pub uid: Option<u32>,
    /// Job id (processes).
    pub job: Option<String>,
    /// Completed requests.
    pub requests: u64,
    /// Failed ones among [`ActivityRow::requests`].
    pub failed: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Sum of the durations, nanoseconds.
    pub time: u64,
    /// Median duration, nanoseconds, with a relative error of at most 1/16.
    pub p50: u64,
    /// 99th percentile of the durations, nanoseconds, with a relative error of at most 1/16.
    pub p99: u64,
    /// Longest duration, nanoseconds.
    pub max: u64,
    /// Events lost.
    pub lost: u64,
    /// Number of requests that the row may lack. Not 0 if the group has more objects than are
    /// counted separately.
    pub missed: u64,
}

/// Number of lost events of a node at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityLoss {
    /// Name of the node.
    pub node: String,
    /// Place of the loss, see table `losses` of the trace.
    pub place: String,
    /// Number of events.
    pub count: u64,
}
