//! A reader of one segment at times chosen by a test: the log-client's own code from the header to
//! the batches, without files, clocks and threads. For property tests and fuzz targets of other
//! crates.
//!
//! One tick is one nanosecond, and all times are in ticks. [`spool`] wraps a spool, [`made`] builds
//! messages and events, [`devices`] wraps the device sampler, [`cluster`] the decisions of a node
//! among others.

pub mod cluster;
pub mod devices;
pub mod samples;
pub mod spool;

use crate::clock::{ClockReading, Clocks, Now, Timeline};
use crate::facts::{Fact, Sink};
use crate::segment::{
    EndReason, Header, Memory, OutOfBounds, ReadMode, Scratch, Segment, SweepContext, Tally,
};
use miot_proto::batch::Columns;
use miot_proto::wire::{Process, ProcessKey, ProcessLoss, Stream, StreamEnd};
use std::cell::RefCell;
use std::time::Duration;

/// The waits of a log-client between attempts to connect, after its last good connection.
pub fn connection_waits(seed: u64) -> impl FnMut() -> Duration {
    let mut waits = cluster::ConnectionWaits::new(seed);
    move || waits.next_wait()
}

/// Tick 0, nanoseconds since 1970.
const EPOCH: i64 = 1_700_000_000_000_000_000;

/// Offset of the present from the start of a sweep, in ticks.
pub const SWEEP_TICKS: u64 = 1_000_000_000;

/// The bytes of a segment, which its producer may be changing. `None` for bytes that do not exist.
pub trait SegmentBytes {
    /// Fills `buffer` from offset `at` on.
    fn read(&self, at: u64, buffer: &mut [u8]) -> Option<()>;
    /// Writes one word with a release store.
    fn write_word(&self, at: u64, value: u64) -> Option<()>;
    /// Size in bytes.
    fn size(&self) -> u64;
}

/// Bytes that no other thread accesses.
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

/// Adapter from [`SegmentBytes`] to [`Memory`].
#[derive(Clone, Copy)]
struct BorrowedMemory<'a>(&'a dyn SegmentBytes);

impl Memory for BorrowedMemory<'_> {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), OutOfBounds> {
        self.0.read(at, buffer).ok_or(OutOfBounds)
    }

    fn write_word(&self, at: u64, value: u64) -> Result<(), OutOfBounds> {
        self.0.write_word(at, value).ok_or(OutOfBounds)
    }

    fn size(&self) -> u64 {
        self.0.size()
    }
}

/// All facts that a reader has sent.
#[derive(Debug, Default)]
pub struct CollectedFacts {
    /// Processes that appeared.
    pub processes: Vec<Process>,
    /// Streams that appeared.
    pub streams: Vec<Stream>,
    /// Records with their stream numbers; completion times in ticks.
    pub batches: Vec<(u32, Columns)>,
    /// Streams that ended.
    pub ends: Vec<StreamEnd>,
    /// Processes that ended.
    pub gone: Vec<(ProcessKey, ProcessLoss)>,
    /// Number of batches that are still accepted.
    max_batches: usize,
}

impl Sink for CollectedFacts {
    fn has_space(&self) -> bool {
        self.max_batches > 0
    }

    fn send(&mut self, fact: Fact<'_>) {
        match fact {
            Fact::Process(process) => self.processes.push(process),
            Fact::Stream(stream) => self.streams.push(stream),
            Fact::Batch { stream, columns, .. } => {
                self.max_batches = self.max_batches.saturating_sub(1);
                let mut columns = columns.clone();
                columns.time.iter_mut().for_each(|time| *time -= EPOCH);
                self.batches.push((stream, columns));
            }
            Fact::StreamEnd(end) => self.ends.push(StreamEnd { time: end.time - EPOCH, ..end }),
            Fact::ProcessEnd { key, lost, .. } => self.gone.push((key, lost)),
            Fact::Watermark(_) | Fact::Aside | Fact::Devices(_) | Fact::Resume(_) => {}
        }
    }
}

/// Parameters of a sweep.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Time before anything is read, ticks.
    pub t0: u64,
    /// The producer writes nothing more.
    pub dead: bool,
    /// Maximum number of batches accepted.
    pub max_batches: usize,
}

/// Counters of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Records.
    pub events: u64,
    /// Invalid records and lanes.
    pub violations: u64,
    /// Records whose time was raised to keep the order or the watermark.
    pub clamped: u64,
    /// Something was left for the next sweep.
    pub unfinished: bool,
}

/// A log-client's reader of one segment.
pub struct Reader<'a> {
    segment: Segment<BorrowedMemory<'a>>,
    facts: CollectedFacts,
    clocks: Clocks,
    streams: u32,
    scratch: Scratch,
    watermark: i64,
    overwrites: bool,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl<'a> Reader<'a> {
    /// Attaches to a segment; `None` if its header is invalid.
    #[must_use]
    pub fn attach(bytes: &'a dyn SegmentBytes) -> Option<Reader<'a>> {
        let memory = BorrowedMemory(bytes);
        let header = Header::read(&memory).ok()?;
        let reading = |ticks: u64| ClockReading { ticks, time: EPOCH + ticks as i64 };
        let line = Timeline::new(reading(0), reading(1_000_000));
        let clocks = Clocks::fixed(line.clone(), line);
        let (mut facts, mut streams, mut scratch) = (CollectedFacts::default(), 0, Scratch::default());
        let mut context = SweepContext {
            t0: Now { tsc: 0, raw: 0 },
            latest: &|_| u64::MAX,
            clocks: &clocks,
            watermark: EPOCH,
            streams: &mut streams,
            streams_until: u32::MAX >> 1,
            overwrites: &|| true,
            reads: ReadMode::AllLanes,
            grown_slots: 0,
            snapshot: None,
            scratch: &mut scratch,
            sink: &mut facts,
        };
        let segment = Segment::attach(memory, header, 1, 1000, &mut context);
        Some(Reader { segment, facts, clocks, streams, scratch, watermark: EPOCH, overwrites: false })
    }

    fn context<T>(
        &mut self,
        sweep: Sweep,
        act: impl FnOnce(&mut Segment<BorrowedMemory<'a>>, &mut SweepContext<'_>) -> T,
    ) -> T {
        self.facts.max_batches = sweep.max_batches;
        let mut context = SweepContext {
            t0: Now { tsc: sweep.t0, raw: sweep.t0 },
            latest: &|_| sweep.t0.saturating_add(SWEEP_TICKS),
            clocks: &self.clocks,
            watermark: self.watermark,
            streams: &mut self.streams,
            streams_until: u32::MAX >> 1,
            overwrites: &|| self.overwrites,
            reads: ReadMode::AllLanes,
            grown_slots: 0,
            snapshot: None,
            scratch: &mut self.scratch,
            sink: &mut self.facts,
        };
        act(&mut self.segment, &mut context)
    }

    /// From now on the producer may overwrite unread records.
    pub fn overwrites(&mut self) {
        self.overwrites = true;
    }

    /// Reads the new records of all lanes, and advances the watermark as far as possible.
    pub fn sweep(&mut self, sweep: Sweep) -> SweepCounts {
        let tally = self.context(sweep, |segment, context| segment.sweep(sweep.dead, context));
        if let Some(safe) = self.segment.safe() {
            self.watermark = self.watermark.max(safe);
        }
        SweepCounts {
            events: tally.events,
            violations: tally.violations,
            clamped: tally.clamped,
            unfinished: tally.unfinished,
        }
    }

    /// Ends all streams and the process at time `t0`, ticks.
    pub fn end(&mut self, t0: u64) -> ProcessLoss {
        self.context(Sweep { t0, dead: true, max_batches: usize::MAX }, |segment, context| {
            segment.end(EndReason::Finished, context, &mut Tally::default())
        })
    }

    /// The current watermark, ticks: no event from before it follows.
    #[must_use]
    pub fn watermark(&self) -> i64 {
        self.watermark - EPOCH
    }

    /// All facts so far.
    #[must_use]
    pub fn facts(&self) -> &CollectedFacts {
        &self.facts
    }

    /// Takes all facts since the last call.
    pub fn take_facts(&mut self) -> CollectedFacts {
        std::mem::take(&mut self.facts)
    }

    /// Takes the records since the last call.
    pub fn take_batches(&mut self) -> Vec<(u32, Columns)> {
        std::mem::take(&mut self.facts.batches)
    }
}

/// Sweeps arbitrary bytes as a segment, a few times, then ends it. Returns the number of records.
/// Must return for any bytes.
#[must_use]
pub fn sweep_bytes(bytes: Vec<u8>) -> usize {
    let (bytes, t0) = (RefCell::new(bytes), 2_000_000);
    let Some(mut reader) = Reader::attach(&bytes) else { return 0 };
    reader.overwrites();
    for dead in [false, false, true] {
        let _ = reader.sweep(Sweep { t0, dead, max_batches: usize::MAX });
    }
    reader.end(t0);
    reader.facts().batches.iter().map(|(_, columns)| columns.len()).sum()
}
