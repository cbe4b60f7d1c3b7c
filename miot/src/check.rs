//! `miot fsck`: is a trace directory what it should be?

use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check a trace: order, numbering, references, losses, files
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  miot fsck miot-trace && echo every event is there, once, in order\n\nExit codes: 0 nothing wrong, 1 problems found or not a trace."
)]
pub(crate) struct Arguments {
    /// The trace directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    check(&arguments.dir, arguments.json)
}

/// Checks and prints the report.
pub(crate) fn check(dir: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let report = miot_trace_store::fsck::check(dir);
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
