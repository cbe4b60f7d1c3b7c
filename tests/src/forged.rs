//! A segment written word by word according to the layout, not with the producer's code. It can
//! hold what a broken, hostile or stopped process would leave.

use miot_proto::event::{Event, Ext, RecordKind, SLOT_BYTES, slots_for, write_ext};
use miot_proto::op;
use miot_proto::segment::{
    Clock, HEADER_BYTES, LANE_BYTES, LaneState, MAGIC, MAJOR, SLOTS_OFFSET, header, lane as at,
};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// File of the segment, kept open as a producer keeps it mapped.
#[derive(Debug)]
pub struct Forged {
    file: File,
    path: PathBuf,
    lanes: usize,
    size: u64,
}

/// Path of the segment of a process.
#[must_use]
pub fn path(dir: &Path, pid: u32, nonce: u64) -> PathBuf {
    dir.join(format!("{pid}-{nonce:016x}.seg"))
}

/// Current time of the clock of forged segments.
#[must_use]
pub fn ticks() -> u64 {
    nanoseconds(ClockId::MonotonicRaw)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Forged {
    /// Creates a segment that names this process as its creator and the present as its start.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn new(dir: &Path, pid: u32, nonce: u64) -> io::Result<Forged> {
        let path = path(dir, pid, nonce);
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let forged = Forged { file, path, lanes: 0, size: SLOTS_OFFSET as u64 };
        forged.resize(forged.size)?;
        let namespace = std::fs::read_link("/proc/self/ns/pid")?;
        let namespace: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        for (at, value) in [
            (header::VERSION, u64::from(MAJOR) << 32),
            (header::NONCE, nonce),
            (header::PID, pid.into()),
            (header::PPID, 1),
            (header::CLOCK, Clock::MonotonicRaw as u64),
            (header::CREATED_TICKS, ticks()),
            (header::CREATED_BOOT_NS, nanoseconds(ClockId::Boottime)),
            (header::PID_NAMESPACE, namespace.parse().unwrap_or(0)),
            (header::MAGIC, MAGIC),
        ] {
            forged.set(at as u64, value)?;
        }
        Ok(forged)
    }

    /// Path of its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the length of the file.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    /// Sets a word.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn set(&self, at: u64, value: u64) -> io::Result<()> {
        self.file.write_all_at(&value.to_le_bytes(), at)
    }

    /// Sets a word of a lane.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn set_lane(&self, lane: usize, word: usize, value: u64) -> io::Result<()> {
        self.set((HEADER_BYTES + lane * LANE_BYTES + word) as u64, value)
    }

    /// Returns a word of a lane.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn get_lane(&self, lane: usize, word: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, (HEADER_BYTES + lane * LANE_BYTES + word) as u64)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Claims another lane and adds space for its slots.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn lane(&mut self, slots: u64) -> io::Result<usize> {
        let slots_at = self.size;
        self.size += slots * SLOT_BYTES as u64;
        self.resize(self.size)?;
        self.lane_at(slots_at, slots)
    }

    /// Claims another lane with slots at the given offset, without adding space.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn lane_at(&mut self, slots_at: u64, slots: u64) -> io::Result<usize> {
        let lane = self.lanes;
        self.lanes += 1;
        for (word, value) in [
            (at::SLOTS_AT, slots_at),
            (at::SLOTS, slots),
            (at::TID, std::process::id().into()),
            (at::CLAIMED_TICKS, ticks()),
            (at::STATE, 1 << 32 | LaneState::Claimed as u64),
        ] {
            self.set_lane(lane, word, value)?;
        }
        self.set(header::LANES as u64, self.lanes as u64)?;
        Ok(lane)
    }

    /// Sets the mark of a lane: a record is being completed.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn mark(&self, lane: usize) -> io::Result<()> {
        let tail = self.get_lane(lane, at::TAIL)?;
        self.set_lane(lane, at::TAIL, tail | 1)
    }

    /// Writes and commits a record that completed at `end`. Its offset is its number.
    ///
    /// # Errors
    /// Error of the file system.
    pub fn commit(&self, lane: usize, attempt: u32, end: u64, path: &[u8]) -> io::Result<()> {
        let event = Event {
            op: op::client::READ,
            request: attempt.wrapping_add(1),
            enclosing: 0,
            end,
            duration: 10,
            flags: 0,
            handle: 1,
            offset: attempt.into(),
            length: 1,
            result: 1,
        };
        let ext = Ext { path1: path, ..Ext::default() };
        let mut slots = vec![[0; 8]; slots_for(&ext)];
        slots[0] = event.slot(RecordKind::Request, slots.len() as u8, attempt);
        if slots.len() > 1 {
            write_ext(&ext, |slot, word, value| slots[slot][word] = value);
        }
        let tail = self.get_lane(lane, at::TAIL)? >> 1;
        let (slots_at, room) = (self.get_lane(lane, at::SLOTS_AT)?, self.get_lane(lane, at::SLOTS)?);
        for (position, words) in (tail..).zip(&slots) {
            let place = slots_at + (position & (room - 1)) * SLOT_BYTES as u64;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.file.write_all_at(&bytes, place)?;
        }
        self.set_lane(lane, at::TAIL, (tail + slots.len() as u64) << 1)
    }
}
