//! What a thread keeps between two events, and the calls that record one.
//!
//! The fast path of a request: [`begin`] makes sure that the thread has a lane with room, gives the
//! request a number and reads the clock; [`end`] marks the lane, reads the clock, writes one slot and
//! commits it with one store. Growing a lane, waiting for room and all set-up happen in `begin`, so that
//! no request is charged for them and a lane is always claimed before the completion time of what is
//! written to it: the log-client's watermark depends on that.
//!
//! A signal handler that does I/O is a caller like any other, except in the few instructions where the
//! thread's state is being changed (`busy`): what it records there is counted as nested and dropped.

use crate::clock::ticks;
use crate::lane::{Lane, Producer, Slot};
use crate::{node, process, tls};
use miot_proto::control::WhenFull;
use miot_proto::event::{self, Event, Ext, Kind, NONE};
use miot_proto::op::{self, Op};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, compiler_fence};

/// Requests that a dormant thread lets pass before it looks for a log-client again.
const DORMANT_REQUESTS: u32 = 4096;

/// Requests that a thread without a lane lets pass before it tries again.
const LANELESS_REQUESTS: u32 = 256;

/// A thread's state, in thread-local storage that starts as zero.
#[repr(C)]
pub(crate) struct Thread {
    /// [`process::tag`] of the process image this state belongs to; anything else: no lane.
    tag: u64,
    lane: *const Lane,
    slots: *const Slot,
    producer: Producer,
    control: *const node::Control,
    /// Number of the last request.
    request: u32,
    /// Number of the request that encloses the next one, 0 if none.
    enclosing: u32,
    /// Requests to let pass before the next look for what is missing.
    skip: u32,
    /// The state is being changed: a signal handler must leave it alone.
    busy: bool,
    /// A larger lane was refused; do not ask again.
    grown: bool,
    /// There is a log-client, but no lane was to be had: requests count as lost.
    laneless: bool,
    /// The last wait for room was in vain; do not wait again before the log-client has moved.
    stuck: bool,
}

const _: () = assert!(size_of::<Thread>() <= tls::BYTES && !std::mem::needs_drop::<Thread>());

/// A request between its begin and its end.
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
    /// Byte offset, or the operation's own ([`op::Args`]); [`NONE`] if unused or unknown.
    pub offset: u64,
    /// Bytes asked for, or the operation's own; [`NONE`] if unused.
    pub length: u64,
    /// Bytes moved or another value; negative: −errno.
    pub result: i64,
    /// See [`event::flag`].
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

    pub(crate) fn into_parts(self) -> (u64, Op, u32, u32) {
        (self.begin, self.op, self.request, self.enclosing)
    }

    pub(crate) fn from_parts(begin: u64, op: Op, request: u32, enclosing: u32) -> Begun {
        Begun { begin, op, request, enclosing }
    }
}

impl Thread {
    #[inline(always)]
    fn valid(&self) -> bool {
        self.tag == process::tag()
    }

    /// True if a request of this layer can begin without further ado.
    #[inline(always)]
    fn ready(&self, op: Op) -> bool {
        // SAFETY: a valid state has a control page, which is never unmapped.
        self.valid() && self.producer.roomy() && unsafe { (*self.control).records(op.layer) }
    }

    /// Lets a request pass unrecorded until it is time to look again for what is missing.
    #[inline(always)]
    fn pass(&mut self) -> bool {
        if self.skip == 0 || self.valid() {
            return false;
        }
        self.skip = self.skip.saturating_sub(1);
        if self.laneless {
            process::count_no_lane();
        }
        true
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
    let thread = tls::thread();
    // SAFETY: the calling thread's own state; a signal handler that interrupts leaves it consistent.
    unsafe {
        if !(*thread).ready(op) && ((*thread).pass() || !prepare(thread, op)) {
            return None;
        }
        let mut request = (*thread).request.wrapping_add(1);
        if request == 0 {
            request = 1;
        }
        (*thread).request = request;
        Some(Begun { op, request, enclosing: (*thread).enclosing, begin: ticks() })
    }
}

/// Begins a request that makes requests of its own: until its end, the requests of this thread name it
/// as the one that encloses them.
#[inline(always)]
#[must_use]
pub fn begin_enclosing(op: Op) -> Option<Begun> {
    let begun = begin(op)?;
    // SAFETY: the calling thread's own state.
    unsafe { (*tls::thread()).enclosing = begun.request };
    Some(begun)
}

/// True if [`begin`] would record a request of this layer now, without setting anything up.
#[inline(always)]
#[must_use]
pub fn active(op: Op) -> bool {
    // SAFETY: the calling thread's own state.
    unsafe { (*tls::thread()).ready(op) }
}

/// Ends a request: takes the completion time and commits the event. False: dropped, and counted.
#[inline(always)]
pub fn end(begun: Begun, done: Done) -> bool {
    commit(Kind::Request, begun, done, 1, None, |_, _| {})
}

/// Ends a request that has paths or a second file. Longer paths than [`event::MAX_PATH`] are cut and
/// flagged.
#[inline]
pub fn end_with(begun: Begun, done: Done, ext: &Ext<'_>) -> bool {
    put(Kind::Request, begun, done, None, ext)
}

/// Records a request whose times are known, in raw [`ticks`]. To keep the lane in order of completion,
/// call it soon after the completion.
pub fn record(op: Op, begin_ticks: u64, end_ticks: u64, done: Done, ext: &Ext<'_>) -> bool {
    match begin(op) {
        Some(begun) => put(Kind::Request, Begun { begin: begin_ticks, ..begun }, done, Some(end_ticks), ext),
        None => false,
    }
}

/// Names a handle: a file that was open before it could be seen to be opened.
pub fn file(handle: u64, flags: u16, path: &[u8]) -> bool {
    let done = Done { handle, flags, ..Done::of(0) };
    match begin(op::posix::OPEN) {
        Some(begun) => put(Kind::File, begun, done, None, &Ext { path1: path, ..Ext::default() }),
        None => false,
    }
}

/// Opens a file of a file-system client: a new handle, and a record that names it. 0 if nothing is
/// recorded now.
#[must_use]
pub fn open(path: &[u8]) -> u64 {
    let Some(begun) = begin(op::client::OPEN) else { return 0 };
    let handle = process::new_handle();
    put(Kind::Request, begun, Done { handle, ..Done::of(0) }, None, &Ext { path1: path, ..Ext::default() });
    handle
}

/// Closes a file of [`open`].
pub fn close(handle: u64) -> bool {
    begin(op::client::CLOSE).is_some_and(|begun| end(begun, Done { handle, ..Done::of(0) }))
}

/// Records a remark of the application: a string with the time.
pub fn note(text: &[u8]) -> bool {
    let ext = Ext { path1: text, ..Ext::default() };
    begin(op::app::NOTE).is_some_and(|begun| put(Kind::Request, begun, Done::of(0), None, &ext))
}

fn put(kind: Kind, begun: Begun, mut done: Done, at: Option<u64>, ext: &Ext<'_>) -> bool {
    let ((path1, cut1), (path2, cut2)) = (event::cut(ext.path1), event::cut(ext.path2));
    done.flags |= cut1 | cut2;
    let ext = Ext { path1, path2, ..*ext };
    let slots = event::slots_for(&ext) as u64;
    commit(kind, begun, done, slots, at, |producer, room| {
        if slots > 1 {
            event::put_ext(&ext, |slot, word, value| producer.slot(room, slot as u64).put(word, value));
        }
    })
}

#[inline(always)]
fn commit(
    kind: Kind,
    begun: Begun,
    done: Done,
    slots: u64,
    at: Option<u64>,
    rest: impl FnOnce(&Producer, &[Slot]),
) -> bool {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state; `busy` keeps its signal handlers out while it changes.
    unsafe {
        if (*thread).enclosing == begun.request {
            (*thread).enclosing = begun.enclosing;
        }
        if !(*thread).valid() {
            // The process forked between begin and end, or the thread is being torn down.
            return false;
        }
        let (lane, room) = (*thread).lane();
        if (*thread).busy {
            lane.count_nested();
            return false;
        }
        (*thread).busy = true;
        compiler_fence(std::sync::atomic::Ordering::SeqCst);
        let producer = &mut (*thread).producer;
        producer.mark(lane);
        let end = at.unwrap_or_else(ticks);
        let fits = producer.fits(slots)
            || make_room(producer, lane, &*(*thread).control, slots, &mut (*thread).stuck);
        if fits {
            let event = Event {
                op: begun.op,
                request: begun.request,
                enclosing: begun.enclosing,
                end,
                duration: end.saturating_sub(begun.begin),
                flags: done.flags,
                handle: done.handle,
                offset: done.offset,
                length: done.length,
                result: done.result,
            };
            producer.slot(room, 0).fill(event.slot(kind, slots as u8, producer.attempt()));
            rest(producer, room);
            producer.commit(lane, slots);
        } else {
            producer.drop_record(lane);
        }
        compiler_fence(std::sync::atomic::Ordering::SeqCst);
        (*thread).busy = false;
        fits
    }
}

/// The lane is full, as far as this thread knew: look again, and where the policy says so, wait.
#[cold]
#[inline(never)]
fn make_room(
    producer: &mut Producer,
    lane: &Lane,
    control: &node::Control,
    slots: u64,
    stuck: &mut bool,
) -> bool {
    /// Short beside what the log-client needs to drain half a lane, long beside a system call.
    const NAP_NS: u64 = 50_000;
    let moved = producer.refresh(lane);
    if producer.fits(slots) {
        *stuck = false;
        return true;
    }
    control.ring();
    *stuck &= !moved;
    if control.when_full() != WhenFull::Wait || *stuck {
        return false;
    }
    let mut waited = 0;
    while waited < control.wait_ns() && !control.closed() {
        let nap = rustix::thread::Timespec { tv_sec: 0, tv_nsec: NAP_NS as i64 };
        let _ = rustix::thread::nanosleep(&nap);
        waited += NAP_NS;
        producer.refresh(lane);
        if producer.fits(slots) {
            return true;
        }
        control.ring();
    }
    *stuck = true;
    false
}

/// The slow part of [`begin`]: whatever keeps the thread from being ready. False: do not record.
#[cold]
#[inline(never)]
fn prepare(thread: *mut Thread, op: Op) -> bool {
    // SAFETY: the calling thread's own state; `busy` keeps its signal handlers out.
    let thread = unsafe { &mut *thread };
    if thread.busy {
        if thread.valid() {
            // SAFETY: valid.
            unsafe { thread.lane().0.count_nested() };
        }
        return false;
    }
    thread.busy = true;
    compiler_fence(std::sync::atomic::Ordering::SeqCst);
    let ready = prepare_locked(thread, op);
    compiler_fence(std::sync::atomic::Ordering::SeqCst);
    thread.busy = false;
    ready
}

fn prepare_locked(thread: &mut Thread, op: Op) -> bool {
    if thread.valid() {
        // SAFETY: a valid state has a control page, which is never unmapped.
        let control = unsafe { &*thread.control };
        if !control.records(op.layer) {
            if control.closed() {
                thread.look_for_successor(control);
            }
            return false;
        }
        if !thread.producer.roomy() {
            thread.relieve(control);
        }
        return true;
    }
    thread.laneless = false;
    let Some(control) = node::attach() else {
        thread.skip = DORMANT_REQUESTS;
        return false;
    };
    if !control.records(op.layer) {
        if control.closed() {
            node::detach();
        }
        thread.skip = DORMANT_REQUESTS;
        return false;
    }
    match process::claim_lane(control, control.lane_slots().0) {
        Some(claimed) => {
            let (request, enclosing) = (thread.request, thread.enclosing);
            thread.adopt(claimed, control);
            (thread.request, thread.enclosing) = (request, enclosing);
            thread.laneless = false;
            retire_at_exit(thread);
            true
        }
        None => {
            process::count_no_lane();
            thread.laneless = true;
            thread.skip = LANELESS_REQUESTS;
            false
        }
    }
}

impl Thread {
    fn adopt(&mut self, claimed: process::Claimed, control: &node::Control) {
        self.lane = claimed.lane;
        self.slots = claimed.slots.as_ptr();
        self.producer = claimed.producer;
        self.control = control;
        self.tag = process::tag();
    }

    /// The lane is more than half full: look again, move to a larger one, wake the log-client.
    fn relieve(&mut self, control: &node::Control) {
        // SAFETY: only called on a valid state.
        let (lane, _) = unsafe { self.lane() };
        self.producer.refresh(lane);
        if self.producer.roomy() {
            return;
        }
        let largest = control.lane_slots().1;
        if !self.grown && self.producer.capacity() < largest {
            match process::claim_lane(control, (self.producer.capacity() * 4).min(largest)) {
                Some(claimed) => {
                    lane.retire(&self.producer);
                    self.adopt(claimed, control);
                }
                None => self.grown = true,
            }
        }
        control.ring();
    }

    /// The log-client has ended. Every so often, see whether another one has taken the node over.
    fn look_for_successor(&mut self, control: &node::Control) {
        self.skip = self.skip.checked_sub(1).unwrap_or(DORMANT_REQUESTS);
        if self.skip == 0 {
            node::detach();
            if let Some(successor) = node::attach() {
                self.control = successor;
            } else {
                self.control = control;
            }
        }
    }
}

/// The pthread key whose destructor retires a thread's lane; 0 = none yet, else key + 1.
static KEY: AtomicU32 = AtomicU32::new(0);

fn retire_at_exit(thread: &mut Thread) {
    let mut key = KEY.load(Relaxed);
    if key == 0 {
        let mut new = 0;
        // SAFETY: an out-pointer and a function of the right type.
        if unsafe { libc::pthread_key_create(&raw mut new, Some(retire)) } != 0 {
            // No key left in this process: its lanes are drained when it ends.
            return;
        }
        key = match KEY.compare_exchange(0, new + 1, Relaxed, Relaxed) {
            Ok(_) => new + 1,
            Err(other) => {
                // SAFETY: made above, used by nobody.
                unsafe { libc::pthread_key_delete(new) };
                other
            }
        };
    }
    // SAFETY: an existing key; the value is this thread's block, which outlives its destructors.
    unsafe { libc::pthread_setspecific(key - 1, std::ptr::from_mut(thread).cast()) };
}

/// Runs when the thread ends. What it records after that claims a lane anew, and runs this again.
extern "C" fn retire(thread: *mut libc::c_void) {
    // SAFETY: the value set above: the state of the thread that is ending, which runs this.
    let thread = unsafe { &mut *thread.cast::<Thread>() };
    if thread.valid() && !thread.busy {
        // SAFETY: valid.
        unsafe { thread.lane().0.retire(&thread.producer) };
        thread.tag = 0;
        thread.producer = Producer::none();
    }
}
