//! How urgently the merge needs the watermarks of the nodes.
//!
//! The merge waits for the watermarks of all nodes. While no node sends events, nothing waits, and
//! idle nodes need not wake up to say that nothing has happened. The first batch of any node makes
//! all nodes send watermarks at once.

#![expect(clippy::disallowed_types, reason = "flags that all sessions set")]

use crate::settings::tuning::Tuning;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// The pace is relaxed after this many seconds without a batch.
const QUIET_SECONDS: u32 = 2;
/// A relaxed node sends about one watermark per second. It must not be taken for silent.
const LEAST_SILENT_AFTER: Duration = Duration::from_secs(4);

/// The pace of all nodes.
#[derive(Debug)]
pub(crate) struct Pace {
    relaxed: watch::Sender<bool>,
    /// A batch has arrived since the last check.
    has_batch: AtomicBool,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { relaxed: watch::channel(false).0, has_batch: AtomicBool::new(false) }
    }

    /// True while nothing waits for watermarks.
    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.relaxed.subscribe()
    }

    /// Notes that a node has sent events.
    pub(crate) fn note_batch(&self) {
        // After the first batch of a second this is a load.
        if !self.has_batch.load(Relaxed) {
            self.has_batch.store(true, Relaxed);
            self.set_relaxed(false);
        }
    }

    /// Relaxes the pace after a time without batches. Runs until it is dropped.
    pub(crate) async fn run(&self, tuning: Arc<Tuning>) {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quiet = 0;
        loop {
            seconds.tick().await;
            quiet = if self.has_batch.swap(false, Relaxed) { 0 } else { quiet + 1 };
            if quiet >= QUIET_SECONDS && tuning.get().silent_after >= LEAST_SILENT_AFTER {
                self.set_relaxed(true);
            }
        }
    }

    fn set_relaxed(&self, relaxed: bool) {
        self.relaxed.send_if_modified(|now| std::mem::replace(now, relaxed) != relaxed);
    }
}
