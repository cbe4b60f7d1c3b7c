//! Data in shared memory: slots and lane table entries.

use super::order;
use super::producer::Producer;
use super::sync::{AtomicU64, Word};
use miot_proto::event::{OnePath, SLOT_BYTES, WORDS, path_slots};
use miot_proto::segment::LaneState;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

/// One slot in shared memory.
#[cfg_attr(not(loom), repr(C, align(64)))]
pub(crate) struct Slot(pub(super) [Word; WORDS]);

impl Slot {
    #[inline(always)]
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.0[word].set(value);
    }

    #[inline(always)]
    pub(crate) fn set_all(&self, words: [u64; WORDS]) {
        // By index: an iterator over references leaves a check for null.
        #[allow(clippy::needless_range_loop)]
        for word in 0..WORDS {
            self.0[word].set(words[word]);
        }
    }

    /// Slots of the record that starts here, as written by its producer.
    pub(super) fn record_slots(&self) -> u64 {
        u64::from((self.0[0].get() >> 8) as u8)
    }
}

/// The slots of a lane: a power of two, addressed by positions that are never wrapped.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    slots: *const Slot,
    /// Number of slots - 1.
    mask: u64,
    lane: PhantomData<&'a [Slot]>,
}

impl<'a> Ring<'a> {
    /// The slots of a lane.
    ///
    /// # Panics
    /// If their number is not a power of two.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn new(slots: &'a [Slot]) -> Ring<'a> {
        assert!(slots.len().is_power_of_two());
        Ring { slots: slots.as_ptr(), mask: slots.len() as u64 - 1, lane: PhantomData }
    }

    /// The slots of a lane from their address and their number - 1.
    ///
    /// # Safety
    /// - `mask` + 1 must be a power of two, and `slots` must point to that many slots, which live
    ///   as long as `'a` and are only shared.
    #[inline(always)]
    pub(crate) unsafe fn from_parts(slots: *const Slot, mask: u64) -> Ring<'a> {
        Ring { slots, mask, lane: PhantomData }
    }

    /// Slot at a position.
    #[inline(always)]
    pub(crate) fn at(self, position: u64) -> &'a Slot {
        let index = (position & self.mask) as usize;
        // SAFETY: `add` and the reference require
        // - an index below the number of slots: it is masked with a power of two - 1, by the
        //   requirement of the constructors;
        // - slots that live as long as `'a` and are only shared: required there, too.
        unsafe { &*self.slots.add(index) }
    }

    /// Writes the extension that consists of one path, in the layout of
    /// [`miot_proto::event::write_path`], into the slots from `position` on.
    #[inline(always)]
    pub(crate) fn set_path(self, position: u64, only: OnePath<'_>) {
        let path = only.bytes();
        let slots = path_slots(path);
        let last = (position & self.mask).wrapping_add(slots as u64 - 1);
        let bytes = slots * SLOT_BYTES;
        if cfg!(any(target_endian = "big", loom)) || last > self.mask {
            return self.set_path_by_slots(position, only);
        }
        let first: *mut u8 = std::ptr::from_ref(self.at(position)).cast_mut().cast();
        // SAFETY: the writes require
        // - valid memory: the slots up to `last` are contiguous, checked above, and hold the length
        //   and the path; a slot has `SLOT_BYTES` bytes;
        // - no concurrent access of this process: only the thread that owns the lane accesses slots
        //   that are not committed, and the consumer reads by system calls;
        // - memory that may change behind a shared reference: a slot consists of atomics.
        unsafe {
            first.add(bytes - SLOT_BYTES).cast::<[u8; SLOT_BYTES]>().write([0; SLOT_BYTES]);
            first.cast::<u64>().write(only.header());
            copy_short(path, first.add(size_of::<u64>()));
        }
    }

    /// [`set_path`](Self::set_path) at the end of the ring.
    #[cold]
    #[inline(never)]
    fn set_path_by_slots(self, position: u64, path: OnePath<'_>) {
        miot_proto::event::write_path(path, |slot, words| {
            self.at(position.wrapping_add(slot as u64 - 1)).set_all(words);
        });
    }
}

/// Copies bytes as `memcpy` does, but without a call: after a system call of the program, libc's
/// code is seldom in the cache.
///
/// # Safety
/// - `to` must point to as many writable bytes, which do not overlap `from`.
#[inline(always)]
unsafe fn copy_short(from: &[u8], to: *mut u8) {
    type Chunk = [u8; 16];
    type Half = [u8; 8];
    let length = from.len();
    // SAFETY: the accesses require
    // - ranges within the slice and within as many bytes of `to`: each ends at the end of a whole
    //   chunk before the last one, or at the end.
    // The assembly is empty.
    unsafe {
        if length >= size_of::<Chunk>() {
            let last = length - size_of::<Chunk>();
            let mut at = 0;
            while at < last {
                to.add(at).cast::<Chunk>().write(from.as_ptr().add(at).cast::<Chunk>().read());
                at += size_of::<Chunk>();
                // Hides the number from the compiler, which would unroll the loop for long paths.
                at = std::hint::black_box(at);
            }
            to.add(last).cast::<Chunk>().write(from.as_ptr().add(last).cast::<Chunk>().read());
        } else if length >= size_of::<Half>() {
            let last = length - size_of::<Half>();
            to.cast::<Half>().write(from.as_ptr().cast::<Half>().read());
            to.add(last).cast::<Half>().write(from.as_ptr().add(last).cast::<Half>().read());
        } else {
            for (at, byte) in from.iter().enumerate() {
                to.add(at).write_volatile(*byte);
            }
        }
    }
}

/// Arguments of a request, as far as they are known when it begins.
#[derive(Clone, Copy, Debug)]
pub struct RequestArgs {
    /// Handle of the file, 0 if none.
    pub handle: u64,
    /// Byte offset, or as the operation defines it ([`miot_proto::op::ArgMeaning`]).
    pub offset: u64,
    /// Bytes requested, or as the operation defines it.
    pub length: u64,
}

/// A request in flight; layout: [`miot_proto::segment::in_flight`].
#[cfg_attr(not(loom), repr(C))]
pub(crate) struct InFlight {
    pub(super) request: AtomicU64,
    pub(super) begin: AtomicU64,
    pub(super) handle: AtomicU64,
    pub(super) offset: AtomicU64,
    pub(super) length: AtomicU64,
}

/// One entry of the lane table; layout: [`miot_proto::segment`].
#[cfg_attr(not(loom), repr(C, align(256)))]
pub(crate) struct Lane {
    pub(super) tail: AtomicU64,
    pub(super) lost_full: AtomicU64,
    pub(super) lost_nested: AtomicU64,
    pub(super) attempts: AtomicU64,
    pub(crate) in_flight: InFlight,
    pub(crate) enclosing: InFlight,
    pub(super) oldest: AtomicU64,
    pub(super) filtered: AtomicU64,
    pub(super) state: AtomicU64,
    pub(super) tid: Word,
    pub(super) slots_at: AtomicU64,
    pub(super) slots: AtomicU64,
    pub(super) start: Word,
    pub(super) claimed_ticks: Word,
    pub(super) comm: [Word; 2],
    pub(super) head: AtomicU64,
    pub(super) drained: AtomicU64,
    pub(super) _reader: [AtomicU64; 6],
}

#[cfg(not(loom))]
const _: () = {
    use miot_proto::segment::{LANE_BYTES, lane as at};
    use std::mem::offset_of;
    assert!(size_of::<Lane>() == LANE_BYTES && size_of::<Slot>() == miot_proto::event::SLOT_BYTES);
    assert!(offset_of!(Lane, tail) == at::TAIL && offset_of!(Lane, lost_full) == at::LOST_FULL);
    assert!(offset_of!(Lane, lost_nested) == at::LOST_NESTED && offset_of!(Lane, attempts) == at::ATTEMPTS);
    assert!(offset_of!(Lane, in_flight) == at::IN_FLIGHT && offset_of!(Lane, enclosing) == at::ENCLOSING);
    assert!(offset_of!(Lane, oldest) == at::OLDEST && offset_of!(Lane, filtered) == at::FILTERED);
    assert!(
        size_of::<InFlight>() == miot_proto::segment::IN_FLIGHT_BYTES && offset_of!(Lane, state) == at::STATE
    );
    assert!(offset_of!(Lane, tid) == at::TID && offset_of!(Lane, slots_at) == at::SLOTS_AT);
    assert!(offset_of!(Lane, slots) == at::SLOTS && offset_of!(Lane, start) == at::START);
    assert!(offset_of!(Lane, claimed_ticks) == at::CLAIMED_TICKS && offset_of!(Lane, comm) == at::COMM);
    assert!(offset_of!(Lane, head) == at::HEAD && offset_of!(Lane, drained) == at::DRAINED);
};

impl InFlight {
    /// Shows a request. The first word is stored last: a reader that sees it sees the others too.
    #[inline(always)]
    pub(crate) fn show(&self, word: u64, begin: u64, args: Option<&RequestArgs>) {
        self.begin.store(begin, Relaxed);
        match args {
            Some(args) => {
                self.offset.store(args.offset, Relaxed);
                self.length.store(args.length, Relaxed);
                self.handle.store(args.handle, Relaxed);
            }
            None => self.handle.store(0, Relaxed),
        }
        self.request.store(word, order::show());
    }

    /// Replaces the first word of the request shown.
    #[inline(always)]
    pub(crate) fn stamp(&self, word: u64) {
        self.request.store(word, Relaxed);
    }

    /// Removes the request shown.
    #[inline(always)]
    pub(crate) fn clear(&self) {
        self.request.store(0, Relaxed);
    }

    /// Shows the request of another lane's entry.
    fn copy_from(&self, other: &InFlight) {
        let args = RequestArgs {
            handle: other.handle.load(Relaxed),
            offset: other.offset.load(Relaxed),
            length: other.length.load(Relaxed),
        };
        self.show(other.request.load(Relaxed), other.begin.load(Relaxed), Some(&args));
    }
}

/// Owner of an incarnation: written to the lane by a claim.
pub(crate) struct LaneOwner {
    pub(crate) tid: u64,
    pub(crate) comm: [u64; 2],
    pub(crate) ticks: u64,
}

impl Lane {
    /// Announces a record at `tail`; see [`Producer::mark`].
    #[inline(always)]
    pub(crate) fn mark(&self, tail: u64) {
        self.tail.store(tail << 1 | 1, order::mark());
    }

    /// Publishes all slots below `tail`, and removes the mark.
    #[inline(always)]
    pub(crate) fn publish(&self, tail: u64) {
        self.tail.store(tail << 1, order::commit());
    }

    /// Sets the slots of a lane table entry that was never used: byte offset in the segment,
    /// number.
    pub(crate) fn set_slots(&self, slots_at: u64, slots: u64) {
        self.slots_at.store(slots_at, Relaxed);
        self.slots.store(slots, Relaxed);
    }

    /// Id of the thread that has claimed the lane.
    pub(crate) fn tid(&self) -> u32 {
        self.tid.get() as u32
    }

    /// Byte offset of the slots in the segment, and their number.
    pub(crate) fn geometry(&self) -> (u64, u64) {
        (self.slots_at.load(Relaxed), self.slots.load(Relaxed))
    }

    /// True if no thread has claimed the lane yet.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.state.load(Relaxed) == LaneState::Free as u64
    }

    /// True if the lane was retired and the consumer has drained it to its end.
    pub(crate) fn is_reusable(&self) -> bool {
        let state = self.state.load(Relaxed);
        state as u32 == LaneState::Retired as u32 && self.drained.load(order::reuse()) == state >> 32
    }

    /// Starts the next incarnation. Only for a lane that is new or
    /// [`is_reusable`](Self::is_reusable).
    pub(crate) fn claim(&self, owner: &LaneOwner) -> Producer {
        let incarnation = (self.state.load(Relaxed) >> 32) + 1;
        let tail = self.tail.load(Relaxed) >> 1;
        self.start.set(tail);
        self.tid.set(owner.tid);
        self.claimed_ticks.set(owner.ticks);
        for (word, value) in self.comm.iter().zip(owner.comm) {
            word.set(value);
        }
        for counter in [&self.lost_full, &self.lost_nested, &self.attempts, &self.filtered] {
            counter.store(0, Relaxed);
        }
        self.in_flight.clear();
        self.enclosing.clear();
        self.oldest.store(tail, Relaxed);
        self.tail.store(tail << 1, Relaxed);
        self.state.store(LaneState::Claimed as u64 | incarnation << 32, order::claim());
        Producer::new(tail, self.slots.load(Relaxed))
    }

    /// Ends the incarnation because its thread continues in another lane, to which the outermost
    /// request in flight moves.
    pub(crate) fn move_to(&self, other: &Lane, producer: &Producer) {
        if self.enclosing.request.load(Relaxed) != 0 {
            other.enclosing.copy_from(&self.enclosing);
        }
        self.in_flight.clear();
        self.enclosing.clear();
        self.retire(producer);
    }

    /// Ends the incarnation: no more records will be committed in it. Requests still shown as in
    /// flight count as interrupted.
    pub(crate) fn retire(&self, producer: &Producer) {
        self.attempts.store(producer.attempts, Relaxed);
        let incarnation = self.state.load(Relaxed) >> 32;
        self.state.store(LaneState::Retired as u64 | incarnation << 32, order::retire());
    }

    /// Counts a request that the filter excludes. The thread is the only writer of the counter.
    pub(crate) fn count_filtered(&self) {
        self.filtered.store(self.filtered.load(Relaxed) + 1, order::count());
    }

    /// Counts a record that was made during the recording of another one. The thread is the only
    /// writer of the counter.
    pub(crate) fn count_nested(&self) {
        self.lost_nested.store(self.lost_nested.load(Relaxed) + 1, Relaxed);
    }
}
