//! Memory for what has been received and is not in the trace yet: reserved before it is allocated.
//!
//! A session reserves the length of a frame before it reads it, and waits if that does not fit. The node
//! that holds the merge back may go beyond the limit, by a quarter: what waits for it cannot be freed
//! otherwise. Beyond that the store merges without waiting for anybody.
//!
//! A node has a budget of its own below the server's, so that it cannot use up what others need.

use crate::nodes::Pace;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The memory of one server, or of one node.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    freed: Notify,
    /// What is used here is used there too.
    parent: Option<Arc<Budget>>,
}

/// Which limit has no room.
enum Short {
    /// The node's own.
    Own,
    /// The server's.
    All,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0), freed: Notify::new(), parent: None })
    }

    /// A part of this budget, of at most `limit` bytes.
    #[must_use]
    pub fn part(self: &Arc<Budget>, limit: usize) -> Arc<Budget> {
        let parent = Some(Arc::clone(self));
        Arc::new(Budget { limit, used: AtomicUsize::new(0), freed: Notify::new(), parent })
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// True if so much could be reserved.
    #[must_use]
    pub fn fits(&self, bytes: usize) -> bool {
        let used = self.used();
        used == 0 || used.saturating_add(bytes) <= self.limit
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
        let whole = self.parent.as_ref().unwrap_or(self);
        loop {
            // Registered before the check, so that nothing freed in between is missed.
            let freed = whole.freed.notified();
            let short = match self.try_reserve(bytes, pace) {
                Ok(charge) => {
                    pace.paused.store(false, Ordering::Relaxed);
                    pace.full.store(0, Ordering::Release);
                    return charge;
                }
                Err(short) => short,
            };
            pace.paused.store(matches!(short, Short::All), Ordering::Relaxed);
            let full = if matches!(short, Short::Own) { bytes } else { 0 };
            pace.full.store(full, Ordering::Release);
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

    fn try_reserve(self: &Arc<Budget>, bytes: usize, pace: &Pace) -> Result<Charge, Short> {
        if let Some(parent) = &self.parent {
            self.take(bytes, self.limit).ok_or(Short::Own)?;
            if parent.take_at(bytes, pace).is_none() {
                self.used.fetch_sub(bytes, Ordering::Relaxed);
                return Err(Short::All);
            }
        } else {
            self.take_at(bytes, pace).ok_or(Short::All)?;
        }
        Ok(Charge { budget: Arc::clone(self), bytes })
    }

    fn take_at(&self, bytes: usize, pace: &Pace) -> Option<()> {
        let behind = pace.behind.load(Ordering::Relaxed);
        self.take(bytes, if behind { self.hard() } else { self.limit })
    }

    fn take(&self, bytes: usize, limit: usize) -> Option<()> {
        let fits = |used: usize| (used == 0 || used.saturating_add(bytes) <= limit).then_some(used + bytes);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok().map(|_| ())
    }

    fn grow(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.grow(bytes);
        }
    }

    fn shrink(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.shrink(bytes);
        }
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

    /// What it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What was received turned out to take `bytes` once decoded.
    pub fn set(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            self.budget.grow(bytes - self.bytes);
        } else {
            self.budget.shrink(self.bytes - bytes);
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
        Pace { behind: behind.into(), ..Pace::default() }
    }

    #[tokio::test]
    async fn who_is_ahead_waits_and_who_is_behind_may_go_on() {
        let budget = Budget::new(100);
        let (ahead, behind) = (pace(false), pace(true));
        let first = budget.reserve(80, &ahead).await;
        assert!(budget.try_reserve(30, &ahead).is_err());
        let mut second = budget.reserve(30, &behind).await;
        assert_eq!(budget.used(), 110);
        assert!(!budget.is_exhausted());
        second.set(45);
        assert!(budget.is_exhausted() && budget.try_reserve(1, &behind).is_err());

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
        assert!(budget.try_reserve(1000, &ahead).is_ok(), "larger than all, but alone");
    }

    #[tokio::test]
    async fn a_part_bounds_one_node_and_counts_for_all() {
        let whole = Budget::new(100);
        let (one, other, behind) = (whole.part(40), whole.part(40), pace(true));
        let first = one.reserve(40, &behind).await;
        assert!(matches!(one.try_reserve(1, &behind), Err(Short::Own)), "also for one that is behind");
        let mut second = other.reserve(30, &behind).await;
        assert_eq!(whole.used(), 70);
        second.set(90);
        assert!(whole.is_exhausted());
        drop(second);
        assert_eq!((other.used(), whole.used()), (0, 40));
        let rest = whole.reserve(60, &pace(false)).await;
        assert!(matches!(other.try_reserve(10, &pace(false)), Err(Short::All)));
        assert_eq!((other.used(), whole.used()), (0, 100));
        drop((first, rest));
        assert_eq!(whole.used(), 0);
    }
}
