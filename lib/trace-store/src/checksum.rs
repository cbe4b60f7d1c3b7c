//! Checksums of sealed files: a changed bit could pass as another value.
//!
//! The metadata of a sealed file holds, for each row group, the byte after it and the CRC-32C of its bytes (for
//! the first: from the start of the file): `1200:89abcdef 4711:00c0ffee`; and a second list of two CRC-32C of what the metadata
//! itself says of each row group: of its rows and places, and of the statistics by which readers pass over row groups. What
//! else follows the last row group has a structure of its own that a reader checks.

use crate::carried::value;
use crate::error::Error;
use crate::event_file::PAGE_ROWS;
use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Key of the checksums in the metadata of a sealed file.
const CHECKSUMS_KEY: &str = "miot.checksums";
/// Key of those of the metadata.
const GROUPS_KEY: &str = "miot.groups";
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
    fn ended(&self) -> &[RowGroupMetaData];
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

    fn ended(&self) -> &[RowGroupMetaData] {
        self.flushed_row_groups()
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
        for start in (0..rows.num_rows()).step_by(PAGE_ROWS) {
            writer.add(&rows.slice(start, PAGE_ROWS.min(rows.num_rows() - start)))?;
            self.note(writer)?;
        }
        Ok(())
    }

    /// Notes the row group that has ended, if one has.
    fn note(&mut self, writer: &mut impl RowGroups) -> Result<(), ParquetError> {
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

    /// Ends the last row group, and puts the checksums into the metadata.
    pub(crate) fn finish(mut self, writer: &mut impl RowGroups) -> Result<(), ParquetError> {
        writer.end()?;
        self.note(writer)?;
        writer.append_key_value_metadata(KeyValue::new(CHECKSUMS_KEY.to_owned(), self.text));
        let said: Vec<String> =
            writer.ended().iter().map(|g| format!("{:08x}:{:08x}", places(g), ranges(g))).collect();
        writer.append_key_value_metadata(KeyValue::new(GROUPS_KEY.to_owned(), said.join(" ")));
        Ok(())
    }
}

/// True if a file has checksums.
pub(crate) fn are_there(metadata: &ParquetMetaData) -> bool {
    value(metadata, CHECKSUMS_KEY).is_some()
}

/// What the metadata says of the rows of a row group, and of where they are.
fn places(group: &RowGroupMetaData) -> u32 {
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
        // The level is not in the file.
        crc = crc32c::crc32c_append(crc, codec.split('(').next().unwrap_or_default().as_bytes());
    }
    crc
}

/// The least and greatest values that the metadata has of a row group, in columns of wide numbers.
fn ranges(group: &RowGroupMetaData) -> u32 {
    let mut crc = 0;
    for (place, column) in group.columns().iter().enumerate() {
        if let Some(Statistics::Int64(found)) = column.statistics() {
            for bound in [found.min_opt(), found.max_opt()] {
                let (is_known, bound) = (u8::from(bound.is_some()), bound.copied().unwrap_or(0));
                crc = crc32c::crc32c_append(crc, &(place as u64).to_le_bytes());
                crc = crc32c::crc32c_append(crc, &[is_known]);
                crc = crc32c::crc32c_append(crc, &bound.to_le_bytes());
            }
        }
    }
    crc
}

/// What a row group has to be.
#[derive(Clone, Copy, Debug)]
struct Group {
    bytes: Option<(u64, u64, u32)>,
    /// What the metadata says of it is what was written.
    has_places: bool,
    has_ranges: bool,
}

/// The checksums of a sealed file, as they are read.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    groups: Vec<Group>,
}

impl Sums {
    /// Those of a file with this metadata; files that an earlier version wrote have none, and are taken at their word.
    pub(crate) fn of(path: &Path, metadata: &ParquetMetaData) -> Result<Sums, Error> {
        let mut groups =
            vec![Group { bytes: None, has_places: true, has_ranges: true }; metadata.num_row_groups()];
        let unreadable = |key| Error::damaged(path, format!("its checksums cannot be read ({key})"));
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
            let said: Vec<&str> = text.split(' ').filter(|pair| !pair.is_empty()).collect();
            if said.len() != groups.len() {
                return Err(unreadable(GROUPS_KEY));
            }
            for ((group, said), found) in groups.iter_mut().zip(said).zip(metadata.row_groups()) {
                let (at, values) = said.split_once(':').ok_or_else(|| unreadable(GROUPS_KEY))?;
                let is = |said: &str, found: u32| u32::from_str_radix(said, 16) == Ok(found);
                group.has_places = is(at, places(found));
                group.has_ranges = is(values, ranges(found));
            }
        }
        Ok(Sums { groups })
    }

    /// The statistics of a row group are those that were written.
    pub(crate) fn knows_ranges(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| group.has_ranges)
    }

    /// A row group is as it was written, and where the metadata says.
    pub(crate) fn is_good(&self, path: &Path, file: &File, group: usize) -> Result<bool, Error> {
        let Some(group) = self.groups.get(group) else { return Ok(false) };
        if !group.has_places {
            return Ok(false);
        }
        let Some((from, end, expected)) = group.bytes else { return Ok(true) };
        let most = usize::try_from(end - from).map_or(BUFFER, |length| length.min(BUFFER));
        let (mut buffer, mut at, mut crc) = (vec![0; most], from, 0);
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
}

/// For each row group, whether it is what was written.
pub(crate) fn verify(path: &Path, metadata: &ParquetMetaData) -> Result<Vec<bool>, Error> {
    let sums = Sums::of(path, metadata)?;
    let file = File::open(path).map_err(Error::io("open", path))?;
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
        assert_eq!(verify(&path, &metadata()).unwrap(), vec![true; 3]);
        let mut bytes = std::fs::read(&path).unwrap();
        let (start, length) = metadata().row_group(1).column(0).byte_range();
        bytes[(start + length / 2) as usize] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(verify(&path, &metadata()).unwrap(), vec![true, false, true]);
    }
}
