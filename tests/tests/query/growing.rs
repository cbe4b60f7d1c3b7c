//! Queries of traces that are being written: each row appears once, even if parts are sealed or
//! removed meanwhile.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the tests")]

use crate::{common, parts, place, rows, value};
use miot_trace_store::{Options, Table, Writer, count_parts};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn live_part_is_included() {
    let trace = place("live").join("trace");
    let writer = parts(&trace, &[300, 30], true).unwrap();
    assert_eq!(value(&trace, "SELECT count(*), sum(bytes), max(path) FROM io"), "330,1351680,/data/1");
    assert_eq!(
        rows(&trace, "SELECT time FROM events ORDER BY time DESC LIMIT 1"),
        ["1970-01-01T00:00:00.001003290Z"]
    );
    drop(writer);
    assert_eq!(value(&trace, "SELECT count(*) FROM events"), "330", "as after a crash");
}

#[test]
fn trace_without_events_has_its_tables() {
    let trace = place("empty").join("trace");
    let writer = Writer::create(&trace, Options::default()).unwrap();
    assert_eq!(value(&trace, "SELECT count(*) FROM io"), "0");
    writer.finish().unwrap();
    for name in [
        "events",
        "processes",
        "threads",
        "files",
        "losses",
        "clocks",
        "devices",
        "io",
        "file_stats",
        "job_stats",
        "paths",
    ] {
        assert_eq!(value(&trace, &format!("SELECT count(*) FROM {name}")), "0", "{name}");
    }
}

/// Appends and seals at full speed until `enough` is set.
fn write(dir: &Path, options: Options, committed: &AtomicU64, enough: &AtomicBool) {
    let mut writer = Writer::create(dir, options).unwrap();
    common::sides(&mut writer);
    let mut at = 0;
    while !enough.load(Ordering::Relaxed) {
        for _ in 0..4 {
            writer.append(Table::Events, &common::events(&common::turn(at, at + 300))).unwrap();
            at += 300;
            writer.commit().unwrap();
            committed.store(at, Ordering::Release);
        }
        writer.seal().unwrap();
        // A limit on the number of parts. Where parts are removed, dozens always remain.
        let limit = if writer.retains() { 40 } else { 200 };
        let many = || count_parts(dir).unwrap().sealed > limit;
        while many() && !enough.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
            if writer.retain_due() {
                writer.retain().unwrap();
            }
        }
    }
    writer.finish().unwrap();
}

fn while_written(name: &str, options: Options, times: usize, check: impl Fn(&Path, u64)) {
    let trace = place(name).join("trace");
    let (committed, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| write(&trace, options, &committed, &enough));
        // Ends the writer also when a check fails.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(&enough);
        miot_tests::process::until("the first events", || committed.load(Ordering::Acquire) > 0);
        (0..times).for_each(|_| check(&trace, committed.load(Ordering::Acquire)));
    });
}

const COUNTED: &str = "SELECT count(*), count(DISTINCT id), min(t), max(t), (max(t) - min(t)) / 10 + 1
    FROM (SELECT seq * 4 + stream AS id, CAST(time AS BIGINT) AS t FROM events)";

#[test]
fn parts_sealed_meanwhile_count_once() {
    while_written("sealing", Options::default(), 12, |trace, committed| {
        let found = value(trace, COUNTED);
        let cells: Vec<&str> = found.split(',').collect();
        let count: u64 = cells[0].parse().unwrap();
        assert!(count >= committed && count.is_multiple_of(300), "{committed} were durable before: {found}");
        assert_eq!((cells[0], cells[0]), (cells[1], cells[4]), "a row twice, or a gap: {found}");
        assert_eq!(cells[2], "1000000", "{found}");
    });
}

#[test]
fn parts_removed_meanwhile_leave_no_gap() {
    let options = Options { keep_bytes: Some(200_000), ..Options::default() };
    while_written("removing", options, 8, |trace, _| {
        let found = value(trace, COUNTED);
        let cells: Vec<&str> = found.split(',').collect();
        assert_eq!((cells[0], cells[0]), (cells[1], cells[4]), "a row twice, or a gap: {found}");
        assert_eq!(
            value(
                trace,
                "SELECT count(*) FROM io WHERE (path IS DISTINCT FROM '/data/1') OR (exe IS DISTINCT FROM '/bin/cp')"
            ),
            "0"
        );
    });
}
