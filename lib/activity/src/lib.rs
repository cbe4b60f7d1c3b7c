//! Live activity: operations, bytes and latencies of the last seconds, by cluster, node, job,
//! process, file and operation. Memory is bounded, and an event costs some tens of nanoseconds.
//!
//! Events are assigned to seconds by completion time. A finished second is packed and kept for a
//! minute, so that an [`ActivitySnapshot`] of any window up to a minute can be built. The activity
//! of the whole cluster is kept for an hour ([`ActivityHistory`]). A late event counts in the
//! second in which it arrives. A second holds up to [`PLACES`] keys of each kind, and the whole
//! time holds twice as many. With more keys, those with the most requests are kept, and the error
//! is bounded (`table.rs`).
//!
//! | module | role |
//! |---|---|
//! | `latencies` | distributions of durations |
//! | `table` | tallies by key in bounded memory |
//! | `recent` | names by id in bounded memory |
//! | `history` | an hour of seconds |
//! | `select` | builds the result: selection and values of rows |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod history;
mod latencies;
mod recent;
mod select;
mod table;

pub use miot_proto::activity::{
    ActivityGroup, ActivityHistory, ActivityLoss, ActivityRow, ActivitySnapshot, ActivityWindow,
    MAX_WINDOW_SECONDS,
};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use history::Ring;
use latencies::{RANGES, range};
use miot_proto::op::{Layer, OpClass, ResultMeaning};
use miot_trace_events::columns::narrow;
use miot_trace_events::operations::{BatchOperations, OperationTable};
use miot_trace_store::Table as TraceTable;
use miot_trace_store::schema::{FILTERED, is_loss};
use miot_trace_store::schema::{NameKey, column, text};
use recent::{HeapSize, Recent};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use table::{PackedTable, Table, Tally};

/// Maximum number of keys of each kind (nodes, jobs, processes, files, operations) in one second.
pub const PLACES: usize = 1024;
/// Maximum memory of finished seconds in bytes. When it is reached, fewer than 60 seconds are kept.
const KEPT_BYTES: usize = 32 << 20;
/// Half the maximum memory, in bytes, of file names and of process descriptions. Beyond the maximum
/// the least recently used entries are dropped.
const NAME_BYTES: usize = 64 << 20;
/// Maximum number of distinct loss places.
const LOSS_PLACES: usize = 4096;
const SECOND: i64 = 1_000_000_000;

/// Kinds of rows: there is one table for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Node,
    Job,
    Process,
    File,
    Operation,
}

const KINDS: [Kind; 5] = [Kind::Node, Kind::Job, Kind::Process, Kind::File, Kind::Operation];

/// Tallies of a period.
#[derive(Debug)]
struct Tallies {
    cluster: Table,
    by: [Table; KINDS.len()],
}

impl Tallies {
    fn new(places: usize) -> Tallies {
        Tallies { cluster: Table::new(1), by: KINDS.map(|_| Table::new(places)) }
    }
}

/// A finished second.
#[derive(Debug)]
struct Past {
    second: i64,
    cluster: PackedTable,
    by: [PackedTable; KINDS.len()],
}

impl Past {
    fn bytes(&self) -> usize {
        self.cluster.bytes() + self.by.iter().map(PackedTable::bytes).sum::<usize>()
    }
}

/// Description of a process.
#[derive(Clone, Debug)]
struct Process {
    node: String,
    pid: u32,
    /// `None` if the process is known only from its events.
    uid: Option<u32>,
    job: String,
    job_key: u64,
    command: String,
}

impl HeapSize for Process {
    fn heap(&self) -> usize {
        self.node.heap() + self.job.heap() + self.command.heap()
    }
}

/// Path of a file and its node.
#[derive(Clone, Debug)]
struct File {
    node: String,
    path: String,
}

impl HeapSize for File {
    fn heap(&self) -> usize {
        self.node.heap() + self.path.heap()
    }
}

/// Counters of the live activity of a cluster, in bounded memory.
#[derive(Debug)]
pub struct Activity {
    present: Tallies,
    /// The second that `present` counts, in seconds since 1970. `None` before the first event.
    second: Option<i64>,
    past: VecDeque<Past>,
    past_bytes: usize,
    /// Seconds before this one are not kept.
    kept_from: i64,
    whole: Tallies,
    ring: Ring,
    /// Completion of the first and of the latest event, nanoseconds since 1970.
    first: i64,
    last: i64,
    events: u64,
    skipped: u64,
    filtered: u64,
    losses: BTreeMap<(String, String), u64>,
    operations: OperationTable,
    names: RandomState,
    /// Names of nodes and jobs by key.
    texts: Recent<String>,
    files: Recent<File>,
    processes: Recent<Process>,
    /// Cache of the job key of a process, indexed by the low bits of its id. It saves most
    /// look-ups.
    jobs: Vec<(u64, u64)>,
}

const JOBS: usize = 1024;

impl Default for Activity {
    fn default() -> Activity {
        Activity::new()
    }
}

impl Activity {
    /// Returns an activity without events.
    #[must_use]
    pub fn new() -> Activity {
        Activity {
            present: Tallies::new(PLACES),
            second: None,
            past: VecDeque::new(),
            past_bytes: 0,
            kept_from: i64::MIN,
            whole: Tallies::new(2 * PLACES),
            ring: Ring::default(),
            first: 0,
            last: 0,
            events: 0,
            skipped: 0,
            filtered: 0,
            losses: BTreeMap::new(),
            operations: OperationTable::default(),
            names: RandomState::new(),
            texts: Recent::new(NAME_BYTES / 8),
            files: Recent::new(NAME_BYTES),
            processes: Recent::new(NAME_BYTES),
            jobs: vec![(0, 0); JOBS],
        }
    }

    /// Adds rows of any table of a trace. Rows that events refer to must be added before the
    /// events.
    pub fn add(&mut self, table: TraceTable, batch: &RecordBatch) {
        let _ = match table {
            TraceTable::Events => self.events(batch),
            TraceTable::Files => self.files(batch),
            TraceTable::Processes => self.processes(batch),
            TraceTable::Losses => self.losses(batch),
            TraceTable::Threads | TraceTable::Clocks | TraceTable::Devices => None,
        };
    }

    /// Adds events with the names of their files, as [`miot_trace_store::Follow`] returns them.
    pub fn add_rows(&mut self, rows: &RecordBatch) {
        let _ = self.paths(rows);
        let _ = self.events(rows);
    }

    /// Returns true if a process of these events is unknown: its row has not arrived, or was
    /// dropped.
    #[must_use]
    pub fn has_strangers(&self, events: &RecordBatch) -> bool {
        let mut latest = None;
        column::<UInt64Type>(events, "process").is_some_and(|ids| {
            let is_known = |id| self.processes.peek(id).is_some_and(|process| process.uid.is_some());
            ids.values().iter().any(|id| latest.replace(*id) != Some(*id) && !is_known(*id))
        })
    }

    /// Counts events that were skipped.
    pub fn skip(&mut self, events: u64) {
        self.skipped = self.skipped.saturating_add(events);
    }

    /// Reports that all events that completed before `time`, in nanoseconds since 1970, have been
    /// added.
    pub fn advance(&mut self, time: i64) {
        let second = time.div_euclid(SECOND);
        if self.second.is_some_and(|present| second > present) {
            self.turn(second);
        }
    }

    /// Returns the completion of the latest event in nanoseconds since 1970, or 0 if there is none.
    #[must_use]
    pub fn last(&self) -> i64 {
        self.last
    }

    /// Returns the activity of the cluster in the last `steps` steps of `step` seconds.
    #[must_use]
    pub fn history(&self, step: u32, steps: usize) -> ActivityHistory {
        self.ring.read(self.second.unwrap_or(0), step, steps)
    }

    /// Finishes the present second, if any, and begins the next.
    fn turn(&mut self, second: i64) {
        if let Some(over) = self.second.replace(second) {
            let (cluster, by) =
                (self.present.cluster.finish(), self.present.by.each_mut().map(Table::finish));
            self.whole.cluster.merge(&cluster);
            self.whole.by.iter_mut().zip(&by).for_each(|(whole, part)| whole.merge(part));
            if let Some((entry, latencies)) = cluster.iter().next() {
                let mut counts = [0; RANGES];
                latencies.iter().for_each(|(range, count)| counts[usize::from(*range)] = *count);
                self.ring.push(over, entry.tally, &counts);
            }
            let past = Past { second: over, cluster, by };
            self.past_bytes += past.bytes();
            self.past.push_back(past);
        }
        let kept = second - i64::from(MAX_WINDOW_SECONDS);
        while self.past.front().is_some_and(|first| first.second < kept || self.past_bytes > KEPT_BYTES) {
            if let Some(gone) = self.past.pop_front() {
                self.past_bytes -= gone.bytes();
                self.kept_from = gone.second + 1;
            }
        }
    }

    fn events(&mut self, batch: &RecordBatch) -> Option<()> {
        let mut numbers = BatchOperations::of(batch)?;
        let times = column::<TimestampNanosecondType>(batch, "time")?;
        let durations = column::<Int64Type>(batch, "duration")?;
        let results = column::<Int64Type>(batch, "result")?;
        let processes = column::<UInt64Type>(batch, "process")?;
        let pids = column::<UInt32Type>(batch, "pid")?;
        let (times, durations, results) = (times.values(), durations.values(), results.values());
        let (processes, pids) = (processes.values(), pids.values());
        let (files, files2) = (column::<UInt64Type>(batch, "file")?, column::<UInt64Type>(batch, "file2")?);
        let enclosing = column::<UInt64Type>(batch, "enclosing")?;
        let callers = column::<UInt32Type>(batch, "caller_tid");
        let nodes = batch.column_by_name("node")?.as_dictionary_opt::<NameKey>()?;
        let node_names = nodes.values().as_string_opt::<i32>()?;
        let node_keys: Vec<u64> = node_names.iter().map(|name| self.text(name.unwrap_or(""))).collect();
        let nodes = nodes.keys().values();
        for row in 0..batch.num_rows() {
            let second = times[row].div_euclid(SECOND);
            if self.second.is_none_or(|present| second > present) {
                if self.second.is_none() {
                    self.first = times[row];
                }
                self.turn(second);
            }
            self.last = self.last.max(times[row]);
            let time = u64::try_from(durations[row]).unwrap_or(0);
            let range = range(time);
            let number = self.operations.number(&mut numbers, row);
            let info = self.operations.get(number).info;
            let moved = match info {
                Some(info) if info.result == ResultMeaning::Bytes => u64::try_from(results[row]).unwrap_or(0),
                _ => 0,
            };
            let class = info.map_or(OpClass::Meta, |info| info.class);
            let (read, written) = match class {
                OpClass::Read => (moved, 0),
                OpClass::Write => (0, moved),
                OpClass::Copy => (moved, moved),
                OpClass::Sync | OpClass::Meta => (0, 0),
            };
            let failed = u64::from(results[row] < 0);
            let tally = Tally {
                requests: 1,
                failed,
                bytes_read: read,
                bytes_written: written,
                time,
                longest: time,
                lost: 0,
            };
            self.present.by[Kind::Operation as usize].add(number as u64, &tally, range);
            // A POSIX request with a caller was made for an MPI-IO request after the MPI-IO call
            // had returned.
            let is_late_part = info.is_some_and(|info| info.op.layer == Layer::Posix as u8)
                && callers.as_ref().is_some_and(|callers| callers.is_valid(row));
            if enclosing.is_valid(row) || is_late_part {
                continue;
            }
            let process = processes[row];
            let job = self.job(process, pids[row], node_names, nodes[row] as usize);
            let present = &mut self.present;
            present.cluster.add(0, &tally, range);
            let node = node_keys.get(nodes[row] as usize).copied().unwrap_or(0);
            present.by[Kind::Node as usize].add(node, &tally, range);
            present.by[Kind::Job as usize].add(job, &tally, range);
            present.by[Kind::Process as usize].add(process, &tally, range);
            if files.is_valid(row) {
                // A copy is a read of one file and a write of the other.
                let bytes_read = if class == OpClass::Copy { 0 } else { read };
                present.by[Kind::File as usize].add(files.value(row), &Tally { bytes_read, ..tally }, range);
            }
            if class == OpClass::Copy && files2.is_valid(row) {
                let source = Tally { bytes_written: 0, ..tally };
                present.by[Kind::File as usize].add(files2.value(row), &source, range);
            }
        }
        self.events += batch.num_rows() as u64;
        Some(())
    }

    /// Returns the key of the job of a process. For a process without a row it records the node and
    /// pid of the event.
    #[inline]
    fn job(&mut self, process: u64, pid: u32, nodes: &arrow_array::StringArray, node: usize) -> u64 {
        let (known, job) = self.jobs[process as usize % JOBS];
        if known == process && process != 0 {
            return job;
        }
        let job = match self.processes.get(process) {
            Some(process) => process.job_key,
            None => {
                let node = if node < nodes.len() { nodes.value(node) } else { "" };
                let job_key = self.text("");
                let (job, command) = (String::new(), String::new());
                self.processes
                    .put(process, Process { node: node.to_owned(), pid, uid: None, job, job_key, command });
                job_key
            }
        };
        self.jobs[process as usize % JOBS] = (process, job);
        job
    }

    /// Returns the key of a name.
    fn text(&mut self, name: &str) -> u64 {
        let key = self.names.hash_one(name);
        if self.texts.get(key).is_none() {
            self.texts.put(key, name.to_owned());
        }
        key
    }

    fn files(&mut self, batch: &RecordBatch) -> Option<()> {
        let (ids, nodes, paths) =
            (column::<UInt64Type>(batch, "file")?, text(batch, "node")?, text(batch, "path")?);
        for row in 0..batch.num_rows() {
            let (node, path) = (nodes.value(row).to_owned(), paths.value(row).to_owned());
            self.files.put(ids.value(row), File { node, path });
        }
        Some(())
    }

    /// Records the names of files from rows that contain them.
    fn paths(&mut self, rows: &RecordBatch) -> Option<()> {
        let nodes = rows.column_by_name("node")?.as_dictionary_opt::<NameKey>()?;
        let node_names = nodes.values().as_string_opt::<i32>()?;
        for (id, path) in [("file", "path"), ("file2", "path2")] {
            let (ids, paths) = (column::<UInt64Type>(rows, id)?, text(rows, path)?);
            let mut latest = None;
            for row in (0..rows.num_rows()).filter(|row| ids.is_valid(*row) && paths.is_valid(*row)) {
                let id = ids.value(row);
                if latest.replace(id) != Some(id) && !self.files.knows(id) {
                    let node = nodes.key(row).filter(|key| *key < node_names.len());
                    let node = node.map_or("", |key| node_names.value(key)).to_owned();
                    self.files.put(id, File { node, path: paths.value(row).to_owned() });
                }
            }
        }
        Some(())
    }

    fn processes(&mut self, batch: &RecordBatch) -> Option<()> {
        let ids = column::<UInt64Type>(batch, "process")?;
        let (pids, uids) = (column::<UInt32Type>(batch, "pid")?, column::<UInt64Type>(batch, "uid")?);
        let (nodes, jobs) = (text(batch, "node")?, text(batch, "job")?);
        let (exes, command_lines) = (text(batch, "exe")?, text(batch, "cmdline")?);
        for row in 0..batch.num_rows() {
            let id = ids.value(row);
            let job = if jobs.is_valid(row) { jobs.value(row) } else { "" };
            let command_line = command_lines.value(row);
            let command = if command_line.is_empty() { exes.value(row) } else { command_line };
            let process = Process {
                node: nodes.value(row).to_owned(),
                pid: pids.value(row),
                uid: Some(narrow(uids.value(row))),
                job: job.to_owned(),
                job_key: self.text(job),
                command: shortened(command).to_owned(),
            };
            self.jobs[id as usize % JOBS] = (0, 0);
            self.processes.put(id, process);
        }
        Some(())
    }

    fn losses(&mut self, batch: &RecordBatch) -> Option<()> {
        let (counts, processes) =
            (column::<UInt64Type>(batch, "count")?, column::<UInt64Type>(batch, "process")?);
        let (nodes, places) = (text(batch, "node")?, text(batch, "place")?);
        for row in 0..batch.num_rows() {
            let (node, place, lost) = (nodes.value(row), places.value(row), counts.value(row));
            if place == FILTERED {
                self.filtered = self.filtered.saturating_add(lost);
                continue;
            }
            if !is_loss(place) {
                continue;
            }
            let place = (node.to_owned(), place.to_owned());
            if self.losses.len() < LOSS_PLACES || self.losses.contains_key(&place) {
                let sum = self.losses.entry(place).or_default();
                *sum = sum.saturating_add(lost);
            }
            let tally = Tally { lost, ..Tally::default() };
            let node = self.text(node);
            self.present.cluster.add(0, &tally, 0);
            self.present.by[Kind::Node as usize].add(node, &tally, 0);
            if processes.is_valid(row) {
                let process = processes.value(row);
                let job = self.processes.get(process).map(|process| process.job_key);
                self.present.by[Kind::Process as usize].add(process, &tally, 0);
                if let Some(job) = job {
                    self.present.by[Kind::Job as usize].add(job, &tally, 0);
                }
            }
        }
        Some(())
    }
}

/// Returns the beginning of a command line, enough to recognize it.
fn shortened(command: &str) -> &str {
    const MOST: usize = 200;
    let end = command.char_indices().map(|(at, _)| at).find(|at| *at >= MOST);
    &command[..end.unwrap_or(command.len())]
}
