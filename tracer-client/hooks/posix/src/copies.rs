//! Hooks of copies within the kernel. The event's file is the destination; the source is its second
//! file.

use crate::description::{Access, Description};
use crate::files::{begin_on, tracked};
use crate::real::{Offset, ReturnValue, hook};
use miot_tracer::op::posix;
use miot_tracer::{Completion, Ext, NONE, Op, RequestArgs, end_with};
use std::ffi::{c_int, c_uint};

/// Address of the offset that a copy reads and updates; null for the descriptor's position.
type OffsetAt = *mut Offset;

hook!(sendfile | sendfile64 (output: c_int, input: c_int, offset: OffsetAt, count: usize) -> isize, |real| {
    record_copy(posix::SENDFILE, (input, offset), (output, std::ptr::null_mut()), count, real)
});
hook!(copy_file_range(
    input: c_int, input_offset: OffsetAt, output: c_int, output_offset: OffsetAt, count: usize, flags: c_uint,
) -> isize, |real| {
    record_copy(posix::COPY_FILE_RANGE, (input, input_offset), (output, output_offset), count, real)
});
hook!(splice(
    input: c_int, input_offset: OffsetAt, output: c_int, output_offset: OffsetAt, count: usize, flags: c_uint,
) -> isize, |real| {
    record_copy(posix::SPLICE, (input, input_offset), (output, output_offset), count, real)
});

fn record_copy(
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
    let Some(begun) = begin_on(op, RequestArgs { handle, offset: NONE, length: count as u64 }) else {
        from.into_iter().chain(to).for_each(|file| file.run_unrecorded(|| ()));
        return real();
    };
    let returned = real();
    let result = returned.result();
    let read = from.map(|file| (file, offset_of(file, input, result, Access::Read)));
    let (offset, flags) = to.map_or((NONE, 0), |file| offset_of(file, output, result, Access::Write));
    let done = Completion {
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

/// Returns offset and flags of one side of a copy, after the call.
fn offset_of(file: &Description, (fd, at): (c_int, OffsetAt), result: i64, access: Access) -> (u64, u16) {
    if at.is_null() {
        return file.advance(fd, result, access);
    }
    if result < 0 {
        // The pointer may be the cause of the failure.
        return (NONE, file.flags());
    }
    // SAFETY:
    // - The call has succeeded, so that it has read and written the offset at this address.
    let after = unsafe { at.read_unaligned() };
    (after.wrapping_sub(result) as u64, file.flags())
}
