//! Requests between their submission and their completion, which two calls make, often in two threads.
//!
//! A table of fixed size without locks: nothing is allocated, a signal handler may use it at any point, and a program that makes
//! no such request touches none of it. A request is found by its [`Key`]; of several with the same one (`user_data` of
//! io_uring is the program's own) the oldest is taken first. What a child inherits by `fork` is its parent's: no key of
//! the child finds it, and its place is used again when it is needed.
//!
//! **What is not seen to complete** is recorded with the result −EINPROGRESS: at once if the table has no room, else when
//! the program destroys what it was submitted to, uses its block again, or ends by `exit`.

use crate::description::Description;
use crate::request::unaligned;
use crate::vfork;
use miot_tracer::op::OpClass;
use miot_tracer::{Caller, Done, Ext, NONE, Op, Submitted, complete, epoch, flag, record, submit, ticks};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Requests under way that are remembered: several times what io_uring (128 by default in fio) and libaio have in their queues.
const SLOTS: usize = 4096;
/// Slots looked at for one key.
const WINDOW: usize = 128;
/// In `KEYS`: nothing there; somebody is reading or writing the request.
const FREE: u64 = 0;
const RESERVED: u64 = 1;

/// What completes requests.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Interface {
    /// POSIX: a request is known by its block; there is one queue.
    Aio = 1,
    /// By queue (context) and block.
    Libaio = 2,
    /// By queue (ring) and `user_data`.
    Uring = 3,
}

/// A queue that requests are submitted to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) interface: Interface,
    /// Number of the queue: its context, its ring; 0 if there is one only.
    pub(crate) number: u64,
}

/// A request under way.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) submitted: Submitted,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Of the file it is made on.
    pub(crate) flags: u16,
    /// Second file; [`NONE`] if none.
    pub(crate) handle2: u64,
    pub(crate) offset2: u64,
    /// For whom it is made, if it was submitted within no other request.
    pub(crate) caller: Option<Caller>,
}

impl Request {
    /// A request on a file that is about to be submitted. `None`: it is not to be recorded.
    pub(crate) fn on(op: Op, file: &Description, offset: u64, length: u64) -> Option<Request> {
        let (handle, flags) = (file.handle(), file.flags());
        let appends = op.class() == OpClass::Write && flags & flag::APPEND != 0;
        let offset = if appends { NONE } else { offset };
        let request = Request::of(op)?;
        let caller = file.caller().filter(|_| request.submitted.is_outermost());
        Some(Request { handle, offset, length, flags, caller, ..request })
    }

    /// The same, from or to a buffer at this address.
    pub(crate) fn with_buffer(self, address: u64) -> Request {
        let flags = self.flags | unaligned(address as *const c_void);
        Request { flags, ..self }
    }

    /// The same without file and offset.
    pub(crate) fn of(op: Op) -> Option<Request> {
        let submitted = if vfork::in_child() { None } else { submit(op) };
        let none = |submitted| Request {
            op,
            submitted,
            handle: 0,
            offset: NONE,
            length: NONE,
            flags: 0,
            handle2: NONE,
            offset2: NONE,
            caller: None,
        };
        submitted.map(none)
    }

    /// The request was not accepted.
    pub(crate) fn refused(&self, result: i64) {
        record(self.op, self.submitted.ticks(), ticks(), self.done(result), &Ext::default());
    }

    /// The request has been seen to be complete.
    pub(crate) fn complete(&self, result: i64) {
        let second = |word: u64| (self.handle2 != NONE).then_some(word);
        let (handle2, offset2) = (second(self.handle2), second(self.offset2));
        let ext = Ext { handle2, offset2, caller: self.caller, ..Ext::default() };
        complete(self.submitted, self.done(result), &ext);
    }

    /// Nobody will see it complete.
    pub(crate) fn unseen(&self) {
        self.complete(-i64::from(libc::EINPROGRESS));
    }

    fn done(&self, result: i64) -> Done {
        Done { handle: self.handle, offset: self.offset, length: self.length, result, flags: self.flags }
    }
}

/// Stands for a request while it is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Queue {
    /// The key of the request that this queue knows by `id`. 64 bits of a hash that has the process image in it: two
    /// requests under way do not share one by chance.
    pub(crate) fn key(self, id: u64) -> Key {
        let image = u64::from(epoch()) << 8 | u64::from(self.interface as u32);
        Key(mix(id ^ mix(self.number ^ mix(image))).max(RESERVED + 1))
    }
}

/// The finalizer of `SplitMix64` (Steele, Lea, Flood 2014): one to one, each bit depends on each.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

struct Slot {
    /// Whoever has put [`RESERVED`] into the slot's key may use it.
    request: UnsafeCell<Option<Request>>,
    /// The order of requests with the same key.
    begun: AtomicU64,
    /// Process image that submitted it.
    epoch: AtomicU32,
    /// Its queue.
    interface: AtomicU32,
    number: AtomicU64,
}

// SAFETY: `request` is used by one thread at a time, see there.
unsafe impl Sync for Slot {}

/// Apart from the rest, so that a search reads few cache lines.
static KEYS: [AtomicU64; SLOTS] = [const { AtomicU64::new(FREE) }; SLOTS];
static REQUESTS: [Slot; SLOTS] = [const {
    Slot {
        request: UnsafeCell::new(None),
        begun: AtomicU64::new(0),
        epoch: AtomicU32::new(0),
        interface: AtomicU32::new(0),
        number: AtomicU64::new(0),
    }
}; SLOTS];
/// So many slots from where a key starts to look have ever been used.
#[unsafe(link_section = ".data.miot")]
static REACH: AtomicUsize = AtomicUsize::new(0);

/// A key's slots, from where it starts to look.
fn slots(key: Key, reach: usize) -> impl Iterator<Item = (&'static AtomicU64, &'static Slot)> {
    let places = (0..reach).map(move |distance| (key.0 as usize).wrapping_add(distance) % SLOTS);
    places.filter_map(|at| Some((KEYS.get(at)?, REQUESTS.get(at)?)))
}

/// Remembers a request that is about to be submitted. False: there is no room.
pub(crate) fn remember(queue: Queue, id: u64, request: &Request) -> bool {
    let (key, epoch) = (queue.key(id), epoch());
    let reserve = |word: &AtomicU64, found| word.compare_exchange(found, RESERVED, AcqRel, Relaxed).is_ok();
    let free = |word: &AtomicU64, _: &Slot| word.load(Relaxed) == FREE && reserve(word, FREE);
    // What the process that forked had under way.
    let stale = |word: &AtomicU64, slot: &Slot| {
        let found = word.load(Acquire);
        found > RESERVED && slot.epoch.load(Relaxed) != epoch && reserve(word, found)
    };
    let mut all = slots(key, WINDOW).enumerate();
    let found = all.find(|(_, (word, slot))| free(word, slot));
    let found = found.or_else(|| slots(key, WINDOW).enumerate().find(|(_, (word, slot))| stale(word, slot)));
    let Some((distance, (word, slot))) = found else { return false };
    // SAFETY: reserved by this thread just now.
    unsafe { *slot.request.get() = Some(*request) };
    slot.begun.store(request.submitted.ticks(), Relaxed);
    slot.epoch.store(epoch, Relaxed);
    slot.interface.store(queue.interface as u32, Relaxed);
    slot.number.store(queue.number, Relaxed);
    REACH.fetch_max(distance + 1, AcqRel);
    word.store(key.0, Release);
    true
}

/// True if a request with this key is under way.
pub(crate) fn holds(key: Key) -> bool {
    slots(key, REACH.load(Acquire)).any(|(word, _)| word.load(Acquire) == key.0)
}

/// Takes out the oldest request with this key.
pub(crate) fn take(key: Key) -> Option<Request> {
    loop {
        let alike = slots(key, REACH.load(Acquire)).filter(|(word, _)| word.load(Acquire) == key.0);
        let (word, slot) = alike.min_by_key(|(_, slot)| slot.begun.load(Relaxed))?;
        // Unless another thread, or a signal handler, has been faster.
        if let Some(request) = take_out(word, key.0, slot) {
            return Some(request);
        }
    }
}

fn take_out(word: &AtomicU64, found: u64, slot: &Slot) -> Option<Request> {
    word.compare_exchange(found, RESERVED, AcqRel, Relaxed).ok()?;
    // SAFETY: reserved by this thread just now.
    let request = unsafe { *slot.request.get() };
    word.store(FREE, Release);
    request
}

/// The requests of this process, and their queues.
fn under_way() -> impl Iterator<Item = (&'static AtomicU64, u64, &'static Slot, Queue)> {
    let used = if REACH.load(Acquire) == 0 { 0 } else { SLOTS };
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

/// A queue of this kind that has requests under way, other than `not`.
pub(crate) fn queue_of(interface: Interface) -> Option<Queue> {
    under_way().map(|(_, _, _, queue)| queue).find(|queue| queue.interface == interface)
}

/// Records the requests that nobody will see complete: those of a queue, or all.
pub(crate) fn abandon(queue: Option<Queue>) {
    for (word, found, slot, of) in under_way() {
        if queue.is_none_or(|queue| queue == of)
            && let Some(request) = take_out(word, found, slot)
        {
            request.unseen();
        }
    }
}
