//! The sealed file of events, written while its part is still live.
//!
//! Sealing from the live stream alone reads and decodes each row that has just been encoded.
//! Instead, the writer passes the rows of each commit to the sealing thread, which encodes them for
//! the file. Rows that the writer did not pass, because the thread is behind or because an earlier
//! process wrote them, are read from the live stream.

use super::late_rows::is_stopped;
use super::sealed_file::SealedFileWriter;
use crate::error::Error;
use crate::layout::Layout;
use crate::ledger::{Counts, FileEntry};
use crate::live::{LiveReader, StopReason};
use crate::schema::Table;
use arrow_array::RecordBatch;
use std::sync::atomic::AtomicBool;

/// New events of the live part, and the files that were defined before them. The sealing thread
/// gets them when they are committed.
#[derive(Debug)]
pub(crate) struct NewEvents {
    pub(crate) part: u64,
    /// Position in the live stream before the events, bytes.
    pub(crate) begin: u64,
    /// Position after the events, bytes.
    pub(crate) end: u64,
    pub(crate) events: Vec<RecordBatch>,
    /// Ids of new rows of `files`.
    pub(crate) files: Vec<u64>,
}

impl NewEvents {
    /// No rows of a part.
    pub(crate) fn new(part: u64) -> NewEvents {
        NewEvents { part, begin: 0, end: 0, events: Vec::new(), files: Vec::new() }
    }

    /// Adds events that are in the live stream from `begin` to `end`.
    pub(crate) fn add(&mut self, events: &RecordBatch, begin: u64, end: u64) {
        if self.events.is_empty() {
            self.begin = begin;
        }
        self.end = end;
        self.events.push(events.clone());
    }

    /// Number of events.
    pub(crate) fn rows(&self) -> usize {
        self.events.iter().map(RecordBatch::num_rows).sum()
    }
}

/// See the module.
pub(crate) struct EarlyEvents {
    part: u64,
    file: SealedFileWriter,
    counts: Counts,
    /// The file has the rows of the live stream before this position, bytes.
    end: u64,
}

impl EarlyEvents {
    /// Creates the file of a live part.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn create(layout: &Layout, part: u64) -> Result<EarlyEvents, Error> {
        let mut file = SealedFileWriter::create(layout, Table::Events, part, None)?;
        file.files().define_all(&layout.live(Table::Files, part))?;
        Ok(EarlyEvents { part, file, counts: Counts::default(), end: 0 })
    }

    /// Number of the part.
    pub(crate) fn part(&self) -> u64 {
        self.part
    }

    /// Appends committed rows, after the rows before them. Returns `None` if `stop` is set.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`]: the file cannot be completed.
    pub(crate) fn add(
        &mut self,
        layout: &Layout,
        committed: NewEvents,
        stop: &AtomicBool,
    ) -> Result<Option<()>, Error> {
        committed.files.iter().for_each(|file| self.file.files().define(*file));
        if self.read_live(layout, Some(committed.begin), stop)?.is_none() {
            return Ok(None);
        }
        for batch in committed.events {
            self.file.add(batch, &mut self.counts)?;
        }
        self.end = committed.end;
        Ok(Some(()))
    }

    /// Appends the rest of the live stream and finishes the file. Adds the rows to `counts`, which
    /// must have no events yet.
    pub(super) fn finish(
        mut self,
        layout: &Layout,
        counts: &mut Counts,
        stop: &AtomicBool,
    ) -> Result<Option<FileEntry>, Error> {
        if self.read_live(layout, None, stop)?.is_none() {
            return Ok(None);
        }
        counts.join(self.counts);
        self.file.finish(layout).map(Some)
    }

    /// Appends the rows of the live stream up to this position, or to its end.
    fn read_live(
        &mut self,
        layout: &Layout,
        to: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<Option<()>, Error> {
        if to == Some(self.end) {
            return Ok(Some(()));
        }
        let path = layout.live(Table::Events, self.part);
        let Some(mut reader) = LiveReader::open(Table::Events, &path)? else { return Ok(Some(())) };
        if let Some(to) = to {
            reader.stop_at(to);
        }
        reader.skip_batches(self.end)?;
        while let Some(batch) = reader.next_batch()? {
            if is_stopped(stop) {
                return Ok(None);
            }
            self.file.add(batch, &mut self.counts)?;
        }
        if reader.stop() != StopReason::End || to.is_some_and(|to| to != reader.position()) {
            return Err(reader.damaged_message());
        }
        self.end = reader.position();
        Ok(Some(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::event_file::tests::Random;
    use crate::layout::make_folder;
    use crate::live::LiveWriter;
    use crate::parquet_file::Batches;
    use crate::schema;
    use arrow_select::concat::concat_batches;

    /// Commits of many sizes, of which some are not passed on, also the first ones.
    #[test]
    fn sealed_rows_are_those_of_the_live_stream() {
        let mut random = Random::new();
        for round in 0..12 {
            let dir = tempfile::tempdir().unwrap();
            let layout = Layout::new(dir.path());
            make_folder(&layout.live_folder()).unwrap();
            let mut live = LiveWriter::new(Table::Events, layout.live(Table::Events, 3)).unwrap();
            let (mut early, mut all, stop) = (None, Vec::new(), AtomicBool::new(false));
            let begins_at = random.below(3);
            for commit in 0..8 {
                let mut committed = NewEvents::new(3);
                for _ in 0..=random.below(2) {
                    let limit = if round % 2 == 0 { 50 } else { 12_000 };
                    let rows = 1 + random.below(limit) as usize;
                    let batch = random.batch(rows);
                    let begin = live.bytes();
                    live.append(&batch).unwrap();
                    committed.add(&batch, begin, live.bytes());
                    all.push(batch);
                }
                live.write_out().unwrap();
                live.sync().unwrap();
                let is_passed = round < 2 || random.below(3) > 0;
                if commit >= begins_at && is_passed {
                    let early = early.get_or_insert_with(|| EarlyEvents::create(&layout, 3).unwrap());
                    early.add(&layout, committed, &stop).unwrap().unwrap();
                }
            }
            let early = early.unwrap_or_else(|| EarlyEvents::create(&layout, 3).unwrap());
            let mut counts = Counts::default();
            let written = early.finish(&layout, &mut counts, &stop).unwrap().unwrap();

            let schema = schema::of(Table::Events);
            let expected = concat_batches(&schema, &all).unwrap();
            let path = layout.sealed_tmp(Table::Events, 3);
            let found: Vec<RecordBatch> =
                Batches::all(Table::Events, &path).unwrap().collect::<Result<_, _>>().unwrap();
            assert_eq!(concat_batches(&schema, &found).unwrap(), expected);
            assert_eq!(written.rows, expected.num_rows() as u64);
            let mut expected_counts = Counts::default();
            expected_counts.add_batch(Table::Events, &expected);
            assert_eq!(counts, expected_counts);
        }
    }

    #[test]
    fn damage_among_the_rows_that_were_not_passed_is_an_error() {
        let mut random = Random::new();
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        make_folder(&layout.live_folder()).unwrap();
        let path = layout.live(Table::Events, 0);
        let mut live = LiveWriter::new(Table::Events, path.clone()).unwrap();
        for _ in 0..2 {
            live.append(&random.batch(100)).unwrap();
        }
        live.write_out().unwrap();
        live.sync().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 100;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let early = EarlyEvents::create(&layout, 0).unwrap();
        let sealed = early.finish(&layout, &mut Counts::default(), &AtomicBool::new(false));
        assert!(matches!(sealed, Err(Error::Damaged { .. })));
        assert!(!layout.sealed_tmp(Table::Events, 0).exists(), "the file is removed");
    }
}
