//! The control page: how the log-client of a node steers the producers on it.
//!
//! **Do not add, remove or reorder fields: this layout is fixed for [`segment::MAJOR`](crate::segment::MAJOR).**
//!
//! The log-client creates the file [`FILE`] in the MIOT directory, mode 0644, one page, and writes it;
//! every producer maps it read-only. Where it does not exist there is no log-client, and producers stay
//! dormant. A log-client that finds the page of a predecessor takes it over in place, so that running
//! producers, who have it mapped, see the new one.
//!
//! Doorbell: a producer whose lane is more than half full while [`word::SLEEPING`] is 1 calls
//! `FUTEX_WAKE` on that word, again with each request until the log-client has woken and cleared it; so a
//! wake that comes before the log-client's `FUTEX_WAIT` is not missed. Nobody but the log-client can write
//! or truncate the page, so it is the only shared memory a producer reads that it did not make itself.

use crate::op::Op;

/// Name of the control page in the MIOT directory.
pub const FILE: &str = "control";
/// The default MIOT directory of a node.
pub const DEFAULT_DIR: &str = "/dev/shm/miot";
/// Environment variable that names another MIOT directory.
pub const DIR_ENV: &str = "MIOT_DIR";
/// Bytes of the page.
pub const BYTES: usize = 4096;
/// A log-client that is alive sets the page's modification time every second or so. Where it is older than this, in
/// seconds, a program that starts takes it that there is no log-client: nobody would ever take its segment away.
pub const STALE_SECONDS: i64 = 60;
/// First word, written last (release). `MIOTCTL1`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MIOTCTL1");

/// Byte offsets of the page's `u64` words.
pub mod word {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// 1 = record, 0 = do not. With `FILTER` 0 said for people: producers look at `OPS`.
    pub const ENABLED: usize = 8;
    /// Bit per layer number: which layers are recorded. With `FILTER` 0 said for people: producers look at `OPS`.
    pub const LAYERS: usize = 16;
    /// What to do when a lane is full: see [`super::WhenFull`].
    pub const WHEN_FULL: usize = 24;
    /// Longest wait of `WhenFull::Wait`, nanoseconds.
    pub const WAIT_NS: usize = 32;
    /// Slots of a thread's first lane.
    pub const LANE_SLOTS: usize = 40;
    /// Slots up to which a lane that fills is replaced by a larger one.
    pub const LANE_SLOTS_MAX: usize = 48;
    /// Bytes of shared memory one process may claim.
    pub const PROCESS_BYTES: usize = 56;
    /// Process id of the log-client.
    pub const READER_PID: usize = 64;
    /// Counts up with every sweep of the log-client: shows a waiting producer that somebody reads.
    pub const SWEEPS: usize = 72;
    /// Futex (low `u32`): 1 while the log-client sleeps and wants to be woken by a lane that fills.
    pub const SLEEPING: usize = 80;
    /// 1 once the log-client has ended in an orderly way: producers go dormant again.
    pub const CLOSED: usize = 88;
    /// 1 as soon as any producer may have been told to overwrite, for ever: then a reader must look at
    /// [`crate::segment::lane::OLDEST`] after each copy.
    pub const OVERWRITES: usize = 96;
    /// 0: producers look at nothing but `OPS`. 1: `OPS` is zero, and requests are recorded if `ENABLED`, `LAYERS` and
    /// `CHOSEN` say so and the next three words do not leave them out. 3: the same, and requests are recorded with the CPU time
    /// of their thread.
    pub const FILTER: usize = 104;
    /// Requests that took fewer ticks of the time stamp counter are left out.
    pub const MIN_TSC: usize = 112;
    /// The same in nanoseconds, for producers that use `CLOCK_MONOTONIC_RAW`.
    pub const MIN_NS: usize = 120;
    /// Requests are left out whose lot, drawn from their number and begin, has one of these bits: 2ⁿ − 1 keeps one
    /// in 2ⁿ, in the mean.
    pub const SAMPLE: usize = 128;
    /// 1: flight recorder; lanes are left to overwrite themselves until there is a reason to read them.
    pub const FLIGHT_RECORDER: usize = 136;
    /// Counted up by whoever wants what the lanes hold now (a snapshot).
    pub const SNAPSHOT: usize = 144;
    /// The last snapshot that was taken: everything committed before it was asked for has been read.
    pub const SNAPSHOT_DONE: usize = 152;
    /// Records read by the last snapshot.
    pub const SNAPSHOT_EVENTS: usize = 160;
    /// Ticks per second of the time stamp counter, 0 while it is not known.
    pub const TSC_HZ: usize = 168;
    /// 1 while the segments of the node take more memory than they may: producers make no lane, and replace none by a
    /// larger one, until they take less. Lanes that were given back are used again.
    pub const NODE_FULL: usize = 176;
    /// Counts up with every change of the exceptions; 0: there never was one. Producers of before there were exceptions do
    /// not look, and follow what holds for the node.
    pub const EXCEPTIONS: usize = 184;
    /// Exceptions in use. While there are any, `FILTER` is 1.
    pub const EXCEPTED: usize = 192;
    /// Bytes of the list at `LEFT_OUT`; 0: everybody is recorded. Stored after the list (release).
    pub const LEFT_OUT_BYTES: usize = 200;
    /// Programs and users that are not recorded, up to `OPS`, see [`super::is_excluded`].
    pub const LEFT_OUT: usize = 208;
    /// Start of [`super::OPS_WORDS`] words: a bit per layer and operation, see [`super::op_bit`]: requests of
    /// these are recorded, all of them. All zero: tracing is switched off, or `FILTER` is set.
    pub const OPS: usize = 512;
    /// As many words: which operations are chosen, whether or not tracing is on and their layer is recorded.
    pub const CHOSEN: usize = 1024;
    /// Start of [`super::MAX_EXCEPTIONS`] entries of [`super::EXCEPTION_BYTES`] each, see [`super::exception`].
    pub const EXCEPTION: usize = 1536;
}

/// Programs of which something else is recorded than of the node: at most so many jobs and processes.
pub const MAX_EXCEPTIONS: usize = 20;
/// Bytes of an entry.
pub const EXCEPTION_BYTES: usize = 128;
const _: () = assert!(word::CHOSEN + 8 * OPS_WORDS <= word::EXCEPTION);
const _: () = assert!(word::EXCEPTION + MAX_EXCEPTIONS * EXCEPTION_BYTES <= BYTES);

/// Byte offsets of the `u64` words of an exception.
pub mod exception {
    /// [`super::ExceptionKind`]; written last, and 0 first, when an entry changes.
    pub const KIND: usize = 0;
    /// [`super::job_key`] of the job, or [`crate::segment::header::NONCE`] of the process.
    pub const KEY: usize = 8;
    /// As the words of these names of the page.
    pub const ENABLED: usize = 16;
    /// Layers.
    pub const LAYERS: usize = 24;
    /// Shortest duration.
    pub const MIN_TSC: usize = 32;
    /// Shortest duration.
    pub const MIN_NS: usize = 40;
    /// Sample.
    pub const SAMPLE: usize = 48;
    /// A word per layer up to 7: a bit per operation up to 62; bit 63 is for all further ones.
    pub const CHOSEN: usize = 64;
}

/// Layers that an exception tells apart; higher ones share their words.
const EXCEPTION_LAYERS: usize = 8;

/// Whom an exception is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ExceptionKind {
    /// All processes of a job.
    Job = 1,
    /// One process. Counts more than that of its job.
    Process = 2,
}

/// What stands for a job in an exception (FNV-1a of its id). Jobs that meet in one are steered together.
#[must_use]
pub const fn job_key(job: &[u8]) -> u64 {
    let (mut key, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while at < job.len() {
        key = (key ^ job[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    key
}

/// Where the bit of an operation is in an exception: byte offset of its word in the entry, and the bit in it.
#[must_use]
pub const fn exception_bit(op: Op) -> (usize, u32) {
    let bit = if op.number < 63 { op.number as u32 } else { 63 };
    (exception::CHOSEN + 8 * (op.layer as usize % EXCEPTION_LAYERS), bit)
}

/// Layers that [`word::OPS`] has bits for; higher ones share the bits of these.
pub const OPS_LAYERS: usize = 16;
/// Words of [`word::OPS`]: 256 bits per layer.
pub const OPS_WORDS: usize = OPS_LAYERS * 4;
const _: () = assert!(word::OPS + 8 * OPS_WORDS <= word::CHOSEN);

/// Room for the list at [`word::LEFT_OUT`].
pub const MAX_EXCLUSION_BYTES: usize = word::OPS - word::LEFT_OUT;

/// The list of those who are not recorded, as bytes. A program is a name or, with a slash, a whole path; a user is a number.
/// `None`: too long.
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

/// True if the list names the program with this executable, or this user.
#[must_use]
pub fn is_excluded(list: &[u8], exe: &[u8], user: u32) -> bool {
    let name = exe.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    list.split(|byte| *byte == 0).any(|entry| match entry.split_first() {
        Some((b'p', program)) if program.contains(&b'/') => program == exe,
        Some((b'p', program)) => !program.is_empty() && program == name,
        Some((b'u', digits)) => number(digits) == Some(user),
        _ => false,
    })
}

fn number(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Where the bit of an operation is: byte offset of its word in the page, and the bit in it.
#[inline(always)]
#[must_use]
pub const fn op_bit(op: Op) -> (usize, u32) {
    let word = (op.layer as usize % OPS_LAYERS) * 4 + op.number as usize / 64;
    (word::OPS + 8 * word, op.number as u32 % 64)
}

/// What the page tells producers to do; the words that change while a log-client runs are not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether anything is recorded.
    pub enabled: bool,
    /// Bit per layer number.
    pub layers: u64,
    /// Bit per layer and operation, see [`op_bit`].
    pub chosen: [u64; OPS_WORDS],
    /// When a lane is full.
    pub when_full: WhenFull,
    /// Longest wait of [`WhenFull::Wait`], nanoseconds.
    pub wait_ns: u64,
    /// Slots of a thread's first lane.
    pub lane_slots: u64,
    /// Slots up to which lanes grow.
    pub lane_slots_max: u64,
    /// Bytes of shared memory one process may claim.
    pub process_bytes: u64,
    /// Requests that took less are left out, nanoseconds.
    pub min_duration_ns: u64,
    /// One request in 2ⁿ is kept.
    pub sample_shift: u32,
    /// Lanes are read only when there is a reason.
    pub flight_recorder: bool,
    /// There are programs of which something else is recorded.
    pub excepted: bool,
    /// Requests are recorded with the CPU time of their thread, which takes a system call and a second slot for each.
    pub cpu_time: bool,
}

impl Default for Settings {
    /// Everything is recorded, nothing waits.
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
        }
    }
}

impl Settings {
    /// Reads the settings of a page whose word at byte offset `at` is `get(at)`.
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
            cpu_time: get(word::FILTER) & 2 != 0,
        }
    }

    /// The words of the page, as byte offsets and values, in the order in which to store them. `tsc_hz`: ticks
    /// per second of the time stamp counter, 0 if it is not known.
    ///
    /// [`word::OVERWRITES`] is among them only if it has to become 1.
    pub fn words(&self, tsc_hz: u64) -> impl Iterator<Item = (usize, u64)> {
        let sample = self.sample_mask();
        let overwrites = self.when_full == WhenFull::OverwriteOldest;
        let filters = self.min_duration_ns != 0 || sample != 0 || self.excepted || self.cpu_time;
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
            (word::FILTER, u64::from(filters) | u64::from(self.cpu_time) << 1),
            (word::FLIGHT_RECORDER, u64::from(self.flight_recorder)),
            (word::ENABLED, u64::from(self.enabled)),
        ];
        let overwrites = overwrites.then_some((word::OVERWRITES, 1));
        let ops = (0..OPS_WORDS).map(move |index| {
            let recorded = self.enabled && !filters && self.layers >> (index / 4) & 1 != 0;
            (word::OPS + 8 * index, if recorded { self.chosen[index] } else { 0 })
        });
        let chosen = (0..OPS_WORDS).map(|index| (word::CHOSEN + 8 * index, self.chosen[index]));
        overwrites
            .into_iter()
            .chain([(word::WHEN_FULL, self.when_full as u64)])
            .chain(words)
            .chain(chosen)
            .chain(ops)
    }

    /// The words of an exception, but for its kind and key: byte offsets in the entry, and values. Policy and lanes are
    /// the node's.
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

    /// Chooses an operation, or leaves it out.
    pub fn choose(&mut self, op: Op, recorded: bool) {
        let (at, bit) = op_bit(op);
        let word = &mut self.chosen[(at - word::OPS) / 8];
        *word = *word & !(1 << bit) | u64::from(recorded) << bit;
    }
}

/// What a producer does when its lane is full and cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum WhenFull {
    /// Drop the new record and count it. The application never waits.
    DropNewest = 0,
    /// Wait for the log-client, at most [`word::WAIT_NS`], then drop and count. For `miot run`, where
    /// a complete trace is worth a slower program.
    Wait = 1,
    /// Overwrite the oldest record. What was overwritten before it was read is counted as lost, exactly, by the
    /// attempt numbers. Lanes do not grow: their first size says how much history a thread keeps.
    OverwriteOldest = 2,
}

impl WhenFull {
    /// The policy with this number; unknown ones are the default.
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
    fn programs_and_users_are_left_out_by_name_path_and_number() {
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
    fn settings_survive_the_page() {
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
    fn an_exception_says_of_each_operation_what_its_settings_say() {
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
        assert!(!recorded(&excepted, posix::READ), "each request looks closer");
        assert_eq!(excepted[word::FILTER / 8], 1);
    }

    #[test]
    fn an_operation_is_recorded_if_it_is_chosen_its_layer_is_and_tracing_is_on() {
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
