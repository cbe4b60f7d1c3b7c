//! Rows of results as Arrow columns, and Arrow values as Python objects.
//!
//! Rows have the names and the order of the tool's JSON output.

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampNanosecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ListArray, NullArray, RecordBatch, RecordBatchOptions, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::sync::Arc;

/// A value of JSON. Objects keep the order of their fields.
#[derive(Clone, Debug)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Json;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Json::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Json::Int(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(i64::try_from(value).map_or(Json::UInt(value), Json::Int))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(Json::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Json, E> {
                Ok(Json::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
                let mut all = Vec::new();
                while let Some(value) = list.next_element()? {
                    all.push(value);
                }
                Ok(Json::List(all))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Json::Map(all))
            }
        }
        deserializer.deserialize_any(Values)
    }
}

impl Json {
    /// Returns the value of a field of a structure that the tool prints as JSON.
    pub(crate) fn of(value: &impl Serialize) -> Result<Json, serde_json::Error> {
        serde_json::from_str(&serde_json::to_string(value)?)
    }

    /// Returns the text of a value in a column with values of several types.
    fn plain(&self) -> String {
        match self {
            Json::Null => String::new(),
            Json::Bool(value) => value.to_string(),
            Json::Int(value) => value.to_string(),
            Json::UInt(value) => value.to_string(),
            Json::Float(value) => value.to_string(),
            Json::Text(text) => text.clone(),
            Json::List(values) => {
                let values: Vec<String> = values.iter().map(Json::plain).collect();
                format!("[{}]", values.join(", "))
            }
            Json::Map(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name}: {}", value.plain())).collect();
                format!("{{{}}}", fields.join(", "))
            }
        }
    }

    pub(crate) fn get(&self, name: &str) -> &Json {
        match self {
            Json::Map(fields) => fields.iter().find(|(known, _)| known == name).map_or(&Json::Null, |f| &f.1),
            _ => &Json::Null,
        }
    }
}

/// Type that holds both.
fn joined(one: DataType, other: DataType) -> DataType {
    use DataType::{Boolean, Float64, Int64, List, Null, Struct, UInt64, Utf8};
    match (one, other) {
        (one, other) if one == other => one,
        (Null, other) => other,
        (one, Null) => one,
        (Int64 | UInt64 | Float64, Int64 | UInt64 | Float64) => Float64,
        (List(one), List(other)) => List(item(joined(one.data_type().clone(), other.data_type().clone()))),
        (Struct(one), Struct(other)) => {
            let mut fields: Vec<Field> = one.iter().map(|field| field.as_ref().clone()).collect();
            for field in &other {
                match fields.iter_mut().find(|known| known.name() == field.name()) {
                    Some(known) => {
                        let data_type = joined(known.data_type().clone(), field.data_type().clone());
                        *known = known.clone().with_data_type(data_type);
                    }
                    None => fields.push(field.as_ref().clone()),
                }
            }
            Struct(fields.into())
        }
        (Boolean | Utf8 | Int64 | UInt64 | Float64 | List(_) | Struct(_) | _, _) => Utf8,
    }
}

fn item(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type, true))
}

fn type_of(value: &Json) -> DataType {
    match value {
        Json::Null => DataType::Null,
        Json::Bool(_) => DataType::Boolean,
        Json::Int(_) => DataType::Int64,
        Json::UInt(_) => DataType::UInt64,
        Json::Float(_) => DataType::Float64,
        Json::Text(_) => DataType::Utf8,
        Json::List(values) => DataType::List(item(type_of_all(values.iter()))),
        Json::Map(fields) => {
            let fields = fields.iter().map(|(name, value)| Field::new(name, type_of(value), true));
            DataType::Struct(fields.collect())
        }
    }
}

fn type_of_all<'a>(values: impl Iterator<Item = &'a Json> + Clone) -> DataType {
    // Counts above the range of Int64 are rare: all counts of their column are unsigned then.
    let has_large = values.clone().any(|value| matches!(value, Json::UInt(_)));
    let has_negative = values.clone().any(|value| matches!(value, Json::Int(number) if *number < 0));
    values.fold(DataType::Null, |all, value| match type_of(value) {
        DataType::Int64 if has_large && !has_negative => joined(all, DataType::UInt64),
        found => joined(all, found),
    })
}

/// Returns the values as an array of this type. A value of another type is null.
fn array(data_type: &DataType, values: &[&Json]) -> Result<ArrayRef, ArrowError> {
    Ok(match data_type {
        DataType::Boolean => {
            let mut builder = BooleanBuilder::new();
            let of = |value: &&Json| if let Json::Bool(value) = value { Some(*value) } else { None };
            values.iter().for_each(|value| builder.append_option(of(value)));
            Arc::new(builder.finish())
        }
        DataType::Int64 => {
            let mut builder = Int64Builder::new();
            let of = |value: &&Json| if let Json::Int(value) = value { Some(*value) } else { None };
            values.iter().for_each(|value| builder.append_option(of(value)));
            Arc::new(builder.finish())
        }
        DataType::UInt64 => {
            let mut builder = UInt64Builder::new();
            let of = |value: &&Json| match value {
                Json::Int(value) => u64::try_from(*value).ok(),
                Json::UInt(value) => Some(*value),
                _ => None,
            };
            values.iter().for_each(|value| builder.append_option(of(value)));
            Arc::new(builder.finish())
        }
        DataType::Float64 => {
            let mut builder = Float64Builder::new();
            let of = |value: &&Json| match value {
                Json::Int(value) => Some(*value as f64),
                Json::UInt(value) => Some(*value as f64),
                Json::Float(value) => Some(*value),
                _ => None,
            };
            values.iter().for_each(|value| builder.append_option(of(value)));
            Arc::new(builder.finish())
        }
        DataType::Utf8 => {
            let mut builder = StringBuilder::new();
            for value in values {
                match value {
                    Json::Null => builder.append_null(),
                    Json::Text(text) => builder.append_value(text),
                    other => builder.append_value(other.plain()),
                }
            }
            Arc::new(builder.finish())
        }
        DataType::List(field) => {
            let mut items = Vec::new();
            let mut lengths = Vec::with_capacity(values.len());
            for value in values {
                if let Json::List(list) = value {
                    items.extend(list);
                    lengths.push(Some(list.len()));
                } else {
                    lengths.push(None);
                }
            }
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths.iter().map(|length| length.unwrap_or(0)));
            let valid: Vec<bool> = lengths.iter().map(Option::is_some).collect();
            let items = array(field.data_type(), &items)?;
            Arc::new(ListArray::try_new(Arc::clone(field), offsets, items, Some(valid.into()))?)
        }
        DataType::Struct(fields) => {
            let column = |field: &Arc<Field>| {
                let values: Vec<&Json> = values.iter().map(|value| value.get(field.name())).collect();
                array(field.data_type(), &values)
            };
            let columns = fields.iter().map(column).collect::<Result<Vec<_>, _>>()?;
            let valid: Vec<bool> = values.iter().map(|value| matches!(value, Json::Map(_))).collect();
            let valid = Some(valid.into());
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, valid, values.len())?)
        }
        _ => Arc::new(NullArray::new(values.len())),
    })
}

/// Returns rows as columns, in the order in which their names first occur.
pub(crate) fn batch(rows: &[Json]) -> Result<RecordBatch, ArrowError> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        let Json::Map(fields) = row else { continue };
        if fields.iter().map(|(name, _)| name.as_str()).eq(names.iter().copied()) {
            continue;
        }
        for (name, _) in fields {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (nth, name) in names.iter().enumerate() {
        let values: Vec<&Json> = rows.iter().map(|row| field_of(row, nth, name)).collect();
        let data_type = type_of_all(values.iter().copied());
        columns.push(array(&data_type, &values)?);
        fields.push(Field::new(*name, data_type, true));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
}

/// Returns a field of a row, which is mostly the `nth`.
fn field_of<'a>(row: &'a Json, nth: usize, name: &str) -> &'a Json {
    match row {
        Json::Map(fields) => match fields.get(nth) {
            Some((known, value)) if known == name => value,
            _ => row.get(name),
        },
        _ => &Json::Null,
    }
}

/// Returns a value as a Python object. Times are nanoseconds since 1970.
pub(crate) fn to_python<'py>(py: Python<'py>, array: &dyn Array, row: usize) -> PyResult<Bound<'py, PyAny>> {
    if array.is_null(row) || array.data_type() == &DataType::Null {
        return Ok(py.None().into_bound(py));
    }
    macro_rules! number {
        ($type:ty) => {
            array.as_primitive::<$type>().value(row).into_bound_py_any(py)
        };
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).into_bound_py_any(py),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float64 => number!(Float64Type),
        DataType::Timestamp(arrow_schema::TimeUnit::Nanosecond, _) => number!(TimestampNanosecondType),
        DataType::Utf8 => array.as_string::<i32>().value(row).into_bound_py_any(py),
        DataType::Binary => Ok(PyBytes::new(py, array.as_binary::<i32>().value(row)).into_any()),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let keys = dictionary.keys();
            let key = match keys.data_type() {
                DataType::Int32 => usize::try_from(keys.as_primitive::<Int32Type>().value(row)).ok(),
                DataType::UInt8 => Some(usize::from(keys.as_primitive::<UInt8Type>().value(row))),
                DataType::UInt16 => Some(usize::from(keys.as_primitive::<UInt16Type>().value(row))),
                DataType::UInt32 => Some(keys.as_primitive::<UInt32Type>().value(row) as usize),
                other => return Err(unknown(other)),
            };
            let values = dictionary.values();
            match key.filter(|key| *key < values.len()) {
                Some(key) => to_python(py, values, key),
                None => Ok(py.None().into_bound(py)),
            }
        }
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            let items = (0..items.len()).map(|at| to_python(py, &items, at)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, items)?.into_any())
        }
        DataType::Struct(fields) => {
            let dict = PyDict::new(py);
            for (field, column) in fields.iter().zip(array.as_struct().columns()) {
                dict.set_item(field.name(), to_python(py, column, row)?)?;
            }
            Ok(dict.into_any())
        }
        other => Err(unknown(other)),
    }
}

fn unknown(data_type: &DataType) -> PyErr {
    crate::errors::failed(&format!("values of type {data_type} cannot be converted to objects"))
}
