//! The Parquet file of one table of a part while it is written, with the suffix `.tmp`.

use super::foreign_files::{FILES_KEY, ForeignFiles};
use super::late_rows::LateRows;
use crate::checksum::{ChecksumWriter, Checksums, RowGroups};
use crate::error::Error;
use crate::event_file::EventWriter;
use crate::layout::{Layout, make_folder};
use crate::ledger::{Counts, FileEntry};
use crate::parquet_file;
use crate::recover::{STREAMS_KEY, StreamEnds};
use crate::schema::{self, Table};
use crate::stream_spans::spans_of;
use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, RowGroupMetaData};
use std::fs::{self, File};
use std::path::PathBuf;

/// Rows up to which batches are joined before they are encoded: a call per column costs as much as
/// thousands of rows.
pub(crate) const JOIN_ROWS: usize = 8192;

/// See the module. A drop before [`SealedFileWriter::finish`] removes the file.
pub(super) struct SealedFileWriter {
    table: Table,
    part: u64,
    path: PathBuf,
    writer: TableWriter,
    checksums: Checksums,
    ends: StreamEnds,
    foreign: ForeignFiles,
    late: Option<LateRows>,
    /// Small batches that will be joined.
    small: Vec<RecordBatch>,
    small_rows: usize,
    is_finished: bool,
}

impl SealedFileWriter {
    /// Creates the file. `late` are the rows to move, see [`super::late_rows`].
    pub(super) fn create(
        layout: &Layout,
        table: Table,
        part: u64,
        late: Option<RecordBatch>,
    ) -> Result<SealedFileWriter, Error> {
        make_folder(&layout.folder(table))?;
        let path = layout.sealed_tmp(table, part);
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        let writer = TableWriter::new(table, ChecksumWriter::new(file))
            .map_err(|e| Error::io("write to", &path)(parquet_file::to_io(e)))?;
        Ok(SealedFileWriter {
            table,
            part,
            path,
            writer,
            checksums: Checksums::default(),
            ends: StreamEnds::default(),
            foreign: ForeignFiles::default(),
            late: late.map(LateRows::new),
            small: Vec::new(),
            small_rows: 0,
            is_finished: false,
        })
    }

    /// The files that the part defines. Those that an event uses must be known before it.
    pub(super) fn files(&mut self) -> &mut ForeignFiles {
        &mut self.foreign
    }

    /// Appends rows, and counts them.
    pub(super) fn add(&mut self, batch: RecordBatch, counts: &mut Counts) -> Result<(), Error> {
        if self.table == Table::Events {
            let spans = spans_of(&batch);
            counts.add_events(&batch, &spans);
            self.ends.add_spans(&spans);
            self.foreign.add_batch(&batch);
        } else {
            counts.add_batch(self.table, &batch);
        }
        if batch.num_rows() >= JOIN_ROWS {
            self.write_small()?;
            return self.write(&batch);
        }
        self.small_rows += batch.num_rows();
        self.small.push(batch);
        if self.small_rows >= JOIN_ROWS { self.write_small() } else { Ok(()) }
    }

    fn write_small(&mut self) -> Result<(), Error> {
        self.small_rows = 0;
        match &*std::mem::take(&mut self.small) {
            [] => Ok(()),
            [batch] => self.write(batch),
            batches => {
                let joined = concat_batches(&schema::of(self.table), batches)
                    .map_err(|e| Error::Encode { table: self.table, reason: e.to_string() })?;
                self.write(&joined)
            }
        }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        let failed = |e: ParquetError| Error::io("write to", &self.path)(parquet_file::to_io(e));
        let Some(late) = &mut self.late else {
            return self.checksums.write(&mut self.writer, batch).map_err(failed);
        };
        match late.merge(batch).map_err(|e| Error::damaged(&self.path, e))? {
            Some(merged) => self.checksums.write(&mut self.writer, &merged).map_err(failed),
            None => Ok(()),
        }
    }

    /// Writes the rest of the file and syncs it.
    pub(super) fn finish(mut self, layout: &Layout) -> Result<FileEntry, Error> {
        self.write_small()?;
        let failed = |e: ParquetError| Error::io("write to", &self.path)(parquet_file::to_io(e));
        std::mem::take(&mut self.checksums).finish(&mut self.writer).map_err(failed)?;
        if self.table == Table::Events {
            let entry = |key: &str, text| KeyValue::new(key.to_owned(), text);
            self.writer.append_key_value_metadata(entry(STREAMS_KEY, self.ends.to_text()));
            self.writer.append_key_value_metadata(entry(FILES_KEY, self.foreign.to_text()));
            self.writer.append_key_value_metadata(parquet_file::side_tables(layout, self.part)?);
        }
        let rows = self.writer.finish().map_err(failed)?;
        let summed = self.writer.summed();
        summed.file().sync_all().map_err(Error::io("sync", &self.path))?;
        let (bytes, crc32c) = summed.sum();
        self.is_finished = true;
        Ok(FileEntry { rows, bytes, crc32c })
    }
}

impl Drop for SealedFileWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            // Frees the space. If this fails, the next writer removes the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writer of a Parquet file; events have their own encoder.
enum TableWriter {
    Events(EventWriter<ChecksumWriter>),
    Side(ArrowWriter<ChecksumWriter>),
}

impl TableWriter {
    fn new(table: Table, file: ChecksumWriter) -> Result<TableWriter, ParquetError> {
        Ok(match table {
            Table::Events => TableWriter::Events(EventWriter::new(file)?),
            _ => TableWriter::Side(ArrowWriter::try_new(
                file,
                schema::of(table),
                Some(parquet_file::properties(table)),
            )?),
        })
    }

    /// Finishes the file and returns the number of its rows.
    fn finish(&mut self) -> Result<u64, ParquetError> {
        let metadata = match self {
            TableWriter::Events(writer) => writer.finish()?,
            TableWriter::Side(writer) => writer.finish()?,
        };
        Ok(metadata.file_metadata().num_rows() as u64)
    }

    fn summed(&self) -> &ChecksumWriter {
        match self {
            TableWriter::Events(writer) => writer.inner(),
            TableWriter::Side(writer) => writer.inner(),
        }
    }
}

impl RowGroups for TableWriter {
    fn add(&mut self, rows: &RecordBatch) -> Result<(), ParquetError> {
        match self {
            TableWriter::Events(writer) => writer.add(rows),
            TableWriter::Side(writer) => writer.add(rows),
        }
    }

    fn ended(&self) -> &[RowGroupMetaData] {
        match self {
            TableWriter::Events(writer) => writer.ended(),
            TableWriter::Side(writer) => writer.ended(),
        }
    }

    fn end(&mut self) -> Result<(), ParquetError> {
        match self {
            TableWriter::Events(writer) => writer.end(),
            TableWriter::Side(writer) => writer.end(),
        }
    }

    fn written(&mut self) -> Result<&mut ChecksumWriter, ParquetError> {
        match self {
            TableWriter::Events(writer) => writer.written(),
            TableWriter::Side(writer) => writer.written(),
        }
    }

    fn append_key_value_metadata(&mut self, entry: KeyValue) {
        match self {
            TableWriter::Events(writer) => RowGroups::append_key_value_metadata(writer, entry),
            TableWriter::Side(writer) => RowGroups::append_key_value_metadata(writer, entry),
        }
    }
}
