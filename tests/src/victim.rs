//! Events of the program `victim`, which is killed at a random time. Every request identifies
//! itself, so that a lost, repeated, torn or invented one is detected.

/// Maximum number of threads of a victim over its lifetime, including those that replaced others.
pub const LIVES: u64 = 256;
/// Words of a thread in the progress file: requests made, and requests that could not begin.
pub const WORDS: usize = 2;
/// Bit in the first word of a thread: the thread has finished, and the other bits are its number of
/// attempts.
pub const DONE: u64 = 1 << 63;

/// Returns the unique tag of a thread of a victim.
#[must_use]
pub fn tag(victim: u64, life: u64) -> u64 {
    victim * LIVES + life
}

/// Returns the handle of all requests of a thread.
#[must_use]
pub fn handle(tag: u64) -> u64 {
    1 << 40 | tag
}

/// Returns the offset of request `number` of a thread. The length of the request is the tag, its
/// result the number.
#[must_use]
pub fn offset(tag: u64, number: u64) -> u64 {
    mix(tag << 32 | number) >> 1
}

/// Alphabet of the paths of [`NOISE`].
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Value for a number of paths: each request has another, hardly compressible path.
pub const NOISE: u64 = u64::MAX;

/// Returns the path of every fifth request, and `None` for the others. With `paths` 0 or [`NOISE`]
/// each path is different, and long enough for up to twenty slots. Otherwise all threads share
/// `paths` different paths.
#[must_use]
pub fn path(tag: u64, number: u64, paths: u64) -> Option<String> {
    let random = mix(!(tag << 32 | number));
    if !random.is_multiple_of(5) {
        return None;
    }
    if paths > 0 && paths != NOISE {
        return Some(format!("/shared/{}", (random >> 8) % paths));
    }
    let length = (random >> 8) as usize % 1200;
    let rest = match paths {
        NOISE => (0..length as u64).map(|at| char::from(LETTERS[(mix(random ^ at) % 64) as usize])).collect(),
        _ => "x".repeat(length),
    };
    Some(format!("/{tag}/{number}/{random:016x}{rest}"))
}

/// SplitMix64's finalizer (Steele, Lea and Flood 2014): every bit of the input changes half of the
/// output.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
