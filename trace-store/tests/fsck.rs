//! Each thing that can be wrong with a trace is found, and a good one is good.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::*;
use miot_trace_store::fsck::{Kind, Report, check};
use miot_trace_store::{Options, Table, Writer};
use std::path::PathBuf;

/// Writes events in two parts and checks.
fn checked(
    first: &[Ev],
    second: &[Ev],
    more: impl FnOnce(&mut Writer),
) -> (tempfile::TempDir, PathBuf, Report) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("trace");
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    more(&mut writer);
    writer.append(Table::Events, &events(first)).unwrap();
    writer.seal().unwrap();
    writer.append(Table::Events, &events(second)).unwrap();
    writer.finish().unwrap();
    let report = check(&dir);
    (temp, dir, report)
}

/// The report has problems of this kind only.
#[track_caller]
fn only(report: &Report, kind: Kind, count: u64) {
    assert!(report.problems.iter().all(|p| p.kind == kind), "{report}");
    assert_eq!(report.count(kind), count, "{report}");
    assert!(!report.is_good());
}

#[test]
fn a_good_trace_is_good() {
    let (_temp, dir, report) = checked(&turn(0, 60), &turn(60, 90), |_| {});
    assert!(report.is_good(), "{report}");
    assert_eq!((report.events, report.parts, report.streams), (90, 2, 3));
    assert!(report.to_string().ends_with("every reference resolves"));
    let (mut writer, _) = Writer::open(&dir, Options::default()).unwrap();
    writer.append(Table::Events, &events(&turn(90, 96))).unwrap();
    writer.commit().unwrap();
    let report = check(&dir);
    assert!(report.is_good(), "{report}");
    assert_eq!((report.events, report.parts, report.sealed_parts), (96, 3, 2));
}

#[test]
fn disorder_is_found() {
    // Within a part sealing puts it right, so across parts.
    let (.., report) = checked(&turn(0, 60), &[vec![ev(1_000_500, 2, 20)], turn(61, 66)].concat(), |_| {});
    assert!(report.count(Kind::Disorder) >= 1, "{report}");
    let mut early = ev(1_000_595, 1, 20);
    early.flags = miot_proto::event::flag::LATE;
    let (.., report) = checked(&turn(0, 61), &[early], |_| {});
    only(&report, Kind::Duplicate, 1);
    early.seq = 21;
    early.time = 1_000_600;
    let (.., report) = checked(&[turn(0, 61), vec![ev(1_000_900, 2, 20)]].concat(), &[early], |_| {});
    assert!(report.is_good(), "{report}");
    assert_eq!(report.late, 1);
}

#[test]
fn a_duplicate_is_found() {
    let (.., report) = checked(&turn(0, 60), &turn(59, 66), |_| {});
    only(&report, Kind::Duplicate, 1);
}

#[test]
fn a_gap_is_found_unless_a_loss_or_a_record_accounts_for_it() {
    // Stream 1 misses 5 and 6 (events 15 and 18), stream 2 misses 5 (event 16).
    let missing: Vec<_> =
        turn(0, 60).into_iter().enumerate().filter(|(i, _)| ![15, 16, 18].contains(i)).map(|e| e.1).collect();
    let (.., report) = checked(&missing, &turn(60, 90), |_| {});
    only(&report, Kind::Gap, 2);
    let (.., report) = checked(&missing, &turn(60, 90), |w| w.append(Table::Losses, &loss(1, 5, 6)).unwrap());
    only(&report, Kind::Gap, 1);
    let (.., report) = checked(&missing, &turn(60, 90), |w| {
        w.append(Table::Losses, &loss(1, 5, 6)).unwrap();
        w.append(Table::Files, &files(&[(1, Some((2, 5)))])).unwrap();
    });
    assert!(report.is_good(), "{report}");
    assert_eq!(report.lost, 2);
    let (.., report) = checked(&turn(3, 60), &[], |_| {});
    only(&report, Kind::Gap, 3);
}

#[test]
fn a_loss_of_what_is_there_is_found() {
    let (.., report) = checked(&turn(0, 60), &[], |w| w.append(Table::Losses, &loss(1, 5, 6)).unwrap());
    only(&report, Kind::Loss, 1);
    let (.., report) = checked(&turn(0, 60), &[], |w| w.append(Table::Losses, &loss(1, 20, 26)).unwrap());
    assert!(report.is_good(), "after the last event: {report}");
}

#[test]
fn what_refers_to_nothing_is_found() {
    let mut rows = turn(0, 60);
    rows[7].file = Some(99);
    let (.., report) = checked(&rows, &[], |_| {});
    only(&report, Kind::Dangling, 1);
    let (.., report) = checked(&[ev(1, 9, 0)], &[], |_| {});
    only(&report, Kind::Dangling, 1);
}

#[test]
fn damaged_and_missing_files_are_found() {
    let (_temp, dir, _) = checked(&turn(0, 60), &turn(60, 90), |_| {});
    let part = dir.join("events/part-000000.parquet");
    let bytes = std::fs::read(&part).unwrap();
    for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&part, &bytes[..length]).unwrap();
        let report = check(&dir);
        assert_eq!(report.count(Kind::Unreadable), 1, "{report}");
        assert!(
            report.problems.iter().any(|p| p.part == Some(0) && p.text.contains("part-000000.parquet")),
            "{report}"
        );
    }
    std::fs::write(&part, &bytes).unwrap();
    std::fs::copy(dir.join("events/part-000001.parquet"), dir.join("events/part-000003.parquet")).unwrap();
    let report = check(&dir);
    assert_eq!(report.count(Kind::MissingPart), 1, "{report}");
    assert_eq!(report.count(Kind::Duplicate), 30, "{report}");
    assert_eq!(report.problems.iter().filter(|p| p.kind == Kind::Duplicate).count(), 20);
    assert!(check(dir.join("events")).count(Kind::Unreadable) == 1);
}

#[test]
fn a_damaged_message_of_the_live_part_is_found() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("trace");
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 60))).unwrap();
    writer.commit().unwrap();
    let live = dir.join("live/part-000000.events.arrows");
    let mut bytes = std::fs::read(&live).unwrap();
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    std::fs::write(&live, &bytes).unwrap();
    only(&check(&dir), Kind::Unreadable, 1);
    std::fs::write(&live, &bytes[..last]).unwrap();
    let report = check(&dir);
    assert!(report.is_good() && report.unfinished.len() == 1, "{report}");
}
