//! `idle`: cost of a node with few events: with low rates, and with many processes that have
//! recorded once and are idle now.

use crate::Bench;
use crate::daemons::Daemons;
use crate::process;
use crate::report::number;
use crate::worker::{self, Worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Threads of an idle process.
const THREADS: u64 = 8;

/// Low rates, events per second.
const RATES: [u64; 2] = [20_000, 200_000];

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    process::allow_many_files()?;
    // No loss is the subject, and on a busy machine the log-client may be late.
    let daemons =
        Daemons::start(&bench.disk.path().join("daemons"), &bench.memory.path().join("node"), "wait")?;
    let mut command = worker::own("miot")?;
    command.env("MIOT_DIR", daemons.node());
    let mut recorder = Worker::start("recorder", command)?;
    println!("{:>9} {:>18} {:>18} {:>10}", "events/s", "client ns/event", "server ns/event", "wakes/s");
    let rates = RATES.map(|rate| low_rate(bench, &daemons, &mut recorder, rate));
    let rates = rates.into_iter().collect::<Result<Vec<_>>>()?;
    // The worker records one operation to check that it records.
    let recorded = recorder.calls() + 1;
    recorder.finish()?;
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
    let made = recorded + workers.iter().map(Worker::calls).sum::<u64>();
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
        json!({ "threads": THREADS, "seconds": seconds(bench), "rates": rates, "loads": results, "events": ended.events, "lost": ended.lost }),
    )
}

fn seconds(bench: &Bench) -> u64 {
    bench.pick(15, 3, 1)
}

/// The log-client and the log-server.
fn pids(daemons: &Daemons) -> Result<(u32, u32)> {
    let pids = daemons.pids();
    Ok((pids[0], *pids.get(1).context("no log-server")?))
}

fn low_rate(bench: &Bench, daemons: &Daemons, recorder: &mut Worker, rate: u64) -> Result<Value> {
    settle(daemons);
    let (client, server) = pids(daemons)?;
    let read = || {
        [
            process::threads_cpu(client).as_secs_f64(),
            process::threads_cpu(server).as_secs_f64(),
            process::status(client, "voluntary_ctxt_switches") as f64,
        ]
    };
    let before = read();
    let paced = recorder.paced(rate, seconds(bench) * 1000, 2)?;
    settle(daemons);
    let after = read();
    let per = |at: usize, count: f64| (after[at] - before[at]) / count;
    let row = json!({
        "rate": rate,
        "events": paced.recorded,
        "client_ns": per(0, paced.recorded) * 1e9,
        "server_ns": per(1, paced.recorded) * 1e9,
        "client_wakes_per_s": per(2, paced.wall_ns / 1e9),
    });
    println!(
        "{rate:9} {:>18} {:>18} {:>10}",
        number(&row["client_ns"], 1),
        number(&row["server_ns"], 1),
        number(&row["client_wakes_per_s"], 0)
    );
    Ok(row)
}

fn measure(bench: &Bench, daemons: &Daemons, workers: &[Worker]) -> Result<Value> {
    settle(daemons);
    let (client, server) = pids(daemons)?;
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

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| events per second | log-client, CPU ns per event | log-server, CPU ns per event | wakes of the log-client per second |\n|--:|--:|--:|--:|\n",
    );
    for row in results["rates"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            row["rate"],
            number(&row["client_ns"], 0),
            number(&row["server_ns"], 0),
            number(&row["client_wakes_per_s"], 0)
        );
    }
    text.push_str(
        "\n| idle processes | log-client, % of one processor | log-server, % | wakes of the log-client per second | resident memory of the log-client, MiB | all producers, % | `/dev/shm`, MiB |\n|--:|--:|--:|--:|--:|--:|--:|\n",
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
