//! Changes between two snapshots of a file system's contents (Carns et al. 2011, section IV-A,
//! Table IV).

use crate::contents::{Contents, Unit};
use crate::histogram::Amount;
use serde::Serialize;
use std::collections::BTreeMap;

/// A figure in the old and in the new snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Value in the old snapshot.
    pub old: u64,
    /// Value in the new snapshot.
    pub new: u64,
}

impl Change {
    /// Returns the relative growth, `new / old - 1`; `None` if `old` is 0.
    #[must_use]
    pub fn growth(&self) -> Option<f64> {
        (self.old > 0).then(|| (self.new as f64 - self.old as f64) / self.old as f64)
    }

    /// Returns the difference, new less old.
    #[must_use]
    pub fn difference(&self) -> i128 {
        i128::from(self.new) - i128::from(self.old)
    }

    /// Returns the growth per day over `seconds`; `None` if these are 0.
    #[must_use]
    pub fn per_day(&self, seconds: i64) -> Option<f64> {
        (seconds > 0).then(|| self.difference() as f64 * 86_400.0 / seconds as f64)
    }
}

/// Change of a total.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TotalChange {
    /// Name of the total.
    pub name: &'static str,
    /// Unit of the total.
    pub unit: Unit,
    /// Old and new value.
    #[serde(flatten)]
    pub change: Change,
    /// Relative growth, see [`Change::growth`].
    pub growth: Option<f64>,
    /// Growth per day between the snapshots.
    pub per_day: Option<f64>,
}

/// Change of a bin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BinChange {
    /// Lowest value.
    pub from: u64,
    /// First value above.
    pub below: Option<u64>,
    /// Amount in the old snapshot.
    pub old: Amount,
    /// Amount in the new snapshot.
    pub new: Amount,
}

/// Shift of a distribution: the greatest difference of its cumulative shares, new less old.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shift {
    /// New share less old share, −1 to 1.
    pub difference: f64,
    /// Upper bound of the values of these shares.
    pub below: Option<u64>,
}

/// Change of a histogram.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistogramChange {
    /// Name of the histogram.
    pub name: &'static str,
    /// Unit of its values.
    pub unit: Unit,
    /// Shift by count; `None` if one of the histograms is empty.
    pub shift_count: Option<Shift>,
    /// Shift by bytes of the files; `None` if the values do not belong to files, or one histogram
    /// has no bytes.
    pub shift_size: Option<Shift>,
    /// Bins that are not empty in at least one snapshot.
    pub bins: Vec<BinChange>,
}

/// Changes between two snapshots.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// Seconds between the snapshots.
    pub seconds: i64,
    /// Totals.
    pub totals: Vec<TotalChange>,
    /// Distributions.
    pub histograms: Vec<HistogramChange>,
}

impl Growth {
    /// Computes the changes between two contents that are `seconds` apart.
    #[must_use]
    pub fn between(old: &Contents, new: &Contents, seconds: i64) -> Growth {
        let totals = |contents: &Contents| {
            let sum = contents.size.sum();
            [
                ("files", Unit::Count, contents.files),
                ("size", Unit::Bytes, sum.size),
                ("capacity", Unit::Bytes, sum.capacity),
                ("directories", Unit::Count, contents.directories),
                ("symlinks", Unit::Count, contents.symlinks),
                ("names", Unit::Count, contents.names),
            ]
        };
        let total = |((name, unit, old), (_, _, new)): (_, (_, _, u64))| {
            let change = Change { old, new };
            TotalChange { name, unit, change, growth: change.growth(), per_day: change.per_day(seconds) }
        };
        let pairs = old.histograms().into_iter().zip(new.histograms());
        let histograms = pairs.map(|((name, unit, old), (_, _, new))| {
            let mut bins: BTreeMap<u64, BinChange> = BTreeMap::new();
            let empty =
                |from, below| BinChange { from, below, old: Amount::default(), new: Amount::default() };
            for bin in old.bins() {
                bins.entry(bin.from).or_insert_with(|| empty(bin.from, bin.below)).old = bin.amount;
            }
            for bin in new.bins() {
                bins.entry(bin.from).or_insert_with(|| empty(bin.from, bin.below)).new = bin.amount;
            }
            bins.retain(|_, bin| bin.old.count > 0 || bin.new.count > 0);
            let shift = |of: fn(&Amount) -> u64| {
                old.distance(new, of).map(|(difference, below)| Shift { difference, below })
            };
            HistogramChange {
                name,
                unit,
                shift_count: shift(|amount| amount.count),
                shift_size: shift(|amount| amount.size),
                bins: bins.into_values().collect(),
            }
        });
        Growth {
            seconds,
            totals: totals(old).into_iter().zip(totals(new)).map(total).collect(),
            histograms: histograms.collect(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Change, Growth};
    use crate::contents::{Attributes, Contents};

    fn contents(sizes: &[u64]) -> Contents {
        let mut contents = Contents::default();
        for size in sizes {
            contents
                .file(&Attributes { size: *size, blocks: 8, links: 1, atime: 0, mtime: 0, ctime: 0 }, 86_400);
        }
        contents
    }

    #[test]
    fn totals_bins_and_shifts() {
        let growth = Growth::between(&contents(&[10, 1000]), &contents(&[10, 10, 10, 1000]), 2 * 86_400);
        let files = growth.totals[0];
        assert_eq!((files.name, files.change, files.growth), ("files", Change { old: 2, new: 4 }, Some(1.0)));
        assert_eq!(files.per_day, Some(1.0));
        let size = &growth.histograms[0];
        let bins: Vec<_> = size.bins.iter().map(|bin| (bin.from, bin.old.count, bin.new.count)).collect();
        assert_eq!(bins, [(8, 1, 3), (512, 1, 1)]);
        let shift = size.shift_count.unwrap();
        assert_eq!((shift.difference, shift.below), (0.25, Some(16)));
        let by_size = size.shift_size.unwrap();
        assert!((by_size.difference - (30.0 / 1030.0 - 10.0 / 1010.0)).abs() < 1e-12);
        // The old snapshot has no directories.
        assert_eq!((growth.totals[3].growth, growth.histograms[9].shift_count), (None, None));
    }

    #[test]
    fn snapshots_of_the_same_time_have_no_rate() {
        let growth = Growth::between(&contents(&[1]), &contents(&[]), 0);
        assert_eq!((growth.totals[0].per_day, growth.totals[0].growth), (None, Some(-1.0)));
    }
}
