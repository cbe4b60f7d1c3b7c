//! Synthetic events that cannot be confused with others. Each is a function of its thread and
//! number, so that a lost, repeated, swapped or invented event is detected.

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

/// SplitMix64's finalizer (Steele, Lea and Flood 2014): every bit of the input changes half of the
/// output.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Adds an event to a checksum that depends on the order of events.
#[must_use]
pub fn fold(sum: u64, (offset, length, result): (i64, i64, i64)) -> u64 {
    [offset, length, result].into_iter().fold(sum, |sum, word| mix(sum ^ word as u64))
}
