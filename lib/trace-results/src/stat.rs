//! The summary of a trace, and tables by job, process, file …

use crate::filter::{compiled, of_jobs};
use crate::{Error, EventFilter, Input};
use arrow_array::types::UInt64Type;
use arrow_array::{Array as _, BooleanArray, RecordBatch};
use miot_proto::op::Layer;
use miot_proto::units::parse_bytes;
pub use miot_trace_analysis::characterize::By;
use miot_trace_analysis::characterize::table::Groups;
use miot_trace_analysis::characterize::{COLUMNS, Characterization, Characterize, CounterRow, Settings};
use miot_trace_analysis::{LayerRow, Layers, Missing, OperationRow, Report, Summary, layers, summary};
use miot_trace_store::{FileNames, Reader, Select, Table, UnreadItem};
use serde::Serialize;

/// Summary, with everything that could not be read.
#[derive(Debug, Serialize)]
pub struct ReadableSummary {
    /// The summary.
    #[serde(flatten)]
    pub report: Report,
    /// What could not be read.
    pub unread: Vec<UnreadItem>,
}

/// Returns the summary of a trace with the `files` slowest files.
///
/// # Errors
/// [`Error::Trace`], [`Error::Interrupted`].
pub fn summary(input: &Input<'_>, files: usize) -> Result<ReadableSummary, Error> {
    let mut summary = Summary::new();
    for batch in input.scan_selected(Select::columns(summary::COLUMNS).in_order_of_each_trace())? {
        summary.add(&batch?);
    }
    let reader = input.reader;
    for losses in reader.table(Table::Losses)? {
        summary.add_losses(&losses);
    }
    let report = summary.finish(&reader.files()?, &reader.table(Table::Processes)?, files);
    Ok(ReadableSummary { report, unread: reader.unread().all() })
}

/// Returns the numbers of events that are missing in a trace.
///
/// # Errors
/// [`Error::Trace`].
pub fn missing(reader: &Reader) -> Result<Missing, Error> {
    Ok(Missing::of(&reader.table(Table::Losses)?))
}

/// Returns the subject of the rows of `--by NAME`; `depth` is that of directories.
#[must_use]
pub fn subject(name: &str, depth: usize) -> Option<By> {
    Some(match name {
        "job" => By::Job,
        "step" => By::Step,
        "process" => By::Process,
        "program" => By::Program,
        "rank" => By::Rank,
        "file" => By::File,
        "node" | "host" => By::Node,
        "layer" => By::Layer,
        "directory" => By::Directory(depth),
        "user" => By::User,
        _ => return None,
    })
}

/// Selection of the requests of a table.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Names of layers; empty: all.
    pub layers: Vec<String>,
    /// Jobs; empty: all.
    pub jobs: Vec<String>,
    /// Globs of paths; empty: all files.
    pub paths: Vec<String>,
    /// Alignment of all files, e.g. `1MiB`; `None`: by the trace.
    pub block_size: Option<String>,
}

impl Selection {
    /// Returns the layers.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn layers(&self) -> Result<Vec<Layer>, Error> {
        let named = |name: &String| {
            Layer::from_name(name).ok_or_else(|| {
                Error::Option(format!(
                    "--layer {name}: no such layer; there are mpi-io, stdio, posix, fuse, client and block"
                ))
            })
        };
        self.layers.iter().map(named).collect()
    }

    /// Returns the settings of counters.
    ///
    /// # Errors
    /// [`Error::Option`], [`Error::Trace`].
    pub fn settings(&self, reader: &Reader, names: &FileNames) -> Result<Settings, Error> {
        let mut settings =
            Settings { block_size: block_size(self.block_size.as_deref())?, ..Settings::default() };
        if !self.jobs.is_empty() {
            settings.processes = Some(of_jobs(reader, &self.jobs)?);
        }
        if !self.paths.is_empty() {
            let globs = EventFilter { path: self.paths.clone(), ..EventFilter::default() }.matcher()?;
            let matching = names.iter().filter(|(_, path)| globs.matches_path(path));
            settings.files = Some(matching.map(|(file, _)| file).collect());
        }
        Ok(settings)
    }
}

/// Returns the block size given for all files.
///
/// # Errors
/// [`Error::Option`].
pub fn block_size(size: Option<&str>) -> Result<Option<u32>, Error> {
    let Some(size) = size else { return Ok(None) };
    let bytes = parse_bytes(size).map_err(|error| Error::Option(format!("--block-size {size}: {error}")))?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
        _ => Err(Error::Option(format!(
            "--block-size {size}: expected 1 byte to less than 4 GiB, such as 4096 or 1MiB"
        ))),
    }
}

/// Facts about all rows of a table.
#[derive(Debug, Serialize)]
pub struct TableHeader<'a> {
    /// Name of the dimension.
    pub by: &'a str,
    /// Nanoseconds since 1970; timestamps of rows are seconds since then.
    pub begin: Option<i64>,
    /// End of the last request.
    pub end: Option<i64>,
    /// Missing events.
    pub missing: Missing,
    /// True if figures are lower bounds.
    pub lower_bounds: bool,
    /// What could not be read.
    pub unread: Vec<UnreadItem>,
    /// True if the alignment of some files is assumed.
    pub block_size_assumed: bool,
    /// True if overwritten bytes are a lower bound.
    pub overwriting_incomplete: bool,
    /// Requests through views whose blocks are unknown.
    pub views_unknown: u64,
    /// Folded pairs of process and file.
    pub folded_pairs: u64,
}

/// A table of counters, sorted.
#[derive(Debug)]
pub struct CounterTable {
    /// The counters that the rows are made of.
    pub found: Characterization,
    /// Missing events.
    pub missing: Missing,
    /// What could not be read.
    pub unread: Vec<UnreadItem>,
    groups: Groups,
    order: Vec<usize>,
}

/// Returns one row per subject and layer, largest first by the figure `sort`, by
/// default by bytes.
///
/// # Errors
/// [`Error::Option`], [`Error::Trace`], [`Error::Interrupted`].
pub fn by(
    input: &Input<'_>,
    subject: By,
    selection: &Selection,
    sort: Option<&str>,
) -> Result<CounterTable, Error> {
    let layers = selection.layers()?;
    let reader = input.reader;
    let names = reader.files()?;
    let settings = selection.settings(reader, &names)?;
    let mut characterize = Characterize::new(settings, names, &reader.table(Table::Processes)?);
    input.each(COLUMNS, |batch| characterize.add(batch))?;
    let found = characterize.finish();
    let missing = missing(reader)?;
    let groups = found.groups(subject, &layers);
    let order = order(&found, &groups, sort.unwrap_or("bytes"))?;
    Ok(CounterTable { found, missing, unread: reader.unread().all(), groups, order })
}

/// Orders the groups by the figure, largest first.
fn order(found: &Characterization, groups: &Groups, sort: &str) -> Result<Vec<usize>, Error> {
    let mut keyed = Vec::with_capacity(groups.all().len());
    for (number, group) in groups.all().iter().enumerate() {
        let figure = if sort == "bytes" {
            found.bytes(groups, group) as f64
        } else {
            let fields = found.row(groups, group).fields(found.span.begin);
            let value = fields.get(sort).ok_or_else(|| {
                Error::Option(format!(
                    "--sort {sort}: no such column; `miot stat DIR --by … --format json` lists all"
                ))
            })?;
            value.number().unwrap_or(f64::NEG_INFINITY)
        };
        keyed.push((figure, number));
    }
    // The sort is stable: rows with equal figures stay in order of their names.
    keyed.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    Ok(keyed.into_iter().map(|(_, number)| number).collect())
}

impl CounterTable {
    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true without rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the rows, sorted.
    pub fn rows(&self) -> impl Iterator<Item = CounterRow> {
        let group = |number: &usize| self.groups.all().get(*number);
        self.order.iter().filter_map(group).map(|group| self.found.row(&self.groups, group))
    }

    /// Returns the time from which times in rows count, nanoseconds since 1970.
    #[must_use]
    pub fn origin(&self) -> i64 {
        if self.found.span.is_empty() { 0 } else { self.found.span.begin }
    }

    /// Returns the facts about all rows.
    #[must_use]
    pub fn header<'a>(&self, by: &'a str) -> TableHeader<'a> {
        let (found, span) = (&self.found, &self.found.span);
        TableHeader {
            by,
            begin: (!span.is_empty()).then_some(span.begin),
            end: (!span.is_empty()).then_some(span.end),
            missing: self.missing,
            lower_bounds: self.missing.lost > 0 || !self.unread.is_empty(),
            unread: self.unread.clone(),
            block_size_assumed: found.is_block_assumed,
            overwriting_incomplete: found.is_overwriting_incomplete,
            views_unknown: found.views_unknown,
            folded_pairs: found.folded,
        }
    }
}

/// Returns counts, bytes and durations of operations, largest first by the figure `sort`, by
/// default by time.
///
/// # Errors
/// [`Error::Option`], [`Error::Trace`], [`Error::Interrupted`].
pub fn operations(
    input: &Input<'_>,
    selection: &Selection,
    sort: Option<&str>,
) -> Result<Vec<OperationRow>, Error> {
    let layers: Vec<&str> = selection.layers()?.into_iter().map(Layer::name).collect();
    let key = figure_of_operation(sort.unwrap_or("time"))?;
    let names = input.reader.files()?;
    let settings = selection.settings(input.reader, &names)?;
    let mut summary = Summary::new();
    for batch in input.scan_selected(Select::columns(summary::COLUMNS).in_order_of_each_trace())? {
        summary.add(&chosen(batch?, &settings)?);
    }
    let mut rows = summary.finish(&names, &[], 0).operations;
    rows.retain(|row| layers.is_empty() || layers.contains(&row.layer.as_str()));
    // Rows with equal figures stay in order of time.
    rows.sort_by(|one, other| key(other).total_cmp(&key(one)));
    Ok(rows)
}

/// Returns the rows of the selected processes and files.
fn chosen(batch: RecordBatch, settings: &Settings) -> Result<RecordBatch, Error> {
    let mut batch = batch;
    for (column, wanted) in [("process", &settings.processes), ("file", &settings.files)] {
        let Some(wanted) = wanted else { continue };
        let ids = miot_trace_store::schema::column::<UInt64Type>(&batch, column);
        let ids = ids.ok_or_else(|| Error::Failed(format!("the events have no column {column}")))?;
        let is_wanted = (0..ids.len()).map(|row| Some(ids.is_valid(row) && wanted.contains(&ids.value(row))));
        let mask: BooleanArray = is_wanted.collect();
        batch = arrow_select::filter::filter_record_batch(&batch, &mask)?;
    }
    Ok(batch)
}

fn figure_of_operation(figure: &str) -> Result<fn(&OperationRow) -> f64, Error> {
    Ok(match figure {
        "count" => |row| row.count as f64,
        "failed" => |row| row.failed as f64,
        "bytes" => |row| row.bytes as f64,
        "time" => |row| row.time as f64,
        "mean" => |row| row.mean,
        "p50" => |row| row.p50 as f64,
        "p99" => |row| row.p99 as f64,
        "max" => |row| row.max as f64,
        _ => {
            return Err(Error::Option(format!(
                "--sort {figure}: operations have count, failed, bytes, time, mean, p50, p99 and max"
            )));
        }
    })
}

/// Compares the requests of each layer with those of the layer above.
///
/// # Errors
/// [`Error::Trace`], [`Error::Interrupted`].
pub fn layers(input: &Input<'_>) -> Result<Vec<LayerRow>, Error> {
    let mut all = Layers::default();
    input.each(layers::COLUMNS, |batch| all.add(batch))?;
    Ok(all.finish())
}

/// Returns the files whose path matches a glob.
pub(crate) fn matching_files(names: &FileNames, glob: &str) -> Result<impl Iterator<Item = u64>, Error> {
    let matcher = compiled(glob)?.compile_matcher();
    Ok(names.iter().filter(move |(_, path)| matcher.is_match(path)).map(|(id, _)| id))
}
