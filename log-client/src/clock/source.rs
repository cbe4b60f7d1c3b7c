//! Reading the clocks of this machine.

use super::Reading;
use miot_proto::segment::Clock;
use rustix::time::{ClockId, clock_gettime};

/// Readings tried for one pair; the one with the smallest gap around it counts.
const TRIES: usize = 16;

/// The present on a raw clock. Where the processor has no counter that user space can read, its clock is
/// `CLOCK_MONOTONIC_RAW` too: no producer there uses another.
pub(crate) fn ticks(clock: Clock) -> u64 {
    match clock {
        Clock::Tsc => counter(),
        Clock::MonotonicRaw => nanoseconds(ClockId::MonotonicRaw) as u64,
    }
}

/// Wall clock, nanoseconds since 1970.
pub(crate) fn realtime_ns() -> i64 {
    nanoseconds(ClockId::Realtime)
}

/// Time since boot, with suspension, nanoseconds.
#[cfg(test)]
pub(crate) fn boottime_ns() -> u64 {
    nanoseconds(ClockId::Boottime) as u64
}

fn nanoseconds(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The same moment on a raw clock and on the wall clock, as well as it can be had.
pub(super) fn read(clock: Clock) -> Reading {
    let once = || {
        let before = ticks(clock);
        let time = realtime_ns();
        let gap = ticks(clock).saturating_sub(before);
        (gap, Reading { ticks: before + gap / 2, time })
    };
    let best =
        (1..TRIES).map(|_| once()).fold(once(), |best, next| if next.0 < best.0 { next } else { best });
    best.1
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: reads the time stamp counter and nothing else.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
fn counter() -> u64 {
    let value: u64;
    // SAFETY: reads the virtual counter, which Linux lets user space read.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nostack, preserves_flags)) };
    value
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    nanoseconds(ClockId::MonotonicRaw) as u64
}
