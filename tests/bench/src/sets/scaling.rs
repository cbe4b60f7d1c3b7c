//! Events per second of one, two and four log-servers with the same quota of the processors.

use super::{MOST, Set, check};
use crate::Bench;
use crate::apps::available;
use crate::fleet::{Fleet, Plan};
use crate::pattern::Pattern;
use crate::share::{Periods, Quota, Share};
use crate::stats::{Summary, median_with_interval};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::time::Instant;

/// Quota of a log-server: four of them and the nodes use less than half of two processors, so that
/// they seldom share a core.
const QUOTA: Quota = Quota(10_000);
/// Log-servers of a set, and nodes of each log-server.
const SETS: [usize; 3] = [1, 2, MOST];
const NODES: u64 = 16;
/// Events of a batch.
const ROWS: u64 = 1024;
/// The quota is the limit if it stops each log-server in at least this share of the periods in
/// which its nodes send.
const LEAST_THROTTLED: f64 = 0.8;
/// The nodes are not the limit if they use at most this share of a processor.
const MOST_PLAYED: f64 = 0.5;

/// Figures of one run.
struct Run {
    servers: usize,
    round: usize,
    events: u64,
    durable_per_s: f64,
    sealed_per_s: f64,
    /// CPU time of all log-servers per event.
    server_ns: f64,
    /// CPU time of the thread that plays the nodes, per event and of one processor.
    player_ns: f64,
    player_share: f64,
    /// Share of the periods in which the quota stopped the least stopped log-server, until it had
    /// acknowledged everything.
    throttled: f64,
}

pub(super) fn run(bench: &Bench) -> Result<Value> {
    let events = bench.pick(2_000_000, 400_000, NODES * ROWS);
    println!(
        "{:12} {:>9} {:>11} {:>11} {:>10} {:>10} {:>9} {:>10}",
        "log-servers", "events", "durable/s", "sealed/s", "server ns", "player ns", "player %", "throttled %"
    );
    let mut runs = Vec::new();
    for round in 0..bench.pick(7, 3, 1) {
        let mut sets = SETS;
        if round % 2 == 1 {
            sets.reverse();
        }
        for servers in sets {
            let batches = events / NODES / ROWS;
            let nodes = NODES * servers as u64;
            let plan = Plan { pattern: Pattern::Mixed, nodes, streams: 1, rows: ROWS, batches };
            let Some(run) = measure(bench, plan, servers, round)? else {
                return Ok(json!({ "skipped": "no cgroup with the cpu controller" }));
            };
            runs.push(run);
        }
    }
    Ok(json!({ "quota": QUOTA.share(), "sets": SETS.map(|servers| row(&runs, servers)) }))
}

/// Runs one set. Returns `None` if no cgroup can be created.
fn measure(bench: &Bench, plan: Plan, servers: usize, round: usize) -> Result<Option<Run>> {
    let fleet = Fleet::build(plan);
    let dir = bench.disk.path().join("scaling");
    // Declared before the log-servers, so that they are removed after their end.
    let mut groups = Vec::new();
    let set = Set::start(&dir, servers)?;
    for server in &set.servers {
        let Some(group) = available("a cgroup of a log-server", Share::around(server.pid())) else {
            return Ok(None);
        };
        group.set_quota(Some(QUOTA))?;
        groups.push(group);
    }
    let before = groups.iter().map(Share::throttled).collect::<Result<Vec<Periods>>>()?;
    let (traces, started) = (set.traces(), Instant::now());
    let mut throttled = 1.0_f64;
    let shipped = fleet.ship_to_set(&set.addresses(), |server| {
        throttled = throttled.min(groups[server].throttled()?.throttled_since(before[server]));
        Ok(())
    })?;
    let used = set.stop()?;
    let sealed = started.elapsed().as_secs_f64();
    check(&traces, plan)?;
    std::fs::remove_dir_all(&dir)?;
    let (events, wall) = (plan.events(), shipped.wall.as_secs_f64());
    let per_event = |seconds: f64| seconds * 1e9 / events as f64;
    let run = Run {
        servers,
        round,
        events,
        durable_per_s: events as f64 / wall,
        sealed_per_s: events as f64 / sealed,
        server_ns: per_event(used.iter().map(|usage| usage.cpu).sum()),
        player_ns: per_event(shipped.cpu),
        player_share: shipped.cpu / wall,
        throttled,
    };
    run.print();
    if !bench.is_smoke() {
        run.prove()?;
    }
    Ok(Some(run))
}

impl Run {
    fn print(&self) {
        println!(
            "{:12} {:9} {:11.0} {:11.0} {:10.1} {:10.1} {:9.1} {:10.0}",
            self.servers,
            self.events,
            self.durable_per_s,
            self.sealed_per_s,
            self.server_ns,
            self.player_ns,
            self.player_share * 100.0,
            self.throttled * 100.0
        );
    }

    /// Checks that the quotas were the limit, and the nodes were not.
    fn prove(&self) -> Result<()> {
        ensure!(
            self.throttled >= LEAST_THROTTLED,
            "the quota stopped a log-server in only {:.0} % of the periods",
            self.throttled * 100.0
        );
        ensure!(
            self.player_share <= MOST_PLAYED,
            "the nodes used {:.0} % of a processor",
            self.player_share * 100.0
        );
        Ok(())
    }
}

/// Returns the figures of one set, and its ratios to one log-server in the same round.
fn row(runs: &[Run], servers: usize) -> Value {
    let own: Vec<&Run> = runs.iter().filter(|run| run.servers == servers).collect();
    let median = |of: fn(&Run) -> f64| Summary::of(own.iter().map(|run| of(run)).collect()).median;
    let ratio = |of: fn(&Run) -> f64| {
        let of_one = |round| runs.iter().find(|run| run.servers == 1 && run.round == round);
        let ratios = own.iter().filter_map(|run| Some(of(run) / of(of_one(run.round)?)));
        median_with_interval(&ratios.collect::<Vec<_>>())
    };
    json!({
        "servers": servers,
        "events": own.first().map(|run| run.events),
        "durable_per_s": median(|run| run.durable_per_s),
        "sealed_per_s": median(|run| run.sealed_per_s),
        "server_ns": median(|run| run.server_ns),
        "player_ns": median(|run| run.player_ns),
        "player_share": median(|run| run.player_share),
        "throttled": own.iter().map(|run| run.throttled).reduce(f64::min),
        "durable_ratio": ratio(|run| run.durable_per_s),
        "sealed_ratio": ratio(|run| run.sealed_per_s),
        "cost_ratio": ratio(|run| run.server_ns),
    })
}
