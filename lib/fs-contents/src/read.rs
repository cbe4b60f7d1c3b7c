//! A part of a directory: some of its entries and their attributes, read and not yet counted.

use crate::contents::Attributes;
use crate::errors::{FailedStep, Failure};
use crate::exclude::Excludes;
use crate::node::{DirectoryOpener, FileSystemId, Node};
use crate::pace::Pace;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, RawDir, SeekFrom, Statx, StatxAttributes, StatxFlags, makedev, readlinkat, seek, statx,
};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size of the buffer for directory entries, bytes: one to three thousand names per system call.
const BUFFER: usize = 64 << 10;

/// Longest time for one part. Parts are smaller on slow file systems and at a low rate, because a
/// part counts only when it is complete.
const PART_TIME: Duration = Duration::from_secs(1);

/// A directory to read, and the position at which to continue.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryTask {
    pub(crate) directory: Arc<Node>,
    /// Position of the next entry, as reported by the file system; 0: the start.
    pub(crate) cursor: u64,
    /// Entries before it.
    pub(crate) entries: u64,
}

/// An entry of a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Length of its name, bytes.
    pub(crate) name: u64,
    pub(crate) kind: EntryKind,
}

#[derive(Debug)]
pub(crate) enum EntryKind {
    Directory { attributes: Attributes, id: (u64, u64), node: Arc<Node>, crossed: bool },
    File { attributes: Attributes, id: (u64, u64), crossed: bool },
    Symlink { target: u64 },
    Other(FileType),
}

/// A part of a directory.
#[derive(Debug, Default)]
pub(crate) struct DirectoryPart {
    pub(crate) found: Vec<Entry>,
    pub(crate) failed: Vec<Failure>,
    /// Paths of mount points that were not entered.
    pub(crate) mounts: Vec<Vec<u8>>,
    pub(crate) excluded: u64,
    /// Position of the end of the part and the number of entries before it; `None` at the end of
    /// the directory.
    pub(crate) next: Option<(u64, u64)>,
    /// Entries of the whole directory, if this part contains its end.
    pub(crate) entries: Option<u64>,
}

/// Reads directories, one at a time.
#[derive(Debug)]
pub(crate) struct DirectoryReader<'a> {
    opener: &'a DirectoryOpener,
    excludes: &'a Excludes,
    pace: &'a Pace,
    cross: bool,
    buffer: Box<[MaybeUninit<u8>]>,
    /// The directory that was read last, if it has more entries, and the position in it.
    open: Option<(Arc<Node>, OwnedFd, u64)>,
}

pub(crate) fn attributes(stat: &Statx) -> Attributes {
    Attributes {
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        links: u64::from(stat.stx_nlink),
        atime: stat.stx_atime.tv_sec,
        mtime: stat.stx_mtime.tv_sec,
        ctime: stat.stx_ctime.tv_sec,
    }
}

pub(crate) fn place(stat: &Statx) -> FileSystemId {
    let told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    FileSystemId {
        device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
        mount: if told { stat.stx_mnt_id } else { 0 },
    }
}

pub(crate) fn id(stat: &Statx) -> (u64, u64) {
    (makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino)
}

pub(crate) fn stat(from: BorrowedFd<'_>, name: &CStr, more: AtFlags) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | more;
    retry_on_intr(|| statx(from, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID))
}

impl<'a> DirectoryReader<'a> {
    pub(crate) fn new(
        opener: &'a DirectoryOpener,
        excludes: &'a Excludes,
        pace: &'a Pace,
        cross: bool,
    ) -> Self {
        let buffer = vec![MaybeUninit::uninit(); BUFFER].into_boxed_slice();
        DirectoryReader { opener, excludes, pace, cross, buffer, open: None }
    }

    /// Reads the next part. Failures are recorded in it.
    pub(crate) fn read(&mut self, task: &DirectoryTask) -> DirectoryPart {
        let mut piece = DirectoryPart::default();
        let (fd, at) = match self.open.take() {
            Some((node, fd, at)) if Arc::ptr_eq(&node, &task.directory) => (fd, at),
            _ => match self.opener.open(&task.directory) {
                Ok(fd) => (fd, 0),
                Err(error) => {
                    piece.failed.push(Failure::new(FailedStep::Open, error, task.directory.path()));
                    return piece;
                }
            },
        };
        if at != task.cursor
            && let Err(error) = seek(&fd, SeekFrom::Start(task.cursor))
        {
            piece.failed.push(Failure::new(FailedStep::Read, error, task.directory.path()));
            return piece;
        }
        let position = self.entries(fd.as_fd(), task, &mut piece);
        if let Some(at) = position {
            self.open = Some((Arc::clone(&task.directory), fd, at));
        }
        piece
    }

    /// Reads entries into the part. Returns the position after them, or `None` at the end of the
    /// directory.
    fn entries(
        &mut self,
        fd: BorrowedFd<'_>,
        task: &DirectoryTask,
        piece: &mut DirectoryPart,
    ) -> Option<u64> {
        let begun = Instant::now();
        let mut entries = task.entries;
        let mut directory = RawDir::new(fd, &mut self.buffer);
        let look = EntryReader { fd, parent: &task.directory, excludes: self.excludes, cross: self.cross };
        loop {
            let entry = match directory.next() {
                None => break,
                // The directory was removed in the meantime.
                Some(Err(Errno::NOENT)) => break,
                Some(Err(Errno::INTR)) => continue,
                Some(Err(error)) => {
                    piece.failed.push(Failure::new(FailedStep::Read, error, task.directory.path()));
                    return None;
                }
                Some(Ok(entry)) => entry,
            };
            let after = entry.next_entry_cookie();
            let name = entry.file_name();
            if name != c"." && name != c".." {
                if self.excludes.matches(&task.directory, name.to_bytes()) {
                    piece.excluded += 1;
                } else {
                    self.pace.wait();
                    entries += u64::from(look.read(name, piece));
                }
            }
            let stop = directory.is_buffer_empty();
            if stop || begun.elapsed() > PART_TIME {
                piece.next = Some((after, entries));
                // The rest of the buffer is read again.
                return Some(if stop { after } else { u64::MAX });
            }
        }
        piece.entries = Some(entries);
        None
    }
}

/// Reads the attributes of the entries of a directory.
struct EntryReader<'a> {
    fd: BorrowedFd<'a>,
    parent: &'a Arc<Node>,
    excludes: &'a Excludes,
    cross: bool,
}

impl EntryReader<'_> {
    /// Adds an entry to a part. Returns false if the entry does not exist any more.
    fn read(&self, name: &CStr, piece: &mut DirectoryPart) -> bool {
        let bytes = name.to_bytes();
        let path = || self.excludes.path(self.parent, bytes);
        let stat = match stat(self.fd, name, AtFlags::empty()) {
            Ok(stat) => stat,
            Err(error) => {
                piece.failed.push(Failure::new(FailedStep::Stat, error, path()));
                return error != Errno::NOENT;
            }
        };
        let (place, kind) = (place(&stat), FileType::from_raw_mode(u32::from(stat.stx_mode)));
        let crossed = place != self.parent.place;
        let trigger = kind == FileType::Directory && stat.stx_attributes.contains(StatxAttributes::AUTOMOUNT);
        if (crossed || trigger) && !self.cross {
            piece.mounts.push(path());
            return true;
        }
        let kind = match kind {
            FileType::Directory => {
                let parent = Some(Arc::clone(self.parent));
                let node = Arc::new(Node { parent, name: bytes.into(), place });
                EntryKind::Directory { attributes: attributes(&stat), id: id(&stat), node, crossed }
            }
            FileType::RegularFile => {
                EntryKind::File { attributes: attributes(&stat), id: id(&stat), crossed }
            }
            FileType::Symlink if stat.stx_size > 0 => EntryKind::Symlink { target: stat.stx_size },
            // Some file systems report no length. Reading the link may change its access time.
            FileType::Symlink => match readlinkat(self.fd, name, Vec::with_capacity(256)) {
                Ok(target) => EntryKind::Symlink { target: target.to_bytes().len() as u64 },
                Err(error) => {
                    piece.failed.push(Failure::new(FailedStep::ReadLink, error, path()));
                    return true;
                }
            },
            other => EntryKind::Other(other),
        };
        piece.found.push(Entry { name: bytes.len() as u64, kind });
        true
    }
}
