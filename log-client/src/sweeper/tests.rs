//! Sweeps of a directory with a hand-made segment: watermarks that cannot advance.

use super::*;
use crate::clock::Calibration;
use crate::segment::builder::{RecordingSink, SegmentBuilder};
use crate::until::until;
use crate::watermark::{MAX_HOLD, SLACK_NS};
use miot_proto::control::Settings;
use miot_proto::segment::{MAJOR, header, lane as at};
use node_watermark::ALIVE;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

struct Node {
    sweeper: Sweeper,
    kept: RecordingSink,
    made: SegmentBuilder,
    /// Open, as a producer has it.
    file: File,
    _dir: tempfile::TempDir,
}

impl Node {
    /// A node whose previous log-client had set the watermark ten seconds ago.
    fn start() -> Node {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = Config { dir: dir.path().join("miot"), ..Config::default() };
        let directory = MiotDirectory::prepare(&config, 0).unwrap();
        let made = SegmentBuilder::with_lane(256);
        let path = config.dir.join("4711-0000000000000abc.seg");
        std::fs::write(&path, &made.bytes).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let clocks = Calibration::begin().finish();
        let before = horizon(&clocks, Now::read()) - 10_000_000_000;
        let predecessor = Predecessor { next_stream: 0, watermark: Some(before) };
        let pace = CurrentPace::new(Arc::clone(directory.control()));
        let survey = Arc::default();
        let sweeper = Sweeper::new(directory, clocks, 1, &config, predecessor, survey, pace).unwrap();
        Node { sweeper, kept: RecordingSink::default(), made, file, _dir: dir }
    }

    /// Changes the segment as its producer would.
    fn edit(&mut self, change: impl FnOnce(&mut SegmentBuilder)) {
        // Keeps the words that the log-client writes.
        let head = SegmentBuilder::lane(0, at::HEAD);
        self.file.read_exact_at(&mut self.made.bytes[head..head + 24], head as u64).unwrap();
        change(&mut self.made);
        self.file.write_all_at(&self.made.bytes, 0).unwrap();
    }

    fn push(&mut self, attempt: u32) {
        self.edit(|made| made.push(0, attempt, Now::read().raw, b""));
    }

    /// Sweeps as if the last watermark was long enough ago for another one.
    fn sweep(&mut self) -> i64 {
        let sent = &mut self.sweeper.watermark.sent;
        *sent = sent.checked_sub(QUIET_WATERMARKS).unwrap();
        self.sweeper.sweep(&mut self.kept);
        self.sweeper.watermark.time
    }

    /// As if the last watermark was sent a while ago.
    fn let_time_pass(&mut self) {
        self.sweeper.watermark.sent = Instant::now().checked_sub(ALIVE).unwrap();
    }
}

#[test]
fn full_spool_stops_reading_and_watermark() {
    let mut node = Node::start();
    node.push(0);
    let watermark = node.sweep();
    assert_eq!((node.kept.attempts(), node.kept.watermarks.last()), (vec![0], Some(&watermark)));
    node.push(1);
    node.kept.full = true;
    let sent = node.kept.watermarks.len();
    assert_eq!(node.sweep(), watermark, "the record in the lane is not sent");
    node.let_time_pass();
    node.sweep();
    assert_eq!(node.kept.watermarks[sent..], [watermark], "repeated as a sign of life");
    node.kept.full = false;
    assert!(node.sweep() > watermark);
    assert_eq!(node.kept.attempts(), [0, 1]);
}

#[test]
fn lanes_above_the_stream_limit_wait_without_loss() {
    let mut node = Node::start();
    node.push(0);
    node.sweeper.open_streams = MAX_STREAMS;
    node.sweep();
    assert_eq!((node.kept.streams.len(), node.kept.attempts()), (0, vec![]));
    node.sweeper.open_streams = MAX_STREAMS - 1;
    node.sweep();
    assert_eq!((node.kept.streams.len(), node.kept.attempts()), (1, vec![0]));
}

/// A clean stop: records that stay in the lanes are for the next log-client, with their own times.
#[test]
fn stop_sends_no_watermark_above_undrained_lanes() {
    let mut node = Node::start();
    node.push(0);
    node.sweep();
    node.push(1);
    node.kept.full = true;
    let watermark = node.sweeper.watermark.time;
    let totals = node.sweeper.finish(&mut node.kept, &|| true);
    assert!(totals.left && node.kept.watermarks.iter().all(|sent| *sent <= watermark));
    assert_eq!((node.kept.attempts(), node.kept.ends.len()), (vec![0], 1));
    // With space the watermark exceeds the last event, and nothing is left.
    let mut node = Node::start();
    node.push(0);
    let totals = node.sweeper.finish(&mut node.kept, &|| false);
    let last = node.kept.batches[0].1.time[0];
    assert!(!totals.left && node.kept.watermarks.last().is_some_and(|sent| *sent > last));
    // Nor does the watermark exceed the record of a stopped thread.
    let mut node = Node::start();
    node.push(0);
    let before = Now::read();
    node.edit(|made| made.mark(0));
    let _ = node.sweeper.finish(&mut node.kept, &|| true);
    let watermark = node.kept.watermarks.last().copied().unwrap_or(i64::MIN);
    assert!(watermark <= horizon(&node.sweeper.lanes.clocks, before) + SLACK_NS);
}

#[test]
fn marked_lane_holds_back_the_watermark_for_a_limited_time() {
    let mut node = Node::start();
    let before = node.sweeper.watermark.time;
    node.edit(|made| made.mark(0));
    assert_eq!(node.sweep(), before, "the maximum hold has not passed");
    let sent = node.kept.watermarks.len();
    node.let_time_pass();
    node.sweep();
    assert_eq!(node.kept.watermarks[sent..], [before], "repeated as a sign of life");
    node.sweeper.watermark.withheld = Instant::now().checked_sub(MAX_HOLD).unwrap();
    let advanced = node.sweep();
    assert!(advanced > before);
    // The thread continues: its record is from before the watermark.
    let completed = Now::read().raw - 1_000_000_000;
    node.edit(|made| made.push(0, 0, completed, b""));
    node.sweep();
    assert_eq!((node.kept.attempts(), node.sweeper.totals.clamped), (vec![0], 1));
    assert!(node.kept.batches[0].1.time[0] >= advanced);
    // From now on the lane counts like any other.
    assert!(!node.sweeper.segments[0].patience.given_up);
    node.edit(|made| made.mark(0));
    let watermark = node.sweep();
    node.sweep();
    assert_eq!(node.sweeper.watermark.time, watermark);
}

#[test]
fn flight_recorder_sends_aside() {
    let mut node = Node::start();
    node.sweep();
    node.sweeper.lanes.mode = ReadMode::EndedLanes;
    let sent = node.kept.watermarks.len();
    node.let_time_pass();
    node.sweeper.send_watermark(0, false, &mut node.kept);
    assert_eq!((node.kept.watermarks.len(), node.kept.asides), (sent, 1));
}

#[test]
fn segment_is_removed_with_its_last_holder() {
    let mut node = Node::start();
    node.push(0);
    node.sweep();
    let path = node.sweeper.directory.path().join("4711-0000000000000abc.seg");
    assert!(path.exists() && node.sweeper.segments.len() == 1);
    // The holder can also be another process that read it for a while.
    node.file = File::open("/dev/null").unwrap();
    node.sweeper.segments[0].suspected = true;
    node.sweep();
    assert!(!path.exists() && node.sweeper.segments.is_empty());
    assert_eq!((node.kept.ends.len(), node.kept.gone.len()), (1, 1));
}

#[test]
fn segment_of_other_version_is_counted_and_unchanged() {
    let Node { mut sweeper, mut kept, mut made, file, _dir } = Node::start();
    made.set(header::VERSION, u64::from(MAJOR + 1) << 32 | 7);
    made.push(0, 0, Now::read().raw, b"");
    file.write_all_at(&made.bytes, 0).unwrap();
    let path = _dir.path().join("miot/4711-0000000000000abc.seg");
    for _ in 0..3 {
        sweeper.sweep(&mut kept);
        assert_eq!(std::fs::read(&path).unwrap(), made.bytes, "the segment was written to");
    }
    assert_eq!((sweeper.totals.other_version, sweeper.totals.violations), (1, 0));
    assert!(kept.processes.is_empty(), "the segment was read");
    drop(file);
    until("the segment is removed", || {
        sweeper.sweep(&mut kept);
        !path.exists()
    });
}

#[test]
fn idle_node_sets_the_doorbell_some_sweeps_before_its_long_sleep() {
    let Node { mut sweeper, .. } = Node::start();
    let control = Arc::clone(sweeper.directory.control());
    let set_by_configuration = control.settings();
    let sleeps: Vec<bool> = (0..5).map(|_| sweeper.doze.after_sweep(true, &control).is_some()).collect();
    assert_eq!(sleeps, [false, false, false, true, true]);
    assert_eq!(control.settings(), Settings { doorbell: true, ..set_by_configuration.clone() });
    // A tool that replaces the settings clears it.
    control.replace(&set_by_configuration).unwrap();
    assert_eq!((sweeper.doze.after_sweep(true, &control), control.has_doorbell()), (None, true));
    assert_eq!((sweeper.doze.after_sweep(false, &control), control.has_doorbell()), (None, false));
    assert_eq!(control.settings(), set_by_configuration);
}

#[test]
fn end_of_the_idle_pace_ends_a_sleep_or_prevents_it() {
    const HOUR: Duration = Duration::from_secs(3600);
    let Node { sweeper, .. } = Node::start();
    let control = sweeper.directory.control();
    sweeper.pace.set(Pace::Idle);
    sweeper.pace.set(Pace::Live);
    assert!(control.sleep(HOUR), "before the sleep");
    assert!(!control.sleep(Duration::from_millis(1)), "only one sleep");
    // Without waiting, so that some come before the sleep, some during it, and some in between.
    for round in 0..100 {
        std::thread::scope(|scope| {
            let sleep = scope.spawn(|| control.sleep(HOUR));
            sweeper.pace.set(Pace::Idle);
            sweeper.pace.set(Pace::Live);
            assert!(sleep.join().unwrap(), "round {round}");
        });
    }
}
