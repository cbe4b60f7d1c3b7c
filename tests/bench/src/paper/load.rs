//! Fig. 6: CPU usage of the log-client while a client writes and reads.

use super::client::{Client, Pass, Service, WAYS};
use crate::daemons::Daemons;
use crate::report::{interval, number};
use crate::stats::median_with_interval;
use crate::{Bench, process};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Instant;

pub(super) fn run(bench: &Bench, client: &Client, daemons: &Daemons) -> Result<Value> {
    let shifts = || (12..=24).step_by(bench.pick(2, 4, 12));
    let (mut services, mut records) = (Vec::new(), daemons.records()?);
    for service in Service::BOTH {
        let rounds = bench.pick(5, 2, 1);
        let mut transfers = Vec::new();
        for shift in shifts() {
            let (mut row, requests) = measure(bench, client, daemons.pids()[0], 1 << shift, service, rounds)?;
            let found = daemons.records()? - records;
            ensure!(found >= requests, "{found} records of {requests} requests");
            records += found;
            row["records"] = found.into();
            transfers.push(row);
        }
        // The mean of each round, so that the mean of all has an interval.
        let means: Vec<f64> = (0..rounds)
            .map(|round| {
                let all = transfers.iter().filter_map(|row| row["rounds"][round].as_f64());
                all.sum::<f64>() / transfers.len() as f64
            })
            .collect();
        let mean = median_with_interval(&means);
        println!("{}: log-client {:.2} % in the mean", service.name(), mean.median);
        services.push(json!({ "service": service.name(), "transfers": transfers, "mean": mean }));
    }
    Ok(Value::Array(services))
}

/// CPU time of the log-client in each round, of a pass that writes and one that reads. Returns the
/// number of requests too.
fn measure(
    bench: &Bench,
    client: &Client,
    pid: u32,
    transfer: u64,
    service: Service,
    rounds: usize,
) -> Result<(Value, u64)> {
    let bytes = match service {
        Service::Undelayed => bench.pick(128 << 20, 128 << 20, 16 << 20),
        // A pass of half a second.
        Service::Paper => {
            let seconds = bench.pick(0.4, 0.2, 0.01);
            transfer * ((seconds / service.seconds(transfer)) as u64).clamp(1, (128 << 20) / transfer)
        }
    };
    let pass = Pass { pattern: "write", bytes, transfer, service };
    let way = &WAYS[1];
    // The first pass lays out the file.
    client.pass(way, pass)?;
    let mut percents = Vec::new();
    for _ in 0..rounds {
        let (before, started) = (process::threads_cpu(pid), Instant::now());
        client.pass(way, pass)?;
        client.pass(way, Pass { pattern: "read", ..pass })?;
        let spent = process::threads_cpu(pid).saturating_sub(before).as_secs_f64();
        percents.push(spent / started.elapsed().as_secs_f64() * 100.0);
    }
    let percent = median_with_interval(&percents);
    println!("{:6} KiB, {}: log-client {:.2} %", transfer >> 10, service.name(), percent.median);
    let row = json!({ "transfer": transfer, "percent": percent, "rounds": percents });
    Ok((row, (2 * rounds as u64 + 1) * (bytes / transfer)))
}

/// Returns the mean over all transfer sizes at the service time of the paper.
pub(super) fn mean(services: &Value) -> Option<&Value> {
    let services = services.as_array()?;
    services.iter().find(|row| row["service"] == Service::Paper.name()).map(|row| &row["mean"])
}

pub(super) fn table(services: &Value) -> String {
    let mut text = String::from("\n| Fig. 6, log-client, % of a processor |");
    let services = services.as_array().map(Vec::as_slice).unwrap_or_default();
    for service in services {
        let _ = write!(text, " {} | 95 % interval |", service["service"].as_str().unwrap_or(""));
    }
    text.push_str("\n|---|");
    services.iter().for_each(|_| text.push_str("--:|--:|"));
    text.push('\n');
    let mut row = |label: &str, find: &dyn Fn(&Value) -> Value| {
        let _ = write!(text, "| {label} |");
        for service in services {
            let figure = find(service);
            let _ = write!(text, " {} | {} |", number(&figure["median"], 2), interval(&figure, 2));
        }
        text.push('\n');
    };
    let transfers = services.first().and_then(|first| first["transfers"].as_array());
    for (at, transfer) in transfers.into_iter().flatten().enumerate() {
        let label = format!("transfers of {} KiB", transfer["transfer"].as_u64().unwrap_or(0) >> 10);
        row(&label, &|service| service["transfers"][at]["percent"].clone());
    }
    row("mean (the paper: 1.27)", &|service| service["mean"].clone());
    text
}
