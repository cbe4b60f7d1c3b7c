//! Arrow IPC messages from outside: from a log-server, or from a file that may be damaged.
//!
//! `arrow-ipc` panics on schemas with types that it does not know, and on batches with more or less
//! than their columns have. [`MessageDecoder`] checks what it passes on: only types of columns of a
//! trace, and only what they need.

use crate::live::CONTINUATION;
use crate::schema;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{DictionaryEncoding, Field, FieldNode, Int, MessageHeader, TimeUnit, Type};
use arrow_schema::{ArrowError, DataType, Fields, Schema, SchemaRef};
use std::collections::HashMap;

/// Most rows of a message. Batches have tens of thousands.
const MAX_ROWS: i64 = 1 << 30;
/// Most bytes of the columns of a message, uncompressed.
const MAX_BYTES: usize = 1 << 30;
/// The length of a buffer may include padding up to a multiple of this.
const PADDING: usize = 64;

/// Returns the batches of a stream of [rows](schema::rows) or of some of their columns, not
/// compressed.
///
/// # Errors
///
/// The bytes are not such a stream.
pub fn read(bytes: &[u8]) -> Result<Vec<RecordBatch>, ArrowError> {
    read_messages(bytes, schema::are_of_rows, false)
}

fn read_messages(
    bytes: &[u8],
    fits: impl Fn(&Fields) -> bool,
    may_be_compressed: bool,
) -> Result<Vec<RecordBatch>, ArrowError> {
    let cut = || invalid("a message is cut");
    let (mut decoder, mut batches, mut rest) = (MessageDecoder::default(), Vec::new(), bytes);
    while !rest.is_empty() {
        let after = rest.strip_prefix(&CONTINUATION).ok_or_else(|| invalid("not a message"))?;
        let (size, after) = after.split_first_chunk().ok_or_else(cut)?;
        let size = u32::from_le_bytes(*size) as usize;
        if size == 0 {
            break;
        }
        let (metadata, after) = after.split_at_checked(size).ok_or_else(cut)?;
        let message = arrow_ipc::root_as_message(metadata).map_err(|error| invalid(&error.to_string()))?;
        let names = message.header_as_dictionary_batch().and_then(|names| names.data());
        let rows = message.header_as_record_batch().or(names);
        if !may_be_compressed && rows.is_some_and(|rows| rows.compression().is_some()) {
            return Err(invalid("a compressed message"));
        }
        let body = usize::try_from(message.bodyLength()).map_err(|_| cut())?;
        let (body, after) = after.split_at_checked(body).ok_or_else(cut)?;
        batches.extend(decoder.decode(metadata, &Buffer::from(body), &fits)?);
        rest = after;
    }
    Ok(batches)
}

/// Decoder of the messages of one stream.
#[derive(Debug, Default)]
pub(crate) struct MessageDecoder {
    schema: Option<SchemaRef>,
    dictionaries: HashMap<i64, ArrayRef>,
}

impl MessageDecoder {
    /// Returns the columns of the stream, if its schema was decoded.
    pub(crate) fn columns(&self) -> Option<&Fields> {
        self.schema.as_ref().map(|schema| schema.fields())
    }

    /// Decodes a message; `None` for a schema or a dictionary. `fits` returns true for the columns
    /// of a schema that is expected.
    ///
    /// # Errors
    ///
    /// The message is not valid, or it is not expected here.
    pub(crate) fn decode(
        &mut self,
        metadata: &[u8],
        body: &Buffer,
        fits: impl FnOnce(&Fields) -> bool,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let message = arrow_ipc::root_as_message(metadata).map_err(|error| invalid(&error.to_string()))?;
        if message.header_type() == MessageHeader::Schema {
            let found = message.header_as_schema().and_then(known_schema);
            let found = found.filter(|found| self.schema.is_none() && fits(found.fields()));
            self.schema = Some(found.ok_or_else(|| invalid("not the columns that are expected"))?.into());
            return Ok(None);
        }
        let schema = self.schema.as_ref().ok_or_else(|| invalid("rows before the schema"))?;
        let version = message.version();
        if let Some(found) = message.header_as_dictionary_batch() {
            // Names.
            checked(found.data(), body, [&DataType::Utf8].into_iter())?;
            read_dictionary(body, found, schema, &mut self.dictionaries, &version)?;
            return Ok(None);
        }
        let columns = schema.fields().iter().map(|field| field.data_type());
        let found = checked(message.header_as_record_batch(), body, columns)?;
        read_record_batch(body, found, SchemaRef::clone(schema), &self.dictionaries, None, &version).map(Some)
    }
}

fn invalid(reason: &str) -> ArrowError {
    ArrowError::ParseError(reason.to_owned())
}

/// Checks that columns are within their message, as `arrow-ipc` does not.
struct Layout<'a> {
    rows: arrow_ipc::RecordBatch<'a>,
    body: &'a [u8],
    buffers: flatbuffers::VectorIter<'a, arrow_ipc::Buffer>,
    /// Bytes of [`MAX_BYTES`] that are left.
    left: usize,
}

impl Layout<'_> {
    /// Returns true if the message has these columns and nothing else.
    fn has<'c>(&mut self, mut columns: impl Iterator<Item = &'c DataType>) -> bool {
        let mut nodes = self.rows.nodes().into_iter().flatten();
        let all = columns.all(|column| nodes.next().is_some_and(|node| self.column(column, node).is_some()));
        let only_known = self.rows.variadicBufferCounts().is_none_or(|counts| counts.is_empty());
        let has_rows = (0..=MAX_ROWS).contains(&self.rows.length());
        all && nodes.next().is_none() && self.buffers.next().is_none() && only_known && has_rows
    }

    fn column(&mut self, column: &DataType, node: &FieldNode) -> Option<()> {
        let count = |count: i64| usize::try_from(count).ok().filter(|_| count <= MAX_ROWS);
        let (rows, nulls) = (count(node.length())?, count(node.null_count())?);
        let validity = self.buffer()?;
        let (width, values) = match column {
            DataType::Utf8 | DataType::Binary => (size_of::<i32>(), rows + 1),
            DataType::Dictionary(keys, _) => (keys.primitive_width()?, rows),
            column => (column.primitive_width()?, rows),
        };
        let bytes = self.buffer()?;
        // No row has no offset either.
        let has_values = bytes >= values * width || (rows == 0 && bytes == 0);
        let has_no_more = bytes <= (values * width).next_multiple_of(PADDING);
        if matches!(column, DataType::Utf8 | DataType::Binary) {
            self.buffer()?;
        }
        let has_validity = nulls == 0 || validity >= rows.div_ceil(8);
        (has_validity && has_values && has_no_more && bytes.is_multiple_of(width)).then_some(())
    }

    /// Returns the uncompressed length of the next buffer.
    fn buffer(&mut self) -> Option<usize> {
        let length = self.length()?;
        self.left = self.left.checked_sub(length)?;
        Some(length)
    }

    fn length(&mut self) -> Option<usize> {
        let buffer = self.buffers.next()?;
        let (from, length) = (usize::try_from(buffer.offset()).ok()?, usize::try_from(buffer.length()).ok()?);
        let content = self.body.get(from..from.checked_add(length)?)?;
        if self.rows.compression().is_none() || content.is_empty() {
            return Some(content.len());
        }
        // A compressed buffer begins with its uncompressed length, or -1.
        let (claimed, rest) = content.split_first_chunk()?;
        match i64::from_le_bytes(*claimed) {
            -1 => Some(rest.len()),
            claimed => usize::try_from(claimed).ok(),
        }
    }
}

/// Returns rows that have these columns, so that `arrow-ipc` decodes them without a panic.
fn checked<'a, 'c>(
    rows: Option<arrow_ipc::RecordBatch<'a>>,
    body: &'a [u8],
    columns: impl Iterator<Item = &'c DataType>,
) -> Result<arrow_ipc::RecordBatch<'a>, ArrowError> {
    let not_within = || invalid("its columns are not within the message");
    let rows = rows.ok_or_else(not_within)?;
    let buffers = rows.buffers().ok_or_else(not_within)?.iter();
    Layout { rows, body, buffers, left: MAX_BYTES }.has(columns).then_some(rows).ok_or_else(not_within)
}

/// Converts a schema; `None` if it has types that no table of a trace has.
fn known_schema(found: arrow_ipc::Schema<'_>) -> Option<Schema> {
    let is_known = found.fields()?.iter().all(is_known);
    is_known.then(|| arrow_ipc::convert::fb_to_schema(found))
}

fn is_known(field: Field<'_>) -> bool {
    let is_integer = |integer: Int<'_>| matches!(integer.bitWidth(), 8 | 16 | 32 | 64);
    let is_name = |keys: DictionaryEncoding<'_>| {
        keys.indexType().is_some_and(is_integer) && field.type_type() == Type::Utf8
    };
    field.dictionary().is_none_or(is_name)
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

    use super::{read, read_messages};
    use crate::schema::{self, NameKey, Table};
    use arrow_array::{
        ArrayRef, BinaryArray, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray,
        TimestampNanosecondArray,
    };
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
    use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
    use std::sync::Arc;

    const ROWS: i64 = 5;

    fn column(data_type: &DataType) -> ArrayRef {
        let texts = ["/a", "/a", "", "/b/c", "/a"];
        match data_type {
            DataType::Int32 => Arc::new(Int32Array::from_iter_values(0..ROWS as i32)),
            DataType::Int64 => {
                Arc::new((0..ROWS).map(|row| (row % 2 == 0).then_some(row)).collect::<Int64Array>())
            }
            DataType::Timestamp(..) => {
                Arc::new(TimestampNanosecondArray::from_iter_values(0..ROWS).with_timezone("UTC"))
            }
            DataType::Binary => Arc::new(BinaryArray::from_iter_values(texts)),
            DataType::Dictionary(..) => Arc::new(texts.into_iter().collect::<DictionaryArray<NameKey>>()),
            _ => Arc::new(StringArray::from_iter_values(texts)),
        }
    }

    /// Returns rows of these columns, all of which may be null.
    fn rows(columns: &SchemaRef) -> RecordBatch {
        let nullable = |field: &FieldRef| field.as_ref().clone().with_nullable(true);
        let schema = Arc::new(Schema::new(columns.fields().iter().map(nullable).collect::<Vec<_>>()));
        let columns = columns.fields().iter().map(|field| column(field.data_type())).collect();
        RecordBatch::try_new(schema, columns).unwrap()
    }

    fn stream(rows: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), rows.schema_ref(), options).unwrap();
        writer.write(rows).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn streams_of_all_tables_are_read() {
        for columns in Table::ALL.map(schema::of).into_iter().chain([schema::rows()]) {
            for rows in [rows(&columns), RecordBatch::new_empty(columns)] {
                for compression in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
                    let found = read_messages(&stream(&rows, compression), |_| true, true).unwrap();
                    assert_eq!(found, std::slice::from_ref(&rows));
                }
            }
        }
    }

    #[test]
    fn only_rows_are_read_from_a_log_server() {
        let of = |columns: SchemaRef| RecordBatch::new_empty(columns);
        assert!(read(&stream(&of(schema::rows()), None)).is_ok());
        let some = Arc::new(schema::rows().project(&[3, 0]).unwrap());
        assert!(read(&stream(&of(some), None)).is_ok());
        let one = |name: &str, data_type: &DataType| {
            Arc::new(Schema::new(vec![Field::new(name, data_type.clone(), false)]))
        };
        assert!(read(&stream(&of(one("of a later version", &DataType::Int64)), None)).is_ok());
        let zone = DataType::Timestamp(TimeUnit::Nanosecond, Some("U\0".into()));
        for other in
            [Schema::empty().into(), one("time", &zone), one("later", &zone), one("pid", &DataType::Utf8)]
        {
            assert!(read(&stream(&of(other), None)).is_err());
        }
        assert!(read(&stream(&rows(&schema::rows()), Some(CompressionType::ZSTD))).is_err());
    }

    #[test]
    fn damaged_streams_are_errors_at_most() {
        for compression in [None, Some(CompressionType::LZ4_FRAME)] {
            let bytes = stream(&rows(&schema::of(Table::Files)), compression);
            let mut refused = 0;
            for at in 0..bytes.len() {
                for mask in [1, 8, 64, 128, 255] {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= mask;
                    refused += usize::from(read_messages(&damaged, |_| true, true).is_err());
                }
                let _ = read_messages(&bytes[..at], |_| true, true);
            }
            assert!(refused > bytes.len());
        }
    }
}
