//! The sealed file of events: batches become pages at once, and pages a Parquet file.
//!
//! [`parquet::arrow::ArrowWriter`] does the same for any table, value by value, and takes several times as long as
//! all the rest of a log-server. What is known of events makes the difference: all columns are numbers or names
//! out of a dictionary, most of them are the same for long stretches or have few values, batches are large, and pages may be
//! cut where batches end. So a column of a batch is looked at as a whole: one value, few values, or differences.
//! File, row groups, metadata and page headers are those of the crate, and readers see nothing unusual.
//!
//! | module | role |
//! |---|---|
//! | `chunk` | pages of one column in one row group |
//! | `dictionary` | numbers of few distinct values |
//! | `delta` | `DELTA_BINARY_PACKED` |
//! | `hybrid` | `RLE`: runs and packed groups, for nulls and for dictionary indices |

mod chunk;
mod delta;
mod dictionary;
mod hybrid;
#[cfg(test)]
mod tests;

use crate::checksum::{RowGroups, Summed};
use crate::parquet_file::{self, ROW_GROUP_ROWS};
use crate::schema::{self, Table};
use arrow_array::{ArrayRef, RecordBatch};
use chunk::{Chunk, Finished, Scratch};
use parquet::arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata};
use parquet::errors::Result;
use parquet::file::metadata::{KeyValue, ParquetMetaData, RowGroupMetaData};
use parquet::file::writer::SerializedFileWriter;
use std::io::Write;
use std::sync::Arc;

/// Rows of a page at most: the grain in which a reader skips.
pub(crate) const PAGE_ROWS: usize = 1 << 16;

/// Writes the events of a part. Like [`parquet::arrow::ArrowWriter`].
pub(crate) struct EventWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    chunks: Vec<Chunk>,
    scratch: Scratch,
    /// Rows in the row group being made, and at most.
    rows: usize,
    most: usize,
}

impl RowGroups for EventWriter<Summed> {
    fn add(&mut self, rows: &RecordBatch) -> Result<()> {
        self.write(rows)
    }

    fn ended(&self) -> &[RowGroupMetaData] {
        self.file.flushed_row_groups()
    }

    fn end(&mut self) -> Result<()> {
        if self.rows > 0 { self.end_row_group() } else { Ok(()) }
    }

    fn written(&mut self) -> Result<&mut Summed> {
        self.file.flush()?;
        Ok(self.file.inner_mut())
    }

    fn append_key_value_metadata(&mut self, entry: KeyValue) {
        self.file.append_key_value_metadata(entry);
    }
}

impl<W: Write + Send> EventWriter<W> {
    /// Begins a file.
    pub(crate) fn new(out: W) -> Result<EventWriter<W>> {
        let schema = schema::of(Table::Events);
        let mut properties = parquet_file::properties(Table::Events);
        let columns = ArrowSchemaConverter::new().convert(&schema)?;
        add_encoded_arrow_schema_to_metadata(&schema, &mut properties);
        let file = SerializedFileWriter::new(out, columns.root_schema_ptr(), Arc::new(properties))?;
        let chunks = columns.columns().iter().map(|column| Chunk::new(Arc::clone(column)));
        Ok(EventWriter {
            chunks: chunks.collect(),
            file,
            scratch: Scratch::new()?,
            rows: 0,
            most: ROW_GROUP_ROWS,
        })
    }

    /// Adds rows, which must have the columns of `events`.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut start = 0;
        while start < batch.num_rows() {
            let rows = (batch.num_rows() - start).min(PAGE_ROWS).min(self.most - self.rows);
            let columns: Vec<ArrayRef> = batch.columns().iter().map(|c| c.slice(start, rows)).collect();
            if !self.chunks.iter().zip(&columns).all(|(chunk, column)| chunk.has_room(column)) {
                self.end_row_group()?;
                continue;
            }
            for (chunk, column) in self.chunks.iter_mut().zip(&columns) {
                chunk.add(column, &mut self.scratch)?;
            }
            start += rows;
            self.rows += rows;
            if self.rows == self.most {
                self.end_row_group()?;
            }
        }
        Ok(())
    }

    /// Writes what is left, and the footer.
    pub(crate) fn finish(&mut self) -> Result<ParquetMetaData> {
        if self.rows > 0 {
            self.end_row_group()?;
        }
        self.file.finish()
    }

    /// What it writes to.
    pub(crate) fn inner(&self) -> &W {
        self.file.inner()
    }

    fn end_row_group(&mut self) -> Result<()> {
        let mut group = self.file.next_row_group()?;
        for chunk in &mut self.chunks {
            let Finished { bytes, close } = chunk.finish(&mut self.scratch)?;
            group.append_column(&bytes, close)?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }
}
