//! Names: making, removing and renaming them, links, the working directory.

use crate::cwd;
use crate::files::{begin, begin_on, tracked};
use crate::filter;
use crate::path::{Path, arg};
use crate::real::{Returned, hook};
use crate::request::{Place, on_path, on_path_and_string, on_paths};
use miot_tracer::{Done, Ext, NONE, cancel, end, end_with, op::posix};
use std::ffi::{c_int, c_uint, c_void};

hook!(mkdir(path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::MKDIR, path, arg(mode as c_int, 0), real)
});
hook!(mkdirat(directory: c_int, path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::MKDIRAT, Place::at(directory, path), arg(mode as c_int, 0), real)
});
hook!(rmdir(path: Path) -> c_int, |real| on_path(posix::RMDIR, path, NONE, real));
hook!(unlink early (path: Path) -> c_int, |real| on_path(posix::UNLINK, path, NONE, real));
hook!(unlinkat(directory: c_int, path: Path, flags: c_int) -> c_int, |real| {
    on_path(posix::UNLINKAT, Place::at(directory, path), arg(flags, 0), real)
});
hook!(remove(path: Path) -> c_int, |real| on_path(posix::REMOVE, path, NONE, real));

hook!(rename(old: Path, new: Path) -> c_int, |real| on_paths(posix::RENAME, old, new, NONE, real));
hook!(renameat(old_at: c_int, old: Path, new_at: c_int, new: Path) -> c_int, |real| {
    on_paths(posix::RENAMEAT, Place::at(old_at, old), Place::at(new_at, new), NONE, real)
});
hook!(renameat2(old_at: c_int, old: Path, new_at: c_int, new: Path, flags: c_uint) -> c_int, |real| {
    on_paths(posix::RENAMEAT2, Place::at(old_at, old), Place::at(new_at, new), arg(flags as c_int, 0), real)
});
hook!(link(old: Path, new: Path) -> c_int, |real| on_paths(posix::LINK, old, new, NONE, real));
hook!(linkat(old_at: c_int, old: Path, new_at: c_int, new: Path, flags: c_int) -> c_int, |real| {
    on_paths(posix::LINKAT, Place::at(old_at, old), Place::at(new_at, new), arg(flags, 0), real)
});
hook!(symlink(target: Path, new: Path) -> c_int, |real| {
    on_path_and_string(posix::SYMLINK, new.into(), target, true, NONE, real)
});
hook!(symlinkat(target: Path, directory: c_int, new: Path) -> c_int, |real| {
    on_path_and_string(posix::SYMLINKAT, Place::at(directory, new), target, true, NONE, real)
});

hook!(readlink(path: Path, out: *mut c_void, size: usize) -> isize, |real| {
    on_path(posix::READLINK, path, size as u64, real)
});
hook!(__readlink_chk(path: Path, out: *mut c_void, size: usize, room: usize) -> isize, |real| {
    on_path(posix::READLINK, path, size as u64, real)
});
hook!(readlinkat(directory: c_int, path: Path, out: *mut c_void, size: usize) -> isize, |real| {
    on_path(posix::READLINKAT, Place::at(directory, path), size as u64, real)
});
hook!(__readlinkat_chk(directory: c_int, path: Path, out: *mut c_void, size: usize, room: usize) -> isize, |real| {
    on_path(posix::READLINKAT, Place::at(directory, path), size as u64, real)
});

hook!(mknod(path: Path, mode: c_uint, device: u64) -> c_int, |real| {
    on_path(posix::MKNOD, path, arg(mode as c_int, 0), real)
});
hook!(mknodat(directory: c_int, path: Path, mode: c_uint, device: u64) -> c_int, |real| {
    on_path(posix::MKNODAT, Place::at(directory, path), arg(mode as c_int, 0), real)
});
hook!(__xmknod(version: c_int, path: Path, mode: c_uint, device: *mut u64) -> c_int, |real| {
    on_path(posix::MKNOD, path, arg(mode as c_int, 0), real)
});
hook!(__xmknodat(version: c_int, directory: c_int, path: Path, mode: c_uint, device: *mut u64) -> c_int, |real| {
    on_path(posix::MKNODAT, Place::at(directory, path), arg(mode as c_int, 0), real)
});
hook!(mkfifo(path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::MKFIFO, path, arg(mode as c_int, 0), real)
});
hook!(mkfifoat(directory: c_int, path: Path, mode: c_uint) -> c_int, |real| {
    on_path(posix::MKFIFOAT, Place::at(directory, path), arg(mode as c_int, 0), real)
});

hook!(chdir early (path: Path) -> c_int, |real| {
    let Some(begun) = begin(posix::CHDIR) else { return changing(real) };
    // The path is read after the call but is relative to the directory before it.
    let mut before = crate::path::Buffer::new();
    let known = cwd::get(&mut before);
    let returned = changing(real);
    let result = returned.result();
    path.resolved_from(known.then_some(&before), result, |path| {
        if filter::excluded(path) {
            return cancel(begun);
        }
        end_with(begun, Done::of(result), &Ext { path1: path, ..Ext::default() });
    });
    returned
});
hook!(fchdir(fd: c_int) -> c_int, |real| {
    let begun = tracked(posix::FCHDIR, fd).and_then(|file| Some((file, begin_on(posix::FCHDIR, file.named(NONE))?)));
    let returned = changing(real);
    if let Some((file, begun)) = begun {
        end(begun, Done { handle: file.handle(), ..Done::of(returned.result()) });
    }
    returned
});

/// Changes the directory. A child of `vfork` has its own, but forgetting the parent's is harmless.
fn changing(real: impl FnOnce() -> c_int) -> c_int {
    let returned = real();
    if returned != -1 {
        cwd::changed();
    }
    returned
}
