//! Hooks of formatted input. Only the position of the stream shows how many bytes were read.

use super::printing::variadic;
use super::{Arguments, Movement, Stream, nothing_read, record_transfer, standard_input};
use crate::real::hook;
use miot_tracer::NONE;
use miot_tracer::op::{Op, stdio};
use std::ffi::{c_char, c_int};

type Format = *const c_char;

hook!(vfscanf | __isoc99_vfscanf | __isoc23_vfscanf (
    stream: Stream, format: Format, arguments: Arguments,
) -> c_int, |real| record_scan(stdio::FSCANF, stream, real));
hook!(vscanf | __isoc99_vscanf | __isoc23_vscanf (format: Format, arguments: Arguments) -> c_int, |real| {
    record_scan(stdio::SCANF, standard_input(), real)
});

fn record_scan(op: Op, stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    record_transfer(op, stream, real, |fields| {
        let failure = if fields < 0 { nothing_read(stream) } else { 0 };
        (NONE, if failure < 0 { Movement::Bytes(failure) } else { Movement::Unknown })
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
