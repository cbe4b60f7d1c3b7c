//! Which of the files the kernel knows have a descriptor: those used last, as many as there may be.

use crate::descriptors::{Budget, Count, Descriptor};
use crate::handle::{Handles, Mark};
use crate::inode::{Closed, Held, Inode};
use crate::place::Place;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

/// Descriptors that are closed at once where the process has no more.
const AT_ONCE: usize = 16;
/// Files that may be in the queue without a descriptor before it is looked through.
const FORGOTTEN: usize = 1 << 10;

#[derive(Debug)]
pub(crate) struct Holding {
    count: Count,
    /// For all that is open.
    most: usize,
    /// For that and what is known.
    comfortable: usize,
    handles: Handles,
    /// Each with an `O_PATH` descriptor once, in the order in which they are looked at.
    queue: Mutex<VecDeque<Weak<Inode>>>,
    /// Held shared while names change: while it is not, paths are where they are thought to be.
    names: RwLock<()>,
}

impl Holding {
    pub(crate) fn new(budget: Budget, root: Arc<OwnedFd>) -> Holding {
        let handles = Handles::new(root);
        Holding {
            count: Count::default(),
            most: budget.most,
            comfortable: budget.comfortable(handles.open_files()),
            handles,
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

    /// A descriptor of a file.
    ///
    /// # Errors
    /// `ESTALE` if it cannot be found any more.
    pub(crate) fn hold(&self, inode: &Arc<Inode>) -> Result<Held, Errno> {
        loop {
            if let Some(fd) = inode.descriptor() {
                return Ok(Held::new(inode.clone(), fd));
            }
            let Some(mark) = inode.mark() else { return Err(Errno::STALE) };
            let found = self.found(&mark, &inode.place);
            match found {
                Ok(fd) => {
                    let fd = Arc::new(self.counted(fd));
                    if self.keep(inode, &fd) {
                        return Ok(Held::new(inode.clone(), fd));
                    }
                }
                // Somebody else had found it before its name went.
                Err(_) if inode.descriptor().is_some() => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn found(&self, mark: &Mark, place: &Arc<Place>) -> Result<OwnedFd, Errno> {
        let open = || self.with_room(|| self.handles.open(mark, place));
        open().or_else(|errno| match errno {
            Errno::STALE => {
                // It may have been on its way from one name to another.
                let _still = self.names.write().unwrap_or_else(PoisonError::into_inner);
                open()
            }
            errno => Err(errno),
        })
    }

    /// To be kept while a request changes names.
    pub(crate) fn names_change(&self) -> RwLockReadGuard<'_, ()> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a file without a descriptor this one. True: it did.
    pub(crate) fn keep(&self, inode: &Arc<Inode>, fd: &Arc<Descriptor>) -> bool {
        let kept = inode.offer(fd);
        if kept {
            self.entered(inode);
        }
        kept
    }

    pub(crate) fn keep_if_needed(&self, inode: &Arc<Inode>, fd: OwnedFd) {
        if !inode.has_path() {
            self.keep(inode, &Arc::new(self.counted(fd)));
        }
    }

    /// A file has a descriptor from now on.
    pub(crate) fn entered(&self, inode: &Arc<Inode>) {
        let mut queue = self.queue();
        queue.push_back(Arc::downgrade(inode));
        if queue.len() > 2 * self.count.get() + FORGOTTEN {
            queue.retain(|inode| inode.strong_count() > 0);
        }
        drop(queue);
        if self.count.get() > self.comfortable {
            self.shrink(self.comfortable);
        }
    }

    /// Makes room for so many descriptors that programs have open.
    ///
    /// # Errors
    /// `ENFILE` if they have all open.
    pub(crate) fn reserve(&self, wanted: usize) -> Result<(), Errno> {
        if self.count.get() + wanted > self.comfortable {
            self.shrink(self.comfortable.saturating_sub(wanted));
        }
        if self.count.get() + wanted > self.most { Err(Errno::NFILE) } else { Ok(()) }
    }

    /// Makes a call that needs a descriptor, and makes it again with others closed if there is none.
    pub(crate) fn with_room<T>(&self, mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        loop {
            match call() {
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    let open = self.count.get();
                    self.shrink(open.saturating_sub(AT_ONCE));
                    if self.count.get() >= open {
                        return Err(errno);
                    }
                }
                done => return done,
            }
        }
    }

    /// Closes descriptors until no more than `most` are open, or none can be closed: first those of files that were not used
    /// since they were looked at before.
    fn shrink(&self, most: usize) {
        for anyway in [false, true] {
            let mut turns = 2 * self.queue().len();
            while self.count.get() > most && turns > 0 {
                turns -= 1;
                let Some(next) = self.queue().pop_front() else { return };
                let Some(inode) = next.upgrade() else { continue };
                let mark = |fd: BorrowedFd<'_>| self.handles.mark(fd, &inode.place, inode.is_directory);
                if inode.close(anyway, mark) == Closed::No {
                    self.queue().push_back(next);
                }
            }
        }
    }

    /// Opens a file that somebody wants open.
    pub(crate) fn opened(
        &self,
        inode: &Inode,
        flags: OFlags,
        open: impl FnMut() -> Result<OwnedFd, Errno>,
    ) -> Result<Arc<Descriptor>, Errno> {
        let fd = Arc::new(self.beside(open)?);
        inode.opened(flags, &fd);
        Ok(fd)
    }

    /// A descriptor beside one that is open.
    pub(crate) fn beside(&self, open: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<Descriptor, Errno> {
        self.reserve(1)?;
        Ok(self.counted(self.with_room(open)?))
    }
}
