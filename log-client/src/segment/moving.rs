//! A segment moves to another log-server: its streams end at the one, and continue at the other.
//!
//! Both happen between two sweeps, when every record that was taken from a lane is in the spool and
//! its slots are given back. So each attempt number is sent to one of the two: to the old one below
//! `attempts` of its [`StreamEnd`](miot_proto::wire::StreamEnd), to the new one from there on.

use super::lane::{EndReason, LaneOwner};
use super::memory::Memory;
use super::{Segment, SweepContext, Tally, definition};
use crate::facts::Fact;
use miot_proto::segment::{HEADER_BYTES, LANE_BYTES};
use miot_proto::wire::Resume;

impl<M: Memory> Segment<M> {
    /// Ends the process and its streams at the log-server of the context. Returns the number of
    /// records without a lane that it has reported there.
    pub(crate) fn leave(&mut self, context: &mut SweepContext<'_>, tally: &mut Tally) -> u64 {
        for lane in 0..self.lanes.len() {
            self.with_lane(lane, |lane, entry, owner| lane.release_before_move(entry, owner, context));
        }
        let lost = self.end(EndReason::Moved, context, tally);
        self.reported = self.violations.saturating_sub(self.numbered);
        lost.no_lane
    }

    /// Defines the process and its streams at the log-server of the context. `no_lane`: see
    /// [`Segment::leave`].
    pub(crate) fn arrive(
        &mut self,
        uid: u32,
        no_lane: u64,
        context: &mut SweepContext<'_>,
        tally: &mut Tally,
    ) {
        context.sink.send(Fact::Process(definition(self.key, &self.header, uid, context)));
        let clock = context.clocks.of(self.header.clock);
        let time = clock.time((context.latest)(self.header.clock)).max(context.watermark);
        context.sink.send(Fact::Resume(Resume::Process { key: self.key, no_lane, time }));
        for lane in 0..self.lanes.len() {
            self.with_lane(lane, |lane, _, owner| lane.arrive(owner, context, tally));
        }
    }

    /// Calls `act` with a lane, its entry and its owner. Nothing happens if the entry cannot be
    /// read: the next sweep finds that out.
    fn with_lane(&mut self, index: usize, act: impl FnOnce(&mut super::lane::Lane, &[u8], &LaneOwner<'_>)) {
        let mut entry = [0; LANE_BYTES];
        if self.memory.read((HEADER_BYTES + index * LANE_BYTES) as u64, &mut entry).is_err() {
            return;
        }
        let owner = LaneOwner {
            memory: &self.memory,
            key: self.key,
            clock: self.header.clock,
            lane: index,
            created: self.header.created_ticks,
            dead: false,
        };
        if let Some(lane) = self.lanes.get_mut(index) {
            act(lane, &entry, &owner);
        }
    }
}
