//! Simulated nodes and networks, where the truth is known.

use super::*;
use miot_proto::event::flag;

const SECOND: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
const US: i64 = 1_000;
const START: i64 = 1_700_000_000 * SECOND;
const NEVER: i64 = i64::MAX;
/// As a session does.
const IN_A_ROW: usize = 3;

/// Numbers by chance (xorshift), of a seed that can be given again.
struct Chance(u64);

impl Chance {
    fn new(which: u64) -> Chance {
        let seed = std::env::var("MIOT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_122);
        println!("MIOT_SEED={seed}");
        Chance((seed ^ which.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    fn below(&mut self, bound: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 1) % bound.max(1) as u64) as i64
    }

    /// Exponentially distributed.
    fn wait(&mut self, mean: i64) -> i64 {
        let share = (self.below(1 << 30) + 1) as f64 / f64::from(1 << 30);
        (-share.ln() * mean as f64) as i64
    }
}

/// A clock that runs at a rate of its own.
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

/// One way of a network.
#[derive(Clone, Copy)]
struct Way {
    /// Never faster than this.
    least: i64,
    /// Waits in queues, on average.
    queue: i64,
    /// Now and then for a while much longer.
    burst: i64,
}

struct Network {
    there: Way,
    back: Way,
    /// In a hundred.
    lost: i64,
    busy_until: i64,
}

impl Network {
    fn new(there: Way, back: Way) -> Network {
        Network { there, back, lost: 0, busy_until: 0 }
    }

    fn delay(&mut self, way: Way, now: i64, chance: &mut Chance) -> i64 {
        if way.burst > 0 && now > self.busy_until + 5 * SECOND && chance.below(50) == 0 {
            self.busy_until = now + chance.below(8 * SECOND);
        }
        let burst = if now < self.busy_until { chance.below(way.burst.max(1)) } else { 0 };
        way.least + chance.wait(way.queue) + burst
    }
}

/// What was seen of one node.
#[derive(Default)]
struct Seen {
    /// Node's time, merged time, flags.
    events: Vec<(i64, i64, u16)>,
    rows: Vec<Correction>,
    /// The uncertainty, event by event.
    claims: Vec<i64>,
    /// When, the error, and the one that was estimated, event by event.
    estimates: Vec<(i64, i64, i64)>,
    worst: i64,
    exchanges: usize,
}

struct World {
    now: i64,
    clock: Clock,
    network: Network,
    node: NodeClock,
    chance: Chance,
    seen: Seen,
    /// Between two events.
    every: i64,
    /// The uncertainty is not checked before.
    doubtful_until: i64,
}

impl World {
    fn new(which: u64, offset: i64, ppb: i64, network: Network) -> World {
        World {
            now: START,
            clock: Clock { since: START, shows: START + offset, ppb },
            network,
            node: NodeClock::new([], None),
            chance: Chance::new(which),
            seen: Seen::default(),
            every: 3 * MS,
            doubtful_until: 0,
        }
    }

    /// Lets the time pass, with events.
    fn pass(&mut self, until: i64) {
        while self.now < until {
            self.now = until.min(self.now + 1 + self.chance.below(2 * self.every));
            self.event(self.clock.at(self.now), self.now);
        }
    }

    fn event(&mut self, node: i64, truth: i64) {
        if self.node.claim().is_none() {
            return;
        }
        let mut rows =
            Columns { time: vec![node], flags: vec![flag::LATE | flag::TIE], ..Columns::default() };
        assert_eq!(self.node.convert(&mut rows, NEVER), 0);
        let merged = rows.time[0];
        if let Some((before, last, _)) = self.seen.events.last()
            && *before <= node
            && self.now >= self.doubtful_until
        {
            assert!(*last <= merged, "time goes back");
        }
        self.seen.events.push((node, merged, rows.flags[0]));
        if self.now >= self.doubtful_until {
            let (error, claim) = ((merged - truth).abs(), self.node.claim().unwrap());
            assert!(error <= claim.uncertainty, "{error} ns off at {}: {claim:?}", self.now - START);
            assert!(claim.estimated_error <= claim.uncertainty, "{claim:?}");
            self.seen.claims.push(claim.uncertainty);
            self.seen.estimates.push((self.now, error, claim.estimated_error));
            self.seen.worst = self.seen.worst.max(error);
        }
    }

    fn exchange(&mut self) -> Option<i64> {
        let sent = self.now;
        let there = self.network.delay(self.network.there, self.now, &mut self.chance);
        self.pass(sent + there);
        let received = self.clock.at(self.now);
        // A node that is busy takes its time.
        let held = self.chance.wait(100 * US);
        self.pass(sent + there + held);
        let answered = self.clock.at(self.now);
        let back = self.network.delay(self.network.back, self.now, &mut self.chance);
        self.pass(sent + there + held + back);
        if self.chance.below(100) < self.network.lost {
            // It is asked again later.
            let until = self.now + 2 * SECOND;
            while self.now < until && self.node.claim().is_some() {
                self.pass(self.now + self.node.pause().as_nanos() as i64);
                let rows = self.node.decide(self.node.estimated(self.now));
                self.seen.rows.extend(rows);
            }
            self.pass(until);
            return None;
        }
        self.node.add(Sample::new(sent, (received, answered), self.now));
        self.seen.exchanges += 1;
        Some(answered)
    }

    /// The first exchanges of a connection.
    fn connect(&mut self) {
        for _ in 0..8 {
            self.exchange();
        }
        let rows = self.node.decide(self.node.estimated(self.now));
        self.seen.rows.extend(rows);
    }

    fn run(&mut self, time: i64) {
        let until = self.now + time;
        while self.now < until {
            let pause = self.node.pause().as_nanos() as i64;
            self.pass(self.now + pause);
            for _ in 0..=IN_A_ROW {
                let at = self.exchange().unwrap_or_else(|| self.node.estimated(self.now));
                let rows = self.node.decide(at);
                self.seen.rows.extend(rows);
                if !self.node.is_worth_asking_again() {
                    break;
                }
            }
        }
    }

    /// The server ends and begins again, or the connection does.
    fn reconnect(&mut self) {
        let reached = self.seen.events.last().map(|(_, merged, _)| *merged);
        self.node = NodeClock::new(&self.seen.rows[self.seen.rows.len().saturating_sub(PIECES)..], reached);
    }

    /// All times can be had back, as a reader of the trace does.
    fn check_way_back(&self) {
        let mut pieces: Vec<Piece> = self.seen.rows.iter().map(|row| row.piece).collect();
        pieces.sort_by_key(|piece| piece.time);
        for (node, merged, flags) in &self.seen.events {
            let at = pieces.partition_point(|piece| piece.time <= *merged).saturating_sub(1);
            assert_eq!(pieces[at].node(*merged, flags & flag::TIE != 0), *node);
        }
    }

    /// Ten seconds after the begin: three times the estimated error covers the error of nearly all events, and for half of
    /// them it is not more than so many of the fastest round trips, if both ways are equal.
    fn check_estimates(&self, fastest: i64, most: Option<f64>) {
        let warm: Vec<_> = self.seen.estimates.iter().filter(|(at, ..)| *at >= START + 10 * SECOND).collect();
        let share = |times: i64| {
            let covered = warm.iter().filter(|(_, error, estimated)| *error <= times * estimated).count();
            covered as f64 / warm.len() as f64
        };
        let mut estimates: Vec<i64> = warm.iter().map(|(.., estimated)| *estimated).collect();
        estimates.sort_unstable();
        let median = estimates[estimates.len() / 2] as f64 / fastest as f64;
        println!(
            "    estimated for half of the events: {median:.2} fastest round trips; covers {:.3}, three times {:.3}",
            share(1),
            share(3)
        );
        if let Some(most) = most {
            assert!(share(3) >= 0.95, "{}", share(3));
            assert!(median <= most, "{median}");
        }
    }

    fn tell(&self, what: &str) -> Correction {
        let last = self.node.claim().unwrap();
        println!(
            "{what}: round trip {:.1} us, uncertainty {:.1} us, worst error {:.1} us, {} rows, {} exchanges, {} events, next in {:?}, drift known to {:.1} ppm",
            last.round_trip as f64 / 1e3,
            last.uncertainty as f64 / 1e3,
            self.seen.worst as f64 / 1e3,
            self.seen.rows.len(),
            self.seen.exchanges,
            self.seen.events.len(),
            self.node.pause(),
            self.node.drift_bounds() * 1e6,
        );
        last
    }
}

fn way(least: i64, queue: i64, burst: i64) -> Way {
    Way { least, queue, burst }
}

#[test]
fn the_truth_is_within_the_uncertainty_and_that_is_small() {
    // With how many times the shortest round trip may be claimed, and estimated where both ways are equal.
    let networks: [(&str, Way, Way, f64, Option<f64>); 5] = [
        ("loopback", way(20 * US, 10 * US, 3 * MS), way(20 * US, 10 * US, 3 * MS), 1.3, Some(0.4)),
        ("local network", way(80 * US, 40 * US, 0), way(90 * US, 60 * US, 10 * MS), 1.0, Some(0.2)),
        ("queue on the way back", way(100 * US, 20 * US, 0), way(100 * US, 5 * MS, 50 * MS), 2.3, Some(0.9)),
        ("wide area", way(5 * MS, MS, 20 * MS), way(5 * MS, MS, 20 * MS), 1.3, Some(0.3)),
        ("crooked", way(200 * US, 50 * US, 0), way(3 * MS, 500 * US, 0), 1.5, None),
    ];
    let clocks = [(5 * SECOND, 100_000), (-5 * SECOND, -100_000), (0, 0), (3 * MS, -17_123), (-MS, 400_000)];
    for (n, (name, there, back, times, estimated)) in networks.into_iter().enumerate() {
        for (m, (offset, ppb)) in clocks.into_iter().enumerate() {
            let mut world = World::new((n * 10 + m) as u64, offset, ppb, Network::new(there, back));
            world.connect();
            world.run(120 * SECOND);
            world.tell(&format!("{name}, {offset} ns off, {ppb} ppb"));
            let fastest = there.least + back.least;
            let claims = &mut world.seen.claims;
            claims.sort_unstable();
            let median = claims[claims.len() / 2];
            let shares = (median as f64 / fastest as f64, world.seen.worst as f64 / fastest as f64);
            println!("    claimed for half of the events, worst error, by fastest round trips: {shares:.2?}");
            assert!(shares.0 <= times, "{median} ns claimed, {fastest} ns is the fastest round trip");
            assert!(world.seen.rows.len() < 240, "{}", world.seen.rows.len());
            world.check_estimates(fastest, estimated);
            world.check_way_back();
        }
    }
}

#[test]
fn lost_answers_only_widen_the_bounds() {
    let mut network = Network::new(way(100 * US, 50 * US, 5 * MS), way(100 * US, 50 * US, 5 * MS));
    network.lost = 40;
    let mut world = World::new(100, -5 * SECOND, 100_000, network);
    world.connect();
    world.run(120 * SECOND);
    world.tell("40 of 100 answers lost");
    world.check_way_back();
}

#[test]
fn a_rate_that_changes_slowly_is_followed() {
    let network = Network::new(way(50 * US, 20 * US, 0), way(50 * US, 20 * US, 0));
    let mut world = World::new(200, SECOND, 50_000, network);
    world.connect();
    for minute in 0..20 {
        let ppb = 50_000 + (f64::from(minute) / 3.0).sin().mul_add(5_000.0, 0.0) as i64;
        world.clock.change(world.now, ppb, 0);
        world.run(20 * SECOND);
    }
    world.tell("rate that changes by 5 ppm");
    world.check_way_back();
}

#[test]
fn a_step_is_found_and_begins_a_new_piece() {
    for (n, step) in [5 * SECOND, -5 * SECOND, 200 * MS].into_iter().enumerate() {
        let network = Network::new(way(50 * US, 20 * US, 0), way(50 * US, 20 * US, 0));
        let mut world = World::new(300 + n as u64, 0, 20_000, network);
        world.connect();
        world.run(30 * SECOND);
        let rows = world.seen.rows.len();
        world.clock.change(world.now, -30_000, step);
        // Until the next exchange nobody can know, and what came then stays as it is.
        let stepped = world.now;
        world.seen.events.clear();
        world.doubtful_until = NEVER;
        world.run(SECOND);
        world.doubtful_until = world.now;
        assert!(world.seen.rows[rows..].iter().any(|row| row.reason == Reason::Step), "{step}");
        world.seen.events.clear();
        world.run(60 * SECOND);
        assert!(world.now > stepped);
        let last = world.tell(&format!("stepped by {step} ns"));
        assert!(last.uncertainty <= 200 * US, "{last:?}");
    }
}

#[test]
fn a_node_that_comes_back_goes_on_where_it_was() {
    for n in 0..20 {
        let mut chance = Chance::new(400 + n);
        let network = Network::new(way(50 * US, 20 * US, 5 * MS), way(50 * US, 20 * US, 5 * MS));
        let mut world = World::new(500 + n, 5 * SECOND, -100_000 + chance.below(200_000), network);
        world.connect();
        world.run(20 * SECOND);
        for _ in 0..3 {
            // What happens meanwhile is spooled, and sent when it is back.
            let (mut spooled, gone) = (Vec::new(), world.now + chance.below(300 * SECOND));
            while world.now < gone {
                world.now += 1 + chance.below(SECOND);
                spooled.push((world.clock.at(world.now), world.now));
            }
            world.reconnect();
            let claim = std::mem::take(&mut world.seen.events);
            let rows = world.seen.rows.len();
            world.doubtful_until = NEVER;
            world.connect();
            world.seen.events = claim;
            world.doubtful_until = 0;
            let claims = &world.seen.rows[rows.saturating_sub(1)..];
            let claimed = claims.iter().map(|row| row.uncertainty).max().unwrap();
            for (node, truth) in spooled {
                let merged = world.node.time(node, NEVER);
                assert!((merged - truth).abs() <= claimed, "{} ns off, {claims:?}", merged - truth);
            }
            world.run(20 * SECOND);
        }
        world.tell("away three times");
        world.check_way_back();
    }
}

#[test]
fn who_never_answers_is_taken_at_its_word() {
    let mut node = NodeClock::new([], None);
    let rows = node.decide(START);
    assert_eq!((rows.len(), rows[0].uncertainty, rows[0].round_trip), (1, i64::MAX, 0));
    assert_eq!(node.time(START + 7, NEVER), START + 7);
    assert!(node.decide(START + SECOND).is_empty());
    // It does after all, and was far off.
    for n in 0..3 {
        let sent = START + 10 * SECOND + n * MS;
        node.add(Sample::new(sent, (sent - 5 * SECOND, sent - 5 * SECOND), sent + 100 * US));
    }
    let rows = node.decide(node.estimated(START + 11 * SECOND));
    assert_eq!(rows.iter().map(|row| row.reason).collect::<Vec<_>>(), [Reason::Step]);
    assert!((rows[0].piece.offset - 5 * SECOND).abs() < 100 * US && rows[0].uncertainty < 2 * MS, "{rows:?}");
}

#[test]
fn nonsense_is_survived() {
    let mut chance = Chance::new(600);
    for _ in 0..200 {
        let mut node = NodeClock::new([], None);
        for _ in 0..50 {
            let mut any = || match chance.below(6) {
                0 => i64::MIN,
                1 => i64::MAX,
                2 => 0,
                3 => chance.below(i64::MAX),
                _ => START + chance.below(SECOND),
            };
            let (sent, received, answered) = (START + any() % SECOND, any(), any());
            let (asked, at) = (any(), any());
            node.add(Sample::new(sent, (received, answered), sent + 5 * US));
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
fn what_lies_in_the_future_is_cut_and_does_not_hold_back_the_clock() {
    let mut node = NodeClock::new([], None);
    node.decide(START);
    let mut rows =
        Columns { time: vec![START, START + 90 * SECOND], flags: vec![0; 2], ..Columns::default() };
    assert_eq!(node.convert(&mut rows, START + 60 * SECOND), 1);
    assert_eq!(rows.flags, [0, flag::LATE | flag::MOVED]);
    assert_eq!(rows.time, [START, START + 60 * SECOND]);
    assert_eq!(node.line.free_from(), START + 1);
}
