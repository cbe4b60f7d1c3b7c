//! `delay`: time from the completion of a request to its line in `miot tail -f`.
//!
//! The producer writes the completion time into the event's result. The driver takes the time when
//! the line arrives.

use crate::Bench;
use crate::daemons::{self, Daemons};
use crate::worker::{self, Worker};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let mut results = Vec::new();
    println!("{:45} {:>8} {:>8} {:>8}", "completion to `miot tail`, ms", "p50", "p99", "max");
    for (label, loaded) in [("idle node", false), ("beside a producer of 100 000 events/s", true)] {
        let mut delays = measure(bench, loaded)?;
        delays.sort_by(f64::total_cmp);
        let at = |share: f64| delays[((delays.len() - 1) as f64 * share).round() as usize];
        let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
        println!("{label:45} {p50:8.1} {p99:8.1} {max:8.1}");
        results.push(
            json!({ "what": label, "p50_ms": p50, "p99_ms": p99, "max_ms": max, "events": delays.len() }),
        );
    }
    Ok(Value::Array(results))
}

fn measure(bench: &Bench, loaded: bool) -> Result<Vec<f64>> {
    let name = format!("delay-{loaded}");
    let daemons =
        Daemons::start(&bench.disk.path().join(&name), &bench.memory.path().join(&name), "drop-newest")?;
    let worker = |way: &str| -> Result<Worker> {
        let mut command = worker::own(way)?;
        command.env("MIOT_DIR", daemons.node());
        Worker::start(way, command)
    };
    let mut stamped = worker("miot-stamped")?;
    let mut tail = Command::new(daemons::built("miot")?)
        .args(["tail", "-f", "--format", "json", "--pid", &stamped.pid().to_string(), daemons.address()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("miot tail")?;
    let lines = BufReader::new(tail.stdout.take().context("no pipe")?).lines();
    let (send, receive) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if send.send((now(), line)).is_err() {
                break;
            }
        }
    });
    let mut busy = if loaded { Some(worker("miot")?) } else { None };
    // The subscription takes effect some time after the start.
    let patience = Instant::now() + Duration::from_secs(60);
    while receive.recv_timeout(Duration::from_millis(50)).is_err() {
        ensure!(Instant::now() < patience, "`miot tail` shows nothing");
        stamped.run(1, 1)?;
    }
    let stamps = bench.pick(600, 150, 10);
    for _ in 0..stamps {
        stamped.run(1, 1)?;
        if let Some(busy) = &mut busy {
            busy.run(700, 1)?;
        }
        std::thread::sleep(Duration::from_millis(7));
    }
    std::thread::sleep(Duration::from_millis(500));
    crate::process::terminate(&mut tail);
    let _ = reader.join();
    // Each worker makes one operation more, to check that it records.
    let made: u64 = std::iter::once(&stamped).chain(&busy).map(|worker| worker.calls() + 1).sum();
    stamped.finish()?;
    busy.map(Worker::finish).transpose()?;
    let ended = daemons.stop()?;
    ensure!(ended.events + ended.lost == made, "{} events and {} losses of {made}", ended.events, ended.lost);
    let delays: Vec<f64> = receive
        .into_iter()
        .filter_map(|(seen, line)| {
            let row: Value = serde_json::from_str(&line).ok()?;
            let completed = row["result"].as_i64().filter(|_| row["op"] == "fsync")?;
            Some((seen - completed) as f64 / 1e6)
        })
        .collect();
    // Each run makes two operations. Those before the subscription are not received.
    ensure!(delays.len() as u64 >= stamps, "`miot tail` showed {} of {} events", delays.len(), 2 * stamps);
    Ok(delays)
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as i64)
}
