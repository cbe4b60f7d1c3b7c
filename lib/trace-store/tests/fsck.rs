//! The check detects each kind of problem and accepts valid traces; the repair restores them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::*;
use miot_trace_store::fsck::{CheckReport, ProblemKind, check};
use miot_trace_store::repair::{RepairOutcome, repair};
use miot_trace_store::{Error, Options, Reader, Table, Writer};
use std::path::{Path, PathBuf};

/// Writes events in two parts and checks the trace.
fn checked(
    first: &[Ev],
    second: &[Ev],
    more: impl FnOnce(&mut Writer),
) -> (tempfile::TempDir, PathBuf, CheckReport) {
    let temp = dir_in_memory();
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

/// Asserts that the report has problems of this kind only.
#[track_caller]
fn only(report: &CheckReport, kind: ProblemKind, count: u64) {
    assert!(report.problems.iter().all(|p| p.kind == kind), "{report}");
    assert_eq!(report.count(kind), count, "{report}");
    assert!(!report.is_good());
}

#[test]
fn valid_trace_has_no_problems() {
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
fn disorder_is_detected() {
    // Across parts, because sealing orders the events within a part.
    let (.., report) = checked(&turn(0, 60), &[vec![ev(1_000_500, 2, 20)], turn(61, 66)].concat(), |_| {});
    assert!(report.count(ProblemKind::Disorder) >= 1, "{report}");
    let mut early = ev(1_000_595, 1, 20);
    early.flags = miot_proto::event::flag::LATE;
    let (.., report) = checked(&turn(0, 61), &[early], |_| {});
    only(&report, ProblemKind::Duplicate, 1);
    early.seq = 21;
    early.time = 1_000_600;
    let (.., report) = checked(&[turn(0, 61), vec![ev(1_000_900, 2, 20)]].concat(), &[early], |_| {});
    assert!(report.is_good(), "{report}");
    assert_eq!(report.late, 1);
}

#[test]
fn duplicate_is_detected() {
    let (.., report) = checked(&turn(0, 60), &turn(59, 66), |_| {});
    only(&report, ProblemKind::Duplicate, 1);
}

#[test]
fn gap_without_loss_or_record_is_detected() {
    // Missing: 5 and 6 of stream 1 (events 15 and 18), 5 of stream 2 (event 16).
    let missing: Vec<_> =
        turn(0, 60).into_iter().enumerate().filter(|(i, _)| ![15, 16, 18].contains(i)).map(|e| e.1).collect();
    let (.., report) = checked(&missing, &turn(60, 90), |_| {});
    only(&report, ProblemKind::Gap, 2);
    let (.., report) = checked(&missing, &turn(60, 90), |w| w.append(Table::Losses, &loss(1, 5, 6)).unwrap());
    only(&report, ProblemKind::Gap, 1);
    let (.., report) = checked(&missing, &turn(60, 90), |w| {
        w.append(Table::Losses, &loss(1, 5, 6)).unwrap();
        w.append(Table::Files, &files(&[(1, Some((2, 5)))])).unwrap();
    });
    assert!(report.is_good(), "{report}");
    assert_eq!(report.lost, 2);
    assert!(report.to_string().contains("complete except for recorded losses"), "{report}");
    let (.., report) = checked(&turn(3, 60), &[], |_| {});
    only(&report, ProblemKind::Gap, 3);
}

#[test]
fn loss_of_existing_events_is_detected() {
    let (.., report) = checked(&turn(0, 60), &[], |w| w.append(Table::Losses, &loss(1, 5, 6)).unwrap());
    only(&report, ProblemKind::Loss, 1);
    let (.., report) = checked(&turn(0, 60), &[], |w| w.append(Table::Losses, &loss(1, 20, 26)).unwrap());
    assert!(report.is_good(), "after the last event: {report}");
}

#[test]
fn undefined_ids_are_detected() {
    let mut rows = turn(0, 60);
    rows[7].file = Some(99);
    let (.., report) = checked(&rows, &[], |_| {});
    only(&report, ProblemKind::Dangling, 1);
    let (.., report) = checked(&[ev(1, 9, 0)], &[], |_| {});
    only(&report, ProblemKind::Dangling, 1);
}

#[test]
fn damaged_and_missing_files_are_detected() {
    let (_temp, dir, _) = checked(&turn(0, 60), &turn(60, 90), |_| {});
    let part = dir.join("events/part-000000.parquet");
    let bytes = std::fs::read(&part).unwrap();
    for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&part, &bytes[..length]).unwrap();
        let report = check(&dir);
        assert_eq!(report.count(ProblemKind::Unreadable), 1, "{report}");
        assert!(
            report.problems.iter().any(|p| p.part == Some(0) && p.text.contains("part-000000.parquet")),
            "{report}"
        );
    }
    std::fs::write(&part, &bytes).unwrap();
    std::fs::copy(dir.join("events/part-000001.parquet"), dir.join("events/part-000003.parquet")).unwrap();
    let report = check(&dir);
    assert_eq!(report.count(ProblemKind::MissingPart), 1, "{report}");
    assert_eq!(report.count(ProblemKind::Duplicate), 30, "{report}");
    assert_eq!(report.count(ProblemKind::Ledger), 1, "the ledger has no entry of the part: {report}");
    assert_eq!(report.problems.iter().filter(|p| p.kind == ProblemKind::Duplicate).count(), 20);
    assert!(check(dir.join("events")).count(ProblemKind::Unreadable) == 1);
    // A file with a wrong name is one problem, not 10¹² missing parts.
    std::fs::rename(dir.join("events/part-000003.parquet"), dir.join("events/part-999999999999.parquet"))
        .unwrap();
    let report = check(&dir);
    assert_eq!(report.count(ProblemKind::MissingPart), 1, "{report}");
    assert!(report.to_string().contains("part 2: and all up to 999999999998"), "{report}");
    let refused = miot_trace_store::repair::repair(&dir).unwrap_err().to_string();
    assert!(refused.contains("999999999997 parts of the trace, from 2 on, are missing"), "{refused}");
    assert!(refused.contains("move it out of the trace"), "{refused}");
}

#[test]
fn damaged_message_of_the_live_part_is_detected() {
    let temp = dir_in_memory();
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
    let report = check(&dir);
    assert_eq!(
        (report.count(ProblemKind::Unreadable), report.count(ProblemKind::Incomplete)),
        (1, 1),
        "{report}"
    );
    assert_eq!(report.count(ProblemKind::Gap), 3, "the tail of each stream: {report}");
    // Whole messages follow, so they are kept although the stream is truncated before them.
    writer.append(Table::Events, &events(&turn(60, 66))).unwrap();
    writer.commit().unwrap();
    drop(writer);
    let again = dir.parent().unwrap().join("again");
    copy(&dir, &again);
    let (_, recovered) = Writer::open(&again, Options::default()).unwrap();
    assert_eq!(recovered.cut.len(), 1);
    let aside = std::fs::metadata(again.join("damaged/live-part-000000.events.arrows")).unwrap();
    assert_eq!(aside.len(), recovered.cut[0].bytes);
    assert_eq!(recovered.lost, 66);
    let report = check(&again);
    assert!(report.is_good(), "{report}");
    assert_eq!((report.events, report.lost, report.damaged), (0, 66, 66), "{report}");
    assert!(!report.to_string().contains("complete,"), "{report}");
    // Committed rows are not a torn tail.
    std::fs::write(&live, &bytes[..last]).unwrap();
    let report = check(&dir);
    assert!(report.unfinished.len() == 1 && report.count(ProblemKind::Incomplete) == 1, "{report}");
}

/// Writes three sealed parts of thirty events with three streams each, and a live part of nine.
fn damageable(dir: &Path) {
    let mut writer = Writer::create(dir, Options::default()).unwrap();
    sides(&mut writer);
    for part in 0..3 {
        writer.append(Table::Files, &files(&[(part + 2, None)])).unwrap();
        writer.append(Table::Events, &events(&turn(part * 30, part * 30 + 30))).unwrap();
        writer.seal().unwrap();
    }
    while dir.join("live").read_dir().unwrap().next().is_some() {
        std::thread::yield_now();
    }
    writer.append(Table::Files, &files(&[(5, None)])).unwrap();
    writer.append(Table::Events, &events(&turn(90, 94))).unwrap();
    writer.commit().unwrap();
    writer.append(Table::Events, &events(&turn(94, 99))).unwrap();
    writer.commit().unwrap();
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { out.extend(all_files(&path)) } else { out.push(path) }
    }
    out.sort();
    out
}

/// Repairs a trace. Asserts that it is valid, has at least the rows that were readable before, and
/// that a writer can continue it.
#[track_caller]
fn repaired_trace(dir: &Path, what: &str) -> RepairOutcome {
    let readable: Vec<Ev> = match Reader::open(dir) {
        Ok(reader) => reader
            .parts()
            .filter_map(|(part, _)| {
                let batches = reader.batches_of(part, Table::Events).ok()?;
                batches.collect::<Result<Vec<_>, _>>().ok()
            })
            .flatten()
            .flat_map(|batch| rows_of(&batch))
            .collect(),
        Err(_) => Vec::new(),
    };
    let damaged = check(dir).problems.iter().any(|p| p.kind == ProblemKind::Unreadable);
    let repaired = repair(dir).unwrap();
    let left = read_all(dir);
    // A row of a damaged row group may be readable and wrong.
    if !damaged {
        assert!(readable.iter().all(|row| left.contains(row)), "{what}: rows were lost by the repair");
    }
    assert!(
        turn(0, 99).iter().filter(|row| left.contains(row)).count() == left.len(),
        "{what}: a row is invented"
    );
    let again = repair(dir).unwrap();
    assert!(again.repaired.is_empty(), "{what}: {:?}", again.repaired);
    let (mut writer, _) = Writer::open(dir, Options::default()).unwrap();
    writer.append(Table::Events, &events(&turn(99, 102))).unwrap();
    writer.finish().unwrap();
    repaired
}

#[test]
fn valid_trace_and_trace_in_use_are_not_repaired() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    damageable(&dir);
    let before: Vec<_> = all_files(&dir).iter().map(|file| std::fs::read(file).unwrap()).collect();
    let repaired = repair(&dir).unwrap();
    assert!(repaired.repaired.is_empty() && repaired.report.is_good());
    assert!(before == all_files(&dir).iter().map(|file| std::fs::read(file).unwrap()).collect::<Vec<_>>());
    let (_writer, _) = Writer::open(&dir, Options::default()).unwrap();
    assert!(matches!(repair(&dir), Err(Error::InUse { .. })));
}

#[test]
fn damaged_events_become_losses_and_the_rest_is_kept() {
    let temp = dir_in_memory();
    let (good, dir) = (temp.path().join("good"), temp.path().join("trace"));
    damageable(&good);
    let name = "events/part-000001.parquet";
    let whole = std::fs::read(good.join(name)).unwrap();
    let mut flipped = whole.clone();
    flipped[40] ^= 1;
    for (what, bytes) in
        [("flip", Some(&flipped[..])), ("cut", Some(&whole[..whole.len() / 2])), ("gone", None)]
    {
        let _ = std::fs::remove_dir_all(&dir);
        copy(&good, &dir);
        match bytes {
            Some(bytes) => std::fs::write(dir.join(name), bytes).unwrap(),
            None => std::fs::remove_file(dir.join(name)).unwrap(),
        }
        assert!(!check(&dir).is_good(), "{what}");
        let repaired = repaired_trace(&dir, what);
        assert!(repaired.has_lost());
        assert!(repaired.report.is_good(), "{what}: {}", repaired.report);
        assert_eq!((repaired.report.events, repaired.report.lost), (69, 30), "{what}");
        assert!(check(&dir).is_good(), "{what}");
        assert_eq!(dir.join("damaged/events-part-000001.parquet").exists(), bytes.is_some());
    }
}

/// Our readers do not use the Arrow schema of a file; others cannot open a file without it.
#[test]
fn damaged_arrow_schema_is_written_again_without_loss() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    damageable(&dir);
    let part = dir.join("events/part-000001.parquet");
    let whole = std::fs::read(&part).unwrap();
    let schema = |bytes: &[u8]| {
        let key = b"ARROW:schema";
        let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
        bytes[at..at + 400].to_vec()
    };
    let at = whole.windows(400).position(|window| window == schema(&whole)).unwrap() + 100;
    let mut damaged = whole.clone();
    damaged[at] = b'!';
    std::fs::write(&part, damaged).unwrap();
    assert!(!check(&dir).is_good());
    let repaired = repaired_trace(&dir, "schema");
    assert!(!repaired.has_lost() && repaired.report.is_good(), "{}", repaired.report);
    assert_eq!(repaired.report.events, 99);
    assert_eq!(schema(&std::fs::read(&part).unwrap()), schema(&whole));
}

#[test]
fn damaged_part_is_restored_from_its_live_files() {
    let temp = dir_in_memory();
    let (live, dir) = (temp.path().join("live"), temp.path().join("trace"));
    let mut writer = Writer::create(&live, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 30))).unwrap();
    writer.commit().unwrap();
    drop(writer);
    copy(&live, &dir);
    Writer::open(&dir, Options::default()).unwrap().0.finish().unwrap();
    copy(&live.join("live"), &dir.join("live"));
    let part = dir.join("events/part-000000.parquet");
    std::fs::write(&part, &std::fs::read(&part).unwrap()[..100]).unwrap();
    // The writer does not remove files that it may need.
    assert!(Writer::open(&dir, Options::default()).is_err());
    let repaired = repair(&dir).unwrap();
    assert!(!repaired.has_lost() && repaired.report.is_good(), "{}", repaired.report);
    assert_eq!(read_all(&dir), turn(0, 30));
}

#[test]
fn manifest_is_rewritten_only_for_a_trace() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    damageable(&dir);
    let manifest = dir.join("miot-trace.json");
    for text in [None, Some("{\"format\":\"mio"), Some("")] {
        std::fs::remove_file(&manifest).unwrap();
        if let Some(text) = text {
            std::fs::write(&manifest, text).unwrap();
        }
        let repaired = repair(&dir).unwrap();
        assert_eq!(repaired.repaired.len(), 1);
        assert!(repaired.report.is_good() && !repaired.has_lost(), "{}", repaired.report);
    }
    std::fs::remove_file(&manifest).unwrap();
    std::fs::write(dir.join("thesis.tex"), "").unwrap();
    assert!(matches!(repair(&dir), Err(Error::NotATrace { .. })));
    std::fs::create_dir(temp.path().join("other")).unwrap();
    assert!(repair(temp.path().join("other")).is_err());
}

#[test]
fn repair_keeps_every_readable_row() {
    let seed = std::env::var("MIOT_SEED").map_or(u64::from(std::process::id()), |seed| seed.parse().unwrap());
    eprintln!("MIOT_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut below = |n: usize| random.usize(..n);
    let temp = dir_in_memory();
    let (good, dir) = (temp.path().join("good"), temp.path().join("trace"));
    damageable(&good);
    let files = all_files(&good);
    for round in 0..files.len() * 4 {
        let file = files[round % files.len()].strip_prefix(&good).unwrap();
        let bytes = std::fs::read(good.join(file)).unwrap();
        let _ = std::fs::remove_dir_all(&dir);
        copy(&good, &dir);
        let at = below(bytes.len());
        let what = match round / files.len() {
            0 => {
                std::fs::remove_file(dir.join(file)).unwrap();
                format!("{}: removed", file.display())
            }
            1 => {
                std::fs::write(dir.join(file), &bytes[..at]).unwrap();
                format!("{}: cut at {at} of {}", file.display(), bytes.len())
            }
            _ => {
                let mut bytes = bytes;
                let bit = below(8);
                bytes[at] ^= 1 << bit;
                std::fs::write(dir.join(file), &bytes).unwrap();
                format!("{}: bit {bit} of byte {at} changed", file.display())
            }
        };
        // A manifest with an invalid schema version is not one of a trace.
        let Err(Error::NewerSchema { .. }) = repair_of_copy(&dir) else {
            repaired_trace(&dir, &what);
            continue;
        };
    }
}

/// Repairs a copy of a trace.
fn repair_of_copy(dir: &Path) -> Result<RepairOutcome, Error> {
    let temp = dir_in_memory();
    copy(dir, &temp.path().join("copy"));
    repair(temp.path().join("copy"))
}
