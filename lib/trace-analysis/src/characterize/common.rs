//! Most common values by Darshan's rule: a table of the first 32 distinct values.

/// Maximum number of distinct values that are counted; further ones are ignored
/// (`DARSHAN_COMMON_VAL_MAX_RUNTIME_COUNT`).
const MOST: usize = 32;
/// Maximum number of entries of merged tables before equal values are joined.
const WAITING: usize = 1 << 10;

/// Values and their counts. 0 occupies an entry but is never reported, as in Darshan.
#[derive(Clone, Debug, Default)]
pub struct Common {
    entries: Vec<(u64, u64)>,
    /// Index of the last value.
    last: usize,
    joined: usize,
}

impl Common {
    /// Adds a value. Returns the number of bytes by which the table grew.
    pub(super) fn add(&mut self, value: u64) -> usize {
        if let Some((last, count)) = self.entries.get_mut(self.last)
            && *last == value
        {
            *count += 1;
            return 0;
        }
        match self.entries.iter().position(|(known, _)| *known == value) {
            Some(at) => {
                self.last = at;
                self.entries[at].1 += 1;
            }
            None if self.entries.len() < MOST => {
                let had = self.memory();
                self.last = self.entries.len();
                self.entries.push((value, 1));
                return self.memory() - had;
            }
            None => {}
        }
        0
    }

    /// Merges another table completely; Darshan merges only the four values that it reports.
    pub(super) fn merge(&mut self, other: &Common) {
        self.entries.extend_from_slice(&other.entries);
        if self.entries.len() > WAITING + 2 * self.joined {
            self.join();
        }
    }

    fn join(&mut self) {
        self.entries.sort_unstable();
        self.entries.dedup_by(|next, kept| {
            let is_same = next.0 == kept.0;
            kept.1 += if is_same { next.1 } else { 0 };
            is_same
        });
        self.joined = self.entries.len();
    }

    /// Returns the most common values and their counts: by count, then the larger value first.
    /// Missing entries are (0, 0).
    #[must_use]
    pub fn most(&self) -> [(u64, u64); 4] {
        let mut all = self.clone();
        all.join();
        all.entries.retain(|(value, _)| *value != 0);
        all.entries.sort_unstable_by_key(|(value, count)| std::cmp::Reverse((*count, *value)));
        std::array::from_fn(|at| all.entries.get(at).copied().unwrap_or_default())
    }

    pub(super) fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::{Common, MOST};

    fn of(values: impl IntoIterator<Item = u64>) -> Common {
        let mut common = Common::default();
        values.into_iter().for_each(|value| _ = common.add(value));
        common
    }

    #[test]
    fn most_frequent_first_then_largest() {
        assert_eq!(of([5, 7, 5, 9, 1, 1, 3]).most(), [(5, 2), (1, 2), (9, 1), (7, 1)]);
        assert_eq!(of([4, 0, 0, 0]).most(), [(4, 1), (0, 0), (0, 0), (0, 0)]);
    }

    #[test]
    fn thirty_third_value_is_ignored_and_zero_takes_an_entry() {
        let full = of((1..=MOST as u64).chain([1000, 1000, 1000]));
        assert_eq!(full.most()[0], (32, 1));
        let with_zero = of((0..MOST as u64).chain([32, 32, 1]));
        assert_eq!(with_zero.most()[..2], [(1, 2), (31, 1)]);
    }

    #[test]
    fn merged_tables_lose_nothing() {
        let mut all = Common::default();
        for table in 0..1000 {
            all.merge(&of((0..32).map(|value| 100 * table + value).chain([9_999_999])));
            assert!(all.entries.len() <= 3 * 32 * 1001);
        }
        // The last value did not fit into the full tables.
        assert_eq!(all.most()[0].1, 1);
        let mut small = of([1, 1, 2]);
        small.merge(&of([2, 2, 3]));
        assert_eq!(small.most(), [(2, 3), (1, 2), (3, 1), (0, 0)]);
    }
}
