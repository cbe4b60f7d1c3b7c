//! Cache of descriptors of the files that the kernel knows: those used last, up to a limit.

use crate::descriptors::{Descriptor, DescriptorBudget, DescriptorCount};
use crate::inode::{CloseOutcome, Eviction, Inode, PinnedInode};
use crate::location::Location;
use crate::reopen::{ReopenKey, Reopener};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

/// Number of descriptors to close when the process has none left.
const CLOSE_BATCH: usize = 16;
/// Number of freed files that the queue may contain before it is cleaned, in addition to twice the
/// number of open descriptors.
const MAX_FREED_IN_QUEUE: usize = 1 << 10;

#[derive(Debug)]
pub(crate) struct DescriptorCache {
    count: DescriptorCount,
    /// Limit for descriptors that programs have open.
    max_open: usize,
    /// Limit for those and for descriptors of known files.
    preferred_open: usize,
    reopener: Reopener,
    /// Files with an `O_PATH` descriptor, in the order in which they are considered for closing.
    queue: Mutex<VecDeque<Weak<Inode>>>,
    /// Held shared while names change. While it is held exclusively, the known paths are valid.
    names: RwLock<()>,
}

impl DescriptorCache {
    pub(crate) fn new(budget: DescriptorBudget, root: Arc<OwnedFd>) -> DescriptorCache {
        let reopener = Reopener::new(root);
        DescriptorCache {
            count: DescriptorCount::default(),
            max_open: budget.max_open,
            preferred_open: budget.preferred_open(reopener.opens_by_handle()),
            reopener,
            queue: Mutex::default(),
            names: RwLock::default(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Weak<Inode>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counted(&self, fd: OwnedFd) -> Descriptor {
        self.count.counted(fd)
    }

    /// Returns the file with a descriptor, which it reopens if necessary.
    ///
    /// # Errors
    /// `ESTALE` if the file cannot be found any more.
    pub(crate) fn pin(&self, inode: &Arc<Inode>) -> Result<PinnedInode, Errno> {
        loop {
            if let Some(fd) = inode.descriptor() {
                return Ok(PinnedInode::new(inode.clone(), fd));
            }
            let Some(key) = inode.reopen_key() else { return Err(Errno::STALE) };
            match self.reopen(&key, &inode.location) {
                Ok(fd) => {
                    let fd = Arc::new(self.counted(fd));
                    if self.store(inode, &fd) {
                        return Ok(PinnedInode::new(inode.clone(), fd));
                    }
                }
                // Another thread had reopened the file before its name was removed.
                Err(_) if inode.descriptor().is_some() => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn reopen(&self, key: &ReopenKey, location: &Arc<Location>) -> Result<OwnedFd, Errno> {
        let open = || self.with_free_descriptor(|| self.reopener.open(key, location));
        open().or_else(|errno| match errno {
            Errno::STALE => {
                // A rename may have been in progress.
                let _no_rename = self.names.write().unwrap_or_else(PoisonError::into_inner);
                open()
            }
            errno => Err(errno),
        })
    }

    /// Returns a lock to hold while a request changes names.
    pub(crate) fn lock_names(&self) -> RwLockReadGuard<'_, ()> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a descriptor with a file that has none. Returns whether it did.
    pub(crate) fn store(&self, inode: &Arc<Inode>, fd: &Arc<Descriptor>) -> bool {
        let is_stored = inode.set_path_descriptor(fd);
        if is_stored {
            self.enqueue(inode);
        }
        is_stored
    }

    /// Stores a descriptor with a file unless it has one.
    pub(crate) fn store_if_missing(&self, inode: &Arc<Inode>, fd: OwnedFd) {
        if !inode.has_path_descriptor() {
            self.store(inode, &Arc::new(self.counted(fd)));
        }
    }

    /// Adds a file that has got a descriptor to the queue, and closes descriptors above the limit.
    pub(crate) fn enqueue(&self, inode: &Arc<Inode>) {
        let mut queue = self.queue();
        queue.push_back(Arc::downgrade(inode));
        if queue.len() > 2 * self.count.get() + MAX_FREED_IN_QUEUE {
            queue.retain(|inode| inode.strong_count() > 0);
        }
        drop(queue);
        if self.count.get() > self.preferred_open {
            self.shrink(self.preferred_open);
        }
    }

    /// Makes `wanted` descriptors available for files that programs open.
    ///
    /// # Errors
    /// `ENFILE` if programs have all descriptors open.
    pub(crate) fn reserve(&self, wanted: usize) -> Result<(), Errno> {
        if self.count.get() + wanted > self.preferred_open {
            self.shrink(self.preferred_open.saturating_sub(wanted));
        }
        if self.count.get() + wanted > self.max_open { Err(Errno::NFILE) } else { Ok(()) }
    }

    /// Makes a call that needs a descriptor. If none is free, it closes others and repeats the
    /// call.
    pub(crate) fn with_free_descriptor<T>(
        &self,
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            match call() {
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    let open = self.count.get();
                    self.shrink(open.saturating_sub(CLOSE_BATCH));
                    if self.count.get() >= open {
                        return Err(errno);
                    }
                }
                done => return done,
            }
        }
    }

    /// Closes descriptors until at most `target` are open or none can be closed. Descriptors of
    /// files that were not used since the previous visit are closed first.
    fn shrink(&self, target: usize) {
        for eviction in [Eviction::Unused, Eviction::Any] {
            let mut visits = 2 * self.queue().len();
            while self.count.get() > target && visits > 0 {
                visits -= 1;
                let Some(next) = self.queue().pop_front() else { return };
                let Some(inode) = next.upgrade() else { continue };
                let key = |fd: BorrowedFd<'_>| self.reopener.key(fd, &inode.location, inode.is_directory);
                if inode.close(eviction, key) == CloseOutcome::Kept {
                    self.queue().push_back(next);
                }
            }
        }
    }

    /// Opens a file for a program.
    pub(crate) fn open_for_program(
        &self,
        inode: &Inode,
        flags: OFlags,
        open: impl FnMut() -> Result<OwnedFd, Errno>,
    ) -> Result<Arc<Descriptor>, Errno> {
        let fd = Arc::new(self.open_additional(open)?);
        inode.add_open(flags, &fd);
        Ok(fd)
    }

    /// Opens a further descriptor of a file that a program has open.
    pub(crate) fn open_additional(
        &self,
        open: impl FnMut() -> Result<OwnedFd, Errno>,
    ) -> Result<Descriptor, Errno> {
        self.reserve(1)?;
        Ok(self.counted(self.with_free_descriptor(open)?))
    }
}
