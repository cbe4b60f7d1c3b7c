//! Reading a trace: a snapshot of what is there when it is opened.

use crate::error::Error;
use crate::layout::{Layout, Parts};
use crate::live::{LiveReader, Stop};
use crate::manifest::Manifest;
use crate::parquet_file::Batches;
use crate::recover::{Cut, column};
use crate::rows::{FileNames, Joiner};
use crate::schema::Table;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};
use parquet::file::statistics::Statistics;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Reads a trace directory as it was when it was opened, whatever its writer does meanwhile: each row once,
/// be its part live, being sealed or sealed.
#[derive(Debug)]
pub struct Reader {
    layout: Layout,
    manifest: Manifest,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    number: u64,
    /// Its live streams up to where they reached at opening, by table, kept open because the writer removes
    /// the files when the part is sealed; `None`: the part was sealed already.
    live: Option<[Option<LiveReader>; 6]>,
}

/// Where the rows of one table of one part come from.
enum Source {
    Sealed(Batches),
    Live(LiveReader),
    Nothing,
}

impl Iterator for Source {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Source::Sealed(batches) => batches.next(),
            Source::Live(reader) => reader.next_batch().transpose(),
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
        let Parts { sealed, live, .. } = layout.parts()?;
        let mut parts: Vec<Part> = sealed.iter().map(|number| Part { number: *number, live: None }).collect();
        for number in live {
            parts.push(Part { number, live: open_live(&layout, number)? });
        }
        parts.sort_by_key(|p| p.number);
        Ok(Reader { layout, manifest, parts })
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

    /// The rows of a table, in the order in which they were written; ends after an error.
    pub fn batches(&self, table: Table) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        let parts = self.parts.iter().map(move |part| self.source(part, table));
        let mut failed = false;
        parts
            .flat_map(|source| {
                let (source, error) = match source {
                    Ok(source) => (source, None),
                    Err(error) => (Source::Nothing, Some(Err(error))),
                };
                error.into_iter().chain(source)
            })
            .take_while(move |batch| !std::mem::replace(&mut failed, batch.is_err()))
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

    /// Which file each handle of these processes stands for, by process and handle, as far as events and
    /// records say. For a writer that continues a trace whose processes still run: of sealed parts only row
    /// groups that may hold one of the processes are read.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`].
    pub fn handles(&self, processes: &HashSet<u64>) -> Result<HashMap<(u64, u64), u64>, Error> {
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
            see_handles(&batch?, "stream", |stream| streams.get(&stream).copied(), &mut handles);
        }
        let wanted = |process| processes.contains(&process).then_some(process);
        for part in &self.parts {
            let path = self.layout.sealed(Table::Events, part.number);
            match self.source(part, Table::Events)? {
                Source::Sealed(_) => {
                    let columns = ["process", "handle", "file"];
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
                    })?;
                    for batch in batches {
                        see_handles(&batch?, "process", wanted, &mut handles);
                    }
                }
                source => {
                    for batch in source {
                        see_handles(&batch?, "process", wanted, &mut handles);
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
            return Ok(live[table as usize].as_ref().map_or(Source::Nothing, |l| Source::Live(l.again())));
        }
        let path = self.layout.sealed(table, part.number);
        if table != Table::Events && !path.exists() {
            return Ok(Source::Nothing);
        }
        Batches::all(table, &path).map(Source::Sealed)
    }
}

/// The live streams of a part; `None` if it has been sealed meanwhile. Events first, so that the side tables
/// hold what these events need.
fn open_live(layout: &Layout, part: u64) -> Result<Option<[Option<LiveReader>; 6]>, Error> {
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

/// The first row that has a handle and a file is the one that opened it; records were seen before.
fn see_handles(
    batch: &RecordBatch,
    by: &str,
    process_of: impl Fn(u64) -> Option<u64>,
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
            && let Some(process) = process_of(owner.value(row))
        {
            handles.entry((process, handle.value(row))).or_insert(file.value(row));
        }
    }
}
