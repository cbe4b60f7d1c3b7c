//! Retention removes the oldest parts: the rest is valid, also if the writer is killed at any time.

use super::common::*;
use super::survives_from;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use miot_trace_store::follow::{Follow, FollowFrom};
use miot_trace_store::{KnownIds, Options, Reader, RemovedParts, Table, Writer, fsck};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Writes `count` sealed parts of ten events of [`turn`].
fn parts(dir: &Path, count: u64, options: Options) -> Writer {
    let mut writer = Writer::create(dir, options).unwrap();
    sides(&mut writer);
    for part in 0..count {
        writer.append(Table::Events, &events(&turn(part * 10, part * 10 + 10))).unwrap();
        writer.seal().unwrap();
    }
    let last = dir.join(format!("events/part-{:06}.parquet", count - 1));
    eventually("the parts are sealed", || {
        last.exists() && fs::read_dir(dir.join("live")).unwrap().count() == 0
    });
    writer
}

#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not after a minute");
        std::thread::yield_now();
    }
}

fn removed(writer: &mut Writer) -> RemovedParts {
    let mut removed = None;
    eventually("parts are removed", || {
        writer.retain().unwrap();
        removed = writer.removed();
        removed.is_some()
    });
    removed.unwrap()
}

fn sealed_parts(dir: &Path) -> Vec<u64> {
    Reader::open(dir).unwrap().parts().filter(|part| part.1).map(|part| part.0).collect()
}

fn bytes(dir: &Path, part: u64) -> u64 {
    let length = |table: &Table| {
        let file = dir.join(table.name()).join(format!("part-{part:06}.parquet"));
        fs::metadata(file).map_or(0, |meta| meta.len())
    };
    Table::ALL.iter().map(length).sum()
}

/// Returns options that keep about the last `count` parts.
fn keep(count: u64) -> Options {
    // Each has one file of events of about 9 KiB; six carried files are added.
    Options { keep_bytes: Some(count * 9000), ..Options::default() }
}

#[test]
fn oldest_parts_are_removed_and_the_trace_stays_valid() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    let mut writer = parts(&dir, 10, Options::default());
    let each = bytes(&dir, 5);
    drop(writer);
    let options = Options { keep_bytes: Some(4 * each + each / 2), ..Options::default() };
    let (mut again, _) = Writer::open(&dir, options).unwrap();
    let first = removed(&mut again);
    assert_eq!(
        (first.events, first.until),
        (first.parts * 10, 1_000_000 + (first.parts as i64 * 10 - 1) * 10)
    );
    assert!((5..9).contains(&first.parts), "{first:?}");
    writer = again;
    for more in 10..14 {
        writer.append(Table::Events, &events(&turn(more * 10, more * 10 + 10))).unwrap();
        writer.seal().unwrap();
    }
    let mut last = first;
    eventually("more parts are removed", || {
        writer.retain().unwrap();
        last = writer.removed().unwrap_or(last);
        last.parts >= first.parts + 4
    });
    drop(writer);
    let left = sealed_parts(&dir);
    assert_eq!(left, (last.parts..14).collect::<Vec<_>>());
    assert_eq!(read_all(&dir), turn(last.parts * 10, 140));
    let report = fsck::check(&dir);
    assert!(report.is_good(), "{report}");
    assert_eq!(report.removed, last);
    assert!(report.to_string().contains(&format!("retention removed {} parts with", last.parts)), "{report}");
    let rows: Vec<_> = Reader::open(&dir).unwrap().rows().unwrap().map(Result::unwrap).collect();
    for batch in rows {
        for name in ["path", "comm"] {
            assert_eq!(batch.column_by_name(name).unwrap().null_count(), 0, "{name}");
        }
    }
    // Only the parts and the carried files remain.
    for table in Table::SIDE {
        let names = fs::read_dir(dir.join(table.name())).unwrap().map(|e| e.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), [format!("carried-{:06}.parquet", last.parts).as_str()]);
    }
    let (_, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!((recovered.next_process, recovered.next_stream, recovered.next_file), (2, 4, 2));
    let ends: Vec<_> = recovered.streams.iter().map(|s| s.next_seq).collect();
    assert_eq!(ends, [47, 47, 46]);
    assert_eq!(recovered.removed, last);
}

#[test]
fn newest_part_is_kept_and_old_ones_are_removed_by_age() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    let mut writer = parts(&dir, 3, Options { keep_bytes: Some(1), ..Options::default() });
    assert_eq!(removed(&mut writer).parts, 2);
    drop(writer);
    // The events have times of 1970.
    let options = Options { keep_for: Some(Duration::from_secs(3600)), ..Options::default() };
    let (mut writer, recovered) = Writer::open(&dir, options).unwrap();
    assert_eq!(recovered.removed.parts, 2);
    let all = removed(&mut writer);
    assert_eq!((all.parts, all.events), (3, 30));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    let young: Vec<Ev> = (10..13).map(|seq| ev(now + seq as i64, 1, seq)).collect();
    writer.append(Table::Events, &events(&young)).unwrap();
    writer.seal().unwrap();
    eventually("it is sealed", || sealed_parts(&dir) == [3]);
    writer.retain().unwrap();
    writer.finish().unwrap();
    assert_eq!(read_all(&dir), young);
    let report = fsck::check(&dir);
    assert!(report.is_good(), "{report}");
}

#[test]
fn unneeded_rows_are_not_carried_over() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    let mut writer = Writer::create(&dir, Options { keep_bytes: Some(1), ..Options::default() }).unwrap();
    writer.append(Table::Processes, &processes(&[1, 2, 3])).unwrap();
    let mut ended = threads(&[9]);
    let mut columns = ended.columns().to_vec();
    columns[1] = std::sync::Arc::new(arrow_array::Int64Array::from(vec![2]));
    ended = arrow_array::RecordBatch::try_new(ended.schema(), columns).unwrap();
    writer.append(Table::Threads, &threads(&[1, 2, 3])).unwrap();
    writer.append(Table::Threads, &ended).unwrap();
    writer.append(Table::Files, &files(&[(1, None), (2, Some((2, 4))), (3, None), (4, None)])).unwrap();
    let mut first = turn(0, 12);
    first[3].file = Some(3);
    writer.append(Table::Events, &events(&first)).unwrap();
    let known = |files: &[u64]| KnownIds {
        processes: HashMap::from([(1, Some(vec![(54, 2)]))]),
        files: files.iter().copied().collect::<HashSet<_>>(),
    };
    writer.set_known_ids(known(&[]));
    writer.seal().unwrap();
    // The kept part uses file 4, an open handle file 2, and file 1 is known; file 3 and process 2
    // are not needed.
    let mut second = turn(15, 30);
    second.iter_mut().for_each(|row| row.file = Some(4));
    writer.append(Table::Events, &events(&second)).unwrap();
    writer.append(Table::Losses, &loss(1, 4, 4)).unwrap();
    writer.append(Table::Losses, &loss(2, 4, 4)).unwrap();
    writer.append(Table::Losses, &loss(3, 4, 4)).unwrap();
    writer.set_known_ids(known(&[1]));
    writer.seal().unwrap();
    assert_eq!(removed(&mut writer).parts, 1);
    drop(writer);
    let reader = Reader::open(&dir).unwrap();
    let ids = |table, name: &str| -> Vec<Option<u64>> {
        let batches = reader.table(table).unwrap();
        let column = |b: &arrow_array::RecordBatch| {
            miot_trace_store::schema::column::<arrow_array::types::UInt64Type>(b, name).unwrap()
        };
        batches.iter().flat_map(|b| column(b).iter().collect::<Vec<_>>()).collect()
    };
    assert_eq!(ids(Table::Processes, "process"), [Some(1)]);
    assert_eq!(ids(Table::Threads, "stream"), [Some(1), Some(2), Some(3)]);
    let mut kept: Vec<_> = ids(Table::Files, "file").into_iter().zip(ids(Table::Files, "handle")).collect();
    kept.sort();
    assert_eq!(kept, [(Some(1), None), (Some(2), None), (Some(2), Some(54)), (Some(4), None)],);
    let handles = reader.handles(&HashSet::from([1]), |_, _| false).unwrap();
    assert_eq!(handles, HashMap::from([((1, 54), 2)]));
    let report = fsck::check(&dir);
    assert!(report.is_good(), "{report}");
    let (_, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!((recovered.next_process, recovered.next_stream, recovered.next_file), (4, 10, 5));
}

/// Time, node and device of the rows of `devices`, in their order.
fn samples(dir: &Path) -> Vec<(u64, String, String)> {
    let batches = Reader::open(dir).unwrap().table(Table::Devices).unwrap();
    let rows = |batch: &RecordBatch| -> Vec<(u64, String, String)> {
        let text = |name: &str, row| batch[name].as_string::<i32>().value(row).to_owned();
        let (uptime, writes) =
            (batch["uptime"].as_primitive::<Int64Type>(), batch["writes"].as_primitive::<Int64Type>());
        assert_eq!(uptime, writes, "whole rows");
        (0..batch.num_rows())
            .map(|row| (uptime.value(row) as u64, text("node", row), text("device", row)))
            .collect()
    };
    batches.iter().flat_map(rows).collect()
}

/// A sample that is sent again must be recognized, also if its part was removed and its row carried
/// over repeatedly.
#[test]
fn last_device_samples_are_carried_over_repeatedly() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    let mut writer = Writer::create(&dir, Options { keep_bytes: Some(1), ..Options::default() }).unwrap();
    sides(&mut writer);
    let part = |writer: &mut Writer, number: u64, rows: &[RecordBatch]| {
        rows.iter().for_each(|rows| writer.append(Table::Devices, rows).unwrap());
        writer.append(Table::Events, &events(&turn(number * 10, number * 10 + 10))).unwrap();
        writer.seal().unwrap();
        eventually("parts are removed", || {
            writer.retain().unwrap();
            writer.removed().map_or(0, |removed| removed.parts) == number
        });
    };
    let row = |time: u64, node: &str, device: &str| (time, node.to_owned(), device.to_owned());
    part(
        &mut writer,
        0,
        &[sample(10, "n1", &["sda", "sdb"]), sample(10, "n2", &["sda"]), sample(20, "n1", &["sda"])],
    );
    part(&mut writer, 1, &[sample(30, "n1", &["sda", "sdb"])]);
    assert_eq!(
        samples(&dir),
        [row(10, "n2", "sda"), row(20, "n1", "sda"), row(30, "n1", "sda"), row(30, "n1", "sdb")]
    );
    // n2 sends no samples any more: its carried rows are carried over again.
    part(&mut writer, 2, &[sample(40, "n1", &["sdc"])]);
    assert_eq!(
        samples(&dir),
        [row(10, "n2", "sda"), row(30, "n1", "sda"), row(30, "n1", "sdb"), row(40, "n1", "sdc")]
    );
    part(&mut writer, 3, &[]);
    assert_eq!(samples(&dir), [row(10, "n2", "sda"), row(40, "n1", "sdc")]);
    // A spool may survive a reboot, so the last samples of 16 boots are kept.
    let rebooted: Vec<_> =
        (2..20).map(|boot| sample_of_boot(boot, 40 + boot as i64, "n1", &["sda"])).collect();
    part(&mut writer, 4, &rebooted);
    part(&mut writer, 5, &[]);
    let kept: Vec<_> =
        [row(10, "n2", "sda")].into_iter().chain((44..60).map(|at| row(at, "n1", "sda"))).collect();
    assert_eq!(samples(&dir), kept);
    drop(writer);
    let last = Reader::open(&dir).unwrap().last_samples().unwrap();
    let mut last: Vec<_> = last.into_iter().map(|((node, _), (uptime, _))| (node, uptime)).collect();
    last.sort();
    let n1 = (44..60).map(|at| ("n1".to_owned(), at));
    assert_eq!(last, n1.chain([("n2".to_owned(), 10)]).collect::<Vec<_>>());
    let report = fsck::check(&dir);
    assert!(report.is_good(), "{report}");
}

#[test]
fn retention_interrupted_between_any_two_steps_is_consistent() {
    let temp = dir_in_memory();
    let (before, after, state) =
        (temp.path().join("before"), temp.path().join("after"), temp.path().join("state"));
    drop(parts(&before, 5, Options::default()));
    let (mut writer, _) = Writer::open(&before, keep(3)).unwrap();
    removed(&mut writer);
    writer.append(Table::Events, &events(&turn(50, 60))).unwrap();
    writer.append(Table::Events, &events(&turn(60, 70))).unwrap();
    writer.seal().unwrap();
    eventually("it is sealed", || sealed_parts(&before).contains(&5));
    writer.append(Table::Events, &events(&turn(70, 75))).unwrap();
    writer.commit().unwrap();
    drop(writer);
    let first = Reader::open(&before).unwrap().removed().unwrap().parts;
    assert!((1..5).contains(&first), "{first}");
    copy(&before, &after);
    let (mut writer, _) =
        Writer::open(&after, Options { keep_bytes: Some(1), ..Options::default() }).unwrap();
    writer.append(Table::Events, &events(&turn(75, 76))).unwrap();
    writer.seal().unwrap();
    removed(&mut writer);
    drop(writer);
    let last = Reader::open(&after).unwrap().removed().unwrap().parts;
    assert_eq!(last, 6);

    let carried = |table: Table, part: u64| format!("{table}/carried-{part:06}.parquet");
    let order: Vec<Table> =
        Table::SIDE.into_iter().filter(|t| *t != Table::Threads).chain([Table::Threads]).collect();
    let gone: Vec<PathBuf> = (first..last)
        .flat_map(|part| Table::ALL.map(|t| PathBuf::from(format!("{t}/part-{part:06}.parquet"))))
        .chain(Table::SIDE.map(|table| carried(table, first).into()))
        .collect();
    let mut states = 0;
    for renamed in 0..=order.len() {
        for tmp in [false, true] {
            for unlinked in 0..=gone.len() {
                if (unlinked > 0 && renamed < order.len()) || (tmp && renamed == order.len()) {
                    continue;
                }
                let _ = fs::remove_dir_all(&state);
                copy(&before, &state);
                for table in &order[..renamed] {
                    let name = carried(*table, last);
                    fs::copy(after.join(&name), state.join(&name)).unwrap();
                }
                if let Some(table) = order.get(renamed).filter(|_| tmp) {
                    let bytes = fs::read(after.join(carried(*table, last))).unwrap();
                    let name = format!("{}.tmp", carried(*table, last));
                    fs::write(state.join(name), &bytes[..bytes.len() / 2]).unwrap();
                }
                gone[..unlinked].iter().for_each(|name| drop(fs::remove_file(state.join(name))));
                // Part 5 has twenty events.
                let from = if renamed == order.len() { 70 } else { first * 10 };
                survives_from(&state, from, 75, 75, 80, true);
                let left: Vec<_> = fs::read_dir(state.join("threads")).unwrap().collect();
                assert_eq!(left.len(), 1, "{left:?}");
                states += 1;
            }
        }
    }
    assert!(states > 15, "{states}");
}

#[test]
fn readers_overtaken_by_retention_continue() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    // More than another thread reads ahead.
    const PARTS: u64 = 24;
    drop(parts(&dir, PARTS, Options::default()));
    let [slow, ahead, names] = [(); 3].map(|()| Reader::open(&dir).unwrap());
    let (mut slow_events, mut rows) = (slow.events(), ahead.rows().unwrap());
    assert_eq!(rows_of(&slow_events.next().unwrap().unwrap()), turn(0, 10));
    assert_eq!(rows_of(&rows.next().unwrap().unwrap()), turn(0, 10));
    let mut behind = Follow::open(&dir, FollowFrom::Start).unwrap();
    let (mut writer, _) = Writer::open(&dir, keep(3)).unwrap();
    removed(&mut writer);
    // Another removal may be under way.
    drop(writer);
    let (mut writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    let first = recovered.removed.parts;
    assert!((PARTS / 2..PARTS - 1).contains(&first), "{first}");

    let rest: Vec<Ev> = slow_events.flat_map(|batch| rows_of(&batch.unwrap())).collect();
    assert_eq!(rest, turn(first * 10, PARTS * 10));
    assert_eq!(slow.missed(), first - 1);
    let mut read = 1;
    let mut rows = rows.map(|batch| rows_of(&batch.unwrap())).peekable();
    while rows.next_if(|rows| *rows == turn(read * 10, read * 10 + 10)).is_some() {
        read += 1;
    }
    assert!(read < PARTS / 2, "{read} parts were read before the removal");
    assert_eq!(rows.flatten().collect::<Vec<Ev>>(), turn(first * 10, PARTS * 10));
    assert_eq!(ahead.missed(), first - read);
    assert_eq!(names.files().unwrap().get(1), Some("/data/1"));
    assert_eq!(names.removed().unwrap().parts, 0, "when it was opened");

    let followed = |follow: &mut Follow| -> Vec<Ev> {
        let batches = follow.poll().unwrap();
        for batch in &batches {
            assert_eq!(batch.column_by_name("path").unwrap().null_count(), 0);
        }
        batches.iter().flat_map(rows_of).collect()
    };
    assert_eq!(followed(&mut behind), turn(first * 10, PARTS * 10));
    assert_eq!(behind.missed(), first);
    let mut present = Follow::open(&dir, FollowFrom::End).unwrap();
    let next = turn(PARTS * 10, PARTS * 10 + 10);
    writer.append(Table::Events, &events(&next)).unwrap();
    writer.commit().unwrap();
    for follow in [&mut behind, &mut present] {
        assert_eq!(followed(follow), next);
    }
}

#[test]
fn kept_files_are_read_after_their_removal() {
    let temp = dir_in_memory();
    let dir = temp.path().join("trace");
    drop(parts(&dir, 24, Options::default()));
    let remove = |count| {
        let (mut writer, _) = Writer::open(&dir, keep(count)).unwrap();
        removed(&mut writer).parts
    };
    let first = remove(18);
    assert!((1..9).contains(&first), "{first}");
    let tables = |reader: &Reader| Table::SIDE.map(|table| reader.table(table).unwrap());
    let rows =
        |reader: &Reader| -> Vec<Ev> { reader.events().flat_map(|batch| rows_of(&batch.unwrap())).collect() };
    // The carried files and those of two parts.
    let enough_for_two = Table::SIDE.len() + Table::ALL.len() + 1;
    let all = Reader::tolerant_with_kept_files(&dir, 512).unwrap();
    let some = Reader::tolerant_with_kept_files(&dir, enough_for_two).unwrap();
    let before = tables(&all);
    let mut now = first;
    eventually("more parts are removed", || {
        now = now.max(remove(3));
        now > first + 8
    });

    assert_eq!(rows(&all), turn(first * 10, 240));
    assert_eq!((tables(&all), all.missed()), (before, 0));
    assert_eq!(all.removed().unwrap().parts, first, "when it was opened");
    assert_eq!(all.files().unwrap().get(1), Some("/data/1"));
    drop(all);
    let of_two = turn(first * 10, first * 10 + 20);
    assert_eq!(rows(&some), [of_two, turn(now * 10, 240)].concat());
    assert_eq!(some.missed(), now - first - 2);
    drop(some);
    assert_eq!(rows(&Reader::open(&dir).unwrap()), turn(now * 10, 240));
}
