//! A node: a thread that records into a lane, and a log-client.

use crate::plan::{Bug, Plan};
use crate::spool::{Identity, Item, Row, Spool};
use crate::{EPOCH, MILLISECOND, SECOND, Time};
use fastrand::Rng;
use miot_log_client::testing::cluster::{LaneWatermark, ServerChoice};
use miot_proto::wire::ProcessKey;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Capacity of a lane.
const LANE: usize = 8;

/// An event in the lane.
#[derive(Clone, Copy, Debug)]
struct Record {
    attempt: u64,
    time: i64,
    truth: Time,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) number: usize,
    pub(crate) name: String,
    clock: Clock,
    pub(crate) random: Rng,
    event_every: Duration,
    next_event: Time,
    lane: VecDeque<Record>,
    next_attempt: u64,
    /// All attempts below were taken from the lane, or lost before those.
    taken: u64,
    /// The record of a thread that was stopped before it could commit it.
    uncommitted: Option<Record>,
    /// Attempts that were lost because the lane was full.
    pub(crate) lost: Vec<(u64, u64)>,
    watermark: LaneWatermark,
    /// The log-client is stopped.
    pub(crate) is_stopped: bool,
    /// Its log-client has ended all streams.
    pub(crate) has_ended: bool,
    /// The last one gets new records.
    pub(crate) spools: Vec<Spool>,
    spools_so_far: u32,
    pub(crate) choice: ServerChoice,
    /// Log-servers in order of preference.
    pub(crate) order: Vec<usize>,
    /// The order after the next restart of the log-client.
    pub(crate) next_order: Vec<usize>,
    /// Its events may be late: it was out of touch, or changed its log-server.
    pub(crate) may_be_late: bool,
    /// Number of events below a watermark.
    pub(crate) below_watermark: u64,
    /// Number of the outage for whose end it counts.
    pub(crate) outage: Option<usize>,
    bug: Option<Bug>,
}

/// The clock of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset: i64,
    /// Parts per billion.
    drift: i64,
}

impl Clock {
    /// Most clocks are wrong by milliseconds, one in 50 by seconds and one in 200 by up to an hour.
    fn random(random: &mut Rng) -> Clock {
        let range = match random.u32(..200) {
            0 => 3600 * SECOND as i64,
            1..=4 => 10 * SECOND as i64,
            _ => 5 * MILLISECOND as i64,
        };
        Clock { offset: random.i64(-range..range), drift: random.i64(-20_000..20_000) }
    }

    /// The node's time, nanoseconds since 1970.
    pub(crate) fn at(self, now: Time) -> i64 {
        let drifted = i128::from(now) * i128::from(self.drift) / 1_000_000_000;
        EPOCH + now as i64 + self.offset + drifted as i64
    }
}

impl Node {
    pub(crate) fn new(number: usize, plan: &Plan, order: Vec<usize>, start: Instant) -> Node {
        let mut random = Rng::with_seed(plan.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ number as u64);
        let clock = Clock::random(&mut random);
        let mut node = Node {
            number,
            name: format!("node{number:06}"),
            clock,
            event_every: plan.event_every,
            // Log-clients are there before programs.
            next_event: 4 * SECOND + random.u64(..2 * SECOND),
            lane: VecDeque::new(),
            next_attempt: 0,
            taken: 0,
            uncommitted: None,
            lost: Vec::new(),
            watermark: LaneWatermark::new(clock.at(0), start),
            is_stopped: false,
            has_ended: false,
            spools: Vec::new(),
            spools_so_far: 0,
            choice: ServerChoice::new(plan.fail_over_after, start),
            next_order: order.clone(),
            order,
            may_be_late: false,
            below_watermark: 0,
            outage: None,
            bug: plan.bug,
            random,
        };
        node.add_spool(node.order.first().copied().unwrap_or_default());
        let (first, last) = (Item::Process, Item::Stream);
        node.push(first);
        node.push(last);
        node
    }

    pub(crate) fn time(&self, now: Time) -> i64 {
        self.clock.at(now)
    }

    /// Number of attempts so far.
    pub(crate) fn attempts(&self) -> u64 {
        self.next_attempt
    }

    pub(crate) fn current(&self) -> usize {
        self.spools.last().map_or(usize::MAX, |spool| spool.server)
    }

    pub(crate) fn spool(&mut self, number: u32) -> Option<&mut Spool> {
        self.spools.iter_mut().find(|spool| spool.number == number)
    }

    fn add_spool(&mut self, server: usize) {
        self.spools_so_far += 1;
        let key = ProcessKey { boot: 1, nonce: self.number as u64 + 1, pid: 100 };
        let identity = Identity { node: self.number, key, stream: self.spools_so_far };
        let session = self.random.u64(1..);
        self.spools.push(Spool::new(self.spools_so_far, server, session, identity));
    }

    fn push(&mut self, item: Item) {
        if let Some(spool) = self.spools.last_mut() {
            spool.push(item);
        }
    }

    /// Records all events up to `now`.
    pub(crate) fn record(&mut self, now: Time) {
        while self.next_event <= now {
            let at = self.next_event;
            let gap = -(1.0 - self.random.f64()).ln() * self.event_every.as_nanos() as f64;
            self.next_event += 1 + gap as Time;
            if self.uncommitted.is_none() {
                let record = Record { attempt: self.next_attempt, time: self.clock.at(at), truth: at };
                self.next_attempt += 1;
                self.commit(record);
            }
        }
    }

    fn commit(&mut self, record: Record) {
        if self.lane.len() < LANE {
            self.lane.push_back(record);
            return;
        }
        let attempt = record.attempt;
        match self.lost.last_mut() {
            Some((_, last)) if *last + 1 == attempt => *last = attempt,
            _ => self.lost.push((attempt, attempt)),
        }
    }

    /// Stops the thread after it has read the clock for its next record.
    pub(crate) fn stop_thread(&mut self, now: Time) {
        if self.has_ended {
            return;
        }
        self.record(now);
        if self.uncommitted.is_none() {
            let record = Record { attempt: self.next_attempt, time: self.clock.at(now), truth: now };
            self.next_attempt += 1;
            self.uncommitted = Some(record);
        }
    }

    pub(crate) fn continue_thread(&mut self, now: Time) {
        self.record(now);
        if let Some(record) = self.uncommitted.take() {
            self.commit(record);
        }
    }

    /// Reads the lane, and writes batch and watermark to the spool.
    pub(crate) fn sweep(&mut self, now: Time, instant: Instant) {
        let honest = self.bug != Some(Bug::IgnoresStoppedThreads);
        let t0 = self.clock.at(now);
        self.watermark.begin();
        let (after, promised) = (self.taken, self.watermark.time());
        let mut rows = Vec::with_capacity(self.lane.len());
        while let Some(Record { attempt, time: own, truth }) = self.lane.pop_front() {
            let time = if honest { self.watermark.admit(own) } else { own };
            self.below_watermark += u64::from(time < promised);
            rows.push(Row { attempt, time, truth, moved: time != own });
            self.taken = attempt + 1;
        }
        let is_marked = self.uncommitted.is_some() && honest;
        let found_events = !rows.is_empty();
        let loses = self.bug == Some(Bug::LosesBatches) && self.random.u32(..200) == 0;
        if found_events && !loses {
            self.push(Item::Batch { after, rows: rows.into() });
        }
        let watermark = self.watermark.end(t0, is_marked, found_events, instant);
        if let (Some(watermark), Some(spool)) = (watermark, self.spools.last_mut()) {
            spool.set_watermark(watermark);
        }
    }

    /// Ends process and stream at the current log-server. Returns the attempt number at which they
    /// continue.
    fn end(&mut self, now: Time) -> (u64, i64) {
        let time = self.clock.at(now).max(self.watermark.time());
        // Losses after the last record are known only if the lane is empty.
        let all = self.next_attempt - u64::from(self.uncommitted.is_some());
        let attempts = if self.lane.is_empty() { all } else { self.taken };
        self.push(Item::StreamEnd { attempts, after: self.taken, time });
        self.push(Item::ProcessEnd { time });
        self.taken = attempts;
        if let Some(spool) = self.spools.last_mut() {
            spool.ended = true;
            spool.set_watermark(self.watermark.time());
        }
        (attempts, time)
    }

    /// Moves process and stream to another log-server, between two sweeps.
    pub(crate) fn switch(&mut self, server: usize, now: Time) {
        let (mut from, time) = self.end(now);
        let mut repeated = Vec::new();
        if self.bug == Some(Bug::OffersTwice)
            && let Some(spool) = self.spools.last()
        {
            repeated.extend(spool.batches().map(|(after, rows)| (after, Box::from(rows))));
            from = repeated.first().map_or(from, |(after, _)| *after);
        }
        self.add_spool(server);
        self.push(Item::Process);
        self.push(Item::ResumeProcess { time });
        self.push(Item::Stream);
        self.push(Item::ResumeStream { from, time });
        repeated.into_iter().for_each(|(after, rows)| self.push(Item::Batch { after, rows }));
        self.may_be_late = true;
    }

    /// Ends the log-client. Everything is in the spool.
    pub(crate) fn finish(&mut self, now: Time, instant: Instant) {
        self.continue_thread(now);
        self.sweep(now, instant);
        self.end(now);
        self.has_ended = true;
    }
}
