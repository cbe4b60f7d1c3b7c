//! Cost of one access, without waiting for others.

use crate::config::Disk;

/// Returns the nanoseconds until the first byte moves. An access where the last one ended needs no
/// positioning. Otherwise it takes half a rotation and a seek that grows with the square root of
/// the distance (the arm accelerates half the way; Ruemmler and Wilkes 1994).
#[inline]
pub(super) fn position(disk: &Disk, head: Option<u64>, at: u64, write: bool) -> u64 {
    let latency = if write { disk.write_latency } else { disk.read_latency };
    if head == Some(at) {
        return latency;
    }
    if disk.max_seek == 0 {
        return latency + disk.rotation / 2;
    }
    let distance = head.map_or(0.0, |head| head.abs_diff(at) as f64 / disk.capacity as f64).min(1.0);
    let seek = (disk.max_seek - disk.min_seek) as f64 * distance.sqrt();
    latency + disk.min_seek + (seek + 0.5) as u64 + disk.rotation / 2
}

/// Returns the nanoseconds in which a device moves this many bytes.
#[inline]
pub(super) fn transfer(disk: &Disk, bytes: u64, write: bool) -> u64 {
    moving(if write { disk.write_rate } else { disk.read_rate }, bytes)
}

/// Returns the nanoseconds in which bytes move at a rate, rounded up.
#[inline]
pub(super) fn moving(rate: u64, bytes: u64) -> u64 {
    if rate == 0 {
        return 0;
    }
    if let Some(product) = bytes.checked_mul(1_000_000_000) {
        return product.div_ceil(rate);
    }
    let time = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate));
    u64::try_from(time).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}
