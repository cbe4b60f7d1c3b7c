//! Communication calls are recorded only if requested, and their results are unchanged.

use crate::{of_layer, place};
use miot_proto::event::flag;
use miot_tests::mpi::{compile, traced};
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use std::collections::BTreeMap;

/// Calls of `communication.c` on a rank by name: number of blocking ones, and of others.
fn expected(rank: i64) -> BTreeMap<&'static str, (usize, usize)> {
    let (sends, receives) = if rank % 2 == 0 { ((4, 4), (1, 0)) } else { ((1, 0), (3, 5)) };
    BTreeMap::from([
        ("comm_send", sends),
        ("comm_recv", receives),
        ("comm_sendrecv", (2, 0)),
        ("comm_start", (0, 2)),
        ("comm_barrier", (1, 1)),
        ("comm_bcast", (1, 1)),
        ("comm_gather", (2, 2)),
        ("comm_scatter", (2, 2)),
        ("comm_allgather", (2, 2)),
        ("comm_alltoall", (3, 3)),
        ("comm_reduce", (1, 1)),
        ("comm_allreduce", (1, 1)),
        ("comm_reduce_scatter", (2, 2)),
        ("comm_scan", (2, 2)),
    ])
}

#[test]
fn each_call_is_recorded_if_requested() {
    let place = place("communication");
    let program = compile(&place, "communication", "communication.c", &[]);
    let trace = place.join("trace");
    let _ = traced(&trace, 4, &["--communication"], &[&program]).success();
    assert_good(&trace);
    let rows = events(&trace);
    let calls = of_layer(&rows, "mpi-io");
    let is_async = |row: &PrintedEvent| row.flags & u64::from(flag::ASYNC) != 0;
    let mut ranks: BTreeMap<u64, Vec<&PrintedEvent>> = BTreeMap::new();
    calls.iter().for_each(|row| ranks.entry(row.process).or_default().push(row));
    assert_eq!(ranks.len(), 4);
    for calls in ranks.values() {
        let rank = calls.iter().find_map(|row| row.mpi).unwrap().0 as i64;
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for row in calls {
            let count = counts.entry(&row.op).or_default();
            if is_async(row) {
                count.1 += 1
            } else {
                count.0 += 1
            }
            assert_eq!(row.result, 0, "{row:?}");
            let peer = if rank % 2 == 0 { rank + 1 } else { rank - 1 };
            match row.op.as_str() {
                "comm_send" | "comm_recv" => assert_eq!(row.arg, Some(peer), "{row:?}"),
                "comm_sendrecv" => assert_eq!(row.arg, Some((rank + 1) % 4), "{row:?}"),
                "comm_start" => assert_eq!(row.mpi, None, "{row:?}"),
                _ => assert_eq!(row.mpi, Some((rank as u64, 4)), "{row:?}"),
            }
        }
        assert_eq!(counts, expected(rank), "rank {rank}");
    }
}

#[test]
fn no_call_is_recorded_by_default() {
    let place = place("communication-off");
    let program = compile(&place, "communication", "communication.c", &[]);
    let trace = place.join("trace");
    let _ = traced(&trace, 2, &[], &[&program]).success();
    let rows = events(&trace);
    assert!(!rows.is_empty() && of_layer(&rows, "mpi-io").is_empty());
}
