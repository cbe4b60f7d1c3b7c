//! Tables by job, process, program, rank, file, node, layer, directory or user.

use super::views::{self, View};
use crate::cat::of_jobs;
use crate::filter::Filter;
use crate::output::Out;
use crate::source::Source;
use crate::summary;
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use miot_proto::op::Layer;
use miot_proto::units::parse_bytes;
use miot_trace_analysis::Missing;
use miot_trace_analysis::characterize::{
    By, COLUMNS, Characterization, Characterize, CounterRow, Group, Settings,
};
use miot_trace_events::Format;
use miot_trace_store::{Reader, Table, UnreadItem};
use serde::Serialize;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// Default number of rows of a text table.
pub(super) const ROWS: usize = 20;

/// Options that select a table.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(super) struct Options {
    /// Print one row per value and layer instead of the summary. `--by layer` compares the requests
    /// of each layer with those of the layer above
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<Dimension>,
    /// Columns of the table; json and csv always have all columns
    #[arg(long, value_enum, value_name = "FIGURES", conflicts_with = "what")]
    view: Option<View>,
    /// With --by directory: number of path components
    #[arg(long, value_name = "N", default_value_t = 3)]
    depth: usize,
    /// Column to sort by, largest first; any name in the JSON output [default: bytes; for
    /// operations: time]
    #[arg(long, value_name = "FIGURE")]
    sort: Option<String>,
    /// Maximum number of rows [default: 20 for text, otherwise all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Only requests of this layer: mpi-io, stdio, posix, fuse, client, block
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    layer: Vec<String>,
    /// Only requests of this job (column `job` of `processes`)
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    job: Vec<String>,
    /// Only files whose path matches this glob; `*` does not match `/`, `**` does
    #[arg(long, value_name = "GLOB")]
    path: Vec<String>,
    /// Alignment of all files, e.g. 1MiB [default: block size of each file system, or 4096 if it is
    /// unknown]
    #[arg(long, value_name = "BYTES")]
    block_size: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dimension {
    /// Job of a batch system, or run of a parallel program without one
    Job,
    /// Step of a job
    Step,
    /// Process
    Process,
    /// Executable, by path
    Program,
    /// MPI rank of a run of a parallel program
    Rank,
    /// File, by path
    File,
    /// Node
    #[value(alias = "host")]
    Node,
    /// Operation: counts, bytes, durations
    Operation,
    /// Layer of the I/O stack
    Layer,
    /// Directory, see --depth
    Directory,
    /// User
    User,
}

impl Options {
    /// Returns whether the table that compares layers is requested.
    pub(super) fn is_about_layers(&self) -> bool {
        self.by == Some(Dimension::Layer) && self.view.is_none()
    }

    /// Returns whether the table of operations is requested.
    pub(super) fn is_about_operations(&self) -> bool {
        self.by == Some(Dimension::Operation)
    }

    pub(super) fn is_asked(&self) -> bool {
        self.by.is_some() || self.view.is_some()
    }

    fn dimension(&self) -> Dimension {
        self.by.unwrap_or(match self.view {
            Some(View::Performance) => Dimension::Job,
            Some(View::Ranks) => Dimension::File,
            _ => Dimension::Process,
        })
    }

    fn by(&self) -> By {
        match self.dimension() {
            Dimension::Job => By::Job,
            Dimension::Step => By::Step,
            Dimension::Process => By::Process,
            Dimension::Program => By::Program,
            Dimension::Rank => By::Rank,
            Dimension::File => By::File,
            Dimension::Node => By::Node,
            // Operations have a separate table.
            Dimension::Layer | Dimension::Operation => By::Layer,
            Dimension::Directory => By::Directory(self.depth),
            Dimension::User => By::User,
        }
    }

    pub(super) fn layers(&self) -> anyhow::Result<Vec<Layer>> {
        let named = |name: &String| {
            Layer::from_name(name).with_context(|| {
                format!(
                    "--layer {name}: no such layer; there are mpi-io, stdio, posix, fuse, client and block"
                )
            })
        };
        self.layer.iter().map(named).collect()
    }

    /// Returns the block size given for all files.
    pub(super) fn block_size(&self) -> anyhow::Result<Option<u32>> {
        let Some(size) = &self.block_size else { return Ok(None) };
        let bytes = parse_bytes(size).map_err(|error| anyhow::anyhow!("--block-size {size}: {error}"))?;
        let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        let expected =
            || format!("--block-size {size}: expected 1 byte to less than 4 GiB, such as 4096 or 1MiB");
        Ok(Some(bytes.with_context(expected)?))
    }

    /// Returns the number of rows, if given.
    pub(super) fn top(&self) -> Option<usize> {
        self.top
    }

    /// Returns whether `--view` was given.
    pub(super) fn has_view(&self) -> bool {
        self.view.is_some()
    }

    /// Returns the column to sort by, if given.
    pub(super) fn sort(&self) -> Option<&str> {
        self.sort.as_deref()
    }

    pub(super) fn settings(
        &self,
        reader: &Reader,
        names: &miot_trace_store::FileNames,
    ) -> anyhow::Result<Settings> {
        let mut settings = Settings { block_size: self.block_size()?, ..Settings::default() };
        if !self.job.is_empty() {
            settings.processes = Some(of_jobs(reader, &self.job)?);
        }
        if !self.path.is_empty() {
            let globs = Filter { path: self.path.clone(), ..Filter::default() }.matcher()?;
            let matching = names.iter().filter(|(_, path)| globs.matches_path(path));
            settings.files = Some(matching.map(|(file, _)| file).collect());
        }
        Ok(settings)
    }
}

/// Fields above the rows in JSON.
#[derive(Serialize)]
struct Header<'a> {
    by: &'a str,
    /// Nanoseconds since 1970; timestamps of rows are seconds since then.
    begin: Option<i64>,
    end: Option<i64>,
    missing: Missing,
    lower_bounds: bool,
    unread: Vec<UnreadItem>,
    block_size_assumed: bool,
    overwriting_incomplete: bool,
    views_unknown: u64,
    folded_pairs: u64,
}

pub(super) fn run(source: &Source, options: &Options, format: Format) -> anyhow::Result<ExitCode> {
    let layers = options.layers()?;
    let reader = source.open()?;
    let found = characterize(source, &reader, options)?;
    let missing = Missing::of(&reader.table(Table::Losses)?);
    let groups = found.groups(options.by(), &layers);
    let most = options.top.unwrap_or(if format == Format::Text { ROWS } else { usize::MAX });
    let order = order(&found, &groups, options)?;
    let shown = || order.iter().take(most).map(|group| found.row(&groups, group));
    let origin = if found.span.is_empty() { 0 } else { found.span.begin };
    let mut out = BufWriter::new(Out::new(format == Format::Json));
    match format {
        Format::Text => {
            let view = options.view.unwrap_or_default();
            views::write(&mut out, view, shown().collect(), origin)?;
            if order.len() > most {
                writeln!(out, "… and {} more: --top N", order.len() - most)?;
            }
            if found.is_block_assumed && matches!(view, View::Darshan | View::Usage) {
                writeln!(
                    out,
                    "alignment of some files is assumed to be 4096 bytes, because the trace does not contain it: set --block-size"
                )?;
            }
            super::report_unread(&reader.unread().all(), &mut out)?;
            notes(&mut out, &found, missing)?;
            if let Some(removed) = summary::removed(&source.dir)? {
                writeln!(out, "{removed}")?;
            }
        }
        Format::Json => {
            let dimension = options.dimension().to_possible_value();
            let header = Header {
                by: dimension.as_ref().map_or("", |value| value.get_name()),
                begin: (!found.span.is_empty()).then_some(found.span.begin),
                end: (!found.span.is_empty()).then_some(found.span.end),
                missing,
                lower_bounds: missing.lost > 0 || !reader.unread().is_empty(),
                unread: reader.unread().all(),
                block_size_assumed: found.is_block_assumed,
                overwriting_incomplete: found.is_overwriting_incomplete,
                views_unknown: found.views_unknown,
                folded_pairs: found.folded,
            };
            json(&mut out, &header, shown(), origin)?;
        }
        Format::Csv => {
            let mut table = csv::Writer::from_writer(&mut out);
            for (number, row) in shown().enumerate() {
                let fields = row.fields(origin);
                if number == 0 {
                    table.write_record(fields.0.iter().map(|(name, _)| name))?;
                }
                table.serialize(fields.0.iter().map(|(_, value)| value).collect::<Vec<_>>())?;
            }
            table.flush()?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the trace.
fn characterize(source: &Source, reader: &Reader, options: &Options) -> anyhow::Result<Characterization> {
    let names = reader.files()?;
    let settings = options.settings(reader, &names)?;
    let mut characterize = Characterize::new(settings, names, &reader.table(Table::Processes)?);
    for batch in source.scan(reader, COLUMNS)? {
        characterize.add(&batch?);
    }
    Ok(characterize.finish())
}

/// Orders the groups by the figure, largest first.
fn order<'a>(
    found: &Characterization,
    groups: &'a miot_trace_analysis::characterize::table::Groups,
    options: &Options,
) -> anyhow::Result<Vec<&'a Group>> {
    let sort = options.sort.as_deref().unwrap_or("bytes");
    let mut keyed = Vec::with_capacity(groups.all().len());
    for group in groups.all() {
        let figure = if sort == "bytes" {
            found.bytes(groups, group) as f64
        } else {
            let fields = found.row(groups, group).fields(found.span.begin);
            let value = fields.get(sort).with_context(|| {
                format!("--sort {sort}: no such column; `miot stat DIR --by … --format json` lists all")
            })?;
            value.number().unwrap_or(f64::NEG_INFINITY)
        };
        keyed.push((figure, group));
    }
    // The sort is stable: rows with equal figures stay in order of their names.
    keyed.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    Ok(keyed.into_iter().map(|(_, group)| group).collect())
}

fn json(
    out: &mut impl Write,
    header: &Header<'_>,
    rows: impl Iterator<Item = CounterRow>,
    origin: i64,
) -> anyhow::Result<()> {
    let header = serde_json::to_string(header)?;
    write!(out, "{},\"rows\":[", header.trim_end_matches('}'))?;
    for (number, row) in rows.enumerate() {
        writeln!(out, "{}", if number == 0 { "" } else { "," })?;
        serde_json::to_writer(&mut *out, &row.fields(origin))?;
    }
    writeln!(out, "\n]}}")?;
    Ok(())
}

/// Prints notes on the accuracy of the figures.
fn notes(out: &mut impl Write, found: &Characterization, missing: Missing) -> std::io::Result<()> {
    if missing.lost > 0 {
        writeln!(
            out,
            "{} events were lost: all figures are lower bounds; see docs/reference/losses.md",
            missing.lost
        )?;
    }
    if missing.filtered > 0 {
        let filtered = missing.filtered;
        writeln!(
            out,
            "{filtered} requests were left out by minimum duration or sampling: counts do not include them"
        )?;
    }
    if found.is_overwriting_incomplete {
        writeln!(
            out,
            "files were written in too many ranges to store all: overwritten bytes are a lower bound"
        )?;
    }
    if found.views_unknown > 0 {
        writeln!(out, "{}", super::unknown_views(found.views_unknown))?;
    }
    if found.folded > 0 {
        let folded = found.folded;
        writeln!(out, "{folded} pairs of process and file with few bytes are folded into (other files)")?;
    }
    Ok(())
}
