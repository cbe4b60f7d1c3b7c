//! Raw time: the processor's time stamp counter where it is invariant, else `CLOCK_MONOTONIC_RAW`.

use crate::gate::{self, Calls};
use miot_proto::segment::Clock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Set once, before the first record, where the counter cannot be trusted.
#[unsafe(link_section = ".data.miot")]
static USE_MONOTONIC: AtomicBool =
    AtomicBool::new(!cfg!(any(target_arch = "x86_64", target_arch = "aarch64")));

/// New threads may not read the counter.
#[unsafe(link_section = ".data.miot")]
static BLOCKED: AtomicBool = AtomicBool::new(false);

/// Says whether threads that have not recorded yet may read the clock.
pub(crate) fn block(blocked: bool) {
    BLOCKED.store(blocked, Relaxed);
}

/// True if a thread that has not recorded yet may not read the clock. One that is not the counter may take a system call.
pub(crate) fn is_blocked() -> bool {
    BLOCKED.load(Relaxed) || !is_tsc() && !gate::is_unasked() && !gate::may(Calls::CLOCK)
}

/// The time in raw ticks of this machine's clock.
///
/// Also a barrier for the compiler: memory accesses are not moved across it.
#[inline(always)]
#[must_use]
pub fn ticks() -> u64 {
    if USE_MONOTONIC.load(Relaxed) { monotonic() } else { counter() }
}

/// The processor's counter, for those who know that it [is the clock](is_tsc). A barrier like [`ticks`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn counter() -> u64 {
    let (low, high): (u64, u64);
    // SAFETY: reads the time stamp counter and nothing else. Not `nomem`, so that the compiler keeps the
    // stores before it before it.
    unsafe { std::arch::asm!("rdtsc", out("rax") low, out("rdx") high, options(nostack, preserves_flags)) };
    high << 32 | low
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn counter() -> u64 {
    let value: u64;
    // SAFETY: reads the virtual counter, which Linux lets user space read. Not `nomem`, as above.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nostack, preserves_flags)) };
    value
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn counter() -> u64 {
    monotonic()
}

/// By way of libc, which no hook wraps here: rustix would look for the vDSO by itself, where a program under
/// valgrind, which hides it, dies.
#[cold]
fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: an out-pointer of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
    nanoseconds(now)
}

/// CPU time of the calling thread, nanoseconds. Always a system call; `None` where it is denied.
#[cold]
pub(crate) fn thread_cpu() -> Option<u64> {
    let _pass = gate::pass(Calls::CLOCK)?;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: an out-pointer of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Some(nanoseconds(time))
}

/// `CLOCK_BOOTTIME`, nanoseconds.
pub(crate) fn boottime() -> u64 {
    nanoseconds(asked_once(libc::CLOCK_BOOTTIME))
}

/// Seconds since 1970, as of the last tick of the kernel.
pub(crate) fn unix_seconds() -> i64 {
    asked_once(libc::CLOCK_REALTIME_COARSE).tv_sec
}

/// A clock of the kernel, without the vDSO: the first touch of its pages is dearer than one system call.
fn asked_once(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: an out-pointer of the right type. It cannot fail, so that `errno` stays.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut now) };
    now
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// True if ticks are those of the processor's counter.
pub(crate) fn is_tsc() -> bool {
    !USE_MONOTONIC.load(Relaxed)
}

/// Decides which clock this process uses. Called before a segment is created.
pub(crate) fn choose() -> Clock {
    if USE_MONOTONIC.load(Relaxed) || !invariant() {
        USE_MONOTONIC.store(true, Relaxed);
        Clock::MonotonicRaw
    } else {
        Clock::Tsc
    }
}

#[cfg(target_arch = "x86_64")]
fn invariant() -> bool {
    // CPUID 8000_0007h EDX bit 8, "invariant TSC" (AMD64 Architecture Programmer's Manual, volume 3).
    const LEAF: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    let edx = known_to_libc().unwrap_or_else(|| {
        let known = std::arch::x86_64::__cpuid(0x8000_0000).eax >= LEAF;
        if known { std::arch::x86_64::__cpuid(LEAF).edx } else { 0 }
    });
    edx & INVARIANT != 0
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(".weak __x86_get_cpuid_feature_leaf");

/// EDX of CPUID 8000_0007h as glibc has read it at the start, since 2.33 (`sys/platform/x86.h`): in a virtual machine
/// the instruction is an exit to the hypervisor, some microseconds of each program that starts.
#[cfg(target_arch = "x86_64")]
fn known_to_libc() -> Option<u32> {
    /// As glibc has it: EAX, EBX, ECX, EDX as the processor says, and what of that can be used.
    #[repr(C)]
    struct Feature {
        cpuid: [u32; 4],
        active: [u32; 4],
    }
    type Leaf = unsafe extern "C" fn(u32) -> *const Feature;
    /// `CPUID_INDEX_80000007`.
    const INDEX: u32 = 4;
    let leaf: *const ();
    // SAFETY: loads the address of a weak symbol, which is null where this libc does not have the function.
    unsafe {
        std::arch::asm!(
            "mov {0}, qword ptr [rip + __x86_get_cpuid_feature_leaf@GOTPCREL]",
            out(reg) leaf,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    // SAFETY: null, or the function of this name, whose prototype `Leaf` is.
    let leaf = unsafe { std::mem::transmute::<*const (), Option<Leaf>>(leaf) }?;
    // SAFETY: it takes any number and returns a pointer to constants.
    unsafe { leaf(INDEX).as_ref() }.map(|feature| feature.cpuid[3])
}

#[cfg(not(target_arch = "x86_64"))]
fn invariant() -> bool {
    // The generic timer of aarch64 counts at a constant rate by definition.
    cfg!(target_arch = "aarch64")
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn libc_knows_what_the_processor_says() {
        let highest = std::arch::x86_64::__cpuid(0x8000_0000).eax;
        let said = if highest < 0x8000_0007 { 0 } else { std::arch::x86_64::__cpuid(0x8000_0007).edx };
        match super::known_to_libc() {
            Some(known) => assert_eq!(known, said),
            None if cfg!(target_env = "gnu") => panic!("glibc has no __x86_get_cpuid_feature_leaf"),
            None => {}
        }
    }

    #[test]
    fn time_does_not_run_backwards() {
        super::choose();
        let mut last = super::ticks();
        for _ in 0..1_000_000 {
            let now = super::ticks();
            assert!(now >= last);
            last = now;
        }
    }
}
