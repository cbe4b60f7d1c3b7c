//! Processors and the processes on them.

use super::cache::NONE;
use super::result::{Process, Processor};
use super::storage::{Access, Progress};
use super::workload::Program;

/// What a processor does until [`Cpu::until`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuActivity {
    Nothing,
    /// Serves an interrupt, with no process on it.
    Interrupt,
    /// Overhead: a switch, a call, moving data.
    Overhead,
    /// So many nanoseconds of a program.
    Compute(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Cpu {
    pub(super) doing: CpuActivity,
    /// When that ends; `u64::MAX`: never.
    pub(super) until: u64,
    pub(super) process: u32,
    /// Who was on it last.
    pub(super) last: u32,
    pub(super) slice_end: u64,
    pub(super) idle_since: u64,
    /// Until when it serves the interrupts that have come.
    pub(super) interrupted: u64,
    pub(super) totals: Processor,
}

impl Cpu {
    pub(super) fn new() -> Cpu {
        Cpu {
            doing: CpuActivity::Nothing,
            until: u64::MAX,
            process: NONE,
            last: NONE,
            slice_end: 0,
            idle_since: 0,
            interrupted: 0,
            totals: Processor::default(),
        }
    }

    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.doing == CpuActivity::Nothing
    }

    #[inline]
    pub(super) fn overhead(&mut self, now: u64, time: u64) {
        self.doing = CpuActivity::Overhead;
        self.until = now.saturating_add(time);
        self.totals.overhead += time;
    }
}

/// What a process does next when it has a processor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Computes so long, then makes a request, or ends.
    Compute(u64),
    /// Enters the system.
    Call,
    /// Has the cache asked for [`Task::access`].
    Ask,
    /// Knows what the cache said.
    Told(Progress),
    /// Has computed all it had to.
    End,
}

#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) program: &'a Program,
    /// Next request.
    pub(super) next: usize,
    pub(super) phase: Phase,
    /// Its request under way; `None` before the first.
    pub(super) access: Option<Access>,
    /// Transfers until it is ready.
    pub(super) waits: u32,
    /// Transfers that have to be done before it ends.
    pub(super) later: u32,
    /// It waits for the former.
    pub(super) blocked: bool,
    /// It waits for the latter.
    pub(super) ending: bool,
    /// Since when it is on a processor, ready, or blocked.
    pub(super) since: u64,
    pub(super) totals: Process,
}

impl<'a> Task<'a> {
    pub(super) fn new(program: &'a Program) -> Task<'a> {
        let first = program.requests.first().map_or(program.rest, |request| request.cpu);
        Task {
            program,
            next: 0,
            phase: Phase::Compute(first),
            access: None,
            waits: 0,
            later: 0,
            blocked: false,
            ending: false,
            since: program.start,
            totals: Process { name: program.name.clone(), started: program.start, ..Process::default() },
        }
    }

    /// The time since it was last asked.
    #[inline]
    pub(super) fn lap(&mut self, now: u64) -> u64 {
        now - std::mem::replace(&mut self.since, now)
    }
}
