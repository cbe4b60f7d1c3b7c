//! The library's start, and calls that make processes.
//!
//! A new process shares the open file descriptions of this one, so their positions are not ours alone any
//! more: each of these calls moves the generation on. Nothing is recorded here; the new process records for
//! itself, in a segment of its own, from its first request on.

use crate::description::next_generation;
use crate::real::{ErrorNumber, hook};
use crate::{filter, libaio, pending, real, uring, vfork};
use std::ffi::{c_char, c_int, c_void};

/// glibc calls the functions of `.init_array` with the arguments of `main`.
#[unsafe(link_section = ".text.startup")]
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the loader passes the environment of the process; nothing runs beside a constructor.
    unsafe { filter::read_environment(environment) };
    real::resolve_early();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// Runs at `exit`, and when the library is unloaded.
extern "C" fn finish() {
    libaio::finish();
    uring::finish();
    pending::abandon(None);
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

// Not by `pthread_atfork`, which makes each program that starts touch three pages more.
hook!(fork early | __fork | __libc_fork | _Fork early () -> c_int, |real| spawning(real));
hook!(forkpty(master: *mut c_int, name: *mut c_char, terminal: *const c_void, window: *const c_void) -> c_int, |real| {
    spawning(real)
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
