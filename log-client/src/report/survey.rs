//! What the sweeper sees, counted once a second.

use crate::clock::{Clocks, ticks};
use crate::in_flight::shown;
use crate::segment::{Header, Memory, word};
use miot_proto::job::Job;
use miot_proto::op::{Layer, Op};
use miot_proto::segment::{HEADER_BYTES, LANE_BYTES, header, lane};
use miot_proto::status::{InFlightStatus, Losses, MOST_IN_FLIGHT};
use std::time::Instant;

/// A process being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) nonce: u64,
    pub(crate) pid: u32,
    pub(crate) job: Vec<u8>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// When; `None`: not yet.
    pub(crate) at: Option<Instant>,
    /// Since the start: what was handed over to the spool.
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) processes_seen: u64,
    pub(crate) lost_full: u64,
    pub(crate) lost_nested: u64,
    pub(crate) lost_no_lane: u64,
    pub(crate) filtered: u64,
    pub(crate) violations: u64,
    pub(crate) spool_full: bool,
    /// Of those that are there now.
    pub(crate) segments: Vec<Known>,
    pub(crate) lanes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) in_flight: u64,
    pub(crate) oldest: Oldest,
}

/// The oldest requests in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oldest {
    found: Vec<Found>,
    /// Executables, by number of the segment.
    exes: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct Found {
    age_ns: u64,
    tid: u32,
    op: Op,
    segment: usize,
}

impl Survey {
    /// Looks at a segment, of whose lanes these are open. Two copies: what is not the same in both has just ended or begun.
    pub(crate) fn look(
        &mut self,
        (memory, header): (&dyn Memory, &Header),
        taken: u64,
        open: &[bool],
        clocks: &Clocks,
    ) {
        let segment = self.segments.len();
        self.segments.push(Known {
            nonce: header.nonce,
            pid: header.pid,
            job: Job::read(&header.job).id.to_vec(),
        });
        self.oldest.exes.push(header.exe.clone());
        self.segment_bytes += taken;
        let mut words = [0; header::STRINGS];
        let copy = || {
            let mut table = vec![0; open.len() * LANE_BYTES];
            memory.read(HEADER_BYTES as u64, &mut table).ok().map(|()| table)
        };
        let (Ok(()), Some(first), Some(second)) = (memory.read(0, &mut words), copy(), copy()) else {
            return;
        };
        self.lost_no_lane = self.lost_no_lane.saturating_add(word(&words, header::LOST_NO_LANE));
        let now = ticks(header.clock);
        let entries = first.chunks_exact(LANE_BYTES).zip(second.chunks_exact(LANE_BYTES)).zip(open);
        // What the others counted was told at their end.
        for ((before, entry), _) in entries.filter(|(_, open)| **open) {
            self.lanes += 1;
            let counts = [
                (&mut self.lost_full, lane::LOST_FULL),
                (&mut self.lost_nested, lane::LOST_NESTED),
                (&mut self.filtered, lane::FILTERED),
            ];
            for (count, at) in counts {
                *count = count.saturating_add(word(entry, at));
            }
            let Some((op, begin, tid)) = shown(entry).filter(|now| shown(before).as_ref() == Some(now))
            else {
                continue;
            };
            self.in_flight += 1;
            let age_ns = clocks.of(header.clock).last().span(now.saturating_sub(begin));
            self.oldest.found.push(Found { age_ns, tid, op, segment });
            if self.oldest.found.len() >= 8 * MOST_IN_FLIGHT {
                self.keep_oldest();
            }
        }
        self.keep_oldest();
    }

    fn keep_oldest(&mut self) {
        self.oldest.found.sort_by_key(|found| std::cmp::Reverse(found.age_ns));
        self.oldest.found.truncate(MOST_IN_FLIGHT);
    }

    /// The oldest requests in flight.
    pub(crate) fn oldest(&self) -> Vec<InFlightStatus> {
        let text = |bytes: Option<&Vec<u8>>| {
            let bytes = bytes.map_or(&[][..], Vec::as_slice);
            String::from_utf8_lossy(&bytes[..bytes.len().min(256)]).into_owned()
        };
        let tell = |found: &Found| {
            let known = self.segments.get(found.segment);
            InFlightStatus {
                age_ns: found.age_ns,
                pid: known.map_or(0, |known| known.pid),
                tid: found.tid,
                exe: text(self.oldest.exes.get(found.segment)),
                job: text(known.map(|known| &known.job)),
                op: name(found.op),
            }
        };
        self.oldest.found.iter().map(tell).collect()
    }

    /// By place.
    pub(crate) fn losses(&self, given_up: u64) -> Losses {
        let places = [
            ("lane_full", self.lost_full),
            ("nested", self.lost_nested),
            ("no_lane", self.lost_no_lane),
            ("abi_violation", self.violations),
            ("spool_full", given_up),
            ("filtered", self.filtered),
        ];
        places.into_iter().map(|(place, count)| (place.to_owned(), count)).collect()
    }
}

fn name(op: Op) -> String {
    let layer =
        Layer::from_number(op.layer).map_or_else(|| op.layer.to_string(), |layer| layer.name().to_owned());
    op.name().map_or_else(|| format!("{layer}.{}", op.number), |name| format!("{layer}.{name}"))
}
