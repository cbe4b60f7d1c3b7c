//! Encoder of the sealed file of events: converts each batch directly to Parquet pages.
//!
//! [`parquet::arrow::ArrowWriter`] does the same for any table, value by value, and takes several
//! times as long as all other work of a log-server. This encoder uses properties of events: all
//! columns are numbers or names from a dictionary, most have long runs of one value or few values,
//! batches are large, and pages may end where batches end. So it encodes a column of a batch as a
//! whole: one value, few values, or differences. File, row groups, metadata and page headers are
//! written by the crate `parquet`, and the file is a normal Parquet file.
//!
//! | module | role |
//! |---|---|
//! | `column_chunk` | pages of one column in one row group |
//! | `dictionary` | dictionary of a column with few distinct numbers |
//! | `delta` | `DELTA_BINARY_PACKED` |
//! | `hybrid` | `RLE`: runs and packed groups, for nulls and dictionary indices |

mod column_chunk;
mod delta;
mod dictionary;
mod hybrid;
#[cfg(test)]
pub(crate) mod tests;

use crate::checksum::{ChecksumWriter, RowGroups};
use crate::parquet_file::{self, ROW_GROUP_ROWS};
use crate::schema::{self, Table};
use arrow_array::{ArrayRef, RecordBatch};
use column_chunk::{Chunk, Finished, Scratch};
use parquet::arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata};
use parquet::errors::Result;
use parquet::file::metadata::{KeyValue, ParquetMetaData, RowGroupMetaData};
use parquet::file::writer::SerializedFileWriter;
use std::io::Write;
use std::sync::Arc;

/// Maximum rows of a page, which is the unit that readers skip.
pub(crate) const PAGE_ROWS: usize = 1 << 16;

/// Writer of the events of a part, with the interface of [`parquet::arrow::ArrowWriter`].
pub(crate) struct EventWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    chunks: Vec<Chunk>,
    scratch: Scratch,
    /// Rows of the present row group.
    rows: usize,
    /// Maximum rows of a row group.
    max_rows: usize,
}

impl RowGroups for EventWriter<ChecksumWriter> {
    fn add(&mut self, rows: &RecordBatch) -> Result<()> {
        self.write(rows)
    }

    fn ended(&self) -> &[RowGroupMetaData] {
        self.file.flushed_row_groups()
    }

    fn end(&mut self) -> Result<()> {
        if self.rows > 0 { self.end_row_group() } else { Ok(()) }
    }

    fn written(&mut self) -> Result<&mut ChecksumWriter> {
        self.file.flush()?;
        Ok(self.file.inner_mut())
    }

    fn append_key_value_metadata(&mut self, entry: KeyValue) {
        self.file.append_key_value_metadata(entry);
    }
}

impl<W: Write + Send> EventWriter<W> {
    /// Creates a writer of a new file.
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
            max_rows: ROW_GROUP_ROWS,
        })
    }

    /// Appends rows, which must have the columns of `events`.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut start = 0;
        while start < batch.num_rows() {
            let rows = (batch.num_rows() - start).min(PAGE_ROWS).min(self.max_rows - self.rows);
            let columns: Vec<ArrayRef> = batch.columns().iter().map(|c| c.slice(start, rows)).collect();
            if !self.chunks.iter().zip(&columns).all(|(chunk, column)| chunk.fits(column)) {
                self.end_row_group()?;
                continue;
            }
            for (chunk, column) in self.chunks.iter_mut().zip(&columns) {
                chunk.add(column, &mut self.scratch)?;
            }
            start += rows;
            self.rows += rows;
            if self.rows == self.max_rows {
                self.end_row_group()?;
            }
        }
        Ok(())
    }

    /// Writes the last row group and the footer.
    pub(crate) fn finish(&mut self) -> Result<ParquetMetaData> {
        if self.rows > 0 {
            self.end_row_group()?;
        }
        self.file.finish()
    }

    /// Returns the underlying writer.
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
