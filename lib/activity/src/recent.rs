//! Values by id in bounded memory: values that were not used recently are dropped.

use miot_trace_store::IdHasher;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// Bounded map by id that drops the least recently used values.
///
/// It has two generations: the old one is dropped when the young one is full, and a value that is
/// looked up moves to the young one.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    young: Ids<V>,
    old: Ids<V>,
    /// Size of the young generation in bytes, and its maximum.
    bytes: usize,
    most: usize,
}

/// A map by id.
pub(crate) type Ids<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

/// Heap size of a value in bytes.
pub(crate) trait HeapSize {
    fn heap(&self) -> usize;
}

impl HeapSize for String {
    fn heap(&self) -> usize {
        self.capacity()
    }
}

impl<V: HeapSize> Recent<V> {
    /// Returns a map of at most twice `most` bytes.
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

    /// Returns the value without marking it as used.
    pub(crate) fn peek(&self, id: u64) -> Option<&V> {
        self.young.get(&id).or_else(|| self.old.get(&id))
    }

    pub(crate) fn knows(&self, id: u64) -> bool {
        self.peek(id).is_some()
    }
}

/// Returns the size of a value in bytes, including the map entry.
fn size<V: HeapSize>(value: &V) -> usize {
    2 * size_of::<(u64, V)>() + value.heap()
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn used_values_stay_and_unused_ones_are_dropped() {
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
