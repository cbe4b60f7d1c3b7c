//! The file system: each request is begun, made on the source, ended, and answered.
//!
//! fuser calls these functions from several threads, each of which answers what it has taken before it takes the next.
//! Not asked for and so never sent: locks, which the kernel keeps by itself, and access checks, which it makes from the attributes.

use crate::attributes::{attributes, kind};
use crate::buffer;
use crate::descriptors::Budget;
use crate::opened::{OpenDirectory, OpenFile, Table};
use crate::options::Cache;
use crate::record::{Recorded, argument, doing, doing_nothing, done, done_with};
use crate::source::{Answer, Changes, Name, Source};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno as Reply, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use miot_tracer::op::client as op;
use miot_tracer::{Done, NONE, flag};
use rustix::fd::OwnedFd;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Largest read and write the kernel sends: its own default limit, 256 pages.
const MOST_BYTES: u32 = 1 << 20;
/// Requests of the kernel's own (reading ahead, writing pages of mappings) at a time.
const BACKGROUND: u16 = 64;
/// Bit of a `readdir` that asked for attributes as well, among the operation's own flags.
const PLUS: u16 = 1 << flag::OP_SHIFT;
const GENERATION: Generation = Generation(0);

/// A directory as a file system.
#[derive(Debug)]
pub struct Passthrough {
    source: Source,
    files: Table<OpenFile>,
    directories: Table<OpenDirectory>,
    cache: Cache,
    /// The mount point, as paths in the trace begin.
    mount: Vec<u8>,
}

/// Answers with what was found, or with the refusal.
macro_rules! answer {
    ($reply:ident, $result:expr, $found:pat => $with:expr) => {
        match $result {
            Ok($found) => $with,
            Err(errno) => $reply.error(refusal(errno)),
        }
    };
}

fn refusal(errno: Errno) -> Reply {
    Reply::from_i32(errno.raw_os_error())
}

fn zero<T>(_: &T) -> i64 {
    0
}

/// The open file or directory, or why there is none.
fn known<T>(opened: &Answer<Arc<T>>) -> Answer<&T> {
    opened.as_deref().map_err(|errno| *errno)
}

fn named(parent: INodeNo, name: &OsStr) -> Name<'_> {
    Name { parent: parent.0, name }
}

impl Passthrough {
    /// The directory `source` as it is to appear at `mount`, with so many descriptors.
    ///
    /// # Errors
    /// If the directory cannot be looked at.
    pub fn new(
        source: OwnedFd,
        mount: &Path,
        cache: Cache,
        budget: Budget,
    ) -> rustix::io::Result<Passthrough> {
        Ok(Passthrough {
            source: Source::new(source, budget)?,
            files: Table::default(),
            directories: Table::default(),
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

    fn path(&self, node: INodeNo) -> Vec<u8> {
        self.source.inodes.known(node.0).map(|inode| inode.place.path(&self.mount)).unwrap_or_default()
    }

    fn path_of(&self, at: Name<'_>) -> Vec<u8> {
        let directory = self.source.inodes.known(at.parent);
        directory.map(|directory| directory.place.path_of(&self.mount, at.name)).unwrap_or_default()
    }

    fn answer_entry(&self, result: Answer<FileAttr>, reply: ReplyEntry) {
        answer!(reply, result, attributes => reply.entry(&self.ttl(), &attributes, GENERATION));
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
    answer!(reply, result, () => reply.ok());
}

/// Answers with a value, or with its length alone where that was asked for.
fn answer_xattr(result: Answer<(Vec<u8>, usize)>, size: u32, reply: ReplyXattr) {
    answer!(reply, result, (value, length) => match size {
        0 => reply.size(length as u32),
        _ => reply.data(&value),
    });
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
        if self.source.is_root() {
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
        let result = self.source.look_up(named(parent, name));
        recorded.end_path(done(&result, zero), || self.path_of(named(parent, name)), b"");
        self.answer_entry(result, reply);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.source.inodes.forget(node.0, lookups);
    }

    fn getattr(&self, request: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let recorded = Recorded::begin(op::GETATTR, request);
        let result = self.source.attributes(node.0);
        recorded.end_path(done(&result, zero), || self.path(node), b"");
        answer!(reply, result, attributes => reply.attr(&self.ttl(), &attributes));
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
        let changes = Changes { mode, uid, gid, size, atime, mtime };
        let result = self.source.set_attributes(request, node.0, &changes, file.as_deref());
        let bits = [mode.is_some(), uid.is_some(), gid.is_some(), false, atime.is_some(), mtime.is_some()];
        let changed = bits.iter().enumerate().map(|(bit, set)| i32::from(*set) << bit).sum();
        let word = size.unwrap_or_else(|| argument(changed, mode.unwrap_or(0)));
        recorded.end_path(done_with(&result, word), || self.path(node), b"");
        answer!(reply, result, attributes => reply.attr(&self.ttl(), &attributes));
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        let recorded = Recorded::begin(op::READLINK, request);
        let result = self.source.read_link(node.0);
        recorded.end_path(done(&result, |target| target.len() as i64), || self.path(node), b"");
        answer!(reply, result, target => reply.data(&target));
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
        let result = self.source.make_node(request, named(parent, name), (mode, mask), device);
        recorded.end_path(done_with(&result, argument(0, mode)), || self.path_of(named(parent, name)), b"");
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
        let result = self.source.make_directory(request, named(parent, name), (mode, mask));
        recorded.end_path(done_with(&result, mode.into()), || self.path_of(named(parent, name)), b"");
        self.answer_entry(result, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = Recorded::begin(op::UNLINK, request);
        let result = self.source.remove(named(parent, name), AtFlags::empty());
        recorded.end_path(done(&result, zero), || self.path_of(named(parent, name)), b"");
        answer_empty(result, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = Recorded::begin(op::RMDIR, request);
        let result = self.source.remove(named(parent, name), AtFlags::REMOVEDIR);
        recorded.end_path(done(&result, zero), || self.path_of(named(parent, name)), b"");
        answer_empty(result, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let recorded = Recorded::begin(op::SYMLINK, request);
        let result = self.source.make_symlink(request, named(parent, name), target);
        recorded.end_paths(done(&result, zero), || {
            (target.as_os_str().as_bytes().to_vec(), self.path_of(named(parent, name)))
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
        let (from, to) = (named(parent, name), named(new_parent, new_name));
        // As they are before it: a rename of a directory changes them.
        let paths = recorded.is_some().then(|| (self.path_of(from), self.path_of(to)));
        let below = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let result = self.source.rename(from, to, below);
        recorded.end_paths(done_with(&result, flags.bits().into()), || paths.unwrap_or_default());
        answer_empty(result, reply);
    }

    fn link(&self, request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let recorded = Recorded::begin(op::LINK, request);
        let old = if recorded.is_some() { self.path(node) } else { Vec::new() };
        let result = self.source.link(node.0, named(parent, name));
        recorded.end_paths(done(&result, zero), || (old, self.path_of(named(parent, name))));
        self.answer_entry(result, reply);
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let recorded = Recorded::begin(op::OPEN, request);
        let result = self.source.open(request, node.0, flags.0);
        let handle = result.as_ref().map_or(0, |file| file.traced.handle);
        if let Ok(file) = &result {
            file.traced.set_named(recorded.is_some());
        }
        let done = Done { handle, ..done_with(&result, argument(flags.0, 0)) };
        recorded.end_path(done, || self.path(node), b"");
        answer!(reply, result, file => reply.opened(FileHandle(self.files.insert(file)), self.open_flags()));
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
        let result = self.source.create(request, named(parent, name), (mode, mask), flags);
        let handle = result.as_ref().map_or(0, |(file, _)| file.traced.handle);
        if let Ok((file, _)) = &result {
            file.traced.set_named(recorded.is_some());
        }
        let done = Done { handle, ..done_with(&result, argument(flags, mode)) };
        recorded.end_path(done, || self.path_of(named(parent, name)), b"");
        answer!(reply, result, (file, attributes) => {
            let handle = FileHandle(self.files.insert(file));
            reply.created(&self.ttl(), &attributes, GENERATION, handle, self.open_flags());
        });
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
            let result = known(&file).and_then(|file| self.source.read(file, buffer, offset, flags.0));
            recorded.end(of_file(done(&result, |n| *n as i64), &file, offset, size.into()));
            answer!(reply, result, read => reply.data(&buffer[..read]));
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
        let result = known(&file).and_then(|file| self.source.write(file, data, offset, how, flags.0));
        recorded.end(of_file(done(&result, |n| *n as i64), &file, offset, length));
        answer!(reply, result, written => reply.written(written as u32));
    }

    fn flush(&self, request: &Request, _: INodeNo, file: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let file = self.files.get(file.0);
        let recorded = self.on_file(op::FLUSH, request, &file, (NONE, NONE));
        let result = known(&file).and_then(|file| self.source.flush(file));
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
        let result = known(&file).and_then(|file| self.source.sync(file, data));
        recorded.end(of_file(done(&result, zero), &file, NONE, NONE));
        answer_empty(result, reply);
    }

    fn opendir(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let recorded = Recorded::begin(op::OPENDIR, request);
        let result = self.source.open_directory(node.0);
        let handle = result.as_ref().map_or(0, |directory| directory.traced.handle);
        if let Ok(directory) = &result {
            directory.traced.set_named(recorded.is_some());
        }
        let done = Done { handle, ..done_with(&result, argument(flags.0, 0)) };
        recorded.end_path(done, || self.path(node), b"");
        let keep = match self.cache {
            Cache::Always => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            Cache::None | Cache::Auto => FopenFlags::empty(),
        };
        answer!(reply, result, directory => reply.opened(FileHandle(self.directories.insert(directory)), keep));
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
        let result = known(&directory).and_then(|directory| {
            directory.read(offset, |entry| {
                let name = OsStr::from_bytes(&entry.name);
                Ok(!reply.add(INodeNo(entry.number), entry.next, kind(entry.kind), name))
            })
        });
        let handle = directory.as_ref().map_or(0, |directory| directory.traced.handle);
        recorded.end(Done { handle, offset, ..done(&result, |n| *n as i64) });
        answer!(reply, result, _ => reply.ok());
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
        let result = known(&directory).and_then(|directory| {
            directory.read(offset, |entry| {
                let name = OsStr::from_bytes(&entry.name);
                if matches!(&*entry.name, b"." | b"..") {
                    // The kernel takes these for names alone, and counts no lookup.
                    let mut here = attributes(entry.number, &rustix::fs::fstat(directory)?);
                    here.ino = INodeNo(entry.number);
                    return Ok(!reply.add(here.ino, entry.next, name, &ttl, &here, GENERATION));
                }
                match self.source.enter(directory, &directory.traced.inode.place, name) {
                    Ok((inode, found)) => {
                        let full = reply.add(found.ino, entry.next, name, &ttl, &found, GENERATION);
                        if full {
                            self.source.inodes.forget(inode.node, 1);
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
        answer!(reply, result, _ => reply.ok());
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
        let result = known(&directory).and_then(|directory| self.source.sync(directory, data));
        let handle = directory.as_ref().map_or(0, |directory| directory.traced.handle);
        recorded.end(Done { handle, ..done(&result, zero) });
        answer_empty(result, reply);
    }

    fn statfs(&self, request: &Request, node: INodeNo, reply: ReplyStatfs) {
        let recorded = Recorded::begin(op::STATFS, request);
        let result = self.source.usage(node.0);
        recorded.end_path(done(&result, zero), || self.path(node), b"");
        answer!(reply, result, s => reply.statfs(
            s.f_blocks,
            s.f_bfree,
            s.f_bavail,
            s.f_files,
            s.f_ffree,
            s.f_bsize as u32,
            s.f_namemax as u32,
            s.f_frsize as u32,
        ));
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
        let result = self.source.set_xattr(node.0, name, value, flags);
        let done = done_with(&result, value.len() as u64);
        recorded.end_path(done, || self.path(node), name.as_bytes());
        answer_empty(result, reply);
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let recorded = Recorded::begin(op::GETXATTR, request);
        let result = self.source.xattr(node.0, name, size);
        let done = Done { length: size.into(), ..done(&result, |(_, length)| *length as i64) };
        recorded.end_path(done, || self.path(node), name.as_bytes());
        answer_xattr(result, size, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let recorded = Recorded::begin(op::LISTXATTR, request);
        let result = self.source.xattrs(node.0, size);
        let done = Done { length: size.into(), ..done(&result, |(_, length)| *length as i64) };
        recorded.end_path(done, || self.path(node), b"");
        answer_xattr(result, size, reply);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = Recorded::begin(op::REMOVEXATTR, request);
        let result = self.source.remove_xattr(node.0, name);
        recorded.end_path(done(&result, zero), || self.path(node), name.as_bytes());
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
        let result =
            known(&file).and_then(|file| self.source.allocate(request, file, (offset, length), mode));
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
        let result = known(&file).and_then(|file| self.source.seek(file, offset, whence));
        recorded.end(of_file(done(&result, |at| *at as i64), &file, start, argument));
        answer!(reply, result, at => reply.offset(at as i64));
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
        let result = known(&from).and_then(|from| {
            self.source.copy(request, (from, from_offset), (known(&to)?, to_offset), length)
        });
        let done = of_file(done(&result, |n| *n as i64), &to, to_offset, length);
        recorded.end_copy(done, from.map_or(0, |from| from.traced.handle), from_offset);
        answer!(reply, result, copied => reply.written(copied as u32));
    }
}
