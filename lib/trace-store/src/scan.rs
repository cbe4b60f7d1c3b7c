//! Scan of selected columns of the events of a time range, for analyses of long traces.
//!
//! Other threads read and decode while the caller processes the previous batch. Memory use is a row
//! group and a few batches, independent of the length of the trace.

#![expect(clippy::disallowed_types, reason = "count of rows missed by readers of the live part")]

use crate::decoders::Decoders;
use crate::error::Error;
use crate::layout::Layout;
use crate::live::LiveReader;
use crate::live_rows::LiveRows;
use crate::parquet_file::{self, Batches};
use crate::part_rows::PartRows;
use crate::schema::{self, Table, column};
use crate::set::{MergedBatches, MovedFiles};
use crate::unread_log::OnDamage;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Decoded batches that may wait for the caller.
const AHEAD: usize = 4;

/// Selection of events and columns.
#[derive(Clone, Debug)]
pub struct Select {
    columns: Vec<&'static str>,
    times: Range<i64>,
    /// Sealed parts to read; `None`: all.
    sealed: Option<BTreeSet<u64>>,
    /// The rows of several traces are merged row by row.
    is_merged: bool,
}

impl Select {
    /// Selects columns of all events. `time` is always included.
    #[must_use]
    pub fn columns(columns: &[&'static str]) -> Select {
        Select { columns: columns.to_vec(), times: i64::MIN..i64::MAX, sealed: None, is_merged: true }
    }

    /// Selects all columns of all events.
    #[must_use]
    pub fn all() -> Select {
        let columns = schema::event_columns().collect::<Vec<_>>();
        Select::columns(&columns)
    }

    /// Selects more columns if the file of an event is selected.
    pub(crate) fn with_needed(mut self, more: &[&'static str]) -> Select {
        if self.columns.contains(&"file") {
            self.columns.extend(more);
        }
        self
    }

    /// Limits the events to those completed within `times`, nanoseconds since 1970.
    #[must_use]
    pub fn between(self, times: Range<i64>) -> Select {
        Select { times, ..self }
    }

    /// Returns the batches of several traces by the time of their last row instead of merged row by
    /// row, for callers that need only the events of one log-server in order.
    #[must_use]
    pub fn in_order_of_each_trace(self) -> Select {
        Select { is_merged: false, ..self }
    }

    /// Limits the events to parts that were not sealed when the reader was opened, for callers that
    /// read sealed files otherwise.
    #[must_use]
    pub fn live(self) -> Select {
        self.sealed(BTreeSet::new())
    }

    /// Limits the parts that were sealed when the reader was opened to these.
    #[must_use]
    pub fn sealed(self, parts: BTreeSet<u64>) -> Select {
        Select { sealed: Some(parts), ..self }
    }

    pub(crate) fn wants_sealed(&self, part: u64) -> bool {
        self.sealed.as_ref().is_none_or(|parts| parts.contains(&part))
    }

    fn wants(&self, group: &RowGroupMetaData) -> bool {
        // Column 0 is `time`; see the schema.
        match group.column(0).statistics() {
            Some(Statistics::Int64(found)) => {
                found.max_opt().is_none_or(|max| *max >= self.times.start)
                    && found.min_opt().is_none_or(|min| *min < self.times.end)
            }
            _ => true,
        }
    }

    /// Removes the rows of other times.
    fn within(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        if self.times == (i64::MIN..i64::MAX) {
            return Ok(batch);
        }
        let Some(times) = column::<TimestampNanosecondType>(&batch, "time") else { return Ok(batch) };
        let wanted: BooleanArray =
            times.values().iter().map(|time| Some(self.times.contains(time))).collect();
        if wanted.true_count() == batch.num_rows() {
            return Ok(batch);
        }
        arrow_select::filter::filter_record_batch(&batch, &wanted)
    }

    fn wants_column(&self, name: &str) -> bool {
        name == "time" || self.columns.contains(&name)
    }

    /// Returns the columns to read.
    fn read(&self) -> Vec<&'static str> {
        schema::event_columns().filter(|name| self.wants_column(name)).collect()
    }

    fn schema(&self) -> Result<SchemaRef, ArrowError> {
        let all = schema::of(Table::Events);
        if let Some(unknown) = self.columns.iter().find(|name| all.column_with_name(name).is_none()) {
            return Err(ArrowError::SchemaError(format!("events have no column `{unknown}`")));
        }
        let fields = all.fields().iter().filter(|field| self.wants_column(field.name()));
        Ok(Arc::new(Schema::new(fields.cloned().collect::<Vec<_>>())))
    }
}

/// Batches of events in order, from [`crate::Reader::scan`]; ends after an error.
#[derive(Debug)]
pub struct Scan {
    batches: Receiver<Result<RecordBatch, Error>>,
    /// The thread that sends the batches.
    thread: Option<JoinHandle<()>>,
    sealed: Vec<SealedEvents>,
}

impl Scan {
    /// Reads the maximum number of rows of the sealed parts from their metadata, to show progress.
    /// Rows of live parts and of unreadable parts are not included.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.sealed.iter().map(SealedEvents::rows).fold(0, u64::saturating_add)
    }

    /// Merges the scans of several partitions. Another thread merges ahead of the caller.
    pub(crate) fn merged(
        mut scans: Vec<Scan>,
        until: Option<i64>,
        moved: &MovedFiles,
        select: &Select,
        layout: &Layout,
    ) -> Result<Scan, Error> {
        let sealed = scans.iter_mut().flat_map(|scan| std::mem::take(&mut scan.sealed)).collect();
        let (root, moved, is_merged) = (layout.root().to_owned(), moved.clone(), select.is_merged);
        let failed = |source| Error::Io { action: "read events of", path: layout.root().to_owned(), source };
        let schema = select.schema().map_err(|error| failed(std::io::Error::other(error)))?;
        let (sender, batches) = sync_channel(AHEAD);
        let merge = move || {
            let (moved, root) = (&moved, &root);
            let filled = move |scan: Scan| {
                let fill = move |batch: Result<RecordBatch, Error>| {
                    moved.fill(batch?).map_err(|error| Error::damaged(root, error))
                };
                scan.map(fill)
            };
            let mut batches = MergedBatches::new(scans.into_iter().map(filled), until, root.clone());
            if !is_merged {
                batches = batches.whole();
            }
            for batch in batches {
                let project =
                    |batch| schema::project(&schema, &batch).map_err(|error| Error::damaged(root, error));
                let batch = batch.and_then(project);
                if sender.send(batch).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("miot-merge".into()).spawn(merge).map_err(failed)?;
        Ok(Scan { batches, thread: Some(thread), sealed })
    }
}

impl Iterator for Scan {
    type Item = Result<RecordBatch, Error>;

    /// # Panics
    /// If the thread that reads has panicked: its rows are missing.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.batches.recv().ok();
        if next.is_none()
            && let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
        {
            std::panic::resume_unwind(panic);
        }
        next
    }
}

/// The selected events of the sealed parts of a trace.
#[derive(Debug)]
struct SealedEvents {
    layout: Layout,
    parts: Vec<u64>,
    select: Select,
}

impl SealedEvents {
    fn rows(&self) -> u64 {
        self.rows_by_part().filter_map(Result::ok).fold(0, u64::saturating_add)
    }

    /// Returns an error if a part cannot be read, before any event is read. Parts that retention
    /// has removed are counted when they are read.
    fn check(&self) -> Result<(), Error> {
        match self.rows_by_part().find_map(|rows| rows.err().filter(|error| !error.is_not_found())) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn rows_by_part(&self) -> impl Iterator<Item = Result<u64, Error>> + '_ {
        let file = |part: &u64| self.layout.sealed(Table::Events, *part);
        self.parts.iter().map(move |part| parquet_file::rows(&file(part), |group| self.select.wants(group)))
    }
}

/// A part to read.
pub(crate) enum ScanPart {
    /// Opened when it is read, because a trace may have more parts than a process may open files.
    Sealed(u64),
    Live(LiveReader),
}

/// Opens the sealed events of a part.
fn open_sealed(path: &Path, select: &Select) -> Result<Batches, Error> {
    Batches::some(Table::Events, path, &select.read(), |group| select.wants(group))
}

/// Starts the scan. Parts that retention removes before they are read are counted in `missed`.
/// With `shares_columns`, several threads decode.
pub(crate) fn start(
    layout: &Layout,
    parts: Vec<ScanPart>,
    select: &Select,
    shares_columns: bool,
    missed: &Arc<AtomicU64>,
    on_damage: &OnDamage,
) -> Result<Scan, Error> {
    let failed = |source| Error::Io { action: "read events of", path: layout.root().to_owned(), source };
    let schema = select.schema().map_err(|error| failed(std::io::Error::other(error)))?;
    let (sender, batches) = sync_channel(AHEAD);
    let sealed = parts.iter().filter_map(|part| match part {
        ScanPart::Sealed(part) => Some(*part),
        ScanPart::Live(_) => None,
    });
    let sealed: Vec<u64> = sealed.collect();
    let columns = if shares_columns && !sealed.is_empty() { schema.fields().len() } else { 0 };
    let scan = ScanThread {
        layout: layout.clone(),
        select: select.clone(),
        schema,
        decoders: Arc::new(Decoders::start(columns)),
        missed: Arc::clone(missed),
        on_damage: on_damage.clone(),
        has_sent: Cell::new(false),
        to: sender,
    };
    let read = move || scan.read(parts);
    let thread = thread::Builder::new().name("miot-scan".into()).spawn(read).map_err(failed)?;
    let sealed = SealedEvents { layout: layout.clone(), parts: sealed, select: select.clone() };
    if on_damage.unread_log().is_none() {
        sealed.check()?;
    }
    Ok(Scan { batches, thread: Some(thread), sealed: vec![sealed] })
}

/// The thread that reads and decodes.
struct ScanThread {
    layout: Layout,
    select: Select,
    schema: SchemaRef,
    decoders: Arc<Decoders>,
    missed: Arc<AtomicU64>,
    on_damage: OnDamage,
    /// True if a batch was sent.
    has_sent: Cell<bool>,
    to: SyncSender<Result<RecordBatch, Error>>,
}

/// A part that is being read.
struct OpenPart {
    path: PathBuf,
    rows: PartRows,
}

impl ScanThread {
    /// Sends the rows of all parts. Ends early after an error, or if the receiver was dropped.
    fn read(&self, parts: Vec<ScanPart>) {
        let mut parts = parts.into_iter();
        let mut open_next = || parts.next().map(|part| self.open(part));
        let mut next = open_next();
        while let Some(part) = next.take() {
            let OpenPart { path, mut rows } = match part {
                Ok(part) => part,
                Err(error) => {
                    let _ = self.to.send(Err(error));
                    return;
                }
            };
            while let Some(batch) = rows.next() {
                // The other threads continue with the next part while this one is still sent.
                if next.is_none() && rows.have_begun() {
                    next = open_next();
                }
                if !self.send(&path, batch) {
                    return;
                }
            }
            next = next.or_else(&mut open_next);
        }
        self.end();
    }

    /// Opens a part and begins to decode it in the other threads.
    fn open(&self, part: ScanPart) -> Result<OpenPart, Error> {
        let (path, mut rows) = match part {
            ScanPart::Sealed(part) => {
                let path = self.layout.sealed(Table::Events, part);
                let rows = match open_sealed(&path, &self.select) {
                    Ok(batches) => {
                        let batches = batches.decoded_by(&self.decoders, &self.select.read());
                        PartRows::Sealed(Box::new(batches.tolerant(&self.layout, &self.on_damage)))
                    }
                    Err(error)
                        if error.is_not_found() && self.layout.first().is_ok_and(|first| first > part) =>
                    {
                        self.missed.fetch_add(1, Ordering::Relaxed);
                        PartRows::Nothing
                    }
                    Err(error) => {
                        self.on_damage.skip(&self.layout, &path, error).map(|()| PartRows::Nothing)?
                    }
                };
                (path, rows)
            }
            ScanPart::Live(live) => {
                let path = live.path().to_owned();
                (path, PartRows::Live(LiveRows::new(live, &self.layout, &self.on_damage)))
            }
        };
        rows.begin_ahead();
        Ok(OpenPart { path, rows })
    }

    /// Sends an error if damage left no event at all, unless the caller reads sealed parts
    /// otherwise.
    fn end(&self) {
        if !self.has_sent.get()
            && self.select.sealed.is_none()
            && let Some(error) = self.on_damage.nothing_read(&self.layout)
        {
            let _ = self.to.send(Err(error));
        }
    }

    /// Sends a batch, if it has rows. Returns false if it was the last: an error, or the receiver
    /// was dropped.
    fn send(&self, path: &Path, batch: Result<RecordBatch, Error>) -> bool {
        let batch = batch.and_then(|batch| {
            let batch = schema::project(&self.schema, &batch);
            batch.and_then(|batch| self.select.within(batch)).map_err(|e| Error::damaged(path, e))
        });
        if batch.as_ref().is_ok_and(|batch| batch.num_rows() == 0) {
            return true;
        }
        self.has_sent.set(true);
        let failed = batch.is_err();
        self.to.send(batch).is_ok() && !failed
    }
}
