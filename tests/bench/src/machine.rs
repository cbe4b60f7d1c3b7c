//! The machine that the figures are from, and its state.

use serde_json::{Value, json};
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

/// Describes processor, memory and kernel.
pub(crate) fn describe() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let line = |text: &str, key: &str| {
        let found = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'));
        found.map(|(_, value)| value.trim().to_string()).unwrap_or_default()
    };
    let cpu = read("/proc/cpuinfo");
    json!({
        "cpu": line(&cpu, "model name"),
        "cpus": processors(),
        "tsc_ghz": round(tsc_ghz()),
        "memory": line(&read("/proc/meminfo"), "MemTotal"),
        "virtual": cpu.contains(" hypervisor"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

/// State that changes during benchmarks: load of the machine, current speed of its processor.
pub(crate) fn state() -> Value {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let date = output("date", &["-u", "+%Y-%m-%d %H:%M"]);
    json!({
        "load": text.split_whitespace().next().and_then(|load| load.parse::<f64>().ok()),
        "core_ghz": round(core_ghz()),
        "utc": date,
    })
}

/// Commit that is measured, and whether the tree differs from it.
pub(crate) fn commit() -> Option<String> {
    let dir = env!("CARGO_MANIFEST_DIR");
    output("git", &["-C", dir, "describe", "--always", "--dirty", "--exclude=*"])
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

fn round(ghz: f64) -> f64 {
    (ghz * 1000.0).round() / 1000.0
}

/// Ticks of the time stamp counter per nanosecond.
pub(crate) fn tsc_ghz() -> f64 {
    let (start, ticks) = (Instant::now(), miot_tracer::ticks());
    std::thread::sleep(Duration::from_millis(50));
    let (ticks, time) = (miot_tracer::ticks() - ticks, start.elapsed());
    ticks as f64 / time.as_nanos() as f64
}

/// Cycles of the core per nanosecond under load, from a chain of multiplications and rotations,
/// which take three cycles and one. The fastest of many short tries, to exclude other load.
fn core_ghz() -> f64 {
    const ROUNDS: u64 = 5_000;
    const CYCLES: u64 = 4 * 4;
    let step = |x: u64| x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(1);
    let chain = || {
        let start = Instant::now();
        let (mut x, mut left) = (black_box(3u64), ROUNDS);
        // Several steps a round: in a build without optimization the loop takes longer than a step.
        while left > 0 {
            x = step(step(step(step(x))));
            left -= 1;
        }
        black_box(x);
        (ROUNDS * CYCLES) as f64 / start.elapsed().as_nanos() as f64
    };
    (0..375).map(|_| chain()).fold(0.0, f64::max)
}

/// Number of processors that this process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
