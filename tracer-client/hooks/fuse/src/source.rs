//! The directory that is shown: what each request does to it.

use crate::attributes::{attributes, device_of, to_set};
use crate::buffer;
use crate::caller::Server;
use crate::descriptors::Budget;
use crate::inode::{Held, Inode};
use crate::inodes::{Inodes, ROOT};
use crate::opened::{OpenDirectory, OpenFile, kept, link_of, reopen};
use crate::place::Place;
use fuser::{FileAttr, Request, TimeOrNow, WriteFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, SeekFrom, Stat, StatVfs, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::{Errno, ReadWriteFlags};
use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

/// Most bytes of one copy: the answer has 32 bits.
const MOST_COPIED: u64 = 1 << 30;
/// Longest value of an extended attribute, and list of their names: Linux's `XATTR_SIZE_MAX`.
const XATTR_BYTES: u32 = 64 << 10;

pub(crate) type Answer<T> = Result<T, Errno>;

/// A name in a directory that the kernel knows by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(crate) parent: u64,
    pub(crate) name: &'a OsStr,
}

/// What is to be set of a file; what is `None` stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
}

/// The directory, as far as the kernel knows of it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) inodes: Inodes,
    server: Server,
}

impl Source {
    pub(crate) fn new(root: OwnedFd, budget: Budget) -> Answer<Source> {
        let stat = rustix::fs::fstat(&root)?;
        Ok(Source { inodes: Inodes::new(root, &stat, budget)?, server: Server::new()? })
    }

    pub(crate) fn is_root(&self) -> bool {
        self.server.is_root()
    }

    fn find(&self, directory: impl AsFd, name: &OsStr) -> Answer<(OwnedFd, Stat)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = directory.as_fd();
        let fd =
            self.inodes.holding.with_room(|| rustix::fs::openat(directory, name, flags, Mode::empty()))?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, stat))
    }

    /// Finds a name in a directory at `place`, and counts that the kernel is told of it.
    pub(crate) fn enter(
        &self,
        directory: impl AsFd,
        place: &Arc<Place>,
        name: &OsStr,
    ) -> Answer<(Arc<Inode>, FileAttr)> {
        let (fd, stat) = self.find(directory, name)?;
        let inode = self.inodes.enter(fd, &stat, place, name)?;
        let attributes = attributes(inode.node, &stat);
        Ok((inode, attributes))
    }

    fn enter_held(&self, directory: &Held, name: &OsStr) -> Answer<(Arc<Inode>, FileAttr)> {
        self.enter(directory, &directory.place, name)
    }

    pub(crate) fn look_up(&self, at: Name<'_>) -> Answer<FileAttr> {
        let directory = self.inodes.get(at.parent)?;
        self.enter_held(&directory, at.name).map(|(_, attributes)| attributes)
    }

    pub(crate) fn attributes(&self, node: u64) -> Answer<FileAttr> {
        self.stat(&self.inodes.get(node)?)
    }

    fn stat(&self, inode: &Held) -> Answer<FileAttr> {
        let stat = rustix::fs::fstat(inode)?;
        Ok(attributes(if inode.node == ROOT { stat.st_ino } else { inode.node }, &stat))
    }

    pub(crate) fn set_attributes(
        &self,
        request: &Request,
        node: u64,
        to: &Changes,
        file: Option<&OpenFile>,
    ) -> Answer<FileAttr> {
        let inode = self.inodes.get(node)?;
        let link = link_of(&inode);
        if to.uid.is_some() || to.gid.is_some() {
            let (uid, gid) = (to.uid.map(Uid::from_raw), to.gid.map(Gid::from_raw));
            let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&inode, c"", uid, gid, flags)?;
        }
        if let Some(mode) = to.mode {
            // After a change of owner, which takes bits away.
            self.server.keep_bits(true);
            rustix::fs::chmodat(CWD, &*link, permissions(mode), AtFlags::empty())?;
        }
        if let Some(size) = to.size {
            self.server.keep_bits(request.uid() == 0);
            match file {
                Some(file) => rustix::fs::ftruncate(file, size)?,
                None => {
                    let write = OFlags::WRONLY | OFlags::CLOEXEC;
                    let file = self.inodes.holding.with_room(|| reopen(&inode, write))?;
                    rustix::fs::ftruncate(file, size)?;
                }
            }
        }
        if to.atime.is_some() || to.mtime.is_some() {
            let times = Timestamps { last_access: to_set(to.atime), last_modification: to_set(to.mtime) };
            rustix::fs::utimensat(CWD, &*link, &times, AtFlags::empty())?;
        }
        self.stat(&inode)
    }

    pub(crate) fn read_link(&self, node: u64) -> Answer<Vec<u8>> {
        let target = rustix::fs::readlinkat(self.inodes.get(node)?, c"", Vec::new())?;
        Ok(target.into_bytes())
    }

    /// Makes a name with `make`, as the caller, and looks it up.
    fn make(
        &self,
        request: &Request,
        at: Name<'_>,
        mask: u32,
        make: impl FnOnce(&Held) -> Answer<()>,
    ) -> Answer<FileAttr> {
        let directory = self.inodes.get(at.parent)?;
        self.server.making(request, mask, || make(&directory))?;
        self.enter_held(&directory, at.name).map(|(_, attributes)| attributes)
    }

    pub(crate) fn make_node(
        &self,
        request: &Request,
        at: Name<'_>,
        (mode, mask): (u32, u32),
        device: u32,
    ) -> Answer<FileAttr> {
        self.make(request, at, mask, |directory| {
            let kind = rustix::fs::FileType::from_raw_mode(mode);
            rustix::fs::mknodat(directory, at.name, kind, permissions(mode), device_of(device))
        })
    }

    pub(crate) fn make_directory(
        &self,
        request: &Request,
        at: Name<'_>,
        (mode, mask): (u32, u32),
    ) -> Answer<FileAttr> {
        self.make(request, at, mask, |directory| rustix::fs::mkdirat(directory, at.name, permissions(mode)))
    }

    pub(crate) fn make_symlink(&self, request: &Request, at: Name<'_>, target: &Path) -> Answer<FileAttr> {
        self.make(request, at, 0, |directory| rustix::fs::symlinkat(target, directory, at.name))
    }

    pub(crate) fn remove(&self, at: Name<'_>, flags: AtFlags) -> Answer<()> {
        let directory = self.inodes.get(at.parent)?;
        let removed = self.losing(&directory, at.name);
        rustix::fs::unlinkat(&directory, at.name, flags)?;
        self.lost(removed, &directory, at.name);
        Ok(())
    }

    pub(crate) fn rename(&self, old: Name<'_>, new: Name<'_>, flags: RenameFlags) -> Answer<()> {
        let (from, to) = (self.inodes.get(old.parent)?, self.inodes.get(new.parent)?);
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let replaced = if exchange { None } else { self.losing(&to, new.name) };
        let _change = self.inodes.holding.names_change();
        rustix::fs::renameat_with(&from, old.name, &to, new.name, flags)?;
        self.lost(replaced, &to, new.name);
        self.moved(&to, new.name);
        if exchange {
            self.moved(&from, old.name);
        }
        Ok(())
    }

    fn moved(&self, directory: &Held, name: &OsStr) {
        if let Ok(stat) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.inodes.moved(&stat, &directory.place, name);
        }
    }

    /// What has a name that is about to go, if the kernel knows it.
    fn losing(&self, directory: &Held, name: &OsStr) -> Option<Held> {
        let (fd, stat) = self.find(directory, name).ok()?;
        self.inodes.losing(fd, &stat)
    }

    fn lost(&self, file: Option<Held>, directory: &Held, name: &OsStr) {
        if let Some(file) = file {
            self.inodes.lost(&file, &directory.place, name);
        }
    }

    pub(crate) fn link(&self, node: u64, at: Name<'_>) -> Answer<FileAttr> {
        let (inode, directory) = (self.inodes.get(node)?, self.inodes.get(at.parent)?);
        rustix::fs::linkat(CWD, &*link_of(&inode), &directory, at.name, AtFlags::SYMLINK_FOLLOW)?;
        self.enter_held(&directory, at.name).map(|(_, attributes)| attributes)
    }

    pub(crate) fn open(&self, request: &Request, node: u64, flags: i32) -> Answer<OpenFile> {
        self.server.keep_bits(request.uid() == 0);
        OpenFile::open(&self.inodes.holding, &self.inodes.get(node)?, flags)
    }

    pub(crate) fn open_directory(&self, node: u64) -> Answer<OpenDirectory> {
        OpenDirectory::open(&self.inodes.holding, &self.inodes.get(node)?)
    }

    pub(crate) fn create(
        &self,
        request: &Request,
        at: Name<'_>,
        (mode, mask): (u32, u32),
        flags: i32,
    ) -> Answer<(OpenFile, FileAttr)> {
        let directory = self.inodes.get(at.parent)?;
        let exclusive = OFlags::from_bits_retain((flags & libc::O_EXCL) as u32);
        let below = kept(flags).0 | OFlags::CREATE | OFlags::NOFOLLOW | exclusive;
        let holding = &self.inodes.holding;
        // Before the server is the caller.
        holding.reserve(1)?;
        let fd = self.server.making(request, mask, || {
            holding.with_room(|| rustix::fs::openat(&directory, at.name, below, permissions(mode)))
        })?;
        let fd = holding.counted(fd);
        let (inode, attributes) = self.enter_held(&directory, at.name)?;
        let file = OpenFile::made(holding, inode, flags, fd)
            .inspect_err(|_| self.inodes.forget(attributes.ino.0, 1))?;
        Ok((file, attributes))
    }

    /// Reads as far as the file goes: to the kernel a short read is the end of the file.
    pub(crate) fn read(&self, file: &OpenFile, buffer: &mut [u8], offset: u64, flags: i32) -> Answer<usize> {
        if flags & libc::O_DIRECT != 0 {
            return rustix::io::pread(file.direct(&self.inodes.holding)?, buffer, offset);
        }
        let mut read = 0;
        while read < buffer.len() {
            match rustix::io::pread(file, &mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(_) if read > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(read)
    }

    pub(crate) fn write(
        &self,
        file: &OpenFile,
        data: &[u8],
        offset: u64,
        how: WriteFlags,
        flags: i32,
    ) -> Answer<usize> {
        self.server.keep_bits(!how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID));
        // Pages of a mapping come through any open descriptor, whose flags mean nothing then.
        let of_mapping = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let (append, direct) = (flags & libc::O_APPEND != 0, flags & libc::O_DIRECT != 0);
        let way = if append && !of_mapping { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
        if direct && !of_mapping {
            buffer::with(data.len(), |aligned| {
                aligned.copy_from_slice(data);
                rustix::io::pwritev2(
                    file.direct(&self.inodes.holding)?,
                    &[IoSlice::new(aligned)],
                    offset,
                    way,
                )
            })
        } else if way.is_empty() {
            rustix::io::pwrite(file, data, offset)
        } else {
            rustix::io::pwritev2(file, &[IoSlice::new(data)], offset, way)
        }
    }

    /// A close of a duplicate: what a network file system does at a close it does now, and may fail.
    pub(crate) fn flush(&self, file: &OpenFile) -> Answer<()> {
        let copy = self.inodes.holding.with_room(|| rustix::io::fcntl_dupfd_cloexec(file, 0))?;
        // SAFETY: the descriptor is owned, and used no more.
        unsafe { rustix::io::try_close(rustix::fd::IntoRawFd::into_raw_fd(copy)) }
    }

    pub(crate) fn sync(&self, what: impl AsFd, only_data: bool) -> Answer<()> {
        if only_data { rustix::fs::fdatasync(what) } else { rustix::fs::fsync(what) }
    }

    pub(crate) fn usage(&self, node: u64) -> Answer<StatVfs> {
        rustix::fs::fstatvfs(self.inodes.get(node)?)
    }

    pub(crate) fn set_xattr(&self, node: u64, name: &OsStr, value: &[u8], flags: i32) -> Answer<()> {
        let inode = self.inodes.get(node)?;
        self.server.keep_bits(true);
        let flags = XattrFlags::from_bits_retain(flags as u32);
        rustix::fs::setxattr(&*link_of(&inode), name, value, flags)
    }

    /// The value, or with a `size` of 0 its length alone.
    pub(crate) fn xattr(&self, node: u64, name: &OsStr, size: u32) -> Answer<(Vec<u8>, usize)> {
        let inode = self.inodes.get(node)?;
        sized(size, |value| rustix::fs::getxattr(&*link_of(&inode), name, value)).map_err(|errno| {
            // A file system without access control lists has none; the kernel would refuse all access.
            let list = name.as_bytes().starts_with(b"system.posix_acl_");
            if list && errno == Errno::OPNOTSUPP { Errno::NODATA } else { errno }
        })
    }

    /// The names, or with a `size` of 0 their length alone.
    pub(crate) fn xattrs(&self, node: u64, size: u32) -> Answer<(Vec<u8>, usize)> {
        let inode = self.inodes.get(node)?;
        sized(size, |names| rustix::fs::listxattr(&*link_of(&inode), names))
    }

    pub(crate) fn remove_xattr(&self, node: u64, name: &OsStr) -> Answer<()> {
        rustix::fs::removexattr(&*link_of(self.inodes.get(node)?), name)
    }

    pub(crate) fn allocate(
        &self,
        request: &Request,
        file: &OpenFile,
        (offset, length): (u64, u64),
        mode: i32,
    ) -> Answer<()> {
        self.server.keep_bits(request.uid() == 0);
        rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode as u32), offset, length)
    }

    pub(crate) fn seek(&self, file: &OpenFile, offset: i64, whence: i32) -> Answer<u64> {
        let start = offset as u64;
        match whence {
            libc::SEEK_HOLE => rustix::fs::seek(file, SeekFrom::Hole(start)),
            libc::SEEK_DATA => rustix::fs::seek(file, SeekFrom::Data(start)),
            libc::SEEK_SET => Ok(start),
            libc::SEEK_END => rustix::fs::seek(file, SeekFrom::End(offset)),
            _ => Err(Errno::INVAL),
        }
    }

    pub(crate) fn copy(
        &self,
        request: &Request,
        (from, mut read): (&OpenFile, u64),
        (to, mut write): (&OpenFile, u64),
        length: u64,
    ) -> Answer<usize> {
        self.server.keep_bits(request.uid() == 0);
        let most = length.min(MOST_COPIED) as usize;
        rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut write), most)
    }
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

/// What `get` puts into a buffer of the caller's size, and its length; with a size of 0 the length alone.
fn sized(size: u32, get: impl FnOnce(&mut [u8]) -> Answer<usize>) -> Answer<(Vec<u8>, usize)> {
    let mut value = vec![0; size.min(XATTR_BYTES) as usize];
    let length = get(&mut value)?;
    value.truncate(length);
    Ok((value, length))
}
