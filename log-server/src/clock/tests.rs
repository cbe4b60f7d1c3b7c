//! Simulated nodes and networks with known true times.

use super::*;
use miot_proto::event::flag;

const SECOND: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
const US: i64 = 1_000;
const START: i64 = 1_700_000_000 * SECOND;
const NEVER: i64 = i64::MAX;
/// As in a session.
const REPEATS: usize = 3;

fn given_seed() -> Option<u64> {
    std::env::var("MIOT_SEED").ok().and_then(|seed| seed.parse().ok())
}

/// Random numbers from a seed that can be set.
struct Random(fastrand::Rng);

impl Random {
    fn new(which: u64) -> Random {
        let seed = given_seed().unwrap_or(20_261_122);
        println!("MIOT_SEED={seed}");
        Random(fastrand::Rng::with_seed(seed ^ which.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    fn below(&mut self, bound: i64) -> i64 {
        self.0.i64(0..bound.max(1))
    }

    /// Exponentially distributed.
    fn wait(&mut self, mean: i64) -> i64 {
        let share = 1.0 - self.0.f64();
        (-share.ln() * mean as f64) as i64
    }
}

/// A clock with a rate error.
struct Clock {
    since: i64,
    shows: i64,
    ppb: i64,
}

impl Clock {
    fn at(&self, time: i64) -> i64 {
        let span = time - self.since;
        self.shows + span + (i128::from(span) * i128::from(self.ppb) / 1_000_000_000) as i64
    }

    fn change(&mut self, time: i64, ppb: i64, step: i64) {
        *self = Clock { since: time, shows: self.at(time) + step, ppb };
    }
}

/// Delays of one direction of a network.
#[derive(Clone, Copy)]
struct Delay {
    /// Minimum delay.
    minimum: i64,
    /// Mean queueing delay.
    queue: i64,
    /// Maximum additional delay, in occasional bursts.
    burst: i64,
}

struct Network {
    outbound: Delay,
    inbound: Delay,
    /// Percentage.
    lost: i64,
    busy_until: i64,
}

impl Network {
    fn new(outbound: Delay, inbound: Delay) -> Network {
        Network { outbound, inbound, lost: 0, busy_until: 0 }
    }

    fn delay(&mut self, direction: Delay, now: i64, random: &mut Random) -> i64 {
        if direction.burst > 0 && now > self.busy_until + 5 * SECOND && random.below(50) == 0 {
            self.busy_until = now + random.below(8 * SECOND);
        }
        let burst = if now < self.busy_until { random.below(direction.burst.max(1)) } else { 0 };
        direction.minimum + random.wait(direction.queue) + burst
    }
}

/// Observations of one node.
#[derive(Default)]
struct Observations {
    /// Node's time, merged time, flags.
    events: Vec<(i64, i64, u16)>,
    rows: Vec<Correction>,
    /// The uncertainty of each event.
    stated: Vec<i64>,
    /// Time, error and estimated error of each event.
    estimates: Vec<(i64, i64, i64)>,
    worst: i64,
    exchanges: usize,
}

struct Simulation {
    now: i64,
    clock: Clock,
    network: Network,
    node: NodeClock,
    random: Random,
    observed: Observations,
    /// Mean time between two events.
    every: i64,
    /// The uncertainty is not checked before this time.
    doubtful_until: i64,
    /// Node's time and true time of events that stay at the node; `None` if all are sent.
    spool: Option<Vec<(i64, i64)>>,
    /// Greatest time from a question to its answer, if answers wait for the next message.
    waits: i64,
}

impl Simulation {
    fn new(which: u64, offset: i64, ppb: i64, network: Network) -> Simulation {
        Simulation {
            now: START,
            clock: Clock { since: START, shows: START + offset, ppb },
            network,
            node: NodeClock::new([], None),
            random: Random::new(which),
            observed: Observations::default(),
            every: 3 * MS,
            doubtful_until: 0,
            spool: None,
            waits: 0,
        }
    }

    /// Advances the time, with events.
    fn pass(&mut self, until: i64) {
        while self.now < until {
            self.now = until.min(self.now + 1 + self.random.below(2 * self.every));
            self.event(self.clock.at(self.now), self.now);
        }
    }

    fn event(&mut self, node: i64, truth: i64) {
        if let Some(spool) = &mut self.spool {
            return spool.push((node, truth));
        }
        if self.node.current().is_none() {
            return;
        }
        let mut rows =
            Columns { time: vec![node], flags: vec![flag::LATE | flag::TIE], ..Columns::default() };
        assert_eq!(self.node.convert(&mut rows, NEVER), 0);
        self.observed.rows.extend(self.node.take_restated());
        let merged = rows.time[0];
        if let Some((before, last, _)) = self.observed.events.last()
            && *before <= node
            && self.now >= self.doubtful_until
        {
            assert!(*last <= merged, "time goes back");
        }
        self.observed.events.push((node, merged, rows.flags[0]));
        if self.now >= self.doubtful_until {
            let (error, current) = ((merged - truth).abs(), self.node.current().unwrap());
            assert!(error <= current.uncertainty, "{error} ns off at {}: {current:?}", self.now - START);
            assert!(current.estimated_error <= current.uncertainty, "{current:?}");
            self.observed.stated.push(current.uncertainty);
            self.observed.estimates.push((self.now, error, current.estimated_error));
            self.observed.worst = self.observed.worst.max(error);
        }
    }

    fn exchange(&mut self) -> Option<i64> {
        let sent = self.now;
        let outbound = self.network.delay(self.network.outbound, self.now, &mut self.random);
        self.pass(sent + outbound);
        let received = self.clock.at(self.now);
        // A busy node answers later.
        let waits = if self.waits > 0 { self.random.below(self.waits) } else { 0 };
        let held = self.random.wait(100 * US) + waits;
        self.pass(sent + outbound + held);
        let answered = self.clock.at(self.now);
        let inbound = self.network.delay(self.network.inbound, self.now, &mut self.random);
        self.pass(sent + outbound + held + inbound);
        if self.random.below(100) < self.network.lost {
            // The question is repeated later.
            let until = self.now + 2 * SECOND;
            while self.now < until && self.node.current().is_some() {
                self.pass(self.now + self.node.pause().as_nanos() as i64);
                let rows = self.node.decide(self.node.estimated(self.now));
                self.observed.rows.extend(rows);
            }
            self.pass(until);
            return None;
        }
        self.node.add(Exchange::new(sent, (received, answered), self.now));
        self.observed.exchanges += 1;
        Some(answered)
    }

    /// The first exchanges of a connection.
    fn connect(&mut self) {
        for _ in 0..8 {
            self.exchange();
        }
        let rows = self.node.decide(self.node.estimated(self.now));
        self.observed.rows.extend(rows);
    }

    fn run(&mut self, time: i64) {
        let until = self.now + time;
        while self.now < until {
            let pause = self.node.pause().as_nanos() as i64;
            self.pass(self.now + pause);
            for _ in 0..=REPEATS {
                let at = self.exchange().unwrap_or_else(|| self.node.estimated(self.now));
                let rows = self.node.decide(at);
                self.observed.rows.extend(rows);
                if !self.node.is_worth_asking_again() {
                    break;
                }
            }
        }
    }

    /// The server or the connection restarts.
    fn reconnect(&mut self) {
        let last = self.observed.events.last();
        let reached = last.map(|(_, merged, _)| Reached { time: *merged, is_exact: true });
        self.node = NodeClock::new(
            &self.observed.rows[self.observed.rows.len().saturating_sub(MAX_PIECES)..],
            reached,
        );
    }

    /// Converts the events that stayed at the node. Each error is within the stated one, as readers
    /// of the trace find it. Returns the number of events and the greatest error.
    fn convert_spooled(&mut self) -> (usize, i64) {
        let spool = self.spool.take().unwrap_or_default();
        let merged: Vec<(i64, i64)> =
            spool.iter().map(|(node, truth)| (self.node.time(*node, NEVER), *truth)).collect();
        self.observed.rows.extend(self.node.take_restated());
        let mut stated: Vec<Correction> = Vec::new();
        for row in &self.observed.rows {
            stated.truncate(stated.partition_point(|before| before.piece.time <= row.piece.time));
            stated.push(*row);
        }
        let mut worst = 0;
        for (merged, truth) in &merged {
            let at = stated.partition_point(|row| row.piece.time <= *merged);
            let (row, error) = (stated[at.saturating_sub(1)], (merged - truth).abs());
            assert!(error <= row.uncertainty, "{error} ns off: {row:?}");
            worst = error.max(worst);
        }
        (merged.len(), worst)
    }

    /// All node's times can be restored, as readers of the trace do.
    fn check_inverse(&self) {
        let mut pieces: Vec<ClockPiece> = self.observed.rows.iter().map(|row| row.piece).collect();
        pieces.sort_by_key(|piece| piece.time);
        for (node, merged, flags) in &self.observed.events {
            let at = pieces.partition_point(|piece| piece.time <= *merged).saturating_sub(1);
            assert_eq!(pieces[at].node(*merged, flags & flag::TIE != 0), *node);
        }
    }

    /// The estimated errors, from ten seconds after the start: the shares of events whose error is
    /// at most one and at most three estimates, and the median estimate in fastest round trips.
    fn estimates(&self, fastest: i64) -> [f64; 3] {
        let warm: Vec<_> =
            self.observed.estimates.iter().filter(|(at, ..)| *at >= START + 10 * SECOND).collect();
        let share = |times: i64| {
            let covered = warm.iter().filter(|(_, error, estimated)| *error <= times * estimated).count();
            covered as f64 / warm.len() as f64
        };
        let mut estimates: Vec<i64> = warm.iter().map(|(.., estimated)| *estimated).collect();
        estimates.sort_unstable();
        [share(1), share(3), estimates[estimates.len() / 2] as f64 / fastest as f64]
    }

    fn print(&self, what: &str) -> Correction {
        let last = self.node.current().unwrap();
        println!(
            "{what}: round trip {:.1} us, uncertainty {:.1} us, worst error {:.1} us, {} rows, {} exchanges, {} events, next in {:?}, drift known to {:.1} ppm",
            last.round_trip as f64 / 1e3,
            last.uncertainty as f64 / 1e3,
            self.observed.worst as f64 / 1e3,
            self.observed.rows.len(),
            self.observed.exchanges,
            self.observed.events.len(),
            self.node.pause(),
            self.node.drift_bounds() * 1e6,
        );
        last
    }
}

fn delay(minimum: i64, queue: i64, burst: i64) -> Delay {
    Delay { minimum, queue, burst }
}

#[test]
fn true_time_is_within_a_small_uncertainty() {
    // Limits of the stated error, and of the estimate where both directions are equal, in fastest
    // round trips.
    let networks: [(&str, Delay, Delay, f64, Option<f64>); 5] = [
        ("loopback", delay(20 * US, 10 * US, 3 * MS), delay(20 * US, 10 * US, 3 * MS), 1.3, Some(0.4)),
        ("local network", delay(80 * US, 40 * US, 0), delay(90 * US, 60 * US, 10 * MS), 1.0, Some(0.2)),
        (
            "queue on the way back",
            delay(100 * US, 20 * US, 0),
            delay(100 * US, 5 * MS, 50 * MS),
            2.3,
            Some(0.9),
        ),
        ("wide area", delay(5 * MS, MS, 20 * MS), delay(5 * MS, MS, 20 * MS), 1.3, Some(0.3)),
        ("crooked", delay(200 * US, 50 * US, 0), delay(3 * MS, 500 * US, 0), 1.5, None),
    ];
    let clocks = [(5 * SECOND, 100_000), (-5 * SECOND, -100_000), (0, 0), (3 * MS, -17_123), (-MS, 400_000)];
    for (n, (name, outbound, inbound, times, estimated)) in networks.into_iter().enumerate() {
        let fastest = outbound.minimum + inbound.minimum;
        let (mut claimed, mut most_rows) = (Vec::new(), 0);
        let mut estimates: [Vec<f64>; 3] = Default::default();
        for (m, (offset, ppb)) in clocks.into_iter().enumerate() {
            let mut simulation =
                Simulation::new((n * 10 + m) as u64, offset, ppb, Network::new(outbound, inbound));
            simulation.connect();
            simulation.run(120 * SECOND);
            simulation.print(&format!("{name}, {offset} ns off, {ppb} ppb"));
            simulation.check_inverse();
            most_rows = most_rows.max(simulation.observed.rows.len());
            let stated = &mut simulation.observed.stated;
            stated.sort_unstable();
            claimed.push(stated[stated.len() / 2] as f64 / fastest as f64);
            estimates.iter_mut().zip(simulation.estimates(fastest)).for_each(|(all, one)| all.push(one));
        }
        // The limits hold for the median of the five clocks: one run can meet an unlucky network.
        let median = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let claimed = median(&mut claimed);
        let [_, covered, estimate] = [0, 1, 2].map(|column| median(&mut estimates[column]));
        let range = |column: usize| format!("{:.2}-{:.2}", estimates[column][0], estimates[column][4]);
        println!(
            "{name}: estimated error {} fastest round trips, covers {}, three times covers {}; claimed {claimed:.2}",
            range(2),
            range(0),
            range(1)
        );
        // Limits for the default seed; others give up to 254 rows, and 2.9 round trips claimed
        // where there is a queue of 5 ms on the way back.
        if given_seed().is_some() {
            continue;
        }
        assert!(most_rows < 240, "{name}: {most_rows} rows");
        assert!(claimed <= times, "{name}: {claimed} fastest round trips claimed, at most {times} expected");
        if let Some(most) = estimated {
            assert!(covered >= 0.95, "{name}: {covered}");
            assert!(estimate <= most, "{name}: {estimate}, at most {most} expected");
        }
    }
}

#[test]
fn lost_answers_only_widen_the_bounds() {
    let mut network = Network::new(delay(100 * US, 50 * US, 5 * MS), delay(100 * US, 50 * US, 5 * MS));
    network.lost = 40;
    let mut simulation = Simulation::new(100, -5 * SECOND, 100_000, network);
    simulation.connect();
    simulation.run(120 * SECOND);
    simulation.print("40 of 100 answers lost");
    simulation.check_inverse();
}

#[test]
fn slow_rate_changes_are_followed() {
    let network = Network::new(delay(50 * US, 20 * US, 0), delay(50 * US, 20 * US, 0));
    let mut simulation = Simulation::new(200, SECOND, 50_000, network);
    simulation.connect();
    for minute in 0..20 {
        let ppb = 50_000 + (f64::from(minute) / 3.0).sin().mul_add(5_000.0, 0.0) as i64;
        simulation.clock.change(simulation.now, ppb, 0);
        simulation.run(20 * SECOND);
    }
    simulation.print("rate that changes by 5 ppm");
    simulation.check_inverse();
}

#[test]
fn thousands_of_nodes_are_asked_rarely_and_answer_with_other_messages() {
    for waits in [0, 1600 * MS] {
        let network = Network::new(delay(500 * US, 200 * US, 10 * MS), delay(500 * US, 200 * US, 10 * MS));
        let mut simulation = Simulation::new(250, 3 * SECOND, 60_000, network);
        simulation.node.set_effort(ClockEffort::Low);
        simulation.connect();
        simulation.waits = waits;
        simulation.run(10 * SECOND);
        let settled = simulation.observed.exchanges;
        simulation.run(120 * SECOND);
        let last = simulation.print(&format!("low effort, answers wait for {} ms", waits / MS));
        let exchanges = simulation.observed.exchanges - settled;
        assert!(exchanges <= 20, "{exchanges} exchanges in two minutes");
        assert!(last.uncertainty <= 5 * MS, "{last:?}");
        simulation.check_inverse();
    }
}

#[test]
fn step_of_a_clock_begins_a_new_piece() {
    for (n, step) in [5 * SECOND, -5 * SECOND, 200 * MS].into_iter().enumerate() {
        let network = Network::new(delay(50 * US, 20 * US, 0), delay(50 * US, 20 * US, 0));
        let mut simulation = Simulation::new(300 + n as u64, 0, 20_000, network);
        simulation.connect();
        simulation.run(30 * SECOND);
        let rows = simulation.observed.rows.len();
        simulation.clock.change(simulation.now, -30_000, step);
        // Until the next exchange the step cannot be detected, and converted times stay unchanged.
        let stepped = simulation.now;
        simulation.observed.events.clear();
        simulation.doubtful_until = NEVER;
        simulation.run(SECOND);
        simulation.doubtful_until = simulation.now;
        assert!(simulation.observed.rows[rows..].iter().any(|row| row.reason == Reason::Step), "{step}");
        simulation.observed.events.clear();
        simulation.run(60 * SECOND);
        assert!(simulation.now > stepped);
        let last = simulation.print(&format!("stepped by {step} ns"));
        assert!(last.uncertainty <= 200 * US, "{last:?}");
    }
}

#[test]
fn returning_node_continues_its_line() {
    for n in 0..20 {
        let mut random = Random::new(400 + n);
        let network = Network::new(delay(50 * US, 20 * US, 5 * MS), delay(50 * US, 20 * US, 5 * MS));
        let mut simulation = Simulation::new(500 + n, 5 * SECOND, -100_000 + random.below(200_000), network);
        simulation.connect();
        simulation.run(20 * SECOND);
        for _ in 0..3 {
            // Events are spooled meanwhile, and sent after the return.
            let (mut spooled, gone) = (Vec::new(), simulation.now + random.below(300 * SECOND));
            while simulation.now < gone {
                simulation.now += 1 + random.below(SECOND);
                spooled.push((simulation.clock.at(simulation.now), simulation.now));
            }
            simulation.reconnect();
            let current = std::mem::take(&mut simulation.observed.events);
            let rows = simulation.observed.rows.len();
            simulation.doubtful_until = NEVER;
            simulation.connect();
            simulation.observed.events = current;
            simulation.doubtful_until = 0;
            let stated = &simulation.observed.rows[rows.saturating_sub(1)..];
            let claimed = stated.iter().map(|row| row.uncertainty).max().unwrap();
            for (node, truth) in spooled {
                let merged = simulation.node.time(node, NEVER);
                assert!(simulation.node.take_restated().is_empty());
                assert!((merged - truth).abs() <= claimed, "{} ns off, {stated:?}", merged - truth);
            }
            simulation.run(20 * SECOND);
        }
        simulation.print("away three times");
        simulation.check_inverse();
    }
}

/// While a node does not answer, its times become inaccurate, and with its next answer a piece with
/// a small error begins. If the node connects again before it has sent events of that time, the
/// line continues from an inaccurate time.
#[test]
fn times_of_a_node_that_did_not_answer_have_an_error_that_holds() {
    let (mut checked, mut worst) = (0, 0);
    for n in 0..20 {
        let network = Network::new(delay(50 * US, 20 * US, 0), delay(50 * US, 20 * US, 0));
        let mut simulation = Simulation::new(700 + n, 0, 200_000, network);
        simulation.connect();
        simulation.network.lost = 100;
        simulation.run(60 * SECOND);
        simulation.spool = Some(Vec::new());
        simulation.run(10 * SECOND);
        simulation.network.lost = 0;
        simulation.run(SECOND);
        simulation.reconnect();
        simulation.connect();
        let (events, error) = simulation.convert_spooled();
        (checked, worst) = (checked + events, error.max(worst));
    }
    assert!(checked > 1000 && worst > MS, "{checked} events, at most {worst} ns off");
}

/// A simulation with a clock whose drift is hardly known.
fn newly_connected(which: u64) -> Simulation {
    let network = Network::new(delay(50 * US, 20 * US, 0), delay(50 * US, 20 * US, 0));
    let mut simulation = Simulation::new(which, 0, 200_000, network);
    simulation.connect();
    simulation
}

#[test]
fn times_of_a_node_that_is_not_asked_have_an_error_that_holds() {
    let mut simulation = newly_connected(800);
    let rows = simulation.observed.rows.len();
    simulation.pass(simulation.now + 60 * SECOND);
    let restated = simulation.observed.rows.len() - rows;
    assert!(simulation.observed.worst > 10 * MS && (1..8).contains(&restated), "{restated} pieces");
    simulation.check_inverse();
}

/// Its log-client was stopped and continues: the answer arrives before the events.
#[test]
fn times_that_arrive_after_a_late_answer_have_an_error_that_holds() {
    for (n, away) in [50 * MS, 300 * MS, 5 * SECOND, 60 * SECOND].into_iter().enumerate() {
        let mut simulation = newly_connected(810 + n as u64);
        simulation.spool = Some(Vec::new());
        simulation.pass(simulation.now + away);
        let answered = simulation.exchange().unwrap();
        let pieces = simulation.node.decide(answered);
        simulation.observed.rows.extend(pieces);
        let (events, _) = simulation.convert_spooled();
        assert!(events >= 5, "{events}");
        simulation.run(20 * SECOND);
        simulation.check_inverse();
    }
}

#[test]
fn times_of_a_short_absence_have_an_error_that_holds() {
    for n in 0..10 {
        let mut simulation = newly_connected(820 + n);
        simulation.pass(simulation.now + 20 * MS);
        simulation.spool = Some(Vec::new());
        simulation.pass(simulation.now + 900 * MS);
        simulation.reconnect();
        simulation.connect();
        let (events, _) = simulation.convert_spooled();
        assert!(events > 100, "{events}");
        simulation.run(20 * SECOND);
        simulation.check_inverse();
    }
}

/// After a restart of the log-server only the time of the latest event of all nodes is known.
#[test]
fn times_before_a_bound_of_what_was_converted_have_an_error_that_holds() {
    for answers in [true, false] {
        let mut simulation = newly_connected(840);
        simulation.pass(simulation.now + 20 * MS);
        simulation.spool = Some(Vec::new());
        simulation.pass(simulation.now + 300 * SECOND);
        let bound = Reached { time: simulation.now - SECOND, is_exact: false };
        simulation.node = NodeClock::new(&simulation.observed.rows, Some(bound));
        if answers {
            simulation.connect();
        }
        let (_, worst) = simulation.convert_spooled();
        assert!(worst > MS, "{worst} ns off");
    }
}

/// Its events of an absence arrive for so long that more pieces begin than are kept otherwise.
#[test]
fn events_of_an_absence_are_converted_with_its_pieces_however_late() {
    let network = Network::new(delay(20 * US, 10 * US, 3 * MS), delay(20 * US, 10 * US, 3 * MS));
    let mut simulation = Simulation::new(850, SECOND, 100_000, network);
    simulation.connect();
    simulation.run(20 * SECOND);
    simulation.every = 300 * MS;
    simulation.spool = Some(Vec::new());
    simulation.pass(simulation.now + 300 * SECOND);
    simulation.reconnect();
    let rows = simulation.observed.rows.len();
    simulation.connect();
    while simulation.observed.rows.len() - rows < 2 * MAX_PIECES {
        simulation.run(10 * SECOND);
        // So that pieces begin.
        simulation.clock.change(simulation.now, 100_000 + simulation.random.below(20_000), 0);
    }
    simulation.convert_spooled();
}

/// Nothing was known of its clock, and its drift is hardly known.
#[test]
fn times_before_the_first_answer_have_an_error_that_holds() {
    let network = Network::new(delay(50 * US, 20 * US, 0), delay(50 * US, 20 * US, 0));
    let mut simulation = Simulation::new(860, 5 * SECOND, 200_000, network);
    let first = simulation.node.decide(simulation.now);
    simulation.observed.rows.extend(first);
    simulation.pass(simulation.now + 100 * MS);
    simulation.spool = Some(Vec::new());
    simulation.pass(simulation.now + 60 * SECOND);
    simulation.reconnect();
    simulation.connect();
    let (_, worst) = simulation.convert_spooled();
    assert!(simulation.observed.rows.iter().any(|row| row.reason == Reason::Step) && worst > MS);
}

#[test]
fn times_of_a_returned_node_that_never_answers_have_an_error_that_holds() {
    let mut simulation = newly_connected(830);
    simulation.run(10 * SECOND);
    simulation.reconnect();
    let rows = simulation.observed.rows.len();
    simulation.clock.change(simulation.now, -300_000, 0);
    simulation.pass(simulation.now + 60 * SECOND);
    let restated = simulation.observed.rows.len() - rows;
    assert!(simulation.observed.worst > 20 * MS && (1..8).contains(&restated), "{restated} pieces");
    simulation.check_inverse();
}

#[test]
fn node_without_answers_is_not_corrected() {
    let mut node = NodeClock::new([], None);
    let rows = node.decide(START);
    assert_eq!((rows.len(), rows[0].uncertainty, rows[0].round_trip), (1, i64::MAX, 0));
    assert_eq!(node.time(START + 7, NEVER), START + 7);
    assert!(node.decide(START + SECOND).is_empty());
    // It answers later, and was far off.
    for n in 0..3 {
        let sent = START + 10 * SECOND + n * MS;
        node.add(Exchange::new(sent, (sent - 5 * SECOND, sent - 5 * SECOND), sent + 100 * US));
    }
    let rows = node.decide(node.estimated(START + 11 * SECOND));
    assert_eq!(rows.iter().map(|row| row.reason).collect::<Vec<_>>(), [Reason::Step]);
    assert!((rows[0].piece.offset - 5 * SECOND).abs() < 100 * US && rows[0].uncertainty < 2 * MS, "{rows:?}");
}

#[test]
fn arbitrary_times_do_not_panic() {
    let mut random = Random::new(600);
    for _ in 0..200 {
        let mut node = NodeClock::new([], None);
        for _ in 0..50 {
            let mut any = || match random.below(6) {
                0 => i64::MIN,
                1 => i64::MAX,
                2 => 0,
                3 => random.below(i64::MAX),
                _ => START + random.below(SECOND),
            };
            let (sent, received, answered) = (START + any() % SECOND, any(), any());
            let (asked, at) = (any(), any());
            node.add(Exchange::new(sent, (received, answered), sent + 5 * US));
            for row in node.decide(if asked % 2 == 0 { at } else { node.estimated(sent) }) {
                assert!(
                    row.uncertainty >= 0 && row.piece.drift.abs() <= miot_trace_store::clocks::MAX_DRIFT,
                    "{row:?}"
                );
            }
            let _ = (node.time(at, START), node.pause(), node.estimated(at));
        }
    }
}

#[test]
fn future_times_are_cut_and_do_not_block_the_line() {
    let mut node = NodeClock::new([], None);
    node.decide(START);
    let mut rows =
        Columns { time: vec![START, START + 90 * SECOND], flags: vec![0; 2], ..Columns::default() };
    assert_eq!(node.convert(&mut rows, START + 60 * SECOND), 1);
    assert_eq!(rows.flags, [0, flag::LATE | flag::MOVED]);
    assert_eq!(rows.time, [START, START + 60 * SECOND]);
    assert_eq!(node.line.free_from(), START + 1);
}
