//! The merged trace of 8 processes with 4 threads each is in total order of completion time, and in
//! program order within each thread. `miot fsck` confirms the order.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::compile::compile;
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, events, traced};
use std::collections::HashMap;

const PROCESSES: usize = 8;
const THREADS: usize = 4;
const WRITES: i64 = 2000;

#[test]
fn merge_of_eight_processes_is_totally_ordered() {
    let place = fresh("order");
    let program = compile(&place, "many", &["many.c"], &[]);
    let trace = place.join("trace");
    let words =
        [program.display().to_string(), PROCESSES.to_string(), THREADS.to_string(), WRITES.to_string()];
    let _ = traced(&place, &trace, &words).success();

    let rows = events(&trace);
    assert!(rows.is_sorted_by_key(|row| row.time), "ordered by completion time");
    let mut threads: HashMap<(u32, u32), Vec<_>> = HashMap::new();
    for row in rows.iter().filter(|row| row.op == "pwrite") {
        threads.entry((row.pid, row.tid)).or_default().push(row);
    }
    assert_eq!(threads.len(), PROCESSES * THREADS);
    for ((pid, tid), writes) in &threads {
        // Thread t writes block n of its file at n * 7 % WRITES * 16: program order is the order of
        // n.
        let offsets: Vec<i64> = writes.iter().map(|row| row.offset.unwrap()).collect();
        let expected: Vec<i64> = (0..WRITES).map(|n| n * 7 % WRITES * 16).collect();
        assert_eq!(offsets, expected, "program order in thread {tid} of process {pid}");
        // 2 ns, because time and duration are each converted from ticks.
        let begins_after = writes.windows(2).all(|pair| pair[1].time - pair[1].duration + 2 >= pair[0].time);
        assert!(begins_after, "in one thread a call begins after the one before it ended: thread {tid}");
        assert!(writes.iter().all(|row| row.result == 16 && row.length == Some(16)));
    }
    assert_good(&trace);
}
