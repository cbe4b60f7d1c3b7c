//! Counts the laps of lanes that overwrite their oldest records, in quarters.
//!
//! The record that names a file can be overwritten while the file is still in use: a snapshot of a
//! flight recorder would then show the file's requests without a path. A hook that names a file
//! therefore stores the lap of the lane that contains the name ([`lane_lap`]), and names the file
//! again with its next request after the lane has advanced by a quarter ([`is_lap_current`]). Until
//! a lane of the process overwrites, all lanes are at their first laps, and the check costs a load
//! and a comparison.

use crate::lane::{Lane, Producer};
use crate::local::address;
use crate::{process, tls};
use miot_proto::segment::{LANE_BYTES, MAX_LANES};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};

const _: () = assert!(MAX_LANES.is_power_of_two() && LANE_BYTES.is_power_of_two());

/// Laps by index of the lane in the lane table of its segment, modulo [`MAX_LANES`].
static LAPS: [AtomicU16; MAX_LANES] = [const { AtomicU16::new(0) }; MAX_LANES];

/// A lane of this process, or of one that it was forked from, has overwritten records. All laps are
/// zero until then.
#[unsafe(link_section = ".data.miot")]
static OVERWRITES: AtomicBool = AtomicBool::new(false);

/// Parts of a lap that are distinguished. Of a file in constant use, at most the last quarter of
/// the retained records has no name.
const LAP_PARTS: u64 = 4;

/// True if a lane of this process, or of one that it was forked from, has overwritten records.
#[inline(always)]
pub(crate) fn has_overwritten() -> bool {
    let overwrites = address!(OVERWRITES: AtomicBool);
    // SAFETY: dereferencing requires
    // - a static that lives forever and is only shared: `OVERWRITES` is an atomic.
    unsafe { (*overwrites).load(Relaxed) }
}

#[inline(always)]
fn lane_index(lane: *const Lane) -> usize {
    (lane as usize / LANE_BYTES) & (MAX_LANES - 1)
}

/// Updates the lap of a lane that has overwritten records.
pub(crate) fn count_overwritten(lane: &Lane, producer: &Producer) {
    if !has_overwritten() {
        OVERWRITES.store(true, Relaxed);
        process::forget_names();
    }
    let part = (producer.capacity() / LAP_PARTS).max(1);
    // Wraps: a name that is exactly 16384 laps old is taken as current until the next quarter.
    LAPS[lane_index(lane)].store((producer.tail() / part) as u16, Relaxed);
}

/// Returns the lap of the calling thread's lane, to be stored with a file that has just been named.
/// 0 if the thread has no lane.
#[inline(always)]
#[must_use]
pub fn lane_lap() -> u32 {
    let thread = tls::thread();
    // SAFETY: dereferencing `thread` requires
    // - `tls::thread` returns the calling thread's own block, which lives as long as the thread.
    let Some(lane) = (unsafe { (*thread).current_lane() }) else { return 0 };
    let lane_index = lane_index(lane);
    let lap = if has_overwritten() { LAPS[lane_index].load(Relaxed) } else { 0 };
    (lane_index as u32) << 16 | u32::from(lap)
}

/// Returns true if a name recorded at this lap is still in its lane, or has been read from it in
/// time.
#[inline(always)]
#[must_use]
pub fn is_lap_current(lap: u32) -> bool {
    !has_overwritten() || LAPS[(lap >> 16) as usize & (MAX_LANES - 1)].load(Relaxed) == lap as u16
}
