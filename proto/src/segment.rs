//! The segment: shared memory of one traced process.
//!
//! **Do not add, remove or reorder fields: this layout is fixed for [`MAJOR`].**
//!
//! A segment is one file in the node's MIOT directory (by default `/dev/shm/miot`), named
//! `<pid>-<nonce>.seg`. All words are little-endian `u64` at multiples of 8 unless stated
//! otherwise.
//!
//! ```text
//! 0      header        HEADER_BYTES, written once before the magic; the producer updates counters
//! 4096   lane table    LANE_BYTES per lane, dense; lane i at 4096 + i × LANE_BYTES
//! 266240 slots         the slots of each lane at the offset in its table entry; from minor version
//!                      1 on also a table of asynchronous requests, see [`pending`]
//! ```
//!
//! Every word has exactly one writer. The log-client writes [`lane::HEAD`], [`lane::DRAINED`] and
//! [`lane::NEXT`], with `pwrite`; the producer writes all others. The file grows as lanes are
//! claimed and never shrinks.

/// First word of a segment, stored last (release). `MIOTSEG1`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MIOTSEG1");
/// Major version of the layout. Readers refuse any other.
pub const MAJOR: u32 = 1;
/// Minor version of the layout. It grows when reserved words get a meaning; readers ignore the
/// additions of a higher one.
pub const MINOR: u32 = 1;

/// Size of the header, bytes.
pub const HEADER_BYTES: usize = 4096;
/// Size of one entry of the lane table, bytes: two cache lines for the words of the producer (the
/// adjacent-line prefetcher fetches pairs), one for the identity, one for the words of the reader.
pub const LANE_BYTES: usize = 256;
/// Maximum number of lanes per segment: one per thread recorded at the same time, and one per lane
/// that was replaced by a larger one. The table is sparse; its pages are allocated for sixteen
/// lanes at a time.
pub const MAX_LANES: usize = 1024;
/// Offset of the slots of the first lane, bytes.
pub const SLOTS_OFFSET: usize = HEADER_BYTES + MAX_LANES * LANE_BYTES;
/// Smallest lane, slots: a power of two that holds one record of any size.
pub const MIN_LANE_SLOTS: u64 = 256;
/// Largest lane, slots (64 MiB).
pub const MAX_LANE_SLOTS: u64 = 1 << 20;
/// Largest segment that a reader accepts, bytes.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 32;

/// File name suffix of segments.
pub const SUFFIX: &str = ".seg";

/// Byte offsets of the header's words.
pub mod header {
    /// [`super::MAGIC`], stored last.
    pub const MAGIC: usize = 0;
    /// Minor version in the low half, major in the high half.
    pub const VERSION: usize = 8;
    /// Random number that distinguishes this process image from all others of the node.
    pub const NONCE: usize = 16;
    /// Process id in the PID namespace of the process.
    pub const PID: usize = 24;
    /// Process id of the parent process.
    pub const PPID: usize = 32;
    /// Clock of the events: see [`super::Clock`].
    pub const CLOCK: usize = 40;
    /// Creation time, raw ticks of that clock.
    pub const CREATED_TICKS: usize = 48;
    /// Creation time, nanoseconds of `CLOCK_BOOTTIME`.
    pub const CREATED_BOOT_NS: usize = 56;
    /// Number of lanes created so far: entries `0..LANES` of the table are valid (release).
    pub const LANES: usize = 64;
    /// Number of records lost because a thread could not get a lane.
    pub const LOST_NO_LANE: usize = 72;
    /// MPI rank + 1, 0 if none.
    pub const RANK: usize = 80;
    /// Effective user id at creation, for information; ownership comes from the file.
    pub const UID: usize = 88;
    /// Not 0 after the process left its image in an orderly way (`exec`): it writes nothing more to
    /// the segment.
    pub const CLOSED: usize = 96;
    /// Inode of the PID namespace of `PID` (`/proc/self/ns/pid`), 0 if unknown.
    pub const PID_NAMESPACE: usize = 104;
    /// Offset of the table of asynchronous requests in the file, bytes (see [`super::pending`]); 0
    /// if there is none (release).
    pub const PENDING: usize = 112;
    /// Number of entries of that table that have ever been used: the first ones (release).
    pub const PENDING_USED: usize = 120;
    /// Start of the strings: executable, command line (NUL between arguments), job (see
    /// [`crate::job`]), working directory. Each is a `u16` length and the bytes. They end at
    /// [`super::HEADER_BYTES`] at the latest.
    pub const STRINGS: usize = 256;
}

/// Number of strings at [`header::STRINGS`].
pub const HEADER_STRINGS: usize = 4;

/// Byte offsets of a lane table entry's words, from the entry's start.
pub mod lane {
    /// Number of slots committed so far, shifted left by one. Bit 0 is set while a record is being
    /// completed. Release store by the producer.
    pub const TAIL: usize = 0;
    /// Number of records lost because the lane was full.
    pub const LOST_FULL: usize = 8;
    /// Number of records lost because they came from a signal handler that interrupted a record.
    pub const LOST_NESTED: usize = 16;
    /// Number of records offered to the lane in this incarnation, without those of `LOST_NESTED`.
    /// Stored with every drop and when the lane is retired.
    pub const ATTEMPTS: usize = 24;
    /// Request in flight: [`IN_FLIGHT_BYTES`](super::IN_FLIGHT_BYTES) bytes in the layout of
    /// [`super::in_flight`].
    pub const IN_FLIGHT: usize = 32;
    /// Outermost request in flight that is the parent of others, in the same layout.
    pub const ENCLOSING: usize = 72;
    /// Policy `overwrite-oldest`: first slot that is not overwritten, counted as in `TAIL`, always
    /// the start of a record. Stored, followed by a release fence, before slots below it are
    /// written again.
    pub const OLDEST: usize = 112;
    /// Number of requests that the filter of the control page excluded. They are neither attempts
    /// nor losses.
    pub const FILTERED: usize = 120;

    /// State in the low half (see [`super::LaneState`]), incarnation in the high half. Release
    /// store after the other words of the identity.
    pub const STATE: usize = 128;
    /// Thread id.
    pub const TID: usize = 136;
    /// Offset of the slots in the file, bytes.
    pub const SLOTS_AT: usize = 144;
    /// Number of slots, a power of two.
    pub const SLOTS: usize = 152;
    /// `TAIL >> 1` at which this incarnation starts.
    pub const START: usize = 160;
    /// Time of the claim, raw ticks.
    pub const CLAIMED_TICKS: usize = 168;
    /// Thread name, 16 bytes, padded with NUL.
    pub const COMM: usize = 176;

    /// Number of slots that the reader has consumed. Only the reader writes it.
    pub const HEAD: usize = 192;
    /// Last incarnation that was retired and drained completely. The producer may claim the lane
    /// again when this equals its incarnation. Only the reader writes it.
    pub const DRAINED: usize = 200;
    /// Attempt number after the last record below `HEAD`, written together with `HEAD`. A
    /// log-client that replaces another one continues its numbering with it. Only the reader writes
    /// it.
    pub const NEXT: usize = 208;
}

/// Size of a request in flight, bytes.
pub const IN_FLIGHT_BYTES: usize = 40;

/// Layout of a request in flight in the table entry of its lane.
///
/// ```text
/// 0   word 0 of its event, with the stamp in bits 0-15; 0 if there is no request. Stored last.
/// 8   start time, raw ticks
/// 16  file handle, 0 if none or not known yet
/// 24  requested offset, 32 requested length; meaningless without a handle
/// ```
///
/// The commit of a request and the end of its flight are the same store: a stamped request is in
/// flight only while `TAIL` equals its stamp. A request that is the parent of others has no stamp
/// until it completes, because their commits advance `TAIL`.
pub mod in_flight {
    /// Bit that is set in every stamp.
    const STAMPED: u64 = 1 << 15;
    const STAMP: u64 = 0xffff;

    /// First word, see [`word`].
    pub const REQUEST: usize = 0;
    /// Start time, raw ticks.
    pub const BEGIN: usize = 8;
    /// Handle.
    pub const HANDLE: usize = 16;
    /// Offset.
    pub const OFFSET: usize = 24;
    /// Length.
    pub const LENGTH: usize = 32;

    /// Returns the first word. `tail` is the number of slots committed at the start of the request
    /// or, for the parent of others, at its completion; `None` before that.
    #[inline(always)]
    #[must_use]
    pub const fn word(op: crate::op::Op, request: u32, tail: Option<u64>) -> u64 {
        let stamp = match tail {
            Some(tail) => (tail | STAMPED) & STAMP,
            None => 0,
        };
        stamp | (op.layer as u64) << 16 | (op.number as u64) << 24 | (request as u64) << 32
    }

    /// Returns operation and request number of a first word if the request is in flight while
    /// `tail` slots are committed.
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

/// Size of the table of asynchronous requests, entries.
pub const PENDING_ENTRIES: usize = 512;
/// Size of one of its entries, bytes.
pub const PENDING_BYTES: usize = 256;

/// Layout of an asynchronous request in flight, which any thread of the process may end.
///
/// ```text
/// 0    word 0 of its event: layer in bits 16-23, operation in 24-31, number in 32-63. 0 if the
///      entry is free; without a layer if it is being filled. Stored last (release).
/// 8    start time, raw ticks
/// 16   file handle, 0 if none
/// 24   requested offset, 32 requested length; NONE if there is none
/// 40   thread that began it in the low half, thread that it is for in the high half, 0 if unknown
/// 48   path, padded with NUL; of a long one the end, after "..."; or a word of `descriptor_word`
/// ```
pub mod pending {
    /// First word, see [`word`].
    pub const REQUEST: usize = 0;
    /// Start time, raw ticks.
    pub const BEGIN: usize = 8;
    /// Handle.
    pub const HANDLE: usize = 16;
    /// Offset.
    pub const OFFSET: usize = 24;
    /// Length.
    pub const LENGTH: usize = 32;
    /// Threads.
    pub const THREADS: usize = 40;
    /// Path.
    pub const PATH: usize = 48;
    /// Longest path, bytes.
    pub const PATH_BYTES: usize = super::PENDING_BYTES - PATH;
    /// First word of an entry that is being filled.
    pub const RESERVED: u64 = 1;

    /// Returns the first word.
    #[must_use]
    pub const fn word(op: crate::op::Op, number: u32) -> u64 {
        super::in_flight::word(op, number, None)
    }

    /// Returns the first word of the path of a request whose file is an open descriptor of its
    /// process: an empty path, and the descriptor + 1 in the high half.
    #[must_use]
    pub const fn descriptor_word(fd: u32) -> u64 {
        (fd as u64 + 1) << 32
    }

    /// Returns the descriptor of the first word of a path; `None` if that is a path, or empty.
    #[must_use]
    pub const fn descriptor(path: u64) -> Option<u32> {
        match (path as u32, (path >> 32) as u32) {
            (0, 1..) => Some((path >> 32) as u32 - 1),
            _ => None,
        }
    }

    /// Returns operation and number of a first word; `None` if no request is in flight.
    #[must_use]
    pub const fn read(word: u64) -> Option<(crate::op::Op, u32)> {
        match (word >> 16) as u8 {
            0 => None,
            _ => super::in_flight::read(word & !0xffff, 0),
        }
    }
}

/// State of a lane table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LaneState {
    /// Never used.
    Free = 0,
    /// A thread writes into it.
    Claimed = 1,
    /// Its thread ended or changed to a larger lane. Nothing more is written in this incarnation.
    Retired = 2,
}

impl LaneState {
    /// Returns the state with this number; `None` if this version does not define it.
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

/// Clock of the raw ticks of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Clock {
    /// The invariant time stamp counter of the processor.
    Tsc = 0,
    /// `CLOCK_MONOTONIC_RAW`, nanoseconds.
    MonotonicRaw = 1,
}

impl Clock {
    /// Returns the clock with this number; `None` if this version does not define it.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Clock> {
        match number {
            0 => Some(Clock::Tsc),
            1 => Some(Clock::MonotonicRaw),
            _ => None,
        }
    }
}

/// Truncates the strings of a header so that all fit: executable and working directory to 1024
/// bytes, job to 256 bytes, and the command line to the remaining space. Returns them in the order
/// of [`header::STRINGS`].
#[must_use]
pub fn fit_strings<'a>(
    exe: &'a [u8],
    cmdline: &'a [u8],
    job: &'a [u8],
    cwd: &'a [u8],
) -> [&'a [u8]; HEADER_STRINGS] {
    const SPACE: usize = HEADER_BYTES - header::STRINGS - 2 * HEADER_STRINGS;
    let cut = |s: &'a [u8], max: usize| &s[..s.len().min(max)];
    let (exe, job, cwd) = (cut(exe, 1024), cut(job, 256), cut(cwd, 1024));
    let left = SPACE - exe.len() - job.len() - cwd.len();
    [exe, cut(cmdline, left), job, cwd]
}

/// Reads the strings of a header page. A string that exceeds the page is empty.
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
    fn smallest_lane_holds_largest_record() {
        assert!(MIN_LANE_SLOTS as usize >= crate::event::MAX_SLOTS);
        assert!(MIN_LANE_SLOTS.is_power_of_two() && MAX_LANE_SLOTS.is_power_of_two());
    }

    #[test]
    fn request_is_in_flight_until_its_commit() {
        let op = crate::op::posix::READ;
        let leaf = in_flight::word(op, 7, Some(70_000));
        assert_eq!(in_flight::read(leaf, 70_000), Some((op, 7)));
        assert_eq!(in_flight::read(leaf, 70_001), None);
        let outer = in_flight::word(op, 6, None);
        assert_eq!(in_flight::read(outer, 70_123), Some((op, 6)));
        assert_eq!(in_flight::read(0, 0), None);
        assert_eq!(pending::read(pending::word(op, 9)), Some((op, 9)));
        assert_eq!((pending::read(0), pending::read(pending::RESERVED)), (None, None));
    }

    #[test]
    fn oversized_strings_are_truncated_to_page() {
        let long = vec![b'x'; 9000];
        let fitted = fit_strings(&long, &long, &long, &long);
        let total: usize = fitted.iter().map(|s| s.len() + 2).sum();
        assert_eq!(total, HEADER_BYTES - header::STRINGS);
    }
}
