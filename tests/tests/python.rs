//! The Python package: the tests of `python/tests` against the module and the programs of this
//! build. `tests/wheel.sh` runs them against an installed wheel.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, program, root};
use miot_tests::test_dir::fresh;
use std::process::Command;

#[test]
fn python_package_agrees_with_the_tool_and_with_parquet() {
    let python = root().join("target/test-venv/bin/python");
    assert!(python.exists(), "{} is missing: run tests/setup.sh", python.display());
    let programs = &built().folder;
    let _ = program("miot-query");
    let module = miot_tests::built::library("miot-python", "lib_miot.so");
    // Away from the repository, as an installed package.
    let site = fresh("python-package");
    let package = site.join("miot");
    std::fs::create_dir_all(&package).unwrap();
    for entry in std::fs::read_dir(root().join("python/miot")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    std::fs::copy(module, package.join("_miot.abi3.so")).unwrap();
    let tests = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp"])
        .arg(site.join("tmp"))
        .arg(root().join("python/tests"))
        .env("PYTHONPATH", &site)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("MIOT_BIN_DIR", programs)
        .current_dir(&site)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&tests.stdout);
    assert!(tests.status.success(), "{said}\n{}", String::from_utf8_lossy(&tests.stderr));
    println!("{said}");
}
