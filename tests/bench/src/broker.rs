//! `broker`: events per second through a NATS server with JetStream, beside TCP, on the same
//! processors.
//!
//! Producers wait instead of losing events, so the rate is that of the slowest part. Log-client,
//! log-server, broker and producers share the processors of this machine. The CPU time of the
//! broker counts as cost of the transport.

use crate::Bench;
use crate::daemons::{Daemons, free_port, wait_until};
use crate::pipeline::count;
use crate::process::{self, Running};
use crate::report::{medians, number};
use crate::worker::{self, Worker};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Threads that record.
const STREAMS: u64 = 16;

/// A running NATS server, killed when dropped.
struct Broker {
    server: Running,
    url: String,
}

impl Broker {
    fn start(program: &Path, dir: &Path) -> Result<Broker> {
        std::fs::create_dir_all(dir)?;
        let (port, config) = (free_port()?, dir.join("nats.conf"));
        let text =
            format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {:?} }}\n", dir.join("store"));
        std::fs::write(&config, text)?;
        let log = std::fs::File::create(dir.join("nats-server.log"))?;
        let mut command = Command::new(program);
        command.arg("-c").arg(config).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let server = Running::new(process::ends_with_us(&mut command).spawn().context("nats-server")?);
        let broker = Broker { server, url: format!("nats://127.0.0.1:{port}") };
        wait_until("nats-server", dir, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(broker)
    }

    /// Ends the server. Returns its CPU time, seconds.
    fn stop(self) -> f64 {
        self.server.terminate().cpu
    }
}

/// The NATS server that `tests/setup.sh` has installed, or that of the system.
fn program() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-broker/bin/nats-server");
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&paths).map(|folder| folder.join("nats-server"));
    std::iter::once(own).chain(others).find(|path| path.exists())
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let Some(program) = program() else {
        println!("broker: no nats-server here, skipped (tests/setup.sh installs it)");
        return Ok(json!({ "skipped": "no nats-server" }));
    };
    let events = bench.pick(6_000_000, 1_000_000, 20_000);
    println!(
        "{:8} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "broker", "M ev/s", "client", "server", "broker", "ns/event"
    );
    let mut runs = Vec::new();
    for round in 0..bench.pick(5, 3, 1) {
        for way in ["tcp", "broker"] {
            runs.push(measure(bench, &program, way, events, round)?);
        }
    }
    let runs = Value::Array(runs);
    let found = medians(&runs, "way", &["events_per_s", "cpu_ns"]);
    let of = |way: &str| found.iter().find(|(name, _)| *name == way).map(|(_, figures)| figures.clone());
    let (tcp, broker) = of("tcp").zip(of("broker")).context("both ways")?;
    let (rate, cost) = (broker[0] / tcp[0], broker[1] / tcp[1]);
    println!("through the broker: {rate:.2} × the events/s of TCP, {cost:.2} × its CPU time per event");
    Ok(json!({ "events": events, "runs": runs, "rate_ratio": rate, "cpu_ratio": cost }))
}

fn measure(bench: &Bench, program: &Path, way: &str, events: u64, round: usize) -> Result<Value> {
    let name = format!("broker-{way}-{round}");
    let (dir, node) = (bench.disk.path().join(&name), bench.memory.path().join(&name));
    let broker = (way == "broker").then(|| Broker::start(program, &dir.join("nats"))).transpose()?;
    let daemons =
        Daemons::start_through(&dir, &node, "wait", broker.as_ref().map(|broker| broker.url.as_str()))?;
    let mut command = worker::own("miot")?;
    command.env("MIOT_DIR", daemons.node());
    let mut worker = Worker::start("miot", command)?;
    let started = Instant::now();
    worker.run(events, STREAMS)?;
    worker.finish()?;
    let trace = daemons.trace().to_path_buf();
    let ended = daemons.stop()?;
    let wall = started.elapsed().as_secs_f64();
    let broker_cpu = broker.map_or(0.0, Broker::stop);
    let rows = count(&trace)?;
    // One operation of each thread before the run, and one of the worker, to check that it records.
    let wanted = events / STREAMS * STREAMS + STREAMS + 1;
    ensure!(
        rows.events == wanted && rows.lost == 0,
        "{name}: {} events of {wanted}, {} lost",
        rows.events,
        rows.lost
    );
    if way == "broker" {
        ensure!(broker_cpu > 0.0, "{name}: the broker has done nothing");
    }
    for dir in [dir, node] {
        std::fs::remove_dir_all(dir)?;
    }
    let per_event = |seconds: f64| seconds * 1e9 / wanted as f64;
    let (client, server, broker) =
        (per_event(ended.client.cpu), per_event(ended.server.cpu), per_event(broker_cpu));
    let (rate, all) = (wanted as f64 / wall, client + server + broker);
    println!("{way:8} {:8.2} {client:9.1} {server:9.1} {broker:9.1} {all:9.1}", rate / 1e6);
    Ok(json!({
        "way": way, "round": round, "events_per_s": rate, "client_ns": client, "server_ns": server,
        "broker_ns": broker, "cpu_ns": all,
    }))
}

pub(crate) fn table(results: &Value) -> String {
    if let Some(reason) = results["skipped"].as_str() {
        return format!("Not measured: {reason}.\n");
    }
    let mut text = format!(
        "{} events a run from {STREAMS} threads; medians of the rounds; CPU time per event in nanoseconds.\n\n\
         | | M events/s | log-client | log-server | broker | all |\n|---|--:|--:|--:|--:|--:|\n",
        results["events"]
    );
    let figures = ["events_per_s", "client_ns", "server_ns", "broker_ns", "cpu_ns"];
    for (way, found) in medians(&results["runs"], "way", &figures) {
        let label = if way == "tcp" { "TCP" } else { "NATS JetStream" };
        let _ = write!(text, "| {label} | {:.2} |", found[0] / 1e6);
        for cost in &found[1..] {
            let _ = write!(text, " {cost:.0} |");
        }
        text.push('\n');
    }
    let ratio = |key: &str| number(&results[key], 2);
    let _ = writeln!(
        text,
        "\nThrough the broker: {} × the events/s of TCP, {} × its CPU time per event.",
        ratio("rate_ratio"),
        ratio("cpu_ratio")
    );
    text
}
