//! Numbers of missing parts.

use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Numbers of missing parts, as ranges in order: one file with a wrong name can make up to 2⁶⁴
/// parts missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MissingParts(Vec<RangeInclusive<u64>>);

impl MissingParts {
    /// Returns the parts from `first` to `last` that are not in `existing`.
    #[must_use]
    pub fn between(first: u64, last: u64, existing: &BTreeSet<u64>) -> MissingParts {
        let mut ranges = Vec::new();
        let mut next = Some(first);
        for &part in existing.iter().filter(|part| (first..=last).contains(part)) {
            let gap = next.filter(|next| *next < part).map(|next| next..=part - 1);
            ranges.extend(gap);
            next = part.checked_add(1);
        }
        ranges.extend(next.filter(|next| *next <= last).map(|next| next..=last));
        MissingParts(ranges)
    }

    /// True if no part is missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of missing parts.
    #[must_use]
    pub fn count(&self) -> u64 {
        let counts = self.0.iter().map(|range| (range.end() - range.start()).saturating_add(1));
        counts.fold(0, u64::saturating_add)
    }

    /// The missing parts.
    #[must_use]
    pub fn ranges(&self) -> &[RangeInclusive<u64>] {
        &self.0
    }

    /// Returns `part 3 of the trace is missing` or `7 parts of the trace, from 3 on, are missing`;
    /// `None` if no part is missing.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        let first = self.0.first()?.start();
        Some(match self.count() {
            1 => format!("part {first} of the trace is missing"),
            count => format!("{count} parts of the trace, from {first} on, are missing"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::MissingParts;

    #[test]
    fn gaps_of_any_size_are_ranges() {
        let missing = |first, last, existing: &[u64]| {
            let missing = MissingParts::between(first, last, &existing.iter().copied().collect());
            let ranges: Vec<_> =
                missing.ranges().iter().map(|range| (*range.start(), *range.end())).collect();
            (ranges, missing.count())
        };
        assert_eq!(missing(0, 3, &[0, 1, 2, 3]), (vec![], 0));
        assert_eq!(missing(2, 9, &[0, 3, 4, 7]), (vec![(2, 2), (5, 6), (8, 9)], 5));
        assert_eq!(missing(5, 4, &[]), (vec![], 0));
        assert_eq!(missing(0, 999_999_999_999, &[0, 999_999_999_999]).1, 999_999_999_998);
        assert_eq!(missing(0, u64::MAX, &[u64::MAX]), (vec![(0, u64::MAX - 1)], u64::MAX));
        assert_eq!(missing(0, u64::MAX, &[]).1, u64::MAX);
        let one = MissingParts::between(0, 1, &[1].into());
        assert_eq!(one.message().as_deref(), Some("part 0 of the trace is missing"));
        let more = MissingParts::between(0, 9, &[1].into());
        assert_eq!(more.message().as_deref(), Some("9 parts of the trace, from 0 on, are missing"));
        assert_eq!(MissingParts::default().message(), None);
    }
}
