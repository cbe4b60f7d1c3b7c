//! Table of descriptors: the open file description of each number.
//!
//! An entry is one word: the index of a [`Description`](crate::description::Description) in the
//! high half, and in the low half the epoch of the process image that last used it and [`READY`].
//! Or it is [`EXCLUDED`], or 0 if unknown. Once anything was recorded, hooks that create or close
//! descriptors update the table whether or not they record. A descriptor that is closed by other
//! means (raw system calls) is detected when a hook opens the same number again.

#![expect(clippy::disallowed_types, reason = "table of descriptors, read without locks")]

use crate::chunked::{CHUNK, Chunked, Zeroed};
use crate::description;
use crate::vfork;
use std::ffi::c_int;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

/// Entry of a descriptor that is not recorded.
pub(crate) const EXCLUDED: u64 = u64::MAX;

#[repr(transparent)]
pub(crate) struct Entry(AtomicU64);

// SAFETY:
// - The type is an atomic integer, for which zero is a valid value.
unsafe impl Zeroed for Entry {}

static TABLE: Chunked<Entry> = Chunked::new();

/// Bit of an entry: requests on its file are recorded for the thread that makes them, and need no
/// preparation unless a lane has overwritten the name of the file.
const READY: u64 = 1;

pub(crate) const fn word(epoch: u32, index: u32) -> u64 {
    (index as u64) << 32 | (epoch as u64) << 1 & EPOCH
}

/// Bits of the epoch. Two images of one chain of forks have the same ones only if 2³¹ are between
/// them.
const EPOCH: u64 = u32::MAX as u64 & !READY;

/// Returns the low half of an entry. In a ready one it equals
/// [`lasting_names`](miot_tracer::lasting_names).
#[inline(always)]
pub(crate) const fn low_half(word: u64) -> u32 {
    word as u32
}

#[inline(always)]
pub(crate) const fn epoch_of(word: u64) -> u32 {
    word as u32 >> 1
}

/// Returns the index of an entry's description; 0 if there is none.
#[inline(always)]
pub(crate) const fn index_of(word: u64) -> u32 {
    if word == EXCLUDED { 0 } else { (word >> 32) as u32 }
}

/// Returns the low half that an entry has if it is ready.
#[inline(always)]
pub(crate) const fn low_half_if_ready(word: u64) -> u32 {
    low_half(word) | READY as u32
}

/// [`index_of`] for an entry that is ready, or might be.
#[inline(always)]
pub(crate) const fn ready_index_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Returns the entry of a descriptor; 0 for numbers beyond the table and for negative ones.
#[inline(always)]
pub(crate) fn get(fd: c_int) -> u64 {
    TABLE.get(fd as u32 as usize).map_or(0, |entry| entry.0.load(Acquire))
}

/// Returns the entry of a descriptor; `None` if the number is not one of the usual ones.
#[inline(always)]
pub(crate) fn get_first(fd: c_int) -> Option<u64> {
    let index = fd as u32 as usize;
    (index < CHUNK).then(|| TABLE.get_first(index).0.load(Acquire))
}

/// Sets an entry unconditionally. The caller's reference to the new description becomes the
/// table's. Returns false if the table has no memory for it; the caller then keeps the reference.
pub(crate) fn set(fd: c_int, new: u64) -> bool {
    if vfork::in_child() {
        return false;
    }
    let entry = match new {
        0 => TABLE.get(fd as u32 as usize),
        _ => TABLE.get_or_map(fd as u32 as usize),
    };
    if let Some(entry) = entry {
        description::release(index_of(entry.0.swap(new, AcqRel)));
    }
    entry.is_some()
}

/// Writes to an entry without a change, like [`description::touch`].
pub(crate) fn touch(fd: c_int) {
    if let Some(entry) = TABLE.get(fd as u32 as usize) {
        let _ = entry.0.compare_exchange(0, 0, AcqRel, Acquire);
    }
}

/// [`set`] for a descriptor that was just opened, whose entry is normally empty: no other thread
/// has this descriptor yet.
#[inline]
pub(crate) fn set_opened(fd: c_int, new: u64) -> bool {
    match TABLE.get(fd as u32 as usize) {
        Some(entry) if entry.0.load(Acquire) == 0 => {
            entry.0.store(new, Release);
            true
        }
        _ => set(fd, new),
    }
}

/// Marks an entry as ready, if it is still equal to `found`. Its description must be in the first
/// chunk.
pub(crate) fn set_ready(fd: c_int, found: u64) {
    replace(fd, found, found | READY);
}

/// Sets an entry if it is still equal to `found`. Returns whether it did.
pub(crate) fn replace(fd: c_int, found: u64, new: u64) -> bool {
    !vfork::in_child()
        && TABLE
            .get_or_map(fd as u32 as usize)
            .is_some_and(|entry| entry.0.compare_exchange(found, new, AcqRel, Acquire).is_ok())
}

/// Removes a descriptor: it is about to be closed, or its file is unknown.
#[inline]
pub(crate) fn forget(fd: c_int) {
    if get(fd) != 0 {
        set(fd, 0);
    }
}

/// Removes a descriptor that is about to be closed, as [`take`] does. The caller knows its index.
/// Not for a child that runs in its parent's memory.
#[inline(always)]
pub(crate) fn clear(fd: c_int) {
    if let Some(entry) = TABLE.get(fd as u32 as usize) {
        entry.0.store(0, Release);
    }
}

/// Removes a descriptor that is about to be closed, and returns its reference, which the caller
/// must release. Two threads that close it at the same time are an error of the program; one of
/// them might then close another file.
#[inline]
pub(crate) fn take(fd: c_int) -> u32 {
    let Some(entry) = TABLE.get(fd as u32 as usize) else { return 0 };
    let word = entry.0.load(Acquire);
    if word == 0 || vfork::in_child() {
        return 0;
    }
    entry.0.store(0, Release);
    index_of(word)
}

/// Makes `new` refer to the description of `old`.
pub(crate) fn duplicate(old: c_int, new: c_int) {
    if old == new || vfork::in_child() {
        return;
    }
    let word = get(old);
    let index = index_of(word);
    if index != 0 {
        description::retain(index);
    }
    if !set(new, word) && index != 0 {
        description::release(index);
    }
}

/// Removes all descriptors from `first` to `last`.
pub(crate) fn forget_range(first: u32, last: u32) {
    let last = last.min(crate::chunked::MAX as u32 - 1);
    for fd in first..=last {
        forget(fd as c_int);
    }
}
