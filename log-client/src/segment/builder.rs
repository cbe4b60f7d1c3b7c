//! For tests: segments built by hand from the layout, without the producer's code, and a sink that
//! keeps all facts.

use super::{EndReason, Header, Memory, ReadMode, Scratch, Segment, SweepContext, Tally, VecMemory};
use crate::clock::{ClockReading, Clocks, Now, Timeline};
use crate::facts::{Fact, Sink};
use crate::testing::samples;
use miot_proto::batch::{Columns, REFUSED};
use miot_proto::event::{Event, Ext, RecordKind, SLOT_BYTES, slots_for, write_ext};
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, LaneState, MAGIC, MAJOR, SLOTS_OFFSET, header, in_flight, lane as at,
};
use miot_proto::wire::{Process, ProcessKey, ProcessLoss, Stream, StreamEnd};

/// Tick 0, nanoseconds since 1970; one tick is one nanosecond.
pub(crate) const EPOCH: i64 = 1_700_000_000_000_000_000;

/// Builder of a segment, in the role of its producer.
pub(crate) struct SegmentBuilder {
    pub(crate) bytes: Vec<u8>,
    lanes: usize,
}

impl SegmentBuilder {
    pub(crate) fn new() -> SegmentBuilder {
        let mut made = SegmentBuilder { bytes: vec![0; SLOTS_OFFSET], lanes: 0 };
        let words = [
            (header::MAGIC, MAGIC),
            (header::VERSION, u64::from(MAJOR) << 32),
            (header::NONCE, 0xabc),
            (header::PID, 4711),
            (header::PPID, 1),
            (header::CLOCK, Clock::MonotonicRaw as u64),
            (header::CREATED_TICKS, 1_000),
            (header::RANK, 4),
        ];
        words.into_iter().for_each(|(at, value)| made.set(at, value));
        let mut at = header::STRINGS;
        for string in ["/bin/app", "app\0-x", "job7", "/home"] {
            made.bytes[at..at + 2].copy_from_slice(&(string.len() as u16).to_le_bytes());
            made.bytes[at + 2..at + 2 + string.len()].copy_from_slice(string.as_bytes());
            at += 2 + string.len();
        }
        made
    }

    /// A segment with one claimed lane.
    pub(crate) fn with_lane(slots: u64) -> SegmentBuilder {
        let mut made = SegmentBuilder::new();
        made.place(slots);
        made.claim(0, 1);
        made
    }

    pub(crate) fn set(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn get(&self, at: usize) -> u64 {
        super::word(&self.bytes, at)
    }

    pub(crate) fn lane(lane: usize, word: usize) -> usize {
        HEADER_BYTES + lane * LANE_BYTES + word
    }

    pub(crate) fn set_lane(&mut self, lane: usize, word: usize, value: u64) {
        self.set(SegmentBuilder::lane(lane, word), value);
    }

    pub(crate) fn get_lane(&self, lane: usize, word: usize) -> u64 {
        self.get(SegmentBuilder::lane(lane, word))
    }

    pub(crate) fn place(&mut self, slots: u64) {
        let (lane, at) = (self.lanes, self.bytes.len() as u64);
        self.bytes.resize((at + slots * SLOT_BYTES as u64) as usize, 0);
        self.set_lane(lane, at::SLOTS_AT, at);
        self.set_lane(lane, at::SLOTS, slots);
        self.lanes += 1;
        self.set(header::LANES, self.lanes as u64);
    }

    pub(crate) fn claim(&mut self, lane: usize, incarnation: u64) {
        let tail = self.get_lane(lane, at::TAIL) >> 1;
        for (word, value) in [
            (at::START, tail),
            (at::TID, 5000 + lane as u64),
            (at::COMM, u64::from_le_bytes(*b"worker\0\0")),
            (at::LOST_FULL, 0),
            (at::LOST_NESTED, 0),
            (at::ATTEMPTS, 0),
            (at::IN_FLIGHT, 0),
            (at::ENCLOSING, 0),
            (at::OLDEST, tail),
            (at::CLAIMED_TICKS, 1_000),
            (at::STATE, incarnation << 32 | LaneState::Claimed as u64),
        ] {
            self.set_lane(lane, word, value);
        }
    }

    pub(crate) fn retire(&mut self, lane: usize, attempts: u64) {
        let incarnation = self.get_lane(lane, at::STATE) >> 32;
        self.set_lane(lane, at::ATTEMPTS, attempts);
        self.set_lane(lane, at::STATE, incarnation << 32 | LaneState::Retired as u64);
    }

    /// Shows a request in flight at offset `place` of a lane entry.
    pub(crate) fn show(&mut self, lane: usize, place: usize, word: u64, begin: u64, on: [u64; 3]) {
        for (field, value) in [
            (in_flight::BEGIN, begin),
            (in_flight::HANDLE, on[0]),
            (in_flight::OFFSET, on[1]),
            (in_flight::LENGTH, on[2]),
            (in_flight::REQUEST, word),
        ] {
            self.set_lane(lane, place + field, value);
        }
    }

    /// Number of committed slots.
    pub(crate) fn tail(&self, lane: usize) -> u64 {
        self.get_lane(lane, at::TAIL) >> 1
    }

    /// Commits a record that completed at `end`.
    pub(crate) fn push(&mut self, lane: usize, attempt: u32, end: u64, path: &[u8]) {
        let words = SegmentBuilder::record(attempt, end, path);
        let tail = self.tail(lane);
        for (index, slot) in words.iter().enumerate() {
            self.put_slot(lane, tail + index as u64, slot);
        }
        self.set_lane(lane, at::TAIL, (tail + words.len() as u64) << 1);
    }

    /// The slots of a record.
    pub(crate) fn record(attempt: u32, end: u64, path: &[u8]) -> Vec<[u64; 8]> {
        let request = attempt.wrapping_add(1);
        let event = Event { request, end, duration: 10, ..samples::read(attempt.into()) };
        let ext = Ext { path1: path, ..Ext::default() };
        let count = slots_for(&ext);
        let mut words = vec![event.slot(RecordKind::Request, count as u8, attempt)];
        if count > 1 {
            words.resize(count, [0; 8]);
            write_ext(&ext, |slot, word, value| words[slot][word] = value);
        }
        words
    }

    /// Offset of a slot.
    pub(crate) fn slot(&self, lane: usize, position: u64) -> usize {
        let slots = self.get_lane(lane, at::SLOTS);
        (self.get_lane(lane, at::SLOTS_AT) + (position & (slots - 1)) * SLOT_BYTES as u64) as usize
    }

    pub(crate) fn put_slot(&mut self, lane: usize, position: u64, words: &[u64; 8]) {
        let at = self.slot(lane, position);
        words.iter().enumerate().for_each(|(index, word)| self.set(at + index * 8, *word));
    }

    /// Marks the lane: a record is being completed.
    pub(crate) fn mark(&mut self, lane: usize) {
        let tail = self.get_lane(lane, at::TAIL);
        self.set_lane(lane, at::TAIL, tail | 1);
    }
}

/// Sink that keeps all facts.
#[derive(Default)]
pub(crate) struct RecordingSink {
    pub(crate) processes: Vec<Process>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) batches: Vec<(u32, Columns)>,
    pub(crate) ends: Vec<StreamEnd>,
    pub(crate) gone: Vec<(ProcessKey, ProcessLoss)>,
    pub(crate) watermarks: Vec<i64>,
    /// Number of `Aside` facts.
    pub(crate) asides: usize,
    pub(crate) full: bool,
}

impl RecordingSink {
    /// All attempt numbers of records, in order of arrival.
    pub(crate) fn attempts(&self) -> Vec<u64> {
        self.rows(false).map(|(_, last)| last).collect()
    }

    /// All ranges of attempt numbers that were refused, in order of arrival.
    pub(crate) fn refused(&self) -> Vec<(u64, u64)> {
        self.rows(true).collect()
    }

    fn rows(&self, refused: bool) -> impl Iterator<Item = (u64, u64)> {
        self.batches.iter().flat_map(move |(_, columns)| {
            let rows = (0..columns.len()).filter(move |row| (columns.kind[*row] == REFUSED) == refused);
            rows.map(|row| columns.attempts_of(row))
        })
    }

    /// All completion times, as ticks.
    pub(crate) fn times(&self) -> Vec<i64> {
        self.batches.iter().flat_map(|(_, columns)| columns.time.iter().map(|time| time - EPOCH)).collect()
    }
}

impl Sink for RecordingSink {
    fn has_space(&self) -> bool {
        !self.full
    }

    fn send(&mut self, fact: Fact<'_>) {
        match fact {
            Fact::Process(process) => self.processes.push(process),
            Fact::Stream(stream) => self.streams.push(stream),
            Fact::Batch { stream, columns, .. } => self.batches.push((stream, columns.clone())),
            Fact::StreamEnd(end) => self.ends.push(end),
            Fact::ProcessEnd { key, lost, .. } => self.gone.push((key, lost)),
            Fact::Watermark(time) => self.watermarks.push(time),
            Fact::Aside => self.asides += 1,
            Fact::Devices(_) | Fact::Resume(_) => {}
        }
    }
}

/// Reader of one hand-made segment, at times chosen by the test.
pub(crate) struct TestReader<M = VecMemory> {
    pub(crate) segment: Segment<M>,
    pub(crate) kept: RecordingSink,
    clocks: Clocks,
    streams: u32,
    scratch: Scratch,
    pub(crate) watermark: i64,
    pub(crate) overwrites: bool,
    pub(crate) reads: ReadMode,
    pub(crate) snapshot: Option<u64>,
}

impl TestReader {
    pub(crate) fn attach(made: &SegmentBuilder) -> TestReader {
        TestReader::attach_to(VecMemory::new(made.bytes.clone()))
    }

    /// Changes the segment as its producer would.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut SegmentBuilder)) {
        self.segment.memory.edit(|bytes| {
            let lanes = super::word(bytes, header::LANES) as usize;
            let mut made = SegmentBuilder { bytes: std::mem::take(bytes), lanes };
            change(&mut made);
            *bytes = made.bytes;
        });
    }

    pub(crate) fn lane_word(&mut self, lane: usize, word: usize) -> u64 {
        let mut value = 0;
        self.edit(|made| value = made.get_lane(lane, word));
        value
    }
}

impl<M: Memory> TestReader<M> {
    pub(crate) fn attach_to(memory: M) -> TestReader<M> {
        let reading = |ticks: u64| ClockReading { ticks, time: EPOCH + ticks as i64 };
        let line = Timeline::new(reading(0), reading(1_000_000));
        let clocks = Clocks::fixed(line.clone(), line);
        let header = Header::read(&memory).unwrap();
        let (mut kept, mut streams, mut scratch) = (RecordingSink::default(), 0, Scratch::default());
        let segment = Segment::attach(
            memory,
            header,
            1,
            1000,
            &mut SweepContext {
                t0: Now { tsc: 0, raw: 0 },
                latest: &|_| u64::MAX,
                clocks: &clocks,
                watermark: 0,
                streams: &mut streams,
                streams_until: u32::MAX >> 1,
                overwrites: &|| false,
                reads: ReadMode::AllLanes,
                grown_slots: 0,
                snapshot: None,
                scratch: &mut scratch,
                sink: &mut kept,
            },
        );
        TestReader {
            segment,
            kept,
            clocks,
            streams,
            scratch,
            watermark: 0,
            overwrites: false,
            reads: ReadMode::AllLanes,
            snapshot: None,
        }
    }

    fn with_context<T>(
        &mut self,
        t0: u64,
        act: impl FnOnce(&mut Segment<M>, &mut SweepContext<'_>) -> T,
    ) -> T {
        let mut context = SweepContext {
            t0: Now { tsc: t0, raw: t0 },
            latest: &|_| t0 + 1_000_000_000,
            clocks: &self.clocks,
            watermark: self.watermark,
            streams: &mut self.streams,
            streams_until: u32::MAX >> 1,
            overwrites: &|| self.overwrites,
            reads: self.reads,
            grown_slots: 0,
            snapshot: self.snapshot,
            scratch: &mut self.scratch,
            sink: &mut self.kept,
        };
        act(&mut self.segment, &mut context)
    }

    pub(crate) fn sweep_at(&mut self, t0: u64, dead: bool) -> Tally {
        self.with_context(t0, |segment, context| segment.sweep(dead, context))
    }

    /// Sweeps at a time before all records, so that the watermark does not advance.
    pub(crate) fn sweep(&mut self) -> Tally {
        self.sweep_at(0, false)
    }

    /// Ends the streams as for a log-client that stops.
    pub(crate) fn end(&mut self) -> ProcessLoss {
        self.end_at(3_000_000, EndReason::ReaderStopped)
    }

    /// Ends the streams as for a process that has ended.
    pub(crate) fn end_process_at(&mut self, t0: u64) -> ProcessLoss {
        self.end_at(t0, EndReason::Finished)
    }

    fn end_at(&mut self, t0: u64, reason: EndReason) -> ProcessLoss {
        self.with_context(t0, |segment, context| segment.end(reason, context, &mut Tally::default()))
    }

    /// Safe time of the segment, in ticks.
    pub(crate) fn safe(&self) -> Option<i64> {
        self.segment.safe().map(|time| time - EPOCH)
    }
}
