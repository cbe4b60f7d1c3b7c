//! A value that is computed once.
//!
//! `std::sync::OnceLock` would be the only part of the standard library in the preloaded libraries.
//! With it come the panic messages, backtraces and program arguments of the standard library, whose
//! memory every starting program touches.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};

const EMPTY: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;

/// A value that the first caller computes. All bytes are zero until then, so that a static one
/// occupies no memory of a file.
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: sharing the value between threads requires
// - one writer, before all readers: only the thread that has changed the state from `EMPTY` to
//   `BUSY` writes, and readers have seen `READY`, stored afterwards;
// - a type that may be moved to another thread and shared: the bounds.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").finish_non_exhaustive()
    }
}

impl<T: Copy> Once<T> {
    /// Creates a value that is not computed yet.
    #[must_use]
    pub const fn new() -> Once<T> {
        Once { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Returns the value. `compute` is called if nobody has called it yet; it must not use this
    /// value. Other threads wait meanwhile without sleeping, so it must be short.
    #[inline(always)]
    pub fn get_or_init(&self, compute: impl FnOnce() -> T) -> &T {
        if self.state.load(Acquire) != READY {
            self.init_late(compute);
        }
        // SAFETY: the reference requires
        // - an initialized value that nobody changes: the state is `READY`.
        unsafe { (*self.value.get()).assume_init_ref() }
    }

    #[cold]
    #[inline(never)]
    fn init_late(&self, compute: impl FnOnce() -> T) {
        self.init(compute);
    }

    /// Computes the value, like [`get_or_init`](Self::get_or_init), for the start of a program: the
    /// first access is a write, so that the page of the value causes one page fault and not two.
    #[inline(always)]
    pub fn init(&self, compute: impl FnOnce() -> T) {
        if self.state.compare_exchange(EMPTY, BUSY, Acquire, Acquire).is_ok() {
            // SAFETY: writing requires
            // - no other access: this thread alone has changed the state to `BUSY`.
            unsafe { (*self.value.get()).write(compute()) };
            self.state.store(READY, Release);
        }
        while self.state.load(Acquire) != READY {
            std::hint::spin_loop();
        }
    }
}

impl<T: Copy> Default for Once<T> {
    fn default() -> Once<T> {
        Once::new()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn value_is_computed_by_one_thread() {
        static VALUE: Once<u32> = Once::new();
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let threads = [(); 4].map(|()| {
            std::thread::spawn(|| {
                *VALUE.get_or_init(|| {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    CALLS.fetch_add(1, Relaxed) + 7
                })
            })
        });
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 7);
        }
        assert_eq!(CALLS.load(Relaxed), 1);
    }
}
