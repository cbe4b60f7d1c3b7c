use super::*;
use crate::clock::boottime_ns;
use crate::segment::builder::SegmentBuilder;
use miot_proto::op::{client, posix, stdio};
use miot_proto::segment::{PENDING_BYTES, PENDING_ENTRIES, in_flight, lane as at, pending};
use proptest::prelude::*;
use std::process::{Child, Command, Stdio};

const NONCE: u64 = 0xabc;

/// A waiting process with a hand-made segment.
struct Producer {
    child: Child,
    dir: tempfile::TempDir,
}

impl Producer {
    fn new() -> Producer {
        let mut command = Command::new("cat");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        Producer { child, dir: tempfile::tempdir().unwrap() }
    }

    /// A segment of this process with one lane, for its only thread.
    fn segment(&self) -> SegmentBuilder {
        let mut made = SegmentBuilder::with_lane(256);
        made.set(header::PID, self.child.id().into());
        made.set(header::NONCE, NONCE);
        made.set(header::CREATED_BOOT_NS, boottime_ns());
        made.set_lane(0, at::TID, self.child.id().into());
        made
    }

    fn list(&self, segment: &[u8]) -> InFlightList {
        let name = format!("{}-{NONCE:016x}.seg", self.child.id());
        std::fs::write(self.dir.path().join(name), segment).unwrap();
        InFlightReader::open(self.dir.path()).unwrap().list(Duration::ZERO).unwrap()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn show(made: &mut SegmentBuilder, place: usize, word: u64, [begin, handle, offset, length]: [u64; 4]) {
    let words = [
        (in_flight::REQUEST, word),
        (in_flight::BEGIN, begin),
        (in_flight::HANDLE, handle),
        (in_flight::OFFSET, offset),
        (in_flight::LENGTH, length),
    ];
    words.into_iter().for_each(|(offset, value)| made.set_lane(0, place + offset, value));
}

fn now() -> u64 {
    ticks(Clock::MonotonicRaw)
}

#[test]
fn request_is_listed_with_file_and_parent() {
    let producer = Producer::new();
    let mut made = producer.segment();
    show(
        &mut made,
        at::IN_FLIGHT,
        in_flight::word(posix::READ, 8, Some(0)),
        [now() - 2_000_000_000, 5, 4096, 512],
    );
    show(&mut made, at::ENCLOSING, in_flight::word(stdio::FREAD, 7, None), [now() - 3_000_000_000, 0, 1, 2]);
    let listing = producer.list(&made.bytes);
    assert_eq!((listing.processes, listing.hidden, listing.unfit), (1, 0, 0));
    let [request] = &listing.requests[..] else { panic!("{listing:?}") };
    assert_eq!((request.op, request.request, request.pid), (posix::READ, 8, producer.child.id()));
    assert_eq!((request.handle, request.offset, request.length), (Some(5), Some(4096), Some(512)));
    assert_eq!((&request.comm[..], &request.exe[..]), (&b"worker"[..], &b"/bin/app"[..]));
    assert!((2..60).contains(&request.age.as_secs()), "{:?}", request.age);
    let outer = request.parent.as_ref().unwrap();
    assert_eq!((outer.op, outer.request), (stdio::FREAD, 7));
    assert!(outer.age > request.age);
}

#[test]
fn ended_requests_and_dead_processes_are_not_listed() {
    let producer = Producer::new();
    let mut made = producer.segment();
    let word = in_flight::word(posix::READ, 1, Some(0));
    show(&mut made, at::IN_FLIGHT, word, [now(), 0, 0, 0]);
    let shown = producer.list(&made.bytes);
    assert_eq!(shown.requests.len(), 1);
    assert_eq!(
        (shown.requests[0].offset, shown.requests[0].length),
        (None, None),
        "without a handle there are no arguments"
    );

    let nothing = |change: &dyn Fn(&mut SegmentBuilder)| {
        let mut made = SegmentBuilder::with_lane(256);
        made.bytes = self::copy(&producer, word);
        change(&mut made);
        assert_eq!(producer.list(&made.bytes).requests, []);
    };
    nothing(&|made| made.push(0, 0, 10, b""));
    nothing(&|made| made.retire(0, 1));
    nothing(&|made| made.set(header::CLOSED, 1));
    nothing(&|made| made.set_lane(0, at::TID, 1));
    // Created before the process started, so by another process with this pid.
    nothing(&|made| made.set(header::CREATED_BOOT_NS, 0));
    nothing(&|made| made.set(header::PID, 1));
}

fn copy(producer: &Producer, word: u64) -> Vec<u8> {
    let mut made = producer.segment();
    show(&mut made, at::IN_FLIGHT, word, [now(), 0, 0, 0]);
    made.bytes
}

/// Stores the table of asynchronous requests with these entries behind the slots: first word,
/// begin, threads, path.
fn show_pending(made: &mut SegmentBuilder, entries: &[(u64, u64, u64, &[u8])]) {
    let table = made.bytes.len().next_multiple_of(PENDING_BYTES);
    made.bytes.resize(table + PENDING_ENTRIES * PENDING_BYTES, 0);
    made.set(header::PENDING, table as u64);
    made.set(header::PENDING_USED, entries.len() as u64);
    for (index, (word, begin, threads, path)) in entries.iter().enumerate() {
        let at = table + index * PENDING_BYTES;
        let words = [
            (pending::REQUEST, *word),
            (pending::BEGIN, *begin),
            (pending::HANDLE, 7),
            (pending::OFFSET, 4096),
            (pending::LENGTH, NONE),
            (pending::THREADS, *threads),
        ];
        words.into_iter().for_each(|(offset, value)| made.set(at + offset, value));
        made.bytes[at + pending::PATH..][..path.len()].copy_from_slice(path);
    }
}

#[test]
fn asynchronous_requests_are_listed_with_path_and_caller() {
    let producer = Producer::new();
    let mut made = producer.segment();
    let (own, long) = (u64::from(producer.child.id()), [b'x'; pending::PATH_BYTES]);
    let begin = now() - 2_000_000_000;
    let entries: [(u64, u64, u64, &[u8]); 4] = [
        (pending::word(client::READ, 8), begin, own | 77 << 32, b"/dir/file"),
        (0, begin, own, b"/ended"),
        (pending::RESERVED, begin, own, b"/being filled"),
        // Its thread has ended.
        (pending::word(client::LOOKUP, 9), now(), 1, &long),
    ];
    show_pending(&mut made, &entries);
    let listing = producer.list(&made.bytes);
    let [read, lookup] = &listing.requests[..] else { panic!("{listing:?}") };
    assert_eq!((read.op, read.request, read.tid, read.caller), (client::READ, 8, own as u32, Some(77)));
    assert_eq!((read.handle, read.offset, read.length), (Some(7), Some(4096), None));
    assert_eq!((&read.file[..], &read.comm[..]), (&b"/dir/file"[..], &b"worker"[..]));
    assert!((2..60).contains(&read.age.as_secs()), "{:?}", read.age);
    assert_eq!((lookup.op, lookup.tid, lookup.caller), (client::LOOKUP, 1, None));
    assert_eq!((&lookup.file[..], &lookup.comm[..], lookup.offset), (&long[..], &b""[..], None));
    // False words of the header.
    for (word, value) in [
        (header::PENDING, u64::MAX - 7),
        (header::PENDING, 1 << 40),
        (header::PENDING, 0),
        (header::PENDING_USED, 0),
    ] {
        let mut made = producer.segment();
        show_pending(&mut made, &entries);
        made.set(word, value);
        assert_eq!(producer.list(&made.bytes).requests, [], "{word} {value}");
    }
    made.set(header::PENDING_USED, u64::MAX);
    assert_eq!(producer.list(&made.bytes).requests.len(), 2);
}

#[test]
fn requests_are_filtered_and_sorted_by_age() {
    let producer = Producer::new();
    let mut made = producer.segment();
    made.place(256);
    made.claim(1, 1);
    made.set_lane(1, at::TID, producer.child.id().into());
    let begin = now();
    show(
        &mut made,
        at::IN_FLIGHT,
        in_flight::word(posix::READ, 1, Some(0)),
        [begin - 1_000_000_000, 0, 0, 0],
    );
    for (offset, value) in [
        (in_flight::REQUEST, in_flight::word(posix::WRITE, 1, Some(0))),
        (in_flight::BEGIN, begin - 9_000_000_000),
    ] {
        made.set_lane(1, at::IN_FLIGHT + offset, value);
    }
    let ops: Vec<_> = producer.list(&made.bytes).requests.iter().map(|request| request.op).collect();
    assert_eq!(ops, [posix::WRITE, posix::READ]);
    let mut reader = InFlightReader::open(producer.dir.path()).unwrap();
    assert_eq!(reader.list(Duration::from_secs(3600)).unwrap().requests, []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn arbitrary_bytes_do_no_harm(
        lanes: u64,
        words in prop::collection::vec((0usize..(HEADER_BYTES + 4 * LANE_BYTES) / 8, any::<u64>()), 0..40),
        cut in 0usize..400_000,
    ) {
        let producer = Producer::new();
        let mut made = producer.segment();
        made.set(header::LANES, lanes);
        words.into_iter().for_each(|(at, value)| made.set(at * 8, value));
        made.bytes.truncate(cut);
        let listing = producer.list(&made.bytes);
        prop_assert!(listing.requests.len() <= MAX_LANES + PENDING_ENTRIES);
    }
}
