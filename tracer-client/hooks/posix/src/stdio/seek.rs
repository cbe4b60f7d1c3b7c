//! Positions of streams, and flushing.

use super::{Stream, descriptor, placing};
use crate::files::{begin, begin_on, tracked};
use crate::path::arg;
use crate::real::{Long, Offset, Returned, hook};
use miot_tracer::op::stdio;
use miot_tracer::{Done, NONE, end};
use std::ffi::{c_int, c_void};

hook!(fseek(stream: Stream, offset: Long, whence: c_int) -> c_int, |real| {
    placing(stdio::FSEEK, stream, Some(offset), arg(whence, 0), real)
});
hook!(fseeko | fseeko64 (stream: Stream, offset: Offset, whence: c_int) -> c_int, |real| {
    placing(stdio::FSEEK, stream, Some(offset), arg(whence, 0), real)
});
hook!(ftell(stream: Stream) -> Long, |real| placing(stdio::FTELL, stream, None, NONE, real));
hook!(ftello | ftello64 (stream: Stream) -> Offset, |real| placing(stdio::FTELL, stream, None, NONE, real));
hook!(rewind(stream: Stream) -> (), |real| placing(stdio::REWIND, stream, None, NONE, real));
hook!(fgetpos | fgetpos64 (stream: Stream, position: *mut c_void) -> c_int, |real| {
    placing(stdio::FGETPOS, stream, None, NONE, real)
});
hook!(fsetpos | fsetpos64 (stream: Stream, position: *const c_void) -> c_int, |real| {
    // `fpos_t` starts with the offset; a bad pointer is the caller's to answer for.
    let offset = if position.is_null() { None } else {
        // SAFETY: libc is about to read it.
        Some(unsafe { position.cast::<Offset>().read_unaligned() })
    };
    placing(stdio::FSETPOS, stream, offset, NONE, real)
});

hook!(fflush | fflush_unlocked (stream: Stream) -> c_int, |real| {
    if stream.is_null() {
        // All streams.
        let begun = begin(stdio::FFLUSH);
        let returned = real();
        if let Some(begun) = begun {
            end(begun, Done::of(returned.result()));
        }
        return returned;
    }
    let Some(file) = tracked(stdio::FFLUSH, descriptor(stream)) else { return real() };
    let Some(begun) = begin_on(stdio::FFLUSH, file.named(NONE)) else { return real() };
    let returned = real();
    end(begun, Done { handle: file.handle(), flags: file.flags(), ..Done::of(returned.result()) });
    returned
});
