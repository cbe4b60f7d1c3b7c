//! No event is invented and none is lost: ten million synthetic events through all tiers, counted
//! and checksummed in the sealed Parquet parts.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt64Type};
use arrow_array::{Array as _, RecordBatch};
use miot_tests::pattern;
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, traced};
use miot_trace_store::{Reader, Table};
use std::collections::HashMap;
use std::fs;

const THREADS: u64 = 4;
const PER_THREAD: u64 = 2_500_000;

/// Events that arrived.
#[derive(Default)]
struct Counted {
    /// Number of events and checksum by thread.
    threads: HashMap<u64, (u64, u64)>,
    /// Last attempt number by stream. A thread whose lane grows has several streams.
    streams: HashMap<u64, u64>,
    last_time: i64,
}

#[test]
fn ten_million_events_arrive_once_and_in_order() {
    let place = fresh("lossless");
    let trace = place.join("trace");
    let producer = env!("CARGO_BIN_EXE_producer");
    let words = [producer.to_owned(), THREADS.to_string(), PER_THREAD.to_string()];
    let ended = traced(&place, &trace, &words).success();

    // Output of the producer: thread, checksum, events not taken.
    let said: Vec<[u64; 3]> = ended
        .stdout
        .lines()
        .map(|line| line.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap())
        .collect();
    assert_eq!(said.len() as u64, THREADS, "{}", ended.stdout);

    let reader = Reader::open(&trace).unwrap();
    assert!(reader.parts().all(|(_, sealed)| sealed), "all parts are sealed after the run");
    let names = threads_of_files(&reader);
    let mut counted = Counted::default();
    for batch in reader.events() {
        count(&batch.unwrap(), &names, &mut counted);
    }
    for [thread, sum, refused] in said {
        assert_eq!(refused, 0, "policy wait: the producer waits instead of dropping");
        assert_eq!(
            counted.threads.get(&thread),
            Some(&(PER_THREAD, sum)),
            "thread {thread}: events and checksum"
        );
    }
    assert_eq!(counted.threads.len() as u64, THREADS, "none invented");
    let losses: usize = reader.table(Table::Losses).unwrap().iter().map(RecordBatch::num_rows).sum();
    assert_eq!(losses, 0);
    assert_good(&trace);
    fs::remove_dir_all(&place).unwrap();
}

/// Thread number by file id.
fn threads_of_files(reader: &Reader) -> HashMap<u64, u64> {
    let mut names = HashMap::new();
    for batch in reader.table(Table::Files).unwrap() {
        let ids = miot_trace_store::schema::column::<UInt64Type>(&batch, "file").unwrap();
        let paths = batch.column_by_name("path").unwrap().as_string::<i32>();
        for row in 0..batch.num_rows() {
            if let Some(thread) = (0..THREADS).find(|t| pattern::path(*t) == paths.value(row)) {
                names.insert(ids.value(row), thread);
            }
        }
    }
    names
}

fn count(batch: &RecordBatch, names: &HashMap<u64, u64>, counted: &mut Counted) {
    let unsigned = |name: &str| miot_trace_store::schema::column::<UInt64Type>(batch, name).unwrap();
    let signed = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>();
    let time = batch.column_by_name("time").unwrap().as_primitive::<TimestampNanosecondType>();
    let (stream, seq, file) = (unsigned("stream"), unsigned("seq"), unsigned("file"));
    let (offset, length, result) = (signed("offset"), signed("length"), signed("result"));
    for row in 0..batch.num_rows() {
        assert!(time.value(row) >= counted.last_time, "the trace is ordered by completion time");
        counted.last_time = time.value(row);
        if let Some(last) = counted.streams.insert(stream.value(row), seq.value(row)) {
            assert!(last < seq.value(row), "attempt numbers count up in a stream");
        }
        // Only the open of the file has no offset. Requests that the hook recorded have another
        // file.
        let thread = if file.is_valid(row) { names.get(&file.value(row)) } else { None };
        let Some(thread) = thread.filter(|_| offset.is_valid(row)) else { continue };
        let (events, sum) = counted.threads.entry(*thread).or_default();
        let found = (offset.value(row), length.value(row), result.value(row));
        assert_eq!(found, pattern::event(*thread, *events), "thread {thread}, event {events}");
        *sum = pattern::fold(*sum, found);
        *events += 1;
    }
}
