//! Arrow IPC streams from outside: from a log-server, or from a file that may be damaged.
//!
//! The conversion of a schema in `arrow-ipc` panics on types that it does not know. Here only types
//! of columns of a trace pass.

use crate::live::CONTINUATION;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::{Field, Int, TimeUnit, Type};
use arrow_schema::{ArrowError, Schema};

/// Returns the batches of a stream.
///
/// # Errors
///
/// The bytes do not begin with a schema, or it has types that no table of a trace has.
pub fn read(bytes: &[u8]) -> Result<StreamReader<&[u8]>, ArrowError> {
    let not_a_trace = || ArrowError::ParseError("not a stream of rows of a trace".to_owned());
    let rest = bytes.strip_prefix(&CONTINUATION).ok_or_else(not_a_trace)?;
    let (size, rest) = rest.split_first_chunk().ok_or_else(not_a_trace)?;
    let metadata = rest.get(..u32::from_le_bytes(*size) as usize).ok_or_else(not_a_trace)?;
    let message = arrow_ipc::root_as_message(metadata).map_err(|_| not_a_trace())?;
    message.header_as_schema().and_then(schema).ok_or_else(not_a_trace)?;
    StreamReader::try_new(bytes, None)
}

/// Converts a schema; `None` if it has types that no table of a trace has.
pub(crate) fn schema(found: arrow_ipc::Schema<'_>) -> Option<Schema> {
    let is_known = found.fields()?.iter().all(is_known);
    is_known.then(|| arrow_ipc::convert::fb_to_schema(found))
}

fn is_known(field: Field<'_>) -> bool {
    let is_integer = |integer: Int<'_>| matches!(integer.bitWidth(), 8 | 16 | 32 | 64);
    let has_known_keys = field.dictionary().is_none_or(|keys| keys.indexType().is_some_and(is_integer));
    has_known_keys
        && match field.type_type() {
            Type::Int => field.type_as_int().is_some_and(is_integer),
            Type::Timestamp => field.type_as_timestamp().is_some_and(|time| {
                let units =
                    [TimeUnit::SECOND, TimeUnit::MILLISECOND, TimeUnit::MICROSECOND, TimeUnit::NANOSECOND];
                units.contains(&time.unit())
            }),
            Type::Utf8 | Type::Binary => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::read;
    use crate::schema::{self, Table};
    use arrow_array::RecordBatch;
    use arrow_ipc::writer::StreamWriter;
    use arrow_schema::SchemaRef;

    fn stream(columns: &SchemaRef) -> Vec<u8> {
        let mut writer = StreamWriter::try_new(Vec::new(), columns).unwrap();
        writer.write(&RecordBatch::new_empty(columns.clone())).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn streams_of_all_tables_are_read() {
        for columns in Table::ALL.map(schema::of).into_iter().chain([schema::rows()]) {
            let bytes = stream(&columns);
            let batches = read(&bytes).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
            assert_eq!(batches, [RecordBatch::new_empty(columns)]);
        }
    }

    #[test]
    fn damaged_schemas_are_errors_at_most() {
        let bytes = stream(&schema::of(Table::Files));
        let mut refused = 0;
        for at in 0..bytes.len() {
            for mask in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                let mut damaged = bytes.clone();
                damaged[at] ^= mask;
                refused += usize::from(read(&damaged).is_err());
            }
            let _ = read(&bytes[..at]);
        }
        assert!(refused > bytes.len());
    }
}
