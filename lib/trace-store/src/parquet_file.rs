//! Sealed files: their properties, and reading them.

#[cfg(test)]
mod tests;

use crate::checksum::{self, CheckedGroup, FileChecksums, GroupBytes};
use crate::decoders::{Decoders, Group};
use crate::error::Error;
use crate::kept_files;
use crate::layout::Layout;
use crate::schema::{self, Table};
use crate::unread_log::OnDamage;
use arrow_array::RecordBatch;
use arrow_schema::Schema;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, KeyValue, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData, SortingColumn,
};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::ChunkReader;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum rows of a row group: a reader holds a column of one at once, and statistics exist per
/// row group.
pub(crate) const ROW_GROUP_ROWS: usize = 1 << 20;
/// Rows of a batch that is read.
pub(crate) const BATCH_ROWS: usize = 1 << 14;
/// Key of the schema version in the metadata of a file.
pub(crate) const SCHEMA_KEY: &str = "miot.schema";

/// Returns the properties of the files of a table. The columns of events are [encoded
/// elsewhere](crate::event_file).
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

/// Opens a sealed file and checks that it is one of this table. Its rows have the column types of
/// the version that wrote it.
pub(crate) fn open(table: Table, path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>, Error> {
    let file = kept_files::open(path).map_err(Error::io("open", path))?;
    let metadata = metadata(table, path, &file)?;
    Ok(ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata).with_batch_size(BATCH_ROWS))
}

fn metadata(table: Table, path: &Path, file: &File) -> Result<ArrowReaderMetadata, Error> {
    let bytes = file.metadata().map_err(Error::io("read the size of", path))?.len();
    let not_whole = |e: ParquetError| Error::damaged(path, format!("not a whole Parquet file ({e})"));
    // Not the Arrow schema that the file has beside its columns: the conversion of a damaged one
    // panics.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let found = ArrowReaderMetadata::load(file, options).map_err(not_whole)?;
    if !columns_are_within(found.metadata(), bytes) {
        return Err(Error::damaged(path, "a column is outside of the file"));
    }
    let columns = schema::with_names(table, found.schema().fields());
    if !schema::fits(table, &columns) {
        return Err(Error::damaged(path, format!("it does not have the columns of table {table}")));
    }
    let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(columns)));
    ArrowReaderMetadata::try_new(Arc::clone(found.metadata()), options).map_err(not_whole)
}

/// Returns the number of rows of the row groups of a sealed file for which `keep` returns true.
pub(crate) fn rows(path: &Path, keep: impl Fn(&RowGroupMetaData) -> bool) -> Result<u64, Error> {
    let file = kept_files::open(path).map_err(Error::io("open", path))?;
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file);
    let metadata =
        metadata.map_err(|error| Error::damaged(path, format!("not a whole Parquet file ({error})")))?;
    let kept = metadata.row_groups().iter().filter(|group| keep(group));
    Ok(kept.map(|group| u64::try_from(group.num_rows()).unwrap_or(0)).fold(0, u64::saturating_add))
}

/// Returns true if the offsets of all columns are within the file. The Parquet reader does not
/// check that.
fn columns_are_within(metadata: &ParquetMetaData, bytes: u64) -> bool {
    metadata.row_groups().iter().flat_map(|group| group.columns()).all(|column| {
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let range = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
        let end = range.and_then(|(start, length)| start.checked_add(length));
        end.is_some_and(|end| end <= bytes)
    })
}

/// Returns which row groups of a sealed file are intact, and the metadata of the file. Files
/// without checksums count as intact.
pub(crate) fn verify(table: Table, path: &Path) -> Result<(Vec<bool>, Arc<ParquetMetaData>), Error> {
    let builder = open(table, path)?;
    Ok((checksum::verify(path, builder.metadata())?, Arc::clone(builder.metadata())))
}

/// Batches of a sealed file, row group by row group. The checksum of a row group is verified before
/// it is decoded. Ends after an error.
#[derive(Debug)]
pub(crate) struct Batches {
    table: Table,
    /// True if all columns are read. Columns that the file does not have are null.
    has_all_columns: bool,
    file: File,
    path: PathBuf,
    metadata: ArrowReaderMetadata,
    sums: FileChecksums,
    mask: ProjectionMask,
    decoders: Arc<Decoders>,
    /// The columns for each thread; none if this thread decodes all.
    shares: Vec<ProjectionMask>,
    groups: std::vec::IntoIter<usize>,
    /// The row group being read.
    present: Option<BegunGroup>,
    /// The row group after it, if several threads decode: they continue with it at once.
    following: Option<Result<BegunGroup, Unreadable>>,
    tolerant: Option<(Layout, OnDamage)>,
}

/// A row group whose decoding has begun.
#[derive(Debug)]
struct BegunGroup {
    batches: Group,
    /// Number of its remaining rows.
    rows: u64,
    /// Its bytes in the file.
    bytes: Bytes,
}

/// An error, and the number of rows that are not read because of it.
type Unreadable = (Error, u64);

impl Batches {
    fn new(table: Table, path: &Path) -> Result<Batches, Error> {
        let file = kept_files::open(path).map_err(Error::io("open", path))?;
        let metadata = metadata(table, path, &file)?;
        let sums = FileChecksums::of(path, metadata.metadata())?;
        let groups = (0..metadata.metadata().num_row_groups()).collect::<Vec<_>>().into_iter();
        let path = path.to_owned();
        Ok(Batches {
            table,
            has_all_columns: true,
            file,
            path,
            metadata,
            sums,
            mask: ProjectionMask::all(),
            decoders: Arc::default(),
            shares: Vec::new(),
            groups,
            present: None,
            following: None,
            tolerant: None,
        })
    }

    /// Reads all columns of all rows.
    pub(crate) fn all(table: Table, path: &Path) -> Result<Batches, Error> {
        Batches::new(table, path)
    }

    /// Reads all columns of one row group.
    pub(crate) fn group(table: Table, path: &Path, group: usize) -> Result<Batches, Error> {
        Ok(Batches { groups: vec![group].into_iter(), ..Batches::new(table, path)? })
    }

    /// Reads some columns of the row groups for which `keep` returns true, and of those with
    /// damaged statistics.
    pub(crate) fn some(
        table: Table,
        path: &Path,
        columns: &[&str],
        keep: impl Fn(&RowGroupMetaData) -> bool,
    ) -> Result<Batches, Error> {
        let all = Batches::new(table, path)?;
        let parquet = all.metadata.metadata();
        let mask = ProjectionMask::columns(parquet.file_metadata().schema_descr(), columns.iter().copied());
        let wanted = |group: &usize| !all.sums.has_ranges(*group) || keep(parquet.row_group(*group));
        let groups = (0..parquet.num_row_groups()).filter(wanted).collect::<Vec<_>>().into_iter();
        Ok(Batches { has_all_columns: false, mask, groups, ..all })
    }

    /// Decodes these columns, which must be those of [`Batches::some`], with several threads. Row
    /// groups that are not kept in memory are decoded by one.
    pub(crate) fn decoded_by<'a>(self, decoders: &Arc<Decoders>, columns: &[&'a str]) -> Batches {
        let parquet = self.metadata.metadata();
        let Some(group) = self.groups.as_slice().first().map(|group| parquet.row_group(*group)) else {
            return self;
        };
        // Costs are bytes that are read or written. Reading of the row group takes half as long.
        // Those of a damaged file may be any number.
        let cost = |column: &ColumnChunkMetaData| {
            column
                .uncompressed_size()
                .unsigned_abs()
                .saturating_add(column.num_values().unsigned_abs().saturating_mul(8))
        };
        let of = |name: &&'a str| group.columns().iter().find(|c| c.column_descr().name() == *name).map(cost);
        let costs = columns.iter().filter_map(|name| Some((*name, of(name)?))).collect();
        let compressed = group.columns().iter().map(|column| column.compressed_size().unsigned_abs());
        let shares = decoders.shares(costs, compressed.fold(0, u64::saturating_add) / 2);
        let schema = parquet.file_metadata().schema_descr();
        let shares = shares.into_iter().map(|share| ProjectionMask::columns(schema, share));
        Batches { shares: shares.collect(), decoders: Arc::clone(decoders), ..self }
    }

    /// Skips and logs damaged row groups.
    pub(crate) fn tolerant(self, layout: &Layout, on_damage: &OnDamage) -> Batches {
        Batches { tolerant: Some((layout.clone(), on_damage.clone())), ..self }
    }

    fn rows_of(&self, group: usize) -> u64 {
        u64::try_from(self.metadata.metadata().row_group(group).num_rows()).unwrap_or(0)
    }

    /// Returns true if no row group is left to begin, so that the threads are free for another file
    /// when they have decoded the present one.
    pub(crate) fn has_begun_all(&self) -> bool {
        self.groups.as_slice().is_empty() && self.following.is_none()
    }

    /// Begins to decode the next row group in other threads, if there are any.
    pub(crate) fn begin_ahead(&mut self) {
        if !self.shares.is_empty() && self.following.is_none() {
            self.following = self.begin_next();
        }
    }

    fn begin_next(&mut self) -> Option<Result<BegunGroup, Unreadable>> {
        let group = self.groups.next()?;
        let rows = self.rows_of(group);
        let begun = self.begin(group).map(|(batches, bytes)| BegunGroup { batches, rows, bytes });
        Some(begun.map_err(|error| (error, rows)))
    }

    fn begin(&mut self, group: usize) -> Result<(Group, Bytes), Error> {
        let damaged = |path, reason: String| Err(Error::damaged(path, format!("row group {group} {reason}")));
        let (reader, bytes) = match self.sums.read(&self.path, &self.file, group, self.decoders.spare())? {
            CheckedGroup::Damaged => return damaged(&self.path, "is not what was written".to_owned()),
            CheckedGroup::InMemory(bytes) => {
                let held = bytes.bytes.clone();
                (self.decoded(bytes, group), held)
            }
            CheckedGroup::InFile => {
                let file = self.file.try_clone().map_err(Error::io("open", &self.path))?;
                (self.reader(file, &self.mask, group).map(Group::from), Bytes::new())
            }
        };
        match reader {
            Ok(reader) => Ok((reader, bytes)),
            Err(error) => damaged(&self.path, format!("cannot be read: {error}")),
        }
    }

    fn reader(
        &self,
        source: impl ChunkReader + 'static,
        mask: &ProjectionMask,
        group: usize,
    ) -> Result<ParquetRecordBatchReader, ParquetError> {
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(source, self.metadata.clone());
        let builder = builder.with_batch_size(BATCH_ROWS).with_projection(mask.clone());
        builder.with_row_groups(vec![group]).build()
    }

    /// Begins to decode a row group.
    fn decoded(&self, bytes: GroupBytes, group: usize) -> Result<Group, ParquetError> {
        match self.shares.split_first() {
            Some((own, others)) => {
                let own = self.reader(bytes.clone(), own, group)?;
                let others = others.iter().map(|share| self.reader(bytes.clone(), share, group));
                Ok(self.decoders.decode(own, others.collect::<Result<_, _>>()?))
            }
            None => self.reader(bytes, &self.mask, group).map(Group::from),
        }
    }

    fn try_next(&mut self) -> Result<Option<RecordBatch>, Unreadable> {
        loop {
            if let Some(BegunGroup { batches, rows, .. }) = &mut self.present {
                let next = batches.next().map(|batch| match batch {
                    Ok(batch) if self.has_all_columns => schema::complete(self.table, batch),
                    batch => batch.and_then(|batch| schema::in_present_types(self.table, batch)),
                });
                match next {
                    Some(Ok(batch)) if batch.num_rows() as u64 <= *rows => {
                        *rows -= batch.num_rows() as u64;
                        return Ok(Some(batch));
                    }
                    None if *rows == 0 => {
                        if let Some(group) = self.present.take() {
                            self.decoders.keep(group.bytes);
                        }
                    }
                    wrong => {
                        let left = *rows;
                        self.present = None;
                        let reason = match wrong {
                            Some(Err(error)) => error.to_string(),
                            _ => "a row group has another number of rows than its metadata".to_owned(),
                        };
                        return Err((Error::damaged(&self.path, reason), left));
                    }
                }
            }
            match self.following.take().or_else(|| self.begin_next()).transpose()? {
                Some(group) => self.present = Some(group),
                None => return Ok(None),
            }
            self.begin_ahead();
        }
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (error, rows) = match self.try_next() {
                Ok(batch) => return batch.map(Ok),
                Err(failed) => failed,
            };
            let skipped = match &self.tolerant {
                Some((layout, on_damage)) => {
                    on_damage.skip_with(layout, &self.path, error, |item| item.with_rows(rows))
                }
                None => Err(error),
            };
            if let Err(error) = skipped {
                (self.groups, self.following) = (Vec::new().into_iter(), None);
                return Some(Err(error));
            }
        }
    }
}

/// Key of the rows of the side tables of a part, in the metadata of its events: `processes:3
/// threads:8`.
const SIDES_KEY: &str = "miot.sides";

/// Returns the entry with the side tables of a part for the metadata of its events. The side tables
/// must be sealed.
pub(crate) fn side_tables(layout: &Layout, part: u64) -> Result<KeyValue, Error> {
    let mut text = Vec::new();
    for table in Table::SIDE {
        match open(table, &layout.sealed(table, part)) {
            Ok(side) => text.push(format!("{table}:{}", side.metadata().file_metadata().num_rows())),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(KeyValue::new(SIDES_KEY.to_owned(), text.join(" ")))
}

/// Returns the number of rows of a side table of a sealed part, by the metadata of its events;
/// `None` if these have no entry for the table.
pub(crate) fn side_rows(layout: &Layout, part: u64, table: Table) -> Option<u64> {
    let events = open(Table::Events, &layout.sealed(Table::Events, part)).ok()?;
    let text = crate::carried::value(events.metadata(), SIDES_KEY)?;
    let mut sides = text.split(' ').filter_map(|side| side.split_once(':'));
    sides.find(|(name, _)| *name == table.name())?.1.parse().ok()
}

/// Returns the system error inside a Parquet error, so that a full disk is recognized.
pub(crate) fn to_io(error: ParquetError) -> std::io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(other) => std::io::Error::other(other),
        },
        other => std::io::Error::other(other),
    }
}
