//! Counters by pairs of process and file from batches of events: classification of operations,
//! nodes, filters, limits.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use miot_trace_analysis::characterize::{
    By, Characterization, Characterize, CounterRow as Found, OTHERS, Settings,
};
use miot_trace_events::testing::{EventValues, batch, row};
use miot_trace_store::FileNames;
use std::collections::HashSet;
use std::sync::Arc;

fn names(paths: &[(u64, &str)]) -> FileNames {
    let mut names = FileNames::default();
    paths.iter().for_each(|(file, path)| names.put(*file, path));
    names
}

/// Returns rows of process, node, rank, job.
fn processes(all: &[(u64, &str, Option<u32>, Option<&str>)]) -> RecordBatch {
    let columns: [(&str, ArrayRef); 5] = [
        ("process", Arc::new(UInt64Array::from_iter_values(all.iter().map(|p| p.0)))),
        ("node", Arc::new(StringArray::from_iter_values(all.iter().map(|p| p.1)))),
        ("rank", Arc::new(UInt32Array::from_iter(all.iter().map(|p| p.2)))),
        ("job", Arc::new(StringArray::from_iter(all.iter().map(|p| p.3)))),
        ("exe", Arc::new(StringArray::from_iter_values(all.iter().map(|_| "/bin/program")))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn of(
    settings: Settings,
    files: &[(u64, &str)],
    processes: &[RecordBatch],
    rows: &[EventValues],
) -> Characterization {
    let mut characterize = Characterize::new(settings, names(files), processes);
    characterize.add(&batch(rows));
    characterize.finish()
}

fn table(found: &Characterization, by: By) -> Vec<Found> {
    let groups = found.groups(by, &[]);
    groups.all().iter().map(|group| found.row(&groups, group)).collect()
}

fn only(found: &Characterization, by: By) -> Found {
    let mut all = table(found, by);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// Returns a batch with an offset, or another column that the helper does not have.
fn with(rows: &[EventValues], name: &str, values: Vec<Option<i64>>) -> RecordBatch {
    let batch = batch(rows);
    let at = batch.schema().index_of(name).unwrap();
    let mut columns = batch.columns().to_vec();
    columns[at] = Arc::new(Int64Array::from(values));
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

#[test]
fn operations_have_the_right_counters() {
    let ops = [
        ("openat", 3),
        ("creat", 3),
        ("dup2", 4),
        ("close", 0),
        ("lseek", 9),
        ("fstat", 0),
        ("rename", 0),
        ("mmap", 1),
        ("fsync", 0),
        ("fdatasync", 0),
        ("msync", 0),
        ("unlink", 0),
        ("opendir", 3),
        ("read", 10),
        ("pwrite", 20),
        ("aio_read", 5),
        ("open", -2),
        ("read", -5),
    ];
    let rows: Vec<EventValues> =
        ops.iter().enumerate().map(|(at, (op, result))| row(op, 1, *result, 100 * at as i64, 10)).collect();
    let found = only(&of(Settings::default(), &[(1, "/f")], &[], &rows), By::File);
    let meta = found.counters.meta;
    assert_eq!((meta.opens, meta.dups, meta.closes, meta.seeks, meta.stats), (3, 1, 1, 1, 1));
    assert_eq!(
        (meta.rename_sources, meta.mmaps, meta.fsyncs, meta.fdsyncs, meta.other_syncs),
        (1, 1, 1, 1, 1)
    );
    assert_eq!((meta.others, meta.failed), (2, 2), "unlink, opendir");
    assert_eq!((found.counters.reads().count, found.counters.reads().bytes), (2, 15));
    assert_eq!((found.counters.writes().count, found.counters.writes().bytes), (1, 20));
    // open, creat, dup2, close, lseek, fstat, rename; pwrite and three syncs; mmap, unlink,
    // opendir.
    assert_eq!((found.counters.meta_time.total, found.counters.writes().time.total), (70, 40));
    assert_eq!((found.counters.other_time.total, found.time()), (30, 160));
}

#[test]
fn copy_counts_as_read_and_write_with_one_time() {
    let copy = EventValues { file2: Some(2), ..row("copy_file_range", 1, 100, 0, 10) };
    let found = of(Settings::default(), &[(1, "/to"), (2, "/from")], &[], &[copy]);
    let files = table(&found, By::File);
    let sides: Vec<_> = files
        .iter()
        .map(|file| (file.counters.reads().bytes, file.counters.writes().bytes, file.counters.time()))
        .collect();
    assert_eq!(sides, [(0, 100, 10), (100, 0, 0)]);
    // To a socket: the time counts for the file.
    let sent = EventValues { file: None, file2: Some(2), ..row("sendfile", 1, 100, 0, 10) };
    let found = only(&of(Settings::default(), &[(2, "/from")], &[], &[sent]), By::File);
    assert_eq!((found.counters.reads().bytes, found.counters.time()), (100, 10));
}

#[test]
fn layers_are_separate_and_notes_are_ignored() {
    let rows = [
        EventValues { layer: "mpi-io", request: 1, ..row("write_at", 1, 100, 0, 50) },
        EventValues { enclosing: Some(1), ..row("pwrite", 1, 100, 10, 30) },
        EventValues { layer: "app", ..row("note", 1, 0, 60, 0) },
        EventValues { layer: "posix", op: "4:250", ..row("read", 1, 7, 70, 5) },
    ];
    let found = of(Settings::default(), &[(1, "/f")], &[], &rows);
    let layers = table(&found, By::Layer);
    let counted: Vec<_> =
        layers.iter().map(|row| (row.layer, row.counters.bytes(), row.counters.meta.others)).collect();
    assert_eq!(counted, [("mpi-io", 100, 0), ("posix", 100, 1)]);
    assert_eq!((layers[0].busy, layers[1].busy, layers[1].wall), (Some(50), Some(35), 75));
}

#[test]
fn one_path_on_two_nodes_is_one_shared_file() {
    let facts = [(1, "n1", Some(0), Some("j")), (2, "n2", Some(1), Some("j")), (3, "n1", None, Some("j"))];
    let rows = [
        EventValues { process: 1, ..row("open", 10, 3, 0, 5) },
        EventValues { process: 2, tid: 20, ..row("open", 11, 3, 0, 10) },
        EventValues { process: 1, ..row("write", 10, 1 << 20, 10, 1000) },
        EventValues { process: 2, tid: 20, ..row("write", 11, 3 << 20, 10, 3000) },
        EventValues { process: 3, tid: 30, ..row("write", 12, 77, 10, 9_000_000) },
    ];
    let files = [(10, "/shared"), (11, "/shared"), (12, "/log")];
    let found = of(Settings::default(), &files, &[processes(&facts)], &rows);
    let by_file = table(&found, By::File);
    assert_eq!(by_file.len(), 2);
    let shared = by_file[0].shared.unwrap();
    assert_eq!((shared.ranks, shared.fastest.rank, shared.slowest.rank), (2, 0, 1));
    assert_eq!((shared.slowest.time, shared.slowest.bytes, shared.fastest.time), (3010, 3 << 20, 1005));
    assert!((shared.variance_bytes / (1u64 << 40) as f64 - 1.0).abs() < 1e-12);
    assert!(by_file[1].shared.is_none(), "the launcher has no rank");
    let job = only(&found, By::Job);
    let performance = job.performance.unwrap();
    assert_eq!((performance.ranks, performance.nodes, performance.bytes), (2, 2, 4 << 20));
    assert!((performance.by_slowest.unwrap() - 4.0 / 3010e-9).abs() < 1e-3);
    // From the first open to the end of the last write.
    assert!((performance.per_node.unwrap() - 4.0 / 3010e-9 / 2.0).abs() < 1e-3);
    assert_eq!(table(&found, By::Node).len(), 2);
}

#[test]
fn filters_select_the_counted_requests() {
    let rows = [
        row("read", 1, 10, 0, 1),
        row("read", 2, 20, 1, 1),
        EventValues { process: 2, tid: 11, ..row("read", 1, 40, 2, 1) },
    ];
    let files = [(1, "/a"), (2, "/b")];
    let bytes = |settings| {
        table(&of(settings, &files, &[], &rows), By::Layer)
            .iter()
            .map(|row| row.counters.bytes())
            .sum::<u64>()
    };
    let some = |ids: &[u64]| Some(ids.iter().copied().collect::<HashSet<_>>());
    assert_eq!(bytes(Settings::default()), 70);
    assert_eq!(bytes(Settings { files: some(&[1]), ..Settings::default() }), 50);
    assert_eq!(bytes(Settings { processes: some(&[2]), ..Settings::default() }), 40);
    assert_eq!(bytes(Settings { processes: some(&[2]), files: some(&[2]), ..Settings::default() }), 0);
}

#[test]
fn overwriting_is_by_offset_until_truncation() {
    let rows: Vec<EventValues> = ["pwrite", "pwrite", "unlink", "pwrite", "rename", "pwrite"]
        .iter()
        .enumerate()
        .map(|(at, op)| row(op, 1, if op.starts_with('p') { 100 } else { 0 }, 10 * at as i64, 1))
        .collect();
    let mut characterize = Characterize::new(Settings::default(), names(&[(1, "/f")]), &[]);
    let offsets = [Some(0), Some(50), None, Some(0), None, Some(0)];
    characterize.add(&with(&rows, "offset", offsets.to_vec()));
    let found = only(&characterize.finish(), By::File);
    assert_eq!((found.counters.data().overwritten, found.counters.writes().bytes), (50, 400));
    assert_eq!(found.data_size, 150);
}

#[test]
fn cpu_time_is_of_all_threads_or_of_none() {
    let rows = [
        row("read", 1, 10, 0, 10),
        row("read", 1, 10, 20, 10),
        EventValues { tid: 11, ..row("read", 1, 10, 30, 10) },
    ];
    let cpu = |times: [Option<i64>; 3]| {
        let mut characterize = Characterize::new(Settings::default(), names(&[(1, "/f")]), &[]);
        characterize.add(&with(&rows, "cpu_time", times.to_vec()));
        let row = only(&characterize.finish(), By::Process);
        (row.cpu, row.running(), row.wall)
    };
    assert_eq!(cpu([Some(5), Some(9), Some(3)]), (Some(12), 12, 40));
    assert_eq!(cpu([Some(5), Some(9), None]), (None, 40, 40));
}

#[test]
fn too_many_pairs_are_folded_and_no_byte_is_lost() {
    let rows: Vec<EventValues> = (0..20_000u64)
        .map(|at| row("pwrite", 1 + at % 10_000, 1 + (at % 10_000) as i64, 10 * at as i64, 1))
        .collect();
    let settings = Settings { most_memory: 4 << 20, ..Settings::default() };
    let mut characterize = Characterize::new(settings, names(&[]), &[]);
    rows.chunks(1000).for_each(|rows| characterize.add(&batch(rows)));
    let found = characterize.finish();
    assert!(found.folded > 5000 && found.pairs.len() < 8000, "{} {}", found.folded, found.pairs.len());
    assert!(found.pairs.iter().any(|pair| pair.file == Some(OTHERS)));
    let all = only(&found, By::Layer);
    assert_eq!((all.counters.writes().count, all.counters.bytes()), (20_000, 10_000 * 10_001));
    assert_eq!(found.path(OTHERS), Some("(other files)"));
    // The files with the most bytes were not folded.
    let heaviest =
        found.pairs.iter().filter(|pair| pair.file == Some(10_000)).map(|pair| pair.counters.bytes());
    assert_eq!(heaviest.sum::<u64>(), 20_000);
}

#[test]
fn extreme_values_and_other_batches_are_accepted() {
    let rows = [
        EventValues { took: i64::MAX, result: i64::MAX, ..row("write", u64::MAX - 1, 0, 0, 0) },
        EventValues {
            took: -5,
            result: i64::MIN,
            process: u64::MAX << 32,
            ..row("read", 0, 0, i64::MIN + 5, 0)
        },
        EventValues { tid: u32::MAX, ..row("pwrite", u64::MAX, i64::MAX, i64::MAX - 1, 1) },
    ];
    let mut characterize = Characterize::new(Settings::default(), names(&[]), &[]);
    characterize.add(&with(&rows, "offset", vec![Some(i64::MIN), Some(i64::MAX), Some(i64::MAX)]));
    characterize.add(&processes(&[(1, "n", None, None)]));
    let found = characterize.finish();
    for by in [By::Job, By::Step, By::Process, By::File, By::Node, By::Layer, By::Directory(2), By::User] {
        for row in table(&found, by) {
            let fields = row.fields(found.span.begin);
            assert!(fields.get("bytes").is_some() && serde_json::to_string(&fields).is_ok());
        }
    }
}
