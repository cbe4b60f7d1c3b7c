//! Interrupted requests: a lane shows them in flight, but its thread or process ended inside them.
//!
//! Each becomes an event, flagged [`flag::INTERRUPTED`], as if it had failed with `EINTR` when the
//! end was noticed. The same store that commits a record ends the request's being in flight, so
//! there is either the record or this event. Attempt numbers follow those of the lane and depend
//! only on the segment: a log-client that delivers the event again after a restart uses the same
//! number.

use super::drain::OpenLane;
use super::in_flight_entry::InFlightEntry;
use super::lane::LaneOwner;
use super::{SweepContext, Tally};
use crate::facts::Fact;
use miot_proto::event::{Event, RecordKind, flag};
use miot_proto::segment::lane as at;

/// `-EINTR`.
const INTERRUPTED: i64 = -4;

impl InFlightEntry {
    fn event(&self, enclosing: u32, end: u64, created: u64) -> Event {
        // The parent of other requests may be older than the lane, but not than the segment.
        let begin = self.begin.clamp(created.min(end), end);
        Event {
            op: self.op,
            request: self.number,
            enclosing,
            end,
            duration: end - begin,
            flags: flag::INTERRUPTED,
            handle: self.handle,
            offset: self.offset,
            length: self.length,
            result: INTERRUPTED,
        }
    }
}

/// Delivers the requests that `entry` shows in flight, numbered from `attempt` on. Returns the
/// number after the last one.
pub(super) fn deliver(
    open: &mut OpenLane,
    entry: &[u8],
    attempt: u64,
    owner: &LaneOwner<'_>,
    context: &mut SweepContext<'_>,
    tally: &mut Tally,
) -> u64 {
    let outer = InFlightEntry::read(entry, at::ENCLOSING);
    let inner = InFlightEntry::read(entry, at::IN_FLIGHT)
        .filter(|inner| outer.as_ref().is_none_or(|outer| outer.number != inner.number));
    let number = outer.as_ref().map_or(0, |outer| outer.number);
    let shown = [(inner, number), (outer, 0)];
    let end = (context.latest)(owner.clock).max(open.progress.ticks);
    let clock = context.clocks.of(owner.clock);
    let columns = &mut context.scratch.columns;
    columns.clear();
    let mut next = attempt;
    for (shown, enclosing) in shown.iter().filter_map(|(shown, number)| Some((shown.as_ref()?, *number))) {
        // Its producer could not have committed it either.
        if !shown.op.is_defined() {
            tally.violations += 1;
            tally.undefined += 1;
            continue;
        }
        let mut event = shown.event(enclosing, end, owner.created);
        let noticed = clock.time(end);
        let time = open.progress.safe.admit(noticed);
        if time != noticed {
            event.flags |= flag::moved_bit(event.op);
            tally.clamped += 1;
        }
        // A producer that claims so many losses has used up the numbers.
        let Some(after) = next.checked_add(1) else { break };
        columns.push(RecordKind::Request as u8, next, time, clock.last().span(event.duration), &event, None);
        next = after;
    }
    if !columns.is_empty() {
        tally.events += columns.len() as u64;
        tally.newest = tally.newest.max(columns.time.last().copied().unwrap_or(0));
        tally.interrupted += columns.len() as u64;
        context.sink.send(Fact::Batch { stream: open.stream, after: open.sent, columns });
        open.sent = next;
    }
    next
}
