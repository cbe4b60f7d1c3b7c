//! Numbers for the nodes of a trace, the same in all its batches.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use miot_trace_store::schema::NameKey;
use std::collections::HashMap;

/// Numbers the nodes of a trace from 0, in the order in which they are first seen.
#[derive(Debug, Default)]
pub struct NodeNumbers(HashMap<String, u32>);

impl NodeNumbers {
    /// Returns the number of the node of each row of a batch; `None` if the batch does not have the
    /// column `node` of events.
    pub fn column<'a>(&mut self, batch: &'a RecordBatch) -> Option<NodeColumn<'a>> {
        let node = batch.column_by_name("node")?.as_dictionary_opt::<NameKey>()?;
        let names = node.values().as_string_opt::<i32>()?;
        let numbers = names.iter().map(|name| self.number(name.unwrap_or(""))).collect();
        Some(NodeColumn { keys: node.keys().values(), numbers })
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.0.get(name) {
            return *number;
        }
        let number = self.0.len() as u32;
        self.0.insert(name.to_owned(), number);
        number
    }

    /// Returns the names of the nodes, by number.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names = vec![""; self.0.len()];
        self.0.iter().for_each(|(name, number)| names[*number as usize] = name);
        names
    }
}

/// The column `node` of a batch, as numbers.
#[derive(Debug)]
pub struct NodeColumn<'a> {
    keys: &'a [i32],
    /// Number of the node, by key.
    numbers: Vec<u32>,
}

impl NodeColumn<'_> {
    /// Returns the number of the node of a row; `u32::MAX` if the dictionary does not have the
    /// name.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    #[must_use]
    pub fn number(&self, row: usize) -> u32 {
        self.numbers.get(self.keys[row] as usize).copied().unwrap_or(u32::MAX)
    }
}
