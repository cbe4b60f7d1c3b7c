//! Check of the traces of several log-servers against each other.
//!
//! - Each trace is good by itself, and its ids are of its partition.
//! - No attempt number of a stream is in two traces.
//! - Numbers that a trace has recorded as `elsewhere` are in another one: as events, records or
//!   losses. If a trace of the set is missing, those that are nowhere are named.

use super::{CheckReport, Problem, ProblemKind, check};
use crate::error::Error;
use crate::ids::partition_of;
use crate::ranges::{Range, merged, without};
use crate::reader::Reader;
use crate::scan::Select;
use crate::schema::{ELSEWHERE, Table, column, text};
use crate::set::{SetState, numbers};
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, RecordBatch};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Report of a check of a set. `Display` is for people, `Serialize` for programs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SetReport {
    /// State of the set.
    pub state: SetState,
    /// Report of each trace that can be read.
    pub traces: Vec<(PathBuf, CheckReport)>,
    /// Events of all traces.
    pub events: u64,
    /// Streams that have numbers in several traces.
    pub moved: u64,
    /// Numbers that only a missing trace has.
    pub missing: Vec<MissingNumbers>,
    /// Problems between traces.
    pub problems: Vec<Problem>,
}

/// Attempt numbers of a stream that only a missing trace has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingNumbers {
    /// Name of the node.
    pub node: String,
    /// Process id.
    pub pid: u32,
    /// Lane of the stream.
    pub lane: u32,
    /// First number.
    pub first: u64,
    /// Last number.
    pub last: u64,
}

/// Permanent identity of a stream: node, boot, nonce, process id, lane, incarnation.
type StreamKey = (String, String, String, u64, u64, u64);

/// What one trace has of a stream, as ranges of attempt numbers.
#[derive(Default)]
struct Part {
    trace: usize,
    /// Events, records and losses.
    own: Vec<Range>,
    elsewhere: Vec<Range>,
}

impl SetReport {
    /// True if there are no problems, in a trace or between traces, and nothing is missing.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
            && self.missing.is_empty()
            && !self.state.is_incomplete()
            && self.traces.iter().all(|(_, report)| report.problems.is_empty())
    }
}

/// Checks the traces of a set.
///
/// # Errors
/// [`Error::Set`] if they cannot be in one set; errors of reading.
pub fn check_set(dirs: &[PathBuf]) -> Result<SetReport, Error> {
    let state = SetState::examine(dirs)?;
    let mut report = SetReport::default();
    let mut streams: HashMap<StreamKey, Vec<Part>> = HashMap::new();
    let mut candidates: Vec<HashMap<u64, StreamKey>> = Vec::new();
    let readable: Vec<PathBuf> = state.readable().into_iter().map(Path::to_owned).collect();
    for dir in &readable {
        let own = check(dir);
        report.events += own.events;
        report.traces.push((dir.clone(), own));
        candidates.push(read_streams(&Reader::open(dir)?, &mut report)?);
    }
    // Only streams of several traces, and those that began elsewhere, are compared.
    let mut traces_of: HashMap<&StreamKey, u64> = HashMap::new();
    candidates.iter().flat_map(HashMap::values).for_each(|key| *traces_of.entry(key).or_default() += 1);
    for (trace, dir) in readable.iter().enumerate() {
        let reader = Reader::open(dir)?;
        let elsewhere = elsewhere_of(&reader)?;
        let wanted: HashMap<u64, &StreamKey> = candidates[trace]
            .iter()
            .filter(|(id, key)| {
                traces_of.get(key).is_some_and(|count| *count > 1) || elsewhere.contains_key(id)
            })
            .map(|(id, key)| (*id, key))
            .collect();
        for (id, own) in own_ranges(&reader, &wanted)? {
            if let Some(key) = wanted.get(&id) {
                let elsewhere = elsewhere.get(&id).cloned().unwrap_or_default();
                streams.entry((*key).clone()).or_default().push(Part { trace, own, elsewhere });
            }
        }
    }
    let is_incomplete = state.is_incomplete();
    let mut ordered: Vec<_> = streams.into_iter().collect();
    ordered.sort_by(|a, b| a.0.cmp(&b.0));
    for (key, parts) in ordered {
        report.moved += u64::from(parts.iter().filter(|part| !part.own.is_empty()).count() > 1);
        compare(&key, &parts, &readable, is_incomplete, &mut report);
    }
    report.state = state;
    Ok(report)
}

/// Compares what the traces have of one stream.
fn compare(key: &StreamKey, parts: &[Part], dirs: &[PathBuf], is_incomplete: bool, report: &mut SetReport) {
    let (node, _, _, pid, lane, _) = key;
    let name = || format!("node {node}, process {pid}, lane {lane}");
    for (index, one) in parts.iter().enumerate() {
        for other in &parts[index + 1..] {
            for (first, last) in common(&one.own, &other.own) {
                let text = format!(
                    "{}: numbers {first} to {last} are in {} and in {}",
                    name(),
                    dirs[one.trace].display(),
                    dirs[other.trace].display()
                );
                report.problems.push(Problem { kind: ProblemKind::Duplicate, part: None, text });
            }
        }
        let others: Vec<Range> = parts
            .iter()
            .filter(|other| other.trace != one.trace)
            .flat_map(|other| other.own.clone())
            .collect();
        for (first, last) in without(&one.elsewhere, &merged(others)) {
            if is_incomplete {
                let (pid, lane) = (*pid as u32, *lane as u32);
                report.missing.push(MissingNumbers { node: node.clone(), pid, lane, first, last });
            } else {
                let text = format!(
                    "{}: numbers {first} to {last} are `elsewhere` for {}, but in no trace of the set",
                    name(),
                    dirs[one.trace].display()
                );
                report.problems.push(Problem { kind: ProblemKind::Gap, part: None, text });
            }
        }
    }
    // Several traces may name the same numbers.
    report.missing.dedup();
}

/// Returns the streams of a trace, and reports ids of another partition.
fn read_streams(reader: &Reader, report: &mut SetReport) -> Result<HashMap<u64, StreamKey>, Error> {
    let mut processes: HashMap<u64, (String, String, String, u64)> = HashMap::new();
    let partition = reader.manifest().partition;
    let mut foreign = 0u64;
    for batch in reader.batches(Table::Processes) {
        let batch = batch?;
        let (Some(ids), Some(pids)) = (column::<UInt64Type>(&batch, "process"), numbers(&batch, "pid"))
        else {
            continue;
        };
        let [node, boot, nonce] = ["node", "boot", "nonce"].map(|name| text(&batch, name));
        let (Some(node), Some(boot), Some(nonce)) = (node, boot, nonce) else { continue };
        for (row, pid) in pids.into_iter().enumerate() {
            foreign += u64::from(partition_of(ids.value(row)) != Some(partition));
            if boot.is_valid(row) && nonce.is_valid(row) {
                let key = (
                    node.value(row).to_owned(),
                    boot.value(row).to_owned(),
                    nonce.value(row).to_owned(),
                    pid,
                );
                processes.insert(ids.value(row), key);
            }
        }
    }
    let mut streams = HashMap::new();
    for batch in reader.batches(Table::Threads) {
        let batch = batch?;
        let [ids, of] = ["stream", "process"].map(|name| column::<UInt64Type>(&batch, name));
        let [lanes, incarnations] = ["lane", "incarnation"].map(|name| numbers(&batch, name));
        let (Some(ids), Some(of), Some(lanes), Some(incarnations)) = (ids, of, lanes, incarnations) else {
            continue;
        };
        for row in 0..batch.num_rows() {
            foreign += u64::from(partition_of(ids.value(row)) != Some(partition));
            if let Some((node, boot, nonce, pid)) = processes.get(&of.value(row)).cloned() {
                streams.insert(ids.value(row), (node, boot, nonce, pid, lanes[row], incarnations[row]));
            }
        }
    }
    if foreign > 0 {
        let text = format!("partition {partition} has {foreign} ids of other partitions");
        report.problems.push(Problem { kind: ProblemKind::Duplicate, part: None, text });
    }
    Ok(streams)
}

/// Returns the ranges that a trace has recorded as `elsewhere`, by stream.
fn elsewhere_of(reader: &Reader) -> Result<HashMap<u64, Vec<Range>>, Error> {
    let mut ranges: HashMap<u64, Vec<Range>> = HashMap::new();
    each_loss(reader, |place, stream, range| {
        if place == ELSEWHERE {
            ranges.entry(stream).or_default().push(range);
        }
    })?;
    Ok(ranges.into_iter().map(|(stream, ranges)| (stream, merged(ranges))).collect())
}

fn each_loss(reader: &Reader, mut add: impl FnMut(&str, u64, Range)) -> Result<(), Error> {
    for batch in reader.batches(Table::Losses) {
        let batch = batch?;
        let [streams, firsts, lasts] =
            ["stream", "first_seq", "last_seq"].map(|name| column::<UInt64Type>(&batch, name));
        let (Some(streams), Some(firsts), Some(lasts), Some(places)) =
            (streams, firsts, lasts, text(&batch, "place"))
        else {
            continue;
        };
        for row in 0..batch.num_rows() {
            if streams.is_valid(row) && firsts.is_valid(row) && lasts.is_valid(row) {
                add(places.value(row), streams.value(row), (firsts.value(row), lasts.value(row)));
            }
        }
    }
    Ok(())
}

/// Returns the attempt numbers of these streams that are events, records or losses in a trace.
fn own_ranges(
    reader: &Reader,
    wanted: &HashMap<u64, &StreamKey>,
) -> Result<BTreeMap<u64, Vec<Range>>, Error> {
    let mut ranges: BTreeMap<u64, Vec<Range>> = wanted.keys().map(|stream| (*stream, Vec::new())).collect();
    if wanted.is_empty() {
        return Ok(ranges);
    }
    let ids: HashSet<u64> = wanted.keys().copied().collect();
    let mut add = |stream: u64, (first, last): Range| {
        let Some(ranges) = ids.contains(&stream).then(|| ranges.entry(stream).or_default()) else { return };
        match ranges.last_mut() {
            Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
            _ => ranges.push((first, last)),
        }
    };
    for batch in reader.scan(&Select::columns(&["stream", "seq"]))? {
        add_numbers(&batch?, &mut add);
    }
    for batch in reader.batches(Table::Files) {
        add_numbers(&batch?, &mut add);
    }
    each_loss(reader, |place, stream, range| {
        if place != ELSEWHERE {
            add(stream, range);
        }
    })?;
    Ok(ranges.into_iter().map(|(stream, ranges)| (stream, merged(ranges))).collect())
}

fn add_numbers(batch: &RecordBatch, add: &mut impl FnMut(u64, Range)) {
    let [streams, seqs] = ["stream", "seq"].map(|name| column::<UInt64Type>(batch, name));
    let (Some(streams), Some(seqs)) = (streams, seqs) else { return };
    for (stream, seq) in streams.iter().zip(&seqs) {
        if let (Some(stream), Some(seq)) = (stream, seq) {
            add(stream, (seq, seq));
        }
    }
}

/// Returns the numbers that are in both lists. Both must be merged.
fn common(one: &[Range], other: &[Range]) -> Vec<Range> {
    let outside = without(one, other);
    without(one, &outside)
}

impl fmt::Display for SetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (dir, report) in &self.traces {
            writeln!(f, "{}: {report}", dir.display())?;
        }
        writeln!(
            f,
            "set of {} traces: {} events; {} streams have numbers in several traces",
            self.state.members.len(),
            self.events,
            self.moved
        )?;
        for note in self.state.notes() {
            writeln!(f, "missing: {note}")?;
        }
        for MissingNumbers { node, pid, lane, first, last } in &self.missing {
            writeln!(
                f,
                "missing: {} of node {node}, process {pid}, lane {lane}, numbers {first} to {last}: in no trace that is here",
                super::counted(last - first + 1, "request")
            )?;
        }
        for problem in &self.problems {
            writeln!(f, "problem: {}", problem.text)?;
        }
        let (good, bad) =
            ("good: each trace is good, no number is in two of them, none is missing", "not good: see above");
        write!(f, "{}", if self.is_good() { good } else { bad })
    }
}
