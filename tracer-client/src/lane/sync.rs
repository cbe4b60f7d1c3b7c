//! Types that the model checker replaces.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

/// A word of a slot or of a lane's identity: a relaxed atomic, because the peer may misbehave.
/// Under loom it is a cell, so that loom reports accesses that no order separates as a race. With
/// an atomic it would not.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

#[cfg(not(loom))]
impl Word {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn new() -> Word {
        Word(AtomicU64::new(0))
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(loom)]
pub(crate) enum Word {
    Cell(loom::cell::UnsafeCell<u64>),
    /// For lanes that are overwritten while they are read. That race is intended, and the model
    /// checks its outcome.
    Atomic(AtomicU64),
}

// SAFETY: `Sync` requires
// - no data race: loom checks every access for races and fails the test.
#[cfg(loom)]
unsafe impl Sync for Word {}

#[cfg(loom)]
impl Word {
    pub(crate) fn new() -> Word {
        Word::Cell(loom::cell::UnsafeCell::new(0))
    }

    pub(crate) fn overwritten() -> Word {
        Word::Atomic(AtomicU64::new(0))
    }

    pub(crate) fn set(&self, value: u64) {
        match self {
            // SAFETY: writing through the pointer requires
            // - no other access at the same time: loom reports one and fails the test.
            Word::Cell(cell) => cell.with_mut(|word| unsafe { *word = value }),
            Word::Atomic(word) => word.store(value, std::sync::atomic::Ordering::Relaxed),
        }
    }

    pub(crate) fn get(&self) -> u64 {
        match self {
            // SAFETY: reading through the pointer requires
            // - no write at the same time: loom reports one and fails the test.
            Word::Cell(cell) => cell.with(|word| unsafe { *word }),
            Word::Atomic(word) => word.load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}
