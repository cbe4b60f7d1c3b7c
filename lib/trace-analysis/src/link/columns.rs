//! The columns of events that say how requests are linked.

use super::Request;
use crate::column;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array as _, ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use miot_proto::event::flag;
use miot_proto::op::Layer;
use miot_trace_store::schema::NameKey;
use std::collections::HashMap;

/// Gives each node a number.
#[derive(Debug, Default)]
pub struct Nodes(HashMap<String, u32>);

impl Nodes {
    pub(crate) fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.0.get(name) {
            return *number;
        }
        let number = self.0.len() as u32;
        self.0.insert(name.to_owned(), number);
        number
    }

    /// Their names, by number.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names = vec![""; self.0.len()];
        self.0.iter().for_each(|(name, number)| names[*number as usize] = name);
        names
    }
}

/// Which rows are of MPI-IO.
fn of_mpi(batch: &RecordBatch) -> Option<Vec<bool>> {
    let layers = batch.column_by_name("layer")?.as_any_dictionary_opt()?;
    let names = layers.values().as_string_opt::<i32>()?;
    let is_mpi: Vec<bool> = names.iter().map(|name| name == Some(Layer::MpiIo.name())).collect();
    if !is_mpi.contains(&true) {
        return Some(vec![false; batch.num_rows()]);
    }
    Some(layers.normalized_keys().into_iter().map(|key| is_mpi[key]).collect())
}

/// The requests of a batch of events.
#[derive(Debug)]
pub struct Requests<'a> {
    /// Number of the node by key.
    nodes: Vec<u32>,
    node: &'a [u32],
    process: &'a [u64],
    tid: &'a [u32],
    number: &'a [u32],
    time: &'a [i64],
    duration: &'a [i64],
    flags: &'a [u16],
    /// Rows of MPI-IO.
    is_mpi: Vec<bool>,
    enclosing: &'a PrimitiveArray<UInt32Type>,
    caller: &'a PrimitiveArray<UInt32Type>,
    offset: &'a PrimitiveArray<Int64Type>,
    length: &'a PrimitiveArray<Int64Type>,
}

impl<'a> Requests<'a> {
    /// `None` if the batch does not have the columns of events.
    pub fn of(batch: &'a RecordBatch, nodes: &mut Nodes) -> Option<Requests<'a>> {
        fn values<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Option<&'a [T::Native]> {
            column::<T>(batch, name).map(|column| column.values().as_ref())
        }
        let node = batch.column_by_name("node")?.as_dictionary_opt::<NameKey>()?;
        let names = node.values().as_string_opt::<i32>()?;
        Some(Requests {
            nodes: names.iter().map(|name| nodes.number(name.unwrap_or(""))).collect(),
            node: node.keys().values(),
            process: values::<UInt64Type>(batch, "process")?,
            tid: values::<UInt32Type>(batch, "tid")?,
            number: values::<UInt32Type>(batch, "request")?,
            time: values::<TimestampNanosecondType>(batch, "time")?,
            duration: values::<Int64Type>(batch, "duration")?,
            flags: values::<UInt16Type>(batch, "flags")?,
            is_mpi: of_mpi(batch)?,
            enclosing: column(batch, "enclosing")?,
            caller: column(batch, "caller_tid")?,
            offset: column(batch, "offset")?,
            length: column(batch, "length")?,
        })
    }

    /// Number of the node of a row.
    pub(crate) fn node(&self, row: usize) -> u32 {
        self.nodes.get(self.node[row] as usize).copied().unwrap_or(u32::MAX)
    }

    /// Thread that the request of a row was served for.
    pub(crate) fn caller(&self, row: usize) -> Option<u32> {
        self.caller.is_valid(row).then(|| self.caller.value(row))
    }

    /// The request of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn request(&self, row: usize) -> Request {
        let bytes = (self.offset.is_valid(row) && self.length.is_valid(row)).then(|| {
            let offset = self.offset.value(row);
            offset..offset.saturating_add(self.length.value(row))
        });
        let end = self.time[row];
        Request {
            node: self.node(row),
            process: self.process[row],
            tid: self.tid[row],
            number: self.number[row],
            enclosing: self.enclosing.is_valid(row).then(|| self.enclosing.value(row)),
            caller: self.caller(row),
            time: end.saturating_sub(self.duration[row])..end,
            is_async: self.flags[row] & flag::ASYNC != 0,
            is_mpi: self.is_mpi[row],
            bytes,
        }
    }
}
