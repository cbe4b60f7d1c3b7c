//! Targets of the recording threads.

use super::Limit::{Maximum, Minimum};
use super::{Found, Target, push};
use crate::hook::row;
use serde_json::Value;

fn way<'a>(results: &'a Value, key: &str) -> &'a Value {
    let mut ways = results["ways"].as_array().into_iter().flatten();
    ways.find(|way| way["key"] == key).unwrap_or(&Value::Null)
}

pub(super) fn op(results: &Value, targets: &mut Vec<Target>) {
    let figure = |key, name: &str| Found::of(&way(results, key)[name]);
    let times_floor = figure("miot", "times_floor");
    push(targets, "one recorded operation, beside the floor", Maximum(1.05), "×", times_floor);
    let instructions = way(results, "miot")["instructions"].as_f64();
    push(targets, "instructions of begin + end", Maximum(100.0), "", instructions);
    for (what, limit, key) in [
        ("LTTng-UST begin + end, beside MIOT", Minimum(17.0), "lttng"),
        ("formatted logging to disk, beside MIOT", Minimum(150.0), "formatted-disk"),
        ("a full lane (drop and count), beside the normal path", Maximum(1.0), "miot-full"),
    ] {
        push(targets, what, limit, "×", figure(key, "times_miot"));
    }
    push(targets, "compiled in, switched off", Maximum(2.0), "ns", figure("miot-off", "ns"));
    push(targets, "compiled in, no log-client on the node", Maximum(2.0), "ns", figure("miot-dormant", "ns"));
}

/// Returns bounds that the floor sets for targets that are ratios to a peer.
pub(super) fn bounds(results: &Value) -> String {
    let bound = |(what, key, wanted): (&str, &str, f64)| {
        let times = way(results, key)["times_floor"]["median"].as_f64().filter(|times| *times < wanted)?;
        Some(format!(
            "\n{what} costs {times:.1} × the floor on this processor, so nothing that reads the clock twice and stores \
             a record can be {wanted} × cheaper than it here.\n"
        ))
    };
    let peers =
        [("LTTng-UST (begin and end)", "lttng", 17.0), ("Formatted logging", "formatted-disk", 150.0)];
    peers.into_iter().filter_map(bound).collect()
}

pub(super) fn threads(results: &Value, targets: &mut Vec<Target>) {
    let rows = results["threads"].as_object().into_iter().flatten();
    let costs: Vec<f64> = rows.filter_map(|(_, row)| row["miot"]["median"].as_f64()).collect();
    let most = costs.iter().copied().reduce(f64::max);
    let spread = most.zip(costs.iter().copied().reduce(f64::min)).map(|(most, least)| most / least);
    push(targets, "1 to 64 threads: dearest beside cheapest", Maximum(1.1), "×", spread);
}

pub(super) fn hook(results: &Value, targets: &mut Vec<Target>) {
    let times_floor = |call| Found::of(&row(results, call, "hook")?["times_floor"]);
    push(
        targets,
        "the `posix` hook, `pread`, beside a wrapper with 2 clock reads and a store",
        Maximum(1.15),
        "×",
        times_floor("pread"),
    );
    let added = row(results, "pread", "hook").and_then(|row| row["added_instructions"].as_f64());
    push(targets, "instructions that the `posix` hook adds to a `pread`", Maximum(130.0), "", added);
    for (what, call) in [
        ("the `posix` hook, `stat`, beside a wrapper that also stores the path", "stat"),
        ("the `posix` hook, `open` and `close`, beside a wrapper that also stores the path", "open"),
    ] {
        push(targets, what, Maximum(1.5), "×", times_floor(call));
    }
    for (what, key) in [
        ("the `posix` hook without a log-client, beyond a wrapper that only forwards", "dormant"),
        ("the `posix` hook switched off, beyond a wrapper that only forwards", "off"),
    ] {
        let beyond = row(results, "pread", key).and_then(|row| Found::of(&row["beyond_empty_ns"]));
        push(targets, what, Maximum(2.0), "ns", beyond);
    }
}
