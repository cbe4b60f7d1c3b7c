//! The merge of all streams into one order. Pure: no I/O, no clock, no threads.
//!
//! Every stream is a queue of batches in attempt order, whose times do not decrease (a stream whose
//! times go backwards is held at its last time). A step takes from every queue the rows before a bound
//! in time, and puts them in the order of the trace: **time, then stream, then attempt number**. The bound is
//! the watermark: before it nothing more can come, unless a node was given up as silent. A row that comes
//! after all, that is, one that sorts before the last row already given out, is *late*: it is given out with the next
//! step and marked; all rows that are not marked are in total order.
//!
//! What is missing in a stream was lost in its lane, or given up by the node, or went missing on the way: a batch says
//! where its node had got to before it.
//!
//! Batches may come twice, after a reconnect. Rows whose attempt number has been seen are dropped; a
//! ticket that belongs to a dropped row is still only given back after the rows before it in its stream,
//! so that nothing is acknowledged on the strength of a copy that is not durable.

use miot_proto::batch::Columns;
use miot_proto::event::flag;
use miot_proto::wire::StreamEnd;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Place of a row in the order of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Completion, nanoseconds since 1970.
    pub time: i64,
    /// Stream id.
    pub stream: u64,
    /// Attempt number.
    pub seq: u64,
}

/// Rows of one batch that a step takes.
#[derive(Clone, Debug)]
pub struct Source {
    /// Stream id.
    pub stream: u64,
    /// The batch.
    pub columns: Arc<Columns>,
    /// First row taken.
    pub start: usize,
    /// Rows taken.
    pub len: usize,
}

/// A row of a step: which source, which row of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Completion, nanoseconds since 1970.
    pub time: i64,
    /// Index in [`Step::sources`].
    pub source: u32,
    /// Row of the source's batch.
    pub row: u32,
}

/// Place of a gap: the lane had no room for these, or was told to overwrite them.
pub const LANE_FULL: &str = "lane_full";
/// Place of a gap: the node gave them up, because its spool was full.
pub const SPOOL_FULL: &str = "spool_full";
/// Place of a gap: the node had taken them from the lane, and has them no more.
pub const SPOOL_DAMAGED: &str = "spool_damaged";

/// Attempt numbers that never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Stream id.
    pub stream: u64,
    /// Where they were lost.
    pub place: &'static str,
    /// Time of the row after the gap, or of the stream's end, or of the last row that was given up.
    pub time: i64,
    /// First missing number.
    pub first: u64,
    /// Last missing number.
    pub last: u64,
}

/// See [`miot_proto::wire::Message::GivenUp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Where the node had got to before.
    pub after: u64,
    /// First and last attempt numbers, ascending.
    pub ranges: Vec<(u64, u64)>,
    /// Completion of the last one.
    pub time: i64,
}

/// A stream whose last row has been given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Stream id.
    pub stream: u64,
    /// The attempt number it would have gone on with.
    pub next: u64,
    /// What the node said.
    pub end: StreamEnd,
}

/// What one step gives out.
#[derive(Debug)]
pub struct Step<T> {
    /// Where the rows are; by stream, then by attempt number.
    pub sources: Vec<Source>,
    /// The rows in their order.
    pub order: Vec<At>,
    /// The first so many rows of `order` are late.
    pub late: usize,
    /// Losses found between these rows, by stream.
    pub gaps: Vec<Gap>,
    /// Streams that ended.
    pub ended: Vec<Ended>,
    /// Streams of which nothing waits any more.
    pub emptied: Vec<u64>,
    /// Tickets of the batches and ends that are used up.
    pub tickets: Vec<T>,
    /// Rows before the bound remain: there were more than the limit.
    pub more: bool,
}

impl<T> Default for Step<T> {
    fn default() -> Step<T> {
        Step {
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

impl<T> Step<T> {
    /// True if nothing came of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty() && self.ended.is_empty() && self.tickets.is_empty()
    }
}

#[derive(Debug)]
enum What {
    /// A batch, the first row of it that is still to be taken, and where the node had got to before it.
    Rows(Arc<Columns>, usize, u64),
    GivenUp(GivenUp),
    End(StreamEnd),
}

#[derive(Debug)]
struct Entry<T> {
    what: What,
    ticket: T,
}

#[derive(Debug)]
struct Lane<T> {
    /// Attempt number expected next from the node.
    next: u64,
    /// Attempt number expected next in the trace.
    given: u64,
    /// Time of the last row received.
    time: i64,
    queue: VecDeque<Entry<T>>,
    rows: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Merge<T> {
    lanes: BTreeMap<u64, Lane<T>>,
    last: Key,
    rows: usize,
    entries: usize,
}

impl<T> Merge<T> {
    /// A merge that continues a trace whose last row is `last`, if it has one.
    #[must_use]
    pub fn new(last: Option<Key>) -> Merge<T> {
        let last = last.unwrap_or(Key { time: i64::MIN, stream: 0, seq: 0 });
        Merge { lanes: BTreeMap::new(), last, rows: 0, entries: 0 }
    }

    /// Adds a stream that goes on with attempt number `next`. A stream that is there already stays as it is.
    pub fn add_stream(&mut self, stream: u64, next: u64) {
        self.lanes.entry(stream).or_insert_with(|| Lane {
            next,
            given: next,
            time: i64::MIN,
            queue: VecDeque::new(),
            rows: 0,
        });
    }

    /// Rows that wait.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// True if neither rows nor tickets wait.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries == 0
    }

    /// True if the stream has rows or an end that wait.
    #[must_use]
    pub fn is_waiting(&self, stream: u64) -> bool {
        self.lanes.get(&stream).is_some_and(|lane| !lane.queue.is_empty())
    }

    /// Adds a batch to its stream, without the rows that came before, and returns how many it added. `after`: the attempt
    /// number with which the node went on. A stream that is not there is added, from the batch's first attempt
    /// number on.
    pub fn push(&mut self, stream: u64, after: u64, mut columns: Columns, ticket: T) -> usize {
        let first = columns.attempt.first().copied().unwrap_or(0);
        self.add_stream(stream, first);
        let Some(lane) = self.lanes.get_mut(&stream) else { return 0 };
        let start = drop_seen(&mut columns, lane.next);
        hold_back_times(&mut columns, start, &mut lane.time);
        if let Some(last) = columns.attempt.last() {
            lane.next = lane.next.max(last + 1);
        }
        let added = columns.len() - start;
        lane.rows += added;
        self.rows += added;
        self.entries += 1;
        lane.queue.push_back(Entry { what: What::Rows(Arc::new(columns), start, after), ticket });
        added
    }

    /// Notes what the node gave up of a stream; what came before all the same is not lost.
    pub fn give_up(&mut self, stream: u64, given_up: GivenUp, ticket: T) {
        self.add_stream(stream, 0);
        if let Some(lane) = self.lanes.get_mut(&stream) {
            let after = given_up.ranges.iter().map(|(_, last)| last.saturating_add(1)).max();
            // Without ranges all below `after` was taken from the lane, and comes no more if it has not come.
            lane.next = lane.next.max(after.unwrap_or(given_up.after));
            self.entries += 1;
            lane.queue.push_back(Entry { what: What::GivenUp(given_up), ticket });
        }
    }

    /// Ends a stream, after all of its rows.
    pub fn end(&mut self, stream: u64, end: StreamEnd, ticket: T) {
        self.add_stream(stream, end.attempts);
        if let Some(lane) = self.lanes.get_mut(&stream) {
            lane.next = lane.next.max(end.attempts);
            self.entries += 1;
            lane.queue.push_back(Entry { what: What::End(end), ticket });
        }
    }

    /// Takes the rows that completed before `bound` (all, if it is `None`), about `limit` at most.
    pub fn step(&mut self, bound: Option<i64>, limit: usize) -> Step<T> {
        let mut step = Step::default();
        if self.entries == 0 {
            return step;
        }
        let cut = self.cut(bound, limit);
        step.more = cut != bound;
        self.take(cut, &mut step);
        if step.more && step.order.is_empty() {
            // More than the limit at one and the same time.
            self.take(bound, &mut step);
            step.more = false;
        }
        self.finish(&mut step);
        step
    }

    /// A bound in time, at most `bound`, before which there are about `limit` rows.
    fn cut(&self, bound: Option<i64>, limit: usize) -> Option<i64> {
        if self.rows <= limit {
            return bound;
        }
        let busy = self.lanes.values().filter(|lane| lane.rows > 0).count();
        let share = (limit / busy.max(1)).max(1);
        let cuts = self.lanes.values().filter_map(|lane| lane.time_of(share));
        cuts.chain(bound).min()
    }

    fn take(&mut self, bound: Option<i64>, step: &mut Step<T>) {
        let mut gone = Vec::new();
        for (&stream, lane) in &mut self.lanes {
            let before = lane.queue.len();
            while let Some(entry) = lane.queue.front_mut() {
                match &mut entry.what {
                    What::Rows(columns, start, after) => {
                        let waiting = &columns.time[*start..];
                        let len = match bound {
                            Some(bound) if waiting.last().is_some_and(|t| *t >= bound) => {
                                waiting.partition_point(|t| *t < bound)
                            }
                            _ => waiting.len(),
                        };
                        let used_up = len == waiting.len();
                        if len > 0 {
                            let due = (*after).min(columns.attempt[*start]);
                            let time = columns.time[*start];
                            miss(stream, &mut lane.given, due, SPOOL_DAMAGED, time, &mut step.gaps);
                            find_gaps(stream, columns, *start, len, &mut lane.given, &mut step.gaps);
                            step.sources.push(Source {
                                stream,
                                columns: Arc::clone(columns),
                                start: *start,
                                len,
                            });
                            lane.rows -= len;
                            self.rows -= len;
                            *start += len;
                        }
                        if !used_up {
                            break;
                        }
                    }
                    What::GivenUp(GivenUp { after, ranges, time }) => {
                        let first = ranges.first().map_or(u64::MAX, |(first, _)| *first);
                        miss(
                            stream,
                            &mut lane.given,
                            (*after).min(first),
                            SPOOL_DAMAGED,
                            *time,
                            &mut step.gaps,
                        );
                        for (first, last) in ranges {
                            miss(stream, &mut lane.given, *first, LANE_FULL, *time, &mut step.gaps);
                            miss(
                                stream,
                                &mut lane.given,
                                last.saturating_add(1),
                                SPOOL_FULL,
                                *time,
                                &mut step.gaps,
                            );
                        }
                    }
                    What::End(end) => {
                        let after = end.after.min(end.attempts);
                        miss(stream, &mut lane.given, after, SPOOL_DAMAGED, end.time, &mut step.gaps);
                        miss(stream, &mut lane.given, end.attempts, LANE_FULL, end.time, &mut step.gaps);
                        step.ended.push(Ended { stream, next: lane.given, end: *end });
                        if lane.queue.len() == 1 {
                            gone.push(stream);
                        }
                    }
                }
                step.tickets.extend(lane.queue.pop_front().map(|entry| entry.ticket));
            }
            self.entries -= before - lane.queue.len();
            if before > 0 && lane.queue.is_empty() {
                step.emptied.push(stream);
            }
        }
        for stream in gone {
            self.lanes.remove(&stream);
        }
    }

    fn finish(&mut self, step: &mut Step<T>) {
        let rows: usize = step.sources.iter().map(|s| s.len).sum();
        step.order.reserve_exact(rows);
        for (index, source) in step.sources.iter().enumerate() {
            let times = source.columns.time[source.start..source.start + source.len].iter();
            let rows = times.zip(source.start as u32..);
            step.order.extend(rows.map(|(time, row)| At { time: *time, source: index as u32, row }));
        }
        // The sources are by stream and attempt number, so a stable sort by time gives the order. It finds
        // the runs, and costs one comparison per row where there is one stream.
        step.order.sort_by_key(|at| at.time);
        let key = |at: &At| {
            let source = &step.sources[at.source as usize];
            Key { time: at.time, stream: source.stream, seq: source.columns.attempt[at.row as usize] }
        };
        step.late =
            step.order.iter().take_while(|at| at.time <= self.last.time && key(at) < self.last).count();
        if step.late < step.order.len()
            && let Some(last) = step.order.last()
        {
            self.last = key(last);
        }
    }
}

impl<T> Lane<T> {
    /// Time of the `n`th waiting row, from 0.
    fn time_of(&self, mut n: usize) -> Option<i64> {
        if n >= self.rows {
            return None;
        }
        for entry in &self.queue {
            if let What::Rows(columns, start, _) = &entry.what {
                let waiting = &columns.time[*start..];
                if let Some(time) = waiting.get(n) {
                    return Some(*time);
                }
                n -= waiting.len();
            }
        }
        None
    }
}

/// The first row whose attempt number is at least `next`, after making sure that attempt numbers
/// strictly increase from there on, and can be counted up: rows that do not are from a broken peer, and
/// are removed.
fn drop_seen(columns: &mut Columns, next: u64) -> usize {
    if !columns.attempt.is_sorted_by(|a, b| a < b) || columns.attempt.last() == Some(&u64::MAX) {
        let mut expected = next;
        let keep: Vec<bool> = columns
            .attempt
            .iter()
            .map(|attempt| {
                let new = *attempt >= expected && *attempt < u64::MAX;
                expected = if new { attempt + 1 } else { expected };
                new
            })
            .collect();
        retain(columns, &keep);
    }
    columns.attempt.partition_point(|attempt| *attempt < next)
}

/// Makes times not decrease, from row `start` and the time `last` on, and leaves the last one there. What is moved is marked.
fn hold_back_times(columns: &mut Columns, start: usize, last: &mut i64) {
    let times = &mut columns.time[start..];
    let Some((&first, &end)) = times.first().zip(times.last()) else { return };
    if first >= *last && times.is_sorted() {
        *last = end;
        return;
    }
    for ((time, flags), op) in times.iter_mut().zip(&mut columns.flags[start..]).zip(&columns.op[start..]) {
        if *time < *last {
            (*time, *flags) = (*last, *flags | flag::moved(*op));
        }
        *last = *time;
    }
}

/// What has not come below `next` was lost at `place`.
fn miss(stream: u64, given: &mut u64, next: u64, place: &'static str, time: i64, gaps: &mut Vec<Gap>) {
    if next > *given {
        gaps.push(Gap { stream, place, time, first: *given, last: next - 1 });
        *given = next;
    }
}

fn find_gaps(stream: u64, columns: &Columns, start: usize, len: usize, given: &mut u64, gaps: &mut Vec<Gap>) {
    let attempts = &columns.attempt[start..start + len];
    let (first, last) = (attempts[0], attempts[len - 1]);
    if first != *given || last - first != len as u64 - 1 {
        for (i, &attempt) in attempts.iter().enumerate() {
            if attempt > *given {
                gaps.push(Gap {
                    stream,
                    place: LANE_FULL,
                    time: columns.time[start + i],
                    first: *given,
                    last: attempt - 1,
                });
            }
            *given = attempt + 1;
        }
    }
    *given = last + 1;
}

/// Keeps the rows that are marked; their extensions keep pointing into the text.
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
