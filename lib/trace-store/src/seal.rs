//! Sealing: converts a live part to Parquet.
//!
//! The order of the steps ensures that a crash between any two leaves the part readable, and that
//! the next writer completes it:
//!
//! 1. each side table: write `.tmp`, sync, rename; then sync the folders
//! 2. events: write `.tmp`, sync
//! 3. read all of these back, and compare them with the live files and the ledger
//! 4. the ledger's entry of the part: write, sync, rename, sync the folder
//! 5. events: rename, sync the folder: now the part is sealed
//! 6. remove the live files
//!
//! Until step 5 the live files are the part, afterwards the sealed ones are.
//!
//! Events in a sealed part are ordered by time. In the live part they are too, except late ones
//! (see `miot_proto::event::flag::LATE`), which sealing moves to their place.

#![expect(clippy::disallowed_types, reason = "stop flag of the sealing thread")]

pub(crate) mod foreign_files;

use crate::checksum::{ChecksumWriter, Checksums, RowGroups};
use crate::error::Error;
use crate::event_file::EventWriter;
use crate::layout::{Layout, make_folder, sync_folder};
use crate::ledger::{self, Counts, FileEntry, Ledger, SealedEntry};
use crate::live::{LiveReader, StopReason};
use crate::parquet_file::{self, Batches};
use crate::recover::{STREAMS_KEY, StreamEnds};
use crate::schema::{self, Table};
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::concat::concat_batches;
use foreign_files::{FILES_KEY, ForeignFiles};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, RowGroupMetaData};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows up to which batches are joined before they are encoded: a call per column costs as much as
/// thousands of rows.
const JOIN_ROWS: usize = 8192;

/// Columns of events that are decoded when they are read back: those that identify the events, and
/// those whose encoding depends on other rows.
const READ_BACK: [&str; 6] = ["time", "node", "layer", "op", "stream", "seq"];

/// Size of a sealed part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) events: u64,
    /// Bytes of the Parquet files of the part.
    pub(crate) bytes: u64,
}

/// Request to seal a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealRequest {
    pub(crate) part: u64,
    /// Some events are earlier than an event before them.
    pub(crate) late: bool,
}

/// Seals a live part. In part 0 empty side tables get a file too, so that a pattern like
/// `losses/*.parquet` always matches one.
///
/// If `stop` is set, it ends early and returns `None`; the part stays live.
pub(crate) fn seal(
    layout: &Layout,
    request: SealRequest,
    stop: &AtomicBool,
) -> Result<Option<Sealed>, Error> {
    let part = request.part;
    let mut sealed = Sealed::default();
    let mut written_tables = Vec::new();
    let mut counts = Counts::default();
    let mut files = BTreeMap::new();
    let when_empty = if part == 0 { WhenEmpty::Write } else { WhenEmpty::Skip };
    for table in Table::SIDE {
        let written = write_table(layout, table, request, when_empty, &mut counts, stop)?;
        let Some(written) = written else { return Ok(None) };
        if written.bytes > 0 {
            written_tables.push(table);
            files.insert(table, written);
            sealed.bytes += written.bytes;
        }
    }
    for table in &written_tables {
        rename(layout, *table, part)?;
    }
    for table in &written_tables {
        sync_folder(&layout.folder(*table))?;
    }
    let written = write_table(layout, Table::Events, request, WhenEmpty::Write, &mut counts, stop)?;
    let Some(written) = written else { return Ok(None) };
    sealed.bytes += written.bytes;
    sealed.events = written.rows;
    files.insert(Table::Events, written);
    let Some(entry) = read_back(layout, part, files, counts, stop)? else { return Ok(None) };
    entry.write(layout, part)?;
    rename(layout, Table::Events, part)?;
    sync_folder(&layout.folder(Table::Events))?;
    for table in Table::ALL {
        remove(&layout.live(table, part))?;
    }
    remove(&layout.ledger_live(part))?;
    Ok(Some(sealed))
}

/// Reads the written files back, compares them with `counts` and the ledger, and returns the
/// ledger's entry. After an error the live files stay, so no row is lost.
fn read_back(
    layout: &Layout,
    part: u64,
    files: BTreeMap<Table, FileEntry>,
    mut counts: Counts,
    stop: &AtomicBool,
) -> Result<Option<SealedEntry>, Error> {
    let mut found = Counts::default();
    for (table, written) in &files {
        let path = match table {
            Table::Events => layout.sealed_tmp(*table, part),
            _ => layout.sealed(*table, part),
        };
        let (bytes, crc32c) = ledger::sum_of(&path)?;
        if (bytes, crc32c) != (written.bytes, written.crc32c) {
            return Err(Error::damaged(&path, "the bytes read back are not those that were written"));
        }
        let batches = match table {
            Table::Events => Batches::some(*table, &path, &READ_BACK, |_| true)?,
            _ => Batches::all(*table, &path)?,
        };
        for batch in batches {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            found.add_batch(*table, &batch?);
        }
        if found.rows[*table as usize] != written.rows {
            let rows = found.rows[*table as usize];
            return Err(Error::damaged(&path, format!("{rows} of {} rows were read back", written.rows)));
        }
    }
    if found != counts {
        let lacks = found.lacks(&counts).unwrap_or_else(|| "other attempt numbers".to_owned());
        let path = layout.sealed_tmp(Table::Events, part);
        return Err(Error::damaged(&path, format!("the rows read back have {lacks}")));
    }
    if let Some(known) = Ledger::live(layout, part)? {
        if let Some(lacks) = counts.lacks(&known) {
            let path = layout.live(Table::Events, part);
            return Err(Error::damaged(&path, format!("with its side tables it has {lacks}, by the ledger")));
        }
        counts.limit_to(&known);
    }
    Ok(Some(SealedEntry { counts, files }))
}

/// Removes a file if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(e)),
        _ => Ok(()),
    }
}

fn rename(layout: &Layout, table: Table, part: u64) -> Result<(), Error> {
    let (from, to) = (layout.sealed_tmp(table, part), layout.sealed(table, part));
    fs::rename(&from, &to).map_err(Error::io("rename to", &to))
}

/// Whether a table without rows gets a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenEmpty {
    Write,
    Skip,
}

/// Writes the `.tmp` file of a table and counts its rows. Returns `None` if `stop` is set.
fn write_table(
    layout: &Layout,
    table: Table,
    request: SealRequest,
    when_empty: WhenEmpty,
    counts: &mut Counts,
    stop: &AtomicBool,
) -> Result<Option<FileEntry>, Error> {
    let path = layout.sealed_tmp(table, request.part);
    let written = try_write_table(layout, table, request, when_empty, counts, stop, &path);
    if !matches!(written, Ok(Some(_))) {
        // Frees the space. If this fails, the next writer removes the file.
        let _ = fs::remove_file(&path);
    }
    written
}

fn try_write_table(
    layout: &Layout,
    table: Table,
    request: SealRequest,
    when_empty: WhenEmpty,
    counts: &mut Counts,
    stop: &AtomicBool,
    path: &Path,
) -> Result<Option<FileEntry>, Error> {
    let source = layout.live(table, request.part);
    let late = if table == Table::Events && request.late { late_rows(&source, stop)? } else { None };
    let mut source = LiveBatches { reader: LiveReader::open(table, &source)?, waiting: None, table };
    let first = source.next()?;
    if first.is_none() && when_empty == WhenEmpty::Skip {
        return Ok(Some(FileEntry::default()));
    }
    make_folder(&layout.folder(table))?;
    let file = File::create(path).map_err(Error::io("create", path))?;
    let failed = |e: ParquetError| Error::io("write to", path)(parquet_file::to_io(e));
    let mut writer = TableWriter::new(table, ChecksumWriter::new(file)).map_err(failed)?;
    let mut checksums = Checksums::default();
    let mut ends = StreamEnds::default();
    let mut foreign = ForeignFiles::default();
    if table == Table::Events {
        foreign.defined_in(&layout.live(Table::Files, request.part))?;
    }
    let mut late = late.map(LateRows::new);
    let mut next = first;
    while let Some(batch) = next {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        counts.add_batch(table, &batch);
        if table == Table::Events {
            ends.add_batch(&batch);
            foreign.add_batch(&batch);
        }
        match &mut late {
            None => checksums.write(&mut writer, &batch).map_err(failed)?,
            Some(late) => {
                if let Some(merged) = late.merge(&batch).map_err(|e| Error::damaged(path, e))? {
                    checksums.write(&mut writer, &merged).map_err(failed)?;
                }
            }
        }
        next = source.next()?;
    }
    checksums.finish(&mut writer).map_err(failed)?;
    if table == Table::Events {
        writer.append_key_value_metadata(KeyValue::new(STREAMS_KEY.to_owned(), ends.to_text()));
        writer.append_key_value_metadata(KeyValue::new(FILES_KEY.to_owned(), foreign.to_text()));
        writer.append_key_value_metadata(parquet_file::side_tables(layout, request.part)?);
    }
    let rows = writer.finish().map_err(failed)?;
    let summed = writer.summed();
    summed.file().sync_all().map_err(Error::io("sync", path))?;
    let (bytes, crc32c) = summed.sum();
    Ok(Some(FileEntry { rows, bytes, crc32c }))
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

/// Batches of a live stream; small ones are joined.
struct LiveBatches {
    reader: Option<LiveReader>,
    waiting: Option<RecordBatch>,
    table: Table,
}

impl LiveBatches {
    fn next(&mut self) -> Result<Option<RecordBatch>, Error> {
        let mut parts: Vec<RecordBatch> = self.waiting.take().into_iter().collect();
        let mut rows: usize = parts.iter().map(RecordBatch::num_rows).sum();
        let Some(reader) = &mut self.reader else { return Ok(parts.pop()) };
        while rows < JOIN_ROWS {
            let Some(batch) = reader.next_batch()? else { break };
            if !parts.is_empty() && batch.num_rows() >= JOIN_ROWS {
                self.waiting = Some(batch);
                break;
            }
            rows += batch.num_rows();
            parts.push(batch);
        }
        // The writer leaves whole messages only. Other bytes must not be deleted with the file.
        if rows < JOIN_ROWS && self.waiting.is_none() && reader.stop() != StopReason::End {
            return Err(reader.damaged_message());
        }
        match parts.len() {
            0 | 1 => Ok(parts.pop()),
            _ => concat_batches(&schema::of(self.table), &parts)
                .map(Some)
                .map_err(|e| Error::Encode { table: self.table, reason: e.to_string() }),
        }
    }
}

fn times(batch: &RecordBatch) -> &[i64] {
    batch.column(0).as_primitive::<TimestampNanosecondType>().values()
}

/// Returns the rows that are earlier than a row before them, ordered by time; `None` if there are
/// none.
fn late_rows(source: &Path, stop: &AtomicBool) -> Result<Option<RecordBatch>, Error> {
    let Some(mut reader) = LiveReader::open(Table::Events, source)? else { return Ok(None) };
    let failed = |e: ArrowError| Error::Encode { table: Table::Events, reason: e.to_string() };
    let (mut latest, mut found) = (i64::MIN, Vec::new());
    while let Some(batch) = reader.next_batch()? {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let rows = late_in(times(&batch), &mut latest);
        if !rows.is_empty() {
            found.push(
                arrow_select::take::take_record_batch(&batch, &UInt32Array::from(rows)).map_err(failed)?,
            );
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let all = concat_batches(&schema::of(Table::Events), &found).map_err(failed)?;
    let times = times(&all);
    let mut order: Vec<u32> = (0..times.len() as u32).collect();
    order.sort_by_key(|row| times[*row as usize]);
    arrow_select::take::take_record_batch(&all, &UInt32Array::from(order)).map(Some).map_err(failed)
}

/// Returns true if all rows are ordered by time and none is before `latest`. Raises `latest` to the
/// latest row.
pub(crate) fn in_order(events: &RecordBatch, latest: &mut i64) -> bool {
    let times = times(events);
    let sorted = times.is_sorted() && times.first().is_none_or(|first| first >= latest);
    *latest = times.iter().copied().max().map_or(*latest, |max| max.max(*latest));
    sorted
}

/// Returns the rows that are earlier than the latest row before them.
fn late_in(times: &[i64], latest: &mut i64) -> Vec<u32> {
    let mut rows = Vec::new();
    for (row, time) in times.iter().enumerate() {
        if time < latest {
            rows.push(row as u32);
        } else {
            *latest = *time;
        }
    }
    rows
}

/// Merges late rows into the rows that are in order.
struct LateRows {
    rows: RecordBatch,
    next: usize,
    latest: i64,
}

impl LateRows {
    fn new(rows: RecordBatch) -> LateRows {
        LateRows { rows, next: 0, latest: i64::MIN }
    }

    /// Returns the rows of `batch` that are in order, merged with the late rows that belong before
    /// or among them. A late row follows other rows of the same time. Every late row is earlier
    /// than some row in order, so all are merged at the end.
    fn merge(&mut self, batch: &RecordBatch) -> Result<Option<RecordBatch>, ArrowError> {
        let (in_order, late) = (times(batch), times(&self.rows));
        let mut order: Vec<(usize, usize)> = Vec::with_capacity(in_order.len());
        for (row, time) in in_order.iter().enumerate() {
            if *time < self.latest {
                continue;
            }
            self.latest = *time;
            while self.next < late.len() && late[self.next] < *time {
                order.push((1, self.next));
                self.next += 1;
            }
            order.push((0, row));
        }
        if order.is_empty() {
            return Ok(None);
        }
        arrow_select::interleave::interleave_record_batch(&[batch, &self.rows], &order).map(Some)
    }
}
