//! The Python package: the tests of `python/tests` and the notebooks of `python/notebooks` with the
//! module and the programs of this build. `tests/wheel.sh` runs the tests with an installed wheel.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, program, root};
use miot_tests::test_dir::fresh;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a folder with the package, away from the repository, as an installed one.
fn package(name: &str) -> PathBuf {
    let _ = program("miot-query");
    let module = miot_tests::built::library("miot-python", "lib_miot.so");
    let site = fresh(name);
    let package = site.join("miot");
    std::fs::create_dir_all(&package).unwrap();
    for entry in std::fs::read_dir(root().join("python/miot")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    std::fs::copy(module, package.join("_miot.abi3.so")).unwrap();
    site
}

/// Returns pytest with the package of this folder.
fn pytest(site: &Path) -> Command {
    let python = root().join("target/test-venv/bin/python");
    assert!(python.exists(), "{} is missing: run tests/setup.sh", python.display());
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    command.env("PYTHONPATH", site).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("MIOT_BIN_DIR", &built().folder).current_dir(site);
    command
}

fn succeeds(command: &mut Command) {
    let tests = command.output().unwrap();
    let output = String::from_utf8_lossy(&tests.stdout);
    assert!(tests.status.success(), "{output}\n{}", String::from_utf8_lossy(&tests.stderr));
    println!("{output}");
}

#[test]
fn python_package_agrees_with_the_tool_and_with_parquet() {
    let site = package("python-package");
    succeeds(pytest(&site).arg("--basetemp").arg(site.join("tmp")).arg(root().join("python/tests")));
}

/// Each notebook makes its data and asserts its figures.
#[test]
fn notebooks_run_to_their_end() {
    let site = package("notebooks");
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("python/notebooks")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("output_type"), "{}: remove its outputs", path.display());
        std::fs::write(site.join(path.file_name().unwrap()), text).unwrap();
        count += 1;
    }
    assert_eq!(count, 5);
    let mut command = pytest(&site);
    command.args(["--nbmake", "--nbmake-timeout=300", "--durations=5"]).arg(&site);
    // For their files, and those of Jupyter. Sockets in it need a short path.
    let scratch = tempfile::tempdir().unwrap();
    command.env("TMPDIR", scratch.path()).env("HOME", scratch.path());
    succeeds(&mut command);
}
