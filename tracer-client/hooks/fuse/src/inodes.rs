//! Table of the files that the kernel knows, until it forgets them.
//!
//! The kernel's node id is the inode number, which programs see as `st_ino`. A file whose number is
//! in use gets a number of this table: a file of a file system mounted below the source, or a file
//! with the number of a removed file that the kernel still knows.

use crate::descriptor_cache::DescriptorCache;
use crate::descriptors::DescriptorBudget;
use crate::inode::{FileId, Inode, PinnedInode, file_id, is_directory};
use crate::location::Location;
use rustix::fd::OwnedFd;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// Node id of the root.
pub(crate) const ROOT: u64 = 1;
/// First number that this table assigns.
const FIRST_ASSIGNED: u64 = 1 << 63;
/// A map with more capacity than this is shrunk when three quarters of it are empty.
const SHRINK_ABOVE: usize = 1 << 14;

#[derive(Debug)]
struct NodeEntry {
    inode: Arc<Inode>,
    /// Number of lookups that returned the file to the kernel, less those the kernel has forgotten.
    lookups: u64,
}

#[derive(Debug)]
pub(crate) struct Inodes {
    pub(crate) descriptor_cache: DescriptorCache,
    table: RwLock<NodeTable>,
    /// Device of the source.
    device: u64,
}

#[derive(Debug)]
struct NodeTable {
    nodes: HashMap<u64, NodeEntry>,
    files: HashMap<FileId, u64>,
    next_assigned: u64,
}

impl NodeTable {
    fn find(&self, file: &FileId) -> Option<&Arc<Inode>> {
        self.files.get(file).and_then(|node| self.nodes.get(node)).map(|entry| &entry.inode)
    }

    /// Returns the node id for a new file.
    fn node_for(&mut self, stat: &Stat, device: u64) -> u64 {
        if stat.st_dev == device && stat.st_ino > ROOT && !self.nodes.contains_key(&stat.st_ino) {
            return stat.st_ino;
        }
        while self.nodes.contains_key(&self.next_assigned) {
            self.next_assigned += 1;
        }
        self.next_assigned += 1;
        self.next_assigned - 1
    }
}

/// Returns free memory of the heap to the kernel.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY:
    // - `malloc_trim` has no requirements; it is thread-safe.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Inodes {
    /// Creates a table that contains only the root.
    pub(crate) fn new(root: OwnedFd, stat: &Stat, budget: DescriptorBudget) -> rustix::io::Result<Inodes> {
        let path = Arc::new(rustix::io::fcntl_dupfd_cloexec(&root, 0)?);
        let descriptor_cache = DescriptorCache::new(budget, path);
        let root = Arc::new(descriptor_cache.counted(root));
        let inode = Arc::new(Inode::new(ROOT, stat, Location::default(), root));
        let table = NodeTable {
            nodes: HashMap::from([(ROOT, NodeEntry { inode, lookups: 1 })]),
            files: HashMap::from([(file_id(stat), ROOT)]),
            next_assigned: FIRST_ASSIGNED,
        };
        Ok(Inodes { descriptor_cache, table: RwLock::new(table), device: stat.st_dev })
    }

    fn write(&self) -> RwLockWriteGuard<'_, NodeTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file with this node id.
    ///
    /// # Errors
    /// `ESTALE` if the kernel has forgotten the file.
    pub(crate) fn get(&self, node: u64) -> Result<Arc<Inode>, Errno> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.nodes.get(&node).map(|entry| entry.inode.clone()).ok_or(Errno::STALE)
    }

    /// Returns the file with this node id, with a descriptor.
    ///
    /// # Errors
    /// `ESTALE` if the file cannot be found.
    pub(crate) fn pin(&self, node: u64) -> Result<PinnedInode, Errno> {
        self.descriptor_cache.pin(&self.get(node)?)
    }

    fn find(&self, stat: &Stat) -> Option<Arc<Inode>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).find(&file_id(stat)).cloned()
    }

    /// Returns the file that was found under a name, and counts a lookup of it.
    ///
    /// # Errors
    /// `ELOOP` if the file is the root, which the kernel knows already.
    pub(crate) fn look_up(
        &self,
        fd: OwnedFd,
        stat: &Stat,
        directory: &Arc<Location>,
        name: &OsStr,
    ) -> Result<Arc<Inode>, Errno> {
        // Result of comparing a file without a descriptor. The comparison makes system calls and is
        // therefore done without the lock.
        let mut compared: Option<(Arc<Inode>, bool)> = None;
        loop {
            let mut guard = self.write();
            let table = &mut *guard;
            let node = table.files.get(&file_id(stat)).copied();
            if let Some(entry) = node.and_then(|node| table.nodes.get_mut(&node)) {
                let is_same = match &compared {
                    Some((inode, is_same)) if Arc::ptr_eq(inode, &entry.inode) => Some(*is_same),
                    // While it has a descriptor, no other file can have the number.
                    _ => entry.inode.has_descriptor().then_some(true),
                };
                let Some(is_same) = is_same else {
                    let inode = entry.inode.clone();
                    drop(guard);
                    let is_same = inode.is_file_of(&fd);
                    compared = Some((inode, is_same));
                    continue;
                };
                if is_same && entry.inode.node == ROOT {
                    return Err(Errno::LOOP);
                }
                if is_same {
                    entry.lookups += 1;
                    let inode = entry.inode.clone();
                    drop(guard);
                    inode.location.set(directory, name);
                    if stat.st_nlink > 0 && !inode.is_directory {
                        inode.set_named();
                    }
                    self.descriptor_cache.store_if_missing(&inode, fd);
                    return Ok(inode);
                }
            }
            let node = table.node_for(stat, self.device);
            let fd = Arc::new(self.descriptor_cache.counted(fd));
            let inode = Arc::new(Inode::new(node, stat, Location::new(directory, name), fd));
            table.nodes.insert(node, NodeEntry { inode: inode.clone(), lookups: 1 });
            table.files.insert(file_id(stat), node);
            drop(guard);
            self.descriptor_cache.enqueue(&inode);
            return Ok(inode);
        }
    }

    /// Subtracts lookups that the kernel has forgotten. Removes the file when none is left.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let mut guard = self.write();
        let table = &mut *guard;
        let Some(entry) = table.nodes.get_mut(&node).filter(|_| node != ROOT) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups > 0 {
            return;
        }
        let file = entry.inode.file;
        if table.files.get(&file) == Some(&node) {
            table.files.remove(&file);
        }
        // Its descriptor is closed after the lock is released.
        let removed = table.nodes.remove(&node);
        let is_sparse =
            table.nodes.capacity() > SHRINK_ABOVE && table.nodes.len() < table.nodes.capacity() / 4;
        if is_sparse {
            table.nodes.shrink_to(2 * table.nodes.len());
            table.files.shrink_to(2 * table.nodes.len());
        }
        drop(guard);
        drop(removed);
        if is_sparse {
            trim_heap();
        }
    }

    /// Sets the location of a file that was renamed, if the kernel knows it.
    pub(crate) fn set_location(&self, stat: &Stat, directory: &Arc<Location>, name: &OsStr) {
        if let Some(inode) = self.find(stat).filter(|inode| inode.node != ROOT) {
            inode.location.set(directory, name);
            inode.set_named();
        }
    }

    /// Pins the file of a name that is about to be removed until [`Inodes::after_removal`]. Returns
    /// `None` if the kernel does not know the file.
    pub(crate) fn before_removal(&self, fd: OwnedFd, stat: &Stat) -> Option<PinnedInode> {
        let inode = self.find(stat).filter(|inode| inode.node != ROOT && inode.is_file_of(&fd))?;
        let fd = Arc::new(self.descriptor_cache.counted(fd));
        self.descriptor_cache.store(&inode, &fd);
        Some(PinnedInode::new(inode, fd))
    }

    /// Records that a name was removed. A file that cannot be found by another name keeps its
    /// descriptor while the kernel knows it.
    pub(crate) fn after_removal(&self, file: &PinnedInode, directory: &Arc<Location>, name: &OsStr) {
        let stat = rustix::fs::fstat(file);
        let is_removed = stat.is_ok_and(|stat| stat.st_nlink == 0 || is_directory(stat.st_mode));
        if is_removed || file.location.is_at(directory, name) {
            file.set_nameless();
            self.descriptor_cache.store(file.inode(), file.descriptor());
        }
    }
}
