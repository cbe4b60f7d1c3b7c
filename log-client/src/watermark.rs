//! The watermark of the node: every event that completed before it has been sent.
//!
//! # Proof
//!
//! For each record the producer, in this order, (1) marks its lane (bit 0 of `TAIL`), (2) reads the
//! clock: the completion time, (3) writes the slots, (4) stores the new `TAIL` without the mark.
//! The mark may stay in the processor's store buffer while the clock is read; it is visible to
//! other processors at most [`SLACK_NS`] after it was executed. (A store buffer drains within
//! microseconds, also when the thread is interrupted. The slack also covers the difference between
//! the counters of two processors.)
//!
//! A sweep first reads the time `t0`, then the directory, headers and lanes.
//!
//! * **A lane seen unmarked with tail `T`.** A record at or above `T` has a mark that was not
//!   visible at a moment after `t0`. So the mark was executed after `t0 − SLACK`, and the
//!   completion time was read after that. Once everything below `T` is drained, the lane is
//!   therefore safe up to `t0 − SLACK`.
//! * **A lane seen marked.** Its thread may have read its clock long ago and may have been stopped
//!   since. But the records of a lane are in order of completion. So the lane is safe up to the
//!   completion of the last drained record, and up to its previous safe time.
//! * **A lane that was drained only in part** (bounded work, or no memory for more): as a marked
//!   one.
//! * **A lane that did not exist.** The producer claims a lane before the first completion time
//!   that goes into it, and creates its segment before it claims a lane. A claim that was not
//!   visible after `t0` happened after `t0 − SLACK`: the lane is safe up to there. It starts with
//!   the current watermark.
//! * **A lane of a dead process, a retired lane that was drained to its end, a quarantined lane**:
//!   no more records come from it; it no longer counts.
//!
//! The watermark is the minimum of the lanes' safe times and `t0 − SLACK`, and never decreases. One
//! monotone map ([`crate::clock`]) converts ticks to times, so comparing times is comparing ticks.
//!
//! # Maximum delay
//!
//! A lane that stays marked, or that claims old times forever, delays the merge of the whole
//! cluster by at most [`MAX_HOLD`]. After that the watermark advances without the lane. Other
//! lanes are not affected. The lane's uncommitted record (one record of a thread that was stopped
//! in the middle of it) is delivered later with the time of the watermark and marked, as below. The
//! wait restarts whenever records were left in the lanes on purpose (no space, or nothing to be
//! read): then the producers are not the cause of the delay.
//!
//! # Untrusted times
//!
//! A producer that lies, or that records requests whose completion it learned late
//! (`miot_tracer::record`), can still deliver an event from before the watermark. Such an event
//! gets the time of the watermark instead ([`SafeTime::admit`]), is marked
//! ([`miot_proto::event::flag::moved_bit`]) and counted as clamped. So the merge never sees a
//! violated watermark, and the trace shows which times are not completion times.

use std::time::Duration;

/// Maximum time for which a store of a producer is invisible to other processors, nanoseconds: see
/// the module.
pub(crate) const SLACK_NS: i64 = 1_000_000;

/// Maximum time for which a lane, or a segment that waits to be opened, holds back the watermark:
/// equal to the time a log-server waits by default for a silent node.
pub(crate) const MAX_HOLD: Duration = Duration::from_secs(5);

/// Safe time of a lane: no event that completed before this time, nanoseconds since 1970, will come
/// from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SafeTime(i64);

impl SafeTime {
    /// Safe time of a new lane: the watermark of the node.
    pub(crate) fn new(watermark: i64) -> SafeTime {
        SafeTime(watermark)
    }

    pub(crate) fn time(self) -> i64 {
        self.0
    }

    /// Returns the completion time with which an event of the lane is delivered: not before its
    /// predecessor in the lane and not before the watermark. The event is then drained.
    #[inline]
    pub(crate) fn admit(&mut self, time: i64) -> i64 {
        self.0 = self.0.max(time);
        self.0
    }

    /// Raises the safe time to the watermark that the node has sent, with or without this lane.
    pub(crate) fn raise_to(&mut self, watermark: i64) {
        self.0 = self.0.max(watermark);
    }

    /// The lane was seen unmarked at or after `t0`, and all its records at that time are drained.
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
        fn no_event_is_delivered_below_the_watermark(steps in prop::collection::vec((any::<bool>(), 0i64..1_000_000_000), 1..100)) {
            let mut safe = SafeTime::new(500_000_000);
            let mut watermark = safe.time();
            for (event, time) in steps {
                if event {
                    prop_assert!(safe.admit(time) >= watermark);
                } else {
                    safe.drained(time);
                }
                prop_assert!(safe.time() >= watermark);
                watermark = safe.time();
            }
        }
    }
}
