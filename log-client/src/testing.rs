//! A reader of one segment at times that a test chooses: the log-client's own code from the header to the
//! batches, without files, clocks and threads. For property tests and fuzz targets of other crates.
//!
//! One tick is one nanosecond, and all times are given in ticks. [`spool`] is what becomes of what it tells, [`made`] what
//! can be told without it; [`devices`] are the samples of devices.

pub mod devices;
pub mod made;
pub mod spool;

use crate::clock::{Clocks, Now, Reading, Timeline};
use crate::facts::{Fact, Sink};
use crate::segment::{Header, Memory, Reads, Round, Scratch, Segment, Short, Tally};
use miot_proto::batch::Columns;
use miot_proto::wire::{Process, ProcessKey, ProcessLoss, Stream, StreamEnd};
use std::cell::RefCell;

/// Tick 0, nanoseconds since 1970.
const EPOCH: i64 = 1_700_000_000_000_000_000;

/// How far the present is after the start of a sweep, in ticks.
pub const SWEEP_TICKS: u64 = 1_000_000_000;

/// The bytes of a segment, which its producer may be changing. What is not there is `None`.
pub trait SegmentBytes {
    /// Fills `buffer` from `at` on.
    fn read(&self, at: u64, buffer: &mut [u8]) -> Option<()>;
    /// Writes one word, a release store.
    fn write_word(&self, at: u64, value: u64) -> Option<()>;
    /// Size, bytes.
    fn size(&self) -> u64;
}

/// Bytes that nobody else has.
impl SegmentBytes for RefCell<Vec<u8>> {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        let bytes = self.borrow();
        let part = bytes.get(usize::try_from(at).ok()?..)?.get(..buffer.len())?;
        buffer.copy_from_slice(part);
        Some(())
    }

    fn write_word(&self, at: u64, value: u64) -> Option<()> {
        let mut bytes = self.borrow_mut();
        let part = bytes.get_mut(usize::try_from(at).ok()?..)?.get_mut(..8)?;
        part.copy_from_slice(&value.to_le_bytes());
        Some(())
    }

    fn size(&self) -> u64 {
        self.borrow().len() as u64
    }
}

/// Lends bytes to a [`Segment`].
#[derive(Clone, Copy)]
struct Lent<'a>(&'a dyn SegmentBytes);

impl Memory for Lent<'_> {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), Short> {
        self.0.read(at, buffer).ok_or(Short)
    }

    fn write_word(&self, at: u64, value: u64) -> Result<(), Short> {
        self.0.write_word(at, value).ok_or(Short)
    }

    fn size(&self) -> u64 {
        self.0.size()
    }
}

/// All that a reader told.
#[derive(Debug, Default)]
pub struct Told {
    /// Processes that appeared.
    pub processes: Vec<Process>,
    /// Streams that appeared.
    pub streams: Vec<Stream>,
    /// Records with the numbers of their streams; completion times in ticks.
    pub batches: Vec<(u32, Columns)>,
    /// Streams that ended.
    pub ends: Vec<StreamEnd>,
    /// Processes that ended.
    pub gone: Vec<(ProcessKey, ProcessLoss)>,
    /// Batches that are still taken.
    room: usize,
}

impl Sink for Told {
    fn has_room(&self) -> bool {
        self.room > 0
    }

    fn send(&mut self, fact: Fact<'_>) {
        match fact {
            Fact::Process(process) => self.processes.push(process),
            Fact::Stream(stream) => self.streams.push(stream),
            Fact::Batch { stream, columns, .. } => {
                self.room = self.room.saturating_sub(1);
                let mut columns = columns.clone();
                columns.time.iter_mut().for_each(|time| *time -= EPOCH);
                self.batches.push((stream, columns));
            }
            Fact::StreamEnd(end) => self.ends.push(StreamEnd { time: end.time - EPOCH, ..end }),
            Fact::ProcessEnd { key, lost, .. } => self.gone.push((key, lost)),
            Fact::Watermark(_) | Fact::Aside | Fact::Devices(_) => {}
        }
    }
}

/// When and how to sweep.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The time before anything is read, ticks.
    pub t0: u64,
    /// Nobody writes any more.
    pub dead: bool,
    /// Batches that are taken at most.
    pub room: usize,
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Records.
    pub events: u64,
    /// Records and lanes that made no sense.
    pub violations: u64,
    /// Records whose time was moved up to keep the order or the promise.
    pub clamped: u64,
    /// Something was left for the next sweep.
    pub rest: bool,
}

/// A log-client's view of one segment.
pub struct Reader<'a> {
    segment: Segment<Lent<'a>>,
    told: Told,
    clocks: Clocks,
    streams: u32,
    scratch: Scratch,
    watermark: i64,
    overwrites: bool,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("told", &self.told).finish_non_exhaustive()
    }
}

impl<'a> Reader<'a> {
    /// Takes up a segment; `None` if its header is not one.
    #[must_use]
    pub fn attach(bytes: &'a dyn SegmentBytes) -> Option<Reader<'a>> {
        let memory = Lent(bytes);
        let header = Header::read(&memory).ok()?;
        let reading = |ticks: u64| Reading { ticks, time: EPOCH + ticks as i64 };
        let line = Timeline::new(reading(0), reading(1_000_000));
        let clocks = Clocks::fixed(line.clone(), line);
        let (mut told, mut streams, mut scratch) = (Told::default(), 0, Scratch::default());
        let mut round = Round {
            t0: Now { tsc: 0, raw: 0 },
            latest: &|_| u64::MAX,
            clocks: &clocks,
            watermark: EPOCH,
            streams: &mut streams,
            streams_until: u32::MAX >> 1,
            overwrites: &|| true,
            reads: Reads::Everything,
            snapshot: None,
            scratch: &mut scratch,
            sink: &mut told,
        };
        let segment = Segment::attach(memory, header, 1, 1000, &mut round);
        Some(Reader { segment, told, clocks, streams, scratch, watermark: EPOCH, overwrites: false })
    }

    fn round<T>(&mut self, sweep: Sweep, act: impl FnOnce(&mut Segment<Lent<'a>>, &mut Round<'_>) -> T) -> T {
        self.told.room = sweep.room;
        let mut round = Round {
            t0: Now { tsc: sweep.t0, raw: sweep.t0 },
            latest: &|_| sweep.t0.saturating_add(SWEEP_TICKS),
            clocks: &self.clocks,
            watermark: self.watermark,
            streams: &mut self.streams,
            streams_until: u32::MAX >> 1,
            overwrites: &|| self.overwrites,
            reads: Reads::Everything,
            snapshot: None,
            scratch: &mut self.scratch,
            sink: &mut self.told,
        };
        act(&mut self.segment, &mut round)
    }

    /// From now on the producer may overwrite what was not read.
    pub fn overwrites(&mut self) {
        self.overwrites = true;
    }

    /// Reads what is new in all lanes, and promises what can then be promised.
    pub fn sweep(&mut self, sweep: Sweep) -> Found {
        let tally = self.round(sweep, |segment, round| segment.sweep(sweep.dead, round));
        if let Some(safe) = self.segment.safe() {
            self.watermark = self.watermark.max(safe);
        }
        Found { events: tally.events, violations: tally.violations, clamped: tally.clamped, rest: tally.rest }
    }

    /// Ends all streams and the process, at a time.
    pub fn end(&mut self, t0: u64) -> ProcessLoss {
        self.round(Sweep { t0, dead: true, room: usize::MAX }, |segment, round| {
            segment.end(true, round, &mut Tally::default())
        })
    }

    /// What was promised so far, ticks: nothing comes from before it any more.
    #[must_use]
    pub fn promised(&self) -> i64 {
        self.watermark - EPOCH
    }

    /// What was told so far.
    #[must_use]
    pub fn told(&self) -> &Told {
        &self.told
    }

    /// Takes all that was told since the last call.
    pub fn take_told(&mut self) -> Told {
        std::mem::take(&mut self.told)
    }

    /// Takes the records told since the last call.
    pub fn take_batches(&mut self) -> Vec<(u32, Columns)> {
        std::mem::take(&mut self.told.batches)
    }
}

/// Sweeps arbitrary bytes as if they were a segment, a few times, then ends it: the records found. Must return whatever
/// the bytes are.
#[must_use]
pub fn sweep_bytes(bytes: Vec<u8>) -> usize {
    let (bytes, t0) = (RefCell::new(bytes), 2_000_000);
    let Some(mut reader) = Reader::attach(&bytes) else { return 0 };
    reader.overwrites();
    for dead in [false, false, true] {
        let _ = reader.sweep(Sweep { t0, dead, room: usize::MAX });
    }
    reader.end(t0);
    reader.told().batches.iter().map(|(_, columns)| columns.len()).sum()
}
