//! One segment, read without trust.
//!
//! A segment is the shared memory of one traced process ([`miot_proto::segment`]). It is read by copying
//! ([`memory`]), so that no write and no truncation by its producer can raise a signal here or change what
//! was checked. Whatever its bytes say, a sweep ends after bounded work and without a panic; nonsense is
//! counted as a violation and quarantines the lane.
//!
//! `HEAD` is written only after the records were handed to the sink, which has written them to the spool. A
//! log-client that is killed between the two is followed by one that reads the same records again, and the
//! log-server knows them by stream and attempt number.

mod cut_off;
mod drain;
mod header;
mod lane;
mod lease;
mod memory;
mod records;
mod shown;

#[cfg(test)]
pub(crate) mod hand_made;
#[cfg(test)]
mod tests;

pub(crate) use header::{Header, Unfit};
#[cfg(test)]
pub(crate) use memory::Bytes;
pub(crate) use memory::{Memory, SegmentFile, Short, memory_of, word};
pub(crate) use shown::Shown;

use crate::clock::{Clocks, Now};
use crate::facts::{Fact, Sink};
use crate::report::Survey;
use crate::watermark::SLACK_NS;
use lane::{Closing, Lane, Owner};
use miot_proto::batch::Columns;
use miot_proto::segment::{Clock, HEADER_BYTES, LANE_BYTES, MAX_LANES, header as at};
use miot_proto::wire::{Process, ProcessKey, ProcessLoss};
use std::sync::atomic::{Ordering::Acquire, fence};

/// The words of the header that change: up to and including `CLOSED`.
const COUNTERS: usize = 128;

/// Where the entries begin in a copy of the segment that begins with the word `LANES`.
const ENTRIES: usize = HEADER_BYTES - at::LANES;

/// Violations after which a segment is not read any more: looking at nonsense takes time from the others.
const MOST_VIOLATIONS: u64 = 100_000;

/// What a sweep works with.
pub(crate) struct Round<'a> {
    /// The time before anything was read.
    pub(crate) t0: Now,
    /// The present, in ticks.
    pub(crate) latest: &'a dyn Fn(Clock) -> u64,
    pub(crate) clocks: &'a Clocks,
    /// What the node has promised.
    pub(crate) watermark: i64,
    /// Number of the next stream.
    pub(crate) streams: &'a mut u32,
    /// No stream gets this number, or a later one, in this sweep.
    pub(crate) streams_until: u32,
    /// Whether producers may have been told to overwrite; once true, for ever.
    pub(crate) overwrites: &'a dyn Fn() -> bool,
    pub(crate) reads: Reads,
    /// Number of the snapshot that is being taken.
    pub(crate) snapshot: Option<u64>,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) sink: &'a mut dyn Sink,
}

/// Which lanes a sweep reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reads {
    /// All.
    #[default]
    Everything,
    /// Those to which nothing more is added; of others only what a snapshot is to have.
    Endings,
}

impl Round<'_> {
    fn t0_time(&self, clock: Clock) -> i64 {
        self.clocks.of(clock).time(self.t0.of(clock))
    }

    fn next_stream(&mut self) -> u32 {
        let number = *self.streams;
        *self.streams = number.wrapping_add(1);
        number
    }
}

/// Memory that sweeps reuse.
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

/// What sweeps found, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    pub(crate) streams: u64,
    pub(crate) violations: u64,
    /// Requests of layers and operations that are not defined; among `violations`.
    pub(crate) undefined: u64,
    pub(crate) unknown: u64,
    pub(crate) clamped: u64,
    /// Events made of requests that were cut off; among `events`.
    pub(crate) interrupted: u64,
    /// How full the fullest lane was, in 64ths.
    pub(crate) fullest: u32,
    /// Completion of the latest event, nanoseconds since 1970.
    pub(crate) newest: i64,
    /// Something was left for the next sweep.
    pub(crate) rest: bool,
    /// A lane has not got to where the snapshot wants it.
    pub(crate) behind: bool,
    /// Copies made of slots, which are bounded for a sweep.
    copies: usize,
    /// The first lane for which that bound left nothing.
    starved: Option<usize>,
}

/// A segment being read.
#[derive(Debug)]
pub(crate) struct Segment<M> {
    memory: M,
    header: Header,
    key: ProcessKey,
    lanes: Vec<Lane>,
    /// The lane that a sweep begins with.
    first: usize,
    /// Violations so far.
    violations: u64,
    /// Those among them that take no time from others.
    undefined: u64,
    closed: bool,
    /// The file is shorter than its header says, or full of nonsense: nothing more is read from it.
    cut_off: bool,
}

impl<M: Memory> Segment<M> {
    /// Announces the process of a header. `uid` owns the file.
    pub(crate) fn attach(
        memory: M,
        header: Header,
        boot: u128,
        uid: u32,
        round: &mut Round<'_>,
    ) -> Segment<M> {
        let key = ProcessKey { boot, nonce: header.nonce, pid: header.pid };
        let clock = round.clocks.of(header.clock);
        let created = header.created_ticks.min((round.latest)(header.clock));
        round.sink.send(Fact::Process(Process {
            key,
            ppid: header.ppid,
            uid,
            started: clock.time(created),
            rank: header.rank,
            exe: header.exe.clone(),
            cmdline: header.cmdline.clone(),
            job: header.job.clone(),
            cwd: header.cwd.clone(),
        }));
        Segment {
            memory,
            header,
            key,
            lanes: Vec::new(),
            first: 0,
            violations: 0,
            undefined: 0,
            closed: false,
            cut_off: false,
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Counts it in.
    pub(crate) fn survey(&self, taken: u64, clocks: &Clocks, survey: &mut Survey) {
        let open: Vec<bool> = self.lanes.iter().map(Lane::is_open).collect();
        survey.look((&self.memory, &self.header), taken, &open, clocks);
    }

    /// True once the producer has said that it writes nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Reads what is new in all lanes. `dead`: nobody writes any more.
    pub(crate) fn sweep(&mut self, dead: bool, round: &mut Round<'_>) -> Tally {
        let mut tally = Tally::default();
        if !self.cut_off && self.try_sweep(dead, round, &mut tally).is_err() {
            tracing::warn!(pid = self.key.pid, "a segment was truncated: it is not read any more");
            tally.violations += 1;
            self.cut_off = true;
        }
        self.violations += tally.violations;
        self.undefined += tally.undefined;
        if self.violations - self.undefined > MOST_VIOLATIONS && !self.cut_off {
            tracing::warn!(
                pid = self.key.pid,
                "a segment breaks the rules all the time: it is not read any more"
            );
            self.cut_off = true;
        }
        tally
    }

    fn try_sweep(&mut self, dead: bool, round: &mut Round<'_>, tally: &mut Tally) -> Result<(), Short> {
        let mut table = std::mem::take(&mut round.scratch.table);
        let read = self.read_table(&mut table);
        if read.is_ok() {
            let lanes = self.lanes.len();
            // Around from where the last sweep had to stop copying.
            for index in (self.first..lanes).chain(0..self.first.min(lanes)) {
                let (lane, entry) =
                    (&mut self.lanes[index], &table[ENTRIES + index * LANE_BYTES..][..LANE_BYTES]);
                let owner = Owner {
                    memory: &self.memory,
                    key: self.key,
                    clock: self.header.clock,
                    lane: index,
                    created: self.header.created_ticks,
                    dead,
                };
                lane.sweep(entry, &owner, round, tally);
            }
            self.first = tally.starved.unwrap_or(0);
        }
        round.scratch.table = table;
        read
    }

    /// The header's words that change, and from [`ENTRIES`] on the entries of all lanes that are in use: with one
    /// system call where nothing is new.
    fn read_table(&mut self, table: &mut Vec<u8>) -> Result<(), Short> {
        let known = self.lanes.len();
        table.resize(ENTRIES + known * LANE_BYTES, 0);
        self.memory.read(at::LANES as u64, table)?;
        self.closed |= word(table, at::CLOSED - at::LANES) != 0;
        let claimed = usize::try_from(word(table, 0)).unwrap_or(usize::MAX).min(MAX_LANES);
        // The number is stored after the entries; it never falls, and a lane once seen is looked after.
        if claimed > known {
            fence(Acquire);
            self.lanes.resize_with(claimed, Lane::default);
            table.resize(ENTRIES + claimed * LANE_BYTES, 0);
            let at = HEADER_BYTES + known * LANE_BYTES;
            self.memory.read(at as u64, &mut table[ENTRIES + known * LANE_BYTES..])?;
        }
        Ok(())
    }

    /// The least that an open lane promises; `None` if no lane is open.
    pub(crate) fn safe(&self) -> Option<i64> {
        if self.cut_off {
            return None;
        }
        self.lanes.iter().filter_map(Lane::safe).min().map(|safe| safe.time())
    }

    /// Ends all streams and the process. Records that were not drained stay where they are. `cut_off`: the process
    /// is gone, and what was in flight with it; otherwise the log-client stops.
    pub(crate) fn end(&mut self, cut_off: bool, round: &mut Round<'_>, tally: &mut Tally) -> ProcessLoss {
        let why = if cut_off { Closing::Over } else { Closing::Stopped };
        let mut counters = [0; COUNTERS];
        let mut table = vec![0; self.lanes.len() * LANE_BYTES];
        let before = tally.violations;
        // What cannot be read any more counts as nothing.
        let _ = self.memory.read(0, &mut counters);
        let _ = self.memory.read(HEADER_BYTES as u64, &mut table);
        for (index, (lane, entry)) in self.lanes.iter_mut().zip(table.chunks_exact(LANE_BYTES)).enumerate() {
            let owner = Owner {
                memory: &self.memory,
                key: self.key,
                clock: self.header.clock,
                lane: index,
                created: self.header.created_ticks,
                dead: true,
            };
            lane.close(entry, why, &owner, round, tally);
        }
        self.violations += tally.violations - before;
        let lost =
            ProcessLoss { no_lane: word(&counters, at::LOST_NO_LANE), abi_violations: self.violations };
        let now = round.clocks.of(self.header.clock).time((round.latest)(self.header.clock));
        round.sink.send(Fact::ProcessEnd { key: self.key, time: now.max(round.watermark), lost });
        lost
    }
}

/// The time up to which a lane that is not there yet is safe.
pub(crate) fn horizon(clocks: &Clocks, t0: Now) -> i64 {
    [Clock::Tsc, Clock::MonotonicRaw]
        .map(|clock| clocks.of(clock).time(t0.of(clock)))
        .into_iter()
        .fold(i64::MAX, i64::min)
        .saturating_sub(SLACK_NS)
}
