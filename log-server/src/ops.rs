//! Layers and operations as dictionary keys, with what the rows need to know of each.

use arrow_array::{ArrayRef, StringArray};
use miot_proto::op::{Args, Layer, Op, Res, app, client, mpi_io, posix, stdio};
use std::collections::HashMap;
use std::sync::Arc;

/// What an operation means for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpFacts {
    /// Key in the dictionary of operations.
    pub key: u16,
    /// Key in the dictionary of layers.
    pub layer: u8,
    /// Bits of [`has`]: which columns the words `offset` and `length` go to.
    pub has: u8,
    /// A successful one with a handle and a path names the handle.
    pub opens: bool,
    /// Ends its handle.
    pub closes: bool,
    /// The first path is the name of an attribute of the handle's file.
    pub attribute: bool,
    /// The second path is no text: it is written in hexadecimal.
    pub raw: bool,
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

/// Gives keys to operations and layers as they come. Known ones have their names, others their numbers.
#[derive(Debug)]
pub struct Ops {
    facts: Vec<Option<OpFacts>>,
    names: Names<u16>,
    layers: Names<u8>,
}

impl Default for Ops {
    fn default() -> Ops {
        Ops { facts: vec![None; 1 << 16], names: Names::default(), layers: Names::default() }
    }
}

impl Ops {
    /// The facts of an operation.
    #[inline]
    pub fn of(&mut self, op: Op) -> OpFacts {
        match self.facts[index(op)] {
            Some(facts) => facts,
            None => self.learn(op),
        }
    }

    #[cold]
    fn learn(&mut self, op: Op) -> OpFacts {
        let layer = match Layer::from_number(op.layer) {
            Some(layer) => self.layers.key(layer.name()),
            // A key less than there are numbers: some have to share a name.
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
                Some(Args::None) => 0,
                Some(Args::Range) | None => has::OFFSET | has::LENGTH,
                Some(Args::Length) => has::LENGTH,
                Some(Args::Offset) => has::OFFSET,
                Some(Args::OffsetArg) => has::OFFSET | has::ARG,
                Some(Args::Arg) => has::ARG,
            },
            opens: info.is_some_and(|info| info.result == Res::Fd && info.paths > 0)
                || op == mpi_io::OPEN
                || is(&[client::OPEN, client::CREATE, client::OPENDIR]),
            closes: [posix::CLOSE, posix::CLOSEDIR, stdio::FCLOSE, stdio::PCLOSE, mpi_io::CLOSE]
                .contains(&op)
                || is(&[client::CLOSE, client::CLOSEDIR]),
            attribute: [posix::FGETXATTR, posix::FSETXATTR, posix::FREMOVEXATTR].contains(&op),
            raw: op == app::DEBUG,
        };
        self.facts[index(op)] = Some(facts);
        facts
    }

    /// Names of layer and operation of those that open.
    #[must_use]
    pub fn opening() -> Vec<(String, String)> {
        let mut ops = Ops::default();
        let mut opening = Vec::new();
        for (layer, number) in
            (0..=u8::MAX).flat_map(|layer| (0..=u8::MAX).map(move |number| (layer, number)))
        {
            let facts = ops.of(Op { layer, number });
            let names = (ops.layers.get(facts.layer.into()), ops.names.get(facts.key.into()));
            if let ((Some(layer), Some(op)), true) = (names, facts.opens) {
                opening.push((layer.to_owned(), op.to_owned()));
            }
        }
        opening
    }

    /// Names of the operations by key. The same array as before unless an operation came for the first time.
    pub fn names(&mut self) -> ArrayRef {
        self.names.values()
    }

    /// Names of the layers by key.
    pub fn layers(&mut self) -> ArrayRef {
        self.layers.values()
    }
}

/// Layers from this number on, of which none is defined, have one name.
const SHARED_NAME: u8 = 0xf0;

fn index(op: Op) -> usize {
    usize::from(op.layer) << 8 | usize::from(op.number)
}

/// A dictionary that grows: names by key, in order of arrival.
#[derive(Debug)]
pub struct Names<K> {
    keys: HashMap<String, K>,
    names: Vec<String>,
    values: Option<ArrayRef>,
}

impl<K> Default for Names<K> {
    fn default() -> Names<K> {
        Names { keys: HashMap::new(), names: Vec::new(), values: None }
    }
}

impl<K: Copy + TryFrom<usize>> Names<K> {
    /// The key of a name, if there is still one to be had.
    pub fn try_key(&mut self, name: &str) -> Option<K> {
        if let Some(key) = self.keys.get(name) {
            return Some(*key);
        }
        // A dictionary as long as there are keys is one that readers refuse: the length has to fit a key as well.
        let key = K::try_from(self.names.len() + 1).and_then(|_| K::try_from(self.names.len())).ok()?;
        self.keys.insert(name.to_owned(), key);
        self.names.push(name.to_owned());
        self.values = None;
        Some(key)
    }

    /// The key of one of so many names that keys cannot run out.
    fn key(&mut self, name: &str) -> K
    where
        K: Default,
    {
        self.try_key(name).unwrap_or_default()
    }

    /// The name with this key.
    #[must_use]
    pub fn get(&self, key: usize) -> Option<&str> {
        self.names.get(key).map(String::as_str)
    }

    /// The names by key. The same array as before unless a name was added.
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
    fn a_dictionary_is_shorter_than_there_are_keys() {
        let mut names = Names::<u8>::default();
        let given = (0..300).filter(|name: &u32| names.try_key(&name.to_string()).is_some()).count();
        assert_eq!((given, names.values().len()), (255, 255));
        assert_eq!(names.try_key("7"), Some(7), "what has one keeps it");
    }

    #[test]
    fn every_operation_has_a_key_and_its_name() {
        let mut ops = Ops::default();
        let facts = ops.of(posix::OPENAT);
        assert!(facts.opens && !facts.closes && facts.has == has::ARG);
        assert!(ops.of(Op { layer: Layer::Fuse as u8, number: client::CREATE.number }).opens);
        assert!(ops.of(posix::CLOSE).closes && !ops.of(posix::DUP).opens);
        let all: Vec<OpFacts> =
            (0..=u16::MAX).map(|n| ops.of(Op { layer: (n >> 8) as u8, number: n as u8 })).collect();
        let names = ops.names();
        let names = names.as_string::<i32>();
        for op in [posix::READ, Op { layer: 4, number: 250 }, Op { layer: 99, number: 1 }] {
            let name = op.name().map_or_else(|| format!("{}:{}", op.layer, op.number), str::to_owned);
            assert_eq!(names.value(all[index(op)].key.into()), name);
        }
        // As many as the undefined ones that have names of their own, one for the others, and fewer than there are keys.
        assert_eq!(ops.layers().len(), usize::from(SHARED_NAME) + 1);
        assert!(Arc::ptr_eq(&ops.names(), &ops.names()));
    }
}
