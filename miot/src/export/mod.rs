//! `miot export`: writes a trace in formats of other tools.

mod rows;
mod target;
mod views;

use crate::cat::report_missed;
use crate::filter::{Filter, Matcher, of_jobs};
use crate::source::Source;
use arrow_array::RecordBatch;
use clap::{Args, ValueEnum};
use miot_trace_analysis::Missing;
use miot_trace_events::{Column, Format, events};
use miot_trace_exchange::ctf::Ctf;
use miot_trace_exchange::lines::{self, Lines};
use miot_trace_exchange::miller::{Export, SkippedRequests};
use miot_trace_exchange::perfetto::Perfetto;
use miot_trace_store::{Manifest, Reader, Table};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use target::Target;

/// Write a trace in a format of other tools
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot export miot-trace --format ctf -o ctf && babeltrace2 ctf\n  miot export miot-trace --format perfetto --layer posix -o trace.json\n  miot export miot-trace --format miller -o trace.miller\n  miot export miot-trace --format csv --columns time,op,path,length -o events.csv\n  miot export miot-trace --format jsonl --op read,write -o - | zstd > events.jsonl.zst\n  miot export miot-trace --format views --dialect duckdb -o - | duckdb miot.db\n\nThe export writes OUT.partial and renames it to OUT when it is complete. OUT.partial is removed if the export fails."
)]
pub(crate) struct Arguments {
    /// Trace directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Format of the output
    #[arg(long, value_enum)]
    format: ExportFormat,
    /// With views: the engine that reads them
    #[arg(long, value_enum)]
    dialect: Option<SqlDialect>,
    /// With views: another trace whose rows belong to the same tables; its ids must be of another
    /// partition
    #[arg(long, value_name = "DIR")]
    with: Vec<PathBuf>,
    /// New file or directory; `-`: standard output
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    filter: Filter,
    /// Only events of this job (column `job` of `processes`)
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    job: Vec<String>,
    /// With csv and jsonl: only these columns, in this order
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    columns: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// Comma-separated values with a header line, like `miot cat --format csv`.
    Csv,
    /// A JSON object per line, like `miot cat --format json`.
    Jsonl,
    /// The Common Trace Format 1.8, a directory: for babeltrace2, Trace Compass.
    Ctf,
    /// The JSON trace event format: for ui.perfetto.dev, chrome://tracing, speedscope.
    Perfetto,
    /// The ASCII trace format of Miller (1990), for cache simulators: reads and writes of files.
    Miller,
    /// SQL statements that define the tables and views of `miot query` over the files of the trace,
    /// for another engine.
    Views,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SqlDialect {
    /// DuckDB.
    Duckdb,
    /// Apache Spark.
    Spark,
    /// ClickHouse: clickhouse-local, chDB, or a server on this machine.
    Clickhouse,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.format == ExportFormat::Views {
        return views::run(arguments);
    }
    anyhow::ensure!(
        arguments.dialect.is_none() && arguments.with.is_empty(),
        "--dialect and --with belong to --format views"
    );
    let columns = columns(arguments)?;
    let mut target = Target::new(&arguments.output, arguments.format == ExportFormat::Ctf)?;
    let mut matcher = arguments.filter.matcher()?;
    let Filter { since, until, .. } = arguments.filter;
    let source = Source { dir: arguments.dir.clone(), since, until };
    let reader = source.open()?;
    if !arguments.job.is_empty() {
        matcher = matcher.of_processes(of_jobs(&reader, &arguments.job)?);
    }
    let rows = |matcher| rows::rows(&source, &reader, matcher);
    let losses = reader.batches(Table::Losses).collect::<Result<Vec<_>, _>>()?;
    let lost = Missing::of(&losses).lost;
    match arguments.format {
        ExportFormat::Ctf => ctf(rows(matcher)?, &losses, &arguments.dir, target.directory()?)?,
        ExportFormat::Perfetto => perfetto(rows(matcher)?, &reader, &arguments.dir, target.file()?)?,
        ExportFormat::Miller => miller(&source, &reader, matcher, lost, arguments, target.file()?)?,
        ExportFormat::Csv => lines(rows(matcher)?, Format::Csv, columns, target.file()?)?,
        ExportFormat::Jsonl => lines(rows(matcher)?, Format::Json, columns, target.file()?)?,
        // Returned above.
        ExportFormat::Views => {}
    }
    target.finish()?;
    if lost > 0 {
        eprintln!(
            "miot: {lost} events of the trace were lost and are not in the export; `miot stat` shows where"
        );
    }
    report_missed(&reader);
    Ok(ExitCode::SUCCESS)
}

/// Returns the selected columns; empty for all.
fn columns(arguments: &Arguments) -> anyhow::Result<Vec<&'static Column>> {
    anyhow::ensure!(
        arguments.columns.is_empty() || matches!(arguments.format, ExportFormat::Csv | ExportFormat::Jsonl),
        "--columns: only csv and jsonl have columns to choose from"
    );
    let named =
        |name: &String| lines::column(name).map_err(|error| anyhow::anyhow!("--columns {name}: {error}"));
    arguments.columns.iter().map(named).collect()
}

fn ctf(
    rows: impl Iterator<Item = anyhow::Result<RecordBatch>>,
    losses: &[RecordBatch],
    trace: &Path,
    directory: PathBuf,
) -> anyhow::Result<()> {
    let Manifest { created, writer, .. } = Manifest::read(trace)?;
    let mut ctf = Ctf::new(&directory, &created);
    losses.iter().for_each(|batch| ctf.losses(batch));
    for batch in rows {
        ctf.add(&batch?)?;
    }
    Ok(ctf.finish(&writer)?)
}

fn perfetto(
    rows: impl Iterator<Item = anyhow::Result<RecordBatch>>,
    reader: &Reader,
    trace: &Path,
    to: impl Write,
) -> anyhow::Result<()> {
    let mut perfetto = Perfetto::new(to, &Manifest::read(trace)?.writer);
    for batch in reader.batches(Table::Processes) {
        perfetto.processes(&batch?);
    }
    for batch in rows {
        perfetto.add(&batch?)?;
    }
    Ok(perfetto.finish()?)
}

fn miller(
    source: &Source,
    reader: &Reader,
    matcher: Matcher,
    lost: u64,
    arguments: &Arguments,
    to: impl Write,
) -> anyhow::Result<()> {
    let files = reader.files()?;
    let tracer = Manifest::read(&arguments.dir)?.writer;
    let every_layer = !arguments.filter.layer.is_empty();
    let mut export = Export::new(to, &files, &tracer, lost, every_layer);
    for batch in reader.batches(Table::Processes) {
        export.processes(&batch?);
    }
    if source.since.is_some() {
        // Opens and file views of the time before, which requests after it need.
        let before = Source { dir: source.dir.clone(), since: None, until: source.since };
        for batch in before.scan(reader, events::COLUMNS)? {
            export.add_chosen(&batch?, |_| false)?;
        }
    }
    for batch in rows::all_rows(source, reader, matcher)? {
        let (batch, wanted) = batch?;
        export.add_chosen(&batch, |row| wanted.value(row))?;
    }
    let (left, records) = export.finish()?;
    let SkippedRequests { failed, without_offset, copies, unknown_places, in_pieces, pieces, .. } = left;
    let SkippedRequests { short, short_bytes, moved, .. } = left;
    eprintln!(
        "miot: {records} records; skipped: {failed} failed requests, {without_offset} without an offset, {copies} copies; \
         {short} have their requested length although they moved {short_bytes} bytes less"
    );
    if in_pieces > 0 {
        eprintln!(
            "miot: {in_pieces} requests through file views are {pieces} records, one for each piece of the file"
        );
    }
    if unknown_places.total() > 0 {
        eprintln!(
            "miot: {} MPI-IO requests are left out, their bytes are unknown ({unknown_places})",
            unknown_places.total()
        );
    }
    if moved > 0 {
        eprintln!("miot: {moved} long requests have a later start than in the trace, with a comment");
    }
    Ok(())
}

fn lines(
    rows: impl Iterator<Item = anyhow::Result<RecordBatch>>,
    format: Format,
    columns: Vec<&'static Column>,
    to: impl Write,
) -> anyhow::Result<()> {
    let mut lines = Lines::new(to, format, columns)?;
    for batch in rows {
        lines.add(&batch?)?;
    }
    Ok(lines.finish()?)
}
