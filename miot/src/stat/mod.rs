//! `miot stat`: the summary of a trace, and tables by job, process, file …

mod by;
mod checkpoints;
mod layers;
mod operations;
mod regions;
mod show;
mod views;

use crate::output::Out;
use crate::source::Source;
use crate::summary;
use clap::Args;
use miot_trace_analysis::Missing;
use miot_trace_events::Format;
use miot_trace_store::UnreadItem;
use std::io::Write;
use std::process::ExitCode;

/// Returns the note on requests that figures with offsets do not include.
fn unknown_views(requests: u64) -> String {
    format!(
        "{requests} requests went through views of MPI-IO whose blocks the trace does not have: figures that \
         need an offset do not include them"
    )
}

/// Summarize a trace: operations, bytes, times, slowest files, losses; or tables by job, process,
/// file, directory …
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot stat miot-trace\n  miot stat miot-trace --format json | jq .totals\n  miot stat miot-trace --by file --top 10\n  miot stat miot-trace --by process --view darshan --layer posix\n  miot stat miot-trace --by directory --depth 2 --sort overwritten_bytes\n  miot stat miot-trace --by job --view performance --job 4711\n  miot stat miot-trace --by operation --sort p99 --job 4711\n  miot stat miot-trace --by layer\n  miot stat miot-trace --by region --region epoch\n  miot stat miot-trace --by checkpoint\n  miot stat miot-trace --show idle\n  miot stat miot-trace --show bursts --interval 1s --format csv\n\nAll figures and their formulas: docs/guide/stat.md."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    by: by::Options,
    #[command(flatten)]
    show: show::Options,
    /// Number of slowest files in the summary
    #[arg(long, value_name = "N", default_value_t = 10)]
    files: usize,
    /// Output format; csv of the summary is the table of operations
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Prints that figures are lower bounds, if something could not be read.
fn report_unread(unread: &[UnreadItem], out: &mut impl Write) -> std::io::Result<()> {
    unread.iter().try_for_each(|unread| writeln!(out, "not read: {unread}: figures are lower bounds"))
}

/// Prints that figures are lower bounds, if events were lost.
fn report_lost(missing: Missing, out: &mut impl Write) -> std::io::Result<()> {
    if missing.lost > 0 {
        let lost = missing.lost;
        writeln!(out, "{lost} events were lost: all figures are lower bounds; see docs/reference/losses.md")?;
    }
    Ok(())
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(what) = arguments.show.what {
        return show::run(what, arguments);
    }
    arguments.by.check()?;
    if arguments.by.is_about_layers() {
        return layers::run(&arguments.source, arguments.format);
    }
    if arguments.by.is_about_regions() {
        return regions::run(&arguments.source, arguments.by.region()?, arguments.format);
    }
    if arguments.by.is_about_checkpoints() {
        arguments.by.region()?;
        return checkpoints::run(&arguments.source, arguments.format);
    }
    if arguments.by.is_about_operations() {
        return operations::run(&arguments.source, &arguments.by, arguments.format);
    }
    if arguments.by.is_asked() {
        return by::run(&arguments.source, &arguments.by, arguments.format);
    }
    let all = summary::report(&arguments.source, arguments.files)?;
    let mut out = Out::new(arguments.format == Format::Json);
    match arguments.format {
        Format::Text => {
            summary::write(&all.report, &mut out)?;
            report_unread(&all.unread, &mut out)?;
            if let Some(removed) = summary::removed(&arguments.source.dir)? {
                writeln!(out, "{removed}")?;
            }
        }
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &all)?;
            writeln!(out)?;
        }
        Format::Csv => {
            let mut table = csv::Writer::from_writer(&mut out);
            for row in &all.report.operations {
                table.serialize(row)?;
            }
            table.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
