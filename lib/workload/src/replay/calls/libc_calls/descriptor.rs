//! Calls on a descriptor that move no file data.

use super::super::returned::{Result, last_error, returned, returned_errno};
use super::address_mut;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// "Leave the owner unchanged", for `chown` and its variants.
pub(in crate::replay::calls) const KEEP_OWNER: c_uint = c_uint::MAX;

/// Calls whose arguments are all numbers.
macro_rules! on_numbers {
    ($($name:ident => $function:path, ($($argument:ident: $type:ty),*);)*) => { $(
        pub(in crate::replay::calls) fn $name($($argument: $type),*) -> Result<i64> {
            // SAFETY: all arguments are numbers, and the call reads and writes no memory of this
            // process.
            returned(unsafe { $function($($argument),*) })
        }
    )* };
}

on_numbers! {
    lseek => libc::lseek64, (fd: c_int, offset: i64, whence: c_int);
    fsync => libc::fsync, (fd: c_int);
    fdatasync => libc::fdatasync, (fd: c_int);
    syncfs => libc::syncfs, (fd: c_int);
    ftruncate => libc::ftruncate64, (fd: c_int, length: i64);
    fallocate => libc::fallocate64, (fd: c_int, mode: c_int, offset: i64, length: i64);
    fchmod => libc::fchmod, (fd: c_int, mode: c_uint);
    fchdir => libc::fchdir, (fd: c_int);
    flock => libc::flock, (fd: c_int, operation: c_int);
    lockf => libc::lockf, (fd: c_int, command: c_int, length: i64);
    dup => libc::dup, (fd: c_int);
}

pub(in crate::replay::calls) fn sync() {
    // SAFETY: it has no arguments.
    unsafe { libc::sync() };
}

/// `sync_file_range` with all of its flags: waits for earlier writes, writes, and waits for the
/// end.
pub(in crate::replay::calls) fn sync_file_range(fd: c_int, offset: i64, length: i64) -> Result<i64> {
    const WRITE_AND_WAIT: c_uint =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: all arguments are numbers.
    returned(unsafe { libc::sync_file_range(fd, offset, length, WRITE_AND_WAIT) })
}

pub(in crate::replay::calls) fn posix_fallocate(fd: c_int, offset: i64, length: i64) -> Result<i64> {
    // SAFETY: all arguments are numbers.
    returned_errno(unsafe { libc::posix_fallocate64(fd, offset, length) })
}

/// `posix_fadvise` with the default advice.
pub(in crate::replay::calls) fn posix_fadvise(fd: c_int, offset: i64, length: i64) -> Result<i64> {
    // SAFETY: all arguments are numbers.
    returned_errno(unsafe { libc::posix_fadvise64(fd, offset, length, libc::POSIX_FADV_NORMAL) })
}

/// `fcntl` with `F_DUPFD` or `F_DUPFD_CLOEXEC`: any free descriptor.
pub(in crate::replay::calls) fn fcntl_duplicate(fd: c_int, command: c_int) -> Result<i64> {
    // SAFETY: all arguments are numbers.
    returned(unsafe { libc::fcntl(fd, command, 0) })
}

/// `fcntl` with a lock command, to unlock the whole file.
pub(in crate::replay::calls) fn fcntl_unlock(fd: c_int, command: c_int) -> Result<i64> {
    let unlock = libc::flock64 {
        l_type: libc::F_UNLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: `unlock` is the structure of lock commands, and larger than what other commands use.
    // It outlives the call.
    returned(unsafe { libc::fcntl(fd, command, &raw const unlock) })
}

/// Replaces the descriptor `new`, which must be one that only the table of open files uses.
pub(in crate::replay::calls) fn dup2(fd: c_int, new: c_int) -> Result<i64> {
    // SAFETY: all arguments are numbers. What `new` was is no longer used.
    returned(unsafe { libc::dup2(fd, new) })
}

/// As [`dup2`], with `O_CLOEXEC`.
pub(in crate::replay::calls) fn dup3(fd: c_int, new: c_int) -> Result<i64> {
    // SAFETY: all arguments are numbers. What `new` was is no longer used.
    returned(unsafe { libc::dup3(fd, new, libc::O_CLOEXEC) })
}

/// Closes a descriptor that has left the table of open files.
pub(in crate::replay::calls) fn close(fd: c_int) -> Result<i64> {
    // SAFETY: the descriptor has left the table, so nothing uses it any more.
    returned(unsafe { libc::close(fd) })
}

/// `close_range` on numbers so high that no descriptor has them. `is_valid`: the range begins
/// before it ends; the kernel refuses others.
pub(in crate::replay::calls) fn close_range_of_none(is_valid: bool, flags: c_uint) -> Result<i64> {
    const LAST: c_uint = c_uint::MAX - 1;
    type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    let first = if is_valid { LAST } else { c_uint::MAX };
    // A program that is linked with it does not start with a glibc older than 2.34.
    // SAFETY: the name is a C string that outlives the call.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"close_range".as_ptr()) };
    if found.is_null() {
        // SAFETY: all arguments are numbers, and the range has no open descriptor.
        return returned(unsafe { libc::syscall(libc::SYS_close_range, first, LAST, flags) });
    }
    // SAFETY: the function `close_range` of libc has this prototype.
    let close_range = unsafe { std::mem::transmute::<*mut c_void, CloseRange>(found) };
    // SAFETY: the range has no open descriptor.
    returned(unsafe { close_range(first, LAST, flags as c_int) })
}

/// Calls that fill a structure, which is not read.
macro_rules! fills {
    ($($name:ident => $function:path, $structure:path;)*) => { $(
        pub(in crate::replay::calls) fn $name(fd: c_int) -> Result<i64> {
            let mut out = MaybeUninit::<$structure>::uninit();
            // SAFETY: `out` is valid for writes of the structure that the call fills.
            returned(unsafe { $function(fd, out.as_mut_ptr()) })
        }
    )* };
}

fills! {
    fstat => libc::fstat64, libc::stat64;
    fstatfs => libc::fstatfs64, libc::statfs64;
    fstatvfs => libc::fstatvfs64, libc::statvfs64;
}

/// `fstatat` of the descriptor itself: with an empty path.
pub(in crate::replay::calls) fn fstatat_fd(fd: c_int, flags: c_int) -> Result<i64> {
    let mut out = MaybeUninit::<libc::stat64>::uninit();
    // SAFETY:
    // - the path is a C string;
    // - `out` is valid for writes of the structure that the call fills.
    returned(unsafe { libc::fstatat64(fd, c"".as_ptr(), out.as_mut_ptr(), flags | libc::AT_EMPTY_PATH) })
}

/// `statx` of the descriptor itself: with an empty path.
pub(in crate::replay::calls) fn statx_fd(fd: c_int, flags: c_int, mask: c_uint) -> Result<i64> {
    let mut out = MaybeUninit::<libc::statx>::uninit();
    // SAFETY:
    // - the path is a C string;
    // - `out` is valid for writes of the structure that the call fills.
    returned(unsafe { libc::statx(fd, c"".as_ptr(), flags | libc::AT_EMPTY_PATH, mask, out.as_mut_ptr()) })
}

pub(in crate::replay::calls) fn getdents(fd: c_int, memory: &mut [u8]) -> Result<i64> {
    // SAFETY: `memory` is valid for writes of its length, or null with length 0.
    returned(unsafe { libc::syscall(libc::SYS_getdents64, fd, address_mut(memory), memory.len()) })
}

/// `fchown` that leaves owner and group unchanged.
pub(in crate::replay::calls) fn fchown(fd: c_int) -> Result<i64> {
    // SAFETY: all arguments are numbers.
    returned(unsafe { libc::fchown(fd, KEEP_OWNER, KEEP_OWNER) })
}

/// `futimes` with the current time.
pub(in crate::replay::calls) fn futimes(fd: c_int) -> Result<i64> {
    // SAFETY: a null pointer stands for the current time.
    returned(unsafe { libc::futimes(fd, null()) })
}

/// `futimens` with the current time.
pub(in crate::replay::calls) fn futimens(fd: c_int) -> Result<i64> {
    // SAFETY: a null pointer stands for the current time.
    returned(unsafe { libc::futimens(fd, null()) })
}

pub(in crate::replay::calls) fn fgetxattr(fd: c_int, name: &CStr, memory: &mut [u8]) -> Result<i64> {
    // SAFETY:
    // - `name` is a C string;
    // - `memory` is valid for writes of its length, or null with length 0.
    returned(unsafe { libc::fgetxattr(fd, name.as_ptr(), address_mut(memory), memory.len()) } as i64)
}

pub(in crate::replay::calls) fn fsetxattr(fd: c_int, name: &CStr, value: &mut [u8]) -> Result<i64> {
    // SAFETY:
    // - `name` is a C string;
    // - `value` is valid for reads of its length, or null with length 0.
    returned(unsafe { libc::fsetxattr(fd, name.as_ptr(), address_mut(value), value.len(), 0) })
}

pub(in crate::replay::calls) fn flistxattr(fd: c_int, memory: &mut [u8]) -> Result<i64> {
    // SAFETY: `memory` is valid for writes of its length, or null with length 0.
    returned(unsafe { libc::flistxattr(fd, address_mut(memory).cast(), memory.len()) } as i64)
}

pub(in crate::replay::calls) fn fremovexattr(fd: c_int, name: &CStr) -> Result<i64> {
    // SAFETY: `name` is a C string.
    returned(unsafe { libc::fremovexattr(fd, name.as_ptr()) })
}

/// Maps `length` bytes of a file at an address that the kernel chooses, which this returns. The
/// mapping stays until [`munmap`].
pub(in crate::replay::calls) fn mmap(
    fd: c_int,
    length: usize,
    protection: c_int,
    flags: c_int,
    offset: i64,
) -> Result<usize> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let address = unsafe { libc::mmap64(null_mut(), length, protection, flags, fd, offset) };
    if address == libc::MAP_FAILED { Err(last_error()) } else { Ok(address.addr()) }
}

/// Unmaps what [`mmap`] has mapped.
pub(in crate::replay::calls) fn munmap(address: usize, length: usize) -> Result<i64> {
    // SAFETY: a mapping from the table of open files; no reference points into it.
    returned(unsafe { libc::munmap(std::ptr::without_provenance_mut(address), length) })
}

/// Writes what [`mmap`] has mapped to its file, and waits for it.
pub(in crate::replay::calls) fn msync(address: usize, length: usize) -> Result<i64> {
    // SAFETY: a mapping from the table of open files.
    returned(unsafe { libc::msync(std::ptr::without_provenance_mut(address), length, libc::MS_SYNC) })
}
