//! Medians of repeated measurements.

use serde::Serialize;

/// What repetitions of one measurement say.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// The middle one.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The greatest.
    pub(crate) max: f64,
    /// How many.
    pub(crate) repetitions: usize,
}

impl Summary {
    /// Of these values; zeros if there are none.
    pub(crate) fn of(mut values: Vec<f64>) -> Summary {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            values.get(((values.len().max(1) - 1) as f64 * share).round() as usize).copied().unwrap_or(0.0)
        };
        Summary { median: at(0.5), min: at(0.0), max: at(1.0), repetitions: values.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_odd_number() {
        let summary = Summary::of(vec![5.0, 1.0, 3.0]);
        assert_eq!((summary.median, summary.min, summary.max, summary.repetitions), (3.0, 1.0, 5.0, 3));
    }

    #[test]
    fn nothing_measured_is_zero() {
        assert_eq!(Summary::of(Vec::new()).median, 0.0);
    }
}
