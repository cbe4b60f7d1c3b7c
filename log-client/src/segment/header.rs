//! The header of a segment, read once.

use super::memory::{Memory, word};
use miot_proto::segment::{Clock, HEADER_BYTES, MAGIC, MAJOR, header, strings};
use std::sync::atomic::{Ordering::Acquire, fence};

/// Content of the header. Except for magic and version, these are unverified claims of the
/// producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) nonce: u64,
    pub(crate) pid: u32,
    pub(crate) ppid: u32,
    pub(crate) clock: Clock,
    pub(crate) created_ticks: u64,
    pub(crate) created_boot_ns: u64,
    /// Inode of the pid namespace of `pid`; `None` if the producer did not know it.
    pub(crate) namespace: Option<u64>,
    pub(crate) rank: Option<u32>,
    pub(crate) exe: Vec<u8>,
    pub(crate) cmdline: Vec<u8>,
    /// Format: see [`miot_proto::job`].
    pub(crate) job: Vec<u8>,
    pub(crate) cwd: Vec<u8>,
}

/// Reason why a header cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// Its producer has not finished it.
    Incomplete,
    /// Layout of another version of MIOT.
    Version { major: u32, minor: u32 },
    /// Invalid content.
    Invalid,
}

impl Header {
    pub(crate) fn read(memory: &dyn Memory) -> Result<Header, HeaderError> {
        let mut magic = [0; 8];
        memory.read(header::MAGIC as u64, &mut magic).map_err(|_| HeaderError::Incomplete)?;
        if u64::from_le_bytes(magic) != MAGIC {
            return Err(HeaderError::Incomplete);
        }
        // The producer stores the magic last (release): everything read from here on is complete.
        fence(Acquire);
        let mut page = [0; HEADER_BYTES];
        memory.read(0, &mut page).map_err(|_| HeaderError::Invalid)?;
        let version = word(&page, header::VERSION);
        let (major, minor) = ((version >> 32) as u32, version as u32);
        if major != MAJOR {
            return Err(HeaderError::Version { major, minor });
        }
        let number = |at| u32::try_from(word(&page, at)).map_err(|_| HeaderError::Invalid);
        let [exe, cmdline, job, cwd] = strings(&page).map(<[u8]>::to_vec);
        Ok(Header {
            nonce: word(&page, header::NONCE),
            pid: number(header::PID)?,
            ppid: number(header::PPID)?,
            clock: Clock::from_number(word(&page, header::CLOCK)).ok_or(HeaderError::Invalid)?,
            created_ticks: word(&page, header::CREATED_TICKS),
            created_boot_ns: word(&page, header::CREATED_BOOT_NS),
            namespace: Some(word(&page, header::PID_NAMESPACE)).filter(|inode| *inode != 0),
            rank: word(&page, header::RANK).checked_sub(1).and_then(|rank| u32::try_from(rank).ok()),
            exe,
            cmdline,
            job,
            cwd,
        })
    }
}
