//! Reader of a live stream, and truncation by a writer that continues it after a crash.
//!
//! The first byte selects the table, the prefix (nothing, the schema, or the schema and a batch),
//! and whether the rest gets the frame and checksum of a message. For all further bytes, the
//! complete messages of the prefix are read, reading ends, and reader and writer agree on the end
//! of the valid part. With a bit of the first byte, the rest is a stream of rows from a log-server.

use crate::Seed;
use crate::input::Input;
use arrow_array::{
    ArrayRef, BinaryArray, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampNanosecondArray,
};
use arrow_schema::DataType;
use miot_trace_store::live::{LiveReader, LiveWriter};
use miot_trace_store::schema::NameKey;
use miot_trace_store::{Table, arrow_stream, schema};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Rows of a batch.
const ROWS: usize = 5;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((mode, tail)) = bytes.split_first() else { return };
    if mode >> 6 & 1 == 1 {
        let read = arrow_stream::read(tail).unwrap_or_default();
        return assert!(read.iter().all(|batch| batch.num_columns() > 0));
    }
    let table = Table::ALL[usize::from(mode & 7) % Table::ALL.len()];
    let whole = &streams()[table as usize];
    let (prefix, rows) = match mode >> 3 & 3 {
        0 => (&[][..], 0),
        1 => (&whole.bytes[..whole.schema], 0),
        _ => (&whole.bytes[..], ROWS),
    };
    let tail = if mode >> 5 & 1 == 0 { tail.to_vec() } else { framed(tail) };
    let (file, path) = file(&[prefix, &tail].concat());
    let Ok(Some(mut reader)) = LiveReader::open(table, &path) else { panic!("the file does not exist") };
    let (mut read, mut last) = (0, reader.position());
    while let Ok(Some(batch)) = reader.next_batch() {
        assert!(batch.num_columns() == schema::of(table).fields().len());
        assert!(reader.position() > last, "a message has at least one byte");
        (read, last) = (read + batch.num_rows(), reader.position());
    }
    assert!(read >= rows, "{read} of {rows} rows");
    assert!(reader.position() >= prefix.len() as u64);
    let mut seen = 0;
    let recovered = LiveWriter::recover(table, &path, |batch| {
        seen += batch.num_rows();
        Ok(())
    });
    if let Ok((writer, _)) = recovered {
        drop(writer);
        assert_eq!(seen, read, "reader and writer find equal rows");
        assert_eq!(file.metadata().map(|meta| meta.len()).ok(), Some(last.max(reader.position())));
    }
}

/// Bytes of a live stream.
struct Stream {
    bytes: Vec<u8>,
    /// Size of the schema message, bytes.
    schema: usize,
}

/// Returns one stream with a batch per table, as the writer writes it.
fn streams() -> &'static [Stream] {
    static STREAMS: OnceLock<Vec<Stream>> = OnceLock::new();
    STREAMS.get_or_init(|| {
        Table::ALL.map(|table| written(table).unwrap_or_else(|error| panic!("{error}"))).into()
    })
}

fn written(table: Table) -> Result<Stream, Box<dyn std::error::Error>> {
    let (file, path) = file(&[]);
    let mut writer = LiveWriter::new(table, path)?;
    writer.write_out()?;
    let schema = file.metadata()?.len() as usize;
    let columns = schema::of(table).fields().iter().map(|field| column(field.data_type())).collect();
    writer.append(&RecordBatch::try_new(schema::of(table), columns)?)?;
    writer.write_out()?;
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0)?;
    Ok(Stream { bytes, schema })
}

/// Returns a stream as a log-server sends it.
fn rows_of_a_log_server() -> Result<Vec<u8>, arrow_schema::ArrowError> {
    let columns = schema::rows().fields().iter().map(|field| column(field.data_type())).collect();
    let rows = RecordBatch::try_new(schema::rows(), columns)?;
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &rows.schema())?;
    writer.write(&rows)?;
    writer.into_inner()
}

fn column(data_type: &DataType) -> ArrayRef {
    let numbers = 0..ROWS as u64;
    let texts = ["/a", "/a", "", "/b/c", "/a"];
    match data_type {
        DataType::Int32 => Arc::new(Int32Array::from_iter_values(numbers.map(|n| n as i32))),
        DataType::Int64 => Arc::new(Int64Array::from_iter_values(numbers.map(|n| n as i64 - 2))),
        DataType::Timestamp(..) => Arc::new(
            TimestampNanosecondArray::from_iter_values(numbers.map(|n| n as i64)).with_timezone("UTC"),
        ),
        DataType::Binary => Arc::new(BinaryArray::from_iter_values(texts)),
        DataType::Dictionary(..) => Arc::new(texts.into_iter().collect::<DictionaryArray<NameKey>>()),
        _ => Arc::new(StringArray::from_iter_values(texts)),
    }
}

/// Creates a file in memory that can be opened by its path.
fn file(bytes: &[u8]) -> (File, PathBuf) {
    let made = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).map(File::from);
    let Ok(mut file) = made else { panic!("memfd_create fails") };
    assert!(file.write_all(bytes).is_ok());
    let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    (file, path)
}

/// Returns a message of the live stream. The bytes are the `u16` length of the flatbuffer, the
/// flatbuffer, and the body.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut input = Input(bytes);
    let length = input.number(2) as usize;
    let mut flat = input.bytes(length).to_vec();
    flat.resize(flat.len().next_multiple_of(8), 0);
    flat.extend_from_slice(b"MCRC");
    let crc = crc32c::crc32c_append(crc32c::crc32c(&flat[..flat.len() - 4]), input.0);
    flat.extend_from_slice(&crc.to_le_bytes());
    let mut message = vec![0xff; 4];
    message.extend_from_slice(&(flat.len() as u32).to_le_bytes());
    message.extend_from_slice(&flat);
    message.extend_from_slice(input.0);
    message
}

/// Returns per table the schema, followed by its batch, and special cases.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = vec![("torn", vec![8, 0xff, 0xff, 0xff])];
    for table in Table::ALL {
        let stream = &streams()[table as usize];
        seeds.push((table.name(), [&[table as u8 | 1 << 3], &stream.bytes[stream.schema..]].concat()));
    }
    let losses = &streams()[Table::Losses as usize];
    let message = &losses.bytes[losses.schema..];
    // The message without frame and checksum: flatbuffer and body.
    let size = message[4..8].iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    let flat = &message[8..size];
    let mut checked = vec![Table::Losses as u8 | 1 << 3 | 1 << 5];
    checked.extend_from_slice(&(flat.len() as u16).to_le_bytes());
    checked.extend_from_slice(flat);
    checked.extend_from_slice(&message[8 + size..]);
    seeds.push(("checked", checked));
    match rows_of_a_log_server() {
        Ok(stream) => seeds.push(("rows", [&[1 << 6], stream.as_slice()].concat())),
        Err(error) => panic!("{error}"),
    }
    seeds
}
