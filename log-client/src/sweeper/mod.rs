//! Sweeping the node: finds segments, reads them, notices the end of their processes, keeps the promise of
//! [`crate::watermark`], sleeps in between. One thread, no locks.

mod discover;
mod life;
mod rhythm;

use crate::clock::{Clocks, Now, ticks};
use crate::config::Config;
use crate::error::Error;
use crate::facts::{Fact, Sink};
use crate::home::Home;
use crate::segment::{Header, Round, Scratch, Segment, SegmentFile, Unfit, horizon};
use crate::watermark::SLACK_NS;
use discover::{Discovery, Name, NotTaken};
use life::{Deaths, Watch, has_mapped};
use rhythm::{Effort, Rhythm};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A lane that holds the watermark back for so long is a reason to see whether its process has gone on
/// to another program.
const SUSPICIOUS_NS: i64 = 2_000_000_000;

/// How often that is looked into.
const SUSPECT_EVERY: Duration = Duration::from_secs(1);

/// Watermarks of sweeps that found nothing are not sent more often.
const QUIET_WATERMARKS: Duration = Duration::from_millis(1);

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
            streams: &mut $sweeper.streams,
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
    watch: Watch,
    /// The process goes on, but in another image.
    left: bool,
}

/// A file that is not a segment yet.
#[derive(Debug)]
struct Candidate {
    name: Name,
    file: SegmentFile,
    uid: u32,
    watch: Watch,
}

/// What the sweeper has to say about the whole time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) violations: u64,
    pub(crate) unknown: u64,
    pub(crate) clamped: u64,
    /// Records were left in the lanes when the time was over.
    pub(crate) left: bool,
}

/// See the module.
pub(crate) struct Sweeper {
    home: Home,
    boot: u128,
    limit: usize,
    clocks: Clocks,
    discovery: Discovery,
    deaths: Deaths,
    names: HashSet<Name>,
    arrivals: VecDeque<Name>,
    waiting: Vec<Candidate>,
    tenants: Vec<Tenant>,
    next_id: u64,
    streams: u32,
    scratch: Scratch,
    watermark: i64,
    told: Instant,
    suspected: Instant,
    rhythm: Rhythm,
    totals: Totals,
}

impl Sweeper {
    pub(crate) fn new(home: Home, clocks: Clocks, boot: u128, config: &Config) -> Result<Sweeper, Error> {
        Ok(Sweeper {
            discovery: Discovery::new(&home)?,
            deaths: Deaths::new().map_err(|error| Error::system("cannot watch processes", error))?,
            home,
            boot,
            limit: config.segments,
            clocks,
            names: HashSet::new(),
            arrivals: VecDeque::new(),
            waiting: Vec::new(),
            tenants: Vec::new(),
            next_id: 0,
            streams: 0,
            scratch: Scratch::default(),
            watermark: i64::MIN,
            told: Instant::now(),
            suspected: Instant::now(),
            rhythm: Rhythm::new(config.idle),
            totals: Totals::default(),
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

    /// Ends recording, delivers what is committed, ends all streams. Returns when done or when `give_up`.
    pub(crate) fn finish(&mut self, sink: &mut dyn Sink, give_up: &dyn Fn() -> bool) -> Totals {
        self.home.control().close();
        loop {
            let effort = self.sweep(sink);
            if effort.events == 0 && !effort.rest {
                break;
            }
            if give_up() {
                self.totals.left = effort.rest;
                break;
            }
            if !sink.has_room() {
                std::thread::sleep(NO_ROOM);
            }
        }
        // Those that live keep their segments: what they still commit is for the log-client after us.
        let mut tenants = std::mem::take(&mut self.tenants);
        let mut round = round!(self, Now::read(), sink);
        for tenant in &mut tenants {
            tenant.segment.end(&mut round);
        }
        // The slack of a sweep's promise would leave the last events to the log-server's patience with silent
        // nodes. This session sends no more, so it may promise all the time up to now.
        let now = horizon(&self.clocks, Now::read()).saturating_add(SLACK_NS + 1);
        self.promise(now, true, sink);
        self.totals
    }

    /// Reads everything there is to read once, and sends it.
    fn sweep(&mut self, sink: &mut dyn Sink) -> Effort {
        self.clocks.refine();
        let started = Instant::now();
        let t0 = Now::read();
        let mut safe = horizon(&self.clocks, t0);
        self.home.control().swept();
        self.bury_the_dead();
        self.take_up(t0, sink);

        let suspect = self.suspected.elapsed() >= SUSPECT_EVERY;
        let mut effort = Effort { events: 0, fullest: 0, rest: false, took: Duration::ZERO };
        let mut tenants = std::mem::take(&mut self.tenants);
        let mut round = round!(self, t0, sink);
        tenants.retain_mut(|tenant| {
            tenant.watch.look();
            // Decided before reading: what a dead process wrote is all there by now.
            let over = tenant.watch.is_dead() || tenant.left || tenant.segment.is_closed();
            let tally = tenant.segment.sweep(over, &mut round);
            effort.events += tally.events;
            effort.fullest = effort.fullest.max(tally.fullest);
            effort.rest |= tally.rest;
            self.totals.violations += tally.violations;
            self.totals.unknown += tally.unknown;
            self.totals.clamped += tally.clamped;
            if over && !tally.rest {
                let lost = tenant.segment.end(&mut round);
                tracing::debug!(name = tenant.name.as_str(), ?lost, "process ended");
                self.discovery.remove(&tenant.name);
                self.names.remove(&tenant.name);
                return false;
            }
            let promised = tenant.segment.safe().unwrap_or(i64::MAX);
            if suspect && promised < safe.saturating_sub(SUSPICIOUS_NS) {
                tenant.left = has_mapped(tenant.name.pid, self.home.path(), &tenant.name) == Some(false);
            }
            safe = safe.min(promised);
            true
        });
        self.tenants = tenants;
        if suspect {
            self.suspected = Instant::now();
        }
        self.promise(safe, effort.events > 0, sink);
        effort.took = started.elapsed();
        effort
    }

    fn promise(&mut self, safe: i64, busy: bool, sink: &mut dyn Sink) {
        if safe > self.watermark && (busy || self.told.elapsed() >= QUIET_WATERMARKS) {
            self.watermark = safe;
            self.told = Instant::now();
            sink.send(Fact::Watermark(safe));
        }
    }

    fn bury_the_dead(&mut self) {
        let mut ended = Vec::new();
        self.deaths.poll(&mut ended);
        if ended.is_empty() {
            return;
        }
        let tenants = self.tenants.iter_mut().map(|tenant| &mut tenant.watch);
        let waiting = self.waiting.iter_mut().map(|candidate| &mut candidate.watch);
        tenants.chain(waiting).filter(|watch| ended.contains(&watch.id())).for_each(Watch::bury);
    }

    /// New files, and files that were not segments the last time.
    fn take_up(&mut self, t0: Now, sink: &mut dyn Sink) {
        let mut found = Vec::new();
        self.discovery.poll(&mut found);
        for name in found {
            if self.names.insert(name.clone()) {
                self.arrivals.push_back(name);
            }
        }
        for candidate in std::mem::take(&mut self.waiting) {
            self.attach(candidate, t0, sink);
        }
        while self.tenants.len() + self.waiting.len() < self.limit {
            let Some(name) = self.arrivals.pop_front() else { break };
            match self.discovery.open(&name) {
                Ok((file, uid)) => {
                    let watch = self.deaths.watch(name.pid, self.next_id);
                    self.next_id += 1;
                    self.attach(Candidate { name, file: SegmentFile::new(file), uid, watch }, t0, sink);
                }
                Err(NotTaken::Later) => {
                    tracing::warn!("too many open files: some processes wait to be read");
                    self.arrivals.push_front(name);
                    break;
                }
                Err(NotTaken::Gone) => {
                    self.names.remove(&name);
                }
                Err(NotTaken::Odd(reason)) => {
                    tracing::warn!(name = name.as_str(), reason, "a file that no producer makes is ignored");
                }
            }
        }
    }

    fn attach(&mut self, candidate: Candidate, t0: Now, sink: &mut dyn Sink) {
        let Candidate { name, file, uid, mut watch } = candidate;
        // Before the header is read: a process that is dead now has written all it ever will.
        watch.look();
        let dead = watch.is_dead();
        match Header::read(&file) {
            Ok(header) if header.pid != name.pid || header.nonce != name.nonce => {
                tracing::warn!(name = name.as_str(), "a segment of another name is ignored");
            }
            Ok(header) => {
                watch.check_age(header.created_boot_ns);
                tracing::debug!(name = name.as_str(), uid, "process found");
                let other_images = self.tenants.iter_mut().filter(|tenant| tenant.name.pid == name.pid);
                for other in other_images {
                    other.left |= has_mapped(name.pid, self.home.path(), &other.name) == Some(false);
                }
                let segment = Segment::attach(file, header, self.boot, uid, &mut round!(self, t0, sink));
                self.tenants.push(Tenant { name, segment, watch, left: false });
            }
            Err(Unfit::NotYet) if !dead => self.waiting.push(Candidate { name, file, uid, watch }),
            Err(Unfit::NotYet) => {
                // It died before it had recorded anything.
                self.discovery.remove(&name);
                self.names.remove(&name);
            }
            Err(Unfit::Version { major, minor }) => {
                tracing::error!(
                    name = name.as_str(),
                    version = format!("{major}.{minor}"),
                    "a producer of another version: install the same MIOT everywhere on the node"
                );
            }
            Err(Unfit::Senseless) => tracing::warn!(name = name.as_str(), "a senseless segment is ignored"),
        }
    }
}

impl std::fmt::Debug for Sweeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweeper").field("segments", &self.tenants.len()).finish_non_exhaustive()
    }
}
