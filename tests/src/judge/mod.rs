//! Judge of a trace directory whose producers are known.
//!
//! It checks that each committed event is in the trace exactly once, intact and in its place, or is
//! counted as lost at a place. Nothing else may be in the trace. In detail:
//!
//! - Every event of the trace identifies its request and thread ([`victim`](crate::victim)) and has
//!   the values of that request.
//! - The attempt numbers of a stream count from 0 without a gap: each is an event or lies within
//!   one range of `losses`.
//! - The streams of a thread follow each other. Together they hold the requests that the thread
//!   reported as committed, and at most those that it may have begun when it was killed. A stream
//!   of which everything was lost names no thread; such streams must be as long as the missing
//!   requests of their process.
//! - In stored order, the attempt numbers of each stream increase and its times never decrease.
//!   Rows that are not marked late are in total order of (time, stream, attempt). Sealed parts are
//!   sorted by time. No row is marked late without reason.
//! - The number of losses without a range (`no_lane`) equals the number of requests that producers
//!   were refused.
//! - `miot fsck` finds no problem.

mod asked;
mod order;

pub use asked::{Asked, Producer, Thread};
pub use order::{Key, Order};

use crate::victim::{LIVES, handle, offset, path};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{ArrowPrimitiveType, Int64Type, TimestampNanosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array as _, PrimitiveArray, RecordBatch};
use miot_proto::event::flag;
use miot_trace_store::schema::{self, NameKey};
use miot_trace_store::{FileNames, Reader, Table, fsck};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::Path;

/// Losses that a scenario permits.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Places at which events may be lost.
    pub lost_at: &'static [&'static str],
    /// A log-client was present whenever a producer was, so each refused request was refused for
    /// lack of a lane, and was counted.
    pub served: bool,
}

impl Rules {
    /// Lanes may have been full.
    pub const LANES: Rules = Rules { lost_at: &["lane_full"], served: false };
    /// Producers wait for free slots, so nothing is lost.
    pub const COMPLETE: Rules = Rules { lost_at: &[], served: false };
}

/// Result of a judgment.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Number of sealed parts.
    pub sealed: u64,
    /// Nodes with events: number of events, and number of events marked late.
    pub nodes: BTreeMap<String, (u64, u64)>,
    /// Number of threads with events.
    pub threads: u64,
    /// Number of events.
    pub delivered: u64,
    /// Number of events whose request never ended.
    pub cut_off: u64,
    /// Number of events marked late.
    pub late: u64,
    /// Number of lost attempts with known attempt numbers.
    pub lost: u64,
    /// Number of requests counted as lost for lack of a lane.
    pub no_lane: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} threads on {} nodes, {} attempts: {} delivered ({} cut off, {} late), {} lost; {} without a lane; {} sealed \
             parts",
            self.threads,
            self.nodes.len(),
            self.delivered + self.lost,
            self.delivered,
            self.cut_off,
            self.late,
            self.lost,
            self.no_lane,
            self.sealed
        )
    }
}

/// Judges a finished trace.
///
/// # Panics
/// With the first error found.
#[must_use]
pub fn judge(trace: &Path, asked: &Asked, rules: Rules) -> Verdict {
    judge_set(&[trace], asked, rules)
}

/// Judges the finished traces of several log-servers. A process or stream that is in several traces
/// is one: its attempt numbers must be there once, in whichever trace.
///
/// # Panics
/// With the first error found.
#[must_use]
pub fn judge_set(traces: &[&Path], asked: &Asked, rules: Rules) -> Verdict {
    let mut judge = Judge {
        asked,
        rules,
        verdict: Verdict::default(),
        processes: HashMap::new(),
        streams: HashMap::new(),
        same: Same::default(),
    };
    let open = |trace: &&Path| {
        let report = fsck::check(trace);
        assert!(report.is_good(), "{}: {report}", trace.display());
        Reader::open(trace).unwrap_or_else(|e| panic!("{e}"))
    };
    let readers: Vec<Reader> = traces.iter().map(open).collect();
    readers.iter().for_each(|reader| judge.processes(reader));
    readers.iter().for_each(|reader| judge.streams(reader));
    readers.iter().for_each(|reader| judge.events(reader));
    readers.iter().for_each(|reader| judge.losses(reader));
    judge.conclude()
}

/// Processes and streams that several traces have, by their permanent identities.
#[derive(Debug, Default)]
struct Same {
    /// By node, boot, nonce and process id.
    processes: HashMap<(String, String, String, u32), u64>,
    /// By process, lane and incarnation.
    streams: HashMap<(u64, u64, u64), u64>,
    /// The id in the first trace, by the id.
    process_of: HashMap<u64, u64>,
    stream_of: HashMap<u64, u64>,
}

/// A process of the trace.
#[derive(Debug)]
struct Process {
    node: String,
    pid: u32,
    no_lane: u64,
    /// Number of its producer, known from its first event.
    producer: Option<u64>,
}

/// A stream of the trace.
#[derive(Debug, Default)]
struct Stream {
    process: u64,
    /// Tag and number of its first request, known from its first event.
    of: Option<(u64, u64)>,
    /// Attempt numbers: first and last of each run of events and of losses.
    runs: Vec<(u64, u64)>,
    delivered: u64,
    lost: u64,
    cut_off: u64,
}

impl Stream {
    fn event(&mut self, seq: u64) {
        self.delivered += 1;
        match self.runs.last_mut() {
            Some((_, last)) if *last + 1 == seq => *last = seq,
            _ => self.runs.push((seq, seq)),
        }
    }
}

struct Judge<'a> {
    asked: &'a Asked,
    rules: Rules,
    verdict: Verdict,
    processes: HashMap<u64, Process>,
    streams: HashMap<u64, Stream>,
    same: Same,
}

impl Judge<'_> {
    fn processes(&mut self, reader: &Reader) {
        for batch in reader.batches(Table::Processes).map(read) {
            let (ids, pids, nodes) = (unsigned(&batch, "process"), pids(&batch), texts(&batch, "node"));
            let (boots, nonces) = (texts(&batch, "boot"), texts(&batch, "nonce"));
            for row in 0..batch.num_rows() {
                let (id, node, pid) = (ids.value(row), nodes.value(row).to_owned(), pids.value(row));
                let identity = (node.clone(), boots.value(row).to_owned(), nonces.value(row).to_owned(), pid);
                let first = *self.same.processes.entry(identity).or_insert(id);
                assert!(self.same.process_of.insert(id, first).is_none(), "a process is there twice");
                self.processes.entry(first).or_insert(Process { node, pid, no_lane: 0, producer: None });
            }
        }
    }

    fn streams(&mut self, reader: &Reader) {
        for batch in reader.batches(Table::Threads).map(read) {
            let (ids, processes) = (unsigned(&batch, "stream"), unsigned(&batch, "process"));
            let [lanes, incarnations] = ["lane", "incarnation"].map(|name| unsigned(&batch, name));
            for row in 0..batch.num_rows() {
                let (id, process) = (ids.value(row), self.same.process_of[&processes.value(row)]);
                let identity = (process, lanes.value(row), incarnations.value(row));
                let first = *self.same.streams.entry(identity).or_insert(id);
                assert!(self.same.stream_of.insert(id, first).is_none(), "a stream is there twice");
                self.streams.entry(first).or_insert(Stream { process, ..Stream::default() });
            }
        }
    }

    fn events(&mut self, reader: &Reader) {
        let files = reader.files().unwrap_or_else(|e| panic!("{e}"));
        let mut order = Order::default();
        for (part, sealed) in reader.parts() {
            self.verdict.sealed += u64::from(sealed);
            order.part(sealed);
            let batches = reader.batches_of(part, Table::Events).unwrap_or_else(|e| panic!("{e}"));
            batches.map(read).for_each(|batch| self.rows(&batch, &files, &mut order));
        }
        order.end();
    }

    fn rows(&mut self, batch: &RecordBatch, files: &FileNames, order: &mut Order) {
        let times: PrimitiveArray<TimestampNanosecondType> = primitive(batch, "time");
        let (ids, seqs, paths) = (unsigned(batch, "stream"), unsigned(batch, "seq"), unsigned(batch, "file"));
        let (handles, processes) = (unsigned(batch, "handle"), unsigned(batch, "process"));
        let [offsets, lengths, results] =
            ["offset", "length", "result"].map(|name| primitive::<Int64Type>(batch, name));
        let (flags, pids) = (primitive::<UInt32Type>(batch, "flags"), pids(batch));
        let nodes = Nodes::of(batch);
        for row in 0..batch.num_rows() {
            let (id, seq) = (ids.value(row), seqs.value(row));
            let (cut_off, late) = (
                flags.value(row) & u32::from(flag::INTERRUPTED) != 0,
                flags.value(row) & u32::from(flag::LATE) != 0,
            );
            order.row((times.value(row), id, seq), late);
            let at = || format!("stream {id}, attempt {seq}");
            let first = self.same.stream_of.get(&id);
            let stream = first.and_then(|first| self.streams.get_mut(first));
            let stream = stream.unwrap_or_else(|| panic!("{}: no such stream", at()));
            assert_eq!(stream.process, self.same.process_of[&processes.value(row)], "{}: its process", at());
            let process = self
                .processes
                .get_mut(&stream.process)
                .unwrap_or_else(|| panic!("{}: no such process", at()));
            assert_eq!((process.node.as_str(), process.pid), (nodes.name(row), pids.value(row)), "{}", at());
            let (events, late_events) = match self.verdict.nodes.get_mut(&process.node) {
                Some(counts) => counts,
                None => self.verdict.nodes.entry(process.node.clone()).or_default(),
            };
            (*events, *late_events) = (*events + 1, *late_events + u64::from(late));
            self.verdict.late += u64::from(late);
            stream.cut_off += u64::from(cut_off);
            stream.event(seq);

            let tag = lengths.value(row) as u64;
            let producer = *process.producer.get_or_insert(tag / LIVES);
            assert_eq!(producer, tag / LIVES, "{}: two producers in one process", at());
            let known = self
                .asked
                .producer(producer)
                .unwrap_or_else(|| panic!("{}: an invented producer: {producer}", at()));
            assert_eq!((process.node.as_str(), process.pid), (known.node.as_str(), known.pid), "{}", at());
            let result = results.value(row);
            let number = match (cut_off, stream.of) {
                (false, _) => result as u64,
                (true, Some((_, base))) => base + seq,
                // Nothing else of the stream was delivered, so its first request is unknown.
                (true, None) => {
                    assert_eq!((result, handles.value(row)), (-4, handle(tag)), "{}", at());
                    continue;
                }
            };
            let says = |number: u64| {
                handles.value(row) == handle(tag) && offsets.value(row) as u64 == offset(tag, number)
            };
            // A parent request has the number after its children.
            assert!(says(number) || cut_off && says(number + 1), "torn: {}, thread {tag}", at());
            assert!(!cut_off || result == -4, "{}: cut off with {result}", at());
            let base = number.checked_sub(seq).unwrap_or_else(|| panic!("request {number} is attempt {seq}"));
            let of = *stream.of.get_or_insert((tag, base));
            assert_eq!(of, (tag, base), "{} is request {number}", at());
            let expected = path(tag, number, known.paths).filter(|_| !cut_off);
            let found = if paths.is_valid(row) { files.get(paths.value(row)) } else { None };
            assert_eq!(found, expected.as_deref(), "{}", at());
        }
    }

    fn losses(&mut self, reader: &Reader) {
        for batch in reader.batches(Table::Losses).map(read) {
            let (places, nodes) = (texts(&batch, "place"), texts(&batch, "node"));
            let [ids, processes, counts, firsts, lasts] =
                ["stream", "process", "count", "first_seq", "last_seq"].map(|name| unsigned(&batch, name));
            for row in 0..batch.num_rows() {
                let (place, count) = (places.value(row), counts.value(row));
                if schema::is_elsewhere(place) {
                    continue;
                }
                assert!(self.rules.lost_at.contains(&place), "{count} lost at {place}");
                let process = self.same.process_of.get(&processes.value(row));
                let process = process.and_then(|first| self.processes.get_mut(first));
                let process = process.unwrap_or_else(|| panic!("{count} lost at {place} of no process"));
                assert_eq!(process.node, nodes.value(row));
                if place == "no_lane" {
                    process.no_lane += count;
                    self.verdict.no_lane += count;
                    continue;
                }
                let (first, last) = (firsts.value(row), lasts.value(row));
                assert!(
                    firsts.is_valid(row) && lasts.is_valid(row),
                    "{count} lost at {place}, but not which"
                );
                assert_eq!(count, last - first + 1);
                let stream = self.same.stream_of.get(&ids.value(row));
                let stream = stream.and_then(|first| self.streams.get_mut(first));
                let stream = stream.unwrap_or_else(|| panic!("lost in no stream"));
                assert_eq!(stream.process, self.same.process_of[&processes.value(row)]);
                stream.runs.push((first, last));
                stream.lost += count;
            }
        }
    }

    fn conclude(mut self) -> Verdict {
        // By tag: first request and length of its streams. By process: streams in which everything
        // was lost.
        let mut threads: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        let (mut silent, mut process_of): (HashMap<u64, Vec<u64>>, HashMap<u64, u64>) = Default::default();
        for (id, mut stream) in std::mem::take(&mut self.streams) {
            stream.runs.sort_unstable();
            let mut total = 0;
            for (first, last) in &stream.runs {
                assert_eq!(*first, total, "stream {id}: an attempt that is neither event nor loss, or both");
                total = last + 1;
            }
            assert_eq!(stream.delivered + stream.lost, total);
            self.verdict.delivered += stream.delivered;
            self.verdict.lost += stream.lost;
            self.verdict.cut_off += stream.cut_off;
            assert!(stream.cut_off <= 2, "stream {id}: a thread is in two requests at most");
            match stream.of {
                Some((tag, base)) => {
                    threads.entry(tag).or_default().push((base, total));
                    let process = *process_of.entry(tag / LIVES).or_insert(stream.process);
                    assert_eq!(process, stream.process, "the streams of a producer belong to one process");
                }
                None if total > 0 => silent.entry(stream.process).or_default().push(total),
                None => {}
            }
        }
        self.verdict.threads = threads.len() as u64;
        let mut holes: HashMap<u64, Hole> = HashMap::new();
        for (tag, streams) in &mut threads {
            let said = self.asked.thread(*tag).unwrap_or_else(|| panic!("an invented thread: {tag}"));
            let hole = holes.entry(process_of[&(tag / LIVES)]).or_default();
            streams.sort_unstable();
            let mut next = 0;
            for (base, total) in streams.iter() {
                assert!(*base >= next, "thread {tag}: requests {base}.. are there twice: {streams:?}");
                hole.least += base - next;
                hole.most += base - next;
                next = base + total;
            }
            assert!(next <= said.most, "thread {tag}: {next} requests, at most {} were made", said.most);
            // The last lanes may have lost all their events.
            hole.least += said.made.saturating_sub(next);
            hole.most += said.most - next;
        }
        // The events of a thread are complete except for streams of which nothing was delivered.
        for (tag, said) in self.asked.threads().filter(|(tag, _)| !threads.contains_key(tag)) {
            let process = process_of.get(&(tag / LIVES)).copied().unwrap_or(0);
            let hole = holes.entry(process).or_default();
            hole.least += said.made;
            hole.most += said.most;
        }
        let of_nobody = holes.remove(&0).unwrap_or_default();
        let known: HashSet<u64> = process_of.values().copied().collect();
        let mut unnamed = 0;
        for (process, totals) in silent {
            let total: u64 = totals.iter().sum();
            if !known.contains(&process) {
                unnamed += total;
                continue;
            }
            let hole = holes.remove(&process).unwrap_or_default();
            // The thread of each of these streams may have been killed.
            let stride = self.processes[&process].producer.and_then(|number| self.asked.producer(number));
            let slack = stride.map_or(0, |producer| producer.stride + 1) * totals.len() as u64;
            assert!(
                (hole.least..=hole.most.min(hole.least + slack)).contains(&total),
                "process {process}: {hole:?} are missing, {total} are lost"
            );
        }
        holes.retain(|_, hole| hole.least > 0);
        assert!(holes.is_empty(), "neither delivered nor lost, by process: {holes:?}");
        assert!(
            (of_nobody.least..=of_nobody.most).contains(&unnamed),
            "of processes without an event {of_nobody:?} are missing, {unnamed} were lost"
        );
        self.refused(&process_of);
        self.verdict
    }

    /// Checks that the losses for lack of a lane equal the requests that producers were refused.
    fn refused(&self, process_of: &HashMap<u64, u64>) {
        for (producer, process) in process_of {
            let (told, refused) = (self.processes[process].no_lane, self.asked.refused(*producer));
            // The producer may be killed between the two counts, in each thread.
            let most = refused + LIVES;
            assert!(told <= most, "producer {producer}: {told} without a lane, {refused} were refused");
            assert!(
                !self.rules.served || told >= refused,
                "producer {producer}: {told} without a lane, {refused} were refused"
            );
        }
    }
}

/// Number of missing requests.
#[derive(Debug, Default)]
struct Hole {
    least: u64,
    most: u64,
}

/// Position of an event in a trace.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Sort key of the event.
    pub key: Key,
    /// The event is marked late.
    pub late: bool,
    /// Name of its node.
    pub node: String,
}

/// Returns the positions of all events of a trace.
///
/// # Panics
/// If the trace cannot be read.
#[must_use]
pub fn placed(trace: &Path) -> Vec<Placed> {
    let reader = Reader::open(trace).unwrap_or_else(|e| panic!("{e}"));
    let mut all = Vec::new();
    for batch in reader.events().map(read) {
        let times: PrimitiveArray<TimestampNanosecondType> = primitive(&batch, "time");
        let (ids, seqs) = (unsigned(&batch, "stream"), unsigned(&batch, "seq"));
        let (flags, nodes) = (primitive::<UInt32Type>(&batch, "flags"), Nodes::of(&batch));
        all.extend((0..batch.num_rows()).map(|row| Placed {
            key: (times.value(row), ids.value(row), seqs.value(row)),
            late: flags.value(row) & u32::from(flag::LATE) != 0,
            node: nodes.name(row).to_owned(),
        }));
    }
    all
}

/// Dictionary of the node names of a batch.
struct Nodes<'a> {
    keys: &'a PrimitiveArray<NameKey>,
    names: &'a arrow_array::StringArray,
}

impl Nodes<'_> {
    fn of(batch: &RecordBatch) -> Nodes<'_> {
        let column = column(batch, "node").as_dictionary::<NameKey>();
        Nodes { keys: column.keys(), names: column.values().as_string() }
    }

    fn name(&self, row: usize) -> &str {
        self.names.value(self.keys.value(row) as usize)
    }
}

fn read(batch: Result<RecordBatch, miot_trace_store::Error>) -> RecordBatch {
    batch.unwrap_or_else(|e| panic!("{e}"))
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a arrow_array::ArrayRef {
    batch.column_by_name(name).unwrap_or_else(|| panic!("no column {name}"))
}

fn primitive<T: ArrowPrimitiveType>(batch: &RecordBatch, name: &str) -> PrimitiveArray<T> {
    schema::column(batch, name).unwrap_or_else(|| panic!("no column {name} of this type"))
}

fn unsigned(batch: &RecordBatch, name: &str) -> arrow_array::UInt64Array {
    primitive::<UInt64Type>(batch, name)
}

fn pids(batch: &RecordBatch) -> arrow_array::UInt32Array {
    primitive::<UInt32Type>(batch, "pid")
}

fn texts<'a>(batch: &'a RecordBatch, name: &str) -> &'a arrow_array::StringArray {
    column(batch, name).as_string()
}
