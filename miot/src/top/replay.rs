//! Plays back a trace directory, and follows it.

use super::update::{Order, SourceState, Update, UpdateError};
use crate::chain;
use crate::unread;
use anyhow::Context as _;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::TimestampNanosecondType;
use miot_activity::{Activity, ActivityWindow};
use miot_trace_store::{Follow, Table, follow};
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

/// Playback of a trace up to a point in time.
pub(crate) struct Replay {
    dir: PathBuf,
    follow: Follow,
    since: i64,
    activity: Activity,
    /// Batches that were read but not shown yet.
    waiting: VecDeque<RecordBatch>,
    /// Losses that are not shown yet, and the number of losses read.
    losses: VecDeque<RecordBatch>,
    losses_read: usize,
    side_read: Option<Instant>,
    /// Time of the playback, nanoseconds since 1970; `None` before the first event.
    clock: Option<i64>,
    ended: bool,
}

impl Replay {
    /// Opens a trace at its start, or at the events that completed at or after `since`.
    pub(crate) fn open(dir: &Path, since: Option<i64>) -> anyhow::Result<Replay> {
        let from = since.map_or(follow::FollowFrom::Start, follow::FollowFrom::Time);
        let mut replay = Replay {
            dir: dir.to_owned(),
            follow: unread::follow(dir, from)?,
            since: since.unwrap_or(i64::MIN),
            activity: Activity::new(),
            waiting: VecDeque::new(),
            losses: VecDeque::new(),
            losses_read: 0,
            side_read: None,
            clock: None,
            ended: false,
        };
        replay.read_side()?;
        Ok(replay)
    }

    /// Returns the activity of the whole trace.
    pub(crate) fn all(mut self) -> anyhow::Result<Activity> {
        while self.read()? {
            while let Some(batch) = self.waiting.pop_front() {
                self.activity.add_rows(&batch);
            }
        }
        for losses in std::mem::take(&mut self.losses) {
            self.activity.add(Table::Losses, &losses);
        }
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
            match updates.try_send(Ok(Update { snapshot, window, history, state })) {
                Ok(()) | Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    /// Advances the clock by `passed` nanoseconds.
    fn play(&mut self, passed: f64) -> anyhow::Result<()> {
        if self.waiting.is_empty() && self.read()? {
            let (first, last) = self
                .waiting
                .front()
                .zip(self.waiting.back())
                .map_or((0, 0), |(first, last)| (time(first, 0), time(last, last.num_rows() - 1)));
            if self.clock.is_none() {
                self.clock = Some(first);
            }
            // The playback had reached the end: show new rows at once, not at their time after the
            // former end.
            if std::mem::take(&mut self.ended) {
                self.clock = self.clock.max(Some(last));
            }
        }
        let Some(clock) = self.clock.map(|clock| clock.saturating_add(passed as i64)) else { return Ok(()) };
        self.clock = Some(clock);
        let enough = Instant::now() + 4 * STEP;
        while let Some(batch) = self.waiting.pop_front() {
            let rows = before(&batch, clock.saturating_add(1));
            if rows > 0 {
                self.take(&batch.slice(0, rows))?;
            }
            if rows < batch.num_rows() {
                self.waiting.push_front(batch.slice(rows, batch.num_rows() - rows));
                break;
            }
            if self.waiting.is_empty() {
                self.read()?;
            }
            if Instant::now() > enough && self.waiting.front().is_some() {
                // The playback is faster than reading: stop the clock.
                self.clock = Some(time(&batch, batch.num_rows() - 1));
                return Ok(());
            }
        }
        if self.waiting.is_empty() {
            // Complete the second of the last event. Later times are unknown.
            self.ended = true;
            let end = (self.activity.last().div_euclid(SECOND) + 1) * SECOND;
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

    fn take(&mut self, rows: &RecordBatch) -> anyhow::Result<()> {
        if self.activity.has_strangers(rows) && self.side_read.is_none_or(|at| at.elapsed() >= SIDE_EVERY) {
            self.read_side()?;
        }
        self.activity.add_rows(rows);
        Ok(())
    }

    /// Reads some rows; returns false if there are none at present.
    fn read(&mut self) -> anyhow::Result<bool> {
        loop {
            let batches = self.follow.poll()?;
            if batches.is_empty() {
                return Ok(false);
            }
            for batch in batches {
                let early = before(&batch, self.since);
                if early < batch.num_rows() {
                    self.waiting.push_back(batch.slice(early, batch.num_rows() - early));
                }
            }
            if !self.waiting.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Advances the clock to the next event.
    fn skip_to_next(&mut self) {
        if let Some(next) = self.waiting.front().map(|batch| time(batch, 0)) {
            self.clock = self.clock.max(Some(next));
        }
    }

    /// Reads processes and new losses.
    fn read_side(&mut self) -> anyhow::Result<()> {
        self.side_read = Some(Instant::now());
        let reader = unread::open(&self.dir).context("cannot read its processes")?;
        for batch in reader.table(Table::Processes)? {
            self.activity.add(Table::Processes, &batch);
        }
        let mut skip = self.losses_read;
        for batch in reader.table(Table::Losses)? {
            let known = skip.min(batch.num_rows());
            skip -= known;
            let new = batch.slice(known, batch.num_rows() - known);
            let early = before(&new, self.since);
            self.losses_read += new.num_rows();
            if early < new.num_rows() {
                self.losses.push_back(new.slice(early, new.num_rows() - early));
            }
        }
        Ok(())
    }

    fn losses(&mut self, clock: i64) {
        while let Some(batch) = self.losses.pop_front() {
            let due = before(&batch, clock.saturating_add(1));
            self.activity.add(Table::Losses, &batch.slice(0, due));
            if due < batch.num_rows() {
                self.losses.push_front(batch.slice(due, batch.num_rows() - due));
                return;
            }
        }
    }
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

/// Returns the number of rows before the first row at `time` or later.
pub(super) fn before(batch: &RecordBatch, time: i64) -> usize {
    let times = times(batch);
    times.iter().position(|at| *at >= time).unwrap_or(times.len())
}
