//! Access to the bytes of a segment, which another process may write or truncate at any time.

use super::lease;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// The bytes of a segment.
///
/// Implementations copy: no reference into shared memory is ever formed, and a truncated segment
/// causes [`OutOfBounds`] and no signal.
pub(crate) trait Memory {
    /// Fills `buffer` from offset `at` on.
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), OutOfBounds>;
    /// Writes one word. All earlier reads precede the visibility of the word.
    fn write_word(&self, at: u64, value: u64) -> Result<(), OutOfBounds>;
    /// Writes some words of one page. A segment file gets all of them or none, whenever the writer
    /// is killed.
    fn write_words(&self, at: u64, values: &[u64]) -> Result<(), OutOfBounds> {
        (at..).step_by(8).zip(values).try_for_each(|(at, value)| self.write_word(at, *value))
    }
    /// Current size in bytes.
    fn size(&self) -> u64;
}

/// Maximum number of words per write.
const MAX_WORDS: usize = 4;

/// The requested bytes do not exist, or no longer exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfBounds;

/// A segment file.
#[derive(Debug)]
pub(crate) struct SegmentFile(OwnedFd);

impl SegmentFile {
    pub(crate) fn new(file: OwnedFd) -> SegmentFile {
        SegmentFile(file)
    }

    /// True as long as its producer, or another process, has it mapped or open. `None` if that
    /// cannot be determined.
    pub(crate) fn is_held(&self) -> Option<bool> {
        lease::is_held(&self.0)
    }

    /// Memory that it takes, bytes.
    pub(crate) fn taken(&self) -> u64 {
        rustix::fs::fstat(&self.0).map_or(0, |stat| memory_of(&stat))
    }
}

/// Memory that a file takes, bytes.
pub(crate) fn memory_of(stat: &Stat) -> u64 {
    /// Unit of `st_blocks`.
    const BLOCK: u64 = 512;
    u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK
}

impl Memory for SegmentFile {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), OutOfBounds> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(self.0.as_fd(), rest, at.saturating_add(done as u64)) {
                Ok(0) => return Err(OutOfBounds),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(_) => return Err(OutOfBounds),
            }
        }
        Ok(())
    }

    fn write_word(&self, at: u64, value: u64) -> Result<(), OutOfBounds> {
        self.write_words(at, &[value])
    }

    fn write_words(&self, at: u64, values: &[u64]) -> Result<(), OutOfBounds> {
        let mut bytes = [0; 8 * MAX_WORDS];
        let bytes = bytes.get_mut(..8 * values.len()).ok_or(OutOfBounds)?;
        bytes
            .chunks_exact_mut(8)
            .zip(values)
            .for_each(|(place, value)| place.copy_from_slice(&value.to_le_bytes()));
        loop {
            match rustix::io::pwrite(self.0.as_fd(), bytes, at) {
                Ok(written) if written == bytes.len() => return Ok(()),
                Err(Errno::INTR) => {}
                _ => return Err(OutOfBounds),
            }
        }
    }

    fn size(&self) -> u64 {
        rustix::fs::fstat(&self.0).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
    }
}

/// A segment in private memory.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct VecMemory(std::cell::RefCell<Vec<u8>>);

#[cfg(test)]
impl VecMemory {
    pub(crate) fn new(bytes: Vec<u8>) -> VecMemory {
        VecMemory(bytes.into())
    }

    pub(crate) fn edit(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.0.borrow_mut());
    }
}

#[cfg(test)]
impl Memory for VecMemory {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), OutOfBounds> {
        let bytes = self.0.borrow();
        let at = usize::try_from(at).map_err(|_| OutOfBounds)?;
        let part = bytes.get(at..).and_then(|rest| rest.get(..buffer.len())).ok_or(OutOfBounds)?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn write_word(&self, at: u64, value: u64) -> Result<(), OutOfBounds> {
        let mut bytes = self.0.borrow_mut();
        let at = usize::try_from(at).map_err(|_| OutOfBounds)?;
        let part = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..8)).ok_or(OutOfBounds)?;
        part.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn size(&self) -> u64 {
        self.0.borrow().len() as u64
    }
}

/// The word at an offset of a private copy; 0 past its end.
#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}
