//! How soon the server needs events and watermarks of the nodes.
//!
//! The merge waits for the watermarks of all nodes. While no node sends events, nothing waits, and
//! idle nodes need not wake up to say that nothing has happened. The first batch of any node ends
//! that for all nodes. While nobody follows the trace, nodes may collect events for a while, which
//! makes batches larger and cheaper.
//!
//! The cost of watermarks grows with the number of nodes. With [`MANY_NODES`], each node sends
//! about one in 1.6 s, or four per second while somebody follows the trace.

#![expect(clippy::disallowed_types, reason = "state that all sessions change")]

use crate::settings::tuning::Tuning;
use miot_proto::wire::Pace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// Number of nodes from which on watermarks are sent less often.
const MANY_NODES: usize = 2000;
/// Nodes are idle after this many seconds without a batch.
const QUIET_SECONDS: u32 = 2;
/// An idle node sends about one watermark per second. It must not be taken for silent.
const LEAST_SILENT_AFTER: Duration = Duration::from_secs(4);

/// Pause of [`collect_messages`]: enough for the messages of ten of 10 000 nodes. It adds as much,
/// at most, to the round trips that measure clocks.
const COLLECT: Duration = Duration::from_millis(1);

/// The server of this process has at least [`MANY_NODES`].
static HAS_MANY_NODES: AtomicBool = AtomicBool::new(false);

/// True if the server of this process has thousands of nodes. Waking a thread for each message
/// costs more than the message then.
pub(crate) fn has_many_nodes() -> bool {
    HAS_MANY_NODES.load(Relaxed)
}

/// Waits for a millisecond if the server of this process has thousands of nodes. A program calls
/// this before its thread for connections waits for messages.
pub fn collect_messages() {
    if has_many_nodes() {
        std::thread::sleep(COLLECT);
    }
}

/// The pace of all nodes.
#[derive(Debug)]
pub(crate) struct ClusterPace {
    tuning: Arc<Tuning>,
    pace: watch::Sender<Pace>,
    /// A batch has arrived since the last check.
    has_batch: AtomicBool,
    /// A batch has arrived in the last seconds.
    is_busy: AtomicBool,
    /// Number of subscribers.
    followers: AtomicUsize,
}

/// A subscriber, until it is dropped.
#[derive(Debug)]
pub(super) struct Follower<'a>(&'a ClusterPace);

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.0.followers.fetch_sub(1, Relaxed);
        self.0.update();
    }
}

impl ClusterPace {
    pub(crate) fn new(tuning: Arc<Tuning>) -> ClusterPace {
        ClusterPace {
            tuning,
            pace: watch::channel(Pace::Live).0,
            has_batch: AtomicBool::new(false),
            is_busy: AtomicBool::new(true),
            followers: AtomicUsize::new(0),
        }
    }

    /// The pace and its changes.
    pub(super) fn watch(&self) -> watch::Receiver<Pace> {
        self.pace.subscribe()
    }

    /// Adds a subscriber.
    pub(super) fn follow(&self) -> Follower<'_> {
        self.followers.fetch_add(1, Relaxed);
        self.update();
        Follower(self)
    }

    /// Notes that a node has sent events.
    pub(super) fn note_batch(&self) {
        // After the first batch of a second this is a load.
        if !self.has_batch.load(Relaxed) {
            self.has_batch.store(true, Relaxed);
            if !self.is_busy.swap(true, Relaxed) {
                self.update();
            }
        }
    }

    /// Detects that no batches arrive. Runs until it is dropped.
    pub(crate) async fn run(&self) {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quiet = 0;
        loop {
            seconds.tick().await;
            quiet = if self.has_batch.swap(false, Relaxed) { 0 } else { quiet + 1 };
            self.is_busy.store(quiet < QUIET_SECONDS, Relaxed);
            self.update();
        }
    }

    fn update(&self) {
        HAS_MANY_NODES.store(self.has_many_nodes(), Relaxed);
        self.pace.send_if_modified(|now| {
            let wanted = self.wanted();
            std::mem::replace(now, wanted) != wanted
        });
    }

    fn has_many_nodes(&self) -> bool {
        self.pace.receiver_count() >= MANY_NODES
    }

    fn wanted(&self) -> Pace {
        if self.tuning.get().silent_after < LEAST_SILENT_AFTER {
            Pace::Live
        } else if !self.is_busy.load(Relaxed) {
            Pace::Idle
        } else {
            match (self.followers.load(Relaxed) > 0, self.has_many_nodes()) {
                (true, false) => Pace::Live,
                (false, true) => Pace::Crowded,
                (true, true) | (false, false) => Pace::Unfollowed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::config::Config;

    #[test]
    fn thousands_of_nodes_are_collected_and_send_rarely() {
        let pace = ClusterPace::new(Tuning::new(Config::default()));
        let mut nodes: Vec<_> = (1..MANY_NODES).map(|_| pace.watch()).collect();
        let now = |pace: &ClusterPace| {
            pace.update();
            (*pace.pace.borrow(), has_many_nodes())
        };
        assert_eq!(now(&pace), (Pace::Unfollowed, false));
        nodes.push(pace.watch());
        assert_eq!(now(&pace), (Pace::Crowded, true));
        let follower = pace.follow();
        assert_eq!(now(&pace), (Pace::Unfollowed, true));
        drop((follower, nodes));
        assert_eq!(now(&pace), (Pace::Unfollowed, false));
    }
}
