//! The types that a model checker replaces.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

/// A word of a slot or of a lane's identity: a relaxed atomic, since the peer may misbehave. Under loom it is a cell, so that an
/// access that the orders do not separate from another is reported as a race; as an atomic it would pass.
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
    pub(crate) fn put(&self, value: u64) {
        self.0.store(value, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(loom)]
pub(crate) enum Word {
    Cell(loom::cell::UnsafeCell<u64>),
    /// For lanes that are overwritten while they are read: there the race is meant, and its outcome is what the
    /// model looks at.
    Atomic(AtomicU64),
}

// SAFETY: loom checks every access for races.
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

    pub(crate) fn put(&self, value: u64) {
        match self {
            // SAFETY: loom reports a second access at the same time.
            Word::Cell(cell) => cell.with_mut(|word| unsafe { *word = value }),
            Word::Atomic(word) => word.store(value, std::sync::atomic::Ordering::Relaxed),
        }
    }

    pub(crate) fn get(&self) -> u64 {
        match self {
            // SAFETY: as above.
            Word::Cell(cell) => cell.with(|word| unsafe { *word }),
            Word::Atomic(word) => word.load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}
