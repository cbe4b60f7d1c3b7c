//! Hooks of reads and writes.

use crate::description::Access;
use crate::files::tracked;
use crate::real::{Offset, ReturnValue, hook};
use crate::request::{
    at_any_offset, at_any_position, at_offset, at_position, begin_on_file, end_on, unaligned_flag,
};
use miot_tracer::op::posix;
use miot_tracer::{Completion, NONE, Op, PackedRequest, RequestArgs};
use std::ffi::{c_int, c_void};

type Buffer = *mut c_void;

/// Vector of buffers, an argument of `readv` and similar functions.
type Vector = *const libc::iovec;

/// Returns the number of bytes requested by a vector, and the flags for its first buffer. The
/// vector is read only if the result shows that the kernel has read it; otherwise the number is
/// [`NONE`]. The kernel reads the vector before all other checks except those of the descriptor and
/// the count.
fn requested_bytes(vector: Vector, count: c_int, result: i64) -> (u64, u16) {
    let before_read = [libc::EFAULT, libc::EINVAL, libc::EBADF, libc::ENOSYS, libc::EPERM];
    if before_read.iter().any(|errno| result == -i64::from(*errno)) || vector.is_null() {
        return (NONE, 0);
    }
    // SAFETY:
    // - The kernel has read `count` elements at this address, so they are readable.
    // - They are plain values.
    let elements = unsafe { std::slice::from_raw_parts(vector, usize::try_from(count).unwrap_or(0)) };
    let bytes = elements.iter().fold(0u64, |sum, element| sum.saturating_add(element.iov_len as u64));
    (bytes, elements.first().map_or(0, |first| unaligned_flag(first.iov_base)))
}

hook!(read early | __read (fd: c_int, buffer: Buffer, count: usize) -> isize, |real| {
    at_position(posix::READ, fd, buffer, count as u64, Access::Read, real)
}, else at_any_position(posix::READ, fd, buffer, count as u64, Access::Read, real));
hook!(__read_chk(fd: c_int, buffer: Buffer, count: usize, room: usize) -> isize, |real| {
    at_position(posix::READ, fd, buffer, count as u64, Access::Read, real)
}, else at_any_position(posix::READ, fd, buffer, count as u64, Access::Read, real));
hook!(write early | __write (fd: c_int, buffer: Buffer, count: usize) -> isize, |real| {
    at_position(posix::WRITE, fd, buffer, count as u64, Access::Write, real)
}, else at_any_position(posix::WRITE, fd, buffer, count as u64, Access::Write, real));
hook!(pread early | pread64 early | __pread64 (fd: c_int, buffer: Buffer, count: usize, offset: Offset) -> isize, |real| {
    at_offset(posix::PREAD, fd, buffer, offset as u64, count as u64, real)
}, else at_any_offset(posix::PREAD, fd, buffer, offset as u64, count as u64, real));
hook!(__pread_chk | __pread64_chk (fd: c_int, buffer: Buffer, count: usize, offset: Offset, room: usize) -> isize, |real| {
    at_offset(posix::PREAD, fd, buffer, offset as u64, count as u64, real)
}, else at_any_offset(posix::PREAD, fd, buffer, offset as u64, count as u64, real));
hook!(pwrite early | pwrite64 early | __pwrite64 (fd: c_int, buffer: Buffer, count: usize, offset: Offset) -> isize, |real| {
    at_offset(posix::PWRITE, fd, buffer, offset as u64, count as u64, real)
}, else at_any_offset(posix::PWRITE, fd, buffer, offset as u64, count as u64, real));

hook!(readv early (fd: c_int, vector: Vector, count: c_int) -> isize, |real| {
    record_vectored(posix::READV, fd, vector, count, None, real)
});
hook!(writev early (fd: c_int, vector: Vector, count: c_int) -> isize, |real| {
    record_vectored(posix::WRITEV, fd, vector, count, None, real)
});
hook!(preadv | preadv64 (fd: c_int, vector: Vector, count: c_int, offset: Offset) -> isize, |real| {
    record_vectored(posix::PREADV, fd, vector, count, Some(offset), real)
});
hook!(pwritev | pwritev64 (fd: c_int, vector: Vector, count: c_int, offset: Offset) -> isize, |real| {
    record_vectored(posix::PWRITEV, fd, vector, count, Some(offset), real)
});
hook!(preadv2 | preadv64v2 (fd: c_int, vector: Vector, count: c_int, offset: Offset, flags: c_int) -> isize, |real| {
    record_vectored(posix::PREADV2, fd, vector, count, (offset != -1).then_some(offset), real)
});
hook!(pwritev2 | pwritev64v2 (fd: c_int, vector: Vector, count: c_int, offset: Offset, flags: c_int) -> isize, |real| {
    record_vectored(posix::PWRITEV2, fd, vector, count, (offset != -1).then_some(offset), real)
});

/// Records a request with a vector of buffers, at an offset or at the descriptor's position.
#[inline(always)]
fn record_vectored(
    op: Op,
    fd: c_int,
    vector: Vector,
    count: c_int,
    offset: Option<Offset>,
    real: impl FnOnce() -> isize,
) -> isize {
    let Some(file) = tracked(op, fd) else { return real() };
    let args = match offset {
        // The length is in the vector, which only the kernel may read before the call.
        Some(offset) => RequestArgs { handle: file.handle(), offset: offset as u64, length: NONE },
        None => file.args_at_position(NONE, Access::of(op)),
    };
    let Some(begun) = begin_on_file(op, args) else { return file.run_unrecorded(real) };
    let returned = real();
    let result = returned.result();
    let (length, buffer_flags) = requested_bytes(vector, count, result);
    let (offset, flags) = match offset {
        Some(offset) => (offset as u64, file.flags()),
        None => file.advance(fd, result, Access::of(op)),
    };
    let done = Completion { handle: file.handle(), offset, length, result, flags: flags | buffer_flags };
    end_on(&PackedRequest::new(begun, done), file);
    returned
}
