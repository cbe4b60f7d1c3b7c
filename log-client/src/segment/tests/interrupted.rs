//! Requests that were interrupted by the end of their thread or process.

use crate::segment::builder::{EPOCH, SegmentBuilder, TestReader};
use miot_proto::batch::Columns;
use miot_proto::event::{NONE, RecordKind, flag};
use miot_proto::op::{Op, posix, stdio};
use miot_proto::segment::{in_flight, lane as at};
use proptest::prelude::*;

/// Begins a request in lane 0 as a producer does.
fn begin(made: &mut SegmentBuilder, op: Op, request: u32, begin: u64, on: [u64; 3]) {
    let word = in_flight::word(op, request, Some(made.tail(0)));
    made.show(0, at::IN_FLIGHT, word, begin, on);
}

fn enclose(made: &mut SegmentBuilder, op: Op, request: u32, begin: u64) {
    made.set_lane(0, at::IN_FLIGHT, 0);
    made.show(0, at::ENCLOSING, in_flight::word(op, request, None), begin, [0; 3]);
}

/// The last batch.
fn last(reader: &TestReader) -> &Columns {
    &reader.kept.batches.last().unwrap().1
}

#[test]
fn interrupted_request_is_an_event() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 2_000, b"");
    begin(&mut made, posix::READ, 7, 5_000, [3, 4096, 512]);
    made.mark(0);
    let mut reader = TestReader::attach(&made);
    reader.sweep_at(10_000, true);
    reader.end_process_at(10_000);
    let row = last(&reader);
    assert_eq!(reader.kept.attempts(), [0, 1]);
    assert_eq!(
        (row.kind[0], row.op[0], row.flags[0]),
        (RecordKind::Request as u8, posix::READ, flag::INTERRUPTED)
    );
    assert_eq!((row.request[0], row.enclosing[0], row.result[0]), (7, 0, -4));
    assert_eq!((row.handle[0], row.offset[0], row.length[0]), (3, 4096, 512));
    // The reader's present is a second after the start of the sweep.
    assert_eq!((row.time[0] - EPOCH, row.duration[0]), (1_000_010_000, 1_000_005_000));
    assert_eq!(reader.kept.ends[0].attempts, 2);
    assert!(reader.kept.ends[0].time >= row.time[0]);
}

#[test]
fn interrupted_open_has_no_range() {
    let mut made = SegmentBuilder::with_lane(256);
    begin(&mut made, posix::OPEN, 1, 5_000, [0, 77, 88]);
    let mut reader = TestReader::attach(&made);
    reader.sweep_at(10_000, true);
    reader.end_process_at(10_000);
    let row = last(&reader);
    assert_eq!((row.handle[0], row.offset[0], row.length[0]), (0, NONE, NONE));
}

#[test]
fn inner_request_names_its_parent_and_comes_first() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 2_000, b"");
    enclose(&mut made, stdio::FREAD, 8, 4_000);
    made.push(0, 1, 4_500, b"");
    begin(&mut made, posix::PREAD, 10, 5_000, [3, 0, 1]);
    let mut reader = TestReader::attach(&made);
    reader.sweep_at(10_000, true);
    reader.end_process_at(10_000);
    let rows = last(&reader);
    assert_eq!(rows.op, [posix::PREAD, stdio::FREAD]);
    assert_eq!((&rows.request[..], &rows.enclosing[..]), (&[10, 8][..], &[8, 0][..]));
    assert_eq!((&rows.attempt[..], rows.time[0]), (&[2, 3][..], rows.time[1]));
    assert_eq!(reader.kept.ends[0].attempts, 4);
}

#[test]
fn no_request_completes_twice() {
    // The steps of a thread that does one request inside another. Whatever the step at which it
    // dies, each request is delivered once if it had begun, and otherwise not at all.
    type Step = fn(&mut SegmentBuilder);
    let steps: [(Step, u64); 9] = [
        (|made| enclose(made, stdio::FREAD, 1, 4_000), 1),
        (|made| begin(made, posix::PREAD, 2, 4_100, [3, 0, 1]), 2),
        (|made| made.mark(0), 2),
        (|made| made.push(0, 0, 4_200, b"/inner"), 2),
        (|made| made.mark(0), 2),
        (
            |made| {
                let word = in_flight::word(stdio::FREAD, 1, Some(made.tail(0)));
                made.set_lane(0, at::ENCLOSING, word);
            },
            2,
        ),
        (|made| made.push(0, 1, 4_300, b""), 2),
        (|made| made.set_lane(0, at::ENCLOSING, 0), 2),
        (|made| begin(made, posix::READ, 3, 4_400, [3, 0, 1]), 3),
    ];
    for death in 0..=steps.len() {
        let mut made = SegmentBuilder::with_lane(256);
        steps[..death].iter().for_each(|(step, _)| step(&mut made));
        let begun = death.checked_sub(1).map_or(0, |last| steps[last].1);
        let mut reader = TestReader::attach(&made);
        reader.sweep_at(10_000, true);
        reader.end_process_at(10_000);
        assert_eq!(reader.kept.attempts(), (0..begun).collect::<Vec<_>>(), "after step {death}");
        assert_eq!(reader.kept.ends[0].attempts, begun, "after step {death}");
    }
}

#[test]
fn thread_cancelled_inside_a_request_leaves_an_event() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 2_000, b"");
    begin(&mut made, posix::READ, 2, 5_000, [3, 0, 1]);
    made.set_lane(0, at::LOST_FULL, 3);
    made.retire(0, 4);
    let mut reader = TestReader::attach(&made);
    reader.sweep_at(10_000, false);
    // Three were lost between the record and the interrupted request.
    assert_eq!(reader.kept.attempts(), [0, 4]);
    assert_eq!((reader.kept.ends[0].attempts, reader.kept.ends[0].lost_full), (5, 3));
    assert_eq!(reader.lane_word(0, at::DRAINED), 1);
}

#[test]
fn stopping_log_client_ignores_requests_in_flight() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 2_000, b"");
    begin(&mut made, posix::READ, 2, 5_000, [3, 0, 1]);
    let mut reader = TestReader::attach(&made);
    reader.sweep();
    reader.end();
    assert_eq!(reader.kept.attempts(), [0]);
    assert_eq!(reader.kept.ends[0].attempts, 1);
}

#[test]
fn quarantined_lane_has_no_requests_in_flight() {
    let mut made = SegmentBuilder::with_lane(256);
    begin(&mut made, posix::READ, 2, 5_000, [3, 0, 1]);
    made.set_lane(0, at::STATE, 1 << 32 | 77);
    let mut reader = TestReader::attach(&made);
    reader.sweep_at(10_000, true);
    reader.end_process_at(10_000);
    assert!(reader.kept.attempts().is_empty());
}

#[test]
fn interrupted_requests_get_the_same_numbers_after_a_restart() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 2_000, b"/a/path/that/takes/slots/of/its/own");
    made.set_lane(0, at::LOST_FULL, 4);
    made.push(0, 5, 2_000, b"");
    begin(&mut made, posix::READ, 9, 5_000, [3, 0, 1]);
    let mut first = TestReader::attach(&made);
    first.sweep_at(10_000, true);
    // Killed here or after the next step, before the segment was removed.
    first.edit(|now| made.bytes.clone_from(&now.bytes));
    first.end_process_at(10_000);
    assert_eq!(first.kept.attempts(), [0, 5, 6]);
    let mut second = TestReader::attach(&made);
    second.sweep_at(20_000, true);
    second.end_process_at(20_000);
    assert_eq!(second.kept.attempts(), [6]);
    assert_eq!(second.kept.ends[0].attempts, first.kept.ends[0].attempts);
}

#[test]
fn first_number_is_not_that_of_an_earlier_incarnation() {
    let mut made = SegmentBuilder::with_lane(256);
    (0..4).for_each(|attempt| made.push(0, attempt, 2_000, b""));
    made.retire(0, 4);
    let mut first = TestReader::attach(&made);
    first.sweep();
    first.edit(|made| {
        made.claim(0, 2);
        begin(made, posix::READ, 1, 5_000, [3, 0, 1]);
    });
    first.edit(|now| made.bytes.clone_from(&now.bytes));
    let mut second = TestReader::attach(&made);
    second.sweep_at(10_000, true);
    second.end_process_at(10_000);
    assert_eq!(second.kept.attempts(), [0]);
}

proptest! {
    #[test]
    fn lies_about_requests_in_flight_are_bounded(
        inner: [u64; 5], outer: [u64; 5], attempts: u64, stamped: bool, present in 0u64..1 << 40,
    ) {
        let mut made = SegmentBuilder::with_lane(256);
        made.push(0, 0, 2_000, b"");
        for (place, words) in [(at::IN_FLIGHT, inner), (at::ENCLOSING, outer)] {
            words.iter().enumerate().for_each(|(index, word)| made.set_lane(0, place + 8 * index, *word));
        }
        if stamped {
            let word = in_flight::word(posix::READ, inner[0] as u32, Some(made.tail(0)));
            made.set_lane(0, at::IN_FLIGHT, word);
        }
        made.set_lane(0, at::ATTEMPTS, attempts);
        let mut reader = TestReader::attach(&made);
        reader.sweep_at(present, true);
        reader.end_process_at(present);
        let latest = EPOCH + present as i64 + 1_000_000_000;
        prop_assert!(reader.kept.batches.len() <= 2);
        for (_, columns) in &reader.kept.batches[1..] {
            prop_assert!(columns.len() <= 2);
            for row in 0..columns.len() {
                prop_assert_eq!(columns.time[row], latest);
                prop_assert!(columns.duration[row] <= present + 1_000_000_000, "it began after the segment was made");
            }
        }
        let numbers = reader.kept.attempts();
        prop_assert!(numbers.is_sorted_by(|a, b| a < b));
        prop_assert!(reader.kept.ends[0].attempts > *numbers.last().unwrap() || attempts == u64::MAX);
    }
}
