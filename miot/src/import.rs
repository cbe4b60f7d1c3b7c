//! `miot import`: converts traces of other tools to trace directories.

mod miller;

use crate::source::bar;
use crate::summary::counted;
use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use miot_trace_events::text::printable;
use miot_trace_exchange::import::{OnError, Report};
use miot_trace_exchange::{TraceBuilder, dxt, strace};
use std::fs::File;
use std::io::{Read as _, Write as _, stdout};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Convert the output of another tool to a trace: strace, Darshan DXT, Miller's format
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  strace -f -ttt -T -y -o log ./program; miot import log -o trace\n  strace -ff -ttt -T -y -o log ./program; miot import log.* -o trace\n  darshan-dxt-parser job.darshan > job.txt; miot import job.txt -o trace\n  miot import --format miller venus.miller -o venus\n\nAll files become one trace. Imported and ignored data: docs/guide/import.md."
)]
pub(crate) struct Arguments {
    /// Output of the other tool
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// New trace directory
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Format of the files [default: detected]
    #[arg(long, value_enum)]
    format: Option<ImportFormat>,
    /// Handling of lines that cannot be parsed
    #[arg(long, value_enum, value_name = "WHAT", default_value = "skip")]
    on_error: ErrorPolicy,
    /// strace: working directory of the first process [default: from its first call that names it]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Name of the node, if the files do not contain it
    #[arg(long, value_name = "NAME", default_value = "imported")]
    node: String,
    /// miller: start of the trace, if no comment contains it
    #[arg(long, value_name = "TIME", default_value = "1970-01-01T00:00:00Z")]
    epoch: jiff::Timestamp,
    /// miller: numbers are decimal, not hexadecimal
    #[arg(long)]
    decimal: bool,
    /// miller: ignore undefined bits and contradictory flags
    #[arg(long)]
    lenient: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ImportFormat {
    /// Output of `strace -f -ttt -T -y`.
    Strace,
    /// Output of `darshan-dxt-parser`.
    Dxt,
    /// The ASCII trace format of Miller (1990), one file: docs/reference/miller.md.
    Miller,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ErrorPolicy {
    /// Skip and report them.
    Skip,
    /// Refuse the files.
    Stop,
}

/// Number of bytes at the start of a file from which its format is detected.
const LOOK: u64 = 64 << 10;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let on_error = match arguments.on_error {
        ErrorPolicy::Skip => OnError::Skip,
        ErrorPolicy::Stop => OnError::Stop,
    };
    let mut total = 0;
    for path in &arguments.files {
        let found = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        if found.is_dir() {
            bail!("{} is a directory: name its files", path.display());
        }
        total += found.len();
    }
    let format = match arguments.format {
        Some(format) => format,
        None => detected(&arguments.files)?,
    };
    let mut builder = TraceBuilder::create(&arguments.output)?;
    let report = {
        let bar = bar(total, "bytes read");
        let progress = |bytes| bar.inc(bytes);
        match format {
            ImportFormat::Strace => {
                let directory = arguments.directory.clone().map(|dir| dir.into_os_string().into_vec());
                strace::import(
                    &arguments.files,
                    &mut builder,
                    &arguments.node,
                    directory,
                    on_error,
                    progress,
                )?
            }
            ImportFormat::Dxt => dxt::import(&arguments.files, &mut builder, on_error, progress)?,
            ImportFormat::Miller => miller::import(arguments, &mut builder, on_error, progress)?,
        }
    };
    if builder.events() == 0 && report.skipped > 0 {
        report_skipped(&report, &mut stdout().lock())?;
        bail!("no event could be imported; the trace in {} was removed", arguments.output.display());
    }
    let (events, processes, files) = (builder.events(), builder.processes(), builder.files());
    {
        let bar = bar(events, "events written");
        builder.finish(|rows| bar.inc(rows))?;
    }
    let mut out = stdout().lock();
    writeln!(
        out,
        "{} of {} on {}: {}",
        counted(events, "request"),
        counted(processes, "process"),
        counted(files, "file"),
        arguments.output.display()
    )?;
    report_skipped(&report, &mut out)?;
    Ok(ExitCode::SUCCESS)
}

fn detected(files: &[PathBuf]) -> anyhow::Result<ImportFormat> {
    let path = &files[0];
    let read = || -> std::io::Result<Option<Vec<u8>>> {
        let file = File::open(path)?;
        // Bytes read from a pipe cannot be read again.
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut begin = Vec::new();
        file.take(LOOK).read_to_end(&mut begin)?;
        Ok(Some(begin))
    };
    let Some(begin) = read().with_context(|| format!("cannot read {}", path.display()))? else {
        bail!("{} is not a regular file: name its format with --format", path.display());
    };
    if begin.starts_with(b"FF miller-1990\n") {
        Ok(ImportFormat::Miller)
    } else if dxt::detect(&begin) {
        Ok(ImportFormat::Dxt)
    } else if strace::detect(&begin) {
        Ok(ImportFormat::Strace)
    } else {
        bail!(
            "the format of {} is neither that of strace nor of darshan-dxt-parser nor of `miot export --format miller`: name it with --format",
            path.display()
        )
    }
}

/// Reports the lines and calls that were left out.
fn report_skipped(report: &Report, out: &mut impl std::io::Write) -> std::io::Result<()> {
    if report.skipped > 0 {
        writeln!(out, "{} of {} lines could not be parsed and were left out:", report.skipped, report.lines)?;
        for bad in &report.bad {
            writeln!(out, "  {}", printable(&bad.to_string()))?;
        }
        if report.skipped > report.bad.len() as u64 {
            writeln!(out, "  …")?;
        }
    }
    for (what, times) in &report.notes {
        writeln!(out, "{times} {what}")?;
    }
    if !report.others.is_empty() {
        let mut others: Vec<_> = report.others.iter().collect();
        others.sort_by_key(|(name, times)| (std::cmp::Reverse(**times), *name));
        let all: u64 = report.others.values().sum();
        let named = others.iter().take(12).map(|(name, times)| format!("{times} {}", printable(name)));
        let named: Vec<_> = named.collect();
        let more = if others.len() > named.len() { ", …" } else { "" };
        writeln!(out, "{all} calls that are not file I/O, or unknown, left out: {}{more}", named.join(", "))?;
    }
    Ok(())
}
