//! Written ranges of a file, to detect overwriting.

use std::collections::BTreeMap;

/// Maximum number of ranges of one file.
const MOST_OF_ONE: usize = 1 << 16;
/// Maximum number of ranges of all files: about 150 MiB.
const MOST_OF_ALL: usize = 1 << 22;

/// Written ranges of all files.
#[derive(Debug, Default)]
pub(super) struct Written {
    files: Vec<Ranges>,
    ranges: usize,
    /// True if there were more ranges than the limits: overwriting of the excess ranges is not
    /// detected.
    pub(super) is_incomplete: bool,
}

/// Begins and ends of ranges that neither overlap nor touch.
#[derive(Debug, Default)]
enum Ranges {
    #[default]
    None,
    One(u64, u64),
    Many(BTreeMap<u64, u64>),
}

impl Written {
    /// Adds a file. Returns its number.
    pub(super) fn file(&mut self) -> u32 {
        self.files.push(Ranges::None);
        (self.files.len() - 1) as u32
    }

    /// Adds a write. Returns the number of its bytes that were written before.
    pub(super) fn write(&mut self, file: u32, begin: u64, bytes: u64) -> u64 {
        let Some(ranges) = self.files.get_mut(file as usize) else { return 0 };
        let end = begin.saturating_add(bytes);
        if begin == end {
            return 0;
        }
        match ranges {
            Ranges::None => *ranges = Ranges::One(begin, end),
            Ranges::One(from, to) if begin <= *to && *from <= end => {
                let before = (*to).min(end) - (*from).max(begin);
                (*from, *to) = ((*from).min(begin), (*to).max(end));
                return before;
            }
            Ranges::One(from, to) => {
                *ranges = Ranges::Many(BTreeMap::from([(*from, *to), (begin, end)]));
                self.ranges += 2;
            }
            Ranges::Many(many) => {
                let had = many.len();
                let is_full = had >= MOST_OF_ONE || self.ranges >= MOST_OF_ALL;
                let (before, fits) = insert(many, begin, end, is_full);
                self.is_incomplete |= !fits;
                self.ranges = self.ranges + many.len() - had;
                return before;
            }
        }
        0
    }

    /// Truncates the ranges of a file to this length.
    pub(super) fn cut(&mut self, file: u32, length: u64) {
        let Some(ranges) = self.files.get_mut(file as usize) else { return };
        match ranges {
            Ranges::Many(many) if length > 0 => {
                let had = many.len();
                let _ = many.split_off(&length);
                if let Some(mut last) = many.last_entry() {
                    let end = last.get_mut();
                    *end = (*end).min(length);
                }
                self.ranges -= had - many.len();
            }
            Ranges::One(from, to) if *from < length => *to = (*to).min(length),
            _ => {
                if let Ranges::Many(many) = ranges {
                    self.ranges -= many.len();
                }
                *ranges = Ranges::None;
            }
        }
    }
}

/// Inserts a range. Returns the number of its bytes that were present, and whether the range fits.
fn insert(many: &mut BTreeMap<u64, u64>, begin: u64, end: u64, is_full: bool) -> (u64, bool) {
    // The last range that begins at or before the end. The other ranges that the new one touches
    // precede it.
    let last = many.range_mut(..=end).next_back().filter(|(_, its_end)| **its_end >= begin);
    let Some((its_begin, its_end)) = last.map(|(from, to)| (*from, to)) else {
        if !is_full {
            many.insert(begin, end);
        }
        return (0, !is_full);
    };
    if its_begin <= begin {
        let before = (*its_end).min(end) - begin;
        *its_end = (*its_end).max(end);
        return (before, true);
    }
    let (mut from, mut to, mut before) = (begin, end, 0);
    let mut next = Some((its_begin, *its_end));
    while let Some((its_begin, its_end)) = next {
        before += its_end.min(end) - its_begin.max(begin);
        (from, to) = (from.min(its_begin), to.max(its_end));
        many.remove(&its_begin);
        let left = many.range(..its_begin).next_back().map(|(from, to)| (*from, *to));
        next = left.filter(|(_, its_end)| *its_end >= begin);
    }
    many.insert(from, to);
    (before, true)
}

#[cfg(test)]
mod tests {
    use super::{MOST_OF_ONE, Ranges, Written};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn overwritten_bytes_are_counted(writes in prop::collection::vec((0..200u64, 0..40u64, prop::bool::weighted(0.1)), 0..60)) {
            let mut written = Written::default();
            let file = written.file();
            let mut bytes = [false; 300];
            for (begin, length, is_cut) in writes {
                if is_cut {
                    written.cut(file, begin);
                    bytes[begin as usize..].fill(false);
                    continue;
                }
                let range = &mut bytes[begin as usize..(begin + length) as usize];
                let before = range.iter().filter(|byte| **byte).count() as u64;
                range.fill(true);
                prop_assert_eq!(written.write(file, begin, length), before);
            }
            let ranges = match &written.files[0] {
                Ranges::Many(many) => many.len(),
                _ => 0,
            };
            prop_assert_eq!(written.ranges, ranges);
        }
    }

    #[test]
    fn too_many_ranges_are_reported() {
        let mut written = Written::default();
        let file = written.file();
        for range in 0..MOST_OF_ONE as u64 {
            assert_eq!(written.write(file, 2 * range, 1), 0);
        }
        assert!(!written.is_incomplete);
        assert_eq!(written.write(file, 1, 1), 0, "joins two");
        assert_eq!(written.write(file, u64::MAX - 5, 10), 0, "a place is free again");
        assert_eq!(written.write(file, u64::MAX / 2, 10), 0);
        assert!(written.is_incomplete);
        assert_eq!(written.write(file, 0, 4), 3);
        assert_eq!(written.write(u32::MAX, 0, 4), 0);
    }
}
