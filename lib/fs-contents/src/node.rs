//! A directory, as the names on its path from the root of the walk. It is opened by its path each
//! time, so that neither the number of open files nor the length of a path limits the walk.

#![expect(clippy::disallowed_types, reason = "whether the kernel has openat2, found out once")]

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result, retry_on_intr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum length of a path in one system call, bytes: below `PATH_MAX` (4096) with the final zero.
const PATH_PIECE: usize = 4000;

/// File system and mount of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct FileSystemId {
    /// Device number of the file system.
    pub(crate) device: u64,
    /// Id of the mount; 0 if the kernel does not report it (before Linux 5.8).
    pub(crate) mount: u64,
}

/// A directory.
#[derive(Debug)]
pub(crate) struct Node {
    /// `None`: the root of the walk.
    pub(crate) parent: Option<Arc<Node>>,
    pub(crate) name: Box<[u8]>,
    pub(crate) place: FileSystemId,
}

impl Drop for Node {
    /// Drops the parents in a loop: recursion could overflow the stack for a long path.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = node.parent.take();
        }
    }
}

impl Node {
    /// Returns the names from the root of the walk.
    fn names(&self) -> Vec<&[u8]> {
        let mut names = Vec::new();
        let mut node = self;
        while let Some(parent) = &node.parent {
            names.push(&*node.name);
            node = parent;
        }
        names.reverse();
        names
    }

    /// Returns the path from the root of the walk; empty for the root.
    pub(crate) fn path(&self) -> Vec<u8> {
        self.names().join(&b'/')
    }
}

/// Opens the directories of a walk.
#[derive(Debug)]
pub struct DirectoryOpener {
    root: OwnedFd,
    resolve: ResolveFlags,
    /// True if the kernel has openat2 (since 5.6) and permits it.
    has_openat2: AtomicBool,
}

impl DirectoryOpener {
    /// Creates an opener. With `cross` it also opens directories of other file systems and mounts.
    #[must_use]
    pub fn new(root: OwnedFd, cross: bool) -> DirectoryOpener {
        let mut resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        if !cross {
            resolve |= ResolveFlags::NO_XDEV;
        }
        DirectoryOpener { root, resolve, has_openat2: AtomicBool::new(true) }
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub(crate) fn open(&self, node: &Node) -> Result<OwnedFd> {
        let names = node.names();
        let mut directory: Option<OwnedFd> = None;
        let mut path: Vec<u8> = Vec::new();
        for name in &names {
            if !path.is_empty() && path.len() + name.len() >= PATH_PIECE {
                let from = directory.as_ref().map_or(self.root(), AsFd::as_fd);
                directory = Some(self.open_at(from, &path)?);
                path.clear();
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'.');
        }
        self.open_at(directory.as_ref().map_or(self.root(), AsFd::as_fd), &path)
    }

    /// Opens a directory without changing its access time, if permitted: only the owner and root
    /// may.
    fn open_at(&self, from: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
        match self.open_with(from, path, OFlags::NOATIME) {
            Err(Errno::PERM) => self.open_with(from, path, OFlags::empty()),
            opened => opened,
        }
    }

    fn open_with(&self, from: BorrowedFd<'_>, path: &[u8], more: OFlags) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
        if self.has_openat2.load(Ordering::Relaxed) {
            match retry_on_intr(|| openat2(from, path, flags, Mode::empty(), self.resolve)) {
                Err(Errno::NOSYS) => self.has_openat2.store(false, Ordering::Relaxed),
                opened => return opened,
            }
        }
        retry_on_intr(|| openat(from, path, flags, Mode::empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::{FileSystemId, Node};
    use std::sync::Arc;

    #[test]
    fn deep_directories_drop_without_recursion() {
        let place = FileSystemId { device: 1, mount: 0 };
        let mut node = Arc::new(Node { parent: None, name: Box::from(&b""[..]), place });
        assert_eq!(node.path(), b"");
        for _ in 0..1_000_000 {
            node = Arc::new(Node { parent: Some(node), name: Box::from(&b"d"[..]), place });
        }
        assert_eq!(node.path().len(), 2 * 1_000_000 - 1);
        drop(node);
    }
}
