//! The producer of a lane.

use super::order;
use super::state::{Lane, Ring, Slot};
use miot_proto::event::MAX_SLOTS;
use std::sync::atomic::Ordering::Relaxed;

/// Private state of the thread that has claimed a lane.
pub(crate) struct Producer {
    /// Slots committed so far, over all incarnations of the lane.
    pub(super) tail: u64,
    /// Position up to which slots may be written: the position that the consumer had freed at the
    /// last look, or that was overwritten, plus the capacity. Never larger than the actual one.
    pub(super) limit: u64,
    /// Tail at which the lane needs maintenance; see [`Producer::needs_maintenance`].
    pub(super) maintain_at: u64,
    /// Slots of the lane - 1; the number is a power of two.
    pub(super) mask: u64,
    /// Records that this incarnation has accepted or dropped.
    pub(super) attempts: u64,
    pub(super) lost_full: u64,
}

impl Producer {
    /// Added to the tail while a record is published without the functions of the producer, and
    /// once more by each signal handler that tries the same meanwhile. Above each position of a
    /// lane.
    pub(crate) const TAKEN: u64 = 1 << 60;

    /// Offset of the tail, bytes.
    pub(crate) const TAIL_AT: usize = std::mem::offset_of!(Producer, tail);

    pub(crate) const fn none() -> Producer {
        Producer { tail: 0, limit: 0, maintain_at: 0, mask: 0, attempts: 0, lost_full: 0 }
    }

    /// Producer of an empty lane.
    pub(super) fn new(tail: u64, capacity: u64) -> Producer {
        let mut producer = Producer { tail, mask: capacity - 1, ..Producer::none() };
        producer.free_up_to(tail);
        producer
    }

    /// Slots of the lane.
    #[inline(always)]
    pub(crate) fn capacity(&self) -> u64 {
        self.mask.wrapping_add(1)
    }

    /// Slots of the lane - 1.
    #[inline(always)]
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// Slots committed so far.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// True if more than half of the lane is in use, by the last known position of the consumer,
    /// and maintenance is not deferred.
    #[inline(always)]
    pub(crate) fn needs_maintenance(&self) -> bool {
        self.tail >= self.maintain_at
    }

    /// Defers maintenance, which freed nothing, until another eighth of the lane has filled.
    pub(crate) fn defer_maintenance(&mut self) {
        self.maintain_at = self.tail.wrapping_add((self.capacity() / 8).max(1));
    }

    /// True if `n` more slots fit.
    #[inline(always)]
    pub(crate) fn fits(&self, n: u64) -> bool {
        self.tail.wrapping_add(n) <= self.limit
    }

    /// Makes the slots below `head` writable.
    fn free_up_to(&mut self, head: u64) {
        self.limit = head.wrapping_add(self.capacity());
        self.maintain_at = head.wrapping_add(self.capacity() / 2);
    }

    /// Position of the oldest slot that must not be written, over all incarnations.
    fn head(&self) -> u64 {
        self.limit.wrapping_sub(self.capacity())
    }

    /// Reads the consumer's position. Returns true if it has advanced. An invalid position is
    /// ignored: the lane then fills, which harms only the consumer that wrote it.
    pub(crate) fn refresh(&mut self, lane: &Lane) -> bool {
        let head = lane.head.load(order::room());
        let freed = head.wrapping_sub(self.head());
        let sound = freed != 0 && freed <= self.tail.wrapping_sub(self.head());
        if sound {
            self.free_up_to(head);
        }
        sound
    }

    /// Discards the oldest records, in whole records and at least an eighth of the lane at a time,
    /// until `n` slots fit. Discarded records that the consumer had not read are lost; the consumer
    /// counts them by the attempt numbers.
    pub(crate) fn overwrite(&mut self, lane: &Lane, ring: Ring<'_>, n: u64) {
        let wanted = n.max(self.capacity() / 8).min(self.capacity());
        let mut head = self.head();
        while self.tail.wrapping_add(wanted).wrapping_sub(head) > self.capacity() {
            let record = ring.at(head).record_slots();
            let left = self.tail.wrapping_sub(head);
            head = head.wrapping_add(record.clamp(1, MAX_SLOTS as u64).min(left.max(1)));
        }
        self.free_up_to(head);
        lane.oldest.store(head, Relaxed);
        // A consumer that reads a word written after this fence, and then executes a fence, sees
        // the new `oldest`.
        order::fence(order::overwrite());
    }

    /// Announces a record. From here to [`commit`](Self::commit) or [`withdraw`](Self::withdraw)
    /// the consumer keeps its watermark at the time at which it last saw the lane unmarked.
    /// Therefore the mark is set before the completion time is read.
    #[inline(always)]
    pub(crate) fn mark(&self, lane: &Lane) {
        lane.mark(self.tail);
    }

    /// Attempt number of the record being written.
    #[inline(always)]
    pub(crate) fn attempt(&self) -> u32 {
        self.attempts as u32
    }

    /// Slot `n` of the record being written; only after [`fits`](Self::fits).
    #[inline(always)]
    pub(crate) fn slot<'a>(&self, ring: Ring<'a>, n: u64) -> &'a Slot {
        ring.at(self.tail.wrapping_add(n))
    }

    /// Publishes the record's `n` slots with one store, which also ends the request in flight.
    #[inline(always)]
    pub(crate) fn commit(&mut self, lane: &Lane, n: u64) {
        self.tail = self.tail.wrapping_add(n);
        self.attempts += 1;
        lane.publish(self.tail);
    }

    /// Position up to which slots may be written.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Tail from which on the lane [needs maintenance](Self::needs_maintenance).
    pub(crate) fn maintain_at(&self) -> u64 {
        self.maintain_at
    }

    /// Puts back the tail, without a record or after one was published.
    #[inline(always)]
    pub(crate) fn put_tail(&mut self, tail: u64) {
        self.tail = tail;
    }

    /// Whether the tail is taken.
    #[inline(always)]
    pub(crate) fn is_tail_taken(&self) -> bool {
        self.tail >= Self::TAKEN
    }

    /// Counts the record that was published with the tail taken.
    #[inline(always)]
    pub(crate) fn count_attempt(&mut self) {
        self.attempts += 1;
    }

    /// Counts a record that is dropped because the lane is full. Its request must not be shown any
    /// more: if the thread were killed here, the request would be both lost and in flight.
    pub(crate) fn drop_record(&mut self, lane: &Lane) {
        self.attempts += 1;
        self.lost_full += 1;
        lane.lost_full.store(self.lost_full, Relaxed);
        lane.attempts.store(self.attempts, order::count());
        self.withdraw(lane);
    }

    /// Removes the mark without a record.
    pub(crate) fn withdraw(&self, lane: &Lane) {
        lane.in_flight.clear();
        lane.publish(self.tail);
    }
}
