//! Temporary directories of a run, removed with their content at its end.
//!
//! A run that is killed (SIGKILL, say, or SIGPIPE) leaves them behind. So each run has its directories locked as long as it
//! lives, and the next one of the same user removes those that nobody has. A lock counts on one machine until it is
//! booted again, and a file system may be shared by many: the names say of which boot they are.

use anyhow::Context as _;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::TempDir;

/// What the names of all runs begin with.
const PREFIX: &str = "miot-run-";

/// Directories made one after the other, if each is taken for an abandoned one before it is locked: by that many runs that
/// begin in the same moment.
const TRIES: usize = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct OwnDir {
    dir: TempDir,
    /// Held for its lock, until the directory is removed.
    _lock: OwnedFd,
}

impl OwnDir {
    /// Makes one in `parent`, after removing those that were abandoned there.
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

/// The kernel's name for this boot of this machine, the first of its groups of digits.
fn boot() -> anyhow::Result<String> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    Ok(text.split('-').next().unwrap_or_default().to_owned())
}

/// Locks a directory of this user. `None`: somebody else has it, or has removed it.
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
    // Whoever had it before may have removed it.
    let locked = rustix::fs::fstat(&dir)?;
    let is_there = rustix::fs::lstat(path)
        .is_ok_and(|there| (there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino));
    let is_ours = locked.st_uid == rustix::process::geteuid().as_raw();
    Ok(Some(dir).filter(|_| is_there && is_ours))
}

/// Removes what runs of this user and this boot have left that nobody holds any more. What cannot be removed stays.
fn remove_abandoned(parent: &Path, boot: &str) {
    let prefix = format!("{PREFIX}{boot}-");
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
            continue;
        }
        // Held until it is gone.
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

    /// What a run leaves that is killed.
    fn abandoned(parent: &Path) {
        let OwnDir { dir, _lock } = OwnDir::create(parent, "").unwrap();
        fs::create_dir(dir.path().join("spool")).unwrap();
        fs::write(dir.path().join("spool/file"), "events").unwrap();
        let _ = dir.keep();
    }

    #[test]
    fn what_a_dead_run_left_is_removed_and_what_a_living_one_has_is_not() {
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
    fn what_is_not_a_run_of_this_boot_is_left_alone() {
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
    fn runs_that_begin_at_once_do_not_take_each_others_directories() {
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
