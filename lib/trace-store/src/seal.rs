//! A live part becomes Parquet.
//!
//! Order, so that a crash between any two steps leaves the part readable and the next writer finishes it:
//!
//! 1. each side table: write `.tmp`, sync, rename; then sync the folders
//! 2. events: write `.tmp`, sync
//! 3. read all of these back, and compare them with what was in the live files, and with the ledger
//! 4. the ledger's entry of the part: write, sync, rename, sync the folder
//! 5. events: rename, sync the folder: now the part is sealed
//! 6. remove the live files
//!
//! Until step 5 the live files are the part, afterwards the sealed ones are.
//!
//! Events in a sealed part are ordered by time. In the live part they are too, apart from late ones (see
//! `miot_proto::event::flag::LATE`); these are put where they belong.

pub(crate) mod files;

use crate::checksum::{Checksums, RowGroups, Summed};
use crate::error::Error;
use crate::event_file::EventWriter;
use crate::layout::{Layout, make_folder, sync_folder};
use crate::ledger::{self, Counts, Entry, FileEntry, Ledger};
use crate::live::{LiveReader, Stop};
use crate::parquet_file::{self, Batches};
use crate::recover::{STREAMS_KEY, StreamEnds};
use crate::schema::{self, Table};
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::concat::concat_batches;
use files::{FILES_KEY, ForeignFiles};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, RowGroupMetaData};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Smaller batches are joined before they are encoded: a call per column costs as much as thousands of rows.
const JOIN_ROWS: usize = 8192;

/// Columns of events that are decoded when they are read back: which events these are, and those whose encoding
/// depends on what other rows hold.
const READ_BACK: [&str; 6] = ["time", "node", "layer", "op", "stream", "seq"];

/// What a sealed part holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) events: u64,
    /// Bytes of the Parquet files of the part.
    pub(crate) bytes: u64,
}

/// What is to be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) part: u64,
    /// Some events are earlier than one before them.
    pub(crate) late: bool,
}

/// Seals a live part. In part 0 empty side tables get a file too (so that a
/// pattern like `losses/*.parquet` always finds one).
///
/// `stop` ends it early: the part stays live. Returns `None` then.
pub(crate) fn seal(layout: &Layout, order: Order, stop: &AtomicBool) -> Result<Option<Sealed>, Error> {
    let part = order.part;
    let mut sealed = Sealed::default();
    let mut made = Vec::new();
    let mut counts = Counts::default();
    let mut files = BTreeMap::new();
    for table in Table::SIDE {
        let written = write_table(layout, table, order, part == 0, &mut counts, stop)?;
        let Some(written) = written else { return Ok(None) };
        if written.bytes > 0 {
            made.push(table);
            files.insert(table, written);
            sealed.bytes += written.bytes;
        }
    }
    for table in &made {
        rename(layout, *table, part)?;
    }
    for table in &made {
        sync_folder(&layout.folder(*table))?;
    }
    let written = write_table(layout, Table::Events, order, true, &mut counts, stop)?;
    let Some(written) = written else { return Ok(None) };
    sealed.bytes += written.bytes;
    sealed.events = written.rows;
    files.insert(Table::Events, written);
    let Some(entry) = verified(layout, part, files, counts, stop)? else { return Ok(None) };
    entry.write(layout, part)?;
    rename(layout, Table::Events, part)?;
    sync_folder(&layout.folder(Table::Events))?;
    for table in Table::ALL {
        remove(&layout.live(table, part))?;
    }
    remove(&layout.ledger_live(part))?;
    Ok(Some(sealed))
}

/// Reads back what was written. Whatever is not in it is still in the live files, which stay then.
fn verified(
    layout: &Layout,
    part: u64,
    files: BTreeMap<Table, FileEntry>,
    mut counts: Counts,
    stop: &AtomicBool,
) -> Result<Option<Entry>, Error> {
    let mut found = Counts::default();
    for (table, written) in &files {
        let path = match table {
            Table::Events => layout.sealed_tmp(*table, part),
            _ => layout.sealed(*table, part),
        };
        let (bytes, crc32c) = ledger::sum_of(&path)?;
        if (bytes, crc32c) != (written.bytes, written.crc32c) {
            return Err(Error::damaged(&path, "what was read back is not what was written"));
        }
        let batches = match table {
            Table::Events => Batches::some(*table, &path, &READ_BACK, |_| true)?,
            _ => Batches::all(*table, &path)?,
        };
        for batch in batches {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            found.see(*table, &batch?);
        }
        if found.rows[*table as usize] != written.rows {
            let rows = found.rows[*table as usize];
            return Err(Error::damaged(&path, format!("{rows} rows were read back of {}", written.rows)));
        }
    }
    if found != counts {
        let lacks = found.lacks(&counts).unwrap_or_else(|| "other numbers of streams".to_owned());
        let path = layout.sealed_tmp(Table::Events, part);
        return Err(Error::damaged(&path, format!("what was read back has {lacks}")));
    }
    if let Some(known) = Ledger::live(layout, part)? {
        if let Some(lacks) = counts.lacks(&known) {
            let path = layout.live(Table::Events, part);
            return Err(Error::damaged(
                &path,
                format!("with its side tables it has {lacks}, as the ledger tells"),
            ));
        }
        counts.limit(&known);
    }
    Ok(Some(Entry { counts, files }))
}

/// Removes a file that may not be there.
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

/// Writes the `.tmp` file of a table, and counts its rows. Nothing is written for a table without rows unless
/// `empty_too`.
fn write_table(
    layout: &Layout,
    table: Table,
    order: Order,
    empty_too: bool,
    counts: &mut Counts,
    stop: &AtomicBool,
) -> Result<Option<FileEntry>, Error> {
    let path = layout.sealed_tmp(table, order.part);
    let written = try_write_table(layout, table, order, empty_too, counts, stop, &path);
    if !matches!(written, Ok(Some(_))) {
        // Gives the space back; what remains is removed by the next writer.
        let _ = fs::remove_file(&path);
    }
    written
}

fn try_write_table(
    layout: &Layout,
    table: Table,
    order: Order,
    empty_too: bool,
    counts: &mut Counts,
    stop: &AtomicBool,
    path: &Path,
) -> Result<Option<FileEntry>, Error> {
    let source = layout.live(table, order.part);
    let late = if table == Table::Events && order.late { late_rows(&source, stop)? } else { None };
    let mut source = Source { reader: LiveReader::open(table, &source)?, waiting: None, table };
    let first = source.next()?;
    if first.is_none() && !empty_too {
        return Ok(Some(FileEntry::default()));
    }
    make_folder(&layout.folder(table))?;
    let file = File::create(path).map_err(Error::io("create", path))?;
    let failed = |e: ParquetError| Error::io("write to", path)(parquet_file::to_io(e));
    let mut writer = TableWriter::new(table, Summed::new(file)).map_err(failed)?;
    let mut checksums = Checksums::default();
    let mut ends = StreamEnds::default();
    let mut foreign = ForeignFiles::default();
    if table == Table::Events {
        foreign.defined_in(&layout.live(Table::Files, order.part))?;
    }
    let mut late = late.map(Late::new);
    let mut next = first;
    while let Some(batch) = next {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        counts.see(table, &batch);
        if table == Table::Events {
            ends.see(&batch);
            foreign.see(&batch);
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
        writer.append_key_value_metadata(parquet_file::sides(layout, order.part)?);
    }
    let rows = writer.finish().map_err(failed)?;
    let summed = writer.summed();
    summed.file().sync_all().map_err(Error::io("sync", path))?;
    let (bytes, crc32c) = summed.sum();
    Ok(Some(FileEntry { rows, bytes, crc32c }))
}

/// Writes a Parquet file: of events in a way of its own.
enum TableWriter {
    Events(EventWriter<Summed>),
    Side(ArrowWriter<Summed>),
}

impl TableWriter {
    fn new(table: Table, file: Summed) -> Result<TableWriter, ParquetError> {
        Ok(match table {
            Table::Events => TableWriter::Events(EventWriter::new(file)?),
            _ => TableWriter::Side(ArrowWriter::try_new(
                file,
                schema::of(table),
                Some(parquet_file::properties(table)),
            )?),
        })
    }

    /// Rows written.
    fn finish(&mut self) -> Result<u64, ParquetError> {
        let metadata = match self {
            TableWriter::Events(writer) => writer.finish()?,
            TableWriter::Side(writer) => writer.finish()?,
        };
        Ok(metadata.file_metadata().num_rows() as u64)
    }

    fn summed(&self) -> &Summed {
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

    fn written(&mut self) -> Result<&mut Summed, ParquetError> {
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

/// Batches of a live stream, small ones joined.
struct Source {
    reader: Option<LiveReader>,
    waiting: Option<RecordBatch>,
    table: Table,
}

impl Source {
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
        // The writer left whole messages only, so whatever else is here must not be thrown away with the file.
        if rows < JOIN_ROWS && self.waiting.is_none() && reader.stop() != Stop::End {
            return Err(reader.damaged_here());
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

/// The rows that are earlier than a row before them, in order of time; `None` if there are none.
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

/// True if all rows are in order of time and none is before `latest`, which becomes the latest of them.
pub(crate) fn in_order(events: &RecordBatch, latest: &mut i64) -> bool {
    let times = times(events);
    let sorted = times.is_sorted() && times.first().is_none_or(|first| first >= latest);
    *latest = times.iter().copied().max().map_or(*latest, |max| max.max(*latest));
    sorted
}

/// Row numbers whose time is below the latest so far.
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

/// Puts late rows back in order while the others pass by.
struct Late {
    rows: RecordBatch,
    next: usize,
    latest: i64,
}

impl Late {
    fn new(rows: RecordBatch) -> Late {
        Late { rows, next: 0, latest: i64::MIN }
    }

    /// The rows of `batch` that are in order, merged with the late rows that belong before or among them.
    /// A late row follows the others of its own time. Every late row is earlier than some row that passes, so
    /// none is left over.
    fn merge(&mut self, batch: &RecordBatch) -> Result<Option<RecordBatch>, ArrowError> {
        let (passing, late) = (times(batch), times(&self.rows));
        let mut order: Vec<(usize, usize)> = Vec::with_capacity(passing.len());
        for (row, time) in passing.iter().enumerate() {
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
