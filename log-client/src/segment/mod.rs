//! Reads one segment without trusting its content.
//!
//! A segment is the shared memory of one traced process ([`miot_proto::segment`]). It is read by
//! copying ([`memory`]), so that no write and no truncation by its producer can raise a signal here
//! or change data after it was checked. Whatever its bytes are, a sweep ends after bounded work and
//! without a panic. Invalid data is counted as a violation and quarantines the lane.
//!
//! `HEAD` is written only after the records were passed to the sink, which has written them to the
//! spool. If a log-client is killed between the two, the next one reads the same records again, and
//! the log-server recognizes them by stream and attempt number.

mod block;
mod drain;
mod header;
mod in_flight_entry;
mod interrupted;
mod lane;
mod lease;
mod memory;
mod moving;
mod records;
mod survey;

#[cfg(test)]
pub(crate) mod builder;
#[cfg(test)]
mod tests;

pub(crate) use header::{Header, HeaderError};
pub(crate) use in_flight_entry::{InFlightEntry, LaneRequests, PendingRequest};
pub(crate) use lane::EndReason;
#[cfg(test)]
pub(crate) use memory::VecMemory;
pub(crate) use memory::{Memory, OutOfBounds, SegmentFile, memory_of, word};

use crate::clock::{Clocks, Now};
use crate::facts::{Fact, Sink};
use crate::watermark::SLACK_NS;
use lane::{Lane, LaneOwner};
use miot_proto::batch::Columns;
use miot_proto::segment::{Clock, HEADER_BYTES, LANE_BYTES, MAX_LANES, header as at};
use miot_proto::wire::{Process, ProcessKey, ProcessLoss};
use std::sync::atomic::{Ordering::Acquire, fence};

/// Bytes of the header with its variable words: up to and including `CLOSED`.
const COUNTERS: usize = 128;

/// Offset of the lane entries in a copy of the segment that begins with the word `LANES`.
const ENTRIES: usize = HEADER_BYTES - at::LANES;

/// Violations after which a segment is not read any more: examining invalid data takes time from
/// the other segments.
const MAX_VIOLATIONS: u64 = 100_000;

/// Parameters and shared state of a sweep.
pub(crate) struct SweepContext<'a> {
    /// Time before anything was read.
    pub(crate) t0: Now,
    /// The present, in ticks.
    pub(crate) latest: &'a dyn Fn(Clock) -> u64,
    pub(crate) clocks: &'a Clocks,
    /// The current watermark of the node.
    pub(crate) watermark: i64,
    /// Number of the next stream.
    pub(crate) streams: &'a mut u32,
    /// Streams of this sweep have numbers below this one.
    pub(crate) streams_until: u32,
    /// Whether any producer may have seen the policy overwrite-oldest; once true, always true.
    pub(crate) overwrites: &'a dyn Fn() -> bool,
    pub(crate) reads: ReadMode,
    /// Slots to which lanes can grow; 0 if they cannot.
    pub(crate) grown_slots: u64,
    /// Number of the snapshot in progress.
    pub(crate) snapshot: Option<u64>,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) sink: &'a mut dyn Sink,
}

/// Lanes that a sweep reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// All lanes.
    #[default]
    AllLanes,
    /// Lanes to which nothing more is added; of other lanes only the records for a snapshot.
    EndedLanes,
}

impl SweepContext<'_> {
    fn t0_time(&self, clock: Clock) -> i64 {
        self.clocks.of(clock).time(self.t0.of(clock))
    }

    fn next_stream(&mut self) -> u32 {
        let number = *self.streams;
        *self.streams = number.wrapping_add(1);
        number
    }
}

/// Buffers reused between sweeps.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    slots: Vec<u8>,
    table: Vec<u8>,
    columns: Columns,
}

impl Scratch {
    fn parts(&mut self, bytes: usize) -> (&mut [u8], &mut Columns) {
        if self.slots.len() < bytes {
            self.slots.resize(bytes, 0);
        }
        (&mut self.slots[..bytes], &mut self.columns)
    }
}

/// Counters of one or more sweeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    pub(crate) streams: u64,
    pub(crate) violations: u64,
    /// Requests with undefined layers or operations; included in `violations`.
    pub(crate) undefined: u64,
    /// Violations that the trace counts by attempt numbers in their streams; included in
    /// `violations`.
    pub(crate) numbered: u64,
    pub(crate) unknown: u64,
    pub(crate) clamped: u64,
    /// Events made of interrupted requests; included in `events`.
    pub(crate) interrupted: u64,
    /// Fill of the fullest lane, 64ths.
    pub(crate) fullest: u32,
    /// The same, with lanes that can still grow counted as lanes of the maximum size.
    pub(crate) fullest_grown: u32,
    /// Maximum completion time of the events, nanoseconds since 1970.
    pub(crate) newest: i64,
    /// Something was left for the next sweep.
    pub(crate) unfinished: bool,
    /// A lane has not reached its position for the snapshot.
    pub(crate) behind: bool,
    /// Number of copies of slots, which is bounded per sweep.
    copies: usize,
    /// The first lane that was not read because of that bound.
    starved: Option<usize>,
}

/// A segment that is being read.
#[derive(Debug)]
pub(crate) struct Segment<M> {
    memory: M,
    header: Header,
    key: ProcessKey,
    lanes: Vec<Lane>,
    /// The lane with which the next sweep starts.
    first: usize,
    /// Violations so far.
    violations: u64,
    /// Violations that take no time from other segments.
    undefined: u64,
    /// Violations that are counted in the streams.
    numbered: u64,
    /// Violations that were reported to other log-servers.
    reported: u64,
    closed: bool,
    /// The file is shorter than its header claims, or has too many violations: it is not read any
    /// more.
    cut_off: bool,
}

impl<M: Memory> Segment<M> {
    /// Announces the process of a header. `uid`: owner of the file.
    pub(crate) fn attach(
        memory: M,
        header: Header,
        boot: u128,
        uid: u32,
        context: &mut SweepContext<'_>,
    ) -> Segment<M> {
        let key = ProcessKey { boot, nonce: header.nonce, pid: header.pid };
        context.sink.send(Fact::Process(definition(key, &header, uid, context)));
        Segment {
            memory,
            header,
            key,
            lanes: Vec::new(),
            first: 0,
            violations: 0,
            undefined: 0,
            numbered: 0,
            reported: 0,
            closed: false,
            cut_off: false,
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// True once the producer has announced that it writes nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Reads the new records of all lanes. `dead`: the producer writes nothing more.
    pub(crate) fn sweep(&mut self, dead: bool, context: &mut SweepContext<'_>) -> Tally {
        let mut tally = Tally::default();
        if !self.cut_off && self.try_sweep(dead, context, &mut tally).is_err() {
            tracing::warn!(pid = self.key.pid, "segment truncated, ignoring it");
            tally.violations += 1;
            self.cut_off = true;
        }
        self.violations += tally.violations;
        self.undefined += tally.undefined;
        self.numbered += tally.numbered;
        if self.violations - self.undefined > MAX_VIOLATIONS && !self.cut_off {
            tracing::warn!(pid = self.key.pid, "segment has too many violations, ignoring it");
            self.cut_off = true;
        }
        tally
    }

    fn try_sweep(
        &mut self,
        dead: bool,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), OutOfBounds> {
        let mut table = std::mem::take(&mut context.scratch.table);
        let read = self.read_table(&mut table);
        if read.is_ok() {
            let lanes = self.lanes.len();
            // Starts where the last sweep had to stop copying, and wraps around.
            for index in (self.first..lanes).chain(0..self.first.min(lanes)) {
                let (lane, entry) =
                    (&mut self.lanes[index], &table[ENTRIES + index * LANE_BYTES..][..LANE_BYTES]);
                let owner = LaneOwner {
                    memory: &self.memory,
                    key: self.key,
                    clock: self.header.clock,
                    lane: index,
                    created: self.header.created_ticks,
                    dead,
                };
                lane.sweep(entry, &owner, context, tally);
            }
            self.first = tally.starved.unwrap_or(0);
        }
        context.scratch.table = table;
        read
    }

    /// Reads the variable words of the header and, from [`ENTRIES`] on, the entries of all lanes in
    /// use: one system call if there are no new lanes.
    fn read_table(&mut self, table: &mut Vec<u8>) -> Result<(), OutOfBounds> {
        let known = self.lanes.len();
        table.resize(ENTRIES + known * LANE_BYTES, 0);
        self.memory.read(at::LANES as u64, table)?;
        self.closed |= word(table, at::CLOSED - at::LANES) != 0;
        let claimed = usize::try_from(word(table, 0)).unwrap_or(usize::MAX).min(MAX_LANES);
        // The number is stored after the entries and never decreases.
        if claimed > known {
            fence(Acquire);
            self.lanes.resize_with(claimed, Lane::default);
            table.resize(ENTRIES + claimed * LANE_BYTES, 0);
            let at = HEADER_BYTES + known * LANE_BYTES;
            self.memory.read(at as u64, &mut table[ENTRIES + known * LANE_BYTES..])?;
        }
        Ok(())
    }

    /// Minimum of the safe times of the open lanes; `None` if no lane is open.
    pub(crate) fn safe(&self) -> Option<i64> {
        if self.cut_off {
            return None;
        }
        self.lanes.iter().filter_map(Lane::safe).min().map(|safe| safe.time())
    }

    /// Ends all streams and the process. Records that were not drained stay in the lanes. `reason`:
    /// [`EndReason::Finished`] if the process has ended, and its requests in flight with it;
    /// [`EndReason::ReaderStopped`] if the log-client stops.
    pub(crate) fn end(
        &mut self,
        reason: EndReason,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) -> ProcessLoss {
        let mut counters = [0; COUNTERS];
        let mut table = vec![0; self.lanes.len() * LANE_BYTES];
        let before = (tally.violations, tally.numbered);
        // Unreadable counters count as 0.
        let _ = self.memory.read(0, &mut counters);
        let _ = self.memory.read(HEADER_BYTES as u64, &mut table);
        let reason = if self.cut_off { EndReason::CutOff } else { reason };
        for (index, (lane, entry)) in self.lanes.iter_mut().zip(table.chunks_exact(LANE_BYTES)).enumerate() {
            let owner = LaneOwner {
                memory: &self.memory,
                key: self.key,
                clock: self.header.clock,
                lane: index,
                created: self.header.created_ticks,
                dead: true,
            };
            lane.close(entry, reason, &owner, context, tally);
        }
        self.violations += tally.violations - before.0;
        self.numbered += tally.numbered - before.1;
        let lost = ProcessLoss {
            no_lane: word(&counters, at::LOST_NO_LANE),
            abi_violations: self.violations.saturating_sub(self.numbered).saturating_sub(self.reported),
        };
        let now = context.clocks.of(self.header.clock).time((context.latest)(self.header.clock));
        context.sink.send(Fact::ProcessEnd { key: self.key, time: now.max(context.watermark), lost });
        lost
    }
}

/// The description of a process. `uid`: owner of the file.
fn definition(key: ProcessKey, header: &Header, uid: u32, context: &SweepContext<'_>) -> Process {
    let clock = context.clocks.of(header.clock);
    let created = header.created_ticks.min((context.latest)(header.clock));
    Process {
        key,
        ppid: header.ppid,
        uid,
        started: clock.time(created),
        rank: header.rank,
        exe: header.exe.clone(),
        cmdline: header.cmdline.clone(),
        job: header.job.clone(),
        cwd: header.cwd.clone(),
    }
}

/// Time up to which a lane that does not exist yet is safe.
pub(crate) fn horizon(clocks: &Clocks, t0: Now) -> i64 {
    [Clock::Tsc, Clock::MonotonicRaw]
        .map(|clock| clocks.of(clock).time(t0.of(clock)))
        .into_iter()
        .fold(i64::MAX, i64::min)
        .saturating_sub(SLACK_NS)
}
