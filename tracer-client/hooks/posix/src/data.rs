//! Reading and writing.

use crate::files::{begin_on, tracked};
use crate::real::{Offset, Returned, hook};
use crate::request::{at_offset, at_position, end_on, unaligned};
use miot_tracer::op::{OpClass, posix};
use miot_tracer::{Doing, Done, NONE, Op};
use std::ffi::{c_int, c_void};

type Buffer = *mut c_void;

/// A vector of buffers, as `readv` and its like take it.
type Vector = *const libc::iovec;

/// Bytes asked for by a vector, and the flags that its first buffer adds, if its request succeeded or did nothing worse than fail to move bytes: then
/// the kernel has read the vector. It does so before all else, except for a bad descriptor and a bad count.
fn total(vector: Vector, count: c_int, result: i64) -> (u64, u16) {
    let unread = [libc::EFAULT, libc::EINVAL, libc::EBADF, libc::ENOSYS, libc::EPERM];
    if unread.iter().any(|errno| result == -i64::from(*errno)) || vector.is_null() {
        return (NONE, 0);
    }
    // SAFETY: the kernel has read `count` elements.
    let elements = unsafe { std::slice::from_raw_parts(vector, usize::try_from(count).unwrap_or(0)) };
    let bytes = elements.iter().fold(0u64, |sum, element| sum.saturating_add(element.iov_len as u64));
    (bytes, elements.first().map_or(0, |first| unaligned(first.iov_base)))
}

hook!(read early | __read (fd: c_int, buffer: Buffer, count: usize) -> isize, |real| {
    at_position(posix::READ, fd, buffer, count as u64, false, real)
});
hook!(__read_chk(fd: c_int, buffer: Buffer, count: usize, room: usize) -> isize, |real| {
    at_position(posix::READ, fd, buffer, count as u64, false, real)
});
hook!(write early | __write (fd: c_int, buffer: Buffer, count: usize) -> isize, |real| {
    at_position(posix::WRITE, fd, buffer, count as u64, true, real)
});
hook!(pread early | pread64 early | __pread64 (fd: c_int, buffer: Buffer, count: usize, offset: Offset) -> isize, |real| {
    at_offset(posix::PREAD, fd, buffer, offset as u64, count as u64, real)
});
hook!(__pread_chk | __pread64_chk (fd: c_int, buffer: Buffer, count: usize, offset: Offset, room: usize) -> isize, |real| {
    at_offset(posix::PREAD, fd, buffer, offset as u64, count as u64, real)
});
hook!(pwrite early | pwrite64 early | __pwrite64 (fd: c_int, buffer: Buffer, count: usize, offset: Offset) -> isize, |real| {
    at_offset(posix::PWRITE, fd, buffer, offset as u64, count as u64, real)
});

hook!(readv early (fd: c_int, vector: Vector, count: c_int) -> isize, |real| {
    vectored(posix::READV, fd, vector, count, None, real)
});
hook!(writev early (fd: c_int, vector: Vector, count: c_int) -> isize, |real| {
    vectored(posix::WRITEV, fd, vector, count, None, real)
});
hook!(preadv | preadv64 (fd: c_int, vector: Vector, count: c_int, offset: Offset) -> isize, |real| {
    vectored(posix::PREADV, fd, vector, count, Some(offset), real)
});
hook!(pwritev | pwritev64 (fd: c_int, vector: Vector, count: c_int, offset: Offset) -> isize, |real| {
    vectored(posix::PWRITEV, fd, vector, count, Some(offset), real)
});
hook!(preadv2 | preadv64v2 (fd: c_int, vector: Vector, count: c_int, offset: Offset, flags: c_int) -> isize, |real| {
    vectored(posix::PREADV2, fd, vector, count, (offset != -1).then_some(offset), real)
});
hook!(pwritev2 | pwritev64v2 (fd: c_int, vector: Vector, count: c_int, offset: Offset, flags: c_int) -> isize, |real| {
    vectored(posix::PWRITEV2, fd, vector, count, (offset != -1).then_some(offset), real)
});

/// A request with a vector of buffers, at an offset or where the descriptor stands.
#[inline(always)]
fn vectored(
    op: Op,
    fd: c_int,
    vector: Vector,
    count: c_int,
    offset: Option<Offset>,
    real: impl FnOnce() -> isize,
) -> isize {
    let Some(file) = tracked(op, fd) else { return real() };
    let doing = match offset {
        // How many bytes, the vector says, which only the kernel may read before the call.
        Some(offset) => Doing { handle: file.handle(), offset: offset as u64, length: NONE },
        None => file.doing(NONE, op.class() == OpClass::Write),
    };
    let Some(begun) = begin_on(op, doing) else { return file.unseen(real) };
    let returned = real();
    let result = returned.result();
    let (length, more) = total(vector, count, result);
    let (offset, flags) = match offset {
        Some(offset) => (offset as u64, file.flags()),
        None => file.advance(fd, result, op.class() == OpClass::Write),
    };
    end_on(begun, file, Done { handle: file.handle(), offset, length, result, flags: flags | more });
    returned
}
