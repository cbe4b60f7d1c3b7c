//! Hooks of file attributes: `stat` in all its forms, access, modes, owners, times, file systems.

use crate::path::{Path, arg};
use crate::real::hook;
use crate::request::{PathAt, on_fd_arg, on_path, on_path_fast, on_path_or_fd, on_ready_fd};
use miot_tracer::{NONE, op::posix};
use std::ffi::{c_int, c_uint, c_void};

type Out = *mut c_void;
type Times = *const c_void;

hook!(stat early | stat64 early (path: Path, out: Out) -> c_int, |real| {
    on_path_fast(posix::STAT, path, NONE, real)
}, else on_path(posix::STAT, path, NONE, real));
hook!(lstat early | lstat64 early (path: Path, out: Out) -> c_int, |real| {
    on_path_fast(posix::LSTAT, path, NONE, real)
}, else on_path(posix::LSTAT, path, NONE, real));
hook!(fstat early | fstat64 (fd: c_int, out: Out) -> c_int, |real| {
    on_ready_fd(posix::FSTAT, fd, 0, NONE, NONE, real)
}, else on_fd_arg(posix::FSTAT, fd, NONE, real));
hook!(fstatat | fstatat64 (directory: c_int, path: Path, out: Out, flags: c_int) -> c_int, |real| {
    on_path_or_fd(posix::FSTATAT, PathAt::new(directory, path), flags, arg(flags, 0), real)
});
hook!(statx(directory: c_int, path: Path, flags: c_int, mask: c_uint, out: Out) -> c_int, |real| {
    on_path_or_fd(posix::STATX, PathAt::new(directory, path), flags, arg(flags, mask), real)
});

// Functions that programs built before glibc 2.33 call.
hook!(__xstat | __xstat64 (version: c_int, path: Path, out: Out) -> c_int, |real| {
    on_path(posix::STAT, path, NONE, real)
});
hook!(__lxstat | __lxstat64 (version: c_int, path: Path, out: Out) -> c_int, |real| {
    on_path(posix::LSTAT, path, NONE, real)
});
hook!(__fxstat | __fxstat64 (version: c_int, fd: c_int, out: Out) -> c_int, |real| {
    on_fd_arg(posix::FSTAT, fd, NONE, real)
});
hook!(__fxstatat | __fxstatat64 (version: c_int, directory: c_int, path: Path, out: Out, flags: c_int) -> c_int, |real| {
    on_path_or_fd(posix::FSTATAT, PathAt::new(directory, path), flags, arg(flags, 0), real)
});

hook!(statfs | statfs64 | __statfs (path: Path, out: Out) -> c_int, |real| on_path(posix::STATFS, path, NONE, real));
hook!(fstatfs | fstatfs64 (fd: c_int, out: Out) -> c_int, |real| on_fd_arg(posix::FSTATFS, fd, NONE, real));
hook!(statvfs | statvfs64 (path: Path, out: Out) -> c_int, |real| on_path(posix::STATVFS, path, NONE, real));
hook!(fstatvfs | fstatvfs64 (fd: c_int, out: Out) -> c_int, |real| {
    on_fd_arg(posix::FSTATVFS, fd, NONE, real)
});

hook!(access early (path: Path, mode: c_int) -> c_int, |real| {
    on_path_fast(posix::ACCESS, path, arg(mode, 0), real)
}, else on_path(posix::ACCESS, path, arg(mode, 0), real));
hook!(euidaccess | eaccess (path: Path, mode: c_int) -> c_int, |real| {
    on_path(posix::EUIDACCESS, path, arg(mode, 0), real)
});
hook!(faccessat(directory: c_int, path: Path, mode: c_int, flags: c_int) -> c_int, |real| {
    on_path_or_fd(posix::FACCESSAT, PathAt::new(directory, path), flags, arg(mode, flags as u32), real)
});

hook!(chmod(path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::CHMOD, path, arg(mode as c_int, 0), real)
});
hook!(fchmod(fd: c_int, mode: c_uint) -> c_int, |real| {
    on_fd_arg(posix::FCHMOD, fd, arg(mode as c_int, 0), real)
});
hook!(fchmodat(directory: c_int, path: Path, mode: c_uint, flags: c_int) -> c_int, |real| {
    on_path_or_fd(posix::FCHMODAT, PathAt::new(directory, path), flags, arg(mode as c_int, flags as u32), real)
});
hook!(lchmod(path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::FCHMODAT, path, arg(mode as c_int, libc::AT_SYMLINK_NOFOLLOW as u32), real)
});

hook!(chown(path: Path, user: c_uint, group: c_uint) -> c_int, |real| {
    on_path(posix::CHOWN, path, arg(user as c_int, group), real)
});
hook!(lchown(path: Path, user: c_uint, group: c_uint) -> c_int, |real| {
    on_path(posix::LCHOWN, path, arg(user as c_int, group), real)
});
hook!(fchown(fd: c_int, user: c_uint, group: c_uint) -> c_int, |real| {
    on_fd_arg(posix::FCHOWN, fd, arg(user as c_int, group), real)
});
hook!(fchownat(directory: c_int, path: Path, user: c_uint, group: c_uint, flags: c_int) -> c_int, |real| {
    on_path_or_fd(posix::FCHOWNAT, PathAt::new(directory, path), flags, arg(flags, 0), real)
});

hook!(utime(path: Path, times: Times) -> c_int, |real| on_path(posix::UTIME, path, NONE, real));
hook!(utimes(path: Path, times: Times) -> c_int, |real| on_path(posix::UTIMES, path, NONE, real));
hook!(lutimes(path: Path, times: Times) -> c_int, |real| on_path(posix::LUTIMES, path, NONE, real));
hook!(futimes(fd: c_int, times: Times) -> c_int, |real| on_fd_arg(posix::FUTIMES, fd, NONE, real));
hook!(futimens(fd: c_int, times: Times) -> c_int, |real| on_fd_arg(posix::FUTIMENS, fd, NONE, real));
hook!(futimesat(directory: c_int, path: Path, times: Times) -> c_int, |real| {
    // A null path refers to the descriptor itself.
    match path.0.is_null() {
        true => on_fd_arg(posix::FUTIMES, directory, NONE, real),
        false => on_path(posix::FUTIMESAT, PathAt::new(directory, path), NONE, real),
    }
});
hook!(utimensat(directory: c_int, path: Path, times: Times, flags: c_int) -> c_int, |real| {
    on_path_or_fd(posix::UTIMENSAT, PathAt::new(directory, path), flags, arg(flags, 0), real)
});
