//! What happens now: rates and latencies of a window of time, by cluster, node, job, process, file and operation, and
//! series over the last hour.
//!
//! Between processes these types are JSON; fields may be added in any version, and what is missing is read as its default. `miot-trace-analysis` makes them.

use crate::status::ClusterStatus;
use serde::{Deserialize, Serialize};

/// Longest window but the whole time, seconds.
pub const MAX_WINDOW_SECONDS: u32 = 60;
/// Seconds of which a [`ActivityHistory`] can be.
pub const MAX_HISTORY_SECONDS: usize = 3600;

/// Over which time a [`ActivitySnapshot`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivityWindow {
    /// So many whole seconds, at most [`MAX_WINDOW_SECONDS`].
    Seconds(u32),
    /// Since the observation began.
    Whole,
}

/// Series over time, one value per step, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityHistory {
    /// Begin of the first step, seconds since 1970.
    pub begin: i64,
    /// Seconds of a step.
    pub step: u32,
    /// Outermost requests that completed.
    pub requests: Vec<u64>,
    /// Of these, those that failed.
    pub failed: Vec<u64>,
    /// Bytes read.
    pub bytes_read: Vec<u64>,
    /// Bytes written.
    pub bytes_written: Vec<u64>,
    /// Events lost.
    pub lost: Vec<u64>,
    /// Longest duration, nanoseconds.
    pub max: Vec<u64>,
    /// End of the first row of [`ActivityHistory::latencies`], nanoseconds; each further one ends at twice the one before.
    pub first_row: u64,
    /// Requests by duration, per step; rows from the shortest on, those at the end that are empty are left out.
    pub latencies: Vec<Vec<u32>>,
}

/// Everything that can be watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterActivity {
    /// How the log-server and its nodes are.
    pub status: ClusterStatus,
    /// What happens.
    pub snapshot: ActivitySnapshot,
    /// What happened.
    pub history: ActivityHistory,
}

/// What happened in a window of time. Times are nanoseconds, those of the clock since 1970.
///
/// Rows are a selection: those with most requests, most bytes, most time and the longest request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivitySnapshot {
    /// Begin of the window.
    pub begin: i64,
    /// End of the window.
    pub end: i64,
    /// Seconds of the window that were observed: rates are sums divided by this.
    pub seconds: f64,
    /// Events since the observation began, also requests within requests.
    pub events: u64,
    /// Events that were not counted because they came faster than they could be.
    pub skipped: u64,
    /// Requests left out on purpose since the observation began, by minimum duration or sample. No loss.
    pub filtered: u64,
    /// All together.
    pub cluster: ActivityRow,
    /// By node.
    pub nodes: ActivityGroup,
    /// By job of the batch system; those without have an empty name.
    pub jobs: ActivityGroup,
    /// By process.
    pub processes: ActivityGroup,
    /// By file.
    pub files: ActivityGroup,
    /// By operation, counting requests within requests too, which all others do not.
    pub operations: ActivityGroup,
    /// What was lost since the observation began, by node and place.
    pub losses: Vec<ActivityLoss>,
}

/// Rows of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityGroup {
    /// The selection, the one with most requests first.
    pub rows: Vec<ActivityRow>,
    /// How many there are in the window, as far as they were told apart.
    pub count: u64,
    /// Requests in the window that are in none of the rows.
    pub others: u64,
}

/// What one of them did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityRow {
    /// Node, job id, command of a process, path of a file, `layer.operation`; empty if unknown.
    pub name: String,
    /// Id in the trace, of processes and files.
    pub id: Option<u64>,
    /// Node of a process or file.
    pub node: Option<String>,
    /// Process id on the node, of processes.
    pub pid: Option<u32>,
    /// User id, of processes.
    pub uid: Option<u32>,
    /// Job, of processes.
    pub job: Option<String>,
    /// Requests that completed.
    pub requests: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Sum of the durations.
    pub time: u64,
    /// Median duration, to a sixteenth.
    pub p50: u64,
    /// 99th percentile of the durations, to a sixteenth.
    pub p99: u64,
    /// Longest duration.
    pub max: u64,
    /// Events lost.
    pub lost: u64,
    /// There were more of its kind than can be told apart: it may have had so many requests more.
    pub missed: u64,
}

/// Events that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityLoss {
    /// Node.
    pub node: String,
    /// See `losses` in the columns of a trace.
    pub place: String,
    /// How many.
    pub count: u64,
}
