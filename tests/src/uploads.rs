//! The uploader of sealed parts, and comparison of files with the objects of a store.

use crate::built::{built, program};
use crate::object_store::{BUCKET, environment};
use crate::process::run;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Command of the uploader to a store.
#[must_use]
pub fn uploader_to(trace: &Path, address: &str) -> Command {
    let mut command = Command::new(program("miot-uploader"));
    command.arg("--trace").arg(trace).args(["--store", address]);
    command
}

/// Command of the uploader to a prefix of the bucket, through the server of the S3 protocol on
/// `port`.
#[must_use]
pub fn uploader(trace: &Path, prefix: &str, port: u16) -> Command {
    let mut command = uploader_to(trace, &format!("s3://{BUCKET}/{prefix}"));
    command.envs(environment(port));
    command
}

/// Names of files with their contents.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Files below a folder, without what a store does not get.
///
/// # Panics
/// If they cannot be read.
#[must_use]
pub fn files(folder: &Path) -> Files {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    let fail = |path: &Path, error: std::io::Error| -> ! { panic!("{}: {error}", path.display()) };
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|e| fail(&next, e)).flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_none_or(|ending| ending != "uploaded") {
                let content = fs::read(&path).unwrap_or_else(|e| fail(&path, e));
                found.insert(path.strip_prefix(folder).unwrap_or(&path).to_owned(), content);
            }
        }
    }
    found
}

/// Number of sealed parts of a trace that are not marked as uploaded.
#[must_use]
pub fn waiting_parts(trace: &Path) -> usize {
    let names = fs::read_dir(trace.join("ledger")).into_iter().flatten().flatten();
    let names: BTreeSet<PathBuf> = names.map(|entry| entry.path()).collect();
    let sealed = names.iter().filter(|name| name.extension().is_some_and(|ending| ending == "sealed"));
    sealed.filter(|name| !names.contains(&name.with_extension("uploaded"))).count()
}

/// Checks that a trace has everything. It reads all rows, so of several copies that are equal to
/// the same files, tests check one.
///
/// # Panics
/// If something is missing or damaged.
#[track_caller]
pub fn assert_complete(trace: &Path) {
    let checked = run(Command::new(&built().miot).arg("fsck").arg(trace)).success();
    assert!(checked.stdout.contains("complete"), "{}", checked.stdout);
}
