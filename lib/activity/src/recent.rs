//! Values by id in bounded memory: those that were not used recently are dropped.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Values by id within a bound: when there are more, those go that nobody has asked for the longest.
///
/// Two generations: the elder is dropped when the younger is full, and what is asked for moves to the younger.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    young: Ids<V>,
    old: Ids<V>,
    /// Bytes of the younger, and at most.
    bytes: usize,
    most: usize,
}

/// A map by id.
pub(crate) type Ids<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

/// For ids that nobody outside chooses: one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The high half of the product depends on all bits of the id.
        let product = u128::from(self.0 ^ id) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// How many bytes a value takes besides itself.
pub(crate) trait HeapSize {
    fn heap(&self) -> usize;
}

impl HeapSize for String {
    fn heap(&self) -> usize {
        self.capacity()
    }
}

impl<V: HeapSize> Recent<V> {
    /// Of at most twice so many bytes.
    pub(crate) fn new(most: usize) -> Recent<V> {
        Recent { young: Ids::default(), old: Ids::default(), bytes: 0, most }
    }

    pub(crate) fn put(&mut self, id: u64, value: V) {
        self.old.remove(&id);
        let size = size(&value);
        if self.bytes + size > self.most {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        if let Some(before) = self.young.insert(id, value) {
            self.bytes = self.bytes.saturating_sub(self::size(&before));
        }
        self.bytes += size;
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&V> {
        if let Some(value) = self.old.remove(&id) {
            self.put(id, value);
        }
        self.young.get(&id)
    }

    /// The value, which may go all the same.
    pub(crate) fn peek(&self, id: u64) -> Option<&V> {
        self.young.get(&id).or_else(|| self.old.get(&id))
    }

    pub(crate) fn knows(&self, id: u64) -> bool {
        self.peek(id).is_some()
    }
}

/// With what the map takes for an entry.
fn size<V: HeapSize>(value: &V) -> usize {
    2 * size_of::<(u64, V)>() + value.heap()
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let mut names = Recent::<String>::new(10_000);
        names.put(0, "asked".into());
        names.put(1, "not".into());
        for id in 2..10_000 {
            names.put(id, format!("/file/{id}"));
            assert_eq!(names.get(0).map(String::as_str), Some("asked"), "{id}");
        }
        assert!(!names.knows(1));
        assert_eq!(names.get(9_999).map(String::as_str), Some("/file/9999"));
        assert!(names.young.len() + names.old.len() < 400, "{}", names.young.len() + names.old.len());
    }
}
