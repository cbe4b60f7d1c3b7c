//! Tests lanes against the oracle, one step at a time, with the smallest consumer that does the
//! log-client's work.

use super::steps::{
    Filter, LANE_SLOTS, Record, STEP_BYTES, SimulatedProcess, Step, StreamOutput, Subject, Totals, run_steps,
    slots_of,
};
use super::{Lane, LaneOwner, Producer, Ring, Slot};
use miot_proto::control::WhenFull;
use miot_proto::event::{Event, OnePath, RecordKind, SLOT_BYTES, attempt_of, ext_from_bytes, flag, kind_of};
use miot_proto::segment::{HEADER_BYTES, LANE_BYTES, LaneState, SLOTS_OFFSET, header, in_flight, lane as at};
use proptest::prelude::*;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Threads in memory, and a consumer of their lanes.
#[derive(Default)]
struct MinimalConsumer {
    stage: SimulatedProcess,
    lanes: Vec<LanePosition>,
    streams: u32,
    output: Vec<StreamOutput>,
}

/// Position of the consumer in a lane.
#[derive(Default)]
struct LanePosition {
    stream: Option<u32>,
    ended: u64,
    head: u64,
    /// Next attempt number if no record was lost.
    next: u64,
}

impl MinimalConsumer {
    fn word(&self, lane: usize, word: usize) -> u64 {
        self.stage.word(HEADER_BYTES + lane * LANE_BYTES + word).unwrap()
    }

    fn store(&self, lane: usize, word: usize, value: u64) {
        self.stage.store(HEADER_BYTES + lane * LANE_BYTES + word, value).unwrap();
    }

    fn read(&mut self, max_records: usize, dead: bool) {
        let lanes = self.stage.word(header::LANES).unwrap() as usize;
        self.lanes.resize_with(lanes, LanePosition::default);
        (0..lanes).for_each(|lane| self.read_lane(lane, max_records, dead));
    }

    fn read_lane(&mut self, lane: usize, max_records: usize, dead: bool) {
        let state = self.word(lane, at::STATE);
        let incarnation = state >> 32;
        if self.lanes[lane].ended == incarnation {
            return;
        }
        let streams = &mut self.streams;
        let stream = *self.lanes[lane].stream.get_or_insert_with(|| {
            *streams += 1;
            self.output.push(StreamOutput::Stream {
                stream: *streams,
                lane: lane as u32,
                incarnation: incarnation as u32,
            });
            *streams
        });
        let tail = self.word(lane, at::TAIL) >> 1;
        let mut head = self.lanes[lane].head.max(self.word(lane, at::OLDEST));
        for _ in 0..max_records {
            if head == tail {
                break;
            }
            let record = self.record(lane, head);
            head += record.slots;
            self.lanes[lane].next = record.attempt + 1;
            self.output.push(StreamOutput::Record { stream, record });
        }
        self.lanes[lane].head = head;
        self.store(lane, at::HEAD, head);
        let over = dead || state as u32 == LaneState::Retired as u32;
        if over && head == tail {
            self.end(lane, stream, tail);
            self.lanes[lane] = LanePosition { ended: incarnation, head, ..LanePosition::default() };
            self.store(lane, at::DRAINED, incarnation);
        }
    }

    fn record(&self, lane: usize, position: u64) -> Record {
        let bytes = |position: u64| -> [u64; 8] {
            let slot = (position & (LANE_SLOTS - 1)) as usize;
            let start = SLOTS_OFFSET + (lane * LANE_SLOTS as usize + slot) * SLOT_BYTES;
            std::array::from_fn(|word| self.stage.word(start + 8 * word).unwrap())
        };
        let first = bytes(position);
        let event = Event::from_slot(&first);
        let slots = miot_proto::event::slots_of(&first) as u64;
        let more: Vec<u8> =
            (1..slots).flat_map(|slot| bytes(position + slot)).flat_map(u64::to_le_bytes).collect();
        let paths = if slots == 1 { Default::default() } else { ext_from_bytes(&more).unwrap() };
        let kind = RecordKind::from_number(kind_of(&first)).unwrap();
        let tag = if kind == RecordKind::File { event.handle } else { event.offset };
        assert_eq!(slots_of((paths.path1, paths.path2), tag), Some(slots), "torn");
        Record {
            attempt: u64::from(attempt_of(&first)),
            tag,
            request: event.request,
            enclosing: event.enclosing,
            kind,
            slots,
            interrupted: event.flags & flag::INTERRUPTED != 0,
        }
    }

    /// Reports the interrupted requests and the totals.
    fn end(&mut self, lane: usize, stream: u32, tail: u64) {
        let shown = |place: usize| {
            let (_, request) = in_flight::read(self.word(lane, place), tail)?;
            Some((request, self.word(lane, place + in_flight::OFFSET)))
        };
        let (inner, outer) = (shown(at::IN_FLIGHT), shown(at::ENCLOSING));
        // A lane stores its attempts when it drops a record and when it retires.
        let mut attempts = self.word(lane, at::ATTEMPTS).max(self.lanes[lane].next);
        let enclosing = outer.map_or(0, |(request, _)| request);
        for (shown, enclosing) in [(inner, enclosing), (outer, 0)] {
            let Some((request, tag)) = shown else { continue };
            let kind = RecordKind::Request;
            let record =
                Record { attempt: attempts, tag, request, enclosing, kind, slots: 1, interrupted: true };
            self.output.push(StreamOutput::Record { stream, record });
            attempts += 1;
        }
        let totals = Totals {
            attempts,
            lost_full: self.word(lane, at::LOST_FULL),
            filtered: self.word(lane, at::FILTERED),
        };
        self.output.push(StreamOutput::End { stream, totals });
    }
}

impl Subject for MinimalConsumer {
    fn begin(&mut self, thread: usize, encloses: bool, tag: u64) {
        self.stage.begin(thread, encloses, tag);
    }

    fn end(&mut self, thread: usize, slots: u64, tag: u64) -> bool {
        self.stage.end(thread, slots, tag).unwrap_or_else(|_| {
            self.read(usize::MAX, false);
            self.stage.end(thread, slots, tag).unwrap()
        })
    }

    fn cancel(&mut self, thread: usize) {
        self.stage.cancel(thread);
    }

    fn file(&mut self, thread: usize, slots: u64, tag: u64) -> bool {
        self.stage.file(thread, slots, tag).unwrap_or_else(|_| {
            self.read(usize::MAX, false);
            self.stage.file(thread, slots, tag).unwrap()
        })
    }

    fn exit(&mut self, thread: usize) {
        self.stage.exit(thread);
    }

    fn set(&mut self, when_full: WhenFull, filter: Filter) {
        self.stage.set(when_full, filter);
    }

    fn drain(&mut self, max_records: usize) {
        let lanes = self.stage.word(header::LANES).unwrap() as usize;
        assert!((0..lanes).all(|lane| self.word(lane, at::TAIL) & 1 == 0), "a mark remained");
        self.read(max_records, false);
    }

    fn kill(&mut self) {
        self.read(usize::MAX, true);
    }

    fn take_output(&mut self) -> Vec<StreamOutput> {
        std::mem::take(&mut self.output)
    }
}

#[test]
fn random_steps_match_the_oracle() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    };
    for _ in 0..50 {
        let steps = (0..500).map(|_| {
            let [_, _, action, thread, number, ..] = random();
            Step::decode([action, thread, number])
        });
        run_steps(steps.collect::<Vec<_>>(), &mut MinimalConsumer::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_steps_match_the_oracle(steps in prop::collection::vec(any::<[u8; STEP_BYTES]>().prop_map(Step::decode), 0..300)) {
        run_steps(steps, &mut MinimalConsumer::default());
    }
}

/// One lane with its slots and its producer.
fn single_lane(capacity: u64) -> (Lane, Vec<Slot>, Producer) {
    let lane = Lane::new();
    lane.set_slots(0, capacity);
    let producer = lane.claim(&LaneOwner { tid: 1, comm: [0; 2], ticks: 0 });
    (lane, (0..capacity).map(|_| Slot::new()).collect(), producer)
}

fn push(lane: &Lane, slots: &[Slot], producer: &mut Producer, value: u64) -> bool {
    producer.mark(lane);
    if !producer.fits(1) {
        producer.refresh(lane);
    }
    if !producer.fits(1) {
        producer.drop_record(lane);
        return false;
    }
    producer.slot(Ring::new(slots), 0).set(0, value);
    producer.commit(lane, 1);
    true
}

#[test]
fn invalid_head_only_fills_the_lane() {
    let (lane, slots, mut producer) = single_lane(4);
    lane.head.store(u64::MAX / 2, Relaxed);
    let taken = (0..10).filter(|i| push(&lane, &slots, &mut producer, *i)).count();
    assert_eq!((taken, lane.lost_full.load(Relaxed)), (4, 6));
}

#[test]
fn lane_is_reusable_only_when_drained() {
    let (lane, slots, mut producer) = single_lane(4);
    push(&lane, &slots, &mut producer, 7);
    assert!(!lane.is_reusable());
    lane.retire(&producer);
    assert!(!lane.is_reusable());
    lane.head.store(1, Relaxed);
    lane.drained.store(1, Release);
    assert!(lane.is_reusable());
    let second = lane.claim(&LaneOwner { tid: 2, comm: [0; 2], ticks: 0 });
    assert_eq!((second.tail, second.attempts, lane.start.get()), (1, 0, 1));
    assert!(!lane.is_reusable());
}

/// The extension of a path is the same whether it is copied as a whole or written slot by slot, at
/// each position of the ring and for each length up to some slots.
#[test]
fn path_is_written_alike_in_both_ways() {
    const SLOTS: usize = 8;
    let words = |slots: &[Slot]| -> Vec<u64> {
        slots.iter().flat_map(|slot| slot.0.iter().map(super::sync::Word::get)).collect()
    };
    for length in 1..200 {
        let path: Vec<u8> = (0..length).map(|at| b'a' + (at % 26) as u8).collect();
        let positions = 0..2 * SLOTS as u64;
        let paths = [OnePath::First(&path), OnePath::Second(&path)];
        for (position, path) in positions.flat_map(|position| paths.map(|path| (position, path))) {
            let [copied, written] = [(); 2].map(|()| (0..SLOTS).map(|_| Slot::new()).collect::<Vec<_>>());
            for slot in copied.iter().chain(&written) {
                slot.set_all([u64::MAX; miot_proto::event::WORDS]);
            }
            Ring::new(&copied).set_path(position, path);
            miot_proto::event::write_path(path, |slot, words| {
                Ring::new(&written).at(position + slot as u64 - 1).set_all(words);
            });
            assert_eq!(words(&copied), words(&written), "{length} bytes at {position}");
        }
    }
}
