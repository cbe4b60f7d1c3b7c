//! The library's start, and calls that make processes.
//!
//! A new process shares the open file descriptions of this one, so their positions are not ours alone any
//! more: each of these calls moves the generation on. Nothing is recorded here; the new process records for
//! itself, in a segment of its own, from its first request on.

use crate::description::next_generation;
use crate::real::{ErrorNumber, hook};
use crate::{filter, real, vfork};
use std::ffi::{c_char, c_int, c_void};

/// glibc calls the functions of `.init_array` with the arguments of `main`.
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the loader passes the environment of the process; nothing runs beside a constructor.
    unsafe { filter::read_environment(environment) };
    real::resolve_early();
    // Also catches what forks inside libc: `daemon`, `forkpty`. A failure (no memory) costs right offsets of
    // files shared with such children.
    // SAFETY: a function of the right type, as long-lived as the library.
    unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

unsafe extern "C" fn before_fork() {
    next_generation();
}

hook!(_Fork early () -> c_int, |real| {
    next_generation();
    real()
});
hook!(posix_spawn | posix_spawnp (
    pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
    arguments: *const *mut c_char, environment: *const *mut c_char,
) -> ErrorNumber, |real| spawning(real));
hook!(system(command: *const c_char) -> c_int, |real| spawning(real));

/// Makes a process. A child of `vfork` has no generations of its own to count.
pub(crate) fn spawning<R>(real: impl FnOnce() -> R) -> R {
    if !vfork::in_child() {
        next_generation();
    }
    real()
}
