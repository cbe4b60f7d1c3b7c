//! Recording of requests on a descriptor, at its position, on one path and on two paths.
//!
//! Each function calls the real function exactly once, takes its result before `errno` can change,
//! and records the request unless its file or path is excluded.

use crate::description::{Access, Description};
use crate::files::{begin, begin_on, ready, tracked};
use crate::filter;
use crate::path::{Joined, Path, PathArgument};
use crate::real::ReturnValue;
use miot_tracer::{
    Completion, Ext, LeafRequest, NONE, Op, PackedRequest, RequestArgs, StartedRequest, begin_leaf,
    begin_leaf_on, cancel, end, end_leaf, end_leaf_on_path, end_with, flag,
};
use std::ffi::{c_int, c_void};

/// Records a request on a descriptor. The offset, if any, is an argument of the call. `None`:
/// nothing has happened, and [`on_any_fd`] records it.
#[inline(always)]
pub(crate) fn on_ready_fd<R: ReturnValue>(
    op: Op,
    fd: c_int,
    flags: u16,
    offset: u64,
    length: u64,
    real: impl FnOnce() -> R,
) -> Option<R> {
    let file = ready(fd)?;
    let begun = begin_leaf_on(op, RequestArgs { handle: file.handle(), offset, length })?;
    let returned = real();
    let result = returned.result();
    end_leaf(op, begun, || {
        let flags = file.flags() | flags;
        Completion { handle: file.handle(), offset, length, result, flags }
    });
    Some(returned)
}

/// Records a request on a descriptor, which may not be [`ready`].
pub(crate) fn on_any_fd<R: ReturnValue>(
    op: Op,
    fd: c_int,
    flags: u16,
    offset: u64,
    length: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let handle = file.handle();
    let Some(begun) = begin_on_file(op, RequestArgs { handle, offset, length }) else { return real() };
    let returned = real();
    let result = returned.result();
    let flags = file.flags() | flags;
    end_on(&PackedRequest::new(begun, Completion { handle, offset, length, result, flags }), file);
    returned
}

/// Records a request on a descriptor. The offset, if any, is an argument of the call.
#[inline(always)]
pub(crate) fn on_fd<R: ReturnValue>(
    op: Op,
    fd: c_int,
    offset: u64,
    length: u64,
    real: impl FnOnce() -> R,
) -> R {
    on_any_fd(op, fd, 0, offset, length, real)
}

/// Begins a request on a file that is not ready, see [`begin_on`].
#[inline(never)]
pub(crate) fn begin_on_file(op: Op, args: RequestArgs) -> Option<StartedRequest> {
    begin_on(op, args)
}

/// Ends a request of [`begin_on_file`].
#[inline(never)]
pub(crate) fn end_on(request: &PackedRequest, file: &Description) {
    let (begun, done) = request.unpack();
    match file.caller() {
        Some(caller) if begun.is_outermost() => {
            end_with(begun, done, &Ext { caller: Some(caller), ..Ext::default() })
        }
        _ => end(begun, done),
    };
}

/// Returns [`flag::UNALIGNED`] if the buffer is not aligned, else 0.
#[inline(always)]
pub(crate) fn unaligned_flag(buffer: *const c_void) -> u16 {
    if buffer.addr().is_multiple_of(flag::MEMORY_ALIGNMENT) { 0 } else { flag::UNALIGNED }
}

/// Records a read or a write at an offset, like [`on_ready_fd`].
#[inline(always)]
pub(crate) fn at_offset<R: ReturnValue>(
    op: Op,
    fd: c_int,
    buffer: *const c_void,
    offset: u64,
    length: u64,
    real: impl FnOnce() -> R,
) -> Option<R> {
    on_ready_fd(op, fd, unaligned_flag(buffer), offset, length, real)
}

/// Records a read or a write at an offset, like [`on_any_fd`].
#[inline(always)]
pub(crate) fn at_any_offset<R: ReturnValue>(
    op: Op,
    fd: c_int,
    buffer: *const c_void,
    offset: u64,
    length: u64,
    real: impl FnOnce() -> R,
) -> R {
    on_any_fd(op, fd, unaligned_flag(buffer), offset, length, real)
}

/// Records a request on a descriptor with an argument, or [`NONE`], and no offset.
#[inline(always)]
pub(crate) fn on_fd_arg<R: ReturnValue>(op: Op, fd: c_int, arg: u64, real: impl FnOnce() -> R) -> R {
    on_fd(op, fd, NONE, arg, real)
}

/// Records a read or a write at the descriptor's position, which it moves. `None`: nothing has
/// happened, and [`at_any_position`] records it.
#[inline(always)]
pub(crate) fn at_position<R: ReturnValue>(
    op: Op,
    fd: c_int,
    buffer: *const c_void,
    length: u64,
    access: Access,
    real: impl FnOnce() -> R,
) -> Option<R> {
    let file = ready(fd)?;
    let offset = file.known_position(file.state(), access)?;
    let begun = begin_leaf_on(op, RequestArgs { handle: file.handle(), offset, length })?;
    let returned = real();
    let result = returned.result();
    let state = file.state();
    // Another process may have been created during the call.
    let (offset, flags) = match file.known_position(state, access) {
        Some(_) => (file.advance_known(result), state as u16),
        None => file.advance(fd, result, access),
    };
    let flags = flags | unaligned_flag(buffer);
    end_leaf(op, begun, || Completion { handle: file.handle(), offset, length, result, flags });
    Some(returned)
}

/// Records a read or a write at the descriptor's position, which it moves. The descriptor may not
/// be [`ready`].
pub(crate) fn at_any_position<R: ReturnValue>(
    op: Op,
    fd: c_int,
    buffer: *const c_void,
    length: u64,
    access: Access,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let args = file.args_at_position(length, access);
    let Some(begun) = begin_on_file(op, args) else { return file.run_unrecorded(real) };
    let returned = real();
    let result = returned.result();
    let (offset, flags) = file.advance(fd, result, access);
    let flags = flags | unaligned_flag(buffer);
    end_on(
        &PackedRequest::new(begun, Completion { handle: args.handle, offset, length, result, flags }),
        file,
    );
    returned
}

/// A path, and the descriptor of the directory to which it is relative.
#[derive(Clone, Copy)]
pub(crate) struct PathAt {
    pub(crate) directory: c_int,
    pub(crate) path: Path,
}

impl PathAt {
    pub(crate) fn new(directory: c_int, path: Path) -> PathAt {
        PathAt { directory, path }
    }
}

impl From<Path> for PathAt {
    fn from(path: Path) -> PathAt {
        PathAt { directory: libc::AT_FDCWD, path }
    }
}

/// Records a request on a path. `None`: nothing has happened, and [`on_path`] records it.
#[inline(always)]
pub(crate) fn on_path_fast<R: ReturnValue>(
    op: Op,
    path_at: impl Into<PathAt>,
    arg: u64,
    real: impl FnOnce() -> R,
) -> Option<R> {
    let begun = begin_leaf(op)?;
    let returned = real();
    end_leaf_on(op, begun, path_at.into(), arg, returned.result());
    Some(returned)
}

/// Records a request on a path.
pub(crate) fn on_path<R: ReturnValue>(
    op: Op,
    path_at: impl Into<PathAt>,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    let path_at = path_at.into();
    let Some(begun) = begin_any(op) else { return real() };
    let returned = real();
    end_on_path(Begun::Any(begun), path_at, arg, returned.result());
    returned
}

/// Begins a request that cannot begin on the fast path.
#[inline(never)]
pub(crate) fn begin_any(op: Op) -> Option<StartedRequest> {
    begin(op)
}

/// Ends a request on a path, or cancels it if the path is excluded. Like the ends of all requests
/// with paths it is not inlined: a copy in each hook would add pages that a starting program
/// touches.
#[inline(never)]
fn end_leaf_on(op: Op, begun: LeafRequest, path_at: PathAt, arg: u64, result: i64) {
    let mut joined = Joined::new();
    let Some(path) = path_at.path.read_quickly(path_at.directory, result, &mut joined) else {
        return end_on_path(Begun::Leaf(op, begun), path_at, arg, result);
    };
    if filter::excluded(path) {
        return cancel(begun.started(op));
    }
    end_leaf_on_path(op, begun, || Completion { length: arg, ..Completion::of(result) }, path);
}

/// A request on a path that has begun.
#[derive(Clone, Copy)]
pub(crate) enum Begun {
    /// On the fast path.
    Leaf(Op, LeafRequest),
    /// In any way.
    Any(StartedRequest),
}

impl Begun {
    /// Ends the request. Returns false if the event was dropped and counted.
    #[inline(always)]
    pub(crate) fn end(self, done: Completion, path: &[u8]) -> bool {
        match self {
            Begun::Leaf(op, begun) => end_leaf_on_path(op, begun, || done, path),
            Begun::Any(begun) => end_with(begun, done, &Ext { path1: path, ..Ext::default() }),
        }
    }

    pub(crate) fn cancel(self) {
        match self {
            Begun::Leaf(op, begun) => cancel(begun.started(op)),
            Begun::Any(begun) => cancel(begun),
        }
    }
}

/// Ends a request on any path, or cancels it if the path is excluded.
#[inline(never)]
fn end_on_path(begun: Begun, path_at: PathAt, arg: u64, result: i64) {
    let done = Completion { length: arg, ..Completion::of(result) };
    path_at.path.resolved(path_at.directory, result, PathArgument::First, |path| {
        if filter::excluded(path) {
            return begun.cancel();
        }
        begun.end(done, path);
    });
}

/// Records a request on a path, or on the descriptor if `AT_EMPTY_PATH` is set and the path is
/// empty.
pub(crate) fn on_path_or_fd<R: ReturnValue>(
    op: Op,
    path_at: PathAt,
    flags: c_int,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    if flags & libc::AT_EMPTY_PATH == 0 {
        return on_path(op, path_at, arg, real);
    }
    let file = tracked(op, path_at.directory);
    let args = RequestArgs { handle: file.map_or(0, Description::handle), offset: NONE, length: arg };
    let Some(begun) = begin_on(op, args) else { return real() };
    let returned = real();
    end_on_path_or_fd(begun, path_at, file, arg, returned.result());
    returned
}

#[inline(never)]
fn end_on_path_or_fd(
    begun: StartedRequest,
    path_at: PathAt,
    file: Option<&Description>,
    arg: u64,
    result: i64,
) {
    // Since Linux 6.11 a null pointer with AT_EMPTY_PATH means the empty string.
    if !path_at.path.0.is_null() && !path_at.path.is_empty(result) {
        return end_on_path(Begun::Any(begun), path_at, arg, result);
    }
    match file {
        Some(file) => {
            _ = end(begun, Completion { handle: file.handle(), length: arg, ..Completion::of(result) })
        }
        None => cancel(begun),
    }
}

/// Records a request on two paths, unless both are excluded.
pub(crate) fn on_paths<R: ReturnValue>(
    op: Op,
    first: impl Into<PathAt>,
    second: impl Into<PathAt>,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    let (first, second) = (first.into(), second.into());
    let Some(begun) = begin(op) else { return real() };
    let returned = real();
    end_on_paths(begun, first, second, arg, returned.result());
    returned
}

#[inline(never)]
fn end_on_paths(begun: StartedRequest, first: PathAt, second: PathAt, arg: u64, result: i64) {
    let done = Completion { length: arg, ..Completion::of(result) };
    first.path.resolved(first.directory, result, PathArgument::First, |path1| {
        second.path.resolved(second.directory, result, PathArgument::Second, |path2| {
            if filter::excluded(path1) && filter::excluded(path2) {
                return cancel(begun);
            }
            end_with(begun, done, &Ext { path1, path2, ..Ext::default() });
        });
    });
}

/// Meaning of a string that a request has besides its path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StringRole {
    /// Target of a symbolic link: the first argument, recorded as first path.
    LinkTarget,
    /// Name of an extended attribute: the second argument, recorded as second path.
    AttributeName,
}

/// Records a request on a path and a string that is not a path of its own.
pub(crate) fn on_path_and_string<R: ReturnValue>(
    op: Op,
    path_at: PathAt,
    string: Path,
    role: StringRole,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(begun) = begin(op) else { return real() };
    let returned = real();
    end_on_path_and_string(begun, path_at, string, role, arg, returned.result());
    returned
}

#[inline(never)]
fn end_on_path_and_string(
    begun: StartedRequest,
    path_at: PathAt,
    string: Path,
    role: StringRole,
    arg: u64,
    result: i64,
) {
    let done = Completion { length: arg, ..Completion::of(result) };
    let (path_argument, string_argument) = match role {
        StringRole::LinkTarget => (PathArgument::Second, PathArgument::First),
        StringRole::AttributeName => (PathArgument::First, PathArgument::Second),
    };
    path_at.path.resolved(path_at.directory, result, path_argument, |path| {
        if filter::excluded(path) {
            return cancel(begun);
        }
        string.as_given(result, string_argument, |string| {
            let (path1, path2) = match role {
                StringRole::LinkTarget => (string, path),
                StringRole::AttributeName => (path, string),
            };
            end_with(begun, done, &Ext { path1, path2, ..Ext::default() });
        });
    });
}

/// Records a request on a descriptor and the name of an extended attribute.
pub(crate) fn on_fd_and_string<R: ReturnValue>(
    op: Op,
    fd: c_int,
    string: Path,
    length: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let handle = file.handle();
    let Some(begun) = begin_on(op, RequestArgs { handle, offset: NONE, length }) else { return real() };
    let returned = real();
    let result = returned.result();
    let done = Completion { handle, length, ..Completion::of(result) };
    string.as_given(result, PathArgument::Second, |path2| {
        end_with(begun, done, &Ext { path2, ..Ext::default() });
    });
    returned
}
