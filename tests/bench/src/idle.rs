//! `idle`: cost of a node on which many processes have recorded once and are idle now.

use crate::Bench;
use crate::daemons::Daemons;
use crate::process;
use crate::report::number;
use crate::worker::{self, Worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Threads of a process.
const THREADS: u64 = 8;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    allow_many_files()?;
    let daemons =
        Daemons::start(&bench.disk.path().join("daemons"), &bench.memory.path().join("node"), "drop-newest")?;
    let mut workers = Vec::new();
    let mut results = Vec::new();
    println!(
        "{:>9} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10}",
        "processes", "client CPU %", "server CPU %", "wakes/s", "client MiB", "producer %", "shm MiB"
    );
    for processes in bench.pick(vec![0, 50, 500], vec![0, 50], vec![0, 3]) {
        while workers.len() < processes {
            let mut command = worker::own("miot-idle")?;
            command.env("MIOT_DIR", daemons.node());
            let mut worker = Worker::start("idle", command)?;
            worker.rest(THREADS)?;
            workers.push(worker);
        }
        results.push(measure(bench, &daemons, &workers)?);
    }
    let made: u64 = workers.iter().map(Worker::calls).sum();
    for worker in workers {
        worker.finish()?;
    }
    let ended = daemons.stop()?;
    ensure!(
        ended.events == made && ended.lost == 0,
        "{} events of {made}, {} lost",
        ended.events,
        ended.lost
    );
    Ok(
        json!({ "threads": THREADS, "seconds": seconds(bench), "loads": results, "events": ended.events, "lost": ended.lost }),
    )
}

fn seconds(bench: &Bench) -> u64 {
    bench.pick(15, 3, 1)
}

fn measure(bench: &Bench, daemons: &Daemons, workers: &[Worker]) -> Result<Value> {
    settle(daemons);
    let pids = daemons.pids();
    let (client, server) = (pids[0], *pids.get(1).context("no log-server")?);
    let producers =
        || workers.iter().map(|worker| process::threads_cpu(worker.pid()).as_secs_f64()).sum::<f64>();
    let read = || {
        [
            process::threads_cpu(client).as_secs_f64(),
            process::threads_cpu(server).as_secs_f64(),
            process::status(client, "voluntary_ctxt_switches") as f64,
            producers(),
        ]
    };
    let (before, started) = (read(), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds(bench)));
    let (after, took) = (read(), started.elapsed().as_secs_f64());
    let per_second = |at: usize| (after[at] - before[at]) / took;
    let shm = process::blocks(daemons.node()) as f64 / f64::from(1 << 20);
    let row = json!({
        "processes": workers.len(),
        "client_percent": per_second(0) * 100.0,
        "server_percent": per_second(1) * 100.0,
        "client_wakes_per_s": per_second(2),
        "producers_percent": per_second(3) * 100.0,
        "client_mib": process::status(client, "VmRSS") as f64 / 1024.0,
        "shm_mib": shm,
    });
    println!(
        "{:9} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10}",
        row["processes"],
        number(&row["client_percent"], 3),
        number(&row["server_percent"], 3),
        number(&row["client_wakes_per_s"], 0),
        number(&row["client_mib"], 1),
        number(&row["producers_percent"], 3),
        number(&row["shm_mib"], 1)
    );
    Ok(row)
}

/// Waits until the log-client has processed everything: its CPU time grows no faster than before.
fn settle(daemons: &Daemons) {
    let Some(&client) = daemons.pids().first() else { return };
    let patience = Instant::now() + Duration::from_secs(30);
    let spent = || {
        let before = process::threads_cpu(client);
        std::thread::sleep(Duration::from_millis(500));
        process::threads_cpu(client).saturating_sub(before)
    };
    let mut last = spent();
    while Instant::now() < patience {
        let now = spent();
        if now.abs_diff(last) < Duration::from_millis(5) {
            return;
        }
        last = now;
    }
}

/// Raises the limit of open files, because each process needs two pipes.
fn allow_many_files() -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the in- and out-pointers have the right type.
    let answer = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("the limit of open files") }
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| idle processes | log-client, % of one processor | log-server, % | wakes of the log-client per second | resident memory of the log-client, MiB | all producers, % | `/dev/shm`, MiB |\n|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in results["loads"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            row["processes"],
            number(&row["client_percent"], 2),
            number(&row["server_percent"], 2),
            number(&row["client_wakes_per_s"], 0),
            number(&row["client_mib"], 1),
            number(&row["producers_percent"], 2),
            number(&row["shm_mib"], 1)
        );
    }
    text
}
