//! Opening, by all its names, and temporary files.
//!
//! `open` is variadic in C. Its hooks take the mode as a fixed parameter: on every ABI we build for it comes
//! in the same register, and without `O_CREAT` nobody looks at it.

use crate::description::{UNASKED, generation};
use crate::files::{Opened, begin};
use crate::path::{Path, arg};
use crate::real::{Returned, hook};
use crate::request::Place;
use crate::{filter, table};
use miot_tracer::{Begun, Done, Ext, NONE, Op, cancel, end_with, new_handle, op::posix};
use std::ffi::{c_char, c_int, c_uint};

hook!(open early | open64 early | __open | __open64 (path: Path, flags: c_int, mode: c_uint) -> c_int, |real| {
    opening(posix::OPEN, path, flags, mode, real)
});
hook!(openat early | openat64 early (directory: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int, |real| {
    opening(posix::OPENAT, Place::at(directory, path), flags, mode, real)
});
hook!(creat | creat64 (path: Path, mode: c_uint) -> c_int, |real| {
    opening(posix::CREAT, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode, real)
});
hook!(__open_2 | __open64_2 (path: Path, flags: c_int) -> c_int, |real| {
    opening(posix::OPEN, path, flags, 0, real)
});
hook!(__openat_2 | __openat64_2 (directory: c_int, path: Path, flags: c_int) -> c_int, |real| {
    opening(posix::OPENAT, Place::at(directory, path), flags, 0, real)
});

/// What `mkstemp` opens with, besides what `mkostemp` is told.
const TEMPORARY: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

// The template is the name of the file once the call has succeeded.
hook!(mkstemp | mkstemp64 (template: Path) -> c_int, |real| {
    opening(posix::MKSTEMP, template, TEMPORARY, 0o600, real)
});
hook!(mkostemp | mkostemp64 (template: Path, flags: c_int) -> c_int, |real| {
    opening(posix::MKSTEMP, template, flags | TEMPORARY, 0o600, real)
});
hook!(mkstemps | mkstemps64 (template: Path, suffix: c_int) -> c_int, |real| {
    opening(posix::MKSTEMP, template, TEMPORARY, 0o600, real)
});
hook!(mkostemps | mkostemps64 (template: Path, suffix: c_int, flags: c_int) -> c_int, |real| {
    opening(posix::MKSTEMP, template, flags | TEMPORARY, 0o600, real)
});
hook!(mkdtemp(template: Path) -> *mut c_char, |real| {
    crate::request::on_path(posix::MKDTEMP, template, NONE, real)
});

fn opening(
    op: Op,
    place: impl Into<Place>,
    flags: c_int,
    mode: c_uint,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let place = place.into();
    let has_mode = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let arg = arg(flags, if has_mode { mode } else { 0 });
    open_with(op, place, || flags, || arg, || UNASKED, real, |fd| *fd)
}

/// Opens something by its path and enters its descriptor, which `descriptor` finds after a success. The
/// other closures are called after the call, too: what they look at may have been what it failed for.
pub(crate) fn open_with<R: Returned>(
    op: Op,
    place: Place,
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
    let (flags, stream) = (flags(), if fd < 0 { UNASKED } else { stream() });
    end_open(begun, place, arg(), failure, Found { fd, flags, generation, stream });
    returned
}

/// What an open has found: the descriptor, negative if none, and [`Opened`]'s fields of these names.
struct Found {
    fd: c_int,
    flags: c_int,
    generation: u32,
    stream: u64,
}

/// Apart for the same reason as the ends of requests on paths.
#[inline(never)]
fn end_open(begun: Begun, place: Place, arg: u64, failure: i64, found: Found) {
    let Found { fd, flags, generation, stream } = found;
    place.path.resolved(place.directory, failure, false, |path| {
        if filter::excluded(path) {
            if fd >= 0 {
                table::set(fd, table::EXCLUDED);
            }
            return cancel(begun);
        }
        let ext = Ext { path1: path, ..Ext::default() };
        if fd < 0 {
            end_with(begun, Done { length: arg, ..Done::of(failure.min(0)) }, &ext);
            return;
        }
        let handle = new_handle();
        let event_flags = crate::files::event_flags(flags);
        let done = Done { handle, length: arg, flags: event_flags, ..Done::of(i64::from(fd)) };
        let defined = end_with(begun, done, &ext);
        Opened { fd, handle, flags, generation, stream, defined }.enter();
    });
}
