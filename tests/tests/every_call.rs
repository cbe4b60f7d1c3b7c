//! A C program that uses every hooked call once and logs the expected results. The trace has the
//! same requests, the results equal those of a run without the hook, and every exported function of
//! the hook is covered.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::op;
use miot_tests::built::built;
use miot_tests::compile::compile;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{events, traced};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exported functions that this program does not call, with the reason.
const NOT_CALLED: &[(&str, &str)] = &[
    ("miot_", "the C interface, which the hook shares with clients: tests/tests/capi.rs"),
    ("MPI_", "the functions of the mpi hook: tests/tests/mpi"),
    ("PMPI_", "the functions of the mpi hook: tests/tests/mpi"),
    ("__isoc23_", "glibc has them from 2.38 on"),
    ("__uflow", "called by inlined getc_unlocked when the buffer is empty"),
    ("__overflow", "called by inlined putc_unlocked when the buffer is full"),
    ("_Fork", "no event of its own: tests/tests/hook.rs"),
    ("fork", "no event of its own, nor has `forkpty`: tests/records.rs of the hook"),
    ("__fork", "no event of its own"),
    ("__libc_fork", "no event of its own"),
    ("vfork", "no event of its own: tests/tests/hook.rs"),
    ("posix_spawn", "no event of its own: tests/tests/hook.rs"),
    ("system", "no event of its own: tests/tests/hook.rs"),
    ("io_", "asynchronous I/O: tests/tests/asynchronous"),
    ("__io_uring_", "asynchronous I/O: tests/tests/asynchronous"),
    ("lio_", "asynchronous I/O: tests/tests/asynchronous"),
    ("aio_", "asynchronous I/O: tests/tests/asynchronous"),
    ("syscall", "asynchronous I/O without a library: tests/tests/asynchronous"),
    ("prctl", "no event of its own: tests/tests/sandboxed"),
    ("llseek", "an old name that the linker no longer offers"),
    ("closefrom", "would close the notes of this program; like close_range"),
];

fn place(name: &str) -> PathBuf {
    let place = fresh(name);
    fs::create_dir(place.join("work")).unwrap();
    place
}

fn program(place: &Path) -> PathBuf {
    compile(place, "every_call", &["every_call.c", "every_posix.c", "every_stdio.c"], &[])
}

fn notes(place: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(place.join("notes")).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Removes the random part of the notes: the name that `mkdtemp` made.
fn steady(notes: &[Vec<String>]) -> Vec<Vec<String>> {
    let mut notes = notes.to_vec();
    for note in &mut notes {
        if note[1] == "mkdtemp" {
            note[2] = "random".to_owned();
        }
    }
    notes
}

fn said(row: &PrintedEvent) -> Vec<String> {
    let number = |n: Option<i64>| n.map_or("-".to_owned(), |n| n.to_string());
    let path = |p: &Option<String>| p.clone().unwrap_or("-".to_owned());
    vec![
        row.layer.clone(),
        row.op.clone(),
        path(&row.path),
        path(&row.path2),
        number(row.offset),
        number(row.length),
        number(row.arg),
        row.result.to_string(),
    ]
}

#[test]
fn trace_equals_the_program_log() {
    let place = place("every-call");
    let program = program(&place);
    let arguments = [program.as_os_str(), place.join("notes").as_os_str()].map(std::ffi::OsString::from);

    let _ = run(Command::new(&program).arg(place.join("notes")).current_dir(place.join("work"))).success();
    let without = notes(&place);
    fs::remove_dir_all(place.join("work")).and_then(|()| fs::create_dir(place.join("work"))).unwrap();
    let _ = traced(&place.join("work"), &place.join("trace"), &arguments).success();
    let expected = notes(&place);
    assert_eq!(steady(&expected), steady(&without), "results with and without the hook");

    let rows = events(&place.join("trace"));
    let pid = rows[0].pid;
    let found: Vec<Vec<String>> = rows.iter().filter(|row| row.pid == pid).map(said).collect();
    let mut wrong = String::new();
    let alike = |want: &[String], have: &[String]| want.iter().zip(have).all(|(w, h)| w == "?" || w == h);
    let (mut at, mut missing) = (0, 0);
    for (number, want) in expected.iter().enumerate() {
        // A wrong or missing event must not shift the rest: search for the next matching one.
        match found[at..].iter().take(8).position(|have| alike(want, have)) {
            Some(skipped) => {
                for extra in &found[at..at + skipped] {
                    let _ = writeln!(wrong, "  + not expected  {}", extra.join(" "));
                }
                at += skipped + 1;
            }
            None => {
                let _ = writeln!(wrong, "  - note {}: {}", number + 1, want.join(" "));
                missing += 1;
            }
        }
    }
    for extra in &found[at..] {
        let _ = writeln!(wrong, "  + not expected  {}", extra.join(" "));
    }
    assert!(wrong.is_empty(), "{missing} of {} calls are not in the trace as made\n{wrong}", expected.len());
}

#[test]
fn every_operation_and_exported_function_is_used() {
    let place = place("every-export");
    let program = program(&place);
    let _ = run(Command::new(&program).arg(place.join("notes")).current_dir(place.join("work"))).success();
    let noted: BTreeSet<(String, String)> =
        notes(&place).into_iter().map(|n| (n[0].clone(), n[1].clone())).collect();
    let layers = [("stdio", op::Layer::Stdio), ("posix", op::Layer::Posix)];
    let unused: Vec<&str> = op::all_operations()
        // Covered by tests/tests/asynchronous.
        .filter(|row| !["libaio_", "uring_"].iter().any(|start| row.name.starts_with(start)))
        .filter(|row| {
            layers.iter().any(|(name, layer)| {
                *layer as u8 == row.op.layer && !noted.contains(&((*name).to_owned(), row.name.to_owned()))
            })
        })
        .map(|row| row.name)
        .collect();
    assert!(unused.is_empty(), "operations every_call.c does not use: {unused:?}");

    let symbols = |file: &Path, kind: &str| -> BTreeSet<String> {
        let nm = run(Command::new("nm").args(["-D", kind]).arg(file)).success();
        let names = nm.stdout.lines().filter_map(|line| line.split_whitespace().last());
        names.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
    };
    let exported = symbols(&built().hook, "--defined-only");
    assert!(exported.contains("open"), "nm found no exported functions in {}", built().hook.display());
    let called = symbols(&program, "--undefined-only");
    let left: Vec<&String> = exported
        .difference(&called)
        .filter(|name| !NOT_CALLED.iter().any(|(start, _)| name.starts_with(start)))
        .collect();
    assert!(left.is_empty(), "functions of the hook that every_call.c does not call: {left:?}");
}
