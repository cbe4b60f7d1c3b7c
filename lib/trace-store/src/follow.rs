//! Follows a trace while it is written: returns new rows.

use crate::carried;
use crate::checksum::FileChecksums;
use crate::error::Error;
use crate::layout::Layout;
use crate::live::{LiveReader, StopReason};
use crate::live_rows::LiveRows;
use crate::manifest::Manifest;
use crate::parquet_file::{self, Batches};
use crate::reader::Reader;
use crate::rows::Joiner;
use crate::schema::{TABLES, Table};
use crate::unread_log::{OnDamage, UnreadLog};
use arrow_array::RecordBatch;
use parquet::file::statistics::Statistics;
use std::collections::BTreeSet;
use std::path::Path;

/// Where a [`Follow`] begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowFrom {
    /// With the first event of the trace.
    Start,
    /// With the first event after the present ones.
    End,
    /// With the first part that may have events completed at or after this time, nanoseconds since
    /// 1970. The caller must skip earlier events.
    Time(i64),
}

/// A position in a trace: the end of the rows that its writer had committed when the position was
/// taken.
#[derive(Debug)]
pub struct TracePosition {
    part: u64,
    /// The events of the part, limited to the position. They can be read after the part was sealed.
    live: Option<LiveReader>,
}

impl TracePosition {
    /// Returns the end of the committed rows. `part` must be the live part
    /// ([`crate::Writer::part`]), and nothing must be written at the time.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn end(dir: &Path, part: u64) -> Result<TracePosition, Error> {
        let mut live = LiveReader::open(Table::Events, &Layout::new(dir).live(Table::Events, part))?;
        if let Some(live) = &mut live {
            live.stop_at_present_end()?;
        }
        Ok(TracePosition { part, live })
    }
}

/// Returns the rows of a trace from a position on, each once, also when parts are sealed. Must be
/// polled.
#[derive(Debug)]
pub struct Follow {
    layout: Layout,
    joiner: Joiner,
    /// Number of the part that is being read.
    part: u64,
    /// By table: the live streams of the part that exist so far. They stay open when the part is
    /// sealed.
    live: [Option<LiveReader>; TABLES],
    /// Rows of a part that was sealed before it was read.
    sealed: Option<Batches>,
    missed: u64,
    on_damage: OnDamage,
    /// Where it ends.
    end: Option<TracePosition>,
}

/// Maximum rows of a poll, so that a follower that is far behind does not fill the memory.
const MAX_POLL_ROWS: usize = 1 << 18;

impl Follow {
    /// Opens a trace.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::NewerSchema`], [`Error::Damaged`], [`Error::Io`].
    pub fn open(dir: impl AsRef<Path>, from: FollowFrom) -> Result<Follow, Error> {
        Follow::begin(dir.as_ref(), from, OnDamage::Fail)
    }

    /// Opens a trace and skips damaged data, which it logs, see [`Follow::unread`].
    ///
    /// # Errors
    /// As [`Follow::open`].
    pub fn tolerant(dir: impl AsRef<Path>, from: FollowFrom) -> Result<Follow, Error> {
        let log = UnreadLog::default();
        let reader = Reader::tolerant(dir.as_ref())?;
        reader.unread().all().into_iter().for_each(|item| log.add(item));
        Follow::begin(dir.as_ref(), from, OnDamage::Log(log))
    }

    /// Returns the data that was skipped so far; none if it is not [tolerant](Follow::tolerant).
    #[must_use]
    pub fn unread(&self) -> UnreadLog {
        self.on_damage.unread_log().cloned().unwrap_or_default()
    }

    fn begin(dir: &Path, from: FollowFrom, on_damage: OnDamage) -> Result<Follow, Error> {
        Manifest::read(dir)?;
        let layout = Layout::new(dir);
        let parts = layout.parts()?;
        let all = parts.all();
        let begin = match from {
            FollowFrom::Start => all.first(),
            FollowFrom::End => all.last(),
            FollowFrom::Time(time) => {
                let mut needed = all.iter();
                // A part that cannot be read is not skipped, so that reading it reports the error.
                needed
                    .find(|part| sealed_before(&layout, **part, time).is_none_or(|before| !before))
                    .or(all.last())
            }
        };
        let mut follow = Follow {
            layout,
            joiner: Joiner::default(),
            part: begin.copied().unwrap_or(parts.first),
            live: Table::ALL.map(|_| None),
            sealed: None,
            missed: 0,
            on_damage,
            end: None,
        };
        follow.read_earlier_names()?;
        if from == FollowFrom::End {
            while follow.events()?.is_some() {}
        }
        Ok(follow)
    }

    /// Returns the rows (see [`crate::schema::rows`]) since the last poll, in order; empty if there
    /// are none yet.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Io`].
    pub fn poll(&mut self) -> Result<Vec<RecordBatch>, Error> {
        let mut batches = Vec::new();
        let mut rows = 0;
        while rows < MAX_POLL_ROWS
            && let Some(batch) = self.events()?
        {
            rows += batch.num_rows();
            batches.push(batch);
        }
        if !batches.is_empty() {
            // After the events, so that the side tables contain the ids that they use.
            self.read_names()?;
        }
        let joined = batches.iter().map(|batch| self.joiner.join(batch));
        joined.map(|b| b.map_err(|e| Error::damaged(self.layout.root(), e))).collect()
    }

    /// Ends the rows at this position, which must not be before the present one. When a poll
    /// returns no rows, the position is reached.
    pub fn end_at(&mut self, position: TracePosition) {
        self.end = Some(position);
    }

    /// Number of parts that retention removed before they were read: their events were skipped.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Reads the names of all parts before the present one, and advances to the first part that was
    /// not removed.
    fn read_earlier_names(&mut self) -> Result<(), Error> {
        loop {
            let parts = self.layout.parts()?;
            self.missed += parts.first.saturating_sub(self.part);
            self.part = self.part.max(parts.first);
            let read = self.read_names_before(parts.first, &parts.all());
            // If parts were removed in between, their needed rows are in the carried file now.
            if self.layout.first()? == parts.first {
                return read;
            }
        }
    }

    fn read_names_before(&mut self, first: u64, parts: &BTreeSet<u64>) -> Result<(), Error> {
        for table in [Table::Threads, Table::Files] {
            match carried::read(&self.layout, table, first) {
                Ok(carried) => carried.iter().for_each(|batch| self.joiner.add_batch(table, batch)),
                Err(error) if error.is_not_found() => return Err(error),
                Err(error) => {
                    let path = self.layout.carried(table, first);
                    self.on_damage.skip(&self.layout, &path, error)?;
                }
            }
            for part in parts.range(..self.part) {
                self.read_sealed_names(table, *part)?;
            }
        }
        Ok(())
    }

    /// Returns the next batch of events; `None` if there is none yet.
    fn events(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            if let Some(end) = &self.end
                && self.part >= end.part
            {
                // The part that was live at the end position is read up to that position only.
                let Some(end) = end.live.as_ref().filter(|_| self.part == end.part) else {
                    return Ok(None);
                };
                self.live[Table::Events as usize].get_or_insert_with(|| end.reopened()).stop_with(end);
                return self.next_of(Table::Events);
            }
            if let Some(sealed) = &mut self.sealed {
                match sealed.next() {
                    Some(batch) => return batch.map(Some),
                    None => self.next_part(),
                }
                continue;
            }
            if let Some(batch) = self.next_live()? {
                return Ok(Some(batch));
            }
            let later = self.layout.parts()?.all().last().is_some_and(|last| *last > self.part);
            let sealed = self.layout.sealed(Table::Events, self.part);
            if !later && !sealed.exists() {
                return Ok(None);
            }
            // The part got its last row before it was sealed or a later part began, so these are
            // its last rows.
            if let Some(batch) = self.next_live()? {
                return Ok(Some(batch));
            }
            self.read_names()?;
            // Checked again: live files are removed only when the sealed file exists.
            if self.live[Table::Events as usize].is_none() && sealed.exists() {
                match Batches::all(Table::Events, &sealed) {
                    Ok(batches) => self.sealed = Some(batches.tolerant(&self.layout, &self.on_damage)),
                    Err(error) if error.is_not_found() => self.skip_removed()?,
                    Err(error) => {
                        self.on_damage.skip(&self.layout, &sealed, error)?;
                        self.next_part();
                    }
                }
            } else if self.live[Table::Events as usize].is_none() && self.layout.first()? > self.part {
                self.skip_removed()?;
            } else {
                self.next_part();
            }
        }
    }

    fn skip_removed(&mut self) -> Result<(), Error> {
        self.live = Table::ALL.map(|_| None);
        self.read_earlier_names()
    }

    fn next_live(&mut self) -> Result<Option<RecordBatch>, Error> {
        self.open_live(Table::Events)?;
        self.next_of(Table::Events)
    }

    /// Returns the next rows of a live stream. It ends at a damaged message, because later messages
    /// may depend on it.
    fn next_of(&mut self, table: Table) -> Result<Option<RecordBatch>, Error> {
        let Some(reader) = &mut self.live[table as usize] else { return Ok(None) };
        let read = reader.next_batch();
        let damage = match read {
            Ok(None) if reader.stop() == StopReason::Damaged => reader.damaged_message(),
            Err(error) => error,
            read => return read,
        };
        let (path, remaining) = (reader.path(), reader.remaining().unwrap_or(0));
        self.on_damage.skip_with(&self.layout, path, damage, |item| item.with_bytes(remaining))?;
        Ok(None)
    }

    fn next_part(&mut self) {
        self.part += 1;
        self.live = Table::ALL.map(|_| None);
        self.sealed = None;
    }

    fn open_live(&mut self, table: Table) -> Result<(), Error> {
        if self.live[table as usize].is_none() {
            self.live[table as usize] = LiveReader::open(table, &self.layout.live(table, self.part))?;
        }
        Ok(())
    }

    /// Reads the new names of the present part.
    fn read_names(&mut self) -> Result<(), Error> {
        for table in [Table::Threads, Table::Files] {
            self.open_live(table)?;
            if self.live[table as usize].is_none() {
                self.read_sealed_names(table, self.part)?;
            }
            while let Some(batch) = self.next_of(table)? {
                self.joiner.add_batch(table, &batch);
            }
        }
        Ok(())
    }

    fn read_sealed_names(&mut self, table: Table, part: u64) -> Result<(), Error> {
        let path = self.layout.sealed(table, part);
        match Batches::all(table, &path) {
            Ok(sealed) => {
                for batch in sealed.tolerant(&self.layout, &self.on_damage) {
                    self.joiner.add_batch(table, &batch?);
                }
            }
            Err(error) if error.is_not_found() => self.read_unsealed_names(table, part, error)?,
            Err(error) => self.on_damage.skip(&self.layout, &path, error)?,
        }
        Ok(())
    }

    /// Reads names without a sealed side table: the part is live, it has no rows for the table, or
    /// the file is missing.
    fn read_unsealed_names(&mut self, table: Table, part: u64, not_found: Error) -> Result<(), Error> {
        if let Some(live) = LiveReader::open(table, &self.layout.live(table, part))? {
            for batch in LiveRows::new(live, &self.layout, &self.on_damage) {
                self.joiner.add_batch(table, &batch?);
            }
        } else if let Some(rows) = parquet_file::side_rows(&self.layout, part, table)
            && self.layout.first()? <= part
        {
            let path = self.layout.sealed(table, part);
            self.on_damage.skip_with(&self.layout, &path, not_found, |item| item.with_rows(rows))?;
        }
        Ok(())
    }
}

/// Returns true if all events of a sealed part completed before `time`; `None` if that is unknown.
fn sealed_before(layout: &Layout, part: u64, time: i64) -> Option<bool> {
    let path = layout.sealed(Table::Events, part);
    let metadata = parquet_file::open(Table::Events, &path).ok()?;
    let sums = FileChecksums::of(&path, metadata.metadata()).ok()?;
    let groups = metadata.metadata().row_groups().iter().enumerate();
    let latest = groups.map(|(number, group)| match group.column(0).statistics() {
        Some(Statistics::Int64(times)) if sums.has_ranges(number) => times.max_opt().copied(),
        _ => None,
    });
    latest.map(|latest| latest.map(|latest| latest < time)).try_fold(true, |all, before| Some(all && before?))
}
