//! One entry of a lane table: its life, and draining it.
//!
//! Everything read from the segment is checked before use; what makes no sense costs the producer its
//! lane (quarantine) and nobody else anything. Reader's orders, in pairs with `miot_tracer`'s `lane`:
//!
//! | here | pairs with |
//! |---|---|
//! | `TAIL` is read, `fence(Acquire)`, slots are copied | commit: slots, then `TAIL` (release) |
//! | slots are copied, `HEAD` is written | refresh: `HEAD` (acquire), then slots are overwritten |
//! | `STATE` is read, `fence(Acquire)`, the entry is read again | claim and retire: identity or last tail, then `STATE` (release) |
//! | last copy, `DRAINED` is written | reuse: `DRAINED` (acquire), then the lane is claimed again |

use super::memory::{Memory, word};
use super::records::{Progress, parse};
use super::{Round, Tally};
use crate::facts::Fact;
use crate::watermark::SafeTime;
use miot_proto::event::{MAX_SLOTS, SLOT_BYTES};
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, LaneState, MAX_LANE_SLOTS, MIN_LANE_SLOTS, SLOTS_OFFSET, lane as at,
};
use miot_proto::wire::{ProcessKey, Stream, StreamEnd, StreamKey};
use std::sync::atomic::{Ordering::Acquire, fence};

/// Slots copied at a time: 256 KiB, which with its columns stays in a processor's second-level cache.
/// One copy makes one batch.
pub(super) const COPY_SLOTS: u64 = 4096;

/// Copies per lane and sweep: a lane that fills as fast as it is read must not starve the others.
const COPIES: usize = 8;

const _: () = assert!(COPY_SLOTS as usize > MAX_SLOTS, "a copy makes progress");

/// What the log-client knows of one lane.
#[derive(Debug, Default)]
pub(super) struct Lane {
    life: Life,
}

#[derive(Debug, Default)]
enum Life {
    /// Never used as far as was seen.
    #[default]
    Fresh,
    /// Being read.
    Open(Open),
    /// This incarnation is over; the next one is awaited.
    Ended { incarnation: u32 },
    /// It made no sense. Not read again: a correct producer cannot get here.
    Quarantined,
}

#[derive(Debug)]
struct Open {
    stream: u32,
    incarnation: u32,
    /// Offset and number of the slots, checked.
    slots_at: u64,
    slots: u64,
    /// Slots consumed. Ours: what stands in the segment is only written.
    head: u64,
    progress: Progress,
}

/// A private copy of a lane table entry.
pub(super) type Entry = [u8; LANE_BYTES];

/// A lane broke the rules.
struct Broken(&'static str);

/// Whose lane it is.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) memory: &'a dyn Memory,
    pub(super) key: ProcessKey,
    pub(super) clock: Clock,
    pub(super) lane: usize,
    /// Dead producers write nothing more: their marks mean nothing.
    pub(super) dead: bool,
}

impl Owner<'_> {
    fn word_at(&self, word: usize) -> u64 {
        (HEADER_BYTES + self.lane * LANE_BYTES + word) as u64
    }

    /// Reads the entry again, now that its state has been seen.
    fn reread(&self) -> Result<Entry, Broken> {
        fence(Acquire);
        let mut entry = [0; LANE_BYTES];
        self.memory.read(self.word_at(0), &mut entry).map_err(|_| Broken("the lane table is cut off"))?;
        fence(Acquire);
        Ok(entry)
    }
}

impl Lane {
    /// Looks at the lane as copied in `entry`, and drains it.
    pub(super) fn sweep(
        &mut self,
        entry: &[u8],
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) {
        if matches!(self.life, Life::Quarantined) {
            return;
        }
        if let Err(Broken(reason)) = self.try_sweep(entry, owner, round, tally) {
            tally.violations += 1;
            tracing::warn!(
                pid = owner.key.pid,
                lane = owner.lane,
                reason,
                "a lane breaks the rules of the segment: it is not read any more"
            );
            self.close(entry, owner, round);
            self.life = Life::Quarantined;
        }
    }

    /// What this lane promises; `None` if nothing more can come from it without a new claim.
    pub(super) fn safe(&self) -> Option<SafeTime> {
        match &self.life {
            Life::Open(open) => Some(open.progress.safe),
            _ => None,
        }
    }

    /// Ends the stream of the lane, if there is one, with the totals in `entry`.
    pub(super) fn close(&mut self, entry: &[u8], owner: &Owner<'_>, round: &mut Round<'_>) {
        let Life::Open(open) = &self.life else { return };
        let seen = if open.progress.started { open.progress.next_attempt } else { 0 };
        let now = round.clocks.of(owner.clock).time((round.latest)(owner.clock));
        round.sink.send(Fact::StreamEnd(StreamEnd {
            stream: open.stream,
            attempts: word(entry, at::ATTEMPTS).max(seen),
            lost_full: word(entry, at::LOST_FULL),
            lost_nested: word(entry, at::LOST_NESTED),
            time: now.max(open.progress.safe.time()),
        }));
        self.life = Life::Ended { incarnation: open.incarnation };
    }

    fn try_sweep(
        &mut self,
        entry: &[u8],
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        let state = word(entry, at::STATE);
        let incarnation = (state >> 32) as u32;
        let state = LaneState::from_number(state as u32).ok_or(Broken("its state is unknown"))?;
        let is_new = match (&self.life, state) {
            (Life::Fresh, LaneState::Free) => return Ok(()),
            (_, LaneState::Free) => return Err(Broken("it went back to free")),
            (Life::Open(open), _) if open.incarnation != incarnation => {
                return Err(Broken("it was claimed again before it was drained"));
            }
            (Life::Open(_), _) => false,
            (Life::Ended { incarnation: ended }, _) if *ended == incarnation => return Ok(()),
            _ => true,
        };
        if is_new && !self.open(incarnation, owner, round, tally)? {
            return Ok(());
        }
        let Life::Open(open) = &mut self.life else { return Ok(()) };
        open.drain(word(entry, at::TAIL), owner, round, tally)?;
        if state == LaneState::Retired {
            // The tail may have been copied before the state: only now is it known to be the last.
            let entry = owner.reread()?;
            if open.drain(word(&entry, at::TAIL), owner, round, tally)? {
                self.close(&entry, owner, round);
                owner
                    .memory
                    .write_word(owner.word_at(at::DRAINED), u64::from(incarnation))
                    .map_err(|_| Broken("the lane table is cut off"))?;
            }
        }
        Ok(())
    }

    /// Takes up an incarnation. False: not now, or nothing to take up.
    fn open(
        &mut self,
        incarnation: u32,
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) -> Result<bool, Broken> {
        let entry = owner.reread()?;
        let state = word(&entry, at::STATE);
        if (state >> 32) as u32 != incarnation {
            return Err(Broken("it was claimed again before it was drained"));
        }
        if state as u32 == LaneState::Retired as u32 && word(&entry, at::DRAINED) == u64::from(incarnation) {
            // By the log-client before us.
            self.life = Life::Ended { incarnation };
            return Ok(false);
        }
        let (slots_at, slots) = geometry(&entry, owner.memory.size())?;
        let (start, head, tail) =
            (word(&entry, at::START), word(&entry, at::HEAD), word(&entry, at::TAIL) >> 1);
        if !(start..=tail).contains(&head) || tail - head > slots {
            return Err(Broken("its cursors make no sense"));
        }
        let stream = round.next_stream();
        let comm = &entry[at::COMM..at::COMM + 16];
        let comm = &comm[..comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len())];
        round.sink.send(Fact::Stream(Stream {
            number: stream,
            key: StreamKey { process: owner.key, lane: owner.lane as u32, incarnation },
            tid: word(&entry, at::TID) as u32,
            comm: comm.to_vec(),
        }));
        tally.streams += 1;
        self.life = Life::Open(Open {
            stream,
            incarnation,
            slots_at,
            slots,
            head,
            progress: Progress {
                // Every slot consumed may have been a record, every loss may have come before.
                next_attempt: (head - start).saturating_add(word(&entry, at::LOST_FULL)),
                started: false,
                ticks: 0,
                safe: SafeTime::new(round.watermark),
            },
        });
        Ok(true)
    }
}

/// Where the slots are, checked against the rules and the file.
fn geometry(entry: &Entry, file: u64) -> Result<(u64, u64), Broken> {
    let (slots_at, slots) = (word(entry, at::SLOTS_AT), word(entry, at::SLOTS));
    let end = slots.checked_mul(SLOT_BYTES as u64).and_then(|bytes| slots_at.checked_add(bytes));
    let sound = (MIN_LANE_SLOTS..=MAX_LANE_SLOTS).contains(&slots)
        && slots.is_power_of_two()
        && slots_at.is_multiple_of(SLOT_BYTES as u64)
        && slots_at >= SLOTS_OFFSET as u64
        && end.is_some_and(|end| end <= file);
    if sound { Ok((slots_at, slots)) } else { Err(Broken("its slots lie outside the segment")) }
}

impl Open {
    /// Drains what the lane has below the tail word, up to the bound. True if that was all.
    fn drain(
        &mut self,
        tail: u64,
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) -> Result<bool, Broken> {
        let (tail, marked) = (tail >> 1, tail & 1 != 0 && !owner.dead);
        let waiting = tail
            .checked_sub(self.head)
            .filter(|n| *n <= self.slots)
            .ok_or(Broken("its cursors make no sense"))?;
        tally.fullest = tally.fullest.max((waiting * 64 / self.slots) as u32);
        fence(Acquire);
        for _ in 0..COPIES {
            if self.head == tail || !round.sink.has_room() {
                break;
            }
            self.copy_and_send(tail, owner, round, tally)?;
        }
        let all = self.head == tail;
        if all && !marked {
            self.progress.safe.drained(round.t0_time(owner.clock));
        }
        tally.rest |= !all;
        Ok(all)
    }

    fn copy_and_send(
        &mut self,
        tail: u64,
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        let count = (tail - self.head).min(COPY_SLOTS);
        let (buffer, columns) = round.scratch.parts(count as usize * SLOT_BYTES);
        let from = self.head & (self.slots - 1);
        let before_wrap = (self.slots - from).min(count) as usize * SLOT_BYTES;
        let (first, second) = buffer.split_at_mut(before_wrap);
        owner
            .memory
            .read(self.slots_at + from * SLOT_BYTES as u64, first)
            .and_then(|()| owner.memory.read(self.slots_at, second))
            .map_err(|_| Broken("its slots are cut off"))?;
        let now = (round.latest)(owner.clock);
        columns.clear();
        let clock = round.clocks.of(owner.clock);
        let parsed = parse(buffer, self.head + count == tail, clock, now, &mut self.progress, columns);
        tally.events += columns.len() as u64;
        tally.violations += parsed.violations;
        tally.unknown += parsed.unknown;
        tally.clamped += parsed.clamped;
        if !columns.is_empty() {
            round.sink.send(Fact::Batch { stream: self.stream, columns });
        }
        self.head += parsed.slots as u64;
        owner
            .memory
            .write_word(owner.word_at(at::HEAD), self.head)
            .map_err(|_| Broken("the lane table is cut off"))
    }
}
