//! The calls of libc, one for each kind of step.
//!
//! What a trace does not say is left as it is: owners and times (a call that sets them sets nothing, or now), the kind of a lock
//! (it is an unlock of the same call; order is kept by [`super::order`]), advice, the mode of `fallocate`.

use super::below::relative;
use super::files::{Files, borrow, stream_mode};
use super::plan::LARGEST;
use super::{Below, Step};
use crate::content::Content;
use miot_proto::event::flag;
use miot_proto::op::{Class, Layer, OpInfo};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

unsafe extern "C" {
    fn scandir(
        path: *const c_char,
        out: *mut *mut *mut libc::dirent,
        select: *const c_void,
        compare: *const c_void,
    ) -> c_int;
    fn futimesat(directory: c_int, path: *const c_char, times: *const libc::timeval) -> c_int;
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int;
}

/// How a request is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// By the same call.
    Same,
    /// By this one.
    As(&'static str),
    /// Not at all, and why.
    Not(&'static str),
}

/// How requests of this operation are made again.
#[must_use]
pub fn how(info: &OpInfo) -> Made {
    let posix = info.op.layer == Layer::Posix as u8;
    if !posix && info.op.layer != Layer::Stdio as u8 {
        return Made::Not("not a call of libc");
    }
    match info.name {
        "libaio_read" | "uring_read" => Made::As("aio_read"),
        "libaio_write" | "uring_write" => Made::As("aio_write"),
        "libaio_fsync" | "uring_fsync" => Made::As("aio_fsync"),
        "freopen" => Made::As("fopen"),
        "mkstemp" => Made::As("open"),
        "mkdtemp" => Made::As("mkdir"),
        "fgets" | "getline" | "getdelim" | "fscanf" | "scanf" => Made::As("fread"),
        "puts" | "printf" => Made::As("fwrite"),
        "mknod" | "mknodat" | "mkfifo" | "mkfifoat" => Made::Not("special files"),
        "close_range" => Made::Not("descriptors have other numbers here"),
        "popen" | "pclose" => Made::Not("commands"),
        "tmpfile" => Made::Not("its file has no name"),
        "ungetc" => Made::Not("pushes back what is not known"),
        name if name.starts_with("uring_") => Made::Not("calls of io_uring that move no data"),
        _ => Made::Same,
    }
}

/// What the steps of a process work on.
#[derive(Debug)]
pub(super) struct Target {
    below: Below,
    files: Mutex<Files>,
    /// Nothing, if nothing is written.
    content: Option<Content>,
    /// Content without newlines and NULs, as strings.
    text: Vec<u8>,
}

/// Longest string that is written.
const TEXT: u64 = 1 << 20;
/// Begin of buffers, so that direct I/O can be made.
const ALIGNMENT: usize = crate::content::ALIGNMENT;

/// Memory of a thread that reads go to.
#[derive(Debug, Default)]
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    pub(super) fn of(&mut self, length: usize) -> *mut c_void {
        if self.0.len() < length + ALIGNMENT {
            self.0 = vec![0; length + ALIGNMENT];
        }
        let start = self.0.as_ptr().align_offset(ALIGNMENT);
        self.0[start..].as_mut_ptr().cast()
    }
}

type Result<T> = std::result::Result<T, Errno>;

/// What a call of libc says: −1 and `errno`, or a value.
fn said(returned: impl Into<i64>) -> Result<i64> {
    match returned.into() {
        -1 => Err(last_error()),
        value => Ok(value),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What a function says that returns its error.
fn number(returned: c_int) -> Result<i64> {
    if returned == 0 { Ok(0) } else { Err(Errno::from_raw_os_error(returned)) }
}

fn text(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL)
}

impl Target {
    pub(super) fn new(below: Below, longest: u64) -> Target {
        let content = (longest > 0).then(|| Content::new(0, longest));
        let bytes = content.iter().flat_map(|content| content.at(0, longest.min(TEXT)));
        let text = bytes.map(|byte| b'!' + byte % 93).collect();
        Target { below, files: Mutex::default(), content, text }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of a step: negative = −errno.
    pub(super) fn make(&self, step: &Step, buffer: &mut Buffer) -> i64 {
        let made = match step.info() {
            Some(info) if info.op.layer == Layer::Stdio as u8 => self.on_stream(info.name, step, buffer),
            Some(info) if info.class.is_data() => self.move_data(info.name, step, buffer),
            Some(info) if info.class == Class::Sync || info.paths == 0 => self.on_descriptor(info.name, step),
            Some(info)
                if step.handle != 0
                    && step.result >= 0
                    && !matches!(info.name, "open" | "openat" | "creat" | "opendir" | "mkstemp") =>
            {
                self.on_descriptor(info.name, step)
            }
            Some(info) => self.on_name(info.name, step, buffer),
            None => Err(Errno::NOSYS),
        };
        made.unwrap_or_else(|errno| -i64::from(errno.raw_os_error()))
    }

    /// The descriptor of a step's file.
    pub(super) fn descriptor(&self, step: &Step) -> Result<c_int> {
        self.files().descriptor(step.handle, step.path.as_deref(), step.flags, &self.below)
    }

    /// What is written at an offset.
    pub(super) fn written(&self, offset: i64, length: u64) -> *mut c_void {
        let offset = u64::try_from(offset).unwrap_or(0);
        let bytes =
            self.content.as_ref().map(|content| content.at(offset, length).as_ptr().cast_mut().cast());
        bytes.unwrap_or(null_mut())
    }

    /// The whole name of a step, checked.
    fn name(&self, path: Option<&[u8]>, follows: bool) -> Result<CString> {
        let path = path.ok_or(Errno::NOENT)?;
        self.below.check(path, follows)?;
        text(self.below.path(path).as_os_str().as_bytes())
    }

    fn move_data(&self, name: &str, step: &Step, buffer: &mut Buffer) -> Result<i64> {
        let fd = self.descriptor(step)?;
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        if step.info().is_some_and(|info| info.class == Class::Copy) {
            return self.copy(name, step, fd, length);
        }
        let length = length.min(LARGEST as usize);
        let offset = step.offset.unwrap_or(0);
        let writes = step.info().is_some_and(|info| info.class == Class::Write);
        let appends = writes && step.flags & flag::APPEND != 0;
        // Where it stands is not for those to say that say it themselves.
        let fd = match (name, step.offset) {
            ("read" | "readv" | "write" | "writev", Some(position)) if !appends => {
                self.files().standing(step.handle, fd, position)?
            }
            _ => fd,
        };
        let memory = if writes { self.written(offset, length as u64) } else { buffer.of(length) };
        let vector = [libc::iovec { iov_base: memory, iov_len: length }];
        // SAFETY: the memory has at least `length` bytes and is not freed within the calls; those that write to it have it alone.
        said(unsafe {
            match name {
                "read" => libc::read(fd, memory, length),
                "write" => libc::write(fd, memory, length),
                "pread" => libc::pread64(fd, memory, length, offset),
                "pwrite" => libc::pwrite64(fd, memory, length, offset),
                "readv" => libc::readv(fd, vector.as_ptr(), 1),
                "writev" => libc::writev(fd, vector.as_ptr(), 1),
                "preadv" => libc::preadv(fd, vector.as_ptr(), 1, offset),
                "pwritev" => libc::pwritev(fd, vector.as_ptr(), 1, offset),
                "preadv2" => libc::preadv2(fd, vector.as_ptr(), 1, offset, 0),
                "pwritev2" => libc::pwritev2(fd, vector.as_ptr(), 1, offset, 0),
                _ => return Err(Errno::NOSYS),
            }
        } as i64)
    }

    fn copy(&self, name: &str, step: &Step, to: c_int, length: usize) -> Result<i64> {
        let source = step.path2.as_deref();
        let from = self.files().descriptor(step.handle2, source, 0, &self.below)?;
        let to = match (name, step.offset) {
            ("sendfile", Some(position)) => self.files().standing(step.handle, to, position)?,
            _ => to,
        };
        let (mut at, mut into) = (step.offset2.unwrap_or(0), step.offset.unwrap_or(0));
        let at: *mut i64 = if step.offset2.is_some() { &raw mut at } else { null_mut() };
        let into: *mut i64 = if step.offset.is_some() { &raw mut into } else { null_mut() };
        // SAFETY: the offsets outlive the calls.
        said(unsafe {
            match name {
                "copy_file_range" => libc::copy_file_range(from, at, to, into, length, 0),
                "sendfile" => libc::sendfile64(to, from, at, length),
                _ => return Err(Errno::NOSYS),
            }
        } as i64)
    }

    /// A request on a descriptor that moves no data.
    fn on_descriptor(&self, name: &str, step: &Step) -> Result<i64> {
        if name == "munmap" || name == "msync" {
            return self.on_mapping(name, step);
        }
        if name == "sync" {
            // SAFETY: no arguments.
            unsafe { libc::sync() };
            return Ok(0);
        }
        if matches!(name, "readdir" | "rewinddir" | "seekdir" | "closedir") {
            return self.on_directory(name, step);
        }
        if name == "close" {
            self.descriptor(step)?;
            let fd = self.files().closing(step.handle).ok_or(Errno::BADF)?;
            // SAFETY: it has just left the table.
            return said(unsafe { libc::close(fd) });
        }
        let mut fd = self.descriptor(step)?;
        let offset = step.offset.unwrap_or(0);
        let length = step.length.unwrap_or(0);
        let low = step.arg as c_int;
        let mut stat = std::mem::MaybeUninit::<libc::stat64>::uninit();
        let mut memory =
            vec![0u8; if name.contains("xattr") || name == "getdents" { length.max(0) as usize } else { 0 }];
        let out: *mut c_void = if memory.is_empty() { null_mut() } else { memory.as_mut_ptr().cast() };
        if name == "lseek" && low == libc::SEEK_CUR && step.result >= 0 {
            fd = self.files().standing(step.handle, fd, step.result.saturating_sub(offset))?;
        }
        let attribute = text(step.path2.as_deref().unwrap_or(b""))?;
        let now: *const libc::timespec = null();
        // SAFETY: what the calls write to is as large as they are told, and outlives them.
        unsafe {
            match name {
                "lseek" => said(libc::lseek64(fd, offset, low)),
                "fsync" => said(libc::fsync(fd)),
                "fdatasync" => said(libc::fdatasync(fd)),
                "syncfs" => said(libc::syncfs(fd)),
                "sync_file_range" => said(libc::sync_file_range(fd, offset, length, 7)),
                "ftruncate" => said(libc::ftruncate64(fd, length)),
                "fallocate" => said(libc::fallocate64(fd, 0, offset, length)),
                "posix_fallocate" => number(libc::posix_fallocate64(fd, offset, length)),
                "posix_fadvise" => number(libc::posix_fadvise64(fd, offset, length, libc::POSIX_FADV_NORMAL)),
                "dup" | "dup2" | "dup3" | "fcntl" if step.result >= 0 || name == "fcntl" => {
                    self.duplicate(name, step, fd)
                }
                "fstat" => said(libc::fstat64(fd, stat.as_mut_ptr())),
                "fstatat" => {
                    said(libc::fstatat64(fd, c"".as_ptr(), stat.as_mut_ptr(), low | libc::AT_EMPTY_PATH))
                }
                "statx" => {
                    let mut out = std::mem::MaybeUninit::<libc::statx>::uninit();
                    let mask = (step.arg >> 32) as c_uint;
                    said(libc::statx(fd, c"".as_ptr(), low | libc::AT_EMPTY_PATH, mask, out.as_mut_ptr()))
                }
                "fstatfs" => {
                    let mut out = std::mem::MaybeUninit::<libc::statfs64>::uninit();
                    said(libc::fstatfs64(fd, out.as_mut_ptr()))
                }
                "fstatvfs" => {
                    let mut out = std::mem::MaybeUninit::<libc::statvfs64>::uninit();
                    said(libc::fstatvfs64(fd, out.as_mut_ptr()))
                }
                "getdents" => said(libc::syscall(libc::SYS_getdents64, fd, out, memory.len())),
                "fchmod" => said(libc::fchmod(fd, mode(low))),
                "fchown" => said(libc::fchown(fd, c_uint::MAX, c_uint::MAX)),
                "futimes" => said(libc::futimes(fd, null())),
                "futimens" => said(libc::futimens(fd, now)),
                "fchdir" => said(libc::fchdir(fd)),
                "flock" => said(libc::flock(fd, low)),
                "lockf" => said(libc::lockf(fd, libc::F_ULOCK, length)),
                "fdopendir" => {
                    let directory = libc::fdopendir(fd);
                    if directory.is_null() {
                        return Err(last_error());
                    }
                    self.files().directory_opened(step.handle, directory.expose_provenance(), fd);
                    Ok(0)
                }
                "mmap" => {
                    let flags = if step.flags >> flag::OP_SHIFT & 8 != 0 {
                        libc::MAP_SHARED
                    } else {
                        libc::MAP_PRIVATE
                    };
                    let access = c_int::from(step.flags >> flag::OP_SHIFT & 7);
                    let bytes = usize::try_from(length).map_err(|_| Errno::INVAL)?;
                    let address = libc::mmap64(null_mut(), bytes, access, flags, fd, offset);
                    if address == libc::MAP_FAILED {
                        return Err(last_error());
                    }
                    self.files().mapped(step.handle, address.addr(), bytes);
                    Ok(0)
                }
                "fgetxattr" => said(libc::fgetxattr(fd, attribute.as_ptr(), out, memory.len()) as i64),
                "fsetxattr" => said(libc::fsetxattr(fd, attribute.as_ptr(), out, memory.len(), 0)),
                "flistxattr" => said(libc::flistxattr(fd, out.cast(), memory.len()) as i64),
                "fremovexattr" => said(libc::fremovexattr(fd, attribute.as_ptr())),
                _ => Err(Errno::NOSYS),
            }
        }
    }

    fn duplicate(&self, name: &str, step: &Step, fd: c_int) -> Result<i64> {
        let command = step.arg as c_int;
        // SAFETY: numbers only, and a structure that outlives the call.
        let new = unsafe {
            match name {
                "fcntl" if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
                    libc::fcntl(fd, command, 0)
                }
                "fcntl" => {
                    let unlock = libc::flock64 {
                        l_type: libc::F_UNLCK as i16,
                        l_whence: libc::SEEK_SET as i16,
                        l_start: 0,
                        l_len: 0,
                        l_pid: 0,
                    };
                    return said(libc::fcntl(fd, command, &raw const unlock));
                }
                "dup" => libc::dup(fd),
                _ => {
                    let recorded = i64::from(command);
                    let new = self.files().replaced(recorded).filter(|new| *new != fd);
                    let new = new.map_or_else(|| super::files::unseen(borrow(fd)), Ok)?;
                    if name == "dup3" { libc::dup3(fd, new, libc::O_CLOEXEC) } else { libc::dup2(fd, new) }
                }
            }
        };
        said(new)?;
        self.files().opened(step.handle, step.result, new);
        Ok(i64::from(new))
    }

    fn on_mapping(&self, name: &str, step: &Step) -> Result<i64> {
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        let found = self.files().mapping(step.handle, length, name == "munmap");
        let (address, bytes) = found.ok_or(Errno::INVAL)?;
        let address = std::ptr::without_provenance_mut(address);
        // SAFETY: a mapping of this table's, which nothing points into.
        said(unsafe {
            match name {
                "munmap" => libc::munmap(address, bytes.min(length)),
                _ => libc::msync(address, bytes.min(length), libc::MS_SYNC),
            }
        })
    }

    fn on_directory(&self, name: &str, step: &Step) -> Result<i64> {
        let (address, fd) = self.files().directory(step.handle).ok_or(Errno::BADF)?;
        let directory: *mut libc::DIR = std::ptr::with_exposed_provenance_mut(address);
        if name == "closedir" {
            self.files().closed(step.handle, fd);
        }
        // SAFETY: opened by a step of this process and not closed since; steps of several threads on one are ordered as in the
        // trace, whose program had to see to that.
        unsafe {
            match name {
                "readdir" => Ok(i64::from(!libc::readdir64(directory).is_null())),
                "rewinddir" => {
                    libc::rewinddir(directory);
                    Ok(0)
                }
                "seekdir" => {
                    libc::rewinddir(directory);
                    Ok(0)
                }
                _ => said(libc::closedir(directory)),
            }
        }
    }

    /// A request on a name.
    fn on_name(&self, name: &str, step: &Step, buffer: &mut Buffer) -> Result<i64> {
        let path = step.path.as_deref();
        let low = step.arg as c_int;
        let high = (step.arg >> 32) as c_uint;
        if name.starts_with("symlink") {
            let link = step.path2.as_deref().ok_or(Errno::NOENT)?;
            let says = text(&relative(link, path.unwrap_or(b"")))?;
            let link = self.name(Some(link), false)?;
            // SAFETY: strings that outlive the call.
            return said(unsafe {
                match name {
                    "symlink" => libc::symlink(says.as_ptr(), link.as_ptr()),
                    _ => libc::symlinkat(says.as_ptr(), libc::AT_FDCWD, link.as_ptr()),
                }
            });
        }
        let follows = !matches!(
            name,
            "lstat"
                | "unlink"
                | "unlinkat"
                | "remove"
                | "rmdir"
                | "rename"
                | "renameat"
                | "renameat2"
                | "readlink"
                | "readlinkat"
                | "mkdir"
                | "mkdirat"
                | "mkdtemp"
                | "lchown"
                | "lutimes"
                | "link"
                | "linkat"
        ) && !name.starts_with('l');
        let whole = self.name(path, follows)?;
        let whole = whole.as_ptr();
        let at = libc::AT_FDCWD;
        if matches!(name, "open" | "openat" | "creat" | "mkstemp" | "opendir") {
            return self.open(name, step, whole);
        }
        if matches!(name, "rename" | "renameat" | "renameat2" | "link" | "linkat") {
            let to = self.name(step.path2.as_deref(), false)?;
            let to = to.as_ptr();
            // SAFETY: strings that outlive the call.
            return said(unsafe {
                match name {
                    "rename" => libc::rename(whole, to),
                    "renameat" => libc::renameat(at, whole, at, to),
                    "renameat2" => libc::renameat2(at, whole, at, to, low as c_uint),
                    "link" => libc::link(whole, to),
                    _ => libc::linkat(at, whole, at, to, 0),
                }
            });
        }
        let length = step.length.unwrap_or(0);
        let room = usize::try_from(length).unwrap_or(0).min(1 << 20);
        let out = if room == 0 { null_mut() } else { buffer.of(room) };
        let attribute = text(step.path2.as_deref().unwrap_or(b""))?;
        let (attribute, no_times): (_, *const libc::timeval) = (attribute.as_ptr(), null());
        let mut stat = std::mem::MaybeUninit::<libc::stat64>::uninit();
        // SAFETY: strings, and what the calls write to, outlive them and are as large as they are told.
        unsafe {
            match name {
                "truncate" => said(libc::truncate64(whole, length)),
                "stat" => said(libc::stat64(whole, stat.as_mut_ptr())),
                "lstat" => said(libc::lstat64(whole, stat.as_mut_ptr())),
                "fstatat" => said(libc::fstatat64(at, whole, stat.as_mut_ptr(), low)),
                "statx" => {
                    let mut out = std::mem::MaybeUninit::<libc::statx>::uninit();
                    said(libc::statx(at, whole, low, high, out.as_mut_ptr()))
                }
                "statfs" => {
                    let mut out = std::mem::MaybeUninit::<libc::statfs64>::uninit();
                    said(libc::statfs64(whole, out.as_mut_ptr()))
                }
                "statvfs" => {
                    let mut out = std::mem::MaybeUninit::<libc::statvfs64>::uninit();
                    said(libc::statvfs64(whole, out.as_mut_ptr()))
                }
                "access" => said(libc::access(whole, low)),
                "faccessat" => said(libc::faccessat(at, whole, low, high as c_int)),
                "euidaccess" => said(euidaccess(whole, low)),
                "mkdir" => said(libc::mkdir(whole, mode(low))),
                "mkdtemp" => said(libc::mkdir(whole, 0o700)),
                "mkdirat" => said(libc::mkdirat(at, whole, mode(low))),
                "rmdir" => said(libc::rmdir(whole)),
                "unlink" => said(libc::unlink(whole)),
                "unlinkat" => said(libc::unlinkat(at, whole, low)),
                "remove" => said(libc::remove(whole)),
                "readlink" => said(libc::readlink(whole, out.cast(), room) as i64),
                "readlinkat" => said(libc::readlinkat(at, whole, out.cast(), room) as i64),
                "scandir" => {
                    let mut entries = null_mut();
                    let count = said(scandir(whole, &raw mut entries, null(), null()))?;
                    for entry in std::slice::from_raw_parts(entries, count as usize) {
                        libc::free(entry.cast());
                    }
                    libc::free(entries.cast());
                    Ok(count)
                }
                "chmod" => said(libc::chmod(whole, mode(low))),
                "fchmodat" => said(libc::fchmodat(at, whole, mode(low), high as c_int)),
                "chown" => said(libc::chown(whole, c_uint::MAX, c_uint::MAX)),
                "lchown" => said(libc::lchown(whole, c_uint::MAX, c_uint::MAX)),
                "fchownat" => said(libc::fchownat(at, whole, c_uint::MAX, c_uint::MAX, low)),
                "utime" => said(libc::utime(whole, null())),
                "utimes" => said(libc::utimes(whole, no_times)),
                "lutimes" => said(libc::lutimes(whole, no_times)),
                "futimesat" => said(futimesat(at, whole, no_times)),
                "utimensat" => said(libc::utimensat(at, whole, null(), low)),
                "chdir" => said(libc::chdir(whole)),
                "getxattr" => said(libc::getxattr(whole, attribute, out, room) as i64),
                "lgetxattr" => said(libc::lgetxattr(whole, attribute, out, room) as i64),
                "setxattr" => said(libc::setxattr(whole, attribute, out, room, 0)),
                "lsetxattr" => said(libc::lsetxattr(whole, attribute, out, room, 0)),
                "listxattr" => said(libc::listxattr(whole, out.cast(), room) as i64),
                "llistxattr" => said(libc::llistxattr(whole, out.cast(), room) as i64),
                "removexattr" => said(libc::removexattr(whole, attribute)),
                "lremovexattr" => said(libc::lremovexattr(whole, attribute)),
                _ => Err(Errno::NOSYS),
            }
        }
    }

    fn open(&self, name: &str, step: &Step, path: *const c_char) -> Result<i64> {
        let (flags, bits) = (step.arg as c_int, mode((step.arg >> 32) as c_int));
        // SAFETY: a string that outlives the call.
        unsafe {
            if name == "opendir" {
                let directory = libc::opendir(path);
                if directory.is_null() {
                    return Err(last_error());
                }
                let fd = libc::dirfd(directory);
                let mut files = self.files();
                files.opened(step.handle, step.result, fd);
                files.directory_opened(step.handle, directory.expose_provenance(), fd);
                return Ok(i64::from(fd));
            }
            let exclusive = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
            let fd = said(match name {
                "open" => libc::open64(path, flags, bits),
                "openat" => libc::openat64(libc::AT_FDCWD, path, flags, bits),
                "creat" => libc::creat64(path, bits),
                _ => libc::open64(path, exclusive, 0o600),
            })?;
            self.keep(step, fd as c_int);
            Ok(fd)
        }
    }

    /// Enters what has been opened; a file that could not be in the trace is nobody's.
    fn keep(&self, step: &Step, fd: c_int) {
        if step.result < 0 || step.handle == 0 {
            // SAFETY: just opened.
            unsafe { libc::close(fd) };
        } else {
            self.files().opened(step.handle, step.result, fd);
        }
    }

    /// A request of the layer stdio.
    fn on_stream(&self, name: &str, step: &Step, buffer: &mut Buffer) -> Result<i64> {
        let low = step.arg as c_int;
        if matches!(name, "fopen" | "freopen") {
            let path = self.name(step.path.as_deref(), true)?;
            // SAFETY: strings that outlive the call.
            let stream = unsafe { libc::fopen64(path.as_ptr(), mode_of(low).as_ptr()) };
            if stream.is_null() {
                return Err(last_error());
            }
            // SAFETY: just opened.
            let fd = unsafe { libc::fileno(stream) };
            let mut files = self.files();
            files.opened(step.handle, step.result, fd);
            files.stream_opened(step.handle, stream.expose_provenance(), fd);
            return Ok(i64::from(fd));
        }
        if name == "fflush" && step.handle == 0 {
            // SAFETY: null stands for all streams.
            return said(unsafe { libc::fflush(null_mut()) });
        }
        if name == "fdopen" {
            let fd = self.descriptor(step)?;
            // SAFETY: the descriptor is open and a string that outlives the call.
            let stream = unsafe { libc::fdopen(fd, mode_of(low).as_ptr()) };
            if stream.is_null() {
                return Err(last_error());
            }
            self.files().stream_opened(step.handle, stream.expose_provenance(), fd);
            return Ok(i64::from(fd));
        }
        let (stream, fd) = self.stream(step)?;
        if name == "fclose" {
            self.files().closed(step.handle, fd);
        }
        let length = usize::try_from(step.length.unwrap_or(0)).map_err(|_| Errno::INVAL)?;
        // What is asked for says nothing where lines are read.
        let bytes = if matches!(name, "fread" | "fwrite") { length } else { step.result.max(0) as usize };
        let bytes = bytes.min(LARGEST as usize);
        let offset = step.offset.unwrap_or(0);
        let failed = |stream| {
            // SAFETY: the stream is open.
            if unsafe { libc::ferror(stream) } == 0 { Ok(0) } else { Err(last_error()) }
        };
        let moved = |count: usize| if count == 0 && bytes > 0 { failed(stream) } else { Ok(count as i64) };
        let text = self.text.as_ptr();
        // SAFETY: the stream was opened by this process and not closed since; the memory outlives the calls and is as large as they
        // are told.
        unsafe {
            match name {
                "fread" | "fgets" | "getline" | "getdelim" | "fscanf" | "scanf" => {
                    moved(libc::fread(buffer.of(bytes), 1, bytes, stream))
                }
                "fwrite" | "puts" | "printf" => {
                    moved(libc::fwrite(self.written(offset, bytes as u64), 1, bytes, stream))
                }
                "fprintf" => {
                    let bytes = bytes.min(self.text.len()) as c_int;
                    said(libc::fprintf(stream, c"%.*s".as_ptr(), bytes, text.cast::<c_char>()))
                }
                "fputs" => {
                    let string =
                        CString::new(&self.text[..bytes.min(self.text.len())]).map_err(|_| Errno::INVAL)?;
                    said(libc::fputs(string.as_ptr(), stream)).map(|_| bytes as i64)
                }
                "fgetc" => match libc::fgetc(stream) {
                    -1 => failed(stream),
                    _ => Ok(1),
                },
                "fputc" => said(libc::fputc(c_int::from(b'x'), stream)).map(|_| 1),
                "fseek" => said(libc::fseeko64(stream, offset, low)),
                "ftell" => said(libc::ftello64(stream)),
                "rewind" => {
                    libc::rewind(stream);
                    Ok(0)
                }
                "fgetpos" | "fsetpos" => {
                    let mut place = std::mem::MaybeUninit::<libc::fpos64_t>::uninit();
                    if name == "fsetpos" {
                        // Only a position that the stream has had can be set.
                        return said(libc::fseeko64(stream, offset, libc::SEEK_SET));
                    }
                    said(libc::fgetpos64(stream, place.as_mut_ptr()))
                }
                "fflush" => said(libc::fflush(stream)),
                "fclose" => said(libc::fclose(stream)),
                _ => Err(Errno::NOSYS),
            }
        }
    }

    /// The stream of a step's file; one on a descriptor of another process is made past the hook.
    fn stream(&self, step: &Step) -> Result<(*mut libc::FILE, c_int)> {
        if let Some((address, fd)) = self.files().stream(step.handle) {
            return Ok((std::ptr::with_exposed_provenance_mut(address), fd));
        }
        let fd = self.descriptor(step)?;
        type FdOpen = unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE;
        // SAFETY: the function of this name in libc itself has this prototype; the descriptor is open.
        let stream = unsafe {
            let own = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY);
            let found = if own.is_null() { null_mut() } else { libc::dlsym(own, c"fdopen".as_ptr()) };
            if found.is_null() {
                return Err(Errno::NOSYS);
            }
            std::mem::transmute::<*mut c_void, FdOpen>(found)(fd, stream_mode(fd).as_ptr())
        };
        if stream.is_null() {
            return Err(last_error());
        }
        self.files().stream_opened(step.handle, stream.expose_provenance(), fd);
        Ok((stream, fd))
    }
}

/// Permissions without those that would lend anybody's rights.
fn mode(recorded: c_int) -> c_uint {
    recorded as c_uint & 0o777
}

/// `mode` of `fopen` for flags of `open`.
fn mode_of(flags: c_int) -> &'static CStr {
    let has = |flag: c_int| flags & flag != 0;
    let both = flags & libc::O_ACCMODE == libc::O_RDWR;
    match (has(libc::O_APPEND), has(libc::O_TRUNC), has(libc::O_EXCL), both) {
        (true, _, _, true) => c"a+",
        (true, _, _, false) => c"a",
        (_, true, true, true) => c"w+x",
        (_, true, true, false) => c"wx",
        (_, true, false, true) => c"w+",
        (_, true, false, false) => c"w",
        (_, _, _, true) => c"r+",
        _ if flags & libc::O_ACCMODE == libc::O_WRONLY => c"w",
        _ => c"r",
    }
}
