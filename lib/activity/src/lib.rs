//! Live activity: operations, bytes and latencies in the last seconds, by cluster, node, job, process, file and
//! operation; in bounded memory, at some tens of nanoseconds per event.
//!
//! Events are put into seconds by their completion. A second that is over is packed and kept for a minute, so that a
//! [`ActivitySnapshot`] of any window up to that can be made; what the whole cluster did is kept for an hour ([`ActivityHistory`]).
//! A late event counts when it comes. Of each kind a second tells [`PLACES`] apart, and the whole time twice as many; with
//! more, the ones with the most requests are kept and the error is known (`table.rs`).
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
use miot_trace_events::operations::{BatchOperations, OperationTable};
use miot_trace_store::schema::{NameKey, column, text};
use miot_trace_store::{Table as TraceTable, schema::FILTERED};
use recent::{HeapSize, Recent};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use table::{PackedTable, Table, Tally};

/// Nodes, jobs, processes, files and operations that are told apart in one second, of each kind.
pub const PLACES: usize = 1024;
/// Of finished seconds so many bytes are kept at most; then the minute gets shorter.
const KEPT_BYTES: usize = 32 << 20;
/// Names of files, and what is known of processes, are kept up to twice so many bytes; then the ones not seen for the
/// longest time are forgotten.
const NAME_BYTES: usize = 64 << 20;
/// Places of losses that are told apart.
const LOSS_PLACES: usize = 4096;
const SECOND: i64 = 1_000_000_000;

/// Kinds of rows, as tables are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Node,
    Job,
    Process,
    File,
    Operation,
}

const KINDS: [Kind; 5] = [Kind::Node, Kind::Job, Kind::Process, Kind::File, Kind::Operation];

/// The tallies of some time.
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

/// A second that is over.
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

/// What is known of a process.
#[derive(Clone, Debug)]
struct Process {
    node: String,
    pid: u32,
    /// `None`: all that is known of it is what an event says.
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

/// A path and where it is.
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

/// See the module.
#[derive(Debug)]
pub struct Activity {
    present: Tallies,
    /// Since 1970, the one that `present` counts; `None`: nothing has come.
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
    /// Job of a process, by the low bits of its id: so it is seldom asked for.
    jobs: Vec<(u64, u64)>,
}

const JOBS: usize = 1024;

impl Default for Activity {
    fn default() -> Activity {
        Activity::new()
    }
}

impl Activity {
    /// Nothing has come yet.
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

    /// Takes in rows of any table of a trace; what events refer to must come before them.
    pub fn add(&mut self, table: TraceTable, batch: &RecordBatch) {
        let _ = match table {
            TraceTable::Events => self.events(batch),
            TraceTable::Files => self.files(batch),
            TraceTable::Processes => self.processes(batch),
            TraceTable::Losses => self.losses(batch),
            TraceTable::Threads | TraceTable::Clocks | TraceTable::Devices => None,
        };
    }

    /// Takes in events with the names of their files, as [`miot_trace_store::Follow`] gives them.
    pub fn add_rows(&mut self, rows: &RecordBatch) {
        let _ = self.paths(rows);
        let _ = self.events(rows);
    }

    /// True if nothing is known of a process of these events: its row has not come, or is forgotten.
    #[must_use]
    pub fn has_strangers(&self, events: &RecordBatch) -> bool {
        let mut latest = None;
        column::<UInt64Type>(events, "process").is_some_and(|ids| {
            let is_known = |id| self.processes.peek(id).is_some_and(|process| process.uid.is_some());
            ids.values().iter().any(|id| latest.replace(*id) != Some(*id) && !is_known(*id))
        })
    }

    /// So many events were passed over.
    pub fn skip(&mut self, events: u64) {
        self.skipped = self.skipped.saturating_add(events);
    }

    /// All events that completed before `time`, nanoseconds since 1970, have come.
    pub fn advance(&mut self, time: i64) {
        let second = time.div_euclid(SECOND);
        if self.second.is_some_and(|present| second > present) {
            self.turn(second);
        }
    }

    /// Completion of the latest event, nanoseconds since 1970; 0 if there was none.
    #[must_use]
    pub fn last(&self) -> i64 {
        self.last
    }

    /// What the cluster did in the last `steps` steps of `step` seconds.
    #[must_use]
    pub fn history(&self, step: u32, steps: usize) -> ActivityHistory {
        self.ring.read(self.second.unwrap_or(0), step, steps)
    }

    /// A second is over, or the first begins.
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
        let times = column::<TimestampNanosecondType>(batch, "time")?.values();
        let durations = column::<Int64Type>(batch, "duration")?.values();
        let results = column::<Int64Type>(batch, "result")?.values();
        let processes = column::<UInt64Type>(batch, "process")?.values();
        let pids = column::<UInt32Type>(batch, "pid")?.values();
        let (files, files2) = (column::<UInt64Type>(batch, "file")?, column::<UInt64Type>(batch, "file2")?);
        let enclosing = column::<UInt32Type>(batch, "enclosing")?;
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
            // A POSIX request that has a caller was made for a request of MPI-IO after the call that asked for it.
            let is_late_part = info.is_some_and(|info| info.op.layer == Layer::Posix as u8)
                && callers.is_some_and(|callers| callers.is_valid(row));
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
                // A copy is a read of the one file and a write of the other.
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

    /// The key of the job of a process; what little the event says of it is noted if nothing else is known.
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

    /// The key of a name.
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

    /// Names of files out of rows that have them.
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
        let (pids, uids) = (column::<UInt32Type>(batch, "pid")?, column::<UInt32Type>(batch, "uid")?);
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
                uid: Some(uids.value(row)),
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

/// Enough of a command line to know it by.
fn shortened(command: &str) -> &str {
    const MOST: usize = 200;
    let end = command.char_indices().map(|(at, _)| at).find(|at| *at >= MOST);
    &command[..end.unwrap_or(command.len())]
}
