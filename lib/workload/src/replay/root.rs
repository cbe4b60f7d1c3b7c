//! Paths of a trace as paths below a directory, the replay root.

use super::calls::Symlink;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// Converts a path of the traced system to a path relative to the replay root. `..` goes up to the
/// root and no further. Returns an empty path for the root itself.
#[must_use]
pub fn path_below_root(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&OsStr> = Vec::new();
    for component in Path::new(OsStr::from_bytes(path)).components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names.into_iter().collect::<PathBuf>().into_os_string().as_bytes().to_vec()
}

/// A descriptor whose open and close bypass the hook, by system calls.
#[derive(Debug)]
pub struct UntracedFd(RawFd);

impl UntracedFd {
    pub(super) fn new(descriptor: OwnedFd) -> UntracedFd {
        UntracedFd(descriptor.into_raw_fd())
    }
}

impl AsFd for UntracedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until this is dropped.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for UntracedFd {
    fn drop(&mut self) {
        // SAFETY: this owns the descriptor, and nothing uses it after this.
        unsafe { rustix::io::close(self.0) };
    }
}

/// The directory that stands for the root of the traced system.
#[derive(Debug)]
pub struct ReplayRoot {
    root: PathBuf,
    descriptor: UntracedFd,
}

/// Paths are resolved below the root: no symbolic link and no `..` leads out of it.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

impl ReplayRoot {
    /// Opens the directory `root`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(root: &Path) -> Result<ReplayRoot, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = UntracedFd::new(openat(CWD, root, flags, Mode::empty())?);
        Ok(ReplayRoot { root: root.to_owned(), descriptor })
    }

    /// Returns the directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the full path of a path below the root.
    #[must_use]
    pub fn path(&self, name: &[u8]) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(name)) }
    }

    /// Opens a path below the root.
    ///
    /// # Errors
    /// As `openat2`(2): `EXDEV` for a path that leads out.
    pub fn open_at(&self, name: &[u8], flags: OFlags, mode: Mode) -> Result<UntracedFd, Errno> {
        let name: &[u8] = if name.is_empty() { b"." } else { name };
        loop {
            // EAGAIN: a concurrent rename; the kernel cannot exclude that the path led out.
            match openat2(&self.descriptor, name, flags | OFlags::CLOEXEC, mode, RESOLVE) {
                Err(Errno::AGAIN) => {}
                opened => return opened.map(UntracedFd::new),
            }
        }
    }

    /// Checks that a path may be passed to a call: its directory must not lead out of the root, nor
    /// the path itself if the call follows a symbolic link at its end.
    ///
    /// # Errors
    /// `EXDEV` or `ELOOP` if it leads out.
    pub(super) fn check(&self, name: &[u8], symlink: Symlink) -> Result<(), Errno> {
        let follows = symlink == Symlink::Follow;
        let leads_out = |errno: &Errno| matches!(*errno, Errno::XDEV | Errno::LOOP);
        if follows {
            match self.open_at(name, OFlags::PATH, Mode::empty()) {
                Ok(_) => return Ok(()),
                Err(errno) if leads_out(&errno) => return Err(errno),
                Err(_) => {}
            }
        }
        let (parent, last) = match name.iter().rposition(|byte| *byte == b'/') {
            Some(end) => (&name[..end], &name[end + 1..]),
            None => (&b""[..], name),
        };
        match self.open_at(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            // A dangling link: a call that creates files would create one at the link's target.
            Ok(directory) if follows && rustix::fs::readlinkat(&directory, last, Vec::new()).is_ok() => {
                Err(Errno::LOOP)
            }
            Err(errno) if leads_out(&errno) => Err(errno),
            _ => Ok(()),
        }
    }

    /// Creates a directory and its parents, and returns the directory.
    ///
    /// # Errors
    /// If one cannot be created.
    pub fn make_directories(&self, name: &[u8]) -> Result<UntracedFd, Errno> {
        let mut at = self.open_at(b"", OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        for (end, _) in name.iter().chain(b"/").enumerate().filter(|(_, byte)| **byte == b'/') {
            let part = &name[..end];
            match self.open_at(part, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
                Ok(found) => at = found,
                Err(Errno::NOENT) => {
                    let last = part.rsplit(|byte| *byte == b'/').next().unwrap_or(part);
                    mkdirat(&at, last, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH)?;
                    at = self.open_at(part, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(at)
    }
}

impl AsFd for ReplayRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Returns the content of a symbolic link at `link` that leads to `target`, both below the root.
#[must_use]
pub(super) fn relative_target(link: &[u8], target: &[u8]) -> Vec<u8> {
    let up = link.iter().filter(|byte| **byte == b'/').count();
    let mut content = b"../".repeat(up);
    content.extend(target);
    if content.is_empty() { b".".to_vec() } else { content }
}

#[cfg(test)]
mod tests {
    use super::{ReplayRoot, Symlink, path_below_root, relative_target};
    use proptest::prelude::*;
    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;
    use std::path::{Component, Path};

    #[test]
    fn no_path_leads_out_of_the_root() {
        let cases = [
            ("/data/f", "data/f"),
            ("data/./f", "data/f"),
            ("/../../etc/passwd", "etc/passwd"),
            ("/a/../../../b", "b"),
            ("", ""),
            ("/", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(path_below_root(name.as_bytes()), expected.as_bytes(), "{name}");
        }
        assert_eq!(relative_target(b"a/b/link", b"c/d"), b"../../c/d");
        assert_eq!(relative_target(b"link", b""), b".");
    }

    #[test]
    fn links_that_lead_out_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = ReplayRoot::open(dir.path()).unwrap();
        drop(root.make_directories(b"a/b").unwrap());
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
        link("/etc", "out");
        link("../../../../etc/passwd", "a/up");
        link("/nowhere/new", "a/dangling");
        link("b", "a/inside");
        std::fs::write(dir.path().join("a/b/f"), "").unwrap();
        for name in ["out", "out/passwd", "a/up", "a/dangling"] {
            assert!(
                matches!(root.check(name.as_bytes(), Symlink::Follow), Err(Errno::XDEV | Errno::LOOP)),
                "{name}: {:?}",
                root.check(name.as_bytes(), Symlink::Follow)
            );
            assert!(root.open_at(name.as_bytes(), OFlags::RDONLY, Mode::empty()).is_err());
        }
        for name in ["a/inside/f", "a/b/new", "a/none/new", "new", ""] {
            assert_eq!(root.check(name.as_bytes(), Symlink::Follow), Ok(()), "{name}");
        }
        link("missing", "a/later");
        assert_eq!(root.check(b"a/later", Symlink::Follow), Err(Errno::LOOP), "its target is not known");
        assert_eq!(root.check(b"a/later", Symlink::NoFollow), Ok(()));
        assert_eq!(root.check(b"out/passwd", Symlink::NoFollow), Err(Errno::XDEV));
        assert!(root.make_directories(b"out/x").is_err());
    }

    proptest! {
        #[test]
        fn any_path_stays_below_the_root(name in prop::collection::vec(prop_oneof![Just(b'.'), Just(b'/'), any::<u8>()], 0..40)) {
            use std::os::unix::ffi::OsStrExt as _;
            let below = path_below_root(&name);
            let path = Path::new(std::ffi::OsStr::from_bytes(&below));
            prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
        }
    }
}
