//! Duration of the sleep between two sweeps.
//!
//! The upper bound is the latency with which an event may be read, the lower bound the cost of a
//! sweep, which does not depend on the number of events. A producer whose lane is half full wakes
//! the log-client, so a long sleep loses nothing.
//!
//! | node | sleep |
//! |---|---|
//! | a lane fills | so long that the fullest lane is about a quarter full at the next sweep |
//! | events at a low rate | the configured maximum |
//! | no events for a second | one and a half times the maximum |
//! | the same, with hundreds of processes to poll | up to two and a half times the maximum |
//! | nobody follows the trace | up to [`UNFOLLOWED`] instead of the maximum |
//! | the same, with thousands of nodes | up to [`CROWDED`] |
//!
//! The first event after a pause of a second is read that much later. On an idle cluster
//! [`Doze`](super::doze::Doze) sleeps longer.
//!
//! While nobody follows the trace, a small lane does not shorten the sleep: its producer replaces
//! it by a larger one.

use miot_proto::wire::Pace;
use std::time::Duration;

/// If a lane is fuller than this many 64ths, do not sleep.
const BUSY: u32 = 40;

/// Fill of the fullest lane that a sleep aims for, 64ths. What is left is the reserve for a program
/// that becomes faster, and for a log-client that gets no processor for some milliseconds.
const WANTED_FILL: u32 = 16;

/// Minimum sleep.
const SHORT: Duration = Duration::from_millis(1);

/// Maximum sleep while nobody follows the trace, if the configured one is shorter.
const UNFOLLOWED: Duration = Duration::from_millis(250);

/// The same if the log-server has thousands of nodes: the trace is final up to 2 s ago then.
const CROWDED: Duration = Duration::from_millis(1600);

/// Time to take an event. It does not count as cost of the sweep, because a longer sleep does not
/// save it.
const EVENT_TIME: Duration = Duration::from_nanos(30);

/// Sweeping takes at most one part in this many of a processor, without the time for the events.
const SHARE: u32 = 16;

/// The same while no events are found.
const IDLE_SHARE: u32 = 400;

/// Time without events after which a node is idle.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Results of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepEffort {
    pub(super) events: u64,
    /// Fill of the fullest lane, 64ths.
    pub(super) fullest: u32,
    /// The same, with lanes that can still grow counted as lanes of the maximum size.
    pub(super) fullest_grown: u32,
    pub(super) unfinished: bool,
    pub(super) duration: Duration,
}

impl SweepEffort {
    /// Part of the duration that does not depend on the number of events.
    fn overhead(&self) -> Duration {
        let events = u32::try_from(self.events).unwrap_or(u32::MAX);
        self.duration.saturating_sub(EVENT_TIME * events)
    }
}

/// Computes the sleep from the last sweep and the last sleep.
#[derive(Debug)]
pub(super) struct SleepPolicy {
    last: Duration,
    longest: Duration,
    /// Maximum on an idle node.
    longest_idle: Duration,
    /// Maximum for [`IDLE_SHARE`].
    longest_poll: Duration,
    /// Time slept since the last sweep that found events.
    without_events: Duration,
}

impl SleepPolicy {
    pub(super) fn new(longest: Duration) -> SleepPolicy {
        SleepPolicy {
            last: SHORT,
            longest,
            longest_idle: longest * 3 / 2,
            longest_poll: longest * 5 / 2,
            without_events: Duration::ZERO,
        }
    }

    /// Sleep after a sweep; `None`: sweep again at once.
    pub(super) fn after(&mut self, effort: SweepEffort, pace: Pace) -> Option<Duration> {
        if effort.unfinished || effort.fullest >= BUSY {
            self.last = SHORT;
            self.without_events = Duration::ZERO;
            return None;
        }
        let is_followed = pace == Pace::Live;
        let at_most = |time: Duration| match pace {
            Pace::Live => time,
            Pace::Unfollowed | Pace::Idle => time.max(UNFOLLOWED),
            Pace::Crowded => time.max(CROWDED),
        };
        if effort.events > 0 {
            self.without_events = Duration::ZERO;
            let fullest = if is_followed { effort.fullest } else { effort.fullest_grown };
            let wanted = self.last * WANTED_FILL / fullest.max(1);
            self.last = wanted.max(effort.overhead() * SHARE).max(SHORT).min(at_most(self.longest));
        } else {
            let longest = if self.is_idle() { self.longest_idle } else { self.longest };
            let poll = (effort.duration * IDLE_SHARE).min(self.longest_poll);
            self.last = (self.last * 2).min(at_most(longest)).max(poll);
            self.without_events += self.last;
        }
        Some(self.last)
    }

    /// True if no events were found for a second.
    pub(super) fn is_idle(&self) -> bool {
        self.without_events >= IDLE_AFTER
    }

    /// Something woke the log-client after a sleep of `slept`: lanes fill in this time, not in the
    /// planned one, and a node without events is not idle any more.
    pub(super) fn woken(&mut self, slept: Duration) {
        self.last = slept.clamp(SHORT, self.last.max(SHORT));
        self.without_events = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: SweepEffort = SweepEffort {
        events: 0,
        fullest: 0,
        fullest_grown: 0,
        unfinished: false,
        duration: Duration::from_micros(10),
    };
    const MAX: Duration = Duration::from_millis(40);

    #[test]
    fn sleeps_grow_on_an_idle_node() {
        let mut sleep = SleepPolicy::new(MAX);
        let sleeps: Vec<_> = (0..100).filter_map(|_| sleep.after(IDLE, Pace::Live)).collect();
        assert!(sleeps.is_sorted());
        let second = sleeps.iter().take_while(|sleep| **sleep <= MAX).sum::<Duration>();
        assert!((IDLE_AFTER..IDLE_AFTER + MAX).contains(&second), "{second:?}");
        assert_eq!(sleeps.last(), Some(&(MAX * 3 / 2)));
    }

    #[test]
    fn low_rates_take_the_longest_sleep() {
        let mut sleep = SleepPolicy::new(MAX);
        let few = SweepEffort { events: 80, ..IDLE };
        assert_eq!(sleep.after(few, Pace::Live), Some(Duration::from_millis(16)));
        assert_eq!(sleep.after(few, Pace::Live), Some(MAX));
        for _ in 0..100 {
            sleep.after(IDLE, Pace::Live);
        }
        assert_eq!(sleep.after(few, Pace::Live), Some(MAX), "after a pause too");
    }

    #[test]
    fn sleep_follows_the_rate_at_which_the_fullest_lane_fills() {
        // A lane that fills 64ths at this rate per millisecond.
        for rate in [1, 2, 4, 8] {
            let mut sleep = SleepPolicy::new(MAX);
            let mut slept = SHORT;
            for _ in 0..20 {
                let fullest = rate * slept.as_millis() as u32;
                slept = sleep.after(SweepEffort { events: 100, fullest, ..IDLE }, Pace::Live).unwrap();
            }
            assert_eq!(slept, Duration::from_millis(u64::from(WANTED_FILL / rate)), "{rate}");
        }
    }

    #[test]
    fn filling_lane_is_swept_at_once() {
        let mut sleep = SleepPolicy::new(MAX);
        assert_eq!(sleep.after(SweepEffort { fullest: 50, events: 9, ..IDLE }, Pace::Live), None);
        assert_eq!(sleep.after(SweepEffort { unfinished: true, ..IDLE }, Pace::Live), None);
    }

    #[test]
    fn expensive_sweeps_are_rare() {
        let mut sleep = SleepPolicy::new(MAX);
        assert_eq!(
            sleep.after(
                SweepEffort { events: 1, fullest: 16, duration: Duration::from_millis(2), ..IDLE },
                Pace::Live
            ),
            Some((Duration::from_millis(2) - EVENT_TIME) * SHARE)
        );
        let full =
            SweepEffort { events: 100_000, fullest: WANTED_FILL, duration: EVENT_TIME * 100_000, ..IDLE };
        let mut sleep = SleepPolicy::new(MAX);
        assert_eq!(sleep.after(full, Pace::Live), Some(SHORT), "events are no cost of the sweep");
    }

    #[test]
    fn woken_log_client_sleeps_as_long_as_the_lane_needs() {
        let mut sleep = SleepPolicy::new(MAX);
        for _ in 0..10 {
            sleep.after(IDLE, Pace::Live);
        }
        sleep.woken(Duration::from_millis(4));
        let half_full = SweepEffort { events: 1000, fullest: 32, ..IDLE };
        assert_eq!(sleep.after(half_full, Pace::Live), Some(Duration::from_millis(2)));
    }

    #[test]
    fn many_idle_processes_extend_the_sleep() {
        let mut sleep = SleepPolicy::new(MAX);
        let many = SweepEffort { duration: Duration::from_micros(200), ..IDLE };
        assert_eq!(sleep.after(many, Pace::Live), Some(Duration::from_millis(80)));
        assert_eq!(
            sleep.after(SweepEffort { duration: Duration::from_secs(1), ..IDLE }, Pace::Live),
            Some(MAX * 5 / 2)
        );
        assert_eq!(sleep.after(SweepEffort { events: 1, ..many }, Pace::Live), Some(MAX));
        assert_eq!(sleep.after(SweepEffort { fullest: 50, events: 9, ..many }, Pace::Live), None);
    }

    #[test]
    fn unfollowed_sleep_is_longer_and_ignores_small_lanes() {
        let mut sleep = SleepPolicy::new(MAX);
        let small = SweepEffort { events: 80, fullest: 39, fullest_grown: 2, ..IDLE };
        assert_eq!(sleep.after(small, Pace::Live), Some(SHORT), "0.6 ms");
        for _ in 0..10 {
            sleep.after(small, Pace::Unfollowed);
        }
        assert_eq!(sleep.after(small, Pace::Unfollowed), Some(UNFOLLOWED));
        assert_eq!(sleep.after(IDLE, Pace::Idle), Some(UNFOLLOWED));
        let full = SweepEffort { fullest: 50, fullest_grown: 48, ..small };
        assert_eq!(sleep.after(full, Pace::Unfollowed), None);
        for _ in 0..10 {
            sleep.after(small, Pace::Crowded);
        }
        assert_eq!(sleep.after(small, Pace::Crowded), Some(CROWDED));
        assert_eq!(sleep.after(small, Pace::Unfollowed), Some(UNFOLLOWED));
        assert_eq!(sleep.after(small, Pace::Live).map(|time| time <= MAX), Some(true));
        let mut slow = SleepPolicy::new(2 * UNFOLLOWED);
        for _ in 0..20 {
            slow.after(small, Pace::Unfollowed);
        }
        assert_eq!(slow.after(small, Pace::Unfollowed), Some(2 * UNFOLLOWED));
    }
}
