//! The programs and libraries under test, built in the profile of the test itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Set by `tests/run.sh`, which has built all programs already.
const BUILT_ENV: &str = "MIOT_TESTS_BUILT";

/// The transport of packages that the first build of a user leaves out.
const FEATURES: [&str; 2] = ["--features", "miot/broker"];

/// Files of a build.
#[derive(Debug)]
pub struct Built {
    /// Folder of the build: `target/debug` or `target/release`.
    pub folder: PathBuf,
    /// `miot`.
    pub miot: PathBuf,
    /// `miot-log-client`.
    pub log_client: PathBuf,
    /// `miot-log-server`.
    pub log_server: PathBuf,
    /// Library to preload.
    pub hook: PathBuf,
    /// Folder that holds `libmiot.so` and `libmiot.a`.
    pub library: PathBuf,
}

/// Root of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

/// Builds missing and stale programs, once per test process, and returns their paths.
///
/// # Panics
/// If the build fails.
#[must_use]
pub fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/<profile>/deps/<test>
        let test = std::env::current_exe().unwrap_or_default();
        let folder = test.ancestors().nth(2).unwrap_or(Path::new("/")).to_owned();
        build(&folder, &FEATURES);
        let file = |name: &str| {
            let path = folder.join(name);
            assert!(path.is_file(), "{} is missing after the build", path.display());
            path
        };
        Built {
            miot: file("miot"),
            log_client: file("log-client"),
            log_server: file("log-server"),
            hook: file("libmiot_posix.so"),
            library: folder.clone(),
            folder,
        }
    })
}

/// Builds a program that `cargo build` leaves out, from the package of the same name.
///
/// # Panics
/// If the build fails.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    library(name, name)
}

/// Builds a package that `cargo build` leaves out, and returns the path of one of its files.
///
/// # Panics
/// If the build fails.
#[must_use]
pub fn library(package: &str, file: &str) -> PathBuf {
    static BUILT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let folder = &built().folder;
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if built.insert(package.to_owned()) {
        build(folder, &["--package", package]);
    }
    let path = folder.join(file);
    assert!(path.is_file(), "{} is missing after the build", path.display());
    path
}

fn build(folder: &Path, what: &[&str]) {
    if std::env::var_os(BUILT_ENV).is_some() {
        return;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--manifest-path"]).arg(root().join("Cargo.toml")).args(what);
    if let Some(target) = folder.parent() {
        cargo.arg("--target-dir").arg(target);
    }
    // The folder has the name of the profile, except for `dev`.
    if let Some(profile) = folder.file_name().filter(|name| *name != "debug") {
        cargo.arg("--profile").arg(profile);
    }
    let status = cargo.status();
    assert!(status.as_ref().is_ok_and(|s| s.success()), "{cargo:?}: {status:?}");
}
