//! Table of the rings that the program shares with the kernel, with the positions up to which each
//! has been read.
//!
//! A ring is found by the address of its submission queue's head, or by its descriptor if it was
//! created by a system call and mapped by `mmap`. Positions in both queues count up from 0 during
//! the life of the ring, and the kernel writes its own positions to the shared memory. Therefore
//! requests that bypassed the hooks are detected and counted.

#![expect(clippy::disallowed_types, reason = "state of rings, and the queues that the kernel shares")]

use super::Parameters;
use super::entry::SubmissionEntry;
use crate::memory::peek;
use crate::pending::{self, Interface, PendingRequest, Queue};
use crate::real::Offset;
use miot_tracer::epoch;
use miot_tracer::op::posix;
use std::ffi::c_int;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Size of a submission queue entry, and of a completion, in bytes.
pub(super) const ENTRY_BYTES: usize = 64;
const COMPLETION_BYTES: usize = 16;
/// Capacity of the table: programs have one ring, or one for each thread.
const RINGS: usize = 256;

/// Flags of a ring: `IORING_SETUP_*`.
mod flag {
    /// Entries, and completions, have twice the size.
    pub(super) const ENTRY128: u32 = 1 << 10;
    pub(super) const COMPLETION32: u32 = 1 << 11;
    /// The submission queue has no array of indices.
    pub(super) const NO_ARRAY: u32 = 1 << 16;
}

/// Values of [`Ring::state`].
mod state {
    pub(super) const FREE: u32 = 0;
    pub(super) const RESERVED: u32 = 1;
    pub(super) const USED: u32 = 2;
}

/// Addresses of the parts of a ring; 0 if not known yet.
#[derive(Clone, Copy, Default)]
pub(super) struct RingAddresses {
    pub(super) head: usize,
    pub(super) tail: usize,
    pub(super) mask: usize,
    pub(super) array: usize,
    pub(super) entries: usize,
    pub(super) completed: usize,
    pub(super) completed_mask: usize,
    pub(super) completions: usize,
}

/// An entry of the table.
pub(super) struct Ring {
    state: AtomicU32,
    /// Process image that uses the ring.
    epoch: AtomicU32,
    /// Number of the ring as a [`Queue`].
    number: AtomicU64,
    /// Descriptor; −1 if the ring is not found by it.
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
    /// Offset of each part in its mapping, in bytes, if the program maps the ring. The order is
    /// that of [`RingAddresses`], without `entries`.
    offsets: [AtomicU32; 7],
    /// Whether both queues are in one mapping.
    single: AtomicBool,
    /// Position up to which submissions have been read.
    submitted: AtomicU32,
    /// Number of these that the kernel had taken before.
    missed: AtomicU32,
    /// Position up to which completions have been read.
    collected: AtomicU32,
}

// SAFETY:
// - All fields are atomics, for which zero is a valid value.
static ALL: [Ring; RINGS] = unsafe { std::mem::zeroed() };
/// Number of entries that have ever been used.
#[unsafe(link_section = ".data.miot")]
static USED: AtomicUsize = AtomicUsize::new(0);
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Returns whether any entry has ever been used.
#[inline(always)]
pub(super) fn is_used() -> bool {
    USED.load(Relaxed) != 0
}

fn used() -> impl Iterator<Item = &'static Ring> {
    ALL.iter().take(USED.load(Acquire)).filter(|ring| ring.state.load(Acquire) == state::USED)
}

/// Returns whether no ring was ever tracked.
pub(super) fn is_unused() -> bool {
    USED.load(Relaxed) == 0
}

/// Returns the ring of a descriptor in this process image.
pub(super) fn of_descriptor(fd: c_int) -> Option<&'static Ring> {
    used().find(|ring| ring.fd.load(Relaxed) == fd && ring.epoch.load(Relaxed) == epoch())
}

/// Returns the ring with its submission queue's head at an address.
pub(super) fn with_head_at(head: usize) -> Option<&'static Ring> {
    used().find(|ring| ring.head.load(Relaxed) == head)
}

/// Adds a ring. `None` if the table is full.
pub(super) fn insert(fd: c_int, flags: u32, addresses: &RingAddresses) -> Option<&'static Ring> {
    let (at, ring) = ALL.iter().enumerate().find(|(_, ring)| {
        // An entry of the process that forked may be reused.
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
    ring.set_addresses(addresses);
    USED.fetch_max(at + 1, AcqRel);
    ring.state.store(state::USED, Release);
    Some(ring)
}

/// Adds a ring that was created by a system call and is mapped later.
pub(super) fn track_created(fd: c_int, parameters: &Parameters) {
    /// `IORING_FEAT_SINGLE_MMAP`.
    const SINGLE_MMAP: u32 = 1;
    // An earlier ring with this descriptor was closed.
    if let Some(earlier) = of_descriptor(fd) {
        earlier.fd.store(-1, Relaxed);
    }
    if let Some(ring) = insert(-1, parameters.flags, &RingAddresses::default()) {
        let [head, tail, mask, _, _, _, array, ..] = parameters.submission;
        let [_, completed, completed_mask, _, _, completions, ..] = parameters.completion;
        let offsets = [head, tail, mask, array, completed, completed_mask, completions];
        ring.offsets.iter().zip(offsets).for_each(|(offset, value)| offset.store(value, Relaxed));
        ring.single.store(parameters.features & SINGLE_MMAP != 0, Relaxed);
        ring.fd.store(fd, Relaxed);
    }
}

/// Returns the ring that the program has mapped itself and that has a mapping at this address.
pub(super) fn mapped_at(address: usize) -> Option<&'static Ring> {
    used().find(|ring| {
        ring.epoch.load(Relaxed) == epoch()
            && ring.completions.load(Relaxed) != 0
            && ring.is_mapped_at(address)
    })
}

/// Reads a word that the kernel or another thread may write concurrently; 0 for a null address.
fn load_word(at: usize) -> u32 {
    // SAFETY:
    // - The word is in a ring, which is mapped as long as the program uses it.
    // - The word is aligned.
    if at == 0 { 0 } else { unsafe { (*(at as *const AtomicU32)).load(Acquire) } }
}

impl Ring {
    pub(super) fn set_addresses(&self, addresses: &RingAddresses) {
        self.head.store(addresses.head, Relaxed);
        self.tail.store(addresses.tail, Relaxed);
        self.mask.store(addresses.mask, Relaxed);
        self.array.store(addresses.array, Relaxed);
        self.entries.store(addresses.entries, Relaxed);
        self.completed.store(addresses.completed, Relaxed);
        self.completed_mask.store(addresses.completed_mask, Relaxed);
        self.completions.store(addresses.completions, Relaxed);
    }

    pub(super) fn addresses(&self) -> RingAddresses {
        RingAddresses {
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

    /// Restarts the entry if the program has replaced the ring by a new one.
    pub(super) fn restart_if_replaced(&self) {
        self.adopt();
        let (tail, seen) = (load_word(self.tail.load(Relaxed)), self.submitted.load(Relaxed));
        let behind = seen.wrapping_sub(tail);
        // A smaller difference occurs while another thread submits.
        if behind as i32 > 0 && behind > load_word(self.mask.load(Relaxed)) + 1 {
            // A new ring at the address of one whose end was not observed.
            self.number.store(NUMBERS.fetch_add(1, Relaxed) + 1, Relaxed);
            self.missed.store(0, Relaxed);
            self.submitted.store(0, Relaxed);
            self.collected.store(0, Relaxed);
        }
    }

    /// Stores the addresses of a part of the ring that the program has mapped.
    pub(super) fn on_mmap(&self, offset: Offset, address: usize) {
        const SUBMISSION: Offset = 0;
        const COMPLETION: Offset = 0x800_0000;
        const ENTRIES: Offset = 0x1000_0000;
        let at = |which: usize| {
            self.offsets.get(which).map_or(0, |offset| address + offset.load(Relaxed) as usize)
        };
        let mut addresses = self.addresses();
        if offset == SUBMISSION {
            addresses = RingAddresses { head: at(0), tail: at(1), mask: at(2), array: at(3), ..addresses };
        }
        if offset == COMPLETION || offset == SUBMISSION && self.single.load(Relaxed) {
            addresses =
                RingAddresses { completed: at(4), completed_mask: at(5), completions: at(6), ..addresses };
        }
        if offset == ENTRIES {
            addresses.entries = address;
        }
        self.set_addresses(&addresses);
    }

    /// Returns whether one of its mappings starts at an address.
    fn is_mapped_at(&self, address: usize) -> bool {
        let addresses = self.addresses();
        let start = |part: usize, which: usize| {
            part.wrapping_sub(self.offsets.get(which).map_or(0, |offset| offset.load(Relaxed) as usize))
        };
        [start(addresses.head, 0), start(addresses.completions, 6), addresses.entries].contains(&address)
    }

    /// Assigns the ring to this process image if another one has used it: a child continues with
    /// its parent's ring. Requests that are in the ring already belong to the parent.
    pub(super) fn adopt(&self) {
        let found = self.epoch.load(Relaxed);
        if found != epoch() && self.epoch.compare_exchange(found, epoch(), AcqRel, Relaxed).is_ok() {
            self.number.store(NUMBERS.fetch_add(1, Relaxed) + 1, Relaxed);
            self.submitted.store(load_word(self.head.load(Relaxed)), Relaxed);
            self.collected.store(load_word(self.completed.load(Relaxed)), Relaxed);
        }
    }

    /// Begins the requests that are about to be submitted: those in the queue, and `unqueued`
    /// entries from index `first_unqueued` on that a library will add to the queue.
    pub(super) fn record_submissions(&self, first_unqueued: u32, unqueued: u32) {
        let addresses = self.addresses();
        if addresses.head == 0 || addresses.entries == 0 {
            return;
        }
        let tail = load_word(addresses.tail);
        let end = tail.wrapping_add(unqueued);
        let seen = self.submitted.load(Acquire);
        // The kernel has taken entries that were submitted without a hook.
        let ahead = load_word(addresses.head).wrapping_sub(seen);
        let ahead = if (ahead as i32) < 0 { 0 } else { ahead };
        let start = seen.wrapping_add(ahead);
        if seen == end || self.submitted.compare_exchange(seen, end, AcqRel, Relaxed).is_err() {
            return;
        }
        self.missed.fetch_add(ahead, Relaxed);
        let (mask, flags) = (load_word(addresses.mask), self.flags.load(Relaxed));
        // There cannot be more entries than the capacity of the queue.
        for distance in 0..end.wrapping_sub(start).min(mask.wrapping_add(1)) {
            let position = start.wrapping_add(distance);
            let index = match position.wrapping_sub(tail) {
                after if (after as i32) >= 0 => first_unqueued.wrapping_add(after) & mask,
                _ if flags & flag::NO_ARRAY != 0 || addresses.array == 0 => position & mask,
                _ => load_word(addresses.array + 4 * (position & mask) as usize),
            };
            if index <= mask {
                let at = addresses.entries
                    + ((index as usize * ENTRY_BYTES) << u32::from(flags & flag::ENTRY128 != 0));
                // SAFETY:
                // - The index is within the queue, so the address is that of an entry of the ring.
                // - The thread that has written the entry is in the call that submits it.
                self.begin_request(&unsafe { (at as *const SubmissionEntry).read() });
            }
        }
    }

    fn begin_request(&self, entry: &SubmissionEntry) {
        let Some(request) = entry.begin() else { return };
        if entry.is_silent() || !pending::store(self.queue(), entry.user_data, request) {
            request.complete_unseen();
        }
    }

    /// Records the requests that have completed since the previous call. Completions that the
    /// program has taken already remain in memory until the kernel overwrites them.
    pub(super) fn record_completions(&self) {
        let addresses = self.addresses();
        if addresses.completions == 0 {
            return;
        }
        let seen = self.collected.load(Acquire);
        let tail = load_word(addresses.completed);
        if seen == tail || self.collected.compare_exchange(seen, tail, AcqRel, Relaxed).is_err() {
            return;
        }
        let mask = load_word(addresses.completed_mask);
        let size_shift = u32::from(self.flags.load(Relaxed) & flag::COMPLETION32 != 0);
        for distance in 0..tail.wrapping_sub(seen).min(mask) {
            let position = tail.wrapping_sub(tail.wrapping_sub(seen).min(mask)).wrapping_add(distance);
            let at = addresses.completions + (((position & mask) as usize * COMPLETION_BYTES) << size_shift);
            // SAFETY:
            // - The index is within the queue, so the address is that of a completion of the ring.
            // - If the kernel writes it concurrently, the check below discards the values.
            let (user_data, result) =
                unsafe { ((at as *const u64).read_volatile(), (at as *const i32).add(2).read_volatile()) };
            if load_word(addresses.completed).wrapping_sub(position) > mask {
                continue;
            }
            if let Some(request) = pending::take_oldest(self.queue().key(user_data)) {
                request.complete(i64::from(result));
            }
        }
    }

    /// Records the pending requests of a ring that the program is about to destroy, and removes the
    /// ring.
    pub(super) fn finish(&self) {
        self.record_completions();
        let (head, seen) = (load_word(self.head.load(Relaxed)), self.submitted.load(Relaxed));
        let ahead = head.wrapping_sub(seen);
        let missed = self.missed.load(Relaxed) + if (ahead as i32) < 0 { 0 } else { ahead };
        pending::abandon(Some(self.queue()));
        if missed != 0
            && let Some(mut request) = PendingRequest::begin(posix::URING_UNSEEN)
        {
            request.record_refused(i64::from(missed));
        }
        let _ = self.state.compare_exchange(state::USED, state::FREE, AcqRel, Relaxed);
    }
}

/// Records the pending requests of the remaining rings when the program ends.
pub(super) fn finish() {
    for ring in used().filter(|ring| ring.epoch.load(Relaxed) == epoch()) {
        let RingAddresses { head, completed, completions, .. } = ring.addresses();
        let is_mapped = |at: usize| at != 0 && peek(at as *const u32).is_some();
        if is_mapped(head) && is_mapped(completed) && is_mapped(completions) {
            ring.finish();
        }
    }
}
