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
//! Then the numbers that are missing in streams get a row in `losses`, place `damaged`, if events were lost here.

use crate::carried::{self, Removed, value};
use crate::damaged;
use crate::error::Error;
use crate::fsck::{self, Report};
use crate::layout::{COMMITS, LIVE, Layout, sync_folder};
use crate::live::{LiveReader, LiveWriter, Stop};
use crate::manifest::{MANIFEST, Manifest};
use crate::missing::Missing;
use crate::parquet_file::{self, Batches};
use crate::reader::Reader;
use crate::recover::{STREAMS_KEY, StreamEnds};
use crate::schema::{self, DAMAGED, Table, column, text};
use crate::seal::{self, files::FILES_KEY};
use crate::writer::lock;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, RecordBatch, StringArray, TimestampNanosecondArray, UInt64Array};
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::statistics::Statistics;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    let mut repair = Repair { layout: Layout::new(dir), mended: Vec::new(), short: BTreeSet::new() };
    repair.manifest(dir)?;
    let _lock = lock(dir)?;
    repair.carried()?;
    repair.sealed()?;
    repair.missing()?;
    repair.live()?;
    repair.leftovers()?;
    repair.account(dir)?;
    Ok(Repaired { mended: repair.mended, report: fsck::check(dir) })
}

struct Repair {
    layout: Layout,
    mended: Vec<Mended>,
    /// Parts of which events were lost.
    short: BTreeSet<u64>,
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
        Manifest { created, ..Manifest::new() }.write(dir)?;
        let text = format!("the manifest was made anew, with the time of the oldest file: {error}");
        self.tell(None, text, None);
        Ok(())
    }

    /// When the trace was begun, if everything here belongs to one.
    fn unmistakable(&self, dir: &Path) -> Result<Option<jiff::Timestamp>, Error> {
        let Ok(entries) = fs::read_dir(dir) else { return Ok(None) };
        let ours = |name: &str| {
            Table::from_name(name).is_some()
                || [MANIFEST, damaged::FOLDER, LIVE].contains(&name)
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
                if !path.exists() || whole(table, &path) {
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

    /// Puts a file with the row groups that are whole in the place of a damaged one.
    fn mend(&mut self, table: Table, part: Option<u64>, path: &Path) -> Result<(), Error> {
        if whole(table, path) {
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
        let Some(last) = there.last().max(parts.sides.last()).copied() else { return Ok(()) };
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

    /// Tells of the numbers that are missing now.
    fn account(&mut self, dir: &Path) -> Result<(), Error> {
        let Some(part) = self.short.last().copied() else { return Ok(()) };
        let report = fsck::check(dir);
        let mut gaps = report.gaps;
        let reader = Reader::open(dir)?;
        gaps.extend(self.lost_ends(&reader)?);
        if gaps.is_empty() {
            return Ok(());
        }
        let mut streams: HashMap<u64, (u64, String)> = HashMap::new();
        for batch in reader.table(Table::Threads)? {
            let [ids, processes] = ["stream", "process"].map(|name| column::<UInt64Type>(&batch, name));
            if let (Some(ids), Some(processes), Some(nodes)) = (ids, processes, text(&batch, "node")) {
                let rows = (0..batch.num_rows())
                    .map(|row| (ids.value(row), (processes.value(row), nodes.value(row).to_owned())));
                streams.extend(rows);
            }
        }
        gaps.retain(|gap| streams.contains_key(&gap.0));
        let count: u64 = gaps.iter().map(|(_, first, last)| last - first + 1).sum();
        let rows = losses(&gaps, &streams)?;
        // Into the newest part that lost events; if that is live, into its stream.
        if reader.parts().any(|found| found == (part, true)) {
            let path = self.layout.sealed(Table::Losses, part);
            let mut all: Vec<RecordBatch> =
                reader.batches_of(part, Table::Losses)?.collect::<Result<_, _>>()?;
            all.push(rows);
            carried::write(Table::Losses, &path, &all, Vec::new())?;
        } else {
            let (mut live, _) =
                LiveWriter::recover(Table::Losses, &self.layout.live(Table::Losses, part), |_| Ok(()))?;
            live.append(&rows)?;
            live.write_out()?;
            live.sync()?;
            sync_folder(&self.layout.live_folder())?;
        }
        sync_folder(&self.layout.folder(Table::Losses))
            .or_else(|e| if e.is_not_found() { Ok(()) } else { Err(e) })?;
        let text = format!("{count} missing numbers of streams are told in losses as `{DAMAGED}`");
        self.tell(Some(part), text, Some(Lost::Rows(count)));
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

fn losses(gaps: &[(u64, u64, u64)], streams: &HashMap<u64, (u64, String)>) -> Result<RecordBatch, Error> {
    let n = gaps.len();
    let now = jiff::Timestamp::now().as_nanosecond() as i64;
    let of = |stream: &u64| streams.get(stream);
    let numbers = |values: Vec<u64>| -> ArrayRef { Arc::new(UInt64Array::from(values)) };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampNanosecondArray::from(vec![now; n]).with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(
            gaps.iter().map(|gap| of(&gap.0).map_or("", |s| s.1.as_str())),
        )),
        numbers(gaps.iter().map(|gap| of(&gap.0).map_or(0, |s| s.0)).collect()),
        numbers(gaps.iter().map(|gap| gap.0).collect()),
        Arc::new(StringArray::from(vec![DAMAGED; n])),
        numbers(gaps.iter().map(|gap| gap.2 - gap.1 + 1).collect()),
        numbers(gaps.iter().map(|gap| gap.1).collect()),
        numbers(gaps.iter().map(|gap| gap.2).collect()),
    ];
    RecordBatch::try_new(schema::of(Table::Losses), columns)
        .map_err(|e| Error::Encode { table: Table::Losses, reason: e.to_string() })
}

fn time(nanoseconds: i64) -> Result<jiff::Timestamp, jiff::Error> {
    jiff::Timestamp::from_nanosecond(nanoseconds.into())
}
