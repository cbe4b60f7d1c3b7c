//! Limits on connections, and on the memory and the rate of one node and of all nodes, over all
//! their connections.

#![expect(clippy::disallowed_types, reason = "number of connections")]

use crate::error::Refusal;
use crate::ids::ConnId;
use crate::lock;
use crate::settings::tuning::Tuning;
use crate::store::budget::Budget;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// Maximum number of connections before their greeting, if `connections` is not more: after a
/// restart all nodes connect at once. They do not count towards `connections`: a peer that opens
/// many and sends nothing keeps nobody out, because the oldest is closed for each new one.
const LEAST_UNIDENTIFIED: usize = 256;
/// Up to this number of nodes, those that are gone are removed at each new connection.
const FEW_NODES: usize = 64;
/// A rate limit allows bursts of this duration.
const BURST: Duration = Duration::from_secs(1);

/// The limits, see the module.
#[derive(Debug)]
pub(crate) struct Limits {
    permits: Arc<Semaphore>,
    connections: usize,
    max_unidentified: usize,
    unidentified: Mutex<BTreeMap<ConnId, oneshot::Sender<()>>>,
    nodes: Mutex<HashMap<String, Arc<NodeUsage>>>,
    memory: Arc<Budget>,
    node_memory: usize,
    /// Rate of all nodes together.
    rate_limit: Arc<RateLimit>,
    tuning: Arc<Tuning>,
}

/// Resources in use by one node.
#[derive(Debug)]
struct NodeUsage {
    connections: AtomicUsize,
    memory: Arc<Budget>,
    rate_limit: RateLimit,
}

/// Rate limit: the time at which all bytes so far would have been sent at the allowed rate.
#[derive(Debug)]
struct RateLimit(Mutex<Instant>);

/// Permission for one connection. Dropping it frees its place.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
}

/// Permission for one connection of a node.
#[derive(Debug)]
pub(crate) struct NodePermit {
    _permit: ConnectionPermit,
    usage: Arc<NodeUsage>,
    total: Arc<RateLimit>,
    tuning: Arc<Tuning>,
}

impl Limits {
    /// Creates the limits of a server with this memory budget.
    pub(crate) fn new(tuning: Arc<Tuning>, memory: Arc<Budget>) -> Limits {
        let config = tuning.get();
        Limits {
            permits: Arc::new(Semaphore::new(config.connections.min(Semaphore::MAX_PERMITS))),
            connections: config.connections,
            max_unidentified: config.connections.max(LEAST_UNIDENTIFIED),
            unidentified: Mutex::default(),
            nodes: Mutex::default(),
            node_memory: usize::try_from(config.node_memory()).unwrap_or(usize::MAX),
            rate_limit: Arc::new(RateLimit::new()),
            tuning,
            memory,
        }
    }

    /// Adds a connection before its greeting. The returned receiver fails when the connection must
    /// close in favor of another one.
    pub(crate) fn add_unidentified(&self, conn: ConnId) -> oneshot::Receiver<()> {
        let (evict, evicted) = oneshot::channel();
        let mut unidentified = lock(&self.unidentified);
        unidentified.insert(conn, evict);
        while unidentified.len() > self.max_unidentified {
            unidentified.pop_first();
        }
        evicted
    }

    /// Closes the oldest connection before its greeting, e.g. because file descriptors are short.
    /// Returns false if there is none.
    pub(crate) fn evict_oldest(&self) -> bool {
        lock(&self.unidentified).pop_first().is_some()
    }

    /// Removes a connection from those before their greeting: it was admitted, or has ended.
    pub(crate) fn identified(&self, conn: ConnId) {
        if let Some(evict) = lock(&self.unidentified).remove(&conn) {
            let _ = evict.send(());
        }
    }

    /// Admits a subscriber. The last quarter of the places is for nodes.
    pub(crate) fn subscriber(&self) -> Result<ConnectionPermit, Refusal> {
        if self.permits.available_permits() <= self.connections / 4 {
            return Err(Refusal::Full(self.connections));
        }
        self.permit()
    }

    /// Admits a connection of a node.
    pub(crate) fn node(&self, name: &str) -> Result<NodePermit, Refusal> {
        let permit = self.permit()?;
        let mut nodes = lock(&self.nodes);
        // With many nodes not each time, so that the cost per connection does not grow with them.
        if nodes.len() < FEW_NODES || nodes.len().is_power_of_two() {
            // Events of an earlier connection may still be in memory.
            nodes.retain(|_, usage| usage.connections.load(Ordering::Relaxed) > 0 || usage.memory.used() > 0);
        }
        let usage = nodes.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(NodeUsage {
                connections: AtomicUsize::new(0),
                memory: self.memory.child(self.node_memory),
                rate_limit: RateLimit::new(),
            })
        });
        let limit = self.tuning.get().node_connections;
        if usage.connections.load(Ordering::Relaxed) >= limit {
            return Err(Refusal::NodeFull(limit));
        }
        usage.connections.fetch_add(1, Ordering::Relaxed);
        Ok(NodePermit {
            _permit: permit,
            usage: Arc::clone(usage),
            total: Arc::clone(&self.rate_limit),
            tuning: Arc::clone(&self.tuning),
        })
    }

    fn permit(&self) -> Result<ConnectionPermit, Refusal> {
        let acquired = Arc::clone(&self.permits).try_acquire_owned();
        acquired
            .map(|permit| ConnectionPermit { _permit: permit })
            .map_err(|_| Refusal::Full(self.connections))
    }
}

impl NodePermit {
    /// Memory budget of the node.
    pub(crate) fn memory(&self) -> &Arc<Budget> {
        &self.usage.memory
    }

    /// Counts bytes that the node sent. Returns the time until which the node must not be read, if
    /// a rate limit is exceeded.
    pub(crate) fn sent(&self, bytes: usize) -> Option<Instant> {
        self.sent_at(bytes, Instant::now())
    }

    fn sent_at(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let own = self.usage.rate_limit.sent(bytes, self.tuning.node_rate(), now);
        own.max(self.total.sent(bytes, self.tuning.rate(), now))
    }
}

impl RateLimit {
    fn new() -> RateLimit {
        RateLimit(Mutex::new(Instant::now()))
    }

    /// Counts bytes. Returns the time until which this exceeds `rate` (bytes per second; 0: no
    /// limit), if it does.
    fn sent(&self, bytes: usize, rate: u64, now: Instant) -> Option<Instant> {
        let nanoseconds = (bytes as u128 * 1_000_000_000).checked_div(u128::from(rate))?;
        let took = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let mut due = lock(&self.0);
        *due = (*due).max(now.checked_sub(BURST).unwrap_or(now)) + took;
        (*due > now).then_some(*due)
    }
}

impl Drop for NodePermit {
    fn drop(&mut self) {
        self.usage.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::config::Config;

    fn limits(set: impl FnOnce(&mut Config)) -> Limits {
        let mut config = Config::default();
        set(&mut config);
        Limits::new(Tuning::new(config), Budget::new(64 << 20))
    }

    #[test]
    fn oldest_unidentified_connection_is_closed() {
        let limits = limits(|config| config.connections = 8);
        let mut waiting: Vec<_> =
            (0..LEAST_UNIDENTIFIED as u64).map(|conn| limits.add_unidentified(ConnId(conn))).collect();
        limits.identified(ConnId(0));
        let mut next: Vec<_> = (0..3).map(|n| limits.add_unidentified(ConnId(1000 + n))).collect();
        let evicted =
            |w: &mut oneshot::Receiver<()>| w.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        let gone: Vec<usize> = (0..waiting.len()).filter(|n| evicted(&mut waiting[*n])).collect();
        assert_eq!(gone, [1, 2], "0 was admitted before");
        assert!(!next.iter_mut().any(evicted));
        assert!(limits.evict_oldest() && evicted(&mut waiting[3]));
    }

    #[test]
    fn nodes_and_subscribers_have_separate_limits() {
        let limits = limits(|config| (config.connections, config.node_connections) = (8, 2));
        let a = [limits.node("a").ok(), limits.node("a").ok()];
        assert!(a.iter().all(Option::is_some));
        assert!(matches!(limits.node("a"), Err(Refusal::NodeFull(2))));
        let subscribers: Vec<_> = (0..8).filter_map(|_| limits.subscriber().ok()).collect();
        assert_eq!(subscribers.len(), 4);
        let b = [limits.node("b"), limits.node("c")];
        assert!(b.iter().all(Result::is_ok) && matches!(limits.node("d"), Err(Refusal::Full(8))));
        drop(a);
        assert!(limits.node("a").is_ok());
    }

    #[test]
    fn memory_belongs_to_the_node() {
        let limits = limits(|config| config.node_memory = Some(17 << 20));
        let first = limits.node("a").unwrap();
        let charge = first.memory().charge(1000);
        drop(first);
        assert_eq!(limits.node("a").unwrap().memory().used(), 1000);
        drop(charge);
        assert_eq!(limits.node("b").unwrap().memory().used(), 0);
        assert_eq!(lock(&limits.nodes).len(), 1, "the entry of a was removed");
    }

    #[test]
    fn rate_limit_allows_bursts() {
        let rated = limits(|config| config.node_rate = 1 << 20);
        let node = rated.node("a").unwrap();
        let now = Instant::now() + Duration::from_secs(10);
        assert_eq!(node.sent_at(1 << 20, now), None);
        let half = Duration::from_millis(500);
        assert_eq!(node.sent_at(1 << 19, now), Some(now + half));
        assert_eq!(node.sent_at(0, now + half), None);
        assert_eq!(limits(|_| {}).node("a").unwrap().sent(usize::MAX), None);
    }

    #[test]
    fn total_rate_is_shared_and_the_lower_limit_applies() {
        let rated = limits(|config| (config.rate, config.node_rate) = (1 << 20, 1 << 19));
        let (a, b) = (rated.node("a").unwrap(), rated.node("b").unwrap());
        let now = Instant::now() + Duration::from_secs(10);
        let half = Duration::from_millis(500);
        assert_eq!(a.sent_at(1 << 19, now), None);
        assert_eq!(a.sent_at(1 << 18, now), Some(now + half), "limited by its own rate");
        assert_eq!(b.sent_at(1 << 19, now), Some(now + half / 2), "limited by the total rate");
        assert_eq!(b.sent_at(0, now + half), None);
    }
}
