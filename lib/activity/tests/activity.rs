//! Activity computed from rows with known values, compared with the summary of the whole trace.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray};
use miot_activity::ActivitySnapshot;
use miot_activity::{Activity, ActivityGroup, ActivityWindow, PLACES};
use miot_trace_analysis::Summary;
use miot_trace_events::testing::{EventValues, batch, row};
use miot_trace_store::{FileNames, Table, schema};
use std::collections::HashMap;
use std::sync::Arc;

const SECOND: i64 = 1_000_000_000;
/// Begin of the trace, in the middle of a second.
const BEGIN: i64 = 1_700_000_000 * SECOND + SECOND / 2;

/// Returns random requests of two nodes over some seconds, the same in each run.
fn many(count: usize) -> Vec<EventValues> {
    let mut random = fastrand::Rng::with_seed(42);
    let mut draw = |below: u64| random.u64(..below);
    let mut rows: Vec<EventValues> = (0..count)
        .map(|_| {
            let op = ["read", "write", "openat", "copy_file_range", "fsync"][draw(5) as usize];
            let result = if draw(10) == 0 { -5 } else { draw(1 << 20) as i64 };
            let took = 100 + draw(1 << 22) as i64;
            let process = 1 + draw(20);
            EventValues {
                node: if process % 2 == 0 { "even" } else { "odd" },
                process,
                file2: (op == "copy_file_range").then(|| 1 + draw(300)),
                enclosing: (draw(4) == 0).then_some(7),
                ..row(op, 1 + draw(300), result, BEGIN + draw(5 * SECOND as u64) as i64, took)
            }
        })
        .collect();
    rows.sort_by_key(|row| row.begin + row.took);
    rows
}

fn table(table: Table, columns: &[(&str, ArrayRef)]) -> RecordBatch {
    let rows = columns[0].1.len();
    let fields =
        schema::of(table).fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>();
    let columns = fields.iter().map(|field| {
        let given =
            columns.iter().find(|(name, _)| name == field.name()).map(|(_, column)| Arc::clone(column));
        given.unwrap_or_else(|| arrow_array::new_null_array(field.data_type(), rows))
    });
    let columns = columns.collect();
    RecordBatch::try_new(Arc::new(arrow_schema::Schema::new(fields)), columns).unwrap()
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn ids(values: &[u64]) -> ArrayRef {
    Arc::new(values.iter().map(|id| Some(*id as i64)).collect::<Int64Array>())
}

fn i32s(values: &[i32]) -> ArrayRef {
    Arc::new(Int32Array::from(values.to_vec()))
}

fn processes() -> RecordBatch {
    table(
        Table::Processes,
        &[
            ("process", ids(&[1, 2, 3])),
            ("node", texts(&["n1", "n1", "n2"])),
            ("pid", i32s(&[101, 102, 103])),
            ("uid", ids(&[1000, 1000, 0])),
            ("job", Arc::new(StringArray::from(vec![Some("77"), None, Some("77")]))),
            ("exe", texts(&["/bin/a", "/bin/b", "/bin/c"])),
            ("cmdline", texts(&["a -x", "", "c"])),
        ],
    )
}

fn losses(rows: &[(i64, &str, Option<u64>, &str, u64)]) -> RecordBatch {
    let times: Vec<i64> = rows.iter().map(|row| row.0).collect();
    let times: ArrayRef = Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"));
    let nodes: Vec<&str> = rows.iter().map(|row| row.1).collect();
    let places: Vec<&str> = rows.iter().map(|row| row.3).collect();
    let counts: Vec<u64> = rows.iter().map(|row| row.4).collect();
    table(
        Table::Losses,
        &[
            ("time", times),
            ("node", texts(&nodes)),
            ("process", Arc::new(rows.iter().map(|row| row.2.map(|id| id as i64)).collect::<Int64Array>())),
            ("place", texts(&places)),
            ("count", ids(&counts)),
        ],
    )
}

fn added(rows: &[EventValues]) -> Activity {
    let mut activity = Activity::new();
    rows.chunks(700).for_each(|chunk| activity.add(Table::Events, &batch(chunk)));
    activity
}

/// Returns name or id, requests and bytes of each row.
fn brief(group: &ActivityGroup) -> Vec<(String, u64, u64, u64)> {
    let brief = group.rows.iter().map(|row| {
        let name = if row.name.is_empty() { row.id.unwrap_or(0).to_string() } else { row.name.clone() };
        (name, row.requests, row.bytes_read, row.bytes_written)
    });
    brief.collect()
}

#[test]
fn whole_time_equals_summary() {
    let rows = many(20_000);
    let mut summary = Summary::new();
    summary.add(&batch(&rows));
    let report = summary.finish(&FileNames::default(), &[], 1000);
    let snapshot = added(&rows).snapshot(ActivityWindow::Whole, 1000);

    let totals = report.totals;
    let cluster = &snapshot.cluster;
    assert_eq!(snapshot.events, totals.events);
    assert_eq!(
        (cluster.requests, cluster.bytes_read, cluster.bytes_written, cluster.time),
        (totals.requests, totals.bytes_read, totals.bytes_written, totals.time)
    );
    let by_file: HashMap<u64, _> = report.files.iter().map(|file| (file.file, file)).collect();
    assert_eq!((snapshot.files.rows.len(), by_file.len()), (300, 300));
    for row in &snapshot.files.rows {
        let file = by_file[&row.id.unwrap()];
        assert_eq!(
            (row.requests, row.bytes_read, row.bytes_written, row.time, row.missed),
            (file.requests, file.bytes_read, file.bytes_written, file.time, 0)
        );
    }
    for row in &snapshot.processes.rows {
        let process = report.processes.iter().find(|process| Some(process.process) == row.id).unwrap();
        assert_eq!(
            (row.requests, row.bytes_read, row.bytes_written, row.pid),
            (process.requests, process.bytes_read, process.bytes_written, Some(process.pid))
        );
    }
    for row in &snapshot.operations.rows {
        let op = report.operations.iter().find(|op| format!("{}.{}", op.layer, op.op) == row.name).unwrap();
        assert_eq!((row.requests, row.failed, row.time, row.max), (op.count, op.failed, op.time, op.max));
        for (ours, theirs) in [(row.p50, op.p50), (row.p99, op.p99)] {
            assert!((ours as f64 / theirs as f64 - 1.0).abs() < 0.08, "{}: {ours}, {theirs}", row.name);
        }
    }
    let nodes: u64 = snapshot.nodes.rows.iter().map(|row| row.requests).sum();
    assert_eq!((nodes, snapshot.nodes.rows.len()), (totals.requests, 2));
    for group in [&snapshot.nodes, &snapshot.files, &snapshot.processes, &snapshot.operations] {
        assert_eq!(group.others, 0);
    }
}

#[test]
fn bytes_moved_after_an_mpi_call_count_once() {
    let iwrite = EventValues { layer: "mpi-io", ..row("iwrite_at", 1, 4096, 1000, 500) };
    let pwrite = EventValues { caller: Some(10), tid: 11, ..row("pwrite", 1, 4096, 1600, 300) };
    let snapshot = added(&[iwrite, pwrite]).snapshot(ActivityWindow::Whole, 10);
    assert_eq!((snapshot.cluster.requests, snapshot.cluster.bytes_written), (1, 4096));
    assert_eq!(snapshot.operations.rows.len(), 2);
}

#[test]
fn window_excludes_the_present_second() {
    // One request in the first second, two in the second, and so on.
    let rows: Vec<EventValues> = (0..70i64)
        .flat_map(|second| (0..=second).map(move |_| row("read", 1, 10, BEGIN + second * SECOND, 0)))
        .collect();
    let mut activity = added(&rows);
    let requests = |snapshot: ActivitySnapshot| (snapshot.cluster.requests, snapshot.seconds);
    assert_eq!(
        requests(activity.snapshot(ActivityWindow::Seconds(1), 5)),
        (69, 1.0),
        "the present second is not over"
    );
    activity.advance(BEGIN + 70 * SECOND);
    assert_eq!(requests(activity.snapshot(ActivityWindow::Seconds(1), 5)), (70, 1.0));
    assert_eq!(requests(activity.snapshot(ActivityWindow::Seconds(10), 5)), ((61..=70).sum(), 10.0));
    assert_eq!(requests(activity.snapshot(ActivityWindow::Seconds(60), 5)), ((11..=70).sum(), 60.0));
    let whole = activity.snapshot(ActivityWindow::Whole, 5);
    assert_eq!(
        (whole.cluster.requests, whole.begin, whole.end),
        ((1..=70).sum(), BEGIN, BEGIN + 69 * SECOND)
    );
    assert_eq!(activity.history(1, 3).requests, [68, 69, 70]);

    // Late events count on arrival.
    activity.add(Table::Events, &batch(&[row("read", 1, 10, BEGIN, 0)]));
    activity.advance(BEGIN + 71 * SECOND);
    assert_eq!(requests(activity.snapshot(ActivityWindow::Seconds(1), 5)), (1, 1.0));
    activity.advance(BEGIN + 200 * SECOND);
    assert_eq!(requests(activity.snapshot(ActivityWindow::Seconds(60), 5)), (0, 60.0));
    assert_eq!(activity.history(10, 2).requests, [0, 0]);
    // Of the first second only the second half was observed.
    let mut short = added(&rows[..3]);
    short.advance(BEGIN + 2 * SECOND);
    assert_eq!(requests(short.snapshot(ActivityWindow::Seconds(10), 5)), (3, 2.0));
}

#[test]
fn jobs_processes_and_files_have_their_names() {
    let mut activity = Activity::new();
    activity.add(Table::Processes, &processes());
    let files: [(&str, ArrayRef); 3] =
        [("file", ids(&[1, 2])), ("node", texts(&["n1", "n2"])), ("path", texts(&["/a", "/b"]))];
    activity.add(Table::Files, &table(Table::Files, &files));
    let of = |process, file, bytes| EventValues { process, ..row("write", file, bytes, BEGIN, 5) };
    let mut stranger = of(9, 3, 1000);
    stranger.node = "n9";
    let rows = [of(1, 1, 1), of(1, 1, 10), of(3, 2, 100), stranger];
    assert!(activity.has_strangers(&batch(&rows)));
    assert!(!activity.has_strangers(&batch(&rows[..3])));
    activity.add(Table::Events, &batch(&rows));
    assert!(activity.has_strangers(&batch(&rows)), "events alone do not describe a process");
    let snapshot = activity.snapshot(ActivityWindow::Whole, 10);
    assert_eq!(brief(&snapshot.jobs), [("77".into(), 3, 0, 111), ("0".into(), 1, 0, 1000)]);
    assert_eq!(
        brief(&snapshot.files),
        [("/a".into(), 2, 0, 11), ("/b".into(), 1, 0, 100), ("3".into(), 1, 0, 1000)]
    );
    let shown: Vec<_> = snapshot
        .processes
        .rows
        .iter()
        .map(|row| (row.name.as_str(), row.node.as_deref(), row.pid, row.uid))
        .collect();
    assert_eq!(
        shown,
        [
            ("a -x", Some("n1"), Some(101), Some(1000)),
            ("c", Some("n2"), Some(103), Some(0)),
            ("", Some("n9"), Some(109), None)
        ]
    );
    // A row that arrives later is used.
    activity.add(
        Table::Processes,
        &table(
            Table::Processes,
            &[
                ("process", ids(&[9])),
                ("node", texts(&["n9"])),
                ("pid", i32s(&[109])),
                ("uid", ids(&[5])),
                ("job", texts(&["late"])),
                ("exe", texts(&["/bin/late"])),
                ("cmdline", texts(&[""])),
            ],
        ),
    );
    activity.add(Table::Events, &batch(&[stranger]));
    let snapshot = activity.snapshot(ActivityWindow::Whole, 10);
    assert!(brief(&snapshot.jobs).contains(&("late".into(), 1, 0, 1000)));
    assert!(snapshot.processes.rows.iter().any(|row| row.name == "/bin/late" && row.requests == 2));
}

#[test]
fn losses_are_counted_by_node_process_and_job() {
    let mut activity = Activity::new();
    activity.add(Table::Processes, &processes());
    activity.add(Table::Events, &batch(&[row("read", 1, 1, BEGIN, 1)]));
    let rows = [
        (BEGIN, "n1", Some(1), "lane_full", 5),
        (BEGIN, "n1", None, "no_lane", 2),
        (BEGIN, "n2", Some(3), "lane_full", 1),
        (BEGIN, "n1", Some(1), schema::FILTERED, 100),
    ];
    activity.add(Table::Losses, &losses(&rows));
    activity.advance(BEGIN + SECOND);
    for window in [ActivityWindow::Seconds(1), ActivityWindow::Whole] {
        let snapshot = activity.snapshot(window, 10);
        let lost = |group: &ActivityGroup| -> Vec<(String, u64)> {
            let mut lost: Vec<_> = group.rows.iter().map(|row| (row.name.clone(), row.lost)).collect();
            lost.sort();
            lost
        };
        assert_eq!((snapshot.cluster.lost, snapshot.cluster.requests, snapshot.filtered), (8, 1, 100));
        assert_eq!(lost(&snapshot.nodes), [("n1".into(), 7), ("n2".into(), 1)]);
        assert_eq!(lost(&snapshot.jobs), [("77".into(), 6)]);
        assert_eq!(lost(&snapshot.processes), [("a -x".into(), 5), ("c".into(), 1)]);
        let places: Vec<_> =
            snapshot.losses.iter().map(|l| (l.node.as_str(), l.place.as_str(), l.count)).collect();
        assert_eq!(places, [("n1", "lane_full", 5), ("n1", "no_lane", 2), ("n2", "lane_full", 1)]);
    }
}

#[test]
fn too_many_files_keep_the_busiest_and_exact_sums() {
    let files = 5 * PLACES as u64;
    let rows: Vec<EventValues> = (0..4 * files)
        .map(|n| {
            let file = if n % 4 == 0 { 1 } else { 2 + n % files };
            row("read", file, 10, BEGIN + (n as i64) * 1000, 500)
        })
        .collect();
    let snapshot = added(&rows).snapshot(ActivityWindow::Whole, 20);
    let group = &snapshot.files;
    let shown: u64 = group.rows.iter().map(|row| row.requests).sum();
    assert_eq!(shown + group.others, rows.len() as u64);
    let first = &group.rows[0];
    assert_eq!(first.id, Some(1));
    assert!(first.requests <= files && files <= first.requests + first.missed, "{first:?}");
    assert!(group.rows.iter().all(|row| row.missed <= rows.len() as u64 / PLACES as u64), "{:?}", group.rows);
    assert_eq!(snapshot.cluster.bytes_read, 10 * rows.len() as u64);
    assert!(group.rows.len() <= 5 * 20);
}

#[test]
fn a_batch_of_another_kind_adds_nothing() {
    let mut activity = Activity::new();
    let strange: [(&str, ArrayRef); 1] = [("time", Arc::new(Int64Array::from(vec![1])))];
    let strange = RecordBatch::try_from_iter(strange).unwrap();
    for of in Table::ALL {
        activity.add(of, &strange);
    }
    activity.add_rows(&strange);
    assert_eq!(activity.snapshot(ActivityWindow::Whole, 5).events, 0);
    assert_eq!(activity.snapshot(ActivityWindow::Seconds(10), 5).nodes.rows, []);
}
