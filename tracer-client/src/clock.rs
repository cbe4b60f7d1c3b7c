//! Raw time: the processor's time stamp counter where it is invariant, else `CLOCK_MONOTONIC_RAW`.

use miot_proto::segment::Clock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Set once, before the first record, where the counter cannot be trusted.
static USE_MONOTONIC: AtomicBool =
    AtomicBool::new(!cfg!(any(target_arch = "x86_64", target_arch = "aarch64")));

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

#[cold]
fn monotonic() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC_RAW)
}

/// A clock of the kernel, nanoseconds.
///
/// By way of libc, which no hook wraps here: rustix would look for the vDSO by itself, where a program under
/// valgrind, which hides it, dies.
pub(crate) fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: an out-pointer of the right type.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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
    let known = std::arch::x86_64::__cpuid(0x8000_0000).eax >= 0x8000_0007;
    known && std::arch::x86_64::__cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn invariant() -> bool {
    // The generic timer of aarch64 counts at a constant rate by definition.
    cfg!(target_arch = "aarch64")
}

#[cfg(test)]
mod tests {
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
