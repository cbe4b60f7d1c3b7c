//! Plays back a trace directory or several as one, and follows them.

use super::update::{Order, SourceState, Update, UpdateError};
use crate::chain;
use crate::unread;
use anyhow::Context as _;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::TimestampNanosecondType;
use miot_activity::{Activity, ActivityWindow};
use miot_trace_store::{Follow, Reader, Table, follow};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, Instant};

/// Interval at which rows are added.
const STEP: Duration = Duration::from_millis(50);
/// Least interval at which processes and losses are read again.
const SIDE_EVERY: Duration = Duration::from_secs(1);
/// Number of steps of the history: the number of columns of a wide terminal.
const HISTORY: usize = 300;
const SECOND: i64 = 1_000_000_000;

/// A trace of the playback.
struct Trace {
    dir: PathBuf,
    follow: Follow,
    /// Batches that were read but not shown yet.
    waiting: VecDeque<RecordBatch>,
    /// Losses that are not shown yet, and the number of losses read.
    losses: VecDeque<RecordBatch>,
    losses_read: usize,
}

/// Playback of traces up to a point in time.
pub(crate) struct Replay {
    traces: Vec<Trace>,
    since: i64,
    activity: Activity,
    side_read: Option<Instant>,
    /// Time of the playback, nanoseconds since 1970; `None` before the first event.
    clock: Option<i64>,
    ended: bool,
}

impl Trace {
    /// Reads some rows that completed at or after `since`; returns false if there are none at
    /// present.
    fn read(&mut self, since: i64) -> anyhow::Result<bool> {
        loop {
            let batches = self.follow.poll()?;
            if batches.is_empty() {
                return Ok(false);
            }
            for batch in batches {
                let early = before(&batch, since);
                if early < batch.num_rows() {
                    self.waiting.push_back(batch.slice(early, batch.num_rows() - early));
                }
            }
            if !self.waiting.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Returns the time of the next row that was read.
    fn next(&self) -> Option<i64> {
        self.waiting.front().map(|batch| time(batch, 0))
    }

    /// Takes the rows up to a time from the next batch that was read.
    fn take(&mut self, until: i64) -> Option<RecordBatch> {
        let batch = self.waiting.front_mut()?;
        let rows = through(batch, until);
        let taken = batch.slice(0, rows);
        *batch = batch.slice(rows, batch.num_rows() - rows);
        if batch.num_rows() == 0 {
            self.waiting.pop_front();
        }
        (rows > 0).then_some(taken)
    }

    /// Reads losses that were not read before.
    fn read_losses(&mut self, reader: &Reader, since: i64) -> anyhow::Result<()> {
        let mut skip = self.losses_read;
        for batch in reader.table(Table::Losses)? {
            let known = skip.min(batch.num_rows());
            skip -= known;
            let new = batch.slice(known, batch.num_rows() - known);
            let early = before(&new, since);
            self.losses_read += new.num_rows();
            if early < new.num_rows() {
                self.losses.push_back(new.slice(early, new.num_rows() - early));
            }
        }
        Ok(())
    }
}

impl Replay {
    /// Opens a trace or set at its start, or at the events that completed at or after `since`.
    pub(crate) fn open(source: &Path, since: Option<i64>) -> anyhow::Result<Replay> {
        let from = since.map_or(follow::FollowFrom::Start, follow::FollowFrom::Time);
        let dirs = unread::members(source)?;
        let open = |dir: PathBuf| {
            let follow = unread::follow(&dir, from)?;
            let (waiting, losses) = (VecDeque::new(), VecDeque::new());
            anyhow::Ok(Trace { dir, follow, waiting, losses, losses_read: 0 })
        };
        let mut replay = Replay {
            traces: dirs.into_iter().map(open).collect::<Result<_, _>>()?,
            since: since.unwrap_or(i64::MIN),
            activity: Activity::new(),
            side_read: None,
            clock: None,
            ended: false,
        };
        replay.read_side()?;
        Ok(replay)
    }

    /// Returns the activity of all rows that are there.
    pub(crate) fn all(mut self) -> anyhow::Result<Activity> {
        self.read()?;
        while let Some(next) = self.next() {
            self.take(end_of_second(next))?;
        }
        self.losses(i64::MAX);
        Ok(self.activity)
    }

    /// Plays until the receiver is dropped.
    pub(crate) fn run(
        mut self,
        orders: &Receiver<Order>,
        updates: &SyncSender<Result<Update, UpdateError>>,
        (mut window, mut speed, interval): (ActivityWindow, f64, Duration),
    ) {
        let (mut paused, mut before) = (false, Instant::now());
        let mut due = Instant::now();
        loop {
            let order = match orders.recv_timeout(STEP) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            match order {
                Some(Order::Window(wanted)) => window = wanted,
                Some(Order::Faster(true)) => speed = (speed * 2.0).min(MOST_SPEED),
                Some(Order::Faster(false)) => speed = (speed / 2.0).max(LEAST_SPEED),
                Some(Order::Pause) => paused = !paused,
                Some(Order::Next) => self.skip_to_next(),
                None => {}
            }
            let now = Instant::now();
            let passed = now - std::mem::replace(&mut before, now);
            if !paused && let Err(error) = self.play(passed.as_secs_f64() * speed * SECOND as f64) {
                let _ = updates.send(Err(UpdateError { reason: chain(&error), is_over: true }));
                return;
            }
            if order.is_none() && now < due {
                continue;
            }
            due = now + interval;
            let state = SourceState::Replay { at: self.clock.unwrap_or(0), speed, paused, ended: self.ended };
            let (snapshot, history) =
                (self.activity.snapshot(window, super::ROWS), self.activity.history(1, HISTORY));
            // A slow screen skips this update and gets the next one.
            match updates.try_send(Ok(Update { snapshot, window, history, state, away: Vec::new() })) {
                Ok(()) | Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    /// Advances the clock by `passed` nanoseconds.
    fn play(&mut self, passed: f64) -> anyhow::Result<()> {
        let was_waiting = self.next().is_some();
        if self.read()? && !was_waiting {
            let last = |trace: &Trace| trace.waiting.back().map(|last| time(last, last.num_rows() - 1));
            let last = self.traces.iter().filter_map(last).max();
            self.clock = self.clock.or(self.next());
            // The playback had reached the end: show new rows at once, not at their time after the
            // former end.
            if std::mem::take(&mut self.ended) {
                self.clock = self.clock.max(last);
            }
        }
        let Some(clock) = self.clock.map(|clock| clock.saturating_add(passed as i64)) else { return Ok(()) };
        self.clock = Some(clock);
        let enough = Instant::now() + 4 * STEP;
        while let Some(next) = self.next().filter(|next| *next <= clock) {
            let until = end_of_second(next).min(clock);
            self.take(until)?;
            if Instant::now() > enough && self.next().is_some() {
                // The playback is faster than reading: stop the clock.
                self.clock = Some(until);
                return Ok(());
            }
        }
        if !self.read()? {
            // Complete the second of the last event. Later times are unknown.
            self.ended = true;
            let end = end_of_second(self.activity.last()).saturating_add(1);
            self.clock = Some(clock.min(end));
            self.activity.advance(clock.min(end));
            if self.side_read.is_none_or(|at| at.elapsed() >= SIDE_EVERY) {
                self.read_side()?;
            }
        } else {
            self.activity.advance(clock);
        }
        self.losses(self.clock.unwrap_or(i64::MIN));
        Ok(())
    }

    /// Adds the rows of all traces up to a time within the present second, and reads what follows.
    fn take(&mut self, until: i64) -> anyhow::Result<()> {
        for at in 0..self.traces.len() {
            while let Some(rows) = self.traces[at].take(until) {
                let unknown = self.activity.has_strangers(&rows);
                if unknown && self.side_read.is_none_or(|at| at.elapsed() >= SIDE_EVERY) {
                    self.read_side()?;
                }
                self.activity.add_rows(&rows);
                if self.traces[at].waiting.is_empty() {
                    self.traces[at].read(self.since)?;
                }
            }
        }
        Ok(())
    }

    /// Reads rows of traces that have none waiting; returns false if there are none at present.
    fn read(&mut self) -> anyhow::Result<bool> {
        for trace in self.traces.iter_mut().filter(|trace| trace.waiting.is_empty()) {
            trace.read(self.since)?;
        }
        Ok(self.next().is_some())
    }

    /// Returns the time of the next event.
    fn next(&self) -> Option<i64> {
        self.traces.iter().filter_map(Trace::next).min()
    }

    /// Advances the clock to the next event.
    fn skip_to_next(&mut self) {
        self.clock = self.clock.max(self.next());
    }

    /// Reads processes and new losses.
    fn read_side(&mut self) -> anyhow::Result<()> {
        self.side_read = Some(Instant::now());
        for trace in &mut self.traces {
            let reader = unread::open(&trace.dir).context("cannot read its processes")?;
            for batch in reader.table(Table::Processes)? {
                self.activity.add(Table::Processes, &batch);
            }
            trace.read_losses(&reader, self.since)?;
        }
        Ok(())
    }

    /// Adds the losses up to a time.
    fn losses(&mut self, clock: i64) {
        for trace in &mut self.traces {
            while let Some(batch) = trace.losses.pop_front() {
                let due = through(&batch, clock);
                self.activity.add(Table::Losses, &batch.slice(0, due));
                if due < batch.num_rows() {
                    trace.losses.push_front(batch.slice(due, batch.num_rows() - due));
                    break;
                }
            }
        }
    }
}

/// Returns the last nanosecond of the second of a time.
fn end_of_second(time: i64) -> i64 {
    time.saturating_add(SECOND - 1 - time.rem_euclid(SECOND))
}

/// Least speed of the playback.
pub(crate) const LEAST_SPEED: f64 = 1.0 / 1024.0;
/// Greatest speed of the playback.
pub(crate) const MOST_SPEED: f64 = (1u64 << 20) as f64;

fn times(batch: &RecordBatch) -> &[i64] {
    let column =
        batch.column_by_name("time").and_then(|time| time.as_primitive_opt::<TimestampNanosecondType>());
    column.map_or(&[], |column| column.values())
}

fn time(batch: &RecordBatch, row: usize) -> i64 {
    times(batch).get(row).copied().unwrap_or(0)
}

/// Returns the number of rows before the first row after `time`.
fn through(batch: &RecordBatch, time: i64) -> usize {
    let times = times(batch);
    times.iter().position(|at| *at > time).unwrap_or(times.len())
}

/// Returns the number of rows before the first row at `time` or later.
pub(super) fn before(batch: &RecordBatch, time: i64) -> usize {
    let times = times(batch);
    times.iter().position(|at| *at >= time).unwrap_or(times.len())
}
