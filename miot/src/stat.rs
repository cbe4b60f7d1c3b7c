//! `miot stat`: the summary of a trace.

use crate::summary;
use clap::{Args, ValueEnum};
use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

/// Summarize a trace: operations, bytes, times, slowest files, losses
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot stat miot-trace\n  miot stat miot-trace --format json | jq .totals"
)]
pub(crate) struct Arguments {
    /// The trace directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// How many of the slowest files to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    files: usize,
    /// How to print; csv is the table of operations
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

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let report = summary::report(&arguments.dir, arguments.files)?;
    let mut out = stdout().lock();
    match arguments.format {
        Format::Text => {
            summary::write(&report, &mut out)?;
            if let Some(removed) = summary::removed(&arguments.dir)? {
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
