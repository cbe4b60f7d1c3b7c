//! Execution of each request on the source directory.

use crate::aligned_buffer::with_buffer;
use crate::attributes::{attributes, decode_device, time_to_set};
use crate::credentials::{ServerCredentials, SetIdBits};
use crate::descriptors::DescriptorBudget;
use crate::inode::{Inode, PinnedInode};
use crate::inodes::{Inodes, ROOT};
use crate::location::Location;
use crate::open_files::{OpenDirectory, OpenFile, backing_flags, proc_link, reopen};
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

/// Maximum size of one copy in bytes: the reply has 32 bits.
const MAX_COPY: u64 = 1 << 30;
/// Maximum size in bytes of the value of an extended attribute and of the list of names: Linux's
/// `XATTR_SIZE_MAX`.
const XATTR_BYTES: u32 = 64 << 10;

pub(crate) type SourceResult<T> = Result<T, Errno>;

/// A name in a directory, which is given by its node id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryName<'a> {
    pub(crate) parent: u64,
    pub(crate) name: &'a OsStr,
}

/// Attributes to set; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeChanges {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
}

/// The source directory and the files of it that the kernel knows.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) inodes: Inodes,
    credentials: ServerCredentials,
}

impl Source {
    pub(crate) fn new(root: OwnedFd, budget: DescriptorBudget) -> SourceResult<Source> {
        let stat = rustix::fs::fstat(&root)?;
        Ok(Source { inodes: Inodes::new(root, &stat, budget)?, credentials: ServerCredentials::new()? })
    }

    pub(crate) fn is_root(&self) -> bool {
        self.credentials.is_root()
    }

    /// Opens the file of a name with `O_PATH`.
    fn find(&self, directory: impl AsFd, name: &OsStr) -> SourceResult<(OwnedFd, Stat)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = directory.as_fd();
        let fd = self
            .inodes
            .descriptor_cache
            .with_free_descriptor(|| rustix::fs::openat(directory, name, flags, Mode::empty()))?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, stat))
    }

    /// Finds a name in a directory at `location`, and counts a lookup of the file.
    pub(crate) fn look_up_in(
        &self,
        directory: impl AsFd,
        location: &Arc<Location>,
        name: &OsStr,
    ) -> SourceResult<(Arc<Inode>, FileAttr)> {
        let (fd, stat) = self.find(directory, name)?;
        let inode = self.inodes.look_up(fd, &stat, location, name)?;
        let attributes = attributes(inode.node, &stat);
        Ok((inode, attributes))
    }

    fn look_up_in_pinned(
        &self,
        directory: &PinnedInode,
        name: &OsStr,
    ) -> SourceResult<(Arc<Inode>, FileAttr)> {
        self.look_up_in(directory, &directory.location, name)
    }

    pub(crate) fn look_up(&self, at: EntryName<'_>) -> SourceResult<FileAttr> {
        let directory = self.inodes.pin(at.parent)?;
        self.look_up_in_pinned(&directory, at.name).map(|(_, attributes)| attributes)
    }

    pub(crate) fn attributes(&self, node: u64) -> SourceResult<FileAttr> {
        self.stat(&self.inodes.pin(node)?)
    }

    fn stat(&self, inode: &PinnedInode) -> SourceResult<FileAttr> {
        let stat = rustix::fs::fstat(inode)?;
        Ok(attributes(if inode.node == ROOT { stat.st_ino } else { inode.node }, &stat))
    }

    pub(crate) fn set_attributes(
        &self,
        request: &Request,
        node: u64,
        to: &AttributeChanges,
        file: Option<&OpenFile>,
    ) -> SourceResult<FileAttr> {
        let inode = self.inodes.pin(node)?;
        let link = proc_link(&inode);
        if to.uid.is_some() || to.gid.is_some() {
            let (uid, gid) = (to.uid.map(Uid::from_raw), to.gid.map(Gid::from_raw));
            let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&inode, c"", uid, gid, flags)?;
        }
        if let Some(mode) = to.mode {
            // After a change of owner, which clears bits.
            self.credentials.on_data_change(SetIdBits::Keep);
            rustix::fs::chmodat(CWD, &*link, permissions(mode), AtFlags::empty())?;
        }
        if let Some(size) = to.size {
            self.credentials.on_data_change(SetIdBits::for_caller(request));
            match file {
                Some(file) => rustix::fs::ftruncate(file, size)?,
                None => {
                    let write = OFlags::WRONLY | OFlags::CLOEXEC;
                    let file = self.inodes.descriptor_cache.with_free_descriptor(|| reopen(&inode, write))?;
                    rustix::fs::ftruncate(file, size)?;
                }
            }
        }
        if to.atime.is_some() || to.mtime.is_some() {
            let times =
                Timestamps { last_access: time_to_set(to.atime), last_modification: time_to_set(to.mtime) };
            rustix::fs::utimensat(CWD, &*link, &times, AtFlags::empty())?;
        }
        self.stat(&inode)
    }

    pub(crate) fn read_link(&self, node: u64) -> SourceResult<Vec<u8>> {
        let target = rustix::fs::readlinkat(self.inodes.pin(node)?, c"", Vec::new())?;
        Ok(target.into_bytes())
    }

    /// Creates a name with `create`, as the caller, and looks it up.
    fn create_name(
        &self,
        request: &Request,
        at: EntryName<'_>,
        mask: u32,
        create: impl FnOnce(&PinnedInode) -> SourceResult<()>,
    ) -> SourceResult<FileAttr> {
        let directory = self.inodes.pin(at.parent)?;
        self.credentials.as_caller(request, mask, || create(&directory))?;
        self.look_up_in_pinned(&directory, at.name).map(|(_, attributes)| attributes)
    }

    pub(crate) fn create_node(
        &self,
        request: &Request,
        at: EntryName<'_>,
        (mode, mask): (u32, u32),
        device: u32,
    ) -> SourceResult<FileAttr> {
        self.create_name(request, at, mask, |directory| {
            let file_type = rustix::fs::FileType::from_raw_mode(mode);
            rustix::fs::mknodat(directory, at.name, file_type, permissions(mode), decode_device(device))
        })
    }

    pub(crate) fn create_directory(
        &self,
        request: &Request,
        at: EntryName<'_>,
        (mode, mask): (u32, u32),
    ) -> SourceResult<FileAttr> {
        self.create_name(request, at, mask, |directory| {
            rustix::fs::mkdirat(directory, at.name, permissions(mode))
        })
    }

    pub(crate) fn create_symlink(
        &self,
        request: &Request,
        at: EntryName<'_>,
        target: &Path,
    ) -> SourceResult<FileAttr> {
        self.create_name(request, at, 0, |directory| rustix::fs::symlinkat(target, directory, at.name))
    }

    pub(crate) fn remove(&self, at: EntryName<'_>, flags: AtFlags) -> SourceResult<()> {
        let directory = self.inodes.pin(at.parent)?;
        let removed = self.before_removal(&directory, at.name);
        rustix::fs::unlinkat(&directory, at.name, flags)?;
        self.after_removal(removed, &directory, at.name);
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        old: EntryName<'_>,
        new: EntryName<'_>,
        flags: RenameFlags,
    ) -> SourceResult<()> {
        let (from, to) = (self.inodes.pin(old.parent)?, self.inodes.pin(new.parent)?);
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let replaced = if exchange { None } else { self.before_removal(&to, new.name) };
        let _names = self.inodes.descriptor_cache.lock_names();
        rustix::fs::renameat_with(&from, old.name, &to, new.name, flags)?;
        self.after_removal(replaced, &to, new.name);
        self.update_location(&to, new.name);
        if exchange {
            self.update_location(&from, old.name);
        }
        Ok(())
    }

    /// Sets the location of the file that has a name after a rename.
    fn update_location(&self, directory: &PinnedInode, name: &OsStr) {
        if let Ok(stat) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.inodes.set_location(&stat, &directory.location, name);
        }
    }

    /// Pins the file of a name that is about to be removed, if the kernel knows the file.
    fn before_removal(&self, directory: &PinnedInode, name: &OsStr) -> Option<PinnedInode> {
        let (fd, stat) = self.find(directory, name).ok()?;
        self.inodes.before_removal(fd, &stat)
    }

    fn after_removal(&self, file: Option<PinnedInode>, directory: &PinnedInode, name: &OsStr) {
        if let Some(file) = file {
            self.inodes.after_removal(&file, &directory.location, name);
        }
    }

    pub(crate) fn link(&self, node: u64, at: EntryName<'_>) -> SourceResult<FileAttr> {
        let (inode, directory) = (self.inodes.pin(node)?, self.inodes.pin(at.parent)?);
        rustix::fs::linkat(CWD, &*proc_link(&inode), &directory, at.name, AtFlags::SYMLINK_FOLLOW)?;
        self.look_up_in_pinned(&directory, at.name).map(|(_, attributes)| attributes)
    }

    pub(crate) fn open(&self, request: &Request, node: u64, flags: i32) -> SourceResult<OpenFile> {
        self.credentials.on_data_change(SetIdBits::for_caller(request));
        OpenFile::open(&self.inodes.descriptor_cache, &self.inodes.pin(node)?, flags)
    }

    pub(crate) fn open_directory(&self, node: u64) -> SourceResult<OpenDirectory> {
        OpenDirectory::open(&self.inodes.descriptor_cache, &self.inodes.pin(node)?)
    }

    pub(crate) fn create(
        &self,
        request: &Request,
        at: EntryName<'_>,
        (mode, mask): (u32, u32),
        flags: i32,
    ) -> SourceResult<(OpenFile, FileAttr)> {
        let directory = self.inodes.pin(at.parent)?;
        let exclusive = OFlags::from_bits_retain((flags & libc::O_EXCL) as u32);
        let backing = backing_flags(flags).open | OFlags::CREATE | OFlags::NOFOLLOW | exclusive;
        let cache = &self.inodes.descriptor_cache;
        // Before this thread takes the caller's credentials.
        cache.reserve(1)?;
        let fd = self.credentials.as_caller(request, mask, || {
            cache.with_free_descriptor(|| rustix::fs::openat(&directory, at.name, backing, permissions(mode)))
        })?;
        let fd = cache.counted(fd);
        let (inode, attributes) = self.look_up_in_pinned(&directory, at.name)?;
        let file = OpenFile::from_created(cache, inode, flags, fd)
            .inspect_err(|_| self.inodes.forget(attributes.ino.0, 1))?;
        Ok((file, attributes))
    }

    /// Reads until the buffer is full or the file ends: the kernel takes a short read as the end of
    /// the file.
    pub(crate) fn read(
        &self,
        file: &OpenFile,
        buffer: &mut [u8],
        offset: u64,
        flags: i32,
    ) -> SourceResult<usize> {
        if flags & libc::O_DIRECT != 0 {
            return rustix::io::pread(file.direct(&self.inodes.descriptor_cache)?, buffer, offset);
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
    ) -> SourceResult<usize> {
        let clear = how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        self.credentials.on_data_change(if clear { SetIdBits::Clear } else { SetIdBits::Keep });
        // The kernel writes pages of a mapping through any open descriptor, whose flags do not
        // apply.
        let of_mapping = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let (append, direct) = (flags & libc::O_APPEND != 0, flags & libc::O_DIRECT != 0);
        let write_flags =
            if append && !of_mapping { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
        if direct && !of_mapping {
            with_buffer(data.len(), |aligned| {
                aligned.copy_from_slice(data);
                rustix::io::pwritev2(
                    file.direct(&self.inodes.descriptor_cache)?,
                    &[IoSlice::new(aligned)],
                    offset,
                    write_flags,
                )
            })
        } else if write_flags.is_empty() {
            rustix::io::pwrite(file, data, offset)
        } else {
            rustix::io::pwritev2(file, &[IoSlice::new(data)], offset, write_flags)
        }
    }

    /// Closes a duplicate of the descriptor, so that a network file system does its work of a close
    /// now, and can fail.
    pub(crate) fn flush(&self, file: &OpenFile) -> SourceResult<()> {
        let copy =
            self.inodes.descriptor_cache.with_free_descriptor(|| rustix::io::fcntl_dupfd_cloexec(file, 0))?;
        // SAFETY:
        // - The descriptor is owned and is not used again.
        unsafe { rustix::io::try_close(rustix::fd::IntoRawFd::into_raw_fd(copy)) }
    }

    /// Writes data and metadata to storage, or data only.
    pub(crate) fn sync(&self, file: impl AsFd, only_data: bool) -> SourceResult<()> {
        if only_data { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) }
    }

    pub(crate) fn usage(&self, node: u64) -> SourceResult<StatVfs> {
        rustix::fs::fstatvfs(self.inodes.pin(node)?)
    }

    pub(crate) fn set_xattr(&self, node: u64, name: &OsStr, value: &[u8], flags: i32) -> SourceResult<()> {
        let inode = self.inodes.pin(node)?;
        self.credentials.on_data_change(SetIdBits::Keep);
        let flags = XattrFlags::from_bits_retain(flags as u32);
        rustix::fs::setxattr(&*proc_link(&inode), name, value, flags)
    }

    /// Returns the value and its length in bytes; with a `size` of 0 only its length.
    pub(crate) fn xattr(&self, node: u64, name: &OsStr, size: u32) -> SourceResult<(Vec<u8>, usize)> {
        let inode = self.inodes.pin(node)?;
        get_sized(size, |value| rustix::fs::getxattr(&*proc_link(&inode), name, value)).map_err(|errno| {
            // A file system without access control lists has an empty list. With EOPNOTSUPP the
            // kernel would refuse all access.
            let is_acl = name.as_bytes().starts_with(b"system.posix_acl_");
            if is_acl && errno == Errno::OPNOTSUPP { Errno::NODATA } else { errno }
        })
    }

    /// Returns the names and their total length in bytes; with a `size` of 0 only the length.
    pub(crate) fn xattrs(&self, node: u64, size: u32) -> SourceResult<(Vec<u8>, usize)> {
        let inode = self.inodes.pin(node)?;
        get_sized(size, |names| rustix::fs::listxattr(&*proc_link(&inode), names))
    }

    pub(crate) fn remove_xattr(&self, node: u64, name: &OsStr) -> SourceResult<()> {
        rustix::fs::removexattr(&*proc_link(self.inodes.pin(node)?), name)
    }

    pub(crate) fn allocate(
        &self,
        request: &Request,
        file: &OpenFile,
        (offset, length): (u64, u64),
        mode: i32,
    ) -> SourceResult<()> {
        self.credentials.on_data_change(SetIdBits::for_caller(request));
        rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode as u32), offset, length)
    }

    pub(crate) fn seek(&self, file: &OpenFile, offset: i64, whence: i32) -> SourceResult<u64> {
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
    ) -> SourceResult<usize> {
        self.credentials.on_data_change(SetIdBits::for_caller(request));
        let most = length.min(MAX_COPY) as usize;
        rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut write), most)
    }
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

/// Calls `get` with a buffer of the caller's size, and returns the value and its length in bytes;
/// with a size of 0 only the length.
fn get_sized(
    size: u32,
    get: impl FnOnce(&mut [u8]) -> SourceResult<usize>,
) -> SourceResult<(Vec<u8>, usize)> {
    let mut value = vec![0; size.min(XATTR_BYTES) as usize];
    let length = get(&mut value)?;
    value.truncate(length);
    Ok((value, length))
}
