//! System calls that the tracer and the hooks may make on their own.
//!
//! The kernel may kill a program that confines itself with seccomp for a system call that the
//! program itself does not make. Therefore each system call of the tracer needs a permit from this
//! module. The state is one word: the denied calls, whether the search for an inherited filter is
//! still outstanding, and the number of filters being installed right now.
//!
//! - A filter that the process image **inherited** is searched for once, if there is a log-client
//!   (`inherited`).
//! - A filter that the program **installs** is seen by the hook that wraps `prctl` and `syscall`
//!   ([`install_filter`]). Before the call, recording is set up ([`crate::prepare_for_filter`]).
//!   After it, the filter program is evaluated to find out which of our calls it allows (`filter`).
//!
//! A denied call is never allowed again. Forked children inherit the state, as they inherit
//! filters.

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

/// A system call as a filter sees it: its number, and the arguments that have a constant value, as
/// pairs of index and value.
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
    /// `brk`: called by libc's `malloc`.
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

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Calls) -> Calls {
        Calls(self.0 | other.0)
    }
}

/// System calls that creating a segment and claiming lanes need.
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

/// Bit of [`STATE`]: an inherited filter has not been searched for yet.
const UNDETECTED: u64 = 1 << 47;
/// Unit of the counter in [`STATE`] of filters being installed.
const INSTALLING: u64 = 1 << 48;

const _: () = assert!(CALLS.len() < 47);

/// Denied calls, [`UNDETECTED`], and the number of filters being installed in units of
/// [`INSTALLING`].
#[unsafe(link_section = ".data.miot")]
static STATE: AtomicU64 = AtomicU64::new(UNDETECTED);

/// Number of live permits: threads that may be inside a system call of the tracer.
#[unsafe(link_section = ".data.miot")]
static ACTIVE_CALLS: AtomicU32 = AtomicU32::new(0);

/// Permit for system calls, valid until it is dropped.
#[derive(Debug)]
pub struct Permit(());

impl Drop for Permit {
    fn drop(&mut self) {
        ACTIVE_CALLS.fetch_sub(1, SeqCst);
    }
}

/// Returns a permit for these calls. `None`: at least one of them is denied, or an inherited filter
/// has not been searched for yet.
#[must_use]
pub fn permit(calls: Calls) -> Option<Permit> {
    if !allows(calls) {
        return None;
    }
    ACTIVE_CALLS.fetch_add(1, SeqCst);
    let permit = Permit(());
    // A thread that installs a filter for all threads sets this first and then waits for live
    // permits.
    (STATE.load(SeqCst) & (calls.0 | !(INSTALLING - 1)) == 0).then_some(permit)
}

/// Returns true if [`permit`] would grant these calls now.
#[must_use]
pub fn allows(calls: Calls) -> bool {
    STATE.load(Relaxed) & (calls.0 | UNDETECTED | !(INSTALLING - 1)) == 0
}

/// True until [`detect_inherited_filter`] was called in this process image or in one that it was
/// forked from.
#[inline(always)]
pub(crate) fn is_undetected() -> bool {
    STATE.load(Relaxed) & UNDETECTED != 0
}

/// True if [`detect_inherited_filter`] may make its system calls: the loader has made the same ones
/// when this image started.
pub(crate) fn can_detect() -> bool {
    STATE.load(Relaxed) & ((Calls::OPEN | Calls::READ | Calls::CLOSE).0 | !(INSTALLING - 1)) == 0
}

/// Finds out whether this image started under a filter. The calls that such a filter allows are
/// unknown, so all are denied then. While the process has no free descriptor, nothing is found out,
/// and no permits are granted.
#[cold]
pub fn detect_inherited_filter() {
    if is_undetected() {
        match if can_detect() { inherited::is_restrictive() } else { Some(true) } {
            Some(true) => _ = STATE.fetch_or(Calls::ALL.0, SeqCst),
            Some(false) => {}
            None => return,
        }
        STATE.fetch_and(!UNDETECTED, SeqCst);
    }
}

/// A filter that the program is about to install.
#[derive(Clone, Copy, Debug)]
pub enum Filter {
    /// Strict mode: `read`, `write`, `exit` and `sigreturn` only, and no time stamp counter.
    Strict,
    /// A program (`struct sock_fprog`) for the calling thread and the threads and processes that it
    /// creates.
    Program(*const c_void),
    /// A program for all threads of the process.
    ForAllThreads(*const c_void),
}

/// Calls `real`, which installs a filter, and denies the system calls that the filter does not
/// allow. `succeeded` returns whether the call succeeded. The caller has called
/// [`crate::prepare_for_filter`].
///
/// # Safety
/// - The filter is the one that `real` installs: the kernel has read its program if `real`
///   succeeds.
pub unsafe fn install_filter<R>(
    filter: Filter,
    real: impl FnOnce() -> R,
    succeeded: impl FnOnce(&R) -> bool,
) -> R {
    let program = match filter {
        Filter::Strict => std::ptr::null(),
        Filter::Program(program) | Filter::ForAllThreads(program) => program,
    };
    if program.is_null() && !matches!(filter, Filter::Strict) {
        // The program only tests what the kernel supports.
        return real();
    }
    STATE.fetch_add(INSTALLING, SeqCst);
    if matches!(filter, Filter::ForAllThreads(_)) {
        wait_for_active_calls();
    }
    let returned = real();
    if succeeded(&returned) {
        let denied = match filter {
            Filter::Strict => Calls::ALL.0,
            // SAFETY: `denied_calls` requires
            // - a readable `struct sock_fprog` with its instructions: the kernel has just read all
            //   of it.
            Filter::Program(_) | Filter::ForAllThreads(_) => unsafe { filter::denied_calls(program, CALLS) },
        };
        STATE.fetch_or(denied, SeqCst);
    }
    STATE.fetch_sub(INSTALLING, SeqCst);
    returned
}

/// Denies all system calls of the tracer from now on, for a program that is about to install a
/// filter that no hook sees.
pub(crate) fn deny_all() {
    STATE.fetch_or(Calls::ALL.0, SeqCst);
    STATE.fetch_and(!UNDETECTED, SeqCst);
    wait_for_active_calls();
}

/// Waits for the system calls of other threads, each of which is short. Gives up after
/// `MAX_CHECKS` checks: a permit is never returned if a signal handler jumped out of the call, or
/// in a process that forked during it.
fn wait_for_active_calls() {
    const MAX_CHECKS: u32 = 1000;
    const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
    for _ in 0..MAX_CHECKS {
        if ACTIVE_CALLS.load(SeqCst) == 0 {
            return;
        }
        if STATE.load(Relaxed) & Calls::NAP.0 == 0 {
            let _ = rustix::thread::nanosleep(&NAP);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Makes all system calls of a recording process, with arguments that have no effect. A program
/// that is about to start another one under a filter runs this in a process that the filter may
/// kill. A hook makes no other calls.
#[cold]
pub(crate) fn probe_all() {
    let none = std::ptr::null_mut::<c_void>();
    for call in CALLS {
        let mut arguments = [0usize; 6];
        // A descriptor that is not open.
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
        // SAFETY: the system calls require
        // - valid pointers for the memory that they access: no argument is one, so each call fails
        //   or only reads state of the kernel;
        // - no effect on descriptors or mappings of the program: descriptors are invalid, ranges
        //   are empty.
        unsafe { libc::syscall(call.number, a, b, c, d, e, f) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_all_calls_does_no_harm() {
        probe_all();
        assert_eq!(CALLS.len() as u32, Calls::ALL.0.count_ones());
    }
}
