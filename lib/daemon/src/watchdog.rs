//! A daemon whose work stands still is restarted (`WatchdogSec=`).
//!
//! The service manager hears from the daemon only if each loop that does its work has come round since it last did: each
//! has a [`Liveness`] and beats it once a round. A loop that has nothing to do comes round as well.

use crate::notify::tell;
use sd_notify::NotifyState;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Looks at hearts in one part in so many of the time after which the daemon would be restarted.
const LOOKS: u32 = 8;

/// The sign of life of one loop. A default one is watched by nobody.
#[derive(Clone, Debug, Default)]
pub struct Liveness(Arc<AtomicBool>);

impl Liveness {
    /// The loop has come round. One load, and a store if it is the first since the last look.
    pub fn beat(&self) {
        if !self.0.load(Relaxed) {
            self.0.store(true, Relaxed);
        }
    }
}

/// Watches over the loops of the daemon.
#[derive(Debug)]
pub struct Watchdog {
    /// Restarted after so long; `None`: nobody watches.
    limit: Option<Duration>,
    hearts: Vec<(&'static str, Liveness)>,
    /// When all had beaten.
    last: Instant,
    warned: bool,
}

impl Watchdog {
    /// As the service manager wants it.
    #[must_use]
    pub fn from_env() -> Watchdog {
        Watchdog::new(sd_notify::watchdog_enabled())
    }

    fn new(limit: Option<Duration>) -> Watchdog {
        Watchdog { limit, hearts: Vec::new(), last: Instant::now(), warned: false }
    }

    /// A heart for a loop. Until it beats the first time the service manager hears nothing.
    pub fn register(&mut self, name: &'static str) -> Liveness {
        let heart = Liveness::default();
        self.hearts.push((name, heart.clone()));
        heart
    }

    /// Tells the service manager for ever that the daemon is at work, as long as it is. What runs this is watched too.
    pub async fn watch(mut self) -> Infallible {
        let Some(limit) = self.limit else { return std::future::pending().await };
        self.last = Instant::now();
        loop {
            if self.all_have_beaten(limit, Instant::now()) {
                tell(&[NotifyState::Watchdog]);
            }
            tokio::time::sleep(limit / LOOKS).await;
        }
    }

    /// Since the last time this was so.
    fn all_have_beaten(&mut self, limit: Duration, now: Instant) -> bool {
        if self.hearts.iter().all(|(_, heart)| heart.0.load(Relaxed)) {
            self.hearts.iter().for_each(|(_, heart)| heart.0.store(false, Relaxed));
            (self.last, self.warned) = (now, false);
            return true;
        }
        if now.saturating_duration_since(self.last) > limit / 2 && !std::mem::replace(&mut self.warned, true)
        {
            let still = self.hearts.iter().filter(|(_, heart)| !heart.0.load(Relaxed));
            let still: Vec<_> = still.map(|(name, _)| *name).collect();
            tracing::warn!(
                ?still,
                ?limit,
                "a loop stands still; the service manager will restart the daemon"
            );
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loop_that_stands_still_silences_the_daemon() {
        let limit = Duration::from_secs(8);
        let mut watchdog = Watchdog::new(Some(limit));
        let (sweeper, shipper) = (watchdog.register("sweeper"), watchdog.register("shipper"));
        let mut now = Instant::now();
        let mut look = |beating: &[&Liveness]| {
            beating.iter().for_each(|heart| heart.beat());
            now += limit / LOOKS;
            watchdog.all_have_beaten(limit, now)
        };
        assert!(!look(&[]), "nothing has begun");
        assert!(look(&[&sweeper, &shipper]) && look(&[&shipper, &sweeper]));
        assert!(!(0..2 * LOOKS).any(|_| look(&[&sweeper])));
        assert!(look(&[&shipper]) && !look(&[&shipper]));
        assert!(look(&[&sweeper]));
    }
}
