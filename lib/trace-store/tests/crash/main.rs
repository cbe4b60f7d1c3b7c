//! A writer is killed at any time: the directory is readable, contains the committed rows, and can
//! be continued so that it has every event once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod retention;
use common::*;
use miot_trace_store::{Options, Table, Writer, fsck};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

type Lengths = BTreeMap<PathBuf, u64>;

fn live_lengths(dir: &Path) -> Lengths {
    let entries = fs::read_dir(dir.join("live")).unwrap().map(Result::unwrap);
    // A file may be removed after it was listed.
    let lengths = entries.filter_map(|e| Some((e.path(), e.metadata().ok()?.len())));
    lengths.map(|(path, length)| (path.strip_prefix(dir).unwrap().to_owned(), length)).collect()
}

/// Copies `dir` with live files of the given lengths (absent: no such file).
fn cut(dir: &Path, to: &Path, lengths: &Lengths) {
    let _ = fs::remove_dir_all(to);
    copy(dir, to);
    for name in live_lengths(to).keys() {
        match lengths.get(name) {
            Some(length) => {
                fs::OpenOptions::new().write(true).open(to.join(name)).unwrap().set_len(*length).unwrap()
            }
            None => fs::remove_file(to.join(name)).unwrap(),
        }
    }
}

/// The ledger of the live part, which is written after the rows that it counts are durable.
const LEDGER: &str = "ledger/part-000000.live";

/// Asserts that the trace is readable and has at least `committed` and at most `most` events of
/// [`turn`], and that the others can be appended.
#[track_caller]
fn survives(dir: &Path, committed: u64, most: u64, all: u64, go_on: bool) {
    survives_from(dir, 0, committed, most, all, go_on);
}

/// As [`survives`], for a trace whose events before number `from` were removed.
#[track_caller]
fn survives_from(dir: &Path, from: u64, committed: u64, most: u64, all: u64, go_on: bool) {
    let read = read_all(dir);
    let found = from + read.len() as u64;
    assert!(
        (committed..=most).contains(&found),
        "{found} events, {committed} were committed, at most {most} written"
    );
    assert_eq!(read, turn(from, found));
    if !go_on {
        return;
    }
    let report = fsck::check(dir);
    assert!(report.is_good(), "{report}");
    let (mut writer, recovered) = Writer::open(dir, Options::default()).unwrap();
    let next: Vec<u64> = recovered.streams.iter().map(|s| s.next_seq).collect();
    if recovered.next_process == 1 {
        writer.append(Table::Processes, &processes(&[1])).unwrap();
    }
    if recovered.next_stream == 1 {
        assert_eq!(found, 0);
        writer.append(Table::Threads, &threads(&[1, 2, 3])).unwrap();
    } else {
        assert_eq!(next, [0, 1, 2].map(|s| (found + 2 - s) / 3), "{found} events");
    }
    if recovered.next_file == 1 {
        writer.append(Table::Files, &files(&[(1, None)])).unwrap();
    }
    writer.append(Table::Events, &events(&turn(found, all))).unwrap();
    writer.finish().unwrap();
    assert_eq!(read_all(dir), turn(from, all));
    let report = fsck::check(dir);
    assert!(report.is_good(), "{report}");
}

#[test]
fn live_part_torn_at_any_byte_is_continued() {
    let temp = dir_in_memory();
    let (dir, torn) = (temp.path().join("trace"), temp.path().join("torn"));
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    let ledger = || fs::read(dir.join(LEDGER)).unwrap();
    let mut steps = vec![(Lengths::new(), 0, ledger())];
    for step in 0..2u64 {
        match step {
            0 => sides(&mut writer),
            _ => writer.append(Table::Files, &files(&[(2, None), (3, None)])).unwrap(),
        }
        writer.append(Table::Events, &events(&turn(step * 9, step * 9 + 4))).unwrap();
        writer.append(Table::Events, &events(&turn(step * 9 + 4, step * 9 + 9))).unwrap();
        writer.commit().unwrap();
        steps.push((live_lengths(&dir), step * 9 + 9, ledger()));
    }
    drop(writer);
    let events_file = PathBuf::from("live/part-000000.events.arrows");
    let mut states = 0;
    for pair in steps.windows(2) {
        let [(before, committed, ledger), (after, written, _)] = pair else { unreachable!() };
        // In the order of the writer: each side table in turn, then the events.
        let mut lengths = before.clone();
        let sides = Table::SIDE.map(|t| PathBuf::from(format!("live/part-000000.{t}.arrows")));
        for name in sides.into_iter().chain([events_file.clone()]) {
            let Some(to) = after.get(&name) else { continue };
            let from = before.get(&name).copied().unwrap_or(0);
            for length in from..=*to {
                lengths.insert(name.clone(), length);
                cut(&dir, &torn, &lengths);
                fs::write(torn.join(LEDGER), ledger).unwrap();
                let most = if name == events_file { *written } else { *committed };
                let go_on = states % 101 == 0 || length == from || length == to - 1 || length == *to;
                survives(&torn, *committed, most, 18, go_on);
                states += 1;
            }
        }
    }
    assert!(states > 3000, "{states}");
}

#[test]
fn garbage_after_the_last_commit_is_truncated() {
    // After a power loss a file may be longer than its data, with zeros or old content.
    let temp = dir_in_memory();
    let (dir, torn) = (temp.path().join("trace"), temp.path().join("torn"));
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 9))).unwrap();
    writer.commit().unwrap();
    let (good, ledger) = (live_lengths(&dir), fs::read(dir.join(LEDGER)).unwrap());
    writer.append(Table::Events, &events(&turn(9, 18))).unwrap();
    writer.commit().unwrap();
    drop(writer);
    let name = PathBuf::from("live/part-000000.events.arrows");
    let whole = fs::read(dir.join(&name)).unwrap();
    let from = good[&name] as usize;
    for hole in (from..whole.len()).step_by(5) {
        let mut bytes = whole.clone();
        let end = bytes.len().min(hole + 64);
        if bytes[hole..end].iter().all(|b| *b == 0) {
            continue;
        }
        bytes[hole..end].fill(0);
        let _ = fs::remove_dir_all(&torn);
        copy(&dir, &torn);
        fs::write(torn.join(&name), &bytes).unwrap();
        fs::write(torn.join(LEDGER), &ledger).unwrap();
        assert_eq!(read_all(&torn), turn(0, 9), "zeros at {hole}");
        let (mut writer, recovered) = Writer::open(&torn, Options::default()).unwrap();
        assert_eq!((recovered.cut.len(), recovered.lost), (1, 0));
        writer.append(Table::Events, &events(&turn(9, 27))).unwrap();
        writer.commit().unwrap();
        assert_eq!(read_all(&torn), turn(0, 27));
    }
}

#[test]
fn seal_interrupted_between_any_two_steps_is_completed() {
    let temp = dir_in_memory();
    let (dir, done, state) = (temp.path().join("live"), temp.path().join("done"), temp.path().join("state"));
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 12))).unwrap();
    writer.commit().unwrap();
    drop(writer);
    copy(&dir, &done);
    // The next live part began before part 0 was sealed.
    let (mut writer, _) = Writer::open(&done, Options::default()).unwrap();
    writer.seal().unwrap();
    writer.append(Table::Events, &events(&turn(12, 18))).unwrap();
    writer.commit().unwrap();
    while !done.join("events/part-000000.parquet").exists() || live_lengths(&done).len() > 1 {
        std::thread::yield_now();
    }
    drop(writer);
    let next = "live/part-000001.events.arrows";
    let sealed = |table: Table| format!("{table}/part-000000.parquet");
    let put = |name: &str, to: &str, part: f64| {
        let bytes = fs::read(done.join(name)).unwrap();
        fs::create_dir_all(state.join(to).parent().unwrap()).unwrap();
        fs::write(state.join(to), &bytes[..(bytes.len() as f64 * part) as usize]).unwrap();
    };
    let tables = Table::SIDE.into_iter().chain([Table::Events]).collect::<Vec<_>>();
    for with_next in [false, true] {
        let all = if with_next { 18 } else { 12 };
        for renamed in 0..=tables.len() {
            for tmp in [0.0, 0.5, 1.0] {
                for removed in 0..=5 {
                    if (renamed == tables.len()) != (tmp == 1.0) || (removed > 0 && renamed < tables.len()) {
                        continue;
                    }
                    let _ = fs::remove_dir_all(&state);
                    copy(&dir, &state);
                    if with_next {
                        put(next, next, 1.0);
                        put("ledger/part-000001.live", "ledger/part-000001.live", 1.0);
                    }
                    // The entry of the ledger is written before the events are renamed.
                    if renamed + 1 >= tables.len() {
                        put("ledger/part-000000.sealed", "ledger/part-000000.sealed", 1.0);
                    }
                    for table in &tables[..renamed] {
                        put(&sealed(*table), &sealed(*table), 1.0);
                    }
                    if let Some(table) = tables.get(renamed) {
                        put(&sealed(*table), &format!("{}.tmp", sealed(*table)), tmp);
                    }
                    for table in Table::ALL.iter().take(removed) {
                        let _ = fs::remove_file(state.join(format!("live/part-000000.{table}.arrows")));
                    }
                    survives(&state, all, all, 24, true);
                    assert!(live_lengths(&state).is_empty());
                    for table in Table::ALL {
                        let names = fs::read_dir(state.join(table.name())).unwrap();
                        assert!(
                            names.flatten().all(|e| e.path().extension().is_some_and(|e| e == "parquet"))
                        );
                    }
                }
            }
        }
    }
}

/// Not a test: the process that the next test kills. Prints the number of committed events.
#[test]
fn child_that_is_killed() {
    let Ok(dir) = std::env::var("MIOT_TEST_KILLED_WRITER") else { return };
    let dir = PathBuf::from(dir);
    let options = Options { seal_rows: 400, ..Options::default() };
    let (mut writer, mut next) = if dir.exists() {
        let (writer, recovered) = Writer::open(&dir, options).unwrap();
        (writer, recovered.streams.iter().map(|s| s.next_seq).sum())
    } else {
        let mut writer = Writer::create(&dir, options).unwrap();
        sides(&mut writer);
        writer.commit().unwrap();
        (writer, 0)
    };
    loop {
        let more = next + 1 + next % 90;
        writer.append(Table::Events, &events(&turn(next, more))).unwrap();
        if writer.seal_due() {
            writer.seal().unwrap()
        } else {
            writer.commit().unwrap()
        }
        next = more;
        println!("committed {next}");
    }
}

#[test]
fn killed_writer_loses_no_committed_row() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("trace");
    let mut committed = 0;
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--nocapture"])
            .env("MIOT_TEST_KILLED_WRITER", &dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut commits = 0;
        for line in lines {
            let line = line.unwrap();
            if let Some((_, count)) = line.split_once("committed ") {
                committed = count.parse().unwrap();
                commits += 1;
            }
            if commits == 3 + round * 2 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let read = read_all(&dir);
        assert!(read.len() as u64 >= committed, "{} of {committed}", read.len());
        assert_eq!(read, turn(0, read.len() as u64));
        let report = fsck::check(&dir);
        assert!(report.is_good(), "{report}");
    }
    let (writer, _) = Writer::open(&dir, Options::default()).unwrap();
    writer.finish().unwrap();
    let read = read_all(&dir);
    assert_eq!(read, turn(0, read.len() as u64));
}
