//! Draining a lane: selecting the range, copying it, sending its records, giving the slots back.
//!
//! # Lanes that overwrite themselves
//!
//! Under `overwrite-oldest` the producer does not wait for `HEAD`. It keeps a frontier, `OLDEST`,
//! which is always the start of a record: slots below it may be overwritten at any time. Table
//! entry and slots are copied word by word meanwhile, so two copies are not consistent by
//! themselves. The following holds:
//!
//! * `OLDEST` is stored before anything below it is overwritten, with a release fence in between.
//!   So after a copy of slots that contains an overwritten word, and `fence(Acquire)`, a frontier
//!   above that slot is visible. Therefore `OLDEST` is read again after each copy, and the part of
//!   the copy below it is discarded. The rest consists of whole records, as they were committed.
//! * `OLDEST` is stored before a `TAIL` that is more than the lane's size above the previous
//!   frontier. So `TAIL` is read first, then `fence(Acquire)`, then `OLDEST`: `TAIL − OLDEST` is at
//!   most the size.
//! * `TAIL` has passed `OLDEST` before `OLDEST` is stored. If it appears not to have, the copy of
//!   `TAIL` is older than that of `OLDEST`, and both are read again. If both are then unchanged,
//!   the producer lies.
//!
//! Position and frontier are starts of records, so each copy begins with one. Records that were
//! overwritten before they were read are missing between two attempt numbers: the loss is exact and
//! in its place. (Numbers are recorded modulo 2³². If that many continuation slots are overwritten
//! in one gap, the count is too low.)

use super::lane::{LaneOwner, LaneViolation};
use super::memory::word;
use super::records::{Progress, parse};
use super::{ReadMode, SweepContext, Tally};
use crate::facts::Fact;
use miot_proto::event::{MAX_SLOTS, SLOT_BYTES};
use miot_proto::segment::lane as at;
use std::sync::atomic::{Ordering::Acquire, fence};

/// Slots per copy: 256 KiB, which with its columns fits into a processor's second-level cache. One
/// copy makes one batch.
pub(super) const COPY_SLOTS: u64 = 4096;

/// Maximum copies per lane and sweep: a lane that fills as fast as it is read must not starve the
/// others.
const MAX_COPIES_PER_LANE: usize = 8;

/// Maximum copies per segment and sweep (16 MiB, some milliseconds): a process must not starve the
/// others, whatever its lane table contains.
const MAX_COPIES_PER_SEGMENT: usize = 64;

/// Invalid records after which a lane is quarantined: they cost time, and a correct producer writes
/// none.
const MAX_INVALID_RECORDS: u64 = 10_000;

/// Maximum attempts to read consistent cursors of a lane that overwrites itself.
const MAX_TRIES: usize = 8;

const _: () = assert!(COPY_SLOTS as usize > MAX_SLOTS, "a copy makes progress");

/// Reason why attempt numbers are missing at the end of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rest {
    /// The lane was read as far as it goes.
    Read,
    /// Its records are not read any more, because of so many violations of the lane itself.
    Refused { violations: u64 },
}

/// One incarnation of a lane that is being read.
#[derive(Debug)]
pub(super) struct OpenLane {
    pub(super) stream: u32,
    pub(super) incarnation: u32,
    /// Offset and number of the slots, validated.
    pub(super) slots_at: u64,
    pub(super) slots: u64,
    /// Number of slots consumed. This copy counts: the word in the segment is only written.
    pub(super) head: u64,
    /// The frontier as last seen; it never decreases.
    pub(super) oldest: u64,
    /// The current value of `DRAINED`, which is written together with `HEAD`.
    pub(super) drained: u64,
    pub(super) progress: Progress,
    /// The attempt number after the last record that was sent.
    pub(super) sent: u64,
    /// Records lost in full lanes that were reported to other log-servers.
    pub(super) lost_full_before: u64,
    /// Slots were not given back yet, because their records are not written yet.
    pub(super) unreleased: bool,
    /// A snapshot, and the tail when it started.
    pub(super) goal: Option<(u64, u64)>,
    /// The tail when the producer was first known to be dead.
    pub(super) tail_at_death: Option<u64>,
    /// Number of invalid records so far.
    pub(super) invalid_records: u64,
}

impl OpenLane {
    /// Drains the lane of `entry` up to the bounds, as far as the context requires. Returns true if
    /// nothing of that is left. `over`: nothing more is committed in this incarnation.
    pub(super) fn drain(
        &mut self,
        entry: &[u8],
        over: bool,
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) -> Result<bool, LaneViolation> {
        let Some(seen) = self.read_cursors(word(entry, at::TAIL), owner, context)? else {
            tally.unfinished = true;
            return Ok(false);
        };
        if self.unreleased && context.sink.is_written() {
            self.release_slots(owner)?;
            self.unreleased = false;
        }
        self.progress.most = self.progress.most.max(word(entry, at::ATTEMPTS));
        let (tail, marked) = (seen >> 1, seen & 1 != 0 && !owner.dead);
        let until = self.read_limit(tail, over, owner, context);
        let waiting = until.saturating_sub(self.head).min(self.slots);
        tally.fullest = tally.fullest.max((waiting * 64 / self.slots) as u32);
        let grown = context.grown_slots.max(self.slots);
        tally.fullest_grown = tally.fullest_grown.max((waiting * 64 / grown) as u32);
        fence(Acquire);
        self.progress.safe.raise_to(context.watermark);
        for _ in 0..MAX_COPIES_PER_LANE {
            if self.head >= until || !context.sink.has_space() {
                break;
            }
            if tally.copies == MAX_COPIES_PER_SEGMENT {
                tally.starved.get_or_insert(owner.lane);
                break;
            }
            tally.copies += 1;
            self.copy_and_send(until, owner, context, tally)?;
        }
        if self.head >= tail && !marked {
            self.progress.safe.drained(context.t0_time(owner.clock));
        }
        tally.behind |=
            self.goal.is_some_and(|(number, goal)| Some(number) == context.snapshot && self.head < goal);
        tally.unfinished |= self.head < until;
        Ok(self.head >= until)
    }

    /// Returns the tail word, after raising `head` to the frontier. `None` if they change too fast:
    /// retry later.
    fn read_cursors(
        &mut self,
        seen: u64,
        owner: &LaneOwner<'_>,
        context: &SweepContext<'_>,
    ) -> Result<Option<u64>, LaneViolation> {
        let in_lane =
            |tail: u64, head: u64| tail.checked_sub(head).is_some_and(|waiting| waiting <= self.slots);
        if !(context.overwrites)() || seen >> 1 == self.head {
            if in_lane(seen >> 1, self.head) {
                return Ok(Some(seen));
            }
            // The policy may just have changed.
            if !(context.overwrites)() {
                return Err(LaneViolation("inconsistent cursors"));
            }
        }
        let mut before = None;
        for _ in 0..MAX_TRIES {
            let seen = owner.read_word(at::TAIL)?;
            fence(Acquire);
            let oldest = owner.read_word(at::OLDEST)?;
            if oldest < self.oldest {
                return Err(LaneViolation("frontier decreased"));
            }
            let head = self.head.max(oldest);
            if in_lane(seen >> 1, head) {
                self.skip_to(oldest);
                return Ok(Some(seen));
            }
            if before.replace((seen, oldest)) == Some((seen, oldest)) {
                return Err(LaneViolation("inconsistent cursors"));
            }
            fence(Acquire);
        }
        // The cursors of a dead producer must not change.
        if owner.dead { Err(LaneViolation("inconsistent cursors")) } else { Ok(None) }
    }

    /// Records below the frontier are lost.
    fn skip_to(&mut self, oldest: u64) {
        self.oldest = oldest;
        if let Some(skipped) = oldest.checked_sub(self.head) {
            self.head = oldest;
            // A record takes at least one slot.
            self.progress.most = self.progress.most.max(self.progress.next_attempt.saturating_add(skipped));
        }
    }

    /// Position up to which the lane must be read now.
    fn read_limit(
        &mut self,
        tail: u64,
        over: bool,
        owner: &LaneOwner<'_>,
        context: &SweepContext<'_>,
    ) -> u64 {
        let goal = context.snapshot.map(|number| match self.goal {
            Some((taken, goal)) if taken == number => goal,
            _ => self.goal.insert((number, tail)).1,
        });
        if owner.dead {
            // Another process that has the segment mapped must not keep it in use.
            return tail.min(*self.tail_at_death.get_or_insert(tail));
        }
        match (context.reads, goal) {
            (ReadMode::AllLanes, _) => tail,
            (ReadMode::EndedLanes, _) if over => tail,
            (ReadMode::EndedLanes, Some(goal)) => tail.min(goal),
            (ReadMode::EndedLanes, None) => self.head.min(tail),
        }
    }

    fn copy_and_send(
        &mut self,
        until: u64,
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), LaneViolation> {
        let count = (until - self.head).min(COPY_SLOTS);
        let (buffer, columns) = context.scratch.parts(count as usize * SLOT_BYTES);
        let from = self.head & (self.slots - 1);
        let before_wrap = (self.slots - from).min(count) as usize * SLOT_BYTES;
        let (first, second) = buffer.split_at_mut(before_wrap);
        owner
            .memory
            .read(self.slots_at + from * SLOT_BYTES as u64, first)
            .and_then(|()| owner.memory.read(self.slots_at, second))
            .map_err(|_| LaneViolation("slots truncated"))?;
        let copied = self.head..self.head + count;
        if (context.overwrites)() {
            fence(Acquire);
            let oldest = owner.read_word(at::OLDEST)?;
            if oldest < self.oldest {
                return Err(LaneViolation("frontier decreased"));
            }
            self.skip_to(oldest);
        }
        let overwritten = (self.head - copied.start).min(count) as usize * SLOT_BYTES;
        let now = (context.latest)(owner.clock);
        columns.clear();
        let clock = context.clocks.of(owner.clock);
        let to_tail = copied.end == until;
        let counts = parse(&buffer[overwritten..], to_tail, clock, now, &mut self.progress, columns);
        tally.events += columns.records() as u64;
        // These cost no more time than valid records, so the lane is read on.
        tally.violations += counts.violations + counts.undefined;
        tally.undefined += counts.undefined;
        tally.unknown += counts.unknown;
        tally.numbered += counts.numbered;
        tally.clamped += counts.clamped;
        if !columns.is_empty() {
            tally.newest = tally.newest.max(columns.time.last().copied().unwrap_or(0));
            let last = columns.attempt.last().map_or(self.sent, |last| last.saturating_add(1));
            context.sink.send(Fact::Batch { stream: self.stream, after: self.sent, columns });
            self.sent = last;
        }
        self.head += counts.slots as u64;
        self.invalid_records += counts.violations;
        if self.invalid_records > MAX_INVALID_RECORDS {
            return Err(LaneViolation("too many invalid records"));
        }
        self.unreleased = !context.sink.is_written();
        if self.unreleased { Ok(()) } else { self.release_slots(owner) }
    }

    /// Refuses what is missing before the attempt number `end`, with which the stream ends: as many
    /// numbers as there are invalid records, or all if the lane was not read to its end.
    pub(super) fn refuse_rest(
        &mut self,
        end: u64,
        rest: Rest,
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) {
        let (all, violations) = match rest {
            Rest::Read => (false, 0),
            Rest::Refused { violations } => (true, violations),
        };
        let invalid = std::mem::take(&mut self.progress.invalid) + violations;
        let next = self.progress.seen();
        let missing = end.saturating_sub(next);
        let refused = if all { missing } else { missing.min(invalid) };
        let Some(last) = next.saturating_add(refused).checked_sub(1).filter(|_| refused > 0) else { return };
        tally.numbered += refused.min(invalid);
        let clock = context.clocks.of(owner.clock);
        let time = self.progress.safe.admit(clock.piece_at(self.progress.ticks).time(self.progress.ticks));
        let columns = &mut context.scratch.columns;
        columns.clear();
        columns.push_refused(next, last, time);
        context.sink.send(Fact::Batch { stream: self.stream, after: self.sent, columns });
        self.sent = last.saturating_add(1);
    }

    /// Gives back slots whose records were not written when they were sent, and are now.
    pub(super) fn release_if_due(&mut self, owner: &LaneOwner<'_>) -> Result<(), LaneViolation> {
        if std::mem::take(&mut self.unreleased) { self.release_slots(owner) } else { Ok(()) }
    }

    /// Writes to the segment how far it was read, all words in one write.
    fn release_slots(&self, owner: &LaneOwner<'_>) -> Result<(), LaneViolation> {
        owner.write(&[self.head, self.drained, self.progress.next_attempt])
    }
}
