//! Values by id, for ids that are dense from the first one of their partition with few exceptions.

use miot_trace_store::IdMap;
use miot_trace_store::ids;

/// Maximum distance between an id and the largest id in the array of its partition at which the id
/// is still added to the array.
const STRIDE: usize = 1 << 12;

/// Values by id: an array per partition for dense ids, a map for the others.
#[derive(Clone, Debug)]
pub struct ById<T> {
    /// By partition and number in it.
    dense: Vec<Vec<T>>,
    sparse: IdMap<u64, T>,
}

impl<T> Default for ById<T> {
    fn default() -> ById<T> {
        ById { dense: Vec::new(), sparse: IdMap::default() }
    }
}

/// Partition of an id, and its number there. `None`: no log-server assigns such an id.
#[inline]
fn place(id: u64) -> Option<(usize, usize)> {
    let partition = ids::partition_of(id)?;
    let number = usize::try_from(id - (ids::first(partition) - 1)).ok()?;
    Some((usize::from(partition), number))
}

impl<T: Default> ById<T> {
    /// Returns the value of an id; the default value if the id is new.
    #[inline]
    pub fn get(&mut self, id: u64) -> &mut T {
        match place(id) {
            Some((partition, number))
                if self.dense.get(partition).is_some_and(|values| number < values.len()) =>
            {
                &mut self.dense[partition][number]
            }
            place => self.get_beyond(id, place),
        }
    }

    /// Returns the value of an id that is in no array yet.
    fn get_beyond(&mut self, id: u64, place: Option<(usize, usize)>) -> &mut T {
        if let Some((partition, number)) = place {
            if self.dense.len() <= partition && number < STRIDE {
                self.dense.resize_with(partition + 1, Vec::new);
            }
            if let Some(values) = self.dense.get_mut(partition)
                && number < 2 * values.len() + STRIDE
            {
                let before = values.len();
                values.resize_with(number + 1, T::default);
                if !self.sparse.is_empty() {
                    for (id, value) in (id - (number - before) as u64..=id).zip(&mut values[before..]) {
                        if let Some(strayed) = self.sparse.remove(&id) {
                            *value = strayed;
                        }
                    }
                }
                return &mut values[number];
            }
        }
        self.sparse.entry(id).or_default()
    }

    /// Returns ids and values in order of id, including default values of unused ids below the used
    /// ones.
    pub fn into_sorted(self) -> impl Iterator<Item = (u64, T)> {
        let mut sparse: Vec<(u64, T)> = self.sparse.into_iter().collect();
        sparse.sort_unstable_by_key(|(id, _)| *id);
        let dense =
            (0..).zip(self.dense).flat_map(|(partition, values)| (ids::first(partition) - 1..).zip(values));
        merge(dense, sparse.into_iter())
    }
}

/// Merges two sequences that are in order of id.
fn merge<T>(
    left: impl Iterator<Item = (u64, T)>,
    right: impl Iterator<Item = (u64, T)>,
) -> impl Iterator<Item = (u64, T)> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || {
        let id = left.peek().map(|(id, _)| *id);
        let earlier = right.next_if(|(other, _)| id.is_none_or(|id| *other < id));
        earlier.or_else(|| left.next())
    })
}

#[cfg(test)]
mod tests {
    use super::{ById, STRIDE};
    use miot_trace_store::ids;
    use std::collections::BTreeMap;

    #[test]
    fn sparse_ids_move_to_the_array_when_it_reaches_them() {
        let mut values = ById::<u64>::default();
        let stray = STRIDE as u64 + 10;
        for id in [1, stray, u64::MAX, 100, STRIDE as u64, stray, 1] {
            *values.get(id) += 1;
        }
        assert_eq!(values.sparse.len(), 1);
        let found: Vec<_> = values.into_sorted().filter(|(_, n)| *n > 0).collect();
        assert_eq!(found, [(1, 2), (100, 1), (STRIDE as u64, 1), (stray, 2), (u64::MAX, 1)]);
    }

    #[test]
    fn ids_of_all_partitions_are_counted_once_and_in_order() {
        let mut values = ById::<u64>::default();
        let mut expected = BTreeMap::new();
        for number in 0..3 * STRIDE as u64 {
            for partition in [9, 0, ids::MAX_PARTITION] {
                // Every eighth id is far away from the others, later ones reach some of them.
                let far = if number % 8 == 0 { STRIDE as u64 + 7 * number } else { number };
                let id = ids::first(partition) + far;
                *values.get(id) += 1;
                *expected.entry(id).or_insert(0) += 1;
            }
        }
        for id in [0, ids::first(1) - 1, u64::MAX] {
            *values.get(id) += 1;
            expected.insert(id, 1);
        }
        let found: Vec<_> = values.into_sorted().filter(|(_, n)| *n > 0).collect();
        assert!(found.is_sorted());
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }
}
