//! Writes of a producer to its segment, and sweeps of the log-client.
//!
//! The bytes are a sequence of steps, because a segment with one small lane has 270 000 bytes and
//! most of them are zeros. It starts with a segment that has a valid header, which steps may
//! damage. If the first byte is 255, the rest are the bytes of the segment.
//!
//! Checks after each sweep: a stream is reported before its records; the records of a stream have
//! ascending attempt numbers and are in order of completion; no record is before the watermark; the
//! records fit a batch. At the end, every stream has ended once.

use crate::Seed;
use crate::input::Input;
use miot_log_client::testing::{Reader, Sweep, samples, sweep_bytes};
use miot_proto::batch::{Columns, MAX_ROWS, MAX_TEXT};
use miot_proto::event::{Event, Ext, RecordKind, SLOT_BYTES, slots_for, write_ext};
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, LaneState, MAGIC, MAJOR, SLOTS_OFFSET, header, lane as word_of,
};
use std::cell::RefCell;
use std::collections::HashMap;

/// Maximum number of lanes.
const LANES: usize = 6;
/// Maximum number of steps; further ones are ignored.
const STEPS: usize = 200;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    if let Some((255, raw)) = bytes.split_first() {
        let _ = sweep_bytes(raw.to_vec());
        return;
    }
    let mut input = Input(bytes);
    let segment = RefCell::new(valid_segment());
    let mut lanes = 0;
    let mut reader = Reader::attach(&segment);
    let (mut checker, mut now) = (OutputChecker::default(), 0);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let Some(step) = Step::read(&mut input) else { continue };
        match step {
            Step::Sweep { dead, max_batches, ticks } => {
                now += ticks;
                if let Some(reader) = &mut reader {
                    checker.sweep(reader, Sweep { t0: now, dead, max_batches });
                }
            }
            Step::Restart => {
                reader = Reader::attach(&segment);
                checker = OutputChecker::default();
            }
            other => other.apply(&mut segment.borrow_mut(), &mut lanes),
        }
    }
    let Some(mut reader) = reader else { return };
    for dead in [false, true] {
        now += 1_000_000_000;
        checker.sweep(&mut reader, Sweep { t0: now, dead, max_batches: usize::MAX });
    }
    reader.end(now);
    let facts = reader.facts();
    let mut ended: Vec<u32> = facts.ends.iter().map(|end| end.stream).collect();
    ended.sort_unstable();
    assert!(ended.iter().copied().eq(0..facts.streams.len() as u32), "every stream ends once");
    assert_eq!((facts.processes.len(), facts.gone.len()), (1, 1));
}

/// Checker of the output of one reader.
#[derive(Default)]
struct OutputChecker {
    /// Last attempt number and time of each stream, by stream number.
    last: HashMap<u32, (u64, i64)>,
    scratch: Vec<u8>,
    packed: Vec<u8>,
}

impl OutputChecker {
    fn sweep(&mut self, reader: &mut Reader<'_>, sweep: Sweep) {
        let watermark = reader.watermark();
        let counts = reader.sweep(sweep);
        assert!(reader.watermark() >= watermark, "the watermark does not decrease");
        let streams = reader.facts().streams.len() as u32;
        let mut events = 0;
        for (stream, columns) in reader.take_batches() {
            assert!(stream < streams, "a stream is reported before its records");
            assert!(!columns.is_empty() && columns.len() <= MAX_ROWS && columns.text.len() <= MAX_TEXT);
            events += columns.records() as u64;
            for (attempt, time) in columns.attempt.iter().zip(&columns.time) {
                assert!(*time >= watermark, "{time} is before the watermark {watermark}");
                if let Some((last_attempt, last_time)) = self.last.insert(stream, (*attempt, *time)) {
                    assert!(*attempt > last_attempt, "{attempt} after {last_attempt}");
                    assert!(*time >= last_time, "{time} after {last_time}");
                }
            }
            self.packed.clear();
            columns.encode(&mut self.scratch, &mut self.packed);
            assert_eq!(Columns::decode(&self.packed), Ok(columns), "the columns round-trip");
        }
        assert_eq!(events, counts.events);
    }
}

/// Returns a segment with a valid header and without lanes.
fn valid_segment() -> Vec<u8> {
    let mut bytes = vec![0; SLOTS_OFFSET];
    for (word, value) in [
        (header::MAGIC, MAGIC),
        (header::VERSION, u64::from(MAJOR) << 32),
        (header::NONCE, 7),
        (header::PID, 4711),
        (header::PPID, 1),
        (header::CLOCK, Clock::MonotonicRaw as u64),
    ] {
        set_word(&mut bytes, word, value);
    }
    bytes
}

fn set_word(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(word) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *word = value.to_le_bytes();
    }
}

fn get_word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn lane_word(lane: u8, word: usize) -> usize {
    HEADER_BYTES + usize::from(lane) * LANE_BYTES + word
}

/// One action of the producer or the log-client.
enum Step<'a> {
    Header { word: usize, value: u64 },
    Lane { lane: u8, word: usize, value: u64 },
    Slot { position: u64, bytes: &'a [u8] },
    AddLane { slots: u64 },
    Claim { lane: u8 },
    Record { lane: u8, ticks: u64, lost: u64, path: &'a [u8] },
    BeginCommit { lane: u8 },
    Retire { lane: u8 },
    Truncate { size: usize },
    Sweep { dead: bool, max_batches: usize, ticks: u64 },
    Restart,
}

impl<'a> Step<'a> {
    fn read(input: &mut Input<'a>) -> Option<Step<'a>> {
        let lane = |input: &mut Input<'_>| input.byte() % LANES as u8;
        Some(match input.byte() {
            0 => Step::Header { word: input.byte() as usize % 32 * 8, value: sized(input) },
            1 => Step::Lane { lane: lane(input), word: input.byte() as usize % 32 * 8, value: sized(input) },
            2 => Step::Slot { position: input.number(2), bytes: input.bytes(SLOT_BYTES) },
            3 => Step::AddLane { slots: 256 << (input.byte() % 6) },
            4 => Step::Claim { lane: lane(input) },
            5 => {
                let (lane, ticks, lost, path) =
                    (lane(input), input.number(3), input.number(1), input.number(2));
                Step::Record { lane, ticks, lost, path: input.bytes(path as usize % 5000) }
            }
            6 => Step::BeginCommit { lane: lane(input) },
            7 => Step::Retire { lane: lane(input) },
            8 => Step::Truncate { size: input.number(3) as usize },
            9 => {
                let flags = input.byte();
                let max_batches = if flags & 2 == 0 { usize::MAX } else { usize::from(flags >> 4) };
                Step::Sweep { dead: flags & 1 != 0, max_batches, ticks: input.number(4) }
            }
            10 => Step::Restart,
            _ => return None,
        })
    }

    fn apply(&self, bytes: &mut Vec<u8>, lanes: &mut u8) {
        match *self {
            Step::Header { word, value } => set_word(bytes, word, value),
            Step::Lane { lane, word, value } => set_word(bytes, lane_word(lane, word), value),
            Step::Slot { position, bytes: slot } => {
                let at = SLOTS_OFFSET + position as usize * SLOT_BYTES;
                if let Some(slot_bytes) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..slot.len())) {
                    slot_bytes.copy_from_slice(slot);
                }
            }
            Step::AddLane { slots } => {
                if usize::from(*lanes) < LANES {
                    let slots_at = bytes.len().max(SLOTS_OFFSET).next_multiple_of(SLOT_BYTES);
                    bytes.resize(slots_at + slots as usize * SLOT_BYTES, 0);
                    set_word(bytes, lane_word(*lanes, word_of::SLOTS_AT), slots_at as u64);
                    set_word(bytes, lane_word(*lanes, word_of::SLOTS), slots);
                    *lanes += 1;
                    set_word(bytes, header::LANES, u64::from(*lanes));
                }
            }
            Step::Claim { lane } => {
                let incarnation = (get_word(bytes, lane_word(lane, word_of::STATE)) >> 32).wrapping_add(1);
                let tail = get_word(bytes, lane_word(lane, word_of::TAIL)) >> 1;
                set_word(bytes, lane_word(lane, word_of::START), tail);
                set_word(bytes, lane_word(lane, word_of::TID), 99);
                set_word(bytes, lane_word(lane, word_of::ATTEMPTS), 0);
                set_word(
                    bytes,
                    lane_word(lane, word_of::STATE),
                    incarnation << 32 | LaneState::Claimed as u64,
                );
            }
            Step::Record { lane, ticks, lost, path } => record(bytes, lane, ticks, lost, path),
            Step::BeginCommit { lane } => {
                let tail = get_word(bytes, lane_word(lane, word_of::TAIL));
                set_word(bytes, lane_word(lane, word_of::TAIL), tail | 1);
            }
            Step::Retire { lane } => {
                let incarnation = get_word(bytes, lane_word(lane, word_of::STATE)) >> 32;
                set_word(
                    bytes,
                    lane_word(lane, word_of::STATE),
                    incarnation << 32 | LaneState::Retired as u64,
                );
            }
            Step::Truncate { size } => bytes.truncate(size),
            Step::Sweep { .. } | Step::Restart => {}
        }
    }
}

/// Reads a number that follows its length in bytes, so that small numbers are short.
fn sized(input: &mut Input<'_>) -> u64 {
    let bytes = usize::from(input.byte() % 9);
    input.number(bytes)
}

/// Commits a record as a correct producer does. `ATTEMPTS` counts its attempts.
fn record(bytes: &mut [u8], lane: u8, ticks: u64, lost: u64, path: &[u8]) {
    let attempt = get_word(bytes, lane_word(lane, word_of::ATTEMPTS)).wrapping_add(lost);
    let event = Event { end: ticks * 1000, duration: 5, ..samples::read(attempt) };
    let ext = Ext { path1: path, ..Ext::default() };
    let count = slots_for(&ext);
    let mut words = vec![[0; 8]; count];
    words[0] = event.slot(RecordKind::Request, count as u8, attempt as u32);
    if count > 1 {
        write_ext(&ext, |slot, word, value| words[slot][word] = value);
    }
    let (slots_at, slots) = (
        get_word(bytes, lane_word(lane, word_of::SLOTS_AT)),
        get_word(bytes, lane_word(lane, word_of::SLOTS)),
    );
    let tail = get_word(bytes, lane_word(lane, word_of::TAIL)) >> 1;
    for (index, word) in words.iter().flatten().enumerate() {
        let slot = tail.wrapping_add(index as u64 / 8) & slots.wrapping_sub(1);
        let offset = slots_at
            .saturating_add(slot.saturating_mul(SLOT_BYTES as u64))
            .saturating_add(index as u64 % 8 * 8);
        set_word(bytes, usize::try_from(offset).unwrap_or(usize::MAX), *word);
    }
    set_word(bytes, lane_word(lane, word_of::ATTEMPTS), attempt.wrapping_add(1));
    set_word(bytes, lane_word(lane, word_of::TAIL), tail.wrapping_add(count as u64) << 1);
}

/// Returns steps for the states of lanes and for false words, and the bytes of a segment.
pub fn seeds() -> Vec<Seed> {
    let claimed = [3, 0, 4, 0];
    let record =
        |lane: u8, ticks: u8, path: &[u8]| [&[5, lane, ticks, 0, 0, 0, path.len() as u8, 0], path].concat();
    let sweep = [9, 0, 0, 0, 16, 0];
    let two = [&claimed[..], &record(0, 1, b""), &record(0, 2, b"/data/a")].concat();
    let with_word = |word: usize, value: u64| {
        let word = (word / 8) as u8;
        [&two[..], &sweep, &[1, 0, word, 8], &value.to_le_bytes(), &record(0, 3, b""), &sweep].concat()
    };
    let mut raw = vec![255];
    raw.extend_from_slice(&valid_segment()[..HEADER_BYTES]);
    vec![
        ("records", [&two[..], &sweep, &record(0, 3, b"/b"), &[6, 0], &sweep].concat()),
        ("retired", [&two[..], &[7, 0], &sweep, &[4, 0], &record(0, 4, b""), &sweep].concat()),
        ("two-lanes", [&two[..], &[3, 1, 4, 1], &record(1, 1, b"/x"), &sweep, &[10], &sweep].concat()),
        ("no-room", [&two[..], &[9, 2, 0, 0, 1, 0], &sweep].concat()),
        ("cut", [&two[..], &sweep, &[8, 0, 16, 4], &sweep].concat()),
        ("slot", [&two[..], &[2, 0, 0], &[9; 64], &sweep].concat()),
        ("tail", with_word(word_of::TAIL, u64::MAX)),
        ("head", with_word(word_of::HEAD, 77)),
        ("oldest", with_word(word_of::OLDEST, 1)),
        ("in-flight", with_word(word_of::IN_FLIGHT, 0x0101_0000)),
        ("enclosing", with_word(word_of::ENCLOSING, 0x0101_0000)),
        ("lanes", [&two[..], &[0, (header::LANES / 8) as u8, 8], &u64::MAX.to_le_bytes(), &sweep].concat()),
        ("bytes", raw),
    ]
}
