//! Sets of times: disjoint intervals in order, in nanoseconds, each including its begin and
//! excluding its end.

/// Interval from begin to end.
pub(crate) type Interval = (i64, i64);

/// The union of intervals, in bounded memory.
#[derive(Clone, Debug)]
pub(crate) struct Intervals {
    /// Intervals closer than this are joined.
    gap: u64,
    most: usize,
    list: Vec<Interval>,
}

impl Intervals {
    /// Returns an empty set. Intervals closer than `gap`, and intervals that touch, are joined.
    /// Each time that there are more than `most` intervals, `gap` doubles.
    pub(crate) fn new(gap: u64, most: usize) -> Intervals {
        Intervals { gap: gap.max(1), most: most.max(2), list: Vec::new() }
    }

    /// Adds an interval. Fast if few intervals end after it.
    pub(crate) fn add(&mut self, begin: i64, end: i64) {
        let near = |one: i64, other: i64| one >= other || other.abs_diff(one) < self.gap;
        // Most intervals are the last so far, and do not begin before the previous one.
        let after = self.list.iter().rev().take_while(|(from, _)| !near(end, *from)).count();
        let after = self.list.len() - after;
        let joined = self.list[..after].iter().rev().take_while(|(_, to)| near(*to, begin)).count();
        let first = after - joined;
        if joined == 0 {
            self.list.insert(first, (begin, end));
        } else {
            let all = (self.list[first].0.min(begin), self.list[after - 1].1.max(end));
            self.list[first] = all;
            self.list.drain(first + 1..after);
        }
        while self.list.len() > self.most {
            self.gap = self.gap.saturating_mul(2);
            let gap = self.gap;
            self.list.dedup_by(|later, earlier| {
                let join = later.0.abs_diff(earlier.1) < gap;
                if join {
                    earlier.1 = later.1;
                }
                join
            });
        }
    }

    /// Returns the intervals, in order.
    pub(crate) fn list(&self) -> &[Interval] {
        &self.list
    }

    /// Returns the shortest time between two intervals that are not joined, nanoseconds.
    pub(crate) fn gap(&self) -> u64 {
        self.gap
    }
}

/// Returns the times that are in both sets.
pub(crate) fn intersection(one: &[Interval], other: &[Interval]) -> Vec<Interval> {
    let (mut i, mut j, mut both) = (0, 0, Vec::new());
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        let (begin, end) = (a.0.max(b.0), a.1.min(b.1));
        if begin < end {
            both.push((begin, end));
        }
        if a.1 < b.1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    both
}

/// Returns the times of the first set that are not in the other.
pub(crate) fn difference(one: &[Interval], other: &[Interval]) -> Vec<Interval> {
    let (mut rest, mut first) = (Vec::new(), 0);
    for &(begin, end) in one {
        let mut at = begin;
        first += other[first..].iter().take_while(|(_, to)| *to <= begin).count();
        for &(from, to) in other[first..].iter().take_while(|(from, _)| *from < end) {
            if from > at {
                rest.push((at, from));
            }
            at = at.max(to);
        }
        if at < end {
            rest.push((at, end));
        }
    }
    rest
}

/// Returns the length of all intervals together.
pub(crate) fn length(intervals: &[Interval]) -> u64 {
    intervals.iter().map(|(begin, end)| end.abs_diff(*begin)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union_joins_what_overlaps_or_touches() {
        let mut set = Intervals::new(1, 100);
        for (begin, end) in [(0, 2), (5, 6), (2, 3), (8, 9), (5, 8), (20, 20)] {
            set.add(begin, end);
        }
        assert_eq!(set.list(), [(0, 3), (5, 9), (20, 20)]);
        assert_eq!(length(set.list()), 7);
        set.add(1, 30);
        assert_eq!(set.list(), [(0, 30)]);
    }

    #[test]
    fn too_many_intervals_are_joined_at_growing_distance() {
        let mut set = Intervals::new(1, 4);
        for begin in [0, 10, 20, 30, 1000] {
            set.add(begin, begin + 5);
        }
        assert_eq!((set.list(), set.gap()), (&[(0, 35), (1000, 1005)][..], 8));
    }

    #[test]
    fn intersection_and_difference_split_intervals() {
        let one = [(0, 10), (20, 30), (40, 41)];
        let other = [(2, 3), (5, 22), (25, 26), (29, 50)];
        assert_eq!(intersection(&one, &other), [(2, 3), (5, 10), (20, 22), (25, 26), (29, 30), (40, 41)]);
        assert_eq!(difference(&one, &other), [(0, 2), (3, 5), (22, 25), (26, 29)]);
        assert_eq!(difference(&other, &one), [(10, 20), (30, 40), (41, 50)]);
        assert_eq!(difference(&one, &[]), one);
        assert_eq!(intersection(&[], &other), []);
    }
}
