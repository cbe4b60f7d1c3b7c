//! fio's asynchronous engines: the trace has as many requests and bytes as fio reports.

use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events, traced};
use serde_json::Value;

/// Number of requests and bytes: read, then written.
type Totals = [(u64, u64); 2];

/// Runs fio with an engine. Returns the reads and writes that fio reports, its number of syncs, and
/// the trace.
fn trace_of(name: &str, engine: &[&str]) -> (Totals, u64, Vec<PrintedEvent>) {
    let place = fresh(&format!("asynchronous-fio-{name}"));
    let common = "fio --name=job --filename=data --size=2m --bs=4k --rw=randrw --iodepth=32 --fsync=200 \
                  --group_reporting --numjobs=2 --output-format=json --invalidate=0";
    let words: Vec<&str> = common.split_whitespace().chain(engine.iter().copied()).collect();
    let ended = traced(&place, &place.join("trace"), &words).success();
    let said: Value = serde_json::from_str(&ended.stdout[ended.stdout.find('{').unwrap()..]).unwrap();
    let number = |way: &str, name: &str| said["jobs"][0][way][name].as_u64().unwrap();
    let syncs = number("sync", "total_ios");
    let said = ["read", "write"].map(|way| (number(way, "total_ios"), number(way, "io_bytes")));
    assert!(said.iter().all(|(requests, _)| *requests > 300), "fio did little: {said:?}");
    assert_good(&place.join("trace"));
    (said, syncs, events(&place.join("trace")))
}

/// Totals of the operations with this name in the trace.
fn found(rows: &[PrintedEvent], operations: &str) -> Totals {
    ["read", "write"].map(|way| {
        let of = rows.iter().filter(|row| row.op == format!("{operations}_{way}"));
        of.fold((0, 0), |(requests, bytes), row| (requests + 1, bytes + row.result.max(0) as u64))
    })
}

#[test]
fn fio_posixaio_totals_match() {
    let (said, _, rows) = trace_of("posixaio", &["--ioengine=posixaio"]);
    assert_eq!(found(&rows, "aio"), said);
}

#[test]
fn fio_libaio_totals_match() {
    let (said, _, rows) = trace_of("libaio", &["--ioengine=libaio", "--direct=1"]);
    assert_eq!(found(&rows, "libaio"), said);
}

/// fio enters the kernel with its own instruction, so no request is recorded. The trace has the
/// number of requests.
#[test]
fn fio_io_uring_is_counted() {
    let (said, syncs, rows) = trace_of("io_uring", &["--ioengine=io_uring", "--direct=1"]);
    let unseen: i64 = rows.iter().filter(|row| row.op == "uring_unseen").map(|row| row.result).sum();
    assert_eq!(unseen as u64, said[0].0 + said[1].0 + syncs);
}
