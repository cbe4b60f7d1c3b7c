//! Converts events of MIOT to records.
//!
//! Logical records are the requests that read and write data of files, as programs made them. Child
//! requests are omitted, because a byte that an MPI-IO call reads would be counted again for the
//! POSIX call below it. Requests of the layer `block` are physical records. [`SkippedRequests`]
//! counts requests that the format cannot represent.
//!
//! A request through a file view of MPI-IO becomes a record for each contiguous piece of the file.
//!
//! A trace is in order of completion, the format in order of start. Therefore records wait until
//! there are [`WAITING`] of them, and are written in order of start: a request is in its correct
//! position if fewer requests completed while it was in progress. A later one is written with the
//! start of the previous record, after a comment with the number of ticks by which it began
//! earlier.

use super::{BLOCK, Record, RecordType, TICK, Writer, comment};
use crate::numbers::Numbers;
use arrow_array::RecordBatch;
use arrow_array::types::{TimestampNanosecondType, UInt64Type};
use miot_proto::event::flag;
use miot_proto::op::{ArgMeaning, Layer, OpClass};
use miot_trace_events::view::Range;
use miot_trace_events::{Event, EventNames, Events, Outermost, Place, Places, UnknownPlaces};
use miot_trace_store::FileNames;
use miot_trace_store::schema::{column, text};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::io::{self, Write};

/// Number of records that wait for a record that started earlier: about 30 MB.
pub const WAITING: usize = 1 << 18;

/// Number of files whose names have been written. When it is reached, names are written again.
const MAX_NAMED: usize = 1 << 18;

/// Bit of the `arg` of an imported request: its record type does not describe the cache.
pub(super) const NO_CACHE_FLAGS: i64 = 0x100;

/// Requests that the records do not contain, or contain inexactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedRequests {
    /// Requests that failed, and moved nothing.
    pub failed: u64,
    /// Requests of pipes, sockets and terminals: without an offset or an open file.
    pub without_offset: u64,
    /// Requests that copy from file to file.
    pub copies: u64,
    /// MPI-IO requests with unknown pieces.
    pub unknown_places: UnknownPlaces,
    /// Requests through a file view that became several records.
    pub in_pieces: u64,
    /// Records of these requests.
    pub pieces: u64,
    /// Requests that moved fewer bytes than requested, with their whole length in the record.
    pub short: u64,
    /// Bytes that these requests did not move.
    pub short_bytes: u64,
    /// Requests that began earlier than their record states; the preceding comment contains the
    /// difference.
    pub moved: u64,
}

/// Returns the number of bytes that a request asked for.
fn asked(event: &Event) -> u64 {
    event.length.map_or(event.moved(), |length| u64::try_from(length).unwrap_or(0))
}

/// A waiting record.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    /// Begin in nanoseconds since 1970, like the end.
    begin: i64,
    process: u32,
    arrival: u64,
    end: i64,
    bits: u8,
    cache_flags: bool,
    offset: u64,
    length: u64,
    operation: u64,
    handle: u64,
    file: Option<u64>,
    /// Process and thread id: a thread whose lane grows has several streams.
    thread: (u64, u32),
    /// CPU time of the thread so far, or its substitute, in nanoseconds; `None` if not recorded.
    cpu: Option<i64>,
}

#[derive(Debug)]
struct Process {
    number: u32,
    /// True if CPU time was recorded; false if time without I/O replaces it; `None` before the
    /// first request of a program.
    has_cpu: Option<bool>,
    /// CPU time of its threads at the written records, in nanoseconds.
    cpu: u64,
    is_named: bool,
}

/// State of a thread. Times are in nanoseconds.
#[derive(Debug, Default)]
struct Thread {
    /// Without recorded CPU time: end of the last request, and the sum of the times between
    /// requests.
    free_from: Option<i64>,
    between: i64,
    /// CPU time at the last record of the thread.
    recorded: i64,
}

/// Data of a process from the table `processes`.
#[derive(Debug)]
struct Facts {
    program: String,
    node: String,
    started: i64,
}

/// Writes the events of a trace. Memory grows with the number of processes, threads and paths, not
/// with the number of events.
#[derive(Debug)]
pub struct Export<'a, W: Write> {
    to: Writer<W>,
    files: &'a FileNames,
    tracer: String,
    lost: u64,
    every_layer: bool,
    names: EventNames,
    outermost: Outermost,
    places: Places,
    facts: HashMap<u64, Facts>,
    numbers: Numbers,
    processes: HashMap<u64, Process>,
    /// Processes by number.
    numbered: HashMap<u32, u64>,
    /// Threads by process and thread id.
    threads: HashMap<(u64, u32), Thread>,
    named: HashSet<(u32, bool, u64)>,
    waiting: BinaryHeap<Reverse<Pending>>,
    most: usize,
    arrivals: u64,
    /// Ticks since 1970 at tick 0; `None` until something is written.
    origin: Option<i64>,
    last: u64,
    skipped: SkippedRequests,
}

impl<'a, W: Write> Export<'a, W> {
    /// Returns an export. `tracer` is the name and version of the recording tracer, as the trace
    /// states them; `lost` is the number of events that it lost. With `every_layer` child requests
    /// are written too, because the caller has selected a layer.
    pub fn new(to: W, files: &'a FileNames, tracer: &str, lost: u64, every_layer: bool) -> Export<'a, W> {
        Export {
            to: Writer::new(to),
            files,
            tracer: tracer.to_owned(),
            lost,
            every_layer,
            names: EventNames::default(),
            outermost: Outermost::default(),
            places: Places::default(),
            facts: HashMap::new(),
            numbers: Numbers::default(),
            processes: HashMap::new(),
            numbered: HashMap::new(),
            threads: HashMap::new(),
            named: HashSet::new(),
            waiting: BinaryHeap::new(),
            most: WAITING,
            arrivals: 0,
            origin: None,
            last: 0,
            skipped: SkippedRequests::default(),
        }
    }

    /// Limits the number of waiting records to less than [`WAITING`].
    #[must_use]
    pub fn with_waiting(self, most: usize) -> Self {
        Export { most, ..self }
    }

    /// Adds rows of the table `processes`. They must be added before the events.
    pub fn processes(&mut self, batch: &RecordBatch) {
        let columns = (
            column::<UInt64Type>(batch, "process"),
            text(batch, "exe"),
            text(batch, "node"),
            column::<TimestampNanosecondType>(batch, "started"),
        );
        let (Some(ids), Some(programs), Some(nodes), Some(started)) = columns else { return };
        for row in 0..batch.num_rows() {
            let facts = Facts {
                program: programs.value(row).to_owned(),
                node: nodes.value(row).to_owned(),
                started: started.value(row),
            };
            self.facts.insert(ids.value(row), facts);
        }
    }

    /// Adds events in the order of the trace.
    ///
    /// # Errors
    /// Errors of writing; missing columns.
    pub fn add(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.add_chosen(batch, |_| true)
    }

    /// [`Export::add`] of the chosen rows. The other rows set file views, which later requests
    /// need.
    ///
    /// # Errors
    /// As [`Export::add`].
    pub fn add_chosen(&mut self, batch: &RecordBatch, is_chosen: impl Fn(usize) -> bool) -> io::Result<()> {
        let mut names = std::mem::take(&mut self.names);
        let events = Events::of(batch, &mut names).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the trace lacks columns of events: was it written by another version?",
            )
        })?;
        for (row, event) in events.enumerate() {
            if !is_chosen(row) {
                self.places.learn(&event, self.files);
                continue;
            }
            let place = self.places.of_bytes(&event, asked(&event), self.files);
            // Called for every event, so that all threads are known.
            let is_outermost = self.outermost.is(&event);
            let is_physical = event.layer == Some(Layer::Block);
            if !(is_outermost || is_physical || self.every_layer) {
                continue;
            }
            let (process, cpu) = self.cpu(&event, is_physical);
            if event.class().is_data() {
                self.take(&event, place, process, cpu, is_physical);
                while self.waiting.len() > self.most {
                    self.write_one()?;
                }
            }
        }
        self.names = names;
        Ok(())
    }

    fn take(&mut self, event: &Event, place: Place, process: u32, cpu: Option<i64>, is_physical: bool) {
        if event.class() == OpClass::Copy {
            self.skipped.copies += 1;
            return;
        }
        if event.failed() {
            self.skipped.failed += 1;
            return;
        }
        let length = asked(event);
        let offset = event.offset.and_then(|offset| u64::try_from(offset).ok());
        let (pieces, handle) = match (place, offset, event.handle) {
            (Place::Unknown(why), _, _) => {
                self.skipped.unknown_places.add(why);
                return;
            }
            (Place::Pieces(pieces), _, Some(handle)) => (pieces, handle),
            (Place::Whole, Some(offset), Some(handle)) => (vec![Range { offset, bytes: length }], handle),
            _ => {
                self.skipped.without_offset += 1;
                return;
            }
        };
        if pieces.len() > 1 {
            self.skipped.in_pieces += 1;
            self.skipped.pieces += pieces.len() as u64;
        }
        if event.moved() < length {
            self.skipped.short += 1;
            self.skipped.short_bytes = self.skipped.short_bytes.saturating_add(length - event.moved());
        }
        let set = |is: bool, bit: u8| if is { bit } else { 0 };
        let mut bits = set(!is_physical, RecordType::LOGICAL)
            | set(event.class() == OpClass::Write, RecordType::WRITE)
            | set(event.flags & flag::ASYNC != 0, RecordType::ASYNC);
        // Requests with a range have no argument of the operation; see the import.
        let imported = event.arg.filter(|_| event.info.is_some_and(|info| info.args == ArgMeaning::Range));
        if let Some(arg) = imported {
            bits |= arg as u8 & (RecordType::DATA | RecordType::CACHE_MISS | RecordType::READ_AHEAD_HIT);
        }
        let operation = match (imported, is_physical) {
            (None, _) => 0,
            (Some(_), true) => event.enclosing.unwrap_or(0).into(),
            (Some(_), false) => event.request.into(),
        };
        let unit = if is_physical { BLOCK } else { 1 };
        for piece in pieces {
            self.arrivals += 1;
            self.waiting.push(Reverse(Pending {
                begin: event.begin,
                process,
                arrival: self.arrivals,
                end: event.end,
                bits,
                cache_flags: imported.is_some_and(|arg| arg & NO_CACHE_FLAGS == 0),
                offset: piece.offset / unit,
                length: piece.bytes.div_ceil(unit),
                operation,
                handle,
                file: event.file,
                thread: (event.process, event.tid),
                cpu,
            }));
        }
    }

    /// Returns the number of the process, and the CPU time of the thread so far: as recorded, or
    /// the time between its requests.
    fn cpu(&mut self, event: &Event, is_physical: bool) -> (u32, Option<i64>) {
        let (numbers, numbered) = (&mut self.numbers, &mut self.numbered);
        let process = self.processes.entry(event.process).or_insert_with(|| {
            let number = numbers.give(event.pid);
            numbered.insert(number, event.process);
            Process { number, has_cpu: None, cpu: 0, is_named: false }
        });
        if is_physical {
            return (process.number, None);
        }
        let is_first = process.has_cpu.is_none();
        if *process.has_cpu.get_or_insert(event.cpu_time.is_some()) {
            return (process.number, event.cpu_time);
        }
        let thread = self.threads.entry((event.process, event.tid)).or_default();
        let free_from = if event.flags & flag::ASYNC != 0 { event.begin } else { event.end };
        let before = thread.free_from.replace(free_from);
        // For the first request of a process: since the start of the process, if known.
        let began = self.facts.get(&event.process).map(|facts| facts.started).filter(|_| is_first);
        let between = event.begin.saturating_sub(before.or(began).unwrap_or(event.begin));
        thread.between = thread.between.saturating_add(between.max(0));
        (process.number, Some(thread.between))
    }

    /// Returns the ticks of CPU time of a process since its previous record.
    fn process_time(&mut self, of: &Pending) -> u64 {
        let Some(cpu) = of.cpu else { return 0 };
        let process = self.numbered.get(&of.process).and_then(|process| self.processes.get_mut(process));
        let Some(process) = process else { return 0 };
        let thread = self.threads.entry(of.thread).or_default();
        let spent = u64::try_from(cpu.saturating_sub(thread.recorded)).unwrap_or(0);
        thread.recorded = thread.recorded.max(cpu);
        let before = process.cpu / TICK;
        process.cpu = process.cpu.saturating_add(spent);
        process.cpu / TICK - before
    }

    fn write_one(&mut self) -> io::Result<()> {
        let Some(Reverse(next)) = self.waiting.pop() else { return Ok(()) };
        let ticks = |time: i64| time.div_euclid(TICK as i64);
        let origin = match self.origin {
            Some(origin) => origin,
            None => {
                self.header(ticks(next.begin), next.cache_flags)?;
                ticks(next.begin)
            }
        };
        let is_physical = next.bits & RecordType::LOGICAL == 0;
        self.comment_names(&next, is_physical)?;
        let begin = ticks(next.begin);
        let start = u64::try_from(begin.saturating_sub(origin)).unwrap_or(0).max(self.last);
        let from = origin.saturating_add_unsigned(start);
        if from > begin {
            self.skipped.moved += 1;
            self.comment_words(&[(comment::EARLIER, &from.abs_diff(begin).to_string())])?;
        }
        let process_time = self.process_time(&next);
        self.last = start;
        let Some(kind) = RecordType::from_bits(next.bits) else { return Ok(()) };
        self.to.record(&Record {
            kind,
            offset: next.offset,
            length: next.length,
            start,
            took: u64::try_from(ticks(next.end).saturating_sub(from)).unwrap_or(0),
            operation: next.operation,
            file: next.handle,
            process: next.process.into(),
            process_time,
        })
    }

    fn header(&mut self, origin: i64, cache_flags: bool) -> io::Result<()> {
        self.origin = Some(origin);
        let tracer = self.tracer.clone();
        let epoch = origin.saturating_mul(TICK as i64).to_string();
        let cache = if cache_flags { "recorded" } else { "absent" };
        self.to.comment(comment::SIGNATURE.as_bytes())?;
        self.comment_words(&[
            (comment::EPOCH, &epoch),
            (comment::CACHE_FLAGS, cache),
            ("recorded_by", &tracer),
            ("lost_events", &self.lost.to_string()),
        ])
    }

    /// Writes comments that name the process and the file of a record, the first time.
    fn comment_names(&mut self, next: &Pending, is_physical: bool) -> io::Result<()> {
        let id = format!("{:X}", next.process);
        let process = self.numbered.get(&next.process).copied();
        if let Some(of) = process.and_then(|process| self.processes.get_mut(&process))
            && !std::mem::replace(&mut of.is_named, true)
        {
            let source = of.has_cpu.map(|has_cpu| if has_cpu { "cpu" } else { "between_requests" });
            let mut text = String::new();
            comment::word(&mut text, comment::PROCESS, &id);
            if let Some(facts) = process.and_then(|process| self.facts.get(&process)) {
                comment::word(&mut text, "node", &facts.node);
                comment::word(&mut text, "program", &facts.program);
            }
            source.iter().for_each(|source| comment::word(&mut text, "processtime", source));
            self.to.comment(text.as_bytes())?;
        }
        if self.named.len() >= MAX_NAMED {
            self.named.clear();
        }
        if self.named.insert((next.process, is_physical, next.handle))
            && let Some(path) = next.file.and_then(|file| self.files.get(file))
        {
            let mut text = String::new();
            comment::word(&mut text, comment::FILE, &format!("{:X}", next.handle));
            comment::word(&mut text, comment::PROCESS, &id);
            if is_physical {
                comment::word(&mut text, "physical", "yes");
            }
            comment::word(&mut text, "path", path);
            self.to.comment(text.as_bytes())?;
        }
        Ok(())
    }

    fn comment_words(&mut self, words: &[(&str, &str)]) -> io::Result<()> {
        let mut text = String::new();
        words.iter().for_each(|(key, value)| comment::word(&mut text, key, value));
        self.to.comment(text.as_bytes())
    }

    /// Writes the waiting records. Returns the skipped requests and the number of records.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(mut self) -> io::Result<(SkippedRequests, u64)> {
        while !self.waiting.is_empty() {
            self.write_one()?;
        }
        if self.origin.is_none() {
            self.header(0, false)?;
        }
        let SkippedRequests { failed, without_offset, copies, unknown_places, in_pieces, pieces, .. } =
            self.skipped;
        let SkippedRequests { short, short_bytes, moved, .. } = self.skipped;
        let counts = [
            ("records", self.to.records()),
            ("left_out_failed", failed),
            ("left_out_without_offset", without_offset),
            ("left_out_copies", copies),
            ("left_out_unknown_view", unknown_places.total()),
            ("in_pieces", in_pieces),
            ("pieces", pieces),
            ("short", short),
            ("short_bytes", short_bytes),
            ("start_moved", moved),
        ];
        let counts = counts.map(|(key, count)| (key, count.to_string()));
        self.comment_words(&counts.each_ref().map(|(key, count)| (*key, count.as_str())))?;
        self.to.flush()?;
        Ok((self.skipped, self.to.records()))
    }
}
