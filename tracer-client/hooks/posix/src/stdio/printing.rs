//! Hooks of formatted output.
//!
//! Variadic functions cannot be written in Rust: their exported names jump to C (`shim.c`), which
//! creates a `va_list` and calls the `v` function of the same name, a hook below. The jump is
//! needed because only Rust's own symbols are exported.

use super::{Arguments, Movement, Stream, record_transfer, standard_output};
use crate::description::Access;
use crate::files::{begin_enclosing_on, tracked};
use crate::real::{ReturnValue, hook};
use miot_tracer::op::{Op, stdio};
use miot_tracer::{Completion, NONE, end};
use std::ffi::{c_char, c_int};

type Format = *const c_char;

hook!(vfprintf(stream: Stream, format: Format, arguments: Arguments) -> c_int, |real| {
    record_print(stdio::FPRINTF, stream, real)
});
hook!(__vfprintf_chk(stream: Stream, level: c_int, format: Format, arguments: Arguments) -> c_int, |real| {
    record_print(stdio::FPRINTF, stream, real)
});
hook!(vprintf(format: Format, arguments: Arguments) -> c_int, |real| {
    record_print(stdio::PRINTF, standard_output(), real)
});
hook!(__vprintf_chk(level: c_int, format: Format, arguments: Arguments) -> c_int, |real| {
    record_print(stdio::PRINTF, standard_output(), real)
});
hook!(vdprintf(fd: c_int, format: Format, arguments: Arguments) -> c_int, |real| record_print_to_fd(fd, real));
hook!(__vdprintf_chk(fd: c_int, level: c_int, format: Format, arguments: Arguments) -> c_int, |real| {
    record_print_to_fd(fd, real)
});

fn record_print(op: Op, stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    record_transfer(op, stream, real, |written| (NONE, Movement::Bytes(bytes(written))))
}

/// Records a write to a descriptor, whose position it moves.
fn record_print_to_fd(fd: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let Some(file) = tracked(stdio::FPRINTF, fd) else { return real() };
    let Some(begun) = begin_enclosing_on(stdio::FPRINTF, file.args_at_position(NONE, Access::Write)) else {
        return file.run_unrecorded(real);
    };
    let returned = real();
    let result = bytes(returned);
    let (offset, flags) = file.advance(fd, result, Access::Write);
    end(begun, Completion { handle: file.handle(), offset, length: result.max(0) as u64, result, flags });
    returned
}

fn bytes(written: c_int) -> i64 {
    if written < 0 { (-1 as c_int).result() } else { i64::from(written) }
}

/// Declares exported variadic functions that jump to their bodies in `shim.c`.
macro_rules! variadic {
    ($($name:ident = $shim:ident;)+) => {
        $(
            unsafe extern "C" {
                fn $shim();
            }
            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!("jmp {}", sym $shim);
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!("b {}", sym $shim);
            }
        )+
    };
}
pub(super) use variadic;

variadic! {
    printf = miot_shim_printf;
    fprintf = miot_shim_fprintf;
    dprintf = miot_shim_dprintf;
    __printf_chk = miot_shim_printf_chk;
    __fprintf_chk = miot_shim_fprintf_chk;
    __dprintf_chk = miot_shim_dprintf_chk;
}
