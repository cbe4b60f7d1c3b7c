//! What a producer does to its segment, and when it is swept.
//!
//! The bytes are a program of writes and sweeps, since a segment with one small lane has 270 000 bytes and most
//! of them are zeros. It starts from a segment with a sound header, which it can spoil. If the first byte is 255
//! the rest are the bytes of the segment itself.
//!
//! After each sweep: streams are told before their records; the records of a stream count up and are in order of
//! completion; nothing comes from before what was promised; what is told fits a batch. At the end every stream
//! has ended once.

use crate::Seed;
use crate::input::Input;
use miot_log_client::testing::{Reader, Sweep, samples, sweep_bytes};
use miot_proto::batch::{Columns, MAX_ROWS, MAX_TEXT};
use miot_proto::event::{Event, Ext, RecordKind, SLOT_BYTES, slots_for, write_ext};
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, LaneState, MAGIC, MAJOR, SLOTS_OFFSET, header, lane as at,
};
use std::cell::RefCell;
use std::collections::HashMap;

/// Lanes that a program can make.
const LANES: usize = 6;
/// Steps of a program: what comes behind them is not run.
const STEPS: usize = 200;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    if let Some((255, raw)) = bytes.split_first() {
        let _ = sweep_bytes(raw.to_vec());
        return;
    }
    let mut input = Input(bytes);
    let made = RefCell::new(sound());
    let mut lanes = 0;
    let mut reader = Reader::attach(&made);
    let (mut judge, mut now) = (Judge::default(), 0);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let Some(step) = Step::read(&mut input) else { continue };
        match step {
            Step::Sweep { dead, room, ticks } => {
                now += ticks;
                if let Some(reader) = &mut reader {
                    judge.sweep(reader, Sweep { t0: now, dead, max_batches: room });
                }
            }
            Step::Restart => {
                reader = Reader::attach(&made);
                judge = Judge::default();
            }
            other => other.change(&mut made.borrow_mut(), &mut lanes),
        }
    }
    let Some(mut reader) = reader else { return };
    for dead in [false, true] {
        now += 1_000_000_000;
        judge.sweep(&mut reader, Sweep { t0: now, dead, max_batches: usize::MAX });
    }
    reader.end(now);
    let told = reader.facts();
    let mut ended: Vec<u32> = told.ends.iter().map(|end| end.stream).collect();
    ended.sort_unstable();
    assert!(ended.iter().copied().eq(0..told.streams.len() as u32), "every stream ends once");
    assert_eq!((told.processes.len(), told.gone.len()), (1, 1));
}

/// What must hold of all that one reader tells.
#[derive(Default)]
struct Judge {
    /// Last attempt number and time of each stream.
    last: HashMap<u32, (u64, i64)>,
    scratch: Vec<u8>,
    packed: Vec<u8>,
}

impl Judge {
    fn sweep(&mut self, reader: &mut Reader<'_>, sweep: Sweep) {
        let promised = reader.watermark();
        let found = reader.sweep(sweep);
        assert!(reader.watermark() >= promised, "a promise is kept");
        let known = reader.facts().streams.len() as u32;
        let mut events = 0;
        for (stream, columns) in reader.take_batches() {
            assert!(stream < known, "a stream is told before its records");
            assert!(!columns.is_empty() && columns.len() <= MAX_ROWS && columns.text.len() <= MAX_TEXT);
            events += columns.len() as u64;
            for (attempt, time) in columns.attempt.iter().zip(&columns.time) {
                assert!(*time >= promised, "{time} comes from before {promised}");
                if let Some((attempt_before, time_before)) = self.last.insert(stream, (*attempt, *time)) {
                    assert!(*attempt > attempt_before, "{attempt} after {attempt_before}");
                    assert!(*time >= time_before, "{time} after {time_before}");
                }
            }
            self.packed.clear();
            columns.encode(&mut self.scratch, &mut self.packed);
            assert_eq!(Columns::decode(&self.packed), Ok(columns), "what is told can be sent");
        }
        assert_eq!(events, found.events);
    }
}

/// A segment without lanes.
fn sound() -> Vec<u8> {
    let mut bytes = vec![0; SLOTS_OFFSET];
    for (word, value) in [
        (header::MAGIC, MAGIC),
        (header::VERSION, u64::from(MAJOR) << 32),
        (header::NONCE, 7),
        (header::PID, 4711),
        (header::PPID, 1),
        (header::CLOCK, Clock::MonotonicRaw as u64),
    ] {
        set(&mut bytes, word, value);
    }
    bytes
}

fn set(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(word) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *word = value.to_le_bytes();
    }
}

fn get(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn of_lane(lane: u8, word: usize) -> usize {
    HEADER_BYTES + usize::from(lane) * LANE_BYTES + word
}

/// One thing that happens.
enum Step<'a> {
    Header { word: usize, value: u64 },
    Lane { lane: u8, word: usize, value: u64 },
    Slot { position: u64, bytes: &'a [u8] },
    Place { slots: u64 },
    Claim { lane: u8 },
    Record { lane: u8, ticks: u64, lost: u64, path: &'a [u8] },
    Mark { lane: u8 },
    Retire { lane: u8 },
    Truncate { size: usize },
    Sweep { dead: bool, room: usize, ticks: u64 },
    Restart,
}

impl<'a> Step<'a> {
    fn read(input: &mut Input<'a>) -> Option<Step<'a>> {
        let lane = |input: &mut Input<'_>| input.byte() % LANES as u8;
        Some(match input.byte() {
            0 => Step::Header { word: input.byte() as usize % 32 * 8, value: sized(input) },
            1 => Step::Lane { lane: lane(input), word: input.byte() as usize % 32 * 8, value: sized(input) },
            2 => Step::Slot { position: input.number(2), bytes: input.bytes(SLOT_BYTES) },
            3 => Step::Place { slots: 256 << (input.byte() % 6) },
            4 => Step::Claim { lane: lane(input) },
            5 => {
                let (lane, ticks, lost, path) =
                    (lane(input), input.number(3), input.number(1), input.number(2));
                Step::Record { lane, ticks, lost, path: input.bytes(path as usize % 5000) }
            }
            6 => Step::Mark { lane: lane(input) },
            7 => Step::Retire { lane: lane(input) },
            8 => Step::Truncate { size: input.number(3) as usize },
            9 => {
                let how = input.byte();
                let room = if how & 2 == 0 { usize::MAX } else { usize::from(how >> 4) };
                Step::Sweep { dead: how & 1 != 0, room, ticks: input.number(4) }
            }
            10 => Step::Restart,
            _ => return None,
        })
    }

    fn change(&self, bytes: &mut Vec<u8>, lanes: &mut u8) {
        match *self {
            Step::Header { word, value } => set(bytes, word, value),
            Step::Lane { lane, word, value } => set(bytes, of_lane(lane, word), value),
            Step::Slot { position, bytes: slot } => {
                let at = SLOTS_OFFSET + position as usize * SLOT_BYTES;
                if let Some(there) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..slot.len())) {
                    there.copy_from_slice(slot);
                }
            }
            Step::Place { slots } => {
                if usize::from(*lanes) < LANES {
                    let slots_at = bytes.len().max(SLOTS_OFFSET).next_multiple_of(SLOT_BYTES);
                    bytes.resize(slots_at + slots as usize * SLOT_BYTES, 0);
                    set(bytes, of_lane(*lanes, at::SLOTS_AT), slots_at as u64);
                    set(bytes, of_lane(*lanes, at::SLOTS), slots);
                    *lanes += 1;
                    set(bytes, header::LANES, u64::from(*lanes));
                }
            }
            Step::Claim { lane } => {
                let incarnation = (get(bytes, of_lane(lane, at::STATE)) >> 32).wrapping_add(1);
                let tail = get(bytes, of_lane(lane, at::TAIL)) >> 1;
                set(bytes, of_lane(lane, at::START), tail);
                set(bytes, of_lane(lane, at::TID), 99);
                set(bytes, of_lane(lane, at::ATTEMPTS), 0);
                set(bytes, of_lane(lane, at::STATE), incarnation << 32 | LaneState::Claimed as u64);
            }
            Step::Record { lane, ticks, lost, path } => record(bytes, lane, ticks, lost, path),
            Step::Mark { lane } => {
                let tail = get(bytes, of_lane(lane, at::TAIL));
                set(bytes, of_lane(lane, at::TAIL), tail | 1);
            }
            Step::Retire { lane } => {
                let incarnation = get(bytes, of_lane(lane, at::STATE)) >> 32;
                set(bytes, of_lane(lane, at::STATE), incarnation << 32 | LaneState::Retired as u64);
            }
            Step::Truncate { size } => bytes.truncate(size),
            Step::Sweep { .. } | Step::Restart => {}
        }
    }
}

/// A number with its length in bytes before it: small ones are short.
fn sized(input: &mut Input<'_>) -> u64 {
    let bytes = usize::from(input.byte() % 9);
    input.number(bytes)
}

/// Commits a record as a sound producer does, whose attempts are counted in `ATTEMPTS`.
fn record(bytes: &mut [u8], lane: u8, ticks: u64, lost: u64, path: &[u8]) {
    let attempt = get(bytes, of_lane(lane, at::ATTEMPTS)).wrapping_add(lost);
    let event = Event { end: ticks * 1000, duration: 5, ..samples::read(attempt) };
    let ext = Ext { path1: path, ..Ext::default() };
    let count = slots_for(&ext);
    let mut words = vec![[0; 8]; count];
    words[0] = event.slot(RecordKind::Request, count as u8, attempt as u32);
    if count > 1 {
        write_ext(&ext, |slot, word, value| words[slot][word] = value);
    }
    let (slots_at, slots) = (get(bytes, of_lane(lane, at::SLOTS_AT)), get(bytes, of_lane(lane, at::SLOTS)));
    let tail = get(bytes, of_lane(lane, at::TAIL)) >> 1;
    for (index, word) in words.iter().flatten().enumerate() {
        let slot = tail.wrapping_add(index as u64 / 8) & slots.wrapping_sub(1);
        let place = slots_at
            .saturating_add(slot.saturating_mul(SLOT_BYTES as u64))
            .saturating_add(index as u64 % 8 * 8);
        set(bytes, usize::try_from(place).unwrap_or(usize::MAX), *word);
    }
    set(bytes, of_lane(lane, at::ATTEMPTS), attempt.wrapping_add(1));
    set(bytes, of_lane(lane, at::TAIL), tail.wrapping_add(count as u64) << 1);
}

/// Programs for the lives of lanes, the ways to lie, and a segment as it is.
pub fn seeds() -> Vec<Seed> {
    let claimed = [3, 0, 4, 0];
    let record =
        |lane: u8, ticks: u8, path: &[u8]| [&[5, lane, ticks, 0, 0, 0, path.len() as u8, 0], path].concat();
    let sweep = [9, 0, 0, 0, 16, 0];
    let two = [&claimed[..], &record(0, 1, b""), &record(0, 2, b"/data/a")].concat();
    let lie = |word: usize, value: u64| {
        let word = (word / 8) as u8;
        [&two[..], &sweep, &[1, 0, word, 8], &value.to_le_bytes(), &record(0, 3, b""), &sweep].concat()
    };
    let mut raw = vec![255];
    raw.extend_from_slice(&sound()[..HEADER_BYTES]);
    vec![
        ("records", [&two[..], &sweep, &record(0, 3, b"/b"), &[6, 0], &sweep].concat()),
        ("retired", [&two[..], &[7, 0], &sweep, &[4, 0], &record(0, 4, b""), &sweep].concat()),
        ("two-lanes", [&two[..], &[3, 1, 4, 1], &record(1, 1, b"/x"), &sweep, &[10], &sweep].concat()),
        ("no-room", [&two[..], &[9, 2, 0, 0, 1, 0], &sweep].concat()),
        ("cut", [&two[..], &sweep, &[8, 0, 16, 4], &sweep].concat()),
        ("slot", [&two[..], &[2, 0, 0], &[9; 64], &sweep].concat()),
        ("tail", lie(at::TAIL, u64::MAX)),
        ("head", lie(at::HEAD, 77)),
        ("oldest", lie(at::OLDEST, 1)),
        ("in-flight", lie(at::IN_FLIGHT, 0x0101_0000)),
        ("enclosing", lie(at::ENCLOSING, 0x0101_0000)),
        ("lanes", [&two[..], &[0, (header::LANES / 8) as u8, 8], &u64::MAX.to_le_bytes(), &sweep].concat()),
        ("bytes", raw),
    ]
}
