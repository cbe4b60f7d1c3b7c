//! A process of a replay: its threads, and each step at its time.

use super::board::{Board, now};
use super::calls::{Buffer, Target};
use super::fidelity::Late;
use super::plan::{Job, LARGEST, Lane};
use super::{Below, Difference, Fidelity, Pace, Part, Report, Step};
use miot_proto::op::{OpClass, ResultMeaning};
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

/// What is left of a sleep is waited for busily: sleeps end late.
const BUSY: Duration = Duration::from_micros(60);

/// Where a process finds what it is to do.
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    /// The plan.
    pub plan: BorrowedFd<'static>,
    /// The memory that all processes share.
    pub board: BorrowedFd<'static>,
    /// Where in the plan it is told, and in how many bytes.
    pub told: (u64, u64),
}

fn read<T: serde::de::DeserializeOwned>(plan: impl AsFd, (at, bytes): (u64, u64)) -> io::Result<T> {
    let mut buffer = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(&plan, &mut buffer[filled..], at + filled as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
    }
    postcard::from_bytes(&buffer).map_err(io::Error::other)
}

/// Does what a process is to do, and says how it went.
///
/// # Errors
/// If the plan, the memory or the directory cannot be used. The process is to end then: some of its threads may wait for ever for
/// one that has failed.
pub fn work(worker: Worker) -> io::Result<Report> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    more_descriptors();
    let board = Board::of(worker.board)?;
    let job: Job = read(worker.plan, worker.told)?;
    // It may have died before its death was a signal.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get().cast_unsigned() != job.conductor) {
        return Err(io::Error::other("the replay has ended"));
    }
    let below = Below::open(Path::new(OsStr::from_bytes(&job.root)))?;
    let target = Target::new(below, job.longest);
    play_all(Common { board, target, pace: job.pace, pid: job.pid, plan: worker.plan }, job.lanes)
}

fn play_all(common: Common, lanes: Vec<Lane>) -> io::Result<Report> {
    let common = Arc::new(common);
    let threads = lanes.len();
    let (to, from) = mpsc::channel();
    for lane in lanes {
        let (common, to) = (Arc::clone(&common), to.clone());
        let thread = thread::Builder::new().name(format!("replay {}", lane.tid));
        let play = move || {
            let played = panic::catch_unwind(AssertUnwindSafe(|| common.play(&lane)));
            let _ = to.send(played.unwrap_or_else(|_| Err(io::Error::other("a thread has panicked"))));
        };
        thread.spawn(play)?;
    }
    common.board.is_ready();
    let mut all = Report::default();
    for played in from.iter().take(threads) {
        let (fidelity, ended) = played?;
        all.fidelity.merge(fidelity);
        all.ended = all.ended.max(ended);
    }
    Ok(all)
}

/// The program of the trace may have been allowed more open files.
fn more_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// What the threads of a process have in common.
struct Common {
    board: Board,
    target: Target,
    pace: Pace,
    /// Process id in the trace.
    pid: u32,
    plan: BorrowedFd<'static>,
}

impl Common {
    /// Makes the steps of one thread, and says when the last ended.
    fn play(&self, lane: &Lane) -> io::Result<(Fidelity, i64)> {
        let mut thread = Thread {
            fidelity: Fidelity::default(),
            late: Late::new(),
            buffer: Buffer::default(),
            pending: HashMap::new(),
            before: None,
        };
        // Sleeps that end when they are told to, not within 50 microseconds.
        // SAFETY: an option of this thread, with a number.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let mut done = 0;
        let mut start = None;
        for chunk in &lane.chunks {
            let steps: Vec<Step> = read(self.plan, *chunk)?;
            let start = *start.get_or_insert_with(|| self.board.started());
            for step in steps {
                for (other, number) in &step.waits {
                    self.board.wait(*other, *number);
                }
                thread.step(self, &step, start);
                if !matches!(step.part, Part::Submit(_)) {
                    done += 1;
                    self.board.tell(lane.slot, done);
                }
            }
        }
        thread.fidelity.was_late(&thread.late);
        Ok((thread.fidelity, thread.before.map_or(0, |(_, ended)| ended)))
    }

    /// When a step is due, on [`now`]'s clock.
    fn due(&self, step: &Step, start: i64, before: Option<(i64, i64)>) -> Option<i64> {
        match (self.pace, before) {
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
    late: Late,
    buffer: Buffer,
    pending: HashMap<u64, Box<Pending>>,
    /// End of the step before, in the trace and here.
    before: Option<(i64, i64)>,
}

/// A request that has been submitted.
struct Pending {
    block: libc::aiocb,
    buffer: Buffer,
    begun: i64,
}

impl Thread {
    fn step(&mut self, common: &Common, step: &Step, start: i64) {
        let collects = matches!(step.part, Part::Collect(_));
        if !collects && let Some(due) = common.due(step, start, self.before) {
            wait(due);
            self.late.add(u64::try_from(now() - due).unwrap_or(0));
        }
        let begin = now();
        let (begun, result) = match step.part {
            Part::Whole => (begin, common.target.make(step, &mut self.buffer)),
            Part::Submit(id) => {
                // What cannot be submitted has failed: it is told when it is collected.
                let pending = submit(&common.target, step, begin);
                self.pending.insert(id, pending);
                return;
            }
            Part::Collect(id) => match self.pending.remove(&id) {
                Some(mut pending) => (pending.begun, collect(&mut pending)),
                None => (begin, -i64::from(libc::EINVAL)),
            },
        };
        let end = now();
        self.before = Some((step.end, end));
        self.count(common, step, begun, end, result);
    }

    fn count(&mut self, common: &Common, step: &Step, begin: i64, end: i64, result: i64) {
        let Some(info) = step.info() else { return };
        let fidelity = &mut self.fidelity;
        fidelity.requests += 1;
        fidelity.time += u64::try_from(end - begin).unwrap_or(0);
        fidelity.recorded_time += u64::try_from(step.end - step.begin).unwrap_or(0);
        if info.result == ResultMeaning::Bytes {
            fidelity.bytes += u64::try_from(result).unwrap_or(0);
            fidelity.recorded_bytes += u64::try_from(step.result).unwrap_or(0);
        }
        // Descriptors, addresses, lengths of names and attributes need not be the same.
        let exactly = matches!(info.result, ResultMeaning::Bytes | ResultMeaning::Zero)
            || info.class != OpClass::Meta
            || matches!(info.name, "lseek" | "readdir" | "scandir" | "ftell");
        let alike = if exactly { result == step.result } else { result.min(0) == step.result.min(0) };
        if !alike {
            fidelity.differs(Difference {
                operation: info.name.to_owned(),
                path: String::from_utf8_lossy(step.path.as_deref().unwrap_or_default()).into_owned(),
                pid: common.pid,
                recorded: step.result,
                replayed: result,
            });
        }
    }
}

fn submit(target: &Target, step: &Step, begun: i64) -> Box<Pending> {
    // SAFETY: all bits zero are a block that asks for nothing, as POSIX wants it.
    let block: libc::aiocb = unsafe { std::mem::zeroed() };
    let mut pending = Box::new(Pending { block, buffer: Buffer::default(), begun });
    let Ok(fd) = target.descriptor(step) else {
        pending.block.aio_fildes = -1;
        return pending;
    };
    let length = u64::try_from(step.length.unwrap_or(0)).unwrap_or(0).min(LARGEST);
    let class = step.info().map(|info| info.class);
    pending.block.aio_fildes = fd;
    pending.block.aio_offset = step.offset.unwrap_or(0);
    pending.block.aio_nbytes = length as usize;
    pending.block.aio_buf = match class {
        Some(OpClass::Write) => target.written(step.offset.unwrap_or(0), length),
        _ => pending.buffer.of(length as usize),
    };
    let block = &raw mut pending.block;
    // SAFETY: the block and its memory stay where they are until the request is collected, or the process ends.
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

fn collect(pending: &mut Pending) -> i64 {
    if pending.block.aio_fildes < 0 {
        return -i64::from(libc::EBADF);
    }
    let block = &raw mut pending.block;
    // SAFETY: a block that was submitted and not collected.
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

fn wait(due: i64) {
    let left = Duration::from_nanos(u64::try_from(due - now()).unwrap_or(0));
    if left > BUSY {
        thread::sleep(left - BUSY);
    }
    while now() < due {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::{Board, Common, Lane, Target, play_all};
    use crate::replay::{Below, Pace, Step};
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    #[test]
    fn a_thread_that_fails_is_told_though_another_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = tempfile::tempfile().unwrap();
        let waits = postcard::to_stdvec(&[Step { waits: vec![(1, 1)], ..Step::default() }][..]).unwrap();
        plan.write_all(&waits).unwrap();
        let plan: &'static File = Box::leak(Box::new(plan));
        let bytes = waits.len() as u64;
        let (board, _memory) = Board::make(2).unwrap();
        board.start();
        let target = Target::new(Below::open(dir.path()).unwrap(), 0);
        let common = Common { board, target, pace: Pace::Fast, pid: 1, plan: plan.as_fd() };
        let lane = |slot, at| Lane { slot, tid: slot, chunks: vec![(at, bytes)] };
        let failed = play_all(common, vec![lane(0, 0), lane(1, bytes)]);
        assert_eq!(failed.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
