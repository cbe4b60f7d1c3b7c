//! Who starts the processes of a replay and hears of their end.

use super::board::{Board, now};
use super::{Fidelity, Pace, Plan, Report};
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

/// Processes beyond which those wait that began, in the trace, after all steps of another.
const MANY: usize = 64;
/// How long before its first step a process is started, nanoseconds.
const AHEAD: i64 = 1_000_000_000;
/// How often progress is told.
const TELL: Duration = Duration::from_millis(100);

/// What a replay is told while it runs.
#[derive(Debug)]
pub enum Told {
    /// A process has ended, and said this.
    Ended(usize, io::Result<(ExitStatus, Vec<u8>)>),
    /// It is to stop, for this signal.
    Stop(i32),
}

/// Why a replay was given up.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// A process has ended.
    #[error(
        "the process that replays `{command}` (process {pid} of the trace) {how} before it was done, after {done} of {steps} requests of all processes; the replay was given up"
    )]
    Lost {
        /// Command line in the trace.
        command: String,
        /// Process id in the trace.
        pid: u32,
        /// How it ended.
        how: String,
        /// Steps that all processes had done.
        done: u64,
        /// Steps of all processes.
        steps: u64,
    },
    /// A signal.
    #[error("stopped by signal {0} after {1} of {2} requests")]
    Stopped(i32, u64, u64),
    /// A process cannot be started, or its plan not be written.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// How a replay is conducted.
pub struct Conduct<'a> {
    /// The directory that stands for the root of the traced system.
    pub root: &'a Path,
    /// When steps begin.
    pub pace: Pace,
    /// The program that is to call [`super::work`]. It gets the plan as standard input, and as further arguments the number of
    /// the descriptor of the memory, and where in the plan it is told, and in how many bytes.
    pub command: &'a dyn Fn() -> Command,
    /// Hears how many steps are done.
    pub progress: &'a mut dyn FnMut(u64),
}

impl std::fmt::Debug for Conduct<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conduct").field("root", &self.root).field("pace", &self.pace).finish_non_exhaustive()
    }
}

struct Running {
    /// Those that have not ended, with the pids.
    children: HashMap<usize, u32>,
    to: Sender<Told>,
}

/// Replays a plan, and says how it went and how many nanoseconds it took.
///
/// # Errors
/// [`Failed`]; all processes have ended then.
pub fn conduct(
    mut plan: Plan,
    conduct: Conduct,
    (to, told): (Sender<Told>, &Receiver<Told>),
) -> Result<(Fidelity, i64), Failed> {
    let failed = |action| move |errno: Errno| Failed::Io { action, source: errno.into() };
    let (board, memory) = Board::make(plan.threads).map_err(failed("make memory that processes share"))?;
    let mut running = Running { children: HashMap::new(), to };
    let mut report = Report::default();
    let result = run(&mut plan, conduct, &board, &memory, &mut running, told, &mut report);
    for pid in running.children.values() {
        if let Some(pid) = rustix::process::Pid::from_raw(*pid as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    while !running.children.is_empty() {
        match told.recv() {
            Ok(Told::Ended(number, _)) => _ = running.children.remove(&number),
            Ok(Told::Stop(_)) => {}
            Err(_) => break,
        }
    }
    report.fidelity.settle();
    result.map(|start| (report.fidelity, (report.ended - start).max(0)))
}

/// Says when the replay started.
fn run(
    plan: &mut Plan,
    conduct: Conduct,
    board: &Board,
    memory: &OwnedFd,
    running: &mut Running,
    told: &Receiver<Told>,
    report: &mut Report,
) -> Result<i64, Failed> {
    let (mut next, mut start) = (0, None);
    loop {
        while next < plan.processes.len() && may_start(plan, next, &running.children, conduct.pace, start) {
            let child = spawn(plan, next, &conduct, memory);
            let child = child.map_err(|source| Failed::Io { action: "start a process", source })?;
            running.watch(next, child);
            next += 1;
        }
        if start.is_none() && board.ready() as usize == next {
            board.start();
            start = Some(board.started());
        }
        if running.children.is_empty() && next == plan.processes.len() {
            (conduct.progress)(plan.steps);
            return Ok(start.unwrap_or_else(now));
        }
        let pause = if start.is_none() { Duration::from_millis(1) } else { TELL };
        match told.recv_timeout(pause) {
            Ok(Told::Ended(number, said)) => {
                running.children.remove(&number);
                let done = ended(said).map_err(|how| {
                    let who = plan.processes[number].who.clone();
                    Failed::Lost {
                        command: who.command,
                        pid: who.pid,
                        how,
                        done: board.total(),
                        steps: plan.steps,
                    }
                })?;
                report.fidelity.merge(done.fidelity);
                report.ended = report.ended.max(done.ended);
            }
            Ok(Told::Stop(signal)) => return Err(Failed::Stopped(signal, board.total(), plan.steps)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        (conduct.progress)(board.total());
    }
}

/// Whether it is time to start a process. If there are many, it waits for the end of one that does without it and all that are to
/// be started yet: of one that does not, there might be none.
fn may_start(
    plan: &Plan,
    number: usize,
    children: &HashMap<usize, u32>,
    pace: Pace,
    start: Option<i64>,
) -> bool {
    let process = &plan.processes[number];
    let first = process.first;
    let too_many =
        children.len() >= MANY && children.keys().any(|other| plan.processes[*other].does_without(process));
    let due = match pace {
        Pace::Fast => true,
        Pace::Think => first <= AHEAD + start.map_or(0, |start| now() - start),
        Pace::Original(speed) => {
            (first as f64 / speed) as i64 <= AHEAD + start.map_or(0, |start| now() - start)
        }
    };
    due && !too_many
}

fn spawn(plan: &mut Plan, number: usize, conduct: &Conduct, memory: &OwnedFd) -> io::Result<Child> {
    let (at, bytes) = plan.job(number, conduct.root.as_os_str().as_bytes(), conduct.pace)?;
    let mut command = (conduct.command)();
    command.args([memory.as_raw_fd().to_string(), at.to_string(), bytes.to_string()]);
    command.arg("--of").arg(plan.processes[number].who.process.to_string());
    command.stdin(Stdio::from(plan.file.try_clone()?)).stdout(Stdio::piped());
    command.spawn()
}

/// What a process said, if it came to its end.
fn ended(said: io::Result<(ExitStatus, Vec<u8>)>) -> Result<Report, String> {
    use std::os::unix::process::ExitStatusExt as _;
    let (status, bytes) = said.map_err(|error| format!("cannot be heard ({error})"))?;
    match status.signal() {
        Some(signal) => Err(format!("was killed by signal {signal}")),
        None if !status.success() => Err(format!("ended with {status}")),
        None => postcard::from_bytes(&bytes).map_err(|error| format!("said what is no report ({error})")),
    }
}

impl Running {
    fn watch(&mut self, number: usize, mut child: Child) {
        self.children.insert(number, child.id());
        let to = self.to.clone();
        let listen = move || {
            let mut bytes = Vec::new();
            let heard = child.stdout.take().map_or(Ok(0), |mut out| out.read_to_end(&mut bytes));
            let status = child.wait();
            let _ = to.send(Told::Ended(number, heard.and(status).map(|status| (status, bytes))));
        };
        thread::spawn(listen);
    }
}
