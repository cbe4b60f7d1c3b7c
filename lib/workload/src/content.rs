//! What files are filled with: bytes that say where they belong, ready before the clock runs.
//!
//! The content repeats after [`PERIOD`] bytes, so that every piece is a slice of one buffer and nothing is made or copied
//! between the begin and the end of a measurement. A period of a prime number of pages finds data that stands at a
//! wrong power of two; what is misplaced by whole periods is not noticed.

use crate::scatter::Scatter;

/// Bytes after which content repeats: 257 pages, a prime.
pub const PERIOD: u64 = 257 * ALIGNMENT as u64;
/// Begin of buffers and of pieces with direct I/O.
pub const ALIGNMENT: usize = 4096;

/// The content of one generation of a file.
#[derive(Debug)]
pub struct Content {
    bytes: Vec<u8>,
    start: usize,
    /// How often the period is there.
    periods: u64,
}

/// Where content was found that does not belong there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the file.
    pub offset: u64,
    /// What should be there.
    pub expected: u8,
    /// What is.
    pub found: u8,
}

impl Content {
    /// For pieces of at most `longest` bytes. Another `generation` has other content.
    #[must_use]
    pub fn new(generation: u64, longest: u64) -> Content {
        Content::spread(generation, longest, 0)
    }

    /// The same in at least `memory` bytes.
    #[must_use]
    pub fn spread(generation: u64, longest: u64, memory: u64) -> Content {
        let scatter = Scatter::new(generation);
        let periods = memory.div_ceil(PERIOD).max(1);
        let length = (periods * PERIOD) as usize + usize::try_from(longest).unwrap_or(usize::MAX - (1 << 30));
        let mut bytes = vec![0; length + ALIGNMENT + 8];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        let period = PERIOD as usize;
        for (at, word) in bytes[start..start + period].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&scatter.at(at as u64).to_le_bytes());
        }
        for at in (period..length).step_by(period) {
            let end = (at + period).min(length);
            bytes.copy_within(start..start + (end - at), start + at);
        }
        Content { bytes, start, periods }
    }

    /// What belongs at an offset.
    ///
    /// # Panics
    /// If `length` is more than the longest piece.
    #[must_use]
    pub fn at(&self, offset: u64, length: u64) -> &[u8] {
        let begin = self.start + (offset % (self.periods * PERIOD)) as usize;
        &self.bytes[begin..begin + length as usize]
    }

    /// Compares what was read at an offset, all of it or only its first and last eight bytes.
    ///
    /// # Errors
    /// The first byte that does not belong there.
    pub fn check(&self, offset: u64, found: &[u8], all: bool) -> Result<(), Mismatch> {
        let expected = self.at(offset, found.len() as u64);
        let ends = 8.min(found.len());
        let tail = found.len() - ends;
        let good = if all {
            expected == found
        } else {
            expected[..ends] == found[..ends] && expected[tail..] == found[tail..]
        };
        if good {
            return Ok(());
        }
        let differs = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or(0);
        Err(Mismatch { offset: offset + differs as u64, expected: expected[differs], found: found[differs] })
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, Content, Mismatch, PERIOD};

    #[test]
    fn content_is_a_function_of_the_offset() {
        let content = Content::new(1, 3 * PERIOD);
        let whole = content.at(0, 3 * PERIOD);
        for offset in [0, 1, 4095, 4096, PERIOD - 1, PERIOD, 2 * PERIOD + 17] {
            let piece = content.at(offset, 100);
            assert_eq!(piece, &whole[(offset % PERIOD) as usize..][..100]);
            assert_eq!(content.check(offset, piece, true), Ok(()));
        }
        let spread = Content::spread(1, 100, 2 * PERIOD);
        assert_eq!(spread.at(PERIOD + 17, 100), content.at(17, 100));
        assert_ne!(spread.at(PERIOD + 17, 100).as_ptr(), spread.at(17, 100).as_ptr());
        assert_ne!(content.at(0, 64), Content::new(2, 64).at(0, 64));
        assert_eq!(content.at(8192, 1).as_ptr().align_offset(ALIGNMENT), 0);
    }

    #[test]
    fn what_stands_elsewhere_is_found() {
        let content = Content::new(0, 100);
        let mut found = content.at(500, 100).to_vec();
        found[50] ^= 1;
        let expected = content.at(550, 1)[0];
        let mismatch = Mismatch { offset: 550, expected, found: expected ^ 1 };
        assert_eq!(content.check(500, &found, true), Err(mismatch));
        assert_eq!(content.check(500, &found, false), Ok(()), "only the ends are looked at");
        assert!(content.check(512, content.at(1024, 64), false).is_err());
    }
}
