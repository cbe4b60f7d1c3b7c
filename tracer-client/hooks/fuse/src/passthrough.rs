//! The file system: each request is begun, made on the source, ended, and answered.
//!
//! fuser calls these functions from several threads, each of which answers what it has taken before it takes the next.
//! Not asked for and so never sent: locks, which the kernel keeps by itself, and access checks, which it makes from the attributes.

use crate::attributes::{attributes, device_of, kind, to_set};
use crate::buffer;
use crate::caller::Server;
use crate::inodes::{Inode, Inodes, ROOT};
use crate::opened::{OpenDirectory, OpenFile, Table, kept, link_of, reopen};
use crate::options::Cache;
use crate::record::{Recorded, argument, doing, doing_nothing, done, done_with};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno as Reply, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use miot_tracer::op::client as op;
use miot_tracer::{Done, NONE, flag};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, SeekFrom, Timestamps, Uid, XattrFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Largest read and write the kernel sends: its own default limit, 256 pages.
const MOST_BYTES: u32 = 1 << 20;
/// Requests of the kernel's own (reading ahead, writing pages of mappings) at a time.
const BACKGROUND: u16 = 64;
/// Most bytes of one copy: the answer has 32 bits.
const MOST_COPIED: u64 = 1 << 30;
/// Longest value of an extended attribute, and list of their names: Linux's `XATTR_SIZE_MAX`.
const XATTR_BYTES: usize = 64 << 10;
/// Bit of a `readdir` that asked for attributes as well, among the operation's own flags.
const PLUS: u16 = 1 << flag::OP_SHIFT;
const GENERATION: Generation = Generation(0);

/// A directory as a file system.
#[derive(Debug)]
pub struct Passthrough {
    inodes: Inodes,
    files: Table<OpenFile>,
    directories: Table<OpenDirectory>,
    server: Server,
    cache: Cache,
    /// The mount point, as paths in the trace begin.
    mount: Vec<u8>,
}

type Answer<T> = Result<T, Errno>;

fn refusal(errno: Errno) -> Reply {
    Reply::from_i32(errno.raw_os_error())
}

fn zero<T>(_: &T) -> i64 {
    0
}

impl Passthrough {
    /// The directory `source` as it is to appear at `mount`.
    ///
    /// # Errors
    /// If the directory cannot be looked at.
    pub fn new(source: OwnedFd, mount: &Path, cache: Cache) -> rustix::io::Result<Passthrough> {
        let stat = rustix::fs::fstat(&source)?;
        Ok(Passthrough {
            inodes: Inodes::new(source, &stat),
            files: Table::default(),
            directories: Table::default(),
            server: Server::new()?,
            cache,
            mount: mount.as_os_str().as_bytes().to_vec(),
        })
    }

    fn ttl(&self) -> Duration {
        match self.cache {
            Cache::None => Duration::ZERO,
            Cache::Auto => Duration::from_secs(1),
            Cache::Always => Duration::from_secs(24 * 3600),
        }
    }

    fn open_flags(&self) -> FopenFlags {
        match self.cache {
            Cache::None => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            Cache::Auto => FopenFlags::empty(),
            Cache::Always => FopenFlags::FOPEN_KEEP_CACHE,
        }
    }

    /// Finds a name, and counts that the kernel is told of it.
    fn enter(&self, directory: &Inode, name: &OsStr) -> Answer<(Arc<Inode>, FileAttr)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        let inode = self.inodes.enter(fd, &stat, directory, name)?;
        let attributes = attributes(inode.node, &stat);
        Ok((inode, attributes))
    }

    fn stat(&self, inode: &Inode) -> Answer<FileAttr> {
        let stat = rustix::fs::fstat(inode)?;
        Ok(attributes(if inode.node == ROOT { stat.st_ino } else { inode.node }, &stat))
    }

    fn path(&self, node: u64) -> Vec<u8> {
        self.inodes.get(node).map(|inode| inode.place.path(&self.mount)).unwrap_or_default()
    }

    fn path_of(&self, parent: INodeNo, name: &OsStr) -> Vec<u8> {
        self.inodes.get(parent.0).map(|inode| inode.place.path_of(&self.mount, name)).unwrap_or_default()
    }

    /// Makes a name with `make`, as the caller, and looks it up.
    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mask: u32,
        make: impl FnOnce(&Inode) -> Answer<()>,
    ) -> Answer<FileAttr> {
        let directory = self.inodes.get(parent.0)?;
        self.server.making(request, mask, || make(&directory))?;
        self.enter(&directory, name).map(|(_, attributes)| attributes)
    }

    fn answer_entry(&self, result: Answer<FileAttr>, reply: ReplyEntry) {
        match result {
            Ok(attributes) => reply.entry(&self.ttl(), &attributes, GENERATION),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    /// A request on an open file.
    fn on_file(
        &self,
        op: miot_tracer::Op,
        request: &Request,
        file: &Answer<Arc<OpenFile>>,
        (offset, length): (u64, u64),
    ) -> Recorded {
        match file {
            Ok(file) => Recorded::on(op, request, doing(file.traced.handle, offset, length), || {
                file.traced.define(&self.mount)
            }),
            Err(_) => Recorded::begin(op, request),
        }
    }

    fn on_directory(
        &self,
        op: miot_tracer::Op,
        request: &Request,
        directory: &Answer<Arc<OpenDirectory>>,
    ) -> Recorded {
        match directory {
            Ok(directory) => Recorded::on(op, request, doing_nothing(directory.traced.handle), || {
                directory.traced.define(&self.mount)
            }),
            Err(_) => Recorded::begin(op, request),
        }
    }
}

/// What a finished request on an open file says of it.
fn of_file(done: Done, file: &Answer<Arc<OpenFile>>, offset: u64, length: u64) -> Done {
    let (handle, flags) = file.as_ref().map_or((0, 0), |file| (file.traced.handle, file.traced.flags));
    Done { handle, offset, length, flags: done.flags | flags, ..done }
}

fn answer_empty(result: Answer<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(refusal(errno)),
    }
}

/// Answers with a value that was read into a buffer for as much as the caller asked for.
fn answer_xattr(result: &Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) => reply.data(value),
        Err(errno) => reply.error(refusal(*errno)),
    }
}

/// Refuses what is longer than the caller's buffer.
fn fitting(value: Vec<u8>, size: u32) -> Answer<Vec<u8>> {
    if size != 0 && value.len() > size as usize { Err(Errno::RANGE) } else { Ok(value) }
}

impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = vec![
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_ASYNC_DIO,
            // The mask is applied below, where default access control lists are known.
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_ACL,
        ];
        if self.server.is_root() {
            // Without this the kernel asks for an extended attribute before each write.
            wanted.push(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        }
        match self.cache {
            Cache::None => wanted.push(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP),
            Cache::Auto => {}
            Cache::Always => wanted.push(InitFlags::FUSE_CACHE_SYMLINKS),
        }
        for flags in wanted {
            // An older kernel does without.
            let _ = config.add_capabilities(flags);
        }
        let _ = config.set_max_write(MOST_BYTES);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let recorded = Recorded::begin(op::LOOKUP, request);
        let result = self.inodes.get(parent.0).and_then(|directory| self.enter(&directory, name));
        recorded.end_path(done(&result, zero), || self.path_of(parent, name), b"");
        self.answer_entry(result.map(|(_, attributes)| attributes), reply);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.inodes.forget(node.0, lookups);
    }

    fn getattr(&self, request: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let recorded = Recorded::begin(op::GETATTR, request);
        let result = self.inodes.get(node.0).and_then(|inode| self.stat(&inode));
        recorded.end_path(done(&result, zero), || self.path(node.0), b"");
        match result {
            Ok(attributes) => reply.attr(&self.ttl(), &attributes),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        file: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let recorded = Recorded::begin(if size.is_some() { op::TRUNCATE } else { op::SETATTR }, request);
        let file = file.and_then(|file| self.files.get(file.0).ok());
        let result = self.inodes.get(node.0).and_then(|inode| {
            let link = link_of(&*inode);
            if uid.is_some() || gid.is_some() {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(&*inode, c"", uid, gid, flags)?;
            }
            if let Some(mode) = mode {
                // After a change of owner, which takes bits away.
                self.server.keep_bits(true);
                rustix::fs::chmodat(CWD, &*link, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
            }
            if let Some(size) = size {
                self.server.keep_bits(request.uid() == 0);
                match &file {
                    Some(file) => rustix::fs::ftruncate(&**file, size)?,
                    None => rustix::fs::ftruncate(reopen(&*inode, OFlags::WRONLY | OFlags::CLOEXEC)?, size)?,
                }
            }
            if atime.is_some() || mtime.is_some() {
                let times = Timestamps { last_access: to_set(atime), last_modification: to_set(mtime) };
                rustix::fs::utimensat(CWD, &*link, &times, AtFlags::empty())?;
            }
            self.stat(&inode)
        });
        let bits = [mode.is_some(), uid.is_some(), gid.is_some(), false, atime.is_some(), mtime.is_some()];
        let changed = bits.iter().enumerate().map(|(bit, set)| i32::from(*set) << bit).sum();
        let word = size.unwrap_or_else(|| argument(changed, mode.unwrap_or(0)));
        recorded.end_path(done_with(&result, word), || self.path(node.0), b"");
        match result {
            Ok(attributes) => reply.attr(&self.ttl(), &attributes),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        let recorded = Recorded::begin(op::READLINK, request);
        let result = self
            .inodes
            .get(node.0)
            .and_then(|inode| rustix::fs::readlinkat(&*inode, c"", Vec::new()))
            .map(std::ffi::CString::into_bytes);
        recorded.end_path(done(&result, |target| target.len() as i64), || self.path(node.0), b"");
        match result {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let recorded = Recorded::begin(op::MKNOD, request);
        let result = self.make(request, parent, name, mask, |directory| {
            let kind = rustix::fs::FileType::from_raw_mode(mode);
            rustix::fs::mknodat(directory, name, kind, Mode::from_raw_mode(mode & 0o7777), device_of(device))
        });
        recorded.end_path(done_with(&result, argument(0, mode)), || self.path_of(parent, name), b"");
        self.answer_entry(result, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        reply: ReplyEntry,
    ) {
        let recorded = Recorded::begin(op::MKDIR, request);
        let result = self.make(request, parent, name, mask, |directory| {
            rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(mode & 0o7777))
        });
        recorded.end_path(done_with(&result, mode.into()), || self.path_of(parent, name), b"");
        self.answer_entry(result, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = Recorded::begin(op::UNLINK, request);
        let result = self
            .inodes
            .get(parent.0)
            .and_then(|directory| rustix::fs::unlinkat(&*directory, name, AtFlags::empty()));
        recorded.end_path(done(&result, zero), || self.path_of(parent, name), b"");
        answer_empty(result, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = Recorded::begin(op::RMDIR, request);
        let result = self
            .inodes
            .get(parent.0)
            .and_then(|directory| rustix::fs::unlinkat(&*directory, name, AtFlags::REMOVEDIR));
        recorded.end_path(done(&result, zero), || self.path_of(parent, name), b"");
        answer_empty(result, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let recorded = Recorded::begin(op::SYMLINK, request);
        let result =
            self.make(request, parent, name, 0, |directory| rustix::fs::symlinkat(target, directory, name));
        recorded.end_paths(done(&result, zero), || {
            (target.as_os_str().as_bytes().to_vec(), self.path_of(parent, name))
        });
        self.answer_entry(result, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let recorded = Recorded::begin(op::RENAME, request);
        let paths = || (self.path_of(parent, name), self.path_of(new_parent, new_name));
        // As they are before it: a rename of a directory changes them.
        let (old, new) = if recorded.is_some() { paths() } else { Default::default() };
        let result = self.inodes.get(parent.0).and_then(|from| {
            let to = self.inodes.get(new_parent.0)?;
            let below = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            rustix::fs::renameat_with(&*from, name, &*to, new_name, below)?;
            let found = |directory: &Inode, name: &OsStr| {
                rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()
            };
            if let Some(stat) = found(&to, new_name) {
                self.inodes.moved(&stat, &to, new_name);
            }
            if flags.contains(RenameFlags::RENAME_EXCHANGE)
                && let Some(stat) = found(&from, name)
            {
                self.inodes.moved(&stat, &from, name);
            }
            Ok(())
        });
        recorded.end_paths(done_with(&result, flags.bits().into()), || (old, new));
        answer_empty(result, reply);
    }

    fn link(&self, request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let recorded = Recorded::begin(op::LINK, request);
        let old = if recorded.is_some() { self.path(node.0) } else { Vec::new() };
        let result = self.inodes.get(node.0).and_then(|inode| {
            let directory = self.inodes.get(parent.0)?;
            rustix::fs::linkat(CWD, &*link_of(&*inode), &*directory, name, AtFlags::SYMLINK_FOLLOW)?;
            self.enter(&directory, name).map(|(_, attributes)| attributes)
        });
        recorded.end_paths(done(&result, zero), || (old, self.path_of(parent, name)));
        self.answer_entry(result, reply);
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let recorded = Recorded::begin(op::OPEN, request);
        self.server.keep_bits(request.uid() == 0);
        let result = self.inodes.get(node.0).and_then(|inode| OpenFile::open(inode, flags.0));
        let handle = result.as_ref().map_or(0, |file| file.traced.handle);
        if let Ok(file) = &result {
            file.traced.set_named(recorded.is_some());
        }
        let done = Done { handle, ..done_with(&result, argument(flags.0, 0)) };
        recorded.end_path(done, || self.path(node.0), b"");
        match result {
            Ok(file) => reply.opened(FileHandle(self.files.insert(file)), self.open_flags()),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let recorded = Recorded::begin(op::CREATE, request);
        let result = self.inodes.get(parent.0).and_then(|directory| {
            let below = kept(flags).0
                | OFlags::CREATE
                | OFlags::NOFOLLOW
                | OFlags::from_bits_retain((flags & libc::O_EXCL) as u32);
            let fd = self.server.making(request, mask, || {
                rustix::fs::openat(&*directory, name, below, Mode::from_raw_mode(mode & 0o7777))
            })?;
            let (inode, attributes) = self.enter(&directory, name)?;
            let file =
                OpenFile::made(inode, flags, fd).inspect_err(|_| self.inodes.forget(attributes.ino.0, 1))?;
            Ok((file, attributes))
        });
        let handle = result.as_ref().map_or(0, |(file, _)| file.traced.handle);
        if let Ok((file, _)) = &result {
            file.traced.set_named(recorded.is_some());
        }
        let done = Done { handle, ..done_with(&result, argument(flags, mode)) };
        recorded.end_path(done, || self.path_of(parent, name), b"");
        match result {
            Ok((file, attributes)) => {
                let handle = FileHandle(self.files.insert(file));
                reply.created(&self.ttl(), &attributes, GENERATION, handle, self.open_flags());
            }
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = self.files.get(file.0);
        let recorded = self.on_file(op::READ, request, &file, (offset, size.into()));
        buffer::with(size as usize, |buffer| {
            let result = file.as_ref().map_err(|errno| *errno).and_then(|file| {
                if flags.0 & libc::O_DIRECT != 0 {
                    rustix::io::pread(file.direct()?, &mut *buffer, offset)
                } else {
                    read_all(file, buffer, offset)
                }
            });
            recorded.end(of_file(done(&result, |n| *n as i64), &file, offset, size.into()));
            match result {
                Ok(read) => reply.data(&buffer[..read]),
                Err(errno) => reply.error(refusal(errno)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = self.files.get(file.0);
        let length = data.len() as u64;
        let recorded = self.on_file(op::WRITE, request, &file, (offset, length));
        let result = file.as_ref().map_err(|errno| *errno).and_then(|file| {
            self.server.keep_bits(!how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID));
            // Pages of a mapping come through any open descriptor, whose flags mean nothing then.
            let of_mapping = how.contains(WriteFlags::FUSE_WRITE_CACHE);
            let (append, direct) = (flags.0 & libc::O_APPEND != 0, flags.0 & libc::O_DIRECT != 0);
            let way = if append && !of_mapping { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
            if direct && !of_mapping {
                buffer::with(data.len(), |aligned| {
                    aligned.copy_from_slice(data);
                    rustix::io::pwritev2(file.direct()?, &[IoSlice::new(aligned)], offset, way)
                })
            } else if way.is_empty() {
                rustix::io::pwrite(file, data, offset)
            } else {
                rustix::io::pwritev2(file, &[IoSlice::new(data)], offset, way)
            }
        });
        recorded.end(of_file(done(&result, |n| *n as i64), &file, offset, length));
        match result {
            Ok(written) => reply.written(written as u32),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn flush(&self, request: &Request, _: INodeNo, file: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let file = self.files.get(file.0);
        let recorded = self.on_file(op::FLUSH, request, &file, (NONE, NONE));
        // A close of a duplicate: what a network file system does at a close it does now, and may fail.
        let result = file.as_ref().map_err(|errno| *errno).and_then(|file| {
            let copy = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
            // SAFETY: the descriptor is owned, and used no more.
            unsafe { rustix::io::try_close(rustix::fd::IntoRawFd::into_raw_fd(copy)) }
        });
        recorded.end(of_file(done(&result, zero), &file, NONE, NONE));
        answer_empty(result, reply);
    }

    fn release(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let file = self.files.remove(file.0).ok_or(Errno::BADF);
        let recorded = self.on_file(op::CLOSE, request, &file, (NONE, NONE));
        let done = of_file(done(&file, zero), &file, NONE, NONE);
        drop(file);
        recorded.end(done);
        reply.ok();
    }

    fn fsync(&self, request: &Request, _: INodeNo, file: FileHandle, data: bool, reply: ReplyEmpty) {
        let file = self.files.get(file.0);
        let recorded = self.on_file(op::FSYNC, request, &file, (NONE, NONE));
        let result = file
            .as_ref()
            .map_err(|errno| *errno)
            .and_then(|file| if data { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) });
        recorded.end(of_file(done(&result, zero), &file, NONE, NONE));
        answer_empty(result, reply);
    }

    fn opendir(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let recorded = Recorded::begin(op::OPENDIR, request);
        let result = self.inodes.get(node.0).and_then(OpenDirectory::open);
        let handle = result.as_ref().map_or(0, |directory| directory.traced.handle);
        if let Ok(directory) = &result {
            directory.traced.set_named(recorded.is_some());
        }
        let done = Done { handle, ..done_with(&result, argument(flags.0, 0)) };
        recorded.end_path(done, || self.path(node.0), b"");
        let keep = match self.cache {
            Cache::Always => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            Cache::None | Cache::Auto => FopenFlags::empty(),
        };
        match result {
            Ok(directory) => reply.opened(FileHandle(self.directories.insert(directory)), keep),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn readdir(
        &self,
        request: &Request,
        _: INodeNo,
        directory: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let directory = self.directories.get(directory.0);
        let recorded = self.on_directory(op::READDIR, request, &directory);
        let result = directory.as_ref().map_err(|errno| *errno).and_then(|directory| {
            directory.read(offset, |entry| {
                let name = OsStr::from_bytes(&entry.name);
                Ok(!reply.add(INodeNo(entry.number), entry.next, kind(entry.kind), name))
            })
        });
        let handle = directory.as_ref().map_or(0, |directory| directory.traced.handle);
        recorded.end(Done { handle, offset, ..done(&result, |n| *n as i64) });
        match result {
            Ok(_) => reply.ok(),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        _: INodeNo,
        directory: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let directory = self.directories.get(directory.0);
        let recorded = self.on_directory(op::READDIR, request, &directory);
        let ttl = self.ttl();
        let result = directory.as_ref().map_err(|errno| *errno).and_then(|directory| {
            directory.read(offset, |entry| {
                let name = OsStr::from_bytes(&entry.name);
                if matches!(&*entry.name, b"." | b"..") {
                    // The kernel takes these for names alone, and counts no lookup.
                    let mut here = attributes(entry.number, &rustix::fs::fstat(directory)?);
                    here.ino = INodeNo(entry.number);
                    return Ok(!reply.add(here.ino, entry.next, name, &ttl, &here, GENERATION));
                }
                match self.enter(&directory.traced.inode, name) {
                    Ok((inode, found)) => {
                        let full = reply.add(found.ino, entry.next, name, &ttl, &found, GENERATION);
                        if full {
                            self.inodes.forget(inode.node, 1);
                        }
                        Ok(!full)
                    }
                    // Gone in the meantime.
                    Err(Errno::NOENT) => Ok(true),
                    Err(errno) => Err(errno),
                }
            })
        });
        let handle = directory.as_ref().map_or(0, |directory| directory.traced.handle);
        recorded.end(Done { handle, offset, flags: PLUS, ..done(&result, |n| *n as i64) });
        match result {
            Ok(_) => reply.ok(),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn releasedir(
        &self,
        request: &Request,
        _: INodeNo,
        directory: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let directory = self.directories.remove(directory.0).ok_or(Errno::BADF);
        let recorded = self.on_directory(op::CLOSEDIR, request, &directory);
        let handle = directory.as_ref().map_or(0, |directory| directory.traced.handle);
        let done = Done { handle, ..done(&directory, zero) };
        drop(directory);
        recorded.end(done);
        reply.ok();
    }

    fn fsyncdir(&self, request: &Request, _: INodeNo, directory: FileHandle, data: bool, reply: ReplyEmpty) {
        let directory = self.directories.get(directory.0);
        let recorded = self.on_directory(op::FSYNCDIR, request, &directory);
        let result = directory.as_ref().map_err(|errno| *errno).and_then(|directory| {
            if data { rustix::fs::fdatasync(directory) } else { rustix::fs::fsync(directory) }
        });
        let handle = directory.as_ref().map_or(0, |directory| directory.traced.handle);
        recorded.end(Done { handle, ..done(&result, zero) });
        answer_empty(result, reply);
    }

    fn statfs(&self, request: &Request, node: INodeNo, reply: ReplyStatfs) {
        let recorded = Recorded::begin(op::STATFS, request);
        let result = self.inodes.get(node.0).and_then(|inode| rustix::fs::fstatvfs(&*inode));
        recorded.end_path(done(&result, zero), || self.path(node.0), b"");
        match result {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let recorded = Recorded::begin(op::SETXATTR, request);
        let result = self.inodes.get(node.0).and_then(|inode| {
            self.server.keep_bits(true);
            let flags = XattrFlags::from_bits_retain(flags as u32);
            rustix::fs::setxattr(&*link_of(&*inode), name, value, flags)
        });
        let done = done_with(&result, value.len() as u64);
        recorded.end_path(done, || self.path(node.0), name.as_bytes());
        answer_empty(result, reply);
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let recorded = Recorded::begin(op::GETXATTR, request);
        let result = self.inodes.get(node.0).and_then(|inode| {
            let mut value = vec![0; XATTR_BYTES];
            let read = rustix::fs::getxattr(&*link_of(&*inode), name, &mut *value).map_err(|errno| {
                // A file system without access control lists has none; the kernel would refuse all access.
                let list = name.as_bytes().starts_with(b"system.posix_acl_");
                if list && errno == Errno::OPNOTSUPP { Errno::NODATA } else { errno }
            })?;
            value.truncate(read);
            fitting(value, size)
        });
        let done = Done { length: size.into(), ..done(&result, |value| value.len() as i64) };
        recorded.end_path(done, || self.path(node.0), name.as_bytes());
        answer_xattr(&result, size, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let recorded = Recorded::begin(op::LISTXATTR, request);
        let result = self.inodes.get(node.0).and_then(|inode| {
            let mut names = vec![0; XATTR_BYTES];
            let read = rustix::fs::listxattr(&*link_of(&*inode), &mut *names)?;
            names.truncate(read);
            fitting(names, size)
        });
        let done = Done { length: size.into(), ..done(&result, |names| names.len() as i64) };
        recorded.end_path(done, || self.path(node.0), b"");
        answer_xattr(&result, size, reply);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = Recorded::begin(op::REMOVEXATTR, request);
        let result =
            self.inodes.get(node.0).and_then(|inode| rustix::fs::removexattr(&*link_of(&*inode), name));
        recorded.end_path(done(&result, zero), || self.path(node.0), name.as_bytes());
        answer_empty(result, reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        _: IoctlFlags,
        command: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        let file = self.files.get(file.0);
        let recorded = self.on_file(op::IOCTL, request, &file, (NONE, NONE));
        let result: Answer<()> = Err(Errno::NOTTY);
        recorded.end(of_file(done(&result, zero), &file, NONE, command.into()));
        reply.error(refusal(Errno::NOTTY));
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let file = self.files.get(file.0);
        let recorded = self.on_file(op::FALLOCATE, request, &file, (offset, length));
        let result = file.as_ref().map_err(|errno| *errno).and_then(|file| {
            self.server.keep_bits(request.uid() == 0);
            rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode as u32), offset, length)
        });
        recorded.end(of_file(done(&result, zero), &file, offset, length));
        answer_empty(result, reply);
    }

    fn lseek(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let file = self.files.get(file.0);
        let (start, argument) = (offset as u64, whence as u64);
        let recorded = self.on_file(op::SEEK, request, &file, (start, argument));
        let result = file.as_ref().map_err(|errno| *errno).and_then(|file| match whence {
            libc::SEEK_HOLE => rustix::fs::seek(file, SeekFrom::Hole(start)),
            libc::SEEK_DATA => rustix::fs::seek(file, SeekFrom::Data(start)),
            libc::SEEK_SET => Ok(start),
            libc::SEEK_END => rustix::fs::seek(file, SeekFrom::End(offset)),
            _ => Err(Errno::INVAL),
        });
        recorded.end(of_file(done(&result, |at| *at as i64), &file, start, argument));
        match result {
            Ok(at) => reply.offset(at as i64),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = (self.files.get(from.0), self.files.get(to.0));
        let recorded = self.on_file(op::COPY_RANGE, request, &to, (to_offset, length));
        let result = match (&from, &to) {
            (Ok(from), Ok(to)) => {
                self.server.keep_bits(request.uid() == 0);
                let (mut read, mut write) = (from_offset, to_offset);
                let most = length.min(MOST_COPIED) as usize;
                rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut write), most)
            }
            (Err(errno), _) | (_, Err(errno)) => Err(*errno),
        };
        let done = of_file(done(&result, |n| *n as i64), &to, to_offset, length);
        recorded.end_copy(done, from.map_or(0, |from| from.traced.handle), from_offset);
        match result {
            Ok(copied) => reply.written(copied as u32),
            Err(errno) => reply.error(refusal(errno)),
        }
    }
}

/// Fills the buffer as far as the file goes: to the kernel a short read is the end of the file.
fn read_all(file: &OpenFile, buffer: &mut [u8], offset: u64) -> Answer<usize> {
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
