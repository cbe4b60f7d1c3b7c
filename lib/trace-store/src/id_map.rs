//! Maps and sets of ids.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Map whose keys are a few ids. Its hash function costs a multiplication for each of them, a
/// tenth of the one of std, which would be computed several times for each event.
pub type IdMap<K, V> = HashMap<K, V, IdHashing>;

/// Set of ids, with the hash function of [`IdMap`].
pub type IdSet<K> = HashSet<K, IdHashing>;

/// Builder of [`IdHasher`]. The start is random, so that no trace can be written with ids that
/// collide.
#[derive(Clone, Copy, Debug)]
pub struct IdHashing(u64);

impl Default for IdHashing {
    fn default() -> IdHashing {
        IdHashing(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for IdHashing {
    type Hasher = IdHasher;

    #[inline]
    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.0)
    }
}

/// Hash function of numbers: for each, both halves of a product of 128 bits, joined.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio, as in Fibonacci hashing.
        let product = u128::from(self.0.rotate_left(32) ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::IdMap;
    use std::hash::BuildHasher as _;

    #[test]
    fn ids_are_distinguished() {
        let mut values = IdMap::<(u64, u64, u8), u64>::default();
        let keys = (0..40).flat_map(|one| (0..40).map(move |other| (one << 32, other, (one % 3) as u8)));
        keys.clone().for_each(|key| *values.entry(key).or_default() += key.0 + key.1);
        assert_eq!(values.len(), 1600);
        assert!(keys.clone().all(|key| values[&key] == key.0 + key.1));
        let hashes: std::collections::HashSet<u64> =
            keys.map(|key| values.hasher().hash_one(key) & 0xf_ffff).collect();
        assert!(hashes.len() > 1590, "{} different hashes in 20 bits", hashes.len());
    }
}
