//! Hooks of positions of streams, and of flushing.

use super::{Stream, descriptor, record_seek};
use crate::files::{begin, begin_on, tracked};
use crate::path::arg;
use crate::real::{Long, Offset, ReturnValue, hook};
use miot_tracer::op::stdio;
use miot_tracer::{Completion, NONE, end};
use std::ffi::{c_int, c_void};

hook!(fseek(stream: Stream, offset: Long, whence: c_int) -> c_int, |real| {
    record_seek(stdio::FSEEK, stream, Some(offset), arg(whence, 0), real)
});
hook!(fseeko | fseeko64 (stream: Stream, offset: Offset, whence: c_int) -> c_int, |real| {
    record_seek(stdio::FSEEK, stream, Some(offset), arg(whence, 0), real)
});
hook!(ftell(stream: Stream) -> Long, |real| record_seek(stdio::FTELL, stream, None, NONE, real));
hook!(ftello | ftello64 (stream: Stream) -> Offset, |real| record_seek(stdio::FTELL, stream, None, NONE, real));
hook!(rewind(stream: Stream) -> (), |real| record_seek(stdio::REWIND, stream, None, NONE, real));
hook!(fgetpos | fgetpos64 (stream: Stream, position: *mut c_void) -> c_int, |real| {
    record_seek(stdio::FGETPOS, stream, None, NONE, real)
});
hook!(fsetpos | fsetpos64 (stream: Stream, position: *const c_void) -> c_int, |real| {
    // `fpos_t` starts with the offset. A bad pointer is the caller's error.
    let offset = if position.is_null() { None } else {
        // SAFETY:
        // - `position` is not null and points to an `fpos_t`, which libc is about to read.
        Some(unsafe { position.cast::<Offset>().read_unaligned() })
    };
    record_seek(stdio::FSETPOS, stream, offset, NONE, real)
});

hook!(fflush | fflush_unlocked (stream: Stream) -> c_int, |real| {
    if stream.is_null() {
        // All streams.
        let begun = begin(stdio::FFLUSH);
        let returned = real();
        if let Some(begun) = begun {
            end(begun, Completion::of(returned.result()));
        }
        return returned;
    }
    let Some(file) = tracked(stdio::FFLUSH, descriptor(stream)) else { return real() };
    let Some(begun) = begin_on(stdio::FFLUSH, file.args_without_offset(NONE)) else { return real() };
    let returned = real();
    end(begun, Completion { handle: file.handle(), flags: file.flags(), ..Completion::of(returned.result()) });
    returned
});
