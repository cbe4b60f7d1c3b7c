//! Table of descriptors: the open file description of each number.
//!
//! An entry is one word: the index of a [`Description`](crate::description::Description) and the
//! epoch of the process image that last used it, or [`EXCLUDED`], or 0 if unknown. Once anything
//! was recorded, hooks that create or close descriptors update the table whether or not they
//! record. A descriptor that is closed by other means (raw system calls) is detected when a hook
//! opens the same number again.

#![expect(clippy::disallowed_types, reason = "table of descriptors, read without locks")]

use crate::chunked::{Chunked, Zeroed};
use crate::description;
use crate::vfork;
use std::ffi::c_int;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};

/// Entry of a descriptor that is not recorded.
pub(crate) const EXCLUDED: u64 = u64::MAX;

#[repr(transparent)]
pub(crate) struct Entry(AtomicU64);

// SAFETY:
// - The type is an atomic integer, for which zero is a valid value.
unsafe impl Zeroed for Entry {}

static TABLE: Chunked<Entry> = Chunked::new();

pub(crate) const fn word(epoch: u32, index: u32) -> u64 {
    (epoch as u64) << 32 | index as u64
}

pub(crate) const fn epoch_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Returns the index of an entry's description; 0 if there is none.
pub(crate) const fn index_of(word: u64) -> u32 {
    if word == EXCLUDED { 0 } else { word as u32 }
}

/// Returns the entry of a descriptor; 0 for numbers beyond the table and for negative ones.
#[inline(always)]
pub(crate) fn get(fd: c_int) -> u64 {
    TABLE.get(fd as u32 as usize).map_or(0, |entry| entry.0.load(Acquire))
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

/// Removes a descriptor and returns its reference, which the caller must release.
pub(crate) fn take(fd: c_int) -> u32 {
    if get(fd) == 0 || vfork::in_child() {
        return 0;
    }
    TABLE.get(fd as u32 as usize).map_or(0, |entry| index_of(entry.0.swap(0, AcqRel)))
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
