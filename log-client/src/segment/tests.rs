//! Sweeps of hand-made segments: valid, invalid, and arbitrary bytes.

mod interrupted;
mod overwriting;
mod recorder;

use super::builder::{EPOCH, SegmentBuilder, TestReader};
use super::memory::{Memory, OutOfBounds};
use super::{Header, HeaderError, drain::COPY_SLOTS};
use crate::segment::VecMemory;
use crate::testing::sweep_bytes;
use crate::watermark::SLACK_NS;
use miot_proto::batch::REFUSED;
use miot_proto::event::flag;
use miot_proto::op::Op;
use miot_proto::segment::{
    HEADER_BYTES, LANE_BYTES, MAX_LANE_SLOTS, MAX_LANES, SLOTS_OFFSET, header, lane as at,
};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};

#[test]
fn header_is_announced_unchanged() {
    let reader = TestReader::attach(&SegmentBuilder::new());
    let process = &reader.kept.processes[0];
    assert_eq!((process.key.pid, process.key.nonce, process.key.boot), (4711, 0xabc, 1));
    assert_eq!((process.ppid, process.uid, process.rank), (1, 1000, Some(3)));
    assert_eq!(process.started, EPOCH + 1_000);
    assert_eq!((&process.exe[..], &process.cmdline[..]), (&b"/bin/app"[..], &b"app\0-x"[..]));
    assert_eq!((&process.job[..], &process.cwd[..]), (&b"job7"[..], &b"/home"[..]));
}

#[test]
fn header_is_read_only_if_complete_and_valid() {
    let read = |change: fn(&mut SegmentBuilder)| {
        let mut made = SegmentBuilder::new();
        change(&mut made);
        Header::read(&VecMemory::new(made.bytes)).err()
    };
    assert_eq!(read(|made| made.set(header::MAGIC, 0)), Some(HeaderError::Incomplete));
    assert_eq!(read(|made| made.bytes.clear()), Some(HeaderError::Incomplete));
    assert_eq!(
        read(|made| made.set(header::VERSION, 9 << 32 | 3)),
        Some(HeaderError::Version { major: 9, minor: 3 })
    );
    assert_eq!(read(|made| made.set(header::CLOCK, 7)), Some(HeaderError::Invalid));
    assert_eq!(read(|made| made.set(header::PID, u64::MAX)), Some(HeaderError::Invalid));
    assert_eq!(read(|made| made.bytes.truncate(100)), Some(HeaderError::Invalid));
}

#[test]
fn records_arrive_in_order_with_paths_across_the_wrap() {
    let mut reader = TestReader::attach(&SegmentBuilder::with_lane(256));
    let mut sent = Vec::new();
    for lap in 0..20u32 {
        reader.edit(|made| {
            for i in 0..30 {
                let attempt = lap * 30 + i;
                let path = vec![b'p'; (attempt % 7 * 60) as usize];
                made.push(0, attempt, 1000 + u64::from(attempt), &path);
                sent.push(path);
            }
        });
        assert_eq!(reader.sweep().events, 30);
    }
    assert_eq!(reader.kept.attempts(), (0..600).collect::<Vec<_>>());
    assert_eq!(reader.kept.times(), (1000..1600).collect::<Vec<_>>());
    let received: Vec<_> = reader
        .kept
        .batches
        .iter()
        .flat_map(|(_, columns)| {
            (0..columns.len()).map(|row| {
                let ext = columns.ext.iter().find(|ext| ext.row as usize == row);
                ext.map_or(Vec::new(), |ext| columns.paths(ext).0.to_vec())
            })
        })
        .collect();
    assert_eq!(received, sent);
    assert_eq!(reader.lane_word(0, at::HEAD), reader.lane_word(0, at::TAIL) >> 1);
    assert_eq!(reader.kept.streams.len(), 1);
    assert_eq!((reader.kept.streams[0].tid, &reader.kept.streams[0].comm[..]), (5000, &b"worker"[..]));
}

#[test]
fn record_across_two_copies_is_whole() {
    let mut made = SegmentBuilder::with_lane(4 * COPY_SLOTS);
    // The record of two slots crosses the end of the first copy.
    (0..COPY_SLOTS as u32 - 1).for_each(|attempt| made.push(0, attempt, 1000, b""));
    made.push(0, COPY_SLOTS as u32 - 1, 1000, b"/edge");
    made.push(0, COPY_SLOTS as u32, 1000, b"");
    let mut reader = TestReader::attach(&made);
    let tally = reader.sweep();
    assert_eq!((tally.events, tally.violations, tally.unfinished), (COPY_SLOTS + 1, 0, false));
    assert_eq!(reader.kept.batches.len(), 2);
    assert_eq!(reader.kept.batches[1].1.ext.len(), 1);
}

#[test]
fn sweep_of_a_lane_is_bounded() {
    let mut made = SegmentBuilder::with_lane(64 * 1024);
    (0..60_000).for_each(|attempt| made.push(0, attempt, 1000 + u64::from(attempt), b""));
    let mut reader = TestReader::attach(&made);
    let first = reader.sweep();
    assert!(first.unfinished && first.events < 60_000, "{first:?}");
    assert_eq!(reader.safe(), Some(999 + first.events as i64), "as far as was drained");
    while reader.sweep().unfinished {}
    assert_eq!(reader.kept.attempts().len(), 60_000);
}

#[test]
fn sweep_of_a_segment_is_bounded_and_fair() {
    const SLOTS: u64 = 4 * COPY_SLOTS;
    let mut made = SegmentBuilder::new();
    let fill = |made: &mut SegmentBuilder, lane: usize, from: u32| {
        (from..from + SLOTS as u32).for_each(|attempt| made.push(lane, attempt, 1000, b""));
    };
    for lane in 0..20 {
        made.place(SLOTS);
        made.claim(lane, 1);
        fill(&mut made, lane, 0);
    }
    let mut reader = TestReader::attach(&made);
    let first = reader.sweep();
    assert_eq!((first.events, first.unfinished), (16 * SLOTS, true));
    // The first lanes fill as fast as they are read.
    reader.edit(|made| (0..16).for_each(|lane| fill(made, lane, SLOTS as u32)));
    assert_eq!(reader.sweep().events, 16 * SLOTS);
    for lane in 16..20 {
        assert_eq!(reader.lane_word(lane, at::HEAD), SLOTS, "lane {lane}");
    }
    while reader.sweep().unfinished {}
    assert_eq!(reader.kept.attempts().len() as u64, 36 * SLOTS);
}

#[test]
fn invalid_records_are_examined_up_to_a_bound() {
    let mut made = SegmentBuilder::new();
    made.place(16 * COPY_SLOTS);
    for lane in 0..100 {
        made.set_lane(lane, at::SLOTS_AT, SLOTS_OFFSET as u64);
        made.set_lane(lane, at::SLOTS, 16 * COPY_SLOTS);
        made.claim(lane, 1);
        made.set_lane(lane, at::TAIL, (16 * COPY_SLOTS) << 1);
    }
    made.set(header::LANES, 100);
    let mut reader = TestReader::attach(&made);
    let first = reader.sweep();
    assert!((100_000..=64 * COPY_SLOTS + 100).contains(&first.violations), "{first:?}");
    assert_eq!((reader.sweep().violations, reader.safe()), (0, None), "it is not read any more");
    assert_eq!(reader.end().abi_violations, first.violations);
    assert_eq!(reader.kept.ends.len(), reader.kept.streams.len());
}

#[test]
fn nothing_is_taken_without_space() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 1000, b"");
    let mut reader = TestReader::attach(&made);
    reader.kept.full = true;
    assert!(reader.sweep().unfinished);
    assert_eq!(reader.lane_word(0, at::HEAD), 0);
    reader.kept.full = false;
    assert_eq!(reader.sweep().events, 1);
}

#[test]
fn attempt_gaps_are_kept_and_steps_back_refused() {
    let mut made = SegmentBuilder::with_lane(256);
    [0, 1, 5, 4, 6].into_iter().for_each(|attempt| made.push(0, attempt, 1000, b""));
    let mut reader = TestReader::attach(&made);
    assert_eq!(reader.sweep().violations, 1);
    assert_eq!(reader.kept.attempts(), [0, 1, 5, 6]);
    // The invalid number is missing nowhere, so it is counted apart.
    assert_eq!((reader.kept.refused(), reader.end().abi_violations), (vec![], 1));
}

/// A lost event is either a number in its stream or in the total of its process, never both.
#[test]
fn violations_are_counted_once() {
    let undefined = |made: &mut SegmentBuilder, attempt: u32| {
        let place = made.get_lane(0, at::TAIL) >> 1;
        made.push(0, attempt, 1000, b"");
        let layer = made.slot(0, place) + 2;
        made.bytes[layer] = 200;
    };
    let invalid = |made: &mut SegmentBuilder| {
        let place = made.get_lane(0, at::TAIL) >> 1;
        made.put_slot(0, place, &[1, 0, 0, 0, 0, 0, 0, 0]);
        made.set_lane(0, at::TAIL, (place + 1) << 1);
    };
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 1000, b"");
    undefined(&mut made, 1);
    undefined(&mut made, 2);
    made.push(0, 3, 1001, b"");
    // The lane was full at 4 and 5.
    undefined(&mut made, 6);
    // 7 to 9 are missing: two are invalid, one was lost in the lane.
    invalid(&mut made);
    invalid(&mut made);
    made.push(0, 10, 1002, b"");
    // Of these three only two have a number: 11 and 12, the last ones.
    (0..3).for_each(|_| invalid(&mut made));
    made.retire(0, 13);
    let mut reader = TestReader::attach(&made);
    let tally = reader.sweep();
    assert_eq!((tally.violations, tally.undefined, tally.numbered), (8, 3, 7));
    assert_eq!(reader.kept.attempts(), [0, 3, 10]);
    assert_eq!(reader.kept.refused(), [(1, 2), (6, 8), (11, 12)]);
    assert!(reader.kept.times().is_sorted(), "{:?}", reader.kept.times());
    assert_eq!(reader.kept.ends[0].attempts, 13);
    assert_eq!(reader.end().abi_violations, 1);
}

#[test]
fn records_of_a_quarantined_lane_are_refused() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 1000, b"");
    let mut reader = TestReader::attach(&made);
    reader.sweep();
    reader.edit(|made| {
        (1..5).for_each(|attempt| made.push(0, attempt, 1001, b""));
        made.set_lane(0, at::ATTEMPTS, 5);
        made.claim(0, 2);
        made.set_lane(0, at::ATTEMPTS, 5);
    });
    assert_eq!(reader.sweep().violations, 1);
    assert_eq!((reader.kept.attempts(), reader.kept.refused()), (vec![0], vec![(1, 4)]));
    assert_eq!((reader.kept.ends[0].attempts, reader.end().abi_violations), (5, 0));
}

#[test]
fn lane_times_never_decrease_nor_exceed_the_present() {
    let mut made = SegmentBuilder::with_lane(256);
    for (attempt, end) in [5_000, 4_000, 6_000, u64::MAX, 7_000].into_iter().enumerate() {
        made.push(0, attempt as u32, end, b"");
    }
    let mut reader = TestReader::attach(&made);
    assert_eq!(reader.sweep_at(2_000_000, false).clamped, 3);
    // The reader's present is a second after the start of the sweep.
    assert_eq!(reader.kept.times(), [5_000, 5_000, 6_000, 1_002_000_000, 1_002_000_000]);
    let flags = &reader.kept.batches[0].1.flags;
    let moved = flag::MOVED;
    assert_eq!(flags[..], [0, moved, 0, moved, moved], "and those that were moved are marked");
}

#[test]
fn event_below_the_watermark_is_moved_up() {
    let mut reader = TestReader::attach(&SegmentBuilder::with_lane(256));
    reader.watermark = EPOCH + 9_000;
    reader.edit(|made| made.push(0, 0, 1_000, b""));
    assert_eq!(reader.sweep_at(10_000, false).clamped, 1);
    assert_eq!(reader.kept.times(), [9_000]);
    assert_eq!(reader.kept.batches[0].1.flags, [flag::MOVED]);
}

/// For any number of an operation: an undefined one is rejected alone, however often it occurs.
#[test]
fn undefined_operations_are_refused_alone() {
    const COUNT: u32 = 1 << 15;
    let mut made = SegmentBuilder::with_lane(u64::from(COUNT));
    let mut defined = 0;
    for attempt in 0..COUNT {
        made.push(0, attempt, 1000, b"");
        let op = Op { layer: (attempt >> 8) as u8, number: attempt as u8 };
        defined += u64::from(op.info().is_some());
        assert_eq!(op.is_defined(), op.info().is_some());
        let at = made.slot(0, attempt.into());
        (made.bytes[at + 2], made.bytes[at + 3]) = (op.layer, op.number);
    }
    let mut reader = TestReader::attach(&made);
    let mut tally = reader.sweep();
    while tally.unfinished {
        let more = reader.sweep();
        (tally.events, tally.violations, tally.unfinished) =
            (tally.events + more.events, tally.violations + more.violations, more.unfinished);
    }
    assert_eq!((tally.events, tally.violations), (defined, u64::from(COUNT) - defined));
    let sent = reader.kept.batches.iter().flat_map(|(_, columns)| columns.kind.iter().zip(&columns.op));
    assert!(sent.filter(|(kind, _)| **kind != REFUSED).all(|(_, op)| op.is_defined()));
    let refused: u64 = reader.kept.refused().iter().map(|(first, last)| last - first + 1).sum();
    assert_eq!(refused, tally.violations);
    // The lane is still read.
    reader.edit(|made| made.push(0, COUNT, 2000, b""));
    assert_eq!((reader.sweep().events, reader.end().abi_violations), (1, 0));
}

#[test]
fn safe_time_depends_on_the_mark() {
    let slack = SLACK_NS;
    let mut reader = TestReader::attach(&SegmentBuilder::with_lane(256));
    reader.sweep_at(50_000_000, false);
    assert_eq!(reader.safe(), Some(50_000_000 - slack));
    reader.edit(|made| {
        made.push(0, 0, 55_000_000, b"");
        made.mark(0);
    });
    reader.sweep_at(60_000_000, false);
    assert_eq!(reader.safe(), Some(55_000_000));
    reader.sweep_at(70_000_000, false);
    assert_eq!(reader.safe(), Some(55_000_000), "stopped between its clock and its commit");
    reader.sweep_at(80_000_000, true);
    assert_eq!(reader.safe(), Some(80_000_000 - slack), "the dead commit nothing");
    reader.edit(|made| made.push(0, 1, 85_000_000, b""));
    reader.sweep_at(90_000_000, false);
    assert_eq!(reader.safe(), Some(90_000_000 - slack));
}

#[test]
fn safe_time_is_that_of_the_slowest_lane() {
    let mut made = SegmentBuilder::with_lane(256);
    made.place(512);
    made.claim(1, 1);
    made.push(1, 0, 3_000_000, b"");
    made.mark(1);
    let mut reader = TestReader::attach(&made);
    reader.sweep_at(50_000_000, false);
    assert_eq!(reader.safe(), Some(3_000_000));
    // Its thread commits, and ends: the lane no longer counts.
    reader.edit(|made| {
        made.push(1, 1, 4_000_000, b"");
        made.retire(1, 2);
    });
    reader.sweep_at(60_000_000, false);
    assert_eq!(reader.safe(), Some(60_000_000 - SLACK_NS));
}

#[test]
fn retired_lane_is_drained_ended_and_released_once() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 1000, b"");
    made.push(0, 2, 1001, b"");
    made.set_lane(0, at::LOST_FULL, 2);
    made.set_lane(0, at::LOST_NESTED, 5);
    made.retire(0, 4);
    let mut reader = TestReader::attach(&made);
    reader.sweep();
    assert_eq!(reader.lane_word(0, at::DRAINED), 1);
    let end = reader.kept.ends[0];
    assert_eq!((end.stream, end.attempts, end.lost_full, end.lost_nested), (0, 4, 2, 5));
    assert!(end.time >= EPOCH + 1001);
    reader.sweep();
    assert_eq!(reader.kept.ends.len(), 1);
    // Another thread claims the lane.
    reader.edit(|made| {
        made.claim(0, 2);
        made.push(0, 0, 2000, b"");
    });
    reader.sweep();
    assert_eq!(reader.kept.streams.len(), 2);
    assert_eq!(reader.kept.streams[1].key.incarnation, 2);
    assert_eq!(reader.kept.batches.last().map(|(stream, columns)| (*stream, columns.len())), Some((1, 1)));
}

#[test]
fn process_end_ends_streams_with_known_totals() {
    let mut made = SegmentBuilder::with_lane(256);
    (0..3).for_each(|attempt| made.push(0, attempt, 1000, b""));
    made.set(header::LOST_NO_LANE, 9);
    let mut reader = TestReader::attach(&made);
    reader.sweep_at(2_000_000, true);
    assert_eq!(reader.end().no_lane, 9);
    assert_eq!(reader.kept.ends[0].attempts, 3, "a killed thread stored no total");
    assert_eq!(reader.kept.gone.len(), 1);
    assert_eq!(reader.safe(), None);
}

#[test]
fn restarted_reader_continues() {
    let mut made = SegmentBuilder::with_lane(256);
    (0..10).for_each(|attempt| made.push(0, attempt, 1000, b"/a"));
    let mut first = TestReader::attach(&made);
    first.sweep();
    first.edit(|made| (10..15).for_each(|attempt| made.push(0, attempt, 2000, b"/b")));
    first.edit(|now| made.bytes.clone_from(&now.bytes));
    let mut second = TestReader::attach(&made);
    second.sweep();
    assert_eq!(second.kept.attempts(), (10..15).collect::<Vec<_>>());
    assert_eq!(second.kept.streams[0].key, first.kept.streams[0].key);
    // A lane that the first reader has given back is not opened again.
    first.edit(|made| made.retire(0, 15));
    first.sweep();
    first.edit(|now| made.bytes.clone_from(&now.bytes));
    let mut third = TestReader::attach(&made);
    third.sweep();
    assert_eq!((third.kept.streams.len(), third.kept.ends.len()), (0, 0));
}

/// A segment whose producer claims the retired lane 0 between the copy of the lane table and the
/// second read of its entry.
struct ClaimedAgain {
    made: RefCell<SegmentBuilder>,
    reads: Cell<u32>,
}

impl Memory for ClaimedAgain {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), OutOfBounds> {
        let mut made = self.made.borrow_mut();
        let range = at as usize..at as usize + buffer.len();
        let is_entry = range == (SegmentBuilder::lane(0, 0)..SegmentBuilder::lane(0, LANE_BYTES));
        self.reads.set(self.reads.get() + u32::from(is_entry));
        if is_entry && self.reads.get() == 2 {
            made.claim(0, 2);
            made.push(0, 0, 2_000, b"/next");
        }
        buffer.copy_from_slice(&made.bytes[range]);
        Ok(())
    }

    fn write_word(&self, at: u64, value: u64) -> Result<(), OutOfBounds> {
        self.made.borrow_mut().set(at as usize, value);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.made.borrow().bytes.len() as u64
    }
}

#[test]
fn restarted_reader_accepts_lane_claimed_during_its_sweep() {
    for drained in [true, false] {
        let mut made = SegmentBuilder::with_lane(256);
        made.retire(0, 0);
        made.set_lane(0, at::DRAINED, drained.into());
        let mut reader =
            TestReader::attach_to(ClaimedAgain { made: RefCell::new(made), reads: Cell::new(0) });
        let violations = [reader.sweep(), reader.sweep()].map(|tally| tally.violations);
        assert_eq!(violations, [u64::from(!drained), 0]);
        assert_eq!(reader.kept.attempts().len(), usize::from(drained));
    }
}

#[test]
fn invalid_lane_is_quarantined_alone() {
    let wrongs: [fn(&mut SegmentBuilder); 14] = [
        |made| made.set_lane(0, at::TAIL, 300 << 1),
        |made| made.set_lane(0, at::TAIL, u64::MAX),
        |made| made.set_lane(0, at::HEAD, 5),
        |made| made.set_lane(0, at::HEAD, u64::MAX),
        |made| made.set_lane(0, at::START, 1 << 60),
        |made| made.set_lane(0, at::SLOTS, 255),
        |made| made.set_lane(0, at::SLOTS, 128),
        |made| made.set_lane(0, at::SLOTS, MAX_LANE_SLOTS * 2),
        |made| made.set_lane(0, at::SLOTS, 1024),
        |made| made.set_lane(0, at::SLOTS_AT, u64::MAX - 63),
        |made| made.set_lane(0, at::SLOTS_AT, 0),
        |made| made.set_lane(0, at::SLOTS_AT, SLOTS_OFFSET as u64 + 8),
        |made| made.set_lane(0, at::STATE, 1 << 32 | 77),
        |made| made.set_lane(0, at::SLOTS_AT, 1 << 40),
    ];
    for (index, wrong) in wrongs.into_iter().enumerate() {
        let mut made = SegmentBuilder::with_lane(256);
        made.place(256);
        made.claim(1, 1);
        made.push(1, 0, 1000, b"");
        wrong(&mut made);
        let mut reader = TestReader::attach(&made);
        assert_eq!(reader.sweep().violations, 1, "case {index}");
        assert_eq!(reader.kept.attempts(), [0], "case {index}");
        reader.edit(|made| made.push(1, 1, 1001, b""));
        assert_eq!(reader.sweep().violations, 0, "case {index}: counted once");
        assert_eq!(reader.kept.attempts(), [0, 1], "case {index}");
        assert_eq!(reader.end().abi_violations, 1, "case {index}");
    }
}

#[test]
fn later_violation_quarantines_the_lane() {
    let wrongs: [fn(&mut SegmentBuilder); 5] = [
        |made| made.set_lane(0, at::TAIL, 0),
        |made| made.set_lane(0, at::TAIL, 1000 << 1),
        |made| made.claim(0, 2),
        |made| made.set_lane(0, at::STATE, 0),
        |made| made.bytes.truncate(SLOTS_OFFSET),
    ];
    for (index, wrong) in wrongs.into_iter().enumerate() {
        let mut reader = TestReader::attach(&SegmentBuilder::with_lane(256));
        reader.edit(|made| made.push(0, 0, 1000, b""));
        reader.sweep();
        reader.edit(|made| {
            made.push(0, 1, 1000, b"");
            wrong(made);
        });
        assert_eq!(reader.sweep().violations, 1, "case {index}");
        assert_eq!((reader.kept.attempts(), reader.safe()), (vec![0], None), "case {index}");
        assert_eq!(reader.kept.ends.len(), 1, "case {index}");
        assert_eq!(reader.sweep().violations, 0, "case {index}");
    }
}

#[test]
fn truncated_segment_is_one_violation() {
    let mut reader = TestReader::attach(&SegmentBuilder::with_lane(256));
    reader.sweep();
    reader.edit(|made| made.bytes.truncate(HEADER_BYTES));
    assert_eq!(reader.sweep().violations, 1);
    assert_eq!((reader.sweep().violations, reader.safe()), (0, None));
    assert_eq!(reader.end().abi_violations, 1);
    assert_eq!(reader.kept.ends.len(), 1);
}

#[test]
fn invalid_record_is_skipped_and_the_next_one_read() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 1000, b"");
    // Slot count 0, 200, one past the tail later on; a path longer than the record; an unknown
    // kind.
    made.put_slot(0, 1, &[1, 0, 0, 0, 0, 0, 0, 0]);
    made.put_slot(0, 2, &[1 | 200 << 8, 0, 0, 0, 0, 0, 0, 0]);
    made.put_slot(0, 3, &[1 | 2 << 8, 1000, 0, 0, 0, 0, 0, 1]);
    made.put_slot(0, 4, &[0xffff, 0, 0, 0, 0, 0, 0, 0]);
    made.put_slot(0, 5, &[99 | 1 << 8, 1000, 0, 0, 0, 0, 0, 1]);
    made.set_lane(0, at::TAIL, 6 << 1);
    made.push(0, 2, 1001, b"");
    made.put_slot(0, 7, &[1 | 9 << 8, 1000, 0, 0, 0, 0, 0, 3]);
    made.set_lane(0, at::TAIL, 8 << 1);
    let mut reader = TestReader::attach(&made);
    let tally = reader.sweep();
    assert_eq!((tally.violations, tally.unknown, tally.events), (4, 1, 2));
    assert_eq!(reader.kept.attempts(), [0, 2]);
    // The number of the unknown kind; 0 of the invalid records before it, which have no number.
    assert_eq!(reader.kept.refused(), [(1, 1)]);
    assert_eq!(reader.lane_word(0, at::HEAD), 8);
}

#[test]
fn largest_numbers_do_no_harm() {
    let mut made = SegmentBuilder::with_lane(256);
    made.set_lane(0, at::LOST_FULL, u64::MAX);
    made.push(0, u32::MAX, u64::MAX, b"");
    made.push(0, u32::MAX, u64::MAX, b"");
    made.retire(0, u64::MAX);
    made.set(header::LANES, u64::MAX);
    made.bytes.resize(made.bytes.len().max(HEADER_BYTES + MAX_LANES * LANE_BYTES), 0);
    let mut reader = TestReader::attach(&made);
    reader.sweep_at(u64::MAX / 4, false);
    reader.end();
    assert_eq!(reader.kept.ends[0].attempts, u64::MAX);
}

/// Changes to a valid segment: words with arbitrary values.
fn damage() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let place = prop_oneof![
        0..HEADER_BYTES / 8,
        (HEADER_BYTES / 8)..((HEADER_BYTES + 4 * LANE_BYTES) / 8),
        (SLOTS_OFFSET / 8)..((SLOTS_OFFSET + 3 * 256 * 64) / 8),
    ];
    let value = prop_oneof![any::<u64>(), 0u64..1024, Just(u64::MAX), (0u32..64).prop_map(|bit| 1 << bit)];
    prop::collection::vec((place, value), 0..12)
}

proptest! {
    #[test]
    fn arbitrary_damage_never_panics_and_ends(
        first in damage(), second in damage(), cut in prop::option::of(0usize..400_000), records in 0u32..40,
    ) {
        let mut made = SegmentBuilder::with_lane(256);
        made.place(256);
        made.claim(1, 1);
        made.place(256);
        made.claim(2, 7);
        for attempt in 0..records {
            made.push((attempt % 3) as usize, attempt / 3, 1000, &vec![b'x'; (attempt * 13) as usize]);
        }
        first.iter().for_each(|(place, value)| made.set(place * 8, *value));
        let sent = sweep_bytes(made.bytes.clone());
        prop_assert!(sent <= 3 * 256 * 3, "{sent} records out of three small lanes");
        made.set(header::MAGIC, miot_proto::segment::MAGIC);
        made.set(header::VERSION, u64::from(miot_proto::segment::MAJOR) << 32);
        made.set(header::CLOCK, 1);
        made.set(header::PID, 1);
        made.set(header::PPID, 1);
        let mut reader = TestReader::attach(&made);
        reader.sweep();
        reader.edit(|made| {
            second.iter().for_each(|(place, value)| made.set(place * 8, *value));
            if let Some(cut) = cut {
                made.bytes.truncate(cut);
            }
        });
        reader.sweep();
        reader.sweep_at(9_000_000, true);
        reader.end();
        prop_assert_eq!(reader.kept.streams.len(), reader.kept.ends.len(), "every stream ends");
        for stream in &reader.kept.streams {
            let own = || reader.kept.batches.iter().filter(|(number, _)| *number == stream.number).map(|(_, c)| c);
            prop_assert!(own().flat_map(|c| &c.time).is_sorted(), "in order of completion");
            let attempts = own().flat_map(|c| &c.attempt);
            prop_assert!(attempts.is_sorted_by(|a, b| a < b), "numbers count up");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..40_000), sound in any::<bool>()) {
        if sound && bytes.len() >= 128 {
            bytes[..8].copy_from_slice(&miot_proto::segment::MAGIC.to_le_bytes());
            bytes[8..16].copy_from_slice(&(u64::from(miot_proto::segment::MAJOR) << 32).to_le_bytes());
            bytes[24..48].fill(0);
        }
        let _ = sweep_bytes(bytes);
    }
}
