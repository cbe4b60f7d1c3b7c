//! The sweeper: finds segments, drains them, detects the end of their processes, advances the
//! watermark ([`crate::watermark`]), and sleeps in between. One thread, no locks.

mod active_segment;
mod block_sizes;
mod discover;
mod doze;
mod intake;
mod job;
mod lookup;
mod node_watermark;
mod pending;
mod process_watch;
mod sleep;
#[cfg(test)]
mod tests;

pub(crate) use discover::SegmentName;
pub(crate) use process_watch::start_time;

use crate::clock::{Clocks, Now, ticks};
use crate::config::Config;
use crate::devices::Devices;
use crate::directory::{Control, MiotDirectory};
use crate::error::Error;
use crate::facts::{Fact, ShippedTotals, Sink};
use crate::pace::CurrentPace;
use crate::segment::{EndReason, ReadMode, Scratch, Segment, SweepContext, Tally, horizon};
use crate::survey::Survey;
use active_segment::ActiveSegment;
use doze::Doze;
use intake::{OpenedSegment, SegmentIntake};
use job::JobLookup;
use miot_proto::wire::Pace;
pub(crate) use node_watermark::NodeWatermark;
#[cfg(any(test, feature = "testing"))]
pub(crate) use node_watermark::Patience;
use node_watermark::QUIET_WATERMARKS;
use process_watch::ProcessWatch;
use sleep::{SleepPolicy, SweepEffort};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A lane that holds back the watermark this long, nanoseconds, is a reason to check whether its
/// process has executed another program.
const SUSPICIOUS_NS: i64 = 2_000_000_000;

/// Interval of that check, of measuring the memory of the segments, and of touching the control
/// page.
const INSPECT_EVERY: Duration = Duration::from_secs(1);

/// Every check includes one in this many of the processes without such a reason, in rotation.
const INSPECT_ONE_IN: usize = 10;

/// Maximum number of open streams of a node: half of the log-server's limit (`node_streams`).
/// Further lanes wait until other streams have ended, so that a process that claims too many lanes
/// excludes no other node from the trace.
const MAX_STREAMS: u32 = 1 << 17;

/// Pause while the spool has no space.
const FULL_SPOOL_PAUSE: Duration = Duration::from_millis(2);

/// Totals over the lifetime of the sweeper.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SweepTotals {
    pub(crate) violations: u64,
    pub(crate) unknown: u64,
    /// Processes with segments of another version.
    pub(crate) other_version: u64,
    pub(crate) clamped: u64,
    /// Events made of interrupted requests.
    pub(crate) interrupted: u64,
    /// Records were left in the lanes when the time was over.
    pub(crate) left: bool,
}

impl SweepTotals {
    fn add(&mut self, tally: &Tally) {
        self.violations += tally.violations;
        self.unknown += tally.unknown;
        self.clamped += tally.clamped;
        self.interrupted += tally.interrupted;
    }
}

/// State in which the previous log-client stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predecessor {
    /// A number above those of all its streams.
    pub(crate) next_stream: u32,
    /// Its last watermark, nanoseconds since 1970.
    pub(crate) watermark: Option<i64>,
}

/// The sweeper, see the module.
pub(crate) struct Sweeper {
    directory: MiotDirectory,
    boot: u128,
    /// Maximum memory of all segments together, bytes.
    node_bytes: u64,
    intake: SegmentIntake,
    jobs: JobLookup,
    devices: Devices,
    segments: Vec<ActiveSegment>,
    /// Segments to be removed once the end of their process is written to the spool, with their
    /// owners.
    ended: Vec<(SegmentName, u32)>,
    lanes: LaneReader,
    /// Number of streams that have not ended, as of the last survey, plus those opened since.
    open_streams: u32,
    watermark: NodeWatermark,
    /// Time of the last poll for new names, nanoseconds since 1970.
    last_look: i64,
    inspections: InspectionSchedule,
    sleep: SleepPolicy,
    doze: Doze,
    pace: Arc<CurrentPace>,
    /// A clean stop is in progress: everything is read, whatever the settings are.
    stopping: bool,
    totals: SweepTotals,
    survey: Arc<Mutex<Survey>>,
}

/// The part of a sweeper that reading lanes changes.
#[derive(Debug)]
struct LaneReader {
    clocks: Clocks,
    /// Number of the next stream.
    next_stream: u32,
    scratch: Scratch,
    mode: ReadMode,
    /// Slots to which lanes can grow; 0 if they cannot.
    grown_slots: u64,
    snapshot: Option<PendingSnapshot>,
}

/// A snapshot being taken.
#[derive(Clone, Copy, Debug)]
struct PendingSnapshot {
    number: u64,
    /// Records read since the snapshot started.
    events: u64,
}

impl LaneReader {
    /// The context of one sweep. `overwrites`: see [`Control::overwrites`].
    fn context<'a>(
        &'a mut self,
        t0: Now,
        watermark: i64,
        open_streams: u32,
        overwrites: &'a dyn Fn() -> bool,
        sink: &'a mut dyn Sink,
    ) -> SweepContext<'a> {
        SweepContext {
            t0,
            latest: &ticks,
            clocks: &self.clocks,
            watermark,
            streams_until: self.next_stream.wrapping_add(MAX_STREAMS.saturating_sub(open_streams)),
            streams: &mut self.next_stream,
            overwrites,
            reads: self.mode,
            grown_slots: self.grown_slots,
            snapshot: self.snapshot.map(|snapshot| snapshot.number),
            scratch: &mut self.scratch,
            sink,
        }
    }

    /// Counts the events of a sweep to the snapshot in progress, and completes it unless a lane is
    /// behind.
    fn update_snapshot(&mut self, events: u64, behind: bool, control: &Control) {
        let Some(snapshot) = &mut self.snapshot else { return };
        snapshot.events += events;
        if !behind {
            control.snapshot_taken(snapshot.number, snapshot.events);
            tracing::info!(snapshot.events, "snapshot taken");
            self.snapshot = None;
        }
    }
}

/// When processes are checked for having executed another program.
#[derive(Debug)]
struct InspectionSchedule {
    last: Instant,
    turn: usize,
}

/// The part of a sweep's inspection: none if it is not due.
#[derive(Clone, Copy, Debug)]
struct Inspection {
    is_due: bool,
    turn: usize,
}

impl InspectionSchedule {
    fn next(&mut self) -> Inspection {
        let is_due = self.last.elapsed() >= INSPECT_EVERY;
        self.turn = (self.turn + usize::from(is_due)) % INSPECT_ONE_IN;
        Inspection { is_due, turn: self.turn }
    }
}

impl Inspection {
    /// True if the segment with this index must be checked.
    fn includes(self, index: usize, safe: i64, horizon: i64) -> bool {
        let is_suspicious = safe < horizon.saturating_sub(SUSPICIOUS_NS);
        self.is_due && (is_suspicious || index % INSPECT_ONE_IN == self.turn)
    }
}

/// Results of draining all segments once.
#[derive(Debug)]
struct SweepSums {
    /// Minimum of the safe times of the lanes that the watermark waits for, and of the horizon.
    safe: i64,
    effort: SweepEffort,
    /// A lane has not reached its position for the snapshot.
    behind: bool,
}

impl SweepSums {
    fn new(horizon: i64, has_space: bool) -> SweepSums {
        // Without space nothing is taken, so something is left.
        let effort = SweepEffort {
            events: 0,
            fullest: 0,
            fullest_grown: 0,
            unfinished: !has_space,
            duration: Duration::ZERO,
        };
        SweepSums { safe: horizon, effort, behind: false }
    }

    fn add(&mut self, tally: &Tally) {
        self.behind |= tally.behind;
        self.effort.events += tally.events;
        self.effort.fullest = self.effort.fullest.max(tally.fullest);
        self.effort.fullest_grown = self.effort.fullest_grown.max(tally.fullest_grown);
        self.effort.unfinished |= tally.unfinished;
    }
}

impl Sweeper {
    pub(crate) fn new(
        directory: MiotDirectory,
        clocks: Clocks,
        boot: u128,
        config: &Config,
        before: Predecessor,
        survey: Arc<Mutex<Survey>>,
        pace: Arc<CurrentPace>,
    ) -> Result<Sweeper, Error> {
        Ok(Sweeper {
            intake: SegmentIntake::new(&directory, config.segments)?,
            jobs: JobLookup::default(),
            devices: Devices::new(config.devices_every, boot),
            directory,
            boot,
            node_bytes: config.node_bytes,
            segments: Vec::new(),
            ended: Vec::new(),
            lanes: LaneReader {
                clocks,
                next_stream: before.next_stream,
                scratch: Scratch::default(),
                mode: ReadMode::AllLanes,
                grown_slots: 0,
                snapshot: None,
            },
            open_streams: 0,
            watermark: NodeWatermark::new(before.watermark, Instant::now()),
            last_look: i64::MIN,
            inspections: InspectionSchedule { last: Instant::now(), turn: 0 },
            sleep: SleepPolicy::new(config.idle),
            doze: Doze::default(),
            pace,
            stopping: false,
            totals: SweepTotals::default(),
            survey,
        })
    }

    /// Sweeps until `stop` returns true.
    pub(crate) fn run(&mut self, sink: &mut dyn Sink, stop: &dyn Fn() -> bool) {
        while !stop() {
            let effort = self.sweep(sink);
            let pace = self.pace.get();
            let time = self.sleep.after(effort, pace);
            let is_idle = self.sleep.is_idle()
                && sink.has_space()
                && self.lanes.mode == ReadMode::AllLanes
                && pace == Pace::Idle;
            let long = self.doze.after_sweep(is_idle, self.directory.control());
            if !sink.has_space() {
                std::thread::sleep(FULL_SPOOL_PAUSE);
            } else if let Some(time) = long.or(time) {
                let began = Instant::now();
                if self.directory.control().sleep(time) {
                    self.sleep.woken(began.elapsed());
                }
            }
        }
        self.directory.control().set_doorbell(false);
    }

    /// Totals so far.
    pub(crate) fn totals(&self) -> SweepTotals {
        self.totals
    }

    /// Ends recording, delivers all committed records and ends all streams. Returns when done, or
    /// when `give_up` returns true.
    pub(crate) fn finish(&mut self, sink: &mut dyn Sink, give_up: &dyn Fn() -> bool) -> SweepTotals {
        self.directory.control().close();
        self.stopping = true;
        self.deliver_rest(sink, give_up);
        self.end_streams(sink);
        // After the ends, and no higher than before: the next log-client reads what is left in the
        // lanes.
        if self.watermark.time > i64::MIN {
            sink.send(Fact::Watermark(self.watermark.time));
        }
        self.totals
    }

    /// Sweeps until nothing is left in the lanes and the watermark covers all events.
    fn deliver_rest(&mut self, sink: &mut dyn Sink, give_up: &dyn Fn() -> bool) {
        let mut sampled = false;
        loop {
            let effort = self.sweep(sink);
            let is_empty = effort.events == 0 && !effort.unfinished;
            // The log-server must not have to wait for its timeout on silent nodes to merge the
            // last events, and the watermark must not exceed what the lanes guarantee. So sweep
            // until the watermark of a sweep is above the last event.
            if is_empty && self.watermark.covers_all() {
                if std::mem::replace(&mut sampled, true) || !sink.has_space() {
                    return;
                }
                self.sample_devices(sink);
                continue;
            }
            if give_up() {
                self.totals.left = effort.unfinished;
                return;
            }
            if !sink.has_space() {
                std::thread::sleep(FULL_SPOOL_PAUSE);
            } else if is_empty {
                std::thread::sleep(QUIET_WATERMARKS);
            }
        }
    }

    /// Ends all streams and processes. Living processes keep their segments: the next log-client
    /// reads what they commit from now on.
    fn end_streams(&mut self, sink: &mut dyn Sink) {
        let control = Arc::clone(self.directory.control());
        let overwrites = || control.overwrites();
        let (t0, watermark) = (Now::read(), self.watermark.time);
        let mut context = self.lanes.context(t0, watermark, self.open_streams, &overwrites, sink);
        for mut active in std::mem::take(&mut self.segments) {
            active.segment.end(EndReason::ReaderStopped, &mut context, &mut Tally::default());
        }
    }

    /// Ends all streams and processes at the log-server of `from`, and continues them at that of
    /// `to`. Returns false if nothing was moved, because not all records are written to `from` yet.
    pub(crate) fn move_streams(&mut self, from: &mut dyn Sink, to: &mut dyn Sink) -> bool {
        from.prepare();
        if !from.is_written() {
            return false;
        }
        self.remove_ended(from);
        let control = Arc::clone(self.directory.control());
        let overwrites = || control.overwrites();
        let (t0, watermark) = (Now::read(), self.watermark.time);
        let mut tally = Tally::default();
        let mut no_lane = Vec::with_capacity(self.segments.len());
        let mut context = self.lanes.context(t0, watermark, self.open_streams, &overwrites, from);
        no_lane.extend(self.segments.iter_mut().map(|active| active.segment.leave(&mut context, &mut tally)));
        if watermark > i64::MIN {
            from.send(Fact::Watermark(watermark));
        }
        // The streams that have just ended do not count.
        let mut context = self.lanes.context(t0, watermark, 0, &overwrites, to);
        for (active, no_lane) in self.segments.iter_mut().zip(no_lane) {
            active.segment.arrive(active.uid, no_lane, &mut context, &mut tally);
        }
        self.totals.add(&tally);
        true
    }

    /// Reads all new records once and sends them.
    fn sweep(&mut self, sink: &mut dyn Sink) -> SweepEffort {
        sink.prepare();
        self.remove_ended(sink);
        self.lanes.clocks.refine();
        let started = Instant::now();
        let t0 = Now::read();
        let horizon = horizon(&self.lanes.clocks, t0);
        self.directory.control().swept();
        self.apply_control_page();
        let has_space = sink.has_space();
        if !has_space || self.lanes.mode == ReadMode::EndedLanes || self.intake.is_catching_up() {
            self.watermark.withhold(Instant::now());
        }
        self.mark_exited();
        self.open_new_segments(t0, sink);
        if has_space && self.devices.is_due() {
            self.sample_devices(sink);
        }

        let inspection = self.inspections.next();
        let wait_limit = self.watermark.wait_limit(horizon, Instant::now());
        let mut sums = SweepSums::new(horizon, has_space);
        self.drain_segments(t0, inspection, (horizon, wait_limit), &mut sums, sink);
        if !has_space {
            sums.safe = sums.safe.min(self.watermark.time);
        }
        if let Some(not_before) = self.intake.not_before() {
            sums.safe = sums.safe.min(not_before.max(wait_limit));
            sums.effort.unfinished = true;
        }

        if inspection.is_due {
            self.inspections.last = Instant::now();
            self.directory.touch_control_page();
            self.enforce_memory_limit(sink);
        }
        self.lanes.update_snapshot(sums.effort.events, sums.behind, self.directory.control());
        self.send_watermark(sums.safe, sums.effort.events > 0, sink);
        SweepEffort { duration: started.elapsed(), ..sums.effort }
    }

    /// Drains all segments once, and drops those of ended processes that are drained to their end.
    fn drain_segments(
        &mut self,
        t0: Now,
        inspection: Inspection,
        (horizon, wait_limit): (i64, i64),
        sums: &mut SweepSums,
        sink: &mut dyn Sink,
    ) {
        let control = Arc::clone(self.directory.control());
        let overwrites = || control.overwrites();
        let mut context = self.lanes.context(t0, self.watermark.time, self.open_streams, &overwrites, sink);
        let mut index = 0;
        self.segments.retain_mut(|active| {
            let (tally, ended) = active.sweep(&mut context);
            sums.add(&tally);
            self.totals.add(&tally);
            self.watermark.note_sent(tally.newest);
            self.open_streams = self.open_streams.saturating_add(tally.streams as u32);
            if ended {
                match context.sink.is_written() {
                    true => self.intake.remove(&active.name, active.uid),
                    false => self.ended.push((active.name.clone(), active.uid)),
                }
                return false;
            }
            let safe = active.segment.safe().unwrap_or(i64::MAX);
            active.suspected |= inspection.includes(index, safe, horizon);
            index += 1;
            if active.holds_back(safe, horizon, wait_limit) {
                sums.safe = sums.safe.min(safe);
            }
            true
        });
    }

    /// Removes the segments whose end has been written to the spool.
    fn remove_ended(&mut self, sink: &dyn Sink) {
        if sink.is_written() {
            self.ended.drain(..).for_each(|(name, uid)| self.intake.remove(&name, uid));
        }
    }

    /// Called before the watermark of this sweep is sent: the sample's time is above it and below
    /// later watermarks.
    fn sample_devices(&mut self, sink: &mut dyn Sink) {
        if let Some(sample) = self.devices.sample() {
            self.watermark.note_sent(sample.time);
            sink.send(Fact::Devices(sample));
        }
    }

    /// Applies the current control page before anything is read. So the first sweep of a snapshot
    /// sees all records that were committed before the snapshot was requested.
    fn apply_control_page(&mut self) {
        let control = self.directory.control();
        self.lanes.mode = match control.is_flight_recorder() && !self.stopping {
            true => ReadMode::EndedLanes,
            false => ReadMode::AllLanes,
        };
        self.lanes.grown_slots = control.grown_slots();
        if self.lanes.snapshot.is_none() {
            let wanted = control.snapshot_wanted();
            self.lanes.snapshot = wanted.map(|number| PendingSnapshot { number, events: 0 });
        }
    }

    /// Updates the survey, and forbids producers to claim more memory while the limit of the node
    /// is reached.
    fn enforce_memory_limit(&mut self, sink: &dyn Sink) {
        let survey = self.survey(sink);
        self.open_streams = u32::try_from(survey.lanes).unwrap_or(u32::MAX);
        let taken = survey.segment_bytes;
        *self.survey.lock().unwrap_or_else(PoisonError::into_inner) = survey;
        let is_full = taken >= self.node_bytes;
        if self.directory.control().set_node_full(is_full) != is_full {
            let (limit, processes) = (self.node_bytes, self.segments.len());
            match is_full {
                true => tracing::warn!(
                    taken,
                    limit,
                    processes,
                    "segments have reached the memory limit of this node (node_bytes): no more lanes are created"
                ),
                false => tracing::info!(taken, limit, processes, "memory for lanes is available again"),
            }
        }
    }

    /// Counts the current state, for reports.
    fn survey(&self, sink: &dyn Sink) -> Survey {
        let ShippedTotals {
            events, bytes, processes, lost_full, lost_nested, lost_no_lane, filtered, ..
        } = sink.shipped();
        let mut survey = Survey {
            at: Some(Instant::now()),
            events,
            bytes,
            processes_seen: processes,
            lost_full,
            lost_nested,
            lost_no_lane,
            filtered,
            violations: self.totals.violations + self.totals.unknown,
            spool_full: !sink.has_space(),
            ..Survey::default()
        };
        for active in &self.segments {
            let taken = active.segment.memory().taken();
            active.segment.survey(taken, &self.lanes.clocks, &mut survey);
        }
        survey.segment_bytes = survey.segment_bytes.max(self.directory.memory_of_segments());
        let present = survey.processes.iter().map(|process| process.nonce).collect();
        self.directory.control().forget_ended(&present);
        survey
    }

    fn send_watermark(&mut self, safe: i64, found_events: bool, sink: &mut dyn Sink) {
        // Do not hold back the merge for a flight recorder, or for a node whose spool is full of
        // batches that cannot be merged until earlier, unspooled ones arrive.
        let is_blocked = !sink.has_space() && sink.is_blocked();
        let stands_aside = self.lanes.mode == ReadMode::EndedLanes || is_blocked;
        if let Some(fact) = self.watermark.after_sweep(safe, found_events, stands_aside, Instant::now()) {
            sink.send(fact);
        }
    }

    /// Marks the processes that have ended since the last sweep.
    fn mark_exited(&mut self) {
        let mut exited = Vec::new();
        self.intake.ended(&mut exited);
        if exited.is_empty() {
            return;
        }
        let watches = self.segments.iter_mut().map(|active| &mut active.watch);
        watches.filter(|watch| exited.contains(&watch.id())).for_each(ProcessWatch::mark_dead);
    }

    /// Opens new segments, unless the spool has no space for their records.
    fn open_new_segments(&mut self, t0: Now, sink: &mut dyn Sink) {
        if !sink.has_space() {
            return;
        }
        let last = std::mem::replace(&mut self.last_look, horizon(&self.lanes.clocks, t0));
        let control = Arc::clone(self.directory.control());
        let overwrites = || control.overwrites();
        let mut context = self.lanes.context(t0, self.watermark.time, self.open_streams, &overwrites, sink);
        let counts = self.intake.receive(last, |OpenedSegment { name, file, mut header, uid, watch }| {
            header.job = self.jobs.job(&header.job, header.ppid, &watch, uid);
            tracing::debug!(name = name.as_str(), uid, "process found");
            let others = self.segments.iter_mut().filter(|active| active.name.pid == name.pid);
            others.for_each(|other| other.suspected = true);
            let segment = Segment::attach(file, header, self.boot, uid, &mut context);
            self.segments.push(ActiveSegment::new(name, segment, uid, watch));
        });
        self.totals.violations += counts.violations;
        self.totals.other_version += counts.other_version;
    }
}

impl std::fmt::Debug for Sweeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweeper").field("segments", &self.segments.len()).finish_non_exhaustive()
    }
}
