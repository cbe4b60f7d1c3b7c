//! Files the kernel knows, until it has forgotten them.
//!
//! The kernel's node id is the inode number, which programs see as `st_ino`; files that would clash with another get a number
//! of our own: those of a file system mounted below the source, and those that have the number of a file that is gone and
//! that the kernel still knows.

use crate::descriptors::Budget;
use crate::holding::Holding;
use crate::inode::{File, Held, Inode, file, is_directory};
use crate::place::Place;
use rustix::fd::OwnedFd;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// The kernel's id of the root.
pub(crate) const ROOT: u64 = 1;
/// Numbers of our own begin here.
const OWN: u64 = 1 << 63;
/// Tables with more room than this give it back when three quarters are empty.
const ROOMY: usize = 1 << 14;

#[derive(Debug)]
struct Known {
    inode: Arc<Inode>,
    /// How often the kernel was told of it, less what it has forgotten.
    lookups: u64,
}

#[derive(Debug)]
pub(crate) struct Inodes {
    pub(crate) holding: Holding,
    table: RwLock<Table>,
    device: u64,
}

#[derive(Debug)]
struct Table {
    nodes: HashMap<u64, Known>,
    files: HashMap<File, u64>,
    next_own: u64,
}

impl Table {
    fn of(&self, file: &File) -> Option<&Arc<Inode>> {
        self.files.get(file).and_then(|node| self.nodes.get(node)).map(|known| &known.inode)
    }

    fn number_for(&mut self, stat: &Stat, device: u64) -> u64 {
        if stat.st_dev == device && stat.st_ino > ROOT && !self.nodes.contains_key(&stat.st_ino) {
            return stat.st_ino;
        }
        while self.nodes.contains_key(&self.next_own) {
            self.next_own += 1;
        }
        self.next_own += 1;
        self.next_own - 1
    }
}

/// What was freed here and there goes back to the kernel.
fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Inodes {
    /// With the root alone.
    pub(crate) fn new(root: OwnedFd, stat: &Stat, budget: Budget) -> rustix::io::Result<Inodes> {
        let path = Arc::new(rustix::io::fcntl_dupfd_cloexec(&root, 0)?);
        let holding = Holding::new(budget, path);
        let root = Arc::new(holding.counted(root));
        let inode = Arc::new(Inode::new(ROOT, stat, Place::default(), root));
        let table = Table {
            nodes: HashMap::from([(ROOT, Known { inode, lookups: 1 })]),
            files: HashMap::from([(file(stat), ROOT)]),
            next_own: OWN,
        };
        Ok(Inodes { holding, table: RwLock::new(table), device: stat.st_dev })
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file with this node id.
    ///
    /// # Errors
    /// `ESTALE` if the kernel has forgotten it.
    pub(crate) fn known(&self, node: u64) -> Result<Arc<Inode>, Errno> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.nodes.get(&node).map(|known| known.inode.clone()).ok_or(Errno::STALE)
    }

    /// The same with a descriptor.
    ///
    /// # Errors
    /// `ESTALE` if it is gone.
    pub(crate) fn get(&self, node: u64) -> Result<Held, Errno> {
        self.holding.hold(&self.known(node)?)
    }

    fn of(&self, stat: &Stat) -> Option<Arc<Inode>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).of(&file(stat)).cloned()
    }

    /// The kernel is about to be told of a file that was found under a name.
    ///
    /// # Errors
    /// `ELOOP` if it is the root, which the kernel has already.
    pub(crate) fn enter(
        &self,
        fd: OwnedFd,
        stat: &Stat,
        directory: &Arc<Place>,
        name: &OsStr,
    ) -> Result<Arc<Inode>, Errno> {
        // Whether a file without a descriptor is the same was asked outside the lock: it takes calls.
        let mut compared: Option<(Arc<Inode>, bool)> = None;
        loop {
            let mut guard = self.write();
            let table = &mut *guard;
            let node = table.files.get(&file(stat)).copied();
            if let Some(known) = node.and_then(|node| table.nodes.get_mut(&node)) {
                let same = match &compared {
                    Some((inode, same)) if Arc::ptr_eq(inode, &known.inode) => Some(*same),
                    // Which is why nothing else has the number.
                    _ => known.inode.has_descriptor().then_some(true),
                };
                let Some(same) = same else {
                    let inode = known.inode.clone();
                    drop(guard);
                    let same = inode.is_of(&fd);
                    compared = Some((inode, same));
                    continue;
                };
                if same && known.inode.node == ROOT {
                    return Err(Errno::LOOP);
                }
                if same {
                    known.lookups += 1;
                    let inode = known.inode.clone();
                    drop(guard);
                    inode.place.set(directory, name);
                    if stat.st_nlink > 0 && !inode.is_directory {
                        inode.named();
                    }
                    self.holding.keep_if_needed(&inode, fd);
                    return Ok(inode);
                }
            }
            let node = table.number_for(stat, self.device);
            let fd = Arc::new(self.holding.counted(fd));
            let inode = Arc::new(Inode::new(node, stat, Place::of(directory, name), fd));
            table.nodes.insert(node, Known { inode: inode.clone(), lookups: 1 });
            table.files.insert(file(stat), node);
            drop(guard);
            self.holding.entered(&inode);
            return Ok(inode);
        }
    }

    /// The kernel has forgotten so many lookups of a file.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let mut guard = self.write();
        let table = &mut *guard;
        let Some(known) = table.nodes.get_mut(&node).filter(|_| node != ROOT) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return;
        }
        let file = known.inode.file;
        if table.files.get(&file) == Some(&node) {
            table.files.remove(&file);
        }
        // Closed outside the lock.
        let gone = table.nodes.remove(&node);
        let empty = table.nodes.capacity() > ROOMY && table.nodes.len() < table.nodes.capacity() / 4;
        if empty {
            table.nodes.shrink_to(2 * table.nodes.len());
            table.files.shrink_to(2 * table.nodes.len());
        }
        drop(guard);
        drop(gone);
        if empty {
            give_back_memory();
        }
    }

    /// Where the file of a name in a directory is from now on, if the kernel knows it.
    pub(crate) fn moved(&self, stat: &Stat, directory: &Arc<Place>, name: &OsStr) {
        if let Some(inode) = self.of(stat).filter(|inode| inode.node != ROOT) {
            inode.place.set(directory, name);
            inode.named();
        }
    }

    /// The file of a name that is about to go, with its descriptor until [`Inodes::lost`], if the kernel knows it.
    pub(crate) fn losing(&self, fd: OwnedFd, stat: &Stat) -> Option<Held> {
        let inode = self.of(stat).filter(|inode| inode.node != ROOT && inode.is_of(&fd))?;
        let fd = Arc::new(self.holding.counted(fd));
        self.holding.keep(&inode, &fd);
        Some(Held::new(inode, fd))
    }

    /// The name is gone. What cannot be found by another keeps its descriptor while the kernel knows it.
    pub(crate) fn lost(&self, file: &Held, directory: &Arc<Place>, name: &OsStr) {
        let stat = rustix::fs::fstat(file);
        let removed = stat.is_ok_and(|stat| stat.st_nlink == 0 || is_directory(stat.st_mode));
        if removed || file.place.is(directory, name) {
            file.nameless();
            self.holding.keep(file.inode(), file.descriptor());
        }
    }
}
