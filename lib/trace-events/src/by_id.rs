//! Values by id, for ids that are dense from 1 with few exceptions.

use miot_trace_store::IdMap;
use miot_trace_store::ids::DenseIds;

/// Maximum distance between an id and the largest id in the array at which the id is still added to
/// the array.
const STRIDE: usize = 1 << 12;

/// Values by id: an array for dense ids, a map for the others.
#[derive(Clone, Debug, Default)]
pub struct ById<T> {
    ids: DenseIds,
    dense: Vec<T>,
    /// By number.
    sparse: IdMap<u64, T>,
}

impl<T: Default> ById<T> {
    /// Returns the value of an id; the default value if the id is new.
    #[inline]
    pub fn get(&mut self, id: u64) -> &mut T {
        let number = self.ids.add(id);
        match usize::try_from(number) {
            Ok(index) if index < self.dense.len() => &mut self.dense[index],
            _ => self.get_beyond(number),
        }
    }

    /// Returns the value of an id that is not in the array yet.
    fn get_beyond(&mut self, number: u64) -> &mut T {
        match usize::try_from(number) {
            Ok(index) if index < 2 * self.dense.len() + STRIDE => {
                let before = self.dense.len() as u64;
                self.dense.resize_with(index + 1, T::default);
                for (number, value) in
                    self.sparse.extract_if(|strayed, _| (before..=number).contains(strayed))
                {
                    self.dense[number as usize] = value;
                }
                &mut self.dense[index]
            }
            _ => self.sparse.entry(number).or_default(),
        }
    }

    /// Returns ids and values in order of id, including default values of unused ids below the used
    /// ones.
    pub fn into_sorted(self) -> impl Iterator<Item = (u64, T)> {
        let mut sparse: Vec<(u64, T)> = self.sparse.into_iter().collect();
        // Ids of lower partitions have the greatest numbers.
        sparse.sort_by_key(|(number, _)| self.ids.id(*number));
        let after =
            sparse.split_off(sparse.partition_point(|(number, _)| self.ids.id(*number) < self.ids.id(0)));
        let dense = self.dense.into_iter().zip(0u64..).map(|(value, number)| (number, value));
        sparse.into_iter().chain(dense).chain(after).map(move |(number, value)| (self.ids.id(number), value))
    }
}

#[cfg(test)]
mod tests {
    use super::{ById, STRIDE};

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
}
