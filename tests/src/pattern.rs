//! Synthetic events that cannot be confused with others. Each is a function of its thread and
//! number, so that a lost, repeated, swapped or invented event is detected.

use crate::victim::mix;

/// Returns offset, length and result of event `number` of `thread`.
#[must_use]
pub fn event(thread: u64, number: u64) -> (i64, i64, i64) {
    let mixed = mix(thread << 40 | number);
    // All three are valid values of a read, i.e. not negative.
    ((mixed >> 1) as i64, (mix(mixed) >> 20) as i64, number as i64)
}

/// Path of the file of a thread.
#[must_use]
pub fn path(thread: u64) -> String {
    format!("/synthetic/thread-{thread}")
}

/// Adds an event to a checksum that depends on the order of events.
#[must_use]
pub fn fold(sum: u64, (offset, length, result): (i64, i64, i64)) -> u64 {
    [offset, length, result].into_iter().fold(sum, |sum, word| mix(sum ^ word as u64))
}
