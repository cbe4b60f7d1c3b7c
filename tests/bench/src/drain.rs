//! `drain`: maximum rate in events per second at which one log-client drains lanes without losses.
//!
//! Producers record at a given rate, wake every millisecond, and drop events that do not fit. The
//! rate increases in steps. In each step all contenders run in turn, until each has lost events.
//! Then the interval between its last good and its first bad rate is halved twice. A rate is good
//! if the first run, or two further runs, had no losses.
//!
//! The peer is LTTng-UST's consumer daemon, which writes to local files, with the same total buffer
//! memory and in its discarding mode. Producers, daemons and the receiver of the log-client's
//! batches share the processors of this machine.

use crate::Bench;
use crate::daemons::Daemons;
use crate::lttng::{self, Lttng, To};
use crate::process;
use crate::report::number;
use crate::worker::{self, Paced, Worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::{Command, Stdio};

/// A lane of the default largest size: 32 768 slots of 64 bytes.
const LANE_BYTES: u64 = 2 << 20;
const LANE_SLOTS: f64 = (LANE_BYTES / miot_proto::event::SLOT_BYTES as u64) as f64;
/// Lowest rate, events per second.
const FIRST_RATE: u64 = 1_000_000;
/// Highest rate, events per second: more than the processors can record.
const LAST_RATE: u64 = 128_000_000;

/// One run at one rate.
struct Trial {
    paced: Paced,
    lost: u64,
    /// CPU time in seconds of the consuming daemon, and of the server behind it.
    daemon_cpu: f64,
    server_cpu: f64,
}

impl Trial {
    /// Rate of events that were really recorded, per second.
    fn rate(&self) -> f64 {
        self.paced.recorded / self.paced.wall_ns * 1e9
    }
}

/// Runs at a rate. The name is new each time.
type Attempt<'a> = Box<dyn Fn(&str, u64) -> Result<Trial> + 'a>;

/// A daemon that drains, and the bounds of its highest rate.
struct Contender<'a> {
    key: &'static str,
    who: &'static str,
    attempt: Attempt<'a>,
    runs: u32,
    best: Option<Trial>,
    good: u64,
    bad: Option<u64>,
    /// Longest burst of the last run with losses.
    lossy_burst: Option<f64>,
}

impl<'a> Contender<'a> {
    fn new(key: &'static str, who: &'static str, attempt: Attempt<'a>) -> Contender<'a> {
        Contender { key, who, attempt, runs: 0, best: None, good: 0, bad: None, lossy_burst: None }
    }

    /// Tries a rate.
    fn climb(&mut self, rate: u64) -> Result<()> {
        let mut tries = 0..3;
        let mut wanted = 1;
        while let Some(first) = tries.next().map(|number| number == 0) {
            self.runs += 1;
            let trial = (self.attempt)(&format!("{}-{}", self.key, self.runs), rate)?;
            if trial.lost > 0 {
                self.lossy_burst = Some(trial.paced.burst);
                // After a failure, one good run is not sufficient, two are.
                wanted = 2;
                if !first {
                    break;
                }
                continue;
            }
            wanted -= 1;
            if wanted > 0 {
                continue;
            }
            // Producers that cannot reach this rate would not reach a higher one either.
            if trial.rate() < 0.95 * rate as f64 {
                self.bad = Some(rate);
            }
            self.good = rate;
            if self.best.as_ref().is_none_or(|best| trial.rate() > best.rate()) {
                self.best = Some(trial);
            }
            return Ok(());
        }
        self.bad = Some(rate);
        Ok(())
    }
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let lttng = Lttng::start(bench.disk.path())?;
    let real_time = may_use_real_time()?;
    if !real_time {
        println!("SKIPPED: real-time priority is not permitted here");
    }
    let mut results = Vec::new();
    println!(
        "{:48} {:>7} {:>4} {:>12} {:>9} {:>9} {:>9}",
        "drain without loss", "threads", "MiB", "M events/s", "producer", "daemon", "server"
    );
    for threads in bench.pick(vec![2, 8], vec![2, 8], vec![2]) {
        let own = |setup| -> Attempt<'_> {
            Box::new(move |name, rate| ours(bench, &format!("{name}-{threads}"), setup, rate, threads))
        };
        let mut contenders = vec![
            Contender::new("alone", "MIOT log-client, to a server that throws away", own(Setup::Alone)),
            Contender::new("both", "MIOT log-client and log-server", own(Setup::Both)),
        ];
        if real_time {
            let who = "the same, log-client with real-time priority";
            contenders.push(Contender::new("real-time", who, own(Setup::RealTime)));
        }
        if let Some(lttng) = &lttng {
            let attempt: Attempt<'_> =
                Box::new(move |name, rate| theirs(bench, lttng, &format!("{name}-{threads}"), rate, threads));
            contenders.push(Contender::new("lttng", "LTTng-UST consumer, to local files", attempt));
        }
        climb_together(bench, &mut contenders)?;
        results.extend(contenders.iter().map(|contender| row(contender, threads)));
    }
    Ok(json!({ "rates": results, "seconds": milliseconds(bench) as f64 / 1e3, "lttng": lttng.is_some() }))
}

fn milliseconds(bench: &Bench) -> u64 {
    bench.pick(1500, 500, 100)
}

fn climb_together(bench: &Bench, contenders: &mut [Contender<'_>]) -> Result<()> {
    let mut rate = FIRST_RATE;
    while rate <= bench.pick(LAST_RATE, LAST_RATE, FIRST_RATE)
        && contenders.iter().any(|one| one.bad.is_none())
    {
        for contender in contenders.iter_mut().filter(|one| one.bad.is_none()) {
            contender.climb(rate)?;
        }
        // Steps of about a factor of 1.4.
        rate = rate * 99 / 70;
    }
    for _ in 0..bench.pick(2, 1, 0) {
        for contender in contenders.iter_mut() {
            if let Some(bad) = contender.bad
                && contender.good < bad
            {
                let between = contender.good.midpoint(bad);
                let was = contender.bad.take();
                contender.climb(between)?;
                contender.bad = contender.bad.or(was);
            }
        }
    }
    Ok(())
}

/// What takes part in a run of MIOT.
#[derive(Clone, Copy, PartialEq)]
enum Setup {
    /// A log-client, whose batches are discarded.
    Alone,
    /// A log-client and a log-server.
    Both,
    /// The same, and the log-client runs before all programs of ordinary priority.
    RealTime,
}

fn may_use_real_time() -> Result<bool> {
    Ok(Command::new("chrt").args(["--fifo", "1", "true"]).stderr(Stdio::null()).status()?.success())
}

fn ours(bench: &Bench, name: &str, setup: Setup, rate: u64, threads: u64) -> Result<Trial> {
    let (dir, node) = (bench.disk.path().join(name), bench.memory.path().join(name));
    let start = if setup == Setup::Alone { Daemons::start_client_alone } else { Daemons::start };
    let daemons = start(&dir, &node, "drop-newest")?;
    let client = daemons.client_pid().context("no log-client")?.to_string();
    if setup == Setup::RealTime {
        process::said(Command::new("chrt").args(["--all-tasks", "--fifo", "--pid", "1", &client]))?;
    }
    let mut command = worker::own("miot")?;
    command.env("MIOT_DIR", daemons.node());
    let mut worker = Worker::start("miot", command)?;
    let paced = worker.paced(rate, milliseconds(bench), threads)?;
    worker.finish()?;
    let policies = process::said(Command::new("chrt").args(["--all-tasks", "--pid", &client]))?;
    let of_threads = |policy: &str| policies.matches(policy).count();
    let real_time = of_threads("policy: SCHED_FIFO");
    let expected = if setup == Setup::RealTime { of_threads("policy:") } else { 0 };
    ensure!(real_time == expected, "{name}: {real_time} threads with real-time priority:\n{policies}");
    let ended = daemons.stop()?;
    // The worker makes one operation more, to check that it records.
    let made = paced.recorded as u64 + 1;
    ensure!(
        ended.events + ended.lost == made,
        "{name}: the log-client found {} events and {} losses of {made}",
        ended.events,
        ended.lost
    );
    for dir in [dir, node] {
        std::fs::remove_dir_all(dir)?;
    }
    Ok(Trial { paced, lost: ended.lost, daemon_cpu: ended.client.cpu, server_cpu: ended.server.cpu })
}

fn theirs(bench: &Bench, lttng: &Lttng, name: &str, rate: u64, threads: u64) -> Result<Trial> {
    /// Sub-buffers of a processor.
    const PARTS: u64 = 4;
    let dir = bench.disk.path().join(name);
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let part = (threads * LANE_BYTES / processors / PARTS).next_power_of_two();
    lttng.record_into(name, &To::Local(&dir), false, [PARTS, part])?;
    let mut worker = Worker::start("lttng", lttng.worker("end"))?;
    let pids = lttng.pids()?;
    let used = || pids.iter().map(|pid| process::cpu_seconds(*pid)).sum::<f64>();
    let before = used();
    let paced = worker.paced(rate, milliseconds(bench), threads)?;
    worker.finish()?;
    let (discarded, _) = lttng.stop(name)?;
    let daemon_cpu = used() - before;
    let lost = lttng::missing(&dir, paced.recorded as u64, discarded)?;
    std::fs::remove_dir_all(dir)?;
    Ok(Trial { paced, lost, daemon_cpu, server_cpu: 0.0 })
}

fn row(contender: &Contender<'_>, threads: u64) -> Value {
    let of = |value: fn(&Trial) -> f64| contender.best.as_ref().map(value);
    let row = json!({
        "key": contender.key, "who": contender.who, "threads": threads,
        "buffers_mib": (threads * LANE_BYTES) >> 20, "runs": contender.runs,
        "events_per_s": of(Trial::rate), "lossy_at_per_s": contender.bad,
        "burst_lanes": of(|trial| trial.paced.burst / LANE_SLOTS),
        "lossy_burst_lanes": contender.lossy_burst.map(|burst| burst / LANE_SLOTS),
        "producer_ns": of(|trial| trial.paced.cpu_ns / trial.paced.recorded),
        "daemon_ns": of(|trial| trial.daemon_cpu * 1e9 / trial.paced.recorded),
        "server_ns": of(|trial| trial.server_cpu * 1e9 / trial.paced.recorded),
    });
    println!(
        "{:48} {threads:7} {:>4} {:>12} {:>9} {:>9} {:>9}",
        contender.who,
        row["buffers_mib"],
        millions(&row["events_per_s"]),
        number(&row["producer_ns"], 1),
        number(&row["daemon_ns"], 1),
        number(&row["server_ns"], 1)
    );
    row
}

fn millions(rate: &Value) -> String {
    rate.as_f64().map_or("–".into(), |rate| format!("{:.2}", rate / 1e6))
}

/// Highest rate of one contender, events per second.
pub(crate) fn rate(results: &Value, key: &str, threads: u64) -> Option<f64> {
    let rows = results["rates"].as_array()?;
    rows.iter().find(|row| row["threads"] == threads && row["key"] == key)?["events_per_s"].as_f64()
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| highest rate without a loss | threads | buffers, MiB | M events/s | lossy at, M/s | longest burst, lanes | of a lossy run | producers, ns | daemon, ns | server, ns |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in results["rates"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row["who"].as_str().unwrap_or(""),
            row["threads"],
            row["buffers_mib"],
            millions(&row["events_per_s"]),
            millions(&row["lossy_at_per_s"]),
            number(&row["burst_lanes"], 2),
            number(&row["lossy_burst_lanes"], 2),
            number(&row["producer_ns"], 1),
            number(&row["daemon_ns"], 1),
            number(&row["server_ns"], 1)
        );
    }
    text
}
