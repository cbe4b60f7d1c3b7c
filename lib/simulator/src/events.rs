//! Queue of future events by time; events of the same time are in order of insertion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Part of a transfer, by number, is done.
    Part(u32),
    /// Process, by number, can continue.
    Wake(u32),
    /// Written data has reached the age at which it is written to disk.
    Flush,
}

#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
}

impl Events {
    #[inline]
    pub(super) fn push(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.heap.push(Reverse((time, self.count, event)));
    }

    /// Returns the time of the next event.
    #[inline]
    pub(super) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((time, _, _))| *time)
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((time, _, event))| (time, event))
    }
}
