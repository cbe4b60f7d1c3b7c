//! Open file descriptions: what descriptors made by `dup` share.
//!
//! **The position.** For a description that only this process has, the position is what we add up: no
//! system call. Where somebody else moves it as well, the kernel is asked after the request, and the event
//! is flagged `OFFSET_QUERIED`: descriptions that were there before the hook, that existed when the process
//! made another one (then the [`generation`] has moved on), and writes to files opened with `O_APPEND`.

use crate::chunked::{Chunked, MAX, Zeroed};
use miot_tracer::gate::{self, Calls};
use miot_tracer::{Caller, Doing, NONE, flag};
use rustix::fd::BorrowedFd;
use rustix::fs::SeekFrom;
use std::ffi::c_int;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Bits of a description's state. The low 16 are flags of its events, as they are.
pub(crate) mod state {
    /// The handle has a name in the trace.
    pub(crate) const DEFINED: u32 = 1 << 16;
    /// What kind of file it is has been looked at.
    pub(crate) const CHECKED: u32 = 1 << 17;
    /// A pipe, a terminal or the like that was opened by name: the open and the close are recorded, what
    /// moves through it is not.
    pub(crate) const SPECIAL: u32 = 1 << 18;
    /// The program reads or writes a stream's buffer itself: its position must be asked for.
    pub(crate) const INLINED: u32 = 1 << 19;
    /// Nothing to be done before a request on it is recorded.
    pub(crate) const READY: u32 = DEFINED | CHECKED;
    pub(super) const MASK: u32 = READY | SPECIAL;
}

/// Position of a stream that has not been asked for yet.
pub(crate) const UNASKED: u64 = u64::MAX - 1;
/// `generation` of a description whose position others may move from the start.
pub(crate) const SHARED: u32 = 0;
/// In `epoch`: a thread is giving the description a new handle.
const RENEWING: u32 = u32::MAX;

/// One open file description.
#[repr(C, align(64))]
pub(crate) struct Description {
    /// The kernel's position, as we know it.
    position: AtomicU64,
    /// Position of the stream (`FILE *`) on it, [`UNASKED`], or [`NONE`] if unknown.
    stream: AtomicU64,
    handle: AtomicU64,
    state: AtomicU32,
    /// The [`generation`] it was opened in.
    generation: AtomicU32,
    /// Process image its handle belongs to.
    epoch: AtomicU32,
    /// Descriptors that refer to it.
    references: AtomicU32,
    /// Thread that opened it within a request of MPI-IO, 0 if the program opened it.
    mpi: AtomicU32,
    /// Index of the next free description.
    next: AtomicU32,
    /// The lap of the lane in which its name was recorded, see [`miot_tracer::lap`].
    lap: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl Zeroed for Description {}

/// Index 0 is nobody's: a description without any state, which is what an unknown descriptor refers to.
static ALL: Chunked<Description> = Chunked::new();
/// Low half: index of the first free description, 0 = none; high half: counts, so that a description that
/// was taken and given back meanwhile is not mistaken for the same.
#[unsafe(link_section = ".data.miot")]
static FREE: AtomicU64 = AtomicU64::new(0);
#[unsafe(link_section = ".data.miot")]
static USED: AtomicU32 = AtomicU32::new(0);
/// See [`generation`].
#[unsafe(link_section = ".data.miot")]
pub(crate) static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Counts the processes made by this one (at least; also its ancestors' up to the fork).
#[inline(always)]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Another process is about to share all descriptions that are open now.
pub(crate) fn next_generation() {
    if GENERATION.fetch_add(1, Relaxed) == u32::MAX {
        GENERATION.fetch_add(1, Relaxed);
    }
}

/// What a new description starts with.
pub(crate) struct New {
    pub(crate) handle: u64,
    pub(crate) state: u32,
    pub(crate) generation: u32,
    pub(crate) stream: u64,
    pub(crate) epoch: u32,
    pub(crate) mpi: u32,
}

/// The description of this index; index 0 stands in where there is none.
#[inline(always)]
pub(crate) fn get(index: u32) -> &'static Description {
    ALL.get(index as usize).unwrap_or(&ALL_ZERO)
}

static ALL_ZERO: Description = {
    // SAFETY: `Description` is `Zeroed`.
    unsafe { std::mem::zeroed() }
};

/// Takes a free description for one descriptor. `None`: out of memory.
pub(crate) fn allocate(new: &New) -> Option<u32> {
    let index = pop().or_else(|| {
        let index = USED.fetch_add(1, Relaxed).wrapping_add(1);
        if index as usize >= MAX {
            USED.fetch_sub(1, Relaxed);
            return None;
        }
        ALL.get_or_make(index as usize).map(|_| index)
    })?;
    let description = get(index);
    description.position.store(0, Relaxed);
    description.stream.store(new.stream, Relaxed);
    description.handle.store(new.handle, Relaxed);
    description.generation.store(new.generation, Relaxed);
    description.epoch.store(new.epoch, Relaxed);
    description.mpi.store(new.mpi, Relaxed);
    description.references.store(1, Relaxed);
    description.named_now();
    description.state.store(new.state, Relaxed);
    Some(index)
}

/// One more descriptor refers to it.
pub(crate) fn retain(index: u32) {
    get(index).references.fetch_add(1, Relaxed);
}

/// One descriptor fewer refers to it. A request still running on it in another thread is the program's
/// mistake (it closed a descriptor in use) and at worst is recorded with a wrong offset.
pub(crate) fn release(index: u32) {
    if index == 0 || get(index).references.fetch_sub(1, AcqRel) != 1 {
        return;
    }
    get(index).state.store(0, Relaxed);
    let mut free = FREE.load(Relaxed);
    loop {
        get(index).next.store(free as u32, Relaxed);
        let new = (free & !u64::from(u32::MAX)).wrapping_add(1 << 32) | u64::from(index);
        match FREE.compare_exchange_weak(free, new, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => free = now,
        }
    }
}

fn pop() -> Option<u32> {
    let mut free = FREE.load(Acquire);
    while free as u32 != 0 {
        let next = get(free as u32).next.load(Relaxed);
        let new = (free & !u64::from(u32::MAX)).wrapping_add(1 << 32) | u64::from(next);
        match FREE.compare_exchange_weak(free, new, AcqRel, Acquire) {
            Ok(_) => return Some(free as u32),
            Err(now) => free = now,
        }
    }
    None
}

impl Description {
    #[inline(always)]
    pub(crate) fn ready(&self) -> bool {
        self.state.load(Relaxed) & state::MASK == state::READY && self.is_named()
    }

    /// True unless the lane with its name has gone on since, overwriting its oldest records.
    #[inline(always)]
    pub(crate) fn is_named(&self) -> bool {
        miot_tracer::is_current(self.lap.load(Relaxed))
    }

    /// Its name has just been recorded by this thread.
    pub(crate) fn named_now(&self) {
        self.lap.store(miot_tracer::lap(), Relaxed);
    }

    #[inline(always)]
    pub(crate) fn handle(&self) -> u64 {
        self.handle.load(Relaxed)
    }

    /// For whom requests on it are made: the thread that had MPI open it. MPI makes them in whichever call of the program
    /// finds something to do, or in a thread of its own. `None`: for the thread that makes them.
    #[inline(always)]
    pub(crate) fn caller(&self) -> Option<Caller> {
        let tid = self.mpi.load(Relaxed);
        (tid != 0).then_some(Caller { tid, uid: Caller::UNKNOWN })
    }

    /// Flags of its events.
    #[inline(always)]
    pub(crate) fn flags(&self) -> u16 {
        self.state.load(Relaxed) as u16
    }

    pub(crate) fn has(&self, bits: u32) -> bool {
        self.state.load(Relaxed) & bits == bits
    }

    pub(crate) fn set(&self, bits: u32) {
        self.state.fetch_or(bits, Relaxed);
    }

    pub(crate) fn clear(&self, bits: u32) {
        self.state.fetch_and(!bits, Relaxed);
    }

    /// True if the kernel is to be asked where a request at the position was: somebody else may have moved it.
    #[inline(always)]
    fn asks(&self, appends: bool) -> bool {
        self.generation.load(Relaxed) != generation() || appends && self.flags() & flag::APPEND != 0
    }

    /// What a request without an offset is about to do.
    #[inline(always)]
    pub(crate) fn named(&self, length: u64) -> Doing {
        Doing { handle: self.handle(), offset: NONE, length }
    }

    /// What a request at the position is about to do.
    #[inline(always)]
    pub(crate) fn doing(&self, length: u64, appends: bool) -> Doing {
        let offset = if self.asks(appends) { NONE } else { self.position.load(Relaxed) };
        Doing { handle: self.handle(), offset, length }
    }

    /// Offset and flags of a request at the position that has just moved it by `moved` bytes. A negative
    /// `moved` is a failure, which moves nothing.
    #[inline(always)]
    pub(crate) fn advance(&self, fd: c_int, moved: i64, appends: bool) -> (u64, u16) {
        let flags = self.flags();
        if self.asks(appends) {
            let (offset, queried) = self.ask(fd, moved);
            return (offset, flags | queried);
        }
        if moved <= 0 {
            return (self.position.load(Relaxed), flags);
        }
        (self.position.fetch_add(moved as u64, Relaxed), flags)
    }

    #[cold]
    #[inline(never)]
    fn ask(&self, fd: c_int, moved: i64) -> (u64, u16) {
        match kernel_position(fd) {
            Some(position) => {
                self.position.store(position, Relaxed);
                (position.wrapping_sub(moved.max(0) as u64), flag::OFFSET_QUERIED)
            }
            None => (NONE, 0),
        }
    }

    /// The kernel's position now.
    pub(crate) fn position(&self, fd: c_int) -> u64 {
        self.advance(fd, 0, true).0
    }

    pub(crate) fn set_position(&self, position: u64) {
        self.position.store(position, Relaxed);
    }

    /// Position of the stream, [`NONE`] if unknown. A stream that was there before the hook starts, for us,
    /// at the position of its descriptor; so this is to be asked before the stream is used.
    #[inline(always)]
    pub(crate) fn stream(&self, fd: c_int) -> u64 {
        match self.stream.load(Relaxed) {
            UNASKED => self.first_stream(fd),
            position => position,
        }
    }

    #[cold]
    fn first_stream(&self, fd: c_int) -> u64 {
        let appends = self.flags() & flag::APPEND != 0;
        let position = if appends { NONE } else { self.position(fd) };
        self.stream.store(position, Relaxed);
        position
    }

    pub(crate) fn set_stream(&self, position: u64) {
        self.stream.store(position, Relaxed);
    }

    /// Where the stream was before a request that has just moved it by `moved` bytes.
    #[inline(always)]
    pub(crate) fn advance_stream(&self, moved: i64) -> u64 {
        match self.stream.load(Relaxed) {
            position if moved <= 0 || position == NONE => position,
            _ => self.stream.fetch_add(moved as u64, Relaxed),
        }
    }

    /// A request that moves the position while nothing is recorded: from now on the kernel is asked.
    #[cold]
    pub(crate) fn unseen<R>(&self, real: impl FnOnce() -> R) -> R {
        self.generation.store(SHARED, Relaxed);
        self.stream.store(NONE, Relaxed);
        real()
    }

    /// Gives it a new handle if it was inherited from the process that forked. True if it is this image's
    /// now; false only if another thread (or the one we interrupted) does not get done with it.
    pub(crate) fn renew(&self, epoch: u32, new_handle: impl FnOnce() -> u64) -> bool {
        /// Far more than the few stores of the other thread take, unless it is not running at all.
        const PATIENCE: usize = 1000;
        for _ in 0..PATIENCE {
            let found = self.epoch.load(Acquire);
            if found == epoch {
                return true;
            }
            if found == RENEWING {
                match gate::pass(Calls::YIELD) {
                    Some(_pass) => rustix::thread::sched_yield(),
                    None => std::hint::spin_loop(),
                }
                continue;
            }
            if self.epoch.compare_exchange(found, RENEWING, AcqRel, Relaxed).is_ok() {
                self.handle.store(new_handle(), Relaxed);
                self.generation.store(SHARED, Relaxed);
                self.mpi.store(0, Relaxed);
                self.clear(state::DEFINED);
                self.epoch.store(epoch, std::sync::atomic::Ordering::Release);
                return true;
            }
        }
        false
    }
}

fn kernel_position(fd: c_int) -> Option<u64> {
    let _pass = gate::pass(Calls::SEEK)?;
    // SAFETY: used only for the call, during which the application has it open; if it has not, EBADF.
    let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
    rustix::fs::seek(fd, SeekFrom::Current(0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn new() -> New {
        New { handle: 7, state: state::READY, generation: generation(), stream: UNASKED, epoch: 1, mpi: 0 }
    }

    #[test]
    fn descriptions_are_unique_while_used_and_come_back() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..2000 {
                        let mine: Vec<u32> = (0..5).map(|_| allocate(&new()).unwrap()).collect();
                        assert_eq!(mine.iter().collect::<HashSet<_>>().len(), 5);
                        for index in &mine {
                            // Whoever else held it would add to the same position.
                            assert_eq!(get(*index).advance(-1, 3, false), (0, 0));
                            assert_eq!(get(*index).advance(-1, 0, false), (3, 0));
                        }
                        mine.iter().for_each(|index| release(*index));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(USED.load(Relaxed) <= 4 * 5 + 8, "{USED:?}");
    }

    #[test]
    fn a_description_lives_as_long_as_a_descriptor() {
        let index = allocate(&new()).unwrap();
        retain(index);
        release(index);
        assert!(get(index).ready());
        release(index);
        assert!(!get(index).ready());
    }

    #[test]
    fn failures_do_not_move_and_a_fork_gives_a_new_handle() {
        let index = allocate(&new()).unwrap();
        let description = get(index);
        description.set_position(10);
        assert_eq!(description.advance(-1, -9, false), (10, 0));
        assert!(description.renew(1, || unreachable!()));
        assert!(description.renew(2, || 8));
        assert_eq!((description.handle(), description.ready()), (8, false));
        // Shared now, and -1 cannot be asked.
        assert_eq!(description.advance(-1, 4, false), (NONE, 0));
        release(index);
    }
}
