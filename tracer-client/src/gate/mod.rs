//! Which system calls of its own the tracer, and a hook, may make.
//!
//! A program that confines itself with seccomp may be killed for a system call that it does not make itself. So each of
//! ours passes here. The state is one word: the calls that a filter denies, whether it was asked for a filter that the
//! process image began with, and how many filters are being installed right now.
//!
//! - A filter that the image **inherited** is asked for once, when there is a log-client (`inherited`).
//! - A filter that the program **installs** is seen by the hook that wraps `prctl` and `syscall` ([`installing`]): before,
//!   what recording needs is set up ([`crate::prepare_for_filter`]); after, the filter's own program says which of our calls
//!   it allows (`filter`).
//!
//! Nothing is ever allowed again. The state is inherited by forked children, as filters are.

mod filter;
mod inherited;

use rustix::thread::Timespec;
use std::ffi::c_void;
use std::ops::BitOr;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// A set of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls(u64);

/// A system call as a filter sees it: its number, and the arguments that are always the same.
struct Call {
    number: libc::c_long,
    known: &'static [(usize, u32)],
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $number:ident $($at:literal: $value:expr),*;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index { $($name),* }
        impl Calls {
            $($(#[$doc])* pub const $name: Calls = Calls(1 << Index::$name as u32);)*
        }
        const CALLS: &[Call] = &[$(Call { number: libc::$number, known: &[$(($at, $value as u32)),*] }),*];
    };
}

calls! {
    /// `openat`.
    OPEN = SYS_openat;
    /// `close`.
    CLOSE = SYS_close;
    /// `read`.
    READ = SYS_read;
    /// `faccessat`.
    ACCESS = SYS_faccessat;
    /// `fstat`.
    STAT = SYS_fstat;
    /// `mmap`.
    MAP = SYS_mmap;
    /// `munmap`.
    UNMAP = SYS_munmap;
    /// `madvise`.
    ADVISE = SYS_madvise;
    /// `fallocate`.
    ALLOCATE = SYS_fallocate;
    /// `unlink`.
    UNLINK = SYS_unlinkat;
    /// `readlinkat`.
    LINK = SYS_readlinkat;
    /// `getcwd`.
    CWD = SYS_getcwd;
    /// `getrandom`.
    RANDOM = SYS_getrandom;
    /// `getpid`.
    PID = SYS_getpid;
    /// `getppid`.
    PARENT = SYS_getppid;
    /// `gettid`.
    TID = SYS_gettid;
    /// `geteuid`.
    USER = SYS_geteuid;
    /// `clock_gettime`.
    CLOCK = SYS_clock_gettime;
    /// `prctl(PR_GET_NAME)`.
    NAME = SYS_prctl 0: libc::PR_GET_NAME;
    /// `rt_sigprocmask`.
    SIGNALS = SYS_rt_sigprocmask;
    /// `futex(FUTEX_WAKE)`.
    WAKE = SYS_futex 1: libc::FUTEX_WAKE;
    /// `sched_yield`.
    YIELD = SYS_sched_yield;
    /// `nanosleep`.
    NAP = SYS_nanosleep;
    /// `lseek`.
    SEEK = SYS_lseek;
    /// `fcntl(F_GETFL)`.
    FLAGS = SYS_fcntl 1: libc::F_GETFL;
    /// `process_vm_readv`.
    PEEK = SYS_process_vm_readv;
    /// `getrlimit`.
    LIMIT = SYS_prlimit64;
    /// `brk`: of `malloc` within libc.
    BREAK = SYS_brk;
}

impl BitOr for Calls {
    type Output = Calls;
    fn bitor(self, other: Calls) -> Calls {
        self.and(other)
    }
}

impl Calls {
    const ALL: Calls = Calls((1 << CALLS.len()) - 1);

    /// Both sets.
    #[must_use]
    pub const fn and(self, other: Calls) -> Calls {
        Calls(self.0 | other.0)
    }
}

/// What it takes to create a segment and to claim lanes.
pub(crate) const SET_UP: Calls = Calls::OPEN
    .and(Calls::CLOSE)
    .and(Calls::READ)
    .and(Calls::STAT)
    .and(Calls::MAP)
    .and(Calls::UNMAP)
    .and(Calls::ADVISE)
    .and(Calls::ALLOCATE)
    .and(Calls::UNLINK)
    .and(Calls::LINK)
    .and(Calls::CWD)
    .and(Calls::RANDOM)
    .and(Calls::PID)
    .and(Calls::PARENT)
    .and(Calls::TID)
    .and(Calls::USER)
    .and(Calls::CLOCK)
    .and(Calls::NAME)
    .and(Calls::SIGNALS)
    .and(Calls::LIMIT)
    .and(Calls::YIELD)
    .and(Calls::NAP);

/// In [`STATE`]: nobody has asked for an inherited filter.
const UNASKED: u64 = 1 << 47;
/// In [`STATE`]: one filter that is being installed.
const INSTALLING: u64 = 1 << 48;

const _: () = assert!(CALLS.len() < 47);

/// Calls that are denied, [`UNASKED`], and how often [`INSTALLING`].
#[unsafe(link_section = ".data.miot")]
static STATE: AtomicU64 = AtomicU64::new(UNASKED);

/// Threads that are in calls of ours.
#[unsafe(link_section = ".data.miot")]
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// Leave for system calls, until it is dropped.
#[derive(Debug)]
pub struct Pass(());

impl Drop for Pass {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, SeqCst);
    }
}

/// Leave for these calls. `None`: at least one of them is denied, or nobody knows yet.
#[must_use]
pub fn pass(calls: Calls) -> Option<Pass> {
    if !may(calls) {
        return None;
    }
    INSIDE.fetch_add(1, SeqCst);
    let pass = Pass(());
    // Whoever installs a filter for all threads says so first, and then waits for those that are inside.
    (STATE.load(SeqCst) & (calls.0 | !(INSTALLING - 1)) == 0).then_some(pass)
}

/// True if [`pass`] would let these calls pass now.
#[must_use]
pub fn may(calls: Calls) -> bool {
    STATE.load(Relaxed) & (calls.0 | UNASKED | !(INSTALLING - 1)) == 0
}

/// True until [`ask`] was called in this process image, or one that it was forked from.
#[inline(always)]
pub(crate) fn is_unasked() -> bool {
    STATE.load(Relaxed) & UNASKED != 0
}

/// True if [`ask`] may ask: it makes the calls that the loader has made when this image started.
pub(crate) fn may_ask() -> bool {
    STATE.load(Relaxed) & ((Calls::OPEN | Calls::READ | Calls::CLOSE).0 | !(INSTALLING - 1)) == 0
}

/// Finds out whether this image began under a filter. Of such a filter nobody says what it allows: all is denied then.
#[cold]
pub fn ask() {
    if is_unasked() {
        if !may_ask() || inherited::forbids() {
            STATE.fetch_or(Calls::ALL.0, SeqCst);
        }
        STATE.fetch_and(!UNASKED, SeqCst);
    }
}

/// What is about to be installed.
#[derive(Clone, Copy, Debug)]
pub enum Filter {
    /// Strict mode: `read`, `write`, `exit` and `sigreturn` only, and no time stamp counter.
    Strict,
    /// A program, as `struct sock_fprog` has it, for the calling thread and what it makes.
    Program(*const c_void),
    /// The same for all threads.
    ForAllThreads(*const c_void),
}

/// Runs the call that installs a filter. `succeeded` says whether it did. The caller has called
/// [`crate::prepare_for_filter`].
///
/// # Safety
/// The filter is the one that `real` installs: the kernel has read its program if it succeeds.
pub unsafe fn installing<R>(
    filter: Filter,
    real: impl FnOnce() -> R,
    succeeded: impl FnOnce(&R) -> bool,
) -> R {
    let program = match filter {
        Filter::Strict => std::ptr::null(),
        Filter::Program(program) | Filter::ForAllThreads(program) => program,
    };
    if program.is_null() && !matches!(filter, Filter::Strict) {
        // Asks only what the kernel can do.
        return real();
    }
    STATE.fetch_add(INSTALLING, SeqCst);
    if matches!(filter, Filter::ForAllThreads(_)) {
        until_nobody_is_inside();
    }
    let returned = real();
    if succeeded(&returned) {
        let denied = match filter {
            Filter::Strict => Calls::ALL.0,
            // SAFETY: the kernel has just read all of it.
            Filter::Program(_) | Filter::ForAllThreads(_) => unsafe { filter::denies(program, CALLS) },
        };
        STATE.fetch_or(denied, SeqCst);
    }
    STATE.fetch_sub(INSTALLING, SeqCst);
    returned
}

/// Denies all calls of ours from now on, to a program that is about to install a filter that nobody will see.
pub(crate) fn close() {
    STATE.fetch_or(Calls::ALL.0, SeqCst);
    STATE.fetch_and(!UNASKED, SeqCst);
    until_nobody_is_inside();
}

/// Waits for the calls of other threads, none of which lasts. In vain where one was left inside: by a signal handler
/// that jumped away, or in a process that forked.
fn until_nobody_is_inside() {
    const LOOKS: u32 = 1000;
    const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
    for _ in 0..LOOKS {
        if INSIDE.load(SeqCst) == 0 {
            return;
        }
        if STATE.load(Relaxed) & Calls::NAP.0 == 0 {
            let _ = rustix::thread::nanosleep(&NAP);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Makes all system calls of a process that records, as harmlessly as they can be made: for a program that would rather
/// see a process of its own killed than the one it is about to start. A hook makes no others.
#[cold]
pub(crate) fn try_all() {
    let none = std::ptr::null_mut::<c_void>();
    for call in CALLS {
        let mut arguments = [0usize; 6];
        // Descriptors that are not open, addresses that are not there.
        let bad = usize::MAX;
        match call.number {
            libc::SYS_openat | libc::SYS_faccessat | libc::SYS_unlinkat | libc::SYS_readlinkat => {
                arguments[0] = bad
            }
            libc::SYS_close | libc::SYS_read | libc::SYS_fstat | libc::SYS_fallocate | libc::SYS_lseek => {
                arguments[0] = bad;
            }
            libc::SYS_fcntl => (arguments[0], arguments[1]) = (bad, libc::F_GETFL as usize),
            libc::SYS_prctl => (arguments[0], arguments[1]) = (libc::PR_GET_NAME as usize, none.addr()),
            libc::SYS_futex => arguments[1] = libc::FUTEX_WAKE as usize,
            _ => {}
        }
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: each fails, or asks for something that changes nothing: no pointer among the arguments is one.
        unsafe { libc::syscall(call.number, a, b, c, d, e, f) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_that_are_tried_do_no_harm_and_all_come_back() {
        try_all();
        assert_eq!(CALLS.len() as u32, Calls::ALL.0.count_ones());
    }
}
