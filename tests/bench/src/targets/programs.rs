//! Targets of whole programs.

use super::Limit::{Maximum, Zero};
use super::{Found, Limit, Target, push};
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

/// Adds the worst program of each group, with the log-server in each place.
pub(super) fn apps(results: &Value, targets: &mut Vec<Target>) {
    const ZERO: Limit = Zero(1.0);
    const TIMES_FLOOR: Limit = Maximum(1.2);
    for (what, part, place, limit) in [
        ("fio 4 KiB direct, ext4, worst of three", "direct", "ext4", ZERO),
        ("fio 4 KiB direct, GlusterFS, worst of three", "direct", "GlusterFS", ZERO),
        ("fio 4 KiB written, GlusterFS", "random write, page cache", "GlusterFS", ZERO),
        ("metadata storm, GlusterFS", "unlink", "GlusterFS", ZERO),
        ("metadata storm, ext4", "unlink", "ext4", Maximum(3.0)),
        ("`git status` of 50 000 files, ext4", "git", "ext4", Maximum(8.0)),
        ("sqlite3, ext4", "sqlite3", "ext4", Maximum(1.0)),
    ] {
        add_programs(results, targets, (what, part, place), "wall_percent", limit, "%");
    }
    for (what, part, place) in [
        ("fio 4 KiB in the page cache beside the floor wrapper, ext4, worst of two", "page cache", "ext4"),
        (
            "fio 4 KiB read from the page cache beside the floor wrapper, GlusterFS",
            "read, page cache",
            "GlusterFS",
        ),
    ] {
        add_programs(results, targets, (what, part, place), "times_floor", TIMES_FLOOR, "×");
    }
}

/// Adds a group of programs: those whose name contains `part`. If one of them failed, the group is
/// not measured.
fn add_programs(
    results: &Value,
    targets: &mut Vec<Target>,
    (what, part, place): (&str, &str, &str),
    key: &str,
    limit: Limit,
    unit: &'static str,
) {
    let rows = |list: &str| {
        let of_group = |row: &&Value| {
            row["place"] == place && row["what"].as_str().is_some_and(|what| what.contains(part))
        };
        results[list].as_array().into_iter().flatten().filter(of_group)
    };
    let is_complete = rows("failed").next().is_none();
    for server in crate::apps::SERVERS {
        let of_server = rows("programs").filter(|row| is_complete && row["server"] == server);
        let worst = limit.worst(of_server.filter_map(|row| Found::of(&row[key])));
        push(targets, format!("{what}, {server}"), limit, unit, worst);
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
