//! `miot stat DIR --show WHAT`: prints one analysis of a trace.

mod bursts;
mod cycles;
mod findings;
mod idle;
mod patterns;

use crate::output::Out;
use crate::source::Progress;
use crate::summary::{self, counted};
use clap::{Args, ValueEnum};
use miot_trace_analysis::Missing;
use miot_trace_analysis::programs::LeftOut;
use miot_trace_events::Format;
use miot_trace_results::{Input, show, stat};
use miot_trace_store::Reader;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub(super) struct Options {
    /// Print one analysis instead of the summary
    #[arg(long = "show", value_enum, value_name = "WHAT", conflicts_with_all = ["by", "view", "layer", "job", "path", "sort", "depth"])]
    pub(super) what: Option<Analysis>,
    /// Length of the intervals of `bursts` and `idle`, e.g. 1s, 100ms, 10min
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = show::interval)]
    interval: u64,
    /// With `findings` and `patterns`: include files of the operating system and its programs
    /// (/etc, /usr, /bin, /lib, /sbin, /boot, /dev, /proc, /sys, and files in /dev/shm through
    /// which MPI communicates), which are otherwise only counted
    #[arg(long, requires = "what")]
    system_files: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Analysis {
    /// Throughput per interval, its distribution, and the time below a fraction of its peak; csv:
    /// one row per interval
    Bursts,
    /// Idle periods by three definitions, and their lengths
    Idle,
    /// Periods of the data rates of processes
    Cycles,
    /// File sharing between ranks (N:N, N:1, N:M, one rank) and order of accesses; csv: one row per
    /// file
    Patterns,
    /// Inefficient I/O, such as small, misaligned or repeated requests, by documented rules, with
    /// evidence
    Findings,
}

pub(super) fn run(what: Analysis, arguments: &super::Arguments) -> anyhow::Result<ExitCode> {
    let view = match what {
        Analysis::Bursts => bursts::view,
        Analysis::Idle => idle::view,
        Analysis::Cycles => cycles::view,
        Analysis::Patterns => patterns::view,
        Analysis::Findings => findings::view,
    };
    let (reader, progress) = (arguments.source.open()?, Progress::default());
    let missing = stat::missing(&reader)?;
    let mut out = Out::new(arguments.format == Format::Json);
    view(&AnalysisContext { arguments, reader: &reader, progress: &progress, missing }, &mut out)?;
    Ok(ExitCode::SUCCESS)
}

/// Default number of rows of a long table.
const ROWS: usize = 10;

/// Arguments of an analysis.
struct AnalysisContext<'a> {
    arguments: &'a super::Arguments,
    reader: &'a Reader,
    progress: &'a Progress,
    missing: Missing,
}

impl AnalysisContext<'_> {
    fn format(&self) -> Format {
        self.arguments.format
    }

    fn interval(&self) -> u64 {
        self.arguments.show.interval
    }

    /// Returns whether files of the operating system are included.
    fn system_files(&self) -> bool {
        self.arguments.show.system_files
    }

    /// Returns the input of the analysis.
    fn input(&self) -> Input<'_> {
        self.arguments.source.input(self.reader, self.progress)
    }

    /// Returns the number of rows of a long table.
    fn most(&self) -> usize {
        self.arguments.by.top().unwrap_or(ROWS)
    }

    /// Prints one JSON object, with the losses.
    fn json(&self, out: &mut impl Write, result: &impl Serialize) -> anyhow::Result<()> {
        let unread = self.reader.unread().all();
        let output = show::AnalysisOutput { missing: self.missing, unread, result };
        serde_json::to_writer_pretty(&mut *out, &output)?;
        Ok(writeln!(out)?)
    }

    /// Prints that figures are lower bounds, if they are.
    fn report_missing(&self, out: &mut impl Write) -> std::io::Result<()> {
        super::report_unread(&self.reader.unread().all(), out)?;
        if self.missing.lost > 0 {
            writeln!(
                out,
                "{} events lost: counts and bytes are lower bounds, see docs/reference/losses.md",
                self.missing.lost
            )?;
        }
        if self.missing.filtered > 0 {
            let filtered = self.missing.filtered;
            writeln!(
                out,
                "{filtered} requests left out by minimum duration or sampling: counts and bytes do not include them"
            )?;
        }
        Ok(())
    }
}

/// Prints the note on system files that were left out.
fn report_left_out(left_out: LeftOut, out: &mut impl Write) -> std::io::Result<()> {
    if left_out.requests == 0 {
        return Ok(());
    }
    let (requests, bytes) = (counted(left_out.requests, "request"), summary::bytes(left_out.bytes));
    writeln!(
        out,
        "left out: {requests} ({bytes}) to system files, such as /etc and /usr; --system-files includes them"
    )
}

/// Formats a share in percent.
fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}
