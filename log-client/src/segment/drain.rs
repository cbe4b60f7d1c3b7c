//! Draining a lane: what to take, copying it, handing it over, giving the slots back.
//!
//! # Lanes that overwrite themselves
//!
//! Under `overwrite-oldest` the producer does not wait for `HEAD`. It keeps a frontier, `OLDEST`, always the
//! start of a record: below it slots may be written again at any time. Table entry and slots are copied word
//! by word while that goes on, so nothing in two copies belongs together by itself. What holds:
//!
//! * `OLDEST` is stored before anything below it is written again, with a release fence in between. So a copy of
//!   slots that holds a word written again is followed (`fence(Acquire)`) by the sight of a frontier above that
//!   slot: after each copy `OLDEST` is read again, and the part of the copy below it is thrown away. The rest is
//!   whole records, as they were committed.
//! * `OLDEST` is stored before a `TAIL` that is more than the lane's size above the frontier before. So `TAIL`
//!   first, `fence(Acquire)`, then `OLDEST`: `TAIL − OLDEST` is at most the size.
//! * `TAIL` has passed `OLDEST` before `OLDEST` is stored. If it seems not to have, the copy of `TAIL` is older
//!   than that of `OLDEST`, and both are read again. If both are as before then, the producer lies.
//!
//! Position and frontier being starts of records, each copy begins with one. What was overwritten before it
//! was read is missing between two attempt numbers: the loss is exact and in its place. (Numbers are recorded
//! modulo 2³²: if so many continuation slots are overwritten in one gap, it is counted too small.)

use super::lane::{Broken, Owner};
use super::memory::word;
use super::records::{Progress, parse};
use super::{Reads, Round, Tally};
use crate::facts::Fact;
use miot_proto::event::{MAX_SLOTS, SLOT_BYTES};
use miot_proto::segment::lane as at;
use std::sync::atomic::{Ordering::Acquire, fence};

/// Slots copied at a time: 256 KiB, which with its columns stays in a processor's second-level cache.
/// One copy makes one batch.
pub(super) const COPY_SLOTS: u64 = 4096;

/// Copies per lane and sweep: a lane that fills as fast as it is read must not starve the others.
const COPIES: usize = 8;

/// Copies per segment and sweep (16 MiB, some milliseconds): nor must a process starve the others, whatever it
/// writes into its lane table.
const COPIES_OF_SEGMENT: usize = 64;

/// Bad records after which a lane is given up: they cost time to look at, and a correct producer writes none.
const MOST_NONSENSE: u64 = 10_000;

/// How often the cursors of a lane that overwrites itself are read until they fit together.
const TRIES: usize = 8;

const _: () = assert!(COPY_SLOTS as usize > MAX_SLOTS, "a copy makes progress");

/// One incarnation of a lane, being read.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) stream: u32,
    pub(super) incarnation: u32,
    /// Offset and number of the slots, checked.
    pub(super) slots_at: u64,
    pub(super) slots: u64,
    /// Slots consumed. Ours: what stands in the segment is only written.
    pub(super) head: u64,
    /// The frontier as last seen: it never goes back.
    pub(super) oldest: u64,
    /// What stands in `DRAINED`, which is written together with `HEAD`.
    pub(super) drained: u64,
    pub(super) progress: Progress,
    /// The attempt number after the last record that was sent.
    pub(super) sent: u64,
    /// Slots were not given back yet: what they held is not written.
    pub(super) owed: bool,
    /// A snapshot, and the tail when it was begun.
    pub(super) goal: Option<(u64, u64)>,
    /// The tail when the producer was first known to be dead.
    pub(super) last: Option<u64>,
    /// Bad records so far.
    pub(super) nonsense: u64,
}

impl Open {
    /// Drains what the lane of `entry` has, up to the bound, as far as the round wants it. True if nothing of
    /// that is left. `over`: nothing more is committed in this incarnation.
    pub(super) fn drain(
        &mut self,
        entry: &[u8],
        over: bool,
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) -> Result<bool, Broken> {
        let Some(seen) = self.cursors(word(entry, at::TAIL), owner, round)? else {
            tally.rest = true;
            return Ok(false);
        };
        if self.owed && round.sink.is_written() {
            self.give_back(owner)?;
            self.owed = false;
        }
        self.progress.most = self.progress.most.max(word(entry, at::ATTEMPTS));
        let (tail, marked) = (seen >> 1, seen & 1 != 0 && !owner.dead);
        let until = self.until(tail, over, owner, round);
        let waiting = until.saturating_sub(self.head).min(self.slots);
        tally.fullest = tally.fullest.max((waiting * 64 / self.slots) as u32);
        fence(Acquire);
        self.progress.safe.promised(round.watermark);
        for _ in 0..COPIES {
            if self.head >= until || !round.sink.has_room() {
                break;
            }
            if tally.copies == COPIES_OF_SEGMENT {
                tally.starved.get_or_insert(owner.lane);
                break;
            }
            tally.copies += 1;
            self.copy_and_send(until, owner, round, tally)?;
        }
        if self.head >= tail && !marked {
            self.progress.safe.drained(round.t0_time(owner.clock));
        }
        tally.behind |=
            self.goal.is_some_and(|(number, goal)| Some(number) == round.snapshot && self.head < goal);
        tally.rest |= self.head < until;
        Ok(self.head >= until)
    }

    /// The tail word, and `head` no lower than the frontier. `None`: they are moving too fast, later.
    fn cursors(&mut self, seen: u64, owner: &Owner<'_>, round: &Round<'_>) -> Result<Option<u64>, Broken> {
        let in_lane =
            |tail: u64, head: u64| tail.checked_sub(head).is_some_and(|waiting| waiting <= self.slots);
        if !(round.overwrites)() || seen >> 1 == self.head {
            if in_lane(seen >> 1, self.head) {
                return Ok(Some(seen));
            }
            // Told to overwrite since?
            if !(round.overwrites)() {
                return Err(Broken("its cursors make no sense"));
            }
        }
        let mut before = None;
        for _ in 0..TRIES {
            let seen = owner.read_word(at::TAIL)?;
            fence(Acquire);
            let oldest = owner.read_word(at::OLDEST)?;
            if oldest < self.oldest {
                return Err(Broken("its frontier went back"));
            }
            let head = self.head.max(oldest);
            if in_lane(seen >> 1, head) {
                self.skip_to(oldest);
                return Ok(Some(seen));
            }
            if before.replace((seen, oldest)) == Some((seen, oldest)) {
                return Err(Broken("its cursors make no sense"));
            }
            fence(Acquire);
        }
        // Nobody moves the cursors of the dead.
        if owner.dead { Err(Broken("its cursors make no sense")) } else { Ok(None) }
    }

    /// What lies below the frontier is lost.
    fn skip_to(&mut self, oldest: u64) {
        self.oldest = oldest;
        if let Some(skipped) = oldest.checked_sub(self.head) {
            self.head = oldest;
            // A record takes at least a slot.
            self.progress.most = self.progress.most.max(self.progress.next_attempt.saturating_add(skipped));
        }
    }

    /// Up to where the lane is to be read now.
    fn until(&mut self, tail: u64, over: bool, owner: &Owner<'_>, round: &Round<'_>) -> u64 {
        let goal = round.snapshot.map(|number| match self.goal {
            Some((taken, goal)) if taken == number => goal,
            _ => self.goal.insert((number, tail)).1,
        });
        if owner.dead {
            // Whoever else has the segment mapped does not keep it in use.
            return tail.min(*self.last.get_or_insert(tail));
        }
        match (round.reads, goal) {
            (Reads::Everything, _) => tail,
            (Reads::Endings, _) if over => tail,
            (Reads::Endings, Some(goal)) => tail.min(goal),
            (Reads::Endings, None) => self.head.min(tail),
        }
    }

    fn copy_and_send(
        &mut self,
        until: u64,
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        let count = (until - self.head).min(COPY_SLOTS);
        let (buffer, columns) = round.scratch.parts(count as usize * SLOT_BYTES);
        let from = self.head & (self.slots - 1);
        let before_wrap = (self.slots - from).min(count) as usize * SLOT_BYTES;
        let (first, second) = buffer.split_at_mut(before_wrap);
        owner
            .memory
            .read(self.slots_at + from * SLOT_BYTES as u64, first)
            .and_then(|()| owner.memory.read(self.slots_at, second))
            .map_err(|_| Broken("its slots are cut off"))?;
        let copied = self.head..self.head + count;
        if (round.overwrites)() {
            fence(Acquire);
            let oldest = owner.read_word(at::OLDEST)?;
            if oldest < self.oldest {
                return Err(Broken("its frontier went back"));
            }
            self.skip_to(oldest);
        }
        let overwritten = (self.head - copied.start).min(count) as usize * SLOT_BYTES;
        let now = (round.latest)(owner.clock);
        columns.clear();
        let clock = round.clocks.of(owner.clock);
        let to_tail = copied.end == until;
        let parsed = parse(&buffer[overwritten..], to_tail, clock, now, &mut self.progress, columns);
        tally.events += columns.len() as u64;
        // These cost no more to look at than others, so the lane is read on.
        tally.violations += parsed.violations + parsed.undefined;
        tally.undefined += parsed.undefined;
        tally.unknown += parsed.unknown;
        tally.clamped += parsed.clamped;
        if !columns.is_empty() {
            tally.newest = tally.newest.max(columns.time.last().copied().unwrap_or(0));
            let last = columns.attempt.last().map_or(self.sent, |last| last.saturating_add(1));
            round.sink.send(Fact::Batch { stream: self.stream, after: self.sent, columns });
            self.sent = last;
        }
        self.head += parsed.slots as u64;
        self.nonsense += parsed.violations;
        if self.nonsense > MOST_NONSENSE {
            return Err(Broken("its records make no sense"));
        }
        self.owed = !round.sink.is_written();
        if self.owed { Ok(()) } else { self.give_back(owner) }
    }

    /// Says in the segment how far it was read, all words in one write.
    fn give_back(&self, owner: &Owner<'_>) -> Result<(), Broken> {
        owner.write(&[self.head, self.drained, self.progress.next_attempt])
    }
}
