//! `miot export --format views`: DuckDB, Spark and ClickHouse have the rows of the views of
//! `miot query`, over two partitions, one of which an earlier version began.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, program, root};
use miot_tests::daemons::{client, free_port, preloaded, ready, server_command};
use miot_tests::process::{Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::traced::{assert_good, events};
use miot_trace_store::{Reader, Table, ids};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Reads, writes, a copy, a failure, a path that is not UTF-8, a file without a name.
const PROGRAM: &str = r#"
import os
a = os.open(b"it's \xff", os.O_RDWR | os.O_CREAT, 0o600)
for i in range(10):
    os.pwrite(a, b"x" * 4096, i * 4096)
os.pread(a, 1000, 40960)
b = os.open("b", os.O_WRONLY | os.O_CREAT, 0o600)
os.copy_file_range(a, b, 8192, 0, 0)
try:
    os.pread(b, 10, 0)
except OSError:
    pass
r, w = os.pipe()
os.write(w, b"x")
"#;

/// Environments of `tests/setup.sh`.
fn python(engine: &str) -> PathBuf {
    let name = if engine == "duckdb" { "test-venv" } else { "test-engines" };
    let python = root().join("target").join(name).join("bin/python");
    assert!(python.exists(), "{} is missing: run tests/setup.sh", python.display());
    python
}

/// Runs `tests/programs/engines.py` and returns its lines.
fn engine(engine: &str, place: &Path, words: &[&str]) -> Vec<Value> {
    let mut command = Command::new(python(engine));
    command.arg(root().join("tests/programs/engines.py")).arg(engine).args(words).current_dir(place);
    let ended = run(&mut command).success();
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn export(words: &[&str]) -> Ended {
    run(Command::new(&built().miot).args(["export", "--format", "views"]).args(words))
}

/// The trace of an earlier version, continued by a log-server: one part has its columns, one the
/// present ones.
fn continued(dir: &Path) {
    let earlier = root().join("tests/traces/schema-2");
    let from = earlier.join("trace");
    assert!(run(Command::new("cp").arg("-r").arg(from).arg(dir)).success().stderr.is_empty());
    let mut command = server_command(&format!("127.0.0.1:{}", free_port()), dir);
    let (status, printed) = ready(command.args(["--http", "off"])).stop(Signal::TERM);
    assert!(status.success(), "{printed}");
    assert_good(dir);
    let rows = run(Command::new(&built().miot).args(["cat", "--format", "json"]).arg(dir)).success().stdout;
    assert_eq!(rows, std::fs::read_to_string(earlier.join("rows.json")).unwrap(), "as the earlier version");
}

/// A trace of partition 5.
fn of_partition(place: &Path, trace: &Path) {
    let (port, dir) = (free_port(), place.join("miot"));
    let mut command = server_command(&format!("127.0.0.1:{port}"), trace);
    let server = ready(command.args(["--partition", "5", "--http", "off"]));
    let client = client(port, "other", &dir);
    let mut traced = preloaded("python3", &dir);
    let _ = run(traced.args(["-c", PROGRAM]).env("MIOT_JOB", "climate").current_dir(place)).success();
    let written = |trace: &Path| events(trace).iter().filter(|row| row.op == "pwrite").count();
    until("the events are in the trace", || trace.join("live").exists() && written(trace) == 10);
    let _ = client.stop(Signal::TERM);
    let (status, printed) = server.stop(Signal::TERM);
    assert!(status.success(), "{printed}");
    assert_good(trace);
    for batch in Reader::open(trace).unwrap().table(Table::Files).unwrap() {
        let ids = miot_trace_store::schema::column::<arrow_array::types::UInt64Type>(&batch, "file").unwrap();
        assert!(ids.values().iter().all(|id| ids::partition_of(*id) == Some(5)), "{ids:?}");
    }
    // Another server does not continue it.
    let other = run(server_command(&format!("127.0.0.1:{port}"), trace).args(["--http", "off"]));
    assert_eq!(other.code(), 2);
    assert!(other.stderr.contains("is partition 5, expected 0"), "{}", other.stderr);
}

/// Rows of a view of both traces, with these columns, as `miot query` has them.
fn expected(traces: [&Path; 2], view: &str, columns: &[&str]) -> Vec<Vec<Value>> {
    // The groups of `miot query` are of one trace each.
    let add = |column: &&str| match *column {
        "path" | "layer" | "job" | "job_system" => None,
        "longest" | "end" => Some("max"),
        "begin" => Some("min"),
        _ => Some("sum"),
    };
    let is_group = view.ends_with("_stats");
    let microseconds = |column: &&str, value: String| match *column {
        "time" | "begin" | "end" => format!("CAST({value} AS BIGINT) / 1000"),
        _ => value,
    };
    let wanted: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let value = match add(column).filter(|_| is_group) {
                Some(add) => format!("{add}(\"{column}\")"),
                None => format!("\"{column}\""),
            };
            format!("{} AS c{at}", microseconds(column, value))
        })
        .collect();
    let keys: Vec<String> =
        columns.iter().filter(|column| add(column).is_none()).map(|column| format!("\"{column}\"")).collect();
    let group = if is_group { format!(" GROUP BY {}", keys.join(", ")) } else { String::new() };
    let sql = format!("SELECT {} FROM {view}{group}", wanted.join(", "));
    let mut command = Command::new(program("miot-query"));
    for trace in traces {
        command.arg("-t").arg(trace);
    }
    let found = run(command.arg(sql).args(["--format", "json"])).success();
    let object = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let row = |line: &str| {
        let object = object(line);
        (0..columns.len()).map(|at| object.get(format!("c{at}")).cloned().unwrap_or(Value::Null)).collect()
    };
    found.stdout.lines().map(row).collect()
}

/// Sorted rows. Of DuckDB, the start of a request may be a microsecond off, because it has no
/// nanoseconds.
fn sorted(mut rows: Vec<Vec<Value>>) -> Vec<Vec<Value>> {
    rows.sort_by_key(|row| row.iter().map(ToString::to_string).collect::<Vec<_>>());
    rows
}

fn check(engine: &str, expected: &[Vec<Value>], found: &[Vec<Value>], columns: &[&str]) {
    assert_eq!(found.len(), expected.len(), "{engine}");
    for (expected, found) in expected.iter().zip(found) {
        for ((expected, found), column) in expected.iter().zip(found).zip(columns) {
            let is_close = || {
                let (a, b) = (expected.as_i64().unwrap_or(0), found.as_i64().unwrap_or(0));
                engine == "duckdb" && *column == "begin" && a.abs_diff(b) <= 1
            };
            assert!(expected == found || is_close(), "{engine}, {column}: {expected} is {found}");
        }
    }
}

fn compare(name: &str, place: &Path, traces: [&Path; 2], is_type: impl Fn(&str) -> bool) {
    let script = place.join(format!("{name}.sql"));
    let [one, other] = traces.map(|trace| trace.to_str().unwrap());
    let said = export(&["--dialect", name, one, "--with", other, "-o", script.to_str().unwrap()]).success();
    assert_eq!(said.stderr, "");
    let found = engine(name, place, &[script.to_str().unwrap(), other]);
    let (tables, views) = found.split_at(Table::ALL.len());
    for table in tables {
        for (column, kind) in table["columns"].as_object().unwrap() {
            assert!(is_type(kind.as_str().unwrap()), "{}.{column}: {kind}", table["table"]);
        }
    }
    assert_eq!(views.len(), 4);
    for view in views {
        let columns: Vec<&str> =
            view["columns"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
        let rows =
            view["rows"].as_array().unwrap().iter().map(|row| row.as_array().unwrap().clone()).collect();
        let name_of_view = view["view"].as_str().unwrap();
        let expected = sorted(expected(traces, name_of_view, &columns));
        assert!(expected.len() >= 2, "{name_of_view}");
        check(name, &expected, &sorted(rows), &columns);
    }
}

fn engine_has_the_rows(name: &str, is_type: impl Fn(&str) -> bool) {
    let place = fresh(&format!("engines-{name}"));
    let (one, other) = (place.join("one"), place.join("other"));
    continued(&one);
    of_partition(&place, &other);
    compare(name, &place, [&one, &other], is_type);
}

#[test]
fn duckdb_has_the_rows_of_the_views() {
    let types = ["BIGINT", "INTEGER", "VARCHAR", "BLOB", "TIMESTAMP WITH TIME ZONE"];
    engine_has_the_rows("duckdb", |kind| types.contains(&kind));
}

#[test]
fn spark_has_the_rows_of_the_views() {
    let types = ["bigint", "int", "string", "binary"];
    engine_has_the_rows("spark", |kind| types.contains(&kind));
}

#[test]
fn clickhouse_has_the_rows_of_the_views() {
    let types = ["Int64", "Int32", "String", "LowCardinality(String)", "DateTime64(9, 'UTC')"];
    engine_has_the_rows("clickhouse", |kind| {
        let kind = kind.strip_prefix("Nullable(").and_then(|kind| kind.strip_suffix(')')).unwrap_or(kind);
        types.contains(&kind) || kind == "LowCardinality(Nullable(String))"
    });
}

#[test]
fn wrong_use_of_views_is_explained() {
    let place = fresh("engines-wrong");
    let (one, two) = (place.join("one"), place.join("two[1]"));
    continued(&one);
    continued(&two);
    let [one, two] = [&one, &two].map(|trace| trace.to_str().unwrap());
    let script = place.join("views.sql");
    let to = script.to_str().unwrap();
    let refused = |words: &[&str], said: &str| {
        let ended = export(&[words, &["-o", to]].concat());
        assert_ne!(ended.code(), 0, "{words:?}");
        assert!(ended.stderr.contains(said), "{words:?}: {}", ended.stderr);
        assert!(!script.exists(), "{words:?}");
    };
    refused(&[one], "--dialect");
    refused(&[one, "--dialect", "oracle"], "duckdb");
    refused(&[one, "--dialect", "duckdb", "--op", "read"], "choose them in SQL");
    refused(&[one, "--dialect", "duckdb", "--with", two], "both partition 0");
    refused(&[two, "--dialect", "duckdb"], "use a symbolic link");
    refused(&[&format!("{one}/no"), "--dialect", "duckdb"], "cannot find");
    let csv = run(Command::new(&built().miot).args([
        "export",
        "--format",
        "csv",
        "--dialect",
        "spark",
        "-o",
        to,
        one,
    ]));
    assert!(csv.code() != 0 && csv.stderr.contains("--format views"), "{}", csv.stderr);
}
