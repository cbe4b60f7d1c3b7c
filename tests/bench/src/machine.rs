//! The machine the figures are from.

use serde_json::{Value, json};

/// Processor, memory, kernel, and how busy it was.
pub(crate) fn describe() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let line = |text: &str, key: &str| {
        let found = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'));
        found.map(|(_, value)| value.trim().to_string()).unwrap_or_default()
    };
    let cpu = read("/proc/cpuinfo");
    json!({
        "cpu": line(&cpu, "model name"),
        "cpus": std::thread::available_parallelism().map_or(1, usize::from),
        "tsc_ghz": (tsc_ghz() * 1000.0).round() / 1000.0,
        "memory": line(&read("/proc/meminfo"), "MemTotal"),
        "virtual": cpu.contains(" hypervisor"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").split_whitespace().next(),
    })
}

/// Ticks of the time stamp counter per nanosecond.
pub(crate) fn tsc_ghz() -> f64 {
    let (start, ticks) = (std::time::Instant::now(), miot_tracer::ticks());
    std::thread::sleep(std::time::Duration::from_millis(50));
    let (ticks, time) = (miot_tracer::ticks() - ticks, start.elapsed());
    ticks as f64 / time.as_nanos() as f64
}
