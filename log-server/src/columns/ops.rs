//! Layers and operations as dictionary keys, and the properties of each operation that rows depend
//! on.

use arrow_array::{ArrayRef, StringArray};
use miot_proto::op::{ArgMeaning, Layer, Op, ResultMeaning, app, client, mpi_io, posix, stdio};
use std::collections::HashMap;
use std::sync::Arc;

/// Properties of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpFacts {
    /// Key in the dictionary of operations.
    pub key: u16,
    /// Key in the dictionary of layers.
    pub layer: u8,
    /// Bits of [`has`]: the columns that the words `offset` and `length` are written to.
    pub has: u8,
    /// A successful request with a handle and a path names the handle.
    pub opens: bool,
    /// A successful request closes its handle.
    pub closes: bool,
    /// The first path is the name of an attribute of the handle's file.
    pub attribute: bool,
    /// The second path is not text: it is written in hexadecimal.
    pub is_binary: bool,
}

/// Columns that an event fills.
pub mod has {
    /// The word `offset` is the offset.
    pub const OFFSET: u8 = 1;
    /// The word `length` is the length.
    pub const LENGTH: u8 = 2;
    /// The word `length` is the argument.
    pub const ARG: u8 = 4;
}

/// Assigns keys to operations and layers in order of arrival. Known ones get their names, others
/// their numbers.
#[derive(Debug)]
pub struct Ops {
    facts: Vec<Option<OpFacts>>,
    names: NameDictionary<u16>,
    layers: NameDictionary<u8>,
}

impl Default for Ops {
    fn default() -> Ops {
        Ops {
            facts: vec![None; 1 << 16],
            names: NameDictionary::default(),
            layers: NameDictionary::default(),
        }
    }
}

impl Ops {
    /// Properties of an operation.
    #[inline]
    pub fn facts_of(&mut self, op: Op) -> OpFacts {
        match self.facts[index(op)] {
            Some(facts) => facts,
            None => self.add(op),
        }
    }

    #[cold]
    fn add(&mut self, op: Op) -> OpFacts {
        let layer = match Layer::from_number(op.layer) {
            Some(layer) => self.layers.key(layer.name()),
            // There is one key fewer than there are numbers: some layers have to share a name.
            None if op.layer >= SHARED_NAME => self.layers.key("other"),
            None => self.layers.key(&op.layer.to_string()),
        };
        let info = op.info();
        let key = match info {
            Some(info) => self.names.key(info.name),
            None => self.names.key(&format!("{}:{}", op.layer, op.number)),
        };
        let client = matches!(Layer::from_number(op.layer), Some(Layer::Fuse | Layer::Client | Layer::Block));
        let is = |of_client: &[Op]| client && of_client.iter().any(|o| o.number == op.number);
        let facts = OpFacts {
            key,
            layer,
            has: match info.map(|info| info.args) {
                Some(ArgMeaning::None) => 0,
                Some(ArgMeaning::Range) | None => has::OFFSET | has::LENGTH,
                Some(ArgMeaning::Length) => has::LENGTH,
                Some(ArgMeaning::Offset) => has::OFFSET,
                Some(ArgMeaning::OffsetArg) => has::OFFSET | has::ARG,
                Some(ArgMeaning::Arg) => has::ARG,
            },
            opens: info.is_some_and(|info| info.result == ResultMeaning::Fd && info.paths > 0)
                || op == mpi_io::OPEN
                || is(&[client::OPEN, client::CREATE, client::OPENDIR]),
            closes: [posix::CLOSE, posix::CLOSEDIR, stdio::FCLOSE, stdio::PCLOSE, mpi_io::CLOSE]
                .contains(&op)
                || is(&[client::CLOSE, client::CLOSEDIR]),
            attribute: [posix::FGETXATTR, posix::FSETXATTR, posix::FREMOVEXATTR].contains(&op),
            is_binary: op == app::DEBUG,
        };
        self.facts[index(op)] = Some(facts);
        facts
    }

    /// Returns the names of layer and operation of all operations that open a handle.
    #[must_use]
    pub fn opening() -> Vec<(String, String)> {
        let mut ops = Ops::default();
        let mut opening = Vec::new();
        for (layer, number) in
            (0..=u8::MAX).flat_map(|layer| (0..=u8::MAX).map(move |number| (layer, number)))
        {
            let facts = ops.facts_of(Op { layer, number });
            let names = (ops.layers.get(facts.layer.into()), ops.names.get(facts.key.into()));
            if let ((Some(layer), Some(op)), true) = (names, facts.opens) {
                opening.push((layer.to_owned(), op.to_owned()));
            }
        }
        opening
    }

    /// Names of the operations by key. The array is a new one only after a new operation.
    pub fn names(&mut self) -> ArrayRef {
        self.names.values()
    }

    /// Names of the layers by key.
    pub fn layers(&mut self) -> ArrayRef {
        self.layers.values()
    }
}

/// Undefined layers from this number on share one name.
const SHARED_NAME: u8 = 0xf0;

fn index(op: Op) -> usize {
    usize::from(op.layer) << 8 | usize::from(op.number)
}

/// A growing dictionary: names by key, in order of arrival.
#[derive(Debug)]
pub struct NameDictionary<K> {
    keys: HashMap<String, K>,
    names: Vec<String>,
    values: Option<ArrayRef>,
}

impl<K> Default for NameDictionary<K> {
    fn default() -> NameDictionary<K> {
        NameDictionary { keys: HashMap::new(), names: Vec::new(), values: None }
    }
}

impl<K: Copy + TryFrom<usize>> NameDictionary<K> {
    /// Key of a name, which is added if it is new. `None` if the dictionary is full.
    pub fn try_key(&mut self, name: &str) -> Option<K> {
        if let Some(key) = self.keys.get(name) {
            return Some(*key);
        }
        // Readers refuse a dictionary with as many names as there are keys: the length must fit a
        // key as well.
        let key = K::try_from(self.names.len() + 1).and_then(|_| K::try_from(self.names.len())).ok()?;
        self.keys.insert(name.to_owned(), key);
        self.names.push(name.to_owned());
        self.values = None;
        Some(key)
    }

    /// Key of a name where the number of names is known to be small enough.
    fn key(&mut self, name: &str) -> K
    where
        K: Default,
    {
        self.try_key(name).unwrap_or_default()
    }

    /// Name of a key.
    #[must_use]
    pub fn get(&self, key: usize) -> Option<&str> {
        self.names.get(key).map(String::as_str)
    }

    /// Names by key. The array is a new one only after a new name.
    pub fn values(&mut self) -> ArrayRef {
        let names = &self.names;
        Arc::clone(self.values.get_or_insert_with(|| Arc::new(StringArray::from_iter_values(names))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Array;
    use arrow_array::cast::AsArray;

    #[test]
    fn dictionary_length_fits_a_key() {
        let mut names = NameDictionary::<u8>::default();
        let given = (0..300).filter(|name: &u32| names.try_key(&name.to_string()).is_some()).count();
        assert_eq!((given, names.values().len()), (255, 255));
        assert_eq!(names.try_key("7"), Some(7), "a name keeps its key");
    }

    #[test]
    fn every_operation_has_a_key_and_a_name() {
        let mut ops = Ops::default();
        let facts = ops.facts_of(posix::OPENAT);
        assert!(facts.opens && !facts.closes && facts.has == has::ARG);
        assert!(ops.facts_of(Op { layer: Layer::Fuse as u8, number: client::CREATE.number }).opens);
        assert!(ops.facts_of(posix::CLOSE).closes && !ops.facts_of(posix::DUP).opens);
        let all: Vec<OpFacts> =
            (0..=u16::MAX).map(|n| ops.facts_of(Op { layer: (n >> 8) as u8, number: n as u8 })).collect();
        let names = ops.names();
        let names = names.as_string::<i32>();
        for op in [posix::READ, Op { layer: 4, number: 250 }, Op { layer: 99, number: 1 }] {
            let name = op.name().map_or_else(|| format!("{}:{}", op.layer, op.number), str::to_owned);
            assert_eq!(names.value(all[index(op)].key.into()), name);
        }
        // One name for each undefined layer below the shared ones, one for the shared ones; fewer
        // than there are keys.
        assert_eq!(ops.layers().len(), usize::from(SHARED_NAME) + 1);
        assert!(Arc::ptr_eq(&ops.names(), &ops.names()));
    }
}
