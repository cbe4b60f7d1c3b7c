//! Status of the server and its nodes. It is collected where it arises, and combined on request.
//!
//! Sessions count received data and record facts about their node; the thread of the store leaves a
//! copy of its status several times a second; a task takes samples for rates and checks the disk.
//! The path of events never waits for the monitor.

#![expect(clippy::disallowed_types, reason = "counters for metrics")]

mod disk;
mod metrics;
mod pages;
mod rates;

pub(crate) use pages::pages;

use crate::clock::Correction;
use crate::ids::ConnId;
use crate::session::PeerAddress;
use crate::settings::config::Config;
use crate::store::budget::Budget;
use crate::{lock, now};
use disk::Disk;
use miot_broker::{BrokerState, StreamState};
use miot_proto::status::{
    BrokerStatus, ClockStatus, ClusterStatus, Losses, NodeReport, NodeStatus, ServerStatus,
};
use miot_proto::wire::MemberIdentity;
use rates::Rates;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time between two samples for rates.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Number of samples between two checks of the disk.
const CHECK_DISK_EVERY: u32 = 5;
/// A store without a report for this time hangs: with a slow disk a commit takes seconds, but not
/// this long.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The monitor, see the module.
#[derive(Debug)]
pub(crate) struct Monitor {
    trace: PathBuf,
    /// Address of the object store for sealed parts.
    object_store: Option<String>,
    identity: MemberIdentity,
    started: (Instant, i64),
    memory: Arc<Budget>,
    memory_limit: u64,
    nodes: Mutex<BTreeMap<String, NodeEntry>>,
    store: Mutex<StoreStatus>,
    disk: Mutex<Disk>,
    rates: Mutex<Rates>,
    /// Number of connected subscribers.
    pub(crate) subscribers: AtomicU64,
    /// Number of subscribers that were cut off.
    pub(crate) subscribers_cut: AtomicU64,
    /// Number of refused connections.
    pub(crate) refused: AtomicU64,
    /// Addresses of the broker.
    broker_url: Option<String>,
    /// The connection to the broker.
    pub(crate) broker: watch::Sender<BrokerState>,
}

/// Received data of one node.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    events: AtomicU64,
    bytes: AtomicU64,
    heard: AtomicI64,
}

impl Traffic {
    /// Counts a message of `bytes` bytes.
    pub(crate) fn heard(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
        self.heard.store(now(), Relaxed);
    }

    /// Counts received events.
    pub(crate) fn events(&self, events: usize) {
        self.events.fetch_add(events as u64, Relaxed);
    }

    fn sample(&self) -> [u64; 2] {
        [self.events.load(Relaxed), self.bytes.load(Relaxed)]
    }
}

#[derive(Debug, Default)]
struct NodeEntry {
    conn: Option<ConnId>,
    since: i64,
    connects: u64,
    address: String,
    traffic: Arc<Traffic>,
    rates: Rates,
    clock: Option<ClockStatus>,
    report: Option<NodeReport>,
    reported: Option<i64>,
}

/// Status of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreStatus {
    /// Time of the report.
    pub(crate) at: Instant,
    /// Reason why the trace cannot be written.
    pub(crate) failure: Option<String>,
    /// See [`ServerStatus`].
    pub(crate) merge_lag_ns: i64,
    /// Number of rows in the merge.
    pub(crate) waiting: u64,
    /// Number of durable events.
    pub(crate) events: u64,
    /// See [`ServerStatus::final_time`].
    pub(crate) final_time: Option<i64>,
    /// Nodes, with their names.
    pub(crate) nodes: Vec<(Arc<str>, MergeStatus)>,
}

/// Status of a node in the merge.
#[derive(Clone, Debug, Default)]
pub(crate) struct MergeStatus {
    pub(crate) watermark: Option<i64>,
    pub(crate) holds_back: bool,
    pub(crate) losses: Losses,
}

/// All places of losses, so that places without losses are shown too.
pub(crate) const LOSS_PLACES: [&str; 7] =
    ["lane_full", "spool_full", "spool_damaged", "nested", "no_lane", "abi_violation", "filtered"];

impl Monitor {
    /// Creates the monitor of a server that starts now.
    pub(crate) fn new(config: &Config, memory: Arc<Budget>) -> Arc<Monitor> {
        let started = Instant::now();
        Arc::new(Monitor {
            trace: config.trace.clone(),
            object_store: config.store.clone(),
            identity: config.identity(),
            started: (started, now()),
            memory,
            memory_limit: config.memory,
            nodes: Mutex::default(),
            store: Mutex::new(StoreStatus {
                final_time: None,
                at: started,
                failure: None,
                merge_lag_ns: 0,
                waiting: 0,
                events: 0,
                nodes: Vec::new(),
            }),
            disk: Mutex::new(Disk::measure(&config.trace, config.store.as_deref())),
            rates: Mutex::default(),
            subscribers: AtomicU64::new(0),
            subscribers_cut: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            broker_url: config.transport.clone(),
            broker: watch::Sender::new(BrokerState::default()),
        })
    }

    /// Records the connection of a node. The session counts received data in the returned value.
    pub(crate) fn connected(&self, node: &str, conn: ConnId, address: PeerAddress) -> Arc<Traffic> {
        let mut nodes = lock(&self.nodes);
        let entry = nodes.entry(node.to_owned()).or_default();
        entry.conn = Some(conn);
        entry.since = now();
        entry.connects += 1;
        entry.address = address.to_string();
        Arc::clone(&entry.traffic)
    }

    /// Records the end of a connection, which another one may have replaced.
    pub(crate) fn disconnected(&self, node: &str, conn: ConnId) {
        self.update_node(node, |entry| {
            entry.conn.take_if(|current| *current == conn);
        });
    }

    /// Names of all known nodes.
    pub(crate) fn node_names(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = lock(&self.nodes).keys().cloned().collect();
        names.extend(lock(&self.store).nodes.iter().map(|(name, _)| name.to_string()));
        names
    }

    /// Records the current correction of the node's times.
    pub(crate) fn clock(&self, node: &str, correction: &Correction) {
        let clock = ClockStatus {
            offset_ns: correction.piece.offset,
            drift_ppb: correction.piece.drift,
            uncertainty_ns: correction.uncertainty,
            estimated_error_ns: Some(correction.estimated_error),
            round_trip_ns: correction.round_trip,
        };
        // Without an answer, nothing is known about the clock.
        self.update_node(node, |entry| entry.clock = (clock.uncertainty_ns < i64::MAX).then_some(clock));
    }

    /// Records a status report of the node.
    pub(crate) fn node_reported(&self, node: &str, report: NodeReport) {
        self.update_node(node, |entry| (entry.report, entry.reported) = (Some(report), Some(now())));
    }

    /// Records the status of the store.
    pub(crate) fn store_reported(&self, status: StoreStatus) {
        *lock(&self.store) = status;
    }

    fn update_node(&self, node: &str, change: impl FnOnce(&mut NodeEntry)) {
        if let Some(entry) = lock(&self.nodes).get_mut(node) {
            change(entry);
        }
    }

    /// Takes samples, forever.
    pub(crate) async fn run(self: Arc<Monitor>) {
        let mut ticks = tokio::time::interval(SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut disk_check: Option<tokio::task::JoinHandle<()>> = None;
        for tick in (0..CHECK_DISK_EVERY).cycle() {
            ticks.tick().await;
            self.sample();
            // A file system that hangs blocks only this task.
            if tick == 0 && disk_check.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
                let monitor = Arc::clone(&self);
                disk_check = Some(tokio::task::spawn_blocking(move || {
                    let disk = Disk::measure(&monitor.trace, monitor.object_store.as_deref());
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

    /// True while the loop of the store runs. The loop of the connections answers this request
    /// itself.
    pub(crate) fn store_is_running(&self) -> bool {
        lock(&self.store).at.elapsed() < HANG_TIMEOUT
    }

    /// Reason why the server cannot work; `None` if it can.
    pub(crate) fn failure(&self) -> Option<String> {
        let store = lock(&self.store);
        let hangs = store.at.elapsed() >= HANG_TIMEOUT;
        let hanging = || format!("the store has not moved for {} s", store.at.elapsed().as_secs());
        store.failure.clone().or_else(|| hangs.then(hanging))
    }

    fn broker_status(&self) -> Option<BrokerStatus> {
        let BrokerState { connected, connects, stream, error } = self.broker.borrow().clone();
        let of = |value: fn(&StreamState) -> u64| stream.as_ref().map_or(0, value);
        Some(BrokerStatus {
            url: self.broker_url.clone()?,
            connected,
            connects,
            error,
            messages: of(|stream| stream.messages),
            bytes: of(|stream| stream.bytes),
            limit: of(|stream| stream.max_bytes.unwrap_or(0)),
        })
    }

    /// Current status, without stored commands.
    pub(crate) fn status(&self) -> ClusterStatus {
        let (store, disk, time) = (lock(&self.store).clone(), lock(&self.disk).clone(), now());
        let mut nodes: BTreeMap<String, NodeStatus> = BTreeMap::new();
        let (mut connections, mut bytes) = (0, 0);
        for (name, node) in lock(&self.nodes).iter() {
            let status = node.status(name);
            connections += u64::from(status.connected);
            bytes += status.bytes;
            nodes.insert(name.clone(), status);
        }
        let mut losses = Losses::new();
        for (name, merge_status) in store.nodes {
            let new = || NodeStatus { node: name.to_string(), ..NodeStatus::default() };
            let status = nodes.entry(name.to_string()).or_insert_with(new);
            for (place, count) in &merge_status.losses {
                *losses.entry(place.clone()).or_default() += count;
            }
            status.losses = merge_status.losses;
            status.watermark = merge_status.watermark;
            status.holds_back = merge_status.holds_back && status.connected;
            status.lag_ns = merge_status.watermark.map(|watermark| (time - watermark).max(0));
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
            upload: disk.upload,
            broker: self.broker_status(),
            memory: self.memory.used() as u64,
            memory_limit: self.memory_limit,
            connections,
            subscribers: self.subscribers.load(Relaxed),
            subscribers_cut: self.subscribers_cut.load(Relaxed),
            turned_away: self.refused.load(Relaxed),
            cluster: self.identity.cluster.clone(),
            partition: self.identity.partition,
            final_time: store.final_time,
            losses,
        };
        ClusterStatus { server, nodes: nodes.into_values().collect(), orders: Vec::new() }
    }
}

impl NodeEntry {
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
    fn store_without_reports_hangs() {
        let monitor = Monitor::new(&Config::default(), Budget::new(0));
        assert!(monitor.store_is_running() && monitor.failure().is_none());
        let status = lock(&monitor.store).clone();
        monitor.store_reported(StoreStatus { at: status.at - HANG_TIMEOUT, ..status });
        assert!(!monitor.store_is_running());
        assert!(monitor.failure().unwrap().contains("has not moved for 60 s"));
    }
}
