//! Single characters.
//!
//! Compilers inline `getc_unlocked` and `putc_unlocked`: the program then works on the stream's buffer
//! itself, and calls libc only when it is empty or full. That call (`__uflow`, `__overflow`) tells us that
//! the position of this stream cannot be counted and must be asked for.

use super::{Moved, Stream, descriptor, moving, nothing_read, placing, standard_input, standard_output};
use crate::description::{self, state};
use crate::real::{Returned, hook};
use crate::{table, vfork};
use miot_tracer::op::stdio;
use miot_tracer::{NONE, Op};
use std::ffi::c_int;

hook!(fgetc | getc | _IO_getc | fgetc_unlocked | getc_unlocked (stream: Stream) -> c_int, |real| {
    get(stdio::FGETC, stream, real)
});
hook!(getchar | getchar_unlocked () -> c_int, |real| get(stdio::FGETC, standard_input(), real));

hook!(fputc | putc | _IO_putc | fputc_unlocked | putc_unlocked (character: c_int, stream: Stream) -> c_int, |real| {
    put(stdio::FPUTC, stream, real)
});
hook!(putchar | putchar_unlocked (character: c_int) -> c_int, |real| {
    put(stdio::FPUTC, standard_output(), real)
});

hook!(ungetc(character: c_int, stream: Stream) -> c_int, |real| {
    placing(stdio::UNGETC, stream, None, NONE, real)
});

fn get(op: Op, stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    moving(op, stream, real, |character| {
        (1, Moved::By(if character == -1 { nothing_read(stream) } else { 1 }))
    })
}

fn put(op: Op, stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    moving(op, stream, real, |character| (1, Moved::By(if character == -1 { character.result() } else { 1 })))
}

hook!(__uflow(stream: Stream) -> c_int, |real| inlined(stream, real));
hook!(__overflow(stream: Stream, character: c_int) -> c_int, |real| inlined(stream, real));

fn inlined(stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    let index = table::index_of(table::get(descriptor(stream)));
    if index != 0 && !vfork::in_child() {
        description::get(index).set(state::INLINED);
    }
    real()
}
