//! C programs that log each request and its result.

use miot_tests::compile::compile;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events, traced};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Flag of a request that was submitted and completed by different calls.
const ASYNC: u64 = 4;
/// Result of a request whose completion was not observed.
const UNSEEN: i64 = -(libc::EINPROGRESS as i64);
/// Number of requests in flight at once on the file `many`: more than the table of the hook holds.
const MANY: usize = 6000;

/// Exit code of a program if the kernel does not offer its kind of I/O.
const NOT_TO_BE_HAD: i32 = 77;

/// Runs a program without the hook and under `miot run`. Both outputs and the trace must agree.
fn agree(name: &str, operations: &str, flags: &[&str]) {
    let place = fresh(&format!("asynchronous-{name}"));
    let program = compile(&place, name, &[&format!("{name}.c")], flags);
    let work = place.join("work");
    fs::create_dir(&work).unwrap();
    let alone = run(Command::new(&program).current_dir(&work));
    if alone.code() == NOT_TO_BE_HAD {
        println!("{name} IS NOT TESTED: {}", alone.stderr);
        return;
    }
    let alone = alone.success();
    fs::remove_dir_all(&work).and_then(|()| fs::create_dir(&work)).unwrap();
    let trace = place.join("trace");
    let with = traced(&work, &trace, &[&program]).success();
    assert!(
        sorted(&with.stdout) == sorted(&alone.stdout),
        "{name} saw\n{}and without the hook\n{}",
        with.stdout,
        alone.stdout
    );

    let rows = events(&trace);
    let (many, others): (Vec<&PrintedEvent>, Vec<&PrintedEvent>) = rows
        .iter()
        .filter(|row| row.op.starts_with(operations))
        .partition(|row| row.path.as_ref().is_some_and(|path| path.ends_with("/many")));
    let found = others.iter().map(|row| {
        let file = Path::new(row.path.as_deref().unwrap_or("none")).file_name().unwrap_or_default();
        let number = |value: Option<i64>| value.unwrap_or(-1);
        let (offset, length) = (number(row.offset), number(row.length));
        format!("{} {} {offset} {length} {}", row.op, file.display(), row.result)
    });
    let mut balance = BTreeMap::new();
    with.stdout.lines().for_each(|line| *balance.entry(line.to_owned()).or_insert(0) -= 1);
    found.for_each(|line| *balance.entry(line).or_insert(0) += 1);
    balance.retain(|_, count| *count != 0);
    let wrong: Vec<String> = balance.iter().map(|(line, count)| format!("{count:+}  {line}")).collect();
    assert!(wrong.is_empty(), "too many (+) and missing (-) in the trace of {name}:\n{}", wrong.join("\n"));
    assert!(others.iter().filter(|row| row.flags & ASYNC != 0).count() > others.len() * 9 / 10);
    assert!(others.iter().all(|row| row.duration >= 0 && row.duration < 60_000_000_000));

    // More than the table holds: each is there once, some of them only as submitted.
    let mut offsets: Vec<i64> = many.iter().filter_map(|row| row.offset).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..MANY as i64).collect::<Vec<_>>());
    let unseen = many.iter().filter(|row| row.result == UNSEEN).count();
    assert!(many.iter().all(|row| row.result == 1 || row.result == UNSEEN));
    assert!((1..MANY).contains(&unseen), "{unseen} of {MANY} had no room: has the table grown?");
    assert_good(&trace);
}

/// Lines of a program's output, without the request that it cancels if it can.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("aio_read data 300 ")).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn posix_aio_agrees() {
    agree("async_aio", "aio_", &[]);
}

#[test]
fn libaio_agrees() {
    agree("async_libaio", "libaio_", &["-laio"]);
}

#[test]
fn io_uring_agrees() {
    agree("async_uring", "uring_", &["-luring"]);
}
