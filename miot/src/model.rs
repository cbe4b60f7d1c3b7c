//! `miot model`: the I/O of an application as an abstract model.

mod explain;

use crate::phases::{self, PhaseFilter};
use crate::source::Source;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use miot_trace_analysis::model::{Model, compare};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::table;
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit code of `miot model compare` if models differ.
const EXIT_DIFFERENT: u8 = 3;

/// Save, compare and explain the I/O of an application as a machine-independent model
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot model save trace -o solver.toml\n  miot model explain solver.toml\n  miot model compare solver.toml other-trace\n\nA model is an editable TOML file, see docs/guide/model.md. A trace directory is accepted wherever a model is expected."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create the model of a trace
    Save {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        choice: PhaseFilter,
        /// New file; it must not exist [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Omit values that were measured on this machine
        #[arg(long)]
        abstract_only: bool,
    },
    /// Print the differences between two models; the exit code is 3 if there are any
    #[command(after_help = "Measured values and file names are not compared.")]
    Compare {
        /// Model or trace
        #[arg(value_name = "MODEL|DIR")]
        one: PathBuf,
        /// Model or trace to compare with
        #[arg(value_name = "MODEL|DIR")]
        other: PathBuf,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Describe a model as text
    Explain {
        /// Model or trace
        #[arg(value_name = "MODEL|DIR")]
        model: PathBuf,
    },
}

/// Reads a model from a file, or computes it from a trace.
pub(crate) fn read(path: &Path) -> anyhow::Result<Model> {
    if path.is_dir() {
        return phases::model(&Source::whole(path), &PhaseFilter::default());
    }
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("cannot read {} as a model: create one with `miot model save DIR -o FILE`", path.display())
    })?;
    Model::from_toml(&text).with_context(|| format!("{} is not a model", path.display()))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut out = stdout().lock();
    match &arguments.command {
        Command::Save { source, choice, output, abstract_only } => {
            let mut model = phases::model(source, choice)?;
            model.placed().with_context(|| format!("cannot save a model of {}", source.dir.display()))?;
            if *abstract_only {
                model.measured_seconds = None;
                model.phases.iter_mut().for_each(|phase| phase.measured = None);
            }
            let text = model.to_toml()?;
            match output {
                Some(path) => {
                    let file = std::fs::File::create_new(path);
                    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
                    written.with_context(|| format!("cannot write {}", path.display()))?;
                }
                None => out.write_all(text.as_bytes())?,
            }
        }
        Command::Compare { one, other, format } => {
            let differences = compare(&read(one)?, &read(other)?);
            match format {
                Format::Text if differences.is_empty() => writeln!(out, "no difference")?,
                Format::Text => {
                    let header = ["where", "what", "one", "other"].map(str::to_owned);
                    let rows = differences.iter().cloned().map(|it| [it.place, it.field, it.one, it.other]);
                    table(&mut out, header, rows.collect())?;
                }
                format => records(&mut out, *format, true, &differences)?,
            }
            if !differences.is_empty() {
                return Ok(ExitCode::from(EXIT_DIFFERENT));
            }
        }
        Command::Explain { model } => explain::write(&read(model)?, &mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}
