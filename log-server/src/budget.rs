//! Memory for what has been received and is not in the trace yet: reserved before it is allocated.
//!
//! A session reserves the length of a frame before it reads it, and waits if that does not fit. The node
//! that holds the merge back may go beyond the limit, by a quarter: what waits for it cannot be freed
//! otherwise. Beyond that the store merges without waiting for anybody.

use crate::nodes::Pace;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The memory of one server.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    freed: Notify,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0), freed: Notify::new() })
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// True if even those who hold the merge back have used up what they may.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.used() >= self.hard()
    }

    /// Lets those who wait look again: memory was freed, or who is behind has changed.
    pub fn wake(&self) {
        self.freed.notify_waiters();
    }

    /// Reserves `bytes`; waits until they fit. A reservation that is larger than the budget fits when
    /// nothing else is in use.
    pub async fn reserve(self: &Arc<Budget>, bytes: usize, pace: &Pace) -> Charge {
        loop {
            // Registered before the check, so that nothing freed in between is missed.
            let freed = self.freed.notified();
            if let Some(charge) = self.try_reserve(bytes, pace) {
                pace.paused.store(false, Ordering::Relaxed);
                return charge;
            }
            pace.paused.store(true, Ordering::Relaxed);
            freed.await;
        }
    }

    /// Charges `bytes` whether they fit or not.
    #[must_use]
    pub fn charge(self: &Arc<Budget>, bytes: usize) -> Charge {
        let mut charge = Charge::none(self);
        charge.set(bytes);
        charge
    }

    /// Waits until less than the limit is in use.
    pub async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            if self.used() < self.limit {
                return;
            }
            freed.await;
        }
    }

    fn try_reserve(self: &Arc<Budget>, bytes: usize, pace: &Pace) -> Option<Charge> {
        let limit = if pace.behind.load(Ordering::Relaxed) { self.hard() } else { self.limit };
        let fits = |used: usize| (used == 0 || used.saturating_add(bytes) <= limit).then_some(used + bytes);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Charge { budget: Arc::clone(self), bytes })
    }

    fn hard(&self) -> usize {
        self.limit + self.limit / 4
    }
}

/// Bytes reserved; given back when it is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    /// A charge of nothing.
    #[must_use]
    pub fn none(budget: &Arc<Budget>) -> Charge {
        Charge { budget: Arc::clone(budget), bytes: 0 }
    }

    /// What was received turned out to take `bytes` once decoded.
    pub fn set(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            self.budget.used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.budget.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(behind: bool) -> Pace {
        Pace { behind: behind.into(), paused: false.into() }
    }

    #[tokio::test]
    async fn who_is_ahead_waits_and_who_is_behind_may_go_on() {
        let budget = Budget::new(100);
        let (ahead, behind) = (pace(false), pace(true));
        let first = budget.reserve(80, &ahead).await;
        assert!(budget.try_reserve(30, &ahead).is_none());
        let mut second = budget.reserve(30, &behind).await;
        assert_eq!(budget.used(), 110);
        assert!(!budget.is_exhausted());
        second.set(45);
        assert!(budget.is_exhausted() && budget.try_reserve(1, &behind).is_none());

        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move {
                let charge = budget.reserve(30, &pace(false)).await;
                charge.bytes
            }
        });
        tokio::task::yield_now().await;
        drop(first);
        budget.wake();
        assert_eq!(waiting.await.unwrap(), 30);
        drop(second);
        assert_eq!(budget.used(), 0);
        assert!(budget.try_reserve(1000, &ahead).is_some(), "larger than all, but alone");
    }
}
