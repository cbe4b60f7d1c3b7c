//! The targets of the design, and whether the figures meet them.

use crate::report::{Group, groups};
use serde_json::Value;
use std::fmt::Write as _;

/// One target: what was wanted, what was found.
struct Target {
    what: &'static str,
    wanted: String,
    /// Found value and its unit; `None`: not measured.
    found: Option<(f64, &'static str)>,
    met: fn(f64) -> bool,
    command: &'static str,
}

/// The table of all targets. `found` gives the results of a benchmark, if it ran.
pub(crate) fn table<'a>(found: &dyn Fn(&str) -> Option<&'a Value>) -> String {
    let mut targets = Vec::new();
    recording(found("op"), &mut targets);
    targets.push(Target {
        what: "1 to 64 threads: dearest beside cheapest",
        wanted: "flat (≤ 1.25 ×)".into(),
        found: found("threads").and_then(|all| spread(&all["results"])).map(|spread| (spread, "×")),
        met: |x| x <= 1.25,
        command: "threads",
    });
    hook(found("hook"), &mut targets);
    pipeline(found("pipeline"), &mut targets);
    let delay = found("delay").and_then(|all| {
        all["results"].as_array()?.iter().filter_map(|row| row["p99_ms"].as_f64()).reduce(f64::max)
    });
    targets.push(Target {
        what: "completion to `miot tail`, 99th percentile",
        wanted: "≤ 100 ms".into(),
        found: delay.map(|p99| (p99, "ms")),
        met: |x| x <= 100.0,
        command: "delay",
    });

    let mut text = String::from("| what | target | found | | command |\n|---|---|--:|---|---|\n");
    for target in targets {
        let (value, verdict) = match target.found {
            Some((value, unit)) => {
                let decimals = if value.abs() >= 100.0 {
                    0
                } else if value.abs() >= 10.0 {
                    1
                } else {
                    2
                };
                let verdict = if (target.met)(value) { "met" } else { "**not met**" };
                (format!("{value:.decimals$} {unit}"), verdict)
            }
            None => ("–".into(), "not measured"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {value} | {verdict} | `run.sh {}` |",
            target.what, target.wanted, target.command
        );
    }
    text
}

fn recording(all: Option<&Value>, targets: &mut Vec<Target>) {
    let way = |key: &str, field: &str| {
        let ways = all?["results"]["ways"].as_array()?;
        ways.iter().find(|way| way["key"] == key)?[field].as_f64()
    };
    let ratio = |key: &str| Some(way(key, "ns")? / way("miot", "ns")?);
    let mut push = |what, wanted: &str, found, met| {
        targets.push(Target { what, wanted: wanted.into(), found, met, command: "op" });
    };
    push(
        "one recorded operation, beside the floor",
        "≤ 1.2 ×",
        way("miot", "times_floor").map(|x| (x, "×")),
        |x| x <= 1.2,
    );
    push("instructions of begin + end", "≤ 120", way("miot", "instructions").map(|x| (x, "")), |x| {
        x <= 120.0
    });
    push("LTTng-UST begin + end, beside MIOT", "≥ 10 ×", ratio("lttng").map(|x| (x, "×")), |x| x >= 10.0);
    push(
        "formatted logging to disk, beside MIOT",
        "≥ 100 ×",
        ratio("formatted-disk").map(|x| (x, "×")),
        |x| x >= 100.0,
    );
    push("compiled in, switched off", "≤ 2 ns", way("miot-off", "ns").map(|x| (x, "ns")), |x| x <= 2.0);
    push(
        "compiled in, no log-client on the node",
        "≤ 2 ns",
        way("miot-dormant", "ns").map(|x| (x, "ns")),
        |x| x <= 2.0,
    );
}

/// Dearest row beside the cheapest.
fn spread(results: &Value) -> Option<f64> {
    let costs: Vec<f64> =
        results["threads"].as_object()?.values().filter_map(|row| row["miot"]["median"].as_f64()).collect();
    Some(costs.iter().copied().reduce(f64::max)? / costs.iter().copied().reduce(f64::min)?)
}

fn hook(all: Option<&Value>, targets: &mut Vec<Target>) {
    let added = |way: &str| {
        let calls = all?["results"]["calls"].as_array()?;
        calls.iter().find(|row| {
            row["place"] == "tmpfs" && row["way"].as_str().is_some_and(|name| name.starts_with(way))
        })?["added_ns"]
            .as_f64()
    };
    targets.push(Target {
        what: "the `posix` hook, beside a wrapper with 2 clock reads and a store",
        wanted: "≤ 1.2 ×".into(),
        found: added("MIOT posix hook").zip(added("floor wrapper")).map(|(own, floor)| (own / floor, "×")),
        met: |x| x <= 1.2,
        command: "hook",
    });
    let direct = all.and_then(|all| {
        let rows = all["results"]["fio"]
            .as_array()?
            .iter()
            .filter(|row| row["what"].as_str().is_some_and(|what| what.contains("direct")));
        rows.filter_map(|row| row["wall_percent"].as_f64()).reduce(f64::max)
    });
    targets.push(Target {
        what: "fio, 4 KiB direct on disk, time in the call",
        wanted: "≤ 0.5 %".into(),
        found: direct.map(|percent| (percent, "%")),
        met: |x| x <= 0.5,
        command: "hook",
    });
}

fn pipeline(all: Option<&Value>, targets: &mut Vec<Target>) {
    let groups = all.map(|all| groups(&all["results"])).unwrap_or_default();
    let find =
        |who: &str, streams: u64| groups.iter().find(|group| group.who == who && group.streams == streams);
    let daemons = |group: &Group<'_>| {
        Some(group.median("client_ns")? + group.median("server_ns")? + group.median("ordering_ns")?)
    };
    let (own, peer) = (find("MIOT", 16), find("LTTng-UST, relay daemon", 16));
    let rate = |group: Option<&Group<'_>>| group?.median("events_per_s");
    let mut push = |what, wanted: &str, found, met| {
        targets.push(Target { what, wanted: wanted.into(), found, met, command: "pipeline" });
    };
    push(
        "CPU of the log-client per event, 16 streams",
        "≤ 40 ns",
        own.and_then(|own| own.median("client_ns")).map(|x| (x, "ns")),
        |x| x <= 40.0,
    );
    push(
        "CPU of log-client and log-server per event, sealed",
        "≤ 200 ns",
        own.and_then(daemons).map(|x| (x, "ns")),
        |x| x <= 200.0,
    );
    push(
        "the same of LTTng with relay and babeltrace2, beside MIOT",
        "≥ 3 ×",
        peer.and_then(daemons).zip(own.and_then(daemons)).map(|(peer, own)| (peer / own, "×")),
        |x| x >= 3.0,
    );
    push(
        "events per second to ordered files, 16 streams",
        "≥ 3 M/s",
        rate(own).map(|x| (x / 1e6, "M/s")),
        |x| x >= 3.0,
    );
    push(
        "the same beside LTTng with ordering, 16 streams",
        "≥ 2 ×",
        rate(own).zip(rate(peer)).map(|(own, peer)| (own / peer, "×")),
        |x| x >= 2.0,
    );
    push(
        "bytes per event, sealed, sequential reads",
        "≤ 6",
        own.and_then(|own| own.median("final_bytes")).map(|x| (x, "bytes")),
        |x| x <= 6.0,
    );
    let mixed = find("MIOT, mixed requests", 2).and_then(|own| own.median("final_bytes"));
    push("bytes per event, sealed, random mixed requests", "≤ 6", mixed.map(|x| (x, "bytes")), |x| {
        x <= 6.0
    });
}
