//! Medians of repeated measurements.

use serde::Serialize;

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

/// Returns the median of the values and its 95 % interval by the bootstrap: medians of the same
/// number of values, drawn at random with replacement, with a fixed seed.
pub(crate) fn median_with_interval(values: &[f64]) -> Interval {
    /// Number of draws. More would not move a bound by a tenth of the interval.
    const DRAWS: usize = 1000;
    if values.is_empty() {
        return Interval::default();
    }
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        values[(random % values.len() as u64) as usize]
    };
    let mut medians: Vec<f64> =
        (0..DRAWS).map(|_| median((0..values.len()).map(|_| next()).collect())).collect();
    medians.sort_by(f64::total_cmp);
    Interval {
        median: median(values.to_vec()),
        low: medians[DRAWS * 25 / 1000],
        high: medians[DRAWS * 975 / 1000 - 1],
        repetitions: values.len(),
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
    fn summary_without_values_is_zero() {
        assert_eq!(Summary::of(Vec::new()).median, 0.0);
    }
}
