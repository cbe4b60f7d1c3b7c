//! How long connected nodes may be silent while others arrive. Pure: the caller passes the time.
//!
//! When thousands of nodes connect at the same time, their heartbeats may take longer than
//! `silent_after`, because the log-server and the network are busy with the connections.

use std::time::{Duration, Instant};

/// Time from the connection of a node to its first heartbeat, per node that connects at about the
/// same time: twice the processor time of a TLS handshake, because the host may be busy.
const ARRIVAL_TIME: Duration = Duration::from_millis(4);
/// First heartbeats are counted in periods of `silent_after` times this.
const PERIOD_FACTOR: u32 = 4;

/// Nodes that connect at about the same time.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Number of connected nodes without a heartbeat on their connection.
    arriving: u32,
    /// Number of first heartbeats in the present period of `silent_after` times
    /// [`PERIOD_FACTOR`], and in the one before.
    arrived: [u32; 2],
    /// Begin of the present period.
    since: Option<Instant>,
}

impl Arrivals {
    /// Records that a node connected.
    pub(super) fn began(&mut self) {
        self.arriving += 1;
    }

    /// Records that a node sent its first heartbeat, or is gone without one.
    pub(super) fn ended(&mut self, sent_heartbeat: bool) {
        self.arriving = self.arriving.saturating_sub(1);
        self.arrived[0] = self.arrived[0].saturating_add(u32::from(sent_heartbeat));
    }

    /// Returns how long a connected node may be silent.
    pub(super) fn patience(&mut self, nodes: usize, now: Instant, silent_after: Duration) -> Duration {
        let period = silent_after.saturating_mul(PERIOD_FACTOR);
        let passed = now.saturating_duration_since(*self.since.get_or_insert(now));
        if passed >= period {
            let before = if passed < period.saturating_mul(2) { self.arrived[0] } else { 0 };
            (self.arrived, self.since) = ([0, before], Some(now));
        }
        let arrivals = self.arrived.into_iter().fold(self.arriving, u32::saturating_add);
        // The same node may arrive many times.
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX).min(arrivals);
        silent_after.max(ARRIVAL_TIME.saturating_mul(nodes))
    }
}
