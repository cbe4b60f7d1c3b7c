//! Messages of the commands about a damaged trace: the same everywhere, together with the readable
//! data.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../lib/trace-store/tests/common/mod.rs"]
mod common;

use miot_tests::built::{built, root};
use miot_tests::compile::compile;
use miot_tests::process::{Ended, run};
use miot_tests::test_dir::fresh;
use miot_tests::tmux::Terminal;
use miot_tests::traced::{assert_good, command, traced};
use miot_trace_store::{Options, Table, Writer};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exit code for a result without the unreadable data.
const INCOMPLETE: i32 = 4;

fn miot(words: &[&str], trace: &Path) -> Ended {
    run(Command::new(&built().miot).arg(words[0]).arg(trace).args(&words[1..]))
}

/// Creates parts of 300, 200 and 100 numbered requests of three threads.
fn small(name: &str) -> PathBuf {
    let trace = fresh(&format!("unread-{name}")).join("trace");
    let mut writer = Writer::create(&trace, Options::default()).unwrap();
    common::sides(&mut writer);
    for (from, to) in [(0, 300), (300, 500), (500, 600)] {
        writer.append(Table::Events, &common::events(&common::turn(from, to))).unwrap();
        writer.seal().unwrap();
    }
    writer.finish().unwrap();
    trace
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

/// Checks that the readable rows are printed, and that the unread data is reported once for each
/// file.
#[track_caller]
fn incomplete(ended: &Ended, said: &[&str]) {
    assert_eq!(ended.code(), INCOMPLETE, "{}{}", ended.stdout, ended.stderr);
    for said in said {
        assert_eq!(ended.stderr.matches(said).count(), 1, "`{said}` in: {}", ended.stderr);
    }
    assert!(ended.stderr.contains("figures are lower bounds; miot fsck "), "{}", ended.stderr);
}

/// Stream and number of each printed event.
fn numbers(printed: &str) -> BTreeSet<(u64, u64)> {
    let rows = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| (row["stream"].as_u64().unwrap(), row["seq"].as_u64().unwrap())).collect()
}

fn known(from: u64, to: u64) -> BTreeSet<(u64, u64)> {
    common::turn(from, to).iter().map(|event| (event.stream, event.seq)).collect()
}

#[test]
fn every_command_reports_unread_data() {
    let trace = small("bit");
    for words in [&["cat"][..], &["stat"], &["tail"], &["top", "--once"]] {
        let whole = miot(words, &trace).success();
        assert!(!whole.stderr.contains("not read"), "{words:?}: {}", whole.stderr);
    }
    flip(&trace.join("events/part-000001.parquet"), 100);
    let said = &["events/part-000001.parquet: row group 0 is not what was written; 200 rows are not read"];
    let left: BTreeSet<_> = known(0, 300).union(&known(500, 600)).copied().collect();
    for words in [&["cat", "--format", "json"][..], &["tail", "-n", "1000", "--format", "json"]] {
        let printed = miot(words, &trace);
        incomplete(&printed, said);
        assert_eq!(numbers(&printed.stdout), left, "{words:?}");
    }
    let json = |words: &[&str]| -> Value {
        let ended = miot(words, &trace);
        incomplete(&ended, said);
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let stat = json(&["stat", "--format", "json"]);
    assert_eq!((&stat["totals"]["events"], &stat["unread"][0]["rows"]), (&400.into(), &200.into()));
    assert_eq!(stat["unread"][0]["file"], "events/part-000001.parquet");
    assert_eq!(json(&["stat", "--by", "file", "--format", "json"])["lower_bounds"], true);
    assert_eq!(json(&["stat", "--show", "bursts", "--format", "json"])["unread"][0]["rows"], 200);
    assert_eq!(json(&["report", "--format", "json", "-o", "-"])["unread"][0]["rows"], 200);
    let top = json(&["top", "--once", "--format", "json"]);
    assert_eq!(top["events"], 400);
    let rest: [&[&str]; 7] = [
        &["stat"],
        &["stat", "--by", "process"],
        &["stat", "--by", "layer"],
        &["stat", "--show", "patterns"],
        &["stat", "--show", "findings"],
        &["simulate"],
        &["export", "--format", "csv", "-o", "-"],
    ];
    for words in rest {
        let ended = miot(words, &trace);
        incomplete(&ended, said);
        assert!(!ended.stdout.is_empty(), "{words:?}");
    }
    assert!(miot(&["stat"], &trace).stdout.contains("not read: events/part-000001.parquet"));
    let page = trace.with_file_name("page.html");
    incomplete(&miot(&["report", "-o", page.to_str().unwrap()], &trace), said);
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("Not read: events/part-000001.parquet: row group 0 is not what was written"));
    assert!(page.contains("Lower bounds: parts of the trace could not be read"));
    // A command that does not need the part succeeds.
    let _ = miot(&["devices"], &trace).success();
}

#[test]
fn missing_side_tables_are_reported() {
    let trace = small("sides");
    fs::remove_file(trace.join("threads/part-000000.parquet")).unwrap();
    flip(&trace.join("files/part-000000.parquet"), 20);
    let printed = miot(&["cat", "--format", "json"], &trace);
    incomplete(
        &printed,
        &["threads/part-000000.parquet: it is missing; 3 rows are not read", "files/part-000000.parquet"],
    );
    assert_eq!(numbers(&printed.stdout), known(0, 600));
    assert!(!printed.stdout.contains("/data/"), "a damaged name is not printed");
    fs::remove_file(trace.join("processes/part-000000.parquet")).unwrap();
    incomplete(&miot(&["stat"], &trace), &["processes/part-000000.parquet: it is missing"]);
}

#[test]
fn damage_in_the_middle_of_a_live_file_is_reported() {
    let trace = fresh("unread-live").join("trace");
    let mut writer = Writer::create(&trace, Options::default()).unwrap();
    common::sides(&mut writer);
    for turn in 0..3 {
        writer.append(Table::Events, &common::events(&common::turn(turn * 100, turn * 100 + 100))).unwrap();
        writer.commit().unwrap();
    }
    drop(writer);
    let _ = miot(&["cat"], &trace).success();
    let live = trace.join("live/part-000000.events.arrows");
    let mut bytes = fs::read(&live).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&live, bytes).unwrap();
    for words in [&["cat", "--format", "json"][..], &["tail", "-n", "1000", "--format", "json"]] {
        let printed = miot(words, &trace);
        incomplete(
            &printed,
            &["live/part-000000.events.arrows: the message at byte ", " bytes are not read"],
        );
        let numbers = numbers(&printed.stdout);
        assert!(!numbers.is_empty() && numbers.is_subset(&known(0, 300)) && numbers.len() < 300);
    }
    incomplete(&miot(&["stat"], &trace), &["live/part-000000.events.arrows"]);
}

/// 256 layers made the sealed part unreadable for all readers.
#[test]
fn program_with_many_layers_does_no_harm() {
    let place = fresh("unread-layers");
    let flags = [
        format!("-I{}", root().join("tracer-client/include").display()),
        format!("-L{}", built().library.display()),
        "-lmiot".to_owned(),
        format!("-Wl,-rpath,{}", built().library.display()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = compile(&place, "layers", &["layers.c"], &flags);
    let script = format!("dd if=/dev/zero of=file bs=64 count=100 status=none; {} 256", program.display());
    let trace = place.join("trace");
    let _ = run(&mut command(&place, &trace, &["sh", "-c", &script])).success();
    let printed = miot(&["cat", "--op", "write", "--path", "**/file", "--format", "json"], &trace).success();
    assert_eq!(printed.stdout.lines().count(), 100, "{}", printed.stdout);
    for words in [&["stat"][..], &["stat", "--by", "layer"], &["stat", "--by", "process"]] {
        let _ = miot(words, &trace).success();
    }
    assert_good(&trace);
}

#[test]
fn control_characters_in_names_are_escaped() {
    let place = fresh("unread-terminal");
    let trace = place.join("trace");
    // ESC, C1 (CSI) and a right-to-left override.
    let script = "touch \"$(printf 'a\\033[31mb\\302\\2331mc\\342\\200\\256d')\"";
    let _ = traced(&place, &trace, &["sh", "-c", script]).success();
    let shown = "a\\u{1b}[31mb\\u{9b}1mc\\u{202e}d";
    let text = miot(&["cat"], &trace).success().stdout;
    assert!(text.contains(shown), "{text}");
    // Formats for programs keep the bytes.
    for format in ["csv", "json"] {
        let piped = miot(&["cat", "--format", format], &trace).success().stdout;
        assert!(piped.contains('\u{202e}') && piped.contains('\u{9b}'), "{piped}");
    }
    for (format, shown) in [("csv", shown), ("json", "a\\u001b[31mb\\u009b1mc\\u202ed")] {
        let terminal = Terminal::new(500, 40);
        let miot = built().miot.display();
        terminal.line(&format!(
            "{miot} cat {} --format {format} --op openat,open; echo code $?",
            trace.display()
        ));
        let _ = terminal.shows("code 0");
        let screen = terminal.screen().join("\n");
        assert!(screen.contains(shown), "{screen}");
    }
}

/// `ECONNREFUSED` was printed as a number, like all errors that only sockets return.
#[test]
fn every_error_has_its_name() {
    let place = fresh("unread-errno");
    let names = ["ECONNREFUSED", "EADDRINUSE", "ENETUNREACH", "EHOSTUNREACH", "EPROTO", "EHWPOISON"];
    let lines = names.iter().enumerate().map(|(at, name)| {
        format!("7 1700000000.00000{at} read(3</data/x>, 0x7ffe, 9) = -1 {name} (words) <0.000001>\n")
    });
    let open = "7 1699999999.000000 openat(AT_FDCWD</data>, \"x\", O_RDONLY) = 3</data/x> <0.000001>\n";
    let log = place.join("log");
    fs::write(&log, std::iter::once(open.to_owned()).chain(lines).collect::<String>()).unwrap();
    let trace = place.join("trace");
    let _ = run(Command::new(&built().miot).arg("import").arg("-o").arg(&trace).arg(&log)).success();
    let text = miot(&["cat"], &trace).success().stdout;
    for name in names {
        assert!(text.contains(&format!("= {name} ")), "{name}: {text}");
    }
}
