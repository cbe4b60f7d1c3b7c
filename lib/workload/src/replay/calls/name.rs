//! Requests on a name.

use super::said::{Result, last_error, said};
use super::{Buffer, Target, mode, text};
use crate::replay::Step;
use crate::replay::below::relative;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

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

impl Target {
    /// A request on a name.
    pub(super) fn on_name(&self, name: &str, step: &Step, buffer: &mut Buffer) -> Result<i64> {
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
        let follows = follows(name, low, high as c_int);
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
                "mkfifo" => said(libc::mkfifo(whole, mode(low))),
                "mkfifoat" => said(libc::mkfifoat(at, whole, mode(low))),
                "mknod" => said(libc::mknod(whole, node(low), 0)),
                "mknodat" => said(libc::mknodat(at, whole, node(low), 0)),
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
        let (mut flags, bits) = (step.arg as c_int, mode((step.arg >> 32) as c_int));
        // SAFETY: a string that outlives the call.
        if name != "opendir" && unsafe { is_pipe(path) } {
            // Who opens the other end may not be in the trace: to read and write, it waits for nobody.
            let access = if step.result < 0 { flags & libc::O_ACCMODE } else { libc::O_RDWR };
            flags = flags & !libc::O_ACCMODE | access | libc::O_NONBLOCK;
        }
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
}

/// What `mknod` is to make: a device, of which the trace does not say which one, is a file here.
fn node(recorded: c_int) -> c_uint {
    let kind = recorded as c_uint & libc::S_IFMT;
    let kind = if matches!(kind, libc::S_IFIFO | libc::S_IFSOCK) { kind } else { libc::S_IFREG };
    kind | mode(recorded)
}

/// The name is that of a named pipe. Asked past the hook.
///
/// # Safety
/// `path` is a C string.
pub(super) unsafe fn is_pipe(path: *const c_char) -> bool {
    // SAFETY: by the contract of this function.
    let path = unsafe { CStr::from_ptr(path) };
    let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind == Ok(FileType::Fifo)
}

/// Whether a call goes on where a symbolic link leads.
fn follows(name: &str, low: c_int, high: c_int) -> bool {
    match name {
        "unlink" | "unlinkat" | "remove" | "rmdir" | "rename" | "renameat" | "renameat2" | "readlink"
        | "readlinkat" | "mkdir" | "mkdirat" | "mkdtemp" | "mkfifo" | "mkfifoat" | "mknod" | "mknodat" => {
            false
        }
        "fstatat" | "statx" | "fchownat" | "utimensat" => low & libc::AT_SYMLINK_NOFOLLOW == 0,
        "fchmodat" | "faccessat" => high & libc::AT_SYMLINK_NOFOLLOW == 0,
        // `link`, `linkat`, `lstat`, `lchown` and the others of this kind.
        _ => !name.starts_with('l'),
    }
}
