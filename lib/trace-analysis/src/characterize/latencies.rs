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
/// Classes of a power of two, which are counted together.
const OCTAVE: usize = 1 << BITS;
/// Number of powers of two.
const OCTAVES: usize = CLASSES / OCTAVE;
/// Number of distinct classes from which on whole powers of two are counted.
const FEW: usize = 32;

/// Durations of requests, by class.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Counts);

#[derive(Clone, Debug)]
enum Counts {
    /// Class and count, by class.
    Few(Vec<(u16, u32)>),
    /// Counts of the classes of each power of two that has any.
    Octaves(Box<[Option<Box<[u32; OCTAVE]>>; OCTAVES]>),
    /// Counts by class, for numbers beyond 32 bits.
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

    /// Adds durations of a class. Returns the number of bytes by which the histogram grew.
    fn add_many(&mut self, class: usize, times: u64) -> usize {
        let fitting = u32::try_from(times).ok();
        match &mut self.0 {
            Counts::Octaves(octaves) => {
                let octave = &mut octaves[class / OCTAVE];
                let grown = if octave.is_none() { size_of::<[u32; OCTAVE]>() } else { 0 };
                let count = &mut octave.get_or_insert_with(|| Box::new([0; OCTAVE]))[class % OCTAVE];
                if let Some(sum) = fitting.and_then(|times| count.checked_add(times)) {
                    *count = sum;
                    return grown;
                }
            }
            Counts::Many(counts) => {
                counts[class] = counts[class].saturating_add(times);
                return 0;
            }
            Counts::Few(few) => match few.binary_search_by_key(&class, |(class, _)| usize::from(*class)) {
                Ok(at) => {
                    if let Some(sum) = fitting.and_then(|times| few[at].1.checked_add(times)) {
                        few[at].1 = sum;
                        return 0;
                    }
                }
                Err(at) if few.len() < FEW => {
                    if let Some(times) = fitting {
                        let had = few.capacity();
                        few.insert(at, (class as u16, times));
                        return (few.capacity() - had) * size_of::<(u16, u32)>();
                    }
                }
                Err(_) => {}
            },
        }
        self.widen(fitting.is_some()) + self.add_many(class, times)
    }

    /// Changes to a larger form. Returns the number of bytes by which the histogram grew.
    fn widen(&mut self, fits: bool) -> usize {
        let before = std::mem::take(self);
        self.0 = match (&before.0, fits) {
            (Counts::Few(few), true) if few.len() >= FEW => {
                Counts::Octaves(Box::new([const { None }; OCTAVES]))
            }
            _ => Counts::Many(vec![0; CLASSES].into_boxed_slice()),
        };
        self.merge(&before);
        self.memory().saturating_sub(before.memory())
    }

    pub(super) fn merge(&mut self, other: &Latencies) {
        other.each(|class, count| _ = self.add_many(class, count));
    }

    fn each(&self, mut to: impl FnMut(usize, u64)) {
        match &self.0 {
            Counts::Few(few) => {
                few.iter().for_each(|(class, count)| to(usize::from(*class), u64::from(*count)));
            }
            Counts::Octaves(octaves) => {
                let octaves =
                    octaves.iter().enumerate().filter_map(|(octave, of)| Some((octave, of.as_ref()?)));
                for (octave, counts) in octaves {
                    let counted = counts.iter().enumerate().filter(|(_, count)| **count > 0);
                    counted.for_each(|(at, count)| to(octave * OCTAVE + at, u64::from(*count)));
                }
            }
            Counts::Many(counts) => {
                let counted = counts.iter().enumerate().filter(|(_, count)| **count > 0);
                counted.for_each(|(class, count)| to(class, *count));
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
            Counts::Octaves(octaves) => {
                size_of_val(octaves.as_ref()) + octaves.iter().flatten().count() * size_of::<[u32; OCTAVE]>()
            }
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
    fn counts_beyond_32_bits_are_exact() {
        let most = u64::from(u32::MAX);
        for others in [0, 100] {
            let mut latencies = Latencies::default();
            (0..others).for_each(|other| _ = latencies.add(other * 1000));
            for times in [most, 1, most + 1] {
                let _ = latencies.add_many(super::class(1 << 40), times);
            }
            let mut merged = latencies.clone();
            merged.merge(&latencies);
            assert_eq!(merged.quantiles().count, 2 * (2 * most + 2 + others));
            assert_eq!(merged.quantiles().p50, longest(super::class(1 << 40)));
        }
    }

    #[test]
    fn growth_is_that_of_the_memory() {
        let (mut latencies, mut grown) = (Latencies::default(), 0);
        for duration in 0..100_000u64 {
            grown += latencies.add(duration.wrapping_mul(duration) >> (duration % 7));
            assert_eq!(grown, latencies.memory());
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
