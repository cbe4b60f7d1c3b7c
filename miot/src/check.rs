//! `miot fsck`: checks and repairs a trace directory.

use crate::sets;
use clap::Args;
use miot_trace_events::TextOrJson;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check a trace: order, numbering, references, losses, files
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot fsck miot-trace && echo complete, in order, no duplicates\n  miot fsck --repair /var/lib/miot/trace      while no log-server writes to it\n  miot fsck /srv/miot/p0,/srv/miot/p1         traces of several log-servers, and against each other\n\nfsck compares the rows with the ledger of the trace (docs/reference/trace.md), so that it also detects rows that are missing at the end of a stream.\nA trace of an earlier version has no ledger: fsck then reports `completeness unknown`, which is not a problem.\n\n--repair removes leftovers of interrupted operations, truncates torn tails, and replaces a damaged file by its readable part; the\ndamaged file is moved to DIR/damaged. An undamaged file stays, even if this version cannot decode it. Lost events are not invented:\ntheir attempt numbers get a row in `losses` with place `damaged`, and later checks report their number.\n\nExit codes: 0 no problems, or all repaired; 1 problems found (with --repair: remaining): rows missing, files damaged, altered or missing,\nno ledger to prove that nothing is missing, not a trace, or in use; 2 wrong usage; 3 with --repair: repaired, but rows are lost."
)]
pub(crate) struct Arguments {
    /// Trace directory, or a set: DIR,DIR or a file set.toml
    #[arg(value_name = "DIR|SET")]
    dir: PathBuf,
    /// Repair the trace, then check it
    #[arg(long)]
    repair: bool,
    /// Output format of the report
    #[arg(long, value_enum, default_value_t)]
    format: TextOrJson,
}

/// Exit code if the trace was repaired but rows are lost.
const EXIT_LOST: u8 = 3;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let json = arguments.format == TextOrJson::Json;
    let dirs = sets::traces(&arguments.dir)?;
    if dirs.len() > 1 {
        anyhow::ensure!(
            !arguments.repair,
            "--repair works on one trace: repair those with problems one by one"
        );
        return check_set(&dirs, json);
    }
    if arguments.repair { repair(&arguments.dir, json) } else { check(&arguments.dir, json) }
}

fn repair(dir: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let repaired = miot_trace_store::repair::repair(dir)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&repaired)?);
    } else {
        for repair in &repaired.repaired {
            match repair.part {
                Some(part) => println!("repaired: part {part}: {}", repair.text),
                None => println!("repaired: {}", repair.text),
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

/// Checks the traces of a set, and prints the report.
fn check_set(dirs: &[PathBuf], json: bool) -> anyhow::Result<ExitCode> {
    let report = miot_trace_store::fsck::check_set(dirs)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks a trace and prints the report.
pub(crate) fn check(dir: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let report = miot_trace_store::fsck::check(dir);
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
