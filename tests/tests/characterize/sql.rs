//! The same figures by SQL that knows nothing of `miot`.

use miot_tests::built::{built, root};
use miot_tests::compile::compile;
use miot_tests::place::fresh;
use miot_tests::process::run;
use miot_tests::traced::traced;
use std::process::Command;

/// Two processes of two threads each make thousands of requests of all kinds on three files.
#[test]
fn sql_over_the_parquet_files_counts_the_same() {
    let python = root().join("target/test-venv/bin/python");
    assert!(python.exists(), "{} is missing: run tests/setup.sh", python.display());
    let place = fresh("characterize-sql");
    let program = compile(&place, "known", &["known.c"], &[]);
    let (file, trace) = (place.join("mixture"), place.join("trace"));
    let _ = traced(&place, &trace, &[program.as_os_str(), "mixture".as_ref(), file.as_os_str()]).success();

    let json = place.join("stat.json");
    let mut stat = Command::new(&built().miot);
    stat.arg("stat").arg(&trace).args(["--by", "file", "--layer", "posix", "--path", "**/mixture.*"]);
    let out = run(stat.args(["--block-size", "4096", "--format", "json"])).success().stdout;
    std::fs::write(&json, out).unwrap();

    let mut check = Command::new(python);
    check.arg(root().join("tests/programs/characterize.py")).arg(&trace).args(["%/mixture.%", "4096"]);
    let report = run(check.arg(&json)).success().stdout;
    let compared = report.trim().strip_prefix("compared ").and_then(|count| count.parse::<u32>().ok());
    assert!(compared.is_some_and(|count| count >= 3 * 50), "{report}");
}
