//! Open file descriptions, which descriptors made by `dup` share.
//!
//! **The position.** For a description that only this process has, the position is counted here,
//! without a system call. If others may move it as well, the kernel is queried after the request,
//! and the event is flagged `OFFSET_QUERIED`. This applies to descriptions that were open before
//! the hook, to those that were open when the process created another one (the [`generation`] has
//! then advanced), and to writes to files opened with `O_APPEND`.

#![expect(clippy::disallowed_types, reason = "state of open file descriptions, read without locks")]

use crate::chunked::{Chunked, MAX, Zeroed};
use miot_tracer::gate::{self, Calls};
use miot_tracer::{Caller, NONE, Op, RequestArgs, flag};
use rustix::fd::BorrowedFd;
use rustix::fs::SeekFrom;
use std::ffi::c_int;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Bits of a description's state. The low 16 are the flags of its events.
pub(crate) mod state {
    /// The trace contains the name of the handle.
    pub(crate) const DEFINED: u32 = 1 << 16;
    /// The file type has been checked.
    pub(crate) const CHECKED: u32 = 1 << 17;
    /// A pipe, a terminal or the like that was opened by name: open and close are recorded,
    /// transfers are not.
    pub(crate) const SPECIAL: u32 = 1 << 18;
    /// [`caller`](super::Description::caller) is a thread.
    pub(crate) const HAS_CALLER: u32 = 1 << 20;
    /// Inlined code of the program accesses the stream's buffer: the position must be queried.
    pub(crate) const INLINED: u32 = 1 << 19;
    /// No preparation is needed before a request is recorded.
    pub(crate) const READY: u32 = DEFINED | CHECKED;
    pub(super) const MASK: u32 = READY | SPECIAL;
}

/// Position of a stream that has not been queried yet.
pub(crate) const UNQUERIED: u64 = u64::MAX - 1;
/// `generation` of a description whose position others may always move.
pub(crate) const SHARED: u32 = 0;
/// Value of `epoch` while a thread assigns a new handle.
const RENEWING: u32 = u32::MAX;

/// Kind of access at the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// `O_APPEND` determines the offset.
    Write,
}

impl Access {
    /// Returns the access of an operation.
    #[inline(always)]
    pub(crate) fn of(op: Op) -> Access {
        if op.is_write() { Access::Write } else { Access::Read }
    }
}

/// One open file description.
#[repr(C, align(64))]
pub(crate) struct Description {
    /// The kernel's position as counted here, in bytes.
    position: AtomicU64,
    /// Position of its stream (`FILE *`) in bytes, [`UNQUERIED`], or [`NONE`] if unknown.
    stream: AtomicU64,
    handle: AtomicU64,
    state: AtomicU32,
    /// The [`generation`] of its open, or [`SHARED`].
    generation: AtomicU32,
    /// Process image that owns the handle.
    epoch: AtomicU32,
    /// Number of descriptors that refer to it.
    references: AtomicU32,
    /// Thread whose MPI-IO request opened it; 0 if the program opened it.
    mpi: AtomicU32,
    /// Index of the next free description.
    next: AtomicU32,
    /// Lap of the lane in which its name was recorded, see [`miot_tracer::lane_lap`].
    lap: AtomicU32,
}

// SAFETY:
// - All fields are atomic integers, for which zero is a valid value.
unsafe impl Zeroed for Description {}

/// Index 0 is never assigned: it represents an unknown descriptor.
static ALL: Chunked<Description> = Chunked::new();
/// Low half: index of the first free description, 0 if none. High half: a counter that detects a
/// description that was allocated and released in the meantime (the ABA problem).
#[unsafe(link_section = ".data.miot")]
static FREE: AtomicU64 = AtomicU64::new(0);
#[unsafe(link_section = ".data.miot")]
static USED: AtomicU32 = AtomicU32::new(0);
/// See [`generation`].
#[unsafe(link_section = ".data.miot")]
pub(crate) static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Returns a counter that advances whenever this process creates another one. It includes the
/// counts of the ancestors up to the fork.
#[inline(always)]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Advances the generation: another process is about to share all open descriptions.
pub(crate) fn next_generation() {
    if GENERATION.fetch_add(1, Relaxed) == u32::MAX {
        GENERATION.fetch_add(1, Relaxed);
    }
}

/// Initial values of a description.
pub(crate) struct NewDescription {
    pub(crate) handle: u64,
    pub(crate) state: u32,
    pub(crate) generation: u32,
    pub(crate) stream: u64,
    pub(crate) epoch: u32,
    pub(crate) mpi: u32,
}

/// Returns the description with this index; an unknown one if it does not exist.
#[inline(always)]
pub(crate) fn get(index: u32) -> &'static Description {
    ALL.get(index as usize).unwrap_or(&UNKNOWN)
}

/// Returns the description of an entry that is [ready](crate::table::set_ready).
#[inline(always)]
pub(crate) fn get_ready(index: u32) -> &'static Description {
    ALL.get_first(index as usize)
}

static UNKNOWN: Description = {
    // SAFETY:
    // - All-zero bytes are a valid `Description`, see `Zeroed`.
    unsafe { std::mem::zeroed() }
};

/// Number of descriptors that have a description of their own: that of descriptor `fd` has the
/// index `fd` + 1. It is used unless descriptors made by `dup` still refer to it. So the usual open
/// and close need no free list.
const OWN: u32 = 511;

/// Allocates a description for a descriptor that was just opened, or is unknown. `None` if there is
/// no memory.
#[inline(always)]
pub(crate) fn allocate(fd: c_int, new: &NewDescription) -> Option<u32> {
    let own = fd as u32 + 1;
    let index = if own <= OWN && get(own).references.load(Acquire) == 0 { own } else { allocate_any()? };
    let description = get(index);
    description.position.store(0, Relaxed);
    description.stream.store(new.stream, Relaxed);
    description.handle.store(new.handle, Relaxed);
    description.generation.store(new.generation, Relaxed);
    description.epoch.store(new.epoch, Relaxed);
    description.mpi.store(new.mpi, Relaxed);
    description.references.store(1, Relaxed);
    description.set_named();
    let caller = if new.mpi == 0 { 0 } else { state::HAS_CALLER };
    description.state.store(new.state | caller, Relaxed);
    Some(index)
}

/// Writes to the description of a descriptor without a change, before its first use: a first access
/// that reads would cause a page fault of its own.
pub(crate) fn touch(fd: c_int) {
    if let Some(own) = usize::try_from(fd).ok().and_then(|fd| ALL.get(fd + 1)) {
        // Not an addition of zero, which the compiler makes a read.
        let _ = own.references.compare_exchange(0, 0, Relaxed, Relaxed);
    }
}

/// Takes a description that no descriptor owns.
#[cold]
#[inline(never)]
fn allocate_any() -> Option<u32> {
    pop_free().or_else(|| {
        let index = USED.fetch_add(1, Relaxed).wrapping_add(OWN + 1);
        if index as usize >= MAX {
            USED.fetch_sub(1, Relaxed);
            return None;
        }
        ALL.get_or_map(index as usize).map(|_| index)
    })
}

/// Adds a reference of a descriptor.
pub(crate) fn retain(index: u32) {
    get(index).references.fetch_add(1, Relaxed);
}

/// Removes a reference of a descriptor, and frees the description with the last one. If another
/// thread still uses the descriptor, the program has an error, and at worst a request is recorded
/// with a wrong offset.
#[inline]
pub(crate) fn release(index: u32) {
    if index != 0 && get(index).references.fetch_sub(1, AcqRel) == 1 && index > OWN {
        free(index);
    }
}

/// Makes a description available that no descriptor refers to.
#[cold]
#[inline(never)]
fn free(index: u32) {
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

fn pop_free() -> Option<u32> {
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
    /// Returns whether requests can be recorded without preparation.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.state.load(Relaxed) & state::MASK == state::READY && self.is_named()
    }

    /// Returns whether its name is still in the lane, which overwrites its oldest records.
    #[inline(always)]
    pub(crate) fn is_named(&self) -> bool {
        miot_tracer::is_lap_current(self.lap.load(Relaxed))
    }

    /// Records that this thread has just recorded its name.
    #[inline(always)]
    pub(crate) fn set_named(&self) {
        self.lap.store(miot_tracer::lane_lap(), Relaxed);
    }

    #[inline(always)]
    pub(crate) fn handle(&self) -> u64 {
        self.handle.load(Relaxed)
    }

    /// Returns the thread on whose behalf requests are made: the one whose MPI call opened the
    /// file. MPI makes these requests during any call of the program, or in a thread of its own.
    /// `None` for the thread that makes them.
    #[inline(always)]
    pub(crate) fn caller(&self) -> Option<Caller> {
        let tid = self.mpi.load(Relaxed);
        (tid != 0).then_some(Caller { tid, uid: Caller::UNKNOWN })
    }

    /// Returns the bits of [`state`], the low 16 of which are the flags of its events.
    #[inline(always)]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Relaxed)
    }

    /// Returns the flags of its events.
    #[inline(always)]
    pub(crate) fn flags(&self) -> u16 {
        self.state() as u16
    }

    #[inline(always)]
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.state.load(Relaxed) & bits == bits
    }

    pub(crate) fn set(&self, bits: u32) {
        self.state.fetch_or(bits, Relaxed);
    }

    pub(crate) fn clear(&self, bits: u32) {
        self.state.fetch_and(!bits, Relaxed);
    }

    /// Returns whether others may have moved the position, so that the kernel must be queried.
    #[inline(always)]
    fn must_query_position(&self, state: u32, access: Access) -> bool {
        self.generation.load(Relaxed) != generation()
            || access == Access::Write && state as u16 & flag::APPEND != 0
    }

    /// Returns the arguments of a request without an offset.
    #[inline(always)]
    pub(crate) fn args_without_offset(&self, length: u64) -> RequestArgs {
        RequestArgs { handle: self.handle(), offset: NONE, length }
    }

    /// Returns the arguments of a request at the position.
    #[inline(always)]
    pub(crate) fn args_at_position(&self, length: u64, access: Access) -> RequestArgs {
        let offset =
            if self.must_query_position(self.state(), access) { NONE } else { self.position.load(Relaxed) };
        RequestArgs { handle: self.handle(), offset, length }
    }

    /// Returns offset and flags of a request that has just moved the position by `moved` bytes. A
    /// negative `moved` is a failure, which does not move it.
    #[inline(always)]
    pub(crate) fn advance(&self, fd: c_int, moved: i64, access: Access) -> (u64, u16) {
        let state = self.state();
        let flags = state as u16;
        if self.must_query_position(state, access) {
            let (offset, queried) = self.query_position(fd, moved);
            return (offset, flags | queried);
        }
        (self.advance_known(moved), flags)
    }

    #[cold]
    #[inline(never)]
    fn query_position(&self, fd: c_int, moved: i64) -> (u64, u16) {
        match kernel_position(fd) {
            Some(position) => {
                self.position.store(position, Relaxed);
                (position.wrapping_sub(moved.max(0) as u64), flag::OFFSET_QUERIED)
            }
            None => (NONE, 0),
        }
    }

    /// Returns the kernel's current position.
    pub(crate) fn position(&self, fd: c_int) -> u64 {
        self.advance(fd, 0, Access::Write).0
    }

    pub(crate) fn set_position(&self, position: u64) {
        self.position.store(position, Relaxed);
    }

    /// Returns the position of the stream; [`NONE`] if unknown. A stream that was open before the
    /// hook starts at the position of its descriptor. Therefore this must be called before the
    /// stream is used.
    #[inline(always)]
    pub(crate) fn stream_position(&self, fd: c_int) -> u64 {
        match self.stream.load(Relaxed) {
            UNQUERIED => self.init_stream_position(fd),
            position => position,
        }
    }

    #[cold]
    fn init_stream_position(&self, fd: c_int) -> u64 {
        let appends = self.flags() & flag::APPEND != 0;
        let position = if appends { NONE } else { self.position(fd) };
        self.stream.store(position, Relaxed);
        position
    }

    pub(crate) fn set_stream_position(&self, position: u64) {
        self.stream.store(position, Relaxed);
    }

    /// Returns the position of the stream before a request that has just moved it by `moved` bytes.
    #[inline(always)]
    pub(crate) fn advance_stream(&self, moved: i64) -> u64 {
        match self.stream.load(Relaxed) {
            position if moved <= 0 || position == NONE => position,
            _ => self.stream.fetch_add(moved as u64, Relaxed),
        }
    }

    /// Makes a call that moves the position without recording it. From then on the kernel is
    /// queried.
    #[cold]
    pub(crate) fn run_unrecorded<R>(&self, real: impl FnOnce() -> R) -> R {
        self.generation.store(SHARED, Relaxed);
        self.stream.store(NONE, Relaxed);
        real()
    }

    /// Returns the position, if it is the kernel's.
    #[inline(always)]
    pub(crate) fn known_position(&self, state: u32, access: Access) -> Option<u64> {
        (!self.must_query_position(state, access)).then(|| self.position.load(Relaxed))
    }

    /// Returns the [known position](Self::known_position) of a request that has just moved it.
    #[inline(always)]
    pub(crate) fn advance_known(&self, moved: i64) -> u64 {
        if moved <= 0 { self.position.load(Relaxed) } else { self.position.fetch_add(moved as u64, Relaxed) }
    }

    /// Assigns a new handle if the description was inherited from the process that forked. Returns
    /// whether it belongs to this process image. False only if another thread, or the interrupted
    /// one, does not finish the assignment.
    pub(crate) fn renew_handle(&self, epoch: u32, new_handle: impl FnOnce() -> u64) -> bool {
        /// Many times the duration of the other thread's few stores, unless it is not running.
        const MAX_WAITS: usize = 1000;
        for _ in 0..MAX_WAITS {
            let found = self.epoch.load(Acquire);
            if found == epoch {
                return true;
            }
            if found == RENEWING {
                match gate::permit(Calls::YIELD) {
                    Some(_permit) => rustix::thread::sched_yield(),
                    None => std::hint::spin_loop(),
                }
                continue;
            }
            if self.epoch.compare_exchange(found, RENEWING, AcqRel, Relaxed).is_ok() {
                self.handle.store(new_handle(), Relaxed);
                self.generation.store(SHARED, Relaxed);
                self.mpi.store(0, Relaxed);
                self.clear(state::DEFINED | state::HAS_CALLER);
                self.epoch.store(epoch, std::sync::atomic::Ordering::Release);
                return true;
            }
        }
        false
    }
}

fn kernel_position(fd: c_int) -> Option<u64> {
    let _permit = gate::permit(Calls::SEEK)?;
    // SAFETY:
    // - The descriptor is borrowed for one call, during which the application has it open. If it
    //   does not, the call returns EBADF.
    let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
    rustix::fs::seek(fd, SeekFrom::Current(0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn new() -> NewDescription {
        NewDescription {
            handle: 7,
            state: state::READY,
            generation: generation(),
            stream: UNQUERIED,
            epoch: 1,
            mpi: 0,
        }
    }

    #[test]
    fn descriptions_are_unique_and_reused() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..2000 {
                        let mine: Vec<u32> = (0..5).map(|_| allocate(-2, &new()).unwrap()).collect();
                        assert_eq!(mine.iter().collect::<HashSet<_>>().len(), 5);
                        for index in &mine {
                            // Another owner would add to the same position.
                            assert_eq!(get(*index).advance(-1, 3, Access::Read), (0, 0));
                            assert_eq!(get(*index).advance(-1, 0, Access::Read), (3, 0));
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
    fn last_descriptor_releases_the_description() {
        let index = allocate(-2, &new()).unwrap();
        retain(index);
        release(index);
        assert!(get(index).is_ready());
        release(index);
        assert!(!get(index).is_ready());
    }

    #[test]
    fn failures_keep_the_position_and_forks_renew_the_handle() {
        let index = allocate(-2, &new()).unwrap();
        let description = get(index);
        description.set_position(10);
        assert_eq!(description.advance(-1, -9, Access::Read), (10, 0));
        assert!(description.renew_handle(1, || unreachable!()));
        assert!(description.renew_handle(2, || 8));
        assert_eq!((description.handle(), description.is_ready()), (8, false));
        // Shared now, and the position of descriptor -1 cannot be queried.
        assert_eq!(description.advance(-1, 4, Access::Read), (NONE, 0));
        release(index);
    }
}
