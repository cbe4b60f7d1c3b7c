//! The shared memory of one traced process.
//!
//! **Do not add, remove or reorder fields: this layout is fixed for [`MAJOR`].**
//!
//! A segment is one file in the node's MIOT directory (by default `/dev/shm/miot`), named
//! `<pid>-<nonce>.seg`. All words are little-endian `u64` at multiples of 8 unless said otherwise.
//!
//! ```text
//! 0      header        HEADER_BYTES   written once, before the magic; counters by the producer
//! 4096   lane table    LANE_BYTES per lane, dense; lane i at 4096 + i × LANE_BYTES
//! 266240 slots         each lane's slots at the offset its table entry names
//! ```
//!
//! Every word has exactly one writing side. The producer writes all but [`lane::HEAD`], [`lane::DRAINED`] and
//! [`lane::NEXT`], which the log-client writes with `pwrite`. The file grows as lanes are claimed
//! and never shrinks.

/// First word of a segment, written last (release). `MIOTSEG1`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MIOTSEG1");
/// Layout version: readers refuse another major, and ignore what a higher minor added.
pub const MAJOR: u32 = 1;
/// Grows when words in the reserved parts get a meaning.
pub const MINOR: u32 = 0;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of one entry of the lane table: two cache lines for the producer's words (the adjacent-line
/// prefetcher fetches pairs), one for the identity, one for the reader's.
pub const LANE_BYTES: usize = 256;
/// Lanes per segment: threads that can be recorded at once, with room for those that outgrew a lane.
/// The table is sparse; its pages are claimed sixteen lanes at a time.
pub const MAX_LANES: usize = 1024;
/// Where the slots of the first lane start.
pub const SLOTS_OFFSET: usize = HEADER_BYTES + MAX_LANES * LANE_BYTES;
/// Smallest lane, in slots: room for one record of any size, and a power of two.
pub const MIN_LANE_SLOTS: u64 = 256;
/// Largest lane, in slots (64 MiB).
pub const MAX_LANE_SLOTS: u64 = 1 << 20;
/// Largest segment a reader accepts, in bytes.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 32;

/// Suffix of segment files.
pub const SUFFIX: &str = ".seg";

/// Byte offsets of the header's words.
pub mod header {
    /// [`super::MAGIC`], stored last.
    pub const MAGIC: usize = 0;
    /// Minor version in the low half, major in the high half.
    pub const VERSION: usize = 8;
    /// Random number that tells this process image from all others of the node.
    pub const NONCE: usize = 16;
    /// Process id as the process sees it.
    pub const PID: usize = 24;
    /// Parent's process id.
    pub const PPID: usize = 32;
    /// Clock of the events: see [`super::Clock`].
    pub const CLOCK: usize = 40;
    /// Creation time, raw ticks of that clock.
    pub const CREATED_TICKS: usize = 48;
    /// Creation time, nanoseconds of `CLOCK_BOOTTIME`.
    pub const CREATED_BOOT_NS: usize = 56;
    /// Lanes in use so far: entries `0..LANES` of the table are meaningful (release).
    pub const LANES: usize = 64;
    /// Records lost because a thread could get no lane.
    pub const LOST_NO_LANE: usize = 72;
    /// MPI rank + 1, 0 if none.
    pub const RANK: usize = 80;
    /// Effective user id at creation, for information; ownership comes from the file.
    pub const UID: usize = 88;
    /// The process left its image in an orderly way (`exec`): nothing more will be written.
    pub const CLOSED: usize = 96;
    /// Inode of the process id namespace in which `PID` counts (`/proc/self/ns/pid`), 0 if it is not known.
    pub const PID_NAMESPACE: usize = 104;
    /// Start of the strings: executable, command line (NUL between arguments), job (as [`crate::job`] has it), working
    /// directory; each a `u16` length and the bytes, up to [`super::HEADER_BYTES`].
    pub const STRINGS: usize = 256;
}

/// Number of strings at [`header::STRINGS`].
pub const HEADER_STRINGS: usize = 4;

/// Byte offsets of a lane table entry's words, from the entry's start.
pub mod lane {
    /// Slots committed so far, shifted left by one; bit 0 set while a record is being completed.
    /// Release store by the producer.
    pub const TAIL: usize = 0;
    /// Records lost because the lane was full.
    pub const LOST_FULL: usize = 8;
    /// Records lost because they came from a signal handler that interrupted a record.
    pub const LOST_NESTED: usize = 16;
    /// Records the lane was asked to take in this incarnation, those of `LOST_NESTED` not counted;
    /// stored with every drop and when the lane is retired.
    pub const ATTEMPTS: usize = 24;
    /// The request in flight: [`IN_FLIGHT_BYTES`] as [`super::in_flight`] lays them out.
    pub const IN_FLIGHT: usize = 32;
    /// The outermost request in flight that encloses others, laid out alike.
    pub const ENCLOSING: usize = 72;
    /// Under the policy `overwrite-oldest`: the first slot that is not overwritten, counted as in `TAIL`, always
    /// the start of a record. Stored, with a release fence behind it, before slots below it are written again.
    pub const OLDEST: usize = 112;
    /// Requests that were left out by the filter of the control page; no attempts, no losses.
    pub const FILTERED: usize = 120;

    /// State in the low half (see [`super::LaneState`]), incarnation in the high half. Release store
    /// after the rest of the identity.
    pub const STATE: usize = 128;
    /// Thread id.
    pub const TID: usize = 136;
    /// Offset of the slots in the file, bytes.
    pub const SLOTS_AT: usize = 144;
    /// Number of slots, a power of two.
    pub const SLOTS: usize = 152;
    /// `TAIL >> 1` at which this incarnation starts.
    pub const START: usize = 160;
    /// Raw ticks of the claim.
    pub const CLAIMED_TICKS: usize = 168;
    /// Thread name, NUL padded, 16 bytes.
    pub const COMM: usize = 176;

    /// Slots the reader has consumed. Written by the reader only.
    pub const HEAD: usize = 192;
    /// Last incarnation that was retired and drained to its end; the producer may claim the lane
    /// again once it equals its incarnation. Written by the reader only.
    pub const DRAINED: usize = 200;
    /// Attempt number that follows the last record below `HEAD`, written together with it: a log-client that
    /// takes over numbers what was cut off as its predecessor would have. Written by the reader only.
    pub const NEXT: usize = 208;
}

/// Bytes of a request in flight.
pub const IN_FLIGHT_BYTES: usize = 40;

/// A request between its begin and its end, as its lane's table entry shows it.
///
/// ```text
/// 0   word 0 of its event, but for the low half of the low half: the stamp. 0: nothing. Stored last.
/// 8   begin, raw ticks
/// 16  handle of the file, 0 if none or not known yet
/// 24  offset, 32 length: what was asked for; meaningless without a handle
/// ```
///
/// The commit of the request ends its being in flight, with the same store: a stamped request is in flight only
/// as long as `TAIL` is where the stamp says. The request that encloses others carries no stamp until it
/// completes, since their commits move `TAIL`.
pub mod in_flight {
    /// Set in a stamp.
    const STAMPED: u64 = 1 << 15;
    const STAMP: u64 = 0xffff;

    /// Offsets of the words.
    pub const REQUEST: usize = 0;
    /// Begin, raw ticks.
    pub const BEGIN: usize = 8;
    /// Handle.
    pub const HANDLE: usize = 16;
    /// Offset.
    pub const OFFSET: usize = 24;
    /// Length.
    pub const LENGTH: usize = 32;

    /// The first word. `tail`: slots committed when it begins, or, for a request that encloses others, when it
    /// completes; `None` before that.
    #[inline(always)]
    #[must_use]
    pub const fn word(op: crate::op::Op, request: u32, tail: Option<u64>) -> u64 {
        let stamp = match tail {
            Some(tail) => (tail | STAMPED) & STAMP,
            None => 0,
        };
        stamp | (op.layer as u64) << 16 | (op.number as u64) << 24 | (request as u64) << 32
    }

    /// Operation and number of the request of a first word, if it is in flight when `tail` slots are committed.
    #[must_use]
    pub const fn read(word: u64, tail: u64) -> Option<(crate::op::Op, u32)> {
        let stamp = word & STAMP;
        if word == 0 || (stamp & STAMPED != 0 && stamp != (tail | STAMPED) & STAMP) {
            return None;
        }
        let op = crate::op::Op { layer: (word >> 16) as u8, number: (word >> 24) as u8 };
        Some((op, (word >> 32) as u32))
    }
}

/// Life of a lane table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LaneState {
    /// Never used.
    Free = 0,
    /// A thread writes into it.
    Claimed = 1,
    /// Its thread ended or moved to a larger lane; nothing more will be written in this incarnation.
    Retired = 2,
}

impl LaneState {
    /// The state with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<LaneState> {
        match number {
            0 => Some(LaneState::Free),
            1 => Some(LaneState::Claimed),
            2 => Some(LaneState::Retired),
            _ => None,
        }
    }
}

/// Source of the raw ticks of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Clock {
    /// The processor's time stamp counter, invariant.
    Tsc = 0,
    /// `CLOCK_MONOTONIC_RAW`, nanoseconds.
    MonotonicRaw = 1,
}

impl Clock {
    /// The clock with this number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Clock> {
        match number {
            0 => Some(Clock::Tsc),
            1 => Some(Clock::MonotonicRaw),
            _ => None,
        }
    }
}

/// The bytes of the strings of a header, each cut so that all fit: the command line gets what is left.
#[must_use]
pub fn fit_strings<'a>(
    exe: &'a [u8],
    cmdline: &'a [u8],
    job: &'a [u8],
    cwd: &'a [u8],
) -> [&'a [u8]; HEADER_STRINGS] {
    const ROOM: usize = HEADER_BYTES - header::STRINGS - 2 * HEADER_STRINGS;
    let cut = |s: &'a [u8], max: usize| &s[..s.len().min(max)];
    let (exe, job, cwd) = (cut(exe, 1024), cut(job, 256), cut(cwd, 1024));
    let left = ROOM - exe.len() - job.len() - cwd.len();
    [exe, cut(cmdline, left), job, cwd]
}

/// Reads the strings of a header page. Whatever does not fit is empty.
#[must_use]
pub fn strings(page: &[u8; HEADER_BYTES]) -> [&[u8]; HEADER_STRINGS] {
    let mut at = header::STRINGS;
    std::array::from_fn(|_| {
        let take = || {
            let length = usize::from(u16::from_le_bytes(page.get(at..at + 2)?.try_into().ok()?));
            page.get(at + 2..at + 2 + length)
        };
        let string = take().unwrap_or(&[]);
        at += 2 + string.len();
        string
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_lane_takes_the_largest_record() {
        assert!(MIN_LANE_SLOTS as usize >= crate::event::MAX_SLOTS);
        assert!(MIN_LANE_SLOTS.is_power_of_two() && MAX_LANE_SLOTS.is_power_of_two());
    }

    #[test]
    fn a_request_is_in_flight_until_its_own_commit() {
        let op = crate::op::posix::READ;
        let leaf = in_flight::word(op, 7, Some(70_000));
        assert_eq!(in_flight::read(leaf, 70_000), Some((op, 7)));
        assert_eq!(in_flight::read(leaf, 70_001), None);
        let outer = in_flight::word(op, 6, None);
        assert_eq!(in_flight::read(outer, 70_123), Some((op, 6)));
        assert_eq!(in_flight::read(0, 0), None);
    }

    #[test]
    fn oversized_strings_are_cut_to_the_page() {
        let long = vec![b'x'; 9000];
        let fitted = fit_strings(&long, &long, &long, &long);
        let total: usize = fitted.iter().map(|s| s.len() + 2).sum();
        assert_eq!(total, HEADER_BYTES - header::STRINGS);
    }
}
