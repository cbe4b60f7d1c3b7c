//! `miot stat --by`: figures of programs with known I/O, derived by hand from the programs; the
//! same figures by SQL; files that the ranks of a job share.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bad;
mod bandwidth;
mod blocks;
mod dimensions;
mod known;
mod many;
mod ranks;
mod sql;

use miot_tests::built::built;
use miot_tests::process::run;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// `miot stat TRACE OPTIONS --format json`.
fn stat(trace: &Path, options: &[&str]) -> Value {
    let mut stat = Command::new(&built().miot);
    stat.arg("stat").arg(trace).args(options).args(["--format", "json"]);
    let out = run(&mut stat).success().stdout;
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// Returns the row whose label ends with `end`.
#[track_caller]
fn row<'a>(table: &'a Value, label: &str, end: &str) -> &'a Value {
    let rows = table["rows"].as_array().unwrap();
    let found: Vec<_> =
        rows.iter().filter(|row| row[label].as_str().is_some_and(|text| text.ends_with(end))).collect();
    assert_eq!(found.len(), 1, "rows whose {label} ends with {end}: {rows:#?}");
    found[0]
}

/// Checks the given figures of a row.
#[track_caller]
fn assert_figures(row: &Value, expected: &[(&str, u64)]) {
    let wrong: Vec<_> = expected
        .iter()
        .filter(|(name, value)| row[*name].as_u64() != Some(*value))
        .map(|(name, value)| format!("{name}: {} instead of {value}", row[*name]))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{row:#}");
}
