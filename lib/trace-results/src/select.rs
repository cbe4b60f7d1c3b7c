//! Selected columns of the selected events, with the names of files and threads.
//!
//! Columns are those of [`miot_trace_store::schema::rows`]. The names that are joined with events
//! (`path`, `path2`, `comm`) are dictionaries, as the other names are.

use crate::filter::{Matcher, of_jobs};
use crate::{Error, EventFilter, Watch};
use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use miot_trace_events::EventColumns;
use miot_trace_store::rows::Joiner;
use miot_trace_store::schema::{self, NameKey};
use miot_trace_store::{Reader, Scan, Select, Table};
use std::collections::HashSet;
use std::sync::Arc;

/// Columns that are joined, and the column of events with their ids.
const JOINED: [(&str, &str); 3] = [("path", "file"), ("path2", "file2"), ("comm", "stream")];

/// Columns that a filter reads.
const FILTERED: [&str; 7] = ["op", "layer", "node", "pid", "process", "file", "file2"];

/// Selection of columns and events.
#[derive(Clone, Debug)]
pub struct EventQuery {
    matcher: Matcher,
    jobs: Vec<String>,
    /// Names of the columns, in the order of the result.
    columns: Vec<&'static str>,
    schema: SchemaRef,
}

impl EventQuery {
    /// Selects columns, by default all, of the events that the filter selects, of these jobs, by
    /// default all.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn new(
        columns: Option<&[String]>,
        filter: &EventFilter,
        jobs: Vec<String>,
    ) -> Result<EventQuery, Error> {
        let all = schema::rows();
        let known: Vec<&'static str> = schema::row_columns().map(|(name, _)| name).collect();
        let named = |name: &String| {
            known.iter().find(|known| **known == name.as_str()).copied().ok_or_else(|| {
                Error::Option(format!("events have no column `{name}`; there are {}", known.join(", ")))
            })
        };
        let columns = match columns {
            Some(names) => names.iter().map(named).collect::<Result<Vec<_>, _>>()?,
            None => known.clone(),
        };
        if let Some(twice) = columns.iter().enumerate().find(|(nth, name)| columns[..*nth].contains(name)) {
            return Err(Error::Option(format!("column `{}` is named twice", twice.1)));
        }
        let field = |name: &&'static str| {
            let is_joined = JOINED.iter().any(|(joined, _)| joined == name);
            let field = all.field_with_name(name)?;
            Ok(if is_joined { Field::new(*name, name_type(), true) } else { field.clone() })
        };
        let fields = columns.iter().map(field).collect::<Result<Vec<_>, ArrowError>>()?;
        let schema = Arc::new(Schema::new(fields));
        Ok(EventQuery { matcher: filter.matcher()?, jobs, columns, schema })
    }

    /// Columns of the batches.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Returns the selected events of a trace, in order. Names are those of the time when the
    /// reader was opened.
    ///
    /// # Errors
    /// [`Error::Trace`].
    pub fn run<W: Watch>(&self, reader: &Reader, watch: W) -> Result<EventBatches<W>, Error> {
        let mut matcher = self.matcher.clone();
        if !self.jobs.is_empty() {
            matcher = matcher.of_processes(of_jobs(reader, &self.jobs)?);
        }
        let mut names = Joiner::default();
        let wants = |name: &str| self.columns.contains(&name);
        if matcher.has_paths() || wants("path") || wants("path2") {
            for batch in reader.batches(Table::Files) {
                names.add_batch(Table::Files, &batch?);
            }
        }
        if wants("comm") {
            for batch in reader.batches(Table::Threads) {
                names.add_batch(Table::Threads, &batch?);
            }
        }
        let files = matcher.has_paths().then(|| {
            let matching = names.files.iter().filter(|(_, path)| matcher.matches_path(path));
            matching.map(|(file, _)| file).collect::<HashSet<_>>()
        });
        let mut read: Vec<&'static str> = Vec::new();
        let of_query = self
            .columns
            .iter()
            .map(|name| JOINED.iter().find(|(joined, _)| joined == name).map_or(*name, |(_, id)| *id));
        let of_filter = FILTERED.into_iter().filter(|_| matcher.is_selective());
        for name in of_query.chain(of_filter) {
            if !read.contains(&name) {
                read.push(name);
            }
        }
        let scan = reader.scan(&Select::columns(&read).between(matcher.times()))?;
        watch.begin(&scan);
        Ok(EventBatches { scan, matcher, files, names, query: self.clone(), watch, ended: false })
    }
}

fn name_type() -> DataType {
    use arrow_array::types::ArrowPrimitiveType as _;
    DataType::Dictionary(Box::new(NameKey::DATA_TYPE), Box::new(DataType::Utf8))
}

/// Batches of the selected events; ends after an error.
#[derive(Debug)]
pub struct EventBatches<W> {
    scan: Scan,
    matcher: Matcher,
    files: Option<HashSet<u64>>,
    names: Joiner,
    query: EventQuery,
    watch: W,
    ended: bool,
}

impl<W: Watch> EventBatches<W> {
    fn try_next(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            let Some(batch) = self.scan.next().transpose()? else { return Ok(None) };
            self.watch.read(batch.num_rows() as u64)?;
            let batch = self.selected(batch)?;
            if batch.num_rows() > 0 {
                return Ok(Some(self.with_names(&batch)?));
            }
        }
    }

    fn selected(&self, batch: RecordBatch) -> Result<RecordBatch, Error> {
        if !self.matcher.is_selective() {
            return Ok(batch);
        }
        let columns = EventColumns::of(&batch, &FILTERED).map_err(|e| Error::Failed(e.to_string()))?;
        let wanted = self.matcher.mask(&columns, self.files.as_ref());
        Ok(arrow_select::filter::filter_record_batch(&batch, &wanted)?)
    }

    /// Returns the columns of the query.
    fn with_names(&self, batch: &RecordBatch) -> Result<RecordBatch, Error> {
        let rows = batch.num_rows();
        let ids = EventColumns::of(batch, &[]).map_err(|e| Error::Failed(e.to_string()))?;
        let column = |name: &&'static str| -> Result<ArrayRef, Error> {
            let (files, threads) = (&self.names.files, &self.names.threads);
            match *name {
                "path" => texts((0..rows).map(|row| files.get(ids.file.get(row)?))),
                "path2" => texts((0..rows).map(|row| files.get(ids.file2.get(row)?))),
                "comm" => texts((0..rows).map(|row| threads.get(ids.stream.value(row)))),
                name => {
                    let found = batch.column_by_name(name);
                    found.cloned().ok_or_else(|| Error::Failed(format!("the trace has no column {name}")))
                }
            }
        };
        let columns = self.query.columns.iter().map(column).collect::<Result<Vec<_>, _>>()?;
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.query.schema(), columns, &options)?)
    }
}

/// Returns a dictionary of texts.
fn texts<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Result<ArrayRef, Error> {
    let mut builder = StringDictionaryBuilder::<NameKey>::new();
    for value in values {
        match value {
            Some(text) => {
                builder.append(text)?;
            }
            None => builder.append_null(),
        }
    }
    Ok(Arc::new(builder.finish()))
}

impl<W: Watch> Iterator for EventBatches<W> {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.try_next().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Returns the rows of a batch for which `wanted` is true.
///
/// # Errors
/// [`Error::Failed`] if the numbers of rows differ.
pub fn filtered(batch: &RecordBatch, wanted: &BooleanArray) -> Result<RecordBatch, Error> {
    Ok(arrow_select::filter::filter_record_batch(batch, wanted)?)
}
