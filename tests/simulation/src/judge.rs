//! Conservation: what must hold at the end of a run.
//!
//! - Each attempt of a node is an event in one trace, once; or one attempt of one range of
//!   `losses`, with place `lane_full`, exactly if its lane was full; or it is in a spool for a
//!   log-server that is gone. Nothing else is in a trace.
//! - In each trace, rows that are not marked late are in total order of time, stream and attempt
//!   number. In each stream attempt numbers increase, and times do not decrease.
//! - No row is marked late without an earlier row that sorts after it, and none of a node that was
//!   in touch with its log-server all the time, unless nodes waited for memory.
//! - No log-client sends an event below its watermark.
//! - While log-servers ran, a reader of the set has returned all rows before its final time that
//!   are there in the end, except those of the next item.
//! - Counted only: rows before a final time that came after it and are not marked late. A
//!   log-server marks a row if a later one of its trace was stored before it.
//! - `fsck` of each trace and of the set finds no problem, and a reader of the set gets all rows in
//!   order of time.
//! - A time that was not moved differs from the truth by no more than the trace states, and by less
//!   than the clocks can be measured.
//! - A changed set of log-servers changes the preferred log-server of only those nodes that had to.

use crate::node::Node;
use crate::servers::Server;
use crate::world::{Checkpoint, Outcome};
use crate::{EPOCH, MILLISECOND};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{ArrowPrimitiveType, Int64Type, TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{PrimitiveArray, RecordBatch};
use miot_proto::event::flag;
use miot_trace_store::fsck::{Problem, ProblemKind, check_set};
use miot_trace_store::schema;
use miot_trace_store::set::SetState;
use miot_trace_store::{Corrections, Error, Reader, Table, ids};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

/// Maximum error of a time: round trips are at most 4 ms, clocks of log-servers differ by at most
/// 4 ms, and a clock drifts by 20 ppm between two exchanges.
const MAX_CLOCK_ERROR_NS: u64 = 10 * MILLISECOND;
/// The same in a crowded cluster. Clocks are known worse when a connection breaks, and what was
/// missed is corrected slowly if it is less than 10 ms: that, half a round trip, and the error of
/// the log-server's clock.
const MAX_CROWDED_CLOCK_ERROR_NS: u64 = 16 * MILLISECOND;
/// Place of events that were lost because the lane was full.
const LANE_FULL: &str = "lane_full";

/// Sort key of a row: time, stream, attempt number.
type Key = (i64, u64, u64);

/// Result of a judgment.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Number of attempts of all nodes.
    pub attempts: u64,
    /// Number of events in traces.
    pub delivered: u64,
    /// Number of events marked late.
    pub late: u64,
    /// Number of events whose time was moved.
    pub moved: u64,
    /// Number of attempts counted as lost.
    pub lost: u64,
    /// Number of attempts that are only in spools for log-servers that are gone.
    pub not_delivered: u64,
    /// Maximum error of a time that was not moved, nanoseconds.
    pub clock_error_ns: u64,
    /// Maximum error that a trace states of such a time, nanoseconds.
    pub stated_error_ns: u64,
    /// Number of events that were added after their time was final, and are not marked late.
    pub after_final: u64,
    /// Number of times at which the set was read while log-servers ran.
    pub checkpoints: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} attempts: {} delivered ({} late, {} moved), {} lost in full lanes, {} left for log-servers that are \
             gone; {} after their final time; times are off by at most {} µs ({} stated); \
             {} checkpoints of the set",
            self.attempts,
            self.delivered,
            self.late,
            self.moved,
            self.lost,
            self.not_delivered,
            self.after_final,
            self.clock_error_ns / 1000,
            self.stated_error_ns / 1000,
            self.checkpoints
        )
    }
}

/// What is known of the attempts of a node.
#[derive(Debug, Default)]
struct Attempts {
    /// Number of times each attempt is in a trace as an event.
    events: Vec<u8>,
    /// Number of times each attempt is counted as lost.
    lost: Vec<u8>,
}

/// What a trace states about the clocks of its nodes.
struct Clocks {
    corrections: Corrections,
    /// Error of the clock of the log-server, nanoseconds, which its trace cannot know.
    server: i64,
}

impl Clocks {
    /// Maximum error of a merged time of a node, nanoseconds.
    fn max_error(&self, node: &str, time: i64) -> u64 {
        let stated = self.corrections.error(node, time).map_or(0, |error| error.uncertainty);
        stated.unsigned_abs().saturating_add(self.server.unsigned_abs())
    }
}

struct Judge<'a> {
    outcome: &'a Outcome,
    attempts: Vec<Attempts>,
    verdict: Verdict,
    /// For each checkpoint and partition, the unmarked rows before its time.
    by_checkpoint: Vec<HashMap<u16, u64>>,
}

/// Judges a run.
///
/// # Errors
/// The first violation.
pub fn judge(outcome: &Outcome) -> Result<Verdict, String> {
    let attempts = outcome.nodes.iter().map(|node| {
        let attempts = usize::try_from(node.attempts()).unwrap_or(usize::MAX);
        Attempts { events: vec![0; attempts], lost: vec![0; attempts] }
    });
    let mut judge = Judge {
        outcome,
        attempts: attempts.collect(),
        verdict: Verdict { checkpoints: outcome.checkpoints.len(), ..Verdict::default() },
        by_checkpoint: vec![HashMap::new(); outcome.checkpoints.len()],
    };
    judge.log_clients()?;
    for (number, server) in outcome.servers.iter().enumerate().filter(|(_, server)| server.life > 0) {
        judge.trace(number, server).map_err(|violation| format!("log-server {number}: {violation}"))?;
    }
    judge.set()?;
    for node in &outcome.nodes {
        judge.conclude(node).map_err(|violation| format!("{}: {violation}", node.name))?;
    }
    for (moved, due) in &outcome.figures.moved {
        require(moved == due, || format!("{moved} nodes prefer another log-server, and {due} had to"))?;
    }
    Ok(judge.verdict)
}

fn require(holds: bool, violation: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(violation()) }
}

fn text(error: Error) -> String {
    error.to_string()
}

impl Judge<'_> {
    fn log_clients(&self) -> Result<(), String> {
        for node in &self.outcome.nodes {
            let below = node.below_watermark;
            require(below == 0, || format!("{}: {below} events below its watermark", node.name))?;
            require(node.has_ended, || format!("{}: has not ended", node.name))?;
            for spool in &node.spools {
                let (left, server) = (spool.last() - spool.acknowledged, spool.server);
                let is_gone = self.outcome.servers[server].is_gone();
                require(is_gone, || {
                    format!("{}: {left} messages wait for log-server {server}, which runs", node.name)
                })?;
            }
        }
        Ok(())
    }

    /// Reads the trace of a log-server.
    fn trace(&mut self, number: usize, server: &Server) -> Result<(), String> {
        let reader = Reader::open(&server.dir).map_err(text)?;
        let nodes = nodes_of_streams(&reader)?;
        let clocks =
            Clocks { corrections: Corrections::read(&reader).map_err(text)?, server: server.clock_error };
        let mut order = Order::new(&server.finals);
        for batch in reader.events() {
            self.events(number, &batch.map_err(text)?, (&nodes, &clocks), &mut order)?;
        }
        self.verdict.after_final += order.end()?;
        for batch in reader.table(Table::Losses).map_err(text)? {
            self.losses(&batch, &nodes)?;
        }
        Ok(())
    }

    fn events(
        &mut self,
        partition: usize,
        batch: &RecordBatch,
        (nodes, clocks): (&HashMap<u64, usize>, &Clocks),
        order: &mut Order<'_>,
    ) -> Result<(), String> {
        let times: PrimitiveArray<TimestampNanosecondType> = primitive(batch, "time")?;
        let [streams, attempts] = [unsigned(batch, "stream")?, unsigned(batch, "seq")?];
        let [truths, tags] =
            [primitive::<Int64Type>(batch, "offset")?, primitive::<Int64Type>(batch, "length")?];
        let flags: PrimitiveArray<UInt32Type> = primitive(batch, "flags")?;
        for row in 0..batch.num_rows() {
            let (time, stream, attempt) = (times.value(row), streams.value(row), attempts.value(row));
            let is_set = |bit: u16| flags.value(row) & u32::from(bit) != 0;
            let (late, moved) = (is_set(flag::LATE), is_set(flag::MOVED));
            order.row((time, stream, attempt), late)?;
            require(ids::partition_of(stream) == u16::try_from(partition).ok(), || {
                format!("stream {stream} is of another partition")
            })?;
            let number = usize::try_from(tags.value(row) - 1).unwrap_or(usize::MAX);
            require(nodes.get(&stream) == Some(&number), || {
                format!("attempt {attempt} of node {number} is in stream {stream} of another node")
            })?;
            let of_node = self
                .attempts
                .get_mut(number)
                .and_then(|node| node.events.get_mut(usize::try_from(attempt).unwrap_or(usize::MAX)));
            let Some(count) = of_node else { return Err(format!("attempt {attempt} was never made")) };
            *count = count.saturating_add(1);
            if late {
                let node = &self.outcome.nodes[number];
                // A log-server whose memory is full merges without waiting for slow nodes.
                require(node.may_be_late || self.outcome.figures.waited > 0, || {
                    format!("attempt {attempt} of {} is late, and the node was always in touch", node.name)
                })?;
            }
            if !moved {
                let error = time.abs_diff(EPOCH + truths.value(row));
                self.verdict.clock_error_ns = self.verdict.clock_error_ns.max(error);
                let name = &self.outcome.nodes[number].name;
                let stated = clocks.max_error(name, time);
                self.verdict.stated_error_ns = self.verdict.stated_error_ns.max(stated);
                let limit = match self.outcome.plan.crowded {
                    true => MAX_CROWDED_CLOCK_ERROR_NS,
                    false => MAX_CLOCK_ERROR_NS,
                };
                require(error <= stated.min(limit), || {
                    format!(
                        "attempt {attempt} of {name} at {time} is off by {error} ns, and {stated} ns are \
                         stated; late: {late}"
                    )
                })?;
            }
            self.verdict.delivered += 1;
            self.verdict.late += u64::from(late);
            self.verdict.moved += u64::from(moved);
            if !late {
                let partition = u16::try_from(partition).unwrap_or(u16::MAX);
                for (counts, checkpoint) in self.by_checkpoint.iter_mut().zip(&self.outcome.checkpoints) {
                    if time < checkpoint.until {
                        *counts.entry(partition).or_default() += 1;
                    }
                }
            }
        }
        Ok(())
    }

    fn losses(&mut self, batch: &RecordBatch, nodes: &HashMap<u64, usize>) -> Result<(), String> {
        let places = batch.column_by_name("place").ok_or("no column place")?.as_string::<i32>();
        let (streams, firsts) = (unsigned(batch, "stream")?, unsigned(batch, "first_seq")?);
        let lasts = unsigned(batch, "last_seq")?;
        for row in 0..batch.num_rows() {
            let place = places.value(row);
            if schema::is_elsewhere(place) {
                continue;
            }
            require(place == LANE_FULL, || format!("events are lost at {place}"))?;
            let stream = streams.value(row);
            let node = nodes.get(&stream).ok_or_else(|| format!("losses of an unknown stream {stream}"))?;
            for attempt in firsts.value(row)..=lasts.value(row) {
                let count = self.attempts[*node].lost.get_mut(usize::try_from(attempt).unwrap_or(usize::MAX));
                let count = count.ok_or_else(|| format!("attempt {attempt} was lost and never made"))?;
                *count = count.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Reads the set of all traces.
    fn set(&mut self) -> Result<(), String> {
        let written = self.outcome.servers.iter().filter(|server| server.life > 0);
        let dirs: Vec<PathBuf> = written.map(|server| server.dir.clone()).collect();
        let report = check_set(&dirs).map_err(text)?;
        if let Some((dir, trace)) = report.traces.iter().find(|(_, trace)| !trace.is_good()) {
            return Err(format!("{}: {trace}", dir.display()));
        }
        // What is left for a log-server that is gone is in no trace; `conclude` checks what it is.
        let has_left = self.outcome.nodes.iter().any(|node| !node.spools.is_empty());
        let is_due = |problem: &&Problem| !(has_left && problem.kind == ProblemKind::Gap);
        if let Some(problem) = report.problems.iter().find(is_due) {
            return Err(format!("the set: {}", problem.text));
        }
        let state = SetState::examine(&dirs).map_err(text)?;
        let reader = Reader::of_set(&state, |dir| Reader::open(dir)).map_err(text)?;
        let (mut rows, mut last) = (0, i64::MIN);
        for batch in reader.events() {
            let batch = batch.map_err(text)?;
            let times: PrimitiveArray<TimestampNanosecondType> = primitive(&batch, "time")?;
            let flags: PrimitiveArray<UInt32Type> = primitive(&batch, "flags")?;
            for row in 0..batch.num_rows() {
                let is_late = flags.value(row) & u32::from(flag::LATE) != 0;
                require(is_late || times.value(row) >= last, || {
                    format!("rows of the set are not in order at {}", times.value(row))
                })?;
                last = last.max(times.value(row));
            }
            rows += batch.num_rows() as u64;
        }
        let delivered = self.verdict.delivered;
        require(rows == delivered, || format!("the set has {rows} rows, its traces {delivered}"))?;
        self.checkpoints()
    }

    /// Compares what readers have seen while log-servers ran with what is there in the end.
    fn checkpoints(&self) -> Result<(), String> {
        for (Checkpoint { until, written, rows }, counts) in
            self.outcome.checkpoints.iter().zip(&self.by_checkpoint)
        {
            for partition in written {
                let (seen, now) = (rows.get(partition), counts.get(partition));
                let added = now.unwrap_or(&0) - seen.unwrap_or(&0).min(now.unwrap_or(&0));
                require(seen <= now && added <= self.verdict.after_final, || {
                    format!(
                        "partition {partition} had {seen:?} rows before {until} when it was final, now {now:?}"
                    )
                })?;
            }
        }
        Ok(())
    }

    fn conclude(&mut self, node: &Node) -> Result<(), String> {
        let Attempts { events, lost } = &self.attempts[node.number];
        let mut is_lost = vec![false; events.len()];
        for (first, last) in &node.lost {
            (*first..=*last).for_each(|attempt| is_lost[attempt as usize] = true);
        }
        let mut is_left = vec![false; events.len()];
        for (_, rows) in node.spools.iter().flat_map(|spool| spool.batches()) {
            rows.iter().for_each(|row| is_left[row.attempt as usize] = true);
        }
        let has_left = !node.spools.is_empty();
        for (attempt, (events, lost)) in events.iter().zip(lost).enumerate() {
            require(*events <= 1, || format!("attempt {attempt} is in the traces {events} times"))?;
            require(*lost <= 1, || format!("attempt {attempt} is counted as lost {lost} times"))?;
            let holds = match (is_lost[attempt], *events, *lost) {
                (true, events, 1) => events == 0,
                // The report of the loss is in the spool that is left.
                (true, events, _) => events == 0 && has_left,
                (false, 1, lost) => lost == 0,
                (false, _, lost) => lost == 0 && is_left[attempt],
            };
            require(holds, || {
                format!(
                    "attempt {attempt}: lost in the lane: {}, in a spool that is left: {}; {events} events, {lost} losses",
                    is_lost[attempt], is_left[attempt]
                )
            })?;
            self.verdict.attempts += 1;
            self.verdict.lost += u64::from(*lost);
            self.verdict.not_delivered += u64::from(*events == 0 && is_left[attempt]);
        }
        Ok(())
    }
}

/// Node of each stream of a trace.
fn nodes_of_streams(reader: &Reader) -> Result<HashMap<u64, usize>, String> {
    let mut processes = HashMap::new();
    for batch in reader.table(Table::Processes).map_err(text)? {
        let (ids, names) =
            (unsigned(&batch, "process")?, batch.column_by_name("node").ok_or("no column node")?);
        let names = names.as_string::<i32>();
        for row in 0..batch.num_rows() {
            let number = names.value(row).strip_prefix("node").and_then(|number| number.parse().ok());
            let number: usize = number.ok_or_else(|| format!("an invented node: {}", names.value(row)))?;
            processes.insert(ids.value(row), number);
        }
    }
    let mut streams = HashMap::new();
    for batch in reader.table(Table::Threads).map_err(text)? {
        let (ids, of) = (unsigned(&batch, "stream")?, unsigned(&batch, "process")?);
        for row in 0..batch.num_rows() {
            let node = processes.get(&of.value(row)).ok_or("a stream of an unknown process")?;
            require(streams.insert(ids.value(row), *node).is_none(), || {
                "a stream is there twice".to_owned()
            })?;
        }
    }
    Ok(streams)
}

/// Checks the order of a trace, row by row.
struct Order<'a> {
    /// Number of rows, and the time up to which the trace was final with them.
    finals: &'a [(u64, i64)],
    rows: u64,
    /// Rows before this time should be marked late.
    final_time: i64,
    /// Number of those that are not.
    after_final: u64,
    /// The last row that is not marked late.
    last: Option<Key>,
    /// Greatest late row.
    late: Option<Key>,
    streams: HashMap<u64, (u64, i64)>,
}

impl Order<'_> {
    fn new(finals: &[(u64, i64)]) -> Order<'_> {
        let (rows, final_time, last, late) = (0, i64::MIN, None, None);
        Order { finals, rows, final_time, after_final: 0, last, late, streams: HashMap::new() }
    }

    fn row(&mut self, key: Key, late: bool) -> Result<(), String> {
        let (time, stream, attempt) = key;
        while let Some(((_, time), rest)) =
            self.finals.split_first().filter(|((rows, _), _)| *rows <= self.rows)
        {
            (self.final_time, self.finals) = (self.final_time.max(*time), rest);
        }
        self.rows += 1;
        if let Some((before, earlier)) = self.streams.insert(stream, (attempt, time)) {
            require(before < attempt && earlier <= time, || {
                format!("stream {stream}: attempt {attempt} at {time} after {before} at {earlier}")
            })?;
        }
        if late {
            self.late = self.late.max(Some(key));
            return Ok(());
        }
        require(self.last < Some(key), || format!("{key:?} after {:?}, and not marked late", self.last))?;
        self.after_final += u64::from(time < self.final_time);
        self.last = Some(key);
        Ok(())
    }

    /// Ends the trace. Returns the number of rows that were added after their time was final, and
    /// are not marked late.
    fn end(self) -> Result<u64, String> {
        let has_reason = self.late.is_none() || self.late < self.last;
        require(has_reason, || format!("{:?} is marked late without a later row", self.late))?;
        Ok(self.after_final)
    }
}

fn primitive<T: ArrowPrimitiveType>(batch: &RecordBatch, name: &str) -> Result<PrimitiveArray<T>, String> {
    schema::column(batch, name).ok_or_else(|| format!("no column {name} of this type"))
}

fn unsigned(batch: &RecordBatch, name: &str) -> Result<PrimitiveArray<UInt64Type>, String> {
    primitive(batch, name)
}
