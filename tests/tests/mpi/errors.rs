//! Failing calls, and programs that end without `MPI_Finalize`.

use crate::{of_layer, place, text};
use miot_tests::mpi::{compile, traced};
use miot_tests::process::run;
use miot_tests::traced::{assert_good, events};
use std::process::Command;

/// Returns operation and result of each event.
fn recorded(name: &str, flags: &[&str], code: i32) -> Vec<(String, i64)> {
    let place = place(name);
    let program = compile(&place, "errors", "errors.c", flags);
    let file = place.join("data");
    let alone = run(Command::new(&program).arg(&file));
    // MPICH's launcher sometimes returns 1 for a process that exits without `MPI_Finalize`, in 1 of
    // 60 runs without a hook.
    let (trace, ran) = (0..5)
        .map(|attempt| {
            let trace = place.join(format!("trace-{attempt}"));
            let ran = traced(&trace, 1, &[], &[&program, &file]);
            (trace, ran)
        })
        .find(|(_, ran)| ran.code() == code)
        .unwrap_or_else(|| panic!("no run in 5 ended with {code}"));
    let said = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("line")).map(str::to_owned).collect()
    };
    assert_eq!(
        said(&ran.stdout),
        said(&alone.stdout),
        "error handlers are called as often as without the hook"
    );
    assert_eq!(said(&ran.stdout).len(), 10);
    assert_good(&trace);
    let rows = events(&trace);
    let rows = of_layer(&rows, "mpi-io");
    assert!(rows[1..].iter().all(|row| row.path.as_deref() == Some(text(&file))), "{rows:#?}");
    rows.iter().map(|row| (row.op.clone(), row.result)).collect()
}

#[test]
fn failures_are_recorded_and_handlers_are_called_once() {
    let expected = [
        ("open", -i64::from(libc::ENOENT)),
        ("open", 0),
        ("write_at", -i64::from(libc::EINVAL)),  // not a datatype
        ("write_at", -i64::from(libc::EINVAL)),  // invalid offset
        ("write_at", -i64::from(libc::EINVAL)),  // invalid count
        ("iwrite_at", -i64::from(libc::EINVAL)), // not a datatype
        ("read_at", -i64::from(libc::EACCES)),
        ("set_view", -i64::from(libc::EINVAL)),
        ("set_view", -i64::from(libc::EOPNOTSUPP)),
        ("write_at", 8),
        ("close", 0),
        ("open", 0),
        ("read_shared", 4),
        ("read_at", -i64::from(libc::EOPNOTSUPP)),
        ("read", -i64::from(libc::EOPNOTSUPP)),
    ]
    .map(|(op, result)| (op.to_owned(), result));
    assert_eq!(recorded("errors", &[], 0), expected);
    assert_eq!(recorded("abort", &["-DABORT"], 9), expected);
}
