//! The same cases on the source's file system and through the mount, as root and as a user with a
//! group, give the same results.

use crate::descriptors::{FEW, FEW_WITHOUT_HANDLES};
use crate::mounted::{MountDirs, Mounted};
use miot_tests::process::run;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_file_cases");
const USER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--groups=4242"];

/// Errors that the cases must produce. Otherwise they have not covered enough.
const ERRORS: [&str; 17] = [
    "EPERM",
    "ENOENT",
    "ENXIO",
    "EBADF",
    "EAGAIN",
    "EACCES",
    "EEXIST",
    "ENOTDIR",
    "EISDIR",
    "EINVAL",
    "ERANGE",
    "ENAMETOOLONG",
    "ENOTEMPTY",
    "ELOOP",
    "ENODATA",
    "EOPNOTSUPP",
    "ETXTBSY",
];

/// Output of the cases in a new directory.
fn cases(directory: &Path, root: bool) -> Vec<String> {
    fs::create_dir(directory).unwrap();
    let _ = run(Command::new(PROGRAM).arg("prepare").arg(directory)).success();
    let mut command = Command::new(if root { PROGRAM } else { "setpriv" });
    if !root {
        command.args(USER).arg("--").arg(PROGRAM);
    }
    let printed = run(command.arg("run").arg(directory)).success().stdout;
    printed.lines().map(str::to_owned).collect()
}

fn compare(mounted: &Mounted, root: bool) {
    let who = if root { "root" } else { "user" };
    let directly = cases(&mounted.place.dir.join(who), root);
    let through = cases(&mounted.place.mount.join(who), root);
    let differ: Vec<String> = directly
        .iter()
        .zip(&through)
        .filter(|(a, b)| a != b)
        .map(|(a, b)| format!("as {who}, directly\n  {a}\nthrough the mount\n  {b}"))
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(directly.len() == through.len() && directly.len() > 40, "{} cases", directly.len());
    println!("{} cases alike as {who}", directly.len());
    if !root {
        let met: BTreeSet<&str> = directly.iter().flat_map(|line| line.split(' ')).collect();
        let missing: Vec<&&str> = ERRORS.iter().filter(|name| !met.contains(**name)).collect();
        assert!(missing.is_empty(), "no case has met {missing:?}");
    }
}

/// Compares both ways. Their paths have the same length, because some cases depend on the length of
/// paths.
fn alike(name: &str, options: &[&str]) {
    let place = MountDirs::new(name);
    let mounted = place.mounted(options);
    compare(&mounted, true);
    compare(&mounted, false);
    mounted.end();
}

#[test]
fn mount_with_a_cache_equals_its_source() {
    alike("fuse-alike-auto", &[]);
}

#[test]
fn mount_without_a_cache_equals_its_source() {
    alike("fuse-alike-none", &["--cache", "none"]);
}

#[test]
fn mount_with_cached_attributes_equals_its_source() {
    alike("fuse-alike-attr", &["--cache", "none", "--attr-timeout", "1"]);
}

#[test]
fn mount_with_everything_cached_equals_its_source() {
    alike("fuse-alike-always", &["-o", "cache=always,threads=2"]);
}

#[test]
fn mount_with_few_descriptors_equals_its_source() {
    for (name, starter) in [("fuse-alike-few", FEW), ("fuse-alike-few-no-handles", FEW_WITHOUT_HANDLES)] {
        let mounted = MountDirs::new(name).mounted_by(starter, &["--cache", "none", "--threads", "2"]);
        compare(&mounted, true);
        compare(&mounted, false);
        mounted.end();
    }
}

#[test]
fn read_only_mount_is_read_only() {
    let place = MountDirs::new("fuse-read-only");
    fs::write(place.source.join("file"), "content").unwrap();
    let mounted = place.mounted(&["--read-only"]);
    let file = mounted.place.mount.join("file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    for error in
        [fs::write(&file, "x").unwrap_err(), fs::create_dir(mounted.place.mount.join("d")).unwrap_err()]
    {
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    }
    mounted.end();
}
