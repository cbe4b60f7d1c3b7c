//! Counters of the I/O of jobs, processes, files, nodes, directories and users: `miot stat --by`.
//!
//! [`Characterize`] reads events and keeps [`Counters`] for each process, layer and file: those of
//! Darshan, durations, overwritten bytes. Every table consists of these counters merged, see
//! [`Characterization::groups`]. Layers are never added to each other, because the same bytes pass
//! through several of them. `docs/guide/stat.md` lists every figure with its formula and source.
//!
//! | module | role |
//! |---|---|
//! | [`counters`] | counters, by the rules of Darshan |
//! | `changes` | changes of counters, applied pair by pair |
//! | `counting` | the thread that applies them |
//! | `common` | most common values |
//! | [`latencies`] | durations in little memory |
//! | `written` | bytes that were written before |
//! | `kind` | classification of operations for the counters |
//! | `facts` | properties of processes and files from the side tables |
//! | [`table`] | counters of a job, a process, a file … |
//! | [`ranks`] | shared files reduced over ranks, aggregate performance |
//! | [`fields`] | all figures of a row by name |
//!
//! Memory grows with the pairs of process and file, up to [`Settings::most_memory`]. When they take
//! more, the half that moved the fewest bytes is folded: per process and layer into one pair that
//! represents [`OTHERS`]. The counters of a folded file start again from 0 when it is used again.
//! At most 65,536 written ranges per file and 4,194,304 in all are kept.

mod changes;
mod common;
pub mod counters;
mod counting;
mod facts;
pub mod fields;
mod kind;
pub mod latencies;
pub mod ranks;
pub mod table;
#[cfg(test)]
mod tests;
mod written;

pub use common::Common;
pub use counters::{Counters, Data, Meta, Side, Span, Timer};
pub use fields::Value;
pub use latencies::{Latencies, Quantiles};
pub use ranks::{Performance, Shared};
pub use table::{By, CounterRow, Group};

use crate::block_sizes::{ASSUMED_BLOCK, BlockSizes};
use crate::place::{Place, Places};
use crate::view::Range;
use arrow_array::RecordBatch;
use changes::{Change, ChangedCounter};
use counters::{Access, MetaKind};
use counting::{Changes, Counted, Counting};
use facts::{Files, Processes};
use kind::Kind;
use miot_proto::event::flag;
use miot_proto::op::Layer;
use miot_trace_events::{ById, Event, EventNames, Events, IdMap};
use miot_trace_store::FileNames;
use std::collections::{HashMap, HashSet};
use written::RangeChange;

/// Required columns of events.
pub const COLUMNS: &[&str] = miot_trace_events::events::FILE_COLUMNS;

/// File that represents all files whose counters were folded.
pub const OTHERS: u64 = u64::MAX;

/// `O_TRUNC` of Linux.
const O_TRUNC: i64 = 0o1000;
/// `F_DUPFD` and `F_DUPFD_CLOEXEC` of Linux.
const F_DUPFD: [i64; 2] = [0, 1030];
/// Size of the cache of recently used pairs, which avoids hash look-ups.
const RECENT: usize = 1 << 12;
/// Memory of a pair in the tables, bytes.
const PAIR_BYTES: usize = size_of::<Pair>() + 2 * size_of::<(Key, u32)>();
/// Memory by which a change can make the counters grow, bytes: those of a new pair, with the
/// histogram of 32 durations.
const CHANGE_BYTES: usize = 2 << 10;
/// Minimum number of pairs for folding.
const FEWEST: usize = 1 << 10;
/// Index of no pair, or of no set of ranges.
const NONE: u32 = u32::MAX;

/// Selection of events, and limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Alignment of all files in bytes; `None` for the block sizes that the trace contains.
    pub block_size: Option<u32>,
    /// Only these processes of the trace.
    pub processes: Option<HashSet<u64>>,
    /// Only these files of the trace.
    pub files: Option<HashSet<u64>>,
    /// Maximum memory of the counters in bytes; beyond it the smallest are folded.
    pub most_memory: usize,
}

impl Default for Settings {
    /// Returns settings for all events, in 1 GiB.
    fn default() -> Settings {
        Settings { block_size: None, processes: None, files: None, most_memory: 1 << 30 }
    }
}

/// The requests of a process to a file in a layer.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Process of the trace.
    pub process: u64,
    /// File of the trace; the first of those with the same path on several nodes. `None` for
    /// requests without a file; [`OTHERS`] for folded files.
    pub file: Option<u64>,
    /// Number of the layer.
    pub layer: u8,
    /// Alignment of the file in bytes.
    pub block: u32,
    /// Counters.
    pub counters: Counters,
}

impl Pair {
    /// Returns the layer; `None` for a layer of a later version.
    #[must_use]
    pub fn layer(&self) -> Option<Layer> {
        Layer::from_number(self.layer)
    }
}

type Key = (u64, u64, u8);

/// A pair while events are read, apart from its counters.
#[derive(Clone, Debug)]
struct Subject {
    process: u64,
    /// The file itself, regardless of other files of the same path; 0 without one.
    file: u64,
    layer: u8,
    /// Alignment of the file in bytes.
    block: u32,
    /// Set of written ranges of the file.
    written: u32,
}

/// Time span and busy times of a process.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// First begin and last end of all events.
    pub span: Span,
    /// Time in which at least one request of a layer was in progress, by number of the layer.
    pub busy: [Timer; 8],
}

/// A thread, or a part of its lifetime.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    process: u64,
    tid: u32,
    cpu: Option<u64>,
}

/// Collects counters from events.
#[derive(Debug)]
pub struct Characterize {
    settings: Settings,
    names: EventNames,
    places: Places,
    views_unknown: u64,
    kinds: Vec<Kind>,
    processes: Processes,
    files: Files,
    blocks: BlockSizes,
    is_block_assumed: bool,
    pairs: Vec<Subject>,
    counting: Counting,
    /// Changes of the present batch.
    changes: Changes,
    numbers: IdMap<Key, u32>,
    recent: Vec<(Key, u32)>,
    /// Sets of written ranges by file and layer.
    sets: IdMap<(u64, u8), u32>,
    lives: ById<Life>,
    threads: ById<Thread>,
    folded: u64,
}

/// Counters of a trace.
#[derive(Debug)]
pub struct Characterization {
    /// Pairs, in no particular order.
    pub pairs: Vec<Pair>,
    /// First begin and last end of all events.
    pub span: Span,
    /// Number of pairs that were folded because there were too many.
    pub folded: u64,
    /// True if more ranges were written than are kept: the number of overwritten bytes is then a
    /// lower bound.
    pub is_overwriting_incomplete: bool,
    /// Number of requests through MPI-IO views whose blocks the trace does not contain. They count
    /// as requests without an offset.
    pub views_unknown: u64,
    /// True if the alignment of some files is [`ASSUMED_BLOCK`], because the trace does not contain
    /// it.
    pub is_block_assumed: bool,
    lives: HashMap<u64, Life>,
    /// CPU time by process in nanoseconds, for processes all of whose threads have one.
    cpu: HashMap<u64, u64>,
    processes: Processes,
    files: Files,
}

impl Characterize {
    /// Returns a collector. `files` contains the paths, `processes` batches of the table
    /// `processes`.
    #[must_use]
    pub fn new(settings: Settings, files: FileNames, processes: &[RecordBatch]) -> Characterize {
        Characterize {
            blocks: BlockSizes::new(settings.block_size, processes),
            is_block_assumed: false,
            settings,
            names: EventNames::default(),
            places: Places::default(),
            views_unknown: 0,
            kinds: Vec::new(),
            processes: Processes::of(processes),
            files: Files::of(files),
            pairs: Vec::new(),
            counting: Counting::default(),
            changes: Changes::default(),
            numbers: IdMap::default(),
            recent: vec![((0, 0, 0), NONE); RECENT],
            sets: IdMap::default(),
            lives: ById::default(),
            threads: ById::default(),
            folded: 0,
        }
    }

    /// Adds events, in order. A batch without [`COLUMNS`] adds nothing.
    ///
    /// The counters change while the next batches are read, in another thread.
    pub fn add(&mut self, batch: &RecordBatch) {
        self.changes.counters.reserve(batch.num_rows());
        self.read(batch);
        let changes = std::mem::take(&mut self.changes);
        self.changes = self.counting.apply(self.pairs.len(), self.sets.len(), changes);
        // Within reach of the limit the counters are kept up to date.
        let (waiting, memory) = self.counting.state();
        if self.memory(memory) + waiting * CHANGE_BYTES > self.settings.most_memory {
            let memory = self.counting.counted().tallies.memory;
            if self.memory(memory) > self.settings.most_memory {
                self.fold();
            }
        }
    }

    /// Returns the memory of the pairs in bytes, with that of their counters.
    fn memory(&self, counters: usize) -> usize {
        counters + self.pairs.len() * PAIR_BYTES
    }

    fn read(&mut self, batch: &RecordBatch) {
        let mut names = std::mem::take(&mut self.names);
        if let Some(mut events) = Events::of(batch, &mut names) {
            for row in 0..events.rows() {
                self.event(&events.get(row));
            }
        }
        self.names = names;
    }

    fn event(&mut self, event: &Event) {
        let place = self.places.of(event, &self.files.names);
        let kind = match self.kinds.get(event.op) {
            Some(kind) => *kind,
            None => {
                // Numbers are assigned in order.
                let kind = kind::kind(event.layer, event.info);
                self.kinds.push(kind);
                kind
            }
        };
        let layer = event.layer.map_or(0, |layer| layer as u8);
        let life = self.lives.get(event.process);
        life.span.add(event.begin, event.end);
        if kind != Kind::Note {
            life.busy[usize::from(layer)].add(event.begin, event.end);
        }
        let thread = self.threads.get(event.stream);
        (thread.process, thread.tid) = (event.process, event.tid);
        if let Some(cpu) = event.cpu_time {
            thread.cpu = thread.cpu.max(u64::try_from(cpu).ok());
        }
        match kind {
            Kind::Note => {}
            Kind::Copy => self.copy(event, layer),
            _ => self.request(event, &place, layer, kind),
        }
    }

    fn request(&mut self, event: &Event, place: &Place, layer: u8, kind: Kind) {
        let Some(number) = self.pair((event.process, event.file.unwrap_or(0), layer)) else { return };
        if event.failed() {
            return self.change(number, event, ChangedCounter::Failed(true));
        }
        let (block, written) = (self.pairs[number as usize].block, self.pairs[number as usize].written);
        let counter = match kind {
            Kind::Read | Kind::Write => {
                self.views_unknown += u64::from(matches!(place, Place::Unknown(_)));
                let access = placed(event, place, block);
                if kind == Kind::Write {
                    for piece in place.pieces(event.offset, access.bytes) {
                        self.write(written, piece);
                    }
                }
                ChangedCounter::Access { is_write: kind == Kind::Write, access, overwritten: 0 }
            }
            Kind::Sync(kind) => ChangedCounter::Sync(kind),
            Kind::Meta(kind) => {
                let is_truncating = kind == MetaKind::Open
                    && layer != Layer::MpiIo as u8
                    && (event.arg.is_some_and(|flags| flags & O_TRUNC != 0)
                        || event.info.is_some_and(|info| info.name == "creat"));
                if is_truncating || kind == MetaKind::Rename {
                    self.cut(written, 0);
                }
                ChangedCounter::Meta(kind)
            }
            Kind::Resize => {
                self.cut(written, event.length.map_or(0, |to| u64::try_from(to).unwrap_or(0)));
                ChangedCounter::Meta(MetaKind::Other)
            }
            Kind::Remove => {
                self.cut(written, 0);
                ChangedCounter::Meta(MetaKind::Other)
            }
            Kind::Fcntl => {
                let command = event.arg.map(|arg| arg & 0xffff_ffff);
                let is_dup = command.is_some_and(|command| F_DUPFD.contains(&command));
                ChangedCounter::Meta(if is_dup { MetaKind::Dup } else { MetaKind::Other })
            }
            Kind::Copy | Kind::Note => return,
        };
        self.change(number, event, counter);
        if kind == Kind::Meta(MetaKind::Rename) {
            self.renamed(event, layer);
        }
    }

    /// Adds a range that the next change of counters writes.
    fn write(&mut self, file: u32, Range { offset: begin, bytes }: Range) {
        if file != NONE {
            let change = self.changes.counters.len() as u32;
            self.changes.ranges.push(RangeChange::Write { change, file, begin, bytes });
        }
    }

    /// Truncates the written ranges of a file.
    fn cut(&mut self, file: u32, length: u64) {
        if file != NONE {
            self.changes.ranges.push(RangeChange::Cut { file, length });
        }
    }

    /// Adds a request to a pair.
    fn change(&mut self, pair: u32, event: &Event, counter: ChangedCounter) {
        self.changes.counters.push(Change { pair, begin: event.begin, end: event.end, counter });
    }

    /// Counts a rename. The new name has the bytes of the old one, which are unknown.
    fn renamed(&mut self, event: &Event, layer: u8) {
        let Some(file) = event.file2 else { return };
        if let Some(number) = self.pair((event.process, file, layer)) {
            self.cut(self.pairs[number as usize].written, 0);
            self.change(number, event, ChangedCounter::RenameTarget);
        }
    }

    /// Counts a copy as a read of one file and a write of the other. The time is counted for the
    /// write, if it has a file.
    fn copy(&mut self, event: &Event, layer: u8) {
        for (file, is_write) in [(event.file, true), (event.file2, false)] {
            if file.is_none() && event.file.or(event.file2).is_some() {
                continue;
            }
            let Some(number) = self.pair((event.process, file.unwrap_or(0), layer)) else { continue };
            if event.failed() {
                self.change(number, event, ChangedCounter::Failed(is_write || event.file.is_none()));
                continue;
            }
            let pair = &self.pairs[number as usize];
            let mut access = access(event, if is_write { event.offset } else { None }, pair.block);
            access.is_timed = is_write || event.file.is_none();
            if let Some(offset) = access.offset {
                let range = Range { offset: offset.unsigned_abs(), bytes: access.bytes };
                self.write(pair.written, range);
            }
            self.change(number, event, ChangedCounter::Access { is_write, access, overwritten: 0 });
        }
    }

    /// Returns the number of a pair; `None` if it is not selected.
    fn pair(&mut self, key: Key) -> Option<u32> {
        let (process, file, layer) = key;
        let mixed = (process ^ u64::from(layer) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ file.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let place = (mixed >> 40) as usize % RECENT;
        if self.recent[place].0 == key && self.recent[place].1 != NONE {
            return Some(self.recent[place].1);
        }
        let is_wanted = |of: &Option<HashSet<u64>>, id| of.as_ref().is_none_or(|wanted| wanted.contains(&id));
        if !is_wanted(&self.settings.processes, process) || !is_wanted(&self.settings.files, file) {
            return None;
        }
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => self.new_pair(key),
        };
        self.recent[place] = (key, number);
        Some(number)
    }

    fn new_pair(&mut self, key: Key) -> u32 {
        let (process, file, layer) = key;
        let written = match file {
            0 | OTHERS => NONE,
            file => {
                let number = self.sets.len() as u32;
                *self.sets.entry((file, layer)).or_insert(number)
            }
        };
        let number = self.pairs.len() as u32;
        let block = self.files.names.get(file).and_then(|path| self.blocks.of(process, path));
        self.is_block_assumed |= block.is_none() && file != 0 && file != OTHERS;
        self.pairs.push(Subject { process, file, layer, block: block.unwrap_or(ASSUMED_BLOCK), written });
        self.numbers.insert(key, number);
        number
    }

    /// Frees memory: folds the half of the pairs that moved the fewest bytes.
    fn fold(&mut self) {
        let mut tallies = std::mem::take(&mut self.counting.counted().tallies);
        let bytes = self.pairs.iter().zip(&tallies.counters);
        let mut weights: Vec<u64> =
            bytes.filter(|(pair, _)| pair.file != OTHERS).map(|(_, counters)| counters.bytes()).collect();
        if weights.len() < FEWEST {
            self.counting.counted().tallies = tallies;
            return;
        }
        let middle = weights.len() / 2;
        let (_, middle, _) = weights.select_nth_unstable(middle);
        let heaviest = *middle;
        let pairs = std::mem::take(&mut self.pairs);
        let all = std::mem::take(&mut tallies.counters);
        self.numbers.clear();
        self.recent.fill(((0, 0, 0), NONE));
        for (pair, counters) in pairs.into_iter().zip(all) {
            let folds = counters.bytes() <= heaviest && pair.file != 0;
            self.folded += u64::from(folds && pair.file != OTHERS);
            let key = (pair.process, if folds { OTHERS } else { pair.file }, pair.layer);
            match self.numbers.get(&key) {
                Some(number) => tallies.counters[*number as usize].merge(&counters),
                None if folds => {
                    let _ = self.new_pair(key);
                    let mut folded = Counters::default();
                    folded.merge(&counters);
                    tallies.counters.push(folded);
                }
                None => {
                    self.numbers.insert(key, self.pairs.len() as u32);
                    self.pairs.push(pair);
                    tallies.counters.push(counters);
                }
            }
        }
        tallies.memory = tallies.counters.iter().map(Counters::memory).sum();
        self.counting.counted().tallies = tallies;
    }

    /// Returns the result.
    #[must_use]
    pub fn finish(mut self) -> Characterization {
        let Counted { tallies, written } = std::mem::take(self.counting.counted());
        let files = &self.files;
        let pair = |(pair, counters): (Subject, Counters)| Pair {
            process: pair.process,
            file: Some(files.same(pair.file)).filter(|file| *file != 0),
            layer: pair.layer,
            block: pair.block,
            counters,
        };
        let pairs = self.pairs.into_iter().zip(tallies.counters).map(pair).collect();
        let lives: HashMap<u64, Life> =
            self.lives.into_sorted().filter(|(_, life)| !life.span.is_empty()).collect();
        let mut span = Span::default();
        lives.values().for_each(|life| span.add(life.span.begin, life.span.end));
        Characterization {
            is_block_assumed: self.is_block_assumed,
            pairs,
            span,
            folded: self.folded,
            is_overwriting_incomplete: written.is_incomplete,
            views_unknown: self.views_unknown,
            lives,
            cpu: cpu_by_process(self.threads),
            processes: self.processes,
            files: self.files,
        }
    }
}

/// Returns the access of a read or a write with its byte range in the file.
fn placed(event: &Event, place: &Place, block: u32) -> Access {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    match place {
        Place::Whole => access(event, event.offset, block),
        Place::Unknown(_) => access(event, None, block),
        Place::Pieces(pieces) => {
            let last = |piece: &Range| signed((piece.offset + piece.bytes).saturating_sub(1));
            let first = pieces.first().map(|piece| signed(piece.offset));
            let ends = pieces.last().map(last).zip(pieces.iter().map(last).max());
            Access { last: ends.map(Box::new), ..access(event, first, block) }
        }
    }
}

fn access(event: &Event, offset: Option<i64>, block: u32) -> Access {
    Access {
        offset: offset.filter(|offset| *offset >= 0),
        last: None,
        bytes: event.moved(),
        is_timed: true,
        is_unaligned_in_memory: event.flags & flag::UNALIGNED != 0,
        block,
    }
}

/// Returns the CPU time, in nanoseconds, of the processes all of whose threads have one.
fn cpu_by_process(streams: ById<Thread>) -> HashMap<u64, u64> {
    let mut threads: HashMap<(u64, u32), Option<u64>> = HashMap::new();
    for (_, stream) in streams.into_sorted().filter(|(_, stream)| stream.process != 0) {
        let thread = threads.entry((stream.process, stream.tid)).or_default();
        *thread = (*thread).max(stream.cpu);
    }
    let mut processes: HashMap<u64, Option<u64>> = HashMap::new();
    for ((process, _), cpu) in threads {
        let total = processes.entry(process).or_insert(Some(0));
        *total = total.zip(cpu).map(|(total, cpu)| total.saturating_add(cpu));
    }
    processes.into_iter().filter_map(|(process, cpu)| Some((process, cpu?))).collect()
}
