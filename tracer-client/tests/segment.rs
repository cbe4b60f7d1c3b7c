//! End-to-end tests of the producer: a separate process records into a segment, whose bytes must
//! have the layout of `miot_proto::segment`.
//!
//! The library reads its directory from the environment before `main`. Therefore each test runs its
//! scenario in a child: this same binary, with the scenario's name in the variable `SCENARIO`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::control::{self, Settings, WhenFull, word};
use miot_proto::event::{self, Event, RecordKind, SLOT_BYTES, Slot};
use miot_proto::segment::{HEADER_BYTES, LANE_BYTES, LaneState, MAGIC, header, in_flight, lane};
use miot_tracer::{
    Completion, Ext, NONE, RequestArgs, begin, begin_enclosing, begin_enclosing_on, begin_on, cancel, end,
    end_with, op,
};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCENARIO: &str = "MIOT_TEST_SCENARIO";

/// Creates a MIOT directory with a control page, like a log-client.
fn node(change: impl FnOnce(&mut Settings)) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut page = vec![0u8; control::BYTES];
    let mut settings =
        Settings { lane_slots: 256, lane_slots_max: 256, process_bytes: 16 << 20, ..Settings::default() };
    change(&mut settings);
    for (at, value) in settings.words(1_000_000_000).chain([(word::MAGIC, control::MAGIC)]) {
        page[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    fs::write(dir.path().join(control::FILE), page).unwrap();
    dir
}

/// Writes a word of the control page, like a log-client.
fn write_control_word(dir: &Path, at: usize, value: u64) {
    let page = fs::OpenOptions::new().write(true).open(dir.join(control::FILE)).unwrap();
    page.write_all_at(&value.to_le_bytes(), at as u64).unwrap();
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

fn done(length: u64) -> Completion {
    Completion { handle: 1, offset: 0, length, result: length as i64, flags: 0 }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario from start to end")]
fn scenarios() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    match scenario.as_str() {
        "basic" => {
            let outer = begin_enclosing(op::stdio::FOPEN).expect("the control page exists");
            let handle = miot_tracer::new_handle();
            let inner = begin(op::posix::OPENAT).unwrap();
            assert!(end_with(
                inner,
                Completion { handle, ..Completion::of(3) },
                &Ext { path1: b"/data/a file", ..Ext::default() }
            ));
            assert!(end(outer, Completion { handle, offset: NONE, length: NONE, result: 3, flags: 0 }));
            let read = begin(op::posix::READ).unwrap();
            assert!(end(read, Completion { handle, offset: 4096, length: 100, result: -5, flags: 0 }));
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
            // SAFETY: `fork` requires
            // - a child that only makes async-signal-safe calls: it records and exits.
            match unsafe { libc::fork() } {
                0 => {
                    let recorded = begin(op::posix::WRITE).is_some_and(|b| end(b, done(2)));
                    // SAFETY: `_exit` requires nothing.
                    unsafe { libc::_exit(i32::from(!recorded)) }
                }
                child => {
                    let mut status = -1;
                    // SAFETY: `waitpid` requires
                    // - a valid out-pointer: a local variable.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    assert_eq!(status, 0);
                    assert!(end(begin(op::posix::READ).unwrap(), done(3)));
                }
            }
        }
        "node-full" => {
            let dir = PathBuf::from(std::env::var_os(control::DIR_ENV).unwrap());
            write_control_word(&dir, word::NODE_FULL, 0);
            (0..100).for_each(|i| assert!(end(begin(op::posix::READ).unwrap(), done(i))));
            write_control_word(&dir, word::NODE_FULL, 1);
            let taken =
                (100..300).filter(|i| begin(op::posix::READ).is_some_and(|b| end(b, done(*i)))).count();
            assert_eq!(taken, 156, "the lane must not grow");
            std::thread::spawn(|| assert!(begin(op::posix::READ).is_none())).join().unwrap();
            write_control_word(&dir, word::NODE_FULL, 0);
            std::thread::spawn(|| assert!(end(begin(op::posix::READ).unwrap(), done(300)))).join().unwrap();
        }
        "dormant" => assert!((0..10_000).all(|_| begin(op::posix::READ).is_none())),
        "successor" => {
            let dir = PathBuf::from(std::env::var_os(control::DIR_ENV).unwrap());
            assert!(end(begin(op::posix::READ).unwrap(), done(1)));
            let ended = Settings { enabled: false, ..Settings::default() };
            for (at, value) in ended.words(1_000_000_000).chain([(word::CLOSED, 1)]) {
                write_control_word(&dir, at, value);
            }
            // The thread looks for a successor from time to time only, and finds the same page.
            assert!((0..10_000).all(|_| begin(op::posix::READ).is_none()));
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            let mapped = maps.lines().filter(|line| line.contains("/control")).count();
            assert!((1..100).contains(&mapped), "{mapped} mappings");
            fs::rename(dir.join("next"), dir.join(control::FILE)).unwrap();
            let begun = (0..1_000_000).find_map(|_| begin(op::posix::READ)).expect("the successor records");
            assert!(end(begun, done(2)));
            assert!(end(begin(op::posix::READ).unwrap(), done(3)));
        }
        "no-memory" => {
            assert!(begin(op::posix::READ).is_none());
            assert!(!miot_tracer::active(op::posix::READ));
        }
        "overwrite" => (0..1000u64).for_each(|i| {
            let path = vec![b'x'; (i * 37 % 500) as usize];
            let ext = Ext { path1: &path, ..Ext::default() };
            assert!(end_with(begin(op::posix::OPEN).unwrap(), done(i), &ext));
        }),
        "filtered" => {
            let recorded = (0..64).filter(|i| end(begin(op::posix::READ).unwrap(), done(*i))).count();
            assert!(recorded < 64, "all requests passed a sample of 1/4 (probability 4^-64)");
            assert!(miot_tracer::name_file(9, 0, b"/a"), "a filter must not drop file names");
        }
        "not-chosen" => {
            assert!(begin(op::posix::WRITE).is_none());
            let read = begin(op::posix::READ).unwrap();
            assert!((0..10_000).all(|_| begin(op::posix::WRITE).is_none()));
            assert!(end(read, done(1)));
            assert!(miot_tracer::name_file(9, 0, b"/a"));
        }
        "completed" | "interrupted" | "cancelled" => {
            let args = |offset| RequestArgs { handle: 7, offset, length: 512 };
            let outer = begin_enclosing_on(op::stdio::FREAD, args(1)).unwrap();
            let inner = begin_on(op::posix::READ, args(2)).unwrap();
            assert!(end(inner, done(0)));
            let inner = begin_on(op::posix::PREAD, args(3)).unwrap();
            match scenario.as_str() {
                "completed" => assert!(end(inner, done(1)) && end(outer, done(2))),
                "cancelled" => {
                    cancel(inner);
                    cancel(outer);
                }
                _ => {}
            }
            // SAFETY: `_exit` requires nothing. The thread's destructors do not run.
            unsafe { libc::_exit(0) };
        }
        other => panic!("unknown scenario {other}"),
    }
}

#[test]
fn segment_holds_identity_and_records_of_the_process() {
    let dir = node(|_| ());
    run(dir.path(), "basic");
    let segment = Segment::only(dir.path());
    assert_eq!(segment.word(header::MAGIC), MAGIC);
    assert_eq!(segment.word(header::LANES), 1);
    let page: &[u8; HEADER_BYTES] = segment.0[..HEADER_BYTES].try_into().unwrap();
    let [exe, cmdline, job, cwd] = miot_proto::segment::strings(page);
    assert_eq!(exe, std::env::current_exe().unwrap().as_os_str().as_bytes());
    assert!(cmdline.ends_with(b"--exact\0scenarios\0--nocapture"));
    assert_eq!(job, b"4711\0slurm");
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
    assert!(events.windows(2).all(|w| w[0].end < w[1].end), "records are not in order of completion");
    assert!(
        events[1].end - events[1].duration < events[0].end - events[0].duration,
        "the outer request must begin first"
    );
    assert_eq!(
        (events[2].handle, events[2].offset, events[2].length, events[2].result),
        (events[0].handle, 4096, 100, -5)
    );
    let ext = event::ext_from_bytes(&records[0].1).unwrap();
    assert_eq!(ext.path1, b"/data/a file");
    assert_eq!(RecordKind::from_number(event::kind_of(&records[0].0)), Some(RecordKind::Request));
}

#[test]
fn full_lane_drops_and_counts_newest() {
    let dir = node(|_| ());
    run(dir.path(), "full");
    let segment = Segment::only(dir.path());
    assert_eq!((segment.lane(0, lane::LOST_FULL), segment.lane(0, lane::ATTEMPTS)), (44, 300));
    assert_eq!(segment.lane(0, lane::TAIL), 256 << 1, "the mark must be removed");
    let lengths: Vec<_> = segment.records(0).iter().map(|(s, _)| s[5]).collect();
    assert_eq!(lengths, (0..256).collect::<Vec<u64>>());
}

#[test]
fn filling_lane_is_replaced_by_a_larger_one() {
    let dir = node(|settings| settings.lane_slots_max = 4096);
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
fn no_lane_is_claimed_while_the_node_is_full() {
    let dir = node(|settings| settings.lane_slots_max = 4096);
    run(dir.path(), "node-full");
    let segment = Segment::only(dir.path());
    assert_eq!(segment.word(header::LANES), 2);
    assert_eq!((segment.lane(0, lane::LOST_FULL), segment.word(header::LOST_NO_LANE)), (44, 1));
    // A process that starts now reports its losses.
    write_control_word(dir.path(), word::NODE_FULL, 1);
    fs::remove_file(&segments(dir.path())[0]).unwrap();
    run(dir.path(), "no-memory");
    let segment = Segment::only(dir.path());
    assert_eq!((segment.word(header::LANES), segment.word(header::LOST_NO_LANE)), (0, 1));
}

#[test]
fn ending_thread_retires_its_lane() {
    let dir = node(|_| ());
    run(dir.path(), "threads");
    let segment = Segment::only(dir.path());
    let lanes = segment.word(header::LANES) as usize;
    assert_eq!(lanes, 50, "undrained lanes must not be reused");
    assert!((0..lanes).all(|i| segment.lane(i, lane::STATE) == LaneState::Retired as u64 | 1 << 32));
}

#[test]
fn forked_child_gets_its_own_segment() {
    let dir = node(|_| ());
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
fn nothing_is_set_up_without_a_log_client() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    run(dir.path(), "dormant");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn nothing_is_set_up_for_another_control_page_version() {
    let dir = node(|_| ());
    write_control_word(dir.path(), word::MAGIC, control::MAGIC + 1);
    run(dir.path(), "dormant");
    assert_eq!(segments(dir.path()).len(), 0);
}

#[test]
fn thread_finds_the_successor_of_a_log_client_that_has_ended() {
    let (dir, next) = (node(|_| ()), node(|_| ()));
    fs::rename(next.path().join(control::FILE), dir.path().join("next")).unwrap();
    run(dir.path(), "successor");
    assert_eq!(segments(dir.path()).len(), 1);
}

#[test]
fn disabled_layer_sets_nothing_up() {
    let dir = node(|settings| settings.layers = 1 << op::Layer::Stdio as u64);
    run(dir.path(), "dormant");
    assert_eq!(segments(dir.path()).len(), 0);
}

#[test]
fn lane_that_cannot_be_allocated_does_no_harm() {
    let dir = node(|settings| (settings.process_bytes, settings.lane_slots) = (0, 1 << 20));
    // 64 MiB of slots and a file size limit make the allocation fail, as a full tmpfs does. The
    // limit is also that of standard output if that is a file: hence a pipe.
    let output = Command::new("/bin/sh")
        .arg("-c")
        .arg("ulimit -f 1000; trap '' XFSZ; exec \"$@\"")
        .arg("sh")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "scenarios"])
        .env(control::DIR_ENV, dir.path())
        .env(SCENARIO, "no-memory")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn overwritten_lane_keeps_newest_whole_records() {
    let dir = node(|settings| settings.when_full = WhenFull::OverwriteOldest);
    run(dir.path(), "overwrite");
    let segment = Segment::only(dir.path());
    assert_eq!(segment.lane(0, lane::LOST_FULL), 0, "overwritten records must not count as LOST_FULL");
    let (mut at, tail) = (segment.lane(0, lane::OLDEST), segment.lane(0, lane::TAIL) >> 1);
    assert!(at < tail && tail - at <= 256);
    let mut lengths = Vec::new();
    while at < tail {
        let first = segment.slot(0, at);
        assert_eq!((event::kind_of(&first), u64::from(event::attempt_of(&first))), (1, first[5]));
        lengths.push(first[5]);
        at += event::slots_of(&first) as u64;
    }
    assert_eq!(at, tail);
    assert_eq!(lengths.last(), Some(&999));
    assert!(lengths.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{lengths:?}");
    assert!(lengths.len() > 30, "more than an eighth was discarded at a time");
}

#[test]
fn filtered_requests_are_counted_and_not_lost() {
    let dir = node(|settings| settings.sample_shift = 2);
    run(dir.path(), "filtered");
    let segment = Segment::only(dir.path());
    let (filtered, records) = (segment.lane(0, lane::FILTERED), segment.records(0).len() as u64);
    assert_eq!((filtered + records, segment.lane(0, lane::LOST_FULL)), (64 + 1, 0));
    assert!(filtered > 0);
    assert_eq!(segment.lane(0, lane::ATTEMPTS), records, "filtered requests must not have attempt numbers");
}

#[test]
fn short_requests_are_filtered() {
    let dir = node(|settings| settings.min_duration_ns = u64::MAX);
    run(dir.path(), "filtered");
    let segment = Segment::only(dir.path());
    assert_eq!((segment.lane(0, lane::FILTERED), segment.records(0).len()), (64, 1));
}

#[test]
fn only_selected_operations_are_recorded() {
    let dir = node(|settings| settings.choose(op::posix::WRITE, false));
    run(dir.path(), "not-chosen");
    assert_eq!(Segment::only(dir.path()).records(0).len(), 2);
}

/// Returns the operations in flight when the process ended, from the entries of its lane.
fn in_flight(scenario: &str) -> [Option<op::Op>; 2] {
    let dir = node(|_| ());
    run(dir.path(), scenario);
    let segment = Segment::only(dir.path());
    let tail = segment.lane(0, lane::TAIL) >> 1;
    [(lane::IN_FLIGHT, 3), (lane::ENCLOSING, 1)].map(|(at, offset)| {
        let (op, _) = in_flight::read(segment.lane(0, at + in_flight::REQUEST), tail)?;
        assert!(segment.lane(0, at + in_flight::BEGIN) > segment.word(header::CREATED_TICKS));
        let doing = [in_flight::HANDLE, in_flight::OFFSET, in_flight::LENGTH];
        assert_eq!(doing.map(|word| segment.lane(0, at + word)), [7, offset, 512]);
        Some(op)
    })
}

#[test]
fn request_is_in_flight_until_end_cancel_or_process_death() {
    assert_eq!(in_flight("interrupted"), [Some(op::posix::PREAD), Some(op::stdio::FREAD)]);
    assert_eq!(in_flight("completed"), [None, None]);
    assert_eq!(in_flight("cancelled"), [None, None]);
}
