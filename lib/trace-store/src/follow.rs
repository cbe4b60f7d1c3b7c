//! Following a trace while it is written: new rows as they come.

use crate::carried;
use crate::checksum::Sums;
use crate::error::Error;
use crate::layout::Layout;
use crate::live::{LiveReader, Stop};
use crate::live_rows::LiveRows;
use crate::manifest::Manifest;
use crate::parquet_file::{self, Batches};
use crate::reader::Reader;
use crate::rows::Joiner;
use crate::schema::{TABLES, Table};
use crate::unread::{Notes, OnDamage};
use arrow_array::RecordBatch;
use parquet::file::statistics::Statistics;
use std::collections::BTreeSet;
use std::path::Path;

/// Where a [`Follow`] begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// With the first event of the trace.
    Start,
    /// With the first event after those that are there now.
    End,
    /// With a part of which all later ones need to be read for events completed at or after this time, nanoseconds
    /// since 1970. Earlier events among them are for the caller to leave out.
    Time(i64),
}

/// A place in a trace: the end of what its writer had committed when the place was taken.
#[derive(Debug)]
pub struct Place {
    part: u64,
    /// The events of the part, which read no further; also when the part has been sealed since.
    live: Option<LiveReader>,
}

impl Place {
    /// The end of what was committed, if `part` is the live part ([`crate::Writer::part`]) and nothing is being written.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn end(dir: &Path, part: u64) -> Result<Place, Error> {
        let mut live = LiveReader::open(Table::Events, &Layout::new(dir).live(Table::Events, part))?;
        if let Some(live) = &mut live {
            live.stop_at_present_end()?;
        }
        Ok(Place { part, live })
    }
}

/// Gives the rows of a trace from some point on, each once, across sealing. Poll it.
#[derive(Debug)]
pub struct Follow {
    layout: Layout,
    joiner: Joiner,
    /// The part that is being read.
    part: u64,
    /// Its live streams that exist so far, by table; kept open across sealing.
    live: [Option<LiveReader>; TABLES],
    /// Sealed parts before the live one are read one batch at a time.
    sealed: Option<Batches>,
    missed: u64,
    on_damage: OnDamage,
    /// Where it ends.
    place: Option<Place>,
}

/// Rows of a poll at most, so that a follower who is far behind does not fill the memory.
const MAX_ROWS: usize = 1 << 18;

impl Follow {
    /// Opens a trace.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::NewerSchema`], [`Error::Damaged`], [`Error::Io`].
    pub fn open(dir: impl AsRef<Path>, from: From) -> Result<Follow, Error> {
        Follow::begin(dir.as_ref(), from, OnDamage::Fail)
    }

    /// Opens a trace to read of it what can be read: what is damaged is passed over and noted, see [`Follow::notes`].
    ///
    /// # Errors
    /// As [`Follow::open`].
    pub fn tolerant(dir: impl AsRef<Path>, from: From) -> Result<Follow, Error> {
        let notes = Notes::default();
        let reader = Reader::tolerant(dir.as_ref())?;
        reader.notes().all().into_iter().for_each(|missing| notes.add(missing));
        Follow::begin(dir.as_ref(), from, OnDamage::Note(notes))
    }

    /// What could not be read so far; nothing if it is not [tolerant](Follow::tolerant).
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.on_damage.notes().cloned().unwrap_or_default()
    }

    fn begin(dir: &Path, from: From, on_damage: OnDamage) -> Result<Follow, Error> {
        Manifest::read(dir)?;
        let layout = Layout::new(dir);
        let parts = layout.parts()?;
        let all = parts.all();
        let begin = match from {
            From::Start => all.first(),
            From::End => all.last(),
            From::Time(time) => {
                let mut needed = all.iter();
                // A part that cannot be read is not skipped: reading it will tell.
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
            place: None,
        };
        follow.names_before()?;
        if from == From::End {
            while follow.events()?.is_some() {}
        }
        Ok(follow)
    }

    /// Rows (see [`crate::schema::rows`]) since the last poll, in order; empty if there are none yet.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Io`].
    pub fn poll(&mut self) -> Result<Vec<RecordBatch>, Error> {
        let mut batches = Vec::new();
        let mut rows = 0;
        while rows < MAX_ROWS
            && let Some(batch) = self.events()?
        {
            rows += batch.num_rows();
            batches.push(batch);
        }
        if !batches.is_empty() {
            // After the events: what they refer to is there by now.
            self.names()?;
        }
        let joined = batches.iter().map(|batch| self.joiner.join(batch));
        joined.map(|b| b.map_err(|e| Error::damaged(self.layout.root(), e))).collect()
    }

    /// From here on it ends at this place, which must not be before where it is: when a poll gives nothing it has been
    /// reached, and everything before it was given.
    pub fn end_at(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Parts that retention removed before they were followed: their events were passed over.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Takes in the names of all parts before the present one, and goes on to the first that was not removed.
    fn names_before(&mut self) -> Result<(), Error> {
        loop {
            let parts = self.layout.parts()?;
            self.missed += parts.first.saturating_sub(self.part);
            self.part = self.part.max(parts.first);
            let read = self.names_from(parts.first, &parts.all());
            // If parts were removed meanwhile, what is needed of them is in the carried rows now.
            if self.layout.first()? == parts.first {
                return read;
            }
        }
    }

    fn names_from(&mut self, first: u64, parts: &BTreeSet<u64>) -> Result<(), Error> {
        for table in [Table::Threads, Table::Files] {
            match carried::read(&self.layout, table, first) {
                Ok(carried) => carried.iter().for_each(|batch| self.joiner.see(table, batch)),
                Err(error) if error.is_not_found() => return Err(error),
                Err(error) => {
                    let path = self.layout.carried(table, first);
                    self.on_damage.pass_over(&self.layout, &path, error)?;
                }
            }
            for part in parts.range(..self.part) {
                self.names_of_sealed(table, *part)?;
            }
        }
        Ok(())
    }

    fn events(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            if let Some(place) = &self.place
                && self.part >= place.part
            {
                // Of the part that was live at that place, only what was there.
                let Some(end) = place.live.as_ref().filter(|_| self.part == place.part) else {
                    return Ok(None);
                };
                self.live[Table::Events as usize].get_or_insert_with(|| end.again()).stop_with(end);
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
            // The part had all its rows before it was sealed or a later one begun, so this is the rest.
            if let Some(batch) = self.next_live()? {
                return Ok(Some(batch));
            }
            self.names()?;
            // Asked again: live files are removed only when this one is there.
            if self.live[Table::Events as usize].is_none() && sealed.exists() {
                match Batches::all(Table::Events, &sealed) {
                    Ok(batches) => self.sealed = Some(batches.tolerant(&self.layout, &self.on_damage)),
                    Err(error) if error.is_not_found() => self.skip_removed()?,
                    Err(error) => {
                        self.on_damage.pass_over(&self.layout, &sealed, error)?;
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
        self.names_before()
    }

    fn next_live(&mut self) -> Result<Option<RecordBatch>, Error> {
        self.open_live(Table::Events)?;
        self.next_of(Table::Events)
    }

    /// The next rows of a live stream. Where a message is damaged it ends: what comes after may mean something else without it.
    fn next_of(&mut self, table: Table) -> Result<Option<RecordBatch>, Error> {
        let Some(reader) = &mut self.live[table as usize] else { return Ok(None) };
        let read = reader.next_batch();
        let left = |reader: &LiveReader| reader.left().unwrap_or(0);
        let damage = match read {
            Ok(None) if reader.stop() == Stop::Bad => reader.damaged_here(),
            Err(error) => error,
            read => return read,
        };
        let (path, left) = (reader.path(), left(reader));
        self.on_damage.pass_over_with(&self.layout, path, damage, |unread| unread.bytes(left))?;
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

    /// Takes in the names of the present part that are new.
    fn names(&mut self) -> Result<(), Error> {
        for table in [Table::Threads, Table::Files] {
            self.open_live(table)?;
            if self.live[table as usize].is_none() {
                self.names_of_sealed(table, self.part)?;
            }
            while let Some(batch) = self.next_of(table)? {
                self.joiner.see(table, &batch);
            }
        }
        Ok(())
    }

    fn names_of_sealed(&mut self, table: Table, part: u64) -> Result<(), Error> {
        let path = self.layout.sealed(table, part);
        match Batches::all(table, &path) {
            Ok(sealed) => {
                for batch in sealed.tolerant(&self.layout, &self.on_damage) {
                    self.joiner.see(table, &batch?);
                }
            }
            Err(error) if error.is_not_found() => self.names_of_unsealed(table, part, error)?,
            Err(error) => self.on_damage.pass_over(&self.layout, &path, error)?,
        }
        Ok(())
    }

    /// There is no sealed side table: the part is live, had no rows for it, or the file is missing.
    fn names_of_unsealed(&mut self, table: Table, part: u64, not_found: Error) -> Result<(), Error> {
        if let Some(live) = LiveReader::open(table, &self.layout.live(table, part))? {
            for batch in LiveRows::new(live, &self.layout, &self.on_damage) {
                self.joiner.see(table, &batch?);
            }
        } else if let Some(rows) = parquet_file::side_rows(&self.layout, part, table)
            && self.layout.first()? <= part
        {
            let path = self.layout.sealed(table, part);
            self.on_damage.pass_over_with(&self.layout, &path, not_found, |unread| unread.rows(rows))?;
        }
        Ok(())
    }
}

/// True if all events of a sealed part completed before `time`; `None` if that cannot be told.
fn sealed_before(layout: &Layout, part: u64, time: i64) -> Option<bool> {
    let path = layout.sealed(Table::Events, part);
    let metadata = parquet_file::open(Table::Events, &path).ok()?;
    let sums = Sums::of(&path, metadata.metadata()).ok()?;
    let groups = metadata.metadata().row_groups().iter().enumerate();
    let latest = groups.map(|(number, group)| match group.column(0).statistics() {
        Some(Statistics::Int64(times)) if sums.knows_ranges(number) => times.max_opt().copied(),
        _ => None,
    });
    latest.map(|latest| latest.map(|latest| latest < time)).try_fold(true, |all, before| Some(all && before?))
}
