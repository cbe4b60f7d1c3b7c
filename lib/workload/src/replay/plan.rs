//! The steps of every thread, in a file without a name, and what the processes must be told.

use super::links::Links;
use super::order::{At, Order, Use};
use super::{Pace, Part, Step};
use miot_proto::event::flag;
use miot_proto::op::{OpClass, ResultMeaning};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};

/// Steps of a thread that are kept until the older half is written; submissions are put between them.
const KEPT: usize = 1024;

/// Bytes of the largest request that is made; the kernel moves two of these at most.
pub(super) const LARGEST: u64 = 1 << 30;

/// A process of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Its number in the trace.
    pub process: u64,
    /// Its process id.
    pub pid: u32,
    /// Command line.
    pub command: String,
}

/// Where a piece of a thread's steps is, and how many bytes.
type Chunk = (u64, u64);

/// What a process is told of one of its threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lane {
    /// Number of the thread among all.
    pub(super) slot: u32,
    /// Thread id in the trace.
    pub(super) tid: u32,
    pub(super) chunks: Vec<Chunk>,
}

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// Process id of who says so.
    pub(super) conductor: u32,
    pub(super) root: Vec<u8>,
    pub(super) pace: Pace,
    pub(super) pid: u32,
    /// Bytes of its longest write.
    pub(super) longest: u64,
    pub(super) lanes: Vec<Lane>,
}

#[derive(Debug, Default)]
struct Thread {
    tid: u32,
    steps: Vec<Step>,
    chunks: Vec<Chunk>,
    done: u32,
}

/// A process of the plan.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) who: Who,
    /// Nanoseconds since the first step of all.
    pub(super) first: i64,
    last: i64,
    /// Numbers of its first and of its last step, counted in the order of completion.
    numbers: (u64, u64),
    /// The first step of it and of all processes that are started after it.
    comes_with: u64,
    longest: u64,
    threads: Vec<u32>,
    /// Open files that a step has opened or named: their paths, and how many descriptors they have.
    open: HashMap<u64, (Vec<u8>, u32)>,
    by_path: HashMap<Vec<u8>, u64>,
    /// By handle: the step that opened it, then the last one of each other thread. Thread, and number of the step in it.
    used: HashMap<u64, Vec<(u32, u32)>>,
}

/// Makes a plan.
#[derive(Debug)]
pub struct Planner {
    file: File,
    at: u64,
    order: Order,
    links: Links,
    threads: Vec<Thread>,
    processes: Vec<Process>,
    by_thread: HashMap<(u64, u32), u32>,
    by_process: HashMap<u64, usize>,
    submissions: u64,
    steps: u64,
}

/// A plan: who does what.
#[derive(Debug)]
pub struct Plan {
    pub(super) file: File,
    pub(super) at: u64,
    /// In order of their first step.
    pub(super) processes: Vec<Process>,
    pub(super) lanes: Vec<Vec<Lane>>,
    pub(super) threads: usize,
    /// Steps of all threads.
    pub steps: u64,
}

impl Planner {
    /// Plans are written to a file without a name in the system's directory for temporary files.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> io::Result<Planner> {
        Ok(Planner {
            file: tempfile::tempfile()?,
            at: 0,
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

    /// Takes the next step, in order of completion. It has its path also where it is on a handle.
    ///
    /// # Errors
    /// If the plan cannot be written.
    pub fn add(&mut self, who: &Who, tid: u32, mut step: Step) -> io::Result<()> {
        let slot = self.slot(who, tid);
        let process = &mut self.processes[self.by_process[&who.process]];
        process.first = process.first.min(step.begin);
        process.last = process.last.max(step.end);
        process.numbers = (process.numbers.0.min(self.steps), self.steps);
        let length = step.length.unwrap_or(0).max(step.result);
        if step.info().is_some_and(|info| info.class == OpClass::Write) {
            process.longest = process.longest.max(u64::try_from(length).unwrap_or(0).min(LARGEST));
        }
        let thread = &mut self.threads[slot as usize];
        thread.done += 1;
        let asynchronous = step.flags & flag::ASYNC != 0;
        let at = At { thread: slot, number: thread.done, begin: step.begin, end: step.end, asynchronous };
        let is_new = step.handle != 0 && !process.open.contains_key(&step.handle);
        let through = self.links.through(&step);
        let all_uses = through.iter().chain([&step]).flat_map(|step| uses(step, is_new));
        let waits = self.order.add(at, &all_uses.collect::<Vec<_>>());
        step.waits.extend(waits);
        step.waits.extend(process.uses_handle(&step, (slot, thread.done)));
        self.links.add(&step);
        process.name(&mut step);
        self.steps += 1;
        if asynchronous {
            self.submissions += 1;
            let submission = Step { part: Part::Submit(self.submissions), ..step };
            let end = Step {
                part: Part::Collect(self.submissions),
                path: None,
                waits: Vec::new(),
                ..submission.clone()
            };
            let later = |other: &Step| match other.part {
                Part::Collect(_) => other.end > submission.begin,
                _ => other.begin > submission.begin,
            };
            let place = thread.steps.iter().rposition(|other| !later(other)).map_or(0, |place| place + 1);
            thread.steps.insert(place, submission);
            thread.steps.push(end);
        } else {
            thread.steps.push(step);
        }
        if thread.steps.len() >= KEPT { self.write(slot, KEPT / 2) } else { Ok(()) }
    }

    /// The last steps of every thread wait for those of all others: what is added from now on comes after all that is there.
    pub fn barrier(&self) -> Vec<(u32, u32)> {
        (0..).zip(&self.threads).map(|(slot, thread)| (slot, thread.done)).collect()
    }

    fn slot(&mut self, who: &Who, tid: u32) -> u32 {
        if let Some(slot) = self.by_thread.get(&(who.process, tid)) {
            return *slot;
        }
        let slot = self.threads.len() as u32;
        self.threads.push(Thread { tid, ..Thread::default() });
        self.by_thread.insert((who.process, tid), slot);
        let place = *self.by_process.entry(who.process).or_insert(self.processes.len());
        if place == self.processes.len() {
            self.processes.push(Process {
                who: who.clone(),
                first: i64::MAX,
                last: i64::MIN,
                numbers: (u64::MAX, 0),
                ..Process::default()
            });
        }
        self.processes[place].threads.push(slot);
        slot
    }

    fn write(&mut self, slot: u32, steps: usize) -> io::Result<()> {
        let thread = &mut self.threads[slot as usize];
        let steps: Vec<Step> = thread.steps.drain(..steps).collect();
        let bytes = postcard::to_stdvec(&steps).map_err(io::Error::other)?;
        self.file.write_all(&bytes)?;
        thread.chunks.push((self.at, bytes.len() as u64));
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// The plan of all that was added.
    ///
    /// # Errors
    /// If the plan cannot be written.
    pub fn finish(mut self) -> io::Result<Plan> {
        for slot in 0..self.threads.len() {
            let left = self.threads[slot].steps.len();
            self.write(slot as u32, left)?;
        }
        self.processes.sort_by_key(|process| process.first);
        let mut comes_with = u64::MAX;
        for process in self.processes.iter_mut().rev() {
            comes_with = comes_with.min(process.numbers.0);
            process.comes_with = comes_with;
        }
        let lane = |slot: &u32| {
            let thread = &self.threads[*slot as usize];
            Lane { slot: *slot, tid: thread.tid, chunks: thread.chunks.clone() }
        };
        let lanes = self.processes.iter().map(|process| process.threads.iter().map(lane).collect()).collect();
        let Planner { file, at, processes, threads, steps, .. } = self;
        Ok(Plan { file, at, processes, lanes, threads: threads.len(), steps })
    }
}

impl Plan {
    /// How many processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// How many threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Nanoseconds from the begin of the first step to the end of the last.
    #[must_use]
    pub fn duration(&self) -> i64 {
        self.processes.iter().map(|process| process.last).max().unwrap_or(0)
    }

    /// Writes what a process must be told, and says where.
    pub(super) fn job(&mut self, number: usize, root: &[u8], pace: Pace) -> io::Result<Chunk> {
        let process = &self.processes[number];
        let job = Job {
            conductor: std::process::id(),
            root: root.to_vec(),
            pace,
            pid: process.who.pid,
            longest: process.longest,
            lanes: self.lanes[number].clone(),
        };
        let bytes = postcard::to_stdvec(&job).map_err(io::Error::other)?;
        self.file.write_all(&bytes)?;
        let place = (self.at, bytes.len() as u64);
        self.at += bytes.len() as u64;
        Ok(place)
    }
}

impl Process {
    /// None of its steps waits for one of `other`, nor of those that are started after that: each waits for steps before it only.
    pub(super) fn does_without(&self, other: &Process) -> bool {
        self.numbers.1 < other.comes_with
    }

    /// The steps of other threads that one on an open file waits for: who opened it, and if it closes it whoever used it.
    fn uses_handle(&mut self, step: &Step, this: (u32, u32)) -> Vec<(u32, u32)> {
        let Some(info) = step.info().filter(|_| step.handle != 0) else { return Vec::new() };
        let used = self.used.entry(step.handle).or_default();
        let closes = matches!(info.name, "close" | "fclose" | "closedir");
        let of_others = used.iter().filter(|(thread, _)| *thread != this.0);
        let waits = of_others.take(if closes { usize::MAX } else { 1 }).copied().collect();
        if closes {
            self.used.remove(&step.handle);
            return waits;
        }
        match used.iter_mut().skip(1).find(|(thread, _)| *thread == this.0) {
            Some(last) => *last = this,
            None => used.push(this),
        }
        waits
    }

    /// Leaves a step that moves data its path only where the process cannot know it, and finds the source of a copy.
    fn name(&mut self, step: &mut Step) {
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
        match info.name {
            "dup" | "dup2" | "dup3" | "fcntl"
                if info.result == ResultMeaning::Fd || is_duplication(step.arg) =>
            {
                *descriptors += 1;
            }
            "close" | "fclose" | "closedir" => {
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

fn is_duplication(command: i64) -> bool {
    matches!(command as i32, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |end| &path[..end])
}

/// What a step does to which names. `is_new`: the first of its process on a file that another process has opened.
fn uses(step: &Step, is_new: bool) -> Vec<(&[u8], Use)> {
    let (Some(info), Some(path)) = (step.info(), step.path.as_deref()) else { return Vec::new() };
    let second = step.path2.as_deref();
    let flags = step.arg as i32;
    let mut uses = Vec::new();
    let mut named = |path, entry| {
        let (way, above) = if entry { (Use::Alone, Use::Write) } else { (Use::Name, Use::Name) };
        uses.push((path, way));
        let mut at = parent(path);
        uses.push((at, above));
        while !at.is_empty() {
            at = parent(at);
            uses.push((at, Use::Above));
        }
    };
    if is_new && info.paths == 0 {
        by_name(path, false);
    }
    match (info.class, info.name) {
        (OpClass::Read, _) => uses.push((path, Use::Read)),
        (OpClass::Write, _) => {
            let orders = step.flags & flag::APPEND != 0;
            uses.push((path, if orders { Use::Alone } else { Use::Write }));
        }
        (OpClass::Copy, _) => {
            uses.push((path, Use::Write));
            uses.extend(second.map(|path| (path, Use::Read)));
        }
        (OpClass::Sync, _) => {}
        (_, "open" | "openat" | "fopen" | "freopen") => {
            by_name(path, flags & (libc::O_CREAT | libc::O_TRUNC) != 0);
        }
        (
            _,
            "creat" | "unlink" | "unlinkat" | "remove" | "rmdir" | "mkdir" | "mkdirat" | "mkstemp"
            | "mkdtemp" | "mknod" | "mknodat" | "mkfifo" | "mkfifoat",
        ) => by_name(path, true),
        (_, "rename" | "renameat" | "renameat2" | "link" | "linkat") => {
            by_name(path, true);
            second.into_iter().for_each(|path| by_name(path, true));
        }
        (_, "symlink" | "symlinkat") => second.into_iter().for_each(|path| by_name(path, true)),
        (_, "truncate" | "ftruncate" | "fallocate" | "posix_fallocate" | "flock" | "lockf") => {
            uses.push((path, Use::Alone));
        }
        (_, "fcntl") if !is_duplication(step.arg) => {
            uses.push((path, Use::Alone));
        }
        (_, "readdir" | "scandir" | "getdents") => uses.push((path, Use::Read)),
        (_, "lseek") if flags >= libc::SEEK_END => uses.push((path, Use::Read)),
        _ if info.paths > 0 => by_name(path, false),
        _ => {}
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::{Plan, Planner, Step, Who};
    use miot_proto::op::by_name;

    /// The plan of one step for each: process, begin, end.
    fn plan(steps: &[(u64, i64, i64)]) -> Plan {
        let mut planner = Planner::new().unwrap();
        for (process, begin, end) in steps {
            let who = Who { process: *process, ..Who::default() };
            planner.add(&who, 1, Step { begin: *begin, end: *end, ..Step::default() }).unwrap();
        }
        planner.finish().unwrap()
    }

    #[test]
    fn a_process_does_without_those_whose_steps_all_come_later() {
        let does =
            |plan: &Plan, one: usize, other: usize| plan.processes[one].does_without(&plan.processes[other]);
        let script = plan(&[(1, 0, 1), (2, 2, 3), (2, 4, 5), (3, 6, 7), (1, 8, 9)]);
        assert!(does(&script, 1, 2) && !does(&script, 1, 0) && !does(&script, 0, 1));
        // As the phases of a model of which no times are known.
        let phases = plan(&[(1, 0, 0), (2, 0, 0), (1, 0, 0), (2, 0, 0)]);
        assert!(
            !does(&phases, 0, 1) && !does(&phases, 1, 0),
            "the first waits for the second, though not by time"
        );
        let overtaken = plan(&[(1, 0, 1), (3, 3, 4), (4, 5, 6), (2, 2, 9)]);
        assert!(does(&overtaken, 0, 1), "nobody else has begun");
        assert!(!does(&overtaken, 1, 2), "it ends last");
    }

    #[test]
    fn what_goes_through_a_link_waits_for_what_was_done_to_the_file() {
        let mut planner = Planner::new().unwrap();
        for (process, name, path, path2) in
            [(1, "rename", "a/y", "a/z"), (2, "symlink", "a/z", "a/l"), (3, "open", "a/l", "")]
        {
            let op = by_name("posix", name).unwrap().op;
            let [path, path2] = [path, path2].map(|name| Some(name.as_bytes().to_vec()));
            let (begin, end) = (2 * process, 2 * process + 1);
            let step = Step { op: (op.layer, op.number), path, path2, begin, end, ..Step::default() };
            planner.add(&Who { process: process as u64, ..Who::default() }, 1, step).unwrap();
        }
        let mut waits = planner.threads[2].steps[0].waits.clone();
        waits.sort_unstable();
        assert_eq!(waits, [(0, 1), (1, 1)]);
    }
}
