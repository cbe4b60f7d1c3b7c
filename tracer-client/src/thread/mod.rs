//! What a thread keeps between two events, and the calls that record one.
//!
//! The fast path of a request: [`begin`] makes sure that the thread has a lane with room, gives the
//! request a number, reads the clock and shows the request as in flight; [`end`] marks the lane, reads the
//! clock, writes one slot and commits it with one store. Growing a lane and all set-up happen in `begin`, so
//! that no request is charged for them and a lane is always claimed before the completion time of what is
//! written to it: the log-client's watermark depends on that.
//!
//! Both take the fast path on the strength of a few comparisons, and leave whatever is out of the ordinary to
//! [`prepare`] and [`commit`]: [`Thread::care`] says what the comparisons cannot see. Beside two clock
//! reads, each load that another one waits for is felt.
//!
//! A signal handler that does I/O is a caller like any other, except in the few instructions where the
//! thread's state is being changed ([`care::BUSY`]): what it records there is counted as nested and dropped.
//! While a handler's requests are recorded, and after, the request that it interrupted is not shown as in flight.

mod commit;
mod prepare;

use crate::clock::{counter, ticks};
use crate::lane::{Doing, Lane, Producer, Slot};
use crate::{node, process, tls};
use commit::{commit, put};
use miot_proto::event::{Caller, Ext, NONE, RecordKind, flag};
use miot_proto::op::{self, Layer, Op};
use miot_proto::segment::in_flight;
use prepare::{Wanted, prepare};
pub use prepare::{forbid_clock, prepare_for_filter};

/// Set in [`Thread::skip`] when nothing is missing but a log-client.
const NO_LOG_CLIENT: u32 = 1 << 31;

/// Reasons not to take the fast path.
mod care {
    /// The state is being changed: a signal handler must leave it alone.
    pub(super) const BUSY: u8 = 1;
    /// The time stamp counter is not this process's clock.
    pub(super) const OTHER_CLOCK: u8 = 2;
    /// The log-client has a filter.
    pub(super) const FILTER: u8 = 4;
    /// Requests are recorded with the thread's CPU time.
    pub(super) const CPU_TIME: u8 = 8;
    /// The thread may not read the clock.
    pub(super) const NO_CLOCK: u8 = 16;
}

/// A thread's state, in thread-local storage that starts as zero.
#[repr(C)]
pub(crate) struct Thread {
    /// [`process::epoch_word`] of the process image this state belongs to. Anything else: no lane. Zero: no lane
    /// either, and an empty [`Producer`], which no request fits.
    tag: u64,
    lane: *const Lane,
    slots: *const Slot,
    producer: Producer,
    control: *const node::Control,
    /// Number of the last request.
    request: u32,
    /// Number of the request that encloses the next one, 0 if none.
    enclosing: u32,
    /// Number of the outermost request of MPI-IO that is under way, 0 if none.
    mpi: u32,
    /// Requests to let pass before the next look for what is missing, and [`NO_LOG_CLIENT`].
    skip: u32,
    /// How many requests passed between the last two looks for a log-client.
    patience: u32,
    /// Bits of [`care`].
    care: u8,
    /// Operation of `mpi`.
    mpi_op: u8,
    /// A larger lane was refused; do not ask again.
    grown: bool,
    /// There is a log-client, but no lane was to be had: requests count as lost.
    laneless: bool,
    /// The last wait for room was in vain; do not wait again before the log-client has moved.
    stuck: bool,
    /// When this thread last looked for a log-client in vain, ticks.
    looked: u64,
}

const _: () = assert!(size_of::<Thread>() <= tls::BYTES && !std::mem::needs_drop::<Thread>());

/// A request between its begin and its end. Whoever drops it without an [`end`] should [`cancel`] it.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    begin: u64,
    op: Op,
    request: u32,
    enclosing: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Handle of the file, 0 if none.
    pub handle: u64,
    /// Byte offset, or the operation's own ([`op::ArgMeaning`]); [`NONE`] if unused or unknown.
    pub offset: u64,
    /// Bytes asked for, or the operation's own; [`NONE`] if unused.
    pub length: u64,
    /// Bytes moved or another value; negative: −errno.
    pub result: i64,
    /// See [`flag`].
    pub flags: u16,
}

impl Done {
    /// A request without file, offset and length that ended with `result`.
    #[must_use]
    pub const fn of(result: i64) -> Done {
        Done { handle: 0, offset: NONE, length: NONE, result, flags: 0 }
    }
}

impl Begun {
    /// When the request began, raw ticks.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.begin
    }

    /// True if no other request of the thread encloses it.
    #[inline(always)]
    #[must_use]
    pub fn is_outermost(&self) -> bool {
        self.enclosing == 0
    }

    pub(crate) fn into_parts(self) -> (u64, Op, u32, u32) {
        (self.begin, self.op, self.request, self.enclosing)
    }

    pub(crate) fn from_parts(begin: u64, op: Op, request: u32, enclosing: u32) -> Begun {
        Begun { begin, op, request, enclosing }
    }
}

impl Thread {
    /// True if the state belongs to this process image and has a lane.
    #[inline(always)]
    fn valid(&self) -> bool {
        self.tag == process::epoch_word() && self.tag != 0
    }

    /// True if a request of this operation can begin without further ado: the state is valid, and there is room.
    #[inline(always)]
    fn ready(&self, op: Op) -> bool {
        self.tag == process::epoch_word()
            && self.care == 0
            && !self.producer.needs_care()
            // SAFETY: a lane with room comes with a control page, which is never unmapped.
            && unsafe { (*self.control).records(op) }
    }

    /// True if a request that is not [`ready`](Self::ready) is to pass unrecorded, without a closer look.
    #[inline(always)]
    fn passes(&mut self, op: Op) -> bool {
        if self.valid() {
            // SAFETY: a valid state has a control page, which is never unmapped.
            let control = unsafe { &*self.control };
            if control.records(op) || control.filters() {
                return false;
            }
            if !control.closed() {
                return true;
            }
        } else if node::current().is_some_and(|control| control.leaves_alone(op)) {
            return true;
        }
        let passes = self.skip & !NO_LOG_CLIENT != 0;
        if passes {
            self.skip -= 1;
            if self.laneless {
                process::count_no_lane();
            }
        }
        passes
    }

    /// True if there was no log-client when this thread last looked, or this program is left out, and it is not yet time
    /// to look again.
    #[inline(always)]
    fn is_dormant(&mut self) -> bool {
        let is_dormant = self.skip > NO_LOG_CLIENT;
        if is_dormant {
            self.skip -= 1;
        }
        is_dormant
    }

    /// True if a record of so many slots, of the request with this number, can be written without further ado.
    #[inline(always)]
    fn plain(&self, request: u32, slots: u64) -> bool {
        self.tag == process::epoch_word()
            && self.care == 0
            && self.producer.fits(slots)
            && self.enclosing != request
    }

    /// The lane, if there is one.
    pub(crate) fn own_lane(&self) -> Option<*const Lane> {
        self.valid().then_some(self.lane)
    }

    /// A request that may enclose others begins.
    #[inline(always)]
    fn enter(&mut self, op: Op, request: u32) {
        self.enclosing = request;
        if op.layer == Layer::MpiIo as u8 && self.mpi == 0 {
            (self.mpi, self.mpi_op) = (request, op.number);
        }
    }

    /// It is over.
    fn leave(&mut self, begun: &Begun) {
        self.enclosing = begun.enclosing;
        if self.mpi == begun.request {
            self.mpi = 0;
        }
    }

    /// # Safety
    /// The state must be [`valid`](Self::valid): then lane and slots lie in this process's segment.
    #[inline(always)]
    unsafe fn lane<'a>(&self) -> (&'a Lane, &'a [Slot]) {
        // SAFETY: see above; the mapping outlives the process image.
        unsafe { (&*self.lane, std::slice::from_raw_parts(self.slots, self.producer.capacity() as usize)) }
    }
}

/// Begins a request. `None`: there is nothing to record it with or for, and no [`end`] is needed.
///
/// The first call of a thread sets up its lane (tens of microseconds); all others take a few nanoseconds
/// and one clock read.
#[inline(always)]
#[must_use]
pub fn begin(op: Op) -> Option<Begun> {
    start::<false>(op, None)
}

/// [`begin`] that also says what the request is about to do, for those who look at requests in flight.
#[inline(always)]
#[must_use]
pub fn begin_on(op: Op, doing: Doing) -> Option<Begun> {
    start::<false>(op, Some(&doing))
}

/// Begins a request that makes requests of its own: until its end, the requests of this thread name it
/// as the one that encloses them.
#[inline(always)]
#[must_use]
pub fn begin_enclosing(op: Op) -> Option<Begun> {
    start::<true>(op, None)
}

/// [`begin_enclosing`] that also says what the request is about to do.
#[inline(always)]
#[must_use]
pub fn begin_enclosing_on(op: Op, doing: Doing) -> Option<Begun> {
    start::<true>(op, Some(&doing))
}

#[inline(always)]
fn start<const ENCLOSES: bool>(op: Op, doing: Option<&Doing>) -> Option<Begun> {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state; a signal handler that interrupts leaves it consistent. It is
    // valid, with a lane in this process's segment, once `ready` or `prepare` has said so.
    unsafe {
        let ready = (*thread).ready(op);
        if !ready && ((*thread).passes(op) || !prepare(thread, Wanted::Request(op))) {
            return None;
        }
        let thread = &mut *thread;
        let (next, wrapped) = thread.request.overflowing_add(1);
        let request = next + u32::from(wrapped);
        thread.request = request;
        let enclosing = thread.enclosing;
        let begin = if ready { counter() } else { ticks() };
        let lane = &*thread.lane;
        if ENCLOSES && enclosing == 0 {
            lane.in_flight.clear();
            lane.enclosing.show(in_flight::word(op, request, None), begin, doing);
        } else {
            let tail = thread.producer.tail();
            lane.in_flight.show(in_flight::word(op, request, Some(tail)), begin, doing);
        }
        if ENCLOSES {
            thread.enter(op, request);
        }
        Some(Begun { op, request, enclosing, begin })
    }
}

/// Forgets a request that turned out not to be one to record. It is not shown as in flight any more.
pub fn cancel(begun: Begun) {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state, and its lane if it is valid.
    unsafe {
        let encloses = (*thread).enclosing == begun.request;
        if encloses {
            (*thread).leave(&begun);
        }
        if (*thread).valid() {
            let lane = &*(*thread).lane;
            if encloses && begun.enclosing == 0 { lane.enclosing.clear() } else { lane.in_flight.clear() }
        }
    }
}

/// True if [`begin`] would record a request of this operation now, without setting anything up.
#[inline(always)]
#[must_use]
pub fn active(op: Op) -> bool {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state.
    unsafe { (*thread).valid() && (*(*thread).control).wants(op) }
}

/// True if a hook may go straight to the real call: neither this process nor one it was forked from has recorded
/// anything (what a hook keeps is as it was at the start), and tracing is switched off, or there was no log-client when this
/// thread last looked, or the program is left out, and it is not yet time to look again.
/// To be asked before anything else, once per request, since it counts.
#[inline(always)]
#[must_use]
pub fn dormant() -> bool {
    if process::descends() {
        return false;
    }
    if node::current().is_some_and(node::Control::is_off) {
        return true;
    }
    let thread = tls::thread();
    // SAFETY: the calling thread's own state.
    unsafe { (*thread).is_dormant() }
}

/// Ends a request: takes the completion time and commits the event. False: dropped, and counted.
#[inline(always)]
pub fn end(begun: Begun, done: Done) -> bool {
    commit(RecordKind::Request, begun, done, 1, None, |_, _| {})
}

/// Ends a request that has paths or a second file. Longer paths than [`event::MAX_PATH`] are cut and
/// flagged.
#[inline]
pub fn end_with(begun: Begun, done: Done, ext: &Ext<'_>) -> bool {
    put(RecordKind::Request, begun, done, None, ext)
}

/// Records a request whose times are known, in raw [`ticks`]. To keep the lane in order of completion,
/// call it soon after the completion.
pub fn record(op: Op, begin_ticks: u64, end_ticks: u64, done: Done, ext: &Ext<'_>) -> bool {
    match begin(op) {
        Some(begun) => {
            put(RecordKind::Request, Begun { begin: begin_ticks, ..begun }, done, Some(end_ticks), ext)
        }
        None => false,
    }
}

/// A request between its [`submit`] and its [`complete`].
#[derive(Clone, Copy, Debug)]
pub struct Submitted {
    begin: u64,
    op: Op,
    within: Within,
}

/// The request within which another one was submitted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Within {
    /// Thread, 0 if it was submitted within none.
    pub(crate) tid: u32,
    /// Number of the request in that thread.
    pub(crate) request: u32,
}

impl Submitted {
    /// When the request was submitted, raw ticks.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.begin
    }

    /// True if it was submitted within no other request.
    #[must_use]
    pub fn is_outermost(&self) -> bool {
        self.within.tid == 0
    }

    pub(crate) fn into_parts(self) -> (u64, Op, Within) {
        (self.begin, self.op, self.within)
    }

    pub(crate) fn from_parts(begin: u64, op: Op, within: Within) -> Submitted {
        Submitted { begin, op, within }
    }
}

/// Begins a request that is served elsewhere, so that any thread may [`complete`] it, or none. `None`: there is nothing to
/// record it with or for. It takes a clock read, and nothing has to be undone where the request is given up; it is not
/// shown as in flight.
#[inline]
#[must_use]
pub fn submit(op: Op) -> Option<Submitted> {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state.
    unsafe {
        if !(*thread).ready(op) && ((*thread).passes(op) || !prepare(thread, Wanted::Request(op))) {
            return None;
        }
        let request = (*thread).enclosing;
        let tid = if request == 0 { 0 } else { (*(*thread).lane).tid() };
        Some(Submitted { begin: ticks(), op, within: Within { tid, request } })
    }
}

/// Ends a request of [`submit`], which may be another thread's: takes the completion time and commits the event to the lane
/// of the calling thread, with the flag [`ASYNC`](miot_proto::event::flag::ASYNC). False: dropped, and counted; or tracing has been switched off.
///
/// What was submitted within another request names it; where another thread did so, which has its own numbers, that
/// thread is its caller. The end of a split collective of MPI-IO encloses what its begin has submitted.
pub fn complete(submitted: Submitted, mut done: Done, ext: &Ext<'_>) -> bool {
    done.flags |= flag::ASYNC;
    let Some(begun) = begin(submitted.op) else { return false };
    let Within { tid, request } = submitted.within;
    let thread = tls::thread();
    // SAFETY: the calling thread's own state, which has a lane as the request has begun.
    let (own, split_end) = unsafe {
        let mpi = Op { layer: Layer::MpiIo as u8, number: (*thread).mpi_op };
        let is_split_end = (*thread).mpi != 0 && mpi.ends_split();
        ((*(*thread).lane).tid(), is_split_end.then_some((*thread).mpi))
    };
    let (enclosing, caller) = match tid {
        0 => (0, ext.caller),
        tid if tid == own => (split_end.unwrap_or(request), ext.caller),
        tid => (0, ext.caller.or(Some(Caller { tid, uid: Caller::UNKNOWN }))),
    };
    let begun = Begun { begin: submitted.begin, enclosing, ..begun };
    put(RecordKind::Request, begun, done, None, &Ext { caller, ..*ext })
}

/// Thread id of the caller if it is within a request of MPI-IO, else 0.
#[must_use]
pub fn within_mpi() -> u32 {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state, and its lane if it is valid.
    unsafe { if (*thread).valid() && (*thread).mpi != 0 { (*(*thread).lane).tid() } else { 0 } }
}

/// Names a handle: a file that was open before it could be seen to be opened.
pub fn file(handle: u64, flags: u16, path: &[u8]) -> bool {
    let done = Done { handle, flags, ..Done::of(0) };
    match begin_file() {
        Some(begun) => put(RecordKind::File, begun, done, None, &Ext { path1: path, ..Ext::default() }),
        None => false,
    }
}

/// A begin for a record that is no request: what is recorded of the operations does not matter.
fn begin_file() -> Option<Begun> {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state.
    unsafe {
        let set_up =
            (*thread).valid() && !(*thread).producer.needs_care() && (*thread).care & care::NO_CLOCK == 0;
        if !set_up && !prepare(thread, Wanted::File) {
            return None;
        }
        let begin = ticks();
        Some(Begun { op: op::posix::OPEN, request: 0, enclosing: (*thread).enclosing, begin })
    }
}

/// Opens a file of a file-system client: a new handle, and a record that names it. 0 if nothing is
/// recorded now.
#[must_use]
pub fn open(path: &[u8]) -> u64 {
    let Some(begun) = begin(op::client::OPEN) else { return 0 };
    let handle = process::new_handle();
    put(
        RecordKind::Request,
        begun,
        Done { handle, ..Done::of(0) },
        None,
        &Ext { path1: path, ..Ext::default() },
    );
    handle
}

/// Closes a file of [`open`].
pub fn close(handle: u64) -> bool {
    begin(op::client::CLOSE).is_some_and(|begun| end(begun, Done { handle, ..Done::of(0) }))
}

/// Records a remark of the application: a string with the time.
pub fn note(text: &[u8]) -> bool {
    let ext = Ext { path1: text, ..Ext::default() };
    begin(op::app::NOTE).is_some_and(|begun| put(RecordKind::Request, begun, Done::of(0), None, &ext))
}
