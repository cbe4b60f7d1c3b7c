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
        // By index: an iterator over references leaves a check for null.
        #[allow(clippy::needless_range_loop)]
        for word in 0..WORDS {
            self.0[word].put(words[word]);
        }
    }

    /// Slots of the record that starts here, as its producer wrote it.
    pub(super) fn record_slots(&self) -> u64 {
        u64::from((self.0[0].get() >> 8) as u8)
    }
}

/// What a request is about to do, as far as that is known when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Doing {
    /// Handle of the file, 0 if none.
    pub handle: u64,
    /// Byte offset, or the operation's own ([`miot_proto::op::ArgMeaning`]).
    pub offset: u64,
    /// Bytes asked for, or the operation's own.
    pub length: u64,
}

/// A request in flight, as [`miot_proto::segment::in_flight`] lays it out.
#[cfg_attr(not(loom), repr(C))]
pub(crate) struct InFlight {
    pub(super) request: AtomicU64,
    pub(super) begin: AtomicU64,
    pub(super) handle: AtomicU64,
    pub(super) offset: AtomicU64,
    pub(super) length: AtomicU64,
}

/// One entry of the lane table, as [`miot_proto::segment`] lays it out.
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
    /// Shows a request. The first word is stored last: when it is there, so is the rest.
    #[inline(always)]
    pub(crate) fn show(&self, word: u64, begin: u64, doing: Option<&Doing>) {
        self.begin.store(begin, Relaxed);
        match doing {
            Some(doing) => {
                self.offset.store(doing.offset, Relaxed);
                self.length.store(doing.length, Relaxed);
                self.handle.store(doing.handle, Relaxed);
            }
            None => self.handle.store(0, Relaxed),
        }
        self.request.store(word, order::show());
    }

    /// Changes the stamp of the request shown.
    #[inline(always)]
    pub(crate) fn stamp(&self, word: u64) {
        self.request.store(word, Relaxed);
    }

    /// Shows nothing.
    #[inline(always)]
    pub(crate) fn clear(&self) {
        self.request.store(0, Relaxed);
    }

    /// Shows what another lane's entry shows.
    fn show_as(&self, other: &InFlight) {
        let doing = Doing {
            handle: other.handle.load(Relaxed),
            offset: other.offset.load(Relaxed),
            length: other.length.load(Relaxed),
        };
        self.show(other.request.load(Relaxed), other.begin.load(Relaxed), Some(&doing));
    }
}

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

    /// Thread that has claimed it.
    pub(crate) fn tid(&self) -> u32 {
        self.tid.get() as u32
    }

    /// Where the slots are: offset in the segment, number.
    pub(crate) fn geometry(&self) -> (u64, u64) {
        (self.slots_at.load(Relaxed), self.slots.load(Relaxed))
    }

    /// True if nobody has claimed it yet.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.state.load(Relaxed) == LaneState::Free as u64
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
        self.start.put(tail);
        self.tid.put(who.tid);
        self.claimed_ticks.put(who.ticks);
        for (word, value) in self.comm.iter().zip(who.comm) {
            word.put(value);
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

    /// Ends the incarnation because its thread goes on in another lane, to which the request in flight that
    /// encloses others moves.
    pub(crate) fn move_to(&self, other: &Lane, producer: &Producer) {
        if self.enclosing.request.load(Relaxed) != 0 {
            other.enclosing.show_as(&self.enclosing);
        }
        self.in_flight.clear();
        self.enclosing.clear();
        self.retire(producer);
    }

    /// Ends the incarnation: nothing more will be committed in it. What is in flight is cut off.
    pub(crate) fn retire(&self, producer: &Producer) {
        self.attempts.store(producer.attempts, Relaxed);
        let incarnation = self.state.load(Relaxed) >> 32;
        self.state.store(LaneState::Retired as u64 | incarnation << 32, order::retire());
    }

    /// Counts a request that the filter leaves out. The thread is the only writer.
    pub(crate) fn count_filtered(&self) {
        self.filtered.store(self.filtered.load(Relaxed) + 1, order::count());
    }

    /// Counts a record that came from inside another one. The thread is the only writer.
    pub(crate) fn count_nested(&self) {
        self.lost_nested.store(self.lost_nested.load(Relaxed) + 1, Relaxed);
    }
}
