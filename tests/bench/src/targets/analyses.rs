//! Targets of analyses, and of the Python package.

use super::Limit::{Maximum, Minimum};
use super::{Target, push};
use crate::python::{least_ratio, region_ns};
use serde_json::Value;

pub(super) fn analysis(results: &Value, targets: &mut Vec<Target>) {
    let rows = |name: &str| results[name].as_array().into_iter().flatten();
    let figures = |key: &'static str| rows("analyses").filter_map(move |row| row[key].as_f64());
    let slowest = figures("events_per_s").reduce(f64::min).map(|rate| rate / 1e6);
    push(targets, "slowest analysis of a long trace, events", Minimum(8.0), "M/s", slowest);
    push(targets, "memory of the analyses", Maximum(512.0), "MiB", figures("peak_mib").reduce(f64::max));
    let seconds = |row: &Value| row["seconds"]["median"].as_f64();
    let beside = rows("queries").filter(|row| row["by"] == "miot query").filter_map(|ours| {
        let is_same = |row: &&Value| {
            row["by"] == "DuckDB" && ["name", "events"].iter().all(|key| row[key] == ours[key])
        };
        Some(seconds(ours)? / seconds(rows("queries").find(is_same)?)?)
    });
    push(targets, "`miot query` beside DuckDB, worst of four", Maximum(1.0), "×", beside.reduce(f64::max));
}

pub(super) fn python(results: &Value, targets: &mut Vec<Target>) {
    let region = |way| region_ns(results, way);
    push(targets, "a region in Python, recorded", Maximum(300.0), "ns", region("recorded"));
    push(targets, "a region in Python, dormant", Maximum(50.0), "ns", region("dormant"));
    let ratio = |other| least_ratio(results, other);
    push(targets, "`events().to_arrow()` in Python, beside pyarrow", Minimum(0.9), "×", ratio("pyarrow"));
    push(targets, "`stat()` in Python, beside `miot stat`", Minimum(0.95), "×", ratio("tool"));
}
