//! Lanes that overwrite their oldest records while they are read.

use crate::segment::builder::{SegmentBuilder, TestReader};
use crate::segment::{Memory, OutOfBounds, word};
use miot_proto::event::{MAX_SLOTS, slots_of};
use miot_proto::segment::{header, lane as at};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::VecDeque;

const SLOTS: u64 = 256;

/// A path that identifies its record, and makes a record of 1 to 25 slots.
fn path(attempt: u32) -> Vec<u8> {
    attempt.to_le_bytes().repeat(attempt as usize * 7 % 23 * 16)
}

fn time(attempt: u32) -> u64 {
    1_000 + u64::from(attempt)
}

/// The producer of one lane, as single stores in their order.
struct Writer {
    tail: u64,
    oldest: u64,
    attempts: u32,
    /// Stores of the record that is being written.
    stores: VecDeque<(usize, u64)>,
}

impl Writer {
    fn new() -> Writer {
        Writer { tail: 0, oldest: 0, attempts: 0, stores: VecDeque::new() }
    }

    /// Does the next store, if necessary of the next record.
    fn step(&mut self, made: &mut SegmentBuilder) {
        if self.stores.is_empty() {
            self.plan(made);
        }
        if let Some((at, value)) = self.stores.pop_front() {
            made.set(at, value);
        }
    }

    /// Completes the record that is being written.
    fn finish(&mut self, made: &mut SegmentBuilder) {
        while !self.stores.is_empty() {
            self.step(made);
        }
    }

    fn plan(&mut self, made: &SegmentBuilder) {
        let lane = |word| SegmentBuilder::lane(0, word);
        let record = SegmentBuilder::record(self.attempts, time(self.attempts), &path(self.attempts));
        let count = record.len() as u64;
        self.stores.push_back((lane(at::TAIL), self.tail << 1 | 1));
        if self.tail + count - self.oldest > SLOTS {
            while self.tail + count.max(SLOTS / 8) - self.oldest > SLOTS {
                let at = made.slot(0, self.oldest);
                let first = std::array::from_fn(|index| made.get(at + 8 * index));
                self.oldest += slots_of(&first) as u64;
            }
            self.stores.push_back((lane(at::OLDEST), self.oldest));
        }
        for (index, slot) in record.iter().enumerate() {
            let at = made.slot(0, self.tail + index as u64);
            self.stores.extend(slot.iter().enumerate().map(|(word, value)| (at + 8 * word, *value)));
        }
        self.tail += count;
        self.attempts += 1;
        self.stores.push_back((lane(at::TAIL), self.tail << 1));
    }
}

/// A segment whose producer runs between any two words that are read.
struct Racing {
    made: RefCell<SegmentBuilder>,
    writer: RefCell<Writer>,
    /// Stores of the producer before each word that is read, repeated cyclically.
    schedule: RefCell<VecDeque<u16>>,
    stopped: RefCell<bool>,
}

impl Racing {
    fn run(&self) {
        if *self.stopped.borrow() {
            return;
        }
        let mut schedule = self.schedule.borrow_mut();
        if let Some(steps) = schedule.pop_front() {
            schedule.push_back(steps);
            (0..steps).for_each(|_| self.writer.borrow_mut().step(&mut self.made.borrow_mut()));
        }
    }

    fn stop(&self) {
        self.writer.borrow_mut().finish(&mut self.made.borrow_mut());
        *self.stopped.borrow_mut() = true;
    }
}

impl Memory for Racing {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), OutOfBounds> {
        for (index, part) in buffer.chunks_mut(8).enumerate() {
            self.run();
            let value = word(&self.made.borrow().bytes, at as usize + 8 * index);
            part.copy_from_slice(&value.to_le_bytes()[..part.len()]);
        }
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

/// Checks that every delivered record is as it was committed, and that none arrived twice. Returns
/// their number.
fn check<M>(reader: &TestReader<M>) -> usize {
    let numbers = reader.kept.attempts();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    for (_, columns) in &reader.kept.batches {
        let mut ext = columns.ext.iter().peekable();
        for row in 0..columns.len() {
            let attempt = columns.attempt[row] as u32;
            assert_eq!(columns.offset[row], u64::from(attempt) * 4096);
            let told = ext.next_if(|ext| ext.row as usize == row).map_or(&[][..], |ext| columns.paths(ext).0);
            assert_eq!(told, path(attempt), "record {attempt}");
        }
    }
    numbers.len()
}

fn filled(records: u32) -> (SegmentBuilder, Writer) {
    let (mut made, mut writer) = (SegmentBuilder::with_lane(SLOTS), Writer::new());
    while writer.attempts < records {
        writer.plan(&made);
        writer.finish(&mut made);
    }
    (made, writer)
}

#[test]
fn overwritten_records_are_a_gap() {
    let (made, writer) = filled(500);
    let mut reader = TestReader::attach(&made);
    reader.overwrites = true;
    assert_eq!(reader.sweep().violations, 0);
    let delivered = check(&reader);
    assert!(delivered > 1 && delivered < 100, "{delivered}");
    assert_eq!(*reader.kept.attempts().last().unwrap(), 499);
    assert_eq!(reader.lane_word(0, at::HEAD), writer.tail);
    reader.end();
    assert_eq!(reader.kept.ends[0].attempts, 500, "delivered and lost");
}

#[test]
fn lane_may_start_to_overwrite_at_any_time() {
    let (mut made, mut writer) = filled(10);
    let mut reader = TestReader::attach(&made);
    reader.sweep();
    let before = reader.kept.attempts().len();
    made.set_lane(0, at::HEAD, reader.lane_word(0, at::HEAD));
    while writer.attempts < 300 {
        writer.plan(&made);
        writer.finish(&mut made);
    }
    reader.edit(|now| now.bytes.clone_from(&made.bytes));
    reader.overwrites = true;
    assert_eq!(reader.sweep().violations, 0);
    assert!(check(&reader) > before);
    assert_eq!(*reader.kept.attempts().last().unwrap(), 299);
}

#[test]
fn late_log_client_reads_the_remaining_records() {
    let (made, _) = filled(700);
    let mut first = TestReader::attach(&made);
    first.overwrites = true;
    first.sweep();
    let mut made = made;
    first.edit(|now| made.bytes.clone_from(&now.bytes));
    let mut writer = Writer { tail: made.tail(0), oldest: 0, attempts: 700, stores: VecDeque::new() };
    writer.oldest = made.get_lane(0, at::OLDEST);
    while writer.attempts < 1000 {
        writer.plan(&made);
        writer.finish(&mut made);
    }
    let mut second = TestReader::attach(&made);
    second.overwrites = true;
    assert_eq!(second.sweep().violations, 0);
    check(&second);
    assert_eq!(*second.kept.attempts().last().unwrap(), 999);
}

#[test]
fn invalid_frontier_quarantines_the_lane() {
    let wrongs: [fn(&mut SegmentBuilder); 4] = [
        |made| made.set_lane(0, at::OLDEST, made.tail(0) + 1),
        |made| made.set_lane(0, at::OLDEST, u64::MAX),
        |made| made.set_lane(0, at::OLDEST, made.get_lane(0, at::OLDEST) - 1),
        |made| made.set_lane(0, at::TAIL, (made.get_lane(0, at::HEAD) + SLOTS + 1) << 1),
    ];
    for (index, wrong) in wrongs.into_iter().enumerate() {
        let (made, writer) = filled(100);
        let mut reader = TestReader::attach(&made);
        reader.overwrites = true;
        assert_eq!(reader.sweep().violations, 0, "case {index}");
        reader.edit(|made| {
            made.push(0, writer.attempts, 5_000, b"");
            wrong(made);
        });
        assert_eq!(reader.sweep().violations, 1, "case {index}");
        assert_eq!((reader.safe(), reader.kept.ends.len()), (None, 1), "case {index}");
        assert_eq!(reader.sweep().violations, 0, "case {index}");
    }
}

#[test]
fn lane_of_a_dead_liar_ends() {
    let (made, _) = filled(100);
    let racing = Racing {
        made: RefCell::new(made),
        writer: RefCell::new(Writer::new()),
        schedule: RefCell::new(VecDeque::new()),
        stopped: RefCell::new(false),
    };
    let mut reader = TestReader::attach_to(racing);
    reader.overwrites = true;
    // A process that has the memory of a dead one moves its tail forever.
    for _ in 0..100 {
        let tally = reader.sweep_at(10_000, true);
        if !tally.unfinished {
            return;
        }
        let mut made = reader.segment.memory.made.borrow_mut();
        let tail = made.tail(0) + 10;
        made.set_lane(0, at::TAIL, tail << 1);
    }
    panic!("the lane is read for ever");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_gives_a_torn_record(
        before in 0u32..300, sweeps in 1usize..5,
        schedule in prop::collection::vec(prop_oneof![60 => Just(0u16), 20 => 1u16..4, 2 => 4u16..200, 1 => 200u16..3_000], 1..300),
    ) {
        let (made, writer) = filled(before);
        let mut reader = TestReader::attach_to(Racing {
            made: RefCell::new(made),
            writer: RefCell::new(writer),
            schedule: RefCell::new(schedule.into()),
            stopped: RefCell::new(false),
        });
        reader.overwrites = true;
        for _ in 0..sweeps {
            prop_assert_eq!(reader.sweep().violations, 0);
        }
        reader.segment.memory.stop();
        let asked = u64::from(reader.segment.memory.writer.borrow().attempts);
        let mut tally = reader.sweep();
        while tally.unfinished {
            tally = reader.sweep();
        }
        check(&reader);
        let (oldest, tail) = {
            let made = reader.segment.memory.made.borrow();
            prop_assert_eq!(made.get(header::LANES), 1);
            (made.get_lane(0, at::OLDEST), made.tail(0))
        };
        if asked > 0 {
            prop_assert_eq!(reader.kept.attempts().last().copied(), Some(asked - 1), "the rest at the end is read");
        }
        prop_assert!(tail - oldest <= SLOTS && MAX_SLOTS as u64 <= SLOTS);
        reader.end();
        prop_assert_eq!(reader.kept.ends[0].attempts, asked, "delivered and lost");
    }
}
