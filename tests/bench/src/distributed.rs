//! `distributed`: queries on one and on four workers, each with the same small quota of processors.

use crate::analysis::synthetic;
use crate::apps::available;
use crate::report::{interval, number};
use crate::share::{Quota, Share};
use crate::stats::{Summary, median_with_interval};
use crate::{Bench, daemons, process};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Quota of a worker: four of them and `miot query` use less than two processors.
const QUOTA: Quota = Quota(30_000);
const MOST: usize = 4;
/// Each of the workers has at least this share of the CPU time that it would have if all had the
/// same.
const LEAST_SHARE: f64 = 0.5;
/// The quota is the limit if it stops a worker in at least this share of the periods.
const LEAST_THROTTLED: f64 = 0.5;

const QUERIES: [(&str, &str); 3] = [
    (
        "requests, bytes and longest duration by operation",
        "SELECT node, layer, op, count(*), sum(length), max(duration) FROM events GROUP BY node, layer, op ORDER BY 1, 2, 3",
    ),
    (
        "bytes of each job by class (view `io`)",
        "SELECT job, class, count(*), sum(bytes) FROM io GROUP BY job, class ORDER BY 1, 2",
    ),
    (
        "the 20 paths with the most requests (view `io`)",
        "SELECT path, count(*), sum(bytes), max(duration) FROM io GROUP BY path ORDER BY 2 DESC, 1 LIMIT 20",
    ),
];

/// A worker in a cgroup. The worker ends, and the cgroup is removed, when this is dropped.
struct Worker {
    child: Child,
    address: String,
    group: Share,
}

impl Worker {
    /// Starts a worker. Returns `None` if no cgroup can be created.
    fn start(place: &Path, log: &Path) -> Result<Option<Worker>> {
        let address = format!("127.0.0.1:{}", daemons::free_port()?);
        let mut command = Command::new(daemons::built("miot-query")?);
        command.args(["worker", "--listen", &address]).arg(place).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(File::create(log)?);
        let mut child = process::ends_with_us(&mut command).spawn()?;
        let is_ready = || std::net::TcpStream::connect(&address).is_ok();
        while !is_ready() {
            ensure!(child.try_wait()?.is_none(), "a worker has ended: {}", std::fs::read_to_string(log)?);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        match available("a cgroup of a worker", Share::around(child.id())) {
            Some(group) => {
                let worker = Worker { child, address, group };
                worker.group.set_quota(Some(QUOTA))?;
                Ok(Some(worker))
            }
            None => {
                process::terminate(&mut child);
                Ok(None)
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        process::terminate(&mut self.child);
    }
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let dir = bench.disk.path().join("distributed");
    let trace = dir.join("trace");
    std::fs::create_dir_all(&dir)?;
    let events = bench.pick(30_000_000, 2_000_000, 400_000);
    synthetic::write(&trace, events)?;
    let mut workers = Vec::new();
    for number in 0..MOST {
        match Worker::start(&dir, &dir.join(format!("worker-{number}.log")))? {
            Some(worker) => workers.push(worker),
            None => return Ok(json!({ "skipped": "no cgroup with the cpu controller" })),
        }
    }
    println!("{:52} {:>12} {:>12} {:>8}", "query", "1 worker, s", "4 workers, s", "ratio");
    let mut rows = Vec::new();
    for (name, sql) in QUERIES {
        let alone = process::said(
            Command::new(daemons::built("miot-query")?).arg(&trace).args([sql, "--format", "csv"]),
        )?;
        let mut pairs = Vec::new();
        for round in 0..=bench.pick(7, 3, 1) {
            let mut order = [1, MOST];
            if round % 2 == 1 {
                order.reverse();
            }
            let mut seconds = [0.0; 2];
            for count in order {
                let taken = measure(&workers[..count], &trace, sql, &alone, bench)?;
                seconds[usize::from(count == MOST)] = taken;
            }
            // The first repetition warms the page cache.
            if round > 0 {
                pairs.push(seconds);
            }
        }
        let median = |at: usize| Summary::of(pairs.iter().map(|pair| pair[at]).collect()).median;
        let ratio = median_with_interval(&pairs.iter().map(|[one, all]| one / all).collect::<Vec<_>>());
        println!("{name:52} {:12.2} {:12.2} {:8.2}", median(0), median(1), ratio.median);
        rows.push(json!({ "query": name, "events": events, "one_s": median(0), "all_s": median(1), "ratio": ratio }));
    }
    drop(workers);
    std::fs::remove_dir_all(&dir)?;
    Ok(json!({ "quota": QUOTA.share(), "workers": MOST, "queries": rows }))
}

/// Runs a query on workers, checks its rows and the work of each worker, and returns the seconds.
fn measure(workers: &[Worker], trace: &Path, sql: &str, expected: &str, bench: &Bench) -> Result<f64> {
    let addresses = workers.iter().map(|worker| worker.address.as_str()).collect::<Vec<_>>().join(",");
    let used = || workers.iter().map(|worker| process::cpu_seconds(worker.child.id())).collect::<Vec<_>>();
    let periods = || workers.iter().map(|worker| worker.group.throttled()).collect::<Result<Vec<_>>>();
    let (before, quota, started) = (used(), periods()?, Instant::now());
    let mut query = Command::new(daemons::built("miot-query")?);
    query.arg(trace).args(["--workers", &addresses, "--worker-threads", "2", sql, "--format", "csv"]);
    let rows = process::said(&mut query)?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(rows == expected, "{} workers: other rows than one process:\n{rows}\n{expected}", workers.len());
    let taken: Vec<f64> = used().iter().zip(before).map(|(now, before)| now - before).collect();
    let least = taken.iter().copied().reduce(f64::min).context("a worker")?;
    let share = least * taken.len() as f64 / taken.iter().sum::<f64>();
    ensure!(bench.is_smoke() || share >= LEAST_SHARE, "workers did not share the work: {taken:?} s of CPU");
    let shares = periods()?.into_iter().zip(quota).map(|(now, before)| now.throttled_since(before));
    let throttled = shares.reduce(f64::min).context("a worker")?;
    ensure!(
        bench.is_smoke() || throttled >= LEAST_THROTTLED,
        "the quota stopped a worker in only {:.0} % of the periods",
        throttled * 100.0
    );
    Ok(seconds)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| query | events | 1 worker, s | 4 workers, s | × | 95 % interval |\n|---|--:|--:|--:|--:|--:|\n",
    );
    for row in results["queries"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row["query"].as_str().unwrap_or(""),
            row["events"],
            number(&row["one_s"], 2),
            number(&row["all_s"], 2),
            number(&row["ratio"]["median"], 2),
            interval(&row["ratio"], 2)
        );
    }
    text
}
