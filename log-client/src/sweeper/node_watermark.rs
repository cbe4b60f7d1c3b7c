//! When the watermark of the node advances, and when it is sent. Pure: the caller passes the time.

use crate::facts::Fact;
use crate::watermark::MAX_HOLD;
use std::time::{Duration, Instant};

/// Minimum interval between watermarks of sweeps that found nothing.
pub(super) const QUIET_WATERMARKS: Duration = Duration::from_millis(1);

/// Maximum interval between watermarks. An unchanged watermark is repeated, so that the node does
/// not appear silent.
pub(super) const ALIVE: Duration = Duration::from_secs(1);

/// A segment that has held back the watermark this many times for the maximum time no longer holds
/// it back.
const MAX_GIVEN_UP: u32 = 3;

/// The watermark of the node, see [`crate::watermark`].
#[derive(Debug)]
pub(crate) struct NodeWatermark {
    /// The current watermark, nanoseconds since 1970; `i64::MIN` before the first one.
    pub(crate) time: i64,
    /// Maximum completion time sent, nanoseconds since 1970.
    newest: i64,
    /// Time of the last fact about the watermark.
    pub(super) sent: Instant,
    /// Last time that records were left in the lanes on purpose.
    pub(super) withheld: Instant,
}

impl NodeWatermark {
    /// `previous`: the last watermark of the previous log-client.
    pub(crate) fn new(previous: Option<i64>, now: Instant) -> NodeWatermark {
        NodeWatermark { time: previous.unwrap_or(i64::MIN), newest: i64::MIN, sent: now, withheld: now }
    }

    /// Records that this sweep leaves records in the lanes on purpose.
    pub(super) fn withhold(&mut self, now: Instant) {
        self.withheld = now;
    }

    /// Records the maximum completion time of what was sent, nanoseconds since 1970.
    pub(crate) fn note_sent(&mut self, newest: i64) {
        self.newest = self.newest.max(newest);
    }

    /// True if the log-server can merge everything that was sent.
    pub(super) fn covers_all(&self) -> bool {
        self.time > self.newest
    }

    /// Time up to which the watermark waits for lanes with a lower safe time. `horizon`: the
    /// watermark if all lanes are drained.
    pub(crate) fn wait_limit(&self, horizon: i64, now: Instant) -> i64 {
        match now.saturating_duration_since(self.withheld) < MAX_HOLD {
            true => i64::MIN,
            false => horizon.saturating_sub(MAX_HOLD.as_nanos() as i64),
        }
    }

    /// The fact to send after a sweep, if any. `safe`: the watermark that the sweep allows;
    /// `found_events`: the sweep sent events; `stands_aside`: the merge must not wait for this node
    /// while its watermark does not advance.
    pub(crate) fn after_sweep(
        &mut self,
        safe: i64,
        found_events: bool,
        stands_aside: bool,
        now: Instant,
    ) -> Option<Fact<'static>> {
        let since = now.saturating_duration_since(self.sent);
        let advances = safe > self.time && (found_events || since >= QUIET_WATERMARKS);
        if !advances && since < ALIVE {
            return None;
        }
        if !advances && stands_aside {
            self.sent = now;
            return Some(Fact::Aside);
        }
        let watermark = self.time.max(safe);
        if watermark == i64::MIN {
            return None;
        }
        self.time = watermark;
        self.sent = now;
        Some(Fact::Watermark(watermark))
    }
}

/// Patience of the watermark with one segment.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// The watermark does not wait for this segment.
    pub(super) given_up: bool,
    /// Number of times it was given up.
    times_given_up: u32,
}

impl Patience {
    /// True if the watermark must not exceed `safe`, the safe time of the segment. `horizon`: the
    /// watermark if all lanes are drained; `wait_limit`: the time up to which the watermark waits.
    /// `on_give_up` is called when the watermark stops waiting.
    pub(crate) fn holds_back(
        &mut self,
        safe: i64,
        horizon: i64,
        wait_limit: i64,
        on_give_up: impl FnOnce(),
    ) -> bool {
        if safe >= horizon {
            self.given_up = self.times_given_up >= MAX_GIVEN_UP;
        } else if safe < wait_limit && !self.given_up {
            self.given_up = true;
            self.times_given_up += 1;
            on_give_up();
        }
        !self.given_up
    }
}
