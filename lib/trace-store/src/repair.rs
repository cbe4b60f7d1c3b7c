//! Mends a trace directory. Nothing is invented, and nothing is thrown away that is not known to be useless: what is
//! damaged is moved to `DIR/damaged/`, after what can be read of it stands in its place.
//!
//! | damage | what is done |
//! |---|---|
//! | no manifest, or a damaged one, in a directory that holds nothing but a trace | a new one |
//! | files that were being written, live files of sealed parts, files of removed parts | removed |
//! | a live stream that ends within a message | cut after its last whole message |
//! | a live stream with a damaged message | the same; what is cut off is kept in `damaged/` |
//! | a sealed file is damaged, its live files are still there | the live files are the part again |
//! | a sealed or carried file is damaged | a new one of the row groups that are whole |
//! | the events of a part are missing | an empty file, so that its side tables count and parts are numbered |
//!
//! A file that is what was written, but that this version cannot decode, stays: others may.
//!
//! Then the numbers that are missing in streams, as the ledger tells or the parts that were damaged here, get rows in
//! `losses`, place `damaged`, and the ledger is brought up to date.

use crate::carried::{self, Removed, value};
use crate::checksum;
use crate::damaged;
use crate::error::Error;
use crate::fsck::{self, Report};
use crate::layout::{COMMITS, LEDGER, LIVE, Layout, sync_folder};
use crate::ledger::{self, Counts, Entry, FileEntry, Ledger, Log};
use crate::live::{LiveReader, LiveWriter, Stop};
use crate::losses::{self, Loss};
use crate::manifest::{Counted, MANIFEST, Manifest};
use crate::missing::Missing;
use crate::parquet_file::{self, Batches};
use crate::ranges::{self, Range};
use crate::reader::Reader;
use crate::recover::{STREAMS_KEY, StreamEnds};
use crate::schema::{DAMAGED, FILTERED, Table, column, text};
use crate::seal::{self, files::FILES_KEY};
use crate::writer::lock;
use arrow_array::RecordBatch;
use arrow_array::types::UInt64Type;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::statistics::Statistics;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// One thing that was mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mended {
    /// In which part, if in one.
    pub part: Option<u64>,
    /// For people.
    pub text: String,
    /// Rows were lost by the damage: how many, if that is known.
    pub lost: Option<Lost>,
}

/// Rows that were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lost {
    /// So many.
    Rows(u64),
    /// Nobody knows.
    Unknown,
}

/// Missing parts that get an empty file, at most.
const MOST_EMPTY: u64 = 100_000;

/// What was mended, and what a check says afterwards.
#[derive(Clone, Debug, Serialize)]
pub struct Repaired {
    /// In the order in which it was done.
    pub mended: Vec<Mended>,
    /// The check.
    pub report: Report,
}

impl Repaired {
    /// True if the damage cost rows.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.mended.iter().any(|mended| mended.lost.is_some())
    }
}

/// Mends a trace directory that nobody writes to. A repair that is broken off can be done again.
///
/// # Errors
/// [`Error::InUse`]; [`Error::NotATrace`], [`Error::NewerSchema`]; [`Error::Io`]: what was mended until then stands.
pub fn repair(dir: impl AsRef<Path>) -> Result<Repaired, Error> {
    let dir = dir.as_ref();
    let layout = Layout::new(dir);
    let mut repair = Repair { layout, mended: Vec::new(), short: BTreeSet::new(), ledger: Ledger::default() };
    repair.manifest(dir)?;
    let mut lock = lock(dir)?;
    repair.ledger = Ledger::read(&repair.layout, repair.layout.first()?)?;
    repair.carried()?;
    // Before the others: what is left of a part without events is looked at too.
    repair.missing()?;
    repair.sealed()?;
    repair.live()?;
    repair.leftovers()?;
    repair.account(dir, &mut lock)?;
    Ok(Repaired { mended: repair.mended, report: fsck::check(dir) })
}

/// A part as it is now.
struct Recount {
    sealed: bool,
    /// Its files are those that the ledger knows.
    same: bool,
    /// What the ledger says of it.
    known: Option<Counts>,
    /// `None`: not everything can be decoded.
    counts: Option<Counts>,
}

struct Repair {
    layout: Layout,
    mended: Vec<Mended>,
    /// Parts of which events were lost.
    short: BTreeSet<u64>,
    /// As it was.
    ledger: Ledger,
}

impl Repair {
    fn tell(&mut self, part: Option<u64>, text: String, lost: Option<Lost>) {
        self.mended.push(Mended { part, text, lost });
    }

    /// Moves a damaged file aside.
    fn move_aside(&self, path: &Path) -> Result<PathBuf, Error> {
        let to = damaged::aside(path)?;
        fs::rename(path, &to).map_err(Error::io("move aside", path))?;
        damaged::sync(&to, path)?;
        Ok(to)
    }

    /// Gives a damaged file a second name, so that the first can be taken by what replaces it.
    fn keep_aside(&self, path: &Path) -> Result<PathBuf, Error> {
        let to = damaged::aside(path)?;
        fs::hard_link(path, &to).map_err(Error::io("keep aside", path))?;
        damaged::sync(&to, path)?;
        Ok(to)
    }

    fn manifest(&mut self, dir: &Path) -> Result<(), Error> {
        let error = match Manifest::read(dir) {
            Err(error @ Error::NotATrace { .. }) => error,
            read => return read.map(drop),
        };
        let Some(begun) = self.unmistakable(dir)? else { return Err(error) };
        let path = dir.join(MANIFEST);
        if path.exists() {
            self.move_aside(&path)?;
        }
        let created = begun.to_string();
        let (live, sealed) = self.layout.ledger_parts()?;
        let counted = live.first().into_iter().chain(sealed.first()).min();
        let because = "before its ledger begins".to_owned();
        let counted = counted.map(|from| Counted { from: *from, because });
        Manifest { created, counted, ..Manifest::new() }.write(dir)?;
        let text = format!("the manifest was made anew, with the time of the oldest file: {error}");
        self.tell(None, text, None);
        Ok(())
    }

    /// When the trace was begun, if everything here belongs to one.
    fn unmistakable(&self, dir: &Path) -> Result<Option<jiff::Timestamp>, Error> {
        let Ok(entries) = fs::read_dir(dir) else { return Ok(None) };
        let ours = |name: &str| {
            Table::from_name(name).is_some()
                || [MANIFEST, damaged::FOLDER, LIVE, LEDGER].contains(&name)
                || name == format!("{MANIFEST}.tmp")
        };
        for entry in entries {
            let name = entry.map_err(Error::io("list", dir))?.file_name();
            if !name.to_str().is_some_and(ours) {
                return Ok(None);
            }
        }
        let parts = self.layout.parts()?;
        let files = parts.sealed.iter().map(|part| self.layout.sealed(Table::Events, *part));
        let mut files: Vec<PathBuf> =
            files.filter(|f| parquet_file::open(Table::Events, f).is_ok()).collect();
        for part in &parts.live {
            for table in Table::ALL {
                let path = self.layout.live(table, *part);
                let first = LiveReader::open(table, &path)?.map(|mut reader| reader.next_batch());
                if matches!(first, Some(Ok(Some(_)))) {
                    files.push(path);
                }
            }
        }
        let times = files.iter().filter_map(|file| fs::metadata(file).ok()?.modified().ok());
        Ok(times.min().and_then(|time| jiff::Timestamp::try_from(time).ok()))
    }

    /// What was carried over from removed parts.
    fn carried(&mut self) -> Result<(), Error> {
        let parts = self.layout.parts()?;
        let mut first = parts.first;
        if first == 0 {
            // Without the last of the carried files the others are all that says so.
            let begin = parts.all().first().copied().unwrap_or(0);
            if begin == 0 || !self.layout.carried(Table::Files, begin).exists() {
                return Ok(());
            }
            first = begin;
        }
        for table in Table::SIDE {
            let path = self.layout.carried(table, first);
            if path.exists() {
                self.mend(table, None, &path)?;
            } else {
                carried::write(table, &path, &[], self.metadata(table, first, None))?;
                let text = format!("{} is missing: an empty one was made", path.display());
                self.tell(None, text, Some(Lost::Unknown));
            }
            sync_folder(&self.layout.folder(table))?;
        }
        Ok(())
    }

    /// The metadata that a file must have: that of the damaged one, if it can be read.
    fn metadata(&self, table: Table, first: u64, damaged: Option<&ParquetMetaData>) -> Vec<KeyValue> {
        if first == 0 || table != COMMITS {
            return Vec::new();
        }
        let removed = damaged.and_then(Removed::of).unwrap_or(Removed { parts: first, ..Removed::default() });
        removed.metadata(damaged.and_then(|m| value(m, STREAMS_KEY)).unwrap_or_default().to_owned())
    }

    fn sealed(&mut self) -> Result<(), Error> {
        let parts = self.layout.parts()?;
        for part in parts.sealed {
            let live = self.layout.live(Table::Events, part).exists();
            for table in Table::ALL {
                let path = self.layout.sealed(table, part);
                if !path.exists() || whole(table, &path) || self.is_as_written(table, Some(part), &path) {
                    continue;
                }
                if live {
                    // Live files are removed from that of the events on, so all are there.
                    for table in Table::ALL.into_iter().filter(|t| self.layout.sealed(*t, part).exists()) {
                        self.move_aside(&self.layout.sealed(table, part))?;
                    }
                    let text = format!("{} is damaged, but the live files are there", path.display());
                    self.tell(Some(part), text, None);
                    break;
                }
                self.mend(table, Some(part), &path)?;
            }
        }
        Ok(())
    }

    /// True if a file is what was written, whether or not this version can decode it.
    fn is_as_written(&self, table: Table, part: Option<u64>, path: &Path) -> bool {
        match part.and_then(|part| self.ledger.sealed.get(&part)).and_then(|entry| entry.files.get(&table)) {
            Some(known) => {
                ledger::sum_of(path).is_ok_and(|(bytes, crc)| (bytes, crc) == (known.bytes, known.crc32c))
            }
            None => parquet_file::verify(table, path).is_ok_and(|(good, metadata)| {
                metadata.num_row_groups() > 0
                    && good.iter().all(|good| *good)
                    && checksum::are_there(&metadata)
            }),
        }
    }

    /// Puts a file with the row groups that are whole in the place of a damaged one.
    fn mend(&mut self, table: Table, part: Option<u64>, path: &Path) -> Result<(), Error> {
        if whole(table, path) || self.is_as_written(table, part, path) {
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
        let aside = self.keep_aside(path)?;
        carried::write(table, path, &kept, pairs)?;
        sync_folder(&self.layout.folder(table))?;
        let rows: usize = kept.iter().map(RecordBatch::num_rows).sum();
        let mut text = format!("{} is damaged: {rows} rows were kept, ", path.display());
        match metadata {
            Some(_) => text += &format!("{lost} are lost"),
            None => text += "how many are lost is not known",
        }
        if let (Ok(from), Ok(to)) = (time(from), time(to))
            && lost > 0
            && table == Table::Events
        {
            text += &format!(", of {from} to {to}");
        }
        text += &format!("; the file is {}", aside.display());
        if table == Table::Events {
            self.short.extend(part);
        }
        self.tell(part, text, Some(metadata.map_or(Lost::Unknown, |_| Lost::Rows(lost))));
        Ok(())
    }

    fn missing(&mut self) -> Result<(), Error> {
        let parts = self.layout.parts()?;
        let there = parts.all();
        // The ledger has parts of which nothing is left.
        let known =
            self.ledger.parts().filter(|part| self.ledger.counts(*part).is_some_and(|c| !c.is_empty()));
        let last = there.last().max(parts.sides.last()).copied().max(known.last());
        let Some(last) = last else { return Ok(()) };
        let missing = Missing::between(parts.first, last, &there);
        if missing.count() > MOST_EMPTY {
            let reason = format!(
                "{} although there is a part {last}, and a repair makes up for {MOST_EMPTY} at most: if that is a file with a wrong name, \
                 move it out of the trace or give it its right number",
                missing.said().unwrap_or_default()
            );
            return Err(Error::Damaged { path: self.layout.folder(Table::Events), reason });
        }
        for part in missing.ranges().iter().cloned().flatten() {
            carried::write(Table::Events, &self.layout.sealed(Table::Events, part), &[], Vec::new())?;
            sync_folder(&self.layout.folder(Table::Events))?;
            self.short.insert(part);
            let text = "its events are missing: an empty file was made".to_owned();
            self.tell(Some(part), text, Some(Lost::Unknown));
        }
        there.into_iter().try_for_each(|part| self.missing_sides(part))
    }

    /// Side tables that the events of a sealed part say it has.
    fn missing_sides(&mut self, part: u64) -> Result<(), Error> {
        for table in Table::SIDE {
            let path = self.layout.sealed(table, part);
            let is_live = self.layout.live(table, part).exists();
            if path.exists() || is_live || parquet_file::side_rows(&self.layout, part, table).is_none() {
                continue;
            }
            carried::write(table, &path, &[], Vec::new())?;
            sync_folder(&self.layout.folder(table))?;
            let text = format!("its rows of {table} are missing: an empty file was made");
            self.tell(Some(part), text, Some(Lost::Unknown));
        }
        Ok(())
    }

    fn live(&mut self) -> Result<(), Error> {
        for part in self.layout.parts()?.live {
            for table in Table::ALL {
                self.live_stream(table, part)?;
            }
        }
        Ok(())
    }

    fn live_stream(&mut self, table: Table, part: u64) -> Result<(), Error> {
        let path = self.layout.live(table, part);
        let Some(mut reader) = LiveReader::open(table, &path)? else { return Ok(()) };
        let damaged = loop {
            match reader.next_batch() {
                Ok(Some(_)) => {}
                Ok(None) => break reader.stop() == Stop::Bad,
                // A whole message that makes no sense: cut before it, as before a damaged one.
                Err(Error::Damaged { .. }) => break true,
                Err(error) => return Err(error),
            }
        };
        let bytes = reader.left()?;
        if bytes == 0 {
            return Ok(());
        }
        let mut text = format!("{}: {bytes} bytes after the last whole message were cut off", path.display());
        if damaged {
            let aside = damaged::aside(&path)?;
            damaged::keep_tail(&path, reader.position(), &aside)?;
            text += &format!("; they are in {}", aside.display());
        }
        if damaged && table == Table::Events {
            self.short.insert(part);
        }
        cut(&path, reader.position())?;
        self.tell(Some(part), text, damaged.then_some(Lost::Unknown));
        Ok(())
    }

    fn leftovers(&mut self) -> Result<(), Error> {
        let mut files = self.layout.parts()?.leftovers;
        files.extend(Some(self.layout.root().join(format!("{MANIFEST}.tmp"))).filter(|path| path.exists()));
        for path in files {
            seal::remove(&path)?;
            self.tell(None, format!("{} was left over and is removed", path.display()), None);
        }
        Ok(())
    }

    /// Tells of what is missing now, and brings the ledger up to date.
    fn account(&mut self, dir: &Path, lock: &mut File) -> Result<(), Error> {
        let report = fsck::check(dir);
        let reader = Reader::open(dir)?;
        let counted = reader.manifest().counted.clone();
        let recounted = self.recount(&reader)?;
        let mut gaps = if self.short.is_empty() && !report.known_gaps { Vec::new() } else { report.gaps };
        if counted.as_ref().is_none_or(|counted| counted.from > reader.first()) {
            gaps.extend(self.lost_ends(&reader)?);
        }
        let gaps = self.without_undecodable(gaps, &recounted);
        let mut rows = self.rows_of(&gaps, &reader)?;
        let (mut unranged, mut filtered) = (0u64, 0u64);
        for (known, found) in recounted.values().filter_map(|r| Some((r.known.as_ref()?, r.counts.as_ref()?)))
        {
            unranged = unranged.saturating_add(known.unranged).saturating_sub(found.unranged);
            filtered = filtered.saturating_add(known.filtered).saturating_sub(found.filtered);
        }
        rows.extend(Loss::unranged(DAMAGED, unranged));
        rows.extend(Loss::unranged(FILTERED, filtered));
        let newest = self.short.last().copied().or_else(|| recounted.keys().next_back().copied());
        let Some(part) = newest else { return Ok(()) };
        let losses = if rows.is_empty() { None } else { Some(losses::batch(&rows)?) };
        if let Some(losses) = &losses {
            self.add_losses(part, losses, &reader)?;
            let lost = rows.iter().filter(|row| row.place == DAMAGED).map(|row| row.count);
            let count = lost.fold(0, u64::saturating_add);
            let text = format!("{count} events that were in the trace are told in losses as `{DAMAGED}`");
            self.tell(Some(part), text, Some(Lost::Rows(count)));
        }
        drop(reader);
        self.update_ledger(dir, recounted, part, losses.as_ref(), counted, lock)
    }

    /// What the parts hold now, of which the ledger says something else, or nothing.
    fn recount(&self, reader: &Reader) -> Result<BTreeMap<u64, Recount>, Error> {
        let mut recounted = BTreeMap::new();
        for (part, sealed) in reader.parts() {
            let known =
                if sealed { self.ledger.counts(part) } else { self.ledger.counts_of_live(part) }.cloned();
            let files = self.files(part, sealed)?;
            let same = match self.ledger.sealed.get(&part).filter(|_| sealed) {
                Some(entry) => entry
                    .files
                    .iter()
                    .map(|(table, file)| (*table, (file.bytes, file.crc32c)))
                    .eq(files.iter().map(|(table, sum)| (*table, *sum))),
                None => false,
            };
            let mut counts = Counts::default();
            let mut decoded = true;
            for table in Table::ALL {
                match reader.batches_of(part, table) {
                    Ok(mut batches) => {
                        for batch in batches.by_ref() {
                            match batch {
                                Ok(batch) => counts.see(table, &batch),
                                Err(_) => decoded = false,
                            }
                        }
                    }
                    Err(_) => decoded = false,
                }
            }
            let counts = decoded.then_some(counts);
            recounted.insert(part, Recount { sealed, same, known, counts });
        }
        Ok(recounted)
    }

    /// The files of a sealed part: their bytes and checksums.
    fn files(&self, part: u64, sealed: bool) -> Result<BTreeMap<Table, (u64, u32)>, Error> {
        let mut files = BTreeMap::new();
        for table in Table::ALL.into_iter().filter(|_| sealed) {
            let path = self.layout.sealed(table, part);
            if path.exists() {
                files.insert(table, ledger::sum_of(&path)?);
            }
        }
        Ok(files)
    }

    /// Numbers that stand in a part that is as it was written, but that this version cannot decode, are not missing.
    fn without_undecodable(
        &self,
        gaps: Vec<(u64, u64, u64)>,
        recounted: &BTreeMap<u64, Recount>,
    ) -> BTreeMap<u64, Vec<Range>> {
        let mut of_stream: BTreeMap<u64, Vec<Range>> = BTreeMap::new();
        let undecodable: Vec<&Recount> = recounted.values().filter(|r| r.counts.is_none()).collect();
        if undecodable.iter().any(|r| r.known.is_none()) {
            return of_stream;
        }
        for (stream, first, last) in gaps {
            of_stream.entry(stream).or_default().push((first, last));
        }
        for (stream, gaps) in &mut of_stream {
            let there = undecodable.iter().filter_map(|r| r.known.as_ref()?.streams.get(stream));
            let there = ranges::merged(there.map(|span| (span.first, span.next.saturating_sub(1))).collect());
            *gaps = ranges::without(&ranges::merged(std::mem::take(gaps)), &there);
        }
        of_stream
    }

    fn rows_of(&self, gaps: &BTreeMap<u64, Vec<Range>>, reader: &Reader) -> Result<Vec<Loss>, Error> {
        let mut streams: HashMap<u64, (u64, String)> = HashMap::new();
        for batch in reader.batches(Table::Threads) {
            // What is damaged stays told of.
            let Ok(batch) = batch else { break };
            let [ids, processes] = ["stream", "process"].map(|name| column::<UInt64Type>(&batch, name));
            if let (Some(ids), Some(processes), Some(nodes)) = (ids, processes, text(&batch, "node")) {
                let rows = (0..batch.num_rows())
                    .map(|row| (ids.value(row), (processes.value(row), nodes.value(row).to_owned())));
                streams.extend(rows);
            }
        }
        let mut rows = Vec::new();
        for (stream, ranges) in gaps {
            let owner = streams.get(stream).map(|(process, node)| (*process, node.as_str()));
            rows.extend(ranges.iter().map(|range| Loss::of_stream(*stream, owner, *range)));
        }
        Ok(rows)
    }

    /// Into a part: if that is live, into its stream.
    fn add_losses(&self, part: u64, rows: &RecordBatch, reader: &Reader) -> Result<(), Error> {
        if reader.parts().any(|found| found == (part, true)) {
            let path = self.layout.sealed(Table::Losses, part);
            let mut all: Vec<RecordBatch> =
                reader.batches_of(part, Table::Losses)?.collect::<Result<_, _>>()?;
            all.push(rows.clone());
            carried::write(Table::Losses, &path, &all, Vec::new())?;
            return sync_folder(&self.layout.folder(Table::Losses));
        }
        let path = self.layout.live(Table::Losses, part);
        let (mut live, _) = LiveWriter::recover(Table::Losses, &path, |_| Ok(()))?;
        live.append(rows)?;
        live.write_out()?;
        live.sync()?;
        sync_folder(&self.layout.live_folder())
    }

    /// Has the ledger say what is there now, and what is gone.
    fn update_ledger(
        &mut self,
        dir: &Path,
        recounted: BTreeMap<u64, Recount>,
        losses_in: u64,
        losses: Option<&RecordBatch>,
        counted: Option<Counted>,
        lock: &mut File,
    ) -> Result<(), Error> {
        let from = counted.as_ref().map_or(u64::MAX, |counted| counted.from);
        let mut unknown = None;
        for (part, recount) in recounted {
            let damaged = self.ledger.damaged.contains_key(&part)
                && (!recount.sealed || !self.ledger.sealed.contains_key(&part));
            let losses = losses.filter(|_| part == losses_in);
            let Recount { sealed, same, known, counts } = recount;
            let Some(mut counts) = counts else { continue };
            let lacks = known.as_ref().is_some_and(|known| counts.lacks(known).is_some());
            let is_known = known.is_some() && !damaged;
            if from <= part && !is_known {
                unknown = Some(part);
            }
            let good = if sealed { same } else { !lacks };
            if losses.is_none() && is_known && good || counted.is_none() {
                continue;
            }
            if let Some(known) = &known {
                counts.limit(known);
                counts.lose(known);
            }
            if let Some(losses) = losses {
                counts.see(Table::Losses, losses);
            }
            if sealed {
                let sums = self.files(part, true)?;
                let rows = counts.rows;
                let files = sums.into_iter().map(|(table, (bytes, crc32c))| {
                    (table, FileEntry { rows: rows[table as usize], bytes, crc32c })
                });
                Entry { counts, files: files.collect() }.write(&self.layout, part)?;
                seal::remove(&self.layout.ledger_live(part))?;
            } else {
                Log::with(&self.layout, part, counts).rewrite()?;
                seal::remove(&self.layout.ledger_sealed(part))?;
            }
            self.tell(Some(part), "the ledger was brought up to date".to_owned(), None);
        }
        if let Some(part) = unknown {
            let because = "before the ledger was repaired".to_owned();
            Manifest::read(dir)?.count_from(dir, part + 1, because, lock)?;
            let text = "the ledger was damaged: whether rows are gone up to here cannot be known".to_owned();
            self.tell(Some(part), text, Some(Lost::Unknown));
        }
        Ok(())
    }

    /// Numbers at the ends of streams that sealed files say they had.
    fn lost_ends(&self, reader: &Reader) -> Result<Vec<(u64, u64, u64)>, Error> {
        let mut said = StreamEnds::default();
        for (part, _) in reader.parts().filter(|(part, sealed)| *sealed && self.short.contains(part)) {
            let events = parquet_file::open(Table::Events, &self.layout.sealed(Table::Events, part))?;
            if let Some(text) = value(events.metadata(), STREAMS_KEY) {
                said.put_text(text);
            }
        }
        let mut found = StreamEnds::default();
        let carried = reader.carried_ends()?;
        carried.streams().for_each(|stream| found.put(stream, carried.get(stream)));
        for batch in reader.events() {
            found.see(&batch?);
        }
        let mut ends: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for stream in said.streams() {
            let (found, said) = (found.get(stream), said.get(stream));
            if found < said {
                ends.insert(stream, (found, said - 1));
            }
        }
        Ok(ends.into_iter().map(|(stream, (first, last))| (stream, first, last)).collect())
    }
}

/// True if a sealed file can be read and is what was written.
fn whole(table: Table, path: &Path) -> bool {
    let good = parquet_file::verify(table, path).is_ok_and(|(good, _)| good.iter().all(|good| *good));
    good && Batches::all(table, path).is_ok_and(|mut batches| batches.all(|batch| batch.is_ok()))
}

fn cut(path: &Path, at: u64) -> Result<(), Error> {
    let file = File::options().write(true).open(path).map_err(Error::io("open", path))?;
    file.set_len(at).and_then(|()| file.sync_all()).map_err(Error::io("cut the torn end of", path))
}

fn time(nanoseconds: i64) -> Result<jiff::Timestamp, jiff::Error> {
    jiff::Timestamp::from_nanosecond(nanoseconds.into())
}
