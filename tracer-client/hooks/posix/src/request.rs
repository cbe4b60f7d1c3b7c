//! Recording of requests on a descriptor, at its position, on one path and on two paths.
//!
//! Each function calls the real function exactly once, takes its result before `errno` can change,
//! and records the request unless its file or path is excluded.

use crate::description::{Access, Description};
use crate::files::{begin, begin_on, tracked};
use crate::filter;
use crate::path::{Path, PathArgument};
use crate::real::ReturnValue;
use miot_tracer::{
    Caller, Completion, Ext, NONE, Op, PackedRequest, RequestArgs, StartedRequest, cancel, end, end_with,
    flag,
};
use std::ffi::{c_int, c_void};

/// Records a request on a descriptor. The offset, if any, is an argument of the call.
#[inline(always)]
pub(crate) fn on_fd<R: ReturnValue>(
    op: Op,
    fd: c_int,
    offset: u64,
    length: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let handle = file.handle();
    let Some(begun) = begin_on(op, RequestArgs { handle, offset, length }) else { return real() };
    let returned = real();
    end_on(
        begun,
        file,
        Completion { handle, offset, length, result: returned.result(), flags: file.flags() },
    );
    returned
}

/// Ends a request on a file.
#[inline(always)]
pub(crate) fn end_on(begun: StartedRequest, file: &Description, done: Completion) {
    match file.caller() {
        Some(caller) if begun.is_outermost() => end_for(&PackedRequest::new(begun, done), caller),
        _ => _ = end(begun, done),
    }
}

/// Ends a request that was made on behalf of a thread.
#[cold]
#[inline(never)]
fn end_for(request: &PackedRequest, caller: Caller) {
    let (begun, done) = request.unpack();
    end_with(begun, done, &Ext { caller: Some(caller), ..Ext::default() });
}

/// Returns [`flag::UNALIGNED`] if the buffer is not aligned, else 0.
#[inline(always)]
pub(crate) fn unaligned_flag(buffer: *const c_void) -> u16 {
    if buffer.addr().is_multiple_of(flag::MEMORY_ALIGNMENT) { 0 } else { flag::UNALIGNED }
}

/// Records a read or a write at an offset.
#[inline(always)]
pub(crate) fn at_offset<R: ReturnValue>(
    op: Op,
    fd: c_int,
    buffer: *const c_void,
    offset: u64,
    length: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let handle = file.handle();
    let Some(begun) = begin_on(op, RequestArgs { handle, offset, length }) else { return real() };
    let returned = real();
    let flags = file.flags() | unaligned_flag(buffer);
    end_on(begun, file, Completion { handle, offset, length, result: returned.result(), flags });
    returned
}

/// Records a request on a descriptor with an argument, or [`NONE`], and no offset.
#[inline(always)]
pub(crate) fn on_fd_arg<R: ReturnValue>(op: Op, fd: c_int, arg: u64, real: impl FnOnce() -> R) -> R {
    on_fd(op, fd, NONE, arg, real)
}

/// Records a read or a write at the descriptor's position, which it moves.
#[inline(always)]
pub(crate) fn at_position<R: ReturnValue>(
    op: Op,
    fd: c_int,
    buffer: *const c_void,
    length: u64,
    access: Access,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let args = file.args_at_position(length, access);
    let Some(begun) = begin_on(op, args) else { return file.run_unrecorded(real) };
    let returned = real();
    let result = returned.result();
    let (offset, flags) = file.advance(fd, result, access);
    let flags = flags | unaligned_flag(buffer);
    end_on(begun, file, Completion { handle: args.handle, offset, length, result, flags });
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

/// Records a request on a path.
pub(crate) fn on_path<R: ReturnValue>(
    op: Op,
    path_at: impl Into<PathAt>,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    let path_at = path_at.into();
    let Some(begun) = begin(op) else { return real() };
    let returned = real();
    end_on_path(begun, path_at, arg, returned.result());
    returned
}

/// Ends a request on a path, or cancels it if the path is excluded. Like the ends of all requests
/// with paths it is not inlined: a copy in each hook would add pages that a starting program
/// touches.
#[inline(never)]
fn end_on_path(begun: StartedRequest, path_at: PathAt, arg: u64, result: i64) {
    path_at.path.resolved(path_at.directory, result, PathArgument::First, |path| {
        if filter::excluded(path) {
            return cancel(begun);
        }
        let done = Completion { length: arg, ..Completion::of(result) };
        miot_tracer::end_on_path(begun, done, path);
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
        return end_on_path(begun, path_at, arg, result);
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
