//! A file that the kernel knows, with or without a descriptor.
//!
//! While a descriptor is open, the inode number cannot be assigned to another file. Without one, a
//! [`ReopenKey`] distinguishes the file from a later file with the same number. A file that can be
//! reached only by its descriptor keeps the descriptor as long as possible: a removed file in use,
//! and a file whose last known name was removed.

#![expect(clippy::disallowed_types, reason = "use bit of the clock algorithm")]

use crate::descriptors::Descriptor;
use crate::location::Location;
use crate::reopen::ReopenKey;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{OFlags, Stat};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// Device and inode number of a file of the source.
pub(crate) type FileId = (u64, u64);

pub(crate) fn file_id(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

pub(crate) fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}

#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) location: Arc<Location>,
    /// Node id of the kernel: [`crate::inodes::ROOT`], or the `st_ino` that programs see.
    pub(crate) node: u64,
    pub(crate) file: FileId,
    pub(crate) is_directory: bool,
    /// Set by each use, cleared when the descriptor is considered for closing.
    used: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// `O_PATH` descriptor.
    path: Option<Arc<Descriptor>>,
    /// Descriptors that programs have open, with their flags.
    opened: Vec<(OFlags, Weak<Descriptor>)>,
    /// Key from the last time the descriptor was closed.
    reopen_key: Option<Arc<ReopenKey>>,
    /// The file cannot be found under any known name.
    is_nameless: bool,
}

/// A file whose descriptor stays open as long as this value.
#[derive(Clone, Debug)]
pub(crate) struct PinnedInode {
    inode: Arc<Inode>,
    fd: Arc<Descriptor>,
}

impl PinnedInode {
    pub(crate) fn new(inode: Arc<Inode>, fd: Arc<Descriptor>) -> PinnedInode {
        PinnedInode { inode, fd }
    }

    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    pub(crate) fn descriptor(&self) -> &Arc<Descriptor> {
        &self.fd
    }
}

impl AsFd for PinnedInode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Deref for PinnedInode {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

/// Selects the descriptors that may be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// Those of files that were not used recently and can be found again.
    Unused,
    /// All.
    Any,
}

/// Result of closing a file's descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CloseOutcome {
    /// The file has no descriptor any more.
    Closed,
    /// The descriptor is needed.
    Kept,
}

impl Inode {
    pub(crate) fn new(node: u64, stat: &Stat, location: Location, path: Arc<Descriptor>) -> Inode {
        Inode {
            location: Arc::new(location),
            node,
            file: file_id(stat),
            is_directory: is_directory(stat.st_mode),
            used: AtomicBool::new(false),
            state: Mutex::new(State { path: Some(path), ..State::default() }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a descriptor, if there is one, and marks the file as used.
    pub(crate) fn descriptor(&self) -> Option<Arc<Descriptor>> {
        self.used.store(true, Relaxed);
        self.state().descriptor()
    }

    pub(crate) fn has_descriptor(&self) -> bool {
        self.state().descriptor().is_some()
    }

    /// Returns whether the file has a descriptor that no program closes.
    pub(crate) fn has_path_descriptor(&self) -> bool {
        self.state().path.is_some()
    }

    /// Returns the key that reopens the file.
    pub(crate) fn reopen_key(&self) -> Option<Arc<ReopenKey>> {
        self.state().reopen_key.clone()
    }

    /// Returns whether a descriptor of a file with the same device and inode number refers to this
    /// file.
    pub(crate) fn is_file_of(&self, fd: impl AsFd) -> bool {
        let key = {
            let state = self.state();
            if state.descriptor().is_some() {
                // No other file can have the number.
                return true;
            }
            state.reopen_key.clone()
        };
        key.is_some_and(|key| key.is_file_of(fd))
    }

    /// Stores an `O_PATH` descriptor if there is none. Returns whether it did.
    pub(crate) fn set_path_descriptor(&self, path: &Arc<Descriptor>) -> bool {
        let mut state = self.state();
        let is_missing = state.path.is_none();
        if is_missing {
            state.path = Some(path.clone());
        }
        is_missing
    }

    /// Records that the file was found under a name.
    pub(crate) fn set_named(&self) {
        self.state().is_nameless = false;
    }

    /// Records that the file cannot be found under any known name.
    pub(crate) fn set_nameless(&self) {
        self.state().is_nameless = true;
    }

    /// Adds a descriptor that a program has open.
    pub(crate) fn add_open(&self, flags: OFlags, fd: &Arc<Descriptor>) {
        let mut state = self.state();
        if state.opened.len() == state.opened.capacity() {
            state.opened.retain(|(_, opened)| opened.strong_count() > 0);
        }
        state.opened.push((flags, Arc::downgrade(fd)));
    }

    /// Returns a descriptor that a program has open with the same flags.
    pub(crate) fn open_with(&self, flags: OFlags) -> Option<Arc<Descriptor>> {
        let state = self.state();
        state.opened.iter().filter(|(with, _)| *with == flags).find_map(|(_, opened)| opened.upgrade())
    }

    /// Closes the `O_PATH` descriptor and stores the key that `make_key` returns for it.
    pub(crate) fn close(
        &self,
        eviction: Eviction,
        make_key: impl FnOnce(BorrowedFd<'_>) -> ReopenKey,
    ) -> CloseOutcome {
        let any = eviction == Eviction::Any;
        if self.used.swap(false, Relaxed) && !any {
            return CloseOutcome::Kept;
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return CloseOutcome::Kept,
        };
        let Some(path) = &state.path else { return CloseOutcome::Closed };
        // A descriptor in use would stay open anyway.
        if Arc::strong_count(path) > 1 || state.is_nameless && !any {
            return CloseOutcome::Kept;
        }
        // Without handles the identity of a file may have changed: overlayfs copies on write.
        if !state.reopen_key.as_ref().is_some_and(|key| key.opens_by_handle()) {
            state.reopen_key = Some(Arc::new(make_key(path.as_fd())));
        }
        let closed = state.path.take();
        drop(state);
        drop(closed);
        CloseOutcome::Closed
    }
}

impl State {
    fn descriptor(&self) -> Option<Arc<Descriptor>> {
        self.path.clone().or_else(|| self.opened.iter().find_map(|(_, opened)| opened.upgrade()))
    }
}
