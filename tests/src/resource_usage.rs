//! Memory and file descriptors of a process over time, and whether they stay constant.

use std::fmt;
use std::fs;

/// Values of a process from `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Seconds since the first sample.
    pub at: f64,
    /// Resident memory, KiB.
    pub memory: f64,
    /// Open file descriptors.
    pub files: f64,
}

impl Sample {
    /// Measures the process with this id. Returns `None` if it has ended.
    #[must_use]
    pub fn of(id: u32, at: f64) -> Option<Sample> {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let memory = resident.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        let files = fs::read_dir(format!("/proc/{id}/fd")).ok()?.count() as f64;
        Some(Sample { at, memory, files })
    }
}

/// Trend of one quantity over the second half of the samples. The first half is warm-up.
#[derive(Clone, Copy, Debug)]
pub struct Trend {
    /// Growth over that time, by a least-squares line.
    pub growth: f64,
    /// Median.
    pub median: f64,
    /// Maximum.
    pub max: f64,
}

impl Trend {
    /// Computes the trend of a quantity of the samples.
    #[must_use]
    pub fn of(samples: &[Sample], quantity: impl Fn(&Sample) -> f64) -> Trend {
        let half = &samples[samples.len() / 2..];
        let mut values: Vec<f64> = half.iter().map(&quantity).collect();
        let count = values.len() as f64;
        let (mean_at, mean) =
            (half.iter().map(|s| s.at).sum::<f64>() / count, values.iter().sum::<f64>() / count);
        let both: f64 = half.iter().map(|s| (s.at - mean_at) * (quantity(s) - mean)).sum();
        let square: f64 = half.iter().map(|s| (s.at - mean_at).powi(2)).sum();
        let length = half.last().map_or(0.0, |last| last.at - half[0].at);
        values.sort_by(f64::total_cmp);
        Trend {
            growth: if square > 0.0 { both / square * length } else { 0.0 },
            median: values.get(values.len() / 2).copied().unwrap_or(0.0),
            max: values.last().copied().unwrap_or(0.0),
        }
    }

    /// True if the line rises by at most `growth` and no value exceeds the median by more than
    /// `above`.
    #[must_use]
    pub fn is_flat(&self, growth: f64, above: f64) -> bool {
        self.growth <= growth && self.max - self.median <= above
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "median {:.0}, largest {:.0}, growth {:+.1}", self.median, self.max, self.growth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(value: impl Fn(f64) -> f64) -> Vec<Sample> {
        (0..100).map(|n| Sample { at: f64::from(n), memory: value(f64::from(n)), files: 0.0 }).collect()
    }

    #[test]
    fn leak_is_detected_and_sawtooth_is_not() {
        let course = |value: fn(f64) -> f64| Trend::of(&samples(value), |sample| sample.memory);
        let leak = course(|at| 1000.0 + at * 2.0);
        assert!((leak.growth - 98.0).abs() < 0.01 && !leak.is_flat(50.0, 1000.0), "{leak}");
        let saw = course(|at| 1000.0 + at % 7.0 * 10.0);
        assert!(saw.is_flat(20.0, 60.0) && !saw.is_flat(20.0, 20.0), "{saw}");
        let warm_up = course(|at| if at < 40.0 { at * 100.0 } else { 4000.0 });
        assert!(warm_up.is_flat(0.1, 0.1), "{warm_up}");
    }

    #[test]
    fn this_process_has_memory_and_files() {
        let sample = Sample::of(std::process::id(), 0.0).unwrap();
        assert!(sample.memory > 100.0 && sample.files >= 3.0, "{sample:?}");
        assert!(Sample::of(u32::MAX >> 1, 0.0).is_none());
    }
}
