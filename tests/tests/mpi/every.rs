//! Every function of MPI-IO once, from C and through the three bindings of Fortran.

use crate::{of_layer, place, text};
use miot_proto::event::flag;
use miot_proto::op::{self, Layer};
use miot_tests::mpi::Mpi;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use std::collections::BTreeSet;

/// Values of an event: operation, offset, length, argument, offset in elementary types, result,
/// asynchronous.
type EventValues = (String, Option<i64>, Option<i64>, Option<i64>, Option<i64>, i64, bool);

fn event_values(row: &PrintedEvent) -> EventValues {
    let is_async = row.flags & u64::from(flag::ASYNC) != 0;
    (row.op.clone(), row.offset, row.length, row.arg, row.etypes, row.result, is_async)
}

/// Expected events of `every.c` and `every.F90` on a rank.
fn expected(mpi: Mpi, rank: i64, ranks: i64) -> Vec<EventValues> {
    let mut all: Vec<EventValues> = Vec::new();
    // File offset of an integer that is visible through the view.
    let at = |etypes: i64| Some(4 * rank + 4 * ranks * etypes);
    let meta = |op: &str, result| (op.to_owned(), None, None, None, None, result, false);
    let with = |op: &str, argument| (op.to_owned(), None, None, Some(argument), None, 0, false);
    let size = |op: &str, length| (op.to_owned(), None, Some(length), None, None, 0, false);
    let data = |op: &str, etypes: i64| {
        let result = if op.ends_with("_begin") { 0 } else { 8 };
        (op.to_owned(), at(etypes), Some(8), None, Some(etypes), result, op.starts_with('i'))
    };
    let shared = |op: &str| {
        let result = if op.ends_with("_begin") { 0 } else { 8 };
        (op.to_owned(), None, Some(8), None, None, result, op.starts_with('i'))
    };
    let seek = |op: &str, offset, etypes, whence| {
        (op.to_owned(), offset, None, Some(whence), Some(etypes), 0, false)
    };
    all.extend([with("open", 9), meta("get_amode", 9), meta("get_group", 0)]);
    all.extend([size("set_size", 4096), size("preallocate", 8192), meta("get_size", 8192)]);
    all.extend([meta("set_info", 0), meta("get_info", 0)]);
    if mpi == Mpi::Mpich {
        all.extend([with("set_atomicity", 1), meta("get_atomicity", 1), with("set_atomicity", 0)]);
    }
    let view = |op: &str, offset| (op.to_owned(), Some(offset), Some(4), None, None, 0, false);
    all.extend([view("set_view", 4 * rank), view("get_view", 4 * rank), meta("get_type_extent", 4)]);
    all.push(("get_byte_offset".into(), at(3), None, None, Some(3), at(3).unwrap(), false));
    for way in ["write", "read"] {
        all.extend([data(&format!("{way}_at"), 0), data(&format!("{way}_at_all"), 2)]);
        all.extend([data(&format!("i{way}_at"), 4), data(&format!("i{way}_at_all"), 6)]);
        let (etypes, whence) = if way == "write" { (8, 0) } else { (-10, 1) };
        all.push(seek("seek", at(8), etypes, whence));
        all.extend([data(way, 8), data(&format!("{way}_all"), 10)]);
        all.extend([data(&format!("i{way}"), 12), data(&format!("i{way}_all"), 14)]);
        if way == "write" {
            all.push(meta("get_position", 16));
        }
        for split in ["at_all_begin", "at_all_end", "all_begin", "all_end"] {
            all.push(data(&format!("{way}_{split}"), 16));
        }
        if way == "write" {
            all.push(meta("sync", 0));
        }
    }
    all.push(view("set_view", 0));
    for way in ["write", "read"] {
        all.push(seek("seek_shared", None, 0, 0));
        all.extend([shared(&format!("{way}_shared")), shared(&format!("i{way}_shared"))]);
        for ordered in ["ordered", "ordered_begin", "ordered_end"] {
            all.push(shared(&format!("{way}_{ordered}")));
        }
        if way == "write" {
            all.push(meta("get_position_shared", 8 * ranks));
        }
    }
    all.push(meta("close", 0));
    if rank == 0 {
        all.push(meta("delete", 0));
    }
    all
}

fn check(mpi: Mpi, name: &str, source: &str, flags: &[&str], ranks: u32) {
    let place = place(name);
    let no_atomic = (mpi == Mpi::OpenMpi).then_some("-DNO_ATOMIC");
    let flags: Vec<&str> = flags.iter().copied().chain(no_atomic).collect();
    let program = mpi.compile(&place, "every", source, &flags);
    // Open MPI protects the shared file pointer with a semaphore that has the name of the file
    // without its folder, and removes it. A concurrent program with such a file would give one rank
    // another semaphore.
    let (trace, file) = (place.join("trace"), place.join(format!("{name}.data")));
    let _ = mpi.traced(&trace, ranks, &[], &[&program, &file]).success();
    assert_good(&trace);
    let rows = events(&trace);
    let rows = of_layer(&rows, "mpi-io");
    let ranks = u64::from(ranks);
    assert!(rows.iter().all(|row| row.path.as_deref() == Some(text(&file))), "{name}: {rows:#?}");
    for rank in 0..ranks {
        let pid = rows.iter().find(|row| row.mpi == Some((rank, ranks))).unwrap().pid;
        let own: Vec<&&PrintedEvent> = rows.iter().filter(|row| row.pid == pid).collect();
        let found: Vec<EventValues> = own.iter().map(|row| event_values(row)).collect();
        let expected = expected(mpi, rank as i64, ranks as i64);
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(found.get(i), Some(expected), "{name}, rank {rank}, event {i}");
        }
        assert_eq!(found.len(), expected.len(), "{name}, rank {rank}");
        for row in own {
            let has_communicator = row.op != "delete";
            assert_eq!(row.mpi, has_communicator.then_some((rank, ranks)), "{name}: {row:?}");
            let moves = row.length == Some(8) && row.path2.is_none();
            assert_eq!(row.type_size.filter(|_| moves), moves.then_some(4), "{name}: {row:?}");
            if row.op == "set_view" {
                assert_eq!(row.path2.as_deref(), Some("native 0:4"), "{name}");
                assert_eq!(row.type_size, Some(4), "{name}");
            }
        }
        let extents: Vec<_> = rows
            .iter()
            .filter(|row| row.pid == pid && row.op == "set_view")
            .map(|row| row.type_extent)
            .collect();
        assert_eq!(extents, [Some(4 * ranks as i64), Some(4)], "{name}, rank {rank}");
    }
    let called: BTreeSet<&str> = rows.iter().map(|row| row.op.as_str()).collect();
    let known: BTreeSet<&str> = op::all_operations()
        .filter(|row| row.op.layer == Layer::MpiIo as u8 && !row.op.is_communication())
        .map(|row| row.name)
        .filter(|name| mpi == Mpi::Mpich || !name.ends_with("_atomicity"))
        .collect();
    assert_eq!(called, known, "{name}: operations of the table, each called");
}

#[test]
fn every_function_from_c_is_recorded() {
    check(Mpi::Mpich, "every-c", "every.c", &[], 4);
}

#[test]
fn every_function_from_fortran_77_is_recorded() {
    check(Mpi::Mpich, "every-f77", "every.F90", &["-DF77"], 2);
}

#[test]
fn every_function_from_fortran_90_is_recorded() {
    check(Mpi::Mpich, "every-f90", "every.F90", &["-DF90"], 2);
}

#[test]
fn every_function_from_fortran_2008_is_recorded() {
    check(Mpi::Mpich, "every-f08", "every.F90", &["-DF08"], 4);
}

#[test]
fn every_open_mpi_function_but_atomic_mode_is_recorded() {
    check(Mpi::OpenMpi, "every-c-openmpi", "every.c", &[], 2);
}

#[test]
fn every_open_mpi_function_from_fortran_is_recorded() {
    for binding in ["-DF77", "-DF90", "-DF08"] {
        check(Mpi::OpenMpi, &format!("every{binding}-openmpi"), "every.F90", &[binding], 2);
    }
}
