//! Debug messages recorded in raw form equal the output of `printf`.

use miot_tests::built::{built, root};
use miot_tests::compile::compile;
use miot_tests::process::run;
use miot_tests::random::seed;
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, command, events};
use std::fs;
use std::path::Path;

/// Compiler flags for a program that uses `libmiot.so`.
pub(crate) fn flags() -> [String; 4] {
    [
        format!("-I{}", root().join("tracer-client/include").display()),
        format!("-L{}", built().library.display()),
        "-lmiot".to_owned(),
        format!("-Wl,-rpath,{}", built().library.display()),
    ]
}

fn unhex(line: &str) -> String {
    let bytes =
        line.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16));
    String::from_utf8(bytes.map(Result::unwrap).collect()).unwrap()
}

fn check(place: &Path, count: u32) {
    let flags = flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["-lm"]).collect();
    let program = compile(place, "messages", &["messages.c"], &flags);
    let seed = seed("messages");
    let notes = place.join("notes");
    let words =
        [program.into_os_string(), notes.clone().into(), seed.to_string().into(), count.to_string().into()];
    let trace = place.join("trace");
    let _ = run(&mut command(place, &trace, &words)).success();
    assert_good(&trace);
    let rows: Vec<_> = events(&trace).into_iter().filter(|row| row.op == "debug").collect();
    let expected: Vec<String> = fs::read_to_string(&notes).unwrap().lines().map(unhex).collect();
    assert_eq!(expected.len(), count as usize + 3);
    assert_eq!(rows.len(), expected.len(), "seed {seed}");
    for (row, expected) in rows.iter().zip(&expected) {
        assert_eq!(row.message.as_ref(), Some(expected), "seed {seed}: {row:?}");
        let mask = row.arg.unwrap() as u64;
        assert!(mask.is_power_of_two() && (row.flags >> 8) as u8 == b'D', "{row:?}");
    }
    assert_eq!(rows.last().unwrap().flags & 1, 1, "the last one has a truncated string");
}

/// More formats than the table holds, so that some replace others.
#[test]
fn raw_messages_equal_printf_output() {
    check(&fresh("client-messages"), 6000);
}
