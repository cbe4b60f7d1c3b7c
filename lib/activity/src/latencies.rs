//! Counts of durations by size, with eight ranges per power of two.
//!
//! The relative error of a duration is at most one sixteenth, at about one kilobyte per
//! distribution. Adding a duration is one index computation without data-dependent branches.
//! [`hdrhistogram`] with the same precision takes twice the memory, and there are thousands of
//! distributions here.

/// Bits of a duration that are kept below the highest set bit.
const DIGITS: u32 = 3;
/// Number of ranges. The last one begins at 2^42 - 2^38 ns, more than an hour, and has no upper
/// end.
pub(crate) const RANGES: usize = 40 << DIGITS;

/// Returns the range of a duration in nanoseconds.
#[inline]
pub(crate) fn range(nanoseconds: u64) -> u16 {
    let highest = (nanoseconds | (1 << DIGITS)).ilog2();
    let index = ((highest - DIGITS) << DIGITS) as usize + (nanoseconds >> (highest - DIGITS)) as usize;
    // Below 2^DIGITS each number is a separate range, with the same formula.
    index.min(RANGES - 1) as u16
}

/// Returns the first nanosecond of a range.
pub(crate) fn first(range: usize) -> u64 {
    let (power, rest) = (range >> DIGITS, range & ((1 << DIGITS) - 1));
    match power.checked_sub(1) {
        None => rest as u64,
        Some(shift) => (rest as u64 + (1 << DIGITS)) << shift,
    }
}

/// Number of durations in each range.
pub(crate) type Counts = [u32; RANGES];

/// Returns the `quantile` of the durations, with a relative error of at most a sixteenth. `longest`
/// is the longest duration.
pub(crate) fn quantile(counts: &[u64; RANGES], quantile: f64, longest: u64) -> u64 {
    let total: u64 = counts.iter().sum();
    let wanted = ((total as f64 * quantile).ceil() as u64).max(1);
    let mut seen = 0;
    for (range, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= wanted {
            return (first(range).midpoint(first(range + 1) - 1)).min(longest);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::{RANGES, first, quantile, range};

    #[test]
    fn ranges_are_contiguous() {
        for index in 0..RANGES {
            assert_eq!(range(first(index)), index as u16, "{index}");
            assert_eq!(range(first(index + 1) - 1), index as u16, "{index}");
        }
        assert!(first(RANGES - 1) > 3_600_000_000_000);
        assert_eq!(range(u64::MAX), RANGES as u16 - 1);
    }

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let mut counts = [0; RANGES];
        for duration in 1..=100_000u64 {
            counts[usize::from(range(duration * 37))] += 1;
        }
        for (share, expected) in [(0.01, 37_000.0), (0.5, 1_850_000.0), (0.99, 3_663_000.0)] {
            let found = quantile(&counts, share, 3_700_000) as f64;
            assert!((found / expected - 1.0).abs() <= 1.0 / 16.0, "{share}: {found}, not {expected}");
        }
        assert_eq!(quantile(&counts, 1.0, 3_700_000), 3_700_000);
        assert_eq!(quantile(&[0; RANGES], 0.5, 0), 0);
    }
}
