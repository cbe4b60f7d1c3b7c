//! A trace directory: events, side tables and analyses.
//!
//! An analysis returns the facts about all of its rows as JSON, and its rows as a [`Batch`].

use crate::batch::Batch;
use crate::errors;
use crate::signals::{Failure, Signals, reading};
use crate::stream::{Batches, Stream};
use crate::values::{self, Json};
use arrow_array::RecordBatch;
use miot_trace_analysis::characterize::fields::Value;
use miot_trace_results::heatmap::HeatmapOptions;
use miot_trace_results::phases::PhaseSelection;
use miot_trace_results::select::EventQuery;
use miot_trace_results::simulate::{Simulations, machines, parameters, programs, sweep};
use miot_trace_results::stat::Selection;
use miot_trace_results::{Error, EventFilter, Input, heatmap, phases, regions, show, stat};
use miot_trace_store::set::SetState;
use miot_trace_store::{Reader, Table, UnreadLog, schema};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Begin and end of the events to read, nanoseconds since 1970; `None`: all.
type Times = (Option<i64>, Option<i64>);

/// Facts as JSON, and rows.
type Answer = PyResult<(String, Batch)>;

/// A trace directory, or the directories of a set. Each call reads their state at that time.
#[pyclass(module = "miot._miot", frozen)]
pub(crate) struct Directory {
    dirs: Vec<PathBuf>,
}

fn text(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Failed(error.to_string()))
}

/// Returns the rows of a structure of the tool's JSON output.
fn rows(value: &impl Serialize) -> Result<Batch, Error> {
    match Json::of(value).map_err(|error| Error::Failed(error.to_string()))? {
        Json::List(rows) => Ok(Batch(values::batch(&rows)?)),
        _ => Err(Error::Failed("expected a list of rows".to_owned())),
    }
}

impl Directory {
    fn open(&self) -> Result<Reader, Error> {
        match self.dirs.as_slice() {
            [dir] => Ok(Reader::tolerant(dir)?),
            dirs => Ok(Reader::of_set(&SetState::examine(dirs)?, |dir| Reader::tolerant(dir))?),
        }
    }

    /// Returns for each part whether it is sealed.
    fn parts(&self) -> Result<Vec<bool>, Error> {
        let mut parts = Vec::new();
        for dir in SetState::examine(&self.dirs)?.readable() {
            parts.extend(Reader::open(dir)?.parts().map(|(_, sealed)| sealed));
        }
        Ok(parts)
    }

    /// Returns the text that names the trace on the tool's command line.
    fn name(&self) -> PathBuf {
        let names: Vec<_> = self.dirs.iter().map(|dir| dir.as_os_str()).collect();
        names.join(OsStr::new(",")).into()
    }

    /// Runs an analysis without holding the interpreter.
    fn analyze<T: Send>(
        &self,
        py: Python<'_>,
        times: Times,
        f: impl FnOnce(&Input<'_>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        reading(py, |signals| {
            let reader = self.open()?;
            let times = times.0.unwrap_or(i64::MIN)..times.1.unwrap_or(i64::MAX);
            f(&Input { reader: &reader, times, watch: signals })
        })
    }

    /// As [`Directory::analyze`]; `f` returns the structure that `miot stat --show` prints, and the
    /// rows of it. The facts are the structure without its rows.
    fn show<T: Serialize + Send, R: Serialize>(
        &self,
        py: Python<'_>,
        times: Times,
        f: impl FnOnce(&Input<'_>) -> Result<T, Error> + Send,
        take_rows: impl FnOnce(&mut T) -> Vec<R> + Send,
    ) -> Answer {
        self.analyze(py, times, |input| {
            let mut result = f(input)?;
            let batch = rows(&take_rows(&mut result))?;
            let (missing, unread) = (stat::missing(input.reader)?, input.reader.unread().all());
            Ok((text(&show::AnalysisOutput { missing, unread, result: &result })?, batch))
        })
    }
}

#[pymethods]
impl Directory {
    /// Opens a trace directory, or several as one.
    #[new]
    fn new(py: Python<'_>, dirs: Vec<PathBuf>) -> PyResult<Directory> {
        let directory = Directory { dirs };
        reading(py, |_| directory.open().map(|_| ()))?;
        Ok(directory)
    }

    /// Returns the directories that can be read, and what the result of a set lacks, as texts.
    fn set(&self, py: Python<'_>) -> PyResult<(Vec<PathBuf>, Vec<String>)> {
        reading(py, |_| {
            let state = SetState::examine(&self.dirs)?;
            Ok((state.readable().into_iter().map(PathBuf::from).collect(), state.notes()))
        })
    }

    /// Returns facts that need no reading of events, as JSON: parts, rows of sealed parts, missing
    /// events, what could not be read; with `all`, also of side tables.
    fn facts(&self, py: Python<'_>, all: bool) -> PyResult<String> {
        reading(py, |_| {
            #[derive(Serialize)]
            struct Facts {
                parts: usize,
                sealed: usize,
                /// Rows of sealed parts.
                rows: u64,
                missing: miot_trace_analysis::Missing,
                unread: Vec<miot_trace_store::UnreadItem>,
            }
            let reader = self.open()?;
            let rows = reader.scan(&miot_trace_store::Select::columns(&["time"]))?.rows();
            let parts = self.parts()?;
            let (parts, sealed) = (parts.len(), parts.into_iter().filter(|sealed| *sealed).count());
            let missing = stat::missing(&reader)?;
            for table in Table::SIDE.into_iter().filter(|_| all) {
                // What cannot be read is in the log of the reader.
                reader.batches(table).try_for_each(|batch| batch.map(|_| ()))?;
            }
            text(&Facts { parts, sealed, rows, missing, unread: reader.unread().all() })
        })
    }

    /// Streams columns of selected events. Also returns the numbers of missing events, as JSON.
    #[pyo3(signature = (columns, op, layer, path, pid, node, job, times))]
    #[allow(clippy::too_many_arguments, reason = "arguments of a function of Python")]
    fn events(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        op: Vec<String>,
        layer: Vec<String>,
        path: Vec<String>,
        pid: Vec<u32>,
        node: Vec<String>,
        job: Vec<String>,
        times: Times,
    ) -> PyResult<(Stream, String)> {
        let failure = Failure::default();
        let of_stream = failure.clone();
        reading(py, move |_| {
            let filter = EventFilter { op, layer, path, pid, node, since: times.0, until: times.1 };
            let query = EventQuery::new(columns.as_deref(), &filter, job)?;
            let reader = self.open()?;
            let batches = query.run(&reader, Signals::new(of_stream.clone()))?;
            let unread = reader.unread();
            let missing = text(&stat::missing(&reader)?)?;
            let batches = Batches::new(batches, query.schema(), of_stream.clone());
            Ok((Stream::new(Box::new(batches), of_stream, Box::new(move || notes(&unread))), missing))
        })
    }

    /// Returns what could not be read, and all rows of a side table.
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<(Vec<String>, Batch)> {
        let table = Table::SIDE.into_iter().find(|table| table.name() == name);
        let table = table.ok_or_else(|| errors::option(&format!("there is no side table {name}")))?;
        reading(py, |_| {
            let reader = self.open()?;
            let batches = reader.table(table)?;
            let schema = batches.first().map_or_else(|| schema::of(table), RecordBatch::schema);
            let all = arrow_select::concat::concat_batches(&schema, &batches)?;
            Ok((notes(&reader.unread()), Batch(all)))
        })
    }

    /// Returns the summary as JSON.
    fn summary(&self, py: Python<'_>, files: usize, times: Times) -> PyResult<String> {
        self.analyze(py, times, |input| text(&stat::summary(input, files)?))
    }

    /// Returns a table of counters by job, process, file …
    #[pyo3(signature = (by, depth, layer, job, path, sort, top, block_size, times))]
    #[allow(clippy::too_many_arguments, reason = "arguments of a function of Python")]
    fn counters(
        &self,
        py: Python<'_>,
        by: &str,
        depth: usize,
        layer: Vec<String>,
        job: Vec<String>,
        path: Vec<String>,
        sort: Option<String>,
        top: Option<usize>,
        block_size: Option<String>,
        times: Times,
    ) -> Answer {
        let subject = stat::subject(by, depth).ok_or_else(|| {
            errors::option(&format!(
                "by {by}: no such rows; there are job, step, process, program, rank, file, node, operation, layer, region, checkpoint, directory and user"
            ))
        })?;
        let selection = Selection { layers: layer, jobs: job, paths: path, block_size };
        self.analyze(py, times, |input| {
            let table = stat::by(input, subject, &selection, sort.as_deref())?;
            let origin = table.origin();
            let row = |row: miot_trace_analysis::characterize::CounterRow| {
                let fields = row.fields(origin).0.into_iter().map(|(name, value)| (name, json(value)));
                Json::Map(fields.collect())
            };
            let rows: Vec<Json> = table.rows().take(top.unwrap_or(usize::MAX)).map(row).collect();
            Ok((text(&table.header(by))?, Batch(values::batch(&rows)?)))
        })
    }

    /// Returns the table of operations.
    fn operations(
        &self,
        py: Python<'_>,
        layer: Vec<String>,
        job: Vec<String>,
        path: Vec<String>,
        sort: Option<String>,
        times: Times,
    ) -> Answer {
        let selection = Selection { layers: layer, jobs: job, paths: path, block_size: None };
        self.analyze(py, times, |input| {
            let found = rows(&stat::operations(input, &selection, sort.as_deref())?)?;
            Ok((lower_bounds(input)?, found))
        })
    }

    /// Returns the comparison of layers.
    fn layers(&self, py: Python<'_>, times: Times) -> Answer {
        self.analyze(py, times, |input| {
            let found = rows(&stat::layers(input)?)?;
            Ok((lower_bounds(input)?, found))
        })
    }

    /// Returns the I/O during regions; with `region`, a row for each value of the attributes of the
    /// regions with this name.
    fn regions(&self, py: Python<'_>, region: Option<String>, times: Times) -> Answer {
        let take = |found: &mut miot_trace_results::regions::RegionTable| std::mem::take(&mut found.rows);
        self.show(py, times, |input| regions::table(input, region.as_deref()), take)
    }

    /// Returns the checkpoints and their files.
    fn checkpoints(&self, py: Python<'_>, times: Times) -> Answer {
        let take = |found: &mut regions::CheckpointTable| std::mem::take(&mut found.rows);
        self.show(py, times, regions::checkpoints, take)
    }

    fn bursts(&self, py: Python<'_>, interval: u64, times: Times) -> Answer {
        let take = |found: &mut miot_trace_analysis::bursts::Bursts| std::mem::take(&mut found.series);
        self.show(py, times, |input| show::bursts(input, interval), take)
    }

    fn idle(&self, py: Python<'_>, interval: u64, times: Times) -> Answer {
        let take = |found: &mut miot_trace_analysis::idle::Idle| std::mem::take(&mut found.definitions);
        self.show(py, times, |input| show::idle(input, interval), take)
    }

    fn cycles(&self, py: Python<'_>, times: Times) -> Answer {
        let take = |found: &mut miot_trace_analysis::cycles::Cycles| {
            let all = found.all.take().into_iter();
            all.chain(std::mem::take(&mut found.processes)).collect::<Vec<_>>()
        };
        self.show(py, times, show::cycles, take)
    }

    fn patterns(&self, py: Python<'_>, system_files: bool, most: usize, times: Times) -> Answer {
        let take = |found: &mut miot_trace_analysis::patterns::Patterns| std::mem::take(&mut found.files);
        self.show(py, times, |input| show::patterns(input, system_files, most), take)
    }

    fn findings(
        &self,
        py: Python<'_>,
        system_files: bool,
        block_size: Option<String>,
        times: Times,
    ) -> Answer {
        let take = |found: &mut miot_trace_analysis::findings::Findings| std::mem::take(&mut found.findings);
        let of = |input: &Input<'_>| show::findings(input, system_files, block_size.as_deref());
        self.show(py, times, of, take)
    }

    /// Returns the model of the application as JSON, its phases as rows, and as a TOML file.
    fn model(
        &self,
        py: Python<'_>,
        layer: Option<String>,
        path: Option<String>,
        gap: Option<u64>,
        times: Times,
    ) -> PyResult<(String, Batch, String)> {
        let selection = PhaseSelection { layer, path, gap: gap.map(Duration::from_nanos) };
        self.analyze(py, times, |input| {
            let mut model = phases::model(input, &self.name(), &selection)?;
            let toml = model.to_toml().map_err(|error| Error::Failed(error.to_string()))?;
            let batch = rows(&model.phases)?;
            model.phases.clear();
            let (missing, unread) = (stat::missing(input.reader)?, input.reader.unread().all());
            let facts = show::AnalysisOutput { missing, unread, result: &model };
            Ok((text(&facts)?, batch, toml))
        })
    }

    /// Returns the axes of a heat map as JSON, and its cells as unsigned integers of 64 bits in the
    /// byte order of the machine, row by row.
    fn heatmap<'py>(
        &self,
        py: Python<'py>,
        by: String,
        what: String,
        bins: usize,
        most: usize,
        times: Times,
    ) -> PyResult<(String, Bound<'py, PyBytes>)> {
        let options = HeatmapOptions { by, what, bins, most };
        let (facts, values) = self.analyze(py, times, |input| {
            let mut found = heatmap::heatmap(input, &options)?;
            let values = std::mem::take(&mut found.values);
            let (missing, unread) = (stat::missing(input.reader)?, input.reader.unread().all());
            Ok((text(&show::AnalysisOutput { missing, unread, result: &found })?, values))
        })?;
        let bytes = PyBytes::new_with(py, values.len() * 8, |bytes| {
            for (cell, value) in bytes.chunks_exact_mut(8).zip(&values) {
                cell.copy_from_slice(&value.to_ne_bytes());
            }
            Ok(())
        })?;
        Ok((facts, bytes))
    }

    /// Simulates the trace; returns the figures of the tool as JSON, and a row for each simulation.
    fn simulate(
        &self,
        py: Python<'_>,
        storage: Vec<String>,
        settings: Vec<(String, String)>,
        copies: u32,
        together: bool,
    ) -> Answer {
        reading(py, |signals| {
            let of = |(key, value): &(String, String)| {
                let parsed = parameters::Vary::of(key, value);
                parsed.map_err(|error| Error::Option(format!("{key}: {error}")))
            };
            let vary = settings.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            let (machines, vary) = machines(&storage, vary, Ok::<_, Error>)?;
            let (points, vary) = parameters::points(&storage, &machines, vary)?;
            let open = |_: &Path| self.open();
            let programs = programs::gather(&[self.name()], &[], copies, together, &open, signals)?;
            let jobs = std::thread::available_parallelism().map_or(1, usize::from);
            let outcomes = sweep::run(&points, &programs.workload, jobs, &|| {})?;
            let all = Simulations { storage, machines, vary, points, programs, outcomes };
            Ok((text(&all.to_json())?, rows(&all.rows())?))
        })
    }
}

/// Returns what could not be read, as texts.
pub(crate) fn notes(unread: &UnreadLog) -> Vec<String> {
    unread.all().iter().map(|item| format!("not read: {item}: figures are lower bounds")).collect()
}

/// Returns what is missing in a trace, as JSON.
fn lower_bounds(input: &Input<'_>) -> Result<String, Error> {
    #[derive(Serialize)]
    struct Nothing {}
    let (missing, unread) = (stat::missing(input.reader)?, input.reader.unread().all());
    text(&show::AnalysisOutput { missing, unread, result: &Nothing {} })
}

fn json(value: Value) -> Json {
    match value {
        Value::None => Json::Null,
        Value::Int(count) => i64::try_from(count).map_or(Json::UInt(count), Json::Int),
        Value::Float(measure) => Json::Float(measure),
        Value::Text(text) => Json::Text(text),
    }
}
