//! Synthetic events that cannot be confused with others. Each follows from its thread and its number,
//! so that one that is lost, repeated, swapped or invented is detected.

use crate::victim::mix;

/// Offset, length and result of event `number` of `thread`.
#[must_use]
pub fn event(thread: u64, number: u64) -> (i64, i64, i64) {
    let mixed = mix(thread << 40 | number);
    // All three are valid values of a read: not negative.
    ((mixed >> 1) as i64, (mix(mixed) >> 20) as i64, number as i64)
}

/// The file of a thread.
#[must_use]
pub fn path(thread: u64) -> String {
    format!("/synthetic/thread-{thread}")
}

/// A sum over events in which order counts.
#[must_use]
pub fn fold(sum: u64, (offset, length, result): (i64, i64, i64)) -> u64 {
    [offset, length, result].into_iter().fold(sum, |sum, word| mix(sum ^ word as u64))
}
