//! Second pass over a trace: I/O during regions.

use super::checkpoints::{CheckpointSpan, Checkpoints};
use super::scope::{Scope, Span};
use super::spans::RowName;
use super::tasks::{OwnRegions, Step, Tasks};
use super::{LoopFigures, NamedSpans, RegionKind, RegionRow, RegionTable};
use crate::intervals::{Interval, Intervals, difference, intersection, length};
use arrow_array::RecordBatch;
use miot_proto::op::{Layer, OpClass};
use miot_trace_events::outermost::{OutermostEvents, each_outermost};
use miot_trace_events::{Event, IdMap};
use miot_trace_store::FileNames;
use std::collections::{BTreeMap, HashMap};

/// Maximum number of intervals with I/O that are kept: 256 MiB.
const INTERVALS: usize = 1 << 24;
/// Maximum number of intervals of a name of regions in [`NamedSpans`].
const SHOWN: usize = 2000;
/// Index of all layers together in [`Busy`].
const ALL: usize = 0;
/// Number of layers and [`ALL`].
const LAYERS: usize = Layer::ALL.len() + 1;

/// Times with I/O, by layer.
type Busy = [Intervals; LAYERS];

/// Requests of a row and layer.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    requests: u64,
    bytes_read: u64,
    bytes_written: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.bytes_written = self.bytes_written.saturating_add(other.bytes_written);
    }
}

/// Regions of a thread and the I/O during them: that of the whole task for its main thread,
/// otherwise that of the thread.
#[derive(Debug)]
struct ThreadIo {
    scope: Scope,
    checkpoints: Vec<Interval>,
    task: usize,
    tallies: IdMap<(u32, usize), Tally>,
    busy: Busy,
}

/// A task.
#[derive(Debug)]
struct Task {
    main: u64,
    /// Index of the main thread.
    thread: usize,
    /// I/O of the main thread itself.
    own: Intervals,
}

/// Collects the I/O during regions.
#[derive(Debug)]
pub struct RegionIo {
    events: OutermostEvents,
    names: Vec<RowName>,
    threads: Vec<ThreadIo>,
    by_thread: IdMap<(u64, u32), usize>,
    tasks: Vec<Task>,
    by_process: IdMap<u64, Option<usize>>,
    regions: IdMap<u64, OwnRegions>,
    parents: Tasks,
    checkpoints: Checkpoints,
    count: u64,
    left_out: u64,
}

impl RegionIo {
    pub(super) fn new(
        names: Vec<RowName>,
        spans: IdMap<(u64, u32), Vec<Span>>,
        count: u64,
        left_out: u64,
        processes: &[RecordBatch],
    ) -> RegionIo {
        let mut regions: IdMap<u64, OwnRegions> = IdMap::default();
        for ((process, _), spans) in &spans {
            let own = regions.entry(*process).or_default();
            own.any = true;
            own.computes |= spans.iter().any(|span| span.kind == RegionKind::Compute);
        }
        let mut io = RegionIo {
            events: OutermostEvents::default(),
            names,
            threads: Vec::new(),
            by_thread: IdMap::default(),
            tasks: Vec::new(),
            by_process: IdMap::default(),
            regions,
            parents: Tasks::of(processes),
            checkpoints: Checkpoints::default(),
            count,
            left_out,
        };
        let most = INTERVALS / (spans.len() * LAYERS).max(1);
        // In order, so that the result does not depend on that of a map.
        let mut spans: Vec<_> = spans.into_iter().collect();
        spans.sort_unstable_by_key(|(thread, _)| *thread);
        for ((process, tid), spans) in spans {
            io.by_thread.insert((process, tid), io.threads.len());
            let checkpoints = spans.iter().filter(|span| span.kind == RegionKind::Checkpoint);
            io.threads.push(ThreadIo {
                checkpoints: checkpoints.map(|span| (span.begin, span.end)).collect(),
                scope: Scope::of(spans),
                task: usize::MAX,
                tallies: IdMap::default(),
                busy: std::array::from_fn(|_| Intervals::new(1, most)),
            });
        }
        io.find_tasks(most);
        io.find_checkpoints();
        io
    }

    /// Finds the task of each process with regions, and its main thread.
    fn find_tasks(&mut self, most: usize) {
        let mut threads: Vec<((u64, u32), usize)> =
            self.by_thread.iter().map(|(thread, at)| (*thread, *at)).collect();
        threads.sort_unstable();
        let mut tasks: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let mut of_main: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for ((process, _), at) in threads {
            let main = self.parents.main(process, |process| self.own_regions(process)).unwrap_or(process);
            tasks.entry(main).or_default().push(at);
            if main == process {
                of_main.entry(main).or_default().push(at);
            }
        }
        for (main, threads) in tasks {
            // The thread that computes most, else the one that spends most time in regions.
            let figures = |at: usize| {
                let scope = &self.threads[at].scope;
                let compute = length(scope.of_kind(RegionKind::Compute));
                (compute, scope.rows.values().map(|row| row.time).max(), std::cmp::Reverse(at))
            };
            let own = of_main.get(&main).unwrap_or(&threads);
            let Some(thread) = own.iter().copied().max_by_key(|at| figures(*at)) else { continue };
            for at in threads {
                self.threads[at].task = self.tasks.len();
            }
            self.by_process.insert(main, Some(self.tasks.len()));
            self.parents.set_main(main);
            self.tasks.push(Task { main, thread, own: Intervals::new(1, most) });
        }
    }

    /// Finds the checkpoints of the tasks.
    fn find_checkpoints(&mut self) {
        let mut spans = Vec::new();
        for (at, thread) in self.threads.iter_mut().enumerate() {
            let (task, is_main) = (thread.task, self.tasks[thread.task].thread == at);
            let checkpoints = std::mem::take(&mut thread.checkpoints).into_iter();
            spans.extend(checkpoints.map(|(begin, end)| CheckpointSpan { begin, end, task, is_main }));
        }
        let mut first: HashMap<Option<Step>, usize> = HashMap::new();
        let groups: Vec<usize> = self
            .tasks
            .iter()
            .enumerate()
            .map(|(at, task)| {
                let step = self.parents.step(task.main);
                if step.is_some() { *first.entry(step).or_insert(at) } else { at }
            })
            .collect();
        self.checkpoints = Checkpoints::of(spans, |task| groups[task]);
    }

    fn own_regions(&self, process: u64) -> OwnRegions {
        self.regions.get(&process).copied().unwrap_or_default()
    }

    /// Returns the task of a process.
    fn task(&mut self, process: u64) -> Option<usize> {
        if let Some(task) = self.by_process.get(&process) {
            return *task;
        }
        let main = self.parents.main(process, |process| self.own_regions(process));
        let task = main.and_then(|main| self.by_process.get(&main).copied()).flatten();
        self.by_process.insert(process, task);
        task
    }

    /// Adds events, in order. A batch without [`miot_trace_events::events::FEWEST_COLUMNS`] adds
    /// nothing.
    pub fn add(&mut self, batch: &RecordBatch) {
        each_outermost(self, |regions| &mut regions.events, batch, RegionIo::request);
    }

    /// Adds an outermost request.
    fn request(&mut self, event: &Event) {
        let Some(layer) = event.layer.filter(|layer| *layer != Layer::App) else { return };
        let Some(task) = self.task(event.process) else { return };
        let thread = self.by_thread.get(&(event.process, event.tid)).copied();
        let main = self.tasks[task].thread;
        let class = event.class();
        let moved = |is_moved: bool| if is_moved { event.moved() } else { 0 };
        let tally = Tally {
            requests: 1,
            bytes_read: moved(matches!(class, OpClass::Read | OpClass::Copy)),
            bytes_written: moved(matches!(class, OpClass::Write | OpClass::Copy)),
        };
        if tally.bytes_written > 0 {
            self.checkpoints.write(task, event);
        }
        if thread == Some(main) {
            self.tasks[task].own.add(event.begin, event.end);
        }
        let other = thread.filter(|thread| *thread != main);
        for thread in [Some(main), other].into_iter().flatten() {
            let ThreadIo { scope, tallies, busy, .. } = &mut self.threads[thread];
            for row in scope.rows_at(event.end) {
                for layer in [ALL, layer as usize] {
                    tallies.entry((*row, layer)).or_default().add(&tally);
                }
            }
            busy[ALL].add(event.begin, event.end);
            busy[layer as usize].add(event.begin, event.end);
        }
    }

    /// Returns the result. `paths`: names of the files of checkpoints.
    #[must_use]
    pub fn finish(self, paths: &FileNames) -> RegionTable {
        let mut rows: BTreeMap<(u32, usize), RegionRow> = BTreeMap::new();
        let hiding: Vec<Vec<Interval>> = self.tasks.iter().map(|task| self.hiding(task)).collect();
        for (at, thread) in self.threads.iter().enumerate() {
            let hidden_by = &hiding[thread.task];
            for (row, times) in &thread.scope.rows {
                for layer in 0..LAYERS {
                    let tally = thread.tallies.get(&(*row, layer)).copied().unwrap_or_default();
                    let busy = intersection(thread.busy[layer].list(), times.open.list());
                    if layer != ALL && tally.requests == 0 && busy.is_empty() {
                        continue;
                    }
                    let name = &self.names[*row as usize];
                    let of = rows.entry((*row, layer)).or_insert_with(|| RegionRow::new(name, layer));
                    of.threads += 1;
                    of.count += times.count;
                    of.time = of.time.saturating_add(times.time);
                    of.requests += tally.requests;
                    of.bytes_read = of.bytes_read.saturating_add(tally.bytes_read);
                    of.bytes_written = of.bytes_written.saturating_add(tally.bytes_written);
                    of.io_time += length(&busy);
                    of.hidden_time += length(&intersection(&busy, hidden_by));
                    of.is_main |= self.tasks[thread.task].thread == at;
                }
            }
        }
        let spans = self.spans(&rows);
        let mut rows: Vec<((u32, usize), RegionRow)> = rows.into_iter().collect();
        // Rows of single regions stay in order of their first completion.
        let all = rows.iter().filter(|((_, layer), of)| *layer == ALL && of.attributes.is_none());
        let times: BTreeMap<u32, u64> = all.map(|((row, _), of)| (*row, of.time)).collect();
        rows.sort_by_key(|((row, layer), _)| (std::cmp::Reverse(times.get(row).copied()), *row, *layer));
        rows.iter_mut().for_each(|(_, row)| row.finish());
        let loops = self.tasks.iter().zip(&hiding).map(|(task, hidden_by)| self.figures(task, hidden_by));
        RegionTable {
            loops: loops.collect(),
            tasks: self.tasks.len() as u64,
            regions: self.count,
            left_out: self.left_out,
            spans,
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            checkpoints: self.checkpoints.finish(paths),
        }
    }

    /// Returns the times of the regions of each name and kind, most time first.
    fn spans(&self, rows: &BTreeMap<(u32, usize), RegionRow>) -> Vec<NamedSpans> {
        let named = rows.iter().filter(|((_, layer), of)| *layer == ALL && of.attributes.is_none());
        let mut named: Vec<(u32, &RegionRow)> = named.map(|((row, _), of)| (*row, of)).collect();
        named.sort_by_key(|(row, of)| (std::cmp::Reverse(of.time), *row));
        let spans = named.into_iter().map(|(row, of)| {
            let open = self.threads.iter().filter_map(|thread| thread.scope.rows.get(&row));
            let mut all: Vec<Interval> = open.flat_map(|times| times.open.list()).copied().collect();
            all.sort_unstable_by_key(|(_, end)| *end);
            let mut joined = Intervals::new(1, SHOWN);
            all.iter().for_each(|(begin, end)| joined.add(*begin, *end));
            let (region, spans) = (of.region.clone(), joined.list().to_vec());
            NamedSpans { region, kind: of.kind, count: of.count, time: of.time, spans }
        });
        spans.collect()
    }

    /// Returns the times that hide I/O of a task: its main thread computes, and is not in a
    /// request.
    fn hiding(&self, task: &Task) -> Vec<Interval> {
        difference(self.threads[task.thread].scope.of_kind(RegionKind::Compute), task.own.list())
    }

    /// Returns the figures of the loop of a task.
    fn figures(&self, task: &Task, hidden_by: &[Interval]) -> LoopFigures {
        let ThreadIo { scope, busy, .. } = &self.threads[task.thread];
        let mut all = Intervals::new(1, usize::MAX);
        let kinds = [RegionKind::Compute, RegionKind::Fetch, RegionKind::Checkpoint, RegionKind::Io];
        let mut classified: Vec<Interval> =
            kinds.iter().flat_map(|kind| scope.of_kind(*kind)).copied().collect();
        classified.sort_unstable_by_key(|(_, end)| *end);
        classified.iter().for_each(|(begin, end)| all.add(*begin, *end));
        let busy = intersection(busy[ALL].list(), all.list());
        let within = |kind: RegionKind| length(&intersection(&busy, scope.of_kind(kind)));
        let count = |kind: RegionKind| {
            let rows = scope.rows.iter().filter(|(row, _)| self.names[**row as usize].kind == kind);
            rows.map(|(_, times)| times.count).sum()
        };
        LoopFigures {
            main: task.main,
            begin: all.list().first().map_or(0, |(begin, _)| *begin),
            end: all.list().last().map_or(0, |(_, end)| *end),
            time: length(all.list()),
            compute: length(scope.of_kind(RegionKind::Compute)),
            fetch: length(scope.of_kind(RegionKind::Fetch)),
            checkpoint: length(scope.of_kind(RegionKind::Checkpoint)),
            fetches: count(RegionKind::Fetch),
            checkpoints: count(RegionKind::Checkpoint),
            io_time: length(&busy),
            hidden_time: length(&intersection(&busy, hidden_by)),
            fetch_io: within(RegionKind::Fetch),
            checkpoint_io: within(RegionKind::Checkpoint),
        }
    }
}
