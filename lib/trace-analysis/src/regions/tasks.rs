//! Tasks: processes that work for one main process, such as a rank and its loaders of data.

use crate::{column, text};
use arrow_array::types::{TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use miot_trace_events::IdMap;
use std::collections::HashMap;

/// Maximum number of ancestors that are examined.
const ANCESTORS: usize = 64;

/// Job and step of a process with a rank.
pub(super) type Step = (Option<String>, Option<String>);

/// Job, step and rank.
type Rank = (Option<String>, Option<String>, u32);

#[derive(Debug)]
struct Process {
    parent: Option<u64>,
    rank: Option<Rank>,
}

/// What is known of the regions of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnRegions {
    /// It has any.
    pub(super) any: bool,
    /// It has regions of computation.
    pub(super) computes: bool,
}

/// Parents and ranks of the processes of a trace.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    processes: IdMap<u64, Process>,
    /// Main processes by rank.
    mains: HashMap<Rank, u64>,
}

impl Tasks {
    /// Returns the processes from the rows of the table `processes`.
    pub(super) fn of(processes: &[RecordBatch]) -> Tasks {
        let mut rows = Vec::new();
        for batch in processes {
            let _ = read(batch, &mut rows);
        }
        // Images of a process id, by the time of the first request.
        let mut images: HashMap<(String, u32), Vec<(i64, u64)>> = HashMap::new();
        for row in &rows {
            images.entry((row.node.clone(), row.pid)).or_default().push((row.started, row.process));
        }
        images.values_mut().for_each(|images| images.sort_unstable());
        let parent = |row: &Row| {
            let images = images.get(&(row.node.clone(), row.ppid?))?;
            // A parent may make its first request after its child.
            let before = images.iter().rev().find(|(started, _)| *started <= row.started);
            before.or(images.first()).map(|(_, process)| *process).filter(|parent| *parent != row.process)
        };
        let processes =
            rows.iter().map(|row| (row.process, Process { parent: parent(row), rank: row.rank.clone() }));
        Tasks { processes: processes.collect(), mains: HashMap::new() }
    }

    /// Registers the main process of a rank, so that its other processes are found.
    pub(super) fn set_main(&mut self, process: u64) {
        if let Some(rank) = self.processes.get(&process).and_then(|process| process.rank.clone()) {
            self.mains.entry(rank).or_insert(process);
        }
    }

    /// Returns the job and step of a process with a rank.
    pub(super) fn step(&self, process: u64) -> Option<Step> {
        let (job, step, _) = self.processes.get(&process)?.rank.as_ref()?;
        Some((job.clone(), step.clone()))
    }

    /// Returns the main process of the task of a process: the process itself or its nearest
    /// ancestor that computes, else the furthest of them that has regions, among those that do not
    /// belong to another rank. If there is none, the main process of the same rank.
    pub(super) fn main(&self, process: u64, regions: impl Fn(u64) -> OwnRegions) -> Option<u64> {
        let (mut at, mut furthest) = (process, None);
        let own_rank = self.processes.get(&process).and_then(|process| process.rank.as_ref());
        let mut rank = own_rank;
        for _ in 0..ANCESTORS {
            let own = regions(at);
            if own.computes {
                return Some(at);
            }
            if own.any {
                furthest = Some(at);
            }
            let Some(parent) = self.processes.get(&at).and_then(|process| process.parent) else { break };
            let of_parent = self.processes.get(&parent).and_then(|process| process.rank.as_ref());
            if rank.is_some() && rank != of_parent {
                break;
            }
            (at, rank) = (parent, of_parent);
        }
        furthest.or_else(|| self.mains.get(own_rank?).copied())
    }
}

struct Row {
    process: u64,
    node: String,
    pid: u32,
    ppid: Option<u32>,
    started: i64,
    rank: Option<Rank>,
}

fn read(batch: &RecordBatch, rows: &mut Vec<Row>) -> Option<()> {
    let ids = column::<UInt64Type>(batch, "process")?;
    let [pids, ppids, ranks] = ["pid", "ppid", "rank"].map(|name| column::<UInt32Type>(batch, name));
    let (pids, ppids, ranks) = (pids?, ppids?, ranks?);
    let started = column::<TimestampNanosecondType>(batch, "started");
    let [node, job, step] = ["node", "job", "job_step"].map(|name| text(batch, name));
    let node = node?;
    for row in 0..batch.num_rows() {
        let owned = |column: Option<&arrow_array::StringArray>| {
            column.filter(|column| column.is_valid(row)).map(|column| column.value(row).to_owned())
        };
        let rank = ranks.is_valid(row).then(|| (owned(job), owned(step), ranks.value(row)));
        rows.push(Row {
            process: ids.value(row),
            node: node.value(row).to_owned(),
            pid: pids.value(row),
            ppid: ppids.is_valid(row).then(|| ppids.value(row)),
            started: started.as_ref().filter(|started| started.is_valid(row)).map_or(0, |s| s.value(row)),
            rank,
        });
    }
    Some(())
}
