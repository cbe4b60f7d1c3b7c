//! Programs that confine themselves: filters of seccomp, and the time stamp counter taken away.
//!
//! Such a program may be killed for a system call that it does not make itself. So `prctl`, and `syscall` with the numbers of
//! `prctl` and `seccomp` (`syscall.rs`), are looked at, recorded or not: before a filter is installed what recording needs is
//! set up, and after that the tracer and this hook make only calls that the filter allows ([`miot_tracer::gate`]). A filter
//! that is installed past libc is not seen.

use crate::real::{Early, Real, errno, keeping_errno, set_errno};
use crate::{cwd, files, path, vfork};
use miot_tracer::gate::{Filter, installing};
use miot_tracer::{forbid_clock, prepare_for_filter};
use std::ffi::{c_int, c_void};

#[unsafe(link_section = "miot_real")]
static REAL: Real = Real::new();
const NAME: &str = "prctl\0";
#[used]
#[unsafe(link_section = "miot_early")]
static EARLY: Early = Early::new::<c_int>(&REAL, NAME);

/// Variadic in C: whatever follows is in the same registers.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    type Prototype = unsafe extern "C-unwind" fn(c_int, usize, usize, usize, usize) -> c_int;
    // SAFETY:
    // - `dlsym` finds the C function of this name; it takes five words in registers and nothing else;
    // - the arguments are the caller's own, passed on as they came.
    let real = || unsafe {
        let function = std::mem::transmute::<*mut c_void, Prototype>(REAL.get::<c_int>(NAME));
        function(option, a, b, c, d)
    };
    by_prctl(option, a, b, real)
}

/// `prctl`, however it is called.
pub(crate) fn by_prctl<R: Copy + PartialEq + From<i8>>(
    option: c_int,
    a: usize,
    b: usize,
    real: impl FnOnce() -> R,
) -> R {
    let succeeded = |returned: &R| *returned == R::from(0);
    if vfork::is_no_thread() {
        return real();
    }
    match (option, a as u32) {
        (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) => strictly(real, succeeded),
        (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER) => {
            confined(Filter::Program(b as *const c_void), real, succeeded)
        }
        (libc::PR_SET_TSC, value) if !vfork::in_child() => {
            let forbidden = value == libc::PR_TSC_SIGSEGV as u32;
            if forbidden {
                keeping_errno(get_ready);
                forbid_clock(true, true);
            }
            let returned = real();
            if succeeded(&returned) != forbidden {
                forbid_clock(false, true);
            }
            returned
        }
        _ => real(),
    }
}

/// `seccomp`, which libc has no function for.
pub(crate) fn by_seccomp<R: Copy + PartialEq + PartialOrd + From<i8>>(
    operation: usize,
    flags: usize,
    program: usize,
    real: impl FnOnce() -> R,
) -> R {
    /// The call returns a descriptor.
    const NEW_LISTENER: usize = 8;
    /// `SECCOMP_FILTER_FLAG_TSYNC`.
    const ALL_THREADS: usize = 1;
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT => strictly(real, |returned| *returned == R::from(0)),
        libc::SECCOMP_SET_MODE_FILTER => {
            let program = program as *const c_void;
            let filter = if flags & ALL_THREADS != 0 {
                Filter::ForAllThreads(program)
            } else {
                Filter::Program(program)
            };
            // Else a number above zero is a thread that could not be confined, and none is.
            let listens = flags & NEW_LISTENER != 0;
            confined(filter, real, |returned| *returned == R::from(0) || listens && *returned > R::from(0))
        }
        _ => real(),
    }
}

fn strictly<R>(real: impl FnOnce() -> R, succeeded: impl Fn(&R) -> bool) -> R {
    confined(
        Filter::Strict,
        || {
            // The kernel takes the counter away from the thread as well.
            forbid_clock(true, false);
            let returned = real();
            if !succeeded(&returned) {
                forbid_clock(false, false);
            }
            returned
        },
        &succeeded,
    )
}

fn confined<R>(filter: Filter, real: impl FnOnce() -> R, succeeded: impl FnOnce(&R) -> bool) -> R {
    // A child in borrowed memory: the filter is its own, the memory its parent's, and it makes no call of ours.
    if vfork::is_no_thread() || vfork::in_child() {
        return real();
    }
    let asks_only = matches!(filter, Filter::Program(at) | Filter::ForAllThreads(at) if at.is_null());
    if !asks_only {
        keeping_errno(get_ready);
    }
    // SAFETY: it is the filter that the call installs.
    unsafe {
        installing(filter, real, |returned| {
            let number = errno();
            let succeeded = succeeded(returned);
            set_errno(number);
            succeeded
        })
    }
}

/// What may not be asked later is asked now: what descriptors refer to, and the working directory.
fn get_ready() {
    prepare_for_filter();
    if miot_tracer::epoch() != 0 {
        files::look_at_all();
        let _ = cwd::get(&mut path::Buffer::new());
    }
}
