//! Files of all ranks, of some, and of one. The aggregate performance by each estimate is
//! recomputed from the events.

use super::{assert_figures, row, stat};
use miot_tests::mpi::{compile, traced};
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

const RANKS: u64 = 3;

/// Time of the requests in nanoseconds, counting overlaps once.
fn time<'a>(rows: impl Iterator<Item = &'a PrintedEvent>) -> u64 {
    let (mut total, mut last) = (0, i64::MIN);
    for row in rows {
        let begin = (row.time - row.duration).max(last);
        total += (row.time - begin).max(0) as u64;
        last = last.max(row.time);
    }
    total
}

/// I/O time of a rank on a file.
fn io_time(rows: &[&PrintedEvent]) -> u64 {
    let of = |ops: &'static [&'static str]| {
        time(rows.iter().copied().filter(move |row| row.result >= 0 && ops.contains(&row.op.as_str())))
    };
    of(&["write", "pwrite"]) + of(&["open", "openat", "close"])
}

#[test]
fn shared_files_and_performance_follow_from_the_events() {
    let place = fresh("characterize-ranks");
    let program = compile(&place, "shares", "shares.c", &[]);
    let (files, trace) = (place.join("files"), place.join("trace"));
    std::fs::create_dir(&files).unwrap();
    let words = [program.as_os_str(), files.as_os_str()];
    let _ = traced(&trace, RANKS as u32, &[], &words).success();
    assert_good(&trace);

    let by_file = stat(&trace, &["--by", "file", "--layer", "posix", "--path", "**/files/*"]);
    let by_process = stat(&trace, &["--by", "process", "--layer", "posix"]);
    let ranks: HashMap<u64, u64> = by_process["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| Some((row["process"].as_u64()?, row["rank"].as_u64()?)))
        .collect();
    assert_eq!(ranks.len() as u64, RANKS, "{by_process:#}");

    let events = events(&trace);
    let name = |row: &PrintedEvent| -> Option<String> {
        let path = row.path.as_deref()?;
        path.rsplit_once("/files/").map(|(_, name)| name.to_owned())
    };
    // By file and rank.
    let mut requests: BTreeMap<String, BTreeMap<u64, Vec<&PrintedEvent>>> = BTreeMap::new();
    for row in events.iter().filter(|row| row.layer == "posix") {
        if let (Some(name), Some(rank)) = (name(row), ranks.get(&row.process)) {
            requests.entry(name).or_default().entry(*rank).or_default().push(row);
        }
    }

    let shared = row(&by_file, "path", "/files/shared");
    let of_shared: Vec<u64> = requests["shared"].values().map(|rows| io_time(rows)).collect();
    let slowest = (0..RANKS as usize).max_by_key(|rank| (of_shared[*rank], RANKS as usize - rank)).unwrap();
    let fastest = (0..RANKS as usize).min_by_key(|rank| (of_shared[*rank], *rank)).unwrap();
    assert_figures(
        shared,
        &[
            ("shared_by_ranks", RANKS),
            ("opens", RANKS),
            ("bytes_written", 6000),
            ("slowest_rank", slowest as u64),
            ("slowest_rank_bytes", 1000 * (slowest as u64 + 1)),
            ("fastest_rank", fastest as u64),
            ("fastest_rank_bytes", 1000 * (fastest as u64 + 1)),
        ],
    );
    close(&shared["f_slowest_rank_time"], of_shared[slowest] as f64 / 1e9);
    close(&shared["f_fastest_rank_time"], of_shared[fastest] as f64 / 1e9);
    let mean = of_shared.iter().sum::<u64>() as f64 / 3e9;
    let variance = of_shared.iter().map(|time| (*time as f64 / 1e9 - mean).powi(2)).sum::<f64>() / 3.0;
    close(&shared["f_variance_rank_time"], variance);
    // Variance of 1000, 2000 and 3000 bytes.
    close(&shared["f_variance_rank_bytes"], 2e6 / 3.0);
    for other in ["own.0", "own.1", "own.2", "first", "most"] {
        let row = row(&by_file, "path", &format!("/files/{other}"));
        assert!(row["shared_by_ranks"].is_null() && row["slowest_rank"].is_null(), "{row:#}");
    }

    let job = stat(&trace, &["--by", "job", "--layer", "posix", "--path", "**/files/*"]);
    let job = &job["rows"][0];
    let bytes = 3000 * (1 + 2 + 3) + 6000 + 1 + 20;
    assert_figures(
        job,
        &[
            ("ranks", RANKS),
            ("nodes", 1),
            ("shared_files", 1),
            ("total_bytes_of_ranks", bytes),
            ("bytes", bytes),
        ],
    );
    let unique = |rank: u64| -> u64 {
        let unshared = requests.iter().filter(|(name, _)| *name != "shared");
        unshared.filter_map(|(_, by_rank)| by_rank.get(&rank)).map(|rows| io_time(rows)).sum()
    };
    let unique = (0..RANKS).map(unique).max().unwrap();
    let all: Vec<&PrintedEvent> =
        requests["shared"].values().flatten().copied().filter(|row| row.result >= 0).collect();
    let opened =
        all.iter().filter(|row| row.op.starts_with("open")).map(|row| row.time - row.duration).min().unwrap();
    let end = |op: &str| all.iter().filter(|row| row.op == op).map(|row| row.time).max().unwrap();
    let estimates = [
        ("agg_perf_by_slowest", of_shared[slowest]),
        ("agg_perf_by_cumul", of_shared.iter().sum::<u64>() / RANKS),
        ("agg_perf_by_open", (end("close") - opened) as u64),
        ("agg_perf_by_open_lastio", (end("pwrite") - opened) as u64),
        ("mib_per_second_per_node", (end("pwrite") - opened) as u64),
    ];
    close(&job["slowest_rank_io_time"], unique as f64 / 1e9);
    for (name, shared) in estimates {
        close(&job[name], bytes as f64 / 1_048_576.0 / ((unique + shared) as f64 / 1e9));
    }
}

#[track_caller]
fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1e-9), "{found} instead of {expected}");
}
