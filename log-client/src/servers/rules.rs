//! When this node leaves its log-server, and when it returns to the preferred one: the rules of
//! [`super::assignment`]. Pure: the caller passes the time, and asks the log-servers.

use std::time::{Duration, Instant};

/// Bounds of the interval between two probes.
const PROBE_EVERY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

/// State of the decision.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    fail_over_after: Option<Duration>,
    /// Last time of a connection to the log-server in use, or of a change.
    connected: Instant,
    /// Since when the preferred log-server answers.
    preferred_since: Option<Instant>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a, S> {
    /// Nothing.
    Stay,
    /// Go to the first other log-server, in order of preference, that answers and for which no
    /// spool waits.
    Leave { reason: &'static str },
    /// Ask the preferred log-server, and then [`Rules::preferred_answered`].
    AskPreferred(&'a S),
}

impl Rules {
    pub(crate) fn new(fail_over_after: Option<Duration>, now: Instant) -> Rules {
        Rules { fail_over_after, connected: now, preferred_since: None }
    }

    /// Interval between two probes.
    pub(crate) fn probe_every(&self) -> Duration {
        let (least, most) = PROBE_EVERY;
        self.fail_over_after.map_or(most, |after| (after / 4).clamp(least, most))
    }

    /// Returns what to do. `current`: the log-server in use; `order`: the log-servers in order of
    /// preference.
    pub(crate) fn next_step<'a, S: PartialEq>(
        &mut self,
        current: &S,
        is_connected: bool,
        order: &'a [S],
        now: Instant,
    ) -> Step<'a, S> {
        if is_connected {
            self.connected = now;
        }
        let is_member = order.contains(current);
        let waited = now.duration_since(self.connected);
        if !is_member || self.fail_over_after.is_some_and(|after| waited >= after) {
            let reason = if is_member { "no connection for fail_over_after" } else { "removed from servers" };
            return Step::Leave { reason };
        }
        match order.first().filter(|preferred| *preferred != current) {
            Some(preferred) => Step::AskPreferred(preferred),
            None => {
                self.preferred_since = None;
                Step::Stay
            }
        }
    }

    /// Records whether the preferred log-server, which was asked at `asked`, has answered by `now`.
    /// Returns true if this node may return to it.
    pub(crate) fn preferred_answered(&mut self, answers: bool, asked: Instant, now: Instant) -> bool {
        if !answers {
            self.preferred_since = None;
            return false;
        }
        let since = *self.preferred_since.get_or_insert(asked);
        self.fail_over_after.is_none_or(|after| now.duration_since(since) >= after)
    }

    /// Records that new records go to another log-server from `now` on.
    pub(crate) fn changed(&mut self, now: Instant) {
        (self.connected, self.preferred_since) = (now, None);
    }
}

#[cfg(test)]
mod tests {
    use super::{Rules, Step};
    use std::time::{Duration, Instant};

    const ORDER: [&str; 3] = ["a", "b", "c"];

    #[test]
    fn node_leaves_after_the_time_and_returns_after_the_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut rules = Rules::new(Some(Duration::from_secs(20)), start);
        assert_eq!(rules.probe_every(), Duration::from_secs(5));
        assert_eq!(rules.next_step(&"a", true, &ORDER, at(10)), Step::Stay);
        assert_eq!(rules.next_step(&"a", false, &ORDER, at(29)), Step::Stay);
        assert!(matches!(rules.next_step(&"a", false, &ORDER, at(30)), Step::Leave { .. }));
        rules.changed(at(30));
        assert_eq!(rules.next_step(&"b", true, &ORDER, at(40)), Step::AskPreferred(&"a"));
        assert!(!rules.preferred_answered(true, at(40), at(41)));
        assert!(!rules.preferred_answered(true, at(59), at(59)));
        assert!(!rules.preferred_answered(false, at(60), at(60)), "the time starts again");
        assert!(!rules.preferred_answered(true, at(61), at(61)));
        assert!(rules.preferred_answered(true, at(80), at(81)));
    }

    #[test]
    fn node_without_fail_over_waits_and_returns_at_once() {
        let start = Instant::now();
        let late = start + Duration::from_secs(1 << 20);
        let mut rules = Rules::new(None, start);
        assert_eq!(rules.next_step(&"a", false, &ORDER, late), Step::Stay);
        assert_eq!(rules.next_step(&"b", false, &ORDER, late), Step::AskPreferred(&"a"));
        assert!(rules.preferred_answered(true, late, late));
        assert!(matches!(rules.next_step(&"gone", true, &ORDER, late), Step::Leave { .. }));
    }
}
