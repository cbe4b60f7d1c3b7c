//! The file system: begins, executes and ends each request, and replies to it.
//!
//! fuser calls these functions from several threads, each of which replies to a request before it
//! reads the next one. The kernel does not send locks, which it manages itself, nor access checks,
//! which it makes from the attributes, because this file system does not enable them.

use crate::aligned_buffer::with_buffer;
use crate::attributes::{attributes, file_type};
use crate::descriptors::DescriptorBudget;
use crate::open_files::{HandleTable, OpenDirectory, OpenFile};
use crate::options::{CachePolicy, CacheTimes, Options};
use crate::record::{
    RecordedRequest, args_without_range, argument, completion, completion_with, request_args,
};
use crate::source::{AttributeChanges, EntryName, Source, SourceResult};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno as ReplyErrno, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use miot_tracer::op::client as op;
use miot_tracer::{Completion, NONE, flag};
use rustix::fd::OwnedFd;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Maximum size in bytes of a read or write: the default limit of the kernel, 256 pages.
const MAX_TRANSFER: u32 = 1 << 20;
/// Maximum number of concurrent requests of the kernel itself: read-ahead, writing pages of
/// mappings.
const MAX_BACKGROUND: u16 = 64;
/// Flag of a `readdir` that requested attributes as well, among the operation's own flags.
const WITH_ATTRIBUTES: u16 = 1 << flag::OP_SHIFT;
const GENERATION: Generation = Generation(0);

/// Pass-through file system of a directory.
#[derive(Debug)]
pub struct Passthrough {
    source: Source,
    files: HandleTable<OpenFile>,
    directories: HandleTable<OpenDirectory>,
    cache: CachePolicy,
    times: CacheTimes,
    /// Mount point: the start of paths in the trace.
    mount: Vec<u8>,
}

/// Replies with the value of a result, or with its error.
macro_rules! reply_with {
    ($reply:ident, $result:expr, $found:pat => $with:expr) => {
        match $result {
            Ok($found) => $with,
            Err(errno) => $reply.error(to_reply_errno(errno)),
        }
    };
}

fn to_reply_errno(errno: Errno) -> ReplyErrno {
    ReplyErrno::from_i32(errno.raw_os_error())
}

fn zero<T>(_: &T) -> i64 {
    0
}

/// Borrows the open file or directory, or returns the error of its lookup.
fn as_open<T>(opened: &SourceResult<Arc<T>>) -> SourceResult<&T> {
    opened.as_deref().map_err(|errno| *errno)
}

fn entry_name(parent: INodeNo, name: &OsStr) -> EntryName<'_> {
    EntryName { parent: parent.0, name }
}

impl Passthrough {
    /// Creates the file system of the directory `source` for the mount point `mount`.
    ///
    /// # Errors
    /// If the directory cannot be read, or this thread cannot get a file mode mask of its own.
    pub fn new(
        source: OwnedFd,
        mount: &Path,
        options: &Options,
        budget: DescriptorBudget,
    ) -> rustix::io::Result<Passthrough> {
        Ok(Passthrough {
            source: Source::new(source, budget)?,
            files: HandleTable::default(),
            directories: HandleTable::default(),
            cache: options.cache,
            times: options.cache_times(),
            mount: mount.as_os_str().as_bytes().to_vec(),
        })
    }

    /// Time for replies that have one time for name and attributes.
    fn shortest_time(&self) -> Duration {
        self.times.names.min(self.times.attributes)
    }

    fn open_flags(&self) -> FopenFlags {
        match self.cache {
            CachePolicy::None => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            CachePolicy::Auto => FopenFlags::empty(),
            CachePolicy::Always => FopenFlags::FOPEN_KEEP_CACHE,
        }
    }

    /// Appends the path of a file to an empty buffer; nothing if the kernel has forgotten the file.
    fn write_path(&self, node: INodeNo, path: &mut Vec<u8>) {
        if let Ok(inode) = self.source.inodes.get(node.0) {
            inode.location.write_path(&self.mount, path);
        }
    }

    /// Appends the path of a name to an empty buffer; nothing if its directory is unknown.
    fn write_path_of(&self, at: EntryName<'_>, path: &mut Vec<u8>) {
        if let Ok(directory) = self.source.inodes.get(at.parent) {
            directory.location.write_path_of(&self.mount, at.name, path);
        }
    }

    fn path(&self, node: INodeNo) -> Vec<u8> {
        let mut path = Vec::new();
        self.write_path(node, &mut path);
        path
    }

    fn path_of(&self, at: EntryName<'_>) -> Vec<u8> {
        let mut path = Vec::new();
        self.write_path_of(at, &mut path);
        path
    }

    fn reply_entry(&self, result: SourceResult<FileAttr>, reply: ReplyEntry) {
        reply_with!(reply, result, attributes => {
            reply.entry_with_ttls(&self.times.attributes, &self.times.names, &attributes, GENERATION);
        });
    }

    /// Begins a request on an open file.
    fn on_file(
        &self,
        op: miot_tracer::Op,
        request: &Request,
        file: &SourceResult<Arc<OpenFile>>,
        (offset, length): (u64, u64),
    ) -> RecordedRequest {
        match file {
            Ok(file) => {
                RecordedRequest::on(op, request, request_args(file.trace.handle, offset, length), || {
                    file.trace.define(&self.mount)
                })
            }
            Err(_) => RecordedRequest::begin(op, request),
        }
    }

    /// Begins a request on an open directory.
    fn on_directory(
        &self,
        op: miot_tracer::Op,
        request: &Request,
        directory: &SourceResult<Arc<OpenDirectory>>,
    ) -> RecordedRequest {
        match directory {
            Ok(directory) => {
                RecordedRequest::on(op, request, args_without_range(directory.trace.handle), || {
                    directory.trace.define(&self.mount)
                })
            }
            Err(_) => RecordedRequest::begin(op, request),
        }
    }
}

/// Adds handle, offset, length and flags of an open file to the end of a request.
fn completion_on_file(
    done: Completion,
    file: &SourceResult<Arc<OpenFile>>,
    offset: u64,
    length: u64,
) -> Completion {
    let (handle, flags) = file.as_ref().map_or((0, 0), |file| (file.trace.handle, file.trace.flags));
    Completion { handle, offset, length, flags: done.flags | flags, ..done }
}

fn reply_empty(result: SourceResult<()>, reply: ReplyEmpty) {
    reply_with!(reply, result, () => reply.ok());
}

/// Replies with a value, or with its length if the caller's size is 0.
fn reply_xattr(result: SourceResult<(Vec<u8>, usize)>, size: u32, reply: ReplyXattr) {
    reply_with!(reply, result, (value, length) => match size {
        0 => reply.size(length as u32),
        _ => reply.data(&value),
    });
}

impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut capabilities = vec![
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_ASYNC_DIO,
            // The source file system applies the mask, because it knows default access control
            // lists.
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_ACL,
        ];
        if self.source.is_root() {
            // Without this flag the kernel requests an extended attribute before each write.
            capabilities.push(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        }
        match self.cache {
            CachePolicy::None => capabilities.push(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP),
            CachePolicy::Auto => {}
            CachePolicy::Always => capabilities.push(InitFlags::FUSE_CACHE_SYMLINKS),
        }
        for capability in capabilities {
            // An older kernel may not support it.
            let _ = config.add_capabilities(capability);
        }
        let _ = config.set_max_write(MAX_TRANSFER);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let recorded = RecordedRequest::begin(op::LOOKUP, request);
        let result = self.source.look_up(entry_name(parent, name));
        recorded.end_path(
            completion(&result, zero),
            |path| self.write_path_of(entry_name(parent, name), path),
            b"",
        );
        self.reply_entry(result, reply);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.source.inodes.forget(node.0, lookups);
    }

    fn getattr(&self, request: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let recorded = RecordedRequest::begin(op::GETATTR, request);
        let result = self.source.attributes(node.0);
        recorded.end_path(completion(&result, zero), |path| self.write_path(node, path), b"");
        reply_with!(reply, result, attributes => reply.attr(&self.times.attributes, &attributes));
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
        let recorded =
            RecordedRequest::begin(if size.is_some() { op::TRUNCATE } else { op::SETATTR }, request);
        let file = file.and_then(|file| self.files.get(file.0).ok());
        let changes = AttributeChanges { mode, uid, gid, size, atime, mtime };
        let result = self.source.set_attributes(request, node.0, &changes, file.as_deref());
        let bits = [mode.is_some(), uid.is_some(), gid.is_some(), false, atime.is_some(), mtime.is_some()];
        let changed = bits.iter().enumerate().map(|(bit, set)| i32::from(*set) << bit).sum();
        let word = size.unwrap_or_else(|| argument(changed, mode.unwrap_or(0)));
        recorded.end_path(completion_with(&result, word), |path| self.write_path(node, path), b"");
        reply_with!(reply, result, attributes => reply.attr(&self.times.attributes, &attributes));
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        let recorded = RecordedRequest::begin(op::READLINK, request);
        let result = self.source.read_link(node.0);
        recorded.end_path(
            completion(&result, |target| target.len() as i64),
            |path| self.write_path(node, path),
            b"",
        );
        reply_with!(reply, result, target => reply.data(&target));
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
        let recorded = RecordedRequest::begin(op::MKNOD, request);
        let result = self.source.create_node(request, entry_name(parent, name), (mode, mask), device);
        recorded.end_path(
            completion_with(&result, argument(0, mode)),
            |path| self.write_path_of(entry_name(parent, name), path),
            b"",
        );
        self.reply_entry(result, reply);
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
        let recorded = RecordedRequest::begin(op::MKDIR, request);
        let result = self.source.create_directory(request, entry_name(parent, name), (mode, mask));
        recorded.end_path(
            completion_with(&result, mode.into()),
            |path| self.write_path_of(entry_name(parent, name), path),
            b"",
        );
        self.reply_entry(result, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = RecordedRequest::begin(op::UNLINK, request);
        let result = self.source.remove(entry_name(parent, name), AtFlags::empty());
        recorded.end_path(
            completion(&result, zero),
            |path| self.write_path_of(entry_name(parent, name), path),
            b"",
        );
        reply_empty(result, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = RecordedRequest::begin(op::RMDIR, request);
        let result = self.source.remove(entry_name(parent, name), AtFlags::REMOVEDIR);
        recorded.end_path(
            completion(&result, zero),
            |path| self.write_path_of(entry_name(parent, name), path),
            b"",
        );
        reply_empty(result, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let recorded = RecordedRequest::begin(op::SYMLINK, request);
        let result = self.source.create_symlink(request, entry_name(parent, name), target);
        recorded.end_paths(completion(&result, zero), || {
            (target.as_os_str().as_bytes().to_vec(), self.path_of(entry_name(parent, name)))
        });
        self.reply_entry(result, reply);
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
        let recorded = RecordedRequest::begin(op::RENAME, request);
        let (from, to) = (entry_name(parent, name), entry_name(new_parent, new_name));
        // Before the call: the rename of a directory changes the paths.
        let paths = recorded.is_some().then(|| (self.path_of(from), self.path_of(to)));
        let backing_flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let result = self.source.rename(from, to, backing_flags);
        recorded.end_paths(completion_with(&result, flags.bits().into()), || paths.unwrap_or_default());
        reply_empty(result, reply);
    }

    fn link(&self, request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let recorded = RecordedRequest::begin(op::LINK, request);
        let old = if recorded.is_some() { self.path(node) } else { Vec::new() };
        let result = self.source.link(node.0, entry_name(parent, name));
        recorded.end_paths(completion(&result, zero), || (old, self.path_of(entry_name(parent, name))));
        self.reply_entry(result, reply);
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let recorded = RecordedRequest::begin(op::OPEN, request);
        let result = self.source.open(request, node.0, flags.0);
        let handle = result.as_ref().map_or(0, |file| file.trace.handle);
        if let Ok(file) = &result {
            file.trace.set_named(recorded.is_some());
        }
        let done = Completion { handle, ..completion_with(&result, argument(flags.0, 0)) };
        recorded.end_path(done, |path| self.write_path(node, path), b"");
        reply_with!(reply, result, file => reply.opened(FileHandle(self.files.insert(file)), self.open_flags()));
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
        let recorded = RecordedRequest::begin(op::CREATE, request);
        let result = self.source.create(request, entry_name(parent, name), (mode, mask), flags);
        let handle = result.as_ref().map_or(0, |(file, _)| file.trace.handle);
        if let Ok((file, _)) = &result {
            file.trace.set_named(recorded.is_some());
        }
        let done = Completion { handle, ..completion_with(&result, argument(flags, mode)) };
        recorded.end_path(done, |path| self.write_path_of(entry_name(parent, name), path), b"");
        reply_with!(reply, result, (file, attributes) => {
            let handle = FileHandle(self.files.insert(file));
            reply.created(&self.shortest_time(), &attributes, GENERATION, handle, self.open_flags());
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
        with_buffer(size as usize, |buffer| {
            let result = as_open(&file).and_then(|file| self.source.read(file, buffer, offset, flags.0));
            recorded.end(completion_on_file(completion(&result, |n| *n as i64), &file, offset, size.into()));
            reply_with!(reply, result, read => reply.data(&buffer[..read]));
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
        let result = as_open(&file).and_then(|file| self.source.write(file, data, offset, how, flags.0));
        recorded.end(completion_on_file(completion(&result, |n| *n as i64), &file, offset, length));
        reply_with!(reply, result, written => reply.written(written as u32));
    }

    fn flush(&self, request: &Request, _: INodeNo, file: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let file = self.files.get(file.0);
        let recorded = self.on_file(op::FLUSH, request, &file, (NONE, NONE));
        let result = as_open(&file).and_then(|file| self.source.flush(file));
        recorded.end(completion_on_file(completion(&result, zero), &file, NONE, NONE));
        reply_empty(result, reply);
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
        let done = completion_on_file(completion(&file, zero), &file, NONE, NONE);
        drop(file);
        recorded.end(done);
        reply.ok();
    }

    fn fsync(&self, request: &Request, _: INodeNo, file: FileHandle, data: bool, reply: ReplyEmpty) {
        let file = self.files.get(file.0);
        let recorded = self.on_file(op::FSYNC, request, &file, (NONE, NONE));
        let result = as_open(&file).and_then(|file| self.source.sync(file, data));
        recorded.end(completion_on_file(completion(&result, zero), &file, NONE, NONE));
        reply_empty(result, reply);
    }

    fn opendir(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let recorded = RecordedRequest::begin(op::OPENDIR, request);
        let result = self.source.open_directory(node.0);
        let handle = result.as_ref().map_or(0, |directory| directory.trace.handle);
        if let Ok(directory) = &result {
            directory.trace.set_named(recorded.is_some());
        }
        let done = Completion { handle, ..completion_with(&result, argument(flags.0, 0)) };
        recorded.end_path(done, |path| self.write_path(node, path), b"");
        let keep = match self.cache {
            CachePolicy::Always => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            CachePolicy::None | CachePolicy::Auto => FopenFlags::empty(),
        };
        reply_with!(reply, result, directory => reply.opened(FileHandle(self.directories.insert(directory)), keep));
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
        let result = as_open(&directory).and_then(|directory| {
            directory.read(offset, |entry| {
                let name = OsStr::from_bytes(&entry.name);
                Ok(!reply.add(INodeNo(entry.number), entry.next, file_type(entry.file_type), name))
            })
        });
        let handle = directory.as_ref().map_or(0, |directory| directory.trace.handle);
        recorded.end(Completion { handle, offset, ..completion(&result, |n| *n as i64) });
        reply_with!(reply, result, _ => reply.ok());
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
        let ttl = self.shortest_time();
        let result = as_open(&directory).and_then(|directory| {
            directory.read(offset, |entry| {
                let name = OsStr::from_bytes(&entry.name);
                if matches!(&*entry.name, b"." | b"..") {
                    // The kernel uses only the names of these entries and counts no lookup.
                    let mut here = attributes(entry.number, &rustix::fs::fstat(directory)?);
                    here.ino = INodeNo(entry.number);
                    return Ok(!reply.add(here.ino, entry.next, name, &ttl, &here, GENERATION));
                }
                match self.source.look_up_in(directory, &directory.trace.inode.location, name) {
                    Ok((inode, found)) => {
                        let full = reply.add(found.ino, entry.next, name, &ttl, &found, GENERATION);
                        if full {
                            self.source.inodes.forget(inode.node, 1);
                        }
                        Ok(!full)
                    }
                    // The file was removed in the meantime.
                    Err(Errno::NOENT) => Ok(true),
                    Err(errno) => Err(errno),
                }
            })
        });
        let handle = directory.as_ref().map_or(0, |directory| directory.trace.handle);
        recorded.end(Completion {
            handle,
            offset,
            flags: WITH_ATTRIBUTES,
            ..completion(&result, |n| *n as i64)
        });
        reply_with!(reply, result, _ => reply.ok());
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
        let handle = directory.as_ref().map_or(0, |directory| directory.trace.handle);
        let done = Completion { handle, ..completion(&directory, zero) };
        drop(directory);
        recorded.end(done);
        reply.ok();
    }

    fn fsyncdir(&self, request: &Request, _: INodeNo, directory: FileHandle, data: bool, reply: ReplyEmpty) {
        let directory = self.directories.get(directory.0);
        let recorded = self.on_directory(op::FSYNCDIR, request, &directory);
        let result = as_open(&directory).and_then(|directory| self.source.sync(directory, data));
        let handle = directory.as_ref().map_or(0, |directory| directory.trace.handle);
        recorded.end(Completion { handle, ..completion(&result, zero) });
        reply_empty(result, reply);
    }

    fn statfs(&self, request: &Request, node: INodeNo, reply: ReplyStatfs) {
        let recorded = RecordedRequest::begin(op::STATFS, request);
        let result = self.source.usage(node.0);
        recorded.end_path(completion(&result, zero), |path| self.write_path(node, path), b"");
        reply_with!(reply, result, s => reply.statfs(
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
        let recorded = RecordedRequest::begin(op::SETXATTR, request);
        let result = self.source.set_xattr(node.0, name, value, flags);
        let done = completion_with(&result, value.len() as u64);
        recorded.end_path(done, |path| self.write_path(node, path), name.as_bytes());
        reply_empty(result, reply);
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let recorded = RecordedRequest::begin(op::GETXATTR, request);
        let result = self.source.xattr(node.0, name, size);
        let done = Completion { length: size.into(), ..completion(&result, |(_, length)| *length as i64) };
        recorded.end_path(done, |path| self.write_path(node, path), name.as_bytes());
        reply_xattr(result, size, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let recorded = RecordedRequest::begin(op::LISTXATTR, request);
        let result = self.source.xattrs(node.0, size);
        let done = Completion { length: size.into(), ..completion(&result, |(_, length)| *length as i64) };
        recorded.end_path(done, |path| self.write_path(node, path), b"");
        reply_xattr(result, size, reply);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let recorded = RecordedRequest::begin(op::REMOVEXATTR, request);
        let result = self.source.remove_xattr(node.0, name);
        recorded.end_path(completion(&result, zero), |path| self.write_path(node, path), name.as_bytes());
        reply_empty(result, reply);
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
        let result: SourceResult<()> = Err(Errno::NOTTY);
        recorded.end(completion_on_file(completion(&result, zero), &file, NONE, command.into()));
        reply.error(to_reply_errno(Errno::NOTTY));
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
            as_open(&file).and_then(|file| self.source.allocate(request, file, (offset, length), mode));
        recorded.end(completion_on_file(completion(&result, zero), &file, offset, length));
        reply_empty(result, reply);
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
        let result = as_open(&file).and_then(|file| self.source.seek(file, offset, whence));
        recorded.end(completion_on_file(completion(&result, |at| *at as i64), &file, start, argument));
        reply_with!(reply, result, at => reply.offset(at as i64));
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
        let result = as_open(&from).and_then(|from| {
            self.source.copy(request, (from, from_offset), (as_open(&to)?, to_offset), length)
        });
        let done = completion_on_file(completion(&result, |n| *n as i64), &to, to_offset, length);
        recorded.end_copy(done, from.map_or(0, |from| from.trace.handle), from_offset);
        reply_with!(reply, result, copied => reply.written(copied as u32));
    }
}
