//! Carried files: the rows of removed parts that later parts need, and the size of what was
//! removed.
//!
//! `TABLE/carried-N.parquet` contains the rows of a side table from parts before N that events from
//! part N on, or a restarted writer, may need. The file of `threads` is renamed into place last:
//! from then on the parts before N are removed, even if some of their files still exist. Its
//! metadata contains [`RemovedParts`] and the ends of the streams.

use crate::checksum::{ChecksumWriter, Checksums};
use crate::error::Error;
use crate::fsck::counted;
use crate::layout::{Layout, make_folder, tmp};
use crate::parquet_file::{self, Batches};
use crate::recover::{STREAMS_KEY, StreamEnds};
use crate::schema::{self, Table};
use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File};
use std::path::Path;

/// Key of [`RemovedParts`], as JSON, in the metadata of the carried threads.
pub(crate) const REMOVED_KEY: &str = "miot.removed";

/// What retention has removed since the trace was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemovedParts {
    /// Number of removed parts, which is the number of the oldest remaining part.
    pub parts: u64,
    /// Events in these parts.
    pub events: u64,
    /// Bytes of the files of these parts.
    pub bytes: u64,
    /// Time of the latest removed event, nanoseconds since 1970; 0 without events.
    pub until: i64,
    /// Lost events that the removed rows of `losses` counted.
    pub lost: u64,
    /// Filtered requests that the removed rows of `losses` counted.
    pub filtered: u64,
    pub(crate) next_process: u64,
    pub(crate) next_stream: u64,
    pub(crate) next_file: u64,
}

impl RemovedParts {
    /// Reads what was removed before part `first`; nothing if `first` is 0.
    pub(crate) fn read(layout: &Layout, first: u64) -> Result<RemovedParts, Error> {
        if first == 0 {
            return Ok(RemovedParts::default());
        }
        let path = layout.carried(Table::Threads, first);
        let builder = parquet_file::open(Table::Threads, &path)?;
        RemovedParts::of(builder.metadata())
            .ok_or_else(|| Error::damaged(&path, format!("its metadata has no valid {REMOVED_KEY}")))
    }

    pub(crate) fn of(metadata: &ParquetMetaData) -> Option<RemovedParts> {
        serde_json::from_str(value(metadata, REMOVED_KEY)?).ok()
    }

    /// Returns the metadata of the carried threads, with the ends of their streams.
    pub(crate) fn metadata(&self, stream_ends: String) -> Vec<KeyValue> {
        let text = serde_json::to_string(self).unwrap_or_default();
        vec![KeyValue::new(REMOVED_KEY.to_owned(), text), KeyValue::new(STREAMS_KEY.to_owned(), stream_ends)]
    }
}

/// Reads the rows of a side table that were carried over to part `first`; none if `first` is 0.
pub(crate) fn read(layout: &Layout, table: Table, first: u64) -> Result<Vec<RecordBatch>, Error> {
    match first {
        0 => Ok(Vec::new()),
        _ => Batches::all(table, &layout.carried(table, first))?.collect(),
    }
}

/// Reads the ends of the carried streams.
pub(crate) fn ends(layout: &Layout, first: u64) -> Result<StreamEnds, Error> {
    let mut ends = StreamEnds::default();
    if first > 0 {
        let path = layout.carried(Table::Threads, first);
        let threads = parquet_file::open(Table::Threads, &path)?;
        if !value(threads.metadata(), STREAMS_KEY).is_some_and(|text| ends.add_text(text)) {
            return Err(Error::damaged(&path, "its metadata has no valid ends of streams"));
        }
    }
    Ok(ends)
}

impl fmt::Display for RemovedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, events) = (counted(self.parts, "part"), counted(self.events, "event"));
        write!(f, "retention removed {parts} with {events}")?;
        match jiff::Timestamp::from_nanosecond(i128::from(self.until)) {
            Ok(until) if self.events > 0 => write!(f, ", the last of {until}"),
            _ => Ok(()),
        }
    }
}

/// Returns a value of the metadata of a file.
pub(crate) fn value<'a>(metadata: &'a ParquetMetaData, key: &str) -> Option<&'a str> {
    let pairs = metadata.file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
}

/// Writes a whole table to `path` and replaces an existing file. The content is durable, the name
/// is not.
pub(crate) fn write(
    table: Table,
    path: &Path,
    batches: &[RecordBatch],
    metadata: Vec<KeyValue>,
) -> Result<(), Error> {
    let tmp = tmp(path);
    let written = try_write(table, &tmp, batches, metadata)
        .and_then(|()| fs::rename(&tmp, path).map_err(Error::io("rename to", path)));
    if written.is_err() {
        let _ = fs::remove_file(&tmp);
    }
    written
}

fn try_write(
    table: Table,
    path: &Path,
    batches: &[RecordBatch],
    metadata: Vec<KeyValue>,
) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    let failed = |e: ParquetError| Error::io("write to", path)(parquet_file::to_io(e));
    let file = File::create(path).map_err(Error::io("create", path))?;
    let properties = parquet_file::properties(table);
    let mut writer = ArrowWriter::try_new(ChecksumWriter::new(file), schema::of(table), Some(properties))
        .map_err(failed)?;
    let mut checksums = Checksums::default();
    for batch in batches {
        checksums.write(&mut writer, batch).map_err(failed)?;
    }
    checksums.finish(&mut writer).map_err(failed)?;
    metadata.into_iter().for_each(|pair| writer.append_key_value_metadata(pair));
    writer.finish().map_err(failed)?;
    writer.inner().file().sync_all().map_err(Error::io("sync", path))
}
