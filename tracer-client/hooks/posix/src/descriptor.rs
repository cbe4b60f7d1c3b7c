//! Hooks of descriptors: close, duplication, positions, locks, durability, space.

use crate::description;
use crate::files::{begin, begin_on, named, set_flags, tracked, tracked_or_special};
use crate::path::{Path, arg};
use crate::real::{ErrorNumber, Offset, ReturnValue, hook};
use crate::request::{on_fd, on_fd_arg, on_path};
use crate::table;
use miot_proto::event::flag;
use miot_tracer::op::posix;
use miot_tracer::{Completion, NONE, Op, RequestArgs, begin_leaf_on, end, end_leaf};
use std::ffi::{c_int, c_uint};

hook!(close early | __close (fd: c_int) -> c_int, |real| {
    close_fast(posix::CLOSE, fd, real)
}, else record_close(posix::CLOSE, fd, real));

/// Records the close of a descriptor. `None`: nothing has happened, and [`record_close`] records
/// it.
#[inline(always)]
fn close_fast<R: ReturnValue>(op: Op, fd: c_int, real: impl FnOnce() -> R) -> Option<R> {
    let (index, file) = named(fd)?;
    let (handle, flags) = (file.handle(), file.flags());
    let begun = begin_leaf_on(op, RequestArgs { handle, offset: NONE, length: NONE })?;
    table::clear(fd);
    let returned = real();
    let result = returned.result();
    // Before the record is written: an atomic addition waits for all earlier stores.
    description::release(index);
    end_leaf(op, begun, || Completion { handle, flags, ..Completion::of(result) });
    Some(returned)
}

/// Records the close of a descriptor, or of a stream that owns it. The table forgets the descriptor
/// before the call: after it, another thread may get the same number.
pub(crate) fn record_close<R: ReturnValue>(op: Op, fd: c_int, real: impl FnOnce() -> R) -> R {
    let begun = tracked_or_special(op, fd)
        .and_then(|file| Some((file, begin_on(op, file.args_without_offset(NONE))?)));
    let index = table::take(fd);
    let returned = real();
    if let Some((file, begun)) = begun {
        let (handle, flags) = (file.handle(), file.flags());
        end(begun, Completion { handle, flags, ..Completion::of(returned.result()) });
    }
    description::release(index);
    returned
}

hook!(close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, |real| {
    let begun = begin(posix::CLOSE_RANGE);
    let returned = real();
    let result = returned.result();
    if result >= 0 && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        table::forget_range(first, last);
    }
    if let Some(begun) = begun {
        let flags = (flags as u16 & 0x7f) << flag::OP_SHIFT;
        end(begun, Completion { length: arg(first as c_int, last), flags, ..Completion::of(result) });
    }
    returned
});
hook!(closefrom(first: c_int) -> (), |real| {
    let begun = begin(posix::CLOSE_RANGE);
    real();
    table::forget_range(first.max(0) as c_uint, c_uint::MAX);
    if let Some(begun) = begun {
        end(begun, Completion { length: arg(first, c_uint::MAX), ..Completion::of(0) });
    }
});

hook!(dup early (fd: c_int) -> c_int, |real| record_dup(posix::DUP, fd, NONE, real));
hook!(dup2 early | __dup2 (fd: c_int, new: c_int) -> c_int, |real| {
    record_dup(posix::DUP2, fd, arg(new, 0), real)
});
hook!(dup3(fd: c_int, new: c_int, flags: c_int) -> c_int, |real| {
    record_dup(posix::DUP3, fd, arg(new, flags as u32), real)
});

/// Commands of `fcntl` that lock.
const LOCKS: [c_int; 6] =
    [libc::F_SETLK, libc::F_SETLKW, libc::F_GETLK, libc::F_OFD_SETLK, libc::F_OFD_SETLKW, libc::F_OFD_GETLK];

// `fcntl` is variadic in C; every argument that can follow the command fits one register.
hook!(fcntl early | fcntl64 early | __fcntl (fd: c_int, command: c_int, argument: usize) -> c_int, |real| match command {
    libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => record_dup(posix::FCNTL, fd, arg(command, 0), real),
    libc::F_SETFL => {
        let returned = real();
        if returned != -1 {
            set_flags(fd, argument as c_int);
        }
        returned
    }
    _ if LOCKS.contains(&command) => on_fd_arg(posix::FCNTL, fd, arg(command, 0), real),
    _ => real(),
});

/// Records the duplication of a descriptor.
fn record_dup(op: Op, fd: c_int, arg: u64, real: impl FnOnce() -> c_int) -> c_int {
    let file = tracked_or_special(op, fd);
    let begun = file.and_then(|file| begin_on(op, file.args_without_offset(arg)));
    let new = real();
    let result = new.result();
    if new >= 0 {
        table::duplicate(fd, new);
    }
    if let (Some(file), Some(begun)) = (file, begun) {
        let (handle, flags) = (file.handle(), file.flags());
        end(begun, Completion { handle, length: arg, flags, ..Completion::of(result) });
    }
    new
}

hook!(lseek early | lseek64 early | llseek | __lseek (fd: c_int, offset: Offset, whence: c_int) -> Offset, |real| {
    let Some(file) = tracked(posix::LSEEK, fd) else { return real() };
    let args = RequestArgs { offset: offset as u64, ..file.args_without_offset(arg(whence, 0)) };
    let Some(begun) = begin_on(posix::LSEEK, args) else { return file.run_unrecorded(real) };
    let returned = real();
    let result = returned.result();
    if result >= 0 {
        file.set_position(result as u64);
    }
    let (handle, flags) = (file.handle(), file.flags());
    end(begun, Completion { handle, offset: offset as u64, length: arg(whence, 0), result, flags });
    returned
});

hook!(fsync early (fd: c_int) -> c_int, |real| on_fd_arg(posix::FSYNC, fd, NONE, real));
hook!(fdatasync early (fd: c_int) -> c_int, |real| on_fd_arg(posix::FDATASYNC, fd, NONE, real));
hook!(syncfs(fd: c_int) -> c_int, |real| on_fd_arg(posix::SYNCFS, fd, NONE, real));
hook!(sync_file_range(fd: c_int, offset: Offset, length: Offset, flags: c_uint) -> c_int, |real| {
    on_fd(posix::SYNC_FILE_RANGE, fd, offset as u64, length as u64, real)
});
hook!(sync() -> (), |real| {
    let begun = begin(posix::SYNC);
    real();
    if let Some(begun) = begun {
        end(begun, Completion::of(0));
    }
});

hook!(truncate | truncate64 (path: Path, length: Offset) -> c_int, |real| {
    on_path(posix::TRUNCATE, path, length as u64, real)
});
hook!(ftruncate early | ftruncate64 early (fd: c_int, length: Offset) -> c_int, |real| {
    on_fd_arg(posix::FTRUNCATE, fd, length as u64, real)
});
hook!(fallocate | fallocate64 (fd: c_int, mode: c_int, offset: Offset, length: Offset) -> c_int, |real| {
    on_fd(posix::FALLOCATE, fd, offset as u64, length as u64, real)
});
hook!(posix_fallocate | posix_fallocate64 (fd: c_int, offset: Offset, length: Offset) -> ErrorNumber, |real| {
    on_fd(posix::POSIX_FALLOCATE, fd, offset as u64, length as u64, real)
});
hook!(posix_fadvise | posix_fadvise64 (fd: c_int, offset: Offset, length: Offset, advice: c_int) -> ErrorNumber, |real| {
    on_fd(posix::POSIX_FADVISE, fd, offset as u64, length as u64, real)
});
hook!(flock(fd: c_int, operation: c_int) -> c_int, |real| {
    on_fd_arg(posix::FLOCK, fd, arg(operation, 0), real)
});
hook!(lockf | lockf64 (fd: c_int, command: c_int, length: Offset) -> c_int, |real| {
    on_fd_arg(posix::LOCKF, fd, length as u64, real)
});
