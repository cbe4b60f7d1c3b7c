//! The file ranges computed from views are those that the POSIX layer wrote.

use crate::{of_layer, place, within};
use miot_proto::event::flag;
use miot_tests::built::built;
use miot_tests::mpi::{Mpi, compile, traced};
use miot_tests::process::run;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::events;
use miot_trace_analysis::view::{Range, View};
use miot_trace_exchange::miller::{Base, Item, Mode, Reader};
use std::collections::HashMap;
use std::process::Command;

/// View that an event sets.
fn view(row: &PrintedEvent) -> View {
    assert_eq!(row.flags & u64::from(flag::PATH_CUT), 0, "{row:?}");
    let [displacement, etype, extent] = [row.offset, row.length, row.type_extent].map(|v| v.unwrap() as u64);
    View::new(displacement, etype, extent, row.path2.as_deref().unwrap()).unwrap_or_else(|| panic!("{row:?}"))
}

/// Joins adjacent ranges.
fn joined(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort();
    let mut all: Vec<Range> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.offset + last.bytes == range.offset => last.bytes += range.bytes,
            _ => all.push(range),
        }
    }
    all
}

/// Ranges written by the POSIX requests within this one.
fn written(rows: &[PrintedEvent], outer: &PrintedEvent) -> Vec<Range> {
    let writes = within(rows, outer, "posix").into_iter().filter(|row| row.op.contains("write"));
    let range = |row: &PrintedEvent| Range { offset: row.offset.unwrap() as u64, bytes: row.result as u64 };
    joined(writes.map(range).collect())
}

/// Compares each write of the trace with the view of its file. Returns the number of writes.
fn check(rows: &[PrintedEvent]) -> usize {
    let mut views: HashMap<(u32, u64), View> = HashMap::new();
    let mut writes = 0;
    for row in of_layer(rows, "mpi-io") {
        let Some(file) = row.handle.map(|handle| (row.pid, handle)) else { continue };
        match row.op.as_str() {
            "open" => drop(views.insert(file, View::default())),
            "set_view" => drop(views.insert(file, view(row))),
            "write" | "write_at" => {
                let ranges =
                    views[&file].ranges(row.etypes.unwrap() as u64, row.length.unwrap() as u64).unwrap();
                assert_eq!(
                    row.offset,
                    Some(ranges[0].offset as i64),
                    "the offset as MPI resolved it: {row:?}"
                );
                assert_eq!(written(rows, row), joined(ranges), "{row:#?} through {:?}", views[&file]);
                writes += 1;
            }
            _ => {}
        }
    }
    writes
}

fn derived(mpi: Mpi) {
    let place = place(&format!("views-{mpi:?}"));
    let program = mpi.compile(&place, "views", "views.c", &[]);
    let trace = place.join("trace");
    let ran = mpi.traced(&trace, 4, &[], &[&program, &place.join("data")]).success();
    assert!(!ran.stderr.contains("leaked"), "types that were taken apart: {}", ran.stderr);
    // Ranks, types, and writes to each file.
    assert_eq!(check(&events(&trace)), 4 * 25 * 3);
}

#[test]
fn offsets_from_views_equal_the_written_ones() {
    derived(Mpi::Mpich);
}

#[test]
fn offsets_from_views_of_open_mpi_equal_the_written_ones() {
    derived(Mpi::OpenMpi);
}

#[test]
fn interleaved_ranks_write_at_their_view_offsets() {
    let place = place("interleaved");
    let program = compile(&place, "patterns", "patterns.c", &[]);
    let trace = place.join("trace");
    let words =
        [program.as_os_str(), "direct".as_ref(), place.join("data").as_os_str()].map(ToOwned::to_owned);
    let _ = traced(&trace, 8, &[], &words).success();
    assert_eq!(check(&events(&trace)), 8);
    let data = std::fs::read(place.join("data")).unwrap();
    assert!(data.chunks(128).enumerate().all(|(i, block)| block == [b'a' + (i % 8) as u8; 128]));
}

/// Two ranks write every other block of a file with one request each.
fn simulated_and_exported(mpi: Mpi) {
    const PIECES: u64 = 64;
    const BYTES: u64 = 128;
    let place = place(&format!("view-pieces-{mpi:?}"));
    let program = mpi.compile(&place, "patterns", "patterns.c", &[]);
    let (trace, data) = (place.join("trace"), place.join("data"));
    let words = [program.as_os_str(), "collective".as_ref(), data.as_os_str()];
    let _ = mpi.traced(&trace, 2, &[], &words).success();
    let miot = |words: &[&str]| run(Command::new(&built().miot).args(words).current_dir(&place)).success();
    let exported =
        miot(&["export", "--format", "miller", "--path", "**/data", "-o", "trace.miller", "trace"]);
    let told = format!("2 requests through file views are {} records", 2 * PIECES);
    assert!(exported.stderr.contains(&told), "{}", exported.stderr);
    let text = std::fs::read(place.join("trace.miller")).unwrap();
    let items = Reader::new(&text[..], Base::Hexadecimal, Mode::Strict).map(Result::unwrap);
    let records = items.filter_map(|item| match item {
        Item::Record(record) => Some(Range { offset: record.offset, bytes: record.length }),
        Item::Comment(_) => None,
    });
    let records: Vec<Range> = records.collect();
    assert!(records.iter().all(|range| range.bytes == BYTES), "{records:?}");
    assert_eq!(records.len() as u64, 2 * PIECES);
    assert_eq!(joined(records), [Range { offset: 0, bytes: 2 * PIECES * BYTES }]);
    let out = miot(&["simulate", "trace", "--format", "json"]).stdout;
    let simulated: serde_json::Value = serde_json::from_str(&out).unwrap();
    let notes = simulated["notes"].to_string();
    let told =
        format!("2 requests through file views are simulated as {} requests, one for each piece", 2 * PIECES);
    assert!(notes.contains(&told), "{notes}");
}

#[test]
fn simulate_and_miller_take_views_apart() {
    simulated_and_exported(Mpi::Mpich);
}

#[test]
fn simulate_and_miller_take_views_of_open_mpi_apart() {
    simulated_and_exported(Mpi::OpenMpi);
}
