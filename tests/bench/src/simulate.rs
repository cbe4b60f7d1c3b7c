//! `simulate`: requests that `miot simulate` simulates per second and core, and the scaling of
//! sweeps.
//!
//! The input is 1.4 million requests of the model of bvi, on a machine with the paper's disks. One
//! cache holds all data. The other does not, so that nearly every request goes to disk, with
//! read-ahead and write-behind. A request is about one block of 16 KiB, or four of 4 KiB. Rates are
//! per second of processor time, so that they are valid on a busy machine. The sweep is eight
//! simulations on one to all processors, in wall time.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the program")]

use crate::Bench;
use crate::report::number;
use anyhow::{Context as _, Result};
use miot_simulator::generate::{generate, named};
use miot_simulator::{Config, Workload, presets, simulate};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Name, cache in MiB, block in bytes, disks.
const CASES: [(&str, u64, u64, &str); 4] = [
    ("hits", 256, 16_384, "cray"),
    ("hits", 256, 4096, "cray"),
    ("misses", 8, 16_384, "cray"),
    ("misses", 8, 4096, "cray"),
];
/// Simulations of the sweep.
const SWEEP: usize = 8;

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let model = named("bvi").context("the model of bvi")?;
    // The model computes for some seconds before its first request.
    let seconds = bench.pick(None, None, Some(30.0));
    let workload = generate(model, seconds, 1).workload("bvi");
    let mut rows = Vec::new();
    println!("{:>8} {:>8} {:>14} {:>14}", "case", "block", "M requests/s", "M blocks/s");
    let mut best = [f64::INFINITY; CASES.len()];
    let mut blocks = [0; CASES.len()];
    for _ in 0..bench.pick(5, 3, 1) {
        for (nth, (_, size, block, storage)) in CASES.into_iter().enumerate() {
            let config = machine(storage, size, block)?;
            let before = thread_time();
            let outcome = simulate(&config, &workload)?;
            best[nth] = best[nth].min(thread_time() - before);
            blocks[nth] = outcome.cache.read + outcome.cache.written;
        }
    }
    for (nth, (name, size, block, storage)) in CASES.into_iter().enumerate() {
        let requests = workload.requests() as f64 / best[nth] / 1e6;
        let moved = blocks[nth] as f64 / best[nth] / 1e6;
        println!("{name:>8} {block:>8} {requests:>14.2} {moved:>14.2}");
        rows.push(json!({
            "case": name, "cache_mib": size, "block": block, "storage": storage,
            "million_requests_per_second": requests, "million_blocks_per_second": moved,
        }));
    }
    Ok(json!({ "speed": rows, "sweep": sweep(&workload)? }))
}

fn machine(storage: &str, size: u64, block: u64) -> Result<Config> {
    let mut config = presets::named(storage).context("a preset")?;
    (config.cache.size, config.cache.block) = (size << 20, block);
    Ok(config)
}

/// Processor time of this thread, seconds.
fn thread_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn sweep(workload: &Workload) -> Result<Vec<Value>> {
    let config = machine("cray", 256, 16_384)?;
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    let mut alone = None;
    let mut threads = 1;
    while threads <= most {
        let (next, started) = (AtomicUsize::new(0), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < SWEEP {
                        let _ = simulate(&config, workload);
                    }
                });
            }
        });
        let took = started.elapsed().as_secs_f64();
        let speedup = *alone.get_or_insert(took) / took;
        println!("sweep on {threads} threads: {took:.2} s, {speedup:.2} times as fast as on one");
        rows.push(json!({ "threads": threads, "seconds": took, "speedup": speedup }));
        threads *= 2;
    }
    Ok(rows)
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| requests of the model of bvi | cache, MiB | block | M requests/s and core | M blocks/s and core |\n|---|--:|--:|--:|--:|\n",
    );
    for row in results["speed"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row["case"].as_str().unwrap_or(""),
            row["cache_mib"],
            row["block"],
            number(&row["million_requests_per_second"], 2),
            number(&row["million_blocks_per_second"], 1),
        );
    }
    text.push_str("\n| threads of a sweep | seconds | speed-up |\n|--:|--:|--:|\n");
    for row in results["sweep"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            row["threads"],
            number(&row["seconds"], 2),
            number(&row["speedup"], 2)
        );
    }
    text
}
