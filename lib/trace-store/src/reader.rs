//! Reading a trace: a snapshot of what is there when it is opened.

use crate::carried::{self, Removed};
use crate::error::Error;
use crate::layout::{Layout, Parts};
use crate::live::{LiveReader, Stop};
use crate::live_rows::LiveRows;
use crate::manifest::Manifest;
use crate::missing::Missing;
use crate::parquet_file::{self, Batches};
use crate::recover::{Cut, StreamEnds};
use crate::rows::{FileNames, Joiner};
use crate::scan::{self, Piece, Scan, Select};
use crate::schema::{TABLES, Table, column, text};
use crate::unread::{Notes, OnDamage, Unread};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt64Type};
use arrow_array::{Array as _, PrimitiveArray, RecordBatch};
use parquet::file::statistics::Statistics;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads a trace directory as it was when it was opened, whatever its writer does meanwhile: each row once,
/// be its part live, being sealed or sealed. Only parts that retention removes before they are read are missing, see
/// [`Reader::missed`].
#[derive(Debug)]
pub struct Reader {
    layout: Layout,
    manifest: Manifest,
    /// The first part that was not removed when the reader was opened.
    first: u64,
    /// The last part that had a sealed side table by then.
    last_side: Option<u64>,
    parts: Vec<Part>,
    missed: Arc<AtomicU64>,
    on_damage: OnDamage,
}

#[derive(Debug)]
struct Part {
    number: u64,
    /// Its live streams up to where they reached at opening, by table, kept open because the writer removes
    /// the files when the part is sealed; `None`: the part was sealed already.
    live: Option<[Option<LiveReader>; TABLES]>,
}

/// Boots of one node whose last sample of devices is kept and remembered: a spool on a disk may bring those of earlier ones.
pub const SAMPLED_BOOTS: usize = 16;

/// See [`Reader::last_samples`].
pub type LastSamples = HashMap<(String, String), (u64, i64)>;

/// Samples of one node and boot that follow each other.
type Run<'a> = ((&'a str, &'a str), (u64, i64));

/// Where the rows of one table of one part come from.
enum Source {
    Sealed(Batches),
    Live(LiveRows),
    Nothing,
}

impl Iterator for Source {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Source::Sealed(batches) => batches.next(),
            Source::Live(rows) => rows.next(),
            Source::Nothing => None,
        }
    }
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
            last_side: sides.last().copied(),
            parts,
            missed: Arc::default(),
            on_damage: OnDamage::Fail,
        })
    }

    /// Opens a trace to read of it what can be read: what is damaged or missing is passed over and noted, see [`Reader::notes`].
    /// Rows are given only if they are as they were written.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn tolerant(dir: impl AsRef<Path>) -> Result<Reader, Error> {
        let reader = Reader::open(dir)?;
        let notes = Notes::default();
        if let Some(said) = reader.missing_parts()?.said() {
            let events = reader.layout.folder(Table::Events);
            notes.add(Unread::new(&reader.layout, &events, said));
        }
        Ok(Reader { on_damage: OnDamage::Note(notes), ..reader })
    }

    /// What could not be read so far; nothing of a reader that is not [tolerant](Reader::tolerant).
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.on_damage.notes().cloned().unwrap_or_default()
    }

    /// What retention had removed when the reader was opened.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn removed(&self) -> Result<Removed, Error> {
        match Removed::read(&self.layout, self.first) {
            // Removed once more since then.
            Err(error) if error.is_not_found() => Removed::read(&self.layout, self.layout.first()?),
            read => read,
        }
    }

    /// Parts whose events were asked for and that retention had removed by then: their events were passed over.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Parts that ought to be there: of each there are later parts, or its side tables. Their events are in no figure.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn missing_parts(&self) -> Result<Missing, Error> {
        let now = self.layout.parts()?;
        // Parts that retention removed since the trace was opened are not missing, nor is one that is being sealed: side tables seen
        // only now may be of a part that was not live yet when live files were listed.
        let there: BTreeSet<u64> = self.parts().map(|(part, _)| part).chain(now.all()).collect();
        let Some(last) = there.last().copied().max(self.last_side) else { return Ok(Missing::default()) };
        Ok(Missing::between(now.first, last, &there))
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

    /// Numbers of the parts, in order, and whether each was sealed when the reader was opened.
    pub fn parts(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        self.parts.iter().map(|p| (p.number, p.live.is_none()))
    }

    /// The Parquet files of the events that were sealed when the reader was opened, by part, for other readers.
    pub fn sealed(&self) -> impl Iterator<Item = (u64, PathBuf)> + '_ {
        let sealed = self.parts.iter().filter(|part| part.live.is_none());
        sealed.map(|part| (part.number, self.layout.sealed(Table::Events, part.number)))
    }

    /// True if the Parquet file of the events of a part is all as it was written, by its checksums. Of another one [`Reader::scan`]
    /// gives what is.
    ///
    /// # Errors
    /// [`Error::Io`], but for what is damage.
    pub fn is_whole(&self, part: u64) -> Result<bool, Error> {
        match parquet_file::verify(Table::Events, &self.layout.sealed(Table::Events, part)) {
            Ok((good, _)) => Ok(good.iter().all(|good| *good)),
            Err(Error::Damaged { .. }) => Ok(false),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All rows of a table. For events see [`Reader::events`], which does not hold them all in memory.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn table(&self, table: Table) -> Result<Vec<RecordBatch>, Error> {
        self.batches(table).collect()
    }

    /// All events, in order, each once.
    pub fn events(&self) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        self.batches(Table::Events)
    }

    /// Some columns of the events of some time, in order, each once; decoded by a thread of its own, ahead of the caller.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`], also for a column that events do not have; the items too.
    pub fn scan(&self, select: &Select) -> Result<Scan, Error> {
        let pieces = self.parts.iter().filter_map(|part| match &part.live {
            None => select.wants_sealed(part.number).then_some(Piece::Sealed(part.number)),
            Some(live) => live[Table::Events as usize].as_ref().map(|live| Piece::Live(live.again())),
        });
        scan::start(&self.layout, pieces.collect(), select, &self.missed, &self.on_damage)
    }

    /// The rows of a table, in the order in which they were written; ends after an error. Those of a side table are
    /// read at once, with what was carried over from parts that were removed.
    pub fn batches(&self, table: Table) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        let (side, parts) = if table == Table::Events {
            (None, self.parts.as_slice())
        } else {
            (Some(self.side(table)), &[][..])
        };
        let (side, side_error) = match side {
            Some(Ok(batches)) => (batches, None),
            Some(Err(error)) => (Vec::new(), Some(Err(error))),
            None => (Vec::new(), None),
        };
        let (mut failed, mut is_given) = (false, false);
        let mut events = parts.iter().map(move |part| self.source(part, table)).flat_map(|source| {
            let (source, error) = match source {
                Ok(source) => (source, None),
                Err(error) => (Source::Nothing, Some(Err(error))),
            };
            error.into_iter().chain(source)
        });
        let events = std::iter::from_fn(move || {
            let next = events.next();
            if next.is_none() && !is_given && table == Table::Events {
                is_given = true;
                // Nothing of what there should be is no result.
                return self.on_damage.nothing_read(&self.layout).map(Err);
            }
            is_given = true;
            next
        });
        let all = side_error.into_iter().chain(side.into_iter().map(Ok)).chain(events);
        all.take_while(move |batch| !std::mem::replace(&mut failed, batch.is_err()))
    }

    /// All rows of a side table. Parts that are removed meanwhile leave what is needed of them in the carried rows,
    /// so then it is read anew.
    fn side(&self, table: Table) -> Result<Vec<RecordBatch>, Error> {
        let mut first = self.first;
        loop {
            let read = self.side_from(table, first);
            let now = self.layout.first()?;
            if now == first {
                return read;
            }
            first = now;
        }
    }

    fn carried_from(&self, table: Table, first: u64) -> Result<Vec<RecordBatch>, Error> {
        if first == 0 {
            return Ok(Vec::new());
        }
        let path = self.layout.carried(table, first);
        let read = Batches::all(table, &path)
            .and_then(|batches| batches.tolerant(&self.layout, &self.on_damage).collect());
        match read {
            // Removed once more since then: the caller looks.
            Err(error) if error.is_not_found() && self.layout.first()? != first => Err(error),
            Err(error) => self.on_damage.pass_over(&self.layout, &path, error).map(|()| Vec::new()),
            read => read,
        }
    }

    /// Rows of a side table that were carried over from parts that were removed.
    pub(crate) fn carried(&self, table: Table) -> Result<impl Iterator<Item = RecordBatch>, Error> {
        carried::read(&self.layout, table, self.first).map(Vec::into_iter)
    }

    /// How far the streams of these rows had got in those parts.
    pub(crate) fn carried_ends(&self) -> Result<StreamEnds, Error> {
        carried::ends(&self.layout, self.first)
    }

    fn side_from(&self, table: Table, first: u64) -> Result<Vec<RecordBatch>, Error> {
        let mut all = self.carried_from(table, first)?;
        for part in self.parts.iter().filter(|part| part.number >= first) {
            for batch in self.source(part, table)? {
                all.push(batch?);
            }
        }
        Ok(all)
    }

    /// The last sample in `devices` of each node and boot: its `uptime`, and the latest `time`. Of sealed parts only what that takes is read.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn last_samples(&self) -> Result<LastSamples, Error> {
        let mut last = LastSamples::new();
        let mut see = |batch: &RecordBatch| {
            let (nodes, boots) = (text(batch, "node"), text(batch, "boot"));
            let (uptimes, times) =
                (column::<UInt64Type>(batch, "uptime"), column::<TimestampNanosecondType>(batch, "time"));
            let (Some(nodes), Some(boots), Some(uptimes), Some(times)) = (nodes, boots, uptimes, times)
            else {
                return;
            };
            let mut run: Option<Run<'_>> = None;
            let mut put = |((node, boot), (uptime, time)): Run<'_>| {
                let last = last.entry((node.to_owned(), boot.to_owned())).or_insert((uptime, time));
                *last = (last.0.max(uptime), last.1.max(time));
            };
            for row in 0..batch.num_rows() {
                let (uptime, time) = (uptimes.value(row), times.value(row));
                let key = (nodes.value(row), boots.value(row));
                match &mut run {
                    Some((of, latest)) if *of == key => {
                        *latest = (latest.0.max(uptime), latest.1.max(time));
                    }
                    _ => {
                        run.replace((key, (uptime, time))).into_iter().for_each(&mut put);
                    }
                }
            }
            run.into_iter().for_each(&mut put);
        };
        carried::read(&self.layout, Table::Devices, self.first)?.iter().for_each(&mut see);
        for part in &self.parts {
            let path = self.layout.sealed(Table::Devices, part.number);
            if part.live.is_some() {
                for batch in self.source(part, Table::Devices)? {
                    see(&batch?);
                }
            } else if path.exists() {
                for batch in
                    Batches::some(Table::Devices, &path, &["time", "node", "boot", "uptime"], |_| true)?
                {
                    see(&batch?);
                }
            }
        }
        Ok(last)
    }

    /// Paths by file id.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn files(&self) -> Result<FileNames, Error> {
        let mut joiner = Joiner::default();
        self.batches(Table::Files).try_for_each(|batch| batch.map(|b| joiner.see(Table::Files, &b)))?;
        Ok(joiner.files)
    }

    /// Names of files and threads.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn joiner(&self) -> Result<Joiner, Error> {
        let mut joiner = Joiner::default();
        for table in [Table::Files, Table::Threads] {
            self.batches(table).try_for_each(|batch| batch.map(|b| joiner.see(table, &b)))?;
        }
        Ok(joiner)
    }

    /// Events with `path`, `path2` and `comm`, in order.
    ///
    /// # Errors
    /// As [`Reader::joiner`]; the items as [`Reader::events`].
    pub fn rows(&self) -> Result<impl Iterator<Item = Result<RecordBatch, Error>> + '_, Error> {
        let joiner = self.joiner()?;
        Ok(self.events().map(move |batch| {
            let joined = joiner.join(&batch?);
            joined.map_err(|e| Error::damaged(self.layout.root(), e))
        }))
    }

    /// Which file each handle of these processes stands for, by process and handle, as far as records and events
    /// of operations that `opens` (layer, operation) say; others may be about a file that is not the handle's. For a
    /// writer that continues a trace whose processes still run: of sealed parts only row groups that may hold one of
    /// the processes are read.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn handles(
        &self,
        processes: &HashSet<u64>,
        opens: impl Fn(&str, &str) -> bool,
    ) -> Result<HashMap<(u64, u64), u64>, Error> {
        let mut handles = HashMap::new();
        let mut streams = HashMap::new();
        for batch in self.batches(Table::Threads) {
            let batch = batch?;
            if let (Some(ids), Some(of)) =
                (column::<UInt64Type>(&batch, "stream"), column::<UInt64Type>(&batch, "process"))
            {
                let wanted = ids.values().iter().zip(of.values()).filter(|(_, p)| processes.contains(p));
                streams.extend(wanted.map(|(stream, process)| (*stream, *process)));
            }
        }
        for batch in self.batches(Table::Files) {
            see_handles(&batch?, "stream", |_, stream| streams.get(&stream).copied(), &mut handles);
        }
        let mut see_events = |batch: &RecordBatch| {
            let Some(opened) = Opened::of(batch, &opens) else { return };
            let wanted = |row, process| (processes.contains(&process) && opened.is(row)).then_some(process);
            see_handles(batch, "process", wanted, &mut handles);
        };
        for part in &self.parts {
            let path = self.layout.sealed(Table::Events, part.number);
            match self.source(part, Table::Events)? {
                Source::Sealed(_) => {
                    let columns = ["process", "layer", "op", "file", "handle", "result"];
                    let batches = Batches::some(Table::Events, &path, &columns, |group| {
                        // Column 3 is `process`; see the schema.
                        match group.column(3).statistics() {
                            Some(Statistics::Int64(s)) => {
                                let min = s.min_opt().map_or(0, |v| *v as u64);
                                let max = s.max_opt().map_or(u64::MAX, |v| *v as u64);
                                processes.iter().any(|process| (min..=max).contains(process))
                            }
                            _ => true,
                        }
                    });
                    match batches {
                        // Removed since the line above.
                        Err(error) if error.is_not_found() && self.layout.first()? > part.number => {}
                        batches => {
                            for batch in batches? {
                                see_events(&batch?);
                            }
                        }
                    }
                }
                source => {
                    for batch in source {
                        see_events(&batch?);
                    }
                }
            }
        }
        Ok(handles)
    }

    /// Live streams that do not end with a whole message: their writer is at work, or died. Each is read up to
    /// its last whole message; this is what comes after.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn torn(&self) -> Result<Vec<(Cut, Stop)>, Error> {
        let mut torn = Vec::new();
        for live in self.parts.iter().flat_map(|p| &p.live).flatten().flatten() {
            let mut reader = live.again();
            while reader.next_batch()?.is_some() {}
            let bytes = reader.left()?;
            if bytes > 0 {
                torn.push((Cut { path: reader.path().to_owned(), bytes }, reader.stop()));
            }
        }
        Ok(torn)
    }

    /// Rows of a table by part number.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn count(&self, table: Table) -> Result<BTreeMap<u64, u64>, Error> {
        let mut counts = BTreeMap::new();
        for part in &self.parts {
            let mut rows = 0;
            for batch in self.source(part, table)? {
                rows += batch?.num_rows() as u64;
            }
            counts.insert(part.number, rows);
        }
        Ok(counts)
    }

    /// The rows of a table in one part; none if the reader knows no such part.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn batches_of(
        &self,
        part: u64,
        table: Table,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, Error>> + use<>, Error> {
        match self.parts.iter().find(|p| p.number == part) {
            Some(part) => self.source(part, table),
            None => Ok(Source::Nothing),
        }
    }

    fn source(&self, part: &Part, table: Table) -> Result<Source, Error> {
        if let Some(live) = &part.live {
            let rows = |live: &LiveReader| LiveRows::new(live.again(), &self.layout, &self.on_damage);
            return Ok(live[table as usize].as_ref().map_or(Source::Nothing, |l| Source::Live(rows(l))));
        }
        let path = self.layout.sealed(table, part.number);
        if table != Table::Events && !path.exists() {
            return self.without_side(part.number, table, &path);
        }
        match Batches::all(table, &path) {
            Ok(batches) => Ok(Source::Sealed(batches.tolerant(&self.layout, &self.on_damage))),
            Err(error) if error.is_not_found() && self.layout.first()? > part.number => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                Ok(Source::Nothing)
            }
            Err(error) => self.on_damage.pass_over(&self.layout, &path, error).map(|()| Source::Nothing),
        }
    }

    /// A part has no file of a side table: it had no rows for it, or the file is missing.
    fn without_side(&self, part: u64, table: Table, path: &Path) -> Result<Source, Error> {
        let Some(rows) = parquet_file::side_rows(&self.layout, part, table) else {
            return Ok(Source::Nothing);
        };
        if self.layout.first()? > part {
            return Ok(Source::Nothing);
        }
        let missing = Error::io("open", path)(std::io::ErrorKind::NotFound.into());
        let noted = self.on_damage.pass_over_with(&self.layout, path, missing, |unread| unread.rows(rows));
        noted.map(|()| Source::Nothing)
    }
}

/// The live streams of a part; `None` if it has been sealed meanwhile. Events first, so that the side tables
/// hold what these events need.
fn open_live(layout: &Layout, part: u64) -> Result<Option<[Option<LiveReader>; TABLES]>, Error> {
    let mut live = Table::ALL.map(|_| None);
    for table in Table::ALL {
        if let Some(mut reader) = LiveReader::open(table, &layout.live(table, part))? {
            reader.stop_at_present_end()?;
            live[table as usize] = Some(reader);
        }
    }
    // Live files are removed only after this file is there, so none was missed if it is not.
    Ok((!layout.sealed(Table::Events, part).exists()).then_some(live))
}

/// Which rows of a batch of events opened their handle.
struct Opened<'a> {
    layers: Vec<usize>,
    ops: Vec<usize>,
    /// By layer, then by operation.
    opens: Vec<Vec<bool>>,
    results: &'a PrimitiveArray<Int64Type>,
}

impl<'a> Opened<'a> {
    fn of(batch: &'a RecordBatch, opens: &impl Fn(&str, &str) -> bool) -> Option<Opened<'a>> {
        let names = |name| {
            let column = batch.column_by_name(name)?.as_any_dictionary_opt()?;
            Some((column.normalized_keys(), column.values().as_string_opt::<i32>()?))
        };
        let ((layers, layer_names), (ops, op_names)) = (names("layer")?, names("op")?);
        let of_layer =
            |layer: &str| op_names.iter().map(|op| op.is_some_and(|op| opens(layer, op))).collect();
        let opens = layer_names.iter().map(|layer| of_layer(layer.unwrap_or(""))).collect();
        Some(Opened { layers, ops, opens, results: column::<Int64Type>(batch, "result")? })
    }

    fn is(&self, row: usize) -> bool {
        self.opens[self.layers[row]][self.ops[row]] && self.results.value(row) >= 0
    }
}

/// Handles are not used twice, so the first row counts.
fn see_handles(
    batch: &RecordBatch,
    by: &str,
    process_of: impl Fn(usize, u64) -> Option<u64>,
    handles: &mut HashMap<(u64, u64), u64>,
) {
    let (Some(owner), Some(handle), Some(file)) = (
        column::<UInt64Type>(batch, by),
        column::<UInt64Type>(batch, "handle"),
        column::<UInt64Type>(batch, "file"),
    ) else {
        return;
    };
    for row in 0..batch.num_rows() {
        if owner.is_valid(row)
            && handle.is_valid(row)
            && file.is_valid(row)
            && let Some(process) = process_of(row, owner.value(row))
        {
            handles.entry((process, handle.value(row))).or_insert(file.value(row));
        }
    }
}
