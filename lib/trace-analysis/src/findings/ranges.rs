//! Sets of byte ranges of a file.

use std::ops::Range;

/// Maximum number of ranges of one set. If there are more, the smallest is dropped: the
/// intersection with other ranges is then a lower bound.
const MOST: usize = 256;

/// Disjoint ranges in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds a range. Returns the number of its bytes that were present.
    pub(super) fn add(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        // Touching ranges are joined.
        let from = self.0.partition_point(|one| one.end < range.start);
        let to = from + self.0[from..].partition_point(|one| one.start <= range.end);
        let there = self.0[from..to].iter().map(|one| common(one, &range)).sum();
        if from == to {
            self.0.insert(from, range);
        } else {
            let all = self.0[from].start.min(range.start)..self.0[to - 1].end.max(range.end);
            self.0[from] = all;
            self.0.drain(from + 1..to);
        }
        if self.0.len() > MOST {
            let smallest = (0..self.0.len()).min_by_key(|i| self.0[*i].end - self.0[*i].start);
            smallest.map(|smallest| self.0.remove(smallest));
        }
        there
    }

    /// Removes a range.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        let from = self.0.partition_point(|one| one.end <= range.start);
        let to = from + self.0[from..].partition_point(|one| one.start < range.end);
        if from == to || range.is_empty() {
            return;
        }
        let left = self.0[from].start..range.start;
        let right = range.end..self.0[to - 1].end;
        self.0.splice(from..to, [left, right].into_iter().filter(|part| !part.is_empty()));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

fn common(one: &Range<u64>, other: &Range<u64>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

#[cfg(test)]
mod tests {
    use super::{MOST, Ranges};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_a_set_of_bytes(steps in prop::collection::vec((any::<bool>(), 0u64..200, 0u64..50), 0..60)) {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 256]);
            for (adds, start, length) in steps {
                let range = start..start + length;
                let part = &mut bytes[start as usize..(start + length) as usize];
                if adds {
                    let there = part.iter().filter(|there| **there).count() as u64;
                    prop_assert_eq!(ranges.add(range), there);
                } else {
                    ranges.remove(&range);
                }
                part.fill(adds);
                prop_assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(
                    ranges.0.iter().map(|one| one.end - one.start).sum::<u64>(),
                    bytes.iter().filter(|there| **there).count() as u64
                );
            }
        }
    }

    #[test]
    fn too_many_ranges_drop_the_smallest() {
        let mut ranges = Ranges::default();
        (0..MOST as u64).for_each(|i| assert_eq!(ranges.add(i * 100..i * 100 + 10), 0));
        assert_eq!(ranges.add(1_000_000..1_000_001), 0);
        assert_eq!(ranges.0.len(), MOST);
        assert_eq!(ranges.add(1_000_000..1_000_001), 0);
        assert_eq!(ranges.add(0..10), 10);
    }
}
