//! Repair of sealed, carried and live files.

use super::{LostRows, Repair};
use crate::carried::{self, RemovedParts, value};
use crate::checksum;
use crate::error::Error;
use crate::layout::{COMMIT_TABLE, sync_folder};
use crate::ledger::{self, FileEntry};
use crate::live::{LiveReader, StopReason};
use crate::manifest::MANIFEST;
use crate::missing_parts::MissingParts;
use crate::parquet_file::{self, Batches};
use crate::quarantine;
use crate::recover::STREAMS_KEY;
use crate::schema::Table;
use crate::seal::{self, foreign_files::FILES_KEY};
use arrow_array::RecordBatch;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::statistics::Statistics;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Most missing parts that get an empty file.
const MAX_EMPTY_PARTS: u64 = 100_000;

impl Repair {
    /// Repairs the rows that were carried over from removed parts.
    pub(super) fn repair_carried_files(&mut self) -> Result<(), Error> {
        let parts = self.layout.parts()?;
        let mut first = parts.first;
        if first == 0 {
            // If the carried file of threads is missing, only the others show that parts were
            // removed.
            let begin = parts.all().first().copied().unwrap_or(0);
            if begin == 0 || !self.layout.carried(Table::Files, begin).exists() {
                return Ok(());
            }
            first = begin;
        }
        for table in Table::SIDE {
            let path = self.layout.carried(table, first);
            if path.exists() {
                self.repair_file(table, None, &path)?;
            } else {
                carried::write(table, &path, &[], self.metadata(table, first, None))?;
                let text = format!("{} is missing: an empty one was written", path.display());
                self.add(None, text, Some(LostRows::Unknown));
            }
            sync_folder(&self.layout.folder(table))?;
        }
        Ok(())
    }

    /// Returns the metadata that a carried file must have: that of the damaged file, if it can be
    /// read.
    fn metadata(&self, table: Table, first: u64, damaged: Option<&ParquetMetaData>) -> Vec<KeyValue> {
        if first == 0 || table != COMMIT_TABLE {
            return Vec::new();
        }
        let removed = damaged
            .and_then(RemovedParts::of)
            .unwrap_or(RemovedParts { parts: first, ..RemovedParts::default() });
        removed.metadata(damaged.and_then(|m| value(m, STREAMS_KEY)).unwrap_or_default().to_owned())
    }

    /// Repairs damaged files of sealed parts.
    pub(super) fn repair_sealed_files(&mut self) -> Result<(), Error> {
        let parts = self.layout.parts()?;
        for part in parts.sealed {
            let live = self.layout.live(Table::Events, part).exists();
            for table in Table::ALL {
                let path = self.layout.sealed(table, part);
                if !path.exists() || self.is_as_written(table, Some(part), &path) {
                    continue;
                }
                if live {
                    // The live file of events is removed first, so all live files still exist.
                    for table in Table::ALL.into_iter().filter(|t| self.layout.sealed(*t, part).exists()) {
                        self.quarantine(&self.layout.sealed(table, part))?;
                    }
                    let text = format!(
                        "{} is damaged, but its live files exist: the part is live again",
                        path.display()
                    );
                    self.add(Some(part), text, None);
                    break;
                }
                self.repair_file(table, Some(part), &path)?;
            }
        }
        Ok(())
    }

    /// What the ledger has of a sealed file.
    fn known(&self, table: Table, part: Option<u64>) -> Option<FileEntry> {
        self.ledger.sealed.get(&part?)?.files.get(&table).copied()
    }

    /// Returns true if a file has the bytes that were written, also if this version cannot decode
    /// it. The sum in the ledger is that of the whole file. The other ones do not include the Arrow
    /// schema at its end, which other readers need.
    fn is_as_written(&self, table: Table, part: Option<u64>, path: &Path) -> bool {
        match self.known(table, part) {
            Some(known) => match ledger::sum_of(path) {
                Ok((bytes, crc)) if bytes == known.bytes => crc == known.crc32c,
                // Also a file that an interrupted repair has written.
                _ => is_intact(table, path),
            },
            None => {
                let has_good_sums = |(good, metadata): (Vec<bool>, Arc<ParquetMetaData>)| {
                    !good.is_empty() && good.iter().all(|good| *good) && checksum::exist(&metadata)
                };
                is_intact(table, path) || parquet_file::verify(table, path).is_ok_and(has_good_sums)
            }
        }
    }

    /// Replaces a damaged file by one with its intact row groups.
    fn repair_file(&mut self, table: Table, part: Option<u64>, path: &Path) -> Result<(), Error> {
        if self.is_as_written(table, part, path) {
            return Ok(());
        }
        let verified = parquet_file::verify(table, path).ok();
        let metadata = verified.as_ref().map(|(_, metadata)| &**metadata);
        let (mut kept, mut lost, mut from, mut to) = (Vec::new(), 0, i64::MAX, i64::MIN);
        for (group, good) in verified.iter().flat_map(|(good, _)| good.iter().enumerate()) {
            let rows = good.then(|| Batches::group(table, path, group).and_then(Iterator::collect));
            if let Some(Ok(rows)) = rows {
                let rows: Vec<RecordBatch> = rows;
                kept.extend(rows);
            } else if let Some(group) = metadata.map(|metadata| metadata.row_group(group)) {
                lost += group.num_rows().max(0) as u64;
                if let Some(Statistics::Int64(times)) =
                    group.column(0).statistics().filter(|_| table == Table::Events)
                {
                    from = from.min(times.min_opt().copied().unwrap_or(from));
                    to = to.max(times.max_opt().copied().unwrap_or(to));
                }
            }
        }
        let pairs = match (table, part) {
            (Table::Events, _) => [STREAMS_KEY, FILES_KEY]
                .into_iter()
                .filter_map(|key| Some(KeyValue::new(key.to_owned(), value(metadata?, key)?.to_owned())))
                .collect(),
            (_, Some(_)) => Vec::new(),
            (_, None) => self.metadata(table, self.layout.first()?.max(1), metadata),
        };
        let kept_file = self.keep(path)?;
        carried::write(table, path, &kept, pairs)?;
        sync_folder(&self.layout.folder(table))?;
        let rows: usize = kept.iter().map(RecordBatch::num_rows).sum();
        let mut text = format!("{} is damaged: {rows} rows were kept, ", path.display());
        match metadata {
            Some(_) => text += &format!("{lost} are lost"),
            None => text += "an unknown number is lost",
        }
        if let (Ok(from), Ok(to)) = (time(from), time(to))
            && lost > 0
            && table == Table::Events
        {
            text += &format!(", from {from} to {to}");
        }
        text += &format!("; the damaged file is {}", kept_file.display());
        if table == Table::Events {
            self.incomplete.extend(part);
        }
        let has_all = self.known(table, part).is_some_and(|known| known.rows == rows as u64);
        let lost = metadata.map_or(LostRows::Unknown, |_| LostRows::Rows(lost));
        self.add(part, text, (!has_all).then_some(lost));
        Ok(())
    }

    /// Writes empty files for parts whose events are missing.
    pub(super) fn replace_missing_parts(&mut self) -> Result<(), Error> {
        let parts = self.layout.parts()?;
        let there = parts.all();
        // The ledger may count parts without any file.
        let known =
            self.ledger.parts().filter(|part| self.ledger.counts(*part).is_some_and(|c| !c.is_empty()));
        let last = there.last().max(parts.sides.last()).copied().max(known.last());
        let Some(last) = last else { return Ok(()) };
        let missing = MissingParts::between(parts.first, last, &there);
        if missing.count() > MAX_EMPTY_PARTS {
            let reason = format!(
                "{} before part {last}, and a repair replaces at most {MAX_EMPTY_PARTS}: if the file of that part has a wrong name, \
                 move it out of the trace or rename it",
                missing.message().unwrap_or_default()
            );
            return Err(Error::Damaged { path: self.layout.folder(Table::Events), reason });
        }
        for part in missing.ranges().iter().cloned().flatten() {
            carried::write(Table::Events, &self.layout.sealed(Table::Events, part), &[], Vec::new())?;
            sync_folder(&self.layout.folder(Table::Events))?;
            self.incomplete.insert(part);
            let text = "its events are missing: an empty file was written".to_owned();
            self.add(Some(part), text, Some(LostRows::Unknown));
        }
        there.into_iter().try_for_each(|part| self.replace_missing_side_tables(part))
    }

    /// Writes empty files for side tables that a sealed part must have, by the metadata of its
    /// events.
    fn replace_missing_side_tables(&mut self, part: u64) -> Result<(), Error> {
        for table in Table::SIDE {
            let path = self.layout.sealed(table, part);
            let is_live = self.layout.live(table, part).exists();
            if path.exists() || is_live || parquet_file::side_rows(&self.layout, part, table).is_none() {
                continue;
            }
            carried::write(table, &path, &[], Vec::new())?;
            sync_folder(&self.layout.folder(table))?;
            let text = format!("its rows of {table} are missing: an empty file was written");
            self.add(Some(part), text, Some(LostRows::Unknown));
        }
        Ok(())
    }

    /// Truncates the live streams after their last whole message.
    pub(super) fn repair_live_streams(&mut self) -> Result<(), Error> {
        for part in self.layout.parts()?.live {
            for table in Table::ALL {
                self.repair_live_stream(table, part)?;
            }
        }
        Ok(())
    }

    fn repair_live_stream(&mut self, table: Table, part: u64) -> Result<(), Error> {
        let path = self.layout.live(table, part);
        let Some(mut reader) = LiveReader::open(table, &path)? else { return Ok(()) };
        let damaged = loop {
            match reader.next_batch() {
                Ok(Some(_)) => {}
                Ok(None) => break reader.stop() == StopReason::Damaged,
                // An intact message with invalid content is handled like a damaged one.
                Err(Error::Damaged { .. }) => break true,
                Err(error) => return Err(error),
            }
        };
        let bytes = reader.remaining()?;
        if bytes == 0 {
            return Ok(());
        }
        let mut text =
            format!("{}: {bytes} bytes after the last whole message were truncated", path.display());
        if damaged {
            let kept = quarantine::unused_path(&path)?;
            quarantine::keep_tail(&path, reader.position(), &kept)?;
            text += &format!("; they are kept in {}", kept.display());
        }
        if damaged && table == Table::Events {
            self.incomplete.insert(part);
        }
        truncate(&path, reader.position())?;
        self.add(Some(part), text, damaged.then_some(LostRows::Unknown));
        Ok(())
    }

    /// Removes leftover files.
    pub(super) fn remove_leftovers(&mut self) -> Result<(), Error> {
        let mut files = self.layout.parts()?.leftovers;
        files.extend(Some(self.layout.root().join(format!("{MANIFEST}.tmp"))).filter(|path| path.exists()));
        for path in files {
            seal::remove(&path)?;
            self.add(None, format!("{} was left over and was removed", path.display()), None);
        }
        Ok(())
    }
}

/// Returns true if a sealed file has the bytes that were written and can be decoded.
fn is_intact(table: Table, path: &Path) -> bool {
    let good = parquet_file::verify(table, path).is_ok_and(|(good, _)| good.iter().all(|good| *good));
    good && Batches::all(table, path).is_ok_and(|mut batches| batches.all(|batch| batch.is_ok()))
}

fn truncate(path: &Path, length: u64) -> Result<(), Error> {
    let file = File::options().write(true).open(path).map_err(Error::io("open", path))?;
    file.set_len(length).and_then(|()| file.sync_all()).map_err(Error::io("truncate", path))
}

fn time(nanoseconds: i64) -> Result<jiff::Timestamp, jiff::Error> {
    jiff::Timestamp::from_nanosecond(nanoseconds.into())
}
