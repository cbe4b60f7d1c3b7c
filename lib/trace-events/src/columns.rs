//! Columns of a batch of events, by row: the only place that defines their names and types.
//!
//! A batch has the columns of the table `events`, or those of `miot_trace_store::schema::rows`,
//! which adds `path`, `path2` and `comm`, or a selection of them. Each reader names the columns
//! that it requires. Any other column that the batch does not have is empty.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    ArrowDictionaryKeyType, Int32Type, Int64Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array as _, ArrowPrimitiveType, RecordBatch, StringArray};
use arrow_buffer::NullBuffer;
use miot_trace_store::schema;

/// A required column is missing in a batch of events, or has another type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the trace has no column {name} of the expected type: was it written by another version?")]
pub struct MissingColumn {
    /// Name of the column.
    pub name: &'static str,
}

impl From<MissingColumn> for std::io::Error {
    fn from(error: MissingColumn) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// A column of numbers.
#[derive(Debug)]
pub struct NumberColumn<'a, T: ArrowPrimitiveType> {
    /// Empty if the batch does not have the column, or only nulls.
    values: &'a [T::Native],
    nulls: Option<&'a NullBuffer>,
}

impl<'a, T: ArrowPrimitiveType> NumberColumn<'a, T> {
    fn find(batch: &'a RecordBatch, name: &str) -> Option<NumberColumn<'a, T>> {
        let array = batch.column_by_name(name)?;
        let values = schema::values::<T>(array)?;
        if array.null_count() == array.len() {
            // Looking at every null would take longer.
            return Some(NumberColumn::empty());
        }
        Some(NumberColumn {
            values: values.typed_data(),
            nulls: array.nulls().filter(|nulls| nulls.null_count() > 0),
        })
    }

    fn empty() -> NumberColumn<'a, T> {
        NumberColumn { values: &[], nulls: None }
    }

    /// Returns the value of a row; `None` if it is null, or if the batch does not have the row or
    /// the column.
    #[inline]
    #[must_use]
    pub fn get(&self, row: usize) -> Option<T::Native> {
        let value = *self.values.get(row)?;
        self.nulls.is_none_or(|nulls| nulls.is_valid(row)).then_some(value)
    }

    /// Returns the value of a row of a column without nulls; 0 if the batch does not have the row
    /// or the column.
    #[inline]
    #[must_use]
    pub fn value(&self, row: usize) -> T::Native {
        self.values.get(row).copied().unwrap_or_default()
    }

    /// Returns the values of all rows. Values of null rows are undefined. Empty if the batch does
    /// not have the column, or only nulls.
    #[must_use]
    pub fn values(&self) -> &'a [T::Native] {
        self.values
    }
}

/// A column of strings, plain or dictionary-encoded.
#[derive(Clone, Copy, Debug)]
pub struct TextColumn<'a> {
    keys: Keys<'a>,
    nulls: Option<&'a NullBuffer>,
    /// Strings of the rows or of the dictionary; `None` if the batch does not have the column.
    values: Option<&'a StringArray>,
}

/// Position of a row's string among the values of a column.
#[derive(Clone, Copy, Debug)]
enum Keys<'a> {
    /// The row number.
    Rows,
    U8(&'a [u8]),
    U16(&'a [u16]),
    I32(&'a [i32]),
}

impl<'a> TextColumn<'a> {
    fn find(batch: &'a RecordBatch, name: &str) -> Option<TextColumn<'a>> {
        let column = batch.column_by_name(name)?;
        if let Some(values) = column.as_string_opt::<i32>() {
            return Some(TextColumn { keys: Keys::Rows, nulls: None, values: Some(values) });
        }
        fn keys<K: ArrowDictionaryKeyType>(
            column: &dyn arrow_array::Array,
        ) -> Option<(&[K::Native], Option<&NullBuffer>)> {
            let keys = column.as_dictionary_opt::<K>()?.keys();
            Some((keys.values(), keys.nulls()))
        }
        let narrow = || keys::<UInt8Type>(column).map(|(keys, nulls)| (Keys::U8(keys), nulls));
        let middle = || keys::<UInt16Type>(column).map(|(keys, nulls)| (Keys::U16(keys), nulls));
        let wide = keys::<Int32Type>(column).map(|(keys, nulls)| (Keys::I32(keys), nulls));
        let (keys, nulls) = wide.or_else(middle).or_else(narrow)?;
        let values = column.as_any_dictionary_opt()?.values().as_string_opt::<i32>()?;
        Some(TextColumn { keys, nulls, values: Some(values) })
    }

    fn empty() -> TextColumn<'a> {
        TextColumn { keys: Keys::Rows, nulls: None, values: None }
    }

    /// Returns the string of a row; `None` if it is null, or if the batch does not have the row or
    /// the column.
    #[inline]
    #[must_use]
    pub fn get(&self, row: usize) -> Option<&'a str> {
        let values = self.values?;
        if self.nulls.is_some_and(|nulls| row >= nulls.len() || nulls.is_null(row)) {
            return None;
        }
        let at = match self.keys {
            Keys::Rows => row,
            Keys::U8(keys) => usize::from(*keys.get(row)?),
            Keys::U16(keys) => usize::from(*keys.get(row)?),
            Keys::I32(keys) => usize::try_from(*keys.get(row)?).ok()?,
        };
        (at < values.len() && values.is_valid(at)).then(|| values.value(at))
    }

    /// Returns the string of a row of a column without nulls; empty where [`TextColumn::get`] is
    /// `None`.
    #[inline]
    #[must_use]
    pub fn value(&self, row: usize) -> &'a str {
        self.get(row).unwrap_or("")
    }

    /// Returns for each row whether `wanted` is true of its string. Calls `wanted` once for each
    /// name of a dictionary. False for null; empty if the batch does not have the column.
    pub fn matching(&self, wanted: impl Fn(&str) -> bool) -> Vec<bool> {
        let Some(values) = self.values else { return Vec::new() };
        let of_value: Vec<bool> = values.iter().map(|value| value.is_some_and(&wanted)).collect();
        let is = |key: usize| of_value.get(key).copied().unwrap_or(false);
        let mut rows: Vec<bool> = match self.keys {
            Keys::Rows => return of_value,
            Keys::U8(keys) => keys.iter().map(|key| is(usize::from(*key))).collect(),
            Keys::U16(keys) => keys.iter().map(|key| is(usize::from(*key))).collect(),
            Keys::I32(keys) => keys.iter().map(|key| usize::try_from(*key).is_ok_and(is)).collect(),
        };
        if let Some(nulls) = self.nulls {
            rows.iter_mut().zip(nulls).for_each(|(row, valid)| *row &= valid);
        }
        rows
    }
}

macro_rules! event_columns {
    (
        numbers { $($number:ident: $arrow:ty, $number_doc:literal;)* }
        texts { $($text:ident, $text_doc:literal;)* }
    ) => {
        /// Columns of a batch of events.
        #[derive(Debug)]
        pub struct EventColumns<'a> {
            rows: usize,
            $(#[doc = $number_doc] pub $number: NumberColumn<'a, $arrow>,)*
            $(#[doc = $text_doc] pub $text: TextColumn<'a>,)*
        }

        impl<'a> EventColumns<'a> {
            /// Finds the columns of a batch. `time` and the `required` columns must exist; other
            /// missing columns are empty.
            ///
            /// # Errors
            /// [`MissingColumn`] if the batch does not have a required column with its type.
            pub fn of(batch: &'a RecordBatch, required: &[&str]) -> Result<EventColumns<'a>, MissingColumn> {
                fn found<T>(column: Option<T>, name: &'static str, required: &[&str], empty: T) -> Result<T, MissingColumn> {
                    match column {
                        Some(column) => Ok(column),
                        None if name == "time" || required.contains(&name) => Err(MissingColumn { name }),
                        None => Ok(empty),
                    }
                }
                Ok(EventColumns {
                    rows: batch.num_rows(),
                    $($number: {
                        const NAME: &str = stringify!($number);
                        found(NumberColumn::find(batch, NAME), NAME, required, NumberColumn::empty())?
                    },)*
                    $($text: {
                        const NAME: &str = stringify!($text);
                        found(TextColumn::find(batch, NAME), NAME, required, TextColumn::empty())?
                    },)*
                })
            }
        }
    };
}

event_columns! {
    numbers {
        time: TimestampNanosecondType, "Completion, nanoseconds since 1970.";
        duration: Int64Type, "Nanoseconds from begin to completion.";
        process: UInt64Type, "Process of the trace.";
        pid: UInt32Type, "Process id on its node.";
        tid: UInt32Type, "Thread id on its node.";
        file: UInt64Type, "File of the trace; null if none or unknown.";
        file2: UInt64Type, "The other file: source of a copy, new name of a rename; null if none.";
        handle: UInt64Type, "Number of the open file in its process; null if none.";
        offset: Int64Type, "Byte offset in the file; null if none or unknown.";
        offset2: Int64Type, "Byte offset in the other file; null if none.";
        length: Int64Type, "Bytes requested; null if none.";
        arg: Int64Type, "Argument of the operation (flags of open, mode of chmod, whence of seek); null if none.";
        result: Int64Type, "Bytes moved or another value; negative: −errno.";
        flags: Int32Type, "Bits of [`miot_proto::event::flag`].";
        stream: UInt64Type, "Stream of the trace.";
        seq: UInt64Type, "Attempt number in the stream.";
        request: UInt64Type, "Number of the request in its stream.";
        enclosing: UInt64Type, "Number of the parent request in the same stream; null if none.";
        cpu_time: Int64Type, "CPU time of the thread at completion, nanoseconds; null if not recorded.";
        caller_tid: UInt32Type, "Thread on the same node that the request was served for; null if unknown.";
        caller_uid: UInt64Type, "User that the request was served for; null if unknown.";
        mpi_rank: UInt32Type, "Rank in the communicator of an MPI file; null if none.";
        mpi_size: UInt32Type, "Size of that communicator; null if none.";
        etypes: Int64Type, "Offset in elementary types of the view (MPI-IO); null if none.";
        type_size: Int64Type, "Bytes of the datatype of one element (MPI-IO); null if none.";
        type_extent: Int64Type, "Extent of that datatype, or of the file type of a view that is set; null if none.";
    }
    texts {
        node, "Name of the node.";
        layer, "Name of the layer.";
        op, "Name of the operation.";
        path, "Path of the file; null if none or unknown. Not in the table `events`.";
        path2, "Path of the other file; null if none. Not in the table `events`.";
        comm, "Name of the thread. Not in the table `events`.";
    }
}

/// Returns a number that producers write with 32 bits, such as that of a request. A greater one is
/// from another program, and becomes the greatest one.
#[inline]
#[must_use]
pub fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl EventColumns<'_> {
    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, row};
    use arrow_array::{ArrayRef, DictionaryArray, TimestampNanosecondArray};
    use std::sync::Arc;

    #[test]
    fn only_required_columns_must_exist() {
        let events = batch(&[row("read", 7, 512, 1, 2)]);
        let columns = EventColumns::of(&events, &["time", "node"]).unwrap();
        assert_eq!((columns.rows(), columns.time.value(0), columns.file.get(0)), (1, 3, Some(7)));
        assert_eq!((columns.node.get(0), columns.path.get(0), columns.comm.value(0)), (Some("n1"), None, ""));
        assert_eq!((columns.time.get(1), columns.time.value(1)), (None, 0));
        let error = EventColumns::of(&events, &["path"]).unwrap_err();
        assert_eq!(error, MissingColumn { name: "path" });
    }

    #[test]
    fn name_columns_accept_keys_of_any_width() {
        let narrow: DictionaryArray<UInt8Type> = ["b", "a", "b"].into_iter().collect();
        let wide: DictionaryArray<UInt16Type> = [Some("b"), None, Some("a")].into_iter().collect();
        let time = TimestampNanosecondArray::from(vec![1, 2, 3]);
        let columns: [(&str, ArrayRef); 3] =
            [("time", Arc::new(time)), ("op", Arc::new(narrow)), ("node", Arc::new(wide))];
        let events =
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)));
        let events = events.unwrap();
        let columns = EventColumns::of(&events, &["op", "node"]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|row| columns.op.get(row)), [Some("b"), Some("a"), Some("b"), None]);
        assert_eq!([0, 1, 2, 3].map(|row| columns.node.get(row)), [Some("b"), None, Some("a"), None]);
    }
}
