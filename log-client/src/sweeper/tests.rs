//! Sweeps of a directory with a segment made by hand: promises that cannot go on.

use super::*;
use crate::clock::Calibration;
use crate::segment::hand_made::{HandMade, Kept};
use crate::until::until;
use crate::watermark::SLACK_NS;
use miot_proto::segment::{MAJOR, header, lane as at};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

struct Node {
    sweeper: Sweeper,
    kept: Kept,
    made: HandMade,
    /// Held, as a producer holds it.
    file: File,
    _dir: tempfile::TempDir,
}

impl Node {
    /// A node whose log-client takes over from one that had promised the time ten seconds ago.
    fn start() -> Node {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = Config { dir: dir.path().join("miot"), ..Config::default() };
        let home = Home::prepare(&config, 0).unwrap();
        let made = HandMade::with_lane(256);
        let path = config.dir.join("4711-0000000000000abc.seg");
        std::fs::write(&path, &made.bytes).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let clocks = Calibration::begin().finish();
        let before = horizon(&clocks, Now::read()) - 10_000_000_000;
        let predecessor = Predecessor { next_stream: 0, promised: Some(before) };
        let sweeper = Sweeper::new(home, clocks, 1, &config, predecessor, std::sync::Arc::default()).unwrap();
        Node { sweeper, kept: Kept::default(), made, file, _dir: dir }
    }

    /// Changes the segment as its producer would.
    fn edit(&mut self, change: impl FnOnce(&mut HandMade)) {
        // What the log-client writes stays.
        let head = HandMade::lane(0, at::HEAD);
        self.file.read_exact_at(&mut self.made.bytes[head..head + 24], head as u64).unwrap();
        change(&mut self.made);
        self.file.write_all_at(&self.made.bytes, 0).unwrap();
    }

    fn push(&mut self, attempt: u32) {
        self.edit(|made| made.push(0, attempt, Now::read().raw, b""));
    }

    /// Promises of sweeps that find nothing are not held to be too frequent.
    fn sweep(&mut self) -> i64 {
        self.sweeper.told = self.sweeper.told.checked_sub(QUIET_WATERMARKS).unwrap();
        self.sweeper.sweep(&mut self.kept);
        self.sweeper.watermark
    }

    /// As if the last promise had been told a while ago.
    fn let_time_pass(&mut self) {
        self.sweeper.told = Instant::now().checked_sub(ALIVE).unwrap();
    }
}

#[test]
fn without_room_nothing_is_taken_and_nothing_promised() {
    let mut node = Node::start();
    node.push(0);
    let promised = node.sweep();
    assert_eq!((node.kept.attempts(), node.kept.watermarks.last()), (vec![0], Some(&promised)));
    node.push(1);
    node.kept.full = true;
    let told = node.kept.watermarks.len();
    assert_eq!(node.sweep(), promised, "what is in the lane is not sent");
    node.let_time_pass();
    node.sweep();
    assert_eq!(node.kept.watermarks[told..], [promised], "it lives");
    node.kept.full = false;
    assert!(node.sweep() > promised);
    assert_eq!(node.kept.attempts(), [0, 1]);
}

#[test]
fn lanes_beyond_what_a_node_may_have_wait_and_nothing_of_them_is_lost() {
    let mut node = Node::start();
    node.push(0);
    node.sweeper.open_streams = MOST_STREAMS;
    node.sweep();
    assert_eq!((node.kept.streams.len(), node.kept.attempts()), (0, vec![]));
    node.sweeper.open_streams = MOST_STREAMS - 1;
    node.sweep();
    assert_eq!((node.kept.streams.len(), node.kept.attempts()), (1, vec![0]));
}

/// A clean stop: what stays in the lanes is for the log-client after this one, with its own time.
#[test]
fn a_stop_promises_no_more_than_the_lanes_have() {
    let mut node = Node::start();
    node.push(0);
    node.sweep();
    node.push(1);
    node.kept.full = true;
    let promised = node.sweeper.watermark;
    let totals = node.sweeper.finish(&mut node.kept, &|| true);
    assert!(totals.left && node.kept.watermarks.iter().all(|told| *told <= promised));
    assert_eq!((node.kept.attempts(), node.kept.ends.len()), (vec![0], 1));
    // With room the last event is promised past, and nothing is left.
    let mut node = Node::start();
    node.push(0);
    let totals = node.sweeper.finish(&mut node.kept, &|| false);
    let last = node.kept.batches[0].1.time[0];
    assert!(!totals.left && node.kept.watermarks.last().is_some_and(|told| *told > last));
    // A thread that was stopped in the middle of a record is not promised past either.
    let mut node = Node::start();
    node.push(0);
    let before = Now::read();
    node.edit(|made| made.mark(0));
    let _ = node.sweeper.finish(&mut node.kept, &|| true);
    let promised = node.kept.watermarks.last().copied().unwrap_or(i64::MIN);
    assert!(promised <= horizon(&node.sweeper.clocks, before) + SLACK_NS);
}

#[test]
fn a_marked_lane_is_waited_for_but_not_for_ever() {
    let mut node = Node::start();
    let before = node.sweeper.watermark;
    node.edit(|made| made.mark(0));
    assert_eq!(node.sweep(), before, "its log-client has just begun");
    let told = node.kept.watermarks.len();
    node.let_time_pass();
    node.sweep();
    assert_eq!(node.kept.watermarks[told..], [before], "it says that it waits");
    node.sweeper.withheld = Instant::now().checked_sub(HELD_AT_MOST).unwrap();
    let went_on = node.sweep();
    assert!(went_on > before);
    // It goes on after all: the record is from before the promise.
    let completed = Now::read().raw - 1_000_000_000;
    node.edit(|made| made.push(0, 0, completed, b""));
    node.sweep();
    assert_eq!((node.kept.attempts(), node.sweeper.totals.clamped), (vec![0], 1));
    assert!(node.kept.batches[0].1.time[0] >= went_on);
    // From now on it counts as others do.
    assert!(!node.sweeper.tenants[0].given_up);
    node.edit(|made| made.mark(0));
    let promised = node.sweep();
    node.sweep();
    assert_eq!(node.sweeper.watermark, promised);
}

#[test]
fn a_flight_recorder_says_that_nobody_is_to_wait() {
    let mut node = Node::start();
    node.sweep();
    node.sweeper.reads = Reads::Endings;
    let told = node.kept.watermarks.len();
    node.let_time_pass();
    node.sweeper.promise(0, false, &mut node.kept);
    assert_eq!((node.kept.watermarks.len(), node.kept.asides), (told, 1));
}

#[test]
fn a_segment_goes_with_whoever_held_it() {
    let mut node = Node::start();
    node.push(0);
    node.sweep();
    let path = node.sweeper.home.path().join("4711-0000000000000abc.seg");
    assert!(path.exists() && node.sweeper.tenants.len() == 1);
    // Another process can be, too, that read it for a while.
    node.file = File::open("/dev/null").unwrap();
    node.sweeper.tenants[0].suspected = true;
    node.sweep();
    assert!(!path.exists() && node.sweeper.tenants.is_empty());
    assert_eq!((node.kept.ends.len(), node.kept.gone.len()), (1, 1));
}

#[test]
fn a_segment_of_another_version_is_counted_and_left_alone_until_its_process_ends() {
    let Node { mut sweeper, mut kept, mut made, file, _dir } = Node::start();
    made.set(header::VERSION, u64::from(MAJOR + 1) << 32 | 7);
    made.push(0, 0, Now::read().raw, b"");
    file.write_all_at(&made.bytes, 0).unwrap();
    let path = _dir.path().join("miot/4711-0000000000000abc.seg");
    for _ in 0..3 {
        sweeper.sweep(&mut kept);
        assert_eq!(std::fs::read(&path).unwrap(), made.bytes, "written to");
    }
    assert_eq!((sweeper.totals.other_version, sweeper.totals.violations), (1, 0));
    assert!(kept.processes.is_empty(), "read");
    drop(file);
    until("what nobody holds is removed", || {
        sweeper.sweep(&mut kept);
        !path.exists()
    });
}
