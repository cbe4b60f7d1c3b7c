//! Copies inside the kernel. The event's file is the one written to; the one read from is its second file.

use crate::description::Description;
use crate::files::{begin_on, tracked};
use crate::real::{Offset, Returned, hook};
use miot_tracer::op::posix;
use miot_tracer::{Doing, Done, Ext, NONE, Op, end_with};
use std::ffi::{c_int, c_uint};

/// Where a copy gets its offset from and puts the new one; null: the descriptor's position.
type OffsetAt = *mut Offset;

hook!(sendfile | sendfile64 (output: c_int, input: c_int, offset: OffsetAt, count: usize) -> isize, |real| {
    copying(posix::SENDFILE, (input, offset), (output, std::ptr::null_mut()), count, real)
});
hook!(copy_file_range(
    input: c_int, input_offset: OffsetAt, output: c_int, output_offset: OffsetAt, count: usize, flags: c_uint,
) -> isize, |real| {
    copying(posix::COPY_FILE_RANGE, (input, input_offset), (output, output_offset), count, real)
});
hook!(splice(
    input: c_int, input_offset: OffsetAt, output: c_int, output_offset: OffsetAt, count: usize, flags: c_uint,
) -> isize, |real| {
    copying(posix::SPLICE, (input, input_offset), (output, output_offset), count, real)
});

fn copying(
    op: Op,
    input: (c_int, OffsetAt),
    output: (c_int, OffsetAt),
    count: usize,
    real: impl FnOnce() -> isize,
) -> isize {
    let (from, to) = (tracked(op, input.0), tracked(op, output.0));
    if from.is_none() && to.is_none() {
        return real();
    }
    let handle = to.map_or(0, Description::handle);
    let Some(begun) = begin_on(op, Doing { handle, offset: NONE, length: count as u64 }) else {
        from.into_iter().chain(to).for_each(|file| file.unseen(|| ()));
        return real();
    };
    let returned = real();
    let result = returned.result();
    let read = from.map(|file| (file, offset(file, input, result, false)));
    let (offset, flags) = to.map_or((NONE, 0), |file| offset(file, output, result, true));
    let done = Done {
        handle,
        offset,
        length: count as u64,
        result,
        flags: flags | read.map_or(0, |(_, (_, flags))| flags),
    };
    let second = read.map(|(file, (offset, _))| (file.handle(), offset));
    let ext = Ext {
        handle2: second.map(|(handle, _)| handle),
        offset2: second.map(|(_, offset)| offset),
        ..Ext::default()
    };
    end_with(begun, done, &ext);
    returned
}

fn offset(file: &Description, (fd, at): (c_int, OffsetAt), result: i64, appends: bool) -> (u64, u16) {
    if at.is_null() {
        return file.advance(fd, result, appends);
    }
    if result < 0 {
        // The pointer may be what the call failed for.
        return (NONE, file.flags());
    }
    // SAFETY: the call has succeeded, so it has read the offset and written the new one.
    let after = unsafe { at.read_unaligned() };
    (after.wrapping_sub(result) as u64, file.flags())
}
