//! A process of a replay: runs its threads and makes each step at its time.

use super::calls::{Buffer, Target};
use super::fidelity::LatenessHistogram;
use super::plan::{Chunk, MAX_REQUEST_BYTES, ProcessJob, ThreadPlan};
use super::progress::{ProgressBoard, now};
use super::{Difference, Fidelity, Pace, ProcessReport, ReplayRoot, ReplayStep, StepPart};
use miot_proto::op::{OpClass, ResultMeaning, posix, stdio};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// The last part of a wait is spent spinning, because sleeps end late.
const SPIN: Duration = Duration::from_micros(60);

/// Descriptors and job of a process.
#[derive(Clone, Copy, Debug)]
pub struct WorkerInput {
    /// The plan.
    pub plan: BorrowedFd<'static>,
    /// The memory that all processes share, see [`super::ReplayOptions::command`].
    pub board: BorrowedFd<'static>,
    /// Offset and length of its job in the plan, bytes.
    pub job: (u64, u64),
}

/// Reads a value at an offset of the plan.
fn read<T: serde::de::DeserializeOwned>(plan: impl AsFd, (offset, bytes): Chunk) -> io::Result<T> {
    let mut buffer = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(&plan, &mut buffer[filled..], offset + filled as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
    }
    postcard::from_bytes(&buffer).map_err(io::Error::other)
}

/// Replays the part of one process and returns its report.
///
/// # Errors
/// If the plan, the memory or the directory cannot be used. The process must end then: some of its
/// threads may wait forever for one that has failed.
pub fn run_worker(input: WorkerInput) -> io::Result<ProcessReport> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    raise_descriptor_limit();
    let board = ProgressBoard::open(input.board)?;
    let job: ProcessJob = read(input.plan, input.job)?;
    // The coordinator may have died before its death became a signal.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get().cast_unsigned() != job.coordinator) {
        return Err(io::Error::other("the replay has ended"));
    }
    let root = ReplayRoot::open(Path::new(OsStr::from_bytes(&job.root)))?;
    let target = Target::new(root, job.longest_write);
    replay_threads(Process { board, target, pace: job.pace, pid: job.pid, plan: input.plan }, job.threads)
}

/// Runs all threads and merges their reports.
fn replay_threads(process: Process, plans: Vec<ThreadPlan>) -> io::Result<ProcessReport> {
    let process = Arc::new(process);
    let threads = plans.len();
    let (to, from) = mpsc::channel();
    for plan in plans {
        let (process, to) = (Arc::clone(&process), to.clone());
        let thread = thread::Builder::new().name(format!("replay {}", plan.tid));
        let replay = move || {
            let result = panic::catch_unwind(AssertUnwindSafe(|| process.replay(&plan)));
            let _ = to.send(result.unwrap_or_else(|_| Err(io::Error::other("a thread has panicked"))));
        };
        thread.spawn(replay)?;
    }
    process.board.report_ready();
    let mut all = ProcessReport::default();
    for result in from.iter().take(threads) {
        let (fidelity, ended) = result?;
        all.fidelity.merge(fidelity);
        all.ended = all.ended.max(ended);
    }
    Ok(all)
}

/// Raises the limit of open files to its maximum: the traced program may have had a higher one.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// What the threads of a process share.
struct Process {
    board: ProgressBoard,
    target: Target,
    pace: Pace,
    /// Process id in the trace.
    pid: u32,
    plan: BorrowedFd<'static>,
}

impl Process {
    /// Makes the steps of one thread. Returns its fidelity and the end of its last step, see
    /// [`now`].
    fn replay(&self, plan: &ThreadPlan) -> io::Result<(Fidelity, i64)> {
        let mut thread = Thread {
            fidelity: Fidelity::default(),
            lateness: LatenessHistogram::new(),
            buffer: Buffer::default(),
            pending: HashMap::new(),
            previous: None,
        };
        // Timer slack of 1 ns; by default sleeps end up to 50 microseconds late.
        // SAFETY: an option of the calling thread, with a number.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let mut done = 0;
        let mut start = None;
        for chunk in &plan.chunks {
            let steps: Vec<ReplayStep> = read(self.plan, *chunk)?;
            let start = *start.get_or_insert_with(|| self.board.wait_for_start());
            for step in steps {
                for (other, number) in &step.waits {
                    self.board.wait(*other, *number);
                }
                thread.step(self, &step, start);
                if !matches!(step.part, StepPart::Submit(_)) {
                    done += 1;
                    self.board.publish(plan.slot, done);
                }
            }
        }
        thread.fidelity.add_lateness(&thread.lateness);
        Ok((thread.fidelity, thread.previous.map_or(0, |(_, ended)| ended)))
    }

    /// Returns when a step is due, see [`now`]; `None`: immediately. `previous`: end of the
    /// previous step of the thread, in the trace and here.
    fn due(&self, step: &ReplayStep, start: i64, previous: Option<(i64, i64)>) -> Option<i64> {
        match (self.pace, previous) {
            (Pace::Fast, _) => None,
            (Pace::Think, Some((recorded, here))) => {
                Some(here.saturating_add(step.begin.saturating_sub(recorded).max(0)))
            }
            (Pace::Think, None) => Some(start.saturating_add(step.begin)),
            (Pace::Original(speed), _) => Some(start.saturating_add((step.begin as f64 / speed) as i64)),
        }
    }
}

struct Thread {
    fidelity: Fidelity,
    lateness: LatenessHistogram,
    buffer: Buffer,
    pending: HashMap<u64, Box<Pending>>,
    /// End of the previous step, in the trace and here.
    previous: Option<(i64, i64)>,
}

/// A submitted asynchronous request.
struct Pending {
    block: libc::aiocb,
    buffer: Buffer,
    begun: i64,
}

impl Thread {
    fn step(&mut self, process: &Process, step: &ReplayStep, start: i64) {
        let collects = matches!(step.part, StepPart::Collect(_));
        if !collects && let Some(due) = process.due(step, start, self.previous) {
            wait_until(due);
            self.lateness.add(u64::try_from(now() - due).unwrap_or(0));
        }
        let begin = now();
        let (begun, result) = match step.part {
            StepPart::Whole => (begin, process.target.replay(step, &mut self.buffer)),
            StepPart::Submit(id) => {
                // A failed submission is reported when it is collected.
                let pending = submit(&process.target, step, begin);
                self.pending.insert(id, pending);
                return;
            }
            StepPart::Collect(id) => match self.pending.remove(&id) {
                Some(mut pending) => (pending.begun, collect(&mut pending)),
                None => (begin, -i64::from(libc::EINVAL)),
            },
        };
        let end = now();
        self.previous = Some((step.end, end));
        self.count(process, step, begun, end, result);
    }

    /// Compares a completed request with the recorded one.
    fn count(&mut self, process: &Process, step: &ReplayStep, begin: i64, end: i64, result: i64) {
        let Some(info) = step.info() else { return };
        let fidelity = &mut self.fidelity;
        fidelity.requests += 1;
        fidelity.time += u64::try_from(end - begin).unwrap_or(0);
        fidelity.recorded_time += u64::try_from(step.end - step.begin).unwrap_or(0);
        if info.result == ResultMeaning::Bytes {
            fidelity.bytes += u64::try_from(result).unwrap_or(0);
            fidelity.recorded_bytes += u64::try_from(step.result).unwrap_or(0);
        }
        // Descriptors, addresses, and lengths of paths and attributes may differ.
        let must_be_equal = matches!(info.result, ResultMeaning::Bytes | ResultMeaning::Zero)
            || info.class != OpClass::Meta
            || matches!(info.op, posix::LSEEK | posix::READDIR | posix::SCANDIR | stdio::FTELL);
        let is_same = if must_be_equal { result == step.result } else { result.min(0) == step.result.min(0) };
        if !is_same {
            fidelity.add_difference(Difference {
                operation: info.name.to_owned(),
                path: String::from_utf8_lossy(step.path.as_deref().unwrap_or_default()).into_owned(),
                pid: process.pid,
                recorded: step.result,
                replayed: result,
            });
        }
    }
}

/// Submits an asynchronous request. `aio_fildes` is −1 if that failed.
fn submit(target: &Target, step: &ReplayStep, begun: i64) -> Box<Pending> {
    // SAFETY: all bits zero are a valid control block, and POSIX asks for zeroed ones.
    let block: libc::aiocb = unsafe { std::mem::zeroed() };
    let mut pending = Box::new(Pending { block, buffer: Buffer::default(), begun });
    let Ok(fd) = target.descriptor(step) else {
        pending.block.aio_fildes = -1;
        return pending;
    };
    let length = u64::try_from(step.length.unwrap_or(0)).unwrap_or(0).min(MAX_REQUEST_BYTES) as usize;
    let class = step.info().map(|info| info.class);
    pending.block.aio_fildes = fd;
    pending.block.aio_offset = step.offset.unwrap_or(0);
    pending.block.aio_nbytes = length;
    pending.block.aio_buf = match class {
        Some(OpClass::Write) => target.written(step.offset.unwrap_or(0), length).as_ptr().cast_mut().cast(),
        _ => pending.buffer.slice(length).as_mut_ptr().cast(),
    };
    let block = &raw mut pending.block;
    // SAFETY:
    // - the control block is boxed, so it stays at its address until the request is collected or
    //   the process ends;
    // - the same holds for its memory, which has `aio_nbytes` bytes;
    // - writes only read their memory, and a read has its memory alone.
    let submitted = unsafe {
        match class {
            Some(OpClass::Write) => libc::aio_write(block),
            Some(OpClass::Read) => libc::aio_read(block),
            _ => libc::aio_fsync(libc::O_SYNC, block),
        }
    };
    if submitted != 0 {
        pending.block.aio_fildes = -1;
    }
    pending
}

/// Waits for a submitted request and returns its result; negative = −errno.
fn collect(pending: &mut Pending) -> i64 {
    if pending.block.aio_fildes < 0 {
        return -i64::from(libc::EBADF);
    }
    let block = &raw mut pending.block;
    // SAFETY:
    // - the control block was submitted and not collected yet;
    // - the list of `aio_suspend` has one block and outlives the call.
    unsafe {
        loop {
            match libc::aio_error(block) {
                libc::EINPROGRESS => _ = libc::aio_suspend(&block.cast_const(), 1, std::ptr::null()),
                0 => return libc::aio_return(block) as i64,
                error => {
                    libc::aio_return(block);
                    return -i64::from(error);
                }
            }
        }
    }
}

/// Waits until a time, see [`now`].
fn wait_until(due: i64) {
    let left = Duration::from_nanos(u64::try_from(due - now()).unwrap_or(0));
    if left > SPIN {
        thread::sleep(left - SPIN);
    }
    while now() < due {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::{Process, ProgressBoard, Target, ThreadPlan, replay_threads};
    use crate::replay::{Pace, ReplayRoot, ReplayStep};
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    #[test]
    fn failed_thread_is_reported_while_another_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = tempfile::tempfile().unwrap();
        let steps =
            postcard::to_stdvec(&[ReplayStep { waits: vec![(1, 1)], ..ReplayStep::default() }][..]).unwrap();
        plan.write_all(&steps).unwrap();
        let plan: &'static File = Box::leak(Box::new(plan));
        let bytes = steps.len() as u64;
        let (board, _memory) = ProgressBoard::create(2).unwrap();
        board.start();
        let target = Target::new(ReplayRoot::open(dir.path()).unwrap(), 0);
        let process = Process { board, target, pace: Pace::Fast, pid: 1, plan: plan.as_fd() };
        let thread = |slot, offset| ThreadPlan { slot, tid: slot, chunks: vec![(offset, bytes)] };
        let result = replay_threads(process, vec![thread(0, 0), thread(1, bytes)]);
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
