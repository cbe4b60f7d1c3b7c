//! The control page, through which the log-client of a node controls its producers.
//!
//! **Do not add, remove or reorder fields: this layout is fixed for
//! [`segment::MAJOR`](crate::segment::MAJOR).**
//!
//! The log-client creates the file [`FILE`] in the MIOT directory (one page, mode 0644) and writes
//! it. Every producer maps it read-only. If the file does not exist, no log-client runs and
//! producers stay dormant. A log-client that finds the page of a predecessor reuses it in place, so
//! that running producers, which have mapped it, see the new log-client.
//!
//! Doorbell: a producer whose lane is more than half full while [`word::SLEEPING`] is 1 calls
//! `FUTEX_WAKE` on that word. It repeats the call with each request until the log-client has woken
//! and cleared the word, so that a wake before the log-client's `FUTEX_WAIT` is not missed. If
//! [`Settings::doorbell`] is set, every request does so, whatever the lane holds. Only the
//! log-client can write or truncate the page. It is the only shared memory that a producer reads
//! and did not create itself.

use crate::op::Op;

/// Name of the control page in the MIOT directory.
pub const FILE: &str = "control";
/// The default MIOT directory of a node.
pub const DEFAULT_DIR: &str = "/dev/shm/miot";
/// Environment variable that names another MIOT directory.
pub const DIR_ENV: &str = "MIOT_DIR";
/// Bytes of the page.
pub const BYTES: usize = 4096;
/// Maximum age of the page's modification time, seconds. A running log-client updates it about once
/// per second. If it is older, a program that starts stays dormant: without a log-client nothing
/// would ever remove its segment.
pub const STALE_SECONDS: i64 = 60;
/// First word, stored last (release). `MIOTCTL1`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MIOTCTL1");

/// Byte offsets of the page's `u64` words.
pub mod word {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// 1: recording is on, 0: off. With `FILTER` 0 for information only: producers read `OPS`.
    pub const ENABLED: usize = 8;
    /// Recorded layers, a bit per layer number. With `FILTER` 0 for information only: producers
    /// read `OPS`.
    pub const LAYERS: usize = 16;
    /// Policy for a full lane, see [`super::WhenFull`].
    pub const WHEN_FULL: usize = 24;
    /// Longest wait of `WhenFull::Wait`, nanoseconds.
    pub const WAIT_NS: usize = 32;
    /// Slots of a thread's first lane.
    pub const LANE_SLOTS: usize = 40;
    /// Maximum number of slots up to which a lane that fills is replaced by a larger one.
    pub const LANE_SLOTS_MAX: usize = 48;
    /// Maximum shared memory of one process, bytes.
    pub const PROCESS_BYTES: usize = 56;
    /// Process id of the log-client.
    pub const READER_PID: usize = 64;
    /// Number of sweeps of the log-client. A waiting producer sees by it that its lane is read.
    pub const SWEEPS: usize = 72;
    /// Futex (low `u32`): 1 while the log-client sleeps and a lane that fills must wake it.
    pub const SLEEPING: usize = 80;
    /// 1 after an orderly shutdown of the log-client: producers become dormant again.
    pub const CLOSED: usize = 88;
    /// 1 from the first time on that the policy allowed any producer to overwrite; never cleared. A
    /// reader must then check [`crate::segment::lane::OLDEST`] after each copy.
    pub const OVERWRITES: usize = 96;
    /// 0: producers read `OPS` only. Otherwise `OPS` is zero, and a request is recorded if
    /// `ENABLED`, `LAYERS` and `CHOSEN` include it and the next three words do not exclude it. The
    /// value is a sum of [`super::filter`]'s bits.
    pub const FILTER: usize = 104;
    /// Minimum duration of recorded requests, ticks of the time stamp counter.
    pub const MIN_TSC: usize = 112;
    /// Minimum duration in nanoseconds, for producers that use `CLOCK_MONOTONIC_RAW`.
    pub const MIN_NS: usize = 120;
    /// Sample mask. A request is excluded if the hash of its number and start time has one of these
    /// bits: 2ⁿ − 1 records one request in 2ⁿ on average.
    pub const SAMPLE: usize = 128;
    /// 1: flight recorder. Lanes overwrite themselves until there is a reason to read them, e.g. a
    /// snapshot.
    pub const FLIGHT_RECORDER: usize = 136;
    /// Number of snapshots requested. A process that requests a snapshot of the lanes increments
    /// it.
    pub const SNAPSHOT: usize = 144;
    /// Number of the last completed snapshot: everything committed before the request has been
    /// read.
    pub const SNAPSHOT_DONE: usize = 152;
    /// Number of records that the last snapshot read.
    pub const SNAPSHOT_EVENTS: usize = 160;
    /// Frequency of the time stamp counter, hertz; 0 while it is unknown.
    pub const TSC_HZ: usize = 168;
    /// 1 while the segments of the node exceed their memory limit. Producers then create no lane
    /// and replace none by a larger one; they still reuse released lanes.
    pub const NODE_FULL: usize = 176;
    /// Number of changes of the exceptions, 0 if there never was one. Producers of versions without
    /// exceptions do not read it and follow the settings of the node.
    pub const EXCEPTIONS: usize = 184;
    /// Number of exceptions in use. If not 0, `FILTER` is not 0.
    pub const EXCEPTED: usize = 192;
    /// Size of the list at `LEFT_OUT`, bytes; 0 if no program is excluded. Stored after the list
    /// (release).
    pub const LEFT_OUT_BYTES: usize = 200;
    /// List of the programs and users that are not recorded, up to `OPS`, see
    /// [`super::is_excluded`].
    pub const LEFT_OUT: usize = 208;
    /// Start of [`super::OPS_WORDS`] words with a bit per layer and operation, see
    /// [`super::op_bit`]: every request of these operations is recorded. All zero if recording is
    /// off or `FILTER` is not 0.
    pub const OPS: usize = 512;
    /// Start of [`super::OPS_WORDS`] words with the selected operations, independent of `ENABLED`
    /// and `LAYERS`.
    pub const CHOSEN: usize = 1024;
    /// Start of [`super::MAX_EXCEPTIONS`] entries of [`super::EXCEPTION_BYTES`] each, see
    /// [`super::exception`].
    pub const EXCEPTION: usize = 1536;
}

/// Bits of [`word::FILTER`].
pub mod filter {
    /// Some requests are excluded, or have settings of their own.
    pub const EXCLUDES: u64 = 1;
    /// Requests are recorded with the CPU time of their thread.
    pub const CPU_TIME: u64 = 2;
    /// Every request wakes the log-client. Producers of versions without this bit ignore it.
    pub const DOORBELL: u64 = 4;
}

/// Maximum number of exceptions: jobs and processes with settings of their own.
pub const MAX_EXCEPTIONS: usize = 20;
/// Size of the entry of an exception, bytes.
pub const EXCEPTION_BYTES: usize = 128;
const _: () = assert!(word::CHOSEN + 8 * OPS_WORDS <= word::EXCEPTION);
const _: () = assert!(word::EXCEPTION + MAX_EXCEPTIONS * EXCEPTION_BYTES <= BYTES);

/// Byte offsets of the `u64` words of an exception.
pub mod exception {
    /// [`super::ExceptionKind`]. When an entry changes, it is set to 0 first and written last.
    pub const KIND: usize = 0;
    /// [`super::job_key`] of the job, or [`crate::segment::header::NONCE`] of the process.
    pub const KEY: usize = 8;
    /// Like [`super::word::ENABLED`].
    pub const ENABLED: usize = 16;
    /// Like [`super::word::LAYERS`].
    pub const LAYERS: usize = 24;
    /// Like [`super::word::MIN_TSC`].
    pub const MIN_TSC: usize = 32;
    /// Like [`super::word::MIN_NS`].
    pub const MIN_NS: usize = 40;
    /// Like [`super::word::SAMPLE`].
    pub const SAMPLE: usize = 48;
    /// A word per layer up to 7 with a bit per operation up to 62. Bit 63 stands for all further
    /// operations.
    pub const CHOSEN: usize = 64;
}

/// Number of layers with a word of their own in an exception. Higher layers share these words.
const EXCEPTION_LAYERS: usize = 8;

/// Subject of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ExceptionKind {
    /// All processes of a job.
    Job = 1,
    /// One process. Takes precedence over the exception of its job.
    Process = 2,
}

/// Returns the key of a job in an exception: the 64-bit FNV-1a hash of its id. Jobs with equal
/// hashes share an exception.
#[must_use]
pub const fn job_key(job: &[u8]) -> u64 {
    let (mut key, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while at < job.len() {
        key = (key ^ job[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    key
}

/// Returns the position of an operation in an exception: byte offset of its word in the entry, and
/// the bit in it.
#[must_use]
pub const fn exception_bit(op: Op) -> (usize, u32) {
    let bit = if op.number < 63 { op.number as u32 } else { 63 };
    (exception::CHOSEN + 8 * (op.layer as usize % EXCEPTION_LAYERS), bit)
}

/// Number of layers with bits of their own in [`word::OPS`]. Higher layers share these bits.
pub const OPS_LAYERS: usize = 16;
/// Number of words at [`word::OPS`]: 256 bits per layer.
pub const OPS_WORDS: usize = OPS_LAYERS * 4;
const _: () = assert!(word::OPS + 8 * OPS_WORDS <= word::CHOSEN);

/// Maximum size of the list at [`word::LEFT_OUT`], bytes.
pub const MAX_EXCLUSION_BYTES: usize = word::OPS - word::LEFT_OUT;

/// Returns the list of excluded programs and users: per program `p` and its name or, if it contains
/// a slash, its whole path; per user `u` and the decimal user id; each followed by a zero byte.
/// `None` if it exceeds [`MAX_EXCLUSION_BYTES`].
#[must_use]
pub fn exclusion_list(programs: &[impl AsRef<[u8]>], users: &[u32]) -> Option<Vec<u8>> {
    let mut list = Vec::new();
    for program in programs {
        list.push(b'p');
        list.extend_from_slice(program.as_ref());
        list.push(0);
    }
    for user in users {
        list.extend_from_slice(format!("u{user}").as_bytes());
        list.push(0);
    }
    (list.len() <= MAX_EXCLUSION_BYTES).then_some(list)
}

/// Returns true if a list of [`exclusion_list`] contains the program with this executable, or this
/// user.
#[must_use]
pub fn is_excluded(list: &[u8], exe: &[u8], user: u32) -> bool {
    let name = exe.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    list.split(|byte| *byte == 0).any(|entry| match entry.split_first() {
        Some((b'p', program)) if program.contains(&b'/') => program == exe,
        Some((b'p', program)) => !program.is_empty() && program == name,
        Some((b'u', digits)) => parse_user(digits) == Some(user),
        _ => false,
    })
}

fn parse_user(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the position of an operation at [`word::OPS`]: byte offset of its word in the page, and
/// the bit in it.
#[inline(always)]
#[must_use]
pub const fn op_bit(op: Op) -> (usize, u32) {
    let word = (op.layer as usize % OPS_LAYERS) * 4 + op.number as usize / 64;
    (word::OPS + 8 * word, op.number as u32 % 64)
}

/// Settings of the page. The words that change while a log-client runs are not part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Recording is on.
    pub enabled: bool,
    /// Recorded layers, a bit per layer number.
    pub layers: u64,
    /// Selected operations, a bit per layer and operation, see [`op_bit`].
    pub chosen: [u64; OPS_WORDS],
    /// Policy for a full lane.
    pub when_full: WhenFull,
    /// Longest wait of [`WhenFull::Wait`], nanoseconds.
    pub wait_ns: u64,
    /// Slots of a thread's first lane.
    pub lane_slots: u64,
    /// Maximum number of slots to which lanes grow.
    pub lane_slots_max: u64,
    /// Maximum shared memory of one process, bytes.
    pub process_bytes: u64,
    /// Minimum duration of recorded requests, nanoseconds.
    pub min_duration_ns: u64,
    /// One request in 2ⁿ is recorded; this is n.
    pub sample_shift: u32,
    /// Flight recorder: lanes are read only when there is a reason, e.g. a snapshot.
    pub flight_recorder: bool,
    /// Some jobs or processes have settings of their own.
    pub excepted: bool,
    /// Requests are recorded with the CPU time of their thread. This takes a system call and a
    /// second slot per request.
    pub cpu_time: bool,
    /// Every request wakes the log-client. The log-client sets this before it sleeps long, on a
    /// node without events.
    pub doorbell: bool,
}

impl Default for Settings {
    /// Every request is recorded, and no producer waits.
    fn default() -> Settings {
        Settings {
            enabled: true,
            layers: u64::MAX,
            chosen: [u64::MAX; OPS_WORDS],
            when_full: WhenFull::DropNewest,
            wait_ns: 10_000_000_000,
            lane_slots: 512,
            lane_slots_max: 32_768,
            process_bytes: 64 << 20,
            min_duration_ns: 0,
            sample_shift: 0,
            flight_recorder: false,
            excepted: false,
            cpu_time: false,
            doorbell: false,
        }
    }
}

impl Settings {
    /// Reads the settings of a page. `get` returns the word at a byte offset.
    #[must_use]
    pub fn read(get: impl Fn(usize) -> u64) -> Settings {
        Settings {
            enabled: get(word::ENABLED) != 0,
            layers: get(word::LAYERS),
            chosen: std::array::from_fn(|index| get(word::CHOSEN + 8 * index)),
            when_full: WhenFull::from_number(get(word::WHEN_FULL)),
            wait_ns: get(word::WAIT_NS),
            lane_slots: get(word::LANE_SLOTS),
            lane_slots_max: get(word::LANE_SLOTS_MAX),
            process_bytes: get(word::PROCESS_BYTES),
            min_duration_ns: get(word::MIN_NS),
            sample_shift: get(word::SAMPLE).trailing_ones(),
            flight_recorder: get(word::FLIGHT_RECORDER) != 0,
            excepted: get(word::EXCEPTED) != 0,
            cpu_time: get(word::FILTER) & filter::CPU_TIME != 0,
            doorbell: get(word::FILTER) & filter::DOORBELL != 0,
        }
    }

    /// Returns the words of the page as byte offsets and values, in the order in which they must be
    /// stored. `tsc_hz` is the frequency of the time stamp counter in hertz, 0 if unknown.
    ///
    /// [`word::OVERWRITES`] is included only if it must become 1.
    pub fn words(&self, tsc_hz: u64) -> impl Iterator<Item = (usize, u64)> {
        let sample = self.sample_mask();
        let overwrites = self.when_full == WhenFull::OverwriteOldest;
        let excludes = self.min_duration_ns != 0 || sample != 0 || self.excepted || self.cpu_time;
        let filter = [
            (excludes, filter::EXCLUDES),
            (self.cpu_time, filter::CPU_TIME),
            (self.doorbell, filter::DOORBELL),
        ];
        let filter: u64 = filter.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum();
        // A request is recorded if its operation is in `OPS` or if there is a filter. So the one is
        // stored before the other ends.
        let set_filter = (filter != 0).then_some((word::FILTER, filter));
        let clear_filter = (filter == 0).then_some((word::FILTER, 0));
        let words = [
            (word::LAYERS, self.layers),
            (word::WAIT_NS, self.wait_ns),
            (word::LANE_SLOTS, self.lane_slots),
            (word::LANE_SLOTS_MAX, self.lane_slots_max),
            (word::PROCESS_BYTES, self.process_bytes),
            (word::TSC_HZ, tsc_hz),
            (word::MIN_TSC, self.min_ticks(tsc_hz)),
            (word::MIN_NS, self.min_duration_ns),
            (word::SAMPLE, sample),
            (word::FLIGHT_RECORDER, u64::from(self.flight_recorder)),
            (word::ENABLED, u64::from(self.enabled)),
        ];
        let overwrites = overwrites.then_some((word::OVERWRITES, 1));
        let ops = (0..OPS_WORDS).map(move |index| {
            let recorded = self.enabled && filter == 0 && self.layers >> (index / 4) & 1 != 0;
            (word::OPS + 8 * index, if recorded { self.chosen[index] } else { 0 })
        });
        let chosen = (0..OPS_WORDS).map(|index| (word::CHOSEN + 8 * index, self.chosen[index]));
        overwrites
            .into_iter()
            .chain([(word::WHEN_FULL, self.when_full as u64)])
            .chain(words)
            .chain(chosen)
            .chain(set_filter)
            .chain(ops)
            .chain(clear_filter)
    }

    /// Returns the words of an exception, without its kind and key, as byte offsets in the entry
    /// and values. The policy for full lanes and the sizes of lanes are always those of the node.
    pub fn exception_words(&self, tsc_hz: u64) -> impl Iterator<Item = (usize, u64)> {
        let words = [
            (exception::ENABLED, u64::from(self.enabled)),
            (exception::LAYERS, self.layers),
            (exception::MIN_TSC, self.min_ticks(tsc_hz)),
            (exception::MIN_NS, self.min_duration_ns),
            (exception::SAMPLE, self.sample_mask()),
        ];
        let chosen = (0..EXCEPTION_LAYERS).map(|layer| {
            let [first, .., last] = [0, 1, 2, 3].map(|word| self.chosen[4 * layer + word]);
            let rest = last >> 63;
            (exception::CHOSEN + 8 * layer, first & (u64::MAX >> 1) | rest << 63)
        });
        words.into_iter().chain(chosen)
    }

    fn min_ticks(&self, tsc_hz: u64) -> u64 {
        let ticks = u128::from(self.min_duration_ns) * u128::from(tsc_hz) / 1_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    fn sample_mask(&self) -> u64 {
        (1 << self.sample_shift.min(31)) - 1
    }

    /// Adds an operation to the selected ones, or removes it.
    pub fn choose(&mut self, op: Op, recorded: bool) {
        let (at, bit) = op_bit(op);
        let word = &mut self.chosen[(at - word::OPS) / 8];
        *word = *word & !(1 << bit) | u64::from(recorded) << bit;
    }
}

/// Policy of a producer whose lane is full and cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum WhenFull {
    /// Drop the new record and count it. The program never waits.
    DropNewest = 0,
    /// Wait for the log-client, at most [`word::WAIT_NS`], then drop the new record and count it.
    /// For `miot run`, where a complete trace is more important than the speed of the program.
    Wait = 1,
    /// Overwrite the oldest record. The attempt numbers give the exact number of records that were
    /// overwritten before they were read; they count as lost. Lanes do not grow: their first size
    /// determines how much history a thread keeps.
    OverwriteOldest = 2,
}

impl WhenFull {
    /// Returns the policy with this number; [`WhenFull::DropNewest`] for an unknown number.
    #[must_use]
    pub fn from_number(number: u64) -> WhenFull {
        match number {
            1 => WhenFull::Wait,
            2 => WhenFull::OverwriteOldest,
            _ => WhenFull::DropNewest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Layer, posix, stdio};

    fn page(settings: &Settings) -> Vec<u64> {
        let mut page = vec![0; BYTES / 8];
        settings.words(2_000_000_000).for_each(|(at, value)| page[at / 8] = value);
        page
    }

    fn recorded(page: &[u64], op: Op) -> bool {
        let (at, bit) = op_bit(op);
        page[at / 8] >> bit & 1 != 0
    }

    #[test]
    fn exclusion_matches_name_path_and_user() {
        let list = exclusion_list(&["sshd", "/usr/bin/rsync"], &[0, 996]).unwrap_or_default();
        for (exe, user, expected) in [
            ("/usr/sbin/sshd", 1000, true),
            ("/usr/sbin/sshd2", 1000, false),
            ("/usr/bin/rsync", 1000, true),
            ("/opt/bin/rsync", 1000, false),
            ("/usr/bin/cat", 0, true),
            ("/usr/bin/cat", 996, true),
            ("/usr/bin/cat", 99, false),
            ("", 1000, false),
        ] {
            assert_eq!(is_excluded(&list, exe.as_bytes(), user), expected, "{exe} {user}");
        }
        assert!(!is_excluded(b"", b"/usr/sbin/sshd", 0));
        assert_eq!(exclusion_list(&[vec![b'x'; MAX_EXCLUSION_BYTES]], &[]), None);
    }

    #[test]
    fn settings_round_trip_through_page() {
        let mut settings = Settings {
            when_full: WhenFull::OverwriteOldest,
            min_duration_ns: 500,
            sample_shift: 4,
            flight_recorder: true,
            cpu_time: true,
            ..Settings::default()
        };
        settings.choose(posix::READ, false);
        let page = page(&settings);
        assert_eq!(Settings::read(|at| page[at / 8]), settings);
        assert_eq!(page[word::MIN_TSC / 8], 1000);
        assert_eq!(page[word::SAMPLE / 8], 15);
        assert_eq!((page[word::FILTER / 8], page[word::OVERWRITES / 8]), (3, 1));
    }

    #[test]
    fn exception_has_bit_per_operation() {
        let mut settings = Settings { sample_shift: 2, min_duration_ns: 10, ..Settings::default() };
        settings.choose(posix::READ, false);
        settings.choose(Op { layer: Layer::Client as u8, number: 200 }, true);
        let words: Vec<_> = settings.exception_words(1_000_000_000).collect();
        let get = |at: usize| words.iter().find(|(known, _)| *known == at).map_or(0, |(_, value)| *value);
        let chosen = |op| {
            let (at, bit) = exception_bit(op);
            get(at) >> bit & 1 != 0
        };
        assert!(!chosen(posix::READ) && chosen(posix::WRITE) && chosen(stdio::FREAD));
        assert!(chosen(Op { layer: Layer::Client as u8, number: 200 }));
        assert_eq!(
            [exception::ENABLED, exception::MIN_TSC, exception::MIN_NS, exception::SAMPLE].map(get),
            [1, 10, 10, 3]
        );
        assert!(words.iter().all(|(at, _)| *at < EXCEPTION_BYTES));
        let excepted = page(&Settings { excepted: true, ..Settings::default() });
        assert!(!recorded(&excepted, posix::READ), "with an exception, producers check each request");
        assert_eq!(excepted[word::FILTER / 8], 1);
    }

    #[test]
    fn recording_requires_operation_layer_and_enabled() {
        let mut settings = Settings { layers: 1 << Layer::Posix as u64, ..Settings::default() };
        settings.choose(posix::READ, false);
        let on = page(&settings);
        assert!(recorded(&on, posix::WRITE));
        assert!(!recorded(&on, posix::READ) && !recorded(&on, stdio::FREAD));
        let off = page(&Settings { enabled: false, ..settings.clone() });
        assert!(!recorded(&off, posix::WRITE));
        assert_eq!(Settings::read(|at| off[at / 8]).chosen, settings.chosen);
    }
}
