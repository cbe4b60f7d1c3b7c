//! The lane: a circular buffer of 64-byte slots with one producer (a thread) and one consumer (the
//! log-client, in another process).
//!
//! **Wait-free and crash-proof:** a record is published by one store; a producer killed before it leaves
//! nothing to repair. This module knows neither pointers nor mappings, so that a model checker can run it.
//!
//! Orders, in pairs (consumer: `miot_log_client`, which reads with `pread` and writes with `pwrite`; a
//! system call is at least an acquire and a release):
//!
//! | here | order | pairs with | why |
//! |---|---|---|---|
//! | slot words, [`Slot::put`] | relaxed store | copy of the slots | ordered by the tail; atomic so that a peer that misbehaves is not a data race |
//! | `tail`, [`Producer::commit`] | release store | first read of `tail` | publishes the slots |
//! | `head`, [`Producer::refresh`] | acquire load | write of `head` after the copy | a slot is not overwritten before it was copied |
//! | `state`, [`Lane::claim`] | release store | read of `state` | the identity is complete when it is seen |
//! | `state`, [`Lane::retire`] | release store | read of `state` before `tail` | the last tail is final |
//! | `drained`, [`Lane::reusable`] | acquire load | write of `drained` after the last copy | a lane is claimed again only when empty |

use miot_proto::event::WORDS;
use miot_proto::segment::{LANE_BYTES, LaneState, lane as at};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// One slot in shared memory.
#[repr(C, align(64))]
pub(crate) struct Slot([AtomicU64; WORDS]);

impl Slot {
    #[inline(always)]
    pub(crate) fn put(&self, word: usize, value: u64) {
        self.0[word].store(value, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn fill(&self, words: [u64; WORDS]) {
        for (at, value) in self.0.iter().zip(words) {
            at.store(value, Relaxed);
        }
    }
}

/// One entry of the lane table, as [`miot_proto::segment`] lays it out.
#[repr(C, align(256))]
pub(crate) struct Lane {
    tail: AtomicU64,
    lost_full: AtomicU64,
    lost_nested: AtomicU64,
    attempts: AtomicU64,
    in_flight: [AtomicU64; 5],
    _producer: [AtomicU64; 7],
    state: AtomicU64,
    tid: AtomicU64,
    slots_at: AtomicU64,
    slots: AtomicU64,
    start: AtomicU64,
    claimed_ticks: AtomicU64,
    comm: [AtomicU64; 2],
    head: AtomicU64,
    drained: AtomicU64,
    _reader: [AtomicU64; 6],
}

const _: () = {
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

/// A place for a thread that has one lane's worth of private state.
pub(crate) struct Producer {
    /// Slots committed so far, over all incarnations of the lane.
    tail: u64,
    /// The consumer's position when last looked at: never ahead of the truth.
    head: u64,
    /// Slots of the lane; a power of two.
    capacity: u64,
    /// Records this incarnation was asked to take.
    attempts: u64,
    lost_full: u64,
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
        state as u32 == LaneState::Retired as u32 && self.drained.load(Acquire) == state >> 32
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
        self.state.store(LaneState::Claimed as u64 | incarnation << 32, Release);
        Producer { tail, head: tail, capacity: self.slots.load(Relaxed), attempts: 0, lost_full: 0 }
    }

    /// Ends the incarnation: nothing more will be committed in it.
    pub(crate) fn retire(&self, producer: &Producer) {
        self.attempts.store(producer.attempts, Relaxed);
        let incarnation = self.state.load(Relaxed) >> 32;
        self.state.store(LaneState::Retired as u64 | incarnation << 32, Release);
    }

    /// Counts a record that came from inside another one. The thread is the only writer.
    pub(crate) fn count_nested(&self) {
        self.lost_nested.store(self.lost_nested.load(Relaxed) + 1, Relaxed);
    }
}

impl Producer {
    pub(crate) const fn none() -> Producer {
        Producer { tail: 0, head: 0, capacity: 0, attempts: 0, lost_full: 0 }
    }

    /// Slots of the lane.
    #[inline(always)]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// True if, as far as this thread has seen, at most half of the lane is in use.
    #[inline(always)]
    pub(crate) fn roomy(&self) -> bool {
        self.tail.wrapping_sub(self.head) <= self.capacity / 2
    }

    /// True if `n` more slots fit.
    #[inline(always)]
    pub(crate) fn fits(&self, n: u64) -> bool {
        self.tail.wrapping_sub(self.head) + n <= self.capacity
    }

    /// Looks at the consumer's position. One that makes no sense is ignored: the lane then fills and
    /// drops, which harms nobody but the consumer that lied.
    /// True if it has moved.
    pub(crate) fn refresh(&mut self, lane: &Lane) -> bool {
        let head = lane.head.load(Acquire);
        let moved = head != self.head && self.tail.wrapping_sub(head) <= self.capacity;
        if moved {
            self.head = head;
        }
        moved
    }

    /// Announces a record. From here to [`commit`](Self::commit) or [`drop_record`](Self::drop_record)
    /// the consumer promises nothing about times after it last saw the lane unmarked; so this comes before
    /// the completion time is read.
    #[inline(always)]
    pub(crate) fn mark(&self, lane: &Lane) {
        lane.tail.store(self.tail << 1 | 1, Relaxed);
    }

    /// Attempt number of the record being written.
    #[inline(always)]
    pub(crate) fn attempt(&self) -> u32 {
        self.attempts as u32
    }

    /// Slot `n` of the record being written; only after [`fits`](Self::fits).
    #[inline(always)]
    pub(crate) fn slot<'a>(&self, slots: &'a [Slot], n: u64) -> &'a Slot {
        &slots[(self.tail.wrapping_add(n) & (self.capacity - 1)) as usize]
    }

    /// Publishes the record's `n` slots with one store.
    #[inline(always)]
    pub(crate) fn commit(&mut self, lane: &Lane, n: u64) {
        self.tail = self.tail.wrapping_add(n);
        self.attempts += 1;
        lane.tail.store(self.tail << 1, Release);
    }

    /// Gives the record up because the lane is full.
    pub(crate) fn drop_record(&mut self, lane: &Lane) {
        self.attempts += 1;
        self.lost_full += 1;
        lane.lost_full.store(self.lost_full, Relaxed);
        lane.attempts.store(self.attempts, Relaxed);
        lane.tail.store(self.tail << 1, Release);
    }
}

#[cfg(test)]
impl Lane {
    fn zeroed() -> Lane {
        // SAFETY: atomics of integers, for which zero is a value.
        unsafe { std::mem::zeroed() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// The consumer as the log-client does it, on the same structures.
    struct Consumer {
        head: u64,
    }

    impl Consumer {
        fn drain(&mut self, lane: &Lane, slots: &[Slot], max: u64) -> Vec<u64> {
            let tail = lane.tail.load(Acquire) >> 1;
            let n = (tail - self.head).min(max);
            let out = (0..n)
                .map(|i| slots[((self.head + i) & (slots.len() as u64 - 1)) as usize].0[0].load(Relaxed))
                .collect();
            self.head += n;
            lane.head.store(self.head, Release);
            out
        }
    }

    fn new(capacity: u64) -> (Lane, Vec<Slot>, Producer) {
        let lane = Lane::zeroed();
        lane.place(0, capacity);
        let producer = lane.claim(&Identity { tid: 1, comm: [0; 2], ticks: 0 });
        let slots = (0..capacity).map(|_| Slot(std::array::from_fn(|_| AtomicU64::new(0)))).collect();
        (lane, slots, producer)
    }

    fn push(lane: &Lane, slots: &[Slot], producer: &mut Producer, n: u64, value: u64) -> bool {
        producer.mark(lane);
        if !producer.fits(n) {
            producer.refresh(lane);
        }
        if !producer.fits(n) {
            producer.drop_record(lane);
            return false;
        }
        (0..n).for_each(|slot| producer.slot(slots, slot).put(0, value));
        producer.commit(lane, n);
        true
    }

    /// Every mixture of records and drains against a queue that cannot be wrong.
    #[test]
    fn a_lane_is_a_bounded_queue_that_counts_what_it_refuses() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for _ in 0..200 {
            let (lane, slots, mut producer) = new(8);
            let (mut consumer, mut oracle, mut lost) = (Consumer { head: 0 }, VecDeque::new(), 0u64);
            for step in 0..500 {
                if random(3) > 0 {
                    let n = 1 + random(3);
                    let fits = oracle.len() as u64 + n <= 8;
                    assert_eq!(push(&lane, &slots, &mut producer, n, step), fits);
                    (0..if fits { n } else { 0 }).for_each(|_| oracle.push_back(step));
                    lost += u64::from(!fits);
                } else {
                    for value in consumer.drain(&lane, &slots, random(9)) {
                        assert_eq!(Some(value), oracle.pop_front());
                    }
                }
                assert_eq!(lane.lost_full.load(Relaxed), lost);
                assert_eq!(lane.tail.load(Relaxed) & 1, 0, "no mark left behind");
            }
        }
    }

    #[test]
    fn a_senseless_head_only_fills_the_lane() {
        let (lane, slots, mut producer) = new(4);
        lane.head.store(u64::MAX / 2, Relaxed);
        let taken = (0..10).filter(|i| push(&lane, &slots, &mut producer, 1, *i)).count();
        assert_eq!((taken, lane.lost_full.load(Relaxed)), (4, 6));
    }

    #[test]
    fn a_lane_is_claimed_again_only_when_drained() {
        let (lane, slots, mut producer) = new(4);
        push(&lane, &slots, &mut producer, 1, 7);
        assert!(!lane.reusable());
        lane.retire(&producer);
        assert!(!lane.reusable());
        lane.head.store(1, Relaxed);
        lane.drained.store(1, Release);
        assert!(lane.reusable());
        let second = lane.claim(&Identity { tid: 2, comm: [0; 2], ticks: 0 });
        assert_eq!((second.tail, second.attempts, lane.start.load(Relaxed)), (1, 0, 1));
        assert!(!lane.reusable());
    }
}
