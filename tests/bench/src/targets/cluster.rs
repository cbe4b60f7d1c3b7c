//! Targets of a log-server with many nodes, and of a broker.

use super::Limit::{Maximum, Minimum};
use super::{Target, push};
use crate::nodes::of_shortest;
use crate::pattern::Pattern;
use serde_json::Value;

pub(super) fn nodes(results: &Value, targets: &mut Vec<Target>) {
    let figures = |key| {
        [Pattern::Sequential, Pattern::Mixed]
            .into_iter()
            .filter_map(move |pattern| of_shortest(results, pattern, 256, key))
    };
    let slowest = figures("durable_per_s").reduce(f64::min).map(|rate| rate / 1e6);
    push(targets, "256 nodes, durable events per second, slower pattern", Minimum(3.0), "M/s", slowest);
    let dearest = figures("server_ns").reduce(f64::max);
    push(
        targets,
        "256 nodes, CPU of the log-server per event, dearer pattern",
        Maximum(300.0),
        "ns",
        dearest,
    );
}

pub(super) fn cluster(results: &Value, targets: &mut Vec<Target>) {
    let figure = |key: &str| results[0][key].as_f64();
    let share = figure("server_share").map(|share| share * 100.0);
    push(
        targets,
        "10 000 nodes with TLS: CPU of the log-server, of one processor",
        Maximum(30.0),
        "%",
        share,
    );
    for (what, limit, unit, key) in [
        ("its memory", 1536.0, "MiB", "memory_mib"),
        ("events that are late, with a restart after SIGKILL", 0.0, "", "late"),
        ("from sending to acknowledgment, 99th percentile", 2000.0, "ms", "delay_p99_ms"),
        ("until all nodes are back after the restart", 60.0, "s", "reconnect_s"),
    ] {
        push(targets, what, Maximum(limit), unit, figure(key));
    }
}

pub(super) fn broker(results: &Value, targets: &mut Vec<Target>) {
    let ratio = results["rate_ratio"].as_f64();
    push(targets, "events/s through a broker, beside TCP", Minimum(0.7), "×", ratio);
}
