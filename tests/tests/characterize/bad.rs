//! Errors of `miot stat --by`: unknown names, a trace without events, paths that are not UTF-8.

use super::{row, stat};
use miot_tests::built::built;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::traced::traced;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let place = fresh("characterize-bad");
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &["cat", "/etc/passwd"]).success();
    for (options, told) in [
        (&["--by", "file", "--sort", "nonsense"][..], "--sort nonsense: no such column"),
        (&["--by", "file", "--layer", "posx"], "--layer posx: no such layer"),
        (&["--by", "file", "--block-size", "0"], "--block-size 0"),
        (&["--by", "file", "--path", "a["], "--path a["),
    ] {
        let ended = run(Command::new(&built().miot).arg("stat").arg(&trace).args(options));
        assert_eq!(ended.code(), 1, "{options:?}: {}", ended.stdout);
        assert!(ended.stderr.contains(told), "{options:?}: {}", ended.stderr);
    }
}

#[test]
fn every_view_reports_an_empty_selection() {
    let place = fresh("characterize-empty");
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &["true"]).success();
    for by in ["job", "step", "process", "file", "node", "layer", "directory", "user"] {
        let table = stat(&trace, &["--by", by, "--view", "miller", "--path", "/no/such/file"]);
        assert_eq!(table["rows"].as_array().map(Vec::len), Some(0), "{by}: {table:#}");
        assert_eq!((&table["by"], &table["lower_bounds"]), (&by.into(), &false.into()));
    }
    for view in ["miller", "darshan", "usage", "latency", "performance", "ranks"] {
        for path in ["/no/such/file", "**"] {
            let mut text = Command::new(&built().miot);
            let _ = run(text.arg("stat").arg(&trace).args(["--view", view, "--path", path])).success();
        }
    }
}

#[test]
fn path_of_any_bytes_has_its_row() {
    let place = fresh("characterize-bytes");
    let trace = place.join("trace");
    let name = OsStr::from_bytes(b"of=na\xffme\n");
    let words =
        [OsStr::new("dd"), OsStr::new("if=/dev/zero"), name, OsStr::new("bs=10"), OsStr::new("count=3")];
    let _ = traced(&place, &trace, &words).success();
    let table = stat(&trace, &["--by", "file", "--layer", "posix"]);
    assert_eq!(row(&table, "path", "na\\xffme\n")["bytes_written"], 30);
    let mut csv = Command::new(&built().miot);
    let csv =
        run(csv.arg("stat").arg(&trace).args(["--by", "file", "--format", "csv", "--top", "1"])).success();
    let fields = |line: &str| line.matches(',').count();
    let mut lines = csv.stdout.lines();
    assert_eq!(fields(lines.next().unwrap()), fields(csv.stdout.lines().last().unwrap()));
    let mut text = Command::new(&built().miot);
    let text = run(text.arg("stat").arg(&trace).args(["--by", "file"])).success();
    assert!(text.stdout.contains("na\\xffme\\n"), "no control characters on a terminal: {}", text.stdout);
}
