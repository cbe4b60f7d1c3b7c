//! Medians of repeated measurements.

use serde::Serialize;
use std::time::Duration;

/// Summary of the repetitions of one measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// Median.
    pub(crate) median: f64,
    /// Minimum.
    pub(crate) min: f64,
    /// Maximum.
    pub(crate) max: f64,
    /// Number of repetitions.
    pub(crate) repetitions: usize,
}

impl Summary {
    /// Summarizes these values. All fields are zero if there are none.
    pub(crate) fn of(mut values: Vec<f64>) -> Summary {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            values.get(((values.len().max(1) - 1) as f64 * share).round() as usize).copied().unwrap_or(0.0)
        };
        Summary { median: at(0.5), min: at(0.0), max: at(1.0), repetitions: values.len() }
    }
}

/// A median and its confidence interval.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Interval {
    /// Median.
    pub(crate) median: f64,
    /// Lower bound of 95 % of resampled medians.
    pub(crate) low: f64,
    /// Upper bound of 95 % of resampled medians.
    pub(crate) high: f64,
    /// Number of values.
    pub(crate) repetitions: usize,
}

impl Interval {
    /// Half of the width, in the unit of the median.
    pub(crate) fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// Returns the median of the values and its 95 % interval by the bootstrap: medians of the same
/// number of values, drawn at random with replacement, with a fixed seed.
pub(crate) fn median_with_interval(values: &[f64]) -> Interval {
    bootstrap(values.len(), |drawn| median(drawn.iter().map(|at| values[*at]).collect()))
}

/// Returns the ratio of the medians of pairs, with its 95 % interval by the bootstrap: pairs are
/// drawn together. For a ratio of small differences, whose ratios of pairs have no useful median.
pub(crate) fn ratio_of_medians(pairs: &[(f64, f64)]) -> Interval {
    bootstrap(pairs.len(), |drawn| {
        let [own, other] = [|pair: (f64, f64)| pair.0, |pair: (f64, f64)| pair.1]
            .map(|side| median(drawn.iter().map(|at| side(pairs[*at])).collect()));
        own / other
    })
}

/// Returns a figure of `count` values, and the interval that holds 95 % of the figures of values
/// drawn at random with replacement. `figure` gets the indices of the values.
fn bootstrap(count: usize, figure: impl Fn(&[usize]) -> f64) -> Interval {
    /// Number of draws. More would not move a bound by a tenth of the interval.
    const DRAWS: usize = 1000;
    if count == 0 {
        return Interval::default();
    }
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % count as u64) as usize
    };
    let mut figures: Vec<f64> =
        (0..DRAWS).map(|_| figure(&(0..count).map(|_| next()).collect::<Vec<_>>())).collect();
    figures.sort_by(f64::total_cmp);
    Interval {
        median: figure(&(0..count).collect::<Vec<_>>()),
        low: figures[DRAWS * 25 / 1000],
        high: figures[DRAWS * 975 / 1000 - 1],
        repetitions: count,
    }
}

/// Number of repetitions of a measurement: until its interval is narrow, or its time is used up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeat {
    /// At least this number.
    pub(crate) least: usize,
    /// At most this number.
    pub(crate) most: usize,
    /// Half of the wanted width of the interval.
    pub(crate) half_width: f64,
    /// Time for all repetitions.
    pub(crate) time: Duration,
}

impl Repeat {
    /// Returns whether there are enough repetitions. `intervals` are those of all figures that must
    /// be narrow.
    pub(crate) fn is_enough(&self, repetitions: usize, spent: Duration, intervals: &[Interval]) -> bool {
        let is_narrow = intervals.iter().all(|interval| interval.half_width() <= self.half_width);
        repetitions >= self.least && (is_narrow || repetitions >= self.most || spent >= self.time)
    }
}

/// Returns the median; of an even number of values the upper one of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_odd_number_is_the_middle() {
        let summary = Summary::of(vec![5.0, 1.0, 3.0]);
        assert_eq!((summary.median, summary.min, summary.max, summary.repetitions), (3.0, 1.0, 5.0, 3));
    }

    #[test]
    fn interval_holds_the_median_and_is_narrow_for_equal_values() {
        let mut values = vec![10.0; 50];
        values.extend([0.0, 100.0]);
        let agreed = median_with_interval(&values);
        assert_eq!((agreed.low, agreed.median, agreed.high), (10.0, 10.0, 10.0));
        let spread: Vec<f64> = (0..99).map(f64::from).collect();
        let spread = median_with_interval(&spread);
        assert!(spread.low < 45.0 && spread.median == 49.0 && spread.high > 53.0, "{spread:?}");
        assert!(spread.low > 20.0 && spread.high < 80.0, "{spread:?}");
    }

    #[test]
    fn ratio_of_medians_draws_pairs_together() {
        let pairs: Vec<(f64, f64)> = (1..100).map(|x| (f64::from(x) * 3.0, f64::from(x))).collect();
        let ratio = ratio_of_medians(&pairs);
        assert_eq!((ratio.low, ratio.median, ratio.high), (3.0, 3.0, 3.0));
    }

    #[test]
    fn repetitions_end_when_narrow_or_out_of_time() {
        let repeat = Repeat { least: 3, most: 10, half_width: 1.0, time: Duration::from_secs(5) };
        let wide = [Interval { low: -2.0, high: 2.0, ..Interval::default() }];
        let narrow = [Interval { low: -1.0, high: 1.0, ..Interval::default() }];
        for (repetitions, seconds, intervals, enough) in [
            (2, 9, &narrow, false),
            (3, 0, &narrow, true),
            (3, 0, &wide, false),
            (3, 5, &wide, true),
            (10, 0, &wide, true),
        ] {
            let spent = Duration::from_secs(seconds);
            assert_eq!(
                repeat.is_enough(repetitions, spent, intervals),
                enough,
                "{repetitions} in {seconds} s"
            );
        }
    }

    #[test]
    fn summary_without_values_is_zero() {
        assert_eq!(Summary::of(Vec::new()).median, 0.0);
    }
}
