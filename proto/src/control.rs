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

/// Name of the control page in the MIOT directory.
pub const FILE: &str = "control";
/// The default MIOT directory of a node.
pub const DEFAULT_DIR: &str = "/dev/shm/miot";
/// Environment variable that names another MIOT directory.
pub const DIR_ENV: &str = "MIOT_DIR";
/// Bytes of the page.
pub const BYTES: usize = 4096;
/// First word, written last (release). `MIOTCTL1`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MIOTCTL1");

/// Byte offsets of the page's `u64` words.
pub mod word {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// 1 = record, 0 = do not.
    pub const ENABLED: usize = 8;
    /// Bit per layer number: which layers are recorded.
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
}

impl WhenFull {
    /// The policy with this number; unknown ones are the default.
    #[must_use]
    pub fn from_number(number: u64) -> WhenFull {
        if number == WhenFull::Wait as u64 { WhenFull::Wait } else { WhenFull::DropNewest }
    }
}
