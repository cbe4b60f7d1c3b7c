//! Fig. 7: passes over a file in each way, at the service time of the paper and undelayed.

use super::TRANSFER;
use super::client::{Client, Pass, Service, WAYS};
use crate::Bench;
use crate::report::{interval, number};
use crate::stats::{Interval, Repeat, Summary, median_with_interval};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const PATTERNS: [&str; 4] = ["write", "read", "random-write", "random-read"];

pub(super) fn run(bench: &Bench, client: &Client) -> Result<Value> {
    let mut rows = Vec::new();
    for service in Service::BOTH {
        let (sizes, seconds): (&[u64], f64) = match service {
            Service::Paper => (bench.pick(&[16 << 20], &[4 << 20], &[1 << 20]), bench.pick(17.0, 4.0, 0.1)),
            Service::Undelayed => (
                bench.pick(&[1 << 20, 16 << 20, 64 << 20], &[1 << 20, 16 << 20], &[1 << 20]),
                bench.pick(3.0, 1.0, 0.1),
            ),
        };
        for &bytes in sizes {
            for pattern in PATTERNS {
                let pass = Pass { pattern, bytes, transfer: TRANSFER, service };
                let repeat = Repeat {
                    least: bench.pick(5, 3, 1),
                    most: 100,
                    half_width: 0.2,
                    time: Duration::from_secs_f64(seconds),
                };
                rows.push(row(client, pass, repeat)?);
            }
        }
    }
    Ok(Value::Array(rows))
}

/// Makes the pass in each way, in turn. The order reverses with each round.
fn row(client: &Client, pass: Pass, repeat: Repeat) -> Result<Value> {
    client.pass(&WAYS[0], Pass { pattern: "write", service: Service::Undelayed, ..pass })?;
    let started = Instant::now();
    let mut times: [Vec<f64>; WAYS.len()] = Default::default();
    let percent = |own: &[f64], plain: &[f64]| -> Interval {
        let added: Vec<f64> = own.iter().zip(plain).map(|(own, plain)| (own / plain - 1.0) * 100.0).collect();
        median_with_interval(&added)
    };
    for round in 0.. {
        if repeat.is_enough(round, started.elapsed(), &[percent(&times[1], &times[0])]) {
            break;
        }
        for step in 0..WAYS.len() {
            let way = if round % 2 == 0 { step } else { WAYS.len() - 1 - step };
            times[way].push(client.pass(&WAYS[way], pass)?);
        }
    }
    let ways: Vec<Value> = WAYS
        .iter()
        .zip(&times)
        .map(|(way, own)| {
            json!({
                "way": way.name, "seconds": Summary::of(own.clone()).median, "percent": percent(own, &times[0]),
            })
        })
        .collect();
    let requests = (pass.bytes / pass.transfer) as f64;
    let per_request: Vec<f64> =
        times[1].iter().zip(&times[0]).map(|(own, plain)| (own - plain) / requests * 1e6).collect();
    let row = json!({
        "pattern": pass.pattern, "bytes": pass.bytes, "service": pass.service.name(), "ways": ways,
        "miot_us": median_with_interval(&per_request),
    });
    println!(
        "{:14} {:4} MiB, {:16} {:>9} ms, MIOT {:>6} % {:>16}",
        pass.pattern,
        pass.bytes >> 20,
        pass.service.name(),
        number(&json!(ways[0]["seconds"].as_f64().unwrap_or(0.0) * 1e3), 1),
        number(&row["ways"][1]["percent"]["median"], 2),
        interval(&row["ways"][1]["percent"], 2)
    );
    Ok(row)
}

/// Returns what MIOT adds to the passes at the service time of the paper, %.
pub(super) fn added(rows: &Value) -> impl Iterator<Item = &Value> {
    let rows = rows.as_array().into_iter().flatten();
    rows.filter(|row| row["service"] == Service::Paper.name()).map(|row| &row["ways"][1]["percent"])
}

pub(super) fn table(rows: &Value) -> String {
    let mut text = String::from(
        "\n| Fig. 7, % longer than with nothing | service time | MiB | ms with nothing | MIOT | 95 % interval | µs per request | log of I/O raw | of everything raw | log of I/O formatted | of everything formatted |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in rows.as_array().into_iter().flatten() {
        let ways = row["ways"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ms = ways.first().and_then(|way| way["seconds"].as_f64()).unwrap_or(0.0) * 1e3;
        let _ = write!(
            text,
            "| {} | {} | {} | {ms:.1} | {} | {} | {} |",
            row["pattern"].as_str().unwrap_or(""),
            row["service"].as_str().unwrap_or(""),
            row["bytes"].as_u64().unwrap_or(0) >> 20,
            number(&row["ways"][1]["percent"]["median"], 2),
            interval(&row["ways"][1]["percent"], 2),
            number(&row["miot_us"]["median"], 2)
        );
        ways.iter().skip(2).for_each(|way| _ = write!(text, " {} |", number(&way["percent"]["median"], 1)));
        text.push('\n');
    }
    text.push_str("| the paper | | | | 0.92 to 1.81 | | | | | 1.18 to 5.01 | 46.99 to 48.21 |\n");
    text
}
