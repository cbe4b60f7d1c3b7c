//! I/O during regions, with figures computed by hand.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use miot_trace_analysis::regions::{
    CheckpointRow, LoopFigures, RegionKind, RegionRow, RegionSpans, RegionTable,
};
use miot_trace_events::testing::{EventValues, batch, row};
use miot_trace_store::FileNames;
use std::sync::Arc;

const EPOCH: u64 = 90;
const FETCH: u64 = 91;
const FORWARD: u64 = 92;
const CHECKPOINT: u64 = 93;
const SAMPLE: u64 = 94;
/// Text of attributes.
const NUMBER: u64 = 95;

fn names() -> FileNames {
    let mut names = FileNames::default();
    let all = [
        (EPOCH, "epoch"),
        (FETCH, "fetch"),
        (FORWARD, "forward"),
        (CHECKPOINT, "checkpoint"),
        (SAMPLE, "sample"),
        (NUMBER, "epoch="),
    ];
    all.iter().for_each(|(file, name)| names.put(*file, name));
    names
}

/// Returns rows of process, its parent's process id, rank. Process ids are those of the process +
/// 100.
fn processes(all: &[(u64, u32, Option<u32>)]) -> RecordBatch {
    let columns: [(&str, ArrayRef); 6] = [
        ("process", Arc::new(UInt64Array::from_iter_values(all.iter().map(|p| p.0)))),
        ("node", Arc::new(StringArray::from_iter_values(all.iter().map(|_| "n1")))),
        ("pid", Arc::new(UInt32Array::from_iter_values(all.iter().map(|p| p.0 as u32 + 100)))),
        ("ppid", Arc::new(UInt32Array::from_iter_values(all.iter().map(|p| p.1)))),
        ("rank", Arc::new(UInt32Array::from_iter(all.iter().map(|p| p.2)))),
        ("job", Arc::new(StringArray::from_iter(all.iter().map(|_| None::<&str>)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn region(process: u64, tid: u32, name: u64, begin: i64, end: i64) -> EventValues {
    EventValues {
        layer: "app",
        op: "region",
        process,
        tid,
        flags: 4,
        ..row("region", name, 0, begin, end - begin)
    }
}

fn io(process: u64, tid: u32, op: &'static str, bytes: i64, begin: i64, end: i64) -> EventValues {
    EventValues { process, tid, ..row(op, 1, bytes, begin, end - begin) }
}

/// Adds numbers of regions as column `arg`.
fn numbered(batch: &RecordBatch, numbers: Vec<Option<i64>>) -> RecordBatch {
    let at = batch.schema().index_of("arg").unwrap();
    let mut columns = batch.columns().to_vec();
    columns[at] = Arc::new(Int64Array::from(numbers));
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

/// Analyzes events, which are sorted by completion.
fn analyze(by: Option<&str>, processes: &RecordBatch, mut events: Vec<EventValues>) -> RegionTable {
    events.sort_by_key(|event| event.begin + event.took);
    let mut spans = RegionSpans::new(by.map(str::to_owned));
    let batch = batch(&events);
    let numbers = events.iter().scan(0, |count, event| {
        let is_numbered = event.layer == "app" && event.file == Some(EPOCH);
        *count += i64::from(is_numbered);
        Some(is_numbered.then_some(*count - 1))
    });
    let batch = numbered(&batch, numbers.collect());
    spans.add(&batch, &names());
    let mut regions = spans.finish(std::slice::from_ref(processes));
    regions.add(&batch);
    regions.finish(&names())
}

/// Two steps and a checkpoint of process 1, whose worker is process 2. Process 3 is another
/// program.
fn training() -> Vec<EventValues> {
    vec![
        region(1, 10, EPOCH, 0, 1000),
        region(1, 10, FETCH, 0, 100),
        region(1, 10, FORWARD, 100, 300),
        region(1, 10, FETCH, 300, 350),
        region(1, 10, FORWARD, 350, 600),
        region(1, 10, CHECKPOINT, 600, 700),
        io(2, 20, "read", 1000, 50, 150),
        io(2, 20, "read", 2000, 200, 320),
        io(2, 20, "pread", 500, 340, 380),
        io(1, 10, "fstat", 0, 400, 410),
        io(1, 10, "write", 4096, 620, 680),
        io(3, 30, "read", 77, 0, 50),
    ]
}

/// Returns count, time, requests, bytes read, bytes written, I/O time, hidden time of a row.
fn figures(table: &RegionTable, region: &str, layer: Option<&str>) -> [u64; 7] {
    let row = |row: &&RegionRow| row.region == region && row.layer == layer;
    let RegionRow { count, time, requests, bytes_read, bytes_written, io_time, hidden_time, .. } =
        *table.rows.iter().find(row).unwrap();
    [count, time, requests, bytes_read, bytes_written, io_time, hidden_time]
}

#[test]
fn times_of_regions_are_listed_by_name() {
    let table = analyze(None, &processes(&[(1, 1, None), (2, 101, None), (3, 1, None)]), training());
    let spans = table.spans.iter().map(|of| (of.region.as_str(), of.kind, of.count, of.time, &of.spans[..]));
    let expected: [(_, _, _, _, &[(i64, i64)]); 4] = [
        ("epoch", RegionKind::Other, 1, 1000, &[(0, 1000)]),
        ("forward", RegionKind::Compute, 2, 450, &[(100, 300), (350, 600)]),
        ("fetch", RegionKind::Fetch, 2, 150, &[(0, 100), (300, 350)]),
        ("checkpoint", RegionKind::Checkpoint, 1, 100, &[(600, 700)]),
    ];
    assert_eq!(spans.collect::<Vec<_>>(), expected);
}

#[test]
fn io_of_workers_is_hidden_while_the_main_thread_computes() {
    let table = analyze(None, &processes(&[(1, 1, None), (2, 101, None), (3, 1, None)]), training());
    assert_eq!((table.tasks, table.regions, table.left_out), (1, 6, 0));
    // 100 + 120 + 40 of the worker, 10 + 60 of the main thread. Hidden: 100 to 150, 200 to 300, 350
    // to 380.
    assert_eq!(figures(&table, "epoch", None), [1, 1000, 5, 3500, 4096, 330, 180]);
    assert_eq!(figures(&table, "fetch", None), [2, 150, 1, 2000, 0, 80, 0]);
    assert_eq!(figures(&table, "forward", None), [2, 450, 3, 1500, 0, 190, 180]);
    assert_eq!(figures(&table, "checkpoint", None), [1, 100, 1, 0, 4096, 60, 0]);
    assert_eq!(figures(&table, "checkpoint", Some("posix")), [1, 100, 1, 0, 4096, 60, 0]);
    let order: Vec<&str> =
        table.rows.iter().filter(|row| row.layer.is_none()).map(|row| row.region.as_str()).collect();
    assert_eq!(order, ["epoch", "forward", "fetch", "checkpoint"], "by total time");
    let forward = table.rows.iter().find(|row| row.region == "forward").unwrap();
    assert_eq!((forward.kind, forward.threads, forward.is_main), (RegionKind::Compute, 1, true));
    assert_eq!(forward.hidden, Some(180.0 / 190.0));
    assert_eq!(forward.bandwidth, Some(1500e9 / 190.0));
    let expected = LoopFigures {
        main: 1,
        begin: 0,
        end: 700,
        time: 700,
        compute: 450,
        fetch: 150,
        checkpoint: 100,
        fetches: 2,
        checkpoints: 1,
        io_time: 330,
        hidden_time: 180,
        fetch_io: 80,
        checkpoint_io: 60,
    };
    assert_eq!(table.loops, [expected]);
}

#[test]
fn region_of_a_worker_contains_its_own_requests() {
    let mut events = training();
    events.push(region(2, 20, SAMPLE, 40, 160));
    // Another worker reads at the same time.
    events.push(io(4, 40, "read", 10, 100, 140));
    let table = analyze(None, &processes(&[(1, 1, None), (2, 101, None), (4, 101, None)]), events);
    assert_eq!(table.tasks, 1);
    assert_eq!(figures(&table, "sample", None), [1, 120, 1, 1000, 0, 100, 50]);
    // The other worker's read is within the first one.
    assert_eq!(figures(&table, "epoch", None), [1, 1000, 6, 3510, 4096, 330, 180]);
    assert!(!table.rows.iter().find(|row| row.region == "sample").unwrap().is_main);
}

#[test]
fn regions_of_one_name_are_separate_rows_if_requested() {
    let mut events = training();
    events.push(region(1, 10, EPOCH, 1000, 1100));
    events.push(io(2, 20, "read", 5, 1010, 1020));
    events.iter_mut().filter(|event| event.file == Some(EPOCH)).for_each(|event| event.file2 = Some(NUMBER));
    let table = analyze(Some("epoch"), &processes(&[(1, 1, None), (2, 101, None)]), events);
    let epochs: Vec<(Option<&str>, u64, u64)> = table
        .rows
        .iter()
        .filter(|row| row.region == "epoch" && row.layer.is_none())
        .map(|row| (row.attributes.as_deref(), row.requests, row.io_time))
        .collect();
    assert_eq!(epochs, [(Some("epoch=0"), 5, 330), (Some("epoch=1"), 1, 10)]);
}

#[test]
fn ranks_are_tasks_of_their_own() {
    // 1 and 2 are ranks of a launcher (9), which has a region too. 3 is a worker of 2 whose parent
    // is not in the trace; 4 has no rank and is a child of 1.
    let all = [(9, 1, None), (1, 109, Some(0)), (2, 109, Some(1)), (3, 7777, Some(1)), (4, 101, None)];
    let events = vec![
        region(9, 99, EPOCH, 0, 1000),
        region(1, 10, FORWARD, 0, 100),
        region(2, 20, FORWARD, 0, 50),
        region(2, 20, FETCH, 50, 100),
        io(3, 30, "read", 100, 40, 80),
        io(4, 40, "read", 10, 40, 80),
        io(9, 99, "write", 1, 200, 300),
    ];
    let table = analyze(None, &processes(&all), events);
    assert_eq!(table.tasks, 3);
    assert_eq!(figures(&table, "forward", None), [2, 150, 1, 10, 0, 40 + 10, 40 + 10]);
    assert_eq!(figures(&table, "fetch", None), [1, 50, 1, 100, 0, 30, 0]);
    assert_eq!(figures(&table, "epoch", None), [1, 1000, 1, 0, 1, 100, 0]);
}

/// Two ranks save at the same time, twice. Process 3 is a worker of rank 1.
#[test]
fn overlapping_regions_of_ranks_are_one_checkpoint() {
    let all = [(1, 1, Some(0)), (2, 1, Some(1)), (3, 102, None), (5, 1, None)];
    let write = |process, tid, file, bytes, begin, end| EventValues {
        file: Some(file),
        ..io(process, tid, "write", bytes, begin, end)
    };
    let events = vec![
        region(1, 10, FORWARD, 0, 90),
        region(2, 20, FORWARD, 0, 90),
        region(1, 10, CHECKPOINT, 100, 200),
        region(2, 20, CHECKPOINT, 150, 250),
        write(1, 10, SAMPLE, 1000, 110, 160),
        write(2, 20, EPOCH, 500, 155, 170),
        write(3, 30, EPOCH, 200, 160, 180),
        // Between checkpoints, of a program without any, and a read.
        write(1, 10, SAMPLE, 7, 260, 270),
        write(5, 50, SAMPLE, 7, 110, 120),
        io(1, 10, "read", 7, 180, 190),
        // By a thread in the background, beside computation.
        region(1, 10, FORWARD, 300, 400),
        region(1, 11, CHECKPOINT, 300, 350),
        write(1, 11, SAMPLE, 40, 310, 320),
    ];
    let table = analyze(None, &processes(&all), events);
    let row = |row: &CheckpointRow| {
        let numbers = [row.files, row.bytes_written, row.time, row.io_time, row.writers, row.writers_at_once];
        (row.checkpoint, row.file.clone(), row.begin, numbers, row.tasks, row.blocked_time)
    };
    let rows: Vec<_> = table.checkpoints.iter().map(row).collect();
    let file = |name: &str| Some(name.to_owned());
    assert_eq!(
        rows,
        [
            (0, None, 100, [2, 1700, 150, 70, 3, 2], Some(2), Some(150)),
            (0, file("sample"), 110, [1, 1000, 50, 50, 1, 1], None, None),
            (0, file("epoch"), 155, [1, 700, 25, 25, 2, 2], None, None),
            (1, None, 300, [1, 40, 50, 10, 1, 1], Some(1), Some(0)),
            (1, file("sample"), 310, [1, 40, 10, 10, 1, 1], None, None),
        ]
    );
    assert_eq!((table.checkpoints[0].blocked, table.checkpoints[3].blocked), (Some(1.0), Some(0.0)));
    assert_eq!(table.checkpoints[0].bandwidth, Some(1700e9 / 70.0));
}

#[test]
fn trace_without_regions_has_no_rows() {
    let table = analyze(None, &processes(&[(1, 1, None)]), vec![io(1, 10, "read", 1, 0, 1)]);
    assert_eq!(table, RegionTable::default());
}
