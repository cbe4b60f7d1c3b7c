//! Checksums of sealed files, because Parquet readers do not detect all changed bits.
//!
//! The metadata of a sealed file has two lists:
//!
//! - for each row group the offset after it and the CRC-32C of its bytes (for the first one: from
//!   the start of the file): `1200:89abcdef 4711:00c0ffee`;
//! - for each row group two CRC-32C of its metadata: of its rows and offsets, and of the statistics
//!   by which readers skip row groups.
//!
//! The rest of the file after the last row group has a structure that readers check, except for the
//! Arrow schema, which only other readers use. The ledger has the checksum of the whole file.

use crate::carried::value;
use crate::error::Error;
use crate::event_file::PAGE_ROWS;
use crate::kept_files;
use arrow_array::RecordBatch;
use bytes::{Buf as _, Bytes, BytesMut};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::statistics::Statistics;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Key of the checksums in the metadata of a sealed file.
const CHECKSUMS_KEY: &str = "miot.checksums";
/// Key of the checksums of the metadata.
const GROUPS_KEY: &str = "miot.groups";
/// Bytes read at a time.
const BUFFER: usize = 256 << 10;
/// Maximum number of bytes of a row group that is kept in memory. A row group of events has a third
/// of it.
const MOST_IN_MEMORY: usize = 64 << 20;

/// Writer of a file from its start, with checksums of the whole file and of the bytes since the
/// last row group.
#[derive(Debug)]
pub(crate) struct ChecksumWriter {
    file: File,
    bytes: u64,
    /// CRC-32C of the bytes since the last row group.
    crc: u32,
    /// CRC-32C of all bytes.
    whole: u32,
}

impl ChecksumWriter {
    pub(crate) fn new(file: File) -> ChecksumWriter {
        ChecksumWriter { file, bytes: 0, crc: 0, whole: 0 }
    }

    /// Returns the number of written bytes and their CRC-32C.
    pub(crate) fn sum(&self) -> (u64, u32) {
        (self.bytes, self.whole)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Write for ChecksumWriter {
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

/// A writer of row groups of a Parquet file.
pub(crate) trait RowGroups {
    /// Adds rows.
    fn add(&mut self, rows: &RecordBatch) -> Result<(), ParquetError>;
    /// Returns the finished row groups.
    fn ended(&self) -> &[RowGroupMetaData];
    /// Finishes the last row group.
    fn end(&mut self) -> Result<(), ParquetError>;
    /// Returns the file, after all finished row groups were written to it.
    fn written(&mut self) -> Result<&mut ChecksumWriter, ParquetError>;
    /// Adds an entry to the metadata of the file.
    fn append_key_value_metadata(&mut self, entry: KeyValue);
}

impl RowGroups for ArrowWriter<ChecksumWriter> {
    fn add(&mut self, rows: &RecordBatch) -> Result<(), ParquetError> {
        self.write(rows)
    }

    fn ended(&self) -> &[RowGroupMetaData] {
        self.flushed_row_groups()
    }

    fn end(&mut self) -> Result<(), ParquetError> {
        self.flush()
    }

    fn written(&mut self) -> Result<&mut ChecksumWriter, ParquetError> {
        self.sync()?;
        Ok(self.inner_mut())
    }

    fn append_key_value_metadata(&mut self, entry: KeyValue) {
        ArrowWriter::append_key_value_metadata(self, entry);
    }
}

/// Collects the checksums while a file is written.
#[derive(Debug, Default)]
pub(crate) struct Checksums {
    groups: usize,
    text: String,
}

impl Checksums {
    /// Writes rows in slices that finish at most one row group, so that each row group has its
    /// checksum.
    pub(crate) fn write(
        &mut self,
        writer: &mut impl RowGroups,
        rows: &RecordBatch,
    ) -> Result<(), ParquetError> {
        for start in (0..rows.num_rows()).step_by(PAGE_ROWS) {
            writer.add(&rows.slice(start, PAGE_ROWS.min(rows.num_rows() - start)))?;
            self.add_finished(writer)?;
        }
        Ok(())
    }

    /// Adds the checksum of a row group that was finished.
    fn add_finished(&mut self, writer: &mut impl RowGroups) -> Result<(), ParquetError> {
        if writer.ended().len() == self.groups {
            return Ok(());
        }
        self.groups = writer.ended().len();
        let summed = writer.written()?;
        let space = if self.text.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{space}{}:{:08x}", summed.bytes, summed.crc);
        summed.crc = 0;
        Ok(())
    }

    /// Finishes the last row group and adds the checksums to the metadata.
    pub(crate) fn finish(mut self, writer: &mut impl RowGroups) -> Result<(), ParquetError> {
        writer.end()?;
        self.add_finished(writer)?;
        writer.append_key_value_metadata(KeyValue::new(CHECKSUMS_KEY.to_owned(), self.text));
        let sums: Vec<String> =
            writer.ended().iter().map(|g| format!("{:08x}:{:08x}", offsets_sum(g), ranges_sum(g))).collect();
        writer.append_key_value_metadata(KeyValue::new(GROUPS_KEY.to_owned(), sums.join(" ")));
        Ok(())
    }
}

/// Returns true if a file has checksums.
pub(crate) fn exist(metadata: &ParquetMetaData) -> bool {
    value(metadata, CHECKSUMS_KEY).is_some()
}

/// Returns the CRC-32C of the number of rows and the offsets and sizes in the metadata of a row
/// group.
fn offsets_sum(group: &RowGroupMetaData) -> u32 {
    let mut crc = crc32c::crc32c(&group.num_rows().to_le_bytes());
    for column in group.columns() {
        let numbers = [
            column.num_values(),
            column.dictionary_page_offset().unwrap_or(-1),
            column.data_page_offset(),
            column.compressed_size(),
            column.uncompressed_size(),
        ];
        crc = numbers.iter().fold(crc, |crc, number| crc32c::crc32c_append(crc, &number.to_le_bytes()));
        let codec = format!("{:?}", column.compression());
        // Without the level, which is not in the file.
        crc = crc32c::crc32c_append(crc, codec.split('(').next().unwrap_or_default().as_bytes());
    }
    crc
}

/// Returns the CRC-32C of the least and greatest values in the metadata of a row group, of columns
/// with 64 bits.
fn ranges_sum(group: &RowGroupMetaData) -> u32 {
    let mut crc = 0;
    for (index, column) in group.columns().iter().enumerate() {
        if let Some(Statistics::Int64(found)) = column.statistics() {
            for bound in [found.min_opt(), found.max_opt()] {
                let (is_known, bound) = (u8::from(bound.is_some()), bound.copied().unwrap_or(0));
                crc = crc32c::crc32c_append(crc, &(index as u64).to_le_bytes());
                crc = crc32c::crc32c_append(crc, &[is_known]);
                crc = crc32c::crc32c_append(crc, &bound.to_le_bytes());
            }
        }
    }
    crc
}

/// Checksum of a row group, and whether its metadata is intact.
#[derive(Clone, Copy, Debug)]
struct GroupSums {
    /// Begin, end and CRC-32C of its bytes; `None` without checksums.
    bytes: Option<(u64, u64, u32)>,
    /// Rows and offsets in the metadata are those that were written.
    has_offsets: bool,
    /// Statistics are those that were written.
    has_ranges: bool,
}

/// The checksums of a sealed file.
#[derive(Clone, Debug)]
pub(crate) struct FileChecksums {
    groups: Vec<GroupSums>,
}

impl FileChecksums {
    /// Parses the checksums in the metadata of a file. Files of an earlier version have none and
    /// count as intact.
    pub(crate) fn of(path: &Path, metadata: &ParquetMetaData) -> Result<FileChecksums, Error> {
        let mut groups =
            vec![GroupSums { bytes: None, has_offsets: true, has_ranges: true }; metadata.num_row_groups()];
        let unreadable = |key| Error::damaged(path, format!("its checksums are invalid ({key})"));
        if let Some(text) = value(metadata, CHECKSUMS_KEY) {
            let mut pairs = text.split(' ').filter(|pair| !pair.is_empty());
            let mut from = 0;
            for group in &mut groups {
                let parsed = pairs
                    .next()
                    .and_then(|pair| pair.split_once(':'))
                    .and_then(|(end, crc)| Some((end.parse().ok()?, u32::from_str_radix(crc, 16).ok()?)));
                let (end, crc) = parsed
                    .filter(|(end, _): &(u64, u32)| *end >= from)
                    .ok_or_else(|| unreadable(CHECKSUMS_KEY))?;
                group.bytes = Some((from, end, crc));
                from = end;
            }
            if pairs.next().is_some() {
                return Err(unreadable(CHECKSUMS_KEY));
            }
        }
        if let Some(text) = value(metadata, GROUPS_KEY) {
            let sums: Vec<&str> = text.split(' ').filter(|pair| !pair.is_empty()).collect();
            if sums.len() != groups.len() {
                return Err(unreadable(GROUPS_KEY));
            }
            for ((group, sums), found) in groups.iter_mut().zip(sums).zip(metadata.row_groups()) {
                let (offsets, values) = sums.split_once(':').ok_or_else(|| unreadable(GROUPS_KEY))?;
                let is = |recorded: &str, found: u32| u32::from_str_radix(recorded, 16) == Ok(found);
                group.has_offsets = is(offsets, offsets_sum(found));
                group.has_ranges = is(values, ranges_sum(found));
            }
        }
        Ok(FileChecksums { groups })
    }

    /// Returns true if the statistics of a row group are those that were written.
    pub(crate) fn has_ranges(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| group.has_ranges)
    }

    /// Returns true if a row group has the bytes that were written, at the offsets of the metadata.
    pub(crate) fn is_good(&self, path: &Path, file: &File, group: usize) -> Result<bool, Error> {
        let Some(sums) = self.groups.get(group).filter(|group| group.has_offsets) else { return Ok(false) };
        let Some((from, end, expected)) = sums.bytes else { return Ok(true) };
        let most = usize::try_from(end - from).map_or(BUFFER, |length| length.min(BUFFER));
        let mut buffer = vec![0; most];
        let (mut at, mut crc) = (from, 0);
        while at < end {
            let most = usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
            let read = file.read_at(&mut buffer[..most], at).map_err(Error::io("read", path))?;
            if read == 0 {
                break;
            }
            crc = crc32c::crc32c_append(crc, &buffer[..read]);
            at += read as u64;
        }
        Ok(at == end && crc == expected)
    }

    /// Reads a row group and verifies what was read, so that it is read only once. `spare` is
    /// memory of an earlier row group, which is used again.
    pub(crate) fn read(
        &self,
        path: &Path,
        file: &File,
        group: usize,
        spare: BytesMut,
    ) -> Result<CheckedGroup, Error> {
        let bytes = self.groups.get(group).and_then(|group| group.bytes);
        let length = bytes.and_then(|(from, end, _)| usize::try_from(end - from).ok());
        let (Some((from, _, expected)), Some(length @ ..=MOST_IN_MEMORY)) = (bytes, length) else {
            let is_good = self.is_good(path, file, group)?;
            return Ok(if is_good { CheckedGroup::InFile } else { CheckedGroup::Damaged });
        };
        if !self.groups[group].has_offsets {
            return Ok(CheckedGroup::Damaged);
        }
        let mut buffer = spare;
        buffer.resize(length, 0);
        let (mut at, mut crc) = (0, 0);
        // In pieces, whose checksum is computed while they are in the cache.
        while at < length {
            let end = length.min(at + BUFFER);
            let read =
                file.read_at(&mut buffer[at..end], from + at as u64).map_err(Error::io("read", path))?;
            if read == 0 {
                return Ok(CheckedGroup::Damaged);
            }
            crc = crc32c::crc32c_append(crc, &buffer[at..at + read]);
            at += read;
        }
        let bytes = GroupBytes { begin: from, bytes: buffer.freeze() };
        Ok(if crc == expected { CheckedGroup::InMemory(bytes) } else { CheckedGroup::Damaged })
    }
}

/// Result of reading a row group.
#[derive(Debug)]
pub(crate) enum CheckedGroup {
    /// It does not have the bytes that were written.
    Damaged,
    /// It has them. It was not kept, because it is too large or has no checksum.
    InFile,
    /// It has them.
    InMemory(GroupBytes),
}

/// Bytes of a row group, at their offset in the file.
#[derive(Clone, Debug)]
pub(crate) struct GroupBytes {
    begin: u64,
    pub(crate) bytes: Bytes,
}

impl GroupBytes {
    /// Returns the bytes from an offset of the file on.
    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let at = start.checked_sub(self.begin).and_then(|at| usize::try_from(at).ok());
        let at = at.filter(|at| *at <= self.bytes.len());
        at.map(|at| self.bytes.slice(at..))
            .ok_or_else(|| ParquetError::EOF(format!("offset {start} is outside of the row group")))
    }
}

impl Length for GroupBytes {
    fn len(&self) -> u64 {
        self.begin + self.bytes.len() as u64
    }
}

impl ChunkReader for GroupBytes {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} are outside of the row group")));
        }
        Ok(bytes.slice(..length))
    }
}

/// Returns for each row group whether it has the bytes that were written.
pub(crate) fn verify(path: &Path, metadata: &ParquetMetaData) -> Result<Vec<bool>, Error> {
    let sums = FileChecksums::of(path, metadata)?;
    let file = kept_files::open(path).map_err(Error::io("open", path))?;
    (0..metadata.num_row_groups()).map(|group| sums.is_good(path, &file, group)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::parquet_file::{self, ROW_GROUP_ROWS};
    use crate::schema::Table;
    use arrow_array::{ArrayRef, UInt64Array};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use std::sync::Arc;

    #[test]
    fn row_groups_of_one_large_batch_have_checksums() {
        let rows = 2 * ROW_GROUP_ROWS as u64 + 5;
        let column: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..rows));
        let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = ChecksumWriter::new(File::create(&path).unwrap());
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
        assert_eq!(verify(&path, &metadata()).unwrap(), vec![true; 3]);
        let mut bytes = std::fs::read(&path).unwrap();
        let (start, length) = metadata().row_group(1).column(0).byte_range();
        bytes[(start + length / 2) as usize] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(verify(&path, &metadata()).unwrap(), vec![true, false, true]);
    }
}
