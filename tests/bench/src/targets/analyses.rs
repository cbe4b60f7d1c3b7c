//! Targets of analyses.

use super::Limit::{Maximum, Minimum};
use super::{Target, push};
use serde_json::Value;

pub(super) fn analysis(results: &Value, targets: &mut Vec<Target>) {
    let rows = |name: &str| results[name].as_array().into_iter().flatten();
    let figures = |key: &'static str| rows("analyses").filter_map(move |row| row[key].as_f64());
    let slowest = figures("events_per_s").reduce(f64::min).map(|rate| rate / 1e6);
    push(targets, "slowest analysis of a long trace, events", Minimum(8.0), "M/s", slowest);
    push(targets, "its memory", Maximum(512.0), "MiB", figures("peak_mib").reduce(f64::max));
    let seconds = |row: &Value| row["seconds"]["median"].as_f64();
    let beside = rows("queries").filter(|row| row["by"] == "miot query").filter_map(|ours| {
        let is_same = |row: &&Value| {
            row["by"] == "DuckDB" && ["name", "events"].iter().all(|key| row[key] == ours[key])
        };
        Some(seconds(ours)? / seconds(rows("queries").find(is_same)?)?)
    });
    push(targets, "`miot query` beside DuckDB, worst of four", Maximum(1.0), "×", beside.reduce(f64::max));
}
