//! Sealed files: how they are written, and opening them.

use crate::checksum;
use crate::error::Error;
use crate::schema::{self, Table};
use arrow_array::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData, SortingColumn};
use parquet::file::properties::WriterProperties;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Rows in a row group at most: what a reader holds at once per column, and the grain of its statistics.
pub(crate) const ROW_GROUP_ROWS: usize = 1 << 20;
/// Rows read at a time.
pub(crate) const BATCH_ROWS: usize = 1 << 16;
/// Key of the schema version in the file's metadata.
pub(crate) const SCHEMA_KEY: &str = "miot.schema";

/// How a table is written; the columns of events are [encoded elsewhere](crate::event_file).
pub(crate) fn properties(table: Table) -> WriterProperties {
    // Level 1: higher levels cost more than they save.
    let level = ZstdLevel::try_new(1).unwrap_or_default();
    let builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_created_by(concat!("miot version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_key_value_metadata(Some(vec![KeyValue::new(
            SCHEMA_KEY.to_owned(),
            schema::VERSION.to_string(),
        )]));
    let by_time = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
    match table {
        Table::Events => builder.set_sorting_columns(Some(vec![by_time])),
        _ => builder,
    }
    .build()
}

/// Opens a sealed file and checks that it is one of this table.
pub(crate) fn open(table: Table, path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>, Error> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let bytes = file.metadata().map_err(Error::io("look at", path))?.len();
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)
        .map_err(|e| Error::damaged(path, format!("not a whole Parquet file ({e})")))?;
    if !columns_are_within(builder.metadata(), bytes) {
        return Err(Error::damaged(path, "a column does not lie in the file"));
    }
    if !schema::fits(table, builder.schema().fields()) {
        return Err(Error::damaged(path, format!("it does not have the columns of table {table}")));
    }
    Ok(builder.with_batch_size(BATCH_ROWS))
}

/// Every column is said to be where the file has bytes. The reader takes that for granted.
fn columns_are_within(metadata: &ParquetMetaData, bytes: u64) -> bool {
    metadata.row_groups().iter().flat_map(|group| group.columns()).all(|column| {
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let range = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
        let end = range.and_then(|(start, length)| start.checked_add(length));
        end.is_some_and(|end| end <= bytes)
    })
}

/// Which row groups of a sealed file are as they were written, and the metadata of the file. Files without checksums
/// are taken at their word.
pub(crate) fn verify(table: Table, path: &Path) -> Result<(Vec<bool>, Arc<ParquetMetaData>), Error> {
    let builder = open(table, path)?;
    let groups = builder.metadata().num_row_groups();
    let mut good = checksum::verify(path, builder.metadata())?.unwrap_or_else(|| vec![true; groups]);
    good.resize(groups, false);
    Ok((good, Arc::clone(builder.metadata())))
}

/// Batches of a sealed file.
#[derive(Debug)]
pub(crate) struct Batches {
    reader: ParquetRecordBatchReader,
    table: Option<Table>,
    path: std::path::PathBuf,
}

impl Batches {
    /// All columns of all rows.
    pub(crate) fn all(table: Table, path: &Path) -> Result<Batches, Error> {
        let reader = open(table, path)?.build().map_err(|e| Error::damaged(path, e))?;
        Ok(Batches { reader, table: Some(table), path: path.to_owned() })
    }

    /// All columns of one row group.
    pub(crate) fn group(table: Table, path: &Path, group: usize) -> Result<Batches, Error> {
        let builder = open(table, path)?.with_row_groups(vec![group]);
        let reader = builder.build().map_err(|e| Error::damaged(path, e))?;
        Ok(Batches { reader, table: Some(table), path: path.to_owned() })
    }

    /// Some columns of the row groups that `keep` wants.
    pub(crate) fn some(
        table: Table,
        path: &Path,
        columns: &[&str],
        keep: impl Fn(&parquet::file::metadata::RowGroupMetaData) -> bool,
    ) -> Result<Batches, Error> {
        let builder = open(table, path)?;
        let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
        let groups = builder.metadata().row_groups().iter().enumerate();
        let groups = groups.filter(|(_, g)| keep(g)).map(|(i, _)| i).collect();
        let reader = builder
            .with_projection(mask)
            .with_row_groups(groups)
            .build()
            .map_err(|e| Error::damaged(path, e))?;
        Ok(Batches { reader, table: None, path: path.to_owned() })
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.reader.next()?.map_err(|e| Error::damaged(&self.path, e));
        Some(batch.and_then(|batch| match self.table {
            Some(table) => schema::complete(table, batch).map_err(|e| Error::damaged(&self.path, e)),
            None => Ok(batch),
        }))
    }
}

/// The system's error inside a Parquet one, so that a full disk is known as such.
pub(crate) fn to_io(error: ParquetError) -> std::io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(other) => std::io::Error::other(other),
        },
        other => std::io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::columns_are_within;
    use parquet::arrow::ArrowWriter;
    use parquet::file::metadata::ParquetMetaData;
    use std::sync::Arc;

    /// A file of one column of numbers, with other words of where that begins and how long it is.
    fn with_column_at(start: impl Fn(i64) -> i64, length: impl Fn(i64) -> i64) -> (ParquetMetaData, u64) {
        let numbers: arrow_array::ArrayRef = Arc::new(arrow_array::UInt64Array::from_iter_values(0..9));
        let batch = arrow_array::RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        let metadata = writer.close().unwrap();
        let group = metadata.row_group(0).clone();
        let column = group.column(0).clone();
        let said = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let bytes = column.compressed_size();
        let column = column
            .into_builder()
            .set_dictionary_page_offset(Some(start(said)))
            .set_total_compressed_size(length(bytes))
            .build()
            .unwrap();
        let group = group.into_builder().set_column_metadata(vec![column]).build().unwrap();
        (metadata.into_builder().set_row_groups(vec![group]).build(), file.len() as u64)
    }

    #[test]
    fn a_column_that_is_said_to_lie_elsewhere_is_not_within() {
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
}
