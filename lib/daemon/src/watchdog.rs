//! Lets the service manager restart a daemon that makes no progress (`WatchdogSec=`).
//!
//! The daemon notifies the service manager only if each of its loops has completed a round since
//! the last notification. Each loop has a [`Liveness`] and marks it once per round, also when it
//! has nothing to do.

#![expect(clippy::disallowed_types, reason = "liveness flags that tasks set and the watchdog clears")]

use crate::notify::send;
use sd_notify::NotifyState;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of checks in the time after which the daemon would be restarted.
const CHECKS: u32 = 8;

/// Liveness of one loop. A default value is not watched.
#[derive(Clone, Debug, Default)]
pub struct Liveness(Arc<AtomicBool>);

impl Liveness {
    /// Marks a completed round. Costs one load, and a store for the first round after a check.
    pub fn beat(&self) {
        if !self.0.load(Relaxed) {
            self.0.store(true, Relaxed);
        }
    }
}

/// Watches the loops of a daemon.
#[derive(Debug)]
pub struct Watchdog {
    /// Time after which the service manager restarts the daemon; `None`: it does not.
    limit: Option<Duration>,
    loops: Vec<(&'static str, Liveness)>,
    /// Time of the last check at which all loops had progressed.
    last: Instant,
    warned: bool,
}

impl Watchdog {
    /// Creates a watchdog with the limit of the service manager.
    #[must_use]
    pub fn from_env() -> Watchdog {
        Watchdog::new(sd_notify::watchdog_enabled())
    }

    fn new(limit: Option<Duration>) -> Watchdog {
        Watchdog { limit, loops: Vec::new(), last: Instant::now(), warned: false }
    }

    /// Registers a loop. The service manager is not notified before its first round.
    pub fn register(&mut self, name: &'static str) -> Liveness {
        let liveness = Liveness::default();
        self.loops.push((name, liveness.clone()));
        liveness
    }

    /// Notifies the service manager forever, as long as the loops progress. The task that runs this
    /// is watched too.
    pub async fn watch(mut self) -> Infallible {
        let Some(limit) = self.limit else { return std::future::pending().await };
        self.last = Instant::now();
        loop {
            if self.all_have_progressed(limit, Instant::now()) {
                send(&[NotifyState::Watchdog]);
            }
            tokio::time::sleep(limit / CHECKS).await;
        }
    }

    /// Returns true if all loops have completed a round since this last returned true.
    fn all_have_progressed(&mut self, limit: Duration, now: Instant) -> bool {
        if self.loops.iter().all(|(_, liveness)| liveness.0.load(Relaxed)) {
            self.loops.iter().for_each(|(_, liveness)| liveness.0.store(false, Relaxed));
            (self.last, self.warned) = (now, false);
            return true;
        }
        if now.saturating_duration_since(self.last) > limit / 2 && !std::mem::replace(&mut self.warned, true)
        {
            let stalled = self.loops.iter().filter(|(_, liveness)| !liveness.0.load(Relaxed));
            let stalled: Vec<_> = stalled.map(|(name, _)| *name).collect();
            tracing::warn!(
                ?stalled,
                ?limit,
                "a loop makes no progress; the service manager will restart the daemon"
            );
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stalled_loop_stops_notifications() {
        let limit = Duration::from_secs(8);
        let mut watchdog = Watchdog::new(Some(limit));
        let (sweeper, shipper) = (watchdog.register("sweeper"), watchdog.register("shipper"));
        let mut now = Instant::now();
        let mut look = |beating: &[&Liveness]| {
            beating.iter().for_each(|liveness| liveness.beat());
            now += limit / CHECKS;
            watchdog.all_have_progressed(limit, now)
        };
        assert!(!look(&[]), "no loop has run");
        assert!(look(&[&sweeper, &shipper]) && look(&[&shipper, &sweeper]));
        assert!(!(0..2 * CHECKS).any(|_| look(&[&sweeper])));
        assert!(look(&[&shipper]) && !look(&[&shipper]));
        assert!(look(&[&sweeper]));
    }
}
