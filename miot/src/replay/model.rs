//! The phases of a model as steps: POSIX calls at explicit offsets, with a barrier before each phase.

use super::Task;
use anyhow::{Context as _, ensure};
use miot_proto::op::posix;
use miot_trace_analysis::Missing;
use miot_trace_analysis::model::{Direction, Model, Operation, Phase, Sharing};
use miot_workload::replay::{Needs, Planner, Step, Who, name_below};
use std::collections::{BTreeMap, HashMap};

pub(super) fn task(model: &Model) -> anyhow::Result<Task> {
    let mut made = Maker {
        model,
        planner: Planner::new().context("cannot plan")?,
        needs: Needs::default(),
        handles: HashMap::new(),
        now: 0,
    };
    let mut phases: Vec<(u64, &Phase, u64)> = Vec::new();
    for family in &model.phases {
        phases.extend((0..).zip(family.numbers.iter()).map(|(nth, number)| (number, family, nth)));
    }
    phases.sort_by_key(|(number, ..)| *number);
    for (_, family, nth) in phases {
        made.phase(family, nth)?;
    }
    made.close_all()?;
    let Maker { planner, needs, .. } = made;
    let plan = planner.finish().context("cannot write the plan")?;
    ensure!(plan.steps > 0, "the model has no phases, so there is nothing to replay");
    let (not_replayed, made_otherwise) = (BTreeMap::new(), BTreeMap::new());
    Ok(Task { plan, needs, not_replayed, made_otherwise, missing: Missing::default() })
}

struct Maker<'a> {
    model: &'a Model,
    planner: Planner,
    needs: Needs,
    /// Open files by process and path.
    handles: HashMap<(u64, Vec<u8>), u64>,
    /// Nanoseconds since the begin of the application.
    now: i64,
}

impl Maker<'_> {
    fn phase(&mut self, family: &Phase, nth: u64) -> anyhow::Result<()> {
        let measured = family.measured.unwrap_or_default();
        let nanoseconds = |seconds: f64| (seconds * 1e9) as i64;
        self.now += nanoseconds(measured.pause_seconds);
        let seconds = measured.seconds / family.count().max(1) as f64;
        let requests = family.operations.iter().map(|operation| operation.repetitions).max().unwrap_or(0);
        let barrier = self.planner.barrier();
        let ranks: Vec<u64> = family.processes.iter().collect();
        for number in 0..requests {
            let begin = self.now + nanoseconds(seconds * number as f64 / requests.max(1) as f64);
            for (place, rank) in (0..).zip(&ranks) {
                let path = path(family, *rank, nth);
                let mut waits = if number == 0 { barrier.clone() } else { Vec::new() };
                for operation in &family.operations {
                    if number >= operation.repetitions {
                        continue;
                    }
                    let handle = self.open(*rank, &path, begin, &mut waits)?;
                    let step = request(operation, (place, ranks.len() as u64), nth, number);
                    let step = Step { handle, path: Some(path.clone()), begin, end: begin, ..step };
                    self.add(*rank, Step { waits: std::mem::take(&mut waits), ..step })?;
                }
            }
        }
        self.now += nanoseconds(seconds);
        Ok(())
    }

    fn open(
        &mut self,
        rank: u64,
        path: &[u8],
        begin: i64,
        waits: &mut Vec<(u32, u32)>,
    ) -> anyhow::Result<u64> {
        let next = self.handles.len() as u64 + 1;
        let handle = *self.handles.entry((rank, path.to_vec())).or_insert(next);
        if handle == next {
            let arg = i64::from(libc::O_RDWR | libc::O_CREAT) | 0o644 << 32;
            let step = Step {
                op: (posix::OPEN.layer, posix::OPEN.number),
                handle,
                path: Some(path.to_vec()),
                arg,
                result: 3,
                begin,
                end: begin,
                waits: std::mem::take(waits),
                ..Step::default()
            };
            self.add(rank, step)?;
        }
        Ok(handle)
    }

    fn close_all(&mut self) -> anyhow::Result<()> {
        let mut open: Vec<_> = self.handles.drain().collect();
        open.sort_unstable_by_key(|(_, handle)| *handle);
        for ((rank, path), handle) in open {
            let op = (posix::CLOSE.layer, posix::CLOSE.number);
            let (begin, path) = (self.now, Some(path));
            self.add(rank, Step { op, handle, path, begin, end: begin, ..Step::default() })?;
        }
        Ok(())
    }

    fn add(&mut self, rank: u64, step: Step) -> anyhow::Result<()> {
        self.needs.add(rank, &step);
        let command = format!("rank {rank} of {}", self.model.application);
        let who = Who { process: rank + 1, pid: u32::try_from(rank).unwrap_or(u32::MAX), command };
        self.planner.add(&who, 1, step).context("cannot write the plan")
    }
}

/// The file of a process in a phase: where a name has a `*`, its number stands instead.
fn path(family: &Phase, rank: u64, nth: u64) -> Vec<u8> {
    let mut numbers = Vec::new();
    if family.file_per_phase {
        numbers.push(format!("{nth}"));
    }
    if family.sharing == Sharing::Unique {
        numbers.push(format!("{rank}"));
    }
    let number = numbers.join(".");
    let name = match family.file.contains('*') {
        true => family.file.replacen('*', &number, 1).replace('*', "0"),
        false if number.is_empty() => family.file.clone(),
        false => format!("{}.{number}", family.file),
    };
    name_below(name.as_bytes())
}

/// The request of the process at a place, of so many, in a phase of the family.
fn request(operation: &Operation, (place, places): (u64, u64), phase: u64, number: u64) -> Step {
    let request = operation.request(place, phase, number);
    let op = match operation.direction {
        Direction::Read => posix::PREAD,
        Direction::Write => posix::PWRITE,
    };
    let size = i64::try_from(request.size).unwrap_or(i64::MAX);
    let offset = request.offset.unwrap_or_else(|| {
        // By lot: Weyl's sequence goes to each piece of the file about once.
        let pieces = operation.repetitions.saturating_mul(places).max(1);
        let turn = (number * places + place).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        i64::try_from(turn % pieces).unwrap_or(0).saturating_mul(size)
    });
    let (offset, length) = (Some(offset.max(0)), Some(size));
    Step { op: (op.layer, op.number), offset, length, result: size, ..Step::default() }
}
