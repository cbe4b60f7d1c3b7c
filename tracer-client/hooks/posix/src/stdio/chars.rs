//! Hooks of single characters.
//!
//! Compilers inline `getc_unlocked` and `putc_unlocked`: the program then accesses the stream's
//! buffer directly, and calls libc only when the buffer is empty or full. That call (`__uflow`,
//! `__overflow`) shows that the position of this stream cannot be counted and must be queried.

use super::{
    Movement, Stream, descriptor, nothing_read, record_seek, record_transfer, standard_input, standard_output,
};
use crate::description::{self, state};
use crate::real::{ReturnValue, hook};
use crate::{table, vfork};
use miot_tracer::op::stdio;
use miot_tracer::{NONE, Op};
use std::ffi::c_int;

hook!(fgetc | getc | _IO_getc | fgetc_unlocked | getc_unlocked (stream: Stream) -> c_int, |real| {
    record_get(stdio::FGETC, stream, real)
});
hook!(getchar | getchar_unlocked () -> c_int, |real| record_get(stdio::FGETC, standard_input(), real));

hook!(fputc | putc | _IO_putc | fputc_unlocked | putc_unlocked (character: c_int, stream: Stream) -> c_int, |real| {
    record_put(stdio::FPUTC, stream, real)
});
hook!(putchar | putchar_unlocked (character: c_int) -> c_int, |real| {
    record_put(stdio::FPUTC, standard_output(), real)
});

hook!(ungetc(character: c_int, stream: Stream) -> c_int, |real| {
    record_seek(stdio::UNGETC, stream, None, NONE, real)
});

fn record_get(op: Op, stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    record_transfer(op, stream, real, |character| {
        (1, Movement::Bytes(if character == -1 { nothing_read(stream) } else { 1 }))
    })
}

fn record_put(op: Op, stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    record_transfer(op, stream, real, |character| {
        (1, Movement::Bytes(if character == -1 { character.result() } else { 1 }))
    })
}

hook!(__uflow(stream: Stream) -> c_int, |real| mark_inlined(stream, real));
hook!(__overflow(stream: Stream, character: c_int) -> c_int, |real| mark_inlined(stream, real));

fn mark_inlined(stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    let index = table::index_of(table::get(descriptor(stream)));
    if index != 0 && !vfork::in_child() {
        description::get(index).set(state::INLINED);
    }
    real()
}
