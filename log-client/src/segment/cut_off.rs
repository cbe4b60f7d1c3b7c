//! Requests that a lane shows in flight though nothing more will come from it: its thread or its process ended
//! inside them.
//!
//! Each becomes an event as if it had failed with `EINTR` when that was noticed, flagged
//! [`flag::INTERRUPTED`]. Its commit would have ended its being in flight with the same store, so there is
//! either the event or this one. Attempt numbers follow those of the lane and depend on nothing but the segment:
//! a log-client that tells it again after a restart is understood.

use super::drain::Open;
use super::lane::Owner;
use super::shown::Shown;
use super::{Round, Tally};
use crate::facts::Fact;
use miot_proto::event::{Event, Kind, flag};
use miot_proto::segment::lane as at;

/// `-EINTR`.
const INTERRUPTED: i64 = -4;

impl Shown {
    fn event(&self, enclosing: u32, end: u64, created: u64) -> Event {
        // A request that encloses others may be older than the lane, not than the segment.
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

/// Delivers what `entry` shows in flight, numbered from `attempt` on. The number after the last one.
pub(super) fn deliver(
    open: &mut Open,
    entry: &[u8],
    attempt: u64,
    owner: &Owner<'_>,
    round: &mut Round<'_>,
    tally: &mut Tally,
) -> u64 {
    let outer = Shown::read(entry, at::ENCLOSING);
    let inner = Shown::read(entry, at::IN_FLIGHT)
        .filter(|inner| outer.as_ref().is_none_or(|outer| outer.number != inner.number));
    let number = outer.as_ref().map_or(0, |outer| outer.number);
    let shown = [(inner, number), (outer, 0)];
    let end = (round.latest)(owner.clock).max(open.progress.ticks);
    let clock = round.clocks.of(owner.clock);
    let columns = &mut round.scratch.columns;
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
            event.flags |= flag::moved(event.op);
            tally.clamped += 1;
        }
        // Numbers end where a producer claims so many losses.
        let Some(after) = next.checked_add(1) else { break };
        columns.push(Kind::Request as u8, next, time, clock.last().span(event.duration), &event, None);
        next = after;
    }
    if !columns.is_empty() {
        tally.events += columns.len() as u64;
        tally.newest = tally.newest.max(columns.time.last().copied().unwrap_or(0));
        tally.interrupted += columns.len() as u64;
        round.sink.send(Fact::Batch { stream: open.stream, after: open.sent, columns });
        open.sent = next;
    }
    next
}
