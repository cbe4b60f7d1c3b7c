//! Mean of repetitions and its confidence interval.

use serde::Serialize;

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The quantile of the normal distribution, for more degrees of freedom.
const NORMAL: f64 = 1.96;

/// Statistics of several values of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Number of values.
    pub values: usize,
    /// Mean.
    pub mean: f64,
    /// Smallest value.
    pub least: f64,
    /// Largest value.
    pub most: f64,
    /// Half the width of the 95 % confidence interval of the mean (Student's t); `None` for a
    /// single value.
    pub half_width: Option<f64>,
}

impl Sample {
    /// Computes the statistics; `None` without values.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Sample> {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        let half_width = (values.len() > 1).then(|| {
            let student = STUDENT.get(values.len() - 2).copied().unwrap_or(NORMAL);
            student * (squares / (count - 1.0) / count).sqrt()
        });
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        Some(Sample { values: values.len(), mean, least, most, half_width })
    }

    /// Returns whether the half width is at most this share of the mean.
    #[must_use]
    pub fn is_within(&self, share: f64) -> bool {
        self.half_width.is_some_and(|half| half <= share * self.mean.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::Sample;

    #[test]
    fn sample_matches_hand_computed_values() {
        // Mean 4, variance 4, standard error 2/√3, t(2) = 4.303.
        let sample = Sample::of(&[2.0, 4.0, 6.0]).unwrap();
        assert_eq!((sample.mean, sample.least, sample.most), (4.0, 2.0, 6.0));
        assert!((sample.half_width.unwrap() - 4.303 * 2.0 / 3f64.sqrt()).abs() < 1e-9);
        assert!(sample.is_within(1.25) && !sample.is_within(1.2));
        assert_eq!(Sample::of(&[5.0]).unwrap().half_width, None);
        assert!(!Sample::of(&[5.0]).unwrap().is_within(1.0));
        assert!(Sample::of(&[]).is_none());
    }
}
