//! State of a thread between two events, and the functions that record an event.
//!
//! Fast path of a request: [`begin`] checks that the thread has a lane with free slots, numbers the
//! request, reads the clock and shows the request as in flight. [`end`] marks the lane, reads the
//! clock, writes one slot and commits it with one store. Setting up and growing a lane happen in
//! `begin`, for two reasons: no request is charged for them, and a lane is always claimed before
//! the completion time of the records in it. The log-client's watermark depends on the second.
//!
//! `begin` and `end` choose the fast path by a few comparisons and leave every other case to
//! [`mod@prepare`] and [`mod@commit`]. [`Thread::slow_path`] holds further reasons for the slow
//! path; they close the gates with which the tail is compared ([`Thread::set_gates`]). The budget
//! is two clock reads, so every dependent load is measurable. [`mod@leaf`] is the fast path once
//! more, shorter, for hooks.
//!
//! | state | condition | a request in this state | left when |
//! |---|---|---|---|
//! | no lane yet | `epoch` is not this process's, `skips_left` is 0 | [`mod@prepare`] attaches and claims a lane | lane claimed, or one of the next two |
//! | dormant | [`NO_LOG_CLIENT`] set and requests left to skip | counts `skips_left` down, records nothing | `skips_left` is used up: next attempt to attach |
//! | lane refused | `lane_unavailable` | is skipped and counted in `LOST_NO_LANE` | after 256 requests: next attempt to claim |
//! | recording | `epoch` matches, the gates are open | fast path: [`begin`], [`end`] | one of the next states |
//! | half full | `producer.needs_maintenance()` | [`mod@prepare`] refreshes, grows the lane, wakes the log-client | the lane has space, or an eighth later |
//! | full | the record does not fit | [`mod@commit`] drops, overwrites or waits (`when_full`) | the log-client has freed slots |
//! | slow | a bit of [`slow_path`] other than `BUSY` and `CLOCK_DENIED` | is recorded by way of [`mod@prepare`] and `commit_slow` | the control page changes; with `NOT_TSC` never |
//! | busy | `BUSY`, or the tail is taken: a signal handler interrupted a change of the state | is dropped and counted in `LOST_NESTED` | the interrupted code continues |
//! | clock denied | `CLOCK_DENIED` | is dropped and counted in `LOST_NO_LANE` | [`set_clock_access`] |
//! | log-client ended | control page is closed | [`mod@prepare`] attaches to a successor, or dormant | a successor is attached |
//! | forked, or retired at thread exit | `epoch` differs again | as "no lane yet" | lane claimed |
//!
//! A signal handler that does I/O is a caller like any other, except while the interrupted code
//! changes the thread's state ([`slow_path::BUSY`]): its requests are then counted as nested and
//! dropped. While requests of a handler are recorded, and after that, the request that the handler
//! interrupted is not shown as in flight.

mod asynchronous;
mod commit;
mod leaf;
#[expect(clippy::disallowed_types, reason = "key of the thread-exit destructor, created once")]
mod prepare;

use crate::clock::{counter, ticks};
use crate::lane::{Lane, Producer, RequestArgs, Ring, Slot};
use crate::{node, process, tls};
pub use asynchronous::{AsyncRequest, complete, submit};
pub(crate) use asynchronous::{ParentRequest, begin_region};
use commit::{commit, commit_with_ext, commit_with_second_path};
pub use leaf::{LeafRequest, begin_leaf, begin_leaf_on, end_leaf, end_leaf_on_path};
use miot_proto::event::{Ext, NONE, RecordKind};
use miot_proto::op::{self, Layer, Op};
use miot_proto::segment::in_flight;
pub(crate) use prepare::look_for_log_client;
pub use prepare::{ClockAccess, ClockScope, prepare_for_filter, set_clock_access};
use prepare::{Purpose, prepare};
use std::mem::offset_of;
#[cfg(not(target_arch = "x86_64"))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

/// Set in [`Thread::skips_left`] if the thread skips requests because there is no log-client to
/// record for.
const NO_LOG_CLIENT: u32 = 1 << 31;

/// Reasons not to take the fast path: bits of [`Thread::slow_path`].
mod slow_path {
    /// The thread's state is being changed: a signal handler must not touch it.
    pub(super) const BUSY: u8 = 1;
    /// The time stamp counter is not the clock of this process.
    pub(super) const NOT_TSC: u8 = 2;
    /// The log-client has set a filter.
    pub(super) const FILTER: u8 = 4;
    /// Requests are recorded with the CPU time of the thread.
    pub(super) const CPU_TIME: u8 = 8;
    /// The kernel denies the thread the time stamp counter.
    pub(super) const CLOCK_DENIED: u8 = 16;
}

/// State of a thread, in thread-local storage that is zero at the start.
#[repr(C)]
pub(crate) struct Thread {
    /// [`process::epoch_word`] of the process image to which this state belongs. With any other
    /// value the thread has no lane. Zero: no lane and an empty [`Producer`], into which no record
    /// fits.
    epoch: u64,
    lane: *const Lane,
    slots: *const Slot,
    producer: Producer,
    control: *const node::Control,
    /// Tail below which a request begins on the fast path: that from which on the lane needs
    /// maintenance, or 0 while there is a reason for the slow path; see [`Thread::set_gates`].
    begin_below: u64,
    /// Position up to which a record is committed on the fast path: the producer's limit, or 0
    /// while there is a reason for the slow path.
    commit_up_to: u64,
    /// Number of the thread's latest request, in the high half.
    number: u64,
    /// Number of the parent of the next request, in the high half; 0 if none.
    parent: u64,
    /// Number of the outermost MPI-IO request in progress, 0 if none.
    mpi_request: u32,
    /// Requests to skip before the next attempt to set up, and the flag [`NO_LOG_CLIENT`].
    skips_left: u32,
    /// Requests to skip between two attempts to attach to a log-client.
    skip_interval: u32,
    /// Children of `vfork` that run on this thread's stack, see [`borrowed`].
    borrowed: u32,
    /// Bits of [`slow_path`]; 0 allows the fast path.
    slow_path: u8,
    /// Operation of `mpi_request`.
    mpi_op: u8,
    /// A larger lane was refused; do not request one again.
    growth_refused: bool,
    /// There is a log-client, but no lane could be claimed: skipped requests count as lost.
    lane_unavailable: bool,
    /// The last wait for free slots timed out; do not wait again before the log-client has freed
    /// some.
    wait_timed_out: bool,
    /// Time of the last failed attempt to attach to a log-client, ticks.
    last_attach: u64,
}

const _: () = assert!(size_of::<Thread>() <= tls::BYTES && !std::mem::needs_drop::<Thread>());

/// Children of `vfork`, which run with the stack and the thread-local storage of the thread that
/// created them. A thread records nothing while [`COUNT_AT`](borrowed::COUNT_AT) is not 0. A hook
/// of `vfork` changes the words from assembly, relative to the thread-local symbol
/// `miot_tracer_thread`.
pub mod borrowed {
    use super::{Thread, offset_of};

    /// Offset of the `u32` that counts the children, bytes.
    pub const COUNT_AT: usize = offset_of!(Thread, borrowed);
    /// Offset of a `u64` that must be 0 while the count is not 0, and have its previous value
    /// afterwards.
    pub const GATE_AT: usize = offset_of!(Thread, begin_below);

    /// True in such a child.
    #[inline(always)]
    #[must_use]
    pub fn is_child() -> bool {
        // SAFETY: dereferencing requires
        // - the calling thread's own block, which lives as long as the thread: `tls::thread`
        //   returns it.
        unsafe { (*crate::tls::thread()).borrowed != 0 }
    }
}

/// A request between its start and its end. If it is not ended with [`end`], [`cancel`] it.
#[derive(Clone, Copy, Debug)]
pub struct StartedRequest {
    begin: u64,
    op: Op,
    request: u32,
    enclosing: u32,
}

/// Result of a request.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Handle of the file, 0 if none.
    pub handle: u64,
    /// Byte offset, or as the operation defines it ([`op::ArgMeaning`]); [`NONE`] if unused or
    /// unknown.
    pub offset: u64,
    /// Bytes requested, or as the operation defines it; [`NONE`] if unused.
    pub length: u64,
    /// Bytes transferred, or another value of success; negative: −errno.
    pub result: i64,
    /// Bits of [`flag`](miot_proto::event::flag).
    pub flags: u16,
}

/// A request and its result, for a function that a rare path calls. Passing the address of the two
/// values would keep them in memory on the frequent path too.
#[derive(Clone, Copy, Debug)]
pub struct PackedRequest([u64; 7]);

impl PackedRequest {
    /// Packs the values.
    #[inline(always)]
    #[must_use]
    pub fn new(begun: StartedRequest, done: Completion) -> PackedRequest {
        let numbers = u64::from(begun.request) | u64::from(begun.enclosing) << 32;
        let op = u64::from(begun.op.layer) | u64::from(begun.op.number) << 8 | u64::from(done.flags) << 16;
        let Completion { handle, offset, length, result, .. } = done;
        PackedRequest([begun.begin, numbers, op, handle, offset, length, result as u64])
    }

    /// Returns the values.
    #[must_use]
    pub fn unpack(&self) -> (StartedRequest, Completion) {
        let [begin, numbers, op, handle, offset, length, result] = self.0;
        let (op, flags) = (Op { layer: op as u8, number: (op >> 8) as u8 }, (op >> 16) as u16);
        let begun = StartedRequest { begin, op, request: numbers as u32, enclosing: (numbers >> 32) as u32 };
        (begun, Completion { handle, offset, length, result: result as i64, flags })
    }
}

impl Completion {
    /// Completion with this result of a request without file, offset and length.
    #[must_use]
    pub const fn of(result: i64) -> Completion {
        Completion { handle: 0, offset: NONE, length: NONE, result, flags: 0 }
    }
}

impl StartedRequest {
    /// Start of the request, raw ticks.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.begin
    }

    /// True if the request has no parent.
    #[inline(always)]
    #[must_use]
    pub fn is_outermost(&self) -> bool {
        self.enclosing == 0
    }

    pub(crate) fn into_parts(self) -> (u64, Op, u32, u32) {
        (self.begin, self.op, self.request, self.enclosing)
    }

    pub(crate) fn from_parts(begin: u64, op: Op, request: u32, enclosing: u32) -> StartedRequest {
        StartedRequest { begin, op, request, enclosing }
    }
}

impl Thread {
    /// True if the state belongs to this process image and has a lane.
    #[inline(always)]
    fn has_lane(&self) -> bool {
        self.epoch == process::epoch_word() && self.epoch != 0
    }

    /// Sets the limits of the fast path. Must be called after each change of what they depend on:
    /// the producer's limits and [`Thread::slow_path`].
    fn set_gates(&mut self) {
        let is_fast = self.slow_path & !slow_path::BUSY == 0 && self.borrowed == 0;
        (self.begin_below, self.commit_up_to) =
            if is_fast { (self.producer.maintain_at(), self.producer.limit()) } else { (0, 0) };
    }

    /// Begins a change of the state: keeps signal handlers out.
    fn enter_busy(&mut self) {
        self.slow_path |= slow_path::BUSY;
        (self.begin_below, self.commit_up_to) = (0, 0);
        compiler_fence(SeqCst);
    }

    /// Ends a change of the state.
    fn leave_busy(&mut self) {
        compiler_fence(SeqCst);
        self.set_gates();
        compiler_fence(SeqCst);
        self.slow_path &= !slow_path::BUSY;
    }

    /// True while the state is being changed: a signal handler must not touch it.
    fn is_busy(&self) -> bool {
        self.slow_path & slow_path::BUSY != 0 || self.producer.is_tail_taken()
    }

    /// True if a request of this operation can begin on the fast path: the thread has a lane with
    /// free slots, and the operation is recorded.
    #[inline(always)]
    fn can_begin_fast(&self, op: Op) -> bool {
        self.epoch == process::epoch_word()
            && self.producer.tail() < self.begin_below
            // SAFETY: dereferencing `control` requires
            // - a pointer to a live page: a lane with free slots implies an attached control page,
            //   and control pages are never unmapped.
            && unsafe { (*self.control).records(op) }
    }

    /// True if a request that [`can_begin_fast`](Self::can_begin_fast) refused is skipped
    /// unrecorded, without a call of [`prepare`].
    #[inline(always)]
    fn skips(&mut self, op: Op) -> bool {
        // First, because on a node without a log-client it is the only cost.
        if self.is_dormant() {
            if self.lane_unavailable {
                process::count_no_lane();
            }
            return true;
        }
        if self.borrowed != 0 {
            return true;
        }
        if self.has_lane() {
            // SAFETY: dereferencing `control` requires
            // - a pointer to a live page: a thread with a lane has attached to a control page, and
            //   control pages are never unmapped.
            let control = unsafe { &*self.control };
            if control.may_want(op) {
                return false;
            }
            if !control.is_closed() {
                return true;
            }
        } else if node::current().is_some_and(|control| control.ignores(op)) {
            return true;
        }
        let is_skipped = self.skips_left & !NO_LOG_CLIENT != 0;
        if is_skipped {
            self.skips_left -= 1;
            if self.lane_unavailable {
                process::count_no_lane();
            }
        }
        is_skipped
    }

    /// True if the thread skips requests because there was no log-client at the last attempt, or
    /// because this program is excluded, and the next attempt is not due yet.
    #[inline(always)]
    fn is_dormant(&mut self) -> bool {
        let is_dormant = self.skips_left > NO_LOG_CLIENT;
        if is_dormant {
            self.skips_left -= 1;
        }
        is_dormant
    }

    /// Takes the tail, to publish a record without the other functions of the producer: until
    /// [`Producer::put_tail`] nothing fits, and the lane needs maintenance. If it is taken already,
    /// the value returned is above each limit.
    ///
    /// # Safety
    /// - `thread` must be the calling thread's state.
    #[inline(always)]
    unsafe fn take_tail(thread: *mut Thread) -> u64 {
        const AT: usize = offset_of!(Thread, producer) + Producer::TAIL_AT;
        // One instruction: a signal handler that records runs before it or after it.
        // SAFETY: the addition requires
        // - a live and aligned word: `AT` is the offset of a field of `thread`, which is the
        //   calling thread's own block: required by this function.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            {
                let mut tail = Producer::TAKEN;
                std::arch::asm!(
                    "xadd [{thread} + {at}], {tail}",
                    thread = in(reg) thread,
                    at = const AT,
                    tail = inlateout(reg) tail,
                    options(nostack)
                );
                tail
            }
            #[cfg(not(target_arch = "x86_64"))]
            AtomicU64::from_ptr(thread.byte_add(AT).cast()).fetch_add(Producer::TAKEN, Relaxed)
        }
    }

    /// Number of the parent of the next request, 0 if none.
    #[inline(always)]
    fn enclosing(&self) -> u32 {
        (self.parent >> 32) as u32
    }

    fn set_enclosing(&mut self, request: u32) {
        self.parent = u64::from(request) << 32;
    }

    /// Returns the number of a new request. It is never 0.
    #[inline(always)]
    fn next_number(&mut self) -> u32 {
        let (next, wrapped) = ((self.number >> 32) as u32).overflowing_add(1);
        let request = next + u32::from(wrapped);
        self.number = u64::from(request) << 32;
        request
    }

    /// The thread's lane, if it has one.
    #[inline(always)]
    pub(crate) fn current_lane(&self) -> Option<*const Lane> {
        self.has_lane().then_some(self.lane)
    }

    /// Makes this request the parent of the thread's next requests.
    #[inline(always)]
    fn push_parent(&mut self, op: Op, request: u32) {
        self.set_enclosing(request);
        if op.layer == Layer::MpiIo as u8 && self.mpi_request == 0 {
            (self.mpi_request, self.mpi_op) = (request, op.number);
        }
    }

    /// Restores the parent that was current before this request began.
    fn pop_parent(&mut self, begun: &StartedRequest) {
        self.set_enclosing(begun.enclosing);
        if self.mpi_request == begun.request {
            self.mpi_request = 0;
        }
    }

    /// Returns the lane and its slots.
    ///
    /// # Safety
    /// - [`has_lane`](Self::has_lane) must be true: then lane and slots lie in this process's
    ///   segment.
    #[inline(always)]
    unsafe fn lane<'a>(&self) -> (&'a Lane, Ring<'a>) {
        // SAFETY: dereferencing the pointers requires
        // - `lane` points to a lane table entry and `slots` to `capacity` slots: required by this
        //   function;
        // - both stay mapped for `'a`: the mapping of the segment is never removed in this process
        //   image;
        // - no other code holds a `&mut` to them: both types consist of atomics and are only
        //   shared;
        // - a power of two: the capacity of each lane is one.
        unsafe { (&*self.lane, Ring::from_parts(self.slots, self.producer.mask())) }
    }
}

/// Begins a request. `None`: the request is not recorded, and no [`end`] is needed.
///
/// The first call of a thread sets up its lane (tens of microseconds). All others take a few
/// nanoseconds and one clock read.
#[inline(always)]
#[must_use]
pub fn begin(op: Op) -> Option<StartedRequest> {
    begin_request::<false>(op, None)
}

/// [`begin`] with the arguments of the request, which are shown while the request is in flight.
#[inline(always)]
#[must_use]
pub fn begin_on(op: Op, args: RequestArgs) -> Option<StartedRequest> {
    begin_request::<false>(op, Some(&args))
}

/// Begins a request that makes requests of its own: until its end it is the parent of the requests
/// of this thread.
#[inline(always)]
#[must_use]
pub fn begin_enclosing(op: Op) -> Option<StartedRequest> {
    begin_request::<true>(op, None)
}

/// [`begin_enclosing`] with the arguments of the request, which are shown while it is in flight.
#[inline(always)]
#[must_use]
pub fn begin_enclosing_on(op: Op, args: RequestArgs) -> Option<StartedRequest> {
    begin_request::<true>(op, Some(&args))
}

#[inline(always)]
fn begin_request<const ENCLOSES: bool>(op: Op, args: Option<&RequestArgs>) -> Option<StartedRequest> {
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` and calling `prepare` requires
    // - `thread` is the calling thread's own block, which lives as long as the thread.
    let fast = unsafe {
        let fast = (*thread).can_begin_fast(op);
        if !fast && ((*thread).skips(op) || !prepare(thread, Purpose::Request(op))) {
            return None;
        }
        fast
    };
    // SAFETY: a reference to `thread` requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - no other reference to it is live: a signal handler that interrupts leaves the state
    //   consistent.
    let thread = unsafe { &mut *thread };
    let request = thread.next_number();
    let enclosing = thread.enclosing();
    let begin = if fast { counter() } else { ticks() };
    // SAFETY: a reference to the lane requires
    // - `lane` points into this process's segment: `can_begin_fast` or `prepare` has returned true.
    let lane = unsafe { &*thread.lane };
    if ENCLOSES && enclosing == 0 {
        lane.in_flight.clear();
        lane.enclosing.show(in_flight::word(op, request, None), begin, args);
    } else {
        let tail = thread.producer.tail();
        lane.in_flight.show(in_flight::word(op, request, Some(tail)), begin, args);
    }
    if ENCLOSES {
        thread.push_parent(op, request);
    }
    Some(StartedRequest { op, request, enclosing, begin })
}

/// Cancels a request that is not recorded after all. It is no longer shown as in flight.
pub fn cancel(begun: StartedRequest) {
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` and its lane requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - `lane` points into this process's segment: checked with `has_lane`.
    unsafe {
        let encloses = (*thread).enclosing() == begun.request;
        if encloses {
            (*thread).pop_parent(&begun);
        }
        if (*thread).has_lane() {
            let lane = &*(*thread).lane;
            if encloses && begun.enclosing == 0 { lane.enclosing.clear() } else { lane.in_flight.clear() }
        }
    }
}

/// Returns true if [`begin`] would record a request of this operation now, without setting anything
/// up.
#[inline(always)]
#[must_use]
pub fn active(op: Op) -> bool {
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - its lane and control page are mapped where they are used: checked with `has_lane`, or
    //   guaranteed by `can_begin_fast` or `prepare`.
    unsafe { (*thread).has_lane() && (*(*thread).control).wants(op) }
}

/// Returns true if a hook may go straight to the real call. Call it once per request and before
/// anything else, because it counts the request.
///
/// It is true if neither this process nor an ancestor that it was forked from has recorded
/// anything, so that the state of a hook is still the initial one, and one of these holds: tracing
/// is switched off; there was no log-client at the last attempt to attach, and the next attempt is
/// not due yet; the program is excluded.
#[inline(always)]
#[must_use]
pub fn dormant() -> bool {
    if process::had_segment() {
        return false;
    }
    if node::current().is_some_and(node::Control::is_off) {
        return true;
    }
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - its lane and control page are mapped where they are used: checked with `has_lane`, or
    //   guaranteed by `can_begin_fast` or `prepare`.
    unsafe { (*thread).is_dormant() }
}

/// Ends a request: takes the completion time and commits the event. Returns false if the event was
/// dropped and counted.
#[inline(always)]
pub fn end(begun: StartedRequest, done: Completion) -> bool {
    commit(RecordKind::Request, begun, done, 1, None, &|_, _| {})
}

/// Ends a request that has paths or a second file. A path longer than
/// [`MAX_PATH`](miot_proto::event::MAX_PATH) bytes is truncated and flagged. Returns false if the
/// event was dropped and counted.
#[inline]
pub fn end_with(begun: StartedRequest, done: Completion, ext: &Ext<'_>) -> bool {
    commit_with_ext(RecordKind::Request, begun, done, None, ext)
}

/// [`end_with`] for a request that has only a second path.
#[inline(always)]
pub(crate) fn end_with_second_path(begun: StartedRequest, done: Completion, path: &[u8]) -> bool {
    commit_with_second_path(begun, done, path)
}

/// Records a request whose times are known, in raw [`ticks`]. Call it soon after the completion, so
/// that the lane stays in order of completion.
pub fn record(op: Op, begin_ticks: u64, end_ticks: u64, done: Completion, ext: &Ext<'_>) -> bool {
    match begin(op) {
        Some(begun) => commit_with_ext(
            RecordKind::Request,
            StartedRequest { begin: begin_ticks, ..begun },
            done,
            Some(end_ticks),
            ext,
        ),
        None => false,
    }
}

/// Returns the thread id of the caller if it is inside an MPI-IO request, else 0.
#[inline(always)]
#[must_use]
pub fn mpi_caller_tid() -> u32 {
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` and its lane requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - `lane` points into this process's segment: checked with `has_lane`.
    unsafe { if (*thread).mpi_request != 0 && (*thread).has_lane() { (*(*thread).lane).tid() } else { 0 } }
}

/// Records the path of a handle, for a file whose open was not recorded. Returns false if nothing
/// was recorded.
pub fn name_file(handle: u64, flags: u16, path: &[u8]) -> bool {
    let done = Completion { handle, flags, ..Completion::of(0) };
    match begin_unnumbered() {
        Some(begun) => {
            commit_with_ext(RecordKind::File, begun, done, None, &Ext { path1: path, ..Ext::default() })
        }
        None => false,
    }
}

/// Starts a non-request record, which is written whatever the set of recorded operations.
fn begin_unnumbered() -> Option<StartedRequest> {
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` requires
    // - `thread` is the calling thread's own block, which lives as long as the thread;
    // - its lane and control page are mapped where they are used: checked with `has_lane`, or
    //   guaranteed by `can_begin_fast` or `prepare`.
    unsafe {
        let is_prepared = (*thread).has_lane()
            && !(*thread).producer.needs_maintenance()
            && (*thread).borrowed == 0
            && (*thread).slow_path & (slow_path::CLOCK_DENIED | slow_path::BUSY) == 0;
        if !is_prepared && !prepare(thread, Purpose::File) {
            return None;
        }
        let begin = ticks();
        Some(StartedRequest { op: op::posix::OPEN, request: 0, enclosing: (*thread).enclosing(), begin })
    }
}

/// Opens a file of a file-system client: records its path under a new handle and returns the
/// handle. Returns 0 if nothing is recorded now.
#[must_use]
pub fn open(path: &[u8]) -> u64 {
    let Some(begun) = begin(op::client::OPEN) else { return 0 };
    let handle = process::new_handle();
    commit_with_ext(
        RecordKind::Request,
        begun,
        Completion { handle, ..Completion::of(0) },
        None,
        &Ext { path1: path, ..Ext::default() },
    );
    handle
}

/// Closes a file of [`open`]. Returns false if nothing was recorded.
pub fn close(handle: u64) -> bool {
    begin(op::client::CLOSE).is_some_and(|begun| end(begun, Completion { handle, ..Completion::of(0) }))
}

/// Records an application note: a string and the time. Returns false if nothing was recorded.
pub fn note(text: &[u8]) -> bool {
    let ext = Ext { path1: text, ..Ext::default() };
    begin(op::app::NOTE)
        .is_some_and(|begun| commit_with_ext(RecordKind::Request, begun, Completion::of(0), None, &ext))
}
