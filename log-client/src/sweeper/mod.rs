//! Sweeping the node: finds segments, reads them, notices the end of their processes, keeps the promise of
//! [`crate::watermark`], sleeps in between. One thread, no locks.

mod arrivals;
mod ask;
mod block_sizes;
mod discover;
mod life;
mod origin;
mod reception;
mod rhythm;
#[cfg(test)]
mod tests;

pub(crate) use discover::Name;
pub(crate) use life::start;

use crate::clock::{Clocks, Now, ticks};
use crate::config::Config;
use crate::devices::Devices;
use crate::error::Error;
use crate::facts::{Fact, Sink};
use crate::home::Home;
use crate::report::Survey;
use crate::segment::{Reads, Round, Scratch, Segment, SegmentFile, Tally, horizon};
use crate::ship::Shipped;
use crate::watermark::HELD_AT_MOST;
use life::Watch;
use origin::Origins;
use reception::{Guest, Reception};
use rhythm::{Effort, Rhythm};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A lane that holds the watermark back for so long is a reason to see whether its process has gone on
/// to another program.
const SUSPICIOUS_NS: i64 = 2_000_000_000;

/// How often that is looked into, and how much memory the segments take, and programs are told that somebody is there.
const SUSPECT_EVERY: Duration = Duration::from_secs(1);

/// Processes without a reason are looked at in turn, one in so many each time.
const SUSPECT_ONE_IN: usize = 10;

/// Watermarks of sweeps that found nothing are not sent more often.
const QUIET_WATERMARKS: Duration = Duration::from_millis(1);

/// A promise that cannot go on is said again so often: the node is not silent, it waits for something.
const ALIVE: Duration = Duration::from_secs(1);

/// A process that has held the promise back so often for as long as it may does so no more.
const MOST_GIVEN_UP: u32 = 3;

/// Streams that are open at a time on a node: half of what a log-server takes of it (`node_streams`). Further lanes wait until others
/// have ended, so that whoever claims more of them than a node can have keeps nobody else out of the trace.
const MOST_STREAMS: u32 = 1 << 17;

/// Pause while there is no memory to drain into.
const NO_ROOM: Duration = Duration::from_millis(2);

/// A [`Round`] over the fields of a sweeper.
macro_rules! round {
    ($sweeper:expr, $t0:expr, $sink:expr) => {
        Round {
            t0: $t0,
            latest: &ticks,
            clocks: &$sweeper.clocks,
            watermark: $sweeper.watermark,
            streams_until: $sweeper.streams.wrapping_add(MOST_STREAMS.saturating_sub($sweeper.open_streams)),
            streams: &mut $sweeper.streams,
            overwrites: &|| $sweeper.home.control().overwrites(),
            reads: $sweeper.reads,
            snapshot: $sweeper.snapshot.map(|snapshot| snapshot.number),
            scratch: &mut $sweeper.scratch,
            sink: $sink,
        }
    };
}
/// A segment that is being read.
#[derive(Debug)]
struct Tenant {
    name: Name,
    segment: Segment<SegmentFile>,
    uid: u32,
    watch: Watch,
    /// The process goes on, but in another image.
    left: bool,
    /// Perhaps: there is a newer segment of the same process.
    suspected: bool,
    /// The promise does not wait for it any more.
    given_up: bool,
    /// How often that came to be.
    times_given_up: u32,
}

/// A snapshot being taken.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    number: u64,
    /// Records read since it was begun.
    events: u64,
}

/// What the sweeper has to say about the whole time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) violations: u64,
    pub(crate) unknown: u64,
    /// Processes with segments of another version.
    pub(crate) other_version: u64,
    pub(crate) clamped: u64,
    /// Events made of requests that were cut off.
    pub(crate) interrupted: u64,
    /// Records were left in the lanes when the time was over.
    pub(crate) left: bool,
}

/// See the module.
pub(crate) struct Sweeper {
    home: Home,
    boot: u128,
    /// Bytes that all segments together may take.
    node_bytes: u64,
    clocks: Clocks,
    reception: Reception,
    origins: Origins,
    devices: Devices,
    tenants: Vec<Tenant>,
    /// Segments of processes whose end is not written yet.
    leaving: Vec<(Name, u32)>,
    streams: u32,
    /// Those that have not ended, as counted once a second, and those begun since.
    open_streams: u32,
    scratch: Scratch,
    watermark: i64,
    /// The latest time that was sent.
    newest: i64,
    told: Instant,
    /// When names were last looked for, nanoseconds since 1970.
    last_look: i64,
    /// The last time that records were left in the lanes on purpose.
    withheld: Instant,
    suspected: Instant,
    turn: usize,
    rhythm: Rhythm,
    reads: Reads,
    snapshot: Option<Snapshot>,
    /// A clean stop: everything is read, whatever the settings say.
    stopping: bool,
    totals: Totals,
    survey: Arc<Mutex<Survey>>,
}

/// Where the log-client before this one stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predecessor {
    /// A number above those of all its streams.
    pub(crate) next_stream: u32,
    /// Its last promise.
    pub(crate) promised: Option<i64>,
}

impl Sweeper {
    pub(crate) fn new(
        home: Home,
        clocks: Clocks,
        boot: u128,
        config: &Config,
        before: Predecessor,
        survey: Arc<Mutex<Survey>>,
    ) -> Result<Sweeper, Error> {
        Ok(Sweeper {
            reception: Reception::new(&home, config.segments)?,
            origins: Origins::default(),
            devices: Devices::new(config.devices_every, boot),
            home,
            boot,
            node_bytes: config.node_bytes,
            clocks,
            tenants: Vec::new(),
            leaving: Vec::new(),
            streams: before.next_stream,
            open_streams: 0,
            scratch: Scratch::default(),
            watermark: before.promised.unwrap_or(i64::MIN),
            newest: i64::MIN,
            told: Instant::now(),
            last_look: i64::MIN,
            withheld: Instant::now(),
            suspected: Instant::now(),
            turn: 0,
            rhythm: Rhythm::new(config.idle),
            reads: Reads::Everything,
            snapshot: None,
            stopping: false,
            totals: Totals::default(),
            survey,
        })
    }

    /// Sweeps until `stop` says so.
    pub(crate) fn run(&mut self, sink: &mut dyn Sink, stop: &dyn Fn() -> bool) {
        while !stop() {
            let effort = self.sweep(sink);
            match self.rhythm.after(effort) {
                _ if !sink.has_room() => std::thread::sleep(NO_ROOM),
                None => {}
                Some(time) => self.home.control().sleep(time),
            }
        }
    }

    /// Up to now.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Ends recording, delivers what is committed, ends all streams. Returns when done or when `give_up`.
    pub(crate) fn finish(&mut self, sink: &mut dyn Sink, give_up: &dyn Fn() -> bool) -> Totals {
        self.home.control().close();
        self.stopping = true;
        let mut sampled = false;
        loop {
            let effort = self.sweep(sink);
            let is_empty = effort.events == 0 && !effort.rest;
            // The last events must not be left to the log-server's patience with silent nodes, and nothing may be promised
            // that a lane does not keep: so it sweeps until what a sweep promises lies beyond them.
            if is_empty && self.watermark > self.newest {
                if std::mem::replace(&mut sampled, true) || !sink.has_room() {
                    break;
                }
                self.sample_devices(sink);
                continue;
            }
            if give_up() {
                self.totals.left = effort.rest;
                break;
            }
            if !sink.has_room() {
                std::thread::sleep(NO_ROOM);
            } else if is_empty {
                std::thread::sleep(QUIET_WATERMARKS);
            }
        }
        // Those that live keep their segments: what they still commit is for the log-client after us.
        let mut tenants = std::mem::take(&mut self.tenants);
        let mut round = round!(self, Now::read(), sink);
        for tenant in &mut tenants {
            tenant.segment.end(false, &mut round, &mut Tally::default());
        }
        // After the ends, and no more than before: what is left in the lanes is for the log-client after this one.
        if self.watermark > i64::MIN {
            sink.send(Fact::Watermark(self.watermark));
        }
        self.totals
    }

    /// Reads everything there is to read once, and sends it.
    fn sweep(&mut self, sink: &mut dyn Sink) -> Effort {
        sink.prepare();
        if sink.is_written() {
            self.leaving.drain(..).for_each(|(name, uid)| self.reception.leave(&name, uid));
        }
        self.clocks.refine();
        let started = Instant::now();
        let t0 = Now::read();
        let mut safe = horizon(&self.clocks, t0);
        self.home.control().swept();
        self.choose_what_to_read();
        let has_room = sink.has_room();
        if !has_room || self.reads == Reads::Endings || self.reception.is_catching_up() {
            self.withheld = Instant::now();
        }
        self.bury_the_dead();
        self.take_up(t0, sink);
        if has_room && self.devices.is_due() {
            self.sample_devices(sink);
        }

        let suspect = self.suspected.elapsed() >= SUSPECT_EVERY;
        self.turn = (self.turn + usize::from(suspect)) % SUSPECT_ONE_IN;
        let (turn, mut number) = (self.turn, 0);
        let (present, waits_until) = (safe, self.waits_until(safe));
        // Without room nothing was taken up, and so nothing is promised.
        let mut effort = Effort { events: 0, fullest: 0, rest: !has_room, took: Duration::ZERO };
        let mut behind = false;
        let mut tenants = std::mem::take(&mut self.tenants);
        let mut round = round!(self, t0, sink);
        tenants.retain_mut(|tenant| {
            tenant.watch.look(tenant.segment.memory());
            // Decided before reading: what a dead process wrote is all there by now.
            let over = tenant.watch.is_dead() || tenant.has_left() || tenant.segment.is_closed();
            let mut tally = tenant.segment.sweep(over, &mut round);
            // Its end must be in the spool before its segment is gone.
            tally.rest |= over && !round.sink.has_room();
            let ended = over && !tally.rest;
            if ended {
                let lost = tenant.segment.end(true, &mut round, &mut tally);
                tracing::debug!(name = tenant.name.as_str(), ?lost, "process ended");
            }
            behind |= tally.behind;
            self.open_streams = self.open_streams.saturating_add(tally.streams as u32);
            effort.events += tally.events;
            effort.fullest = effort.fullest.max(tally.fullest);
            effort.rest |= tally.rest;
            self.newest = self.newest.max(tally.newest);
            self.totals.violations += tally.violations;
            self.totals.unknown += tally.unknown;
            self.totals.clamped += tally.clamped;
            self.totals.interrupted += tally.interrupted;
            if ended {
                match round.sink.is_written() {
                    true => self.reception.leave(&tenant.name, tenant.uid),
                    false => self.leaving.push((tenant.name.clone(), tenant.uid)),
                }
                return false;
            }
            let promised = tenant.segment.safe().unwrap_or(i64::MAX);
            tenant.suspected |= suspect
                && (promised < present.saturating_sub(SUSPICIOUS_NS) || number % SUSPECT_ONE_IN == turn);
            number += 1;
            if tenant.is_waited_for(promised, present, waits_until) {
                safe = safe.min(promised);
            }
            true
        });
        if !has_room {
            safe = safe.min(self.watermark);
        }
        if let Some(not_before) = self.reception.not_before() {
            safe = safe.min(not_before.max(waits_until));
            effort.rest = true;
        }
        self.tenants = tenants;
        if suspect {
            self.suspected = Instant::now();
            self.home.show_life();
            self.keep_budget(sink);
        }
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.events += effort.events;
            if !behind {
                self.home.control().snapshot_taken(snapshot.number, snapshot.events);
                tracing::info!(snapshot.events, "snapshot taken");
                self.snapshot = None;
            }
        }
        self.promise(safe, effort.events > 0, sink);
        effort.took = started.elapsed();
        effort
    }

    /// After the time that this sweep promises, and before any later promise.
    fn sample_devices(&mut self, sink: &mut dyn Sink) {
        if let Some(sample) = self.devices.sample() {
            self.newest = self.newest.max(sample.time);
            sink.send(Fact::Devices(sample));
        }
    }

    /// As the control page says now, and before anything is read: what was committed before a snapshot was asked
    /// for is then seen by the sweep that begins it.
    fn choose_what_to_read(&mut self) {
        let control = self.home.control();
        self.reads = match control.is_flight_recorder() && !self.stopping {
            true => Reads::Endings,
            false => Reads::Everything,
        };
        if self.snapshot.is_none() {
            self.snapshot = control.snapshot_wanted().map(|number| Snapshot { number, events: 0 });
        }
    }

    /// The time up to which the promise waits for lanes that have not got there.
    fn waits_until(&self, now: i64) -> i64 {
        match self.withheld.elapsed() < HELD_AT_MOST {
            true => i64::MIN,
            false => now.saturating_sub(HELD_AT_MOST.as_nanos() as i64),
        }
    }

    /// Tells producers to claim no more memory while the node's budget is used up.
    fn keep_budget(&mut self, sink: &dyn Sink) {
        let survey = self.survey(sink);
        self.open_streams = u32::try_from(survey.lanes).unwrap_or(u32::MAX);
        let taken = survey.segment_bytes;
        *self.survey.lock().unwrap_or_else(PoisonError::into_inner) = survey;
        let is_full = taken >= self.node_bytes;
        if self.home.control().node_is_full(is_full) != is_full {
            let (limit, processes) = (self.node_bytes, self.tenants.len());
            match is_full {
                true => tracing::warn!(
                    taken,
                    limit,
                    processes,
                    "the segments of this node take all the memory they may: no lanes are made (node_bytes)"
                ),
                false => tracing::info!(taken, limit, processes, "there is memory for lanes again"),
            }
        }
    }

    /// Counts what there is, for those who ask.
    fn survey(&self, sink: &dyn Sink) -> Survey {
        let Shipped { events, bytes, processes, lost_full, lost_nested, lost_no_lane, filtered, .. } =
            sink.shipped();
        let mut survey = Survey {
            at: Some(Instant::now()),
            events,
            bytes,
            processes_seen: processes,
            lost_full,
            lost_nested,
            lost_no_lane,
            filtered,
            violations: self.totals.violations,
            spool_full: !sink.has_room(),
            ..Survey::default()
        };
        for tenant in &self.tenants {
            let taken = tenant.segment.memory().taken();
            tenant.segment.survey(taken, &self.clocks, &mut survey);
        }
        survey.segment_bytes = survey.segment_bytes.max(self.home.memory_of_segments());
        let there = survey.segments.iter().map(|known| known.nonce).collect();
        self.home.control().forget_ended(&there);
        survey
    }

    fn promise(&mut self, safe: i64, busy: bool, sink: &mut dyn Sink) {
        let since = self.told.elapsed();
        let goes_on = safe > self.watermark && (busy || since >= QUIET_WATERMARKS);
        if !goes_on && since < ALIVE {
            return;
        }
        // Nobody is to wait for what a flight recorder may tell one day; nor for a node whose spool is full of what the
        // log-server merges only after what there is no room for.
        let stuck = !sink.has_room() && sink.is_stuck();
        let fact = match !goes_on && (self.reads == Reads::Endings || stuck) {
            true => Fact::Aside,
            false if self.watermark.max(safe) == i64::MIN => return,
            false => Fact::Watermark(self.watermark.max(safe)),
        };
        if let Fact::Watermark(watermark) = fact {
            self.watermark = watermark;
        }
        self.told = Instant::now();
        sink.send(fact);
    }

    fn bury_the_dead(&mut self) {
        let mut ended = Vec::new();
        self.reception.ended(&mut ended);
        if ended.is_empty() {
            return;
        }
        let watches = self.tenants.iter_mut().map(|tenant| &mut tenant.watch);
        watches.filter(|watch| ended.contains(&watch.id())).for_each(Watch::bury);
    }

    /// New segments; none while there is no room for what they hold.
    fn take_up(&mut self, t0: Now, sink: &mut dyn Sink) {
        if !sink.has_room() {
            return;
        }
        let last = std::mem::replace(&mut self.last_look, horizon(&self.clocks, t0));
        let (tenants, origins, home_boot) = (&mut self.tenants, &mut self.origins, self.boot);
        let mut round = round!(self, t0, sink);
        let received = self.reception.receive(last, |Guest { name, file, mut header, uid, watch }| {
            header.job = origins.job(&header.job, header.ppid, &watch, uid);
            tracing::debug!(name = name.as_str(), uid, "process found");
            let others = tenants.iter_mut().filter(|tenant| tenant.name.pid == name.pid);
            others.for_each(|other| other.suspected = true);
            let segment = Segment::attach(file, header, home_boot, uid, &mut round);
            tenants.push(Tenant {
                name,
                segment,
                uid,
                watch,
                left: false,
                suspected: false,
                given_up: false,
                times_given_up: 0,
            });
        });
        self.totals.violations += received.violations;
        self.totals.other_version += received.other_version;
    }
}

impl Tenant {
    /// True once nobody holds the segment any more.
    fn has_left(&mut self) -> bool {
        if std::mem::take(&mut self.suspected) {
            self.left |= self.segment.memory().is_held() == Some(false);
        }
        self.left
    }

    /// True if the node promises no more than this process does. `present`: what it promises when all is drained.
    fn is_waited_for(&mut self, promised: i64, present: i64, waits_until: i64) -> bool {
        if promised >= present {
            self.given_up = self.times_given_up >= MOST_GIVEN_UP;
        } else if promised < waits_until && !self.given_up {
            self.given_up = true;
            self.times_given_up += 1;
            tracing::warn!(
                name = self.name.as_str(),
                "a thread of this process has been stopped for long in the middle of a record, or claims old times: \
                 the order of events does not wait for it any more"
            );
        }
        !self.given_up
    }
}

impl std::fmt::Debug for Sweeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweeper").field("segments", &self.tenants.len()).finish_non_exhaustive()
    }
}
