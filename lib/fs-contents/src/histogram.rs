//! Distributions over bins whose bounds are powers of two, by count and by the sum of values.

use serde::{Deserialize, Serialize};

/// Number of bins: one for 0, and one for each power of two of a `u64`.
const BINS: usize = 65;

/// Number of values in a bin, and their sums. Sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Number of values.
    pub count: u64,
    /// Sum of the values.
    pub total: u64,
    /// Bytes of the files with these values; 0 if the values do not belong to files.
    pub size: u64,
    /// Bytes of these files on the disk.
    pub capacity: u64,
}

impl Amount {
    /// Adds another amount.
    pub fn add(&mut self, other: &Amount) {
        self.count = self.count.saturating_add(other.count);
        self.total = self.total.saturating_add(other.total);
        self.size = self.size.saturating_add(other.size);
        self.capacity = self.capacity.saturating_add(other.capacity);
    }
}

/// A bin with the values from `from` to below `below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Lowest value: 0, or a power of two.
    pub from: u64,
    /// First value above the bin: the next power of two; `None` if there is none.
    pub below: Option<u64>,
    /// Values in the bin.
    #[serde(flatten)]
    pub amount: Amount,
}

/// A histogram with bins for the values 0, 1, 2 to 3, 4 to 7, and so on. The bins do not depend on
/// the values, so that histograms can be merged and compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Histogram {
    bins: Box<[Amount; BINS]>,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { bins: Box::new([Amount::default(); BINS]), max: 0 }
    }
}

fn bin(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

fn from(bin: usize) -> u64 {
    if bin == 0 { 0 } else { 1 << (bin - 1) }
}

impl Histogram {
    /// Adds a value of a file of `size` bytes that uses `capacity` bytes on the disk.
    pub fn add(&mut self, value: u64, size: u64, capacity: u64) {
        self.bins[bin(value)].add(&Amount { count: 1, total: value, size, capacity });
        self.max = self.max.max(value);
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        self.bins.iter_mut().zip(other.bins.iter()).for_each(|(bin, other)| bin.add(other));
        self.max = self.max.max(other.max);
    }

    /// Returns the sum of all bins.
    #[must_use]
    pub fn sum(&self) -> Amount {
        self.bins.iter().fold(Amount::default(), |mut sum, bin| {
            sum.add(bin);
            sum
        })
    }

    /// Returns the greatest value; 0 if there is none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the bins from the first to the last that is not empty.
    pub fn bins(&self) -> impl Iterator<Item = Bin> + '_ {
        let used = |bin: &Amount| bin.count > 0;
        let first = self.bins.iter().position(used).unwrap_or(0);
        let end = self.bins.iter().rposition(used).map_or(0, |last| last + 1);
        (first..end).map(|at| self.bin(at))
    }

    fn bin(&self, at: usize) -> Bin {
        Bin { from: from(at), below: (at + 1 < BINS).then(|| from(at + 1)), amount: self.bins[at] }
    }

    /// Returns the greatest difference of the cumulative shares of two distributions, and the bound
    /// below which these shares lie (the Kolmogorov-Smirnov statistic, at the bounds of the bins).
    /// `None` if one of them is empty.
    #[must_use]
    pub fn distance(&self, other: &Histogram, of: fn(&Amount) -> u64) -> Option<(f64, Option<u64>)> {
        let (sum, other_sum) = (of(&self.sum()), of(&other.sum()));
        if sum == 0 || other_sum == 0 {
            return None;
        }
        let (mut before, mut other_before) = (0_u64, 0_u64);
        let mut furthest = (0.0, Some(from(1)));
        for at in 0..BINS {
            before = before.saturating_add(of(&self.bins[at]));
            other_before = other_before.saturating_add(of(&other.bins[at]));
            let apart = other_before as f64 / other_sum as f64 - before as f64 / sum as f64;
            if apart.abs() > f64::abs(furthest.0) {
                furthest = (apart, self.bin(at).below);
            }
        }
        Some(furthest)
    }
}

/// Stored form: bins that are not empty.
#[derive(Serialize, Deserialize)]
struct Stored {
    max: u64,
    bins: Vec<StoredBin>,
}

#[derive(Serialize, Deserialize)]
struct StoredBin {
    from: u64,
    below: Option<u64>,
    count: u64,
    total: u64,
    size: u64,
    capacity: u64,
}

impl From<Histogram> for Stored {
    fn from(histogram: Histogram) -> Stored {
        let bins = histogram.bins().filter(|bin| bin.amount.count > 0);
        let stored = |Bin { from, below, amount: Amount { count, total, size, capacity } }| StoredBin {
            from,
            below,
            count,
            total,
            size,
            capacity,
        };
        Stored { max: histogram.max, bins: bins.map(stored).collect() }
    }
}

/// The bounds of a stored bin are not powers of two.
#[derive(Debug, thiserror::Error)]
#[error("a bin from {from} to {below:?}: expected powers of two")]
struct InvalidBin {
    from: u64,
    below: Option<u64>,
}

impl TryFrom<Stored> for Histogram {
    type Error = InvalidBin;

    fn try_from(stored: Stored) -> Result<Histogram, InvalidBin> {
        let mut histogram = Histogram { max: stored.max, ..Histogram::default() };
        for StoredBin { from, below, count, total, size, capacity } in stored.bins {
            let at = bin(from);
            let known = histogram.bin(at);
            if (known.from, known.below) != (from, below) {
                return Err(InvalidBin { from, below });
            }
            histogram.bins[at].add(&Amount { count, total, size, capacity });
        }
        Ok(histogram)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Amount, Histogram};
    use proptest::prelude::*;

    #[test]
    fn value_is_between_bounds_of_its_bin() {
        for (value, from, below) in [
            (0, 0, Some(1)),
            (1, 1, Some(2)),
            (2, 2, Some(4)),
            (3, 2, Some(4)),
            (65_535, 32_768, Some(65_536)),
            (65_536, 65_536, Some(131_072)),
            (u64::MAX, 1 << 63, None),
        ] {
            let mut histogram = Histogram::default();
            histogram.add(value, 3, 5);
            let bins: Vec<_> = histogram.bins().collect();
            assert_eq!(bins.len(), 1);
            assert_eq!((bins[0].from, bins[0].below), (from, below), "{value}");
            assert_eq!(bins[0].amount, Amount { count: 1, total: value, size: 3, capacity: 5 });
            assert_eq!(histogram.max(), value);
        }
    }

    #[test]
    fn sums_saturate_in_any_order() {
        let mut histogram = Histogram::default();
        for value in [1 << 63, 1 << 63, 1 << 63] {
            histogram.add(value, u64::MAX, 1);
        }
        let sum = Amount { count: 3, total: u64::MAX, size: u64::MAX, capacity: 3 };
        assert_eq!(histogram.sum(), sum);
    }

    #[test]
    fn distance_is_of_cumulative_shares() {
        let histogram = |values: &[u64]| {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.add(*value, 0, 0));
            histogram
        };
        let count = |amount: &Amount| amount.count;
        // Shares below 4: a half and a quarter.
        let (old, new) = (histogram(&[1, 3, 9, 9]), histogram(&[1, 9, 9, 9]));
        assert_eq!(old.distance(&new, count), Some((-0.25, Some(4))));
        assert_eq!(old.distance(&old, count), Some((0.0, Some(1))));
        assert_eq!(old.distance(&Histogram::default(), count), None);
    }

    proptest! {
        #[test]
        fn merging_equals_adding_and_storing_keeps_it(
            one in prop::collection::vec((any::<u64>(), 0..9u64), 0..50),
            two in prop::collection::vec((0..99u64, 0..9u64), 0..50),
        ) {
            let of = |values: &[(u64, u64)]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|(value, size)| histogram.add(*value, *size, size * 2));
                histogram
            };
            let mut merged = of(&one);
            merged.merge(&of(&two));
            prop_assert_eq!(&merged, &of(&[one, two].concat()));
            let stored = serde_json::to_string(&merged).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&stored).unwrap(), merged);
        }
    }

    #[test]
    fn bins_with_other_bounds_are_refused() {
        let text = r#"{"max":3,"bins":[{"from":3,"below":5,"count":1,"total":3,"size":0,"capacity":0}]}"#;
        assert!(serde_json::from_str::<Histogram>(text).unwrap_err().to_string().contains("powers of two"));
    }
}
