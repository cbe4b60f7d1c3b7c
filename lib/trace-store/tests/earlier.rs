//! A trace that an earlier version wrote (`tests/traces/schema-2`: one sealed part, and a live one
//! whose log-server was killed) is read, continued and repaired.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int32Type, Int64Type, UInt64Type};
use miot_trace_store::repair::repair;
use miot_trace_store::schema::{self, column, text};
use miot_trace_store::{Error, MANIFEST, Options, Reader, Table, Writer, fsck, ids};
use std::fs;
use std::path::{Path, PathBuf};

const EVENTS: usize = 106;
/// Events of the sealed part.
const SEALED: usize = 78;

/// Returns a copy, which is removed with the first value.
fn fresh() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/schema-2/trace");
    let dir = temp.path().join("trace");
    copy(&from, &dir);
    (temp, dir)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn all(dir: &Path, table: Table) -> RecordBatch {
    let batches = Reader::open(dir).unwrap().table(table).unwrap();
    arrow_select::concat::concat_batches(&schema::of(table), &batches).unwrap()
}

fn schema_of(dir: &Path) -> u64 {
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(dir.join(MANIFEST)).unwrap()).unwrap();
    manifest["schema"].as_u64().unwrap()
}

/// The columns that have other types, compared with the output of the earlier version.
fn check_rows(events: &RecordBatch) {
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/schema-2/rows.json");
    let expected = fs::read_to_string(expected).unwrap();
    let expected: Vec<serde_json::Value> =
        expected.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(expected.len(), EVENTS);
    for name in ["process", "stream", "seq", "request", "file", "handle", "enclosing"] {
        let found = events.column_by_name(name).unwrap().as_primitive::<Int64Type>();
        let expected: Vec<_> = expected.iter().map(|row| row.get(name).and_then(|v| v.as_i64())).collect();
        assert_eq!(found.iter().take(EVENTS).collect::<Vec<_>>(), expected, "{name}");
    }
    for name in ["pid", "tid", "flags"] {
        let found = events.column_by_name(name).unwrap().as_primitive::<Int32Type>();
        let expected: Vec<_> = expected.iter().map(|row| row[name].as_i64().unwrap() as i32).collect();
        assert_eq!(found.values()[..EVENTS], expected, "{name}");
    }
}

#[test]
fn trace_of_an_earlier_version_is_read() {
    let (_temp, dir) = fresh();
    check_rows(&all(&dir, Table::Events));
    for table in Table::ALL {
        assert_eq!(all(&dir, table).schema(), schema::of(table));
    }
    let processes = all(&dir, Table::Processes);
    assert_eq!(text(&processes, "nonce").unwrap().value(0), "15718330182506238493");
    let report = fsck::check(&dir);
    assert!(report.is_good() && report.to_string().contains("complete"), "{report}");
    // Some columns only.
    let select = miot_trace_store::Select::columns(&["time", "process", "flags"]);
    let batches: Vec<_> = Reader::open(&dir).unwrap().scan(&select).unwrap().map(Result::unwrap).collect();
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, EVENTS);
    assert!(batches.iter().all(|batch| column::<UInt64Type>(batch, "process").is_some()));
    assert!(batches.iter().all(|batch| column::<Int32Type>(batch, "flags").is_some()));
    assert_eq!(schema_of(&dir), 2, "readers change nothing");
}

#[test]
fn trace_of_an_earlier_version_is_continued() {
    let (_temp, dir) = fresh();
    let (mut writer, recovered) = Writer::open(&dir, Options::default()).unwrap();
    assert_eq!((recovered.processes.len(), recovered.lost), (9, 0));
    assert_eq!(recovered.processes[0].nonce, Some(15_718_330_182_506_238_493));
    assert_eq!((recovered.next_process, recovered.next_stream), (10, 10));
    assert_eq!(schema_of(&dir), 3, "an earlier version would misread what follows");
    let live = Reader::open(&dir).unwrap().table(Table::Events).unwrap();
    assert_eq!(live.iter().map(RecordBatch::num_rows).sum::<usize>(), EVENTS);
    // Another row of the last stream.
    let before = all(&dir, Table::Events);
    let last = before.slice(EVENTS - 1, 1);
    let mut columns = last.columns().to_vec();
    let at = |name: &str| last.schema().index_of(name).unwrap();
    let next = recovered.streams.iter().find(|s| s.stream == recovered.next_stream - 1).unwrap();
    let number = |n: u64| std::sync::Arc::new(arrow_array::Int64Array::from(vec![n as i64])) as _;
    columns[at("stream")] = number(next.stream);
    columns[at("process")] = number(next.process);
    columns[at("seq")] = number(next.next_seq);
    writer.append(Table::Events, &RecordBatch::try_new(schema::of(Table::Events), columns).unwrap()).unwrap();
    writer.finish().unwrap();

    let report = fsck::check(&dir);
    assert!(report.is_good(), "{report}");
    assert_eq!(report.events, EVENTS as u64 + 1);
    let events = all(&dir, Table::Events);
    check_rows(&events);
    let files = Reader::open(&dir).unwrap().sealed_files().unwrap();
    let types: Vec<String> = files
        .iter()
        .filter(|file| file.table == Table::Events)
        .map(|file| file.columns.find("process").unwrap().1.data_type().to_string())
        .collect();
    assert_eq!(types, ["UInt64", "Int64"], "the sealed part is unchanged");
    assert!(matches!(
        Writer::open(&dir, Options { partition: 4, ..Options::default() }),
        Err(Error::OtherPartition { found: 0, expected: 4, .. })
    ));
}

#[test]
fn damaged_part_of_an_earlier_version_is_repaired() {
    let (_temp, dir) = fresh();
    let path = dir.join("processes/part-000000.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[40] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(!fsck::check(&dir).is_good());
    let outcome = repair(&dir).unwrap();
    assert!(outcome.has_lost(), "{:?}", outcome.repaired);
    assert_eq!(schema_of(&dir), 3);
    check_rows(&all(&dir, Table::Events));
    assert_eq!(all(&dir, Table::Events).num_rows(), EVENTS);
}

/// Retention carries rows of an earlier version over to this one.
#[test]
fn rows_of_an_earlier_version_are_carried_over() {
    let (_temp, dir) = fresh();
    let (mut writer, _) = Writer::open(&dir, Options { keep_bytes: Some(1), ..Options::default() }).unwrap();
    writer.seal().unwrap();
    for _ in 0..500 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        writer.retain().unwrap();
        if dir.join("threads/carried-000001.parquet").exists() {
            break;
        }
    }
    writer.finish().unwrap();
    let report = fsck::check(&dir);
    assert!(report.is_good(), "{report}");
    let events = all(&dir, Table::Events);
    assert_eq!(events.num_rows(), EVENTS - SEALED);
    let processes = all(&dir, Table::Processes);
    let ids: Vec<u64> = column::<UInt64Type>(&processes, "process").unwrap().values().to_vec();
    for process in column::<UInt64Type>(&events, "process").unwrap().values() {
        assert!(ids.contains(process), "process {process} is not in {ids:?}");
    }
}

#[test]
fn partition_is_in_the_ids_and_in_the_manifest() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("trace");
    let options = || Options { partition: 7, ..Options::default() };
    drop(Writer::create(&dir, options()).unwrap());
    let (writer, recovered) = Writer::open(&dir, options()).unwrap();
    let first = ids::first(7);
    assert_eq!((recovered.next_process, recovered.next_stream, recovered.next_file), (first, first, first));
    drop(writer);
    let error = Writer::open(&dir, Options::default()).unwrap_err().to_string();
    assert!(error.contains("is partition 7, expected 0") && error.contains("partition = 7"), "{error}");
    assert_eq!(Reader::open(&dir).unwrap().manifest().partition, 7);
}
