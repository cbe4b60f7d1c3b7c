//! A steady event rate for a long time: memory and file descriptors of the daemons stay constant,
//! and every event arrives.
//!
//! `MIOT_SOAK_MINUTES`: default 1. `MIOT_SOAK_RATE`: total events per second, default 20 000.
//! Producers live for tens of seconds, so that processes, threads and lanes start and end
//! continuously. Parts are sealed every 20 seconds.
//!
//! Constant means, over the second half of the time: a line through the samples (one per second)
//! rises by at most 16 MiB and 4 descriptors, and no sample lies more than 64 MiB or 32 descriptors
//! above the median.

use miot_tests::daemons::{client_command, free_port, server_command};
use miot_tests::deployment::Deployment;
use miot_tests::judge::Rules;
use miot_tests::producers::ProducerLoad;
use miot_tests::random::{Random, number};
use miot_tests::resource_usage::{Sample, Trend};
use std::time::{Duration, Instant};

const NODES: [&str; 3] = ["a", "b", "c"];
const PRODUCERS: usize = 3;
const THREADS: u64 = 2;
const LIFE: (u64, u64) = (20_000, 60_000);

/// Limits of memory in KiB: growth of the line, and distance above the median. The limits of
/// descriptors follow.
const MEMORY: (f64, f64) = (16.0 * 1024.0, 64.0 * 1024.0);
const FILES: (f64, f64) = (4.0, 32.0);

#[test]
fn steady_rate_keeps_memory_and_descriptors_flat() {
    let minutes = number("MIOT_SOAK_MINUTES", 1);
    let rate = number("MIOT_SOAK_RATE", 20_000);
    let mut random = Random::new(&format!("soak, {minutes} min, {rate} events/s"));
    let port = free_port();
    let mut deployment = Deployment::new("soak", |trace| {
        let mut server = server_command(&format!("127.0.0.1:{port}"), trace);
        server.env("MIOT_SERVER_LOG", "warn").env("MIOT_SERVER_SEAL_ROWS", (rate * 20).to_string());
        server
    });
    for node in NODES {
        deployment.add(node, |dir| {
            let mut client = client_command(&format!("127.0.0.1:{port}"), node, dir);
            client.env("MIOT_CLIENT_LOG", "warn").env("MIOT_CLIENT_WHEN_FULL", "wait");
            client.env("MIOT_CLIENT_STOP", "120s");
            client
        });
    }
    let threads = (NODES.len() * PRODUCERS) as u64 * THREADS;
    let load = ProducerLoad {
        threads: THREADS,
        requests: rate / threads * 20,
        stride: 16,
        pause: 100 * 1_000_000 * threads / rate,
        paths: 1000,
    };
    let start = Instant::now();
    let mut courses: Vec<(String, u32, Vec<Sample>)> = Vec::new();
    let daemons = deployment
        .nodes
        .iter()
        .zip(NODES)
        .map(|(deployed, node)| (format!("log-client {node}"), &deployed.client));
    for (name, daemon) in daemons.chain([("log-server".to_owned(), &deployment.server)]) {
        courses.push((name, daemon.id().unwrap(), Vec::new()));
    }
    let end = Duration::from_secs(minutes * 60);
    let mut next = Duration::ZERO;
    while start.elapsed() < end {
        for node in 0..NODES.len() {
            deployment.populate(node, PRODUCERS, LIFE, &mut random, |_| load);
        }
        deployment.kill_due();
        if start.elapsed() >= next {
            next += Duration::from_secs(1);
            for (name, id, samples) in &mut courses {
                let sample = Sample::of(*id, start.elapsed().as_secs_f64());
                samples.push(sample.unwrap_or_else(|| panic!("{name} is gone")));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = start.elapsed().as_secs_f64();
    let mut risen = Vec::new();
    for (name, _, samples) in &courses {
        let (memory, files) =
            (Trend::of(samples, |sample| sample.memory), Trend::of(samples, |sample| sample.files));
        eprintln!("soak: {name}: KiB {memory}; descriptors {files}");
        if !memory.is_flat(MEMORY.0, MEMORY.1) || !files.is_flat(FILES.0, FILES.1) {
            risen.push(name);
        }
    }
    let verdict = deployment.end(Rules::LANES);
    eprintln!(
        "soak: {:.0} events/s for {:.1} min",
        (verdict.delivered + verdict.lost) as f64 / took,
        took / 60.0
    );
    assert!(risen.is_empty(), "not flat: {risen:?}");
    let most_lost = verdict.delivered / 1000;
    assert!(
        verdict.lost <= most_lost,
        "{} of {} lost, although producers wait for free slots",
        verdict.lost,
        verdict.delivered
    );
}
