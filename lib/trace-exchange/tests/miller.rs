//! Miller's records through a trace directory and back, and MIOT's events as records.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::event::flag;
use miot_proto::op::{client, posix};
use miot_trace_events::testing::{EventValues, batch, row};
use miot_trace_exchange::build::{Event, Process, TraceBuilder};
use miot_trace_exchange::miller::export::Export;
use miot_trace_exchange::miller::import::{ImportError, Options, import};
use miot_trace_exchange::miller::{
    Base, Item, Mode, Reader, Record, RecordType, SkippedRequests, TICK, Writer,
};
use miot_trace_store as store;
use miot_trace_store::FileNames;
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::Path;

const EPOCH: i64 = 1_700_000_000_000_000_000;

fn options() -> Options {
    Options { epoch: EPOCH, node: "n1".to_owned(), base: Base::Hexadecimal }
}

fn import_text(text: &[u8], dir: &Path) -> Result<Vec<String>, ImportError> {
    let mut builder = TraceBuilder::create(dir).unwrap();
    let mut damaged = Vec::new();
    let mut reader = Reader::new(text, Base::Hexadecimal, Mode::Strict);
    import(&mut reader, &mut builder, options(), |line, damage| {
        damaged.push(format!("line {line}: {damage}"));
        true
    })?;
    builder.finish(|_| {}).unwrap();
    Ok(damaged)
}

/// Returns the trace as text, with at most `waiting` waiting records.
fn export_text(dir: &Path, waiting: usize) -> (String, SkippedRequests) {
    let reader = store::Reader::open(dir).unwrap();
    let files = reader.files().unwrap();
    let mut text = Vec::new();
    let mut export = Export::new(&mut text, &files, "miot test", 0, false).with_waiting(waiting);
    for batch in reader.batches(store::Table::Processes) {
        export.processes(&batch.unwrap());
    }
    for batch in reader.events() {
        export.add(&batch.unwrap()).unwrap();
    }
    let (left, records) = export.finish().unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(records as usize, self::records(&text).len());
    (text, left)
}

fn records(text: &str) -> Vec<Record> {
    let items = Reader::new(text.as_bytes(), Base::Hexadecimal, Mode::Strict).map(Result::unwrap);
    items
        .filter_map(|item| match item {
            Item::Record(record) => Some(record),
            Item::Comment(_) => None,
        })
        .collect()
}

/// Returns the nanoseconds since 1970 at tick 0, from the comment.
fn epoch(text: &str) -> i64 {
    let from = text.find("epoch_ns=").unwrap() + 9;
    text[from..].split_ascii_whitespace().next().unwrap().parse().unwrap()
}

/// Returns the records with the start in ticks since 1970, in a canonical order.
fn absolute(records: Vec<Record>, epoch: i64) -> Vec<Record> {
    let ticks = epoch as u64 / TICK;
    let mut records: Vec<_> =
        records.into_iter().map(|record| Record { start: record.start + ticks, ..record }).collect();
    records.sort_by_key(|r| {
        (r.start, r.process, r.took, r.file, r.offset, r.length, r.operation, r.kind.bits())
    });
    records
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..5, 3 => (0u64..5).prop_map(|n| n * 512), 2 => 0u64..1 << 33]
}

/// Returns a trace that MIOT can represent, per process in order: two requests of a process do not
/// begin together, and logical records contain its CPU time.
fn trace() -> impl Strategy<Value = Vec<Record>> {
    let kind = any::<u8>().prop_map(|bits| RecordType::from_bits(bits & !RecordType::RESERVED).unwrap());
    let one = (kind, number(), number(), 1u64..1000, number(), any::<u32>(), 0u64..5, 0u64..3, 0u64..1 << 20);
    vec(one, 0..120).prop_map(|all| {
        let mut start = 0;
        let all =
            all.into_iter().map(|(kind, offset, length, since, took, operation, file, process, time)| {
                start += since;
                Record {
                    kind,
                    offset,
                    length,
                    start,
                    took: took.min(1 << 22),
                    operation: operation.into(),
                    file,
                    process,
                    process_time: if kind.is_logical() { time } else { 0 },
                }
            });
        all.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_trace_directory_keeps_all_of_a_record(trace in trace(), recorded in any::<bool>()) {
        let mut writer = Writer::new(Vec::new());
        let flags = if recorded { "cacheflags=recorded" } else { "cacheflags=absent" };
        writer.comment(flags.as_bytes()).unwrap();
        writer.comment(b"file=1 process=2 path=/data/a\\x20b\\xff").unwrap();
        trace.iter().for_each(|record| writer.record(record).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("trace");
        prop_assert_eq!(import_text(&writer.into_inner(), &dir).unwrap(), Vec::<String>::new());

        let checked = store::fsck::check(&dir);
        prop_assert!(checked.is_good(), "{:?}", checked);
        let (text, left) = export_text(&dir, 1 << 18);
        prop_assert_eq!(left, SkippedRequests::default());
        prop_assert_eq!(absolute(records(&text), epoch(&text)), absolute(trace.clone(), EPOCH), "{}", text);
        if trace.iter().any(|record| record.process == 2 && record.file == 1 && record.kind.is_logical()) {
            prop_assert!(text.contains("FF file=1 process=2 path=/data/a\\x20b\\xff\n"), "{}", text);
        }
        if !trace.is_empty() {
            prop_assert!(text.contains(flags));
        }
    }
}

fn traced(dir: &Path, build: impl FnOnce(&mut TraceBuilder)) {
    let mut builder = TraceBuilder::create(dir).unwrap();
    build(&mut builder);
    builder.finish(|_| {}).unwrap();
}

fn process(builder: &mut TraceBuilder, node: &str, pid: u32) -> miot_trace_exchange::ProcessId {
    builder.process(Process { node: node.to_owned(), pid, exe: "/bin/x y".to_owned(), ..Process::default() })
}

/// A request during which more records complete than may wait comes too late in the export. An
/// import restores its time.
#[test]
fn long_request_is_moved_with_a_comment() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("trace");
    traced(&dir, |builder| {
        let process = process(builder, "n1", 7);
        let [short, long] = [8, 9].map(|tid| builder.thread(process, tid, ""));
        let file = builder.file(process, b"/f").unwrap();
        let mut event = |thread, begin: i64, end: i64, offset| {
            let event = Event {
                file: Some(file),
                handle: Some(1),
                offset: Some(offset),
                length: Some(10),
                result: 10,
                ..Event::new(thread, posix::READ, EPOCH + begin * 10_000, EPOCH + end * 10_000)
            };
            builder.event(&event).unwrap();
        };
        for i in 0..20 {
            event(short, 100 + 10 * i, 105 + 10 * i, 10 * i);
        }
        event(long, 101, 400, 999);
    });
    let (sorted, left) = export_text(&dir, 64);
    assert_eq!(left, SkippedRequests::default());
    let starts: Vec<_> = records(&sorted).iter().map(|record| record.start).collect();
    assert!(starts.is_sorted() && starts[1] == 1, "{starts:?}");

    let (moved, left) = export_text(&dir, 4);
    assert_eq!(left, SkippedRequests { moved: 1, ..SkippedRequests::default() });
    let at = records(&moved).iter().position(|record| record.offset == 999).unwrap();
    let record = records(&moved)[at];
    // Four records wait, so sixteen have been written: the last of them began at 100 + 150.
    assert_eq!((record.start, record.took), (150, 150));
    assert!(moved.contains("FF start_earlier=149\n80 "), "{moved}");
    let again = place.path().join("again");
    assert!(import_text(moved.as_bytes(), &again).unwrap().is_empty());
    // All threads are now one, so the time between requests, which replaces CPU time here, differs.
    let timeless = |text: &str| -> Vec<Record> {
        records(text).into_iter().map(|record| Record { process_time: 0, ..record }).collect()
    };
    assert_eq!(timeless(&export_text(&again, 64).0), timeless(&sorted));
}

/// Data that the format cannot represent is counted, and the other fields match the requests.
#[test]
fn requests_become_records() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("trace");
    traced(&dir, |builder| {
        let one = process(builder, "n1", 7);
        let other = process(builder, "n2", 7);
        let [thread, second, elsewhere] =
            [(one, 7), (one, 8), (other, 7)].map(|(process, tid)| builder.thread(process, tid, ""));
        let file = builder.file(one, b"/f").unwrap();
        let base = |thread, op, begin: i64, end: i64| Event {
            file: Some(file),
            handle: Some(1),
            offset: Some(512),
            length: Some(1024),
            result: 1024,
            ..Event::new(thread, op, EPOCH + begin, EPOCH + end)
        };
        let events = [
            // 1.5 ticks to 3.5 ticks, CPU time 2.9 ticks.
            Event { cpu_time: Some(29_000), ..base(thread, posix::READ, 15_000, 35_000) },
            // Within the next request: counted there.
            Event { enclosing: Some(99), ..base(thread, posix::PREAD, 45_000, 46_000) },
            Event {
                cpu_time: Some(58_000),
                request: Some(99),
                result: 24,
                ..base(thread, posix::PREADV, 44_000, 47_000)
            },
            // Another thread of the process: its CPU time is added.
            Event {
                cpu_time: Some(10_000),
                offset: Some(1536),
                flags: flag::ASYNC,
                ..base(second, posix::AIO_WRITE, 50_000, 90_000)
            },
            Event { result: -5, ..base(thread, posix::WRITE, 50_000, 51_000) },
            Event { offset: None, ..base(thread, posix::WRITE, 52_000, 53_000) },
            base(thread, posix::COPY_FILE_RANGE, 54_000, 55_000),
            Event { result: 0, offset: None, length: None, ..base(thread, posix::FSYNC, 60_000, 70_000) },
            // No CPU time recorded: 100 ns since the first request of the process, then 2.0 ticks
            // after its end.
            base(elsewhere, posix::WRITE, 100_000, 110_000),
            base(elsewhere, posix::WRITE, 130_000, 140_000),
            Event {
                op: miot_proto::op::Op { layer: 7, ..client::WRITE },
                ..base(elsewhere, posix::WRITE, 135_000, 150_000)
            },
        ];
        events.iter().for_each(|event| builder.event(event).unwrap());
    });
    let (text, left) = export_text(&dir, 64);
    let expected = format!(
        "FF miller-1990\n\
         FF epoch_ns={} cacheflags=absent recorded_by=miot\\x20test lost_events=0\n\
         FF process=7 node=n1 program=/bin/x\\x20y processtime=cpu\n\
         FF file=1 process=7 path=/f\n\
         80 23 1 2 0 2 1 7 2\n\
         80 ED 1 3 0 3\n",
        EPOCH + 10_000
    );
    let expected = expected.replace("80 ED 1 3 0 3\n", "80 AD 1 3 0 3\n");
    assert!(text.starts_with(&expected), "{text}");
    let rest = "C8 EC 1 4 1\n\
         FF process=400001 node=n2 program=/bin/x\\x20y processtime=between_requests\n\
         FF file=1 process=400001 path=/f\n\
         C0 23 1 2 5 1 1 400001 0\n\
         C0 AD 1 3 1 2\n\
         FF file=1 process=400001 physical=yes path=/f\n\
         40 A8 1 2 0 2 0\n\
         FF records=6 left_out_failed=1 left_out_without_offset=1 left_out_copies=1 left_out_unknown_view=0 in_pieces=0 pieces=0 short=1 short_bytes=1000 start_moved=0\n";
    assert!(text.ends_with(rest), "{text}");
    let expected = SkippedRequests {
        failed: 1,
        without_offset: 1,
        copies: 1,
        short: 1,
        short_bytes: 1000,
        ..SkippedRequests::default()
    };
    assert_eq!(left, expected);
}

/// Rank 1 of 2 writes every other 100 bytes, and reads through a view that is not known.
#[test]
fn request_through_a_view_is_a_record_for_each_piece() {
    let mut files = FileNames::default();
    for (file, text) in [(1, "/f"), (2, "native 0:100*100+200"), (3, "native ")] {
        files.put(file, text);
    }
    let mpi = |op, begin, result| EventValues { layer: "mpi-io", ..row(op, 1, result, begin, 10_000) };
    let set_view = |text| EventValues {
        file2: Some(text),
        offset: Some(100),
        length: Some(1),
        type_extent: Some(19_900),
        ..mpi("set_view", 10_000, 0)
    };
    let data = |op, begin, etypes, length, result| EventValues {
        etypes: Some(etypes),
        offset: Some(100),
        length: Some(length),
        ..mpi(op, begin, result)
    };
    let rows = [
        mpi("open", 0, 0),
        set_view(2),
        data("write_at_all", 50_000, 0, 10_000, 10_000),
        // Half of it is there: the record has the length that was requested.
        data("read_at_all", 70_000, 50, 200, 150),
        set_view(3),
        data("read_at_all", 90_000, 0, 10_000, 10_000),
    ];
    let export = |is_chosen: fn(usize) -> bool| {
        let mut text = Vec::new();
        let mut export = Export::new(&mut text, &files, "miot test", 0, false).with_waiting(64);
        export.add_chosen(&batch(&rows), is_chosen).unwrap();
        let (left, _) = export.finish().unwrap();
        (records(&String::from_utf8(text).unwrap()), left)
    };
    let (all, left) = export(|_| true);
    let places: Vec<_> = all.iter().map(|record| (record.offset, record.length)).collect();
    let written = (0..100).map(|piece| (100 + 200 * piece, 100));
    let read = [(150, 50), (300, 100), (500, 50)];
    assert_eq!(places, written.chain(read).collect::<Vec<_>>());
    assert!(all.iter().all(|record| record.took == 1 && record.file == 1), "{all:?}");
    assert_eq!(all.iter().map(|record| record.length).sum::<u64>(), 10_200);
    let pieces = (left.in_pieces, left.pieces, left.unknown_places.total());
    assert_eq!(pieces, (2, 103, 1), "{left:?}");
    assert_eq!((left.short, left.short_bytes), (1, 50));
    // The view is known although its row is not chosen.
    let (chosen, left) = export(|row| row == 2);
    assert_eq!((chosen.len(), left.unknown_places.total()), (100, 0));
}

#[test]
fn damage_is_skipped_or_ends_the_import() {
    let place = tempfile::tempdir().unwrap();
    let text =
        b"80 0 0 200 0 1 0 1 1 0\nx\n80 0 0 200 0 1 0 1 1FFFFFFFFF 0\n80 0 0 FFFFFFFFFFFFFFFF 0 1 0 1 1 0\n\
        80 0 0 1 1000000000000000 1 0 1 1 0\n";
    let damaged = import_text(text, &place.path().join("trace")).unwrap();
    let expected = [
        "line 2: field 1 is `x`; expected a number in hexadecimal",
        "line 3: the number of the process does not fit 32 bits",
        "line 4: the length, in bytes, does not fit 64 bits",
        "line 5: the start time, in nanoseconds since 1970, does not fit 64 bits",
    ];
    assert_eq!(damaged, expected);
    assert_eq!(records(&export_text(&place.path().join("trace"), 9).0).len(), 1);

    let mut builder = TraceBuilder::create(&place.path().join("refused")).unwrap();
    let mut reader = Reader::new(&text[..], Base::Hexadecimal, Mode::Strict);
    let error = import(&mut reader, &mut builder, options(), |_, _| false).unwrap_err();
    assert_eq!(error.to_string(), expected[0]);
    drop(builder);
    assert!(!place.path().join("refused").exists());
}

#[test]
fn an_empty_trace_has_its_comments() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("trace");
    traced(&dir, |_| {});
    let (text, _) = export_text(&dir, 1);
    assert!(text.starts_with("FF miller-1990\nFF epoch_ns=0 "), "{text}");
}
