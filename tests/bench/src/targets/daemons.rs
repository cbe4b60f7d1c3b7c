//! Targets of the log-client and of the log-server with few nodes.

use super::Limit::{Maximum, Minimum};
use super::{Target, push};
use crate::pattern::Pattern;
use crate::report::{Group, groups};
use serde_json::Value;

fn rows(results: &Value) -> impl Iterator<Item = &Value> {
    results.as_array().into_iter().flatten()
}

pub(super) fn drain(results: &Value, targets: &mut Vec<Target>) {
    for (what, threads) in [
        ("drain without loss beside LTTng's consumer, 2 threads", 2),
        ("drain without loss beside LTTng's consumer, 8 threads", 8),
    ] {
        let rate = |key| crate::drain::rate(results, key, threads);
        let ratio = rate("alone").zip(rate("lttng")).map(|(own, peer)| own / peer);
        push(targets, what, Minimum(1.0), "×", ratio);
    }
}

pub(super) fn idle(results: &Value, targets: &mut Vec<Target>) {
    let rate = rows(&results["rates"]).find(|row| row["rate"] == 20_000);
    let per_event = rate.and_then(|row| row["client_ns"].as_f64());
    push(targets, "log-client, CPU per event at 20 000 events/s", Maximum(150.0), "ns", per_event);
    let load = |processes: u64| rows(&results["loads"]).find(|load| load["processes"] == processes);
    let share = |processes| load(processes)?["client_percent"].as_f64();
    push(targets, "log-client of an idle node, CPU of one processor", Maximum(0.1), "%", share(0));
    push(targets, "the same with 500 idle processes × 8 threads", Maximum(0.5), "%", share(500));
    let memory = load(500).and_then(|load| load["shm_mib"].as_f64());
    push(targets, "their shared memory", Maximum(256.0), "MiB", memory);
}

pub(super) fn pipeline(results: &Value, targets: &mut Vec<Target>) {
    let groups = groups(results);
    let find =
        |who: &str, streams: u64| groups.iter().find(|group| group.who == who && group.streams == streams);
    let daemons = |group: &Group<'_>| {
        Some(group.median("client_ns")? + group.median("server_ns")? + group.median("ordering_ns")?)
    };
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
    let (own, peer) = (find("MIOT", 16), find("LTTng-UST, relay daemon", 16));
    let rate = |group: Option<&Group<'_>>| group?.median("events_per_s");
    let of_client = own.and_then(|own| own.median("client_ns"));
    push(targets, "CPU of the log-client per event, 16 streams", Maximum(40.0), "ns", of_client);
    let of_both = own.and_then(daemons);
    push(targets, "CPU of log-client and log-server per event, sealed", Maximum(150.0), "ns", of_both);
    push(
        targets,
        "the same of LTTng with relay and babeltrace2, beside MIOT",
        Minimum(3.0),
        "×",
        ratio(peer.and_then(daemons), of_both),
    );
    let millions = rate(own).map(|rate| rate / 1e6);
    push(targets, "events per second to ordered files, 16 streams", Minimum(5.0), "M/s", millions);
    let beside = ratio(rate(own), rate(peer));
    push(targets, "the same beside LTTng with ordering, 16 streams", Minimum(4.0), "×", beside);
    for (what, who, streams) in [
        ("bytes per event, sealed, sequential reads, 16 streams", "MIOT", 16),
        ("bytes per event, sealed, random mixed requests, 2 streams", "MIOT, mixed requests", 2),
    ] {
        let bytes = find(who, streams).and_then(|own| own.median("final_bytes"));
        push(targets, what, Maximum(6.0), "", bytes);
    }
}

pub(super) fn bytes(results: &Value, targets: &mut Vec<Target>) {
    let mixed = rows(results).find(|row| row["pattern"] == Pattern::Mixed.name());
    let sealed = mixed.and_then(|row| row["sealed"].as_f64());
    push(
        targets,
        "bytes per event, sealed, random mixed requests, 16 streams of 16 nodes",
        Maximum(8.0),
        "",
        sealed,
    );
}

pub(super) fn recovery(results: &Value, targets: &mut Vec<Target>) {
    let of_ten_millions = |row: &Value| Some(row["seconds"].as_f64()? / row["events"].as_f64()? * 1e7);
    let slowest = rows(results).filter_map(of_ten_millions).reduce(f64::max);
    push(targets, "restart with 10 million unsealed events, after SIGKILL", Maximum(1.0), "s", slowest);
}

pub(super) fn delay(results: &Value, targets: &mut Vec<Target>) {
    let slowest = rows(results).filter_map(|row| row["p99_ms"].as_f64()).reduce(f64::max);
    push(targets, "completion to `miot tail`, 99th percentile", Maximum(100.0), "ms", slowest);
}
