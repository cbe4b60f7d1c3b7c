//! `miot fsck`: is a trace directory what it should be?

use clap::Args;
use miot_trace_events::TextOrJson;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check a trace: order, numbering, references, losses, files
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot fsck miot-trace && echo every event is there, once, in order\n  miot fsck --repair /var/lib/miot/trace      while no log-server writes to it\n\nThe rows are compared with the ledger of the trace (docs/reference/trace.md): rows that are gone are found also at the end of a stream. A trace that an\nearlier version wrote has none: `completeness unknown`, which is no problem.\n\n--repair removes what broken-off steps left, cuts torn ends, and puts what can be read of a damaged file in its place; the damaged\nfile is moved to DIR/damaged. A file that is what was written stays, even if this version cannot decode it. Nothing is invented: numbers\nof events that are lost get a row in `losses`, place `damaged`, and a check says from then on how many they are.\n\nExit codes: 0 nothing wrong, or all repaired; 1 problems found (with --repair: left): rows missing, files damaged, altered or missing,\nor no ledger to prove that none is; not a trace, or in use; 2 wrong usage; 3 with --repair: repaired, but events or other rows are lost."
)]
pub(crate) struct Arguments {
    /// The trace directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Repair what can be repaired, then check
    #[arg(long)]
    repair: bool,
    /// How to print the report
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// Everything is mended, but not everything is there.
const EXIT_LOST: u8 = 3;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let json = arguments.format == TextOrJson::Json;
    if arguments.repair { repair(&arguments.dir, json) } else { check(&arguments.dir, json) }
}

fn repair(dir: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let repaired = miot_trace_store::repair::repair(dir)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&repaired)?);
    } else {
        for mended in &repaired.mended {
            match mended.part {
                Some(part) => println!("mended: part {part}: {}", mended.text),
                None => println!("mended: {}", mended.text),
            }
        }
        println!("{}", repaired.report);
    }
    Ok(match (repaired.report.is_good(), repaired.has_lost()) {
        (true, false) => ExitCode::SUCCESS,
        (true, true) => ExitCode::from(EXIT_LOST),
        (false, _) => ExitCode::FAILURE,
    })
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
