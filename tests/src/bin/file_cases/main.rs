//! Cases of what a file system must do, in the manner of pjdfstest: `file_cases prepare DIR` as
//! root, then `file_cases run DIR` as anybody. One line is printed for each case: its name and what
//! came of its steps. Two file systems are alike if they print the same.

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
/// Somebody else.
const OTHER: u32 = 4243;

type Steps = Vec<String>;
/// Is given a directory of its own, and what root has prepared.
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

/// What only root can make, for those who are not.
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
