//! Files the kernel knows: each is held by an `O_PATH` descriptor until the kernel has forgotten it.
//!
//! While it is held its inode number cannot be given to another file. The kernel's node id is that number, which programs
//! see as `st_ino`; files that would clash with another (of a file system mounted below the source) get a number of our own.

use crate::place::Place;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Stat;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, PoisonError, RwLock};

/// The kernel's id of the root.
pub(crate) const ROOT: u64 = 1;
/// Numbers of our own begin here.
const OWN: u64 = 1 << 63;

/// A file the kernel knows.
#[derive(Debug)]
pub(crate) struct Inode {
    fd: OwnedFd,
    pub(crate) place: Arc<Place>,
    /// The kernel's id; [`ROOT`] or what programs see as `st_ino`.
    pub(crate) node: u64,
}

impl AsFd for Inode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[derive(Debug)]
struct Known {
    inode: Arc<Inode>,
    /// How often the kernel was told of it, less what it has forgotten.
    lookups: u64,
    file: File,
}

/// Device and inode number below the mount.
type File = (u64, u64);

#[derive(Debug)]
pub(crate) struct Inodes {
    table: RwLock<Table>,
    device: u64,
}

#[derive(Debug)]
struct Table {
    nodes: HashMap<u64, Known>,
    files: HashMap<File, u64>,
    next_own: u64,
}

fn file(stat: &Stat) -> File {
    (stat.st_dev, stat.st_ino)
}

impl Inodes {
    /// With the root alone.
    pub(crate) fn new(root: OwnedFd, stat: &Stat) -> Inodes {
        let inode = Arc::new(Inode { fd: root, place: Arc::default(), node: ROOT });
        let table = Table {
            nodes: HashMap::from([(ROOT, Known { inode, lookups: 1, file: file(stat) })]),
            files: HashMap::from([(file(stat), ROOT)]),
            next_own: OWN,
        };
        Inodes { table: RwLock::new(table), device: stat.st_dev }
    }

    /// The file with this node id.
    ///
    /// # Errors
    /// `ESTALE` if the kernel has forgotten it.
    pub(crate) fn get(&self, node: u64) -> Result<Arc<Inode>, Errno> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.nodes.get(&node).map(|known| known.inode.clone()).ok_or(Errno::STALE)
    }

    /// The kernel is about to be told of a file that was found under a name.
    ///
    /// # Errors
    /// `ELOOP` if it is the root, which the kernel has already.
    pub(crate) fn enter(
        &self,
        fd: OwnedFd,
        stat: &Stat,
        directory: &Inode,
        name: &OsStr,
    ) -> Result<Arc<Inode>, Errno> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let table = &mut *table;
        if let Some(known) = table.files.get(&file(stat)).and_then(|node| table.nodes.get_mut(node)) {
            if known.inode.node == ROOT {
                return Err(Errno::LOOP);
            }
            known.lookups += 1;
            known.inode.place.set(&directory.place, name);
            return Ok(known.inode.clone());
        }
        let usual =
            stat.st_dev == self.device && stat.st_ino > ROOT && !table.nodes.contains_key(&stat.st_ino);
        let node = if usual {
            stat.st_ino
        } else {
            while table.nodes.contains_key(&table.next_own) {
                table.next_own += 1;
            }
            table.next_own
        };
        table.next_own += u64::from(!usual);
        let inode = Arc::new(Inode { fd, place: Arc::new(Place::of(&directory.place, name)), node });
        table.nodes.insert(node, Known { inode: inode.clone(), lookups: 1, file: file(stat) });
        table.files.insert(file(stat), node);
        Ok(inode)
    }

    /// The kernel has forgotten so many lookups of a file.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = table.nodes.get_mut(&node).filter(|_| node != ROOT) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            let file = known.file;
            table.files.remove(&file);
            // Closed outside the lock.
            let gone = table.nodes.remove(&node);
            drop(table);
            drop(gone);
        }
    }

    /// Where the file of a name in a directory is from now on, if the kernel knows it.
    pub(crate) fn moved(&self, stat: &Stat, directory: &Inode, name: &OsStr) {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.files.get(&file(stat)).and_then(|node| table.nodes.get(node))
            && known.inode.node != ROOT
        {
            known.inode.place.set(&directory.place, name);
        }
    }
}
