//! Independent readers open the parts of a trace, with the documented columns and as many rows as
//! `miot cat` prints.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, root};
use miot_tests::process::run;
use miot_tests::scenario::{ScenarioDirs, scenario};
use miot_tests::traced::events;
use miot_trace_store::{Table, schema};
use std::process::Command;

#[test]
fn pyarrow_pandas_and_duckdb_read_the_same_rows() {
    let python = root().join("target/test-venv/bin/python");
    assert!(python.exists(), "{} is missing: run tests/setup.sh", python.display());
    let scenario = scenario("sqlite3");
    let place = ScenarioDirs::new("readers");
    place.prepare(scenario);
    let trace = place.evidence.join("trace");
    let wrapper = [built().miot.clone().into(), "run".into(), "-o".into(), trace.clone().into(), "--".into()];
    let _ = place.run(scenario, &wrapper).success();
    let rows = events(&trace);

    let mut check = Command::new(python);
    check.arg(root().join("tests/programs/readers.py")).arg(&trace);
    let report = run(&mut check).success().stdout;
    let mut lines = report.lines();
    for (name, table) in [
        ("events", Table::Events),
        ("processes", Table::Processes),
        ("threads", Table::Threads),
        ("files", Table::Files),
        ("losses", Table::Losses),
        ("clocks", Table::Clocks),
        ("devices", Table::Devices),
    ] {
        let documented: Vec<String> =
            schema::of(table).fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(lines.next().unwrap(), format!("columns {name} {}", documented.join(",")));
    }
    let number = |line: Option<&str>, name: &str| -> i64 {
        let line = line.unwrap_or_else(|| panic!("no {name}: {report}"));
        line.strip_prefix(&format!("{name} ")).unwrap_or_else(|| panic!("{line}")).parse().unwrap()
    };
    assert_eq!(number(lines.next(), "pyarrow"), rows.len() as i64);
    assert_eq!(number(lines.next(), "duckdb"), rows.len() as i64);
    let written: i64 =
        rows.iter().filter(|row| row.op.starts_with("pwrite") && row.result > 0).map(|row| row.result).sum();
    assert!(written > 0);
    assert_eq!(number(lines.next(), "written"), written, "bytes, by SQL");
    assert_eq!(number(lines.next(), "first"), rows[0].time, "time of the first event, nanoseconds");
    // DuckDB's time with a zone has a resolution of microseconds.
    assert_eq!(number(lines.next(), "microseconds"), rows[0].time / 1000, "the same in DuckDB");
    let named =
        rows.iter().filter(|row| row.path.as_deref().is_some_and(|path| path.ends_with("/test.db"))).count();
    assert_eq!(number(lines.next(), "named"), named as i64, "events joined with the path of their file");
    assert_eq!(lines.next(), Some("ordered"), "{report}");
    assert_eq!(lines.next(), Some(format!("pandas {} {written}", rows.len()).as_str()), "{report}");
}
