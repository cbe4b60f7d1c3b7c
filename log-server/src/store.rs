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

use crate::acks::Acks;
use crate::budget::{Budget, Charge};
use crate::catalog::{Catalog, process_losses};
use crate::clock::Correction;
use crate::config::Config;
use crate::error::Error;
use crate::history::{History, load_handles};
use crate::input::{Input, What};
use crate::merge::{Ended, Gap, Merge, Step};
use crate::nodes::{Bound, Nodes};
use crate::ops::Ops;
use crate::resolve::resolve;
use crate::rows;
use crate::side::{self, LossRow, ProcessRow, ThreadRow};
use crate::sink::Sink;
use crate::tail::Tail;
use arrow_array::RecordBatch;
use crossbeam::channel::{Receiver, RecvTimeoutError};
use miot_proto::wire::{Message, ProcessLoss};
use miot_trace_store::{Recovered, Table, Writer};
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
    /// Stream ids by their short numbers.
    streams: Vec<u64>,
    out: mpsc::UnboundedSender<Message>,
}

/// A process that ended and still has rows to be merged.
#[derive(Debug)]
struct Ending {
    process: u64,
    time: i64,
    lost: ProcessLoss,
    ticket: Option<Ticket>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    config: Config,
    started: Instant,
    inputs: Receiver<Input>,
    budget: Arc<Budget>,
    queue: Arc<Budget>,
    catalog: Catalog,
    ops: Ops,
    merge: Merge<Option<Ticket>>,
    nodes: Nodes,
    corrections: HashMap<usize, Correction>,
    conns: HashMap<u64, Conn>,
    /// The connection of each node that has one.
    present: HashMap<usize, u64>,
    sessions: HashMap<(usize, u64), Session>,
    recent: HashMap<usize, VecDeque<u64>>,
    endings: Vec<Ending>,
    /// Processes of an earlier server that are there again, and whose handles have not been read.
    returned: HashSet<u64>,
    new_processes: Vec<ProcessRow>,
    new_threads: Vec<ThreadRow>,
    losses: Vec<LossRow>,
    lost: u64,
    sink: Sink,
    tail: Tail,
    /// Acknowledged at the next commit.
    uncommitted: Vec<Ticket>,
    forced: bool,
}

impl Store {
    /// Continues or begins the trace.
    pub(crate) fn new(
        config: &Config,
        writer: Writer,
        recovered: Option<&Recovered>,
        inputs: Receiver<Input>,
        budget: Arc<Budget>,
        queue: Arc<Budget>,
    ) -> Result<Store, Error> {
        let now = Instant::now();
        let mut catalog = Catalog::new(recovered);
        let History { last, corrections } = match recovered {
            Some(recovered) => History::read(&config.trace, recovered, &mut catalog)?,
            None => History::default(),
        };
        let mut nodes = Nodes::default();
        // Those that were there before will come back soon: they are waited for like nodes just gone.
        for _ in &catalog.nodes {
            nodes.add(last.map_or(i64::MIN, |last| last.time), now);
        }
        Ok(Store {
            started: now,
            inputs,
            budget,
            queue,
            catalog,
            ops: Ops::default(),
            merge: Merge::new(last),
            nodes,
            corrections,
            conns: HashMap::new(),
            present: HashMap::new(),
            sessions: HashMap::new(),
            recent: HashMap::new(),
            endings: Vec::new(),
            returned: HashSet::new(),
            new_processes: Vec::new(),
            new_threads: Vec::new(),
            losses: Vec::new(),
            lost: 0,
            sink: Sink::new(writer),
            tail: Tail::new(config),
            uncommitted: Vec::new(),
            forced: false,
            config: config.clone(),
        })
    }

    /// Runs until [`What::Finish`].
    pub(crate) fn run(mut self) -> Result<Report, Error> {
        let (mut last_merge, mut last_commit) = (Instant::now(), Instant::now());
        loop {
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
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Thread("was abandoned".into())),
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
            self.sink.seal_if_due();
        }
    }

    fn next_due(&self, last_merge: Instant, last_commit: Instant) -> Instant {
        let mut due = Instant::now() + IDLE;
        if !self.merge.is_idle() || !self.endings.is_empty() {
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
            || !self.new_processes.is_empty()
            || !self.new_threads.is_empty()
            || !self.losses.is_empty()
    }

    /// Merges what no node holds back; everything, if `all`.
    fn merge_now(&mut self, now: Instant, all: bool) -> Result<(), Error> {
        loop {
            let mut bound = if all { Bound::Open } else { self.nodes.bound(now, self.config.silent_after) };
            self.nodes.set_pace(bound);
            if self.sink.is_failing() {
                break;
            }
            let exhausted = self.budget.is_exhausted();
            if exhausted {
                bound = Bound::Open;
            }
            if exhausted != self.forced {
                self.forced = exhausted;
                if exhausted {
                    tracing::warn!(
                        "the memory is full (`memory`): merging without waiting for slow nodes, later events may be marked late"
                    );
                }
            }
            let until = match bound {
                Bound::Open => None,
                Bound::Until(time) => Some(time),
            };
            let step = self.merge.step(until, STEP_ROWS);
            let more = step.more;
            if !step.is_empty() {
                self.emit(step)?;
            }
            self.settle()?;
            if exhausted {
                // Only what is durable is given free.
                self.commit()?;
            }
            if !more {
                break;
            }
        }
        self.budget.wake();
        Ok(())
    }

    /// Writes what a step gives out.
    fn emit(&mut self, mut step: Step<Option<Ticket>>) -> Result<(), Error> {
        self.flush_definitions()?;
        self.read_handles();
        let gaps = std::mem::take(&mut step.gaps);
        gaps.iter().for_each(|gap| self.gap(gap));
        let ended = std::mem::take(&mut step.ended);
        ended.iter().for_each(|ended| self.stream_ended(ended));
        // Before the events after the gap: these must not be durable without it.
        self.flush_losses()?;
        let mut resolved = resolve(&mut self.catalog, &mut self.ops, &step);
        let new_files = std::mem::take(&mut resolved.new_files);
        if !new_files.is_empty() {
            self.append(Table::Files, side::files(&new_files)?)?;
        }
        if let Some(events) = rows::events(&mut self.catalog, &mut self.ops, &step.sources, resolved)? {
            self.append(Table::Events, events)?;
        }
        self.uncommitted.extend(step.tickets.into_iter().flatten());
        Ok(())
    }

    /// Without the handles of processes that were there before, their rows would have no files.
    fn read_handles(&mut self) {
        let returned = std::mem::take(&mut self.returned);
        if !returned.is_empty()
            && let Err(error) = load_handles(&self.config.trace, &returned, &mut self.catalog)
        {
            tracing::warn!(%error, "files that were opened before the restart are not known by name");
        }
    }

    fn gap(&mut self, gap: &Gap) {
        if self.catalog.is_told(gap) {
            return;
        }
        let Some(stream) = self.catalog.streams.get(&gap.stream) else { return };
        let Some(process) = self.catalog.processes.get(&stream.process) else { return };
        let count = (gap.last - gap.first).saturating_add(1);
        self.lost = self.lost.saturating_add(count);
        self.losses.push(LossRow {
            time: gap.time,
            node: self.catalog.node_name(process.node).to_owned(),
            process: Some(process.id),
            stream: Some(gap.stream),
            place: "lane_full",
            count,
            range: Some((gap.first, gap.last)),
        });
    }

    fn stream_ended(&mut self, ended: &Ended) {
        let (stream, end) = (ended.stream, &ended.end);
        if self.catalog.stream_ended(ended)
            && end.lost_nested > 0
            && let Some(process) = self.catalog.streams.get(&stream).map(|s| s.process)
        {
            self.loss(end.time, process, Some(stream), "nested", end.lost_nested);
        }
    }

    fn loss(&mut self, time: i64, process: u64, stream: Option<u64>, place: &'static str, count: u64) {
        let node = self.catalog.processes.get(&process).map_or(0, |p| p.node);
        let node = self.catalog.node_name(node).to_owned();
        self.lost = self.lost.saturating_add(count);
        self.losses.push(LossRow { time, node, process: Some(process), stream, place, count, range: None });
    }

    /// Ends processes whose streams have all been merged.
    fn settle(&mut self) -> Result<(), Error> {
        let mut index = 0;
        while let Some(ending) = self.endings.get(index) {
            let streams =
                self.catalog.processes.get(&ending.process).map(|p| p.streams.as_slice()).unwrap_or_default();
            if streams.iter().any(|stream| self.merge.is_waiting(*stream)) {
                index += 1;
                continue;
            }
            let ending = self.endings.swap_remove(index);
            if self.catalog.process_ended(ending.process) {
                for (place, count) in process_losses(ending.lost) {
                    self.loss(ending.time, ending.process, None, place, count);
                }
            }
            self.uncommitted.extend(ending.ticket);
        }
        Ok(())
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
        Ok(self.sink.append(table, batch)?)
    }

    /// Makes durable what was written, and acknowledges it.
    fn commit(&mut self) -> Result<(), Error> {
        self.flush_definitions()?;
        self.flush_losses()?;
        if !self.sink.commit()? {
            return Ok(());
        }
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
