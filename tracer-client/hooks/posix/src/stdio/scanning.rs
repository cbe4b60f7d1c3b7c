//! Formatted input. How much was read, only the position of the stream says.

use super::printing::variadic;
use super::{Arguments, Moved, Stream, moving, nothing_read, standard_input};
use crate::real::hook;
use miot_tracer::NONE;
use miot_tracer::op::{Op, stdio};
use std::ffi::{c_char, c_int};

type Format = *const c_char;

hook!(vfscanf | __isoc99_vfscanf | __isoc23_vfscanf (
    stream: Stream, format: Format, arguments: Arguments,
) -> c_int, |real| scan(stdio::FSCANF, stream, real));
hook!(vscanf | __isoc99_vscanf | __isoc23_vscanf (format: Format, arguments: Arguments) -> c_int, |real| {
    scan(stdio::SCANF, standard_input(), real)
});

fn scan(op: Op, stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    moving(op, stream, real, |fields| {
        let failure = if fields < 0 { nothing_read(stream) } else { 0 };
        (NONE, if failure < 0 { Moved::By(failure) } else { Moved::Ask })
    })
}

variadic! {
    scanf = miot_shim_scanf;
    fscanf = miot_shim_fscanf;
    __isoc99_scanf = miot_shim_isoc99_scanf;
    __isoc99_fscanf = miot_shim_isoc99_fscanf;
    __isoc23_scanf = miot_shim_isoc23_scanf;
    __isoc23_fscanf = miot_shim_isoc23_fscanf;
}
