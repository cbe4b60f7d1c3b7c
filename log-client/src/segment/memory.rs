//! Access to the bytes of a segment, which another process may write, truncate or scribble over at any time.

use super::lease;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// The bytes of a segment.
///
/// Implementations copy: no reference into shared memory is ever formed, and a segment that was truncated
/// is a [`Short`] and not a signal.
pub(crate) trait Memory {
    /// Fills `buffer` from `at` on.
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), Short>;
    /// Writes one word. Everything read before is read before the word is visible.
    fn write_word(&self, at: u64, value: u64) -> Result<(), Short>;
    /// Writes some words of one page. A segment file has all of them or none, whenever the writer is killed.
    fn write_words(&self, at: u64, values: &[u64]) -> Result<(), Short> {
        (at..).step_by(8).zip(values).try_for_each(|(at, value)| self.write_word(at, *value))
    }
    /// Size in bytes, now.
    fn size(&self) -> u64;
}

/// Most words written at once.
const MOST_WORDS: usize = 4;

/// The bytes asked for are not there (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short;

/// A segment file.
#[derive(Debug)]
pub(crate) struct SegmentFile(OwnedFd);

impl SegmentFile {
    pub(crate) fn new(file: OwnedFd) -> SegmentFile {
        SegmentFile(file)
    }

    /// True as long as its producer, or anybody else, has it mapped or open. `None` if that cannot be known.
    pub(crate) fn is_held(&self) -> Option<bool> {
        lease::is_held(&self.0)
    }

    /// Memory that it takes, bytes.
    pub(crate) fn taken(&self) -> u64 {
        rustix::fs::fstat(&self.0).map_or(0, |stat| memory_of(&stat))
    }
}

/// The memory that a file takes.
pub(crate) fn memory_of(stat: &Stat) -> u64 {
    /// Unit of `st_blocks`.
    const BLOCK: u64 = 512;
    u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK
}

impl Memory for SegmentFile {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), Short> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(self.0.as_fd(), rest, at.saturating_add(done as u64)) {
                Ok(0) => return Err(Short),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Short),
            }
        }
        Ok(())
    }

    fn write_word(&self, at: u64, value: u64) -> Result<(), Short> {
        self.write_words(at, &[value])
    }

    fn write_words(&self, at: u64, values: &[u64]) -> Result<(), Short> {
        let mut bytes = [0; 8 * MOST_WORDS];
        let bytes = bytes.get_mut(..8 * values.len()).ok_or(Short)?;
        bytes
            .chunks_exact_mut(8)
            .zip(values)
            .for_each(|(place, value)| place.copy_from_slice(&value.to_le_bytes()));
        loop {
            match rustix::io::pwrite(self.0.as_fd(), bytes, at) {
                Ok(written) if written == bytes.len() => return Ok(()),
                Err(Errno::INTR) => {}
                _ => return Err(Short),
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
pub(crate) struct Bytes(std::cell::RefCell<Vec<u8>>);

#[cfg(test)]
impl Bytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Bytes {
        Bytes(bytes.into())
    }

    pub(crate) fn edit(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.0.borrow_mut());
    }
}

#[cfg(test)]
impl Memory for Bytes {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), Short> {
        let bytes = self.0.borrow();
        let at = usize::try_from(at).map_err(|_| Short)?;
        let part = bytes.get(at..).and_then(|rest| rest.get(..buffer.len())).ok_or(Short)?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn write_word(&self, at: u64, value: u64) -> Result<(), Short> {
        let mut bytes = self.0.borrow_mut();
        let at = usize::try_from(at).map_err(|_| Short)?;
        let part = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..8)).ok_or(Short)?;
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
