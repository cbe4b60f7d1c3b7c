//! Live activity for `miot top` and the web page: an [`Activity`] of the merged rows, in a thread
//! of its own.
//!
//! While there are watchers, the store passes on what it writes, and never waits: events that do
//! not fit into the queue are counted as skipped. The thread answers all requests, so it needs no
//! lock. There are watchers from the first request to an hour after the last one. With an HTTP
//! address in the configuration there always are, so that the hour before the first request is
//! known too.

#![expect(clippy::disallowed_types, reason = "states of the activity thread, for the store")]

use crate::settings::config::Config;
use arrow_array::RecordBatch;
use crossbeam::channel::{Receiver, Sender, bounded, select};
use miot_activity::Activity;
use miot_proto::activity::{ActivityHistory, ActivitySnapshot, ActivityWindow};
use miot_trace_store::{Reader, Table};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Maximum number of batches that wait for the thread: the rows of some hundred milliseconds.
const MAX_WAITING: usize = 256;
/// Maximum number of requests that wait.
const MAX_REQUESTS: usize = 64;
/// There are no watchers after this time without a request.
const WATCHER_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time between two checks for watchers, and between two readings of missed names: with many files
/// a reading takes long, and more names may be missed meanwhile.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of rows of each kind in an answer.
const MAX_ROWS: usize = 1000;

/// Request of a watcher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ActivityRequest {
    pub(crate) window: ActivityWindow,
    /// Minimum number of rows of each kind.
    pub(crate) top: usize,
    /// Length of a step of the history in seconds, and number of steps.
    pub(crate) step: u32,
    pub(crate) steps: usize,
}

/// A request, and the channel for its answer.
struct PendingRequest(ActivityRequest, oneshot::Sender<(ActivitySnapshot, ActivityHistory)>);

/// The side of the store and the sessions. The thread ends when all copies are dropped.
#[derive(Clone, Debug)]
pub(crate) struct LiveActivity {
    rows: Sender<(Table, RecordBatch)>,
    requests: Sender<PendingRequest>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// There are watchers.
    active: AtomicBool,
    /// All rows that completed before this time were merged, nanoseconds since 1970.
    reached: AtomicI64,
    /// Number of events that did not fit into the queue.
    skipped: AtomicU64,
    /// Names did not fit into the queue: they must be read again.
    names_missed: AtomicBool,
}

impl LiveActivity {
    /// Starts the thread.
    pub(crate) fn start(config: &Config) -> std::io::Result<LiveActivity> {
        let (rows, of_store) = bounded(MAX_WAITING);
        let (requests, last_request) = bounded(MAX_REQUESTS);
        let state = Arc::new(State::default());
        let always_active = config.http.as_deref().is_some_and(|http| http != miot_daemon::http::OFF);
        state.active.store(always_active, Relaxed);
        let thread = ActivityThread {
            trace: config.trace.clone(),
            always_active,
            state: Arc::clone(&state),
            activity: Activity::new(),
            names_read: Instant::now(),
        };
        std::thread::Builder::new()
            .name("miot-watch".into())
            .spawn(move || thread.run(&of_store, &last_request))?;
        Ok(LiveActivity { rows, requests, state })
    }

    /// Passes on rows if there are watchers. Never waits.
    pub(crate) fn publish(&self, table: Table, batch: &RecordBatch) {
        let is_relevant = !matches!(table, Table::Threads | Table::Clocks);
        if is_relevant
            && self.state.active.load(Relaxed)
            && self.rows.try_send((table, batch.clone())).is_err()
        {
            match table {
                Table::Events => drop(self.state.skipped.fetch_add(batch.num_rows() as u64, Relaxed)),
                _ => self.state.names_missed.store(true, Relaxed),
            }
        }
    }

    /// Records that all rows before `time` were passed on, nanoseconds since 1970.
    pub(crate) fn advance_to(&self, time: i64) {
        self.state.reached.fetch_max(time, Relaxed);
    }

    /// Returns the live activity; `None` if there are too many requests at once, or the server
    /// stops.
    pub(crate) async fn query(
        &self,
        request: ActivityRequest,
    ) -> Option<(ActivitySnapshot, ActivityHistory)> {
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(PendingRequest(request, reply)).ok()?;
        answer.await.ok()
    }
}

struct ActivityThread {
    trace: PathBuf,
    always_active: bool,
    state: Arc<State>,
    activity: Activity,
    /// Time of the last reading of names.
    names_read: Instant,
}

impl ActivityThread {
    fn run(mut self, rows: &Receiver<(Table, RecordBatch)>, requests: &Receiver<PendingRequest>) {
        let mut last_request = None;
        if self.always_active {
            self.read_names();
        }
        loop {
            select! {
                recv(rows) -> row => match row {
                    Ok((table, batch)) => self.activity.add(table, &batch),
                    Err(_) => return,
                },
                recv(requests) -> request => {
                    let Ok(PendingRequest(request, reply)) = request else { return };
                    last_request = Some(Instant::now());
                    if !self.state.active.swap(true, Relaxed) {
                        self.read_names();
                    }
                    // The answer includes everything that was merged before the request.
                    let reached = self.state.reached.load(Relaxed);
                    for (table, batch) in rows.try_iter().take(MAX_WAITING) {
                        self.activity.add(table, &batch);
                    }
                    let _ = reply.send(self.answer(request, reached));
                },
                default(CHECK_EVERY) => {}
            }
            let is_gone =
                last_request.is_none_or(|last_request: Instant| last_request.elapsed() > WATCHER_TIMEOUT);
            if is_gone && !self.always_active && self.state.active.swap(false, Relaxed) {
                self.activity = Activity::new();
            }
            self.read_missed_names(Instant::now());
        }
    }

    fn answer(&mut self, request: ActivityRequest, reached: i64) -> (ActivitySnapshot, ActivityHistory) {
        self.activity.skip(self.state.skipped.swap(0, Relaxed));
        self.activity.advance(reached);
        let snapshot = self.activity.snapshot(request.window, request.top.min(MAX_ROWS));
        (snapshot, self.activity.history(request.step, request.steps))
    }

    /// Reads missed names, unless names were read recently.
    fn read_missed_names(&mut self, now: Instant) {
        let is_due = now.saturating_duration_since(self.names_read) >= CHECK_EVERY;
        if is_due && self.state.names_missed.load(Relaxed) {
            self.read_names();
        }
    }

    /// Reads the processes and files that later events may refer to.
    fn read_names(&mut self) {
        self.state.names_missed.store(false, Relaxed);
        let read = Reader::tolerant(&self.trace).and_then(|reader| {
            for table in [Table::Processes, Table::Files] {
                for batch in reader.batches(table) {
                    self.activity.add(table, &batch?);
                }
            }
            for unread in reader.unread().all() {
                tracing::warn!(%unread, "some names of processes and files cannot be read, run miot fsck for details");
            }
            Ok(())
        });
        if let Err(error) = read {
            tracing::warn!(%error, "cannot read names of processes and files from the trace");
        }
        self.names_read = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::side_tables::{ProcessRow, processes};
    use crate::ids::ProcessId;
    use arrow_array::UInt64Array;
    use miot_proto::wire::{Process, ProcessKey};
    use miot_trace_store::{Options, Writer};

    #[test]
    fn missed_names_are_read_within_ten_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("trace");
        let mut writer = Writer::create(&trace, Options::default()).unwrap();
        let state = Arc::new(State { active: AtomicBool::new(true), ..State::default() });
        let ((rows, taken), (requests, _asked)) = (bounded(1), bounded(1));
        let live = LiveActivity { rows, requests, state: Arc::clone(&state) };
        let (activity, names_read) = (Activity::new(), Instant::now());
        let mut thread = ActivityThread { trace, always_active: true, state, activity, names_read };

        let process = |nonce| Process {
            key: ProcessKey { boot: 1, nonce, pid: 1 },
            ppid: 1,
            uid: 0,
            started: 1,
            rank: None,
            exe: b"/bin/program".to_vec(),
            cmdline: Vec::new(),
            job: Vec::new(),
            cwd: Vec::new(),
        };
        // The first of two processes fits into the queue.
        for id in [1, 2] {
            let batch = processes(&[ProcessRow::new(ProcessId(id), "node", &process(id))]).unwrap();
            writer.append(Table::Processes, &batch).unwrap();
            live.publish(Table::Processes, &batch);
        }
        writer.commit().unwrap();
        taken.try_iter().for_each(|(table, batch)| thread.activity.add(table, &batch));
        let events = |id| {
            let process: arrow_array::ArrayRef = Arc::new(UInt64Array::from(vec![id]));
            RecordBatch::try_from_iter([("process", process)]).unwrap()
        };
        assert!(!thread.activity.has_strangers(&events(1)) && thread.activity.has_strangers(&events(2)));
        thread.read_missed_names(names_read + CHECK_EVERY / 2);
        assert!(thread.activity.has_strangers(&events(2)), "names were read recently");
        thread.read_missed_names(names_read + Duration::from_secs(10));
        assert!(!thread.activity.has_strangers(&events(2)));
        assert!(!thread.state.names_missed.load(Relaxed));
    }
}
