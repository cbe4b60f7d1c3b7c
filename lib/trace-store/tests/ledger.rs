//! Each row that was in a trace exists or is recorded as lost, for any damage of the files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt64Array};
use common::*;
use miot_trace_store::fsck::{ProblemKind, check};
use miot_trace_store::repair::repair;
use miot_trace_store::{Error, Options, Reader, Table, Writer, schema};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Events of the trace, by part: three streams in each, and stream 4 in part 1 only.
fn known() -> Vec<Vec<Ev>> {
    (0..4u64)
        .map(|part| {
            let mut rows = turn(part * 30, part * 30 + 30);
            if part == 1 {
                let last = rows.last().unwrap().time;
                rows.extend((0..7).map(|seq| ev(last + 1, 4, seq)));
            }
            // Numbers 12 of stream 1 and 22 of stream 2 were lost in their lanes; 31 of stream 3 is
            // a record.
            let other = [(1, 12), (2, 22), (3, 31)];
            rows.retain(|row| !other.contains(&(row.stream, row.seq)));
            rows
        })
        .collect()
}

/// A loss without a range.
fn nested(count: u64) -> RecordBatch {
    let one = |v: u64| -> ArrayRef { Arc::new(UInt64Array::from(vec![v])) };
    let none = || -> ArrayRef { Arc::new(UInt64Array::from(vec![None::<u64>])) };
    let text = |v: &str| -> ArrayRef { Arc::new(StringArray::from(vec![v])) };
    let columns = vec![times([1]), text("n1"), one(1), one(1), text("nested"), one(count), none(), none()];
    schema::batch(Table::Losses, columns).unwrap()
}

/// Writes three sealed parts and a live one with two commits.
fn write(dir: &Path) {
    let mut writer = Writer::create(dir, Options::default()).unwrap();
    writer.append(Table::Processes, &processes(&[1])).unwrap();
    writer.append(Table::Threads, &threads(&[1, 2, 3, 4])).unwrap();
    writer.append(Table::Files, &files(&[(1, None)])).unwrap();
    for (part, rows) in known().iter().enumerate() {
        match part {
            1 => {
                writer.append(Table::Losses, &loss(1, 12, 12)).unwrap();
                writer.append(Table::Losses, &nested(5)).unwrap();
            }
            2 => writer.append(Table::Losses, &loss(2, 22, 22)).unwrap(),
            3 => {
                writer.append(Table::Files, &files(&[(2, Some((3, 31)))])).unwrap();
                writer.append(Table::Losses, &nested(3)).unwrap();
                writer.append(Table::Processes, &processes(&[2])).unwrap();
            }
            _ => {}
        }
        let (first, second) = rows.split_at(rows.len() / 2);
        writer.append(Table::Events, &events(first)).unwrap();
        writer.commit().unwrap();
        writer.append(Table::Events, &events(second)).unwrap();
        if part < 3 {
            writer.seal().unwrap();
        }
        writer.commit().unwrap();
    }
    while (0..3).any(|part| dir.join(format!("live/part-00000{part}.events.arrows")).exists()) {
        std::thread::yield_now();
    }
}

/// Returns the places of `losses` by stream and number, and the count of losses without a range.
fn told(dir: &Path) -> (BTreeMap<(u64, u64), Vec<String>>, u64) {
    let (mut numbers, mut unranged) = (BTreeMap::<_, Vec<String>>::new(), 0);
    for batch in Reader::open(dir).unwrap().table(Table::Losses).unwrap() {
        let column = |name: &str| schema::column::<UInt64Type>(&batch, name).unwrap();
        let [stream, count, first, last] = ["stream", "count", "first_seq", "last_seq"].map(column);
        let places = batch.column_by_name("place").unwrap().as_string::<i32>();
        for row in 0..batch.num_rows() {
            if first.is_null(row) || stream.is_null(row) {
                unranged += count.value(row);
                continue;
            }
            assert_eq!(last.value(row) - first.value(row) + 1, count.value(row));
            for seq in first.value(row)..=last.value(row) {
                let place = places.value(row).to_owned();
                numbers.entry((stream.value(row), seq)).or_default().push(place);
            }
        }
    }
    (numbers, unranged)
}

/// Asserts that each number that was in the trace is exactly one event, record or loss. Returns the
/// number of lost events.
#[track_caller]
fn conserved(dir: &Path, what: &str) -> u64 {
    let (numbers, unranged) = told(dir);
    assert_eq!(unranged, 8, "{what}: {numbers:?}");
    let there: Vec<(u64, u64)> = read_all(dir).iter().map(|row| (row.stream, row.seq)).collect();
    let mut lost = 0;
    for row in known().concat() {
        let number = (row.stream, row.seq);
        let present = there.iter().filter(|found| **found == number).count();
        let told = numbers.get(&number).map_or(0, Vec::len);
        assert_eq!(present + told, 1, "{what}: event {} of stream {}", row.seq, row.stream);
        lost += told as u64;
    }
    assert_eq!(there.len() as u64 + lost, known().concat().len() as u64, "{what}: an event is invented");
    for number in [(1, 12), (2, 22)] {
        assert_eq!(numbers.get(&number).map_or(0, Vec::len), 1, "{what}: {number:?}: {numbers:?}");
    }
    let report = check(dir);
    assert_eq!(report.count(ProblemKind::Gap) + report.count(ProblemKind::Loss), 0, "{what}: {report}");
    assert!(lost == 0 || report.damaged >= lost, "{what}: {report}");
    assert!(lost == 0 || !report.to_string().contains(" complete,"), "{what}: {report}");
    lost
}

fn fresh() -> (tempfile::TempDir, PathBuf) {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    write(&dir);
    let report = check(&dir);
    assert!(
        report.is_good() && report.to_string().contains("complete except for recorded losses,"),
        "{report}"
    );
    (temp, dir)
}

#[test]
fn removed_part_is_detected_and_recorded_by_a_repair() {
    for part in 0..3usize {
        let (_temp, dir) = fresh();
        fs::remove_file(dir.join(format!("events/part-{part:06}.parquet"))).unwrap();
        let report = check(&dir);
        assert!(!report.is_good() && report.count(ProblemKind::Gap) > 0, "{report}");
        let repaired = repair(&dir).unwrap();
        assert!(repaired.has_lost() && repaired.report.is_good(), "{}", repaired.report);
        assert_eq!(conserved(&dir, "part"), known()[part].len() as u64);
        assert!(repair(&dir).unwrap().repaired.is_empty());
    }
}

#[test]
fn missing_last_part_is_detected() {
    let (_temp, dir) = fresh();
    // The part is sealed and the last one.
    Writer::open(&dir, Options::default()).unwrap().0.finish().unwrap();
    for table in Table::ALL {
        let _ = fs::remove_file(dir.join(format!("{table}/part-000003.parquet")));
    }
    let report = check(&dir);
    assert!(report.count(ProblemKind::MissingPart) == 1 && report.count(ProblemKind::Gap) == 3, "{report}");
    let repaired = repair(&dir).unwrap();
    // The record of stream 3 is missing too, and it is unknown that it was not an event.
    assert_eq!(repaired.report.damaged, known()[3].len() as u64 + 1 + 3, "{}", repaired.report);
    assert_eq!(repaired.report.gone.iter().map(|gone| gone.rows).sum::<u64>(), 3, "{}", repaired.report);
    assert_eq!(conserved(&dir, "last part"), known()[3].len() as u64);
}

#[test]
fn next_writer_records_a_damaged_live_file() {
    for table in Table::ALL {
        let (_temp, dir) = fresh();
        let path = dir.join(format!("live/part-000003.{table}.arrows"));
        let Ok(mut bytes) = fs::read(&path) else { continue };
        let middle = bytes.len() / 2;
        bytes[middle..middle + 64].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&path, bytes).unwrap();
        assert!(!check(&dir).is_good(), "{table}");
        let (mut writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
        assert!(table != Table::Events || recovered.lost > 0);
        writer.append(Table::Events, &events(&turn(120, 126))).unwrap();
        writer.commit().unwrap();
        drop(writer);
        let (numbers, unranged) = told(&dir);
        assert_eq!(unranged, 8, "{table}");
        let there: Vec<_> = read_all(&dir).iter().map(|row| (row.stream, row.seq)).collect();
        for row in known().concat().iter().chain(&turn(120, 126)) {
            let number = (row.stream, row.seq);
            assert_eq!(there.contains(&number), !numbers.contains_key(&number), "{table}: {number:?}");
        }
        let report = check(&dir);
        assert_eq!(
            report.count(ProblemKind::Gap) + report.count(ProblemKind::Incomplete),
            0,
            "{table}: {report}"
        );
        assert!(report.damaged > 0 || !report.gone.is_empty(), "{table}: {report}");
        // It is not recorded again.
        let (writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
        assert_eq!(recovered.lost, 0);
        writer.finish().unwrap();
        assert_eq!(check(&dir).damaged, report.damaged);
    }
}

#[test]
fn next_writer_records_missing_live_files() {
    let (_temp, dir) = fresh();
    fs::remove_dir_all(dir.join("live")).unwrap();
    assert!(check(&dir).count(ProblemKind::MissingPart) == 1, "{}", check(&dir));
    let (writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!(recovered.lost, known()[3].len() as u64 + 1 + 3);
    assert_eq!(recovered.next_process, 3, "an assigned id is not assigned again");
    drop(writer);
    assert_eq!(conserved(&dir, "live"), known()[3].len() as u64);
}

#[test]
fn writer_continues_after_a_damaged_sealed_part() {
    for length in [0, 4, 100] {
        let (_temp, dir) = fresh();
        let path = dir.join("events/part-000001.parquet");
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        let (writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
        assert_eq!(recovered.damaged.iter().map(|damaged| damaged.part).collect::<Vec<_>>(), [1]);
        // Stream 4 is only in that part.
        assert_eq!(
            recovered.streams.iter().map(|stream| stream.next_seq).collect::<Vec<_>>(),
            [40, 40, 40, 7]
        );
        writer.finish().unwrap();
        assert!(!check(&dir).is_good());
        repair(&dir).unwrap();
        assert_eq!(conserved(&dir, "repaired"), known()[1].len() as u64);
    }
}

#[test]
fn writer_keeps_the_ids_of_a_part_without_events() {
    let (_temp, dir) = fresh();
    fs::remove_file(dir.join("events/part-000000.parquet")).unwrap();
    let (_writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!(recovered.processes.iter().map(|process| process.process).collect::<Vec<_>>(), [1, 2]);
    let streams = recovered.streams.iter().map(|stream| (stream.stream, stream.next_seq));
    assert_eq!(streams.collect::<Vec<_>>(), [(1, 40), (2, 40), (3, 40), (4, 7)]);
}

#[test]
fn replaced_sealed_file_is_detected() {
    let (temp, dir) = fresh();
    // A valid file, with the rows of another trace.
    let other = temp.path().join("other");
    let mut writer = Writer::create(&other, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&known()[1][..12])).unwrap();
    writer.finish().unwrap();
    fs::copy(other.join("events/part-000000.parquet"), dir.join("events/part-000001.parquet")).unwrap();
    let report = check(&dir);
    assert!(
        report.count(ProblemKind::Altered) == 1 && report.count(ProblemKind::Incomplete) == 1,
        "{report}"
    );
    repair(&dir).unwrap();
    assert_eq!(conserved(&dir, "replaced"), known()[1].len() as u64 - 12);
}

#[test]
fn trace_without_ledger_is_not_reported_complete() {
    let (_temp, dir) = fresh();
    fs::remove_dir_all(dir.join("ledger")).unwrap();
    let report = check(&dir);
    assert_eq!(report.count(ProblemKind::Ledger), 4, "{report}");
    assert!(report.to_string().contains("completeness cannot be proven"), "{report}");
    let repaired = repair(&dir).unwrap();
    assert!(repaired.has_lost() && repaired.report.is_good(), "{}", repaired.report);
    assert!(
        repaired.report.to_string().contains("completeness unknown before part 4"),
        "{}",
        repaired.report
    );
    assert_eq!(read_all(&dir), known().concat());
    // Later parts are counted.
    let (mut writer, _) = Writer::open(&dir, Options::default()).unwrap();
    writer.append(Table::Events, &events(&turn(120, 126))).unwrap();
    writer.finish().unwrap();
    assert!(check(&dir).is_good(), "{}", check(&dir));
    fs::remove_file(dir.join("events/part-000003.parquet")).unwrap();
    assert!(!check(&dir).is_good());
}

#[test]
fn trace_of_an_earlier_version_has_unknown_completeness() {
    let (_temp, dir) = fresh();
    fs::remove_dir_all(dir.join("ledger")).unwrap();
    let manifest = dir.join("miot-trace.json");
    let text = r#"{"format":"miot-trace","schema":1,"created":"2026-01-01T00:00:00Z","writer":"miot 0.0"}"#;
    fs::write(&manifest, text).unwrap();
    let report = check(&dir);
    assert!(report.is_good(), "{report}");
    assert!(report.to_string().contains("completeness unknown before schema 2"), "{report}");
    let (mut writer, _) = Writer::open(&dir, Options::default()).unwrap();
    assert!(
        matches!(Writer::open(&dir, Options::default()), Err(Error::InUse { .. })),
        "the lock moved to the new manifest"
    );
    writer.seal().unwrap();
    writer.append(Table::Events, &events(&turn(120, 126))).unwrap();
    writer.finish().unwrap();
    let report = check(&dir);
    assert!(report.is_good(), "{report}");
    assert!(report.to_string().contains("completeness unknown before part 4, before schema 2"), "{report}");
    fs::remove_file(dir.join("events/part-000004.parquet")).unwrap();
    assert!(check(&dir).count(ProblemKind::MissingPart) == 1);
}

#[test]
fn writer_detects_that_its_files_are_removed() {
    let more = |writer: &mut Writer| {
        writer.append(Table::Events, &events(&turn(120, 126))).unwrap();
        writer.commit()
    };
    type Take = fn(&Path);
    let takes: [(&str, Take); 6] = [
        ("removed", |dir| fs::remove_dir_all(dir).unwrap()),
        ("moved", |dir| fs::rename(dir, dir.with_extension("moved")).unwrap()),
        ("live file removed", |dir| fs::remove_file(dir.join("live/part-000003.events.arrows")).unwrap()),
        ("live file replaced", |dir| {
            let path = dir.join("live/part-000003.events.arrows");
            fs::copy(&path, dir.join("live/copy")).unwrap();
            fs::rename(dir.join("live/copy"), path).unwrap();
        }),
        ("live file emptied", |dir| fs::write(dir.join("live/part-000003.events.arrows"), "").unwrap()),
        ("ledger removed", |dir| fs::remove_dir_all(dir.join("ledger")).unwrap()),
    ];
    for (what, take) in takes {
        let (_temp, dir) = fresh();
        let (mut writer, _) = Writer::open(&dir, Options::default()).unwrap();
        take(&dir);
        let error = more(&mut writer).unwrap_err();
        assert!(matches!(error, Error::Replaced { .. }), "{what}: {error}");
        drop(writer);
    }
}

/// A full buffer is committed by `append`, but not between a path record and the events before it.
#[test]
fn ledger_does_not_count_events_that_were_not_appended() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 3))).unwrap();
    writer.commit().unwrap();
    // More bytes than may wait, with any compression.
    let records: Vec<_> =
        (0..3_000_000).map(|n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15), Some((1, n + 9)))).collect();
    writer.append(Table::Files, &files(&records)).unwrap();
    writer.append(Table::Events, &events(&turn(3, 27))).unwrap();
    drop(writer);
    let (writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!(recovered.lost, 0);
    assert_eq!(recovered.streams[0].next_seq, 1);
    drop(writer);
}

#[test]
fn ledger_stays_small_and_is_updated() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    let live = dir.join("ledger/part-000000.live");
    let mut largest = 0;
    for step in 0..400 {
        writer.append(Table::Events, &events(&turn(step * 6, step * 6 + 6))).unwrap();
        writer.commit().unwrap();
        largest = largest.max(fs::metadata(&live).unwrap().len());
    }
    assert!(largest < 2 << 20, "{largest}");
    drop(writer);
    // As after a power loss: the ledger is behind the trace.
    let text = fs::read_to_string(&live).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    fs::write(&live, lines[..lines.len() / 2].concat()).unwrap();
    assert!(check(&dir).is_good(), "{}", check(&dir));
    drop(Writer::open(&dir, Options::default()).unwrap());
    fs::remove_file(dir.join("live/part-000000.events.arrows")).unwrap();
    let report = check(&dir);
    assert!(report.to_string().contains("0 of 2400 rows of events"), "{report}");
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { out.extend(all_files(&path)) } else { out.push(path) }
    }
    out.sort();
    out
}

#[test]
fn events_and_losses_add_up_after_any_damage() {
    let seed = std::env::var("MIOT_SEED").map_or(u64::from(std::process::id()), |seed| seed.parse().unwrap());
    eprintln!("MIOT_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut below = |n: usize| random.usize(..n);
    let (temp, good) = fresh();
    let dir = temp.path().join("damaged");
    let damages = std::env::var("MIOT_DAMAGES").map_or(25, |count| count.parse().unwrap());
    let mut lossy = 0;
    for round in 0..damages {
        let _ = fs::remove_dir_all(&dir);
        copy(&good, &dir);
        // Ids and paths cannot be recovered, so the check may still report undefined ids. These
        // tables are counted.
        let files: Vec<PathBuf> = all_files(&dir)
            .into_iter()
            .filter(|file| {
                ["events", "losses", "live", "ledger"].iter().any(|f| file.starts_with(dir.join(f)))
            })
            .collect();
        let mut what = format!("MIOT_SEED={seed} round {round}");
        for _ in 0..=below(2) {
            let file = &files[below(files.len())];
            let Ok(mut bytes) = fs::read(file) else { continue };
            if bytes.is_empty() {
                continue;
            }
            // Damage of both would leave no record of the part.
            if file.starts_with(dir.join("ledger")) && what.contains(": ") || what.contains("/ledger/") {
                continue;
            }
            let at = below(bytes.len());
            let how = match below(4) {
                0 => {
                    fs::remove_file(file).unwrap();
                    "removed".to_owned()
                }
                1 => {
                    fs::write(file, &bytes[..at]).unwrap();
                    format!("cut at {at}")
                }
                2 => {
                    bytes[at] ^= 1 << below(8);
                    fs::write(file, &bytes).unwrap();
                    format!("a bit of byte {at} changed")
                }
                _ => {
                    let end = bytes.len().min(at + 64);
                    bytes[at..end].fill(0);
                    fs::write(file, &bytes).unwrap();
                    format!("zeros at {at}")
                }
            };
            what += &format!("; {}: {how}", file.display());
        }
        let before = check(&dir);
        if below(2) == 0
            && let Ok((writer, _)) = Writer::open(&dir, Options::default())
        {
            drop(writer);
        }
        let repaired = repair(&dir).unwrap();
        let lost = conserved(&dir, &what);
        assert!(lost == 0 || !before.is_good(), "{what}: {before}");
        let again = repair(&dir).unwrap();
        assert!(again.repaired.is_empty(), "{what}: {:?}", again.repaired);
        assert_eq!(again.report.damaged, repaired.report.damaged, "{what}");
        assert_eq!(conserved(&dir, &what), lost);
        lossy += u64::from(lost > 0);
    }
    eprintln!("{lossy} of {damages} damages cost events");
}
