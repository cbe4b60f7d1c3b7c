//! Names of a trace as names below a directory.

use rustix::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// The name of the traced system as a name relative to the directory that stands for its root. `..` goes up to the directory and
/// not further. Empty: the directory itself.
#[must_use]
pub fn name_below(name: &[u8]) -> Vec<u8> {
    let mut names: Vec<&OsStr> = Vec::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names.into_iter().collect::<PathBuf>().into_os_string().as_bytes().to_vec()
}

/// A descriptor that is opened and closed past the hook.
#[derive(Debug)]
pub struct Unseen(RawFd);

impl Unseen {
    pub(super) fn of(descriptor: OwnedFd) -> Unseen {
        Unseen(descriptor.into_raw_fd())
    }
}

impl AsFd for Unseen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until it is dropped.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        // SAFETY: its own, used no more.
        unsafe { rustix::io::close(self.0) };
    }
}

/// A directory that stands for the root of the traced system.
#[derive(Debug)]
pub struct Below {
    root: PathBuf,
    descriptor: Unseen,
}

/// What is opened below: never through a symbolic link that leads out, nor by `..`.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

impl Below {
    /// This directory.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(root: &Path) -> Result<Below, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = Unseen::of(openat(CWD, root, flags, Mode::empty())?);
        Ok(Below { root: root.to_owned(), descriptor })
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The whole name of a name below.
    #[must_use]
    pub fn path(&self, name: &[u8]) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(name)) }
    }

    /// Opens a name below, and nothing else.
    ///
    /// # Errors
    /// As `openat2`(2): `EXDEV` for what leads out.
    pub fn open_at(&self, name: &[u8], flags: OFlags, mode: Mode) -> Result<Unseen, Errno> {
        let name: &[u8] = if name.is_empty() { b"." } else { name };
        loop {
            // EAGAIN: something was renamed meanwhile, and the kernel cannot tell that it did not lead out.
            match openat2(&self.descriptor, name, flags | OFlags::CLOEXEC, mode, RESOLVE) {
                Err(Errno::AGAIN) => {}
                opened => return opened.map(Unseen::of),
            }
        }
    }

    /// The name may be given to a call: neither it, if the call follows symbolic links, nor the directory that it is in leads out.
    ///
    /// # Errors
    /// `EXDEV` or `ELOOP` if it may not.
    pub fn check(&self, name: &[u8], follows: bool) -> Result<(), Errno> {
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
            // A link to what is not there: a call that makes files would make it wherever the link says.
            Ok(directory) if follows && rustix::fs::readlinkat(&directory, last, Vec::new()).is_ok() => {
                Err(Errno::LOOP)
            }
            Err(errno) if leads_out(&errno) => Err(errno),
            _ => Ok(()),
        }
    }

    /// Makes a directory and those above it.
    ///
    /// # Errors
    /// If one cannot be made.
    pub fn make_directories(&self, name: &[u8]) -> Result<Unseen, Errno> {
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

impl AsFd for Below {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// What a symbolic link at `link` must say, so that it leads to `target`, both below the directory.
#[must_use]
pub(super) fn relative(link: &[u8], target: &[u8]) -> Vec<u8> {
    let up = link.iter().filter(|byte| **byte == b'/').count();
    let mut said = b"../".repeat(up);
    said.extend(target);
    if said.is_empty() { b".".to_vec() } else { said }
}

#[cfg(test)]
mod tests {
    use super::{Below, name_below, relative};
    use proptest::prelude::*;
    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;
    use std::path::{Component, Path};

    #[test]
    fn no_name_leads_out() {
        let cases = [
            ("/data/f", "data/f"),
            ("data/./f", "data/f"),
            ("/../../etc/passwd", "etc/passwd"),
            ("/a/../../../b", "b"),
            ("", ""),
            ("/", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(name_below(name.as_bytes()), expected.as_bytes(), "{name}");
        }
        assert_eq!(relative(b"a/b/link", b"c/d"), b"../../c/d");
        assert_eq!(relative(b"link", b""), b".");
    }

    #[test]
    fn links_that_lead_out_are_refused_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let below = Below::open(dir.path()).unwrap();
        drop(below.make_directories(b"a/b").unwrap());
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
        link("/etc", "out");
        link("../../../../etc/passwd", "a/up");
        link("/nowhere/new", "a/dangling");
        link("b", "a/inside");
        std::fs::write(dir.path().join("a/b/f"), "").unwrap();
        for name in ["out", "out/passwd", "a/up", "a/dangling"] {
            assert!(
                matches!(below.check(name.as_bytes(), true), Err(Errno::XDEV | Errno::LOOP)),
                "{name}: {:?}",
                below.check(name.as_bytes(), true)
            );
            assert!(below.open_at(name.as_bytes(), OFlags::RDONLY, Mode::empty()).is_err());
        }
        for name in ["a/inside/f", "a/b/new", "a/none/new", "new", ""] {
            assert_eq!(below.check(name.as_bytes(), true), Ok(()), "{name}");
        }
        link("missing", "a/later");
        assert_eq!(below.check(b"a/later", true), Err(Errno::LOOP), "what it leads to is not known");
        assert_eq!(below.check(b"a/later", false), Ok(()));
        assert_eq!(below.check(b"out/passwd", false), Err(Errno::XDEV));
        assert!(below.make_directories(b"out/x").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_stay_below(name in prop::collection::vec(prop_oneof![Just(b'.'), Just(b'/'), any::<u8>()], 0..40)) {
            use std::os::unix::ffi::OsStrExt as _;
            let below = name_below(&name);
            let path = Path::new(std::ffi::OsStr::from_bytes(&below));
            prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
        }
    }
}
