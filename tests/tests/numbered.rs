//! The conservation oracle, `tests/programs/oracle`, in a short run. It reads traces with pyarrow
//! and DuckDB only. `tests/soak.sh oracle` runs it for longer. `MIOT_SEED` repeats the same kind of
//! run.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, root};
use miot_tests::process::run;
use std::process::Command;

fn oracle(options: &[&str]) {
    let python = root().join("target/test-venv/bin/python");
    assert!(python.exists(), "{} is missing: run tests/setup.sh", python.display());
    let mut oracle = Command::new(python);
    oracle.env("PYTHONDONTWRITEBYTECODE", "1").arg(root().join("tests/programs/oracle"));
    let ended = run(oracle.arg("--bin").arg(&built().folder).args(options));
    eprintln!("{}{}", ended.stdout, ended.stderr);
    assert!(ended.status.success(), "{}", ended.status);
}

/// Uses each of the three policies once.
#[test]
fn each_write_arrives_once_or_is_counted() {
    oracle(&["--seconds", "30", "--round", "10"]);
}

#[test]
fn each_write_is_counted_although_files_are_damaged() {
    oracle(&["--seconds", "30", "--round", "10", "--damage"]);
}
