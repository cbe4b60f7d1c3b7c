//! `miot cat`: the events of a trace directory.

use crate::check;
use crate::filter::Filter;
use crate::output::{Format, Printer};
use clap::Args;
use miot_trace_store::Reader;
use std::io::{BufWriter, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the events of a trace, in the order in which they completed
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot cat miot-trace --op read,pread --path '/data/**'\n  miot cat miot-trace --layer stdio --format json | jq .path\n\nA text line: time, node, pid/tid, layer, operation, length@offset, = result, duration, path."
)]
pub(crate) struct Arguments {
    /// The trace directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    filter: Filter,
    /// Print at most this many events
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u64>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Print nothing; check the trace as `miot fsck` does
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.check {
        return check::check(&arguments.dir, arguments.format == Format::Json);
    }
    let matcher = arguments.filter.matcher()?;
    let reader = Reader::open(&arguments.dir)?;
    let mut printer = Printer::new(BufWriter::new(stdout().lock()), arguments.format);
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    for batch in reader.rows()? {
        if left == 0 {
            break;
        }
        left -= printer.print(&batch?, &matcher, left)?;
    }
    printer.flush()?;
    Ok(ExitCode::SUCCESS)
}
