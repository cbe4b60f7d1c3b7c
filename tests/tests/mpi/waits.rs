//! Non-blocking requests end when the program learns of their completion, by any call.

use crate::place;
use miot_proto::event::flag;
use miot_tests::mpi::{compile, traced};
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};

#[test]
fn requests_end_in_each_way_of_waiting() {
    let place = place("waits");
    let program = compile(&place, "waits", "waits.c", &[]);
    let (trace, file) = (place.join("trace"), place.join("data"));
    let _ = traced(&trace, 1, &[], &[&program, &file]).success();
    assert_good(&trace);
    let rows = events(&trace);
    let mut writes: Vec<_> = rows.iter().filter(|row| row.op == "iwrite_at").collect();
    writes.sort_by_key(|row| row.offset);
    assert_eq!(writes.len(), 15);
    for (i, row) in writes.iter().enumerate() {
        let bytes = i as i64 + 1;
        assert_eq!(
            (row.offset, row.length, row.result),
            (Some(100 * i as i64), Some(bytes), bytes),
            "{row:?}"
        );
        assert_ne!(row.flags & u64::from(flag::ASYNC), 0, "{row:?}");
    }
    // Another thread completed the last one, so the event belongs to that thread.
    let submitter = rows.iter().find(|row| row.op == "open" && row.layer == "mpi-io").unwrap().tid;
    let by_submitter: Vec<bool> = writes.iter().map(|row| row.tid == submitter).collect();
    assert!(by_submitter[..14].iter().all(|own| *own) && !by_submitter[14], "{by_submitter:?}");
    // ROMIO passes them to the C library's asynchronous writes, or writes immediately within the
    // call.
    let beneath = |row: &&PrintedEvent| {
        row.layer == "posix" && row.path.as_deref() == file.to_str() && row.op.contains("write")
    };
    let beneath: Vec<&PrintedEvent> = rows.iter().filter(beneath).collect();
    for row in &writes {
        let same = |under: &&&PrintedEvent| (under.offset, under.result) == (row.offset, row.result);
        assert_eq!(beneath.iter().filter(same).count(), 1, "{row:?}: {beneath:#?}");
    }
}
