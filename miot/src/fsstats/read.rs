//! Some entries of a directory and their attributes: what is read, and not yet counted.

use super::errors::{Failed, Step};
use super::exclude::Excludes;
use super::node::{Node, Opener, Place};
use super::pace::Pace;
use miot_trace_analysis::contents::Attributes;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, RawDir, SeekFrom, Statx, StatxAttributes, StatxFlags, makedev, readlinkat, seek, statx,
};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of directory entries in one system call: one to three thousand names.
const BUFFER: usize = 64 << 10;

/// Slow file systems, and a low rate, make smaller pieces: what a piece has found counts only when it is complete.
const PIECE_TIME: Duration = Duration::from_secs(1);

/// Where in a directory to go on.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) directory: Arc<Node>,
    /// What the file system says that the next entry is at; 0: the begin.
    pub(crate) cursor: u64,
    /// Entries before it.
    pub(crate) entries: u64,
}

/// Something with a name.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: u64,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Directory { attributes: Attributes, id: (u64, u64), node: Arc<Node>, crossed: bool },
    File { attributes: Attributes, id: (u64, u64), crossed: bool },
    Symlink { target: u64 },
    Other(FileType),
}

/// A piece of a directory.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) found: Vec<Found>,
    pub(crate) failed: Vec<Failed>,
    /// Paths of mount points that were left alone.
    pub(crate) mounts: Vec<Vec<u8>>,
    pub(crate) excluded: u64,
    /// Where it ends, and entries before that; `None`: at the end of the directory.
    pub(crate) next: Option<(u64, u64)>,
    /// Entries of the whole directory, if this piece has its end.
    pub(crate) entries: Option<u64>,
}

/// Reads directories, one at a time.
#[derive(Debug)]
pub(crate) struct DirectoryReader<'a> {
    opener: &'a Opener,
    excludes: &'a Excludes,
    pace: &'a Pace,
    cross: bool,
    buffer: Box<[MaybeUninit<u8>]>,
    /// The directory that was read last, if there is more in it, and where in it.
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

pub(crate) fn place(stat: &Statx) -> Place {
    let told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    Place {
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
    pub(crate) fn new(opener: &'a Opener, excludes: &'a Excludes, pace: &'a Pace, cross: bool) -> Self {
        let buffer = vec![MaybeUninit::uninit(); BUFFER].into_boxed_slice();
        DirectoryReader { opener, excludes, pace, cross, buffer, open: None }
    }

    /// The next piece. What cannot be read is said in it.
    pub(crate) fn read(&mut self, task: &Task) -> Piece {
        let mut piece = Piece::default();
        let (fd, at) = match self.open.take() {
            Some((node, fd, at)) if Arc::ptr_eq(&node, &task.directory) => (fd, at),
            _ => match self.opener.open(&task.directory) {
                Ok(fd) => (fd, 0),
                Err(error) => {
                    piece.failed.push(Failed::new(Step::Open, error, task.directory.path()));
                    return piece;
                }
            },
        };
        if at != task.cursor
            && let Err(error) = seek(&fd, SeekFrom::Start(task.cursor))
        {
            piece.failed.push(Failed::new(Step::Read, error, task.directory.path()));
            return piece;
        }
        let position = self.entries(fd.as_fd(), task, &mut piece);
        if let Some(at) = position {
            self.open = Some((Arc::clone(&task.directory), fd, at));
        }
        piece
    }

    /// Reads entries into the piece; where the directory stands after that, unless it is at its end.
    fn entries(&mut self, fd: BorrowedFd<'_>, task: &Task, piece: &mut Piece) -> Option<u64> {
        let begun = Instant::now();
        let mut entries = task.entries;
        let mut directory = RawDir::new(fd, &mut self.buffer);
        let look = Look { fd, parent: &task.directory, excludes: self.excludes, cross: self.cross };
        loop {
            let entry = match directory.next() {
                None => break,
                // It was removed in the meantime.
                Some(Err(Errno::NOENT)) => break,
                Some(Err(Errno::INTR)) => continue,
                Some(Err(error)) => {
                    piece.failed.push(Failed::new(Step::Read, error, task.directory.path()));
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
                    entries += u64::from(look.at(name, piece));
                }
            }
            let stop = directory.is_buffer_empty();
            if stop || begun.elapsed() > PIECE_TIME {
                piece.next = Some((after, entries));
                // What is left in the buffer is read again.
                return Some(if stop { after } else { u64::MAX });
            }
        }
        piece.entries = Some(entries);
        None
    }
}

/// Entries of a directory, looked at one by one.
struct Look<'a> {
    fd: BorrowedFd<'a>,
    parent: &'a Arc<Node>,
    excludes: &'a Excludes,
    cross: bool,
}

impl Look<'_> {
    /// True if the entry was there.
    fn at(&self, name: &CStr, piece: &mut Piece) -> bool {
        let bytes = name.to_bytes();
        let path = || self.excludes.path(self.parent, bytes);
        let stat = match stat(self.fd, name, AtFlags::empty()) {
            Ok(stat) => stat,
            Err(error) => {
                piece.failed.push(Failed::new(Step::Stat, error, path()));
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
                Kind::Directory { attributes: attributes(&stat), id: id(&stat), node, crossed }
            }
            FileType::RegularFile => Kind::File { attributes: attributes(&stat), id: id(&stat), crossed },
            FileType::Symlink if stat.stx_size > 0 => Kind::Symlink { target: stat.stx_size },
            // Some file systems give no length. Reading it may change its access time.
            FileType::Symlink => match readlinkat(self.fd, name, Vec::with_capacity(256)) {
                Ok(target) => Kind::Symlink { target: target.to_bytes().len() as u64 },
                Err(error) => {
                    piece.failed.push(Failed::new(Step::ReadLink, error, path()));
                    return true;
                }
            },
            other => Kind::Other(other),
        };
        piece.found.push(Found { name: bytes.len() as u64, kind });
        true
    }
}
