//! Starts the processes of a replay and collects their reports.

use super::progress::{ProgressBoard, now};
use super::{Fidelity, Pace, Plan, ProcessReport};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Running processes from which on a new one waits for the end of another, if it can.
const MANY_PROCESSES: usize = 64;
/// How long before its first step a process is started, nanoseconds.
const START_AHEAD_NS: i64 = 1_000_000_000;
/// Interval between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two checks whether all started processes are ready.
const READY_INTERVAL: Duration = Duration::from_millis(1);

/// What a running replay is notified of.
#[derive(Debug)]
pub enum ReplayNotice {
    /// A process has ended: its number in the plan, and its exit status and standard output.
    Ended(usize, io::Result<(ExitStatus, Vec<u8>)>),
    /// The replay must stop, because of this signal.
    Stop(i32),
}

/// Why a replay stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A process has ended early.
    #[error(
        "the process that replays `{command}` (process {pid} of the trace) {reason} after {done} of {steps} requests of all processes; the replay was stopped"
    )]
    Lost {
        /// Command line in the trace.
        command: String,
        /// Process id in the trace.
        pid: u32,
        /// How it ended.
        reason: String,
        /// Steps that all processes had completed.
        done: u64,
        /// Steps of all processes.
        steps: u64,
    },
    /// A signal.
    #[error("stopped by signal {signal} after {done} of {steps} requests")]
    Stopped {
        /// Number of the signal.
        signal: i32,
        /// Steps that all processes had completed.
        done: u64,
        /// Steps of all processes.
        steps: u64,
    },
    /// A process cannot be started, or its plan cannot be written.
    #[error("cannot {action}: {source}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// Settings of a replay.
pub struct ReplayOptions<'a> {
    /// The directory that stands for the root of the traced system.
    pub root: &'a Path,
    /// When steps begin.
    pub pace: Pace,
    /// Returns the command of a process, which must call [`super::run_worker`]. The process gets
    /// the plan as standard input, and as further arguments the descriptor of the shared memory,
    /// and the offset and the length of its job in the plan.
    pub command: &'a dyn Fn() -> Command,
    /// Called with the number of completed steps.
    pub progress: &'a mut dyn FnMut(u64),
}

impl std::fmt::Debug for ReplayOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplayOptions")
            .field("root", &self.root)
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

/// A running replay.
struct Coordinator<'a> {
    plan: Plan,
    options: ReplayOptions<'a>,
    board: ProgressBoard,
    /// Descriptor of the memory of `board`.
    memory: OwnedFd,
    /// Pids of the running processes, by their number in the plan.
    running: HashMap<usize, u32>,
    to_self: Sender<ReplayNotice>,
    /// Merged reports of the processes that have ended.
    report: ProcessReport,
}

/// Replays a plan. Returns its fidelity and its duration in nanoseconds.
///
/// # Errors
/// [`ReplayError`]. All processes have ended in any case.
pub fn run_replay(
    plan: Plan,
    options: ReplayOptions,
    (to_self, notices): (Sender<ReplayNotice>, &Receiver<ReplayNotice>),
) -> Result<(Fidelity, i64), ReplayError> {
    let failed = |action| move |errno: Errno| ReplayError::Io { action, source: errno.into() };
    let (board, memory) =
        ProgressBoard::create(plan.threads).map_err(failed("create memory that processes share"))?;
    let mut coordinator = Coordinator {
        plan,
        options,
        board,
        memory,
        running: HashMap::new(),
        to_self,
        report: ProcessReport::default(),
    };
    let result = coordinator.run(notices);
    coordinator.kill_all(notices);
    let mut report = coordinator.report;
    report.fidelity.remove_exchanged();
    result.map(|start| (report.fidelity, (report.ended - start).max(0)))
}

impl Coordinator<'_> {
    /// Runs all processes of the plan and returns the time of the start, see [`now`].
    fn run(&mut self, notices: &Receiver<ReplayNotice>) -> Result<i64, ReplayError> {
        let (mut next, mut start) = (0, None);
        loop {
            while next < self.plan.processes.len() && self.may_start(next, start) {
                let child = self.spawn(next);
                let child = child.map_err(|source| ReplayError::Io { action: "start a process", source })?;
                self.watch(next, child);
                next += 1;
            }
            if start.is_none() && self.board.ready_processes() as usize == next {
                self.board.start();
                start = Some(self.board.wait_for_start());
            }
            if self.running.is_empty() && next == self.plan.processes.len() {
                (self.options.progress)(self.plan.steps);
                return Ok(start.unwrap_or_else(now));
            }
            let timeout = if start.is_none() { READY_INTERVAL } else { PROGRESS_INTERVAL };
            match notices.recv_timeout(timeout) {
                Ok(ReplayNotice::Ended(number, output)) => self.ended(number, output)?,
                Ok(ReplayNotice::Stop(signal)) => {
                    let (done, steps) = (self.board.total(), self.plan.steps);
                    return Err(ReplayError::Stopped { signal, done, steps });
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            (self.options.progress)(self.board.total());
        }
    }

    /// Merges the report of a process that has ended.
    fn ended(&mut self, number: usize, output: io::Result<(ExitStatus, Vec<u8>)>) -> Result<(), ReplayError> {
        self.running.remove(&number);
        let report = parse_report(output).map_err(|reason| {
            let process = self.plan.processes[number].traced.clone();
            ReplayError::Lost {
                command: process.command,
                pid: process.pid,
                reason: reason.to_string(),
                done: self.board.total(),
                steps: self.plan.steps,
            }
        })?;
        self.report.fidelity.merge(report.fidelity);
        self.report.ended = self.report.ended.max(report.ended);
        Ok(())
    }

    /// Returns whether to start a process now. While there are many, it waits for one to end; but
    /// only if one of them does not wait for this or any later process, because else none might
    /// end.
    fn may_start(&self, number: usize, start: Option<i64>) -> bool {
        let process = &self.plan.processes[number];
        let first = process.first;
        let waits = self.running.len() >= MANY_PROCESSES
            && self.running.keys().any(|other| self.plan.processes[*other].is_independent_of(process));
        let elapsed = start.map_or(0, |start| now() - start);
        let is_due = match self.options.pace {
            Pace::Fast => true,
            Pace::Think => first <= START_AHEAD_NS + elapsed,
            Pace::Original(speed) => (first as f64 / speed) as i64 <= START_AHEAD_NS + elapsed,
        };
        is_due && !waits
    }

    fn spawn(&mut self, number: usize) -> io::Result<Child> {
        let root = self.options.root.as_os_str().as_bytes();
        let (offset, bytes) = self.plan.write_job(number, root, self.options.pace)?;
        let mut command = (self.options.command)();
        command.args([self.memory.as_raw_fd().to_string(), offset.to_string(), bytes.to_string()]);
        command.arg("--of").arg(self.plan.processes[number].traced.process.to_string());
        command.stdin(Stdio::from(self.plan.file.try_clone()?)).stdout(Stdio::piped());
        command.spawn()
    }

    /// Starts a thread that notifies the coordinator of the end of a process.
    fn watch(&mut self, number: usize, mut child: Child) {
        self.running.insert(number, child.id());
        let to_self = self.to_self.clone();
        let watch = move || {
            let mut bytes = Vec::new();
            let read = child.stdout.take().map_or(Ok(0), |mut out| out.read_to_end(&mut bytes));
            let status = child.wait();
            let output = read.and(status).map(|status| (status, bytes));
            let _ = to_self.send(ReplayNotice::Ended(number, output));
        };
        thread::spawn(watch);
    }

    /// Kills the processes that still run and waits for their end.
    fn kill_all(&mut self, notices: &Receiver<ReplayNotice>) {
        for pid in self.running.values() {
            if let Some(pid) = rustix::process::Pid::from_raw(*pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        while !self.running.is_empty() {
            match notices.recv() {
                Ok(ReplayNotice::Ended(number, _)) => _ = self.running.remove(&number),
                Ok(ReplayNotice::Stop(_)) => {}
                Err(_) => break,
            }
        }
    }
}

/// How a process of the replay ended without a report.
#[derive(Debug, thiserror::Error)]
enum NoReport {
    #[error("ended without a readable report ({0})")]
    Unreadable(#[from] io::Error),
    #[error("was killed by signal {0}")]
    Killed(i32),
    #[error("ended with {0}")]
    Failed(ExitStatus),
    #[error("wrote an invalid report ({0})")]
    Invalid(#[from] postcard::Error),
}

/// Returns the report that a process wrote.
fn parse_report(output: io::Result<(ExitStatus, Vec<u8>)>) -> Result<ProcessReport, NoReport> {
    use std::os::unix::process::ExitStatusExt as _;
    let (status, bytes) = output?;
    match status.signal() {
        Some(signal) => Err(NoReport::Killed(signal)),
        None if !status.success() => Err(NoReport::Failed(status)),
        None => Ok(postcard::from_bytes(&bytes)?),
    }
}
