//! Who may connect, and what one node, and all together, may use of the server, over all connections.

use crate::budget::Budget;
use crate::error::Refusal;
use crate::lock;
use crate::tuning::Tuning;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// Connections that have not said who they are. They are not counted among `connections`: whoever opens many and says
/// nothing keeps nobody out, because the one that has waited longest makes room for the next.
const STRANGERS: usize = 256;
/// Who is limited by a rate may be ahead of it by what may be sent in this time.
const BURST: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Limits {
    places: Arc<Semaphore>,
    connections: usize,
    strangers: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    nodes: Mutex<HashMap<String, Arc<Share>>>,
    memory: Arc<Budget>,
    node_memory: usize,
    /// Of all nodes together.
    flow: Arc<Flow>,
    tuning: Arc<Tuning>,
}

/// What one node uses.
#[derive(Debug)]
struct Share {
    connections: AtomicUsize,
    memory: Arc<Budget>,
    flow: Flow,
}

/// When all that was sent would have been sent at a rate.
#[derive(Debug)]
struct Flow(Mutex<Instant>);

/// The place of a connection; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

/// The place of a node's connection.
#[derive(Debug)]
pub(crate) struct NodePlace {
    _place: Place,
    share: Arc<Share>,
    all: Arc<Flow>,
    tuning: Arc<Tuning>,
}

impl Limits {
    /// The limits of a server whose memory this is.
    pub(crate) fn new(tuning: Arc<Tuning>, memory: Arc<Budget>) -> Limits {
        let config = tuning.get();
        Limits {
            places: Arc::new(Semaphore::new(config.connections.min(Semaphore::MAX_PERMITS))),
            connections: config.connections,
            strangers: Mutex::default(),
            nodes: Mutex::default(),
            node_memory: usize::try_from(config.node_memory()).unwrap_or(usize::MAX),
            flow: Arc::new(Flow::new()),
            tuning,
            memory,
        }
    }

    /// Somebody connected. What is returned fails when there is no room for it any more.
    pub(crate) fn stranger(&self, conn: u64) -> oneshot::Receiver<()> {
        let (evict, evicted) = oneshot::channel();
        let mut strangers = lock(&self.strangers);
        strangers.insert(conn, evict);
        while strangers.len() > STRANGERS {
            strangers.pop_first();
        }
        evicted
    }

    /// Makes room where file descriptors are short. False if there is nobody who has not said who he is.
    pub(crate) fn evict(&self) -> bool {
        lock(&self.strangers).pop_first().is_some()
    }

    /// A connection is no stranger any more: it was admitted, or has gone.
    pub(crate) fn known(&self, conn: u64) {
        if let Some(evict) = lock(&self.strangers).remove(&conn) {
            let _ = evict.send(());
        }
    }

    /// A place for a subscriber. The last quarter is for nodes.
    pub(crate) fn subscriber(&self) -> Result<Place, Refusal> {
        if self.places.available_permits() <= self.connections / 4 {
            return Err(Refusal::Full(self.connections));
        }
        self.place()
    }

    /// A place for a node.
    pub(crate) fn node(&self, name: &str) -> Result<NodePlace, Refusal> {
        let place = self.place()?;
        let mut nodes = lock(&self.nodes);
        // What an earlier connection has sent may still be in memory.
        nodes.retain(|_, share| share.connections.load(Ordering::Relaxed) > 0 || share.memory.used() > 0);
        let share = nodes.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(Share {
                connections: AtomicUsize::new(0),
                memory: self.memory.part(self.node_memory),
                flow: Flow::new(),
            })
        });
        let limit = self.tuning.get().node_connections;
        if share.connections.load(Ordering::Relaxed) >= limit {
            return Err(Refusal::NodeFull(limit));
        }
        share.connections.fetch_add(1, Ordering::Relaxed);
        Ok(NodePlace {
            _place: place,
            share: Arc::clone(share),
            all: Arc::clone(&self.flow),
            tuning: Arc::clone(&self.tuning),
        })
    }

    fn place(&self) -> Result<Place, Refusal> {
        let permit = Arc::clone(&self.places).try_acquire_owned();
        permit.map(|permit| Place { _permit: permit }).map_err(|_| Refusal::Full(self.connections))
    }
}

impl NodePlace {
    /// The node's memory.
    pub(crate) fn memory(&self) -> &Arc<Budget> {
        &self.share.memory
    }

    /// The node sent so many bytes. Returns when it may be read again, if not at once.
    pub(crate) fn sent(&self, bytes: usize) -> Option<Instant> {
        self.sent_at(bytes, Instant::now())
    }

    fn sent_at(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let own = self.share.flow.sent(bytes, self.tuning.node_rate(), now);
        own.max(self.all.sent(bytes, self.tuning.rate(), now))
    }
}

impl Flow {
    fn new() -> Flow {
        Flow(Mutex::new(Instant::now()))
    }

    /// So many bytes were sent. Returns until when that is too fast, if it is. Rate 0: never.
    fn sent(&self, bytes: usize, rate: u64, now: Instant) -> Option<Instant> {
        let nanoseconds = (bytes as u128 * 1_000_000_000).checked_div(u128::from(rate))?;
        let took = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let mut due = lock(&self.0);
        *due = (*due).max(now.checked_sub(BURST).unwrap_or(now)) + took;
        (*due > now).then_some(*due)
    }
}

impl Drop for NodePlace {
    fn drop(&mut self) {
        self.share.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn limits(set: impl FnOnce(&mut Config)) -> Limits {
        let mut config = Config::default();
        set(&mut config);
        Limits::new(Tuning::new(config), Budget::new(64 << 20))
    }

    #[test]
    fn strangers_make_room_for_each_other() {
        let limits = limits(|_| {});
        let mut waiting: Vec<_> = (0..STRANGERS as u64).map(|conn| limits.stranger(conn)).collect();
        limits.known(0);
        let mut next: Vec<_> = (0..3).map(|n| limits.stranger(1000 + n)).collect();
        let evicted =
            |w: &mut oneshot::Receiver<()>| w.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        let gone: Vec<usize> = (0..waiting.len()).filter(|n| evicted(&mut waiting[*n])).collect();
        assert_eq!(gone, [1, 2], "0 was let in before");
        assert!(!next.iter_mut().any(evicted));
        assert!(limits.evict() && evicted(&mut waiting[3]));
    }

    #[test]
    fn a_node_and_all_subscribers_have_a_part_of_the_connections() {
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
    fn memory_belongs_to_the_node_and_not_to_its_connection() {
        let limits = limits(|config| config.node_memory = Some(17 << 20));
        let first = limits.node("a").unwrap();
        let charge = first.memory().charge(1000);
        drop(first);
        assert_eq!(limits.node("a").unwrap().memory().used(), 1000);
        drop(charge);
        assert_eq!(limits.node("b").unwrap().memory().used(), 0);
        assert_eq!(lock(&limits.nodes).len(), 1, "a left nothing behind");
    }

    #[test]
    fn a_rate_allows_bursts_and_no_more() {
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
    fn a_rate_of_all_is_shared_and_the_narrower_one_counts() {
        let rated = limits(|config| (config.rate, config.node_rate) = (1 << 20, 1 << 19));
        let (a, b) = (rated.node("a").unwrap(), rated.node("b").unwrap());
        let now = Instant::now() + Duration::from_secs(10);
        let half = Duration::from_millis(500);
        assert_eq!(a.sent_at(1 << 19, now), None);
        assert_eq!(a.sent_at(1 << 18, now), Some(now + half), "by its own rate");
        assert_eq!(b.sent_at(1 << 19, now), Some(now + half / 2), "by what a has sent");
        assert_eq!(b.sent_at(0, now + half), None);
    }
}
