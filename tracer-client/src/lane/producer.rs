//! The writing side.

use super::order;
use super::state::{Lane, Slot};
use std::sync::atomic::Ordering::Relaxed;

/// What the thread that has claimed a lane keeps to itself.
pub(crate) struct Producer {
    /// Slots committed so far, over all incarnations of the lane.
    pub(super) tail: u64,
    /// The consumer's position when last looked at: never ahead of the truth.
    pub(super) head: u64,
    /// Slots of the lane; a power of two.
    pub(super) capacity: u64,
    /// Records this incarnation was asked to take.
    pub(super) attempts: u64,
    pub(super) lost_full: u64,
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
    /// drops, which harms nobody but the consumer that lied. True if it has moved.
    pub(crate) fn refresh(&mut self, lane: &Lane) -> bool {
        let head = lane.head.load(order::room());
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
        lane.tail.store(self.tail << 1 | 1, order::mark());
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
        lane.tail.store(self.tail << 1, order::commit());
    }

    /// Gives the record up because the lane is full.
    pub(crate) fn drop_record(&mut self, lane: &Lane) {
        self.attempts += 1;
        self.lost_full += 1;
        lane.lost_full.store(self.lost_full, Relaxed);
        lane.attempts.store(self.attempts, Relaxed);
        lane.tail.store(self.tail << 1, order::commit());
    }
}
