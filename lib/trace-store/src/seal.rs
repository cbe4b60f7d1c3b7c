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
//! Until step 5 the live files are the part, afterwards the sealed ones are. The file of events is
//! begun while the part is live, see [`early`].
//!
//! Events in a sealed part are ordered by time. In the live part they are too, except late ones
//! (see `miot_proto::event::flag::LATE`), which sealing moves to their place.

#![expect(clippy::disallowed_types, reason = "stop flag of the sealing thread")]

pub(crate) mod early;
pub(crate) mod foreign_files;
mod late_rows;
mod sealed_file;

use crate::error::Error;
use crate::layout::{Layout, sync_folder};
use crate::ledger::{self, Counts, FileEntry, Ledger, SealedEntry};
use crate::live::{LiveReader, StopReason};
use crate::parquet_file::Batches;
use crate::schema::Table;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use early::EarlyEvents;
use late_rows::{is_stopped, late_rows};
pub(crate) use sealed_file::JOIN_ROWS;
use sealed_file::SealedFileWriter;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

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
/// `early` is the file of events that was begun while the part was live. With late rows it is not
/// used. If `stop` is set, `seal` ends before the part is sealed and returns `None`; the part stays
/// live.
pub(crate) fn seal(
    layout: &Layout,
    request: SealRequest,
    early: Option<EarlyEvents>,
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
    let early = early.filter(|early| early.part() == part && !request.late);
    let written = match early {
        Some(early) => early.finish(layout, &mut counts, stop)?,
        None => write_table(layout, Table::Events, request, WhenEmpty::Write, &mut counts, stop)?,
    };
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
            if is_stopped(stop) {
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

/// Writes the `.tmp` file of a table from its live stream, and counts its rows. Returns `None` if
/// `stop` is set.
fn write_table(
    layout: &Layout,
    table: Table,
    request: SealRequest,
    when_empty: WhenEmpty,
    counts: &mut Counts,
    stop: &AtomicBool,
) -> Result<Option<FileEntry>, Error> {
    let source = layout.live(table, request.part);
    let late = if table == Table::Events && request.late { late_rows(&source, stop)? } else { None };
    let mut reader = LiveReader::open(table, &source)?;
    let mut next = reader.as_mut().map_or(Ok(None), LiveReader::next_batch)?;
    if next.is_none() && when_empty == WhenEmpty::Skip {
        check_end(reader.as_ref())?;
        return Ok(Some(FileEntry::default()));
    }
    let mut file = SealedFileWriter::create(layout, table, request.part, late)?;
    if table == Table::Events {
        file.files().define_all(&layout.live(Table::Files, request.part))?;
    }
    while let (Some(batch), Some(reader)) = (next, &mut reader) {
        if is_stopped(stop) {
            return Ok(None);
        }
        file.add(batch, counts)?;
        next = reader.next_batch()?;
    }
    check_end(reader.as_ref())?;
    file.finish(layout).map(Some)
}

/// Checks that a live stream has no bytes after its last whole message: the writer leaves whole
/// messages only, and other bytes must not be deleted with the file.
fn check_end(reader: Option<&LiveReader>) -> Result<(), Error> {
    match reader {
        Some(reader) if reader.stop() != StopReason::End => Err(reader.damaged_message()),
        _ => Ok(()),
    }
}

fn times(batch: &RecordBatch) -> &[i64] {
    batch.column(0).as_primitive::<TimestampNanosecondType>().values()
}

/// Returns true if all rows are ordered by time and none is before `latest`. Raises `latest` to the
/// latest row.
pub(crate) fn in_order(events: &RecordBatch, latest: &mut i64) -> bool {
    let times = times(events);
    let sorted = times.is_sorted() && times.first().is_none_or(|first| first >= latest);
    *latest = times.iter().copied().max().map_or(*latest, |max| max.max(*latest));
    sorted
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::event_file::tests::Random;
    use crate::layout::make_folder;
    use crate::live::LiveWriter;

    /// The live files are removed only after the written ones were read back.
    #[test]
    fn part_that_is_not_as_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        make_folder(&layout.live_folder()).unwrap();
        let mut live = LiveWriter::new(Table::Events, layout.live(Table::Events, 0)).unwrap();
        live.append(&Random::new().batch(500)).unwrap();
        live.write_out().unwrap();
        live.sync().unwrap();
        let (mut counts, stop) = (Counts::default(), AtomicBool::new(false));
        let request = SealRequest { part: 0, late: false };
        let written =
            write_table(&layout, Table::Events, request, WhenEmpty::Write, &mut counts, &stop).unwrap();
        let files = BTreeMap::from([(Table::Events, written.unwrap())]);
        let read_back = |counts: &Counts| read_back(&layout, 0, files.clone(), counts.clone(), &stop);
        assert!(read_back(&counts).unwrap().is_some());

        let mut more = counts.clone();
        more.add_batch(Table::Events, &Random::new().batch(1));
        assert!(matches!(read_back(&more), Err(Error::Damaged { .. })), "a row is missing");

        let path = layout.sealed_tmp(Table::Events, 0);
        let bytes = fs::read(&path).unwrap();
        for at in [4, bytes.len() / 2, bytes.len() - 20] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, damaged).unwrap();
            assert!(matches!(read_back(&counts), Err(Error::Damaged { .. })), "byte {at}");
        }
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(read_back(&counts), Err(Error::Damaged { .. })), "truncated");
    }
}
