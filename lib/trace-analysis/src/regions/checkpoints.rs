//! Checkpoints: regions of the kind [`RegionKind::Checkpoint`](super::RegionKind) that overlap, of
//! all tasks of a job, and the files that are written during them.

use crate::intervals::{Interval, Intervals, length};
use miot_trace_events::{Event, IdMap};
use miot_trace_store::FileNames;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of files of a checkpoint that get a row: the largest.
const FILES: usize = 100;
/// Maximum number of intervals with writes that are kept for a file and process.
const INTERVALS: usize = 1024;

/// A checkpoint, or a file that is written during it. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CheckpointRow {
    /// Number of the checkpoint in the trace, from 0, in order of its begin.
    pub checkpoint: u64,
    /// The file; `None`: all of the checkpoint.
    pub file: Option<String>,
    /// Begin of the first region, or of the first write of the file; since 1970.
    pub begin: i64,
    /// End of the last region, or of the last write of the file; since 1970.
    pub end: i64,
    /// `end` − `begin`.
    pub time: u64,
    /// Part of `time` in which the main thread of a task is in the checkpoint; `None` for a file.
    pub blocked_time: Option<u64>,
    /// `blocked_time` / `time`; `None` for a file.
    pub blocked: Option<f64>,
    /// Number of tasks with such regions, e.g. ranks; `None` for a file.
    pub tasks: Option<u64>,
    /// Number of files that are written; 1 for a file.
    pub files: u64,
    /// Bytes that the tasks write during it.
    pub bytes_written: u64,
    /// Number of processes that write.
    pub writers: u64,
    /// Maximum number of processes with a write in progress at the same time.
    pub writers_at_once: u64,
    /// Time with at least one write in progress.
    pub io_time: u64,
    /// Bytes per second of `io_time`; `None` without bytes.
    pub bandwidth: Option<f64>,
}

/// Writes of a process to a file.
#[derive(Debug)]
struct Writes {
    bytes: u64,
    busy: Intervals,
}

#[derive(Debug)]
struct Checkpoint {
    begin: i64,
    end: i64,
    tasks: BTreeSet<usize>,
    /// Times of regions of main threads.
    blocked: Intervals,
    writes: HashMap<(Option<u64>, u64), Writes>,
}

/// A region of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckpointSpan {
    pub(super) begin: i64,
    pub(super) end: i64,
    pub(super) task: usize,
    /// It is of the main thread of its task.
    pub(super) is_main: bool,
}

/// The checkpoints of a trace.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// In order, by group of tasks.
    groups: Vec<Vec<Checkpoint>>,
    /// Group of each task.
    of_task: IdMap<u64, usize>,
}

impl Checkpoints {
    /// Returns the checkpoints of these regions. Tasks of the same job are of one group.
    pub(super) fn of(mut spans: Vec<CheckpointSpan>, group: impl Fn(usize) -> usize) -> Checkpoints {
        spans.sort_by_key(|span| (span.begin, span.end));
        let mut all = Checkpoints::default();
        let mut groups: BTreeMap<usize, Vec<Checkpoint>> = BTreeMap::new();
        for span in spans {
            let list = groups.entry(group(span.task)).or_default();
            if list.last().is_none_or(|last| last.end < span.begin) {
                list.push(Checkpoint {
                    begin: span.begin,
                    end: span.end,
                    tasks: BTreeSet::new(),
                    blocked: Intervals::new(1, usize::MAX),
                    writes: HashMap::new(),
                });
            }
            if let Some(last) = list.last_mut() {
                last.end = last.end.max(span.end);
                last.tasks.insert(span.task);
                if span.is_main {
                    last.blocked.add(span.begin, span.end);
                }
            }
        }
        for list in groups.into_values() {
            for task in list.iter().flat_map(|checkpoint| &checkpoint.tasks) {
                all.of_task.insert(*task as u64, all.groups.len());
            }
            all.groups.push(list);
        }
        all
    }

    /// Adds a completed write of a task.
    pub(super) fn write(&mut self, task: usize, event: &Event) {
        let Some(group) = self.of_task.get(&(task as u64)) else { return };
        let list = &mut self.groups[*group];
        let at = list.partition_point(|checkpoint| checkpoint.end < event.end);
        let Some(checkpoint) = list.get_mut(at).filter(|checkpoint| checkpoint.begin <= event.end) else {
            return;
        };
        if checkpoint.tasks.contains(&task) {
            let new = || Writes { bytes: 0, busy: Intervals::new(1, INTERVALS) };
            let writes = checkpoint.writes.entry((event.file, event.process)).or_insert_with(new);
            writes.bytes = writes.bytes.saturating_add(event.moved());
            writes.busy.add(event.begin.max(checkpoint.begin), event.end);
        }
    }

    /// Returns the rows: each checkpoint, followed by its files, largest first.
    pub(super) fn finish(self, paths: &FileNames) -> Vec<CheckpointRow> {
        let mut all: Vec<Checkpoint> = self.groups.into_iter().flatten().collect();
        all.sort_by_key(|checkpoint| checkpoint.begin);
        let rows = all.iter().enumerate().flat_map(|(number, checkpoint)| {
            let mut rows = checkpoint.rows(paths);
            rows.iter_mut().for_each(|row| row.checkpoint = number as u64);
            rows
        });
        rows.collect()
    }
}

impl Checkpoint {
    fn rows(&self, paths: &FileNames) -> Vec<CheckpointRow> {
        // Several ids of a file have the same path, e.g. on several nodes.
        let mut files: BTreeMap<&str, Vec<(u64, &Writes)>> = BTreeMap::new();
        for ((file, process), writes) in &self.writes {
            let path = file.and_then(|file| paths.get(file)).unwrap_or_default();
            files.entry(path).or_default().push((*process, writes));
        }
        let everything: Vec<(u64, &Writes)> = files.values().flatten().copied().collect();
        let time = self.end.abs_diff(self.begin);
        let blocked = length(self.blocked.list());
        let whole = CheckpointRow {
            begin: self.begin,
            end: self.end,
            time,
            blocked_time: Some(blocked),
            blocked: (time > 0).then(|| blocked as f64 / time as f64),
            tasks: Some(self.tasks.len() as u64),
            files: files.len() as u64,
            ..written(&everything)
        };
        let mut rows: Vec<CheckpointRow> = files
            .iter()
            .map(|(path, writes)| CheckpointRow {
                file: Some((*path).to_owned()),
                files: 1,
                ..written(writes)
            })
            .collect();
        rows.sort_by(|one, other| (other.bytes_written, &one.file).cmp(&(one.bytes_written, &other.file)));
        rows.truncate(FILES);
        rows.insert(0, whole);
        rows
    }
}

/// Returns the figures of writes.
fn written(writes: &[(u64, &Writes)]) -> CheckpointRow {
    let mut by_process: BTreeMap<u64, Intervals> = BTreeMap::new();
    let mut busy = Intervals::new(1, usize::MAX);
    let mut bytes = 0u64;
    let mut intervals: Vec<(u64, Interval)> = Vec::new();
    for (process, of) in writes {
        bytes = bytes.saturating_add(of.bytes);
        intervals.extend(of.busy.list().iter().map(|interval| (*process, *interval)));
    }
    intervals.sort_unstable_by_key(|(_, (begin, end))| (*end, *begin));
    for (process, (begin, end)) in intervals {
        busy.add(begin, end);
        by_process.entry(process).or_insert_with(|| Intervals::new(1, usize::MAX)).add(begin, end);
    }
    // An end is before a begin at the same time.
    let mut edges: Vec<(i64, i64)> = Vec::new();
    for (begin, end) in by_process.values().flat_map(Intervals::list) {
        edges.extend([(*begin, 1), (*end, -1)]);
    }
    edges.sort_unstable();
    let open = edges.iter().scan(0, |open, (_, change)| {
        *open += change;
        Some(*open)
    });
    let (begin, end) = match (busy.list().first(), busy.list().last()) {
        (Some((begin, _)), Some((_, end))) => (*begin, *end),
        _ => (0, 0),
    };
    let io_time = length(busy.list());
    CheckpointRow {
        begin,
        end,
        time: end.abs_diff(begin),
        bytes_written: bytes,
        writers: by_process.len() as u64,
        writers_at_once: open.max().unwrap_or(0).max(i64::from(!by_process.is_empty())) as u64,
        io_time,
        bandwidth: (bytes > 0 && io_time > 0).then(|| bytes as f64 * 1e9 / io_time as f64),
        ..CheckpointRow::default()
    }
}
