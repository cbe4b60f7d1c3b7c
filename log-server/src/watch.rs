//! What happens now, for `miot top` and the page: an [`Activity`] of what is merged, in a thread of its own.
//!
//! The store hands over what it writes while somebody watches, and never waits: events that find the queue full are
//! counted as skipped. Whoever asks is answered by the thread, which therefore needs no lock. Somebody watches from the
//! first question to an hour after the last one; with an address for HTTP in the configuration always, so that the hour
//! before the first question is known too.

use crate::config::Config;
use arrow_array::RecordBatch;
use crossbeam::channel::{Receiver, Sender, bounded, select};
use miot_proto::activity::{History, Snapshot, Window};
use miot_trace_analysis::Activity;
use miot_trace_store::{Reader, Table};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Batches that may wait for the thread: what is merged in some hundred milliseconds.
const WAITING: usize = 256;
/// Questions that may wait.
const QUESTIONS: usize = 64;
/// Nobody watches when nobody has asked for so long.
const GONE_AFTER: Duration = Duration::from_secs(3600);
/// Between two looks whether anybody watches, and between two readings of names that were missed: with many files one
/// takes long, and more may be missed meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Rows of a kind that can be asked for.
const MOST_ROWS: usize = 1000;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) window: Window,
    /// Rows of each kind, at least.
    pub(crate) top: usize,
    /// Seconds of a step of the history, and how many steps.
    pub(crate) step: u32,
    pub(crate) steps: usize,
}

/// A question, and where the answer goes.
struct Question(Wanted, oneshot::Sender<(Snapshot, History)>);

/// The store's and the sessions' side. The thread ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    rows: Sender<(Table, RecordBatch)>,
    questions: Sender<Question>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody watches.
    active: AtomicBool,
    /// Everything that completed before has been merged, nanoseconds since 1970.
    reached: AtomicI64,
    /// Events that did not fit.
    skipped: AtomicU64,
    /// Names did not fit: they are to be read again.
    names_missed: AtomicBool,
}

impl Watch {
    /// Starts the thread.
    pub(crate) fn start(config: &Config) -> std::io::Result<Watch> {
        let (rows, of_store) = bounded(WAITING);
        let (questions, asked) = bounded(QUESTIONS);
        let state = Arc::new(State::default());
        let always = config.http.as_deref().is_some_and(|http| http != miot_daemon::http::OFF);
        state.active.store(always, Relaxed);
        let watcher = Watcher {
            trace: config.trace.clone(),
            always,
            state: Arc::clone(&state),
            activity: Activity::new(),
            named: Instant::now(),
        };
        std::thread::Builder::new()
            .name("miot-watch".into())
            .spawn(move || watcher.run(&of_store, &asked))?;
        Ok(Watch { rows, questions, state })
    }

    /// Passes on rows, if anybody watches. Never waits.
    pub(crate) fn publish(&self, table: Table, batch: &RecordBatch) {
        let wanted = !matches!(table, Table::Threads | Table::Clocks);
        if wanted && self.state.active.load(Relaxed) && self.rows.try_send((table, batch.clone())).is_err() {
            match table {
                Table::Events => drop(self.state.skipped.fetch_add(batch.num_rows() as u64, Relaxed)),
                _ => self.state.names_missed.store(true, Relaxed),
            }
        }
    }

    /// Everything that completed before `time` has been given.
    pub(crate) fn reached(&self, time: i64) {
        self.state.reached.fetch_max(time, Relaxed);
    }

    /// What happens now; `None` if too many ask at once, or the server ends.
    pub(crate) async fn ask(&self, wanted: Wanted) -> Option<(Snapshot, History)> {
        let (reply, answer) = oneshot::channel();
        self.questions.try_send(Question(wanted, reply)).ok()?;
        answer.await.ok()
    }
}

struct Watcher {
    trace: PathBuf,
    always: bool,
    state: Arc<State>,
    activity: Activity,
    /// When names were last read.
    named: Instant,
}

impl Watcher {
    fn run(mut self, rows: &Receiver<(Table, RecordBatch)>, questions: &Receiver<Question>) {
        let mut asked = None;
        if self.always {
            self.read_names();
        }
        loop {
            select! {
                recv(rows) -> row => match row {
                    Ok((table, batch)) => self.activity.add(table, &batch),
                    Err(_) => return,
                },
                recv(questions) -> question => {
                    let Ok(Question(wanted, reply)) = question else { return };
                    asked = Some(Instant::now());
                    if !self.state.active.swap(true, Relaxed) {
                        self.read_names();
                    }
                    // What was merged before the question belongs to the answer.
                    let reached = self.state.reached.load(Relaxed);
                    for (table, batch) in rows.try_iter().take(WAITING) {
                        self.activity.add(table, &batch);
                    }
                    let _ = reply.send(self.answer(wanted, reached));
                },
                default(LOOK_EVERY) => {}
            }
            let is_gone = asked.is_none_or(|asked: Instant| asked.elapsed() > GONE_AFTER);
            if is_gone && !self.always && self.state.active.swap(false, Relaxed) {
                self.activity = Activity::new();
            }
            self.make_up(Instant::now());
        }
    }

    fn answer(&mut self, wanted: Wanted, reached: i64) -> (Snapshot, History) {
        self.activity.skip(self.state.skipped.swap(0, Relaxed));
        self.activity.advance(reached);
        let snapshot = self.activity.snapshot(wanted.window, wanted.top.min(MOST_ROWS));
        (snapshot, self.activity.history(wanted.step, wanted.steps))
    }

    /// Reads names that were missed, unless names have just been read.
    fn make_up(&mut self, now: Instant) {
        let is_due = now.saturating_duration_since(self.named) >= LOOK_EVERY;
        if is_due && self.state.names_missed.load(Relaxed) {
            self.read_names();
        }
    }

    /// What the events to come may refer to.
    fn read_names(&mut self) {
        self.state.names_missed.store(false, Relaxed);
        let read = Reader::tolerant(&self.trace).and_then(|reader| {
            for table in [Table::Processes, Table::Files] {
                for batch in reader.batches(table) {
                    self.activity.add(table, &batch?);
                }
            }
            for unread in reader.notes().all() {
                tracing::warn!(%unread, "not all names of processes and files can be read: miot fsck tells more");
            }
            Ok(())
        });
        if let Err(error) = read {
            tracing::warn!(%error, "names of processes and files cannot be read from the trace");
        }
        self.named = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::{ProcessRow, processes};
    use arrow_array::UInt64Array;
    use miot_proto::wire::{Process, ProcessKey};
    use miot_trace_store::{Options, Writer};

    #[test]
    fn names_that_were_missed_are_read_from_the_trace_within_ten_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("trace");
        let mut writer = Writer::create(&trace, Options::default()).unwrap();
        let state = Arc::new(State { active: AtomicBool::new(true), ..State::default() });
        let ((rows, taken), (questions, _asked)) = (bounded(1), bounded(1));
        let watch = Watch { rows, questions, state: Arc::clone(&state) };
        let (activity, named) = (Activity::new(), Instant::now());
        let mut watcher = Watcher { trace, always: true, state, activity, named };

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
        // There is room for the first of two processes.
        for id in [1, 2] {
            let batch = processes(&[ProcessRow::new(id, "node", &process(id))]).unwrap();
            writer.append(Table::Processes, &batch).unwrap();
            watch.publish(Table::Processes, &batch);
        }
        writer.commit().unwrap();
        taken.try_iter().for_each(|(table, batch)| watcher.activity.add(table, &batch));
        let events = |id| {
            let process: arrow_array::ArrayRef = Arc::new(UInt64Array::from(vec![id]));
            RecordBatch::try_from_iter([("process", process)]).unwrap()
        };
        assert!(!watcher.activity.has_strangers(&events(1)) && watcher.activity.has_strangers(&events(2)));
        watcher.make_up(named + LOOK_EVERY / 2);
        assert!(watcher.activity.has_strangers(&events(2)), "that would be often");
        watcher.make_up(named + Duration::from_secs(10));
        assert!(!watcher.activity.has_strangers(&events(2)));
        assert!(!watcher.state.names_missed.load(Relaxed));
    }
}
