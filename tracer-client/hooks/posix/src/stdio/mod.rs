//! Streams (`FILE *`). One call is one event of the layer `stdio`; what libc then reads and writes below it
//! does not pass through us.
//!
//! **The position** of a stream is kept in its file description, apart from the descriptor's: it starts at 0
//! (at the descriptor's position for `fdopen` and streams that were there before; unknown for append mode),
//! grows with each call, and is asked of libc where a call does not say how far it has moved: seeks, pushed
//! back bytes, scanning, short reads. Asking (`ftello`) is a function of the stream's own data and at most
//! one `lseek`.

mod chars;
mod lines;
mod open;
mod printing;
mod scanning;
mod seek;

use crate::description::Description;
use crate::files::{begin_enclosing_on, tracked};
use crate::real::{Offset, Real, Returned, errno, hook, keeping_errno};
use miot_tracer::op::stdio;
use miot_tracer::{Doing, Done, NONE, Op, end};
use std::ffi::{c_int, c_void};

/// `FILE *`.
type Stream = *mut libc::FILE;
/// `va_list`: a pointer on every ABI we build for, as an array type or a large structure is passed.
type Arguments = *mut c_void;

unsafe extern "C" {
    static stdin: Stream;
    static stdout: Stream;
}

fn standard_input() -> Stream {
    // SAFETY: the caller is about to read the same variable.
    unsafe { stdin }
}

fn standard_output() -> Stream {
    // SAFETY: as above.
    unsafe { stdout }
}

/// The descriptor of a stream, −1 if it has none. A null stream is the caller's to answer for.
fn descriptor(stream: Stream) -> c_int {
    if stream.is_null() {
        return -1;
    }
    // SAFETY: the caller's own stream, open.
    keeping_errno(|| unsafe { libc::fileno(stream) })
}

/// Where libc says the stream is; [`NONE`] if it cannot say.
fn tell(stream: Stream) -> u64 {
    static FTELLO: Real = Real::new();
    // SAFETY: the function of this name has this prototype; the stream is the caller's, open.
    let position = keeping_errno(|| unsafe {
        let ftello: unsafe extern "C-unwind" fn(Stream) -> Offset =
            std::mem::transmute(FTELLO.get::<Offset>("ftello\0"));
        ftello(stream)
    });
    if position < 0 { NONE } else { position as u64 }
}

/// Result of a request that has read nothing: 0 at the end of the file, −errno after an error.
#[cold]
fn nothing_read(stream: Stream) -> i64 {
    let number = errno();
    // SAFETY: the caller's own stream, open.
    match unsafe { libc::ferror(stream) } {
        0 => 0,
        _ => (-1 as c_int).result().min(-i64::from(number)),
    }
}

/// How far a request has moved its stream.
enum Moved {
    /// By as many bytes; negative: −errno.
    By(i64),
    /// Libc must be asked.
    Ask,
}

/// A request that moves a stream. `how` says how many bytes were asked for and how far it moved.
#[inline(always)]
fn moving<R: Copy>(
    op: Op,
    stream: Stream,
    real: impl FnOnce() -> R,
    how: impl FnOnce(R) -> (u64, Moved),
) -> R {
    let fd = descriptor(stream);
    let Some(file) = tracked(op, fd) else { return real() };
    let before = position(file, fd, stream);
    let doing = Doing { handle: file.handle(), offset: before, length: NONE };
    let Some(begun) = begin_enclosing_on(op, doing) else { return file.unseen(real) };
    let returned = real();
    let (length, moved) = how(returned);
    let (offset, result) = match moved {
        Moved::By(bytes) => (file.advance_stream(bytes), bytes),
        Moved::Ask => ask(file, stream, before),
    };
    // What was asked for is what was done where the call itself does not say.
    let length = if length == NONE { result.max(0) as u64 } else { length };
    end(begun, Done { handle: file.handle(), offset, length, result, flags: file.flags() });
    returned
}

/// Where the stream is before a request.
#[inline(always)]
fn position(file: &Description, fd: c_int, stream: Stream) -> u64 {
    if file.has(crate::description::state::INLINED) {
        file.set_stream(tell(stream));
    }
    file.stream(fd)
}

#[cold]
fn ask(file: &Description, stream: Stream, before: u64) -> (u64, i64) {
    let after = tell(stream);
    file.set_stream(after);
    let moved = if before == NONE || after == NONE { 0 } else { after.wrapping_sub(before) as i64 };
    (before, moved.max(0))
}

/// A request that puts the stream somewhere else, or asks where it is.
fn placing<R: Returned>(
    op: Op,
    stream: Stream,
    offset: Option<Offset>,
    arg: u64,
    real: impl FnOnce() -> R,
) -> R {
    let Some(file) = tracked(op, descriptor(stream)) else { return real() };
    let offset = offset.map_or(NONE, |offset| offset as u64);
    let doing = Doing { handle: file.handle(), offset, length: arg };
    let Some(begun) = begin_enclosing_on(op, doing) else { return file.unseen(real) };
    let returned = real();
    let result = returned.result();
    let position = tell(stream);
    file.set_stream(position);
    end(begun, Done { handle: file.handle(), offset, length: arg, result, flags: file.flags() });
    returned
}

hook!(fread | fread_unlocked (buffer: *mut c_void, size: usize, count: usize, stream: Stream) -> usize, |real| {
    moving(stdio::FREAD, stream, real, |items| read_items(stream, size, count, items))
});
hook!(__fread_chk | __fread_unlocked_chk (
    buffer: *mut c_void, room: usize, size: usize, count: usize, stream: Stream,
) -> usize, |real| {
    moving(stdio::FREAD, stream, real, |items| read_items(stream, size, count, items))
});
hook!(fwrite | fwrite_unlocked (buffer: *const c_void, size: usize, count: usize, stream: Stream) -> usize, |real| {
    moving(stdio::FWRITE, stream, real, |items| {
        let failed = items == 0 && size != 0 && count != 0;
        let moved = if failed { (-1 as c_int).result() } else { items.wrapping_mul(size) as i64 };
        (size.wrapping_mul(count) as u64, Moved::By(moved))
    })
});

fn read_items(stream: Stream, size: usize, count: usize, items: usize) -> (u64, Moved) {
    let length = size.wrapping_mul(count) as u64;
    let moved = match items {
        _ if items == count || size == 0 => Moved::By(items.wrapping_mul(size) as i64),
        // Part of an item may have been read.
        _ if size > 1 => Moved::Ask,
        0 => Moved::By(nothing_read(stream)),
        _ => Moved::By(items as i64),
    };
    (length, moved)
}
