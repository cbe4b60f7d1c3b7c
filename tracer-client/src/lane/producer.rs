//! The writing side.

use super::order;
use super::state::{Lane, Slot};
use miot_proto::event::MAX_SLOTS;
use std::sync::atomic::Ordering::Relaxed;

/// What the thread that has claimed a lane keeps to itself.
pub(crate) struct Producer {
    /// Slots committed so far, over all incarnations of the lane.
    pub(super) tail: u64,
    /// Slots up to which may be written: what the consumer has freed when last looked at, or what was given
    /// up, plus the capacity. Never ahead of the truth.
    pub(super) limit: u64,
    /// The tail at which it is time to look after the lane; see [`Producer::needs_care`].
    pub(super) look_at: u64,
    /// Slots of the lane; a power of two.
    pub(super) capacity: u64,
    /// Records this incarnation was asked to take.
    pub(super) attempts: u64,
    pub(super) lost_full: u64,
}

impl Producer {
    pub(crate) const fn none() -> Producer {
        Producer { tail: 0, limit: 0, look_at: 0, capacity: 0, attempts: 0, lost_full: 0 }
    }

    /// Of an empty lane.
    pub(super) fn new(tail: u64, capacity: u64) -> Producer {
        let mut producer = Producer { tail, capacity, ..Producer::none() };
        producer.free_up_to(tail);
        producer
    }

    /// Slots of the lane.
    #[inline(always)]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Slots committed so far.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// True if, as far as this thread has seen, more than half of the lane is in use, and it was not looked
    /// after since.
    #[inline(always)]
    pub(crate) fn needs_care(&self) -> bool {
        self.tail >= self.look_at
    }

    /// Nothing could be done about a lane that fills: looks again when it has filled by another eighth.
    pub(crate) fn look_later(&mut self) {
        self.look_at = self.tail.wrapping_add((self.capacity / 8).max(1));
    }

    /// True if `n` more slots fit.
    #[inline(always)]
    pub(crate) fn fits(&self, n: u64) -> bool {
        self.tail.wrapping_add(n) <= self.limit
    }

    /// The slots below `head` may be written again.
    fn free_up_to(&mut self, head: u64) {
        self.limit = head.wrapping_add(self.capacity);
        self.look_at = head.wrapping_add(self.capacity / 2);
    }

    /// The first slot that may not be written, over all incarnations.
    fn head(&self) -> u64 {
        self.limit.wrapping_sub(self.capacity)
    }

    /// Looks at the consumer's position. One that makes no sense is ignored: the lane then fills, which harms
    /// nobody but the consumer that lied. True if it has moved.
    pub(crate) fn refresh(&mut self, lane: &Lane) -> bool {
        let head = lane.head.load(order::room());
        let freed = head.wrapping_sub(self.head());
        let sound = freed != 0 && freed <= self.tail.wrapping_sub(self.head());
        if sound {
            self.free_up_to(head);
        }
        sound
    }

    /// Gives the oldest records up, an eighth of the lane and whole records at a time, until `n` slots fit.
    /// What the consumer had not read of them is lost; it sees how many by the attempt numbers.
    pub(crate) fn overwrite(&mut self, lane: &Lane, slots: &[Slot], n: u64) {
        let wanted = n.max(self.capacity / 8).min(self.capacity);
        let mut head = self.head();
        while self.tail.wrapping_add(wanted).wrapping_sub(head) > self.capacity {
            let record = slots[(head & (self.capacity - 1)) as usize].record_slots();
            let left = self.tail.wrapping_sub(head);
            head = head.wrapping_add(record.clamp(1, MAX_SLOTS as u64).min(left.max(1)));
        }
        self.free_up_to(head);
        lane.oldest.store(head, Relaxed);
        // Whoever reads a word that is written from here on, and has a fence behind that, sees the new frontier.
        order::fence(order::overwrite());
    }

    /// Announces a record. From here to [`commit`](Self::commit) or [`withdraw`](Self::withdraw) the consumer
    /// promises nothing about times after it last saw the lane unmarked; so this comes before the completion
    /// time is read.
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

    /// Publishes the record's `n` slots with one store, which is also the end of the request in flight.
    #[inline(always)]
    pub(crate) fn commit(&mut self, lane: &Lane, n: u64) {
        self.tail = self.tail.wrapping_add(n);
        self.attempts += 1;
        lane.tail.store(self.tail << 1, order::commit());
    }

    /// Gives the record up because the lane is full. Its request must not be shown any more: a thread that is
    /// killed here would leave it both lost and in flight.
    pub(crate) fn drop_record(&mut self, lane: &Lane) {
        self.attempts += 1;
        self.lost_full += 1;
        lane.lost_full.store(self.lost_full, Relaxed);
        lane.attempts.store(self.attempts, order::count());
        self.withdraw(lane);
    }

    /// Takes the mark back without a record.
    pub(crate) fn withdraw(&self, lane: &Lane) {
        lane.in_flight.clear();
        lane.tail.store(self.tail << 1, order::commit());
    }
}
