//! The one thread that owns the trace: takes what sessions received, merges it, writes it, and only then
//! lets it be acknowledged.
//!
//! ```text
//! sessions ──Input──► catalog (ids) ► merge (order) ► resolve (files) ► rows ► sink ──commit──► acks
//!                                                                     └─► tail
//! ```
//!
//! A message is acknowledged when everything that it brought is durable: a definition at the next commit,
//! a batch or an end at the commit after its last row was merged. While the directory cannot be written
//! nothing is merged, so memory fills up to its limit and sessions stop reading.

mod intake;
mod samples;

use crate::acks::Acks;
use crate::budget::{Budget, Charge};
use crate::catalog::Catalog;
use crate::clock::Correction;
use crate::config::Config;
use crate::error::Error;
use crate::history::{History, load_handles};
use crate::input::{Input, What};
use crate::merge::{Ended, Gap, Merge, Step};
use crate::monitor::{Monitor, Standing, StoreFacts};
use crate::nodes::{Bound, Nodes};
use crate::ops::Ops;
use crate::resolve::resolve;
use crate::rows;
use crate::shared::Shared;
use crate::side::{self, LossRow, ProcessRow, ThreadRow};
use crate::sink::Sink;
use crate::tail::Tail;
use crate::tuning::Tuning;
use crate::watch::Watch;
use arrow_array::RecordBatch;
use crossbeam::channel::{Receiver, RecvTimeoutError};
use miot_daemon::Liveness;
use miot_proto::wire::{Message, ProcessLoss};
use miot_trace_store::schema::FILTERED;
use miot_trace_store::{Recovered, Table, Writer};
use samples::Samples;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Rows merged in one step: large enough for columns, small enough that their batches stay in the cache.
const STEP_ROWS: usize = 1 << 14;
/// When so many wait they are merged sooner than configured, but not more often than this.
const FULL_STEP_EVERY: Duration = Duration::from_millis(1);
/// Inputs taken in one go before the clock is looked at again.
const INPUTS: usize = 1024;
/// Between two copies of what the store knows, for those who ask.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// Without anything to do the store still looks whether a part is due to be sealed.
const IDLE: Duration = Duration::from_millis(500);

/// What a log-server did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Events written.
    pub events: u64,
    /// Bytes of the parts sealed.
    pub bytes: u64,
    /// Parts sealed.
    pub parts: u64,
    /// Events that the nodes reported, or that gaps showed, as lost.
    pub losses: u64,
    /// From start to end.
    pub seconds: f64,
}

/// What is to be acknowledged, and the memory it takes until then.
#[derive(Debug)]
struct Ticket {
    session: (usize, u64),
    seq: u64,
    _charge: Charge,
}

/// One log-client process.
#[derive(Debug, Default)]
struct Session {
    acks: Acks,
    /// Its connection, if it has one.
    out: Option<watch::Sender<u64>>,
}

#[derive(Debug)]
struct Conn {
    node: usize,
    session: u64,
    /// Ids of streams that have not ended, by their short numbers.
    streams: HashMap<u32, u64>,
    out: mpsc::UnboundedSender<Message>,
}

/// A process that ended and still has rows to be merged.
#[derive(Debug)]
struct Ending {
    time: i64,
    lost: ProcessLoss,
    /// It was there again after its end: only its log-client had ended.
    returned: bool,
    ticket: Option<Ticket>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    /// As they were at the begin of this round.
    config: Arc<Config>,
    tuning: Arc<Tuning>,
    /// Changes of them that are known.
    changes: u64,
    started: Instant,
    inputs: Receiver<Input>,
    budget: Arc<Budget>,
    queue: Arc<Budget>,
    catalog: Catalog,
    ops: Ops,
    merge: Merge<Option<Ticket>>,
    nodes: Nodes,
    corrections: HashMap<usize, VecDeque<Correction>>,
    /// The latest merged time of each node, whether an event or a promise.
    reached: HashMap<usize, i64>,
    conns: HashMap<u64, Conn>,
    /// The connection of each node that has one.
    present: HashMap<usize, u64>,
    sessions: HashMap<(usize, u64), Session>,
    recent: HashMap<usize, VecDeque<u64>>,
    /// By process.
    endings: HashMap<u64, Vec<Ending>>,
    /// Processes whose endings may have nothing left to wait for.
    settling: HashSet<u64>,
    /// Processes that are there again, of an earlier server or log-client, and whose handles have not been read.
    returned: HashSet<u64>,
    /// Rows of `clocks` were given that are not durable.
    new_clocks: bool,
    /// Samples of devices that wait to be merged.
    samples: Samples<Ticket>,
    new_processes: Vec<ProcessRow>,
    new_threads: Vec<ThreadRow>,
    losses: Vec<LossRow>,
    lost: u64,
    /// By node, since the start.
    lost_by: HashMap<usize, HashMap<&'static str, u64>>,
    monitor: Arc<Monitor>,
    watch: Watch,
    told: Instant,
    /// Up to where the merge was allowed to go; `None`: nobody held it back.
    bound: Option<i64>,
    sink: Sink,
    tail: Tail,
    /// Acknowledged at the next commit.
    uncommitted: Vec<Ticket>,
    forced: bool,
    time: Time,
    heart: Liveness,
}

/// This machine's clock, which here never goes back.
#[derive(Debug)]
struct Time {
    latest: i64,
    at: Instant,
}

impl Time {
    fn new() -> Time {
        Time { latest: crate::now(), at: Instant::now() }
    }

    /// Nanoseconds since 1970 at `now`.
    fn at(&mut self, now: Instant) -> i64 {
        let passed = i64::try_from(now.saturating_duration_since(self.at).as_nanos()).unwrap_or(i64::MAX);
        self.latest = self.latest.saturating_add(passed).max(crate::now());
        self.at = self.at.max(now);
        self.latest
    }
}

impl Store {
    /// Goes on where the trace ends, with what is the store's of `shared`.
    pub(crate) fn new(
        shared: &Shared,
        writer: Writer,
        recovered: Option<&Recovered>,
        inputs: Receiver<Input>,
    ) -> Result<Store, Error> {
        let (now, tuning) = (Instant::now(), Arc::clone(&shared.tuning));
        let config = tuning.get();
        let mut catalog = Catalog::new(recovered);
        catalog.limit(config.node_streams);
        let History { last, corrections, samples } = match recovered {
            Some(recovered) => History::read(&config.trace, recovered, &mut catalog)?,
            None => History::default(),
        };
        // Without an event in the trace at least the last piece has begun: a line that has got nowhere would begin anew at
        // the beginning of all time, and what is converted with that is 1970.
        let begun = |pieces: &VecDeque<Correction>| pieces.back().map(|last| last.piece.time);
        let reached = corrections
            .iter()
            .filter_map(|(node, pieces)| Some((*node, last.map(|last| last.time).max(begun(pieces))?)));
        let mut reached: HashMap<usize, i64> = reached.collect();
        // A node that has sent nothing but samples has been given times all the same.
        for ((node, _), (_, time)) in &samples {
            if let Some(node) = catalog.node(node) {
                let reached = reached.entry(node).or_insert(*time);
                *reached = (*reached).max(*time);
            }
        }
        let mut nodes = Nodes::default();
        // Those that were there before will come back soon: they are waited for like nodes just gone.
        for _ in &catalog.nodes {
            nodes.add(last.map_or(i64::MIN, |last| last.time), now);
        }
        Ok(Store {
            started: now,
            inputs,
            budget: Arc::clone(&shared.budget),
            queue: Arc::clone(&shared.queue),
            catalog,
            ops: Ops::default(),
            merge: Merge::new(last),
            nodes,
            reached,
            corrections,
            conns: HashMap::new(),
            present: HashMap::new(),
            sessions: HashMap::new(),
            recent: HashMap::new(),
            endings: HashMap::new(),
            settling: HashSet::new(),
            returned: HashSet::new(),
            new_clocks: false,
            samples: Samples::new(samples),
            new_processes: Vec::new(),
            new_threads: Vec::new(),
            losses: Vec::new(),
            lost: 0,
            lost_by: HashMap::new(),
            monitor: Arc::clone(&shared.monitor),
            watch: shared.watch.clone(),
            told: now,
            bound: None,
            sink: Sink::new(writer),
            tail: Tail::new(&config),
            uncommitted: Vec::new(),
            forced: false,
            time: Time::new(),
            heart: Liveness::default(),
            config,
            changes: tuning.changes(),
            tuning,
        })
    }

    /// It beats in each round.
    pub(crate) fn give_heart(&mut self, heart: Liveness) {
        self.heart = heart;
    }

    /// Runs until [`What::Finish`].
    pub(crate) fn run(mut self) -> Result<Report, Error> {
        let (mut last_merge, mut last_commit) = (Instant::now(), Instant::now());
        loop {
            self.heart.beat();
            self.take_settings();
            let due = self.next_due(last_merge, last_commit);
            match self.inputs.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(first) => {
                    let rest: Vec<Input> = self.inputs.try_iter().take(INPUTS).collect();
                    for input in std::iter::once(first).chain(rest) {
                        if matches!(input.what, What::Finish) {
                            return self.finish();
                        }
                        self.take(input)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The server was dropped: as after a crash, what was committed stands.
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Thread("was abandoned")),
            }
            let now = Instant::now();
            if self.sink.retry_due(now) {
                self.commit()?;
            }
            // Charges are given back wherever an input ends, and those who wait for memory cannot see that.
            self.budget.wake();
            self.queue.wake();
            let enough = self.merge.rows() >= STEP_ROWS && now >= last_merge + FULL_STEP_EVERY;
            if enough || now >= last_merge + self.config.merge_every {
                self.merge_now(now, false)?;
                last_merge = now;
            }
            if self.is_dirty() && !self.sink.is_failing() && now >= last_commit + self.config.commit_every {
                self.commit()?;
                last_commit = Instant::now();
            }
            self.sink.seal_if_due(|| self.catalog.known());
            self.sink.retain_if_due();
            self.sink.sync_ledger_if_due();
            if self.told.elapsed() >= TELL_EVERY {
                self.tell();
            }
        }
    }

    fn take_settings(&mut self) {
        let changes = self.tuning.changes();
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.config = self.tuning.get();
            self.sink.set_options(self.config.store_options());
        }
    }

    /// Leaves a copy of what is known for those who ask.
    fn tell(&mut self) {
        self.told = Instant::now();
        let time = self.time.at(self.told);
        let names = self.catalog.nodes.iter().enumerate();
        let nodes = names.map(|(node, known)| {
            let watermark = self.nodes.watermark(node);
            let losses = self.lost_by.get(&node).into_iter().flatten();
            let standing = Standing {
                watermark,
                holds_back: self.bound.is_some()
                    && watermark.unwrap_or(i64::MIN) <= self.bound.unwrap_or(i64::MIN),
                losses: losses.map(|(place, count)| ((*place).to_owned(), *count)).collect(),
            };
            (known.name.clone(), standing)
        });
        let facts = StoreFacts {
            at: self.told,
            failure: self.sink.failure(),
            merge_lag_ns: self.bound.map_or(0, |bound| time.saturating_sub(bound).max(0)),
            waiting: self.merge.rows() as u64,
            events: self.sink.committed(),
            nodes: nodes.collect(),
        };
        self.monitor.store(facts);
    }

    /// Takes what there is, merges, commits; everything, if `all`.
    #[cfg(feature = "testing")]
    pub(crate) fn turn(&mut self, all: bool) -> Result<(), Error> {
        for input in self.inputs.try_iter().collect::<Vec<_>>() {
            self.take(input)?;
        }
        self.budget.wake();
        self.queue.wake();
        self.merge_now(Instant::now(), all)?;
        if self.is_dirty() { self.commit() } else { Ok(()) }
    }

    fn next_due(&self, last_merge: Instant, last_commit: Instant) -> Instant {
        let mut due = Instant::now() + IDLE;
        if !self.merge.is_idle() || !self.endings.is_empty() || !self.samples.is_empty() {
            due = due.min(last_merge + self.config.merge_every);
        }
        if self.is_dirty() && !self.sink.is_failing() {
            due = due.min(last_commit + self.config.commit_every);
        }
        due
    }

    fn is_dirty(&self) -> bool {
        !self.uncommitted.is_empty()
            || self.sink.uncommitted() > 0
            || self.new_clocks
            || !self.new_processes.is_empty()
            || !self.new_threads.is_empty()
            || !self.losses.is_empty()
    }

    /// Merges what no node holds back; everything, if `all`. Never goes beyond this machine's clock: an event from the
    /// future, of whomever, waits for its time, and so cannot make others late.
    fn merge_now(&mut self, now: Instant, all: bool) -> Result<(), Error> {
        loop {
            let bound = if all { Bound::Open } else { self.nodes.bound(now, self.config.silent_after) };
            self.nodes.set_pace(bound);
            self.bound = match bound {
                Bound::Open => None,
                // Somebody has come who has promised nothing yet: it stays where it was.
                Bound::Until(i64::MIN) => self.bound.or_else(|| Some(self.time.at(now))),
                Bound::Until(time) => Some(time),
            };
            if self.sink.is_failing() {
                self.nodes.excuse(now);
                break;
            }
            let until = match bound {
                _ if all => None,
                Bound::Open => Some(self.time.at(now)),
                Bound::Until(time) => Some(time.min(self.time.at(now))),
            };
            let more = self.step(until)?;
            if self.budget.is_exhausted() {
                // Only what is durable is given free.
                self.commit()?;
            }
            if !more {
                break;
            }
        }
        if !self.sink.is_failing() {
            let reached = self.bound.unwrap_or_else(|| self.time.at(now));
            self.watch.reached(reached);
        }
        self.relieve(now)?;
        self.budget.wake();
        Ok(())
    }

    /// Merges without waiting for anybody, if memory is full in spite of all that could be merged, and nothing is on
    /// its way that could change that; and without waiting for nodes that have used up what they may.
    fn relieve(&mut self, now: Instant) -> Result<(), Error> {
        let silent_after = self.config.silent_after;
        if self.nodes.bound_without_full(now, silent_after).is_some() {
            self.commit()?;
        }
        while !self.sink.is_failing()
            && let Some(bound) = self.nodes.bound_without_full(now, silent_after)
        {
            let present = self.time.at(now);
            let until = if let Bound::Until(time) = bound { time.min(present) } else { present };
            let more = self.step(Some(until))?;
            self.commit()?;
            if !more {
                break;
            }
        }
        let forced = self.budget.is_exhausted() && self.inputs.is_empty() && !self.sink.is_failing();
        if forced && !self.forced {
            tracing::warn!(
                "the memory is full (`memory`): merging without waiting for slow nodes, later events may be marked late"
            );
        }
        self.forced = forced;
        while self.budget.is_exhausted() && forced {
            let until = self.time.at(now);
            let more = self.step(Some(until))?;
            self.commit()?;
            if !more || self.sink.is_failing() {
                break;
            }
        }
        Ok(())
    }

    /// Merges some rows that completed before `until`; true if there are more of them.
    fn step(&mut self, until: Option<i64>) -> Result<bool, Error> {
        let step = self.merge.step(until, STEP_ROWS);
        let more = step.more;
        // Those whose time has come, whatever else has.
        let (rows, tickets) = self.samples.take(until);
        if !rows.is_empty() {
            self.append(Table::Devices, side::devices(&rows)?)?;
        }
        self.uncommitted.extend(tickets);
        if !self.endings.is_empty() {
            let over = step.emptied.iter().chain(step.ended.iter().map(|ended| &ended.stream));
            let over = over.filter_map(|stream| self.catalog.streams.get(stream));
            self.settling.extend(over.map(|stream| stream.process));
        }
        if !step.is_empty() {
            self.emit(step)?;
        }
        self.settle();
        Ok(more)
    }

    /// Writes what a step gives out.
    fn emit(&mut self, mut step: Step<Option<Ticket>>) -> Result<(), Error> {
        // With much to merge there are many steps in one round.
        self.heart.beat();
        self.flush_definitions()?;
        self.read_handles()?;
        let gaps = std::mem::take(&mut step.gaps);
        gaps.iter().for_each(|gap| self.gap(gap));
        let ended = std::mem::take(&mut step.ended);
        ended.iter().for_each(|ended| self.stream_ended(ended));
        // Before the events after the gap: these must not be durable without it.
        self.flush_losses()?;
        let mut resolved = resolve(&mut self.catalog, &mut self.ops, &step);
        let new_files = std::mem::take(&mut resolved.new_files);
        if !new_files.is_empty() {
            let files = side::files(&new_files, |node| self.catalog.node_name(node))?;
            self.append(Table::Files, files)?;
        }
        if let Some(events) = rows::events(&mut self.catalog, &mut self.ops, &step.sources, resolved)? {
            self.append(Table::Events, events)?;
        }
        self.uncommitted.extend(step.tickets.into_iter().flatten());
        Ok(())
    }

    /// Without the handles of processes that were there before, their rows would have no files.
    fn read_handles(&mut self) -> Result<(), Error> {
        let returned = std::mem::take(&mut self.returned);
        if returned.is_empty() {
            return Ok(());
        }
        self.commit()?;
        if let Err(error) = load_handles(&self.config.trace, &returned, &mut self.catalog) {
            tracing::warn!(%error, "files that were opened before the restart are not known by name");
        }
        Ok(())
    }

    fn gap(&mut self, gap: &Gap) {
        let Some(stream) = self.catalog.streams.get(&gap.stream) else { return };
        let Some(process) = self.catalog.processes.get(&stream.process) else { return };
        for (first, last) in stream.untold(gap) {
            let count = (last - first).saturating_add(1);
            self.lost = self.lost.saturating_add(count);
            count_loss(&mut self.lost_by, process.node, gap.place, count);
            self.losses.push(LossRow {
                time: gap.time,
                node: self.catalog.node_name(process.node).to_owned(),
                process: Some(process.id),
                stream: Some(gap.stream),
                place: gap.place,
                count,
                range: Some((first, last)),
            });
        }
    }

    fn stream_ended(&mut self, ended: &Ended) {
        let news = self.catalog.stream_ended(ended);
        let Some(process) = self.catalog.streams.get(&ended.stream).map(|s| s.process) else { return };
        for (place, count) in news {
            self.loss(ended.end.time, process, Some(ended.stream), place, count);
        }
    }

    fn loss(&mut self, time: i64, process: u64, stream: Option<u64>, place: &'static str, count: u64) {
        let node = self.catalog.processes.get(&process).map_or(0, |p| p.node);
        count_loss(&mut self.lost_by, node, place, count);
        let node = self.catalog.node_name(node).to_owned();
        if place != FILTERED {
            self.lost = self.lost.saturating_add(count);
        }
        self.losses.push(LossRow { time, node, process: Some(process), stream, place, count, range: None });
    }

    /// Ends processes whose streams have all been merged.
    fn settle(&mut self) {
        for id in std::mem::take(&mut self.settling) {
            let process = self.catalog.processes.get(&id);
            if process.is_some_and(|p| p.streams.iter().any(|stream| self.merge.is_waiting(*stream))) {
                continue;
            }
            for Ending { time, lost, returned, ticket } in self.endings.remove(&id).unwrap_or_default() {
                for (place, count) in self.catalog.process_ended(id, lost, returned) {
                    self.loss(time, id, None, place, count);
                }
                self.uncommitted.extend(ticket);
            }
        }
    }

    fn flush_definitions(&mut self) -> Result<(), Error> {
        let processes = std::mem::take(&mut self.new_processes);
        if !processes.is_empty() {
            self.append(Table::Processes, side::processes(&processes)?)?;
        }
        let threads = std::mem::take(&mut self.new_threads);
        if !threads.is_empty() {
            self.append(Table::Threads, side::threads(&threads)?)?;
        }
        Ok(())
    }

    fn flush_losses(&mut self) -> Result<(), Error> {
        let losses = std::mem::take(&mut self.losses);
        if !losses.is_empty() {
            self.append(Table::Losses, side::losses(&losses)?)?;
        }
        Ok(())
    }

    fn append(&mut self, table: Table, batch: RecordBatch) -> Result<(), Error> {
        self.tail.publish(table, &batch);
        self.watch.publish(table, &batch);
        Ok(self.sink.append(table, batch)?)
    }

    /// Makes durable what was written, and acknowledges it.
    fn commit(&mut self) -> Result<(), Error> {
        self.flush_definitions()?;
        self.flush_losses()?;
        if !self.sink.commit()? {
            return Ok(());
        }
        self.new_clocks = false;
        let mut moved = HashSet::new();
        for ticket in self.uncommitted.drain(..) {
            if let Some(session) = self.sessions.get_mut(&ticket.session) {
                session.acks.durable(ticket.seq);
                moved.insert(ticket.session);
            }
        }
        for session in moved.iter().filter_map(|key| self.sessions.get(key)) {
            if let Some(out) = &session.out {
                out.send_if_modified(|through| {
                    std::mem::replace(through, session.acks.through()) != session.acks.through()
                });
            }
        }
        self.budget.wake();
        Ok(())
    }

    /// The sessions have stopped reading: everything goes into the trace.
    fn finish(mut self) -> Result<Report, Error> {
        self.merge_now(Instant::now(), true)?;
        self.commit()?;
        // Dropping these closes the sessions, after they have passed on the last acknowledgement.
        self.sessions.clear();
        self.conns.clear();
        self.tail.end();
        let report = Report { events: self.sink.committed(), losses: self.lost, ..Report::default() };
        if self.sink.is_failing() {
            let events = self.sink.uncommitted() + self.merge.rows() as u64;
            return match self.sink.into_failure() {
                Some(source) => Err(Error::NotStored { events, source: Box::new(source) }),
                None => Ok(report),
            };
        }
        let summary = self.sink.finish()?;
        let seconds = self.started.elapsed().as_secs_f64();
        Ok(Report { bytes: summary.bytes, parts: summary.parts, seconds, ..report })
    }
}

fn count_loss(
    lost_by: &mut HashMap<usize, HashMap<&'static str, u64>>,
    node: usize,
    place: &'static str,
    count: u64,
) {
    let lost = lost_by.entry(node).or_default().entry(place).or_default();
    *lost = lost.saturating_add(count);
}
