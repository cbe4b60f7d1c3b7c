//! Hooks of names: creation, removal, renaming, links, the working directory.

use crate::cwd;
use crate::files::{begin, begin_on, tracked};
use crate::filter;
use crate::path::{Path, arg};
use crate::real::{ReturnValue, hook};
use crate::request::{PathAt, StringRole, on_path, on_path_and_string, on_path_fast, on_paths};
use miot_tracer::{Completion, Ext, NONE, cancel, end, end_with, op::posix};
use std::ffi::{c_int, c_uint, c_void};

hook!(mkdir(path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::MKDIR, path, arg(mode as c_int, 0), real)
});
hook!(mkdirat(directory: c_int, path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::MKDIRAT, PathAt::new(directory, path), arg(mode as c_int, 0), real)
});
hook!(rmdir(path: Path) -> c_int, |real| on_path(posix::RMDIR, path, NONE, real));
hook!(unlink early (path: Path) -> c_int, |real| {
    on_path_fast(posix::UNLINK, path, NONE, real)
}, else on_path(posix::UNLINK, path, NONE, real));
hook!(unlinkat(directory: c_int, path: Path, flags: c_int) -> c_int, |real| {
    on_path(posix::UNLINKAT, PathAt::new(directory, path), arg(flags, 0), real)
});
hook!(remove(path: Path) -> c_int, |real| on_path(posix::REMOVE, path, NONE, real));

hook!(rename(old: Path, new: Path) -> c_int, |real| on_paths(posix::RENAME, old, new, NONE, real));
hook!(renameat(old_at: c_int, old: Path, new_at: c_int, new: Path) -> c_int, |real| {
    on_paths(posix::RENAMEAT, PathAt::new(old_at, old), PathAt::new(new_at, new), NONE, real)
});
hook!(renameat2(old_at: c_int, old: Path, new_at: c_int, new: Path, flags: c_uint) -> c_int, |real| {
    on_paths(posix::RENAMEAT2, PathAt::new(old_at, old), PathAt::new(new_at, new), arg(flags as c_int, 0), real)
});
hook!(link(old: Path, new: Path) -> c_int, |real| on_paths(posix::LINK, old, new, NONE, real));
hook!(linkat(old_at: c_int, old: Path, new_at: c_int, new: Path, flags: c_int) -> c_int, |real| {
    on_paths(posix::LINKAT, PathAt::new(old_at, old), PathAt::new(new_at, new), arg(flags, 0), real)
});
hook!(symlink(target: Path, new: Path) -> c_int, |real| {
    on_path_and_string(posix::SYMLINK, new.into(), target, StringRole::LinkTarget, NONE, real)
});
hook!(symlinkat(target: Path, directory: c_int, new: Path) -> c_int, |real| {
    on_path_and_string(posix::SYMLINKAT, PathAt::new(directory, new), target, StringRole::LinkTarget, NONE, real)
});

hook!(readlink(path: Path, out: *mut c_void, size: usize) -> isize, |real| {
    on_path(posix::READLINK, path, size as u64, real)
});
hook!(__readlink_chk(path: Path, out: *mut c_void, size: usize, room: usize) -> isize, |real| {
    on_path(posix::READLINK, path, size as u64, real)
});
hook!(readlinkat(directory: c_int, path: Path, out: *mut c_void, size: usize) -> isize, |real| {
    on_path(posix::READLINKAT, PathAt::new(directory, path), size as u64, real)
});
hook!(__readlinkat_chk(directory: c_int, path: Path, out: *mut c_void, size: usize, room: usize) -> isize, |real| {
    on_path(posix::READLINKAT, PathAt::new(directory, path), size as u64, real)
});

hook!(mknod(path: Path, mode: c_uint, device: u64) -> c_int, |real| {
    on_path(posix::MKNOD, path, arg(mode as c_int, 0), real)
});
hook!(mknodat(directory: c_int, path: Path, mode: c_uint, device: u64) -> c_int, |real| {
    on_path(posix::MKNODAT, PathAt::new(directory, path), arg(mode as c_int, 0), real)
});
hook!(__xmknod(version: c_int, path: Path, mode: c_uint, device: *mut u64) -> c_int, |real| {
    on_path(posix::MKNOD, path, arg(mode as c_int, 0), real)
});
hook!(__xmknodat(version: c_int, directory: c_int, path: Path, mode: c_uint, device: *mut u64) -> c_int, |real| {
    on_path(posix::MKNODAT, PathAt::new(directory, path), arg(mode as c_int, 0), real)
});
hook!(mkfifo(path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::MKFIFO, path, arg(mode as c_int, 0), real)
});
hook!(mkfifoat(directory: c_int, path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::MKFIFOAT, PathAt::new(directory, path), arg(mode as c_int, 0), real)
});

hook!(chdir early (path: Path) -> c_int, |real| {
    let Some(begun) = begin(posix::CHDIR) else { return call_chdir(real) };
    // The path is read after the call, but it is relative to the directory before the call.
    let mut before = crate::path::Buffer::new();
    let is_known = cwd::get(&mut before);
    let returned = call_chdir(real);
    let result = returned.result();
    path.resolved_from(is_known.then_some(&before), result, |path| {
        if filter::excluded(path) {
            return cancel(begun);
        }
        end_with(begun, Completion::of(result), &Ext { path1: path, ..Ext::default() });
    });
    returned
});
hook!(fchdir(fd: c_int) -> c_int, |real| {
    let file = tracked(posix::FCHDIR, fd);
    let begun =
        file.and_then(|file| Some((file, begin_on(posix::FCHDIR, file.args_without_offset(NONE))?)));
    let returned = call_chdir(real);
    if let Some((file, begun)) = begun {
        end(begun, Completion { handle: file.handle(), ..Completion::of(returned.result()) });
    }
    returned
});

/// Changes the directory and invalidates the cached one. A child of `vfork` has a directory of its
/// own, but the invalidation of the parent's is harmless.
fn call_chdir(real: impl FnOnce() -> c_int) -> c_int {
    let returned = real();
    if returned != -1 {
        cwd::changed();
    }
    returned
}
