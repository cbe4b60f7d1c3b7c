//! Formatted output.
//!
//! Functions that take `...` cannot be written in Rust: their exported names jump to C (`shim.c`), which
//! makes a `va_list` and calls the `v` function of the same name, a hook below. The jump is needed because
//! only Rust's own symbols are exported.

use super::{Arguments, Moved, Stream, moving, standard_output};
use crate::files::{begin_enclosing_on, tracked};
use crate::real::{Returned, hook};
use miot_tracer::op::{Op, stdio};
use miot_tracer::{Done, NONE, end};
use std::ffi::{c_char, c_int};

type Format = *const c_char;

hook!(vfprintf(stream: Stream, format: Format, arguments: Arguments) -> c_int, |real| {
    print(stdio::FPRINTF, stream, real)
});
hook!(__vfprintf_chk(stream: Stream, level: c_int, format: Format, arguments: Arguments) -> c_int, |real| {
    print(stdio::FPRINTF, stream, real)
});
hook!(vprintf(format: Format, arguments: Arguments) -> c_int, |real| {
    print(stdio::PRINTF, standard_output(), real)
});
hook!(__vprintf_chk(level: c_int, format: Format, arguments: Arguments) -> c_int, |real| {
    print(stdio::PRINTF, standard_output(), real)
});
hook!(vdprintf(fd: c_int, format: Format, arguments: Arguments) -> c_int, |real| print_to_fd(fd, real));
hook!(__vdprintf_chk(fd: c_int, level: c_int, format: Format, arguments: Arguments) -> c_int, |real| {
    print_to_fd(fd, real)
});

fn print(op: Op, stream: Stream, real: impl FnOnce() -> c_int) -> c_int {
    moving(op, stream, real, |written| (NONE, Moved::By(bytes(written))))
}

/// Writes to a descriptor, and so moves that.
fn print_to_fd(fd: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let Some(file) = tracked(stdio::FPRINTF, fd) else { return real() };
    let Some(begun) = begin_enclosing_on(stdio::FPRINTF, file.doing(NONE, true)) else {
        return file.unseen(real);
    };
    let returned = real();
    let result = bytes(returned);
    let (offset, flags) = file.advance(fd, result, true);
    end(begun, Done { handle: file.handle(), offset, length: result.max(0) as u64, result, flags });
    returned
}

fn bytes(written: c_int) -> i64 {
    if written < 0 { (-1 as c_int).result() } else { i64::from(written) }
}

/// Declares exported functions with `...` that jump to their bodies in `shim.c`.
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
