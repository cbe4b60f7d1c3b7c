//! `miot stat`: the summary of a trace.

mod show;

use crate::output::{self, duration, records, table};
use crate::source::Source;
use crate::summary::{self, bytes};
use clap::{Args, ValueEnum};
use miot_trace_analysis::{LayerRow, Layers};
use std::io::{Write as _, stdout};
use std::process::ExitCode;

/// Summarize a trace: operations, bytes, times, slowest files, losses
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot stat miot-trace\n  miot stat miot-trace --format json | jq .totals\n  miot stat miot-trace --by layer\n  miot stat miot-trace --show idle\n  miot stat miot-trace --show bursts --interval 1s --format csv"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Instead: what each layer of the I/O stack made of the requests of the layer above
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<By>,
    #[command(flatten)]
    show: show::Options,
    /// How many of the slowest files to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    files: usize,
    /// How to print; without --by, csv is the table of operations
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Format {
    /// Tables, for people.
    #[default]
    Text,
    /// Everything, as one JSON object.
    Json,
    /// The table of operations, comma-separated.
    Csv,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// Calls per call, and bytes moved for bytes asked
    Layer,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(what) = arguments.show.what {
        return show::run(what, arguments);
    }
    if let Some(By::Layer) = arguments.by {
        return by_layer(arguments);
    }
    let report = summary::report(&arguments.source, arguments.files)?;
    let mut out = stdout().lock();
    match arguments.format {
        Format::Text => {
            summary::write(&report, &mut out)?;
            if let Some(removed) = summary::removed(&arguments.source.dir)? {
                writeln!(out, "{removed}")?;
            }
        }
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
        Format::Csv => {
            let mut table = csv::Writer::from_writer(&mut out);
            for row in &report.operations {
                table.serialize(row)?;
            }
            table.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn by_layer(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut layers = Layers::default();
    let reader = arguments.source.open()?;
    for batch in arguments.source.scan(&reader, miot_trace_analysis::layers::COLUMNS)? {
        layers.add(&batch?);
    }
    let rows = layers.finish();
    let mut out = stdout().lock();
    let header =
        ["layer", "within", "calls", "per call", "to read", "read", "x", "to write", "written", "x", "time"];
    match arguments.format {
        Format::Text => table(&mut out, header.map(str::to_owned), rows.iter().map(cells).collect())?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &rows)?;
            writeln!(out)?;
        }
        Format::Csv => records(&mut out, output::Format::Csv, true, &rows)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn cells(row: &LayerRow) -> [String; 11] {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
    let bytes = |count: u64| if count == 0 { "-".into() } else { bytes(count) };
    [
        row.layer.clone(),
        row.above.clone().unwrap_or_else(|| "-".into()),
        row.calls.to_string(),
        ratio(row.calls_per_call),
        bytes(row.read_asked),
        bytes(row.read_moved),
        ratio(row.read_amplification),
        bytes(row.write_asked),
        bytes(row.write_moved),
        ratio(row.write_amplification),
        duration(i64::try_from(row.time).unwrap_or(i64::MAX)),
    ]
}
