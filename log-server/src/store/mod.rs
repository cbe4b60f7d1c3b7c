//! The thread that owns the trace. It merges the inputs of sessions, writes them, and acknowledges
//! them once they are durable.
//!
//! ```text
//! sessions ──Input──► catalog (ids) ► merge (order) ► resolve (files) ► events ► sink ─commit► acks
//!                                                                       └─► tail
//! ```
//!
//! A message is acknowledged when everything in it is durable: a definition at the next commit, a
//! batch or an end at the commit after its last row was merged. While the directory cannot be
//! written, nothing is merged, so memory fills up to its limit and sessions stop reading.
//!
//! | module | role |
//! |---|---|
//! | [`budget`], [`watermarks`] | back-pressure, and the nodes that hold back the merge |
//! | `input` | messages from sessions to the store |
//! | `intake` | handling of each input |
//! | [`merge`] | the order of the trace; drops repeated rows, finds gaps |
//! | `merging` | when and how far to merge, and writing the result |
//! | [`sink`] | the writer of the trace directory, with retries |
//! | [`acks`], `sessions` | connections, sessions, acknowledgments |
//! | `batch_pool` | memory of small batches, for others |
//! | `clocks`, `losses`, `processes`, `samples` | state that waits to be written, by table |
//! | `reporting` | status for HTTP pages and operators |

pub mod acks;
pub(crate) mod batch_pool;
pub mod budget;
mod clocks;
pub(crate) mod input;
mod intake;
mod losses;
pub mod merge;
mod merging;
mod processes;
mod reporting;
mod samples;
mod sessions;
pub mod sink;
pub mod watermarks;

use crate::ServerClock;
use crate::clock::Correction;
use crate::columns::events::EventColumns;
use crate::columns::ops::Ops;
use crate::columns::side_tables::{self, ProcessRow, ThreadRow};
use crate::error::Error;
use crate::ids::NodeId;
use crate::ids::catalog::Catalog;
use crate::ids::history::History;
use crate::live::activity::LiveActivity;
use crate::live::tail::Tail;
use crate::session::has_many_nodes;
use crate::settings::config::Config;
use crate::settings::tuning::Tuning;
use crate::shared::Shared;
use arrow_array::RecordBatch;
use batch_pool::BatchPool;
use budget::Budget;
use clocks::AppliedClocks;
use crossbeam::channel::{Receiver, RecvTimeoutError};
use input::Input;
use losses::Losses;
use merge::Merge;
pub(crate) use merging::Extent;
use miot_daemon::Liveness;
use miot_trace_store::{RecoveredTrace, Table, Writer};
use processes::Processes;
use reporting::Reporting;
use samples::DeviceSamples;
use sessions::{Sessions, Ticket};
use sink::Sink;
use std::sync::Arc;
use std::time::{Duration, Instant};
use watermarks::Watermarks;

/// Rows merged in one step: enough for efficient columns, few enough that their batches stay in the
/// cache.
const STEP_ROWS: usize = 1 << 14;
/// The same per stream, if that is more: a step looks at each stream several times.
const STEP_ROWS_PER_STREAM: usize = 8;
/// Maximum of it.
pub(crate) const MAX_STEP_ROWS: usize = 1 << 16;
/// When the rows of a step wait, they are merged earlier than configured, but not more often than
/// this.
const FULL_STEP_EVERY: Duration = Duration::from_millis(1);
/// Minimum time between two merges per stream: a step looks at each one, which takes about a tenth
/// of this.
const MERGE_PAUSE_PER_STREAM: Duration = Duration::from_micros(5);
/// The pause per stream is this many times longer while nobody follows the trace.
const UNFOLLOWED_PAUSES: u32 = 3;
/// Maximum of it.
const MAX_MERGE_PAUSE: Duration = Duration::from_millis(250);
/// Pause before the store waits for inputs, if there are thousands of nodes: short beside the time
/// between two merges.
const COLLECT_INPUTS: Duration = Duration::from_millis(10);
/// Maximum number of inputs between two looks at the clock.
const INPUTS: usize = 1024;
/// Maximum time between two attempts of a log-client to connect.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Processor time of a node that connects, at most: of its TLS handshake.
const CONNECT_TIME: Duration = Duration::from_millis(2);
/// Time between two final times for subscribers while there are no events.
const FINAL_EVERY: Duration = Duration::from_millis(40);
/// Maximum time between two rounds: an idle store checks whether a part is due to be sealed.
const IDLE: Duration = Duration::from_millis(500);

/// Summary of one run of a log-server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunSummary {
    /// Events written.
    pub events: u64,
    /// Bytes of the sealed parts.
    pub bytes: u64,
    /// Number of sealed parts.
    pub parts: u64,
    /// Lost events: reported by nodes, or found as gaps.
    pub losses: u64,
    /// Duration of the run.
    pub seconds: f64,
}

/// The store, see the module.
#[derive(Debug)]
pub(crate) struct Store {
    started: Instant,
    settings: Settings,
    clock: ServerClock,
    last: LastRound,
    inputs: Receiver<Input>,
    /// Memory of everything that is not durable.
    budget: Arc<Budget>,
    /// Memory of inputs that the store has not taken.
    queue: Arc<Budget>,
    batches: Arc<BatchPool>,
    catalog: Catalog,
    ops: Ops,
    event_columns: EventColumns,
    merge: Merge<Option<Ticket>>,
    watermarks: Watermarks,
    sessions: Sessions,
    clocks: AppliedClocks,
    processes: Processes,
    definitions: NewDefinitions,
    losses: Losses,
    samples: DeviceSamples<Ticket>,
    sink: Sink,
    tail: Tail,
    activity: LiveActivity,
    /// Tickets of inputs that the next commit makes durable.
    uncommitted: Vec<Ticket>,
    /// Acknowledgments may be rare.
    acks_are_rare: fn() -> bool,
    /// The store merges without waiting for slow nodes, and has logged it.
    forced: bool,
    reporting: Reporting,
}

/// The settings of the current round.
#[derive(Debug)]
struct Settings {
    config: Arc<Config>,
    tuning: Arc<Tuning>,
    /// Number of changes included in `config`.
    changes: u64,
}

impl Settings {
    fn new(tuning: Arc<Tuning>) -> Settings {
        Settings { config: tuning.get(), changes: tuning.changes(), tuning }
    }

    /// Reads changed settings. Returns true if there were any.
    fn refresh(&mut self) -> bool {
        let changes = self.tuning.changes();
        let is_changed = std::mem::replace(&mut self.changes, changes) != changes;
        if is_changed {
            self.config = self.tuning.get();
        }
        is_changed
    }
}

/// Rows that rows of other tables refer to, and that were not written yet.
#[derive(Debug, Default)]
struct NewDefinitions {
    clocks: Vec<(NodeId, Correction)>,
    processes: Vec<ProcessRow>,
    threads: Vec<ThreadRow>,
}

/// Times of the last merge and the last commit.
#[derive(Clone, Copy, Debug)]
struct LastRound {
    merge: Instant,
    commit: Instant,
}

impl Store {
    /// Creates the store of a server that starts at `now`. It continues where the trace ends.
    pub(crate) fn new(
        shared: &Shared,
        writer: Writer,
        recovered: Option<&RecoveredTrace>,
        inputs: Receiver<Input>,
        (now, clock): (Instant, ServerClock),
    ) -> Result<Store, Error> {
        let settings = Settings::new(Arc::clone(&shared.tuning));
        let config = &settings.config;
        let mut catalog = Catalog::new(config.partition, recovered);
        catalog.set_limit(config.node_streams);
        let history = match recovered {
            Some(recovered) => History::read(&config.trace, recovered, &mut catalog)?,
            None => History::default(),
        };
        let last_time = history.last.map(|last| last.time);
        let clocks = AppliedClocks::new(history.corrections, history.reached, &history.samples, &mut catalog);
        let mut watermarks = Watermarks::default();
        // Nodes of the existing trace will reconnect soon: they hold back the merge like nodes that
        // disconnect when all have had the time to return.
        let nodes = u32::try_from(catalog.nodes.len()).unwrap_or(u32::MAX);
        let returned = now + LONGEST_BACKOFF + CONNECT_TIME.saturating_mul(nodes);
        for _ in &catalog.nodes {
            watermarks.add(last_time.unwrap_or(i64::MIN), returned);
        }
        Ok(Store {
            started: now,
            clock,
            last: LastRound { merge: now, commit: now },
            inputs,
            budget: Arc::clone(&shared.budget),
            queue: Arc::clone(&shared.queue),
            batches: Arc::clone(&shared.batches),
            catalog,
            ops: Ops::default(),
            event_columns: EventColumns::default(),
            merge: Merge::new(history.last),
            watermarks,
            sessions: Sessions::default(),
            clocks,
            processes: Processes::default(),
            definitions: NewDefinitions::default(),
            losses: Losses::default(),
            samples: DeviceSamples::new(history.samples),
            sink: Sink::new(writer),
            tail: Tail::new(config),
            activity: shared.activity.clone(),
            uncommitted: Vec::new(),
            acks_are_rare: has_many_nodes,
            forced: false,
            reporting: Reporting::new(Arc::clone(&shared.monitor), &config.trace, now),
            settings,
        })
    }

    /// Sets the liveness signal, which the store renews in each round.
    pub(crate) fn set_liveness(&mut self, liveness: Liveness) {
        self.reporting.liveness = liveness;
    }

    /// Runs until [`input::InputKind::Finish`].
    pub(crate) fn run(mut self) -> Result<RunSummary, Error> {
        let now = Instant::now();
        self.last = LastRound { merge: now, commit: now };
        loop {
            self.reporting.liveness.beat();
            if self.settings.refresh() {
                self.sink.set_options(self.settings.config.store_options());
            }
            if self.inputs.is_empty() && has_many_nodes() {
                std::thread::sleep(COLLECT_INPUTS);
            }
            let due = self.next_due();
            match self.inputs.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(first) => {
                    let more: Vec<Input> = self.inputs.try_iter().take(INPUTS).collect();
                    for input in std::iter::once(first).chain(more) {
                        if self.take(input, Instant::now())?.is_break() {
                            return self.finish();
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The server was dropped. As after a crash, only committed events are kept.
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Thread("was abandoned")),
            }
            self.wake_sessions();
            if self.merge_and_commit(Instant::now())? {
                self.last.commit = Instant::now();
            }
            self.publish_final(Instant::now());
            self.sink.seal_if_due(|| self.catalog.live_ids());
            self.sink.retain_if_due();
            self.sink.sync_ledger_if_due();
            self.report_if_due();
        }
    }

    /// Inputs free their memory wherever they end, without waking waiting reservations.
    pub(crate) fn wake_sessions(&self) {
        self.budget.notify_freed();
        self.queue.notify_freed();
    }

    /// Merges and commits what is due. Returns true if it has committed because that was due.
    fn merge_and_commit(&mut self, now: Instant) -> Result<bool, Error> {
        if self.sink.retry_due(now) {
            self.commit()?;
        }
        let full_pause = FULL_STEP_EVERY.max(self.least_pause());
        let is_full = self.merge.rows() >= self.step_rows() && now >= self.last.merge + full_pause;
        if is_full || now >= self.last.merge + self.merge_pause() {
            self.merge_now(now, Extent::Due)?;
            self.last.merge = now;
        }
        let commit_at = self.last.commit + self.settings.config.commit_every;
        let is_due = self.is_dirty() && !self.sink.is_failing() && now >= commit_at;
        if is_due {
            self.commit()?;
        }
        Ok(is_due)
    }

    /// A round of [`Store::run`] at a time that a simulation passes: takes all waiting inputs, and
    /// merges and commits what is due. Returns the time up to which the trace is final.
    #[cfg(feature = "testing")]
    pub(crate) fn round_at(&mut self, now: Instant) -> Result<Option<i64>, Error> {
        self.take_waiting(now)?;
        if self.merge_and_commit(now)? {
            self.last.commit = now;
        }
        Ok(self.publish_final(now))
    }

    /// Takes all waiting inputs at a time that a simulation passes.
    #[cfg(feature = "testing")]
    pub(crate) fn take_waiting(&mut self, now: Instant) -> Result<(), Error> {
        while let Ok(input) = self.inputs.try_recv() {
            let _ = self.take(input, now)?;
        }
        Ok(())
    }

    /// Acknowledges as with thousands of nodes.
    #[cfg(feature = "testing")]
    pub(crate) fn acknowledge_rarely(&mut self) {
        self.acks_are_rare = || true;
    }

    /// Number of events that are durable since the start.
    #[cfg(feature = "testing")]
    pub(crate) fn committed(&self) -> u64 {
        self.sink.committed()
    }

    /// Takes all waiting inputs, merges and commits.
    #[cfg(feature = "testing")]
    pub(crate) fn run_once(&mut self, extent: Extent) -> Result<(), Error> {
        for input in self.inputs.try_iter().collect::<Vec<_>>() {
            let _ = self.take(input, Instant::now())?;
        }
        self.wake_sessions();
        self.merge_now(Instant::now(), extent)?;
        if self.is_dirty() { self.commit() } else { Ok(()) }
    }

    fn next_due(&self) -> Instant {
        let LastRound { merge: last_merge, commit: last_commit } = self.last;
        let config = &self.settings.config;
        let mut due = Instant::now() + IDLE;
        if !self.merge.is_idle() || self.processes.has_endings() || !self.samples.is_empty() {
            due = due.min(last_merge + self.merge_pause());
        }
        if self.tail.has_subscribers() {
            // Readers of several log-servers wait for the final time of each.
            due = due.min(last_merge + self.merge_pause().max(FINAL_EVERY));
        }
        if self.is_dirty() && !self.sink.is_failing() {
            due = due.min(last_commit + config.commit_every);
        }
        due
    }

    /// Rows merged in one step.
    fn step_rows(&self) -> usize {
        self.merge.streams().saturating_mul(STEP_ROWS_PER_STREAM).clamp(STEP_ROWS, MAX_STEP_ROWS)
    }

    /// Minimum time between two merges, for the number of streams.
    fn least_pause(&self) -> Duration {
        let streams = u32::try_from(self.merge.streams()).unwrap_or(u32::MAX);
        let pauses = if self.tail.has_subscribers() { 1 } else { UNFOLLOWED_PAUSES };
        MERGE_PAUSE_PER_STREAM.saturating_mul(streams.saturating_mul(pauses)).min(MAX_MERGE_PAUSE)
    }

    /// Time between two merges.
    fn merge_pause(&self) -> Duration {
        self.settings.config.merge_every.max(self.least_pause())
    }

    /// True if there is something to commit.
    fn is_dirty(&self) -> bool {
        !self.uncommitted.is_empty()
            || self.sink.uncommitted() > 0
            || self.clocks.is_uncommitted()
            || !self.definitions.processes.is_empty()
            || !self.definitions.threads.is_empty()
            || self.losses.has_rows()
    }

    fn write_definitions(&mut self) -> Result<(), Error> {
        let NewDefinitions { clocks, processes, threads } = std::mem::take(&mut self.definitions);
        if !clocks.is_empty() {
            let row = |(node, correction)| (self.catalog.node_name(node), correction);
            let rows: Vec<_> = clocks.into_iter().map(row).collect();
            self.append(Table::Clocks, side_tables::clocks(&rows)?)?;
        }
        if !processes.is_empty() {
            self.append(Table::Processes, side_tables::processes(&processes)?)?;
        }
        if !threads.is_empty() {
            self.append(Table::Threads, side_tables::threads(&threads)?)?;
        }
        Ok(())
    }

    fn append(&mut self, table: Table, batch: RecordBatch) -> Result<(), Error> {
        self.tail.publish(table, &batch);
        self.activity.publish(table, &batch);
        Ok(self.sink.append(table, batch)?)
    }

    /// Makes everything durable that was written, and acknowledges it.
    fn commit(&mut self) -> Result<(), Error> {
        self.write_definitions()?;
        self.write_losses()?;
        if !self.sink.commit()? {
            return Ok(());
        }
        self.clocks.committed();
        self.sessions.acknowledge(self.uncommitted.drain(..), (self.acks_are_rare)());
        self.budget.notify_freed();
        Ok(())
    }

    /// Writes everything to the trace and seals it, after the sessions have stopped reading.
    pub(crate) fn finish(mut self) -> Result<RunSummary, Error> {
        self.merge_now(Instant::now(), Extent::All)?;
        self.commit()?;
        // Sessions end once their channels are dropped, after they have sent the last
        // acknowledgment.
        self.sessions = Sessions::default();
        self.tail.end();
        let summary = RunSummary {
            events: self.sink.committed(),
            losses: self.losses.total(),
            ..RunSummary::default()
        };
        if self.sink.is_failing() {
            let events = self.sink.uncommitted() + self.merge.rows() as u64;
            return match self.sink.into_failure() {
                Some(source) => Err(Error::NotStored { events, source: Box::new(source) }),
                None => Ok(summary),
            };
        }
        let sealed = self.sink.finish()?;
        let seconds = self.started.elapsed().as_secs_f64();
        Ok(RunSummary { bytes: sealed.bytes, parts: sealed.parts, seconds, ..summary })
    }
}
