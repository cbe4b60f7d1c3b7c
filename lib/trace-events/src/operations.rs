//! Numbers for the operations of a trace, the same in all its batches. A trace identifies layers
//! and operations by name.

use arrow_array::cast::AsArray;
use arrow_array::{Array, DictionaryArray, RecordBatch, StringArray};
use miot_proto::op::{self, OpInfo};
use miot_trace_store::schema::NameKey;
use std::collections::HashMap;

/// An operation by the names of its layer and itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedOperation {
    /// Name of the layer.
    pub layer: String,
    /// Name of the operation.
    pub op: String,
    /// Entry of the table of operations; `None` for an operation of a later version.
    pub info: Option<&'static OpInfo>,
}

/// Numbers each pair of a layer and an operation, from 0 in the order in which they are first seen.
#[derive(Debug, Default)]
pub struct OperationTable {
    numbers: HashMap<(String, String), usize>,
    named: Vec<NamedOperation>,
}

impl OperationTable {
    /// Returns the number of the operation of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn number(&mut self, of: &mut BatchOperations<'_>, row: usize) -> usize {
        let (layer, op) = (of.layer(row), of.ops.keys().value(row) as usize);
        let index = layer * of.op_names.len() + op;
        match of.numbers.get(index) {
            Some(&number) if number != usize::MAX => number,
            _ => {
                let number = self.new_number(of.layer_names.value(layer), of.op_names.value(op));
                of.numbers[index] = number;
                number
            }
        }
    }

    fn new_number(&mut self, layer: &str, op: &str) -> usize {
        let named = &mut self.named;
        *self.numbers.entry((layer.to_owned(), op.to_owned())).or_insert_with(|| {
            named.push(NamedOperation {
                layer: layer.to_owned(),
                op: op.to_owned(),
                info: op::by_name(layer, op),
            });
            named.len() - 1
        })
    }

    /// Returns the operation of a number.
    ///
    /// # Panics
    /// If no row had this number.
    #[must_use]
    pub fn get(&self, number: usize) -> &NamedOperation {
        &self.named[number]
    }
}

/// Operations of the rows of a batch.
#[derive(Debug)]
pub struct BatchOperations<'a> {
    layers: &'a DictionaryArray<NameKey>,
    ops: &'a DictionaryArray<NameKey>,
    layer_names: &'a StringArray,
    op_names: &'a StringArray,
    /// Numbers by layer key and operation key; `usize::MAX` if not looked up yet.
    numbers: Vec<usize>,
}

impl<'a> BatchOperations<'a> {
    /// Returns the operations of a batch; `None` if the batch does not have the columns `layer` and
    /// `op` of events.
    pub fn of(batch: &'a RecordBatch) -> Option<BatchOperations<'a>> {
        let layers = batch.column_by_name("layer")?.as_dictionary_opt::<NameKey>()?;
        let ops = batch.column_by_name("op")?.as_dictionary_opt::<NameKey>()?;
        Some(BatchOperations {
            layers,
            ops,
            layer_names: names(layers)?,
            op_names: names(ops)?,
            numbers: vec![usize::MAX; layers.values().len() * ops.values().len()],
        })
    }

    /// Returns the names of the layers, by key.
    #[must_use]
    pub fn layers(&self) -> &'a StringArray {
        self.layer_names
    }

    /// Returns the keys of the layer and the operation of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    #[must_use]
    pub fn keys(&self, row: usize) -> (usize, usize) {
        (self.layers.keys().values()[row] as usize, self.ops.keys().values()[row] as usize)
    }

    /// Returns the number of keys of operations.
    #[must_use]
    pub fn op_keys(&self) -> usize {
        self.op_names.len()
    }

    /// Returns the key of the layer of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn layer(&self, row: usize) -> usize {
        self.layers.keys().value(row) as usize
    }
}

fn names(array: &DictionaryArray<NameKey>) -> Option<&StringArray> {
    array.values().as_string_opt::<i32>()
}
