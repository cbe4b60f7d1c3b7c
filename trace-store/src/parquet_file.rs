//! Sealed files: how they are written, and opening them.

use crate::error::Error;
use crate::schema::{self, Table};
use arrow_array::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use std::fs::File;
use std::path::Path;

/// Rows in a row group at most: what a reader holds at once per column, and the grain of its statistics.
pub(crate) const ROW_GROUP_ROWS: usize = 1 << 20;
/// Rows read at a time.
pub(crate) const BATCH_ROWS: usize = 1 << 16;
/// Key of the schema version in the file's metadata.
pub(crate) const SCHEMA_KEY: &str = "miot.schema";

/// How a table is written.
pub(crate) fn properties(table: Table) -> Result<WriterProperties, Error> {
    // Level 1: the columns are encoded to little before; higher levels cost more than they save.
    let level = ZstdLevel::try_new(1).unwrap_or_default();
    let builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_created_by(concat!("miot version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_key_value_metadata(Some(vec![KeyValue::new(
            SCHEMA_KEY.to_owned(),
            schema::VERSION.to_string(),
        )]));
    Ok(match table {
        Table::Events => events(builder),
        _ => builder,
    }
    .build())
}

/// Counters, times, and what is the same for long stretches: differences take next to nothing, and cost less
/// than looking every value up in a dictionary.
///
/// `BYTE_STREAM_SPLIT` would make `duration` and `offset` about a byte smaller, but only readers of Parquet 2.11
/// and later know it for integers.
const DELTA: [&str; 15] = [
    "time",
    "duration",
    "process",
    "pid",
    "file2",
    "offset",
    "offset2",
    "length",
    "arg",
    "result",
    "flags",
    "seq",
    "request",
    "enclosing",
    "cpu_time",
];
/// What is asked for by value or range. For the others, statistics of a million mixed rows exclude nothing.
const STATISTICS: [&str; 10] =
    ["time", "duration", "node", "process", "pid", "tid", "file", "result", "stream", "seq"];

fn events(mut builder: WriterPropertiesBuilder) -> WriterPropertiesBuilder {
    let encoding = Encoding::DELTA_BINARY_PACKED;
    for column in DELTA {
        let path = ColumnPath::from(column);
        builder =
            builder.set_column_dictionary_enabled(path.clone(), false).set_column_encoding(path, encoding);
    }
    builder = builder.set_statistics_enabled(EnabledStatistics::None);
    for column in STATISTICS {
        builder = builder.set_column_statistics_enabled(ColumnPath::from(column), EnabledStatistics::Chunk);
    }
    builder
        .set_sorting_columns(Some(vec![SortingColumn {
            column_idx: 0,
            descending: false,
            nulls_first: false,
        }]))
        // Per page and not per row group only, so that a time range is found without reading its neighbours.
        .set_column_statistics_enabled(ColumnPath::from("time"), EnabledStatistics::Page)
        .set_data_page_row_count_limit(1 << 17)
}

/// Opens a sealed file and checks that it is one of this table.
pub(crate) fn open(table: Table, path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>, Error> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)
        .map_err(|e| Error::damaged(path, format!("not a whole Parquet file ({e})")))?;
    if builder.schema().fields() != schema::of(table).fields() {
        return Err(Error::damaged(path, format!("it does not have the columns of table {table}")));
    }
    Ok(builder.with_batch_size(BATCH_ROWS))
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
            Some(table) => batch.with_schema(schema::of(table)).map_err(|e| Error::damaged(&self.path, e)),
            None => Ok(batch),
        }))
    }
}
