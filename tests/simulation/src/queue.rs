//! Events in the order of virtual time. Events of the same time keep the order in which they were
//! added.

use crate::Time;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The heap of events.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Scheduled<E>>>,
    added: u64,
}

#[derive(Debug)]
struct Scheduled<E> {
    at: Time,
    number: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue { heap: BinaryHeap::new(), added: 0 }
    }

    pub(crate) fn add(&mut self, at: Time, event: E) {
        self.added += 1;
        self.heap.push(Reverse(Scheduled { at, number: self.added, event }));
    }

    pub(crate) fn next(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|Reverse(Scheduled { at, event, .. })| (at, event))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
