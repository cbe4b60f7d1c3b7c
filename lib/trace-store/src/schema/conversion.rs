//! Conversion of columns to the types of this version.

use super::{NameKey, Table, of};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    ArrowDictionaryKeyType, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array as _, ArrayRef, DictionaryArray, Int32Array, Int64Array, PrimitiveArray, RecordBatch, StringArray,
    UInt32Array, UInt64Array, new_null_array,
};
use arrow_buffer::ScalarBuffer;
use arrow_schema::DataType::{self, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Utf8};
use arrow_schema::{ArrowError, Field, FieldRef, Schema};
use std::sync::Arc;

/// Returns true for a column of names with keys of any width.
pub(crate) fn is_name(found: &DataType) -> bool {
    let is_key = |key: &DataType| matches!(key, UInt8 | UInt16 | UInt32 | Int32);
    matches!(found, DataType::Dictionary(key, value) if is_key(key) && **value == Utf8)
}

/// Returns true if an earlier version had the type `found` where this one has the type `now`:
/// schemas before 3 had unsigned numbers, and the oldest ones narrower keys of names. The types are
/// given by their names in Arrow, for programs with another version of Arrow.
#[must_use]
pub fn is_earlier_name(found: &str, now: &str) -> bool {
    let is_name = |name: &str| {
        ["UInt8", "UInt16", "UInt32", "Int32"].iter().any(|key| name == format!("Dictionary({key}, Utf8)"))
    };
    matches!((found, now), ("UInt64", "Int64" | "Utf8") | ("UInt32", "Int64" | "Int32") | ("UInt16", "Int32"))
        || (is_name(found) && is_name(now))
}

/// Returns a column in the type that this version has for it. This is the only place that knows how
/// the types of earlier versions, and unsigned numbers of a writer, become those of this version.
///
/// A number above the greatest one of the type can only come from a broken or hostile producer. It
/// is null where the column may be null, otherwise the greatest one.
fn converted(column: &ArrayRef, to: &Field) -> Result<ArrayRef, ArrowError> {
    if column.data_type() == to.data_type() {
        return Ok(Arc::clone(column));
    }
    let array = column.as_ref();
    match (array.data_type(), to.data_type()) {
        (UInt64, Int64) => Ok(signed(array.as_primitive::<UInt64Type>(), to)),
        (UInt32, Int32) => Ok(narrowed(array.as_primitive::<UInt32Type>(), to)),
        (UInt32, Int64) => Ok(Arc::new(array.as_primitive::<UInt32Type>().unary::<_, Int64Type>(i64::from))),
        (UInt16, Int32) => Ok(Arc::new(array.as_primitive::<UInt16Type>().unary::<_, Int32Type>(i32::from))),
        (UInt64, Utf8) => {
            let numbers = array.as_primitive::<UInt64Type>().iter();
            Ok(Arc::new(numbers.map(|number| number.map(|n| n.to_string())).collect::<StringArray>()))
        }
        (found, now) if is_name(found) && is_name(now) => names(column),
        (found, now) => Err(ArrowError::SchemaError(format!(
            "expected `{}` of type {now}, found type {found}",
            to.name()
        ))),
    }
}

/// The numbers as signed ones; see [`converted`] for too great ones.
fn signed(column: &UInt64Array, to: &Field) -> ArrayRef {
    let above = column.values().iter().fold(0, |all, value| all | value) > i64::MAX as u64;
    if !above {
        let values = ScalarBuffer::new(column.values().inner().clone(), 0, column.len());
        return Arc::new(Int64Array::new(values, column.nulls().cloned()));
    }
    let fitting = |value: u64| i64::try_from(value).ok().or((!to.is_nullable()).then_some(i64::MAX));
    Arc::new(column.iter().map(|value| value.and_then(fitting)).collect::<Int64Array>())
}

/// The same for 32 bits.
fn narrowed(column: &UInt32Array, to: &Field) -> ArrayRef {
    let above = column.values().iter().fold(0, |all, value| all | value) > i32::MAX as u32;
    if !above {
        let values = ScalarBuffer::new(column.values().inner().clone(), 0, column.len());
        return Arc::new(Int32Array::new(values, column.nulls().cloned()));
    }
    let fitting = |value: u32| i32::try_from(value).ok().or((!to.is_nullable()).then_some(i32::MAX));
    Arc::new(column.iter().map(|value| value.and_then(fitting)).collect::<Int32Array>())
}

/// Returns a column of names with keys of [`NameKey`].
fn names(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    fn keys<K: ArrowDictionaryKeyType>(column: &ArrayRef) -> Option<Result<ArrayRef, ArrowError>>
    where
        K::Native: TryInto<i32>,
    {
        let names = column.as_dictionary_opt::<K>()?;
        let keys = names.keys();
        // A key is less than the number of names, which are in memory.
        let wide = keys.values().iter().map(|key| (*key).try_into().unwrap_or(0)).collect::<Vec<i32>>();
        let wide = PrimitiveArray::<NameKey>::try_new(wide.into(), keys.nulls().cloned());
        let wide = wide.and_then(|keys| DictionaryArray::try_new(keys, Arc::clone(names.values())));
        Some(wide.map(|names| Arc::new(names) as ArrayRef))
    }
    let narrow = keys::<UInt8Type>(column).or_else(|| keys::<UInt16Type>(column));
    narrow.or_else(|| keys::<UInt32Type>(column)).unwrap_or_else(|| Ok(Arc::clone(column)))
}

/// Returns rows of a table with the columns of this version: missing ones are null, others have the
/// types of this version.
pub(crate) fn complete(table: Table, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    batch_of(table, batch.columns().to_vec(), batch.num_rows())
}

/// Returns rows of a table. The numbers may be unsigned. Missing columns are null.
///
/// # Errors
/// If a column has a type that no version of the table has, or if columns differ in length.
pub fn batch(table: Table, columns: Vec<ArrayRef>) -> Result<RecordBatch, ArrowError> {
    let rows = columns.first().map_or(0, |column| column.len());
    batch_of(table, columns, rows)
}

fn batch_of(table: Table, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, ArrowError> {
    let all = of(table);
    let fields = all.fields();
    let found = columns.iter().zip(fields).map(|(column, field)| converted(column, field));
    let mut converted = found.collect::<Result<Vec<_>, _>>()?;
    let missing = fields.iter().skip(converted.len());
    converted.extend(missing.map(|column| new_null_array(column.data_type(), rows)));
    RecordBatch::try_new(all, converted)
}

/// Returns the same rows and columns in the types of this version.
pub(crate) fn in_present_types(table: Table, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let all = of(table);
    let now = |field: &FieldRef| all.field_with_name(field.name()).cloned().map(Arc::new);
    let fields = batch.schema_ref().fields().iter().map(now).collect::<Result<Vec<_>, _>>()?;
    if fields.iter().zip(batch.columns()).all(|(field, column)| field.data_type() == column.data_type()) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().zip(&fields).map(|(column, field)| converted(column, field));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{col, name, null};
    use super::*;

    #[test]
    fn names_with_other_keys_are_converted() {
        let field = col("layer", name());
        let layers: ArrayRef =
            Arc::new(vec!["posix", "stdio", "posix"].into_iter().collect::<DictionaryArray<UInt8Type>>());
        let ops: ArrayRef =
            Arc::new(vec!["posix", "stdio", "posix"].into_iter().collect::<DictionaryArray<UInt32Type>>());
        for column in [layers, ops] {
            let now = converted(&column, &field).unwrap();
            assert_eq!(now.data_type(), &name());
            let now = now.as_dictionary::<NameKey>().downcast_dict::<StringArray>().unwrap();
            assert_eq!(now.into_iter().flatten().collect::<Vec<_>>(), ["posix", "stdio", "posix"]);
        }
    }

    #[test]
    fn unsigned_numbers_become_signed_ones() {
        let of = |column: ArrayRef, to: Field| converted(&column, &to).unwrap();
        let wide: ArrayRef = Arc::new(UInt64Array::from(vec![Some(1), None, Some(1 << 62)]));
        let same = of(Arc::clone(&wide), null("file", Int64));
        assert_eq!(same.as_primitive::<Int64Type>(), &Int64Array::from(vec![Some(1), None, Some(1 << 62)]));
        let before = wide.as_primitive::<UInt64Type>().values().inner().as_ptr();
        assert_eq!(same.as_primitive::<Int64Type>().values().inner().as_ptr(), before, "nothing is copied");
        let small: ArrayRef = Arc::new(UInt32Array::from(vec![7, u32::MAX]));
        assert_eq!(
            of(Arc::clone(&small), col("uid", Int64)).as_primitive::<Int64Type>().values()[..],
            [7, 0xffff_ffff]
        );
        let flags: ArrayRef = Arc::new(arrow_array::UInt16Array::from(vec![u16::MAX]));
        assert_eq!(of(flags, col("flags", Int32)).as_primitive::<Int32Type>().values()[..], [0xffff]);

        // Numbers that do not fit.
        let great: ArrayRef = Arc::new(UInt64Array::from(vec![Some(2), Some(u64::MAX), None]));
        let nullable = of(Arc::clone(&great), null("handle", Int64));
        assert_eq!(nullable.as_primitive::<Int64Type>(), &Int64Array::from(vec![Some(2), None, None]));
        let whole: ArrayRef = Arc::new(UInt64Array::from(vec![2, 1 << 63]));
        assert_eq!(of(whole, col("seq", Int64)).as_primitive::<Int64Type>().values()[..], [2, i64::MAX]);
        assert_eq!(
            of(Arc::clone(&small), col("pid", Int32)).as_primitive::<Int32Type>().values()[..],
            [7, i32::MAX]
        );
        let ranks = of(small, null("rank", Int32));
        assert_eq!(ranks.as_primitive::<Int32Type>(), &Int32Array::from(vec![Some(7), None]));
        let nonces = of(great, null("nonce", Utf8));
        assert_eq!(
            nonces.as_string::<i32>(),
            &StringArray::from(vec![Some("2"), Some("18446744073709551615"), None])
        );
        let text: ArrayRef = Arc::new(StringArray::from(vec!["2"]));
        assert!(converted(&text, &col("seq", Int64)).is_err());
    }
}
