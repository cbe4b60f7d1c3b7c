//! Traces are written, sealed and continued, and every row is read once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use common::*;
use miot_trace_store::follow::{Follow, FollowFrom};
use miot_trace_store::{Error, Options, Reader, Select, Table, Writer, schema};
use std::time::{Duration, Instant};

fn dir() -> (tempfile::TempDir, std::path::PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("trace");
    (temp, dir)
}

#[test]
fn committed_rows_are_read_live_and_sealed() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 100))).unwrap();
    assert!(read_all(&dir).is_empty(), "nothing is visible before the commit");
    writer.commit().unwrap();
    assert_eq!(read_all(&dir), turn(0, 100));
    writer.append(Table::Events, &events(&turn(100, 250))).unwrap();
    writer.seal().unwrap();
    writer.append(Table::Events, &events(&turn(250, 300))).unwrap();
    writer.commit().unwrap();
    assert_eq!(read_all(&dir), turn(0, 300));
    let summary = writer.finish().unwrap();
    assert_eq!((summary.parts, summary.events), (2, 300));
    assert_eq!(read_all(&dir), turn(0, 300));
    let reader = Reader::open(&dir).unwrap();
    assert_eq!(reader.parts().collect::<Vec<_>>(), [(0, true), (1, true)]);
    assert_eq!(std::fs::read_dir(dir.join("live")).unwrap().count(), 0);
    for table in Table::ALL {
        assert!(dir.join(table.name()).join("part-000000.parquet").exists(), "{table}");
    }
    assert_eq!(reader.files().unwrap().get(1), Some("/data/1"));
}

#[test]
fn rows_have_names_of_files_and_threads() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    let mut rows = turn(0, 4);
    rows[2].file = None;
    writer.append(Table::Events, &events(&rows)).unwrap();
    writer.finish().unwrap();
    let reader = Reader::open(&dir).unwrap();
    let batch = reader.rows().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.schema(), schema::rows());
    let column = |name| batch.column_by_name(name).unwrap().as_string::<i32>().iter().collect::<Vec<_>>();
    assert_eq!(column("path"), [Some("/data/1"), Some("/data/1"), None, Some("/data/1")]);
    assert_eq!(column("path2"), [None; 4]);
    assert_eq!(column("comm")[..2], [Some("thread-1"), Some("thread-2")]);
}

#[test]
fn scan_returns_selected_columns_and_times() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    for (from, to) in [(0, 100), (100, 250), (250, 300)] {
        writer.append(Table::Events, &events(&turn(from, to))).unwrap();
        if to < 300 {
            writer.seal().unwrap()
        } else {
            writer.commit().unwrap()
        };
    }
    let reader = Reader::open(&dir).unwrap();
    let all = read_from(&reader);
    let time = |row: usize| all[row].time;
    for (from, to) in [(0, 300), (40, 260), (120, 130), (299, 300), (300, 300)] {
        let until = if to == 300 { i64::MAX } else { time(to) };
        let since = if from == 300 { i64::MAX } else { time(from) };
        let select = Select::columns(&["result", "type_size"]).between(since..until);
        let batches: Vec<_> = reader.scan(&select).unwrap().map(Result::unwrap).collect();
        for batch in &batches {
            let schema = batch.schema();
            let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            assert_eq!(names, ["time", "result", "type_size"]);
        }
        let found: Vec<i64> = batches
            .iter()
            .flat_map(|batch| batch.column(0).as_primitive::<TimestampNanosecondType>().values().to_vec())
            .collect();
        let expected: Vec<i64> = all[from.min(all.len())..to].iter().map(|event| event.time).collect();
        assert_eq!(found, expected, "{from}..{to}");
    }
    let error = reader.scan(&Select::columns(&["sise"])).unwrap_err().to_string();
    assert!(error.contains("`sise`"), "{error}");
    // Damage is an error that names the file.
    writer.finish().unwrap();
    let reader = Reader::open(&dir).unwrap();
    std::fs::write(dir.join("events/part-000001.parquet"), b"PAR1").unwrap();
    assert!(matches!(reader.scan(&Select::columns(&[])), Err(Error::Damaged { .. })));
}

/// A stream that was silent has reached an earlier time than the trace, and the clock of its node
/// may be corrected differently from then on.
#[test]
fn restarted_writer_knows_the_times_of_sealed_parts_and_of_streams() {
    const SECOND: i64 = 1_000_000_000;
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 10))).unwrap();
    writer.finish().unwrap();
    let (mut writer, _) = Writer::open(&dir, Options::default()).unwrap();
    // A short batch, and one in which stream 1 ends two seconds before stream 2.
    writer.append(Table::Events, &events(&[ev(2_000_000, 1, 4), ev(2_500_000, 2, 3)])).unwrap();
    let long = [ev(3_000_000, 1, 5), ev(3_000_000 + 2 * SECOND, 2, 4)];
    writer.append(Table::Events, &events(&long)).unwrap();
    writer.commit().unwrap();
    drop(writer);
    let (_, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!((recovered.sealed_until, recovered.last_time), (turn(9, 10)[0].time, long[1].time));
    let until: Vec<_> = recovered.streams.iter().map(|stream| stream.live_until).collect();
    assert_eq!(until, [long[0].time, long[1].time, 0]);
}

#[test]
fn restarted_writer_continues_the_live_part() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 10))).unwrap();
    writer.commit().unwrap();
    assert!(matches!(Writer::open(&dir, Options::default()), Err(Error::InUse { .. })));
    writer.append(Table::Events, &events(&turn(10, 20))).unwrap();
    drop(writer);
    let (mut writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!((recovered.next_process, recovered.next_stream, recovered.next_file), (2, 4, 2));
    assert_eq!(recovered.last_time, turn(9, 10)[0].time);
    assert_eq!(recovered.streams.iter().map(|s| s.next_seq).collect::<Vec<_>>(), [4, 3, 3]);
    assert_eq!(recovered.processes[0].nonce, Some(77));
    writer.append(Table::Files, &files(&[(5, Some((2, 6)))])).unwrap();
    writer.append(Table::Losses, &loss(3, 3, 41)).unwrap();
    writer.append(Table::Events, &events(&turn(10, 15))).unwrap();
    writer.seal().unwrap();
    writer.append(Table::Events, &events(&turn(15, 18))).unwrap();
    writer.commit().unwrap();
    drop(writer);
    assert_eq!(read_all(&dir), turn(0, 18));
    let (writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!((recovered.next_process, recovered.next_stream, recovered.next_file), (2, 4, 6));
    assert_eq!(recovered.streams.iter().map(|s| s.next_seq).collect::<Vec<_>>(), [6, 7, 42]);
    assert_eq!(recovered.last_time, turn(17, 18)[0].time);
    assert_eq!(
        Reader::open(&dir).unwrap().handles(&[1].into(), |_, op| op == "write").unwrap(),
        [((1, 3), 1), ((1, 56), 5)].into()
    );
    let named = Reader::open(&dir).unwrap().handles(&[1].into(), |_, _| false).unwrap();
    assert_eq!(named, [((1, 56), 5)].into(), "other operations do not define the handle");
    writer.finish().unwrap();
    assert_eq!(read_all(&dir), turn(0, 18));
    let (_, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!(recovered.streams.iter().map(|s| s.next_seq).collect::<Vec<_>>(), [6, 7, 42]);
    assert_eq!(
        Reader::open(&dir).unwrap().handles(&[1].into(), |_, op| op == "write").unwrap(),
        [((1, 3), 1), ((1, 56), 5)].into()
    );
}

#[test]
fn late_events_are_ordered_by_sealing() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    let mut late = turn(40, 60);
    late.iter_mut().for_each(|e| e.flags = miot_proto::event::flag::LATE);
    for rows in [turn(0, 40), turn(60, 90), late[..10].to_vec(), turn(90, 95), late[10..].to_vec()] {
        writer.append(Table::Events, &events(&rows)).unwrap();
    }
    writer.finish().unwrap();
    let mut read = read_all(&dir);
    assert_eq!(read[45].flags, miot_proto::event::flag::LATE);
    read.iter_mut().for_each(|e| e.flags = 0);
    assert_eq!(read, turn(0, 95));
}

#[test]
fn seal_is_due_at_the_maximum_size() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options { seal_bytes: 64 << 10, ..Options::default() }).unwrap();
    sides(&mut writer);
    let mut written = 0;
    while !writer.seal_due() {
        assert!(writer.live_size().1 < 64 << 10, "{:?}", writer.live_size());
        writer.append(Table::Events, &events(&turn(written, written + 50))).unwrap();
        writer.commit().unwrap();
        written += 50;
    }
    assert!(writer.live_size().1 >= 64 << 10, "{:?}", writer.live_size());
    writer.seal().unwrap();
    assert!(!writer.seal_due() && writer.part() == 1);
    assert_eq!(writer.finish().unwrap().parts, 1);
    assert_eq!(read_all(&dir), turn(0, written));
}

#[test]
fn seal_is_due_at_the_maximum_age() {
    let (_temp, dir) = dir();
    let age = Duration::from_millis(100);
    let mut writer = Writer::create(&dir, Options { seal_after: age, ..Options::default() }).unwrap();
    for part in 0..2 {
        std::thread::sleep(2 * age);
        assert!(!writer.seal_due(), "an empty part has no age");
        let start = Instant::now();
        writer.append(Table::Events, &events(&turn(part * 10, part * 10 + 10))).unwrap();
        while !writer.seal_due() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() >= age);
        writer.seal().unwrap();
        assert_eq!(writer.part(), part + 1);
    }
    assert_eq!(writer.finish().unwrap().parts, 2);
    assert_eq!(read_all(&dir), turn(0, 20));
}

#[test]
fn empty_trace_has_its_tables() {
    let (_temp, dir) = dir();
    Writer::create(&dir, Options::default()).unwrap().finish().unwrap();
    assert!(read_all(&dir).is_empty());
    for table in Table::ALL {
        assert_eq!(Reader::open(&dir).unwrap().count(table).unwrap(), [(0, 0)].into());
    }
    let (writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!((recovered.next_process, recovered.last_time), (1, 0));
    assert_eq!(writer.finish().unwrap().parts, 0);
}

#[test]
fn reader_keeps_its_snapshot_while_parts_are_sealed() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 30))).unwrap();
    writer.commit().unwrap();
    let snapshot = Reader::open(&dir).unwrap();
    writer.append(Table::Events, &events(&turn(30, 60))).unwrap();
    writer.finish().unwrap();
    assert_eq!(read_from(&snapshot), turn(0, 30));
    assert_eq!(snapshot.files().unwrap().len(), 1);
    assert_eq!(read_all(&dir), turn(0, 60));
}

#[test]
fn follower_returns_each_row_once_across_seals() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    let mut follow = Follow::open(&dir, FollowFrom::Start).unwrap();
    assert!(follow.poll().unwrap().is_empty());
    sides(&mut writer);
    let mut seen = Vec::new();
    let mut late_comer = None;
    for step in 0..20 {
        writer.append(Table::Events, &events(&turn(step * 10, step * 10 + 10))).unwrap();
        if step % 5 == 4 {
            writer.seal().unwrap()
        } else {
            writer.commit().unwrap()
        }
        if step % 3 != 1 {
            seen.extend(follow.poll().unwrap());
        }
        if step == 11 {
            late_comer = Some(Follow::open(&dir, FollowFrom::End).unwrap());
        }
    }
    writer.finish().unwrap();
    seen.extend(follow.poll().unwrap());
    assert_eq!(seen.iter().flat_map(rows_of).collect::<Vec<_>>(), turn(0, 200));
    assert!(seen.iter().all(|b| b.column_by_name("path").unwrap().null_count() == 0));
    let late: Vec<_> = late_comer.unwrap().poll().unwrap().iter().flat_map(rows_of).collect();
    assert_eq!(late, turn(120, 200));
    let again: Vec<_> = Follow::open(&dir, FollowFrom::Start).unwrap().poll().unwrap();
    assert_eq!(again.iter().flat_map(rows_of).collect::<Vec<_>>(), turn(0, 200));
}

#[test]
fn wrong_directories_and_rows_are_refused() {
    let (temp, dir) = dir();
    drop(Writer::create(&dir, Options::default()).unwrap());
    let not_empty = Writer::create(&dir, Options::default()).unwrap_err();
    assert!(
        matches!(not_empty, Error::NotEmpty { .. })
            && not_empty.to_string().contains("already contains a MIOT trace")
    );
    assert!(matches!(Writer::create(temp.path(), Options::default()), Err(Error::NotEmpty { .. })));
    let file = temp.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(matches!(Writer::create(&file, Options::default()), Err(Error::NotWritable { .. })));
    assert!(matches!(Writer::create(&file.join("x"), Options::default()), Err(Error::NotWritable { .. })));
    assert!(matches!(Reader::open(temp.path()), Err(Error::NotATrace { .. })));
    let (mut writer, _) = Writer::open(&dir, Options::default()).unwrap();
    let wrong = writer.append(Table::Events, &threads(&[1])).unwrap_err();
    assert!(matches!(wrong, Error::Schema { table: Table::Events, .. }), "{wrong}");
}

#[test]
fn readers_see_all_rows_committed_before() {
    let (_temp, dir) = dir();
    let options = Options { seal_rows: 100, ..Options::default() };
    let mut writer = Writer::create(&dir, options).unwrap();
    sides(&mut writer);
    writer.commit().unwrap();
    let mut follow = Follow::open(&dir, FollowFrom::Start).unwrap();
    let writing = std::thread::spawn(move || {
        for step in 0..150 {
            writer.append(Table::Events, &events(&turn(step * 20, step * 20 + 20))).unwrap();
            if writer.seal_due() { writer.seal().unwrap() } else { writer.commit().unwrap() }
        }
        writer.finish().unwrap()
    });
    let (mut followed, mut rounds, mut last) = (Vec::new(), 0, 0);
    loop {
        let done = writing.is_finished();
        let read = read_all(&dir);
        assert!(read.len() >= last);
        last = read.len();
        assert_eq!(read, turn(0, last as u64));
        for batch in follow.poll().unwrap() {
            assert_eq!(batch.column_by_name("path").unwrap().null_count(), 0);
            followed.extend(rows_of(&batch));
        }
        rounds += 1;
        if done {
            break;
        }
    }
    assert_eq!(writing.join().unwrap().events, 3000);
    assert_eq!((last, rounds > 1), (3000, true));
    assert_eq!(followed, turn(0, 3000));
}

#[test]
fn long_columns_of_one_value_are_read_back() {
    let (_temp, dir) = dir();
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    let mut rows = turn(0, 30_000);
    rows.iter_mut().skip(7).step_by(3).for_each(|r| r.file = None);
    let whole = events(&rows);
    for (from, length) in [(0, 11), (11, 9_989), (10_000, 20_000)] {
        writer.append(Table::Events, &whole.slice(from, length)).unwrap();
    }
    writer.append(Table::Threads, &threads(&[4, 5, 6]).slice(1, 2)).unwrap();
    writer.commit().unwrap();
    assert_eq!(read_all(&dir), rows);
    let reader = Reader::open(&dir).unwrap();
    let read: Vec<_> = reader.events().map(Result::unwrap).collect();
    assert_eq!(arrow_select::concat::concat_batches(&schema::of(Table::Events), &read).unwrap(), whole);
    assert_eq!(reader.joiner().unwrap().threads.get(6), Some("thread-6"));
    assert_eq!(reader.joiner().unwrap().threads.get(4), None);
    writer.finish().unwrap();
    assert_eq!(read_all(&dir), rows);
}
