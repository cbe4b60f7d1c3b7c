//! `recovery`: a log-server is killed with a large live part, and restarted.
//!
//! The measured time is from the start of the process until it welcomes a node, when it can store
//! again. The part stays live in all starts. Every event is counted afterwards.
//!
//! Beside each start, one thread reads the same files from the same place: the floor. A log-server
//! writes live parts past the page cache, so what is in the cache was read before. The bytes that
//! each log-server has read from the disk prove where its row read from.

use crate::Bench;
use crate::daemons::folder_bytes;
use crate::fleet::{Fleet, Plan, greet};
use crate::pattern::Pattern;
use crate::pipeline::count;
use crate::process;
use crate::report::number;
use crate::server::Server;
use crate::stats::Summary;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Instant;

/// Settings that prevent sealing before the end.
const NEVER_SEAL: &str = "seal_rows = 1000000000\nseal_bytes = \"64 GiB\"\nseal_after = \"10h\"";

/// Where the live part is read from, and the measurements.
struct Row {
    cached: bool,
    seconds: Vec<f64>,
    /// Seconds of the floor.
    alone: Vec<f64>,
    peak_mib: f64,
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    // About 100 bytes each in the live part.
    let events: u64 = bench.pick(11_000_000, 1_000_000, 50_000);
    let plan =
        Plan { pattern: Pattern::Mixed, nodes: 16, streams: 1, rows: 1024, batches: events / 16 / 1024 };
    let dir = bench.disk.path().join("recovery");
    let server = Server::start(&dir, NEVER_SEAL)?;
    Fleet::build(plan).ship(server.address())?;
    let folder = server.trace().join("live");
    let live = folder_bytes(&folder);
    server.kill();
    let mut rows = [false, true].map(|cached| Row { cached, seconds: vec![], alone: vec![], peak_mib: 0.0 });
    let can_drop = drop_caches();
    if !can_drop {
        eprintln!("recovery from the disk IS SKIPPED: only root can empty the page cache");
    }
    for _ in 0..bench.pick(5, 2, 1) {
        for row in rows.iter_mut().filter(|row| row.cached || can_drop) {
            if !row.cached {
                drop_caches();
            }
            let mut alone = read_all(&folder)?;
            if row.cached {
                alone = read_all(&folder)?;
            } else {
                drop_caches();
            }
            row.alone.push(alone);
            let started = Instant::now();
            let server = Server::start(&dir, NEVER_SEAL)?;
            greet(server.address())?;
            row.seconds.push(started.elapsed().as_secs_f64());
            row.peak_mib = row.peak_mib.max(process::status(server.pid(), "VmHWM") as f64 / 1024.0);
            let from_disk = bytes_from_disk(server.pid())? as f64 / live as f64;
            server.kill();
            ensure!(
                if row.cached { from_disk < 0.1 } else { from_disk > 0.9 },
                "the log-server has read {from_disk:.2} of the live part from the disk"
            );
        }
    }
    let found = count(&dir.join("trace"))?;
    ensure!(found.events == plan.events(), "{} events of {}", found.events, plan.events());
    std::fs::remove_dir_all(&dir)?;
    println!(
        "{:>10} {:>8} {:>6} {:>8} {:>14} {:>8}",
        "events", "live MiB", "cached", "seconds", "reading alone", "peak MiB"
    );
    let live_mib = live as f64 / f64::from(1 << 20);
    let rows = rows.into_iter().filter(|row| !row.seconds.is_empty()).map(|row| {
        let Row { cached, peak_mib, .. } = row;
        let [starts, alone] = [row.seconds, row.alone].map(Summary::of);
        println!(
            "{:10} {live_mib:8.0} {cached:6} {:8.2} {:14.2} {peak_mib:8.0}",
            plan.events(),
            starts.median,
            alone.median
        );
        json!({
            "events": plan.events(), "live_mib": live_mib, "cached": cached, "seconds": starts.median,
            "starts": starts, "alone": alone, "peak_mib": peak_mib,
        })
    });
    Ok(Value::Array(rows.collect()))
}

/// Empties the page cache, so that files come from the disk.
fn drop_caches() -> bool {
    // SAFETY: takes and returns nothing.
    unsafe { libc::sync() };
    std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok()
}

/// Reads all files of a folder. Returns the seconds.
fn read_all(folder: &Path) -> Result<f64> {
    let (started, mut buffer) = (Instant::now(), vec![0; 1 << 20]);
    for entry in std::fs::read_dir(folder).context("cannot read the live part")? {
        let mut file = File::open(entry?.path())?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Bytes that a process has read from storage, by the kernel's count.
fn bytes_from_disk(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).context("cannot read /proc/PID/io")?;
    let count = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    count.and_then(|count| count.parse().ok()).context("the kernel does not count bytes read from storage")
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| events unsealed | live part, MiB | read from | starts | seconds until it serves | least to greatest | \
         reading alone, s | resident memory at most, MiB |\n\
         |--:|--:|---|--:|--:|--:|--:|--:|\n",
    );
    for row in results.as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} to {} | {} | {} |",
            row["events"],
            number(&row["live_mib"], 0),
            if row["cached"] == true { "page cache" } else { "disk" },
            row["starts"]["repetitions"],
            number(&row["seconds"], 2),
            number(&row["starts"]["min"], 2),
            number(&row["starts"]["max"], 2),
            number(&row["alone"]["median"], 2),
            number(&row["peak_mib"], 0),
        );
    }
    text
}
