//! `miot cat`: prints the events of a trace directory.

use crate::check;
use crate::filter::{Filter, of_jobs};
use crate::output::Out;
use crate::tree::Trees;
use crate::unread;
use clap::Args;
use miot_trace_events::{Format, RowPrinter};
use miot_trace_store::{Corrections, Reader};
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the events of a trace, in the order in which they completed
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot cat miot-trace --op read,pread --path '/data/**'\n  miot cat miot-trace --layer stdio --format json | jq .path\n  miot cat miot-trace --node n17 --node-time\n  miot cat miot-trace --job 4711 --op write\n  miot cat miot-trace --tree --layer mpi-io\n\nA text line: time, node, pid/tid, layer, operation, length@offset, = result, duration, path. A message of a debug log (miot_debug) ends with [kind mask] and its text."
)]
pub(crate) struct Arguments {
    /// Trace directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    filter: Filter,
    /// Only events of this job (column `job` of `processes`)
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    job: Vec<String>,
    /// Print at most this many events
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u64>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Print the time of each event by the clock of its node, in nanoseconds, instead of the
    /// log-server's. The order, --since and --until still use the times of the trace
    #[arg(long)]
    node_time: bool,
    /// Print the requests made during each request below it: those of the same thread, and those
    /// that file-system clients on the same node served for it. Requests within a region of their
    /// thread are below the region. Prints every tree with an event
    /// that the other options select; -n counts trees
    #[arg(long)]
    tree: bool,
    /// Print no events; check the trace like `miot fsck`
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.check {
        return check::check(&arguments.dir, arguments.format == Format::Json);
    }
    let mut matcher = arguments.filter.matcher()?;
    let reader = unread::open(&arguments.dir)?;
    if !arguments.job.is_empty() {
        matcher = matcher.of_processes(of_jobs(&reader, &arguments.job)?);
    }
    let out = BufWriter::new(Out::new(arguments.format == Format::Json));
    let node_times = if arguments.node_time { Some(Corrections::read(&reader)?) } else { None };
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    if arguments.tree {
        let mut trees = Trees::new(out, &reader, arguments.format, node_times, left)?;
        for batch in reader.rows()? {
            if !trees.add(&batch?, &matcher)? {
                break;
            }
        }
        trees.finish()?;
    } else {
        let mut printer = RowPrinter::new(out, arguments.format, node_times);
        for batch in reader.rows()? {
            if left == 0 {
                break;
            }
            left -= printer.print(&batch?, left, &matcher.rows())?;
        }
        printer.flush()?;
    }
    report_missed(&reader);
    Ok(ExitCode::SUCCESS)
}

/// Reports parts that could not be read.
pub(crate) fn report_missed(reader: &Reader) {
    if reader.missed() > 0 {
        eprintln!(
            "miot: retention removed {} of the oldest parts before they could be read",
            reader.missed()
        );
    }
}
