//! Errors and their messages.

use crate::{asked, common, parts, place, rows, value};
use miot_tests::process::Ended;
use miot_tests::traced::traced;
use miot_trace_store::{MANIFEST, Options, Table, Writer};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Checks that a query fails with this code and reports all these texts.
#[track_caller]
fn fails(ended: &Ended, code: i32, said: &[&str]) {
    assert_eq!(ended.code(), code, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stdout, "");
    for said in said {
        assert!(ended.stderr.contains(said), "`{said}` is not in {}", ended.stderr);
    }
}

fn small(name: &str) -> PathBuf {
    let trace = place(name).join("trace");
    let _ = parts(&trace, &[300, 200, 100], false);
    trace
}

fn ask(trace: &Path, sql: &str) -> Ended {
    asked(&[trace.to_str().unwrap(), sql])
}

#[test]
fn invalid_sql_gets_a_hint() {
    let trace = small("hints");
    for (sql, said) in [
        ("SELECT pth FROM io", &["there is no column `pth`: did you mean `path`"][..]),
        ("SELECT path FROM events", &["there is no column `path`: view io has `path`"]),
        ("SELECT e.lenght FROM events e", &["did you mean `length`"]),
        ("SELECT op FROM events WHERE op = \"lookup\"", &["there is no column `lookup`", "single quotes"]),
        (
            "SELECT 1 FROM evnts",
            &["there is no table `evnts`: did you mean `events`", "tables and views: events processes"],
        ),
        ("SELECT * FROM 'x/events/*.parquet'", &["there is no table", "miot query TRACE"]),
        ("SELECT * FROM read_parquet('x')", &["there is no", "read_parquet", "the name of a table"]),
        ("SELECT strftime(time, '%H') FROM events", &["there is no function `strftime`: use to_char"]),
        ("SELECT epoch_ns(time) FROM events", &["use CAST(time AS BIGINT)"]),
        ("SELECT time - 5 FROM events", &["INTERVAL"]),
        ("SELEC 1", &["the SQL cannot be read", "SELEC"]),
        (
            "SELECT file FROM events e JOIN files f ON e.file = f.file",
            &["several tables have a column `file`"],
        ),
        (
            "SELECT max(time), max(CAST(time AS BIGINT)) FROM events",
            &["have the same name", "Consider aliasing"],
        ),
        ("DROP TABLE events", &["a trace is read-only"]),
        ("DELETE FROM events", &["a trace is read-only"]),
        ("CREATE TABLE x AS SELECT 1", &["a trace is read-only"]),
        ("COPY events TO 'x.parquet'", &["a trace is read-only"]),
    ] {
        fails(&ask(&trace, sql), 2, said);
    }
    fails(&asked(&[] as &[&str]), 2, &["no trace given"]);
    fails(&asked(&["-t", "a", "b", "SELECT 1"]), 2, &["give only the SQL"]);
    assert!(!Path::new("x.parquet").exists());
}

#[test]
fn invalid_trace_is_reported() {
    let place = place("none");
    fails(&ask(&place.join("nowhere"), "SELECT 1"), 1, &["is not a MIOT trace: there is no such directory"]);
    let trace = small("newer");
    let manifest = fs::read_to_string(trace.join(MANIFEST)).unwrap();
    fs::write(trace.join(MANIFEST), manifest.replace("\"schema\":3", "\"schema\":99")).unwrap();
    fails(
        &ask(&trace, "SELECT 1"),
        1,
        &["has trace schema 99, this program reads schemas up to 3: upgrade MIOT"],
    );
}

/// Checks that the readable rows are printed, and that a message and the exit code report the
/// missing ones.
#[track_caller]
fn incomplete(ended: &Ended, said: &[&str]) {
    assert_eq!(ended.code(), 4, "{}", ended.stderr);
    for said in said {
        assert!(ended.stderr.contains(said), "no `{said}` in: {}", ended.stderr);
    }
}

#[test]
fn damaged_parts_are_named() {
    // Without the damaged part, 400 of 600 events remain.
    let damaged = |name: &str, harm: &dyn Fn(Vec<u8>) -> Vec<u8>, sql: &str, said: &[&str]| {
        let trace = small(name);
        let part = trace.join("events/part-000001.parquet");
        fs::write(&part, harm(fs::read(&part).unwrap())).unwrap();
        let ended = ask(&trace, sql);
        incomplete(&ended, &[said, &["part-000001.parquet", "miot fsck"]].concat());
        assert!(ended.stdout.contains("400"), "{name}: {}", ended.stdout);
        // Unrelated tables can still be queried.
        assert_eq!(value(&trace, "SELECT count(*) FROM processes"), "1");
    };
    let all = "SELECT count(*), sum(result), sum(seq), max(time) FROM events";
    damaged("cut", &|bytes| bytes[..bytes.len() / 2].to_vec(), all, &["not a whole Parquet file"]);
    damaged("emptied", &|_| Vec::new(), all, &["not a whole Parquet file"]);
    damaged("overwritten", &|bytes| vec![b'x'; bytes.len()], all, &["not a whole Parquet file"]);
    let zeroed = |mut bytes: Vec<u8>| {
        let end = bytes.len() / 3;
        bytes[4..end].fill(0xff);
        bytes
    };
    damaged("pages", &zeroed, all, &[]);
    // A flipped bit.
    let trace = small("bit");
    let part = trace.join("events/part-000001.parquet");
    let mut bytes = fs::read(&part).unwrap();
    bytes[100] ^= 1;
    fs::write(&part, bytes).unwrap();
    let verified = |trace: &Path, more: &[&str]| {
        asked(&[&[trace.to_str().unwrap(), "SELECT count(*) FROM events"], more].concat())
    };
    incomplete(&verified(&trace, &[]), &["part-000001.parquet", "row group 0 is not what was written"]);
    incomplete(&verified(&trace, &["--verify"]), &["row group 0"]);
    // Without the checksums the damage may not be detected.
    let unverified = verified(&trace, &["--no-verify"]);
    assert!(unverified.stdout.contains("600") || unverified.code() != 0, "{}", unverified.stdout);
    let _ = verified(&small("no-bit"), &[]).success();
    // Columns of another table.
    let trace = small("columns");
    fs::copy(trace.join("threads/part-000000.parquet"), trace.join("events/part-000001.parquet")).unwrap();
    incomplete(&ask(&trace, all), &["part-000001.parquet", "does not have the columns of table events"]);
    fs::copy(trace.join("events/part-000000.parquet"), trace.join("threads/part-000000.parquet")).unwrap();
    incomplete(
        &ask(&trace, "SELECT * FROM threads"),
        &["threads/part-000000.parquet", "columns of table threads"],
    );
}

#[test]
fn missing_part_is_reported_beside_the_figures() {
    let trace = small("missing");
    fs::remove_file(trace.join("events/part-000001.parquet")).unwrap();
    let ended = ask(&trace, "SELECT count(*) FROM events");
    assert!(ended.stdout.contains("400"), "{}", ended.stdout);
    incomplete(&ended, &["part 1 of the trace is missing"]);
    // Also if no earlier part exists.
    fs::remove_file(trace.join("events/part-000000.parquet")).unwrap();
    let ended = ask(&trace, "SELECT count(*) FROM events");
    assert!(ended.stdout.contains("100"), "{}", ended.stdout);
    incomplete(&ended, &["2 parts of the trace, from 0 on, are missing"]);
}

#[test]
fn losses_make_figures_lower_bounds() {
    let trace = place("losses").join("trace");
    let mut writer = Writer::create(&trace, Options::default()).unwrap();
    common::sides(&mut writer);
    writer.append(Table::Events, &common::events(&common::turn(0, 30))).unwrap();
    writer.append(Table::Losses, &common::loss(1, 10, 16)).unwrap();
    writer.finish().unwrap();
    let ended = ask(&trace, "SELECT count(*) FROM events").success();
    assert_eq!(
        ended.stderr,
        "miot query: events lost: 7; figures are lower bounds, see docs/reference/losses.md\n"
    );
    let quiet = ask(&small("no-losses"), "SELECT count(*) FROM events").success();
    assert_eq!(quiet.stderr, "");
}

#[test]
fn extreme_values_and_non_text_paths_do_no_harm() {
    let trace = place("absurd").join("trace");
    let mut writer = Writer::create(&trace, Options::default()).unwrap();
    common::sides(&mut writer);
    let event = |time, seq| common::Ev { time, stream: 1, seq, file: Some(u64::MAX), flags: u16::MAX };
    writer.append(Table::Events, &common::events(&[event(i64::MIN, 0), event(i64::MAX, 1 << 40)])).unwrap();
    writer.finish().unwrap();
    assert_eq!(value(&trace, "SELECT count(*), sum(bytes), count(path) FROM io"), "2,8192,0");
    assert_eq!(rows(&trace, "SELECT * FROM events").len(), 2);
    assert_eq!(rows(&trace, "SELECT * FROM file_stats").len(), 1);
}

#[test]
fn path_of_any_bytes_is_found() {
    let place = place("bytes");
    let trace = place.join("trace");
    let name = OsStr::from_bytes(b"of=na\xffme\n");
    let words = ["dd", "if=/dev/zero", "bs=10", "count=3"].map(OsStr::new);
    let _ = traced(&place, &trace, &[&words[..], &[name]].concat()).success();
    // LIKE itself interprets a backslash.
    let sql = r"SELECT bytes FROM io WHERE layer = 'posix' AND path LIKE '%/na\\xffme%' ORDER BY time";
    assert_eq!(rows(&trace, sql), ["10", "10", "10"]);
}

/// A file gets its name when it is complete.
#[test]
fn failing_query_leaves_no_file() {
    let trace = small("no-file");
    let file = trace.with_file_name("out");
    fs::write(&file, "before").unwrap();
    let words = |sql: &'static str| {
        [trace.to_str().unwrap().to_owned(), sql.into(), "-o".into(), file.to_str().unwrap().into()]
    };
    assert_eq!(asked(&words("SELECT 1 / (seq - 50) FROM events WHERE stream = 1 ORDER BY seq")).code(), 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    let _ = asked(&words("SELECT 1 AS x")).success();
    assert!(fs::read_to_string(&file).unwrap().contains("| x |"));
    let nowhere = asked(&[trace.to_str().unwrap(), "SELECT 1", "-o", "/nowhere/file"]);
    fails(&nowhere, 1, &["cannot write /nowhere/file"]);
}
