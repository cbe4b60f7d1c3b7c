//! Memory for events that were received and are not durable yet. It is reserved before it is
//! allocated.
//!
//! A session reserves the length of a frame before it reads the frame, and waits until the
//! reservation fits. The node that holds back the merge may exceed the limit by a quarter: the
//! events that wait for its watermark cannot be freed otherwise. Beyond that, the store merges
//! without waiting for slow nodes.
//!
//! Each node has a child budget of the server's budget, so that it cannot use up the memory of the
//! others.

#![expect(clippy::disallowed_types, reason = "bytes of memory in use")]

use crate::store::watermarks::FlowControl;
use miot_proto::wire::MAX_FRAME;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Memory budget of a server or of one node, bytes.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    /// Bytes for which a node that holds back the merge waits; 0: none does.
    wanted: AtomicUsize,
    freed: Notify,
    /// Each byte in use here is also in use in the parent.
    parent: Option<Arc<Budget>>,
}

/// The limit that a reservation exceeds.
#[derive(Debug)]
enum Exceeded {
    /// The limit of the node.
    Node,
    /// The limit of the server.
    Server,
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Budget> {
        Budget::with_parent(limit, None)
    }

    /// Creates a child budget of at most `limit` bytes.
    #[must_use]
    pub fn child(self: &Arc<Budget>, limit: usize) -> Arc<Budget> {
        Budget::with_parent(limit, Some(Arc::clone(self)))
    }

    fn with_parent(limit: usize, parent: Option<Arc<Budget>>) -> Arc<Budget> {
        let (used, wanted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Budget { limit, used, wanted, freed: Notify::new(), parent })
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// True if `bytes` could be reserved now. An unused budget fits any size.
    #[must_use]
    pub fn fits(&self, bytes: usize) -> bool {
        let used = self.used();
        used == 0 || used.saturating_add(bytes) <= self.limit
    }

    /// True if reservations may soon have to wait: with another frame of the maximum size, half of
    /// the budget would be in use.
    #[must_use]
    pub fn may_run_short(&self) -> bool {
        self.used().saturating_add(MAX_FRAME) >= self.limit / 2
    }

    /// True if even the node that holds back the merge can reserve nothing more, or not the bytes
    /// for which it waits.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed).max(1);
        self.used().saturating_add(wanted) > self.hard_limit()
    }

    /// Wakes all waiting reservations after a merge: memory was freed, or another node holds back
    /// the next merge. Those that still have to wait say so again.
    pub fn wake(&self) {
        self.wanted.store(0, Ordering::Relaxed);
        self.notify_freed();
    }

    /// Wakes all waiting reservations before or during a merge. What they want still counts in
    /// [`is_exhausted`](Self::is_exhausted), because they may not have tried again by then.
    pub fn notify_freed(&self) {
        self.freed.notify_waiters();
    }

    /// Reserves `bytes`, after waiting until they fit. A reservation that is larger than the budget
    /// fits when nothing else is in use.
    pub async fn reserve(self: &Arc<Budget>, bytes: usize, flow: &FlowControl) -> Charge {
        let server = self.parent.as_ref().unwrap_or(self);
        loop {
            // Registered before the check, so that memory freed in between is not missed.
            let freed = server.freed.notified();
            let exceeded = match self.try_reserve(bytes, flow) {
                Ok(charge) => {
                    flow.paused.store(false, Ordering::Relaxed);
                    flow.full.store(0, Ordering::Release);
                    return charge;
                }
                Err(exceeded) => exceeded,
            };
            flow.paused.store(matches!(exceeded, Exceeded::Server), Ordering::Relaxed);
            let full = if matches!(exceeded, Exceeded::Node) { bytes } else { 0 };
            flow.full.store(full, Ordering::Release);
            freed.await;
        }
    }

    /// Charges `bytes` without a check of the limit.
    #[must_use]
    pub fn charge(self: &Arc<Budget>, bytes: usize) -> Charge {
        let mut charge = Charge::none(self);
        charge.set(bytes);
        charge
    }

    /// Waits until less than the limit is in use.
    pub async fn below_limit(&self) {
        loop {
            let freed = self.freed.notified();
            if self.used() < self.limit {
                return;
            }
            freed.await;
        }
    }

    fn try_reserve(self: &Arc<Budget>, bytes: usize, flow: &FlowControl) -> Result<Charge, Exceeded> {
        if let Some(parent) = &self.parent {
            self.try_use(bytes, self.limit).ok_or(Exceeded::Node)?;
            if parent.try_use_at(bytes, flow).is_none() {
                self.used.fetch_sub(bytes, Ordering::Relaxed);
                return Err(Exceeded::Server);
            }
        } else {
            self.try_use_at(bytes, flow).ok_or(Exceeded::Server)?;
        }
        Ok(Charge { budget: Arc::clone(self), bytes })
    }

    fn try_use_at(&self, bytes: usize, flow: &FlowControl) -> Option<()> {
        if !flow.behind.load(Ordering::Relaxed) {
            return self.try_use(bytes, self.limit);
        }
        let used = self.try_use(bytes, self.hard_limit());
        if used.is_none() {
            self.wanted.fetch_max(bytes, Ordering::Relaxed);
        }
        used
    }

    fn try_use(&self, bytes: usize, limit: usize) -> Option<()> {
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

    fn hard_limit(&self) -> usize {
        self.limit + self.limit / 4
    }
}

/// Reserved bytes. Dropping it frees them.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    /// Creates a charge of 0 bytes.
    #[must_use]
    pub fn none(budget: &Arc<Budget>) -> Charge {
        Charge { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Number of reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the charge to `bytes`, e.g. once the decoded size is known.
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

    fn flow(behind: bool) -> FlowControl {
        FlowControl { behind: behind.into(), ..FlowControl::default() }
    }

    #[tokio::test]
    async fn node_ahead_waits_and_node_behind_continues() {
        let budget = Budget::new(100);
        let (ahead, behind) = (flow(false), flow(true));
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
                let charge = budget.reserve(30, &flow(false)).await;
                charge.bytes
            }
        });
        tokio::task::yield_now().await;
        drop(first);
        budget.wake();
        assert_eq!(waiting.await.unwrap(), 30);
        drop(second);
        assert_eq!(budget.used(), 0);
        assert!(
            budget.try_reserve(1000, &ahead).is_ok(),
            "larger than the budget, but nothing else is in use"
        );
    }

    /// Otherwise the store would wait for a node whose next frame does not fit into the rest.
    #[tokio::test]
    async fn budget_is_exhausted_if_the_node_behind_waits_for_more_than_the_rest() {
        let budget = Budget::new(100);
        let node = budget.child(100);
        let first = budget.charge(120);
        assert!(!budget.is_exhausted());
        assert!(node.try_reserve(10, &flow(false)).is_err());
        assert!(!budget.is_exhausted(), "a node ahead waits for the merge");
        assert!(node.try_reserve(10, &flow(true)).is_err());
        assert!(budget.is_exhausted());
        budget.notify_freed();
        assert!(budget.is_exhausted(), "during a merge, the node has not tried again yet");
        budget.wake();
        assert!(!budget.is_exhausted(), "until the node has tried again");
        assert!(node.try_reserve(10, &flow(true)).is_err() && budget.is_exhausted());
        drop(first);
        assert!(!budget.is_exhausted() && node.try_reserve(10, &flow(true)).is_ok());
    }

    #[tokio::test]
    async fn child_budget_limits_a_node_and_counts_for_the_server() {
        let server = Budget::new(100);
        let (one, other, behind) = (server.child(40), server.child(40), flow(true));
        let first = one.reserve(40, &behind).await;
        assert!(matches!(one.try_reserve(1, &behind), Err(Exceeded::Node)), "also for a node that is behind");
        let mut second = other.reserve(30, &behind).await;
        assert_eq!(server.used(), 70);
        second.set(90);
        assert!(server.is_exhausted());
        drop(second);
        assert_eq!((other.used(), server.used()), (0, 40));
        let rest = server.reserve(60, &flow(false)).await;
        assert!(matches!(other.try_reserve(10, &flow(false)), Err(Exceeded::Server)));
        assert_eq!((other.used(), server.used()), (0, 100));
        drop((first, rest));
        assert_eq!(server.used(), 0);
    }
}
