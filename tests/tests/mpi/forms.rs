//! Each byte counts once in each table, regardless of the form of MPI-IO that requested it and of
//! the thread and call that moved it.

use crate::place;
use miot_tests::built::built;
use miot_tests::mpi::Mpi;
use miot_tests::process::run;
use miot_tests::traced::assert_good;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const RANKS: u64 = 2;
/// Bytes of each request of `forms.c`.
const BYTES: u64 = 10_000;
/// Number of its requests, and of those that need no shared pointer.
const FORMS: u64 = 14;
const OF_VIEWS: u64 = 12;
/// Bytes that are contiguous through its view.
const PIECE: u64 = 100;

/// Returns the output of `miot stat` as JSON.
fn stat(trace: &Path, words: &[&str]) -> Value {
    let ran = run(Command::new(&built().miot).arg("stat").args(words).args(["--format", "json"]).arg(trace));
    let text = ran.success().stdout;
    serde_json::from_str(&text).unwrap_or_else(|_| {
        Value::Array(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    })
}

/// Row of the table whose `key` is `value`.
fn row<'a>(rows: &'a Value, key: &str, value: &str) -> &'a Value {
    let found = rows.as_array().unwrap().iter().find(|row| row[key] == value);
    found.unwrap_or_else(|| panic!("{key} {value}: {rows:#}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Runs `forms.c` and checks the bytes of each table.
fn forms(mpi: Mpi, name: &str, word: &str, written: u64, read: u64) {
    let place = place(&format!("forms-{name}"));
    let program = mpi.compile(&place, "forms", "forms.c", &[]);
    let (trace, file) = (place.join("trace"), place.join("data"));
    let path = file.to_str().unwrap();
    let _ = mpi.traced(&trace, RANKS as u32, &[], &[program.to_str().unwrap(), path, word]).success();
    assert_good(&trace);

    let summary = stat(&trace, &["--files", "1000"]);
    let of_file = row(&summary["files"], "path", path);
    assert_eq!(
        (number(&of_file["bytes_written"]), number(&of_file["bytes_read"])),
        (written, read),
        "{name}: {of_file}"
    );
    let patterns = stat(&trace, &["--show", "patterns"]);
    let pattern = row(&patterns["files"], "path", path);
    assert_eq!(
        (number(&pattern["bytes_written"]), number(&pattern["bytes_read"])),
        (written, read),
        "{name}: {pattern}"
    );
    // Programs that start MPI's ranks write files of their own.
    let bursts = stat(&trace, &["--show", "bursts"]);
    assert_eq!(bursts["total"]["bytes"], {
        let totals = &summary["totals"];
        Value::from(number(&totals["bytes_written"]) + number(&totals["bytes_read"]))
    });
    let report = run(Command::new(&built().miot).args(["report", "--format", "json", "-o", "-"]).arg(&trace));
    let report: Value = serde_json::from_str(&report.success().stdout).unwrap();
    let counted: Value =
        report["files"].as_array().unwrap().iter().filter(|row| row["layer"] == "mpi-io").cloned().collect();
    for (table, rows) in [("summary", &report["summary"]["files"]), ("files", &counted)] {
        let of_file = row(rows, "path", path);
        let found = (number(&of_file["bytes_written"]), number(&of_file["bytes_read"]));
        assert_eq!(found, (written, read), "{name}: {table} of the report: {of_file}");
    }
    assert_eq!(report["summary"]["totals"], summary["totals"]);
    assert_eq!(report["bursts"]["total"]["bytes"], bursts["total"]["bytes"]);
    let layers = stat(&trace, &["--by", "layer"]);
    let asked = row(&layers, "layer", "mpi-io");
    assert_eq!(
        (number(&asked["write_moved"]), number(&asked["read_moved"])),
        (written, read),
        "{name}: {asked}"
    );
    if word == "view" {
        // Through a view, MPI may move the bytes between the pieces as well.
        return;
    }
    // The completion of a freed request may not have been observed.
    let seen = BYTES * FORMS * RANKS;
    let rows = layers.as_array().unwrap();
    let within = rows.iter().find(|row| row["layer"] == "posix" && row["above"] == "mpi-io").unwrap();
    let moved = number(&within["write_moved"]);
    assert!((seen..=seen + 1000 + BYTES * RANKS).contains(&moved), "{name}: {within}");
    assert!((seen..=seen + 1000).contains(&number(&within["read_moved"])), "{name}: {within}");
}

#[test]
fn each_byte_counts_once_in_each_form_of_mpich() {
    let all = BYTES * FORMS * RANKS;
    forms(Mpi::Mpich, "mpich", "-", all, all);
}

#[test]
fn each_byte_counts_once_in_each_form_of_open_mpi() {
    let all = BYTES * FORMS * RANKS;
    forms(Mpi::OpenMpi, "openmpi", "-", all, all);
}

#[test]
fn each_byte_counts_once_through_views() {
    let all = BYTES * OF_VIEWS * RANKS;
    forms(Mpi::Mpich, "mpich-view", "view", all, all);
    forms(Mpi::OpenMpi, "openmpi-view", "view", all, all);
}

#[test]
fn freed_request_counts_its_requested_bytes() {
    let all = BYTES * FORMS * RANKS;
    forms(Mpi::Mpich, "mpich-free", "free", all + BYTES * RANKS, all);
    forms(Mpi::OpenMpi, "openmpi-free", "free", all + BYTES * RANKS, all);
}

/// Each rank in turn writes all of its part of the file, through a view in which they alternate.
#[test]
fn rewrites_are_not_counted_for_interleaved_views() {
    for mpi in [Mpi::Mpich, Mpi::OpenMpi] {
        let place = place(&format!("through-{mpi:?}"));
        let program = mpi.compile(&place, "forms", "forms.c", &[]);
        let (trace, file) = (place.join("trace"), place.join("data"));
        let path = file.to_str().unwrap();
        let _ = mpi.traced(&trace, RANKS as u32, &[], &[program.to_str().unwrap(), path, "view"]).success();
        let table = stat(&trace, &["--by", "file", "--view", "usage", "--layer", "mpi-io"]);
        let rows = table.get("rows").unwrap_or(&table);
        let usage = row(rows, "path", path);
        assert_eq!(number(&usage["overwritten_bytes"]), 0, "{mpi:?}: {usage}");
        assert_eq!(number(&table["views_unknown"]), 0);
        let patterns = stat(&trace, &["--show", "patterns"]);
        let pattern = row(&patterns["files"], "path", path);
        // Pieces follow each other at a distance of as many pieces as there are ranks.
        let pieces = 2 * RANKS * (OF_VIEWS * BYTES / PIECE - 1);
        assert_eq!(number(&pattern["followed"]), pieces, "{mpi:?}: {pattern}");
        assert_eq!(pattern["order"], "strided", "{mpi:?}: {pattern}");
        assert_eq!(number(&pattern["strides"][0]["bytes"]), PIECE * RANKS, "{mpi:?}: {pattern}");
        assert_eq!(number(&patterns["views_unknown"]), 0);
    }
}
