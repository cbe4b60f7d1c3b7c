//! The shapes requests come in: on a descriptor, at its position, on a path, on two paths.
//!
//! Each calls the real function exactly once, takes its result before anything can change `errno`, and
//! records the request if its file or path is one that is recorded.

use crate::description::Description;
use crate::files::{begin, begin_on, tracked};
use crate::filter;
use crate::path::Path;
use crate::real::Returned;
use miot_tracer::{Begun, Caller, Doing, Done, Ext, NONE, Op, cancel, end, end_with, flag};
use std::ffi::{c_int, c_void};

/// A request on a descriptor whose offset, if any, is an argument.
#[inline(always)]
pub(crate) fn on_fd<R: Returned>(op: Op, fd: c_int, offset: u64, length: u64, real: impl FnOnce() -> R) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let handle = file.handle();
    let Some(begun) = begin_on(op, Doing { handle, offset, length }) else { return real() };
    let returned = real();
    end_on(begun, file, Done { handle, offset, length, result: returned.result(), flags: file.flags() });
    returned
}

/// Ends a request on a file.
#[inline(always)]
pub(crate) fn end_on(begun: Begun, file: &Description, done: Done) {
    match file.caller() {
        Some(caller) if begun.is_outermost() => end_for(begun, done, caller),
        _ => _ = end(begun, done),
    }
}

/// Ends a request that was made for another one.
#[cold]
#[inline(never)]
fn end_for(begun: Begun, done: Done, caller: Caller) {
    end_with(begun, done, &Ext { caller: Some(caller), ..Ext::default() });
}

/// [`flag::UNALIGNED`] if it is true of this buffer.
#[inline(always)]
pub(crate) fn unaligned(buffer: *const c_void) -> u16 {
    if buffer.addr().is_multiple_of(flag::MEMORY_ALIGNMENT) { 0 } else { flag::UNALIGNED }
}

/// A read or a write at an offset.
#[inline(always)]
pub(crate) fn at_offset<R: Returned>(
    op: Op,
    fd: c_int,
    buffer: *const c_void,
    offset: u64,
    length: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let handle = file.handle();
    let Some(begun) = begin_on(op, Doing { handle, offset, length }) else { return real() };
    let returned = real();
    let flags = file.flags() | unaligned(buffer);
    end_on(begun, file, Done { handle, offset, length, result: returned.result(), flags });
    returned
}

/// A request on a descriptor that has an argument, or none, and no offset.
#[inline(always)]
pub(crate) fn on_fd_arg<R: Returned>(op: Op, fd: c_int, arg: u64, real: impl FnOnce() -> R) -> R {
    on_fd(op, fd, NONE, arg, real)
}

/// A request that reads or writes where the descriptor stands and moves it. `appends`: it writes, so that
/// `O_APPEND` decides where.
#[inline(always)]
pub(crate) fn at_position<R: Returned>(
    op: Op,
    fd: c_int,
    buffer: *const c_void,
    length: u64,
    appends: bool,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let doing = file.doing(length, appends);
    let Some(begun) = begin_on(op, doing) else { return file.unseen(real) };
    let returned = real();
    let result = returned.result();
    let (offset, flags) = file.advance(fd, result, appends);
    let flags = flags | unaligned(buffer);
    end_on(begun, file, Done { handle: doing.handle, offset, length, result, flags });
    returned
}

/// A path and the descriptor of the directory it is relative to.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) directory: c_int,
    pub(crate) path: Path,
}

impl Place {
    pub(crate) fn at(directory: c_int, path: Path) -> Place {
        Place { directory, path }
    }
}

impl From<Path> for Place {
    fn from(path: Path) -> Place {
        Place { directory: libc::AT_FDCWD, path }
    }
}

/// A request on a path.
pub(crate) fn on_path<R: Returned>(op: Op, place: impl Into<Place>, arg: u64, real: impl FnOnce() -> R) -> R {
    let place = place.into();
    let Some(begun) = begin(op) else { return real() };
    let returned = real();
    end_on_path(begun, place, arg, returned.result());
    returned
}

/// Ends a request on a path, or forgets it if the path is left out. Apart, as are the ends of all requests with paths: a
/// copy in each hook would be pages more for a program that starts.
#[inline(never)]
fn end_on_path(begun: Begun, place: Place, arg: u64, result: i64) {
    place.path.resolved(place.directory, result, false, |path| {
        if filter::excluded(path) {
            return cancel(begun);
        }
        let done = Done { length: arg, ..Done::of(result) };
        end_with(begun, done, &Ext { path1: path, ..Ext::default() });
    });
}

/// A request on a path that may be empty with `AT_EMPTY_PATH`: then on the descriptor.
pub(crate) fn on_path_or_fd<R: Returned>(
    op: Op,
    place: Place,
    flags: c_int,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    if flags & libc::AT_EMPTY_PATH == 0 {
        return on_path(op, place, arg, real);
    }
    let file = tracked(op, place.directory);
    let doing = Doing { handle: file.map_or(0, Description::handle), offset: NONE, length: arg };
    let Some(begun) = begin_on(op, doing) else { return real() };
    let returned = real();
    end_on_path_or_fd(begun, place, file, arg, returned.result());
    returned
}

#[inline(never)]
fn end_on_path_or_fd(begun: Begun, place: Place, file: Option<&Description>, arg: u64, result: i64) {
    // A null pointer with AT_EMPTY_PATH stands for the empty string since Linux 6.11.
    if !place.path.0.is_null() && !place.path.is_empty(result) {
        return end_on_path(begun, place, arg, result);
    }
    match file {
        Some(file) => _ = end(begun, Done { handle: file.handle(), length: arg, ..Done::of(result) }),
        None => cancel(begun),
    }
}

/// A request on two paths. Recorded unless both are excluded.
pub(crate) fn on_paths<R: Returned>(
    op: Op,
    first: impl Into<Place>,
    second: impl Into<Place>,
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
fn end_on_paths(begun: Begun, first: Place, second: Place, arg: u64, result: i64) {
    let done = Done { length: arg, ..Done::of(result) };
    first.path.resolved(first.directory, result, false, |path1| {
        second.path.resolved(second.directory, result, true, |path2| {
            if filter::excluded(path1) && filter::excluded(path2) {
                return cancel(begun);
            }
            end_with(begun, done, &Ext { path1, path2, ..Ext::default() });
        });
    });
}

/// A request that makes or asks about a name which holds a string that is no path of its own: a link's
/// target (`string` first), or an attribute of the file (`string` second).
pub(crate) fn on_path_and_string<R: Returned>(
    op: Op,
    place: Place,
    string: Path,
    string_first: bool,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(begun) = begin(op) else { return real() };
    let returned = real();
    end_on_path_and_string(begun, place, string, string_first, arg, returned.result());
    returned
}

#[inline(never)]
fn end_on_path_and_string(
    begun: Begun,
    place: Place,
    string: Path,
    string_first: bool,
    arg: u64,
    result: i64,
) {
    let done = Done { length: arg, ..Done::of(result) };
    place.path.resolved(place.directory, result, string_first, |path| {
        if filter::excluded(path) {
            return cancel(begun);
        }
        string.as_given(result, !string_first, |string| {
            let (path1, path2) = if string_first { (string, path) } else { (path, string) };
            end_with(begun, done, &Ext { path1, path2, ..Ext::default() });
        });
    });
}

/// A request on a descriptor that names an attribute.
pub(crate) fn on_fd_and_string<R: Returned>(
    op: Op,
    fd: c_int,
    string: Path,
    length: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, fd) else { return real() };
    let handle = file.handle();
    let Some(begun) = begin_on(op, Doing { handle, offset: NONE, length }) else { return real() };
    let returned = real();
    let result = returned.result();
    let done = Done { handle, length, ..Done::of(result) };
    string.as_given(result, true, |path2| {
        end_with(begun, done, &Ext { path2, ..Ext::default() });
    });
    returned
}
