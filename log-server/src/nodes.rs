//! Which nodes hold the merge back, and where. Pure: the caller says what time it is.
//!
//! A connected node holds the merge back at its watermark, from the moment it connects: its first
//! heartbeat may be earlier than anything seen. It stops holding back when it says goodbye, when its
//! connection has been gone for `silent_after` (at once, if it never sent a heartbeat), or when it is
//! connected and has been silent for so long.
//! Batches prove that a node is alive, but only heartbeats move the merge on: a node that sends batches and no
//! heartbeat is waited for `PATIENCE` times as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How many times `silent_after` a node that sends batches is waited for to send a heartbeat.
const PATIENCE: u32 = 6;

/// Up to where the merge may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Nobody holds it back.
    Open,
    /// Up to, and without, this time.
    Until(i64),
}

/// What the store tells a session about back-pressure, and the other way round.
#[derive(Debug, Default)]
pub struct Pace {
    /// The node holds the merge back: it is read even if memory is short, for only it can free some.
    pub behind: AtomicBool,
    /// The session has stopped reading because memory is short: its silence means nothing.
    pub paused: AtomicBool,
}

#[derive(Debug)]
enum Presence {
    Here { pace: Arc<Pace>, batch: Instant, heartbeat: Instant },
    Gone { since: Instant },
    Parted,
}

/// The watermark of one node.
#[derive(Debug)]
struct Node {
    watermark: i64,
    presence: Presence,
}

/// All nodes, by number.
#[derive(Debug, Default)]
pub struct Nodes {
    nodes: Vec<Node>,
}

impl Nodes {
    /// Adds the next node: one that is not connected, and was last heard of at `now` with this watermark.
    pub fn add(&mut self, watermark: i64, now: Instant) -> usize {
        self.nodes.push(Node { watermark, presence: Presence::Gone { since: now } });
        self.nodes.len() - 1
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node is connected.
    pub fn connected(&mut self, node: usize, pace: Arc<Pace>, now: Instant) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.presence = Presence::Here { pace, batch: now, heartbeat: now };
        }
    }

    /// The node's connection is gone.
    pub fn disconnected(&mut self, node: usize, now: Instant) {
        if let Some(Node { presence: presence @ Presence::Here { .. }, .. }) = self.nodes.get_mut(node) {
            *presence = Presence::Gone { since: now };
        }
    }

    /// The node said that it ends.
    pub fn parted(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.presence = Presence::Parted;
        }
    }

    /// The node sent rows.
    pub fn heard(&mut self, node: usize, now: Instant) {
        if let Some(Node { presence: Presence::Here { batch, .. }, .. }) = self.nodes.get_mut(node) {
            *batch = now;
        }
    }

    /// The node promised to have sent everything before `watermark`. Promises are not taken back.
    pub fn heartbeat(&mut self, node: usize, watermark: i64, now: Instant) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.watermark = node.watermark.max(watermark);
            if let Presence::Here { batch, heartbeat, .. } = &mut node.presence {
                (*batch, *heartbeat) = (now, now);
            }
        }
    }

    /// Up to where the merge may go at `now`.
    #[must_use]
    pub fn bound(&self, now: Instant, silent_after: Duration) -> Bound {
        let holding = self.nodes.iter().filter(|node| node.holds(now, silent_after));
        holding.map(|node| node.watermark).min().map_or(Bound::Open, Bound::Until)
    }

    /// Tells the connected nodes whether they are those that hold the merge back at `bound`.
    pub fn set_pace(&self, bound: Bound) {
        for node in &self.nodes {
            if let Presence::Here { pace, .. } = &node.presence {
                let behind = match bound {
                    Bound::Open => true,
                    Bound::Until(time) => node.watermark <= time,
                };
                pace.behind.store(behind, Ordering::Relaxed);
            }
        }
    }
}

impl Node {
    fn holds(&self, now: Instant, silent_after: Duration) -> bool {
        let within = |since: Instant, limit: Duration| now.saturating_duration_since(since) < limit;
        match &self.presence {
            Presence::Here { pace, batch, heartbeat } => {
                pace.paused.load(Ordering::Relaxed)
                    || within(*batch, silent_after) && within(*heartbeat, silent_after * PATIENCE)
            }
            // Who went without a single heartbeat was hardly a log-client, and promised nothing.
            Presence::Gone { since } => self.watermark > i64::MIN && within(*since, silent_after),
            Presence::Parted => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Duration = Duration::from_secs(5);

    fn second(start: Instant, n: u64) -> Instant {
        start + Duration::from_secs(n)
    }

    #[test]
    fn the_slowest_node_that_is_not_silent_decides() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        assert_eq!(nodes.bound(start, SILENT), Bound::Open);
        let a = nodes.add(i64::MIN, start);
        let b = nodes.add(i64::MIN, start);
        nodes.connected(a, Arc::default(), start);
        nodes.connected(b, Arc::default(), start);
        nodes.heartbeat(a, 100, start);
        assert_eq!(nodes.bound(start, SILENT), Bound::Until(i64::MIN), "b has not sent a heartbeat yet");
        nodes.heartbeat(b, 70, second(start, 1));
        assert_eq!(nodes.bound(second(start, 1), SILENT), Bound::Until(70));
        assert_eq!(nodes.bound(second(start, 5), SILENT), Bound::Until(70), "a has been silent for 5 s");
        nodes.heartbeat(a, 200, second(start, 6));
        assert_eq!(nodes.bound(second(start, 6), SILENT), Bound::Until(200), "now b has");
        nodes.heartbeat(b, 50, second(start, 7));
        assert_eq!(nodes.bound(second(start, 7), SILENT), Bound::Until(70), "a watermark never falls");
        nodes.parted(b);
        assert_eq!(nodes.bound(second(start, 7), SILENT), Bound::Until(200));
        nodes.disconnected(a, second(start, 8));
        assert_eq!(nodes.bound(second(start, 12), SILENT), Bound::Until(200));
        assert_eq!(nodes.bound(second(start, 13), SILENT), Bound::Open);
    }

    #[test]
    fn who_only_came_and_went_holds_nobody_back() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let a = nodes.add(i64::MIN, start);
        nodes.connected(a, Arc::default(), start);
        assert_eq!(nodes.bound(start, SILENT), Bound::Until(i64::MIN));
        nodes.disconnected(a, start);
        assert_eq!(nodes.bound(start, SILENT), Bound::Open);
    }

    #[test]
    fn batches_keep_a_node_alive_but_not_for_ever() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let a = nodes.add(7, start);
        nodes.connected(a, Arc::default(), start);
        for n in 0..29 {
            nodes.heard(a, second(start, n));
            assert_eq!(nodes.bound(second(start, n), SILENT), Bound::Until(7));
        }
        nodes.heard(a, second(start, 30));
        assert_eq!(nodes.bound(second(start, 30), SILENT), Bound::Open);
    }

    #[test]
    fn a_node_that_is_not_read_is_not_silent_and_knows_whether_it_is_behind() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let (pace_a, pace_b) = (Arc::new(Pace::default()), Arc::new(Pace::default()));
        let a = nodes.add(10, start);
        let b = nodes.add(20, start);
        nodes.connected(a, Arc::clone(&pace_a), start);
        nodes.connected(b, Arc::clone(&pace_b), start);
        pace_a.paused.store(true, Ordering::Relaxed);
        let bound = nodes.bound(second(start, 60), SILENT);
        assert_eq!(bound, Bound::Until(10));
        nodes.set_pace(bound);
        assert!(pace_a.behind.load(Ordering::Relaxed) && !pace_b.behind.load(Ordering::Relaxed));
    }
}
