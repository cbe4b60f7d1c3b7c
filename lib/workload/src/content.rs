//! Content of files: bytes that depend on their offset, prepared before the measurement.
//!
//! The content repeats after [`PERIOD`] bytes, so that every extent is a slice of one buffer, and a
//! measurement neither generates nor copies data. The period is a prime number of pages, so that
//! verification detects data that is misplaced by a power of two. It does not detect data that is
//! misplaced by whole periods.

use crate::rng::PositionRng;

/// Bytes after which content repeats: 257 pages; 257 is a prime.
pub const PERIOD: u64 = 257 * ALIGNMENT as u64;
/// Alignment of buffers, offsets and lengths for direct I/O, bytes.
pub const ALIGNMENT: usize = 4096;

/// The content of one generation of a file.
#[derive(Debug)]
pub struct Content {
    bytes: Vec<u8>,
    /// Index of the first aligned byte.
    start: usize,
    /// Number of periods in the buffer.
    periods: u64,
}

/// A byte that differs from the expected content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the file.
    pub offset: u64,
    /// Expected byte.
    pub expected: u8,
    /// Byte that was read.
    pub found: u8,
}

/// Which bytes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// All bytes.
    All,
    /// The first and last eight bytes.
    Ends,
}

impl Content {
    /// Creates the content of a generation, for extents of at most `longest` bytes.
    #[must_use]
    pub fn new(generation: u64, longest: u64) -> Content {
        Content::with_memory(generation, longest, 0)
    }

    /// As [`new`](Self::new), with at least `memory` bytes of buffer, so that little of it stays in
    /// the processor's cache.
    #[must_use]
    pub fn with_memory(generation: u64, longest: u64, memory: u64) -> Content {
        let rng = PositionRng::new(generation);
        let periods = memory.div_ceil(PERIOD).max(1);
        let length = (periods * PERIOD) as usize + usize::try_from(longest).unwrap_or(usize::MAX - (1 << 30));
        let mut bytes = vec![0; length + ALIGNMENT + 8];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        let period = PERIOD as usize;
        for (at, word) in bytes[start..start + period].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&rng.at(at as u64).to_le_bytes());
        }
        for at in (period..length).step_by(period) {
            let end = (at + period).min(length);
            bytes.copy_within(start..start + (end - at), start + at);
        }
        Content { bytes, start, periods }
    }

    /// Returns the content at an offset.
    ///
    /// # Panics
    /// If `length` is more than the longest extent.
    #[must_use]
    pub fn at(&self, offset: u64, length: u64) -> &[u8] {
        let begin = self.start + (offset % (self.periods * PERIOD)) as usize;
        &self.bytes[begin..begin + length as usize]
    }

    /// Compares bytes that were read at an offset.
    ///
    /// # Errors
    /// The first byte that differs.
    pub fn check(&self, offset: u64, found: &[u8], compare: Compare) -> Result<(), Mismatch> {
        let expected = self.at(offset, found.len() as u64);
        let ends = 8.min(found.len());
        let tail = found.len() - ends;
        let is_equal = match compare {
            Compare::All => expected == found,
            Compare::Ends => expected[..ends] == found[..ends] && expected[tail..] == found[tail..],
        };
        if is_equal {
            return Ok(());
        }
        let differs = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or(0);
        Err(Mismatch { offset: offset + differs as u64, expected: expected[differs], found: found[differs] })
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, Compare, Content, Mismatch, PERIOD};

    #[test]
    fn content_is_a_function_of_the_offset() {
        let content = Content::new(1, 3 * PERIOD);
        let whole = content.at(0, 3 * PERIOD);
        for offset in [0, 1, 4095, 4096, PERIOD - 1, PERIOD, 2 * PERIOD + 17] {
            let extent = content.at(offset, 100);
            assert_eq!(extent, &whole[(offset % PERIOD) as usize..][..100]);
            assert_eq!(content.check(offset, extent, Compare::All), Ok(()));
        }
        let spread = Content::with_memory(1, 100, 2 * PERIOD);
        assert_eq!(spread.at(PERIOD + 17, 100), content.at(17, 100));
        assert_ne!(spread.at(PERIOD + 17, 100).as_ptr(), spread.at(17, 100).as_ptr());
        assert_ne!(content.at(0, 64), Content::new(2, 64).at(0, 64));
        assert_eq!(content.at(8192, 1).as_ptr().align_offset(ALIGNMENT), 0);
    }

    #[test]
    fn misplaced_content_is_detected() {
        let content = Content::new(0, 100);
        let mut found = content.at(500, 100).to_vec();
        found[50] ^= 1;
        let expected = content.at(550, 1)[0];
        let mismatch = Mismatch { offset: 550, expected, found: expected ^ 1 };
        assert_eq!(content.check(500, &found, Compare::All), Err(mismatch));
        assert_eq!(content.check(500, &found, Compare::Ends), Ok(()), "only the ends are compared");
        assert!(content.check(512, content.at(1024, 64), Compare::Ends).is_err());
    }
}
