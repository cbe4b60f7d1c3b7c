//! State machine of one lane table entry.
//!
//! Everything read from the segment is checked before use. Invalid data costs the producer its lane
//! (quarantine) and affects no other lane. Memory orders of the reader, paired with those of
//! `miot_tracer`'s `lane`:
//!
//! | here | pairs with |
//! |---|---|
//! | `TAIL` is read, `fence(Acquire)`, slots are copied | commit: slots, then `TAIL` (release) |
//! | slots are copied, `HEAD` is written | refresh: `HEAD` (acquire), then slots are overwritten |
//! | slots are copied, `fence(Acquire)`, `OLDEST` is read | overwrite: `OLDEST`, `fence(Release)`, then slots are overwritten |
//! | `STATE` is read, `fence(Acquire)`, the entry is read again | claim and retire: identity or last tail, then `STATE` (release) |
//! | last copy, `DRAINED` is written | reuse: `DRAINED` (acquire), then the lane is claimed again |

use super::drain::{OpenLane, Rest};
use super::interrupted;
use super::memory::{Memory, word};
use super::records::Progress;
use super::{SweepContext, Tally};
use crate::facts::Fact;
use crate::watermark::SafeTime;
use miot_proto::event::SLOT_BYTES;
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, LaneState, MAX_LANE_SLOTS, MIN_LANE_SLOTS, SLOTS_OFFSET, lane as at,
};
use miot_proto::wire::{ProcessKey, Resume, Stream, StreamEnd, StreamKey};
use std::sync::atomic::{Ordering::Acquire, fence};

/// State of one lane in the log-client.
#[derive(Debug, Default)]
pub(super) struct Lane {
    phase: Phase,
}

#[derive(Debug, Default)]
enum Phase {
    /// Not used so far.
    #[default]
    Fresh,
    /// Being read.
    Open(OpenLane),
    /// This incarnation has ended; the next one is awaited. `owed`: the words to be written to the
    /// segment once the stream's end is in the spool.
    Ended { incarnation: u32, owed: Option<[u64; 3]> },
    /// This incarnation has ended at one log-server and continues at another one. `lost_full`: the
    /// counter of the lane at that time.
    Moved { incarnation: u32, end: StreamEnd, lost_full: u64 },
    /// Invalid. Not read again: a correct producer cannot get here.
    Quarantined,
}

/// Reason why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// No more records follow; requests that the lane shows in flight will never complete.
    Finished,
    /// The log-client stops: records left in the lane are not lost, the next log-client reads them.
    ReaderStopped,
    /// The stream continues at another log-server, with the records left in the lane.
    Moved,
    /// The lane is quarantined: records left in it are lost.
    Quarantined,
    /// The segment is not read any more: records left in it are lost.
    CutOff,
}

/// A private copy of a lane table entry.
pub(super) type Entry = [u8; LANE_BYTES];

/// A lane violates the rules, with the reason.
pub(super) struct LaneViolation(pub(super) &'static str);

/// A lane's position and its process.
#[derive(Clone, Copy)]
pub(super) struct LaneOwner<'a> {
    pub(super) memory: &'a dyn Memory,
    pub(super) key: ProcessKey,
    pub(super) clock: Clock,
    pub(super) lane: usize,
    /// Creation time of the segment according to its producer, raw ticks.
    pub(super) created: u64,
    /// A dead producer writes nothing more: marks of its lanes have no meaning.
    pub(super) dead: bool,
}

impl LaneOwner<'_> {
    pub(super) fn word_at(&self, word: usize) -> u64 {
        (HEADER_BYTES + self.lane * LANE_BYTES + word) as u64
    }

    pub(super) fn read_word(&self, word: usize) -> Result<u64, LaneViolation> {
        let mut bytes = [0; 8];
        self.memory
            .read(self.word_at(word), &mut bytes)
            .map_err(|_| LaneViolation("lane table truncated"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes the words from `HEAD` on, all at once.
    pub(super) fn write(&self, from_head: &[u64; 3]) -> Result<(), LaneViolation> {
        const _: () = assert!(at::DRAINED == at::HEAD + 8 && at::NEXT == at::HEAD + 16);
        let written = self.memory.write_words(self.word_at(at::HEAD), from_head);
        written.map_err(|_| LaneViolation("lane table truncated"))
    }

    /// Reads the entry again, after its state was read.
    fn reread(&self) -> Result<Entry, LaneViolation> {
        fence(Acquire);
        let mut entry = [0; LANE_BYTES];
        self.memory.read(self.word_at(0), &mut entry).map_err(|_| LaneViolation("lane table truncated"))?;
        fence(Acquire);
        Ok(entry)
    }
}

impl Lane {
    /// Processes the lane as copied in `entry`, and drains it.
    pub(super) fn sweep(
        &mut self,
        entry: &[u8],
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) {
        if matches!(self.phase, Phase::Quarantined) {
            return;
        }
        if let Err(LaneViolation(reason)) = self.try_sweep(entry, owner, context, tally) {
            tally.violations += 1;
            tracing::warn!(pid = owner.key.pid, lane = owner.lane, reason, "lane quarantined");
            self.close(entry, EndReason::Quarantined, owner, context, tally);
            self.phase = Phase::Quarantined;
        }
    }

    /// True while its stream has not ended.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open(_))
    }

    /// Safe time of the lane; `None` if no more records can come from it without a new claim.
    pub(super) fn safe(&self) -> Option<SafeTime> {
        match &self.phase {
            Phase::Open(open) => Some(open.progress.safe),
            _ => None,
        }
    }

    /// Ends the stream of the lane, if there is one, with the totals in `entry`.
    pub(super) fn close(
        &mut self,
        entry: &[u8],
        reason: EndReason,
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) {
        let Phase::Open(open) = &mut self.phase else { return };
        let seen = open.progress.seen();
        let mut attempts = word(entry, at::ATTEMPTS).max(seen);
        match reason {
            EndReason::Finished => {
                open.refuse_rest(attempts, Rest::Read, owner, context, tally);
                attempts = interrupted::deliver(open, entry, attempts, owner, context, tally);
            }
            EndReason::ReaderStopped | EndReason::Moved if word(entry, at::TAIL) >> 1 > open.head => {
                attempts = seen;
                // The next log-client reports their attempt numbers as a gap.
                tally.numbered += open.progress.invalid;
            }
            EndReason::ReaderStopped | EndReason::Moved => {
                open.refuse_rest(attempts, Rest::Read, owner, context, tally);
            }
            EndReason::Quarantined => {
                open.refuse_rest(attempts, Rest::Refused { violations: 1 }, owner, context, tally);
            }
            EndReason::CutOff => {
                open.refuse_rest(attempts, Rest::Refused { violations: 0 }, owner, context, tally);
            }
        }
        let now = context.clocks.of(owner.clock).time((context.latest)(owner.clock));
        let end = StreamEnd {
            stream: open.stream,
            attempts,
            after: open.sent,
            lost_full: word(entry, at::LOST_FULL).saturating_sub(open.lost_full_before),
            lost_nested: word(entry, at::LOST_NESTED),
            filtered: word(entry, at::FILTERED),
            time: now.max(open.progress.safe.time()),
        };
        context.sink.send(Fact::StreamEnd(end));
        let incarnation = open.incarnation;
        self.phase = match reason {
            EndReason::Moved => Phase::Moved { incarnation, end, lost_full: word(entry, at::LOST_FULL) },
            _ => Phase::Ended { incarnation, owed: None },
        };
    }

    /// Gives back the slots of all records that were sent, before the lane is closed with
    /// [`EndReason::Moved`]. All of them must be written.
    pub(super) fn release_before_move(
        &mut self,
        entry: &[u8],
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
    ) {
        let released = match &mut self.phase {
            Phase::Open(open) => open.release_if_due(owner),
            Phase::Ended { .. } => self.release(owner, context),
            _ => Ok(()),
        };
        if let Err(LaneViolation(reason)) = released {
            tracing::warn!(pid = owner.key.pid, lane = owner.lane, reason, "lane quarantined");
            self.close(entry, EndReason::Quarantined, owner, context, &mut Tally::default());
            self.phase = Phase::Quarantined;
        }
    }

    /// Continues a stream that was closed with [`EndReason::Moved`].
    pub(super) fn arrive(
        &mut self,
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) {
        let Phase::Moved { incarnation, .. } = self.phase else { return };
        if let Err(LaneViolation(reason)) = self.open(incarnation, owner, context, tally) {
            tally.violations += 1;
            tracing::warn!(pid = owner.key.pid, lane = owner.lane, reason, "lane quarantined");
            self.phase = Phase::Quarantined;
        }
    }

    fn try_sweep(
        &mut self,
        entry: &[u8],
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), LaneViolation> {
        let state = word(entry, at::STATE);
        let incarnation = (state >> 32) as u32;
        let state = LaneState::from_number(state as u32).ok_or(LaneViolation("unknown state"))?;
        let is_new = match (&self.phase, state) {
            (Phase::Fresh, LaneState::Free) => return Ok(()),
            (_, LaneState::Free) => return Err(LaneViolation("returned to the state free")),
            (Phase::Open(open), _) if open.incarnation != incarnation => {
                return Err(LaneViolation("claimed again before it was drained"));
            }
            (Phase::Open(_), _) => false,
            (Phase::Ended { incarnation: ended, .. }, _) if *ended == incarnation => {
                return self.release(owner, context);
            }
            _ => true,
        };
        if is_new && !self.open(incarnation, owner, context, tally)? {
            return Ok(());
        }
        let Phase::Open(open) = &mut self.phase else { return Ok(()) };
        if state == LaneState::Claimed {
            open.drain(entry, false, owner, context, tally)?;
            return Ok(());
        }
        // The tail may have been copied before the state: only now is it known to be final.
        let entry = owner.reread()?;
        if open.drain(&entry, true, owner, context, tally)? {
            let last = [open.head, u64::from(incarnation), open.progress.next_attempt];
            self.close(&entry, EndReason::Finished, owner, context, tally);
            self.phase = Phase::Ended { incarnation, owed: Some(last) };
            self.release(owner, context)?;
        }
        Ok(())
    }

    /// Releases the lane for reuse, once the end of its stream is written.
    fn release(&mut self, owner: &LaneOwner<'_>, context: &SweepContext<'_>) -> Result<(), LaneViolation> {
        match &mut self.phase {
            Phase::Ended { owed, .. } if context.sink.is_written() => {
                owed.take().map_or(Ok(()), |last| owner.write(&last))
            }
            _ => Ok(()),
        }
    }

    /// Opens an incarnation. Returns false if it must wait, or if there is nothing to open.
    fn open(
        &mut self,
        incarnation: u32,
        owner: &LaneOwner<'_>,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) -> Result<bool, LaneViolation> {
        if context.streams_until.wrapping_sub(*context.streams).cast_signed() <= 0 {
            // The node has the maximum number of streams: retry later.
            tally.unfinished = true;
            return Ok(false);
        }
        let entry = owner.reread()?;
        let state = word(&entry, at::STATE);
        if (state >> 32) as u32 != incarnation {
            // The previous log-client had drained it, so the producer may claim it at any time: the
            // next sweep opens it.
            return match word(&entry, at::DRAINED) == u64::from(incarnation) {
                true => Ok(false),
                false => Err(LaneViolation("claimed again before it was drained")),
            };
        }
        if state as u32 == LaneState::Retired as u32 && word(&entry, at::DRAINED) == u64::from(incarnation) {
            // The previous log-client drained it.
            self.phase = Phase::Ended { incarnation, owed: None };
            return Ok(false);
        }
        let (slots_at, slots) = geometry(&entry, owner.memory.size())?;
        let (start, head, tail) =
            (word(&entry, at::START), word(&entry, at::HEAD), word(&entry, at::TAIL) >> 1);
        if !(start..=tail).contains(&head) || (tail - head > slots && !(context.overwrites)()) {
            return Err(LaneViolation("inconsistent cursors"));
        }
        let stream = context.next_stream();
        let comm = &entry[at::COMM..at::COMM + 16];
        let comm = &comm[..comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len())];
        context.sink.send(Fact::Stream(Stream {
            number: stream,
            key: StreamKey { process: owner.key, lane: owner.lane as u32, incarnation },
            tid: word(&entry, at::TID) as u32,
            comm: comm.to_vec(),
        }));
        tally.streams += 1;
        let moved = match self.phase {
            Phase::Moved { incarnation: of, end, lost_full } if of == incarnation => Some((end, lost_full)),
            _ => None,
        };
        if let Some((StreamEnd { attempts: from, lost_nested, filtered, time, .. }, _)) = moved {
            context.sink.send(Fact::Resume(Resume::Stream { stream, from, lost_nested, filtered, time }));
        }
        let progress = Progress::resume(
            head - start,
            word(&entry, at::LOST_FULL),
            word(&entry, at::NEXT),
            SafeTime::new(context.watermark),
        );
        self.phase = Phase::Open(OpenLane {
            stream,
            incarnation,
            slots_at,
            slots,
            head,
            oldest: 0,
            drained: word(&entry, at::DRAINED),
            sent: progress.seen().max(moved.map_or(0, |(end, _)| end.attempts)),
            lost_full_before: moved.map_or(0, |(_, lost_full)| lost_full),
            unreleased: false,
            progress,
            goal: None,
            tail_at_death: None,
            invalid_records: 0,
        });
        Ok(true)
    }
}

/// Offset and number of the slots, checked against the rules and the size of the file.
fn geometry(entry: &Entry, file: u64) -> Result<(u64, u64), LaneViolation> {
    let (slots_at, slots) = (word(entry, at::SLOTS_AT), word(entry, at::SLOTS));
    let end = slots.checked_mul(SLOT_BYTES as u64).and_then(|bytes| slots_at.checked_add(bytes));
    let is_valid = (MIN_LANE_SLOTS..=MAX_LANE_SLOTS).contains(&slots)
        && slots.is_power_of_two()
        && slots_at.is_multiple_of(SLOT_BYTES as u64)
        && slots_at >= SLOTS_OFFSET as u64
        && end.is_some_and(|end| end <= file);
    if is_valid { Ok((slots_at, slots)) } else { Err(LaneViolation("slots outside the segment")) }
}
