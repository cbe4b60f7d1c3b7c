//! When the watermark of the node advances, and when it is sent.

use crate::facts::Fact;
use crate::watermark::MAX_HOLD;
use std::time::{Duration, Instant};

/// Minimum interval between watermarks of sweeps that found nothing.
pub(super) const QUIET_WATERMARKS: Duration = Duration::from_millis(1);

/// Maximum interval between watermarks. An unchanged watermark is repeated, so that the node does
/// not appear silent.
pub(super) const ALIVE: Duration = Duration::from_secs(1);

/// The watermark of the node, see [`crate::watermark`].
#[derive(Debug)]
pub(super) struct NodeWatermark {
    /// The current watermark, nanoseconds since 1970; `i64::MIN` before the first one.
    pub(super) time: i64,
    /// Maximum completion time sent, nanoseconds since 1970.
    newest: i64,
    /// Time of the last fact about the watermark.
    pub(super) sent: Instant,
    /// Last time that records were left in the lanes on purpose.
    pub(super) withheld: Instant,
}

impl NodeWatermark {
    /// `previous`: the last watermark of the previous log-client.
    pub(super) fn new(previous: Option<i64>) -> NodeWatermark {
        let now = Instant::now();
        NodeWatermark { time: previous.unwrap_or(i64::MIN), newest: i64::MIN, sent: now, withheld: now }
    }

    /// Records that this sweep leaves records in the lanes on purpose.
    pub(super) fn withhold(&mut self) {
        self.withheld = Instant::now();
    }

    /// Records the maximum completion time of what was sent, nanoseconds since 1970.
    pub(super) fn note_sent(&mut self, newest: i64) {
        self.newest = self.newest.max(newest);
    }

    /// True if the log-server can merge everything that was sent.
    pub(super) fn covers_all(&self) -> bool {
        self.time > self.newest
    }

    /// Time up to which the watermark waits for lanes with a lower safe time. `horizon`: the
    /// watermark if all lanes are drained.
    pub(super) fn wait_limit(&self, horizon: i64) -> i64 {
        match self.withheld.elapsed() < MAX_HOLD {
            true => i64::MIN,
            false => horizon.saturating_sub(MAX_HOLD.as_nanos() as i64),
        }
    }

    /// The fact to send after a sweep, if any. `safe`: the watermark that the sweep allows;
    /// `found_events`: the sweep sent events; `stands_aside`: the merge must not wait for this node
    /// while its watermark does not advance.
    pub(super) fn after_sweep(
        &mut self,
        safe: i64,
        found_events: bool,
        stands_aside: bool,
    ) -> Option<Fact<'static>> {
        let since = self.sent.elapsed();
        let advances = safe > self.time && (found_events || since >= QUIET_WATERMARKS);
        if !advances && since < ALIVE {
            return None;
        }
        if !advances && stands_aside {
            self.sent = Instant::now();
            return Some(Fact::Aside);
        }
        let watermark = self.time.max(safe);
        if watermark == i64::MIN {
            return None;
        }
        self.time = watermark;
        self.sent = Instant::now();
        Some(Fact::Watermark(watermark))
    }
}
