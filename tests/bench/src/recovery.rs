//! `recovery`: a log-server is killed with a large live part, and restarted.
//!
//! The measured time is from the start of the process until it welcomes a node, when it can store
//! again. The part stays live in both starts. Every event is counted afterwards.

use crate::Bench;
use crate::daemons::folder_bytes;
use crate::fleet::{Fleet, Plan, greet};
use crate::pattern::Pattern;
use crate::pipeline::count;
use crate::process;
use crate::report::number;
use crate::server::Server;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Instant;

/// Settings that prevent sealing before the end.
const NEVER_SEAL: &str = "seal_rows = 1000000000\nseal_bytes = \"64 GiB\"\nseal_after = \"10h\"";

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    // About 100 bytes each in the live part.
    let events: u64 = bench.pick(11_000_000, 1_000_000, 50_000);
    let plan =
        Plan { pattern: Pattern::Mixed, nodes: 16, streams: 1, rows: 1024, batches: events / 16 / 1024 };
    let dir = bench.disk.path().join("recovery");
    let server = Server::start(&dir, NEVER_SEAL)?;
    Fleet::build(plan).ship(server.address())?;
    let live = folder_bytes(&server.trace().join("live"));
    server.kill();
    println!("{:>12} {:>10} {:>10} {:>8} {:>10}", "events", "live MiB", "cached", "seconds", "peak MiB");
    let mut rows = Vec::new();
    for cached in [true, false] {
        if !cached && !drop_caches() {
            eprintln!("recovery from the disk IS SKIPPED: only root can empty the page cache");
            continue;
        }
        let started = Instant::now();
        let server = Server::start(&dir, NEVER_SEAL)?;
        greet(server.address())?;
        let seconds = started.elapsed().as_secs_f64();
        let peak = process::status(server.pid(), "VmHWM") as f64 / 1024.0;
        server.kill();
        let mib = live as f64 / f64::from(1 << 20);
        println!("{:12} {mib:10.0} {cached:10} {seconds:8.2} {peak:10.0}", plan.events());
        rows.push(json!({
            "events": plan.events(), "live_mib": mib, "cached": cached, "seconds": seconds, "peak_mib": peak,
        }));
    }
    let found = count(&dir.join("trace"))?;
    ensure!(found.events == plan.events(), "{} events of {}", found.events, plan.events());
    std::fs::remove_dir_all(&dir)?;
    Ok(Value::Array(rows))
}

/// Empties the page cache, so that files come from the disk.
fn drop_caches() -> bool {
    // SAFETY: takes and returns nothing.
    unsafe { libc::sync() };
    std::fs::write("/proc/sys/vm/drop_caches", "1").is_ok()
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| events unsealed | live part, MiB | read from | seconds until it serves | resident memory at most, MiB |\n\
         |--:|--:|---|--:|--:|\n",
    );
    for row in results.as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row["events"],
            number(&row["live_mib"], 0),
            if row["cached"] == true { "page cache" } else { "disk" },
            number(&row["seconds"], 2),
            number(&row["peak_mib"], 0),
        );
    }
    text
}
