//! Values by interval of time. The intervals grow with the time that they cover, so their number is
//! bounded.

use std::collections::VecDeque;

/// Maximum number of intervals: about as many as a plot has columns.
pub const MOST: usize = 1000;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Widths in nanoseconds. Each divides the next, so that intervals can be merged. Beyond the last,
/// widths double.
const WIDTHS: [i64; 24] = [
    1_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    SECOND,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    60 * SECOND,
    300 * SECOND,
    600 * SECOND,
    1_800 * SECOND,
    3_600 * SECOND,
    4 * 3_600 * SECOND,
    12 * 3_600 * SECOND,
    DAY,
];

/// Value that can be merged with another when two intervals become one.
pub trait Join: Default {
    /// Merges the other value into this one.
    fn join(&mut self, other: Self);
}

/// Values by interval of time, with a bounded number of intervals.
#[derive(Clone, Debug)]
pub struct Intervals<T> {
    width: i64,
    /// Number of the first interval, counted from 1970 in units of the width.
    first: i64,
    cells: VecDeque<T>,
    /// Last used interval: its begin and its index.
    recent: (i64, usize),
}

impl<T: Join> Default for Intervals<T> {
    fn default() -> Self {
        Intervals { width: WIDTHS[0], first: 0, cells: VecDeque::new(), recent: (i64::MAX, 0) }
    }
}

impl<T: Join> Intervals<T> {
    /// Returns the value of the interval that contains a time in nanoseconds since 1970.
    pub fn at(&mut self, time: i64) -> &mut T {
        let index = self.place(time);
        &mut self.cells[index]
    }

    /// Distributes an amount over the intervals between two times, in proportion to the time in
    /// each. The sum of the parts is the amount.
    pub fn spread(&mut self, begin: i64, end: i64, amount: u64, mut add: impl FnMut(&mut T, u64)) {
        self.place(end);
        let first = self.place(begin);
        // The last nanosecond of the time is the one before `end`.
        let last = self.place(end.saturating_sub(1).max(begin));
        if first == last {
            return add(&mut self.cells[first], amount);
        }
        let whole = u128::from(end.abs_diff(begin));
        let mut given = 0;
        for index in first..=last {
            let border = self.begin_of(index + 1).clamp(begin, end);
            let so_far = u128::from(amount) * u128::from(border.abs_diff(begin)) / whole;
            let so_far = if index == last { amount } else { so_far as u64 };
            add(&mut self.cells[index], so_far - given);
            given = so_far;
        }
    }

    /// Returns the width of an interval in nanoseconds.
    #[must_use]
    pub fn width(&self) -> i64 {
        self.width
    }

    /// Returns the begin of the first interval in nanoseconds since 1970.
    #[must_use]
    pub fn begin(&self) -> i64 {
        self.begin_of(0)
    }

    /// Returns the values in order of time, including unused intervals between used ones.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.cells.iter()
    }

    fn begin_of(&self, index: usize) -> i64 {
        self.first.saturating_add(index as i64).saturating_mul(self.width)
    }

    fn place(&mut self, time: i64) -> usize {
        let (begin, index) = self.recent;
        if time >= begin && time.saturating_sub(begin) < self.width {
            return index;
        }
        let mut number = time.div_euclid(self.width);
        if self.cells.is_empty() {
            self.first = number;
        }
        loop {
            let last = self.first + self.cells.len() as i64 - 1;
            let span = last.max(number) - self.first.min(number);
            if span < MOST as i64 {
                break;
            }
            self.widen();
            number = time.div_euclid(self.width);
        }
        while number < self.first {
            self.cells.push_front(T::default());
            self.first -= 1;
        }
        let index = (number - self.first) as usize;
        if index >= self.cells.len() {
            self.cells.resize_with(index + 1, T::default);
        }
        self.recent = (number.saturating_mul(self.width), index);
        index
    }

    fn widen(&mut self) {
        let wider = WIDTHS.into_iter().find(|width| *width > self.width);
        let wider = wider.unwrap_or_else(|| self.width.saturating_mul(2));
        let factor = wider / self.width;
        let first = self.first.div_euclid(factor);
        let mut joined = VecDeque::<T>::new();
        for (number, cell) in (self.first..).zip(self.cells.drain(..)) {
            let index = (number.div_euclid(factor) - first) as usize;
            if index == joined.len() {
                joined.push_back(cell);
            } else {
                joined[index].join(cell);
            }
        }
        (self.width, self.first, self.cells) = (wider, first, joined);
        self.recent = (i64::MAX, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Default)]
    struct Sum(u128);

    impl Join for Sum {
        fn join(&mut self, other: Sum) {
            self.0 += other.0;
        }
    }

    #[test]
    fn each_width_divides_the_next() {
        assert!(WIDTHS.windows(2).all(|pair| pair[1] % pair[0] == 0 && pair[1] > pair[0]));
    }

    #[test]
    fn intervals_of_a_second_and_more_begin_at_whole_ones() {
        let mut intervals = Intervals::<Sum>::default();
        let start = 1_700_000_000 * SECOND + 123;
        for second in 0..700 {
            intervals.at(start + second * SECOND).0 += 1;
        }
        assert_eq!((intervals.width(), intervals.begin()), (SECOND, start - 123));
        assert!(intervals.iter().all(|sum| sum.0 == 1));
    }

    proptest! {
        #[test]
        fn amounts_are_conserved_and_in_the_right_interval(
            requests in prop::collection::vec((any::<i64>(), 0i64..10 * SECOND, any::<u64>()), 1..40),
            near in any::<bool>(),
        ) {
            let mut intervals = Intervals::<Sum>::default();
            let mut whole = 0;
            let requests: Vec<_> = requests.into_iter().map(|(at, took, amount)| {
                let begin = if near { at.rem_euclid(100 * SECOND) } else { at };
                (begin, begin.saturating_add(took), amount)
            }).collect();
            for (begin, end, amount) in &requests {
                intervals.spread(*begin, *end, *amount, |sum, part| sum.0 += u128::from(part));
                whole += u128::from(*amount);
            }
            prop_assert_eq!(intervals.iter().map(|sum| sum.0).sum::<u128>(), whole);
            prop_assert!(intervals.iter().count() <= MOST);
            let width = i128::from(intervals.width());
            for (index, sum) in intervals.iter().enumerate() {
                let begin = i128::from(intervals.first + index as i64) * width;
                let most: u128 = requests.iter()
                    .filter(|(from, to, _)| i128::from(*from) < begin + width && begin <= i128::from(*to))
                    .map(|(_, _, amount)| u128::from(*amount))
                    .sum();
                prop_assert!(sum.0 <= most);
            }
        }
    }
}
