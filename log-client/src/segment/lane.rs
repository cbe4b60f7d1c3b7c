//! One entry of a lane table: its life.
//!
//! Everything read from the segment is checked before use; what makes no sense costs the producer its
//! lane (quarantine) and nobody else anything. Reader's orders, in pairs with `miot_tracer`'s `lane`:
//!
//! | here | pairs with |
//! |---|---|
//! | `TAIL` is read, `fence(Acquire)`, slots are copied | commit: slots, then `TAIL` (release) |
//! | slots are copied, `HEAD` is written | refresh: `HEAD` (acquire), then slots are overwritten |
//! | slots are copied, `fence(Acquire)`, `OLDEST` is read | overwrite: `OLDEST`, `fence(Release)`, then slots are overwritten |
//! | `STATE` is read, `fence(Acquire)`, the entry is read again | claim and retire: identity or last tail, then `STATE` (release) |
//! | last copy, `DRAINED` is written | reuse: `DRAINED` (acquire), then the lane is claimed again |

use super::cut_off;
use super::drain::Open;
use super::memory::{Memory, word};
use super::records::Progress;
use super::{Round, Tally};
use crate::facts::Fact;
use crate::watermark::SafeTime;
use miot_proto::event::SLOT_BYTES;
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, LaneState, MAX_LANE_SLOTS, MIN_LANE_SLOTS, SLOTS_OFFSET, lane as at,
};
use miot_proto::wire::{ProcessKey, Stream, StreamEnd, StreamKey};
use std::sync::atomic::{Ordering::Acquire, fence};

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
    /// This incarnation is over; the next one is awaited. `owed`: what is to be written to the segment once its end is
    /// where it outlives this log-client.
    Ended { incarnation: u32, owed: Option<[u64; 3]> },
    /// It made no sense. Not read again: a correct producer cannot get here.
    Quarantined,
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Nothing more comes; what the lane shows in flight will never complete.
    Over,
    /// The log-client stops: what is left in the lane is no loss, the next one reads it.
    Stopped,
    /// It is not read any more: what is left in it is lost.
    GivenUp,
}

/// A private copy of a lane table entry.
pub(super) type Entry = [u8; LANE_BYTES];

/// A lane broke the rules.
pub(super) struct Broken(pub(super) &'static str);

/// Whose lane it is.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) memory: &'a dyn Memory,
    pub(super) key: ProcessKey,
    pub(super) clock: Clock,
    pub(super) lane: usize,
    /// When the segment was made, raw ticks, by its own account.
    pub(super) created: u64,
    /// Dead producers write nothing more: their marks mean nothing.
    pub(super) dead: bool,
}

impl Owner<'_> {
    pub(super) fn word_at(&self, word: usize) -> u64 {
        (HEADER_BYTES + self.lane * LANE_BYTES + word) as u64
    }

    pub(super) fn read_word(&self, word: usize) -> Result<u64, Broken> {
        let mut bytes = [0; 8];
        self.memory.read(self.word_at(word), &mut bytes).map_err(|_| Broken("the lane table is cut off"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes the words from `HEAD` on, all at once.
    pub(super) fn write(&self, from_head: &[u64; 3]) -> Result<(), Broken> {
        const _: () = assert!(at::DRAINED == at::HEAD + 8 && at::NEXT == at::HEAD + 16);
        let written = self.memory.write_words(self.word_at(at::HEAD), from_head);
        written.map_err(|_| Broken("the lane table is cut off"))
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
            self.close(entry, Closing::GivenUp, owner, round, tally);
            self.life = Life::Quarantined;
        }
    }

    /// True while its stream has not ended.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.life, Life::Open(_))
    }

    /// What this lane promises; `None` if nothing more can come from it without a new claim.
    pub(super) fn safe(&self) -> Option<SafeTime> {
        match &self.life {
            Life::Open(open) => Some(open.progress.safe),
            _ => None,
        }
    }

    /// Ends the stream of the lane, if there is one, with the totals in `entry`.
    pub(super) fn close(
        &mut self,
        entry: &[u8],
        why: Closing,
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) {
        let Life::Open(open) = &mut self.life else { return };
        let seen = open.progress.seen();
        let mut attempts = word(entry, at::ATTEMPTS).max(seen);
        match why {
            Closing::Over => attempts = cut_off::deliver(open, entry, attempts, owner, round, tally),
            Closing::Stopped if word(entry, at::TAIL) >> 1 > open.head => attempts = seen,
            Closing::Stopped | Closing::GivenUp => {}
        }
        let now = round.clocks.of(owner.clock).time((round.latest)(owner.clock));
        round.sink.send(Fact::StreamEnd(StreamEnd {
            stream: open.stream,
            attempts,
            after: open.sent,
            lost_full: word(entry, at::LOST_FULL),
            lost_nested: word(entry, at::LOST_NESTED),
            filtered: word(entry, at::FILTERED),
            time: now.max(open.progress.safe.time()),
        }));
        self.life = Life::Ended { incarnation: open.incarnation, owed: None };
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
            (Life::Ended { incarnation: ended, .. }, _) if *ended == incarnation => {
                return self.settle(owner, round);
            }
            _ => true,
        };
        if is_new && !self.open(incarnation, owner, round, tally)? {
            return Ok(());
        }
        let Life::Open(open) = &mut self.life else { return Ok(()) };
        if state == LaneState::Claimed {
            open.drain(entry, false, owner, round, tally)?;
            return Ok(());
        }
        // The tail may have been copied before the state: only now is it known to be the last.
        let entry = owner.reread()?;
        if open.drain(&entry, true, owner, round, tally)? {
            let last = [open.head, u64::from(incarnation), open.progress.next_attempt];
            self.close(&entry, Closing::Over, owner, round, tally);
            self.life = Life::Ended { incarnation, owed: Some(last) };
            self.settle(owner, round)?;
        }
        Ok(())
    }

    /// Lets the lane be used again, once the end of its stream is written.
    fn settle(&mut self, owner: &Owner<'_>, round: &Round<'_>) -> Result<(), Broken> {
        match &mut self.life {
            Life::Ended { owed, .. } if round.sink.is_written() => {
                owed.take().map_or(Ok(()), |last| owner.write(&last))
            }
            _ => Ok(()),
        }
    }

    /// Takes up an incarnation. False: not now, or nothing to take up.
    fn open(
        &mut self,
        incarnation: u32,
        owner: &Owner<'_>,
        round: &mut Round<'_>,
        tally: &mut Tally,
    ) -> Result<bool, Broken> {
        if round.streams_until.wrapping_sub(*round.streams).cast_signed() <= 0 {
            // There are as many as a node may have: later.
            tally.rest = true;
            return Ok(false);
        }
        let entry = owner.reread()?;
        let state = word(&entry, at::STATE);
        if (state >> 32) as u32 != incarnation {
            // The previous log-client had drained it, so the producer may claim it at any time: the next sweep opens it.
            return match word(&entry, at::DRAINED) == u64::from(incarnation) {
                true => Ok(false),
                false => Err(Broken("it was claimed again before it was drained")),
            };
        }
        if state as u32 == LaneState::Retired as u32 && word(&entry, at::DRAINED) == u64::from(incarnation) {
            // By the log-client before us.
            self.life = Life::Ended { incarnation, owed: None };
            return Ok(false);
        }
        let (slots_at, slots) = geometry(&entry, owner.memory.size())?;
        let (start, head, tail) =
            (word(&entry, at::START), word(&entry, at::HEAD), word(&entry, at::TAIL) >> 1);
        if !(start..=tail).contains(&head) || (tail - head > slots && !(round.overwrites)()) {
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
        let progress = Progress::resume(
            head - start,
            word(&entry, at::LOST_FULL),
            word(&entry, at::NEXT),
            SafeTime::new(round.watermark),
        );
        self.life = Life::Open(Open {
            stream,
            incarnation,
            slots_at,
            slots,
            head,
            oldest: 0,
            drained: word(&entry, at::DRAINED),
            sent: progress.seen(),
            owed: false,
            progress,
            goal: None,
            last: None,
            nonsense: 0,
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
