//! Processors and the processes on them.

use super::cache::NONE;
use super::result::{Process, Processor};
use super::storage::{Access, Progress};
use super::workload::Program;

/// Activity of a processor until [`Cpu::until`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuActivity {
    Nothing,
    /// Serves an interrupt, without a process.
    Interrupt,
    /// Overhead: a switch, a call, moving data.
    Overhead,
    /// Runs a program for this many nanoseconds.
    Compute(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Cpu {
    pub(super) doing: CpuActivity,
    /// Time at which the activity ends; `u64::MAX` for never.
    pub(super) until: u64,
    pub(super) process: u32,
    /// The last process on this processor.
    pub(super) last: u32,
    pub(super) slice_end: u64,
    pub(super) idle_since: u64,
    /// Time until which the processor serves the interrupts that have arrived.
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

/// Next step of a process when it has a processor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Computes for this many nanoseconds, then makes a request or ends.
    Compute(u64),
    /// Enters the system.
    Call,
    /// Accesses the cache for [`Task::access`].
    Access,
    /// Handles the result of the access.
    Accessed(Progress),
    /// Ends after all computation is done.
    End,
}

#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) program: &'a Program,
    /// Index of the next request.
    pub(super) next: usize,
    pub(super) phase: Phase,
    /// The request in progress; `None` before the first.
    pub(super) access: Option<Access>,
    /// Number of transfers until the process is ready.
    pub(super) waits: u32,
    /// Number of transfers that must complete before the process ends.
    pub(super) later: u32,
    /// True if the process waits for `waits` transfers.
    pub(super) blocked: bool,
    /// True if the process waits for `later` transfers.
    pub(super) ending: bool,
    /// Time since which it is on a processor, ready, or blocked.
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

    /// Returns the time since the last call.
    #[inline]
    pub(super) fn lap(&mut self, now: u64) -> u64 {
        now - std::mem::replace(&mut self.since, now)
    }
}
