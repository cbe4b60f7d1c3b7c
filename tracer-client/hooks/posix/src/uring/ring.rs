//! Rings that the program shares with the kernel, and how far each has been looked at.
//!
//! A ring is found by the address of its submission queue's head, or by its descriptor where it was made by a system call and
//! mapped by `mmap`. Positions in both queues count up from 0 for as long as the ring lives, and the kernel says in memory
//! how far it has come. So whatever went past the hooks is known to have done so, and how often.

use super::Parameters;
use super::entry::Entry;
use crate::memory::peek;
use crate::pending::{self, Interface, Queue, Request};
use crate::real::Offset;
use miot_tracer::epoch;
use miot_tracer::op::posix;
use std::ffi::c_int;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Bytes of a submission queue entry, and of a completion.
pub(super) const ENTRY_BYTES: usize = 64;
const COMPLETION_BYTES: usize = 16;
/// Rings of a process that are looked at: programs have one, or one for each of their threads.
const RINGS: usize = 256;

/// Flags a ring is made with.
mod flag {
    /// Entries, and completions, of twice the size.
    pub(super) const ENTRY128: u32 = 1 << 10;
    pub(super) const COMPLETION32: u32 = 1 << 11;
    /// No array of indices beside the submission queue.
    pub(super) const NO_ARRAY: u32 = 1 << 16;
}

/// In [`Ring::state`].
mod state {
    pub(super) const FREE: u32 = 0;
    pub(super) const RESERVED: u32 = 1;
    pub(super) const USED: u32 = 2;
}

/// Where the parts of a ring lie; 0: not known yet.
#[derive(Clone, Copy, Default)]
pub(super) struct Places {
    pub(super) head: usize,
    pub(super) tail: usize,
    pub(super) mask: usize,
    pub(super) array: usize,
    pub(super) entries: usize,
    pub(super) completed: usize,
    pub(super) completed_mask: usize,
    pub(super) completions: usize,
}

/// A ring that is looked at.
pub(super) struct Ring {
    state: AtomicU32,
    /// Process image that uses it.
    epoch: AtomicU32,
    /// Its number as a [`Queue`].
    number: AtomicU64,
    /// −1 if it is not found by its descriptor.
    fd: AtomicI32,
    flags: AtomicU32,
    head: AtomicUsize,
    tail: AtomicUsize,
    mask: AtomicUsize,
    array: AtomicUsize,
    entries: AtomicUsize,
    completed: AtomicUsize,
    completed_mask: AtomicUsize,
    completions: AtomicUsize,
    /// Where in its mapping each of these lies, if the program maps the ring; in the order of [`Places`], without `entries`.
    offsets: [AtomicU32; 7],
    /// Both queues are in one mapping.
    single: AtomicBool,
    /// Submissions up to here have been looked at.
    submitted: AtomicU32,
    /// Of these so many had been taken by the kernel before.
    missed: AtomicU32,
    /// Completions up to here have been looked at.
    collected: AtomicU32,
}

// SAFETY: atomics, of which zero is a value.
static ALL: [Ring; RINGS] = unsafe { std::mem::zeroed() };
/// Rings from here on have never been used.
#[unsafe(link_section = ".data.miot")]
static USED: AtomicUsize = AtomicUsize::new(0);
static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn used() -> impl Iterator<Item = &'static Ring> {
    ALL.iter().take(USED.load(Acquire)).filter(|ring| ring.state.load(Acquire) == state::USED)
}

/// True if no ring was ever looked at.
pub(super) fn none() -> bool {
    USED.load(Relaxed) == 0
}

/// The ring of a descriptor, of this process image.
pub(super) fn of_descriptor(fd: c_int) -> Option<&'static Ring> {
    used().find(|ring| ring.fd.load(Relaxed) == fd && ring.epoch.load(Relaxed) == epoch())
}

/// The ring with its submission queue's head at an address.
pub(super) fn at(head: usize) -> Option<&'static Ring> {
    used().find(|ring| ring.head.load(Relaxed) == head)
}

/// A new ring. `None`: there are as many as are looked at.
pub(super) fn insert(fd: c_int, flags: u32, places: &Places) -> Option<&'static Ring> {
    let (at, ring) = ALL.iter().enumerate().find(|(_, ring)| {
        // Also in the place of one that a process had from which this one was forked.
        [state::FREE, state::USED].iter().any(|found| {
            (*found == state::FREE || ring.epoch.load(Relaxed) != epoch())
                && ring.state.compare_exchange(*found, state::RESERVED, AcqRel, Relaxed).is_ok()
        })
    })?;
    ring.epoch.store(epoch(), Relaxed);
    ring.number.store(NUMBERS.fetch_add(1, Relaxed) + 1, Relaxed);
    ring.fd.store(fd, Relaxed);
    ring.flags.store(flags, Relaxed);
    ring.submitted.store(0, Relaxed);
    ring.missed.store(0, Relaxed);
    ring.collected.store(0, Relaxed);
    ring.offsets.iter().for_each(|offset| offset.store(u32::MAX, Relaxed));
    ring.place(places);
    USED.fetch_max(at + 1, AcqRel);
    ring.state.store(state::USED, Release);
    Some(ring)
}

/// A ring that was made by a system call, and is mapped later.
pub(super) fn made(fd: c_int, parameters: &Parameters) {
    const SINGLE_MMAP: u32 = 1;
    // Its number was another ring's, which was closed.
    if let Some(earlier) = of_descriptor(fd) {
        earlier.fd.store(-1, Relaxed);
    }
    if let Some(ring) = insert(-1, parameters.flags, &Places::default()) {
        let [head, tail, mask, _, _, _, array, ..] = parameters.submission;
        let [_, completed, completed_mask, _, _, completions, ..] = parameters.completion;
        let offsets = [head, tail, mask, array, completed, completed_mask, completions];
        ring.offsets.iter().zip(offsets).for_each(|(offset, value)| offset.store(value, Relaxed));
        ring.single.store(parameters.features & SINGLE_MMAP != 0, Relaxed);
        ring.fd.store(fd, Relaxed);
    }
}

/// The ring that the program has mapped by itself, so that a mapping of it begins at an address.
pub(super) fn mapped_at(address: usize) -> Option<&'static Ring> {
    used().find(|ring| {
        ring.epoch.load(Relaxed) == epoch()
            && ring.completions.load(Relaxed) != 0
            && ring.is_mapped_at(address)
    })
}

/// A word that the kernel, or another thread, may be writing.
fn word(at: usize) -> u32 {
    // SAFETY: the word lies in a ring that is mapped as long as the program uses it, and is aligned.
    if at == 0 { 0 } else { unsafe { (*(at as *const AtomicU32)).load(Acquire) } }
}

impl Ring {
    pub(super) fn place(&self, places: &Places) {
        self.head.store(places.head, Relaxed);
        self.tail.store(places.tail, Relaxed);
        self.mask.store(places.mask, Relaxed);
        self.array.store(places.array, Relaxed);
        self.entries.store(places.entries, Relaxed);
        self.completed.store(places.completed, Relaxed);
        self.completed_mask.store(places.completed_mask, Relaxed);
        self.completions.store(places.completions, Relaxed);
    }

    pub(super) fn places(&self) -> Places {
        Places {
            head: self.head.load(Relaxed),
            tail: self.tail.load(Relaxed),
            mask: self.mask.load(Relaxed),
            array: self.array.load(Relaxed),
            entries: self.entries.load(Relaxed),
            completed: self.completed.load(Relaxed),
            completed_mask: self.completed_mask.load(Relaxed),
            completions: self.completions.load(Relaxed),
        }
    }

    fn queue(&self) -> Queue {
        Queue { interface: Interface::Uring, number: self.number.load(Relaxed) }
    }

    /// Finds out whether it still is what it was.
    pub(super) fn check(&self) {
        self.adopt();
        let (tail, seen) = (word(self.tail.load(Relaxed)), self.submitted.load(Relaxed));
        let behind = seen.wrapping_sub(tail);
        // By less than the queue's size it is while another thread submits.
        if behind as i32 > 0 && behind > word(self.mask.load(Relaxed)) + 1 {
            // A new ring in the place of one that went unseen.
            self.number.store(NUMBERS.fetch_add(1, Relaxed) + 1, Relaxed);
            self.missed.store(0, Relaxed);
            self.submitted.store(0, Relaxed);
            self.collected.store(0, Relaxed);
        }
    }

    /// The program has mapped a part of it.
    pub(super) fn map(&self, offset: Offset, address: usize) {
        const SUBMISSION: Offset = 0;
        const COMPLETION: Offset = 0x800_0000;
        const ENTRIES: Offset = 0x1000_0000;
        let at = |which: usize| {
            self.offsets.get(which).map_or(0, |offset| address + offset.load(Relaxed) as usize)
        };
        let mut places = self.places();
        if offset == SUBMISSION {
            places = Places { head: at(0), tail: at(1), mask: at(2), array: at(3), ..places };
        }
        if offset == COMPLETION || offset == SUBMISSION && self.single.load(Relaxed) {
            places = Places { completed: at(4), completed_mask: at(5), completions: at(6), ..places };
        }
        if offset == ENTRIES {
            places.entries = address;
        }
        self.place(&places);
    }

    /// True if one of its mappings begins at an address.
    fn is_mapped_at(&self, address: usize) -> bool {
        let places = self.places();
        let start = |place: usize, which: usize| {
            place.wrapping_sub(self.offsets.get(which).map_or(0, |offset| offset.load(Relaxed) as usize))
        };
        [start(places.head, 0), start(places.completions, 6), places.entries].contains(&address)
    }

    /// The process image that uses it is another one than so far: a child goes on with its parent's ring. What it finds
    /// there is not its own.
    pub(super) fn adopt(&self) {
        let found = self.epoch.load(Relaxed);
        if found != epoch() && self.epoch.compare_exchange(found, epoch(), AcqRel, Relaxed).is_ok() {
            self.number.store(NUMBERS.fetch_add(1, Relaxed) + 1, Relaxed);
            self.submitted.store(word(self.head.load(Relaxed)), Relaxed);
            self.collected.store(word(self.completed.load(Relaxed)), Relaxed);
        }
    }

    /// Remembers what is about to be submitted: what the program has put into the queue, and from `pending` on so many
    /// entries that a library will put there.
    pub(super) fn submit(&self, (pending, more): (u32, u32)) {
        let places = self.places();
        if places.head == 0 || places.entries == 0 {
            return;
        }
        let tail = word(places.tail);
        let end = tail.wrapping_add(more);
        let seen = self.submitted.load(Acquire);
        // The kernel has taken some that were submitted without us.
        let ahead = word(places.head).wrapping_sub(seen);
        let ahead = if (ahead as i32) < 0 { 0 } else { ahead };
        let start = seen.wrapping_add(ahead);
        if seen == end || self.submitted.compare_exchange(seen, end, AcqRel, Relaxed).is_err() {
            return;
        }
        self.missed.fetch_add(ahead, Relaxed);
        let (mask, flags) = (word(places.mask), self.flags.load(Relaxed));
        // More than the queue has room for there cannot be.
        for distance in 0..end.wrapping_sub(start).min(mask.wrapping_add(1)) {
            let position = start.wrapping_add(distance);
            let index = match position.wrapping_sub(tail) {
                after if (after as i32) >= 0 => pending.wrapping_add(after) & mask,
                _ if flags & flag::NO_ARRAY != 0 || places.array == 0 => position & mask,
                _ => word(places.array + 4 * (position & mask) as usize),
            };
            if index <= mask {
                let at = places.entries
                    + ((index as usize * ENTRY_BYTES) << u32::from(flags & flag::ENTRY128 != 0));
                // SAFETY: an entry of the ring; its thread is in the call that submits it.
                self.remember(&unsafe { (at as *const Entry).read() });
            }
        }
    }

    fn remember(&self, entry: &Entry) {
        let Some(request) = entry.begin() else { return };
        if entry.is_silent() || !pending::remember(self.queue(), entry.user_data, &request) {
            request.unseen();
        }
    }

    /// Looks at what has completed since the last look. Completions that the program has taken already are still there until
    /// the kernel has gone round.
    pub(super) fn collect(&self) {
        let places = self.places();
        if places.completions == 0 {
            return;
        }
        let seen = self.collected.load(Acquire);
        let tail = word(places.completed);
        if seen == tail || self.collected.compare_exchange(seen, tail, AcqRel, Relaxed).is_err() {
            return;
        }
        let mask = word(places.completed_mask);
        let wide = u32::from(self.flags.load(Relaxed) & flag::COMPLETION32 != 0);
        for distance in 0..tail.wrapping_sub(seen).min(mask) {
            let position = tail.wrapping_sub(tail.wrapping_sub(seen).min(mask)).wrapping_add(distance);
            let at = places.completions + (((position & mask) as usize * COMPLETION_BYTES) << wide);
            // SAFETY: a completion of the ring; the kernel may be writing it, then it is not used.
            let (user_data, result) =
                unsafe { ((at as *const u64).read_volatile(), (at as *const i32).add(2).read_volatile()) };
            if word(places.completed).wrapping_sub(position) > mask {
                continue;
            }
            if let Some(request) = pending::take(self.queue().key(user_data)) {
                request.complete(i64::from(result));
            }
        }
    }

    /// The program is about to be done with the ring.
    pub(super) fn finish(&self) {
        self.collect();
        let (head, seen) = (word(self.head.load(Relaxed)), self.submitted.load(Relaxed));
        let ahead = head.wrapping_sub(seen);
        let missed = self.missed.load(Relaxed) + if (ahead as i32) < 0 { 0 } else { ahead };
        pending::abandon(Some(self.queue()));
        if missed != 0
            && let Some(request) = Request::of(posix::URING_UNSEEN)
        {
            request.refused(i64::from(missed));
        }
        let _ = self.state.compare_exchange(state::USED, state::FREE, AcqRel, Relaxed);
    }
}

/// The program ends: rings that are still there.
pub(super) fn finish() {
    for ring in used().filter(|ring| ring.epoch.load(Relaxed) == epoch()) {
        let Places { head, completed, completions, .. } = ring.places();
        let is_there = |at: usize| at != 0 && peek(at as *const u32).is_some();
        if is_there(head) && is_there(completed) && is_there(completions) {
            ring.finish();
        }
    }
}
