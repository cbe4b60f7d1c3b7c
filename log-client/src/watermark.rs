//! The node's promise: every event that completed before the watermark has been sent.
//!
//! # Why it holds
//!
//! For each record the producer, in this order, (1) marks its lane (bit 0 of `TAIL`), (2) reads the clock:
//! the completion time, (3) writes the slots, (4) stores the new `TAIL` without the mark. On the processor
//! the mark may wait in the store buffer while the clock is read; it is visible to others at most
//! [`SLACK_NS`] after it was executed. (A store buffer drains within microseconds, also when the thread
//! is interrupted; the slack covers the difference between the counters of two processors as well.)
//!
//! A sweep first takes the time `t0`, then reads directory, headers and lanes.
//!
//! * **A lane seen unmarked with tail `T`.** A record that is not below `T` has a mark that was not visible
//!   at a moment after `t0`, so it was executed after `t0 − SLACK`, and its completion time was read after
//!   that. So once everything below `T` is drained, the lane is safe up to `t0 − SLACK`.
//! * **A lane seen marked.** Its thread may have read its clock long ago and be stopped since. But the records
//!   of a lane are in order of completion, so the lane is safe up to the completion of the last drained
//!   record, and of course up to what was safe before.
//! * **A lane of which only a part was drained** (bounded work, or no memory for more): as a marked one.
//! * **A lane that was not there.** The producer claims a lane before the first completion time that goes
//!   into it, and makes its segment before it claims a lane. A claim that was not visible after `t0` happened
//!   after `t0 − SLACK`: the lane is safe up to there. It enters with the node's promise so far.
//! * **A lane of a dead process, a retired lane that was drained to its end, a quarantined lane**: nothing
//!   more comes; it no longer counts.
//!
//! The watermark is the least of the lanes' safe times and `t0 − SLACK`, and never goes back. Ticks are
//! turned into times by one monotone map ([`crate::clock`]), so comparing times is comparing ticks.
//!
//! # How long it waits
//!
//! A lane that stays marked, or that claims old times for ever, holds back the order of a whole cluster: by
//! [`HELD_AT_MOST`] and no more. After that the node promises without it. Nobody else is harmed by that; what
//! the lane had not committed by then, one record of a thread that was stopped in the middle of it, is delivered
//! later with the time of the promise and marked, as below. The wait begins again when there was no room for what the lanes
//! hold, or nothing was to be read from them: then it is not their producers who are late.
//!
//! # What the promise does not rest on
//!
//! A producer that lies, or that records requests whose completion it learned late (`miot_tracer::record`),
//! could still deliver an event from before the watermark. Such an event gets the time of the promise
//! instead ([`SafeTime::admit`]), is marked ([`miot_proto::event::flag::moved`]) and counted as clamped: the merge never
//! sees the promise broken, and the trace says whose time is not when it completed.

use std::time::Duration;

/// How long a store of a producer may stay invisible: see the module.
pub(crate) const SLACK_NS: i64 = 1_000_000;

/// How long a lane, or a segment that waits to be opened, may hold the promise back: as long as a log-server waits by
/// default for a node that is silent.
pub(crate) const HELD_AT_MOST: Duration = Duration::from_secs(5);

/// What one lane has promised: nothing that completed before this, nanoseconds since 1970, is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SafeTime(i64);

impl SafeTime {
    /// A new lane enters with the node's promise.
    pub(crate) fn new(watermark: i64) -> SafeTime {
        SafeTime(watermark)
    }

    pub(crate) fn time(self) -> i64 {
        self.0
    }

    /// The completion time under which an event of the lane is delivered, in the lane's order and not
    /// before the promise. The event is then drained.
    #[inline]
    pub(crate) fn admit(&mut self, time: i64) -> i64 {
        self.0 = self.0.max(time);
        self.0
    }

    /// The node has promised this much, with this lane or without it.
    pub(crate) fn promised(&mut self, watermark: i64) {
        self.0 = self.0.max(watermark);
    }

    /// The lane was seen unmarked at or after `t0` and all it had then is drained.
    pub(crate) fn drained(&mut self, t0: i64) {
        self.0 = self.0.max(t0.saturating_sub(SLACK_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_event_is_delivered_below_a_promise(steps in prop::collection::vec((any::<bool>(), 0i64..1_000_000_000), 1..100)) {
            let mut safe = SafeTime::new(500_000_000);
            let mut promised = safe.time();
            for (event, time) in steps {
                if event {
                    prop_assert!(safe.admit(time) >= promised);
                } else {
                    safe.drained(time);
                }
                prop_assert!(safe.time() >= promised);
                promised = safe.time();
            }
        }
    }
}
