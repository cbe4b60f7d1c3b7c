//! Which nodes hold the merge back, and where. Pure: the caller says what time it is.
//!
//! A connected node holds the merge back at its watermark, from the moment it connects: its first
//! heartbeat may be earlier than anything seen. It stops holding back
//!
//! * when it says goodbye;
//! * when its connection has been gone for `silent_after`, or at once, if it never sent a heartbeat;
//! * when it is connected and has been silent for so long. Batches prove that a node is alive, but only heartbeats
//!   move the merge on: a node that sends batches and no heartbeat is waited for [`PATIENCE`] times as long;
//! * when its watermark has fallen back by [`STALL`] times `silent_after` against the clock, compared with where
//!   it once was on this connection: whoever promises hardly anything is as good as silent. A node with a backlog
//!   moves faster than the clock, and is waited for. Coming back at once does not begin the wait anew;
//! * when it says itself that it is not to be waited for, until it gets further again: a flight recorder;
//! * when what it has sent fills its own memory (`node_memory`) and all of it waits for the node's next heartbeat,
//!   for which there is no room ([`Nodes::bound_without_full`]).
//!
//! Nodes that never sent a heartbeat do not hold the others back for longer than `silent_after` at a stretch,
//! however many of them come one after the other.

use crate::budget::Budget;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How many times `silent_after` a node that sends batches is waited for to send a heartbeat.
const PATIENCE: u32 = 6;
/// How many times `silent_after` a node may fall back. A log-client itself waits for a stopped thread, and says the same
/// all the while, for as long as `silent_after` is by default; so this is more.
const STALL: u32 = 2;

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
    /// It has stopped reading because the node uses all the memory that one node may use: so much does not fit.
    pub full: AtomicUsize,
    /// What one node may use.
    pub memory: Option<Arc<Budget>>,
    /// Inputs that the session has given to the store.
    pub sent: AtomicU64,
}

impl Pace {
    /// True if the node is not read at present, for want of memory.
    pub fn is_waiting(&self) -> bool {
        self.paused.load(Ordering::Relaxed) || self.full.load(Ordering::Relaxed) > 0
    }

    /// True if the node's memory is full, and will stay so without a merge: the store has taken all that came.
    fn is_stuck(&self, taken: u64) -> bool {
        let full = self.full.load(Ordering::Acquire);
        let fits = self.memory.as_ref().is_none_or(|memory| memory.fits(full));
        full > 0 && !fits && self.sent.load(Ordering::Acquire) == taken
    }
}

#[derive(Debug)]
enum Presence {
    Here { pace: Arc<Pace>, taken: u64, batch: Instant, heartbeat: Instant, aside: bool },
    Gone { since: Instant },
    Parted,
}

/// How a watermark moves against the clock.
#[derive(Debug)]
struct Progress {
    /// Where it was, and when. The moment moves on while the node is not read.
    watermark: i64,
    at: Instant,
    /// When this was last looked at.
    seen: Instant,
    /// The most it has gained on the clock since, nanoseconds.
    best: i64,
}

/// The watermark of one node.
#[derive(Debug)]
struct Node {
    watermark: i64,
    presence: Presence,
    /// From its first heartbeat on.
    progress: Option<Progress>,
}

/// All nodes, by number.
#[derive(Debug, Default)]
pub struct Nodes {
    nodes: Vec<Node>,
    /// Since when nodes without a heartbeat decide.
    newcomers: Option<Instant>,
}

impl Nodes {
    /// Adds the next node: one that is not connected, and was last heard of at `now` with this watermark.
    pub fn add(&mut self, watermark: i64, now: Instant) -> usize {
        self.nodes.push(Node { watermark, presence: Presence::Gone { since: now }, progress: None });
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

    /// The node is connected. If it has not been given up meanwhile, it goes on as if it had never been gone.
    pub fn connected(&mut self, node: usize, pace: Arc<Pace>, now: Instant, silent_after: Duration) {
        if let Some(node) = self.nodes.get_mut(node) {
            let given_up = match node.presence {
                Presence::Here { .. } => false,
                Presence::Gone { since } => now.saturating_duration_since(since) >= silent_after,
                Presence::Parted => true,
            };
            if given_up {
                node.progress = None;
            }
            node.presence = Presence::Here { pace, taken: 0, batch: now, heartbeat: now, aside: false };
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

    /// The store took an input of the node.
    pub fn taken(&mut self, node: usize) {
        if let Some(Node { presence: Presence::Here { taken, .. }, .. }) = self.nodes.get_mut(node) {
            *taken += 1;
        }
    }

    /// The node sent rows.
    pub fn heard(&mut self, node: usize, now: Instant) {
        if let Some(Node { presence: Presence::Here { batch, .. }, .. }) = self.nodes.get_mut(node) {
            *batch = now;
        }
    }

    /// The node lives, and is not to be waited for.
    pub fn aside(&mut self, node: usize, now: Instant) {
        if let Some(Node { presence: Presence::Here { batch, aside, .. }, .. }) = self.nodes.get_mut(node) {
            (*batch, *aside) = (now, true);
        }
    }

    /// Nothing could be merged until now: it is not the nodes that were slow.
    pub fn excuse(&mut self, now: Instant) {
        for node in &mut self.nodes {
            if let Presence::Here { batch, heartbeat, .. } = &mut node.presence {
                (*batch, *heartbeat) = (now, now);
                node.progress = None;
            }
        }
    }

    /// The node promised to have sent everything before `watermark`. Promises are not taken back.
    pub fn heartbeat(&mut self, node: usize, watermark: i64, now: Instant) {
        if let Some(node) = self.nodes.get_mut(node) {
            let further = watermark > node.watermark;
            node.watermark = node.watermark.max(watermark);
            let watermark = node.watermark;
            let fresh = || Progress { watermark, at: now, seen: now, best: 0 };
            node.progress.get_or_insert_with(fresh).gain(watermark, now);
            if let Presence::Here { batch, heartbeat, aside, .. } = &mut node.presence {
                (*batch, *heartbeat) = (now, now);
                *aside &= !further;
            }
        }
    }

    /// The promise of a node; `None` if it never made one.
    #[must_use]
    pub fn watermark(&self, node: usize) -> Option<i64> {
        self.nodes.get(node).map(|node| node.watermark).filter(|watermark| *watermark > i64::MIN)
    }

    /// Up to where the merge may go at `now`.
    #[must_use]
    pub fn bound(&mut self, now: Instant, silent_after: Duration) -> Bound {
        self.least(now, silent_after, false)
    }

    /// Up to where it may go without the nodes whose memory is full and cannot become free otherwise. `None` if there
    /// are none.
    #[must_use]
    pub fn bound_without_full(&mut self, now: Instant, silent_after: Duration) -> Option<Bound> {
        let stuck = self.nodes.iter().any(Node::is_stuck);
        stuck.then(|| self.least(now, silent_after, true))
    }

    fn least(&mut self, now: Instant, silent_after: Duration, without_full: bool) -> Bound {
        let (mut promised, mut newcomers) = (None, false);
        for node in &mut self.nodes {
            if node.holds(now, silent_after) && !(without_full && node.is_stuck()) {
                match node.watermark {
                    i64::MIN => newcomers = true,
                    watermark => promised = Some(promised.map_or(watermark, |p: i64| p.min(watermark))),
                }
            }
        }
        let since = newcomers.then(|| *self.newcomers.get_or_insert(now));
        match since {
            Some(since) if now.saturating_duration_since(since) < silent_after => Bound::Until(i64::MIN),
            _ => {
                self.newcomers = None;
                promised.map_or(Bound::Open, Bound::Until)
            }
        }
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

impl Progress {
    /// The watermark is here now. Returns how much it has fallen back since its best, nanoseconds.
    fn gain(&mut self, watermark: i64, now: Instant) -> i64 {
        let passed = now.saturating_duration_since(self.at).as_nanos();
        let gained = watermark.saturating_sub(self.watermark);
        let gained = gained.saturating_sub(i64::try_from(passed).unwrap_or(i64::MAX));
        self.best = self.best.max(gained);
        self.best.saturating_sub(gained)
    }
}

impl Node {
    fn is_stuck(&self) -> bool {
        matches!(&self.presence, Presence::Here { pace, taken, .. } if pace.is_stuck(*taken))
    }

    fn holds(&mut self, now: Instant, silent_after: Duration) -> bool {
        let within = |since: Instant, limit: Duration| now.saturating_duration_since(since) < limit;
        let paused = matches!(&self.presence, Presence::Here { pace, .. } if pace.is_waiting());
        let stalled = self.progress.as_mut().is_some_and(|progress| {
            if paused {
                progress.at += now.saturating_duration_since(progress.seen);
            }
            progress.seen = progress.seen.max(now);
            let back = progress.gain(self.watermark, now);
            back >= i64::try_from(silent_after.saturating_mul(STALL).as_nanos()).unwrap_or(i64::MAX)
        });
        match &self.presence {
            Presence::Here { aside: true, .. } => false,
            Presence::Here { batch, heartbeat, .. } => {
                // Without a heartbeat it cannot but fall back; that has a limit of its own.
                let stalled = stalled && within(*heartbeat, silent_after);
                paused
                    || !stalled
                        && within(*batch, silent_after)
                        && within(*heartbeat, silent_after.saturating_mul(PATIENCE))
            }
            // Who went without a single heartbeat was hardly a log-client, and promised nothing.
            Presence::Gone { since } => self.watermark > i64::MIN && within(*since, silent_after) && !stalled,
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
        const S: i64 = 1_000_000_000;
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        assert_eq!(nodes.bound(start, SILENT), Bound::Open);
        let a = nodes.add(i64::MIN, start);
        let b = nodes.add(i64::MIN, start);
        nodes.connected(a, Arc::default(), start, SILENT);
        nodes.connected(b, Arc::default(), start, SILENT);
        nodes.heartbeat(a, 100 * S, start);
        assert_eq!(nodes.bound(start, SILENT), Bound::Until(i64::MIN), "b has not sent a heartbeat yet");
        nodes.heartbeat(b, 70 * S, second(start, 1));
        assert_eq!(nodes.bound(second(start, 1), SILENT), Bound::Until(70 * S));
        assert_eq!(nodes.bound(second(start, 5), SILENT), Bound::Until(70 * S), "a has been silent for 5 s");
        nodes.heartbeat(a, 200 * S, second(start, 6));
        assert_eq!(nodes.bound(second(start, 6), SILENT), Bound::Until(200 * S), "now b has");
        nodes.heartbeat(b, 50 * S, second(start, 7));
        assert_eq!(nodes.bound(second(start, 7), SILENT), Bound::Until(70 * S), "a watermark never falls");
        nodes.parted(b);
        assert_eq!(nodes.bound(second(start, 7), SILENT), Bound::Until(200 * S));
        nodes.disconnected(a, second(start, 8));
        assert_eq!(nodes.bound(second(start, 12), SILENT), Bound::Until(200 * S));
        assert_eq!(nodes.bound(second(start, 13), SILENT), Bound::Open);
    }

    #[test]
    fn who_only_came_and_went_holds_nobody_back() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let a = nodes.add(i64::MIN, start);
        nodes.connected(a, Arc::default(), start, SILENT);
        assert_eq!(nodes.bound(start, SILENT), Bound::Until(i64::MIN));
        nodes.disconnected(a, start);
        assert_eq!(nodes.bound(start, SILENT), Bound::Open);
    }

    #[test]
    fn batches_keep_a_node_alive_but_not_for_ever() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let a = nodes.add(7, start);
        nodes.connected(a, Arc::default(), start, SILENT);
        for n in 0..29 {
            nodes.heard(a, second(start, n));
            assert_eq!(nodes.bound(second(start, n), SILENT), Bound::Until(7));
        }
        nodes.heard(a, second(start, 30));
        assert_eq!(nodes.bound(second(start, 30), SILENT), Bound::Open);
    }

    #[test]
    fn a_node_that_stands_aside_holds_nobody_back_until_it_gets_further() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let a = nodes.add(i64::MIN, start);
        nodes.connected(a, Arc::default(), start, SILENT);
        nodes.heartbeat(a, 7, start);
        nodes.aside(a, start);
        assert_eq!(nodes.bound(start, SILENT), Bound::Open);
        nodes.heard(a, start);
        nodes.heartbeat(a, 7, start);
        assert_eq!(nodes.bound(start, SILENT), Bound::Open);
        nodes.heartbeat(a, 9, start);
        assert_eq!(nodes.bound(start, SILENT), Bound::Until(9));
        nodes.aside(a, start);
        nodes.disconnected(a, start);
        nodes.connected(a, Arc::default(), start, SILENT);
        assert_eq!(nodes.bound(start, SILENT), Bound::Until(9), "as long as it does not say so again");
    }

    #[test]
    fn nobody_is_slow_while_nothing_can_be_merged() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let a = nodes.add(i64::MIN, start);
        nodes.connected(a, Arc::default(), start, SILENT);
        nodes.heartbeat(a, 7, start);
        for n in 0..60 {
            nodes.heartbeat(a, 7, second(start, n));
            nodes.excuse(second(start, n));
        }
        assert_eq!(nodes.bound(second(start, 60), SILENT), Bound::Until(7));
        assert_eq!(nodes.bound(second(start, 70), SILENT), Bound::Open);
    }

    #[test]
    fn a_node_that_is_not_read_is_not_silent_and_knows_whether_it_is_behind() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let (pace_a, pace_b) = (Arc::new(Pace::default()), Arc::new(Pace::default()));
        let a = nodes.add(10, start);
        let b = nodes.add(20, start);
        nodes.connected(a, Arc::clone(&pace_a), start, SILENT);
        nodes.connected(b, Arc::clone(&pace_b), start, SILENT);
        pace_a.paused.store(true, Ordering::Relaxed);
        let bound = nodes.bound(second(start, 60), SILENT);
        assert_eq!(bound, Bound::Until(10));
        nodes.set_pace(bound);
        assert!(pace_a.behind.load(Ordering::Relaxed) && !pace_b.behind.load(Ordering::Relaxed));
    }

    #[test]
    fn who_promises_next_to_nothing_is_as_good_as_silent() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let a = nodes.add(i64::MIN, start);
        let b = nodes.add(i64::MIN, start);
        nodes.connected(a, Arc::default(), start, SILENT);
        nodes.connected(b, Arc::default(), start, SILENT);
        let time = |n: u64| i64::try_from(n * 1_000_000_000).unwrap_or(0);
        for n in 0..60 {
            // a keeps up; b has caught up with an hour, and from then on says what it has said before, or hardly more.
            nodes.heartbeat(a, time(10_000 + n), second(start, n));
            nodes.heartbeat(
                b,
                if n < 30 { time(100 + 120 * n) } else { time(3580) + n as i64 },
                second(start, n),
            );
            let expected = if n < 40 { 100 + 120 * n.min(29) } else { 10_000 + n };
            match nodes.bound(second(start, n), SILENT) {
                Bound::Until(bound) => {
                    assert_eq!(bound / 1_000_000_000, time(expected) / 1_000_000_000, "{n}")
                }
                Bound::Open => panic!("a is here"),
            }
            if n == 50 {
                nodes.disconnected(b, second(start, n));
                nodes.connected(b, Arc::default(), second(start, n), SILENT);
            }
        }
        // It keeps up again, and is heeded once it has caught up.
        nodes.heartbeat(a, time(10_060), second(start, 60));
        nodes.heartbeat(b, time(10_050), second(start, 60));
        assert_eq!(nodes.bound(second(start, 60), SILENT), Bound::Until(time(10_050)));
    }

    #[test]
    fn who_comes_and_goes_all_the_time_is_not_waited_for_each_time() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let a = nodes.add(i64::MIN, start);
        let mut open = Vec::new();
        for n in 0..30 {
            nodes.connected(a, Arc::default(), second(start, n), SILENT);
            nodes.heartbeat(a, 7, second(start, n));
            nodes.disconnected(a, second(start, n));
            if nodes.bound(second(start, n), SILENT) == Bound::Open {
                open.push(n);
            }
        }
        assert_eq!(open, (10..30).collect::<Vec<_>>());
    }

    #[test]
    fn one_stranger_after_the_other_does_not_stop_the_merge() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let honest = nodes.add(i64::MIN, start);
        nodes.connected(honest, Arc::default(), start, SILENT);
        let mut went_on = Vec::new();
        for n in 0..20 {
            let stranger = nodes.add(i64::MIN, second(start, n));
            nodes.connected(stranger, Arc::default(), second(start, n), SILENT);
            let watermark = n as i64 * 1_000_000_000;
            nodes.heartbeat(honest, watermark, second(start, n));
            if nodes.bound(second(start, n), SILENT) == Bound::Until(watermark) {
                went_on.push(n);
            }
        }
        assert_eq!(went_on, [5, 11, 17]);
    }

    #[test]
    fn a_node_that_fills_its_memory_is_not_waited_for() {
        let (start, mut nodes) = (Instant::now(), Nodes::default());
        let memory = Budget::new(1 << 30).part(100);
        let pace = Arc::new(Pace { memory: Some(Arc::clone(&memory)), ..Pace::default() });
        let a = nodes.add(10, start);
        nodes.connected(a, Arc::clone(&pace), start, SILENT);
        let charge = memory.charge(90);
        pace.full.store(20, Ordering::Relaxed);
        pace.sent.store(1, Ordering::Relaxed);
        assert_eq!(nodes.bound_without_full(start, SILENT), None, "what came is not in the merge yet");
        nodes.taken(a);
        assert_eq!(nodes.bound_without_full(start, SILENT), Some(Bound::Open));
        assert_eq!(nodes.bound(start, SILENT), Bound::Until(10));
        drop(charge);
        assert_eq!(nodes.bound_without_full(start, SILENT), None, "there is room again");
    }
}
