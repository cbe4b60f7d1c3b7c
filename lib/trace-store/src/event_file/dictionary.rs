//! The distinct numbers of a column, as long as they are few.

/// Distinct numbers at most: twelve bits each.
const MOST: usize = 1 << 12;
/// Places of the table: a quarter is filled at most, so that looking rarely meets another number.
const PLACES: usize = 4 * MOST;
/// No number.
const FREE: u16 = u16::MAX;

/// Numbers by index, and indices by number.
#[derive(Debug)]
pub(super) struct Dictionary {
    values: Vec<u64>,
    places: Vec<u16>,
}

impl Dictionary {
    pub(super) fn new() -> Dictionary {
        Dictionary { values: Vec::new(), places: vec![FREE; PLACES] }
    }

    /// The numbers, by index.
    pub(super) fn values(&self) -> &[u64] {
        &self.values
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        if !self.values.is_empty() {
            self.values.clear();
            self.places.fill(FREE);
        }
    }

    /// The index of one number; `None` if there are too many.
    pub(super) fn index_of(&mut self, value: u64) -> Option<u16> {
        // Multiplicative hashing (Knuth 1973): the upper bits depend on all bits of the number.
        let mut place = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % PLACES;
        loop {
            match self.places[place] {
                FREE => {
                    if self.values.len() == MOST {
                        return None;
                    }
                    let index = self.values.len() as u16;
                    self.places[place] = index;
                    self.values.push(value);
                    return Some(index);
                }
                index if self.values[usize::from(index)] == value => return Some(index),
                _ => place = (place + 1) % PLACES,
            }
        }
    }

    /// Replaces `indices` by those of `values`. False, and the dictionary as it was, if these are too many to be worth
    /// it: more than one new one for eight of them.
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
                        self.forget_from(before);
                        return false;
                    }
                },
            };
            last = Some((*value, index));
            indices.push(index);
        }
        true
    }

    fn forget_from(&mut self, first: usize) {
        self.values.truncate(first);
        self.places.fill(FREE);
        for (index, value) in std::mem::take(&mut self.values).into_iter().enumerate() {
            let known = self.index_of(value);
            debug_assert_eq!(known, Some(index as u16));
        }
    }
}
