//! fio's asynchronous engines: the trace has as many requests and bytes as fio says it made.

use miot_tests::place::fresh;
use miot_tests::traced::{assert_good, events, traced};
use serde_json::Value;

/// Runs fio with an engine; requests and bytes of the operations of this name, read and written, by fio and by the trace.
fn totals(name: &str, engine: &[&str], operations: &str) -> [[(u64, u64); 2]; 2] {
    let place = fresh(&format!("asynchronous-fio-{name}"));
    let common = "fio --name=job --filename=data --size=2m --bs=4k --rw=randrw --iodepth=32 --fsync=200 \
                  --group_reporting --numjobs=2 --output-format=json --invalidate=0";
    let words: Vec<&str> = common.split_whitespace().chain(engine.iter().copied()).collect();
    let ended = traced(&place, &place.join("trace"), &words).success();
    let said: Value = serde_json::from_str(&ended.stdout[ended.stdout.find('{').unwrap()..]).unwrap();
    let said = ["read", "write"].map(|way| {
        let way = &said["jobs"][0][way];
        (way["total_ios"].as_u64().unwrap(), way["io_bytes"].as_u64().unwrap())
    });
    assert!(said.iter().all(|(requests, _)| *requests > 500), "fio did little: {said:?}");
    let rows = events(&place.join("trace"));
    let found = ["read", "write"].map(|way| {
        let of = rows.iter().filter(|row| row.op == format!("{operations}_{way}"));
        of.fold((0, 0), |(requests, bytes), row| (requests + 1, bytes + row.result.max(0) as u64))
    });
    assert_good(&place.join("trace"));
    [said, found]
}

#[test]
fn fio_posixaio() {
    let [said, found] = totals("posixaio", &["--ioengine=posixaio"], "aio");
    assert_eq!(found, said);
}

#[test]
fn fio_libaio() {
    let [said, found] = totals("libaio", &["--ioengine=libaio", "--direct=1"], "libaio");
    assert_eq!(found, said);
}
