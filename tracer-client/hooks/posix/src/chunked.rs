//! Array of a million elements whose memory is mapped on demand.

#![expect(clippy::disallowed_types, reason = "addresses of mapped chunks; entries are never freed")]

use miot_tracer::gate::{self, Calls};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

pub(crate) const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

/// Capacity of an array in elements: Linux's default limit on descriptors (`fs.nr_open`).
pub(crate) const MAX: usize = CHUNK * CHUNKS;

/// Marks types that may be shared between threads and for which all-zero bytes are a valid value.
///
/// # Safety
/// - All-zero bytes are a valid value of the type.
pub(crate) unsafe trait Zeroed: Sync + 'static {}

/// The first chunk is part of the library's zero-initialized memory, so that the usual case needs
/// no indirection. The others are mapped when first needed and never unmapped.
pub(crate) struct Chunked<T> {
    first: [T; CHUNK],
    mapped: [AtomicPtr<T>; CHUNKS],
}

impl<T: Zeroed> Chunked<T> {
    pub(crate) const fn new() -> Self {
        // SAFETY:
        // - All-zero bytes are a valid `T`, by the contract of `Zeroed`.
        // - All-zero bytes are a valid `AtomicPtr`: a null pointer.
        unsafe { std::mem::zeroed() }
    }

    /// Returns an element, if its memory exists.
    #[inline(always)]
    pub(crate) fn get(&'static self, index: usize) -> Option<&'static T> {
        if let Some(element) = self.first.get(index) {
            return Some(element);
        }
        self.get_mapped(index)
    }

    /// Returns an element of the first chunk. The index must be below [`CHUNK`].
    #[inline(always)]
    pub(crate) fn get_first(&'static self, index: usize) -> &'static T {
        debug_assert!(index < CHUNK);
        &self.first[index % CHUNK]
    }

    #[cold]
    #[inline(never)]
    fn get_mapped(&'static self, index: usize) -> Option<&'static T> {
        let chunk = self.mapped.get(index / CHUNK)?.load(Acquire);
        // SAFETY:
        // - A chunk has CHUNK elements, so the index is in bounds.
        // - A chunk is mapped with zeros, which are valid elements, and is never unmapped.
        // - The `Acquire` load pairs with the `Release` that stored the pointer.
        (!chunk.is_null()).then(|| unsafe { &*chunk.add(index % CHUNK) })
    }

    /// Returns an element, and maps its memory if necessary. `None` if the index is out of bounds,
    /// if there is no memory, or if a filter forbids the calls.
    pub(crate) fn get_or_map(&'static self, index: usize) -> Option<&'static T> {
        if let Some(element) = self.get(index) {
            return Some(element);
        }
        let slot = self.mapped.get(index / CHUNK)?;
        let _permit = gate::permit(Calls::MAP | Calls::UNMAP)?;
        let bytes = CHUNK * size_of::<T>();
        // SAFETY:
        // - The kernel chooses the address, so that no existing mapping is replaced.
        // - The mapping is removed only if its address was not stored, so that nothing refers to
        //   it.
        unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let chunk = mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE).ok()?;
            if slot.compare_exchange(std::ptr::null_mut(), chunk.cast(), Release, Acquire).is_err() {
                let _ = munmap(chunk, bytes);
            }
        }
        self.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    // SAFETY:
    // - Zero is a valid value.
    unsafe impl Zeroed for AtomicU64 {}
    static ARRAY: Chunked<AtomicU64> = Chunked::new();

    #[test]
    fn elements_keep_stored_values() {
        gate::detect_inherited_filter();
        for index in [0, 1023, 1024, 5000, MAX - 1] {
            ARRAY.get_or_map(index).unwrap().store(index as u64 + 1, Relaxed);
        }
        for index in [0, 1023, 1024, 5000, MAX - 1] {
            assert_eq!(ARRAY.get(index).unwrap().load(Relaxed), index as u64 + 1);
        }
        assert_eq!(ARRAY.get(1025).unwrap().load(Relaxed), 0);
        assert!(ARRAY.get(9000).is_none() && ARRAY.get(MAX).is_none() && ARRAY.get_or_map(MAX).is_none());
    }
}
