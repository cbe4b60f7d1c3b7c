//! Written ranges of a file, to detect overwriting.

use super::changes::{Change, ChangedCounter};

/// Maximum number of ranges of one file.
const MOST_OF_ONE: usize = 1 << 16;
/// Maximum number of ranges of all files: about 150 MiB.
const MOST_OF_ALL: usize = 1 << 22;

/// A change of the written ranges of a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum RangeChange {
    /// A write, which is this change of the counters.
    Write { change: u32, file: u32, begin: u64, bytes: u64 },
    /// The file has this length at most.
    Cut { file: u32, length: u64 },
}

/// Written ranges of all files.
#[derive(Debug, Default)]
pub(super) struct Written {
    files: Vec<Ranges>,
    ranges: usize,
    /// True if there were more ranges than the limits: overwriting of the excess ranges is not
    /// detected.
    pub(super) is_incomplete: bool,
}

/// Maximum number of ranges of a chunk; few in tests, so that their ranges need several chunks.
const CHUNK: usize = if cfg!(test) { 4 } else { 128 };

/// Begins and ends of ranges that neither overlap nor touch.
#[derive(Debug, Default)]
enum Ranges {
    #[default]
    None,
    One(u64, u64),
    Many(Chunks),
}

impl Written {
    /// Applies changes in order, of files with numbers below `files`. Adds to each write among
    /// `changes` the number of its bytes that were written before.
    pub(super) fn apply(&mut self, files: usize, ranges: &[RangeChange], changes: &mut [Change]) {
        if files > self.files.len() {
            self.files.resize_with(files, Ranges::default);
        }
        for range in ranges {
            match *range {
                RangeChange::Cut { file, length } => self.cut(file, length),
                RangeChange::Write { change, file, begin, bytes } => {
                    let before = self.write(file, begin, bytes);
                    if let Some(ChangedCounter::Access { overwritten, .. }) =
                        changes.get_mut(change as usize).map(|change| &mut change.counter)
                    {
                        *overwritten += before;
                    }
                }
            }
        }
    }

    /// Adds a write. Returns the number of its bytes that were written before.
    fn write(&mut self, file: u32, begin: u64, bytes: u64) -> u64 {
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
                let both =
                    if *from < begin { [(*from, *to), (begin, end)] } else { [(begin, end), (*from, *to)] };
                *ranges = Ranges::Many(Chunks::of(both));
                self.ranges += 2;
            }
            Ranges::Many(many) => {
                let had = many.len;
                let is_full = had >= MOST_OF_ONE || self.ranges >= MOST_OF_ALL;
                let (before, fits) = many.insert(begin, end, is_full);
                self.is_incomplete |= !fits;
                self.ranges = self.ranges + many.len - had;
                return before;
            }
        }
        0
    }

    /// Truncates the ranges of a file to this length.
    fn cut(&mut self, file: u32, length: u64) {
        let Some(ranges) = self.files.get_mut(file as usize) else { return };
        match ranges {
            Ranges::Many(many) if length > 0 => {
                let had = many.len;
                many.cut(length);
                self.ranges -= had - many.len;
            }
            Ranges::One(from, to) if *from < length => *to = (*to).min(length),
            _ => {
                if let Ranges::Many(many) = ranges {
                    self.ranges -= many.len;
                }
                *ranges = Ranges::None;
            }
        }
    }
}

/// Ranges in order, in chunks: a B-tree of two levels. The map of std has no cursor, so that a
/// write that joins two ranges would search it five times.
#[derive(Debug, Default)]
struct Chunks {
    /// Begin of the first range of each chunk.
    begins: Vec<u64>,
    /// Begins and ends. No chunk is empty.
    chunks: Vec<Vec<(u64, u64)>>,
    /// Number of ranges.
    len: usize,
}

impl Chunks {
    fn of(ranges: [(u64, u64); 2]) -> Chunks {
        Chunks { begins: vec![ranges[0].0], chunks: vec![ranges.to_vec()], len: ranges.len() }
    }

    /// Inserts a range. Returns the number of its bytes that were present, and whether the range
    /// fits.
    fn insert(&mut self, begin: u64, end: u64, is_full: bool) -> (u64, bool) {
        // The last range that begins at or before the end. The other ranges that the new one
        // touches precede it.
        let Some(chunk) = self.begins.partition_point(|first| *first <= end).checked_sub(1) else {
            if !is_full {
                self.put(0, 0, (begin, end));
            }
            return (0, !is_full);
        };
        let at = self.chunks[chunk].partition_point(|(from, _)| *from <= end).saturating_sub(1);
        let (from, to) = &mut self.chunks[chunk][at];
        if *to < begin {
            if !is_full {
                self.put(chunk, at + 1, (begin, end));
            }
            return (0, !is_full);
        }
        if *from <= begin {
            let before = (*to).min(end) - begin;
            *to = (*to).max(end);
            return (before, true);
        }
        (self.join((chunk, at), begin, end), true)
    }

    /// Joins a range with those that it touches, of which `last` is the last. Returns the number of
    /// its bytes that were present.
    fn join(&mut self, last: (usize, usize), begin: u64, end: u64) -> u64 {
        let (mut chunk, mut at) = last;
        let (mut from, mut to, mut before) = (begin, end, 0);
        let mut joined = 0;
        loop {
            joined += 1;
            let (its_begin, its_end) = self.chunks[chunk][at];
            before += its_end.min(end) - its_begin.max(begin);
            (from, to) = (from.min(its_begin), to.max(its_end));
            let previous = match (chunk, at) {
                (0, 0) => break,
                (_, 0) => (chunk - 1, self.chunks[chunk - 1].len() - 1),
                _ => (chunk, at - 1),
            };
            if self.chunks[previous.0][previous.1].1 < begin {
                break;
            }
            (chunk, at) = previous;
        }
        self.chunks[chunk][at] = (from, to);
        self.begins[chunk] = self.chunks[chunk][0].0;
        self.len -= joined - 1;
        if chunk == last.0 {
            self.chunks[chunk].drain(at + 1..=last.1);
        } else {
            self.chunks[chunk].truncate(at + 1);
            self.chunks[last.0].drain(..=last.1);
            let end = last.0 + usize::from(self.chunks[last.0].is_empty());
            self.chunks.drain(chunk + 1..end);
            self.begins.drain(chunk + 1..end);
            if let (Some(begin), Some(next)) = (self.begins.get_mut(chunk + 1), self.chunks.get(chunk + 1)) {
                *begin = next[0].0;
            }
        }
        before
    }

    /// Puts a range at a position of a chunk.
    fn put(&mut self, chunk: usize, at: usize, range: (u64, u64)) {
        self.len += 1;
        if self.chunks.is_empty() || self.chunks[chunk].len() == CHUNK && at == CHUNK {
            // Most programs go forward: full chunks stay full.
            let next = (chunk + 1).min(self.chunks.len());
            self.begins.insert(next, range.0);
            self.chunks.insert(next, vec![range]);
            return;
        }
        let (mut chunk, mut at) = (chunk, at);
        if self.chunks[chunk].len() == CHUNK {
            let rest = self.chunks[chunk].split_off(CHUNK / 2);
            self.begins.insert(chunk + 1, rest[0].0);
            self.chunks.insert(chunk + 1, rest);
            if at > CHUNK / 2 {
                (chunk, at) = (chunk + 1, at - CHUNK / 2);
            }
        }
        self.chunks[chunk].insert(at, range);
        self.begins[chunk] = self.chunks[chunk][0].0;
    }

    /// Removes everything from this offset on.
    fn cut(&mut self, length: u64) {
        let left = self.begins.partition_point(|first| *first < length);
        self.begins.truncate(left);
        self.chunks.truncate(left);
        if let Some(last) = self.chunks.last_mut() {
            last.truncate(last.partition_point(|(from, _)| *from < length));
            if let Some((_, end)) = last.last_mut() {
                *end = (*end).min(length);
            }
        }
        self.len = self.chunks.iter().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_OF_ONE, Ranges, Written};
    use proptest::prelude::*;

    fn one_file() -> (Written, u32) {
        let mut written = Written::default();
        written.apply(1, &[], &mut []);
        (written, 0)
    }

    proptest! {
        #[test]
        fn overwritten_bytes_are_counted(writes in prop::collection::vec((0..200u64, 0..40u64, prop::bool::weighted(0.1)), 0..60)) {
            let (mut written, file) = one_file();
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
                Ranges::Many(many) => many.len,
                _ => 0,
            };
            prop_assert_eq!(written.ranges, ranges);
        }
    }

    #[test]
    fn too_many_ranges_are_reported() {
        let (mut written, file) = one_file();
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
