//! Pseudo-random numbers that are a function of a seed and a position, so that all processes get
//! the same.

/// A sequence with random access: splitmix64 (Steele, Lea, Flood 2014, figure 17) of the position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PositionRng {
    seed: u64,
}

impl PositionRng {
    pub(crate) fn new(seed: u64) -> PositionRng {
        PositionRng { seed }
    }

    pub(crate) fn at(self, position: u64) -> u64 {
        let mut z = self.seed.wrapping_add(position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `least` to `most`, both included.
    pub(crate) fn between(self, position: u64, least: u64, most: u64) -> u64 {
        let range = u128::from(most - least) + 1;
        least + ((u128::from(self.at(position)) * range) >> 64) as u64
    }
}

/// Returns the numbers from 0 to `count` − 1 in an order that depends on the seed (Fisher-Yates
/// shuffle).
pub(crate) fn permuted(count: u64, seed: u64) -> Vec<u64> {
    let rng = PositionRng::new(seed);
    let mut numbers: Vec<u64> = (0..count).collect();
    for last in (1..numbers.len()).rev() {
        numbers.swap(last, rng.between(last as u64, 0, last as u64) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::{PositionRng, permuted};

    #[test]
    fn numbers_reach_their_bounds_and_stay_within() {
        let rng = PositionRng::new(7);
        let drawn: Vec<u64> = (0..1000).map(|i| rng.between(i, 3, 6)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&6)));
        assert_eq!(rng.between(0, 5, 5), 5);
        let _ = rng.between(0, 0, u64::MAX);
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        let mut numbers = permuted(1000, 1);
        assert_ne!(numbers, permuted(1000, 2));
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1000));
    }
}
