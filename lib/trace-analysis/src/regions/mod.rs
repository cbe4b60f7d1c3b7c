//! Regions of a program's run (epochs, steps, checkpoints), the I/O during them, and how much of it
//! is hidden behind computation.
//!
//! I/O is hidden while the main thread computes, as in DFAnalyzer, whose "unoverlapped I/O" is "the
//! portion of POSIX I/O that is not hidden by the application's compute" (Devarajan et al.,
//! DFTracer: An Analysis-Friendly Data Flow Tracer for AI-Driven Workflows, SC24). Here:
//!
//! - A *task* is a main process with the processes that work for it ([`tasks`]): a rank and its
//!   loaders of data. The *main thread* is the thread of the main process that computes most.
//! - The innermost region of the main thread determines what it does ([`RegionKind`]).
//! - *I/O time* is the length of the union of the outermost requests, so that no nanosecond counts
//!   twice, clipped to the regions.
//! - The part of it is *hidden* in which the main thread computes and is not in a request itself.
//! - A region of the main thread contains the requests of its task, that of another thread those of
//!   that thread. Requests and bytes count where the request completes.
//!
//! Two passes over the events are needed: the first finds the regions. Memory grows with the number
//! of regions, at most [`MOST`]; the number of kept intervals with I/O is limited, by joining those
//! that are close.

mod checkpoints;
mod io;
mod kind;
mod rules;
mod scope;
mod spans;
mod tasks;

pub use checkpoints::CheckpointRow;
pub use io::RegionIo;
pub use kind::RegionKind;
pub use rules::judge;
pub use spans::RegionSpans;

use miot_proto::op::Layer;
use serde::Serialize;
use spans::RowName;

/// Columns of events that the first pass requires.
pub const COLUMNS: &[&str] = &[
    "time",
    "duration",
    "node",
    "process",
    "pid",
    "tid",
    "layer",
    "op",
    "file",
    "file2",
    "arg",
    "result",
    "stream",
    "enclosing",
    "caller_tid",
];

/// Maximum number of examined regions.
pub const MOST: u64 = 1 << 22;

/// Regions of one name, and the I/O of one layer during them. Times are in nanoseconds, and sums
/// over all threads with such regions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegionRow {
    /// Name of the regions.
    pub region: String,
    /// Attributes, in rows of single regions.
    pub attributes: Option<String>,
    /// What the main thread does in them.
    pub kind: RegionKind,
    /// Layer of the requests; `None`: all layers together.
    pub layer: Option<&'static str>,
    /// Number of regions.
    pub count: u64,
    /// Number of threads with such regions.
    pub threads: u64,
    /// True if there are regions of main threads, which contain the requests of their whole task.
    pub is_main: bool,
    /// Sum of the durations of the regions.
    pub time: u64,
    /// Requests that completed within.
    pub requests: u64,
    /// Bytes that these requests read.
    pub bytes_read: u64,
    /// Bytes that they wrote.
    pub bytes_written: u64,
    /// Time within the regions in which at least one request was in progress.
    pub io_time: u64,
    /// Part of `io_time` in which the main thread computed.
    pub hidden_time: u64,
    /// `hidden_time` / `io_time`; `None` without I/O.
    pub hidden: Option<f64>,
    /// Bytes per second of `io_time`; `None` without bytes.
    pub bandwidth: Option<f64>,
}

impl RegionRow {
    fn new(name: &RowName, layer: usize) -> RegionRow {
        RegionRow {
            region: name.region.clone(),
            attributes: name.attributes.clone(),
            kind: name.kind,
            layer: Layer::from_number(layer as u8).map(Layer::name),
            count: 0,
            threads: 0,
            is_main: false,
            time: 0,
            requests: 0,
            bytes_read: 0,
            bytes_written: 0,
            io_time: 0,
            hidden_time: 0,
            hidden: None,
            bandwidth: None,
        }
    }

    fn finish(&mut self) {
        let bytes = self.bytes_read.saturating_add(self.bytes_written);
        if self.io_time > 0 {
            self.hidden = Some(self.hidden_time as f64 / self.io_time as f64);
            self.bandwidth = (bytes > 0).then(|| bytes as f64 * 1e9 / self.io_time as f64);
        }
    }
}

/// What the main thread of a task did in its regions. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopFigures {
    /// Main process.
    pub main: u64,
    /// Begin of the first region of a kind other than `other`.
    pub begin: i64,
    /// End of the last such region.
    pub end: i64,
    /// Time in such regions.
    pub time: u64,
    /// Part of it that the main thread computed.
    pub compute: u64,
    /// Part of it that the main thread waited for input.
    pub fetch: u64,
    /// Part of it that the main thread saved its state.
    pub checkpoint: u64,
    /// Number of regions that wait for input.
    pub fetches: u64,
    /// Number of checkpoints.
    pub checkpoints: u64,
    /// Time in these regions with I/O of the task.
    pub io_time: u64,
    /// Part of `io_time` that is hidden.
    pub hidden_time: u64,
    /// Part of `io_time` in `fetch`.
    pub fetch_io: u64,
    /// Part of `io_time` in `checkpoint`.
    pub checkpoint_io: u64,
}

/// Times of the regions of one name and kind, of all threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSpans {
    /// Name of the regions.
    pub region: String,
    /// What the main thread does in them.
    pub kind: RegionKind,
    /// Number of regions.
    pub count: u64,
    /// Sum of the durations of the regions, nanoseconds.
    pub time: u64,
    /// Begin and end of the times in which a thread is in such a region, nanoseconds since 1970, in
    /// order. Those closest to each other are joined if there are more than some thousand.
    pub spans: Vec<(i64, i64)>,
}

/// Regions of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RegionTable {
    /// Number of tasks.
    pub tasks: u64,
    /// Number of regions.
    pub regions: u64,
    /// Number of regions that were not examined, because there were more than [`MOST`].
    pub left_out: u64,
    /// Rows, by the total time of the regions, largest first, then rows of single regions in order
    /// of completion; for each, all layers together and then each layer.
    pub rows: Vec<RegionRow>,
    /// Times of the regions of each name and kind, by the total time of the regions, largest first.
    #[serde(skip)]
    pub spans: Vec<NamedSpans>,
    /// What each task did.
    #[serde(skip)]
    pub loops: Vec<LoopFigures>,
    /// Checkpoints in order, each followed by its files, largest first.
    #[serde(skip)]
    pub checkpoints: Vec<CheckpointRow>,
}
