//! How long to sleep between two sweeps.
//!
//! The sleep is bounded from above by how late an event may be seen, from below by the cost of a sweep on
//! a node with many lanes. A lane that fills in the meantime rings, so a long sleep loses nothing.
//!
//! Where nothing happens, looking at hundreds of processes that do nothing is all the work there is: there the sleep is
//! longer than it may be otherwise, and the first event after a pause is seen that much later.

use std::time::Duration;

/// A lane fuller than this many 64ths: do not sleep at all.
const BUSY: u32 = 16;

/// A lane fuller than this many 64ths: sleep short.
const LIVELY: u32 = 2;

/// Sleep after a sweep that found lively lanes.
const SHORT: Duration = Duration::from_millis(1);

/// Sleep after a sweep that found something at all.
const MEDIUM: Duration = Duration::from_millis(4);

/// Sweeping may take one part in so many of a processor while no lane is filling.
const SHARE: u32 = 16;

/// The same while nothing is found at all.
const IDLE_SHARE: u32 = 200;

/// For that a sleep may be so many times as long as the longest otherwise.
const STRETCH: u32 = 5;

/// What a sweep was like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) events: u64,
    /// 64ths of the fullest lane.
    pub(super) fullest: u32,
    pub(super) rest: bool,
    pub(super) took: Duration,
}

/// Decides, with a memory of the last sleep.
#[derive(Debug)]
pub(super) struct Rhythm {
    last: Duration,
    longest: Duration,
}

impl Rhythm {
    pub(super) fn new(longest: Duration) -> Rhythm {
        Rhythm { last: SHORT, longest }
    }

    /// `None`: sweep again at once.
    pub(super) fn after(&mut self, effort: Effort) -> Option<Duration> {
        if effort.rest || effort.fullest >= BUSY {
            self.last = SHORT;
            return None;
        }
        let wanted = match effort.fullest {
            LIVELY.. => SHORT,
            _ if effort.events > 0 => MEDIUM,
            _ => self.last * 2,
        };
        self.last = wanted.max(effort.took * SHARE).min(self.longest);
        if effort.events == 0 {
            self.last = self.last.max((effort.took * IDLE_SHARE).min(self.longest * STRETCH));
        }
        Some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Effort = Effort { events: 0, fullest: 0, rest: false, took: Duration::from_micros(10) };
    const MAX: Duration = Duration::from_millis(20);

    #[test]
    fn an_idle_node_is_left_alone_more_and_more() {
        let mut rhythm = Rhythm::new(MAX);
        let sleeps: Vec<_> = (0..8).filter_map(|_| rhythm.after(IDLE)).collect();
        assert!(sleeps.is_sorted());
        assert_eq!(sleeps.last(), Some(&MAX));
        assert_eq!(rhythm.after(Effort { events: 1, ..IDLE }), Some(MEDIUM));
        assert_eq!(rhythm.after(Effort { events: 100, fullest: 4, ..IDLE }), Some(SHORT));
    }

    #[test]
    fn a_lane_that_fills_is_swept_at_once() {
        let mut rhythm = Rhythm::new(MAX);
        assert_eq!(rhythm.after(Effort { fullest: 40, events: 9, ..IDLE }), None);
        assert_eq!(rhythm.after(Effort { rest: true, ..IDLE }), None);
    }

    #[test]
    fn a_dear_sweep_is_made_rarely() {
        let mut rhythm = Rhythm::new(MAX);
        assert_eq!(
            rhythm.after(Effort { events: 1, took: Duration::from_millis(1), ..IDLE }),
            Some(Duration::from_millis(16))
        );
    }
    #[test]
    fn many_idle_processes_are_looked_at_more_rarely_still() {
        let mut rhythm = Rhythm::new(MAX);
        let many = Effort { took: Duration::from_micros(300), ..IDLE };
        let sleeps: Vec<_> = (0..8).filter_map(|_| rhythm.after(many)).collect();
        assert_eq!(sleeps.last(), Some(&Duration::from_millis(60)));
        assert_eq!(rhythm.after(Effort { took: Duration::from_secs(1), ..IDLE }), Some(MAX * STRETCH));
        assert_eq!(rhythm.after(Effort { events: 1, ..many }), Some(Duration::from_micros(4800)));
        assert_eq!(rhythm.after(Effort { fullest: 40, events: 9, ..many }), None);
    }
}
