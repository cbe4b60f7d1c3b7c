//! Events added to a builder are in the trace, in order of completion, and the trace is valid.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int32Type, Int64Type, TimestampNanosecondType};
use miot_proto::op::{Op, posix};
use miot_trace_exchange::{Event, Process, TraceBuilder};
use miot_trace_store::{Reader, fsck};

#[test]
fn events_are_in_order_of_completion_with_their_columns() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("trace");
    let mut builder = TraceBuilder::create(&dir).unwrap();
    let process = builder.process(Process { node: "n1".into(), pid: 7, ..Process::default() });
    let other = builder.process(Process { node: "n2".into(), pid: 7, rank: Some(3), ..Process::default() });
    let (one, two) = (builder.thread(process, 7, "a"), builder.thread(other, 8, "b"));
    let file = builder.file(process, b"/data/\xff").unwrap();
    assert_eq!(builder.file(process, b"/data/\xff").unwrap(), file);
    assert_ne!(builder.file(other, b"/data/\xff").unwrap(), file, "another node");
    let outer = builder.request(one);
    let inner = Event {
        file: Some(file),
        offset: Some(-1),
        length: Some(i64::MAX),
        result: -5,
        enclosing: Some(outer),
        ..Event::new(one, posix::READ, 10, 20)
    };
    builder.event(&inner).unwrap();
    builder.event(&Event { request: Some(outer), ..Event::new(one, posix::WRITE, 5, 30) }).unwrap();
    builder.event(&Event::new(two, Op { layer: 4, number: 250 }, 1, 15)).unwrap();
    // Ends before it begins: the duration becomes 0.
    builder.event(&Event { mpi: Some((1, 4)), ..Event::new(two, posix::READ, 9, 3) }).unwrap();
    builder.process_mut(other).exe = "/bin/x".into();
    let mut written = 0;
    let summary = builder.finish(|rows| written += rows).unwrap();
    assert_eq!((summary.events, written), (4, 4));

    let report = fsck::check(&dir);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let reader = Reader::open(&dir).unwrap();
    let batches: Vec<_> = reader.events().map(Result::unwrap).collect();
    let [batch] = &batches[..] else { panic!("{} batches", batches.len()) };
    let column = |name: &str| batch.column_by_name(name).unwrap();
    let times = column("time").as_primitive::<TimestampNanosecondType>().values().to_vec();
    assert_eq!(times, [9, 15, 20, 30]);
    assert_eq!(column("duration").as_primitive::<Int64Type>().values().to_vec(), [0, 14, 10, 25]);
    assert_eq!(column("seq").as_primitive::<Int64Type>().values().to_vec(), [0, 1, 0, 1]);
    assert_eq!(column("request").as_primitive::<Int64Type>().values().to_vec(), [2, 1, 2, 1]);
    let enclosing = column("enclosing").as_primitive::<Int64Type>();
    assert_eq!(enclosing.iter().collect::<Vec<_>>(), [None, None, Some(1), None]);
    let offset = column("offset").as_primitive::<Int64Type>();
    assert_eq!(offset.iter().collect::<Vec<_>>(), [None, None, Some(-1), None]);
    let rank = column("mpi_rank").as_primitive::<Int32Type>();
    assert_eq!(rank.iter().collect::<Vec<_>>(), [Some(1), None, None, None]);
    let files = reader.files().unwrap();
    assert_eq!(files.iter().collect::<Vec<_>>(), [(1, r"/data/\xff"), (2, r"/data/\xff")]);
}

#[test]
fn dropped_builder_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("trace");
    drop(TraceBuilder::create(&dir).unwrap());
    assert!(!dir.exists());
    std::fs::create_dir(&dir).unwrap();
    drop(TraceBuilder::create(&dir).unwrap());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    std::fs::write(dir.join("mine"), "x").unwrap();
    assert!(TraceBuilder::create(&dir).is_err());
    assert!(dir.join("mine").exists());
}
