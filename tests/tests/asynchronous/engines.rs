//! fio's asynchronous engines: the trace has as many requests and bytes as fio says it made.

use miot_tests::test_dir::fresh;
use miot_tests::trace::Row;
use miot_tests::traced::{assert_good, events, traced};
use serde_json::Value;

/// Requests and bytes, read and written.
type Totals = [(u64, u64); 2];

/// Runs fio with an engine: reads and writes that fio says it made, and how often it synced; and
/// the trace.
fn trace_of(name: &str, engine: &[&str]) -> (Totals, u64, Vec<Row>) {
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

/// What the trace says of the operations of this name.
fn found(rows: &[Row], operations: &str) -> Totals {
    ["read", "write"].map(|way| {
        let of = rows.iter().filter(|row| row.op == format!("{operations}_{way}"));
        of.fold((0, 0), |(requests, bytes), row| (requests + 1, bytes + row.result.max(0) as u64))
    })
}

#[test]
fn fio_posixaio() {
    let (said, _, rows) = trace_of("posixaio", &["--ioengine=posixaio"]);
    assert_eq!(found(&rows, "aio"), said);
}

#[test]
fn fio_libaio() {
    let (said, _, rows) = trace_of("libaio", &["--ioengine=libaio", "--direct=1"]);
    assert_eq!(found(&rows, "libaio"), said);
}

/// fio enters the kernel by an instruction of its own: no request is seen, and the trace says how
/// many there were.
#[test]
fn fio_io_uring_is_counted() {
    let (said, syncs, rows) = trace_of("io_uring", &["--ioengine=io_uring", "--direct=1"]);
    let unseen: i64 = rows.iter().filter(|row| row.op == "uring_unseen").map(|row| row.result).sum();
    assert_eq!(unseen as u64, said[0].0 + said[1].0 + syncs);
}
