//! Sets of byte ranges of a file.

use std::ops::Range;

/// Maximum number of ranges of one set. If there are more, the smallest is dropped: the
/// intersection with other ranges is then a lower bound.
const MOST: usize = 256;

/// Disjoint ranges in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    all: Vec<Range<u64>>,
    /// Lower bound of the lengths, which finds the smallest range without a search through all.
    shortest: u64,
}

impl Ranges {
    /// Adds a range. Returns the number of its bytes that were present.
    pub(super) fn add(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        // Touching ranges are joined. Most programs go forward: the last range is tried first.
        let from = match self.all.last() {
            Some(last) if last.start <= range.start => self.all.len() - usize::from(last.end >= range.start),
            _ => self.all.partition_point(|one| one.end < range.start),
        };
        let touched = self.all[from..].iter().take_while(|one| one.start <= range.end).count();
        let to = from + touched;
        let there = self.all[from..to].iter().map(|one| common(one, &range)).sum();
        if touched == 0 && self.all.len() == MOST {
            self.replace_smallest(from, range);
            return there;
        }
        if touched == 0 {
            self.shortest = self.shortest.min(length(&range));
            self.all.insert(from, range);
        } else {
            let joined = self.all[from].start.min(range.start)..self.all[to - 1].end.max(range.end);
            self.all[from] = joined;
            self.all.drain(from + 1..to);
        }
        if self.all.len() > MOST {
            let smallest = self.smallest();
            self.all.remove(smallest);
        }
        there
    }

    /// Inserts a range before `at` and removes the smallest range; of several, the first. Moves
    /// only what is between the two.
    fn replace_smallest(&mut self, at: usize, range: Range<u64>) {
        let smallest = self.smallest();
        if (length(&range), at) <= (length(&self.all[smallest]), smallest) {
            return;
        }
        self.shortest = self.shortest.min(length(&range));
        if smallest < at {
            self.all[smallest..at].rotate_left(1);
            self.all[at - 1] = range;
        } else {
            self.all[at..=smallest].rotate_right(1);
            self.all[at] = range;
        }
    }

    /// Returns the position of the smallest range; of several, that of the first.
    fn smallest(&mut self) -> usize {
        let position = |all: &[Range<u64>], shortest| all.iter().position(|one| length(one) == shortest);
        if let Some(position) = position(&self.all, self.shortest) {
            return position;
        }
        self.shortest = self.all.iter().map(length).min().unwrap_or(0);
        position(&self.all, self.shortest).unwrap_or(0)
    }

    /// Removes a range.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        // Most writes are behind everything that was read.
        if self.all.last().is_none_or(|last| last.end <= range.start) || range.is_empty() {
            return;
        }
        let from = self.all.partition_point(|one| one.end <= range.start);
        let to = from + self.all[from..].iter().take_while(|one| one.start < range.end).count();
        if from == to {
            return;
        }
        let left = self.all[from].start..range.start;
        let right = range.end..self.all[to - 1].end;
        let parts = [left, right].into_iter().filter(|part| !part.is_empty());
        self.shortest = parts.clone().map(|part| length(&part)).fold(self.shortest, u64::min);
        self.all.splice(from..to, parts);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
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
                prop_assert!(ranges.all.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(
                    ranges.all.iter().map(super::length).sum::<u64>(),
                    bytes.iter().filter(|there| **there).count() as u64
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn the_first_of_the_smallest_ranges_is_dropped(
            steps in prop::collection::vec((prop::bool::weighted(0.9), 0u64..4000, 1u64..4), 0..1500),
        ) {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 4004]);
            for (adds, start, length) in steps {
                bytes[start as usize..(start + length) as usize].fill(adds);
                if !adds {
                    ranges.remove(&(start..start + length));
                    continue;
                }
                let _ = ranges.add(start..start + length);
                let runs = bytes.chunk_by(|one, other| one == other);
                let ends = runs.scan(0, |end, run| {
                    *end += run.len() as u64;
                    Some((run[0], *end - run.len() as u64..*end))
                });
                let mut all: Vec<_> = ends.filter(|(is_there, _)| *is_there).map(|(_, run)| run).collect();
                if all.len() > MOST {
                    let smallest = (0..all.len()).min_by_key(|i| super::length(&all[*i])).unwrap();
                    let dropped = all.remove(smallest);
                    bytes[dropped.start as usize..dropped.end as usize].fill(false);
                }
                prop_assert_eq!(&ranges.all, &all);
            }
        }
    }

    #[test]
    fn too_many_ranges_drop_the_smallest() {
        let mut ranges = Ranges::default();
        (0..MOST as u64).for_each(|i| assert_eq!(ranges.add(i * 100..i * 100 + 10), 0));
        assert_eq!(ranges.add(1_000_000..1_000_001), 0);
        assert_eq!(ranges.all.len(), MOST);
        assert_eq!(ranges.add(1_000_000..1_000_001), 0);
        assert_eq!(ranges.add(0..10), 10);
    }
}
