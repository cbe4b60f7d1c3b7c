//! Values by key in bounded memory: those that were not used recently are dropped.

use miot_trace_events::IdMap;
use std::hash::Hash;

/// Map of between `most` and twice `most` values, which include those of the last `most` different
/// keys.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    most: usize,
    young: IdMap<K, V>,
    old: IdMap<K, V>,
}

impl<K: Eq + Hash + Copy, V: Default> Recent<K, V> {
    pub(crate) fn new(most: usize) -> Recent<K, V> {
        Recent { most: most.max(1), young: IdMap::default(), old: IdMap::default() }
    }

    /// Returns the value of a key; the default value if it is new or was dropped.
    pub(crate) fn get(&mut self, key: K) -> &mut V {
        if self.young.len() >= self.most && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.entry(key).or_insert_with(|| self.old.remove(&key).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn used_values_stay_and_unused_ones_are_dropped() {
        let mut values: Recent<u32, u32> = Recent::new(4);
        for round in 0..100 {
            *values.get(7) += 1;
            *values.get(1000 + round) += 1;
            *values.get(2000 + round) += 1;
        }
        assert_eq!(*values.get(7), 100);
        assert_eq!(*values.get(1000), 0, "dropped, and created again");
        assert!(values.young.len() + values.old.len() <= 8);
    }
}
