//! The producer end to end: a process of its own records into a segment, and the bytes are as
//! `miot_proto::segment` says.
//!
//! The library learns its directory from the environment before `main`, so each test runs its scenario
//! in a child: this same binary, with the scenario's name in `SCENARIO`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::control::{self, word};
use miot_proto::event::{self, Event, Kind, SLOT_BYTES, Slot};
use miot_proto::segment::{HEADER_BYTES, LANE_BYTES, LaneState, MAGIC, header, lane};
use miot_tracer::{Done, Ext, NONE, begin, begin_enclosing, end, end_with, op};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCENARIO: &str = "MIOT_TEST_SCENARIO";

/// A MIOT directory with a control page, as a log-client would make it.
fn node(words: &[(usize, u64)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut page = vec![0u8; control::BYTES];
    let defaults = [
        (word::MAGIC, control::MAGIC),
        (word::ENABLED, 1),
        (word::LAYERS, u64::MAX),
        (word::LANE_SLOTS, 256),
        (word::LANE_SLOTS_MAX, 256),
        (word::PROCESS_BYTES, 16 << 20),
    ];
    for (at, value) in defaults.iter().chain(words) {
        page[*at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    fs::write(dir.path().join(control::FILE), page).unwrap();
    dir
}

fn run(dir: &Path, scenario: &str) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scenarios", "--nocapture"])
        .env(control::DIR_ENV, dir)
        .env(SCENARIO, scenario)
        .env("SLURM_JOB_ID", "4711")
        .status()
        .unwrap();
    assert!(status.success(), "{scenario}: {status}");
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.as_os_str().as_bytes().ends_with(b".seg"))
        .collect();
    found.sort();
    found
}

struct Segment(Vec<u8>);

impl Segment {
    fn only(dir: &Path) -> Segment {
        let found = segments(dir);
        assert_eq!(found.len(), 1, "{found:?}");
        Segment(fs::read(&found[0]).unwrap())
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn lane(&self, index: usize, field: usize) -> u64 {
        self.word(HEADER_BYTES + index * LANE_BYTES + field)
    }

    fn slot(&self, lane_index: usize, position: u64) -> Slot {
        let slots = self.lane(lane_index, lane::SLOTS);
        let at = self.lane(lane_index, lane::SLOTS_AT) + (position % slots) * SLOT_BYTES as u64;
        std::array::from_fn(|w| self.word(at as usize + 8 * w))
    }

    /// First slots and extension bytes of all records of a lane that has not wrapped.
    fn records(&self, index: usize) -> Vec<(Slot, Vec<u8>)> {
        let (mut at, tail) = (self.lane(index, lane::START), self.lane(index, lane::TAIL) >> 1);
        let mut out = Vec::new();
        while at < tail {
            let first = self.slot(index, at);
            let n = event::slots_of(&first) as u64;
            let rest =
                (at + 1..at + n).flat_map(|p| self.slot(index, p)).flat_map(u64::to_le_bytes).collect();
            out.push((first, rest));
            at += n;
        }
        out
    }
}

fn done(length: u64) -> Done {
    Done { handle: 1, offset: 0, length, result: length as i64, flags: 0 }
}

#[test]
fn scenarios() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    match scenario.as_str() {
        "basic" => {
            let outer = begin_enclosing(op::stdio::FOPEN).expect("a control page is there");
            let handle = miot_tracer::new_handle();
            let inner = begin(op::posix::OPENAT).unwrap();
            assert!(end_with(
                inner,
                Done { handle, ..Done::of(3) },
                &Ext { path1: b"/data/a file", ..Ext::default() }
            ));
            assert!(end(outer, Done { handle, offset: NONE, length: NONE, result: 3, flags: 0 }));
            let read = begin(op::posix::READ).unwrap();
            assert!(end(read, Done { handle, offset: 4096, length: 100, result: -5, flags: 0 }));
        }
        "full" => {
            let taken = (0..300).filter(|i| begin(op::posix::READ).is_some_and(|b| end(b, done(*i)))).count();
            assert_eq!(taken, 256);
        }
        "grow" => (0..1000).for_each(|i| assert!(end(begin(op::posix::READ).unwrap(), done(i)))),
        "threads" => {
            for _ in 0..50 {
                std::thread::spawn(|| assert!(end(begin(op::posix::READ).unwrap(), done(1)))).join().unwrap();
            }
        }
        "fork" => {
            assert!(end(begin(op::posix::READ).unwrap(), done(1)));
            // SAFETY: the child does nothing but record and leave.
            match unsafe { libc::fork() } {
                0 => {
                    let recorded = begin(op::posix::WRITE).is_some_and(|b| end(b, done(2)));
                    // SAFETY: always sound.
                    unsafe { libc::_exit(i32::from(!recorded)) }
                }
                child => {
                    let mut status = -1;
                    // SAFETY: a child of this process and an out-pointer.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    assert_eq!(status, 0);
                    assert!(end(begin(op::posix::READ).unwrap(), done(3)));
                }
            }
        }
        "dormant" => assert!((0..10_000).all(|_| begin(op::posix::READ).is_none())),
        "no-memory" => {
            assert!(begin(op::posix::READ).is_none());
            assert!(!miot_tracer::active(op::posix::READ));
        }
        other => panic!("no scenario {other}"),
    }
}

#[test]
fn a_segment_holds_what_was_recorded_and_by_whom() {
    let dir = node(&[]);
    run(dir.path(), "basic");
    let segment = Segment::only(dir.path());
    assert_eq!(segment.word(header::MAGIC), MAGIC);
    assert_eq!(segment.word(header::LANES), 1);
    let page: &[u8; HEADER_BYTES] = segment.0[..HEADER_BYTES].try_into().unwrap();
    let [exe, cmdline, job, cwd] = miot_proto::segment::strings(page);
    assert_eq!(exe, std::env::current_exe().unwrap().as_os_str().as_bytes());
    assert!(cmdline.ends_with(b"--exact\0scenarios\0--nocapture"));
    assert_eq!(job, b"4711");
    assert!(cwd.starts_with(b"/"));

    let records = segment.records(0);
    let events: Vec<_> = records.iter().map(|(slot, _)| Event::from_slot(slot)).collect();
    assert_eq!(
        events.iter().map(|e| e.op).collect::<Vec<_>>(),
        [op::posix::OPENAT, op::stdio::FOPEN, op::posix::READ]
    );
    assert_eq!(
        records.iter().map(|(s, _)| (event::kind_of(s), event::attempt_of(s))).collect::<Vec<_>>(),
        [(1, 0), (1, 1), (1, 2)]
    );
    assert_eq!((events[0].enclosing, events[1].enclosing, events[2].enclosing), (events[1].request, 0, 0));
    assert!(events.windows(2).all(|w| w[0].end < w[1].end), "in order of completion");
    assert!(events[1].end - events[1].duration < events[0].end - events[0].duration, "the outer began first");
    assert_eq!(
        (events[2].handle, events[2].offset, events[2].length, events[2].result),
        (events[0].handle, 4096, 100, -5)
    );
    let ext = event::ext_from_bytes(&records[0].1).unwrap();
    assert_eq!(ext.path1, b"/data/a file");
    assert_eq!(Kind::from_number(event::kind_of(&records[0].0)), Some(Kind::Request));
}

#[test]
fn a_full_lane_drops_the_newest_and_counts_them() {
    let dir = node(&[]);
    run(dir.path(), "full");
    let segment = Segment::only(dir.path());
    assert_eq!((segment.lane(0, lane::LOST_FULL), segment.lane(0, lane::ATTEMPTS)), (44, 300));
    assert_eq!(segment.lane(0, lane::TAIL), 256 << 1, "and no mark stays");
    let lengths: Vec<_> = segment.records(0).iter().map(|(s, _)| s[5]).collect();
    assert_eq!(lengths, (0..256).collect::<Vec<u64>>());
}

#[test]
fn a_lane_that_fills_is_replaced_by_a_larger_one() {
    let dir = node(&[(word::LANE_SLOTS_MAX, 4096)]);
    run(dir.path(), "grow");
    let segment = Segment::only(dir.path());
    let lanes = segment.word(header::LANES) as usize;
    assert_eq!((0..lanes).map(|i| segment.lane(i, lane::SLOTS)).collect::<Vec<_>>(), [256, 1024, 4096]);
    let states: Vec<_> = (0..lanes).map(|i| segment.lane(i, lane::STATE) as u32).collect();
    assert_eq!(states, [LaneState::Retired as u32; 3]);
    let events: Vec<_> =
        (0..lanes).flat_map(|i| segment.records(i)).map(|(s, _)| Event::from_slot(&s)).collect();
    assert_eq!(events.iter().map(|e| e.length).collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
    assert!(events.windows(2).all(|w| w[0].end < w[1].end && w[0].request + 1 == w[1].request));
}

#[test]
fn a_thread_retires_its_lane_when_it_ends() {
    let dir = node(&[]);
    run(dir.path(), "threads");
    let segment = Segment::only(dir.path());
    let lanes = segment.word(header::LANES) as usize;
    assert_eq!(lanes, 50, "nobody drained, so none was claimed again");
    assert!((0..lanes).all(|i| segment.lane(i, lane::STATE) == LaneState::Retired as u64 | 1 << 32));
}

#[test]
fn a_forked_child_has_a_segment_of_its_own() {
    let dir = node(&[]);
    run(dir.path(), "fork");
    let found = segments(dir.path());
    let mut lengths: Vec<Vec<u64>> = found
        .iter()
        .map(|p| Segment(fs::read(p).unwrap()).records(0).iter().map(|(s, _)| s[5]).collect())
        .collect();
    lengths.sort();
    assert_eq!(lengths, [vec![1, 3], vec![2]]);
}

#[test]
fn without_a_log_client_nothing_happens() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    run(dir.path(), "dormant");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_layer_that_is_switched_off_sets_nothing_up() {
    let dir = node(&[(word::LAYERS, 1 << op::Layer::Stdio as u64)]);
    run(dir.path(), "dormant");
    assert_eq!(segments(dir.path()).len(), 0);
}

#[test]
fn a_budget_too_small_for_a_lane_is_no_harm() {
    let dir = node(&[(word::PROCESS_BYTES, 0), (word::LANE_SLOTS, 1 << 20)]);
    // 64 MiB of slots and a limit of the file size make the claim fail as a full tmpfs does.
    let status = Command::new("/bin/sh")
        .arg("-c")
        .arg("ulimit -f 1000; trap '' XFSZ; exec \"$@\"")
        .arg("sh")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "scenarios"])
        .env(control::DIR_ENV, dir.path())
        .env(SCENARIO, "no-memory")
        .status()
        .unwrap();
    assert!(status.success());
}
