//! Targets of a log-server with many nodes, of a broker, of sets, of the object store, and of
//! workers of queries.

use super::Limit::{Maximum, Minimum};
use super::{Found, Target, push};
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
        ("10 000 nodes with TLS: memory of the log-server", 1536.0, "MiB", "memory_mib"),
        ("events that are late, with a restart after SIGKILL", 0.0, "", "late"),
        ("age of the time up to which the trace is final, 99th percentile", 2000.0, "ms", "lag_p99_ms"),
        ("until all nodes are back after the restart", 60.0, "s", "reconnect_s"),
    ] {
        push(targets, what, Maximum(limit), unit, figure(key));
    }
}

pub(super) fn broker(results: &Value, targets: &mut Vec<Target>) {
    let ratio = results["rate_ratio"].as_f64();
    push(targets, "events/s through a broker, beside TCP", Minimum(0.7), "×", ratio);
}

pub(super) fn sets(results: &Value, targets: &mut Vec<Target>) {
    let rows = |key: &str| results[key].as_array().into_iter().flatten();
    let set =
        |servers: u64| results["scaling"]["sets"].as_array()?.iter().find(|row| row["servers"] == servers);
    for (what, servers, limit) in [
        ("2 log-servers with the same CPU quota each, events/s beside one", 2, 1.9),
        ("4 log-servers with the same CPU quota each, events/s beside one", 4, 3.6),
    ] {
        let found = set(servers).and_then(|row| Found::of(&row["durable_ratio"]));
        push(targets, what, Minimum(limit), "×", found);
    }
    for (what, servers) in
        [("CPU per event of 2 log-servers, beside one", 2), ("CPU per event of 4 log-servers, beside one", 4)]
    {
        let found = set(servers).and_then(|row| Found::of(&row["cost_ratio"]));
        push(targets, what, Maximum(1.1), "×", found);
    }
    for (what, command) in [
        ("`miot cat` of 4 traces, rows/s beside one trace with the same rows", "cat"),
        ("`miot stat` of 4 traces, rows/s beside one trace with the same rows", "stat"),
    ] {
        let row = rows("reading").find(|row| row["command"] == command);
        push(targets, what, Minimum(0.9), "×", row.and_then(|row| Found::of(&row["ratio"])));
    }
    let slowest = rows("following").filter_map(|row| row["p99_ms"].as_f64()).reduce(f64::max);
    let what = "completion to `miot tail` of 4 log-servers, 99th percentile";
    push(targets, what, Maximum(150.0), "ms", slowest);
}

pub(super) fn distributed(results: &Value, targets: &mut Vec<Target>) {
    let queries = results["queries"].as_array().into_iter().flatten();
    let ratios = queries.filter_map(|row| Found::of(&row["ratio"])).collect::<Vec<_>>();
    let least = ratios.into_iter().reduce(|least, next| if next.value < least.value { next } else { least });
    let what = "queries on 4 workers with the same CPU quota each, rows/s beside one worker, least";
    push(targets, what, Minimum(3.0), "×", least);
}

pub(super) fn store(results: &Value, targets: &mut Vec<Target>) {
    let loads = results["loads"].as_array().into_iter().flatten();
    let parts = loads.flat_map(|load| load["parts"].as_array().into_iter().flatten());
    let slowest = parts.filter_map(|part| part["table_s"].as_f64()).reduce(f64::max);
    let what = "from the seal of a part until it is in store and table, slowest";
    push(targets, what, Maximum(5.0), "s", slowest);
}
