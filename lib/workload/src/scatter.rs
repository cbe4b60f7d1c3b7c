//! Numbers that look drawn by lot and are the same for all processes: a function of a seed and a position.

/// A sequence that can be entered anywhere: splitmix64 (Steele, Lea, Flood 2014, figure 17) of the position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scatter {
    seed: u64,
}

impl Scatter {
    pub(crate) fn new(seed: u64) -> Scatter {
        Scatter { seed }
    }

    pub(crate) fn at(self, position: u64) -> u64 {
        let mut z = self.seed.wrapping_add(position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `least` to `most`, both included.
    pub(crate) fn between(self, position: u64, least: u64, most: u64) -> u64 {
        let range = u128::from(most - least) + 1;
        least + ((u128::from(self.at(position)) * range) >> 64) as u64
    }
}

/// The numbers from 0 to `count` − 1 in an order that the seed decides (Fisher and Yates).
pub(crate) fn permuted(count: u64, seed: u64) -> Vec<u64> {
    let scatter = Scatter::new(seed);
    let mut numbers: Vec<u64> = (0..count).collect();
    for last in (1..numbers.len()).rev() {
        numbers.swap(last, scatter.between(last as u64, 0, last as u64) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::{Scatter, permuted};

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let scatter = Scatter::new(7);
        let drawn: Vec<u64> = (0..1000).map(|i| scatter.between(i, 3, 6)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&6)));
        assert_eq!(scatter.between(0, 5, 5), 5);
        let _ = scatter.between(0, 0, u64::MAX);
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        let mut numbers = permuted(1000, 1);
        assert_ne!(numbers, permuted(1000, 2));
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1000));
    }
}
