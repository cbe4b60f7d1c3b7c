//! The phases of a model as steps: POSIX calls at explicit offsets, with a barrier before each
//! phase.

use super::ReplayTask;
use anyhow::{Context as _, ensure};
use miot_proto::op::posix;
use miot_trace_analysis::Missing;
use miot_trace_analysis::model::{Direction, Mode, Model, Operation, Phase, Sharing, Space};
use miot_trace_analysis::view::Range;
use miot_workload::replay::{InitialFiles, Planner, ReplayStep, TracedProcess, path_below_root};
use std::collections::{BTreeMap, HashMap};

pub(super) fn task(model: &Model) -> anyhow::Result<ReplayTask> {
    model.placed().context("the model cannot be replayed")?;
    let mut made = StepBuilder {
        model,
        planner: Planner::new().context("cannot plan")?,
        needs: InitialFiles::default(),
        handles: HashMap::new(),
        now: 0,
        made_otherwise: BTreeMap::new(),
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
    let StepBuilder { planner, needs, made_otherwise, .. } = made;
    let plan = planner.finish().context("cannot write the plan")?;
    ensure!(plan.steps > 0, "the model has no phases, so there is nothing to replay");
    Ok(ReplayTask { plan, needs, not_replayed: BTreeMap::new(), made_otherwise, missing: Missing::default() })
}

struct StepBuilder<'a> {
    model: &'a Model,
    planner: Planner,
    needs: InitialFiles,
    /// Open files by process and path.
    handles: HashMap<(u64, Vec<u8>), u64>,
    /// Nanoseconds since the start of the application.
    now: i64,
    /// Number of requests that differ from the application's, by difference.
    made_otherwise: BTreeMap<String, u64>,
}

impl StepBuilder<'_> {
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
                    for what in differs(operation) {
                        *self.made_otherwise.entry(what.to_owned()).or_default() += 1;
                    }
                    for step in steps(operation, (place, ranks.len() as u64), nth, number) {
                        let step = ReplayStep { handle, path: Some(path.clone()), begin, end: begin, ..step };
                        self.add(*rank, ReplayStep { waits: std::mem::take(&mut waits), ..step })?;
                    }
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
            let step = ReplayStep {
                op: (posix::OPEN.layer, posix::OPEN.number),
                handle,
                path: Some(path.to_vec()),
                arg,
                result: 3,
                begin,
                end: begin,
                waits: std::mem::take(waits),
                ..ReplayStep::default()
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
            self.add(rank, ReplayStep { op, handle, path, begin, end: begin, ..ReplayStep::default() })?;
        }
        Ok(())
    }

    fn add(&mut self, rank: u64, step: ReplayStep) -> anyhow::Result<()> {
        self.needs.add(rank, &step);
        let command = format!("rank {rank} of {}", self.model.application);
        let who = TracedProcess { process: rank + 1, pid: u32::try_from(rank).unwrap_or(u32::MAX), command };
        self.planner.add(&who, 1, step).context("cannot write the plan")
    }
}

/// Returns the file of a process in a phase: each `*` in the name is replaced by a number.
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
    path_below_root(name.as_bytes())
}

/// Lists how the requests of an operation differ from the application's.
fn differs(operation: &Operation) -> impl Iterator<Item = &'static str> + use<> {
    let is_random = matches!(operation.mode, Mode::Random | Mode::Unknown);
    let has_pieces = !operation.pieces.is_empty();
    let lacks_pieces = operation.space == Space::Pieces && !has_pieces;
    let all = [
        (is_random, "at a random offset, as the model has no offsets"),
        (lacks_pieces, "through a view whose pieces the model does not have, in one piece"),
        (has_pieces, "through a view, a call for each piece"),
        (
            operation.sizes.is_some() && operation.size_by_process.is_none(),
            "of the mean size, as the model has no other",
        ),
        (operation.repetitions_between.is_some(), "with the mean number of repetitions of all processes"),
    ];
    all.into_iter().filter(|(differs, _)| *differs).map(|(_, what)| what)
}

/// Returns the steps of a request: one call per piece. `place` of `places` is the position of the
/// process in the phase.
fn steps(operation: &Operation, (place, places): (u64, u64), phase: u64, number: u64) -> Vec<ReplayStep> {
    let op = match operation.direction {
        Direction::Read => posix::PREAD,
        Direction::Write => posix::PWRITE,
    };
    let ranges = operation.ranges(place, phase, number).unwrap_or_else(|| {
        let request = operation.request(place, phase, number);
        let offset = request.offset.map(|offset| offset.max(0).unsigned_abs()).unwrap_or_else(|| {
            // Pseudo-random: Weyl's sequence visits each piece of the file about once.
            let pieces = operation.repetitions.saturating_mul(places).max(1);
            let turn = (number * places + place).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
            (turn % pieces).saturating_mul(request.size)
        });
        vec![Range { offset, bytes: request.size }]
    });
    let step = |Range { offset, bytes }| {
        let [offset, size] = [offset, bytes].map(|value| i64::try_from(value).unwrap_or(i64::MAX));
        let op = (op.layer, op.number);
        ReplayStep { op, offset: Some(offset), length: Some(size), result: size, ..ReplayStep::default() }
    };
    ranges.into_iter().map(step).collect()
}
