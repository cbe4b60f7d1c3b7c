//! The merge of all streams into one order. Pure: no I/O, no clock, no threads.
//!
//! Each stream is a queue of batches in the order of attempt numbers, with times that do not
//! decrease: a row whose time goes back gets the time of the row before it. A step takes the rows
//! before a time bound from each queue and sorts them into the order of the trace: **time, then
//! stream, then attempt number**. The bound is the watermark: no earlier row can arrive, unless a
//! node was given up as silent. A row that arrives after all, that is, a row that sorts before the
//! last row already written, is *late*: the next step outputs it and marks it. All rows that are
//! not marked are in total order.
//!
//! Missing attempt numbers of a stream were lost in its lane, given up by the node, or lost on the
//! way: each batch names the attempt number that its node expected before it.
//!
//! Batches may arrive twice, after a reconnection. Rows whose attempt number was already received
//! are dropped. The ticket of a dropped row is still returned only after the earlier rows of its
//! stream, so no acknowledgment rests on a copy that is not durable.

mod sort;

use crate::ids::StreamId;
use miot_proto::batch::{Columns, REFUSED};
use miot_proto::event::flag;
use miot_proto::wire::StreamEnd;
use miot_trace_store::schema::ELSEWHERE;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Attempt numbers are less: in the trace they are signed numbers.
pub const MAX_ATTEMPT: u64 = i64::MAX as u64;

/// Sort key of a row in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey {
    /// Completion, nanoseconds since 1970.
    pub time: i64,
    /// Stream id.
    pub stream: StreamId,
    /// Attempt number.
    pub attempt: u64,
}

/// Consecutive rows of one batch that a step takes.
#[derive(Clone, Debug)]
pub struct BatchSlice {
    /// Stream id.
    pub stream: StreamId,
    /// The batch.
    pub columns: Arc<Columns>,
    /// Index of the first row.
    pub start: usize,
    /// Number of rows.
    pub len: usize,
}

/// A row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRef {
    /// Completion, nanoseconds since 1970.
    pub time: i64,
    /// Index in [`MergeStep::sources`].
    pub source: u32,
    /// Row of the source's batch.
    pub row: u32,
}

/// Place of a gap: the lane was full, or it was configured to overwrite old events.
pub const LANE_FULL: &str = "lane_full";
/// Place of a gap: the node gave the events up because its spool was full.
pub const SPOOL_FULL: &str = "spool_full";
/// Place of a gap: the node took the events from the lane and no longer has them.
pub const SPOOL_DAMAGED: &str = "spool_damaged";

/// Place of a gap: the log-client read the records from the lane and refused them.
pub const ABI_VIOLATION: &str = "abi_violation";

/// Attempt numbers that never arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Stream id.
    pub stream: StreamId,
    /// Where the events were lost.
    pub place: &'static str,
    /// Time of the row after the gap, of the end of the stream, or of the last event that was given
    /// up; nanoseconds since 1970.
    pub time: i64,
    /// First missing number.
    pub first: u64,
    /// Last missing number.
    pub last: u64,
}

/// See [`miot_proto::wire::Message::GivenUp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Attempt number that the node expected before.
    pub after: u64,
    /// First and last attempt numbers, ascending.
    pub ranges: Vec<(u64, u64)>,
    /// Completion of the last event, nanoseconds since 1970.
    pub time: i64,
}

/// A stream whose last row was output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedStream {
    /// Stream id.
    pub stream: StreamId,
    /// Attempt number after its last one.
    pub next: u64,
    /// The node's report of the end.
    pub end: StreamEnd,
}

/// Output of one step.
#[derive(Debug)]
pub struct MergeStep<T> {
    /// The rows, by stream and attempt number.
    pub sources: Vec<BatchSlice>,
    /// The rows in the order of the trace.
    pub order: Vec<RowRef>,
    /// The first `late` rows of `order` are late.
    pub late: usize,
    /// Gaps between these rows, by stream.
    pub gaps: Vec<Gap>,
    /// Streams that ended.
    pub ended: Vec<EndedStream>,
    /// Streams whose queues became empty.
    pub emptied: Vec<StreamId>,
    /// Tickets of the batches and ends that were output completely.
    pub tickets: Vec<T>,
    /// True if rows before the bound remain because of the row limit.
    pub more: bool,
}

impl<T> Default for MergeStep<T> {
    fn default() -> MergeStep<T> {
        MergeStep {
            sources: Vec::new(),
            order: Vec::new(),
            late: 0,
            gaps: Vec::new(),
            ended: Vec::new(),
            emptied: Vec::new(),
            tickets: Vec::new(),
            more: false,
        }
    }
}

impl<T> MergeStep<T> {
    /// True if the step outputs nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty() && self.ended.is_empty() && self.tickets.is_empty()
    }
}

#[derive(Debug)]
enum EntryKind {
    /// A batch. `start`: its first row that was not output; `after`: attempt number that the node
    /// expected before it; `refused`: what its node refused and was not output.
    Rows {
        columns: Arc<Columns>,
        start: usize,
        after: u64,
        refused: VecDeque<Refused>,
    },
    GivenUp(GivenUp),
    /// Other log-servers have the attempt numbers below `from`.
    Resume {
        from: u64,
        time: i64,
    },
    End(StreamEnd),
}

/// A row of kind [`miot_proto::batch::REFUSED`]: the attempt numbers `first..=last`.
#[derive(Clone, Copy, Debug)]
struct Refused {
    first: u64,
    last: u64,
    time: i64,
}

#[derive(Debug)]
struct Entry<T> {
    kind: EntryKind,
    ticket: T,
}

/// The rows of one stream that wait.
#[derive(Debug)]
struct StreamQueue<T> {
    /// Next attempt number expected from the node.
    next: u64,
    /// Next attempt number expected in the trace.
    next_output: u64,
    /// Time of the last row received, nanoseconds since 1970.
    time: i64,
    queue: VecDeque<Entry<T>>,
    rows: usize,
    /// Time of the first waiting row; `i64::MIN` if something else is first, `i64::MAX` if nothing
    /// waits. A step looks at each stream, and finds most of them without a row before its bound.
    due: i64,
}

/// The merge, see the module. `T` is a ticket that is returned when an input was output completely.
#[derive(Debug)]
pub struct Merge<T> {
    streams: BTreeMap<StreamId, StreamQueue<T>>,
    /// Key of the last row that was output.
    last: RowKey,
    rows: usize,
    entries: usize,
    /// Buffer of [`sort`].
    spare: Vec<RowRef>,
}

impl<T> Merge<T> {
    /// Creates a merge that continues a trace with the last row `last`, if the trace has rows.
    #[must_use]
    pub fn new(last: Option<RowKey>) -> Merge<T> {
        let last = last.unwrap_or(RowKey { time: i64::MIN, stream: StreamId(0), attempt: 0 });
        Merge { streams: BTreeMap::new(), last, rows: 0, entries: 0, spare: Vec::new() }
    }

    /// Adds a stream that continues with attempt number `next`. A stream that exists stays
    /// unchanged.
    pub fn add_stream(&mut self, stream: StreamId, next: u64) {
        self.streams.entry(stream).or_insert_with(|| StreamQueue {
            next,
            next_output: next,
            time: i64::MIN,
            queue: VecDeque::new(),
            rows: 0,
            due: i64::MAX,
        });
    }

    /// Number of streams, with or without rows.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Number of waiting rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// True if neither rows nor tickets wait.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries == 0
    }

    /// True if rows or an end of the stream wait.
    #[must_use]
    pub fn is_waiting(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_some_and(|queue| !queue.queue.is_empty())
    }

    /// Adds a batch to its stream, without rows that were received before. Returns the number of
    /// added rows. `after` is the attempt number that the node expected before the batch. An
    /// unknown stream is added; it starts at the first attempt number of the batch.
    pub fn push(
        &mut self,
        stream: StreamId,
        after: u64,
        columns: impl Into<Arc<Columns>>,
        ticket: T,
    ) -> usize {
        let mut batch = columns.into();
        // Nothing else refers to a batch that arrives.
        let columns = Arc::make_mut(&mut batch);
        let first = columns.attempt.first().copied().unwrap_or(0);
        self.add_stream(stream, first);
        let Some(queue) = self.streams.get_mut(&stream) else { return 0 };
        let mut start = drop_seen(columns, queue.next);
        hold_back_times(columns, start, &mut queue.time);
        if let Some(last) = columns.attempt.last() {
            queue.next = queue.next.max(last + 1);
        }
        let refused = take_refused(columns, &mut start);
        let added = columns.len() - start;
        queue.rows += added;
        self.rows += added;
        self.entries += 1;
        queue.add(EntryKind::Rows { columns: batch, start, after, refused }, ticket);
        added
    }

    /// Records events of a stream that the node gave up. Events that arrived before are not lost.
    pub fn give_up(&mut self, stream: StreamId, given_up: GivenUp, ticket: T) {
        self.add_stream(stream, 0);
        if let Some(queue) = self.streams.get_mut(&stream) {
            let after = given_up.ranges.iter().map(|(_, last)| last.saturating_add(1)).max();
            // Without ranges, all events below `after` were taken from the lane, and those that
            // have not arrived never will.
            queue.next = queue.next.max(after.unwrap_or(given_up.after));
            self.entries += 1;
            queue.add(EntryKind::GivenUp(given_up), ticket);
        }
    }

    /// Records that other log-servers have the attempt numbers below `from` that have not arrived.
    pub fn resume(&mut self, stream: StreamId, from: u64, time: i64, ticket: T) {
        self.add_stream(stream, 0);
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.next = queue.next.max(from);
            self.entries += 1;
            queue.add(EntryKind::Resume { from, time }, ticket);
        }
    }

    /// Ends a stream, after all of its rows.
    pub fn end(&mut self, stream: StreamId, end: StreamEnd, ticket: T) {
        self.add_stream(stream, end.attempts);
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.next = queue.next.max(end.attempts);
            self.entries += 1;
            queue.add(EntryKind::End(end), ticket);
        }
    }

    /// Takes about `limit` rows at most that completed before `bound` (`None`: without a bound).
    pub fn step(&mut self, bound: Option<i64>, limit: usize) -> MergeStep<T> {
        let mut step = MergeStep::default();
        if self.entries == 0 {
            return step;
        }
        let limited = self.limited_bound(bound, limit);
        step.more = limited != bound;
        self.take(limited, &mut step);
        self.sort(&mut step);
        step
    }

    /// Returns a time bound, at most `bound`, before which there are about `limit` rows: at least a
    /// quarter, because a step costs as much as thousands of rows.
    fn limited_bound(&self, bound: Option<i64>, limit: usize) -> Option<i64> {
        if self.rows <= limit || bound.is_some_and(|bound| self.rows_before(bound) <= limit) {
            return bound;
        }
        let busy = self.streams.values().filter(|queue| queue.rows > 0).count();
        // Rows that each stream may have before the bound. If few streams have most of the rows, it
        // must be more than an equal share.
        let mut share = (limit / busy.max(1)).max(1);
        loop {
            let bounds = self.streams.values().filter_map(|queue| queue.time_of(share));
            let limited = bounds.chain(bound).min();
            let Some(time) = limited.filter(|_| limited != bound) else { return bound };
            if self.rows_before(time) >= (limit / 4).max(1) {
                return limited;
            }
            share *= 2;
        }
    }

    /// Number of waiting rows before a time.
    fn rows_before(&self, time: i64) -> usize {
        self.streams.values().map(|queue| queue.rows_before(time)).sum()
    }

    /// Moves the rows before `bound`, and what follows from them, from the queues to `step`.
    fn take(&mut self, bound: Option<i64>, step: &mut MergeStep<T>) {
        let mut ended = Vec::new();
        for (&stream, queue) in &mut self.streams {
            if bound.is_some_and(|bound| queue.due >= bound) || queue.queue.is_empty() {
                continue;
            }
            let (entries, rows) = (queue.queue.len(), queue.rows);
            let is_ended = queue.take(stream, bound, step);
            self.entries -= entries - queue.queue.len();
            self.rows -= rows - queue.rows;
            if queue.queue.is_empty() {
                step.emptied.push(stream);
            }
            if is_ended {
                ended.push(stream);
            }
        }
        for stream in ended {
            self.streams.remove(&stream);
        }
    }

    /// Sorts the rows of `step` and counts late rows.
    fn sort(&mut self, step: &mut MergeStep<T>) {
        let rows: usize = step.sources.iter().map(|s| s.len).sum();
        step.order.reserve_exact(rows);
        for (index, source) in step.sources.iter().enumerate() {
            let times = source.columns.time[source.start..source.start + source.len].iter();
            let rows = times.zip(source.start as u32..);
            step.order.extend(rows.map(|(time, row)| RowRef { time: *time, source: index as u32, row }));
        }
        // The sources are by stream and attempt number, so a stable sort by time gives the order.
        sort::by_time(&mut step.order, step.sources.len(), &mut self.spare);
        let key = |row: &RowRef| {
            let source = &step.sources[row.source as usize];
            let attempt = source.columns.attempt[row.row as usize];
            RowKey { time: row.time, stream: source.stream, attempt }
        };
        let is_late = |row: &&RowRef| row.time <= self.last.time && key(row) < self.last;
        step.late = step.order.iter().take_while(is_late).count();
        if step.late < step.order.len()
            && let Some(last) = step.order.last()
        {
            self.last = key(last);
        }
    }
}

impl<T> StreamQueue<T> {
    fn add(&mut self, kind: EntryKind, ticket: T) {
        self.queue.push_back(Entry { kind, ticket });
        if self.queue.len() == 1 {
            self.update_due();
        }
    }

    fn update_due(&mut self) {
        self.due = match self.queue.front().map(|entry| &entry.kind) {
            None => i64::MAX,
            Some(EntryKind::Rows { columns, start, .. }) => {
                columns.time.get(*start).copied().unwrap_or(i64::MIN)
            }
            Some(_) => i64::MIN,
        };
    }

    /// Moves the entries before `bound` to `step`. Returns true if the stream has ended.
    fn take(&mut self, stream: StreamId, bound: Option<i64>, step: &mut MergeStep<T>) -> bool {
        let mut is_ended = false;
        while let Some(entry) = self.queue.front_mut() {
            let mut gaps = GapFinder { stream, next: &mut self.next_output, gaps: &mut step.gaps };
            match &mut entry.kind {
                EntryKind::Rows { columns, start, after, refused } => {
                    let waiting = columns.len() - *start;
                    let due = refused.front().map_or(*after, |first| first.first.min(*after));
                    if let Some(slice) = take_rows(stream, columns, start, bound) {
                        self.rows -= slice.len;
                        let due = due.min(columns.attempt[slice.start]);
                        gaps.skip_to(due, SPOOL_DAMAGED, columns.time[slice.start]);
                        gaps.find(&slice, refused);
                        let is_whole = slice.len == waiting;
                        step.sources.push(slice);
                        if !is_whole {
                            break;
                        }
                    } else if waiting > 0 {
                        break;
                    }
                    if let Some(first) = refused.front() {
                        gaps.skip_to(due, SPOOL_DAMAGED, first.time);
                        gaps.refuse_below(u64::MAX, refused);
                    }
                }
                EntryKind::GivenUp(given_up) => gaps.give_up(given_up),
                EntryKind::Resume { from, time } => gaps.skip_to(*from, ELSEWHERE, *time),
                EntryKind::End(end) => {
                    let after = end.after.min(end.attempts);
                    gaps.skip_to(after, SPOOL_DAMAGED, end.time);
                    gaps.skip_to(end.attempts, LANE_FULL, end.time);
                    step.ended.push(EndedStream { stream, next: self.next_output, end: *end });
                    is_ended |= self.queue.len() == 1;
                }
            }
            step.tickets.extend(self.queue.pop_front().map(|entry| entry.ticket));
        }
        self.update_due();
        is_ended
    }

    /// Time of the `n`th waiting row, from 0.
    fn time_of(&self, mut n: usize) -> Option<i64> {
        if n >= self.rows {
            return None;
        }
        for entry in &self.queue {
            if let EntryKind::Rows { columns, start, .. } = &entry.kind {
                let waiting = &columns.time[*start..];
                if let Some(time) = waiting.get(n) {
                    return Some(*time);
                }
                n -= waiting.len();
            }
        }
        None
    }

    /// Number of waiting rows before a time.
    fn rows_before(&self, time: i64) -> usize {
        let mut rows = 0;
        for entry in &self.queue {
            if let EntryKind::Rows { columns, start, .. } = &entry.kind {
                let waiting = &columns.time[*start..];
                if waiting.last().is_some_and(|last| *last >= time) {
                    return rows + waiting.partition_point(|waiting| *waiting < time);
                }
                rows += waiting.len();
            }
        }
        rows
    }
}

/// Takes the rows of a batch from `start` to `bound`, and advances `start`. `None` if there is
/// none.
fn take_rows(
    stream: StreamId,
    columns: &Arc<Columns>,
    start: &mut usize,
    bound: Option<i64>,
) -> Option<BatchSlice> {
    let waiting = &columns.time[*start..];
    let len = match bound {
        Some(bound) if waiting.last().is_some_and(|time| *time >= bound) => {
            waiting.partition_point(|time| *time < bound)
        }
        _ => waiting.len(),
    };
    let slice = BatchSlice { stream, columns: Arc::clone(columns), start: *start, len };
    *start += len;
    (len > 0).then_some(slice)
}

/// Finds missing attempt numbers of one stream.
struct GapFinder<'a> {
    stream: StreamId,
    /// Next attempt number expected in the trace.
    next: &'a mut u64,
    gaps: &'a mut Vec<Gap>,
}

impl GapFinder<'_> {
    /// Records attempt numbers below `next` that have not arrived as lost at `place`.
    fn skip_to(&mut self, next: u64, place: &'static str, time: i64) {
        if next > *self.next {
            self.gaps.push(Gap { stream: self.stream, place, time, first: *self.next, last: next - 1 });
            *self.next = next;
        }
    }

    fn give_up(&mut self, GivenUp { after, ranges, time }: &GivenUp) {
        let first = ranges.first().map_or(u64::MAX, |(first, _)| *first);
        self.skip_to((*after).min(first), SPOOL_DAMAGED, *time);
        for (first, last) in ranges {
            self.skip_to(*first, LANE_FULL, *time);
            self.skip_to(last.saturating_add(1), SPOOL_FULL, *time);
        }
    }

    /// Records what the node refused below the attempt number `next`.
    fn refuse_below(&mut self, next: u64, refused: &mut VecDeque<Refused>) {
        while let Some(Refused { first, last, time }) = refused.pop_front_if(|refused| refused.last < next) {
            self.skip_to(first, LANE_FULL, time);
            self.skip_to(last.saturating_add(1), ABI_VIOLATION, time);
        }
    }

    /// Records the gaps before and between the rows of `slice`, which is not empty, and `refused`
    /// as far as it is among them.
    fn find(&mut self, BatchSlice { columns, start, len, .. }: &BatchSlice, refused: &mut VecDeque<Refused>) {
        let attempts = &columns.attempt[*start..start + len];
        let (first, last) = (attempts[0], attempts[len - 1]);
        if first != *self.next || last - first != *len as u64 - 1 {
            for (i, &attempt) in attempts.iter().enumerate() {
                self.refuse_below(attempt, refused);
                self.skip_to(attempt, LANE_FULL, columns.time[start + i]);
                *self.next = attempt + 1;
            }
        }
        *self.next = last + 1;
    }
}

/// Returns the first row whose attempt number is at least `next`. Attempt numbers strictly increase
/// from there on and are below [`MAX_ATTEMPT`]: other rows come from a broken peer and are removed.
fn drop_seen(columns: &mut Columns, next: u64) -> usize {
    if !columns.attempt.is_sorted_by(|a, b| a < b) || columns.attempt.last() >= Some(&MAX_ATTEMPT) {
        let mut expected = next;
        let keep: Vec<bool> = columns
            .attempt
            .iter()
            .map(|attempt| {
                let new = *attempt >= expected && *attempt < MAX_ATTEMPT;
                expected = if new { attempt + 1 } else { expected };
                new
            })
            .collect();
        retain(columns, &keep);
    }
    columns.attempt.partition_point(|attempt| *attempt < next)
}

/// Removes the rows that are no records, and returns those from row `start` on.
fn take_refused(columns: &mut Columns, start: &mut usize) -> VecDeque<Refused> {
    if !columns.kind.contains(&REFUSED) {
        return VecDeque::new();
    }
    let refused = |row: usize| {
        let ((first, last), time) = (columns.attempts_of(row), columns.time[row]);
        Refused { first, last, time }
    };
    let rows = (*start..columns.len()).filter(|row| columns.kind[*row] == REFUSED);
    let refused = rows.map(refused).collect();
    let keep: Vec<bool> = columns.kind.iter().map(|kind| *kind != REFUSED).collect();
    *start = keep[..*start].iter().filter(|keep| **keep).count();
    retain(columns, &keep);
    refused
}

/// Makes times from row `start` on not decrease below `last`, and marks the rows whose time
/// changes. `last` becomes the last time.
fn hold_back_times(columns: &mut Columns, start: usize, last: &mut i64) {
    let times = &mut columns.time[start..];
    let Some((&first, &end)) = times.first().zip(times.last()) else { return };
    if first >= *last && times.is_sorted() {
        *last = end;
        return;
    }
    for ((time, flags), op) in times.iter_mut().zip(&mut columns.flags[start..]).zip(&columns.op[start..]) {
        if *time < *last {
            (*time, *flags) = (*last, *flags | flag::moved_bit(*op));
        }
        *last = *time;
    }
}

/// Keeps the rows with a true mark. Their extensions still point into the text.
fn retain(columns: &mut Columns, keep: &[bool]) {
    fn only<V: Copy>(column: &mut Vec<V>, keep: &[bool]) {
        let mut marks = keep.iter();
        column.retain(|_| marks.next().copied().unwrap_or(false));
    }
    let mut new_rows = Vec::with_capacity(keep.len());
    let mut kept = 0u32;
    for mark in keep {
        new_rows.push(kept);
        kept += u32::from(*mark);
    }
    columns.ext.retain(|ext| keep.get(ext.row as usize).copied().unwrap_or(false));
    for ext in &mut columns.ext {
        ext.row = new_rows[ext.row as usize];
    }
    only(&mut columns.kind, keep);
    only(&mut columns.op, keep);
    only(&mut columns.flags, keep);
    only(&mut columns.request, keep);
    only(&mut columns.enclosing, keep);
    only(&mut columns.attempt, keep);
    only(&mut columns.time, keep);
    only(&mut columns.duration, keep);
    only(&mut columns.handle, keep);
    only(&mut columns.offset, keep);
    only(&mut columns.length, keep);
    only(&mut columns.result, keep);
}

#[cfg(test)]
mod tests;
