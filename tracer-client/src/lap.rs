//! How often lanes that overwrite themselves have gone round, in quarters.
//!
//! The record that names a file may have been overwritten while the file is still in use: a snapshot of a flight recorder
//! would show its requests without a path. So who names a file keeps the lap of the lane that the name is in ([`lap`]), and names
//! it again with its next request once that lane has gone on by a quarter ([`is_current`]). Lanes that do not overwrite
//! stay at their first lap, so there it is a load and a comparison.

use crate::lane::{Lane, Producer};
use crate::tls;
use miot_proto::segment::{LANE_BYTES, MAX_LANES};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

const _: () = assert!(MAX_LANES.is_power_of_two() && LANE_BYTES.is_power_of_two());

/// By place of the lane in the table of its segment, modulo their number.
static LAPS: [AtomicU16; MAX_LANES] = [const { AtomicU16::new(0) }; MAX_LANES];

/// Parts of a lap that are told apart: of a file that is used all the time, the last quarter of what was kept is without a
/// name at most.
const PARTS: u64 = 4;

fn place(lane: *const Lane) -> usize {
    (lane as usize / LANE_BYTES) & (MAX_LANES - 1)
}

/// The lane has given up records.
pub(crate) fn overwritten(lane: &Lane, producer: &Producer) {
    let part = (producer.capacity() / PARTS).max(1);
    // Wraps: a name that is 16384 laps old to the quarter is taken for current, until the next quarter.
    LAPS[place(lane)].store((producer.tail() / part) as u16, Relaxed);
}

/// The lap of the calling thread's lane, to be kept by who has just recorded a name.
#[must_use]
pub fn lap() -> u32 {
    let thread = tls::thread();
    // SAFETY: the calling thread's own state.
    let Some(lane) = (unsafe { (*thread).own_lane() }) else { return 0 };
    let place = place(lane);
    (place as u32) << 16 | u32::from(LAPS[place].load(Relaxed))
}

/// True if a name recorded at this lap is still in its lane, or was read from it in time.
#[inline(always)]
#[must_use]
pub fn is_current(lap: u32) -> bool {
    LAPS[(lap >> 16) as usize & (MAX_LANES - 1)].load(Relaxed) == lap as u16
}
