//! Hooks of directory reads.
//!
//! One `readdir` is one event, with result 1 for an entry and 0 for the end. The `getdents64` that
//! libc makes for several of them is not recorded. `scandir` is one event with the number of
//! entries as its result.

use crate::description::UNQUERIED;
use crate::descriptor::record_close;
use crate::files::{begin_on, tracked};
use crate::open::open_with;
use crate::path::Path;
use crate::real::{ErrorNumber, Long, ReturnValue, errno, hook, set_errno};
use crate::request::{PathAt, on_fd_arg, on_path};
use miot_tracer::{Completion, NONE, end, op::posix};
use std::ffi::{c_int, c_void};

/// `DIR *`.
type Dir = *mut libc::DIR;
type Entry = *mut c_void;
type Callback = *const c_void;

/// Flags with which libc opens a directory.
const FLAGS: c_int = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_CLOEXEC;

/// Returns the descriptor of a directory stream; −1 for a null pointer, which is the caller's
/// error.
fn descriptor(directory: Dir) -> c_int {
    // SAFETY:
    // - `directory` is not null, so it is an open stream of the caller.
    if directory.is_null() { -1 } else { unsafe { libc::dirfd(directory) } }
}

hook!(opendir(path: Path) -> Dir, |real| {
    open_with(posix::OPENDIR, path.into(), || FLAGS, || NONE, || UNQUERIED, real, |stream| descriptor(*stream))
});
hook!(fdopendir(fd: c_int) -> Dir, |real| {
    let Some(file) = tracked(posix::FDOPENDIR, fd) else { return real() };
    let Some(begun) = begin_on(posix::FDOPENDIR, file.args_without_offset(NONE)) else { return real() };
    let returned = real();
    let result = returned.result();
    let result = if result < 0 { result } else { i64::from(fd) };
    end(begun, Completion { handle: file.handle(), ..Completion::of(result) });
    returned
});
hook!(closedir(directory: Dir) -> c_int, |real| {
    record_close(posix::CLOSEDIR, descriptor(directory), real)
});

hook!(readdir | readdir64 (directory: Dir) -> Entry, |real| {
    let Some(file) = tracked(posix::READDIR, descriptor(directory)) else { return real() };
    let Some(begun) = begin_on(posix::READDIR, file.args_without_offset(NONE)) else { return real() };
    // A null pointer means the end, which does not change `errno`, or an error.
    let before = errno();
    set_errno(0);
    let returned = real();
    let result = match (returned.is_null(), errno()) {
        (false, _) => 1,
        (true, 0) => 0,
        (true, number) => -i64::from(number),
    };
    if result >= 0 {
        set_errno(before);
    }
    end(begun, Completion { handle: file.handle(), ..Completion::of(result) });
    returned
});
hook!(readdir_r | readdir64_r (directory: Dir, entry: Entry, out: *mut Entry) -> ErrorNumber, |real| {
    let Some(file) = tracked(posix::READDIR, descriptor(directory)) else { return real() };
    let Some(begun) = begin_on(posix::READDIR, file.args_without_offset(NONE)) else { return real() };
    let returned = real();
    let result = match returned.result() {
        // SAFETY:
        // - The call has succeeded and has written the pointer.
        0 => i64::from(!unsafe { *out }.is_null()),
        failure => failure,
    };
    end(begun, Completion { handle: file.handle(), ..Completion::of(result) });
    returned
});
hook!(rewinddir(directory: Dir) -> (), |real| {
    on_fd_arg(posix::REWINDDIR, descriptor(directory), NONE, real)
});
hook!(seekdir(directory: Dir, position: Long) -> (), |real| {
    on_fd_arg(posix::SEEKDIR, descriptor(directory), position as u64, real)
});
hook!(getdents64(fd: c_int, buffer: *mut c_void, length: usize) -> isize, |real| {
    on_fd_arg(posix::GETDENTS, fd, length as u64, real)
});
hook!(getdirentries | getdirentries64 (fd: c_int, buffer: *mut c_void, length: usize, base: *mut i64) -> isize, |real| {
    on_fd_arg(posix::GETDENTS, fd, length as u64, real)
});

hook!(scandir | scandir64 (path: Path, out: *mut *mut Entry, select: Callback, compare: Callback) -> c_int, |real| {
    on_path(posix::SCANDIR, path, NONE, real)
});
hook!(scandirat | scandirat64 (
    directory: c_int, path: Path, out: *mut *mut Entry, select: Callback, compare: Callback,
) -> c_int, |real| {
    on_path(posix::SCANDIR, PathAt::new(directory, path), NONE, real)
});
