//! What lies in shared memory: slots and lane table entries.

use super::order;
use super::producer::Producer;
use super::sync::{AtomicU64, Word};
use miot_proto::event::WORDS;
use miot_proto::segment::LaneState;
use std::sync::atomic::Ordering::Relaxed;

/// One slot in shared memory.
#[cfg_attr(not(loom), repr(C, align(64)))]
pub(crate) struct Slot(pub(super) [Word; WORDS]);

impl Slot {
    #[inline(always)]
    pub(crate) fn put(&self, word: usize, value: u64) {
        self.0[word].put(value);
    }

    #[inline(always)]
    pub(crate) fn fill(&self, words: [u64; WORDS]) {
        for (at, value) in self.0.iter().zip(words) {
            at.put(value);
        }
    }
}

/// One entry of the lane table, as [`miot_proto::segment`] lays it out.
#[cfg_attr(not(loom), repr(C, align(256)))]
pub(crate) struct Lane {
    pub(super) tail: AtomicU64,
    pub(super) lost_full: AtomicU64,
    pub(super) lost_nested: AtomicU64,
    pub(super) attempts: AtomicU64,
    pub(super) in_flight: [AtomicU64; 5],
    pub(super) _producer: [AtomicU64; 7],
    pub(super) state: AtomicU64,
    pub(super) tid: AtomicU64,
    pub(super) slots_at: AtomicU64,
    pub(super) slots: AtomicU64,
    pub(super) start: AtomicU64,
    pub(super) claimed_ticks: AtomicU64,
    pub(super) comm: [AtomicU64; 2],
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
    assert!(offset_of!(Lane, in_flight) == at::INFLIGHT_OP && offset_of!(Lane, state) == at::STATE);
    assert!(offset_of!(Lane, tid) == at::TID && offset_of!(Lane, slots_at) == at::SLOTS_AT);
    assert!(offset_of!(Lane, slots) == at::SLOTS && offset_of!(Lane, start) == at::START);
    assert!(offset_of!(Lane, claimed_ticks) == at::CLAIMED_TICKS && offset_of!(Lane, comm) == at::COMM);
    assert!(offset_of!(Lane, head) == at::HEAD && offset_of!(Lane, drained) == at::DRAINED);
};

/// What a claim writes into the identity of a lane.
pub(crate) struct Identity {
    pub(crate) tid: u64,
    pub(crate) comm: [u64; 2],
    pub(crate) ticks: u64,
}

impl Lane {
    /// Sets up a lane table entry that was never used.
    pub(crate) fn place(&self, slots_at: u64, slots: u64) {
        self.slots_at.store(slots_at, Relaxed);
        self.slots.store(slots, Relaxed);
    }

    /// Where the slots are: offset in the segment, number.
    pub(crate) fn geometry(&self) -> (u64, u64) {
        (self.slots_at.load(Relaxed), self.slots.load(Relaxed))
    }

    /// True if the lane was retired and the consumer has drained it to its end.
    pub(crate) fn reusable(&self) -> bool {
        let state = self.state.load(Relaxed);
        state as u32 == LaneState::Retired as u32 && self.drained.load(order::reuse()) == state >> 32
    }

    /// Starts the next incarnation. Only for a lane that was just placed or is [`reusable`](Self::reusable).
    pub(crate) fn claim(&self, who: &Identity) -> Producer {
        let incarnation = (self.state.load(Relaxed) >> 32) + 1;
        let tail = self.tail.load(Relaxed) >> 1;
        self.start.store(tail, Relaxed);
        self.tid.store(who.tid, Relaxed);
        self.claimed_ticks.store(who.ticks, Relaxed);
        for (word, value) in self.comm.iter().zip(who.comm) {
            word.store(value, Relaxed);
        }
        for counter in [&self.lost_full, &self.lost_nested, &self.attempts] {
            counter.store(0, Relaxed);
        }
        self.state.store(LaneState::Claimed as u64 | incarnation << 32, order::claim());
        Producer { tail, head: tail, capacity: self.slots.load(Relaxed), attempts: 0, lost_full: 0 }
    }

    /// Ends the incarnation: nothing more will be committed in it.
    pub(crate) fn retire(&self, producer: &Producer) {
        self.attempts.store(producer.attempts, Relaxed);
        let incarnation = self.state.load(Relaxed) >> 32;
        self.state.store(LaneState::Retired as u64 | incarnation << 32, order::retire());
    }

    /// Counts a record that came from inside another one. The thread is the only writer.
    pub(crate) fn count_nested(&self) {
        self.lost_nested.store(self.lost_nested.load(Relaxed) + 1, Relaxed);
    }
}
