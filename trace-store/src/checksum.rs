//! Checksums of sealed files. Parquet pages have none, so a changed bit could pass as another value.
//!
//! The metadata of a sealed file holds, for each row group, the byte after it and the CRC-32C of its bytes (for
//! the first: from the start of the file): `1200:89abcdef 4711:00c0ffee`. What follows the last row group, indexes and
//! metadata, has a structure of its own that a reader checks.

use crate::carried::value;
use crate::error::Error;
use crate::parquet_file::ROW_GROUP_ROWS;
use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

/// Key of the checksums in the metadata of a sealed file.
const CHECKSUMS_KEY: &str = "miot.checksums";
const BUFFER: usize = 256 << 10;

/// A file that is written from its start, and what was written since the last mark.
#[derive(Debug)]
pub(crate) struct Summed {
    file: File,
    bytes: u64,
    crc: u32,
    /// Of all bytes.
    whole: u32,
}

impl Summed {
    pub(crate) fn new(file: File) -> Summed {
        Summed { file, bytes: 0, crc: 0, whole: 0 }
    }

    /// Bytes written, and their CRC-32C.
    pub(crate) fn sum(&self) -> (u64, u32) {
        (self.bytes, self.whole)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes[..written]);
        self.whole = crc32c::crc32c_append(self.whole, &bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A writer of a Parquet file.
pub(crate) trait RowGroups {
    /// Adds rows.
    fn add(&mut self, rows: &RecordBatch) -> Result<(), ParquetError>;
    /// Row groups that have ended.
    fn count(&self) -> usize;
    /// Ends the last row group.
    fn end(&mut self) -> Result<(), ParquetError>;
    /// The file, with all that was written of these.
    fn written(&mut self) -> Result<&mut Summed, ParquetError>;
    /// Adds an entry to the metadata of the file.
    fn append_key_value_metadata(&mut self, entry: KeyValue);
}

impl RowGroups for ArrowWriter<Summed> {
    fn add(&mut self, rows: &RecordBatch) -> Result<(), ParquetError> {
        self.write(rows)
    }

    fn count(&self) -> usize {
        self.flushed_row_groups().len()
    }

    fn end(&mut self) -> Result<(), ParquetError> {
        self.flush()
    }

    fn written(&mut self) -> Result<&mut Summed, ParquetError> {
        self.sync()?;
        Ok(self.inner_mut())
    }

    fn append_key_value_metadata(&mut self, entry: KeyValue) {
        ArrowWriter::append_key_value_metadata(self, entry);
    }
}

/// The checksums of a file that is being written.
#[derive(Debug, Default)]
pub(crate) struct Checksums {
    groups: usize,
    text: String,
}

impl Checksums {
    /// Writes rows, in pieces that end one row group at most: each has a checksum of its own.
    pub(crate) fn write(
        &mut self,
        writer: &mut impl RowGroups,
        rows: &RecordBatch,
    ) -> Result<(), ParquetError> {
        for start in (0..rows.num_rows()).step_by(ROW_GROUP_ROWS) {
            writer.add(&rows.slice(start, ROW_GROUP_ROWS.min(rows.num_rows() - start)))?;
            self.note(writer)?;
        }
        Ok(())
    }

    /// Notes the row group that has ended, if one has.
    fn note(&mut self, writer: &mut impl RowGroups) -> Result<(), ParquetError> {
        if writer.count() == self.groups {
            return Ok(());
        }
        self.groups = writer.count();
        let summed = writer.written()?;
        let space = if self.text.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{space}{}:{:08x}", summed.bytes, summed.crc);
        summed.crc = 0;
        Ok(())
    }

    /// Ends the last row group, and puts the checksums into the metadata.
    pub(crate) fn finish(mut self, writer: &mut impl RowGroups) -> Result<(), ParquetError> {
        writer.end()?;
        self.note(writer)?;
        writer.append_key_value_metadata(KeyValue::new(CHECKSUMS_KEY.to_owned(), self.text));
        Ok(())
    }
}

/// True if a file has checksums.
pub(crate) fn are_there(metadata: &ParquetMetaData) -> bool {
    value(metadata, CHECKSUMS_KEY).is_some()
}

/// For each row group, whether its bytes are what was written; `None` if the file has no checksums.
pub(crate) fn verify(path: &Path, metadata: &ParquetMetaData) -> Result<Option<Vec<bool>>, Error> {
    let Some(text) = value(metadata, CHECKSUMS_KEY) else { return Ok(None) };
    let mut file = BufReader::with_capacity(BUFFER, File::open(path).map_err(Error::io("open", path))?);
    let (mut buffer, mut from, mut good) = (vec![0; BUFFER], 0u64, Vec::new());
    for pair in text.split(' ').filter(|pair| !pair.is_empty()) {
        let parsed = pair
            .split_once(':')
            .and_then(|(end, crc)| Some((end.parse().ok()?, u32::from_str_radix(crc, 16).ok()?)));
        let Some((end, expected)) = parsed.filter(|(end, _): &(u64, u32)| *end >= from) else {
            return Err(Error::damaged(path, format!("its checksums cannot be read ({CHECKSUMS_KEY})")));
        };
        let (mut left, mut crc) = (end - from, 0);
        while left > 0 {
            let most = usize::try_from(left).map_or(BUFFER, |left| left.min(BUFFER));
            let read = file.read(&mut buffer[..most]).map_err(Error::io("read", path))?;
            if read == 0 {
                break;
            }
            crc = crc32c::crc32c_append(crc, &buffer[..read]);
            left -= read as u64;
        }
        good.push(left == 0 && crc == expected);
        from = end;
    }
    Ok(Some(good))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::parquet_file;
    use crate::schema::Table;
    use arrow_array::{ArrayRef, UInt64Array};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use std::sync::Arc;

    #[test]
    fn each_row_group_of_one_large_batch_has_its_checksum() {
        let rows = 2 * ROW_GROUP_ROWS as u64 + 5;
        let column: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..rows));
        let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = Summed::new(File::create(&path).unwrap());
        let properties = Some(parquet_file::properties(Table::Losses));
        let mut writer = ArrowWriter::try_new(file, batch.schema(), properties).unwrap();
        let mut checksums = Checksums::default();
        checksums.write(&mut writer, &batch).unwrap();
        checksums.finish(&mut writer).unwrap();
        writer.finish().unwrap();

        let metadata = || {
            let file = File::open(&path).unwrap();
            Arc::clone(ParquetRecordBatchReaderBuilder::try_new(file).unwrap().metadata())
        };
        assert_eq!(metadata().num_row_groups(), 3);
        assert_eq!(verify(&path, &metadata()).unwrap(), Some(vec![true; 3]));
        let mut bytes = std::fs::read(&path).unwrap();
        let (start, length) = metadata().row_group(1).column(0).byte_range();
        bytes[(start + length / 2) as usize] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(verify(&path, &metadata()).unwrap(), Some(vec![true, false, true]));
    }
}
