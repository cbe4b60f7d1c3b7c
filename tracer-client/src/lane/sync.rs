//! The types that a model checker replaces.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::AtomicU64;

/// A word of a slot: a relaxed atomic, since the peer may misbehave. Under loom it is a cell, so that an
/// access that the orders do not separate from another is reported as a race; as an atomic it would pass.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

#[cfg(not(loom))]
impl Word {
    #[cfg(test)]
    pub(crate) fn new() -> Word {
        Word(AtomicU64::new(0))
    }

    #[inline(always)]
    pub(crate) fn put(&self, value: u64) {
        self.0.store(value, std::sync::atomic::Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(loom)]
pub(crate) struct Word(loom::cell::UnsafeCell<u64>);

// SAFETY: loom checks every access for races.
#[cfg(loom)]
unsafe impl Sync for Word {}

#[cfg(loom)]
impl Word {
    pub(crate) fn new() -> Word {
        Word(loom::cell::UnsafeCell::new(0))
    }

    pub(crate) fn put(&self, value: u64) {
        // SAFETY: loom reports a second access at the same time.
        self.0.with_mut(|word| unsafe { *word = value });
    }

    pub(crate) fn get(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|word| unsafe { *word })
    }
}
