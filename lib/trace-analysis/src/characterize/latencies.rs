//! Durations of many requests in little memory: counts by class, a few bytes for a file with few
//! requests.
//!
//! The classes are those of an HDR histogram (log-linear). A histogram of the library
//! `hdrhistogram` for every pair of process and file would take some kilobytes each; most pairs
//! have a handful of requests.

use serde::Serialize;

/// Bits of a duration that are kept: the relative width of a class is at most 1/64, so the error of
/// a quantile is less than 1.6 %.
const BITS: u32 = 6;
/// Number of classes: durations below 2⁶ have one class each, each power of two above has 2⁶
/// classes.
const CLASSES: usize = (64 - BITS as usize + 1) << BITS;
/// Number of distinct classes from which on an array of all classes is used.
const DENSE: usize = 512;

/// Durations of requests, by class.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Counts);

#[derive(Clone, Debug)]
enum Counts {
    /// Class and count, by class.
    Few(Vec<(u16, u32)>),
    /// Counts by class, from the first class with a duration, as far as needed.
    Many(Box<[u64]>),
}

impl Default for Counts {
    fn default() -> Counts {
        Counts::Few(Vec::new())
    }
}

/// Quantiles of durations in nanoseconds, with an error of at most 1.6 %: the longest duration of
/// the class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Number of durations.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
}

fn class(duration: u64) -> usize {
    let Some(shift) = (64 - duration.leading_zeros()).checked_sub(BITS + 1) else { return duration as usize };
    ((shift as usize) << BITS) + (duration >> shift) as usize
}

/// Returns the longest duration of a class.
fn longest(class: usize) -> u64 {
    match (class >> BITS).checked_sub(1) {
        None => class as u64,
        Some(shift) => {
            let mantissa = ((class & ((1 << BITS) - 1)) + (1 << BITS)) as u64;
            (mantissa << shift) + ((1 << shift) - 1)
        }
    }
}

impl Latencies {
    /// Adds a duration. Returns the number of bytes by which the histogram grew.
    pub(super) fn add(&mut self, duration: u64) -> usize {
        self.add_many(class(duration), 1)
    }

    fn add_many(&mut self, class: usize, times: u64) -> usize {
        match &mut self.0 {
            Counts::Many(counts) => {
                counts[class] = counts[class].saturating_add(times);
                0
            }
            Counts::Few(few) => {
                match few.binary_search_by_key(&class, |(class, _)| usize::from(*class)) {
                    Ok(at) if u64::from(few[at].1) + times <= u64::from(u32::MAX) => {
                        few[at].1 += times as u32;
                        return 0;
                    }
                    Err(at) if few.len() < DENSE && times <= u64::from(u32::MAX) => {
                        let had = few.capacity();
                        few.insert(at, (class as u16, times as u32));
                        return (few.capacity() - had) * size_of::<(u16, u32)>();
                    }
                    _ => {}
                }
                let mut counts = vec![0; CLASSES].into_boxed_slice();
                few.iter().for_each(|(class, count)| counts[usize::from(*class)] = u64::from(*count));
                self.0 = Counts::Many(counts);
                self.add_many(class, times) + CLASSES * size_of::<u64>()
            }
        }
    }

    pub(super) fn merge(&mut self, other: &Latencies) {
        other.each(|class, count| _ = self.add_many(class, count));
    }

    fn each(&self, mut to: impl FnMut(usize, u64)) {
        match &self.0 {
            Counts::Few(few) => {
                few.iter().for_each(|(class, count)| to(usize::from(*class), u64::from(*count)))
            }
            Counts::Many(counts) => {
                counts
                    .iter()
                    .enumerate()
                    .filter(|(_, count)| **count > 0)
                    .for_each(|(class, count)| to(class, *count));
            }
        }
    }

    /// Returns the quantiles: in the sorted durations, the smallest one with at least this share of
    /// durations up to it.
    #[must_use]
    pub fn quantiles(&self) -> Quantiles {
        let mut count = 0;
        self.each(|_, times| count += times);
        let ranks =
            [0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| (count as f64 * quantile).ceil().max(1.0) as u64);
        let mut found = [0; 5];
        let mut below = 0;
        self.each(|class, times| {
            for (found, rank) in found.iter_mut().zip(ranks) {
                if (below + 1..=below + times).contains(&rank) {
                    *found = longest(class);
                }
            }
            below += times;
        });
        let [p50, p90, p99, p999, max] = found;
        Quantiles { count, p50, p90, p99, p999, max }
    }

    pub(super) fn memory(&self) -> usize {
        match &self.0 {
            Counts::Few(few) => few.capacity() * size_of::<(u16, u32)>(),
            Counts::Many(counts) => size_of_val(counts.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CLASSES, Latencies, class, longest};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_class_is_narrow(duration: u64, shift in 0..64u32) {
            let duration = duration >> shift;
            let class = class(duration);
            prop_assert!(class < CLASSES);
            let longest = longest(class);
            prop_assert!(longest >= duration && longest - duration <= duration >> 6);
            prop_assert_eq!(super::class(longest), class);
        }
    }

    #[test]
    fn quantiles_of_many_are_those_of_the_sorted_durations() {
        let mut latencies = Latencies::default();
        (1..=100_000u64).rev().for_each(|duration| _ = latencies.add(duration * 1000));
        let mut merged = Latencies::default();
        merged.merge(&latencies);
        merged.merge(&Latencies::default());
        for found in [latencies.quantiles(), merged.quantiles()] {
            assert_eq!(found.count, 100_000);
            for (found, exact) in
                [(found.p50, 50e6), (found.p99, 99e6), (found.p999, 99.9e6), (found.max, 100e6)]
            {
                assert!((found as f64 / exact - 1.0).abs() < 0.017, "{found} {exact}");
            }
        }
    }

    #[test]
    fn extreme_durations_do_not_overflow() {
        let mut latencies = Latencies::default();
        [0, u64::MAX].into_iter().for_each(|duration| _ = latencies.add(duration));
        assert_eq!(latencies.quantiles().count, 2);
        assert_eq!(Latencies::default().quantiles().max, 0);
    }
}
