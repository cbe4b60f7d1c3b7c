//! Table of asynchronous requests between submission and completion. Two calls, often in two
//! threads, submit and complete a request.
//!
//! The table has a fixed size and no locks: nothing is allocated, a signal handler may use it at
//! any point, and a program without such requests touches none of its memory. A request is found by
//! its [`Key`]. Of several requests with the same key (the program chooses `user_data` of io_uring)
//! the oldest is taken first. Entries that a child inherits by `fork` belong to its parent: no key
//! of the child finds them, and their slots are reused when needed.
//!
//! **A request whose completion is not observed** is recorded with the result −EINPROGRESS: at once
//! if the table is full, else when the program destroys the queue, reuses the block, or ends by
//! `exit`.

#![expect(clippy::disallowed_types, reason = "table of requests under way, used without locks")]

use crate::files::tracked;
use crate::request::unaligned_flag;
use crate::vfork;
use miot_tracer::{
    AsyncRequest, Caller, Completion, Ext, NONE, Op, RequestArgs, ShownFile, complete, epoch, flag, record,
    submit, ticks,
};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Capacity of the table: several times the usual queue depth of io_uring (128 by default in fio)
/// and libaio.
const SLOTS: usize = 4096;
/// Number of slots in which a key may be stored.
const WINDOW: usize = 128;
/// Value in `KEYS` of a free slot.
const FREE: u64 = 0;
/// Value in `KEYS` while a thread reads or writes the request.
const RESERVED: u64 = 1;

/// Interface of asynchronous I/O.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Interface {
    /// POSIX: a request is identified by its block; there is one queue.
    Aio = 1,
    /// A request is identified by its queue (context) and block.
    Libaio = 2,
    /// A request is identified by its queue (ring) and `user_data`.
    Uring = 3,
}

/// A queue that requests are submitted to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) interface: Interface,
    /// Number of the queue: its context or its ring; 0 if there is only one.
    pub(crate) number: u64,
}

/// A request in flight.
#[derive(Clone, Copy)]
pub(crate) struct PendingRequest {
    pub(crate) op: Op,
    pub(crate) submitted: AsyncRequest,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Flags of events on its file.
    pub(crate) flags: u16,
    /// Handle of the second file; [`NONE`] if there is none.
    pub(crate) handle2: u64,
    pub(crate) offset2: u64,
    /// Thread on whose behalf it is made, if it has no parent request.
    pub(crate) caller: Option<Caller>,
    /// Descriptor of its file, -1 if there is none.
    pub(crate) fd: c_int,
}

impl PendingRequest {
    /// Begins a request on the file of a descriptor, before it is submitted. `None` if it is not to
    /// be recorded.
    pub(crate) fn begin_on(op: Op, fd: c_int, offset: u64, length: u64) -> Option<PendingRequest> {
        let file = tracked(op, fd)?;
        let (handle, flags) = (file.handle(), file.flags());
        let appends = op.is_write() && flags & flag::APPEND != 0;
        let offset = if appends { NONE } else { offset };
        let request = PendingRequest::begin(op)?;
        let caller = file.caller().filter(|_| request.submitted.is_outermost());
        Some(PendingRequest { handle, offset, length, flags, caller, fd, ..request })
    }

    /// Adds the flags of a buffer at this address.
    pub(crate) fn with_buffer(self, address: u64) -> PendingRequest {
        let flags = self.flags | unaligned_flag(address as *const c_void);
        PendingRequest { flags, ..self }
    }

    /// Begins a request without file and offset, before it is submitted.
    pub(crate) fn begin(op: Op) -> Option<PendingRequest> {
        let submitted = if vfork::in_child() { None } else { submit(op) };
        let none = |submitted| PendingRequest {
            op,
            submitted,
            handle: 0,
            offset: NONE,
            length: NONE,
            flags: 0,
            handle2: NONE,
            offset2: NONE,
            caller: None,
            fd: -1,
        };
        submitted.map(none)
    }

    /// Shows the request as in flight until it is recorded.
    fn show(&mut self) {
        let args = RequestArgs { handle: self.handle, offset: self.offset, length: self.length };
        let caller = self.caller.map_or(0, |caller| caller.tid);
        let file = u32::try_from(self.fd).map_or(ShownFile::Unknown, ShownFile::Descriptor);
        self.submitted.show(args, caller, file);
    }

    /// Records a request that was refused with this result.
    pub(crate) fn record_refused(&mut self, result: i64) {
        self.submitted.hide();
        record(self.op, self.submitted.ticks(), ticks(), self.done(result), &Ext::default());
    }

    /// Records a request that is complete with this result.
    pub(crate) fn complete(&self, result: i64) {
        let second = |word: u64| (self.handle2 != NONE).then_some(word);
        let (handle2, offset2) = (second(self.handle2), second(self.offset2));
        let ext = Ext { handle2, offset2, caller: self.caller, ..Ext::default() };
        complete(self.submitted, self.done(result), &ext);
    }

    /// Records a request whose completion will not be observed.
    pub(crate) fn complete_unseen(&self) {
        self.complete(-i64::from(libc::EINPROGRESS));
    }

    fn done(&self, result: i64) -> Completion {
        Completion {
            handle: self.handle,
            offset: self.offset,
            length: self.length,
            result,
            flags: self.flags,
        }
    }
}

/// Identifies a request in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Queue {
    /// Returns the key of the request that this queue identifies by `id`: a hash of 64 bits that
    /// includes the process image, so that two requests in flight do not share a key by chance.
    pub(crate) fn key(self, id: u64) -> Key {
        let image = u64::from(epoch()) << 8 | u64::from(self.interface as u32);
        Key(mix(id ^ mix(self.number ^ mix(image))).max(RESERVED + 1))
    }
}

/// The finalizer of `SplitMix64` (Steele, Lea, Flood 2014): a bijection in which each output bit
/// depends on each input bit.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

struct Slot {
    /// Accessed only by the thread that has stored [`RESERVED`] as the slot's key. Written before
    /// the slot gets any other key than [`FREE`]. Not an `Option`, whose `None` would not be all
    /// zero: the table would be part of the library's file.
    request: UnsafeCell<MaybeUninit<PendingRequest>>,
    /// Begin in ticks: orders requests with the same key.
    begun: AtomicU64,
    /// Process image that submitted the request.
    epoch: AtomicU32,
    /// Queue of the request.
    interface: AtomicU32,
    number: AtomicU64,
}

// SAFETY:
// - `request` is accessed by one thread at a time: the one that has reserved the slot.
// - All other fields are atomics.
unsafe impl Sync for Slot {}

/// Keys, stored separately so that a search reads few cache lines.
static KEYS: [AtomicU64; SLOTS] = [const { AtomicU64::new(FREE) }; SLOTS];
static REQUESTS: [Slot; SLOTS] = [const {
    Slot {
        request: UnsafeCell::new(MaybeUninit::zeroed()),
        begun: AtomicU64::new(0),
        epoch: AtomicU32::new(0),
        interface: AtomicU32::new(0),
        number: AtomicU64::new(0),
    }
}; SLOTS];
/// Number of slots from the start of a key's window that have ever been used.
#[unsafe(link_section = ".data.miot")]
static MAX_PROBE: AtomicUsize = AtomicUsize::new(0);

/// Returns whether there has ever been a request in flight.
#[inline(always)]
pub(crate) fn is_used() -> bool {
    MAX_PROBE.load(Acquire) != 0
}

/// Returns the first `count` slots in which a key may be stored.
fn probe(key: Key, count: usize) -> impl Iterator<Item = (&'static AtomicU64, &'static Slot)> {
    let indices = (0..count).map(move |distance| (key.0 as usize).wrapping_add(distance) % SLOTS);
    indices.filter_map(|at| Some((KEYS.get(at)?, REQUESTS.get(at)?)))
}

/// Stores a request that is about to be submitted, and shows it as in flight. Returns false if
/// there is no free slot.
pub(crate) fn store(queue: Queue, id: u64, mut request: PendingRequest) -> bool {
    let (key, epoch) = (queue.key(id), epoch());
    let reserve = |word: &AtomicU64, found| word.compare_exchange(found, RESERVED, AcqRel, Relaxed).is_ok();
    let free = |word: &AtomicU64, _: &Slot| word.load(Relaxed) == FREE && reserve(word, FREE);
    // A request of the process that forked.
    let stale = |word: &AtomicU64, slot: &Slot| {
        let found = word.load(Acquire);
        found > RESERVED && slot.epoch.load(Relaxed) != epoch && reserve(word, found)
    };
    let mut all = probe(key, WINDOW).enumerate();
    let found = all.find(|(_, (word, slot))| free(word, slot));
    let found = found.or_else(|| probe(key, WINDOW).enumerate().find(|(_, (word, slot))| stale(word, slot)));
    let Some((distance, (word, slot))) = found else { return false };
    request.show();
    // SAFETY:
    // - This thread has reserved the slot.
    unsafe { (*slot.request.get()).write(request) };
    slot.begun.store(request.submitted.ticks(), Relaxed);
    slot.epoch.store(epoch, Relaxed);
    slot.interface.store(queue.interface as u32, Relaxed);
    slot.number.store(queue.number, Relaxed);
    MAX_PROBE.fetch_max(distance + 1, AcqRel);
    word.store(key.0, Release);
    true
}

/// Returns whether a request with this key is in flight.
pub(crate) fn contains(key: Key) -> bool {
    probe(key, MAX_PROBE.load(Acquire)).any(|(word, _)| word.load(Acquire) == key.0)
}

/// Removes the oldest request with this key and returns it.
pub(crate) fn take_oldest(key: Key) -> Option<PendingRequest> {
    loop {
        let candidates = probe(key, MAX_PROBE.load(Acquire)).filter(|(word, _)| word.load(Acquire) == key.0);
        let (word, slot) = candidates.min_by_key(|(_, slot)| slot.begun.load(Relaxed))?;
        // Repeats if another thread or a signal handler was faster.
        if let Some(request) = remove(word, key.0, slot) {
            return Some(request);
        }
    }
}

/// Removes the request of a slot whose key is `found`.
fn remove(word: &AtomicU64, found: u64, slot: &Slot) -> Option<PendingRequest> {
    word.compare_exchange(found, RESERVED, AcqRel, Relaxed).ok()?;
    // SAFETY:
    // - This thread has reserved the slot.
    // - The request was written before the slot got the key that this thread has found.
    let request = unsafe { (*slot.request.get()).assume_init() };
    word.store(FREE, Release);
    Some(request)
}

/// Returns the requests of this process: key word, key, slot and queue.
fn in_flight() -> impl Iterator<Item = (&'static AtomicU64, u64, &'static Slot, Queue)> {
    let used = if MAX_PROBE.load(Acquire) == 0 { 0 } else { SLOTS };
    let epoch = epoch();
    KEYS.iter().zip(&REQUESTS).take(used).filter_map(move |(word, slot)| {
        let found = word.load(Acquire);
        let interface = match slot.interface.load(Relaxed) {
            1 => Interface::Aio,
            2 => Interface::Libaio,
            _ => Interface::Uring,
        };
        let queue = Queue { interface, number: slot.number.load(Relaxed) };
        (found > RESERVED && slot.epoch.load(Relaxed) == epoch).then_some((word, found, slot, queue))
    })
}

/// Returns a queue of an interface that has requests in flight.
pub(crate) fn queue_of(interface: Interface) -> Option<Queue> {
    in_flight().map(|(_, _, _, queue)| queue).find(|queue| queue.interface == interface)
}

/// Records the requests whose completion will not be observed: those of a queue, or all.
pub(crate) fn abandon(queue: Option<Queue>) {
    for (word, found, slot, of) in in_flight() {
        if queue.is_none_or(|queue| queue == of)
            && let Some(request) = remove(word, found, slot)
        {
            request.complete_unseen();
        }
    }
}
