//! Fast path of [`super::records`]: blocks of records without anything special, column by column.

use super::records::{Progress, words};
use crate::clock::{BoundedPiece, Piece};
use miot_proto::batch::Columns;
use miot_proto::event::{Event, RecordKind, SLOT_BYTES, attempt_of, flag, kind_of, slots_of};

/// Records of a block: their slots fit into a first-level cache together with their columns.
pub(super) const BLOCK: usize = 64;

/// A block of slots, as copied from a lane.
pub(super) type Block = [[u8; SLOT_BYTES]; BLOCK];

/// Clock of the records.
pub(super) struct BlockClock {
    /// The piece of the record before.
    pub(super) piece: BoundedPiece,
    /// The current piece, for durations.
    pub(super) present: Piece,
    /// The present: no request has completed later, ticks.
    pub(super) now: u64,
}

/// Appends the records of a block to `out`. Returns false and changes nothing if one of them needs
/// the checks of [`super::records::parse`]: if it has several slots, is not a request with a known
/// operation, or does not follow the record before it in attempt number and time.
pub(super) fn push(block: &Block, clock: &BlockClock, progress: &mut Progress, out: &mut Columns) -> bool {
    let Some(next) = progress.next_if_regular() else { return false };
    let (mut is_plain, mut last) = (true, progress.ticks);
    for (slot, low) in block.iter().zip(next as u32..) {
        let slot = words(slot);
        let Event { op, end, .. } = Event::from_slot(&slot);
        is_plain &= (kind_of(&slot) == RecordKind::Request as u8)
            & (slots_of(&slot) == 1)
            & (attempt_of(&slot) == low)
            & op.is_defined()
            & (end >= last);
        last = end;
    }
    let event = |slot: &[u8; SLOT_BYTES]| Event::from_slot(&words(slot));
    let first = event(&block[0]).end;
    if !is_plain
        || last > clock.now
        || !(clock.piece.covers(first) && clock.piece.covers(last))
        || clock.piece.time(first) < progress.safe.time()
    {
        return false;
    }
    let events = || block.iter().map(event);
    out.kind.extend(events().map(|_| RecordKind::Request as u8));
    out.op.extend(events().map(|event| event.op));
    // Producers may not set this flag.
    out.flags.extend(events().map(|event| event.flags & !flag::moved_bit(event.op)));
    out.request.extend(events().map(|event| event.request));
    out.enclosing.extend(events().map(|event| event.enclosing));
    out.attempt.extend((0..BLOCK as u64).map(|row| next + row));
    out.time.extend(events().map(|event| clock.piece.time(event.end)));
    out.duration.extend(events().map(|event| clock.present.span(event.duration)));
    out.handle.extend(events().map(|event| event.handle));
    out.offset.extend(events().map(|event| event.offset));
    out.length.extend(events().map(|event| event.length));
    out.result.extend(events().map(|event| event.result));
    progress.advance(next + BLOCK as u64, last, clock.piece.time(last));
    true
}

#[cfg(test)]
mod tests {
    use super::super::records::{ParseCounts, Progress, parse};
    use crate::clock::{ClockReading, Timeline};
    use crate::watermark::SafeTime;
    use miot_proto::batch::Columns;
    use miot_proto::event::{Event, RecordKind, SLOT_BYTES};
    use miot_proto::op::{Op, posix};
    use proptest::prelude::*;

    fn record(attempt: u32, end: u64, special: u8) -> [u8; SLOT_BYTES] {
        let op = if special == 1 { Op { layer: 99, number: 1 } } else { posix::READ };
        let (request, flags) = (attempt ^ 5, if special == 2 { u16::MAX } else { 1 });
        let (duration, handle, offset, length) = (u64::from(attempt) % 900, 3, end * 7, end % 5);
        let event = Event {
            op,
            request,
            enclosing: request / 2,
            end,
            duration,
            flags,
            handle,
            offset,
            length,
            result: -4,
        };
        let kind = if special == 3 { RecordKind::File } else { RecordKind::Request };
        let mut slot = event.slot(kind, if special == 4 { 0 } else { 1 }, attempt);
        slot[0] |= if special == 5 { 0x70 } else { 0 };
        let mut bytes = [0; SLOT_BYTES];
        bytes.as_chunks_mut().0.iter_mut().zip(slot).for_each(|(to, word)| *to = word.to_le_bytes());
        bytes
    }

    /// Parses the slots in pieces of this length.
    fn parsed(slots: &[u8], piece: usize) -> (Columns, Progress, ParseCounts) {
        let reading = |ticks: u64| ClockReading { ticks, time: 1_700_000_000_000_000_000 + ticks as i64 };
        let mut clock = Timeline::new(reading(0), reading(1000));
        clock.refine(reading(4000));
        let safe = SafeTime::new(1_700_000_000_000_000_000 + 900);
        let mut progress = Progress::resume(0, 0, 0, safe);
        let (mut out, mut counts) = (Columns::default(), ParseCounts::default());
        for slots in slots.chunks(piece * SLOT_BYTES) {
            let more = parse(slots, true, &clock, 9000, &mut progress, &mut out);
            counts = ParseCounts {
                slots: counts.slots + more.slots,
                violations: counts.violations + more.violations,
                unknown: counts.unknown + more.unknown,
                undefined: counts.undefined + more.undefined,
                numbered: counts.numbered + more.numbered,
                clamped: counts.clamped + more.clamped,
            };
        }
        (out, progress, counts)
    }

    proptest! {
        #[test]
        fn blocks_are_parsed_as_single_records(
            first in 500u64..5000,
            steps in prop::collection::vec(0u64..40, 0..400),
            specials in prop::collection::vec((0usize..400, 1u8..9), 0..6),
        ) {
            let (mut slots, mut end, mut attempt) = (Vec::new(), first, 0);
            for (row, step) in steps.iter().enumerate() {
                let special = specials.iter().find(|(at, _)| *at == row).map_or(0, |(_, special)| *special);
                end += step;
                attempt += if special == 6 { 3 } else { 1 };
                let stated = if special == 7 { end / 2 } else { end };
                slots.extend(record(attempt - 1, stated, special));
            }
            let (blocks, single) = (parsed(&slots, 400), parsed(&slots, 1));
            prop_assert_eq!(&blocks.0, &single.0);
            prop_assert_eq!(format!("{:?}", blocks.1), format!("{:?}", single.1));
            prop_assert_eq!(blocks.2, single.2);
        }
    }
}
