//! Duration of the sleep between two sweeps.
//!
//! The upper bound is the latency with which an event may be read, the lower bound the cost of a
//! sweep on a node with many lanes. A producer whose lane fills wakes the log-client, so a long
//! sleep loses nothing.
//!
//! On an idle node with hundreds of processes, polling them is the only work. There the sleep is
//! longer than the configured maximum, and the first event after a pause is read that much later.

use std::time::Duration;

/// If a lane is fuller than this many 64ths, do not sleep.
const BUSY: u32 = 16;

/// If a lane is fuller than this many 64ths, sleep [`SHORT`].
const LIVELY: u32 = 2;

/// Sleep after a sweep that found a lane fuller than [`LIVELY`].
const SHORT: Duration = Duration::from_millis(1);

/// Sleep after a sweep that found events.
const MEDIUM: Duration = Duration::from_millis(4);

/// Sweeping takes at most one part in this many of a processor while no lane is filling.
const SHARE: u32 = 16;

/// The same while no events are found.
const IDLE_SHARE: u32 = 200;

/// Maximum sleep for [`IDLE_SHARE`], in multiples of the configured maximum.
const STRETCH: u32 = 5;

/// Results of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepEffort {
    pub(super) events: u64,
    /// Fill of the fullest lane, 64ths.
    pub(super) fullest: u32,
    pub(super) unfinished: bool,
    pub(super) duration: Duration,
}

/// Computes the sleep from the last sweep and the last sleep.
#[derive(Debug)]
pub(super) struct SleepPolicy {
    last: Duration,
    longest: Duration,
}

impl SleepPolicy {
    pub(super) fn new(longest: Duration) -> SleepPolicy {
        SleepPolicy { last: SHORT, longest }
    }

    /// Sleep after a sweep; `None`: sweep again at once.
    pub(super) fn after(&mut self, effort: SweepEffort) -> Option<Duration> {
        if effort.unfinished || effort.fullest >= BUSY {
            self.last = SHORT;
            return None;
        }
        let wanted = match effort.fullest {
            LIVELY.. => SHORT,
            _ if effort.events > 0 => MEDIUM,
            _ => self.last * 2,
        };
        self.last = wanted.max(effort.duration * SHARE).min(self.longest);
        if effort.events == 0 {
            self.last = self.last.max((effort.duration * IDLE_SHARE).min(self.longest * STRETCH));
        }
        Some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: SweepEffort =
        SweepEffort { events: 0, fullest: 0, unfinished: false, duration: Duration::from_micros(10) };
    const MAX: Duration = Duration::from_millis(20);

    #[test]
    fn sleeps_grow_on_an_idle_node() {
        let mut sleep = SleepPolicy::new(MAX);
        let sleeps: Vec<_> = (0..8).filter_map(|_| sleep.after(IDLE)).collect();
        assert!(sleeps.is_sorted());
        assert_eq!(sleeps.last(), Some(&MAX));
        assert_eq!(sleep.after(SweepEffort { events: 1, ..IDLE }), Some(MEDIUM));
        assert_eq!(sleep.after(SweepEffort { events: 100, fullest: 4, ..IDLE }), Some(SHORT));
    }

    #[test]
    fn filling_lane_is_swept_at_once() {
        let mut sleep = SleepPolicy::new(MAX);
        assert_eq!(sleep.after(SweepEffort { fullest: 40, events: 9, ..IDLE }), None);
        assert_eq!(sleep.after(SweepEffort { unfinished: true, ..IDLE }), None);
    }

    #[test]
    fn expensive_sweeps_are_rare() {
        let mut sleep = SleepPolicy::new(MAX);
        assert_eq!(
            sleep.after(SweepEffort { events: 1, duration: Duration::from_millis(1), ..IDLE }),
            Some(Duration::from_millis(16))
        );
    }
    #[test]
    fn many_idle_processes_extend_the_sleep() {
        let mut sleep = SleepPolicy::new(MAX);
        let many = SweepEffort { duration: Duration::from_micros(300), ..IDLE };
        let sleeps: Vec<_> = (0..8).filter_map(|_| sleep.after(many)).collect();
        assert_eq!(sleeps.last(), Some(&Duration::from_millis(60)));
        assert_eq!(
            sleep.after(SweepEffort { duration: Duration::from_secs(1), ..IDLE }),
            Some(MAX * STRETCH)
        );
        assert_eq!(sleep.after(SweepEffort { events: 1, ..many }), Some(Duration::from_micros(4800)));
        assert_eq!(sleep.after(SweepEffort { fullest: 40, events: 9, ..many }), None);
    }
}
