//! Cases for the behavior of a file system, in the manner of pjdfstest.
//!
//! Usage: `file_cases prepare DIR` as root, then `file_cases run DIR` as any user. The program
//! prints one line per case: its name and the results of its steps. Two file systems behave equally
//! if the outputs are equal.

#![allow(clippy::expect_used)]

mod contents;
mod names;
mod rights;
mod steps;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

/// A group of the user who is not root, but not the user's own.
const GROUP: u32 = 4242;
/// A user who is neither root nor the user of the test.
const OTHER: u32 = 4243;

type Steps = Vec<String>;
/// A case. It receives a directory of its own and the directory that root has prepared.
type Case = fn(&Path, &Path) -> Steps;

fn main() {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match words.as_slice() {
        [how, dir] if how == "prepare" => prepare(dir),
        [how, dir] if how == "run" => {
            [rights::CASES, names::CASES, contents::CASES].iter().copied().flatten().for_each(
                |(name, case)| {
                    let place = dir.join(name);
                    fs::create_dir(&place).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
                    println!("{name}: {}", case(&place, &dir.join("prepared")).join(" "));
                },
            )
        }
        _ => panic!("usage: file_cases prepare|run DIR"),
    }
}

/// Creates files that only root can create, for the cases that run as another user.
fn prepare(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).expect("a directory of ours");
    let made = dir.join("prepared");
    fs::create_dir(&made).expect("a new directory");
    for (name, uid, gid, mode) in [
        ("theirs", OTHER, OTHER, 0o755),
        ("closed", OTHER, OTHER, 0o700),
        ("blind", OTHER, OTHER, 0o711),
        ("group", OTHER, GROUP, 0o2775),
        ("sticky", OTHER, OTHER, 0o1777),
    ] {
        let path = made.join(name);
        fs::create_dir(&path).expect("a new directory");
        for (file, mode) in
            [("read", 0o644), ("shut", 0o600), ("open", 0o666), ("suid", 0o6777), ("run", 0o711)]
        {
            let file = path.join(file);
            fs::write(&file, "content").expect("a new file");
            chown(&file, Some(uid), Some(gid)).expect("root");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("root");
        }
        chown(&path, Some(uid), Some(gid)).expect("root");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root");
    }
}
