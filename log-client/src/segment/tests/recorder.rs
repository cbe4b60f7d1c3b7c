//! The flight recorder: lanes that are read only on demand.

use crate::segment::ReadMode;
use crate::segment::builder::{SegmentBuilder, TestReader};
use crate::watermark::SLACK_NS;
use miot_proto::segment::lane as at;

fn recording(made: &SegmentBuilder) -> TestReader {
    let mut reader = TestReader::attach(made);
    reader.reads = ReadMode::EndedLanes;
    reader.overwrites = true;
    reader
}

#[test]
fn recorder_does_not_read_lanes_in_use() {
    let mut made = SegmentBuilder::with_lane(256);
    made.place(256);
    made.claim(1, 1);
    let mut reader = recording(&made);
    reader.sweep_at(50_000_000, false);
    assert_eq!(reader.safe(), Some(50_000_000 - SLACK_NS), "there was nothing to read");
    reader.edit(|made| made.push(0, 0, 55_000_000, b""));
    let tally = reader.sweep_at(60_000_000, false);
    assert_eq!((tally.events, tally.unfinished, tally.fullest), (0, false, 0));
    assert_eq!(reader.safe(), Some(50_000_000 - SLACK_NS));
    assert_eq!(reader.lane_word(0, at::HEAD), 0);
    reader.reads = ReadMode::AllLanes;
    assert_eq!(reader.sweep_at(70_000_000, false).events, 1);
    assert_eq!(reader.safe(), Some(70_000_000 - SLACK_NS));
    assert_eq!(reader.kept.times(), [55_000_000]);
}

#[test]
fn recorder_reads_retired_lanes_and_dead_processes() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 1_000, b"");
    made.retire(0, 1);
    made.place(256);
    made.claim(1, 1);
    made.push(1, 0, 2_000, b"");
    let mut reader = recording(&made);
    assert_eq!(reader.sweep().events, 1);
    assert_eq!(reader.lane_word(0, at::DRAINED), 1);
    assert_eq!(reader.sweep_at(10_000, true).events, 1);
    assert_eq!(reader.kept.times(), [1_000, 2_000]);
}

#[test]
fn snapshot_takes_exactly_the_records_at_its_start() {
    let mut made = SegmentBuilder::with_lane(256);
    (0..10).for_each(|attempt| made.push(0, attempt, 1_000, b""));
    let mut reader = recording(&made);
    assert_eq!(reader.sweep().events, 0);
    reader.snapshot = Some(1);
    reader.kept.full = true;
    let tally = reader.sweep();
    assert!(tally.behind && tally.unfinished, "{tally:?}");
    reader.edit(|made| (10..15).for_each(|attempt| made.push(0, attempt, 2_000, b"")));
    reader.kept.full = false;
    let tally = reader.sweep();
    assert_eq!((tally.events, tally.behind, tally.unfinished), (10, false, false));
    assert_eq!(reader.sweep().events, 0, "the snapshot has it all");
    reader.snapshot = Some(2);
    assert_eq!(reader.sweep().events, 5);
    reader.snapshot = None;
    reader.edit(|made| made.push(0, 15, 3_000, b""));
    assert_eq!(reader.sweep().events, 0);
}

#[test]
fn lane_that_laps_its_goal_does_not_delay_a_snapshot() {
    let mut made = SegmentBuilder::with_lane(256);
    (0..10).for_each(|attempt| made.push(0, attempt, 1_000, b""));
    let mut reader = recording(&made);
    reader.snapshot = Some(1);
    reader.kept.full = true;
    reader.sweep();
    reader.edit(|made| {
        // The producer writes 300 more and keeps the last 200.
        made.set_lane(0, at::OLDEST, 110);
        (10..310).for_each(|attempt| made.push(0, attempt, 2_000, b""));
    });
    let tally = reader.sweep();
    assert_eq!((tally.events, tally.behind, tally.violations), (0, false, 0));
    reader.kept.full = false;
    reader.snapshot = Some(2);
    assert_eq!(reader.sweep().events, 200);
    assert_eq!(reader.kept.attempts(), (110..310).collect::<Vec<_>>());
}

#[test]
fn snapshot_of_all_lanes_is_the_next_sweep() {
    let mut made = SegmentBuilder::with_lane(256);
    made.push(0, 0, 1_000, b"");
    let mut reader = TestReader::attach(&made);
    reader.snapshot = Some(1);
    let tally = reader.sweep();
    assert_eq!((tally.events, tally.behind), (1, false));
}
