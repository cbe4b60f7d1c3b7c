//! Dictionary of a column with few distinct numbers.

/// Maximum distinct numbers: an index has twelve bits.
const MAX_VALUES: usize = 1 << 12;
/// Slots of the hash table: at most a quarter is used, so that collisions are rare.
const SLOTS: usize = 4 * MAX_VALUES;
/// An unused slot.
const FREE: u16 = u16::MAX;

/// Numbers by index, and indices by number.
#[derive(Debug)]
pub(super) struct Dictionary {
    values: Vec<u64>,
    slots: Vec<u16>,
}

impl Dictionary {
    pub(super) fn new() -> Dictionary {
        Dictionary { values: Vec::new(), slots: vec![FREE; SLOTS] }
    }

    /// Returns the numbers by index.
    pub(super) fn values(&self) -> &[u64] {
        &self.values
    }

    /// Removes all numbers.
    pub(super) fn clear(&mut self) {
        if !self.values.is_empty() {
            self.values.clear();
            self.slots.fill(FREE);
        }
    }

    /// Returns the index of a number, which it adds if necessary; `None` if the dictionary is full.
    pub(super) fn index_of(&mut self, value: u64) -> Option<u16> {
        // Multiplicative hashing (Knuth 1973): the upper bits depend on all bits of the number.
        let mut slot = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % SLOTS;
        loop {
            match self.slots[slot] {
                FREE => {
                    if self.values.len() == MAX_VALUES {
                        return None;
                    }
                    let index = self.values.len() as u16;
                    self.slots[slot] = index;
                    self.values.push(value);
                    return Some(index);
                }
                index if self.values[usize::from(index)] == value => return Some(index),
                _ => slot = (slot + 1) % SLOTS,
            }
        }
    }

    /// Replaces `indices` by those of `values`. Returns false and leaves the dictionary unchanged
    /// if it is not worth it: if there is more than one new number per eight values.
    pub(super) fn index(&mut self, values: &[u64], indices: &mut Vec<u16>) -> bool {
        indices.clear();
        indices.reserve(values.len());
        let before = self.values.len();
        let most = before + values.len() / 8 + 1;
        let mut last = None;
        for value in values {
            let index = match last {
                Some((known, index)) if known == *value => index,
                _ => match self.index_of(*value).filter(|_| self.values.len() <= most) {
                    Some(index) => index,
                    None => {
                        self.remove_from(before);
                        return false;
                    }
                },
            };
            last = Some((*value, index));
            indices.push(index);
        }
        true
    }

    fn remove_from(&mut self, first: usize) {
        self.values.truncate(first);
        self.slots.fill(FREE);
        for (index, value) in std::mem::take(&mut self.values).into_iter().enumerate() {
            let known = self.index_of(value);
            debug_assert_eq!(known, Some(index as u16));
        }
    }
}
