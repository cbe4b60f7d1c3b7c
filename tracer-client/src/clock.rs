//! Raw time: the processor's time stamp counter if it is invariant, else `CLOCK_MONOTONIC_RAW`.

use crate::gate::{self, Calls};
use miot_proto::segment::Clock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Set once, before the first record, if the counter is not invariant.
#[unsafe(link_section = ".data.miot")]
static USE_MONOTONIC: AtomicBool =
    AtomicBool::new(!cfg!(any(target_arch = "x86_64", target_arch = "aarch64")));

/// The kernel denies the counter to new threads.
#[unsafe(link_section = ".data.miot")]
static DENIED_TO_NEW_THREADS: AtomicBool = AtomicBool::new(false);

/// Sets whether the counter is denied to threads that have not recorded yet.
pub(crate) fn deny_new_threads(blocked: bool) {
    DENIED_TO_NEW_THREADS.store(blocked, Relaxed);
}

/// True if a thread that has not recorded yet must not read the clock: the counter is denied, or
/// the clock is another one, whose system call a filter may deny.
pub(crate) fn is_denied_to_new_threads() -> bool {
    DENIED_TO_NEW_THREADS.load(Relaxed) || !is_tsc() && !gate::is_undetected() && !gate::allows(Calls::CLOCK)
}

/// Returns the time in raw ticks of this process's clock.
///
/// Also a compiler barrier: memory accesses are not moved across it.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    if USE_MONOTONIC.load(Relaxed) { monotonic() } else { counter() }
}

/// Returns the processor's counter. Only for a process in which it [is the clock](is_tsc). A
/// compiler barrier like [`ticks`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn counter() -> u64 {
    let (low, high): (u64, u64);
    // SAFETY: the assembly requires
    // - an instruction that exists: `rdtsc` is part of x86-64;
    // - declared effects: it writes `rax` and `rdx` only. It is not `nomem`, so that the compiler
    //   keeps earlier stores before it.
    unsafe { std::arch::asm!("rdtsc", out("rax") low, out("rdx") high, options(nostack, preserves_flags)) };
    high << 32 | low
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn counter() -> u64 {
    let value: u64;
    // SAFETY: the assembly requires
    // - a readable register: Linux lets user space read the virtual counter;
    // - declared effects: it writes one register only. It is not `nomem`, as above.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nostack, preserves_flags)) };
    value
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn counter() -> u64 {
    monotonic()
}

/// Reads `CLOCK_MONOTONIC_RAW`, nanoseconds. By libc, whose `clock_gettime` no hook wraps: rustix
/// looks for the vDSO by itself, which crashes under valgrind, because valgrind hides it.
#[cold]
fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` requires
    // - a valid out-pointer: a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
    nanoseconds(now)
}

/// Returns the CPU time of the calling thread, nanoseconds. Always a system call; `None` if a
/// filter denies it.
#[cold]
pub(crate) fn thread_cpu() -> Option<u64> {
    let _pass = gate::permit(Calls::CLOCK)?;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` requires
    // - a valid out-pointer: a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Some(nanoseconds(time))
}

/// Returns `CLOCK_BOOTTIME`, nanoseconds.
pub(crate) fn boottime() -> u64 {
    nanoseconds(clock_gettime_syscall(libc::CLOCK_BOOTTIME))
}

/// Returns the seconds since 1970 as of the kernel's last tick.
pub(crate) fn unix_seconds() -> i64 {
    clock_gettime_syscall(libc::CLOCK_REALTIME_COARSE).tv_sec
}

/// Reads a kernel clock without the vDSO: the first access to the vDSO's pages costs more than one
/// system call.
fn clock_gettime_syscall(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the system call requires
    // - a valid out-pointer: a local variable.
    // It cannot fail, so `errno` is not changed.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut now) };
    now
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// True if ticks are counts of the processor's counter.
pub(crate) fn is_tsc() -> bool {
    !USE_MONOTONIC.load(Relaxed)
}

/// Chooses the clock of this process. Called before a segment is created.
pub(crate) fn choose_clock() -> Clock {
    if USE_MONOTONIC.load(Relaxed) || !has_invariant_counter() {
        USE_MONOTONIC.store(true, Relaxed);
        Clock::MonotonicRaw
    } else {
        Clock::Tsc
    }
}

#[cfg(target_arch = "x86_64")]
fn has_invariant_counter() -> bool {
    // CPUID 8000_0007h EDX bit 8, "invariant TSC" (AMD64 Architecture Programmer's Manual, volume
    // 3).
    const LEAF: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    let edx = cpuid_from_glibc().unwrap_or_else(|| {
        let known = std::arch::x86_64::__cpuid(0x8000_0000).eax >= LEAF;
        if known { std::arch::x86_64::__cpuid(LEAF).edx } else { 0 }
    });
    edx & INVARIANT != 0
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(".weak __x86_get_cpuid_feature_leaf");

/// EDX of CPUID leaf 8000_0007h as glibc has read it at program start, since glibc 2.33
/// (`sys/platform/x86.h`). In a virtual machine the instruction is an exit to the hypervisor, which
/// costs each program some microseconds at its start.
#[cfg(target_arch = "x86_64")]
fn cpuid_from_glibc() -> Option<u32> {
    /// glibc's structure: EAX, EBX, ECX and EDX as reported by the processor, and which of these
    /// features are usable.
    #[repr(C)]
    struct Feature {
        cpuid: [u32; 4],
        active: [u32; 4],
    }
    type Leaf = unsafe extern "C" fn(u32) -> *const Feature;
    /// `CPUID_INDEX_80000007`.
    const INDEX: u32 = 4;
    let leaf: *const ();
    // SAFETY: the assembly requires
    // - a readable address: it loads the GOT entry of a weak symbol, which is null if this libc
    //   does not have the function;
    // - declared effects: it writes one register and reads memory only.
    unsafe {
        std::arch::asm!(
            "mov {0}, qword ptr [rip + __x86_get_cpuid_feature_leaf@GOTPCREL]",
            out(reg) leaf,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    // SAFETY: the transmute requires
    // - a value that is valid for `Option<Leaf>`: null, or the function of this name, whose
    //   prototype is `Leaf`.
    let leaf = unsafe { std::mem::transmute::<*const (), Option<Leaf>>(leaf) }?;
    // SAFETY: the call and the reference require
    // - a valid argument: the function accepts any number;
    // - a null or valid pointer that lives forever: it returns a pointer to constants.
    unsafe { leaf(INDEX).as_ref() }.map(|feature| feature.cpuid[3])
}

#[cfg(not(target_arch = "x86_64"))]
fn has_invariant_counter() -> bool {
    // The generic timer of aarch64 counts at a constant rate by definition.
    cfg!(target_arch = "aarch64")
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn cpuid_from_glibc_matches_the_processor() {
        let highest = std::arch::x86_64::__cpuid(0x8000_0000).eax;
        let expected = if highest < 0x8000_0007 { 0 } else { std::arch::x86_64::__cpuid(0x8000_0007).edx };
        match super::cpuid_from_glibc() {
            Some(known) => assert_eq!(known, expected),
            None if cfg!(target_env = "gnu") => panic!("glibc has no __x86_get_cpuid_feature_leaf"),
            None => {}
        }
    }

    #[test]
    fn ticks_are_monotonic() {
        super::choose_clock();
        let mut last = super::ticks();
        for _ in 0..1_000_000 {
            let now = super::ticks();
            assert!(now >= last);
            last = now;
        }
    }
}
