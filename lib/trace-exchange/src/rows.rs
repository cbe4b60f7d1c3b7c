//! Events with names, column by column: what exports of whole rows go by, so that they have every column there is.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, TimeUnit};
use miot_trace_analysis::message::message;
use miot_trace_store::schema;
use miot_trace_store::schema::NameKey;
use std::borrow::Cow;
use std::io;

/// Type of a column, as formats need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Signed,
    /// So many bits.
    Unsigned(u8),
    Text,
}

/// A column of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Signed(i64),
    Unsigned(u64),
    Text(Cow<'a, str>),
}

/// Columns of each row: those of `miot_trace_store::schema::rows`, then `message`.
pub(crate) fn columns() -> Vec<(&'static str, Kind)> {
    let named = |(name, data_type): (&'static str, &DataType)| {
        let kind = match data_type {
            DataType::UInt16 => Kind::Unsigned(16),
            DataType::UInt32 => Kind::Unsigned(32),
            DataType::UInt64 => Kind::Unsigned(64),
            DataType::Int64 | DataType::Timestamp(..) => Kind::Signed,
            _ => Kind::Text,
        };
        (name, kind)
    };
    let mut columns: Vec<_> = schema::row_columns().map(named).collect();
    columns.push((MESSAGE, Kind::Text));
    columns
}

/// Name of the column that is no column of the trace.
const MESSAGE: &str = "message";

/// The rows of a batch.
pub(crate) struct Rows<'a> {
    columns: Vec<&'a ArrayRef>,
    layer: usize,
    op: usize,
    path: usize,
    path2: usize,
}

impl<'a> Rows<'a> {
    /// # Errors
    /// If the batch does not have the columns.
    pub(crate) fn of(batch: &'a RecordBatch) -> io::Result<Rows<'a>> {
        let all = schema::rows();
        let missing = |name: &str| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the trace has no column {name} of the expected type: is it of another version?"),
            )
        };
        let find = |name: &str| {
            let at = all.fields().iter().position(|field| field.name() == name);
            at.ok_or_else(|| missing(name))
        };
        let columns = all.fields().iter().map(|field| {
            let column = batch.column_by_name(field.name());
            column.filter(|c| c.data_type() == field.data_type()).ok_or_else(|| missing(field.name()))
        });
        Ok(Rows {
            columns: columns.collect::<io::Result<_>>()?,
            layer: find("layer")?,
            op: find("op")?,
            path: find("path")?,
            path2: find("path2")?,
        })
    }

    /// What column (by its place in [`columns`]) a row has; `None`: nothing.
    pub(crate) fn value(&self, column: usize, row: usize) -> Option<Value<'a>> {
        let Some(values) = self.columns.get(column) else {
            let [layer, op] = [self.layer, self.op].map(|column| self.text(column, row).unwrap_or(""));
            let [path, path2] = [self.path, self.path2].map(|column| self.text(column, row));
            return message(layer, op, path, path2).map(|message| Value::Text(message.into()));
        };
        if values.is_null(row) {
            return None;
        }
        Some(match values.data_type() {
            DataType::UInt16 => Value::Unsigned(values.as_primitive::<UInt16Type>().value(row).into()),
            DataType::UInt32 => Value::Unsigned(values.as_primitive::<UInt32Type>().value(row).into()),
            DataType::UInt64 => Value::Unsigned(values.as_primitive::<UInt64Type>().value(row)),
            DataType::Int64 => Value::Signed(values.as_primitive::<Int64Type>().value(row)),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                Value::Signed(values.as_primitive::<TimestampNanosecondType>().value(row))
            }
            _ => Value::Text(self.text(column, row)?.into()),
        })
    }

    /// A column of text.
    pub(crate) fn text(&self, column: usize, row: usize) -> Option<&'a str> {
        let column = *self.columns.get(column)?;
        if let Some(plain) = column.as_string_opt::<i32>() {
            return plain.is_valid(row).then(|| plain.value(row));
        }
        let names = column.as_dictionary_opt::<NameKey>()?;
        let (keys, values): (usize, &StringArray) = (names.key(row)?, names.values().as_string_opt()?);
        (keys < values.len() && values.is_valid(keys)).then(|| values.value(keys))
    }
}

/// Place of a column in [`columns`].
///
/// # Panics
/// If there is none of this name.
pub(crate) fn place(columns: &[(&str, Kind)], name: &str) -> usize {
    let at = columns.iter().position(|(column, _)| *column == name);
    at.unwrap_or_else(|| panic!("events have a column {name}"))
}
