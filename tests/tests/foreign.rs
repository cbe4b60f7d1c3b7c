//! Third-party programs, each run without and with the hook: the short set of `tests/foreign.sh`,
//! which installs nothing here and reports what it could not test. `tests/setup.sh` installs its
//! dependencies.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, root};
use miot_tests::process::run;
use std::process::Command;

fn foreign(program: &str) {
    let mut script = Command::new("bash");
    script.arg(root().join("tests/foreign.sh")).args(["--short", "--present", program]);
    let ended = run(script.env("MIOT_BIN", &built().folder));
    eprintln!("{}{}", ended.stdout, ended.stderr);
    assert!(ended.status.success(), "{program}: {}", ended.status);
}

macro_rules! programs {
    ($($test:ident: $name:literal),*) => { $(#[test] fn $test() { foreign($name) })* };
}

programs!(
    cpython: "cpython", fsx: "fsx", git: "git", nginx: "nginx", postgresql: "postgresql", redis: "redis", stress_ng: "stress-ng"
);
