//! Events per second of one, two and four log-servers with the same quota of the processors.
//!
//! The three sets run at the same time, so that a slow phase of the machine affects all of them.

use super::{MOST, Set, check};
use crate::Bench;
use crate::apps::available;
use crate::fleet::{Fleet, Plan};
use crate::pattern::Pattern;
use crate::share::{Periods, Quota, Share};
use crate::stats::{Summary, median_with_interval};
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Quota of a log-server: the seven of all sets use less than half of two processors, so that they
/// seldom share a core.
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
    let plans = SETS.map(|servers| {
        let (nodes, batches) = (NODES * servers as u64, events / NODES / ROWS);
        Plan { pattern: Pattern::Mixed, nodes, streams: 1, rows: ROWS, batches }
    });
    let dir = bench.disk.path().join("scaling");
    let mut runs = Vec::new();
    for round in 0..bench.pick(20, 5, 1) {
        let fleets = plans.map(Fleet::build);
        // All are started before the first one gets events.
        let Some(sets) = SETS
            .iter()
            .map(|servers| Limited::start(&dir.join(servers.to_string()), *servers))
            .collect::<Result<Option<Vec<Limited>>>>()?
        else {
            return Ok(json!({ "skipped": "no cgroup with the cpu controller" }));
        };
        let traces: Vec<Vec<PathBuf>> = sets.iter().map(|limited| limited.set.traces()).collect();
        let measured = std::thread::scope(|scope| {
            let measuring: Vec<_> = sets
                .into_iter()
                .zip(&fleets)
                .zip(plans)
                .map(|((set, fleet), plan)| scope.spawn(move || set.measure(fleet, plan, round)))
                .collect();
            let ended = measuring.into_iter().map(|thread| match thread.join() {
                Ok(ended) => ended,
                Err(_) => bail!("the thread that measures a set has failed"),
            });
            ended.collect::<Result<Vec<Run>>>()
        })?;
        for ((run, traces), plan) in measured.iter().zip(traces).zip(plans) {
            check(&traces, plan)?;
            run.print();
            if !bench.is_smoke() {
                run.prove()?;
            }
        }
        runs.extend(measured);
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(json!({ "quota": QUOTA.share(), "sets": SETS.map(|servers| row(&runs, servers)) }))
}

/// Running log-servers, each in a group with the quota.
struct Limited {
    set: Set,
    // Behind the log-servers, so that they are removed after their end.
    groups: Vec<Share>,
}

impl Limited {
    /// Returns `None` if no group can be created.
    fn start(dir: &Path, servers: usize) -> Result<Option<Limited>> {
        let mut limited = Limited { set: Set::start(dir, servers)?, groups: Vec::new() };
        for server in &limited.set.servers {
            let Some(group) = available("a cgroup of a log-server", Share::around(server.pid())) else {
                return Ok(None);
            };
            group.set_quota(Some(QUOTA))?;
            limited.groups.push(group);
        }
        Ok(Some(limited))
    }

    /// Sends the events of the nodes, and stops the log-servers.
    fn measure(self, fleet: &Fleet, plan: Plan, round: usize) -> Result<Run> {
        // The groups are dropped last.
        let Limited { groups, set } = self;
        let servers = groups.len();
        let before = groups.iter().map(Share::throttled).collect::<Result<Vec<Periods>>>()?;
        let started = Instant::now();
        let mut throttled = 1.0_f64;
        let shipped = fleet.ship_to_set(&set.addresses(), |server| {
            throttled = throttled.min(groups[server].throttled()?.throttled_since(before[server]));
            Ok(())
        })?;
        let used = set.stop()?;
        let sealed = started.elapsed().as_secs_f64();
        let (events, wall) = (plan.events(), shipped.wall.as_secs_f64());
        let per_event = |seconds: f64| seconds * 1e9 / events as f64;
        Ok(Run {
            servers,
            round,
            events,
            durable_per_s: events as f64 / wall,
            sealed_per_s: events as f64 / sealed,
            server_ns: per_event(used.iter().map(|usage| usage.cpu).sum()),
            player_ns: per_event(shipped.cpu),
            player_share: shipped.cpu / wall,
            throttled,
        })
    }
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
