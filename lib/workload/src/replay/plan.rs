//! The steps of every thread and the jobs of the processes, in an unnamed file.

use super::links::Links;
use super::order::{Access, Order, StepPosition};
use super::{Pace, ReplayStep, StepPart};
use miot_proto::event::flag;
use miot_proto::op::{Op, OpClass, OpInfo, posix, stdio};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};

/// Steps of a thread that are kept in memory until the older half is written. Submissions are
/// inserted between them.
const MAX_KEPT_STEPS: usize = 1024;

/// Bytes of the largest replayed request. The kernel moves at most twice as many in one call.
pub(super) const MAX_REQUEST_BYTES: u64 = 1 << 30;

/// A process of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedProcess {
    /// Number of the process in the trace.
    pub process: u64,
    /// Process id.
    pub pid: u32,
    /// Command line.
    pub command: String,
}

/// Offset and length of a section of the plan, bytes.
pub(super) type Chunk = (u64, u64);

/// Part of a job: one thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ThreadPlan {
    /// Number of the thread among all.
    pub(super) slot: u32,
    /// Thread id in the trace.
    pub(super) tid: u32,
    /// The steps, as vectors in postcard.
    pub(super) chunks: Vec<Chunk>,
}

/// What a process must replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProcessJob {
    /// Process id of the coordinator.
    pub(super) coordinator: u32,
    /// Path of the replay root.
    pub(super) root: Vec<u8>,
    pub(super) pace: Pace,
    /// Process id in the trace.
    pub(super) pid: u32,
    /// Bytes of its longest write.
    pub(super) longest_write: u64,
    pub(super) threads: Vec<ThreadPlan>,
}

/// A thread while the plan is made.
#[derive(Debug, Default)]
struct PlannedThread {
    tid: u32,
    /// Steps that are not written yet.
    steps: Vec<ReplayStep>,
    chunks: Vec<Chunk>,
    /// Number of its steps.
    count: u32,
}

/// A process of the plan.
#[derive(Debug, Default)]
pub(super) struct PlannedProcess {
    pub(super) traced: TracedProcess,
    /// Start of its first step and end of its last one, nanoseconds since the first step of all.
    pub(super) first: i64,
    last: i64,
    /// Numbers of its first and last step, counted in order of completion.
    numbers: (u64, u64),
    /// Lowest number of a step of this process or one that is started after it.
    first_number_from_here: u64,
    longest_write: u64,
    /// Slots of its threads.
    threads: Vec<u32>,
    /// Open files that a step has opened or named, by handle: path and number of descriptors.
    open: HashMap<u64, (Vec<u8>, u32)>,
    /// Handles by path.
    by_path: HashMap<Vec<u8>, u64>,
    /// By handle: the step that opened it, then the last one of each other thread. A step is the
    /// slot of its thread and its number in the thread.
    last_uses: HashMap<u64, Vec<(u32, u32)>>,
}

/// Makes a plan.
#[derive(Debug)]
pub struct Planner {
    file: File,
    /// Bytes written.
    end: u64,
    order: Order,
    links: Links,
    threads: Vec<PlannedThread>,
    processes: Vec<PlannedProcess>,
    by_thread: HashMap<(u64, u32), u32>,
    by_process: HashMap<u64, usize>,
    submissions: u64,
    steps: u64,
}

/// A plan: the processes, their threads and the steps of these.
#[derive(Debug)]
pub struct Plan {
    pub(super) file: File,
    /// Bytes written.
    end: u64,
    /// In order of their first step.
    pub(super) processes: Vec<PlannedProcess>,
    /// Threads of each process.
    thread_plans: Vec<Vec<ThreadPlan>>,
    pub(super) threads: usize,
    /// Number of steps of all threads.
    pub steps: u64,
}

impl Planner {
    /// Creates an empty plan in an unnamed file in the system's directory for temporary files.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn new() -> io::Result<Planner> {
        Ok(Planner {
            file: tempfile::tempfile()?,
            end: 0,
            order: Order::default(),
            links: Links::default(),
            threads: Vec::new(),
            processes: Vec::new(),
            by_thread: HashMap::new(),
            by_process: HashMap::new(),
            submissions: 0,
            steps: 0,
        })
    }

    /// Adds the next step, in order of completion. It must contain its path even if it has a
    /// handle.
    ///
    /// # Errors
    /// If the plan cannot be written.
    pub fn add(&mut self, traced: &TracedProcess, tid: u32, mut step: ReplayStep) -> io::Result<()> {
        let slot = self.slot(traced, tid);
        let process = &mut self.processes[self.by_process[&traced.process]];
        process.first = process.first.min(step.begin);
        process.last = process.last.max(step.end);
        process.numbers = (process.numbers.0.min(self.steps), self.steps);
        let length = step.length.unwrap_or(0).max(step.result);
        if step.info().is_some_and(|info| info.class == OpClass::Write) {
            process.longest_write =
                process.longest_write.max(u64::try_from(length).unwrap_or(0).min(MAX_REQUEST_BYTES));
        }
        let thread = &mut self.threads[slot as usize];
        thread.count += 1;
        let asynchronous = step.flags & flag::ASYNC != 0;
        let at = StepPosition {
            thread: slot,
            number: thread.count,
            begin: step.begin,
            end: step.end,
            asynchronous,
        };
        let is_new = step.handle != 0 && !process.open.contains_key(&step.handle);
        let resolved = self.links.resolve_step(&step);
        let accesses = resolved.iter().chain([&step]).flat_map(|step| accesses(step, is_new));
        let waits = self.order.add(at, &accesses.collect::<Vec<_>>());
        step.waits.extend(waits);
        step.waits.extend(process.use_handle(&step, (slot, thread.count)));
        self.links.add(&step);
        process.resolve_handles(&mut step);
        self.steps += 1;
        if asynchronous {
            self.submissions += 1;
            thread.add_asynchronous(step, self.submissions);
        } else {
            thread.steps.push(step);
        }
        if thread.steps.len() >= MAX_KEPT_STEPS { self.write(slot, MAX_KEPT_STEPS / 2) } else { Ok(()) }
    }

    /// Returns the last step of every thread. A step that waits for all of them comes after all
    /// steps that were added.
    pub fn barrier(&self) -> Vec<(u32, u32)> {
        (0..).zip(&self.threads).map(|(slot, thread)| (slot, thread.count)).collect()
    }

    /// Returns the slot of a thread; a new one if it has none.
    fn slot(&mut self, traced: &TracedProcess, tid: u32) -> u32 {
        if let Some(slot) = self.by_thread.get(&(traced.process, tid)) {
            return *slot;
        }
        let slot = self.threads.len() as u32;
        self.threads.push(PlannedThread { tid, ..PlannedThread::default() });
        self.by_thread.insert((traced.process, tid), slot);
        let place = *self.by_process.entry(traced.process).or_insert(self.processes.len());
        if place == self.processes.len() {
            self.processes.push(PlannedProcess {
                traced: traced.clone(),
                first: i64::MAX,
                last: i64::MIN,
                numbers: (u64::MAX, 0),
                ..PlannedProcess::default()
            });
        }
        self.processes[place].threads.push(slot);
        slot
    }

    /// Writes the first steps of a thread to the file.
    fn write(&mut self, slot: u32, steps: usize) -> io::Result<()> {
        let thread = &mut self.threads[slot as usize];
        let steps: Vec<ReplayStep> = thread.steps.drain(..steps).collect();
        let bytes = postcard::to_stdvec(&steps).map_err(io::Error::other)?;
        self.file.write_all(&bytes)?;
        thread.chunks.push((self.end, bytes.len() as u64));
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes the remaining steps and returns the plan.
    ///
    /// # Errors
    /// If the plan cannot be written.
    pub fn finish(mut self) -> io::Result<Plan> {
        for slot in 0..self.threads.len() {
            let remaining = self.threads[slot].steps.len();
            self.write(slot as u32, remaining)?;
        }
        self.processes.sort_by_key(|process| process.first);
        let mut first_number = u64::MAX;
        for process in self.processes.iter_mut().rev() {
            first_number = first_number.min(process.numbers.0);
            process.first_number_from_here = first_number;
        }
        let thread_plan = |slot: &u32| {
            let thread = &self.threads[*slot as usize];
            ThreadPlan { slot: *slot, tid: thread.tid, chunks: thread.chunks.clone() }
        };
        let thread_plans =
            self.processes.iter().map(|process| process.threads.iter().map(thread_plan).collect()).collect();
        let Planner { file, end, processes, threads, steps, .. } = self;
        Ok(Plan { file, end, processes, thread_plans, threads: threads.len(), steps })
    }
}

impl PlannedThread {
    /// Adds an asynchronous request as two steps: its submission at its start, and its completion.
    fn add_asynchronous(&mut self, step: ReplayStep, number: u64) {
        let submission = ReplayStep { part: StepPart::Submit(number), ..step };
        let completion = ReplayStep {
            part: StepPart::Collect(number),
            path: None,
            waits: Vec::new(),
            ..submission.clone()
        };
        let is_later = |other: &ReplayStep| match other.part {
            StepPart::Collect(_) => other.end > submission.begin,
            _ => other.begin > submission.begin,
        };
        let place = self.steps.iter().rposition(|other| !is_later(other)).map_or(0, |place| place + 1);
        self.steps.insert(place, submission);
        self.steps.push(completion);
    }
}

impl Plan {
    /// Number of processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Nanoseconds from the start of the first step to the end of the last.
    #[must_use]
    pub fn duration(&self) -> i64 {
        self.processes.iter().map(|process| process.last).max().unwrap_or(0)
    }

    /// Appends the job of a process to the file and returns its place.
    pub(super) fn write_job(&mut self, number: usize, root: &[u8], pace: Pace) -> io::Result<Chunk> {
        let process = &self.processes[number];
        let job = ProcessJob {
            coordinator: std::process::id(),
            root: root.to_vec(),
            pace,
            pid: process.traced.pid,
            longest_write: process.longest_write,
            threads: self.thread_plans[number].clone(),
        };
        let bytes = postcard::to_stdvec(&job).map_err(io::Error::other)?;
        self.file.write_all(&bytes)?;
        let chunk = (self.end, bytes.len() as u64);
        self.end += bytes.len() as u64;
        Ok(chunk)
    }
}

impl PlannedProcess {
    /// True if none of its steps waits for a step of `other`, or of a process that is started after
    /// `other`. That is so if all those steps come later, because a step waits for earlier steps
    /// only.
    pub(super) fn is_independent_of(&self, other: &PlannedProcess) -> bool {
        self.numbers.1 < other.first_number_from_here
    }

    /// Returns the steps of other threads that a step on an open file waits for: the one that
    /// opened the file, and all that used it if the step closes it.
    fn use_handle(&mut self, step: &ReplayStep, this: (u32, u32)) -> Vec<(u32, u32)> {
        let Some(info) = step.info().filter(|_| step.handle != 0) else { return Vec::new() };
        let last_uses = self.last_uses.entry(step.handle).or_default();
        let closes = closes(info.op);
        let of_others = last_uses.iter().filter(|(thread, _)| *thread != this.0);
        let waits = of_others.take(if closes { usize::MAX } else { 1 }).copied().collect();
        if closes {
            self.last_uses.remove(&step.handle);
            return waits;
        }
        match last_uses.iter_mut().skip(1).find(|(thread, _)| *thread == this.0) {
            Some(last) => *last = this,
            None => last_uses.push(this),
        }
        waits
    }

    /// Sets the handle of the source of a copy. Removes the path of a step that moves data if the
    /// process has the file open by then.
    fn resolve_handles(&mut self, step: &mut ReplayStep) {
        let (Some(info), handle) = (step.info(), step.handle) else { return };
        if info.class == OpClass::Copy
            && let Some(source) = step.path2.as_ref().and_then(|path| self.by_path.get(path))
        {
            step.handle2 = *source;
        }
        let Some(path) = step.path.clone().filter(|_| handle != 0) else { return };
        let (_, descriptors) = self.open.entry(handle).or_insert_with(|| (path.clone(), 0));
        let was_open = *descriptors > 0;
        *descriptors = (*descriptors).max(1);
        match info.op {
            posix::DUP | posix::DUP2 | posix::DUP3 => *descriptors += 1,
            posix::FCNTL if is_duplication(step.arg) => *descriptors += 1,
            op if closes(op) => {
                *descriptors -= 1;
                if *descriptors == 0 {
                    self.open.remove(&handle);
                    self.by_path.remove(&path);
                }
                return;
            }
            _ if was_open && info.class.is_data() => step.path = None,
            _ => {}
        }
        self.by_path.insert(path, handle);
    }
}

/// True for operations that close a descriptor.
fn closes(op: Op) -> bool {
    matches!(op, posix::CLOSE | posix::CLOSEDIR | stdio::FCLOSE)
}

/// True for commands of `fcntl` that duplicate the descriptor.
fn is_duplication(command: i64) -> bool {
    matches!(command as i32, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// Returns the path of the parent directory; that of the root is empty.
fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |end| &path[..end])
}

/// Accesses of one step, in the order in which [`Order`] gets them.
#[derive(Default)]
struct Accesses<'a>(Vec<(&'a [u8], Access)>);

impl<'a> Accesses<'a> {
    fn add(&mut self, path: &'a [u8], access: Access) {
        self.0.push((path, access));
    }

    /// The request depends on whether the path exists.
    fn look_up(&mut self, path: &'a [u8]) {
        self.add_path(path, Access::Lookup, Access::Lookup);
    }

    /// The request changes the entry of the path in its directory.
    fn change_entry(&mut self, path: &'a [u8]) {
        self.add_path(path, Access::Exclusive, Access::Write);
    }

    fn add_path(&mut self, path: &'a [u8], access: Access, of_parent: Access) {
        self.add(path, access);
        let mut directory = parent(path);
        self.add(directory, of_parent);
        while !directory.is_empty() {
            directory = parent(directory);
            self.add(directory, Access::Traverse);
        }
    }
}

/// Returns which paths a step accesses, and how. `is_new`: the step is the first of its process on
/// a file that another process has opened.
fn accesses(step: &ReplayStep, is_new: bool) -> Vec<(&[u8], Access)> {
    let (Some(info), Some(path)) = (step.info(), step.path.as_deref()) else { return Vec::new() };
    let path2 = step.path2.as_deref();
    let mut accesses = Accesses::default();
    if is_new && info.paths == 0 {
        accesses.look_up(path);
    }
    match info.class {
        OpClass::Read => accesses.add(path, Access::Read),
        OpClass::Write => {
            let appends = step.flags & flag::APPEND != 0;
            accesses.add(path, if appends { Access::Exclusive } else { Access::Write });
        }
        OpClass::Copy => {
            accesses.add(path, Access::Write);
            path2.into_iter().for_each(|source| accesses.add(source, Access::Read));
        }
        OpClass::Sync => {}
        OpClass::Meta => add_metadata_accesses(&mut accesses, step, info, path, path2),
    }
    accesses.0
}

/// Adds the accesses of an operation on metadata.
fn add_metadata_accesses<'a>(
    accesses: &mut Accesses<'a>,
    step: &ReplayStep,
    info: &OpInfo,
    path: &'a [u8],
    path2: Option<&'a [u8]>,
) {
    let argument = step.arg as i32;
    match info.op {
        posix::OPEN | posix::OPENAT | stdio::FOPEN | stdio::FREOPEN => {
            if argument & (libc::O_CREAT | libc::O_TRUNC) != 0 {
                accesses.change_entry(path);
            } else {
                accesses.look_up(path);
            }
        }
        posix::CREAT
        | posix::UNLINK
        | posix::UNLINKAT
        | posix::REMOVE
        | posix::RMDIR
        | posix::MKDIR
        | posix::MKDIRAT
        | posix::MKSTEMP
        | posix::MKDTEMP
        | posix::MKNOD
        | posix::MKNODAT
        | posix::MKFIFO
        | posix::MKFIFOAT => accesses.change_entry(path),
        posix::RENAME | posix::RENAMEAT | posix::RENAMEAT2 | posix::LINK | posix::LINKAT => {
            accesses.change_entry(path);
            path2.into_iter().for_each(|path| accesses.change_entry(path));
        }
        posix::SYMLINK | posix::SYMLINKAT => {
            path2.into_iter().for_each(|path| accesses.change_entry(path));
        }
        posix::TRUNCATE
        | posix::FTRUNCATE
        | posix::FALLOCATE
        | posix::POSIX_FALLOCATE
        | posix::FLOCK
        | posix::LOCKF => accesses.add(path, Access::Exclusive),
        posix::FCNTL if !is_duplication(step.arg) => accesses.add(path, Access::Exclusive),
        posix::READDIR | posix::SCANDIR | posix::GETDENTS => accesses.add(path, Access::Read),
        posix::LSEEK if argument >= libc::SEEK_END => accesses.add(path, Access::Read),
        _ if info.paths > 0 => accesses.look_up(path),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{Plan, Planner, ReplayStep, TracedProcess};
    use miot_proto::op::by_name;

    /// Returns a plan with one step for each element: process, begin, end.
    fn plan(steps: &[(u64, i64, i64)]) -> Plan {
        let mut planner = Planner::new().unwrap();
        for (process, begin, end) in steps {
            let traced = TracedProcess { process: *process, ..TracedProcess::default() };
            planner
                .add(&traced, 1, ReplayStep { begin: *begin, end: *end, ..ReplayStep::default() })
                .unwrap();
        }
        planner.finish().unwrap()
    }

    #[test]
    fn process_is_independent_of_processes_with_later_steps_only() {
        let is_independent = |plan: &Plan, one: usize, other: usize| {
            plan.processes[one].is_independent_of(&plan.processes[other])
        };
        let script = plan(&[(1, 0, 1), (2, 2, 3), (2, 4, 5), (3, 6, 7), (1, 8, 9)]);
        assert!(
            is_independent(&script, 1, 2) && !is_independent(&script, 1, 0) && !is_independent(&script, 0, 1)
        );
        // As the phases of a model without times.
        let phases = plan(&[(1, 0, 0), (2, 0, 0), (1, 0, 0), (2, 0, 0)]);
        assert!(
            !is_independent(&phases, 0, 1) && !is_independent(&phases, 1, 0),
            "the first waits for the second, though the times are equal"
        );
        let overtaken = plan(&[(1, 0, 1), (3, 3, 4), (4, 5, 6), (2, 2, 9)]);
        assert!(is_independent(&overtaken, 0, 1), "no other process has begun");
        assert!(!is_independent(&overtaken, 1, 2), "it ends last");
    }

    #[test]
    fn step_through_a_link_waits_for_steps_on_its_target() {
        let mut planner = Planner::new().unwrap();
        for (process, name, path, path2) in
            [(1, "rename", "a/y", "a/z"), (2, "symlink", "a/z", "a/l"), (3, "open", "a/l", "")]
        {
            let op = by_name("posix", name).unwrap().op;
            let [path, path2] = [path, path2].map(|name| Some(name.as_bytes().to_vec()));
            let (begin, end) = (2 * process, 2 * process + 1);
            let step =
                ReplayStep { op: (op.layer, op.number), path, path2, begin, end, ..ReplayStep::default() };
            planner
                .add(&TracedProcess { process: process as u64, ..TracedProcess::default() }, 1, step)
                .unwrap();
        }
        let mut waits = planner.threads[2].steps[0].waits.clone();
        waits.sort_unstable();
        assert_eq!(waits, [(0, 1), (1, 1)]);
    }
}
