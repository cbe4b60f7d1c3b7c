//! Layers and operations by name, as traces have them.

use arrow_array::cast::AsArray;
use arrow_array::{Array, DictionaryArray, RecordBatch, StringArray};
use miot_proto::op::{self, OpInfo};
use miot_trace_store::schema::NameKey;
use std::collections::HashMap;

/// A layer and an operation by name, and what the operation table says of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) layer: String,
    pub(crate) op: String,
    /// `None`: a later version's operation.
    pub(crate) info: Option<&'static OpInfo>,
}

/// Gives every pair of names a number, from 0.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    numbers: HashMap<(String, String), usize>,
    named: Vec<Named>,
}

impl Operations {
    /// The number of each row's operation, by layer key and operation key of this batch; `None` if the batch
    /// does not have the columns of events.
    pub(crate) fn of<'a>(&mut self, batch: &'a RecordBatch) -> Option<Numbers<'a>> {
        let layers = batch.column_by_name("layer")?.as_dictionary_opt::<NameKey>()?;
        let ops = batch.column_by_name("op")?.as_dictionary_opt::<NameKey>()?;
        Some(Numbers {
            layers,
            ops,
            layer_names: names(layers)?,
            op_names: names(ops)?,
            numbers: vec![usize::MAX; layers.values().len() * ops.values().len()],
        })
    }

    /// The number of the operation of a row.
    pub(crate) fn number(&mut self, of: &mut Numbers<'_>, row: usize) -> usize {
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
            named.push(Named { layer: layer.to_owned(), op: op.to_owned(), info: op::by_name(layer, op) });
            named.len() - 1
        })
    }

    /// What a number stands for.
    pub(crate) fn get(&self, number: usize) -> &Named {
        &self.named[number]
    }
}

/// The operations of one batch.
#[derive(Debug)]
pub(crate) struct Numbers<'a> {
    layers: &'a DictionaryArray<NameKey>,
    ops: &'a DictionaryArray<NameKey>,
    layer_names: &'a StringArray,
    op_names: &'a StringArray,
    /// By layer key and operation key; `usize::MAX`: not asked yet.
    numbers: Vec<usize>,
}

impl<'a> Numbers<'a> {
    /// Names of the layers, by key.
    pub(crate) fn layers(&self) -> &'a StringArray {
        self.layer_names
    }

    /// Key of the layer of a row.
    pub(crate) fn layer(&self, row: usize) -> usize {
        self.layers.keys().value(row) as usize
    }
}

fn names(array: &DictionaryArray<NameKey>) -> Option<&StringArray> {
    array.values().as_string_opt::<i32>()
}
