//! An array of a million elements whose memory comes as it is needed.

use miot_tracer::gate::{self, Calls};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

/// Elements an array can hold: as many as Linux allows descriptors by default (`fs.nr_open`).
pub(crate) const MAX: usize = CHUNK * CHUNKS;

/// Marks types of which memory full of zeros is a valid value, and that are shared between threads.
///
/// # Safety
/// It must be so.
pub(crate) unsafe trait Zeroed: Sync + 'static {}

/// The first chunk lies in the library's own zero memory, so that the usual case costs no indirection; the
/// others are mapped when first needed and never unmapped.
pub(crate) struct Chunked<T> {
    first: [T; CHUNK],
    rest: [AtomicPtr<T>; CHUNKS],
}

impl<T: Zeroed> Chunked<T> {
    pub(crate) const fn new() -> Self {
        // SAFETY: T is zeroed by its trait, and a null pointer is a value of AtomicPtr.
        unsafe { std::mem::zeroed() }
    }

    /// The element, if its memory exists.
    #[inline(always)]
    pub(crate) fn get(&'static self, index: usize) -> Option<&'static T> {
        if let Some(element) = self.first.get(index) {
            return Some(element);
        }
        self.further(index)
    }

    #[cold]
    fn further(&'static self, index: usize) -> Option<&'static T> {
        let chunk = self.rest.get(index / CHUNK)?.load(Acquire);
        // SAFETY: a chunk has CHUNK elements, is zero or what was stored since, and is never unmapped.
        (!chunk.is_null()).then(|| unsafe { &*chunk.add(index % CHUNK) })
    }

    /// The element; its memory is made if need be. `None`: beyond the array, or no memory.
    pub(crate) fn get_or_make(&'static self, index: usize) -> Option<&'static T> {
        if let Some(element) = self.get(index) {
            return Some(element);
        }
        let slot = self.rest.get(index / CHUNK)?;
        let _pass = gate::pass(Calls::MAP | Calls::UNMAP)?;
        let bytes = CHUNK * size_of::<T>();
        // SAFETY: a new mapping at an address the kernel chooses; unmapped only if nobody has seen it.
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

    // SAFETY: zero is a value of it.
    unsafe impl Zeroed for AtomicU64 {}
    static ARRAY: Chunked<AtomicU64> = Chunked::new();

    #[test]
    fn elements_keep_what_is_stored() {
        gate::ask();
        for index in [0, 1023, 1024, 5000, MAX - 1] {
            ARRAY.get_or_make(index).unwrap().store(index as u64 + 1, Relaxed);
        }
        for index in [0, 1023, 1024, 5000, MAX - 1] {
            assert_eq!(ARRAY.get(index).unwrap().load(Relaxed), index as u64 + 1);
        }
        assert_eq!(ARRAY.get(1025).unwrap().load(Relaxed), 0);
        assert!(ARRAY.get(9000).is_none() && ARRAY.get(MAX).is_none() && ARRAY.get_or_make(MAX).is_none());
    }
}
