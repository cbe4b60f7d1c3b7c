//! A file the kernel knows, with or without a descriptor.
//!
//! With one its inode number cannot be given to another file. Without, a [`Mark`] tells it from a file that has the number
//! later. What may be opened by nothing but a descriptor keeps it as long as there is any choice: a file that was removed
//! while somebody uses it, and one whose last known name was.

use crate::descriptors::Descriptor;
use crate::handle::Mark;
use crate::place::Place;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{OFlags, Stat};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// Device and inode number below the mount.
pub(crate) type File = (u64, u64);

pub(crate) fn file(stat: &Stat) -> File {
    (stat.st_dev, stat.st_ino)
}

pub(crate) fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}

#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) place: Arc<Place>,
    /// The kernel's id; [`crate::inodes::ROOT`] or what programs see as `st_ino`.
    pub(crate) node: u64,
    pub(crate) file: File,
    pub(crate) is_directory: bool,
    /// Since its descriptor was last considered for closing.
    used: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// `O_PATH`.
    path: Option<Arc<Descriptor>>,
    /// Of those who have it open, with the flags.
    opened: Vec<(OFlags, Weak<Descriptor>)>,
    /// Of the last time it had no descriptor.
    mark: Option<Arc<Mark>>,
    nameless: bool,
}

/// A file with a descriptor that stays open as long as this.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    inode: Arc<Inode>,
    fd: Arc<Descriptor>,
}

impl Held {
    pub(crate) fn new(inode: Arc<Inode>, fd: Arc<Descriptor>) -> Held {
        Held { inode, fd }
    }

    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    pub(crate) fn descriptor(&self) -> &Arc<Descriptor> {
        &self.fd
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Deref for Held {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

/// What became of a descriptor that was to be closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// There is none any more.
    Yes,
    /// It is needed.
    No,
}

impl Inode {
    pub(crate) fn new(node: u64, stat: &Stat, place: Place, path: Arc<Descriptor>) -> Inode {
        Inode {
            place: Arc::new(place),
            node,
            file: file(stat),
            is_directory: is_directory(stat.st_mode),
            used: AtomicBool::new(false),
            state: Mutex::new(State { path: Some(path), ..State::default() }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor, if there is one.
    pub(crate) fn descriptor(&self) -> Option<Arc<Descriptor>> {
        self.used.store(true, Relaxed);
        self.state().descriptor()
    }

    pub(crate) fn has_descriptor(&self) -> bool {
        self.state().descriptor().is_some()
    }

    /// It has a descriptor that no program's close takes away.
    pub(crate) fn has_path(&self) -> bool {
        self.state().path.is_some()
    }

    /// What it is found by without a descriptor.
    pub(crate) fn mark(&self) -> Option<Arc<Mark>> {
        self.state().mark.clone()
    }

    /// Whether this descriptor, of a file with the same device and inode number, is of this one.
    pub(crate) fn is_of(&self, fd: impl AsFd) -> bool {
        let mark = {
            let state = self.state();
            if state.descriptor().is_some() {
                // Which is why nothing else has the number.
                return true;
            }
            state.mark.clone()
        };
        mark.is_some_and(|mark| mark.is_of(fd))
    }

    /// Takes a descriptor if there is none. True: it did.
    pub(crate) fn offer(&self, path: &Arc<Descriptor>) -> bool {
        let mut state = self.state();
        let takes = state.path.is_none();
        if takes {
            state.path = Some(path.clone());
        }
        takes
    }

    /// It was found under a name.
    pub(crate) fn named(&self) {
        self.state().nameless = false;
    }

    /// It can no longer be found under any name that is known.
    pub(crate) fn nameless(&self) {
        self.state().nameless = true;
    }

    /// Somebody has it open, and so it has a descriptor.
    pub(crate) fn opened(&self, flags: OFlags, fd: &Arc<Descriptor>) {
        let mut state = self.state();
        if state.opened.len() == state.opened.capacity() {
            state.opened.retain(|(_, opened)| opened.strong_count() > 0);
        }
        state.opened.push((flags, Arc::downgrade(fd)));
    }

    /// What somebody else has open with the same flags.
    pub(crate) fn open_with(&self, flags: OFlags) -> Option<Arc<Descriptor>> {
        let state = self.state();
        state.opened.iter().filter(|(with, _)| *with == flags).find_map(|(_, opened)| opened.upgrade())
    }

    /// Closes the descriptor that was not used of late, with a mark to find it again. `anyway`: what was used, and what may not
    /// be found again, goes, too.
    pub(crate) fn close(&self, anyway: bool, mark: impl FnOnce(BorrowedFd<'_>) -> Mark) -> Closed {
        if self.used.swap(false, Relaxed) && !anyway {
            return Closed::No;
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return Closed::No,
        };
        let Some(path) = &state.path else { return Closed::Yes };
        // In use now, so that it would stay open all the same.
        if Arc::strong_count(path) > 1 || state.nameless && !anyway {
            return Closed::No;
        }
        // Without handles what identifies a file may have changed: overlayfs copies on write.
        if !state.mark.as_ref().is_some_and(|mark| mark.opens_by_handle()) {
            state.mark = Some(Arc::new(mark(path.as_fd())));
        }
        let closed = state.path.take();
        drop(state);
        drop(closed);
        Closed::Yes
    }
}

impl State {
    fn descriptor(&self) -> Option<Arc<Descriptor>> {
        self.path.clone().or_else(|| self.opened.iter().find_map(|(_, opened)| opened.upgrade()))
    }
}
