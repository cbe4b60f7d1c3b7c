//! How the server and its nodes are, for those who ask: gathered where it happens, put together when it is wanted.
//!
//! Sessions count what they receive and note what they learn of their node; the store's thread leaves a copy of what it
//! knows a few times a second; a task takes samples for rates and looks at the disk. Nothing here is waited for by the
//! way of events.

mod disk;
mod metrics;
mod pages;
mod rates;

pub(crate) use pages::pages;

use crate::budget::Budget;
use crate::clock::Correction;
use crate::config::Config;
use crate::{lock, now};
use disk::Disk;
use miot_proto::status::{ClockStatus, ClusterStatus, Losses, NodeReport, NodeStatus, ServerStatus};
use rates::Rates;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Between two samples for rates.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Samples between two looks at the disk.
const DISK_EVERY: u32 = 5;
/// A store that has not turned its loop for so long hangs: with a slow disk a commit takes seconds, not this.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(crate) struct Monitor {
    trace: PathBuf,
    started: (Instant, i64),
    memory: Arc<Budget>,
    memory_limit: u64,
    nodes: Mutex<BTreeMap<String, Node>>,
    store: Mutex<StoreFacts>,
    disk: Mutex<Disk>,
    rates: Mutex<Rates>,
    /// Subscribers that are served.
    pub(crate) subscribers: AtomicU64,
    /// Subscribers that were cut off.
    pub(crate) subscribers_cut: AtomicU64,
    /// Connections that were not served.
    pub(crate) turned_away: AtomicU64,
}

/// What comes from one node.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    events: AtomicU64,
    bytes: AtomicU64,
    heard: AtomicI64,
}

impl Traffic {
    /// A message of so many bytes came.
    pub(crate) fn heard(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
        self.heard.store(now(), Relaxed);
    }

    /// So many events came.
    pub(crate) fn events(&self, events: usize) {
        self.events.fetch_add(events as u64, Relaxed);
    }

    fn sample(&self) -> [u64; 2] {
        [self.events.load(Relaxed), self.bytes.load(Relaxed)]
    }
}

#[derive(Debug, Default)]
struct Node {
    conn: Option<u64>,
    since: i64,
    connects: u64,
    address: String,
    traffic: Arc<Traffic>,
    rates: Rates,
    clock: Option<ClockStatus>,
    report: Option<NodeReport>,
    reported: Option<i64>,
}

/// What the store knows.
#[derive(Clone, Debug)]
pub(crate) struct StoreFacts {
    /// When it said so.
    pub(crate) at: Instant,
    /// Why the trace cannot be written.
    pub(crate) failure: Option<String>,
    /// See [`ServerStatus`].
    pub(crate) merge_lag_ns: i64,
    /// Rows in the merge.
    pub(crate) waiting: u64,
    /// Events that are durable.
    pub(crate) events: u64,
    /// By name.
    pub(crate) nodes: BTreeMap<String, Standing>,
}

/// What the store knows of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) watermark: Option<i64>,
    pub(crate) holds_back: bool,
    pub(crate) losses: Losses,
}

/// All places of losses, so that those of which there are none are told as well.
pub(crate) const PLACES: [&str; 7] =
    ["lane_full", "spool_full", "spool_damaged", "nested", "no_lane", "abi_violation", "filtered"];

impl Monitor {
    /// Of a server that starts now.
    pub(crate) fn new(config: &Config, memory: Arc<Budget>) -> Arc<Monitor> {
        let started = Instant::now();
        Arc::new(Monitor {
            trace: config.trace.clone(),
            started: (started, now()),
            memory,
            memory_limit: config.memory,
            nodes: Mutex::default(),
            store: Mutex::new(StoreFacts {
                at: started,
                failure: None,
                merge_lag_ns: 0,
                waiting: 0,
                events: 0,
                nodes: BTreeMap::new(),
            }),
            disk: Mutex::new(Disk::look(&config.trace)),
            rates: Mutex::default(),
            subscribers: AtomicU64::new(0),
            subscribers_cut: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
        })
    }

    /// A node's connection. What comes on it is to be counted in what is returned.
    pub(crate) fn connected(&self, node: &str, conn: u64, address: SocketAddr) -> Arc<Traffic> {
        let mut nodes = lock(&self.nodes);
        let entry = nodes.entry(node.to_owned()).or_default();
        entry.conn = Some(conn);
        entry.since = now();
        entry.connects += 1;
        entry.address = address.to_string();
        Arc::clone(&entry.traffic)
    }

    /// The connection is gone; perhaps another one has replaced it.
    pub(crate) fn disconnected(&self, node: &str, conn: u64) {
        self.of(node, |entry| {
            entry.conn.take_if(|current| *current == conn);
        });
    }

    /// Names of all nodes that are known.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = lock(&self.nodes).keys().cloned().collect();
        names.extend(lock(&self.store).nodes.keys().cloned());
        names
    }

    /// What is applied to the node's times from now on.
    pub(crate) fn clock(&self, node: &str, correction: &Correction) {
        let clock = ClockStatus {
            offset_ns: correction.piece.offset,
            drift_ppb: correction.piece.drift,
            uncertainty_ns: correction.uncertainty,
            estimated_error_ns: Some(correction.estimated_error),
            round_trip_ns: correction.round_trip,
        };
        // Without an answer nothing is known but that nothing is.
        self.of(node, |entry| entry.clock = (clock.uncertainty_ns < i64::MAX).then_some(clock));
    }

    /// What the node says of itself.
    pub(crate) fn reported(&self, node: &str, report: NodeReport) {
        self.of(node, |entry| (entry.report, entry.reported) = (Some(report), Some(now())));
    }

    /// What the store knows now.
    pub(crate) fn store(&self, facts: StoreFacts) {
        *lock(&self.store) = facts;
    }

    fn of(&self, node: &str, change: impl FnOnce(&mut Node)) {
        if let Some(entry) = lock(&self.nodes).get_mut(node) {
            change(entry);
        }
    }

    /// Takes samples for ever.
    pub(crate) async fn run(self: Arc<Monitor>) {
        let mut ticks = tokio::time::interval(SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looking: Option<tokio::task::JoinHandle<()>> = None;
        for tick in (0..DISK_EVERY).cycle() {
            ticks.tick().await;
            self.sample();
            // A file system that hangs holds up this and nothing else.
            if tick == 0 && looking.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
                let monitor = Arc::clone(&self);
                looking = Some(tokio::task::spawn_blocking(move || {
                    let disk = Disk::look(&monitor.trace);
                    *lock(&monitor.disk) = disk;
                }));
            }
        }
    }

    fn sample(&self) {
        let at = (Instant::now(), now());
        let mut bytes = 0;
        for node in lock(&self.nodes).values_mut() {
            let sample = node.traffic.sample();
            bytes += sample[1];
            node.rates.sample(at, sample);
        }
        let events = lock(&self.store).events;
        lock(&self.rates).sample(at, [events, bytes]);
    }

    /// True while the store's loop turns. That of connections is the one that answers.
    pub(crate) fn turns(&self) -> bool {
        lock(&self.store).at.elapsed() < HANGS_AFTER
    }

    /// Why the server cannot do its work; `None` if it can.
    pub(crate) fn failure(&self) -> Option<String> {
        let store = lock(&self.store);
        let hangs = store.at.elapsed() >= HANGS_AFTER;
        let hanging = || format!("the store has not moved for {} s", store.at.elapsed().as_secs());
        store.failure.clone().or_else(|| hangs.then(hanging))
    }

    /// Everything that is known now, without orders.
    pub(crate) fn status(&self) -> ClusterStatus {
        let (store, disk, time) = (lock(&self.store).clone(), *lock(&self.disk), now());
        let mut nodes: BTreeMap<String, NodeStatus> = BTreeMap::new();
        let (mut connections, mut bytes) = (0, 0);
        for (name, node) in lock(&self.nodes).iter() {
            let status = node.status(name);
            connections += u64::from(status.connected);
            bytes += status.bytes;
            nodes.insert(name.clone(), status);
        }
        let mut losses = Losses::new();
        for (name, standing) in store.nodes {
            let new = || NodeStatus { node: name.clone(), ..NodeStatus::default() };
            let status = nodes.entry(name.clone()).or_insert_with(new);
            for (place, count) in &standing.losses {
                *losses.entry(place.clone()).or_default() += count;
            }
            status.losses = standing.losses;
            status.watermark = standing.watermark;
            status.holds_back = standing.holds_back && status.connected;
            status.lag_ns = standing.watermark.map(|watermark| (time - watermark).max(0));
        }
        let rates = lock(&self.rates);
        let ([events_per_second, bytes_per_second], rates_of) = (rates.per_second(), rates.window());
        drop(rates);
        let server = ServerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time,
            started: self.started.1,
            uptime_s: self.started.0.elapsed().as_secs_f64(),
            trace: self.trace.display().to_string(),
            durable: store.failure.is_none(),
            failure: store.failure,
            merge_lag_ns: store.merge_lag_ns,
            waiting: store.waiting,
            events: store.events,
            events_per_second,
            bytes,
            bytes_per_second,
            rates_of,
            live_parts: disk.live,
            sealed_parts: disk.sealed,
            disk_free: disk.free,
            disk_total: disk.total,
            memory: self.memory.used() as u64,
            memory_limit: self.memory_limit,
            connections,
            subscribers: self.subscribers.load(Relaxed),
            subscribers_cut: self.subscribers_cut.load(Relaxed),
            turned_away: self.turned_away.load(Relaxed),
            losses,
        };
        ClusterStatus { server, nodes: nodes.into_values().collect(), orders: Vec::new() }
    }
}

impl Node {
    fn status(&self, name: &str) -> NodeStatus {
        let [events, bytes] = self.traffic.sample();
        let [events_per_second, bytes_per_second] = self.rates.per_second();
        let heard = self.traffic.heard.load(Relaxed);
        NodeStatus {
            node: name.to_owned(),
            connected: self.conn.is_some(),
            connected_since: Some(self.since),
            connects: self.connects,
            address: self.address.clone(),
            last_heard: (heard != 0).then_some(heard),
            events,
            events_per_second,
            bytes,
            bytes_per_second,
            rates_of: self.rates.window(),
            clock: self.clock,
            report: self.report.clone(),
            reported: self.reported,
            ..NodeStatus::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_move_hangs() {
        let monitor = Monitor::new(&Config::default(), Budget::new(0));
        assert!(monitor.turns() && monitor.failure().is_none());
        let facts = lock(&monitor.store).clone();
        monitor.store(StoreFacts { at: facts.at - HANGS_AFTER, ..facts });
        assert!(!monitor.turns());
        assert!(monitor.failure().unwrap().contains("has not moved for 60 s"));
    }
}
