//! Reader of a trace: a snapshot of the rows that exist when it is opened.

#![expect(clippy::disallowed_types, reason = "count of rows missed by readers of the live part")]

mod handles;
mod samples;

pub use samples::{LastSamples, SAMPLED_BOOTS};

use crate::carried::{self, RemovedParts};
use crate::error::Error;
use crate::kept_files::{self, KeptFiles};
use crate::layout::{Layout, Parts};
use crate::live::{LiveReader, StopReason};
use crate::live_rows::LiveRows;
use crate::manifest::Manifest;
use crate::missing_parts::MissingParts;
use crate::parquet_file::{self, Batches};
use crate::part_rows::PartRows;
use crate::recover::{StreamEnds, TornTail};
use crate::rows::{FileNames, Joiner};
use crate::scan::{self, Scan, ScanPart, Select};
use crate::schema::{TABLES, Table};
use crate::set::{MergedBatches, MovedFiles, NEEDED};
use crate::unread_log::{OnDamage, UnreadItem, UnreadLog};
use arrow_array::RecordBatch;
use arrow_schema::Fields;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads a trace directory as it was when it was opened, also while it is written: each row once,
/// whether its part is live, being sealed or sealed. Only parts that retention removes before they
/// are read are missing, see [`Reader::missed`].
#[derive(Debug)]
pub struct Reader {
    layout: Layout,
    manifest: Manifest,
    /// The first part that was not removed when the reader was opened.
    first: u64,
    /// The last part that had a sealed side table at that time.
    last_side: Option<u64>,
    parts: Vec<Part>,
    kept: KeptFiles,
    /// The first part whose files are not all kept open.
    kept_until: u64,
    missed: Arc<AtomicU64>,
    on_damage: OnDamage,
    /// Traces of other partitions that are read as one with this trace, ascending.
    others: Vec<Reader>,
    /// Of several traces, events from this time on are not read.
    until: Option<i64>,
    /// Files of processes that several of the traces have.
    moved: MovedFiles,
    /// Of a set: what is not read of all its traces.
    unread_of_set: Option<UnreadLog>,
}

/// A Parquet file of a trace; see [`Reader::sealed_files`].
#[derive(Clone, Debug)]
pub struct SealedFile {
    /// Its table.
    pub table: Table,
    /// Its path.
    pub path: PathBuf,
    /// Its columns, with the types of the version that wrote it.
    pub columns: Fields,
    /// True if retention has removed its part, or is about to: its rows do not belong to the trace.
    pub is_removed: bool,
}

#[derive(Debug)]
struct Part {
    number: u64,
    /// By table: its live streams, limited to their length at opening. They stay open because the
    /// writer removes the files when the part is sealed. `None`: the part was sealed already.
    live: Option<[Option<LiveReader>; TABLES]>,
}

impl Reader {
    /// Opens a trace.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::NewerSchema`], [`Error::Io`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Reader, Error> {
        let dir = dir.as_ref();
        let manifest = Manifest::read(dir)?;
        let layout = Layout::new(dir);
        let Parts { sealed, live, sides, first, .. } = layout.parts()?;
        let mut parts: Vec<Part> = sealed.iter().map(|number| Part { number: *number, live: None }).collect();
        for number in live {
            parts.push(Part { number, live: open_live(&layout, number)? });
        }
        parts.sort_by_key(|p| p.number);
        Ok(Reader {
            layout,
            manifest,
            first,
            kept: KeptFiles::default(),
            kept_until: first,
            last_side: sides.last().copied(),
            parts,
            missed: Arc::default(),
            on_damage: OnDamage::Fail,
            others: Vec::new(),
            until: None,
            moved: MovedFiles::default(),
            unread_of_set: None,
        })
    }

    /// Opens a trace and skips damaged and missing data, which it logs, see [`Reader::unread`]. It
    /// returns only rows that are as they were written.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn tolerant(dir: impl AsRef<Path>) -> Result<Reader, Error> {
        let reader = Reader::open(dir)?;
        let log = UnreadLog::default();
        if let Some(message) = reader.missing_parts()?.message() {
            let events = reader.layout.folder(Table::Events);
            log.add(UnreadItem::new(&reader.layout, &events, message));
        }
        Ok(Reader { on_damage: OnDamage::Log(log), ..reader })
    }

    /// Opens a trace like [`Reader::tolerant`]. If retention has removed parts of it before, the
    /// files of the oldest parts, at most `files`, stay open: they are read even if retention
    /// removes them meanwhile.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn tolerant_with_kept_files(dir: impl AsRef<Path>, files: usize) -> Result<Reader, Error> {
        loop {
            let mut reader = Reader::tolerant(&dir)?;
            if reader.first == 0 || reader.keep_files(files)? {
                return Ok(reader);
            }
        }
    }

    /// Keeps files open. Returns false if retention has removed some of them already.
    fn keep_files(&mut self, files: usize) -> Result<bool, Error> {
        for table in Table::SIDE {
            self.kept.keep(self.layout.carried(table, self.first))?;
        }
        self.kept_until = u64::MAX;
        // The files of live parts are open already.
        for part in self.parts.iter().filter(|part| part.live.is_none()) {
            if self.kept.len() + TABLES > files {
                self.kept_until = part.number;
                break;
            }
            // Not every part has rows of every table.
            for table in Table::ALL {
                self.kept.keep(self.layout.sealed(table, part.number))?;
            }
        }
        Ok(self.layout.first()? == self.first)
    }

    /// Returns the data that was skipped so far, and the missing traces of a set; no data if the
    /// reader is not [tolerant](Reader::tolerant).
    #[must_use]
    pub fn unread(&self) -> UnreadLog {
        self.unread_of_set.clone().unwrap_or_else(|| self.own_unread())
    }

    fn own_unread(&self) -> UnreadLog {
        self.on_damage.unread_log().cloned().unwrap_or_default()
    }

    /// Returns what retention had removed when the reader was opened.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn removed(&self) -> Result<RemovedParts, Error> {
        match RemovedParts::read(&self.layout, self.first) {
            // More was removed since then.
            Err(error) if error.is_not_found() => RemovedParts::read(&self.layout, self.layout.first()?),
            read => read,
        }
    }

    /// Number of parts that retention removed before their events were read: their events were
    /// skipped.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed) + self.others.iter().map(Reader::missed).sum::<u64>()
    }

    /// Returns the missing parts: later parts or their own side tables exist. Their events are not
    /// read.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn missing_parts(&self) -> Result<MissingParts, Error> {
        let now = self.layout.parts()?;
        // Parts that retention removed since the trace was opened are not missing. Nor is a part
        // that is being sealed: its side tables may belong to a part that was not live yet when the
        // live files were listed.
        let existing: BTreeSet<u64> = self.parts().map(|(part, _)| part).chain(now.all()).collect();
        let Some(last) = existing.last().copied().max(self.last_side) else {
            return Ok(MissingParts::default());
        };
        Ok(MissingParts::between(now.first, last, &existing))
    }

    /// Reads this trace and those of other partitions as one, see [`crate::set`]. `missing` are the
    /// traces that cannot be read, with the reasons.
    pub(crate) fn with_others(
        self,
        others: Vec<Reader>,
        until: Option<i64>,
        missing: &[(PathBuf, String)],
    ) -> Result<Reader, Error> {
        let all: Vec<&Reader> = std::iter::once(&self).chain(&others).collect();
        let moved = MovedFiles::read(&all)?;
        let logs = all.iter().map(|reader| (reader.layout.root().to_owned(), reader.own_unread()));
        let unread_of_set = Some(UnreadLog::of_set(missing, logs.collect()));
        Ok(Reader { others, until, moved, unread_of_set, ..self })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the numbers of the parts, in order, and whether each was sealed when the reader was
    /// opened.
    pub fn parts(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.parts.iter().map(|p| (p.number, p.live.is_none()))
    }

    /// Returns the Parquet files of the events that were sealed when the reader was opened, by
    /// part, for other readers. Of a file that is kept open see [`Reader::readable_path`].
    pub fn sealed(&self) -> impl Iterator<Item = (u64, PathBuf)> + '_ {
        let sealed = self.parts.iter().filter(|part| part.live.is_none());
        sealed.map(|part| (part.number, self.layout.sealed(Table::Events, part.number)))
    }

    /// Returns a path under which this process can read a file of the trace while the reader
    /// exists, also if the file is kept open and retention has removed it.
    #[must_use]
    pub fn readable_path(&self, path: PathBuf) -> PathBuf {
        self.kept.readable_path(&path).unwrap_or(path)
    }

    /// Returns the Parquet files of all tables, for other readers. Each row that is not in a live
    /// part is in one file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn sealed_files(&self) -> Result<Vec<SealedFile>, Error> {
        let parts = self.layout.parts()?;
        let mut paths = Vec::new();
        for table in Table::ALL {
            let of_table = if table == Table::Events { &parts.sealed } else { &parts.sides };
            paths.extend(of_table.iter().map(|part| (table, self.layout.sealed(table, *part))));
            if table != Table::Events && parts.first > 0 {
                paths.push((table, self.layout.carried(table, parts.first)));
            }
        }
        let mut files = Vec::new();
        for (table, path) in paths {
            match parquet_file::open(table, &path) {
                Ok(file) => {
                    let columns = file.schema().fields().clone();
                    files.push(SealedFile { table, path, columns, is_removed: false });
                }
                // Not every part has rows of every table.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        for path in parts.leftovers {
            let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
            if let Some(table) = folder.and_then(Table::from_name)
                && path.extension().is_some_and(|extension| extension == "parquet")
            {
                files.push(SealedFile { table, path, columns: Fields::empty(), is_removed: true });
            }
        }
        Ok(files)
    }

    /// Returns true if the Parquet file of the events of a part is intact, by its checksums. Of a
    /// damaged file [`Reader::scan`] returns the intact rows.
    ///
    /// # Errors
    /// [`Error::Io`], except for damage.
    pub fn is_whole(&self, part: u64) -> Result<bool, Error> {
        match parquet_file::verify(Table::Events, &self.layout.sealed(Table::Events, part)) {
            Ok((good, _)) => Ok(good.iter().all(|good| *good)),
            Err(Error::Damaged { .. }) => Ok(false),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns all rows of a table. For events see [`Reader::events`], which does not hold all of
    /// them in memory.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn table(&self, table: Table) -> Result<Vec<RecordBatch>, Error> {
        self.batches(table).collect()
    }

    /// Returns all events, in order, each once.
    pub fn events(&self) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        self.batches(Table::Events)
    }

    /// Returns selected columns of the events of a time range, in order, each once. Other
    /// threads decode them ahead of the caller.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`], also for a column that events do not have. The items can
    /// have the same errors.
    pub fn scan(&self, select: &Select) -> Result<Scan, Error> {
        if self.others.is_empty() {
            return self.own_scan(select, true);
        }
        let wide = if self.moved.is_empty() { select.clone() } else { select.clone().with_needed(&NEEDED) };
        // Several traces are decoded at the same time anyway.
        let mut scans = vec![self.own_scan(&wide, false)?];
        for other in &self.others {
            scans.push(other.own_scan(&wide, false)?);
        }
        Scan::merged(scans, self.until, &self.moved, select, &self.layout)
    }

    fn own_scan(&self, select: &Select, shares_columns: bool) -> Result<Scan, Error> {
        let parts = self.parts.iter().filter_map(|part| match &part.live {
            None => select.wants_sealed(part.number).then_some(ScanPart::Sealed(part.number)),
            Some(live) => live[Table::Events as usize].as_ref().map(|live| ScanPart::Live(live.reopened())),
        });
        scan::start(&self.layout, parts.collect(), select, shares_columns, &self.missed, &self.on_damage)
    }

    /// Returns the rows of a table, in the order in which they were written; ends after an error.
    /// The rows of a side table are read at once, with those carried over from removed parts.
    pub fn batches(&self, table: Table) -> Box<dyn Iterator<Item = Result<RecordBatch, Error>> + '_> {
        if self.others.is_empty() {
            return Box::new(self.own_batches(table));
        }
        let all = std::iter::once(self).chain(&self.others).map(move |reader| reader.own_batches(table));
        if table == Table::Events {
            let root = self.layout.root();
            let filled = all.map(move |batches| {
                batches.map(move |batch| self.moved.fill(batch?).map_err(|error| Error::damaged(root, error)))
            });
            return Box::new(MergedBatches::new(filled, self.until, root.to_owned()));
        }
        Box::new(all.flatten())
    }

    pub(crate) fn own_batches(&self, table: Table) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        let (side, parts) = if table == Table::Events {
            (None, self.parts.as_slice())
        } else {
            (Some(self.side_rows(table)), &[][..])
        };
        let (side, side_error) = match side {
            Some(Ok(batches)) => (batches, None),
            Some(Err(error)) => (Vec::new(), Some(Err(error))),
            None => (Vec::new(), None),
        };
        let (mut failed, mut has_started) = (false, false);
        let mut events = parts.iter().map(move |part| self.part_rows(part, table)).flat_map(|source| {
            let (source, error) = match source {
                Ok(source) => (source, None),
                Err(error) => (PartRows::Nothing, Some(Err(error))),
            };
            error.into_iter().chain(source)
        });
        let events = std::iter::from_fn(move || {
            let next = events.next();
            if next.is_none() && !has_started && table == Table::Events {
                has_started = true;
                // No event at all because of damage is an error.
                return self.on_damage.nothing_read(&self.layout).map(Err);
            }
            has_started = true;
            next
        });
        let all = side_error.into_iter().chain(side.into_iter().map(Ok)).chain(events);
        all.take_while(move |batch| !std::mem::replace(&mut failed, batch.is_err()))
    }

    /// Returns all rows of a side table. If parts are removed in between, their needed rows move to
    /// the carried file, so the table is read again.
    fn side_rows(&self, table: Table) -> Result<Vec<RecordBatch>, Error> {
        let mut first = self.first;
        loop {
            let read = self.side_rows_from(table, first);
            let now = self.layout.first()?;
            if now == first || now <= self.kept_until {
                return read;
            }
            if first < self.kept_until {
                // Rows of the kept parts may be among the removed ones.
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
            first = now;
        }
    }

    fn carried_rows(&self, table: Table, first: u64) -> Result<Vec<RecordBatch>, Error> {
        if first == 0 {
            return Ok(Vec::new());
        }
        let path = self.layout.carried(table, first);
        let read = Batches::all(table, &path)
            .and_then(|batches| batches.tolerant(&self.layout, &self.on_damage).collect());
        match read {
            // More parts were removed since then: the caller handles it.
            Err(error) if error.is_not_found() && self.layout.first()? != first => Err(error),
            Err(error) => self.on_damage.skip(&self.layout, &path, error).map(|()| Vec::new()),
            read => read,
        }
    }

    /// Returns the rows of a side table that were carried over from removed parts.
    pub(crate) fn carried(&self, table: Table) -> Result<impl Iterator<Item = RecordBatch>, Error> {
        carried::read(&self.layout, table, self.first).map(Vec::into_iter)
    }

    /// Returns the ends of the streams in removed parts.
    pub(crate) fn carried_ends(&self) -> Result<StreamEnds, Error> {
        carried::ends(&self.layout, self.first)
    }

    fn side_rows_from(&self, table: Table, first: u64) -> Result<Vec<RecordBatch>, Error> {
        let mut all = self.carried_rows(table, first)?;
        for part in self.parts.iter().filter(|part| part.number >= first) {
            for batch in self.part_rows(part, table)? {
                all.push(batch?);
            }
        }
        Ok(all)
    }

    /// Returns paths by file id.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn files(&self) -> Result<FileNames, Error> {
        let mut joiner = Joiner::default();
        self.batches(Table::Files).try_for_each(|batch| batch.map(|b| joiner.add_batch(Table::Files, &b)))?;
        Ok(joiner.files)
    }

    /// Returns a joiner with the names of all files and threads.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn joiner(&self) -> Result<Joiner, Error> {
        let mut joiner = Joiner::default();
        for table in [Table::Files, Table::Threads] {
            self.batches(table).try_for_each(|batch| batch.map(|b| joiner.add_batch(table, &b)))?;
        }
        Ok(joiner)
    }

    /// Returns events with `path`, `path2` and `comm`, in order. Other threads decode and merge
    /// ahead of the caller.
    ///
    /// # Errors
    /// As [`Reader::joiner`] and [`Reader::scan`]. The items can have the same errors.
    pub fn rows(&self) -> Result<impl Iterator<Item = Result<RecordBatch, Error>> + '_, Error> {
        let joiner = self.joiner()?;
        Ok(self.scan(&Select::all())?.map(move |batch| {
            let joined = joiner.join(&batch?);
            joined.map_err(|e| Error::damaged(self.layout.root(), e))
        }))
    }

    /// Returns the torn tails of live streams, with the reason: the bytes after the last whole
    /// message. Their writer is running, or was killed.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn torn(&self) -> Result<Vec<(TornTail, StopReason)>, Error> {
        let mut torn = Vec::new();
        for live in self.parts.iter().flat_map(|p| &p.live).flatten().flatten() {
            let mut reader = live.reopened();
            while reader.next_batch()?.is_some() {}
            let bytes = reader.remaining()?;
            if bytes > 0 {
                torn.push((TornTail { path: reader.path().to_owned(), bytes }, reader.stop()));
            }
        }
        Ok(torn)
    }

    /// Returns the number of rows of a table by part.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn count(&self, table: Table) -> Result<BTreeMap<u64, u64>, Error> {
        let mut counts = BTreeMap::new();
        for part in &self.parts {
            let mut rows = 0;
            for batch in self.part_rows(part, table)? {
                rows += batch?.num_rows() as u64;
            }
            counts.insert(part.number, rows);
        }
        Ok(counts)
    }

    /// Returns the rows of a table in one part; none if the part did not exist when the reader was
    /// opened.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn batches_of(
        &self,
        part: u64,
        table: Table,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, Error>> + use<>, Error> {
        match self.parts.iter().find(|p| p.number == part) {
            Some(part) => self.part_rows(part, table),
            None => Ok(PartRows::Nothing),
        }
    }

    fn part_rows(&self, part: &Part, table: Table) -> Result<PartRows, Error> {
        if let Some(live) = &part.live {
            let rows = |live: &LiveReader| LiveRows::new(live.reopened(), &self.layout, &self.on_damage);
            return Ok(live[table as usize].as_ref().map_or(PartRows::Nothing, |l| PartRows::Live(rows(l))));
        }
        let path = self.layout.sealed(table, part.number);
        if table != Table::Events && !kept_files::exists(&path) {
            return self.without_side_table(part.number, table, &path);
        }
        match Batches::all(table, &path) {
            Ok(batches) => Ok(PartRows::Sealed(Box::new(batches.tolerant(&self.layout, &self.on_damage)))),
            Err(error) if error.is_not_found() && self.layout.first()? > part.number => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                Ok(PartRows::Nothing)
            }
            Err(error) => self.on_damage.skip(&self.layout, &path, error).map(|()| PartRows::Nothing),
        }
    }

    /// Handles a part without a file of a side table: it has no rows for it, or the file is
    /// missing.
    fn without_side_table(&self, part: u64, table: Table, path: &Path) -> Result<PartRows, Error> {
        let Some(rows) = parquet_file::side_rows(&self.layout, part, table) else {
            return Ok(PartRows::Nothing);
        };
        if self.layout.first()? > part {
            return Ok(PartRows::Nothing);
        }
        let missing = Error::io("open", path)(std::io::ErrorKind::NotFound.into());
        let skipped = self.on_damage.skip_with(&self.layout, path, missing, |item| item.with_rows(rows));
        skipped.map(|()| PartRows::Nothing)
    }
}

/// Opens the live streams of a part; returns `None` if it was sealed in between. Opens events
/// first, so that the side tables contain the rows that these events need.
fn open_live(layout: &Layout, part: u64) -> Result<Option<[Option<LiveReader>; TABLES]>, Error> {
    let mut live = Table::ALL.map(|_| None);
    for table in Table::ALL {
        if let Some(mut reader) = LiveReader::open(table, &layout.live(table, part))? {
            reader.stop_at_present_end()?;
            live[table as usize] = Some(reader);
        }
    }
    // Live files are removed only after this file exists. So if it does not exist, all live files
    // were opened.
    Ok((!layout.sealed(Table::Events, part).exists()).then_some(live))
}
