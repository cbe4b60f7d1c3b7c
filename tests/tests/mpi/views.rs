//! The file ranges computed from views are those that the POSIX layer wrote.

use crate::{of_layer, place, within};
use miot_proto::event::flag;
use miot_tests::mpi::{Mpi, compile, traced};
use miot_tests::trace::Row;
use miot_tests::traced::events;
use miot_trace_analysis::view::{Range, View};
use std::collections::HashMap;

/// View that an event sets.
fn view(row: &Row) -> View {
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
fn written(rows: &[Row], outer: &Row) -> Vec<Range> {
    let writes = within(rows, outer, "posix").into_iter().filter(|row| row.op.contains("write"));
    let range = |row: &Row| Range { offset: row.offset.unwrap() as u64, bytes: row.result as u64 };
    joined(writes.map(range).collect())
}

/// Compares each write of the trace with the view of its file. Returns the number of writes.
fn check(rows: &[Row]) -> usize {
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
