//! Temporary directories of a run, removed with their content at its end.
//!
//! A run that is killed (e.g. by SIGKILL or SIGPIPE) leaves them behind. Each run therefore locks
//! its directories while it exists, and the next run of the same user removes unlocked ones. A lock
//! is valid on one machine until a reboot, and machines may share a file system, so the names
//! contain the boot id.

use anyhow::Context as _;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::TempDir;

/// Prefix of the names of all runs.
const PREFIX: &str = "miot-run-";

/// Attempts to create a directory. A run that starts at the same moment may take a new directory
/// for an abandoned one before it is locked.
const TRIES: usize = 16;

/// Temporary directory of a run, locked until it is removed.
#[derive(Debug)]
pub(super) struct OwnDir {
    dir: TempDir,
    /// Descriptor that holds the lock until the directory is removed.
    _lock: OwnedFd,
}

impl OwnDir {
    /// Creates a directory in `parent`, after removing abandoned ones there.
    pub(super) fn create(parent: &Path, advice: &str) -> anyhow::Result<OwnDir> {
        let boot = boot()?;
        remove_abandoned(parent, &boot);
        let make = || format!("cannot create a directory in {}: {advice}", parent.display());
        let prefix = format!("{PREFIX}{boot}-{}-", std::process::id());
        for _ in 0..TRIES {
            let only_ours = Permissions::from_mode(0o700);
            let dir = tempfile::Builder::new().prefix(&prefix).permissions(only_ours).tempdir_in(parent);
            let dir = dir.with_context(make)?;
            match lock(dir.path()) {
                Ok(Some(lock)) => return Ok(OwnDir { dir, _lock: lock }),
                Ok(None) => {}
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("cannot lock {}: {advice}", dir.path().display()));
                }
            }
        }
        anyhow::bail!("{}: files there may be removed by others; {advice}", parent.display())
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Returns the first group of digits of the kernel's boot id.
fn boot() -> anyhow::Result<String> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    Ok(text.split('-').next().unwrap_or_default().to_owned())
}

/// Locks a directory of this user; `None` if another run holds the lock or has removed the
/// directory.
fn lock(path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error),
    }
    // The previous holder of the lock may have removed the directory.
    let locked = rustix::fs::fstat(&dir)?;
    let is_there = rustix::fs::lstat(path)
        .is_ok_and(|there| (there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino));
    let is_ours = locked.st_uid == rustix::process::geteuid().as_raw();
    Ok(Some(dir).filter(|_| is_there && is_ours))
}

/// Removes unlocked directories of runs of this user and this boot. Directories that cannot be
/// removed stay.
fn remove_abandoned(parent: &Path, boot: &str) {
    let prefix = format!("{PREFIX}{boot}-");
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
            continue;
        }
        // Hold the lock until the directory is removed.
        if let Ok(Some(_lock)) = lock(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::fs;

    fn names(parent: &Path) -> BTreeSet<OsString> {
        fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    /// Creates the directory of a killed run.
    fn abandoned(parent: &Path) {
        let OwnDir { dir, _lock } = OwnDir::create(parent, "").unwrap();
        fs::create_dir(dir.path().join("spool")).unwrap();
        fs::write(dir.path().join("spool/file"), "events").unwrap();
        let _ = dir.keep();
    }

    #[test]
    fn only_unlocked_directories_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let living = OwnDir::create(parent.path(), "").unwrap();
        let before = names(parent.path());
        abandoned(parent.path());
        assert_eq!(names(parent.path()).len(), 2);
        let next = OwnDir::create(parent.path(), "").unwrap();
        assert!(living.path().exists() && next.path().exists());
        assert_eq!(names(parent.path()).len(), 2);
        drop(next);
        assert_eq!(names(parent.path()), before);
        drop(living);
        assert!(names(parent.path()).is_empty());
    }

    #[test]
    fn directories_of_other_boots_are_kept() {
        let parent = tempfile::tempdir().unwrap();
        let here = |name: String| parent.path().join(name);
        fs::create_dir(here(format!("{PREFIX}other-1-abc"))).unwrap();
        fs::create_dir(here("miot-runs".into())).unwrap();
        fs::create_dir(here("work".into())).unwrap();
        fs::write(here("work/years".into()), "").unwrap();
        std::os::unix::fs::symlink("work", here(format!("{PREFIX}{}-1-link", boot().unwrap()))).unwrap();
        fs::write(here(format!("{PREFIX}{}-1-file", boot().unwrap())), "").unwrap();
        let before = names(parent.path());
        drop(OwnDir::create(parent.path(), "").unwrap());
        assert_eq!(names(parent.path()), before);
        assert!(parent.path().join("work/years").exists());
    }

    #[test]
    fn simultaneous_runs_get_separate_directories() {
        let parent = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let own = OwnDir::create(parent.path(), "").unwrap();
                        fs::write(own.path().join("file"), "events").unwrap();
                        assert!(own.path().join("file").exists());
                    }
                });
            }
        });
        assert!(names(parent.path()).is_empty());
    }
}
