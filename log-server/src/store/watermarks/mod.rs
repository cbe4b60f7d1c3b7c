//! Watermarks of the nodes, and the nodes that hold back the merge. Pure: the caller passes the
//! time.
//!
//! A connected node holds back the merge at its watermark, from the moment it connects: its first
//! heartbeat may be earlier than all events seen so far. It stops holding back
//!
//! * when it sends a goodbye;
//! * when its connection has been gone for `silent_after`, or at once if it never sent a heartbeat;
//! * when it is connected and has been silent for `silent_after`. Batches prove that a node is
//!   alive, but only heartbeats advance the merge: a node that sends batches and no heartbeat gets
//!   [`HEARTBEAT_FACTOR`] times as long;
//! * when its watermark has fallen back by [`STALL_FACTOR`] times `silent_after` against the clock,
//!   compared with its best position on this connection: a watermark that hardly advances is as
//!   good as silence. A node with a backlog advances faster than the clock and does not time out. A
//!   reconnection does not restart the measurement;
//! * when it asks not to hold back the merge, until its watermark advances again: a flight
//!   recorder;
//! * when its events fill its own memory (`node_memory`) and all of them wait for its next
//!   heartbeat, for which there is no capacity ([`Watermarks::bound_without_full`]).
//!
//! Nodes that never sent a heartbeat hold back the others for at most `silent_after` at a stretch,
//! no matter how many of them connect one after the other.
//!
//! While thousands of nodes arrive, connected nodes may be silent for longer than `silent_after`,
//! and a stretch may last as long: see [`arrivals`].

#![expect(clippy::disallowed_types, reason = "states of a node, for its session")]

mod arrivals;
#[cfg(test)]
mod tests;

use crate::ids::NodeId;
use crate::store::budget::Budget;
use arrivals::Arrivals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A node that sends batches may go without a heartbeat for `silent_after` times this.
const HEARTBEAT_FACTOR: u32 = 6;
/// A node may fall back by `silent_after` times this. A log-client itself waits for a stopped
/// thread, with an unchanged watermark, for as long as `silent_after` is by default; so this is
/// more than 1.
const STALL_FACTOR: u32 = 2;

/// Time up to which the merge may proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeBound {
    /// No node holds it back.
    Unbounded,
    /// All times before this one, nanoseconds since 1970.
    Before(i64),
}

/// Treatment of nodes whose memory is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FullNodes {
    Wait,
    Skip,
}

/// Back-pressure state that the store and the session of a node share.
#[derive(Debug, Default)]
pub struct FlowControl {
    /// The node holds back the merge: it is read even if memory is short, because only its
    /// watermark can free memory. Not up to date while much memory is free.
    pub behind: AtomicBool,
    /// The session does not read because the server's memory is short: silence of the node means
    /// nothing then.
    pub paused: AtomicBool,
    /// The session does not read because the node's memory is full: size of the reservation that
    /// does not fit, bytes; 0 otherwise.
    pub full: AtomicUsize,
    /// Memory budget of the node.
    pub memory: Option<Arc<Budget>>,
    /// Number of inputs that the session has sent to the store.
    pub sent: AtomicU64,
}

impl FlowControl {
    /// True while the node is not read for lack of memory.
    pub fn is_waiting(&self) -> bool {
        self.paused.load(Ordering::Relaxed) || self.full.load(Ordering::Relaxed) > 0
    }

    /// True if the node's memory is full and stays full without a merge: the store has taken all
    /// `input_taken` inputs that the session sent.
    fn is_stuck(&self, input_taken: u64) -> bool {
        let full = self.full.load(Ordering::Acquire);
        let fits = self.memory.as_ref().is_none_or(|memory| memory.fits(full));
        full > 0 && !fits && self.sent.load(Ordering::Acquire) == input_taken
    }
}

/// Connection state of a node.
#[derive(Debug)]
enum Presence {
    /// `input_taken`: inputs that the store has taken; `batch`: last sign of life; `heartbeat`:
    /// last heartbeat; `exempt`: the node asked not to hold back the merge; `arriving`: it has sent
    /// no heartbeat on this connection.
    Connected {
        flow: Arc<FlowControl>,
        input_taken: u64,
        batch: Instant,
        heartbeat: Instant,
        exempt: bool,
        arriving: bool,
    },
    Disconnected {
        since: Instant,
    },
    SaidGoodbye,
}

/// Progress of a watermark against the clock.
#[derive(Debug)]
struct Progress {
    /// Reference position: the watermark at the time `at`. `at` advances while the node is not
    /// read.
    watermark: i64,
    at: Instant,
    /// Time of the last check.
    seen: Instant,
    /// The most that the watermark gained on the clock since `at`, nanoseconds.
    best: i64,
}

/// State of one node.
#[derive(Debug)]
struct NodeState {
    watermark: i64,
    presence: Presence,
    /// Exists from the first heartbeat on.
    progress: Option<Progress>,
}

/// State of all nodes, by number.
#[derive(Debug, Default)]
pub struct Watermarks {
    nodes: Vec<NodeState>,
    /// Since when nodes without a heartbeat hold back the merge.
    newcomers: Option<Instant>,
    arrivals: Arrivals,
}

impl Watermarks {
    /// Adds the next node: it is not connected, and was last seen at `now` with this watermark.
    pub fn add(&mut self, watermark: i64, now: Instant) -> NodeId {
        self.nodes.push(NodeState {
            watermark,
            presence: Presence::Disconnected { since: now },
            progress: None,
        });
        NodeId(self.nodes.len() - 1)
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Marks the node as connected. If it has not timed out meanwhile, it continues as if it had
    /// never been disconnected.
    pub fn connected(&mut self, node: NodeId, flow: Arc<FlowControl>, now: Instant, silent_after: Duration) {
        if let Some(node) = self.nodes.get_mut(node.0) {
            let given_up = match node.presence {
                Presence::Connected { .. } => false,
                Presence::Disconnected { since } => now.saturating_duration_since(since) >= silent_after,
                Presence::SaidGoodbye => true,
            };
            if given_up {
                node.progress = None;
            }
            if !node.is_arriving() {
                self.arrivals.began();
            }
            node.presence = Presence::Connected {
                flow,
                input_taken: 0,
                batch: now,
                heartbeat: now,
                exempt: false,
                arriving: true,
            };
        }
    }

    /// Marks the node as disconnected.
    pub fn disconnected(&mut self, node: NodeId, now: Instant) {
        if let Some(NodeState { presence: presence @ Presence::Connected { .. }, .. }) =
            self.nodes.get_mut(node.0)
        {
            presence.arrived(&mut self.arrivals, false);
            *presence = Presence::Disconnected { since: now };
        }
    }

    /// Records the goodbye of the node.
    pub fn said_goodbye(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(node.0) {
            node.presence.arrived(&mut self.arrivals, false);
            node.presence = Presence::SaidGoodbye;
        }
    }

    /// Counts an input of the node that the store took.
    pub fn input_taken(&mut self, node: NodeId) {
        if let Some(NodeState { presence: Presence::Connected { input_taken, .. }, .. }) =
            self.nodes.get_mut(node.0)
        {
            *input_taken += 1;
        }
    }

    /// Records that the node sent rows.
    pub fn rows_received(&mut self, node: NodeId, now: Instant) {
        if let Some(NodeState { presence: Presence::Connected { batch, .. }, .. }) =
            self.nodes.get_mut(node.0)
        {
            *batch = now;
        }
    }

    /// Records that the node is alive and asks not to hold back the merge.
    pub fn exempt(&mut self, node: NodeId, now: Instant) {
        if let Some(NodeState { presence, .. }) = self.nodes.get_mut(node.0) {
            presence.arrived(&mut self.arrivals, true);
            if let Presence::Connected { batch, exempt, .. } = presence {
                (*batch, *exempt) = (now, true);
            }
        }
    }

    /// Restarts all timeouts: nothing could be merged until now, so no node was slow.
    pub fn reset_timeouts(&mut self, now: Instant) {
        for node in &mut self.nodes {
            if let Presence::Connected { batch, heartbeat, .. } = &mut node.presence {
                (*batch, *heartbeat) = (now, now);
                node.progress = None;
            }
        }
    }

    /// Records a heartbeat: the node has sent all events before `watermark`. A watermark never
    /// falls.
    pub fn heartbeat(&mut self, node: NodeId, watermark: i64, now: Instant) {
        if let Some(node) = self.nodes.get_mut(node.0) {
            let further = watermark > node.watermark;
            node.watermark = node.watermark.max(watermark);
            let watermark = node.watermark;
            let fresh = || Progress { watermark, at: now, seen: now, best: 0 };
            node.progress.get_or_insert_with(fresh).gain(watermark, now);
            node.presence.arrived(&mut self.arrivals, true);
            if let Presence::Connected { batch, heartbeat, exempt, .. } = &mut node.presence {
                (*batch, *heartbeat) = (now, now);
                *exempt &= !further;
            }
        }
    }

    /// Watermark of a node; `None` before its first heartbeat.
    #[must_use]
    pub fn watermark(&self, node: NodeId) -> Option<i64> {
        self.nodes.get(node.0).map(|node| node.watermark).filter(|watermark| *watermark > i64::MIN)
    }

    /// Time up to which the merge may proceed at `now`.
    #[must_use]
    pub fn bound(&mut self, now: Instant, silent_after: Duration) -> MergeBound {
        self.least_watermark(now, silent_after, FullNodes::Wait)
    }

    /// Time up to which the merge may proceed without the nodes whose memory is full and can be
    /// freed only by a merge. `None` if there is no such node.
    #[must_use]
    pub fn bound_without_full(&mut self, now: Instant, silent_after: Duration) -> Option<MergeBound> {
        let stuck = self.nodes.iter().any(NodeState::is_stuck);
        stuck.then(|| self.least_watermark(now, silent_after, FullNodes::Skip))
    }

    fn least_watermark(&mut self, now: Instant, silent_after: Duration, full_nodes: FullNodes) -> MergeBound {
        let patience = self.arrivals.patience(self.nodes.len(), now, silent_after);
        let (mut least, mut newcomers) = (None, false);
        for node in &mut self.nodes {
            if node.holds(now, silent_after, patience) && !(full_nodes == FullNodes::Skip && node.is_stuck())
            {
                match node.watermark {
                    i64::MIN => newcomers = true,
                    watermark => least = Some(least.map_or(watermark, |least: i64| least.min(watermark))),
                }
            }
        }
        let since = newcomers.then(|| *self.newcomers.get_or_insert(now));
        match since {
            Some(since) if now.saturating_duration_since(since) < patience => MergeBound::Before(i64::MIN),
            _ => {
                self.newcomers = None;
                least.map_or(MergeBound::Unbounded, MergeBound::Before)
            }
        }
    }

    /// Tells the sessions of the connected nodes whether their node holds back the merge at
    /// `bound`.
    pub fn mark_nodes_behind(&self, bound: MergeBound) {
        for node in &self.nodes {
            if let Presence::Connected { flow, .. } = &node.presence {
                let behind = match bound {
                    MergeBound::Unbounded => true,
                    MergeBound::Before(time) => node.watermark <= time,
                };
                // A store would take the memory away from the session's processor.
                if flow.behind.load(Ordering::Relaxed) != behind {
                    flow.behind.store(behind, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Progress {
    /// Records the current watermark. Returns how far it has fallen back since its best,
    /// nanoseconds.
    fn gain(&mut self, watermark: i64, now: Instant) -> i64 {
        let passed = now.saturating_duration_since(self.at).as_nanos();
        let gained = watermark.saturating_sub(self.watermark);
        let gained = gained.saturating_sub(i64::try_from(passed).unwrap_or(i64::MAX));
        self.best = self.best.max(gained);
        self.best.saturating_sub(gained)
    }
}

impl Presence {
    /// Records that the node sent its first heartbeat, or is gone without one.
    fn arrived(&mut self, arrivals: &mut Arrivals, sent_heartbeat: bool) {
        if let Presence::Connected { arriving, .. } = self
            && std::mem::take(arriving)
        {
            arrivals.ended(sent_heartbeat);
        }
    }
}

impl NodeState {
    fn is_arriving(&self) -> bool {
        matches!(self.presence, Presence::Connected { arriving: true, .. })
    }

    fn is_stuck(&self) -> bool {
        matches!(&self.presence, Presence::Connected { flow, input_taken, .. } if flow.is_stuck(*input_taken))
    }

    /// True if the node holds back the merge. `patience`: see [`Arrivals::patience`].
    fn holds(&mut self, now: Instant, silent_after: Duration, patience: Duration) -> bool {
        let within = |since: Instant, limit: Duration| now.saturating_duration_since(since) < limit;
        let paused = matches!(&self.presence, Presence::Connected { flow, .. } if flow.is_waiting());
        let stalled = self.progress.as_mut().is_some_and(|progress| {
            if paused {
                progress.at += now.saturating_duration_since(progress.seen);
            }
            progress.seen = progress.seen.max(now);
            let back = progress.gain(self.watermark, now);
            let most = patience.max(silent_after.saturating_mul(STALL_FACTOR));
            back >= i64::try_from(most.as_nanos()).unwrap_or(i64::MAX)
        });
        match &self.presence {
            Presence::Connected { exempt: true, .. } => false,
            Presence::Connected { batch, heartbeat, .. } => {
                // Without a heartbeat it must fall back; missing heartbeats have a limit of their
                // own.
                let stalled = stalled && within(*heartbeat, silent_after);
                paused
                    || !stalled
                        && within(*batch, patience)
                        && within(*heartbeat, patience.max(silent_after.saturating_mul(HEARTBEAT_FACTOR)))
            }
            // A peer that left without a single heartbeat was hardly a log-client, and has no
            // watermark.
            Presence::Disconnected { since } => {
                self.watermark > i64::MIN && within(*since, silent_after) && !stalled
            }
            Presence::SaidGoodbye => false,
        }
    }
}
