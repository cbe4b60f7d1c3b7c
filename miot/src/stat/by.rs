//! Tables by job, process, program, rank, file, node, layer, directory or user.

use super::views::{self, View};
use crate::output::Out;
use crate::source::{Progress, Source};
use crate::summary;
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use miot_trace_analysis::Missing;
use miot_trace_analysis::characterize::{Characterization, CounterRow};
use miot_trace_events::Format;
use miot_trace_results::stat::{self, Selection, TableHeader};
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// Default number of rows of a text table.
pub(super) const ROWS: usize = 20;

/// Options that select a table.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(super) struct Options {
    /// Print one row per value and layer instead of the summary. `--by layer` compares the requests
    /// of each layer with those of the layer above; `--by region` and `--by checkpoint` take
    /// none of the options below but --region
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<Dimension>,
    /// Columns of the table; json and csv always have all columns
    #[arg(long, value_enum, value_name = "FIGURES", conflicts_with = "what")]
    view: Option<View>,
    /// With --by region: one row for each value of the attributes of the regions with this name
    #[arg(long, value_name = "NAME", requires = "by")]
    region: Option<String>,
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
    /// Region of a program's run, such as an epoch: I/O during it, and how much is hidden behind
    /// computation
    Region,
    /// Checkpoint: files, bytes, time, writers; from the regions of a program's run
    Checkpoint,
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

    /// Returns whether the table of regions is requested.
    pub(super) fn is_about_regions(&self) -> bool {
        self.by == Some(Dimension::Region)
    }

    /// Returns whether the table of checkpoints is requested.
    pub(super) fn is_about_checkpoints(&self) -> bool {
        self.by == Some(Dimension::Checkpoint)
    }

    /// Returns the name of the regions to show one by one.
    ///
    /// # Errors
    /// If options were given that the tables of regions and checkpoints do not have.
    pub(super) fn region(&self) -> anyhow::Result<Option<&str>> {
        let selects = !(self.layer.is_empty() && self.job.is_empty() && self.path.is_empty());
        let shapes =
            self.view.is_some() || self.sort.is_some() || self.top.is_some() || self.block_size.is_some();
        anyhow::ensure!(
            !selects && !shapes,
            "--by region, --by checkpoint: --view, --sort, --top, --layer, --job, --path and --block-size do not apply to regions and checkpoints; remove them"
        );
        Ok(self.region.as_deref())
    }

    /// Checks options that belong together.
    ///
    /// # Errors
    /// If `--region` was given for another table.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.region.is_none() || self.is_about_regions(),
            "--region: expected --by region, which has rows of regions"
        );
        Ok(())
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

    fn rows(&self) -> anyhow::Result<(&'static str, stat::By)> {
        let name = match self.dimension() {
            Dimension::Job => "job",
            Dimension::Step => "step",
            Dimension::Process => "process",
            Dimension::Program => "program",
            Dimension::Rank => "rank",
            Dimension::File => "file",
            Dimension::Node => "node",
            // Operations, regions and checkpoints have separate tables.
            Dimension::Layer | Dimension::Operation | Dimension::Region | Dimension::Checkpoint => "layer",
            Dimension::Directory => "directory",
            Dimension::User => "user",
        };
        let found = stat::subject(name, self.depth);
        Ok((name, found.with_context(|| format!("--by {name}: not known"))?))
    }

    /// Returns the selection of requests.
    pub(super) fn selection(&self) -> Selection {
        Selection {
            layers: self.layer.clone(),
            jobs: self.job.clone(),
            paths: self.path.clone(),
            block_size: self.block_size.clone(),
        }
    }

    /// Returns the block size given for all files.
    pub(super) fn block_size(&self) -> Option<&str> {
        self.block_size.as_deref()
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
}

pub(super) fn run(source: &Source, options: &Options, format: Format) -> anyhow::Result<ExitCode> {
    let (reader, progress) = (source.open()?, Progress::default());
    let (by, dimension) = options.rows()?;
    let all = stat::by(&source.input(&reader, &progress), dimension, &options.selection(), options.sort())?;
    let most = options.top.unwrap_or(if format == Format::Text { ROWS } else { usize::MAX });
    let (found, origin) = (&all.found, all.origin());
    let shown = || all.rows().take(most);
    let mut out = BufWriter::new(Out::new(format == Format::Json));
    match format {
        Format::Text => {
            let view = options.view.unwrap_or_default();
            views::write(&mut out, view, shown().collect(), origin)?;
            if all.len() > most {
                writeln!(out, "… and {} more: --top N", all.len() - most)?;
            }
            if found.is_block_assumed && matches!(view, View::Darshan | View::Usage) {
                writeln!(
                    out,
                    "alignment of some files is assumed to be 4096 bytes, because the trace does not contain it: set --block-size"
                )?;
            }
            super::report_unread(&all.unread, &mut out)?;
            notes(&mut out, found, all.missing)?;
            if let Some(removed) = summary::removed(&source.dir)? {
                writeln!(out, "{removed}")?;
            }
        }
        Format::Json => json(&mut out, &all.header(by), shown(), origin)?,
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

fn json(
    out: &mut impl Write,
    header: &TableHeader<'_>,
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
    super::report_lost(missing, out)?;
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
