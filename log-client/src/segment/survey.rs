//! Adds a segment to a survey of the node.

use super::lane::Lane;
use super::{Header, LaneRequests, Memory, PendingRequest, Segment, word};
use crate::clock::{Clocks, ticks};
use crate::survey::{Survey, SurveyedProcess};
use miot_proto::job::Job;
use miot_proto::op::Op;
use miot_proto::segment::{HEADER_BYTES, LANE_BYTES, header, lane as at};

impl<M: Memory> Segment<M> {
    /// Adds the process, its losses, its lanes and its requests in flight. `taken`: memory of the
    /// segment, bytes.
    ///
    /// The lane table is copied twice: a request that differs between the copies has just begun or
    /// ended, and is left out.
    pub(crate) fn survey(&self, taken: u64, clocks: &Clocks, survey: &mut Survey) {
        survey.processes.push(process(&self.header));
        survey.segment_bytes += taken;
        let mut words = [0; header::STRINGS];
        let copy = || {
            let mut table = vec![0; self.lanes.len() * LANE_BYTES];
            self.memory.read(HEADER_BYTES as u64, &mut table).ok().map(|()| table)
        };
        let (Ok(()), Some(first), Some(second)) = (self.memory.read(0, &mut words), copy(), copy()) else {
            return;
        };
        survey.lost_no_lane = survey.lost_no_lane.saturating_add(word(&words, header::LOST_NO_LANE));
        let now = ticks(self.header.clock);
        let age = |begin| clocks.of(self.header.clock).last().span(now.saturating_sub(begin));
        let copies = first.chunks_exact(LANE_BYTES).zip(second.chunks_exact(LANE_BYTES));
        // The counters of other lanes were reported when their streams ended.
        let open = copies.zip(&self.lanes).filter(|(_, lane)| Lane::is_open(lane));
        for ((before, entry), _) in open {
            survey.lanes += 1;
            let counts = [
                (&mut survey.lost_full, at::LOST_FULL),
                (&mut survey.lost_nested, at::LOST_NESTED),
                (&mut survey.filtered, at::FILTERED),
            ];
            for (count, word_at) in counts {
                *count = count.saturating_add(word(entry, word_at));
            }
            let stable = innermost(entry).filter(|request| innermost(before).as_ref() == Some(request));
            let Some((op, begin, tid)) = stable else {
                continue;
            };
            survey.add_request(age(begin), tid, op);
        }
        for PendingRequest { tid, request, .. } in PendingRequest::read_all(&self.memory, &words) {
            survey.add_request(age(request.begin), tid, request.op);
        }
        survey.keep_oldest();
    }
}

/// The innermost request that a lane entry shows: operation, begin in raw ticks, thread id.
fn innermost(entry: &[u8]) -> Option<(Op, u64, u32)> {
    LaneRequests::read(entry).map(|lane| (lane.request.op, lane.request.begin, lane.tid))
}

fn process(header: &Header) -> SurveyedProcess {
    SurveyedProcess {
        nonce: header.nonce,
        pid: header.pid,
        job: Job::from_bytes(&header.job).id.to_vec(),
        exe: header.exe.clone(),
    }
}
