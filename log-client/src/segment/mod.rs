//! One segment, read without trust.
//!
//! A segment is the shared memory of one traced process ([`miot_proto::segment`]). It is read by copying
//! ([`memory`]), so that no write and no truncation by its producer can raise a signal here or change what
//! was checked. Whatever its bytes say, a sweep ends after bounded work and without a panic; nonsense is
//! counted as a violation and quarantines the lane.
//!
//! `HEAD` is written only after the records were handed to the sink. A log-client that is killed between
//! the two reads the same records again, and the log-server knows them by stream and attempt number. What
//! the sink held in memory only is lost with it: a spool on disk is to change that.

mod header;
mod lane;
mod memory;
mod records;

#[cfg(test)]
pub(crate) mod hand_made;
#[cfg(test)]
mod tests;

pub(crate) use header::{Header, Unfit};
pub(crate) use memory::{Bytes, Memory, SegmentFile, Short};

use crate::clock::{Clocks, Now, Reading, Timeline};
use crate::facts::{Fact, Sink};
use crate::watermark::SLACK_NS;
use lane::{Lane, Owner};
use memory::word;
use miot_proto::batch::Columns;
use miot_proto::segment::{Clock, HEADER_BYTES, LANE_BYTES, MAX_LANES, header as at};
use miot_proto::wire::{Process, ProcessKey, ProcessLoss};

/// The words of the header that change: up to and including `CLOSED`.
const COUNTERS: usize = 128;

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
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) sink: &'a mut dyn Sink,
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
    pub(crate) unknown: u64,
    pub(crate) clamped: u64,
    /// How full the fullest lane was, in 64ths.
    pub(crate) fullest: u32,
    /// Something was left for the next sweep.
    pub(crate) rest: bool,
}

/// A segment being read.
#[derive(Debug)]
pub(crate) struct Segment<M> {
    memory: M,
    header: Header,
    key: ProcessKey,
    lanes: Vec<Lane>,
    /// Violations so far.
    violations: u64,
    closed: bool,
    /// The file is shorter than its header says: nothing more is read from it.
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
        let [exe, cmdline, job, cwd] = header.strings.clone();
        round.sink.send(Fact::Process(Process {
            key,
            ppid: header.ppid,
            uid,
            started: clock.time(created),
            rank: header.rank,
            exe,
            cmdline,
            job,
            cwd,
        }));
        Segment { memory, header, key, lanes: Vec::new(), violations: 0, closed: false, cut_off: false }
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
        tally
    }

    fn try_sweep(&mut self, dead: bool, round: &mut Round<'_>, tally: &mut Tally) -> Result<(), Short> {
        let mut counters = [0; COUNTERS];
        self.memory.read(0, &mut counters)?;
        self.closed |= word(&counters, at::CLOSED) != 0;
        let claimed = usize::try_from(word(&counters, at::LANES)).unwrap_or(usize::MAX).min(MAX_LANES);
        // The number is stored after the entries; it never falls, and a lane once seen is looked after.
        let lanes = claimed.max(self.lanes.len());
        self.lanes.resize_with(lanes, Lane::default);
        let mut table = std::mem::take(&mut round.scratch.table);
        table.resize(lanes * LANE_BYTES, 0);
        let read = self.memory.read(HEADER_BYTES as u64, &mut table);
        if read.is_ok() {
            for (index, (lane, entry)) in
                self.lanes.iter_mut().zip(table.chunks_exact(LANE_BYTES)).enumerate()
            {
                let owner = Owner {
                    memory: &self.memory,
                    key: self.key,
                    clock: self.header.clock,
                    lane: index,
                    dead,
                };
                lane.sweep(entry, &owner, round, tally);
            }
        }
        round.scratch.table = table;
        read
    }

    /// The least that an open lane promises; `None` if no lane is open.
    pub(crate) fn safe(&self) -> Option<i64> {
        if self.cut_off {
            return None;
        }
        self.lanes.iter().filter_map(Lane::safe).min().map(|safe| safe.time())
    }

    /// Ends all streams and the process. Records that were not drained stay where they are.
    pub(crate) fn end(&mut self, round: &mut Round<'_>) -> ProcessLoss {
        let mut counters = [0; COUNTERS];
        let mut table = vec![0; self.lanes.len() * LANE_BYTES];
        // What cannot be read any more counts as nothing.
        let _ = self.memory.read(0, &mut counters);
        let _ = self.memory.read(HEADER_BYTES as u64, &mut table);
        for (index, (lane, entry)) in self.lanes.iter_mut().zip(table.chunks_exact(LANE_BYTES)).enumerate() {
            let owner = Owner {
                memory: &self.memory,
                key: self.key,
                clock: self.header.clock,
                lane: index,
                dead: true,
            };
            lane.close(entry, &owner, round);
        }
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

/// Sweeps arbitrary bytes as if they were a segment, a few times, then ends it: the records found. For fuzz
/// targets; must return whatever the bytes are.
#[doc(hidden)]
#[must_use]
pub fn sweep_bytes(bytes: Vec<u8>) -> u64 {
    struct Count(u64);
    impl Sink for Count {
        fn has_room(&self) -> bool {
            true
        }
        fn send(&mut self, fact: Fact<'_>) {
            if let Fact::Batch { columns, .. } = fact {
                self.0 += columns.len() as u64;
            }
        }
    }
    let reading = |ticks: u64| Reading { ticks, time: 1_700_000_000_000_000_000 + ticks as i64 };
    let line = Timeline::new(reading(0), reading(1_000_000));
    let clocks = Clocks::fixed(line.clone(), line);
    let memory = Bytes::new(bytes);
    let mut count = Count(0);
    let Ok(header) = Header::read(&memory) else { return 0 };
    let (mut streams, mut scratch) = (0, Scratch::default());
    let mut round = Round {
        t0: Now { tsc: 2_000_000, raw: 2_000_000 },
        latest: &|_| 3_000_000,
        clocks: &clocks,
        watermark: 0,
        streams: &mut streams,
        scratch: &mut scratch,
        sink: &mut count,
    };
    let mut segment = Segment::attach(memory, header, 1, 1000, &mut round);
    for dead in [false, false, true] {
        let _ = segment.sweep(dead, &mut round);
    }
    segment.end(&mut round);
    count.0
}
