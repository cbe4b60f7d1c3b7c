//! Targets of whole programs.

use super::Limit::Maximum;
use super::{Found, Target, push};
use serde_json::Value;

pub(super) fn startup(results: &Value, targets: &mut Vec<Target>) {
    let added = |key: &str| {
        let way = results["ways"].as_array()?.iter().find(|way| way["key"] == key)?;
        Found::of(&way["added_us"])
    };
    push(
        targets,
        "added to a program that lives for a moment, recording",
        Maximum(60.0),
        "µs",
        added("recording"),
    );
    push(targets, "the same without a log-client", Maximum(35.0), "µs", added("dormant"));
}

/// Adds the most expensive program of each group.
pub(super) fn apps(results: &Value, targets: &mut Vec<Target>) {
    let worst = |start: &str, place: &str| {
        let rows = results["programs"].as_array()?.iter().filter(|row| {
            row["place"] == place && row["what"].as_str().is_some_and(|what| what.contains(start))
        });
        rows.filter_map(|row| Found::of(&row["wall_percent"]))
            .reduce(|worst, row| if row.value > worst.value { row } else { worst })
    };
    for (what, part, place) in [
        ("fio 4 KiB, GlusterFS: time in the call, worst of four", "fio", "GlusterFS"),
        ("fio 4 KiB direct, ext4: time in the call, worst of two", "direct", "ext4"),
        ("fio 4 KiB in the page cache, ext4: worst of two", "page cache", "ext4"),
        ("metadata storm, GlusterFS", "unlink", "GlusterFS"),
        ("metadata storm, ext4", "unlink", "ext4"),
        ("`git status` of 50 000 files, ext4", "git", "ext4"),
        ("sqlite3, ext4", "sqlite3", "ext4"),
    ] {
        push(targets, what, Maximum(0.5), "%", worst(part, place));
    }
}

pub(super) fn fuse(results: &Value, targets: &mut Vec<Target>) {
    let times = |measure: &str| {
        let mut rows = results["rows"].as_array()?.iter();
        let row = rows.find(|row| row["measure"] == measure && row["key"] == "recording")?;
        Found::of(&row["time_of_libfuse"])
    };
    for (what, measure) in [
        ("`stat` through miot-fuse, recording, beside libfuse's `passthrough_ll`", "stat"),
        ("`open` and `close` through miot-fuse, recording, beside the same", "open"),
    ] {
        push(targets, what, Maximum(1.1), "×", times(measure));
    }
}
