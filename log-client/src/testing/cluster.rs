//! The decisions of a log-client among others, at times that a simulation passes: its log-server,
//! its waits between connections, and its watermark.

use crate::facts::Fact;
use crate::servers::{Rules, Step};
use crate::ship::Backoff;
use crate::sweeper::{NodeWatermark, Patience};
use crate::watermark::{SLACK_NS, SafeTime};
use std::time::{Duration, Instant};

/// Waits between attempts to connect, of one spool.
#[derive(Debug)]
pub struct ConnectionWaits(Backoff);

impl ConnectionWaits {
    /// `seed`: the session of the spool.
    #[must_use]
    pub fn new(seed: u64) -> ConnectionWaits {
        ConnectionWaits(Backoff::new(seed))
    }

    /// Time until the next attempt.
    pub fn next_wait(&mut self) -> Duration {
        self.0.next()
    }

    /// Records the end of a connection.
    pub fn connection_ended(&mut self, has_acknowledged: bool, lasted: Duration) {
        self.0.connection_ended(has_acknowledged, lasted);
    }
}

/// The decision which log-server gets new records.
#[derive(Debug)]
pub struct ServerChoice(Rules);

/// What a node does about its log-server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceStep<S> {
    /// Nothing.
    Stay,
    /// Go to the first other log-server, in order of preference, that answers and for which no
    /// spool waits.
    Leave,
    /// Ask this one, the preferred one, and then [`ServerChoice::preferred_answered`].
    AskPreferred(S),
}

impl ServerChoice {
    /// `fail_over_after`: the setting of the log-client.
    #[must_use]
    pub fn new(fail_over_after: Option<Duration>, now: Instant) -> ServerChoice {
        ServerChoice(Rules::new(fail_over_after, now))
    }

    /// Interval between two calls of [`ServerChoice::next_step`].
    #[must_use]
    pub fn probe_every(&self) -> Duration {
        self.0.probe_every()
    }

    /// Returns what to do. `current`: the log-server in use; `order`: all, by preference.
    pub fn next_step<S: PartialEq + Copy>(
        &mut self,
        current: S,
        is_connected: bool,
        order: &[S],
        now: Instant,
    ) -> ChoiceStep<S> {
        match self.0.next_step(&current, is_connected, order, now) {
            Step::Stay => ChoiceStep::Stay,
            Step::Leave { .. } => ChoiceStep::Leave,
            Step::AskPreferred(server) => ChoiceStep::AskPreferred(*server),
        }
    }

    /// Records whether the preferred log-server answers. Returns true if the node may return to it.
    pub fn preferred_answered(&mut self, answers: bool, now: Instant) -> bool {
        self.0.preferred_answered(answers, now, now)
    }

    /// Records that new records go to another log-server.
    pub fn changed(&mut self, now: Instant) {
        self.0.changed(now);
    }
}

/// The watermark of a node with one lane.
#[derive(Debug)]
pub struct LaneWatermark {
    lane: SafeTime,
    node: NodeWatermark,
    patience: Patience,
}

impl LaneWatermark {
    /// A lane that was claimed after the node's time `time`, nanoseconds since 1970.
    #[must_use]
    pub fn new(time: i64, now: Instant) -> LaneWatermark {
        let node = NodeWatermark::new(Some(time), now);
        LaneWatermark { lane: SafeTime::new(time), node, patience: Patience::default() }
    }

    /// Begins a sweep.
    pub fn begin(&mut self) {
        self.lane.raise_to(self.node.time);
    }

    /// Returns the time with which a record of the lane is delivered.
    pub fn admit(&mut self, time: i64) -> i64 {
        let time = self.lane.admit(time);
        self.node.note_sent(time);
        time
    }

    /// Ends a sweep that began at the node's time `t0`, and returns the watermark to send, if any.
    /// `is_marked`: a thread is in the middle of a record.
    pub fn end(&mut self, t0: i64, is_marked: bool, found_events: bool, now: Instant) -> Option<i64> {
        if !is_marked {
            self.lane.drained(t0);
        }
        let horizon = t0.saturating_sub(SLACK_NS);
        let wait_limit = self.node.wait_limit(horizon, now);
        let is_held = self.patience.holds_back(self.lane.time(), horizon, wait_limit, || {});
        let safe = if is_held { horizon.min(self.lane.time()) } else { horizon };
        match self.node.after_sweep(safe, found_events, false, now) {
            Some(Fact::Watermark(watermark)) => Some(watermark),
            _ => None,
        }
    }

    /// The last watermark, nanoseconds since 1970.
    #[must_use]
    pub fn time(&self) -> i64 {
        self.node.time
    }
}
