//! Sealed files with several row groups, and with sizes in their metadata that cannot be.

#![allow(clippy::unwrap_used)]

use super::{Batches, columns_are_within, rows};
use crate::checksum::{ChecksumWriter, Checksums, RowGroups as _};
use crate::decoders::Decoders;
use crate::error::Error;
use crate::event_file::EventWriter;
use crate::event_file::tests::Random;
use crate::schema::{self, Table};
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::{
    ColumnChunkMetaData, ColumnChunkMetaDataBuilder, ParquetMetaData, ParquetMetaDataReader,
    ParquetMetaDataWriter, RowGroupMetaData,
};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes a sealed file in which each batch is a row group.
fn sealed(dir: &Path, batches: &[RecordBatch]) -> PathBuf {
    let path = dir.join("events.parquet");
    let mut writer = EventWriter::new(ChecksumWriter::new(File::create(&path).unwrap())).unwrap();
    let mut checksums = Checksums::default();
    for batch in batches {
        checksums.write(&mut writer, batch).unwrap();
        writer.end().unwrap();
    }
    checksums.finish(&mut writer).unwrap();
    writer.finish().unwrap();
    path
}

/// Reads all columns with this number of threads beside the caller.
fn read(path: &Path, threads: usize) -> Result<Vec<RecordBatch>, Error> {
    let columns: Vec<&str> = schema::event_columns().collect();
    let batches = Batches::some(Table::Events, path, &columns, |_| true)?;
    let mut batches = batches.decoded_by(&Arc::new(Decoders::beside_caller(threads)), &columns);
    batches.begin_ahead();
    batches.collect()
}

fn column(batches: &[RecordBatch], name: &str) -> Vec<ArrayRef> {
    batches.iter().map(|batch| Arc::clone(batch.column_by_name(name).unwrap())).collect()
}

#[test]
fn threads_read_the_rows_of_all_row_groups() {
    let mut random = Random::new();
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..4 {
        // A row group with several batches, and small ones after it.
        let sizes = [20_000, 1, 1 + random.below(40_000) as usize, 300, 17_000];
        let written = sizes.map(|rows| random.batch(rows));
        let path = sealed(dir.path(), &written);
        assert_eq!(rows(&path, |_| true).unwrap(), sizes.iter().sum::<usize>() as u64);
        let expected = read(&path, 0).unwrap();
        for threads in 1..=3 {
            // The memory of a row group is used again only when nothing refers to it.
            let found = read(&path, threads).unwrap();
            for name in schema::event_columns() {
                assert_eq!(column(&found, name), column(&expected, name), "{name} with {threads} threads");
            }
        }
    }
}

/// Replaces the metadata of a file by that which `change` makes of it.
fn with_metadata(path: &Path, change: impl Fn(ParquetMetaData) -> ParquetMetaData) {
    let mut bytes = fs::read(path).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&File::open(path).unwrap()).unwrap();
    let length = bytes.len() - 8;
    let of_metadata = u32::from_le_bytes(bytes[length..length + 4].try_into().unwrap()) as usize;
    bytes.truncate(length - of_metadata);
    ParquetMetaDataWriter::new(&mut bytes, &change(metadata)).finish().unwrap();
    fs::write(path, bytes).unwrap();
}

fn with_groups(
    metadata: ParquetMetaData,
    change: impl Fn(RowGroupMetaData) -> RowGroupMetaData,
) -> ParquetMetaData {
    let groups = metadata.row_groups().iter().cloned().map(change).collect();
    metadata.into_builder().set_row_groups(groups).build()
}

fn with_columns(
    group: RowGroupMetaData,
    change: impl Fn(ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder,
) -> RowGroupMetaData {
    let changed = |column: &ColumnChunkMetaData| change(column.clone().into_builder()).build().unwrap();
    let columns = group.columns().iter().map(changed).collect();
    group.into_builder().set_column_metadata(columns).build().unwrap()
}

#[test]
fn impossible_sizes_are_errors() {
    let mut random = Random::new();
    let dir = tempfile::tempdir().unwrap();
    let written = [random.batch(3000), random.batch(500)];
    type Change = fn(RowGroupMetaData, i64) -> RowGroupMetaData;
    let changes: [(&str, Change); 4] = [
        ("rows", |group, size| group.into_builder().set_num_rows(size).build().unwrap()),
        ("values", |group, size| with_columns(group, |column| column.set_num_values(size))),
        ("compressed size", |group, size| {
            with_columns(group, |column| column.set_total_compressed_size(size))
        }),
        ("uncompressed size", |group, size| {
            with_columns(group, |column| column.set_total_uncompressed_size(size))
        }),
    ];
    for (what, change) in changes {
        // The writer of the metadata adds up the sizes of all columns.
        for size in [i64::MIN / 64, -1, i64::MAX / 64] {
            let path = sealed(dir.path(), &written);
            with_metadata(&path, |metadata| with_groups(metadata, |group| change(group, size)));
            let counted = rows(&path, |_| true);
            if what == "rows" {
                let expected = u64::try_from(size).map_or(0, |size| 2 * size);
                assert_eq!(counted.unwrap(), expected, "{size}");
            }
            for threads in [0, 1] {
                assert!(read(&path, threads).is_err(), "{what} {size} with {threads} threads");
            }
        }
    }
}

/// Returns the metadata of a file with one column of numbers, whose offset and length are
/// changed.
fn with_column_at(start: impl Fn(i64) -> i64, length: impl Fn(i64) -> i64) -> (ParquetMetaData, u64) {
    let numbers: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..9));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    let metadata = writer.close().unwrap();
    let group = metadata.row_group(0).clone();
    let column = group.column(0).clone();
    let offset = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let bytes = column.compressed_size();
    let column = column
        .into_builder()
        .set_dictionary_page_offset(Some(start(offset)))
        .set_total_compressed_size(length(bytes))
        .build()
        .unwrap();
    let group = group.into_builder().set_column_metadata(vec![column]).build().unwrap();
    (metadata.into_builder().set_row_groups(vec![group]).build(), file.len() as u64)
}

#[test]
fn columns_outside_of_the_file_are_detected() {
    let is_within = |start: fn(i64) -> i64, length: fn(i64) -> i64| {
        let (metadata, bytes) = with_column_at(start, length);
        columns_are_within(&metadata, bytes)
    };
    assert!(is_within(|start| start, |length| length));
    assert!(!is_within(|start| -start, |length| length));
    assert!(!is_within(|start| start, |length| -length));
    assert!(!is_within(|start| start, |_| i64::MAX));
    assert!(!is_within(|_| i64::MAX, |length| length));
    assert!(!is_within(|start| start + 10_000, |length| length));
}
