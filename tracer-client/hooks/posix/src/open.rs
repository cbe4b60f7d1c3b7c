//! Hooks of `open` by all its names, and of temporary files.
//!
//! `open` is variadic in C. The hooks take the mode as a fixed parameter: on every supported ABI it
//! is passed in the same register, and without `O_CREAT` it is not used.

use crate::description::{UNQUERIED, generation};
use crate::files::{OpenedFile, begin};
use crate::path::{Joined, Path, PathArgument, arg};
use crate::real::{ReturnValue, hook};
use crate::request::{Begun, PathAt};
use crate::{description, filter, table};
use miot_tracer::op::posix;
use miot_tracer::{Completion, NONE, Op, begin_leaf, end_leaf_on_path, new_handle};
use std::ffi::{c_char, c_int, c_uint};

hook!(open early | open64 early | __open | __open64 (path: Path, flags: c_int, mode: c_uint) -> c_int, |real| {
    open_fast(posix::OPEN, path, flags, mode, real)
}, else record_open(posix::OPEN, path, flags, mode, real));
hook!(openat early | openat64 early (directory: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int, |real| {
    open_fast(posix::OPENAT, PathAt::new(directory, path), flags, mode, real)
}, else record_open(posix::OPENAT, PathAt::new(directory, path), flags, mode, real));
hook!(creat | creat64 (path: Path, mode: c_uint) -> c_int, |real| {
    record_open(posix::CREAT, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode, real)
});
hook!(__open_2 | __open64_2 (path: Path, flags: c_int) -> c_int, |real| {
    record_open(posix::OPEN, path, flags, 0, real)
});
hook!(__openat_2 | __openat64_2 (directory: c_int, path: Path, flags: c_int) -> c_int, |real| {
    record_open(posix::OPENAT, PathAt::new(directory, path), flags, 0, real)
});

/// Flags with which `mkstemp` opens, in addition to those of `mkostemp`.
const TEMPORARY: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

// After a success the template contains the name of the file.
hook!(mkstemp | mkstemp64 (template: Path) -> c_int, |real| {
    record_open(posix::MKSTEMP, template, TEMPORARY, 0o600, real)
});
hook!(mkostemp | mkostemp64 (template: Path, flags: c_int) -> c_int, |real| {
    record_open(posix::MKSTEMP, template, flags | TEMPORARY, 0o600, real)
});
hook!(mkstemps | mkstemps64 (template: Path, suffix: c_int) -> c_int, |real| {
    record_open(posix::MKSTEMP, template, TEMPORARY, 0o600, real)
});
hook!(mkostemps | mkostemps64 (template: Path, suffix: c_int, flags: c_int) -> c_int, |real| {
    record_open(posix::MKSTEMP, template, flags | TEMPORARY, 0o600, real)
});
hook!(mkdtemp(template: Path) -> *mut c_char, |real| {
    crate::request::on_path(posix::MKDTEMP, template, NONE, real)
});

fn record_open(
    op: Op,
    path_at: impl Into<PathAt>,
    flags: c_int,
    mode: c_uint,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let arg = open_arg(flags, mode);
    open_with(op, path_at.into(), || flags, || arg, || UNQUERIED, real, |fd| *fd)
}

/// Returns the argument word of an open.
fn open_arg(flags: c_int, mode: c_uint) -> u64 {
    let has_mode = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    arg(flags, if has_mode { mode } else { 0 })
}

/// Records the open of a path. `None`: nothing has happened, and [`record_open`] records it.
#[inline(always)]
fn open_fast(
    op: Op,
    path_at: impl Into<PathAt>,
    flags: c_int,
    mode: c_uint,
    real: impl FnOnce() -> c_int,
) -> Option<c_int> {
    let generation = generation();
    let begun = begin_leaf(op)?;
    let fd = real();
    let result = fd.result();
    let length = open_arg(flags, mode);
    let path_at = path_at.into();
    let mut joined = Joined::new();
    let path = path_at.path.read_quickly(path_at.directory, result, &mut joined);
    let path = path.filter(|path| !filter::excluded(path));
    match path {
        Some(path) if fd >= 0 => {
            let (handle, event_flags) = (new_handle(), crate::files::event_flags(flags));
            let done = || Completion { handle, length, flags: event_flags, ..Completion::of(result) };
            let defined = end_leaf_on_path(op, begun, done, path);
            OpenedFile { fd, handle, flags, generation, stream: UNQUERIED, defined }.add_to_table();
        }
        _ => {
            let outcome = OpenOutcome { fd: fd.max(-1), flags, generation, stream: UNQUERIED };
            end_open(Begun::Leaf(op, begun), path_at, length, result, &outcome);
        }
    }
    Some(fd)
}

/// Records the open of a path and adds its descriptor, which `descriptor` returns after a success,
/// to the table. The other closures are also called after the call, because the arguments that they
/// read may be invalid and the cause of a failure.
pub(crate) fn open_with<R: ReturnValue>(
    op: Op,
    path_at: PathAt,
    flags: impl FnOnce() -> c_int,
    arg: impl FnOnce() -> u64,
    stream: impl FnOnce() -> u64,
    real: impl FnOnce() -> R,
    descriptor: impl FnOnce(&R) -> c_int,
) -> R {
    let generation = generation();
    let begun = begin(op);
    let returned = real();
    let failure = returned.result();
    let fd = if failure < 0 { -1 } else { descriptor(&returned) };
    let Some(begun) = begun else {
        table::forget(fd);
        return returned;
    };
    let (flags, stream) = (flags(), if fd < 0 { UNQUERIED } else { stream() });
    end_open(Begun::Any(begun), path_at, arg(), failure, &OpenOutcome { fd, flags, generation, stream });
    returned
}

/// Outcome of an open: the descriptor, negative if none, and the fields of [`OpenedFile`] of the
/// same names.
#[derive(Clone, Copy)]
struct OpenOutcome {
    fd: c_int,
    flags: c_int,
    generation: u32,
    stream: u64,
}

/// Not inlined for the same reason as `request::end_on_path`.
#[inline(never)]
fn end_open(begun: Begun, path_at: PathAt, arg: u64, failure: i64, outcome: &OpenOutcome) {
    let OpenOutcome { fd, flags, generation, stream } = *outcome;
    path_at.path.resolved(path_at.directory, failure, PathArgument::First, |path| {
        if filter::excluded(path) {
            if fd >= 0 {
                table::set(fd, table::EXCLUDED);
            }
            return begun.cancel();
        }
        if fd < 0 {
            begun.end(Completion { length: arg, ..Completion::of(failure.min(0)) }, path);
            return;
        }
        description::touch(fd);
        table::touch(fd);
        let handle = new_handle();
        let event_flags = crate::files::event_flags(flags);
        let done = Completion { handle, length: arg, flags: event_flags, ..Completion::of(i64::from(fd)) };
        let defined = begun.end(done, path);
        OpenedFile { fd, handle, flags, generation, stream, defined }.add_to_table();
    });
}
