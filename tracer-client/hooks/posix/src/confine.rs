//! Hooks for programs that confine themselves by a seccomp filter or by disabling the time stamp
//! counter.
//!
//! The kernel may kill such a program for a system call that the program does not make itself.
//! Therefore `prctl`, and `syscall` with the numbers of `prctl` and `seccomp` (`syscall.rs`), are
//! handled even if nothing is recorded. Before a filter is installed, the resources for recording
//! are set up. After that the tracer and this hook make only calls that the filter allows
//! ([`miot_tracer::gate`]). A filter that is installed without libc is not detected.

use crate::real::{EarlyHook, RealFunction, errno, keeping_errno, set_errno};
use crate::{cwd, files, path, vfork};
use miot_tracer::gate::{Filter, install_filter};
use miot_tracer::{ClockAccess, ClockScope, prepare_for_filter, set_clock_access};
use std::ffi::{c_int, c_void};

#[unsafe(link_section = "miot_real")]
static REAL: RealFunction = RealFunction::new();
const NAME: &str = "prctl\0";
#[used]
#[unsafe(link_section = "miot_early")]
static EARLY: EarlyHook = EarlyHook::new(&REAL, NAME);

/// Variadic in C: all arguments are passed in the same registers as fixed ones.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    type Prototype = unsafe extern "C-unwind" fn(c_int, usize, usize, usize, usize) -> c_int;
    // SAFETY:
    // - `dlsym` finds the C function of this name, which takes at most five words.
    // - The arguments are the caller's.
    let real = || unsafe {
        let function = std::mem::transmute::<*mut c_void, Prototype>(REAL.get::<c_int>(NAME));
        function(option, a, b, c, d)
    };
    on_prctl(option, a, b, real)
}

/// Handles `prctl`, called by name or through `syscall`.
pub(crate) fn on_prctl<R: Copy + PartialEq + From<i8>>(
    option: c_int,
    a: usize,
    b: usize,
    real: impl FnOnce() -> R,
) -> R {
    let succeeded = |returned: &R| *returned == R::from(0);
    if vfork::lacks_thread_block() {
        return real();
    }
    match (option, a as u32) {
        (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) => install_strict(real, succeeded),
        (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER) => {
            install(Filter::Program(b as *const c_void), real, succeeded)
        }
        (libc::PR_SET_TSC, value) if !vfork::in_child() => {
            let forbidden = value == libc::PR_TSC_SIGSEGV as u32;
            if forbidden {
                keeping_errno(prepare_recording);
                set_clock_access(ClockAccess::Denied, ClockScope::NewThreads);
            }
            let returned = real();
            if succeeded(&returned) != forbidden {
                set_clock_access(ClockAccess::Allowed, ClockScope::NewThreads);
            }
            returned
        }
        _ => real(),
    }
}

/// Handles `seccomp`, for which libc has no function.
pub(crate) fn on_seccomp<R: Copy + PartialEq + PartialOrd + From<i8>>(
    operation: usize,
    flags: usize,
    program: usize,
    real: impl FnOnce() -> R,
) -> R {
    /// `SECCOMP_FILTER_FLAG_NEW_LISTENER`: the call returns a descriptor.
    const NEW_LISTENER: usize = 8;
    /// `SECCOMP_FILTER_FLAG_TSYNC`.
    const ALL_THREADS: usize = 1;
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT => install_strict(real, |returned| *returned == R::from(0)),
        libc::SECCOMP_SET_MODE_FILTER => {
            let program = program as *const c_void;
            let filter = if flags & ALL_THREADS != 0 {
                Filter::ForAllThreads(program)
            } else {
                Filter::Program(program)
            };
            // Without a listener, a result above zero is the id of a thread that could not be
            // confined; then no thread is.
            let has_listener = flags & NEW_LISTENER != 0;
            install(filter, real, |returned| {
                *returned == R::from(0) || has_listener && *returned > R::from(0)
            })
        }
        _ => real(),
    }
}

fn install_strict<R>(real: impl FnOnce() -> R, succeeded: impl Fn(&R) -> bool) -> R {
    install(
        Filter::Strict,
        || {
            // The kernel also disables the counter for the thread.
            set_clock_access(ClockAccess::Denied, ClockScope::ThisThread);
            let returned = real();
            if !succeeded(&returned) {
                set_clock_access(ClockAccess::Allowed, ClockScope::ThisThread);
            }
            returned
        },
        &succeeded,
    )
}

fn install<R>(filter: Filter, real: impl FnOnce() -> R, succeeded: impl FnOnce(&R) -> bool) -> R {
    // A child in borrowed memory: the filter applies to the child, the memory belongs to the
    // parent, and the child makes no call of this library.
    if vfork::lacks_thread_block() || vfork::in_child() {
        return real();
    }
    let is_query = matches!(filter, Filter::Program(at) | Filter::ForAllThreads(at) if at.is_null());
    if !is_query {
        keeping_errno(prepare_recording);
    }
    // SAFETY:
    // - `filter` is the filter that `real` installs.
    unsafe {
        install_filter(filter, real, |returned| {
            let number = errno();
            let succeeded = succeeded(returned);
            set_errno(number);
            succeeded
        })
    }
}

/// Makes the queries that the filter may forbid: files of open descriptors, working directory.
fn prepare_recording() {
    prepare_for_filter();
    if miot_tracer::epoch() != 0 {
        files::register_open_descriptors();
        let _ = cwd::get(&mut path::Buffer::new());
    }
}
