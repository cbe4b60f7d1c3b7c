//! Reading the clocks of this machine.

use super::ClockReading;
use super::skew::Skew;
use miot_proto::segment::Clock;
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;

/// Number of readings tried per pair; the one with the smallest gap is used.
const TRIES: usize = 16;

/// The present on a raw clock. On processors without a counter that user space can read, `Tsc` is
/// `CLOCK_MONOTONIC_RAW` too; no producer uses another clock there.
pub(crate) fn ticks(clock: Clock) -> u64 {
    match clock {
        Clock::Tsc => counter(),
        Clock::MonotonicRaw => nanoseconds(ClockId::MonotonicRaw) as u64,
    }
}

/// The node's clock, nanoseconds since 1970: the wall clock at the first call, then advanced by the
/// time since boot. That includes suspension and is slewed with the wall clock, but never stepped.
pub(crate) fn node_ns() -> i64 {
    static ANCHOR: OnceLock<(i64, Skew)> = OnceLock::new();
    let (anchor, skew) = ANCHOR.get_or_init(|| (anchor(), Skew::from_environment()));
    let boottime = nanoseconds(ClockId::Boottime);
    boottime.saturating_add(*anchor).saturating_add(skew.at(boottime))
}

/// Wall clock minus time since boot, nanoseconds, from the most precise of [`TRIES`] readings.
fn anchor() -> i64 {
    let once = || {
        let before = nanoseconds(ClockId::Boottime);
        let time = nanoseconds(ClockId::Realtime);
        let gap = nanoseconds(ClockId::Boottime).saturating_sub(before);
        (gap, time.saturating_sub(before + gap / 2))
    };
    (0..TRIES).map(|_| once()).min().map_or(0, |(_, anchor)| anchor)
}

/// Time since boot with suspension, nanoseconds.
pub(crate) fn boottime_ns() -> u64 {
    nanoseconds(ClockId::Boottime) as u64
}

fn nanoseconds(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The same moment on a raw clock and on the node's clock, from the most precise of [`TRIES`]
/// readings.
pub(super) fn read(clock: Clock) -> ClockReading {
    let once = || {
        let before = ticks(clock);
        let time = node_ns();
        let gap = ticks(clock).saturating_sub(before);
        (gap, ClockReading { ticks: before + gap / 2, time })
    };
    let best =
        (1..TRIES).map(|_| once()).fold(once(), |best, next| if next.0 < best.0 { next } else { best });
    best.1
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: reads the time stamp counter and has no other effect.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
fn counter() -> u64 {
    let value: u64;
    // SAFETY: reads the virtual counter, which Linux permits in user space.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nostack, preserves_flags)) };
    value
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    nanoseconds(ClockId::MonotonicRaw) as u64
}
