//! Parses records from a private copy of slots.

use super::block::{self, BLOCK, BlockClock};
use crate::clock::Timeline;
use crate::watermark::SafeTime;
use miot_proto::batch::Columns;
use miot_proto::event::{
    Event, MAX_SLOTS, RecordKind, SLOT_BYTES, Slot, attempt_of, ext_from_bytes, flag, kind_of, slots_of,
};

/// A step of the attempt number of at least this much goes backwards and is not a loss.
const BACKWARDS: u32 = 1 << 31;

/// Position of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Attempt number of the next record if none is lost before it.
    pub(super) next_attempt: u64,
    /// False until the number is known; then `next_attempt` is its upper bound.
    started: bool,
    /// Upper bound of the attempt number after a gap that is too long for the low bits.
    pub(super) most: u64,
    /// Raw ticks of the last record.
    pub(super) ticks: u64,
    /// Safe time of the lane, which also orders its events.
    pub(super) safe: SafeTime,
    /// Number of invalid records since the last valid one. Their attempt numbers are not known
    /// before the next one.
    pub(super) invalid: u64,
}

/// Counters of one copy of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ParseCounts {
    /// Slots consumed; all of them if the copy ends at the tail.
    pub(super) slots: usize,
    /// Invalid records.
    pub(super) violations: u64,
    /// Records of a kind that this version does not know.
    pub(super) unknown: u64,
    /// Requests with an undefined layer or operation.
    pub(super) undefined: u64,
    /// Records of `violations` and `undefined` whose attempt numbers are in the batch.
    pub(super) numbered: u64,
    /// Records whose time was moved to keep the order or the watermark; they are flagged.
    pub(super) clamped: u64,
}

/// Appends the records in `slots` to `out`. A record that continues past the end is left for the
/// next copy, unless `to_tail` is true: a producer commits whole records.
///
/// `now` is the present on the producer's clock: no request has completed later.
pub(super) fn parse(
    slots: &[u8],
    to_tail: bool,
    clock: &Timeline,
    now: u64,
    progress: &mut Progress,
    out: &mut Columns,
) -> ParseCounts {
    let (records, _) = slots.as_chunks::<SLOT_BYTES>();
    let total = records.len();
    let present = clock.last();
    let mut piece = clock.piece_at(progress.ticks);
    let mut counts = ParseCounts::default();
    let (mut at, mut next_block) = (0, 0);
    while let Some(first) = records.get(at) {
        if at >= next_block
            && let Some(block) = records[at..].first_chunk()
        {
            if block::push(block, &BlockClock { piece, present, now }, progress, out) {
                at += BLOCK;
                continue;
            }
            next_block = at + BLOCK;
        }
        let first = words(first);
        let count = slots_of(&first);
        let more = if count == 1 {
            &[][..]
        } else {
            if count > total - at && count <= MAX_SLOTS && !to_tail {
                break;
            }
            let whole = slots.get((at + 1) * SLOT_BYTES..(at + count) * SLOT_BYTES);
            let Some(more) = whole.filter(|_| (1..=MAX_SLOTS).contains(&count)) else {
                counts.violations += 1;
                progress.invalid += 1;
                at += 1;
                continue;
            };
            more
        };
        // From here on an invalid record is skipped as a whole: its continuation slots are not
        // records.
        at += count;
        let ext = if more.is_empty() { None } else { ext_from_bytes(more) };
        let attempt = progress.widen(attempt_of(&first));
        let (Some(attempt), true) = (attempt, ext.is_some() || more.is_empty()) else {
            counts.violations += 1;
            progress.invalid += 1;
            continue;
        };
        if progress.invalid > 0 {
            let time = progress.safe.admit(piece.time(progress.ticks));
            counts.numbered += progress.refuse_invalid(attempt, time, out);
            progress.invalid = 0;
        }
        progress.next_attempt = attempt.saturating_add(1);
        progress.started = true;
        let Some(kind) = RecordKind::from_number(kind_of(&first)) else {
            counts.unknown += 1;
            out.push_refused(attempt, attempt, progress.safe.admit(piece.time(progress.ticks)));
            continue;
        };
        let mut event = Event::from_slot(&first);
        let ticks = event.end.clamp(progress.ticks, now.max(progress.ticks));
        progress.ticks = ticks;
        if !piece.covers(ticks) {
            piece = clock.piece_at(ticks);
        }
        let time = piece.time(ticks);
        let admitted = progress.safe.admit(time);
        if kind == RecordKind::Request && !event.op.is_defined() {
            counts.undefined += 1;
            counts.numbered += 1;
            out.push_refused(attempt, attempt, admitted);
            continue;
        }
        // Producers may not set this flag.
        let mark = flag::moved_bit(event.op);
        event.flags &= !mark;
        if ticks != event.end || admitted != time {
            event.flags |= mark;
            counts.clamped += 1;
        }
        out.push(kind as u8, attempt, admitted, present.span(event.duration), &event, ext.as_ref());
    }
    counts.slots = at;
    counts
}

/// A loop compiles to a copy; `std::array::from_fn` would be a call per word.
#[inline]
pub(super) fn words(slot: &[u8; SLOT_BYTES]) -> Slot {
    let mut words = Slot::default();
    for (word, bytes) in words.iter_mut().zip(slot.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

impl Progress {
    /// Progress of a stream of which `slots` have been read. `next`: the attempt number noted by
    /// the previous log-client, if any.
    pub(super) fn resume(slots: u64, lost_full: u64, next: u64, safe: SafeTime) -> Progress {
        // Every consumed slot may have been a record, and every loss may have come before.
        let most = slots.saturating_add(lost_full);
        let (next_attempt, started) = match slots {
            0 => (0, true),
            _ if (1..=most).contains(&next) => (next, true),
            _ => (most, false),
        };
        Progress { next_attempt, started, most: 0, ticks: 0, safe, invalid: 0 }
    }

    /// The attempt number of the next record, if it is known and no invalid record is before it.
    pub(super) fn next_if_regular(&self) -> Option<u64> {
        let is_regular = self.started && self.invalid == 0;
        is_regular.then_some(self.next_attempt).filter(|next| next.checked_add(BLOCK as u64).is_some())
    }

    /// Records that all records before the attempt number `next` were read. `ticks` and `time` are
    /// those of the last one.
    pub(super) fn advance(&mut self, next: u64, ticks: u64, time: i64) {
        (self.next_attempt, self.ticks) = (next, ticks);
        self.safe.admit(time);
    }

    /// Gives the invalid records attempt numbers that are missing before `attempt`, as many as
    /// there are. Returns that number.
    pub(super) fn refuse_invalid(&self, attempt: u64, time: i64, out: &mut Columns) -> u64 {
        let missing = if self.started { attempt.saturating_sub(self.next_attempt) } else { 0 };
        let numbered = self.invalid.min(missing);
        if numbered > 0 {
            out.push_refused(self.next_attempt, self.next_attempt + (numbered - 1), time);
        }
        numbered
    }

    /// Number of attempts that is certain from the records read.
    pub(super) fn seen(&self) -> u64 {
        if self.started { self.next_attempt } else { 0 }
    }

    /// The attempt number with these low bits; `None` if it goes backwards.
    fn widen(&self, low: u32) -> Option<u64> {
        if self.started {
            let step = low.wrapping_sub(self.next_attempt as u32);
            let attempt = self.next_attempt.checked_add(u64::from(step))?;
            (step < BACKWARDS || attempt <= self.most).then_some(attempt)
        } else {
            // The largest possible number with these low bits; the low bits themselves if a
            // producer claims more.
            let over = (self.next_attempt as u32).wrapping_sub(low);
            Some(self.next_attempt.checked_sub(u64::from(over)).unwrap_or(u64::from(low)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(next_attempt: u64, started: bool) -> Progress {
        Progress { next_attempt, started, most: 0, ticks: 0, safe: SafeTime::new(0), invalid: 0 }
    }

    #[test]
    fn long_gap_is_accepted_within_the_lanes_bound() {
        let long = Progress { most: 5 << 30, ..progress(100, true) };
        assert_eq!(long.widen((3 << 30) + 5), Some((3 << 30) + 5));
        assert_eq!(progress(100, true).widen((3 << 30) + 5), None);
    }

    #[test]
    fn attempt_numbers_continue_past_32_bits() {
        let wide = 7u64 << 32;
        assert_eq!(progress(wide - 1, true).widen(u32::MAX), Some(wide - 1));
        assert_eq!(progress(wide - 1, true).widen(0), Some(wide));
        assert_eq!(progress(wide - 1, true).widen(9), Some(wide + 9));
        assert_eq!(progress(wide, true).widen(u32::MAX), None, "one back is not four billion lost");
    }

    #[test]
    fn first_number_after_a_restart_is_the_largest_possible() {
        let most = (3u64 << 32) + 100;
        assert_eq!(progress(most, false).widen(100), Some(most));
        assert_eq!(progress(most, false).widen(40), Some(most - 60));
        assert_eq!(progress(most, false).widen(101), Some((2 << 32) + 101));
        assert_eq!(progress(0, false).widen(0), Some(0));
        assert_eq!(progress(0, false).widen(5), Some(5));
    }
}
