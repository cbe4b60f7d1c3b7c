//! Start and end of the library, and hooks of the calls that create processes.
//!
//! A new process shares the open file descriptions of this one, so that this process no longer
//! controls their positions alone: each of these calls advances the generation. The calls are not
//! recorded. The new process records its own requests, in a segment of its own, from its first
//! request on.

use crate::description::next_generation;
use crate::real::{ErrorNumber, hook};
use crate::{filter, libaio, pending, real, uring, vfork};
use std::ffi::{c_char, c_int, c_void};

/// Initializes the library. glibc calls the functions of `.init_array` with the arguments of
/// `main`.
#[unsafe(link_section = ".text.startup")]
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY:
    // - The loader passes the environment of the process.
    // - No other thread changes it while the constructors run.
    unsafe { filter::read_environment(environment) };
    real::resolve_early();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// Records the pending requests, at `exit` and when the library is unloaded.
#[unsafe(link_section = ".text.startup")]
extern "C" fn finish() {
    if !pending::is_used() && !uring::is_used() {
        return;
    }
    libaio::finish();
    uring::finish();
    pending::abandon(None);
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

// `pthread_atfork` is not used, because it makes every starting program touch three more pages.
hook!(fork early | __fork | __libc_fork | _Fork early () -> c_int, |real| on_spawn(real));
hook!(forkpty(master: *mut c_int, name: *mut c_char, terminal: *const c_void, window: *const c_void) -> c_int, |real| {
    on_spawn(real)
});
hook!(posix_spawn | posix_spawnp (
    pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
    arguments: *const *mut c_char, environment: *const *mut c_char,
) -> ErrorNumber, |real| on_spawn(real));
hook!(system(command: *const c_char) -> c_int, |real| on_spawn(real));

/// Calls a function that creates a process. A child of `vfork` does not count generations.
pub(crate) fn on_spawn<R>(real: impl FnOnce() -> R) -> R {
    if !vfork::in_child() {
        next_generation();
    }
    real()
}
