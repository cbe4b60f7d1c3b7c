//! Hooks of streams (`FILE *`). One call is one event of the layer `stdio`. The reads and writes
//! that libc makes for a stream are not hooked.
//!
//! **The position** of a stream is stored in its file description, separate from the descriptor's
//! position. It starts at 0, for `fdopen` and streams that were open before at the descriptor's
//! position; it is unknown for append mode. It advances with each call. If a call does not return
//! how far it has moved the stream (seeks, pushed back bytes, scanning, short reads), libc is
//! queried. The query (`ftello`) reads data of the stream and makes at most one `lseek`.

mod chars;
mod lines;
mod open;
mod printing;
mod scanning;
mod seek;

use crate::description::Description;
use crate::files::{begin_enclosing_on, tracked};
use crate::real::{Offset, RealFunction, ReturnValue, errno, hook, keeping_errno};
use miot_tracer::op::stdio;
use miot_tracer::{Completion, NONE, Op, RequestArgs, end};
use std::ffi::{c_int, c_void};

/// `FILE *`.
type Stream = *mut libc::FILE;
/// `va_list`: passed as a pointer on every supported ABI, because it is an array or a large
/// structure.
type Arguments = *mut c_void;

unsafe extern "C" {
    static stdin: Stream;
    static stdout: Stream;
}

fn standard_input() -> Stream {
    // SAFETY:
    // - libc has initialized the variable, and the real call is about to read it as well.
    unsafe { stdin }
}

fn standard_output() -> Stream {
    // SAFETY:
    // - libc has initialized the variable, and the real call is about to read it as well.
    unsafe { stdout }
}

/// Returns the descriptor of a stream; −1 if it has none, or for a null pointer, which is the
/// caller's error.
fn descriptor(stream: Stream) -> c_int {
    if stream.is_null() {
        return -1;
    }
    // SAFETY:
    // - `stream` is not null, so it is an open stream of the caller.
    keeping_errno(|| unsafe { libc::fileno(stream) })
}

/// Queries libc for the position of a stream; [`NONE`] if libc does not know it.
fn query_position(stream: Stream) -> u64 {
    static FTELLO: RealFunction = RealFunction::new();
    // SAFETY:
    // - The function of this name has this prototype.
    // - `stream` is an open stream of the caller.
    let position = keeping_errno(|| unsafe {
        let ftello: unsafe extern "C-unwind" fn(Stream) -> Offset =
            std::mem::transmute(FTELLO.get::<Offset>("ftello\0"));
        ftello(stream)
    });
    if position < 0 { NONE } else { position as u64 }
}

/// Returns the result of a request that has read nothing: 0 at the end of the file, −errno after an
/// error.
#[cold]
fn nothing_read(stream: Stream) -> i64 {
    let number = errno();
    // SAFETY:
    // - `stream` is an open stream of the caller.
    match unsafe { libc::ferror(stream) } {
        0 => 0,
        _ => (-1 as c_int).result().min(-i64::from(number)),
    }
}

/// Distance by which a request has moved its stream.
enum Movement {
    /// Number of bytes, or −errno.
    Bytes(i64),
    /// Unknown: libc must be queried.
    Unknown,
}

/// Records a request that moves a stream. `measure` returns the number of requested bytes and the
/// movement.
#[inline(always)]
fn record_transfer<R: Copy>(
    op: Op,
    stream: Stream,
    real: impl FnOnce() -> R,
    measure: impl FnOnce(R) -> (u64, Movement),
) -> R {
    let fd = descriptor(stream);
    let Some(file) = tracked(op, fd) else { return real() };
    let before = position(file, fd, stream);
    let args = RequestArgs { handle: file.handle(), offset: before, length: NONE };
    let Some(begun) = begin_enclosing_on(op, args) else { return file.run_unrecorded(real) };
    let returned = real();
    let (length, moved) = measure(returned);
    let (offset, result) = match moved {
        Movement::Bytes(bytes) => (file.advance_stream(bytes), bytes),
        Movement::Unknown => measure_by_position(file, stream, before),
    };
    // A call without a length argument requests the number of bytes that it has moved.
    let length = if length == NONE { result.max(0) as u64 } else { length };
    end(begun, Completion { handle: file.handle(), offset, length, result, flags: file.flags() });
    returned
}

/// Returns the position of the stream before a request.
#[inline(always)]
fn position(file: &Description, fd: c_int, stream: Stream) -> u64 {
    if file.has(crate::description::state::INLINED) {
        file.set_stream_position(query_position(stream));
    }
    file.stream_position(fd)
}

#[cold]
fn measure_by_position(file: &Description, stream: Stream, before: u64) -> (u64, i64) {
    let after = query_position(stream);
    file.set_stream_position(after);
    let moved = if before == NONE || after == NONE { 0 } else { after.wrapping_sub(before) as i64 };
    (before, moved.max(0))
}

/// Records a request that sets or queries the position of a stream.
fn record_seek<R: ReturnValue>(
    op: Op,
    stream: Stream,
    offset: Option<Offset>,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, descriptor(stream)) else { return real() };
    let offset = offset.map_or(NONE, |offset| offset as u64);
    let args = RequestArgs { handle: file.handle(), offset, length: arg };
    let Some(begun) = begin_enclosing_on(op, args) else { return file.run_unrecorded(real) };
    let returned = real();
    let result = returned.result();
    let position = query_position(stream);
    file.set_stream_position(position);
    end(begun, Completion { handle: file.handle(), offset, length: arg, result, flags: file.flags() });
    returned
}

hook!(fread | fread_unlocked (buffer: *mut c_void, size: usize, count: usize, stream: Stream) -> usize, |real| {
    record_transfer(stdio::FREAD, stream, real, |items| read_items(stream, size, count, items))
});
hook!(__fread_chk | __fread_unlocked_chk (
    buffer: *mut c_void, room: usize, size: usize, count: usize, stream: Stream,
) -> usize, |real| {
    record_transfer(stdio::FREAD, stream, real, |items| read_items(stream, size, count, items))
});
hook!(fwrite | fwrite_unlocked (buffer: *const c_void, size: usize, count: usize, stream: Stream) -> usize, |real| {
    record_transfer(stdio::FWRITE, stream, real, |items| {
        let is_failure = items == 0 && size != 0 && count != 0;
        let moved = if is_failure { (-1 as c_int).result() } else { items.wrapping_mul(size) as i64 };
        (size.wrapping_mul(count) as u64, Movement::Bytes(moved))
    })
});

fn read_items(stream: Stream, size: usize, count: usize, items: usize) -> (u64, Movement) {
    let length = size.wrapping_mul(count) as u64;
    let moved = match items {
        _ if items == count || size == 0 => Movement::Bytes(items.wrapping_mul(size) as i64),
        // A part of an item may have been read.
        _ if size > 1 => Movement::Unknown,
        0 => Movement::Bytes(nothing_read(stream)),
        _ => Movement::Bytes(items as i64),
    };
    (length, moved)
}
