//! Summary of a trace on one screen: requests, files, times, missing events.

use crate::source::{Progress, Source};
use crate::unread;
use miot_proto::units;
use miot_trace_analysis::Report;
use miot_trace_events::text::{duration, printable};
use miot_trace_results::stat::{self, ReadableSummary};
use miot_trace_store::{RemovedParts, schema::FILTERED};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Number of rows of a table on one screen.
const ROWS: usize = 12;
/// Maximum width of a path, columns. Longer paths are cut at the start.
const PATH_COLUMNS: usize = 60;

/// Reads a whole trace. Returns a report with the `files` slowest files, and everything that could
/// not be read.
pub(crate) fn report(source: &Source, files: usize) -> anyhow::Result<ReadableSummary> {
    let (reader, progress) = (source.open()?, Progress::default());
    Ok(stat::summary(&source.input(&reader, &progress), files)?)
}

/// Returns the parts that retention removed and the report does not cover; `None` if it covers
/// everything.
pub(crate) fn removed(dir: &Path) -> anyhow::Result<Option<RemovedParts>> {
    Ok(unread::open(dir)?.removed().ok().filter(|removed| removed.parts > 0))
}

/// Prints the summary of a trace.
pub(crate) fn print(dir: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let report = report(&Source::whole(dir), 8)?.report;
    writeln!(out, "\ntrace: {}", dir.display())?;
    write(&report, out)
}

/// Writes a report as tables.
pub(crate) fn write(report: &Report, out: &mut impl Write) -> anyhow::Result<()> {
    let totals = &report.totals;
    writeln!(
        out,
        "{} events of {} in {}; {} files; {} read, {} written; {} in I/O within {}",
        totals.events,
        counted(totals.threads, "thread"),
        counted(totals.processes, "process"),
        totals.files,
        bytes(totals.bytes_read),
        bytes(totals.bytes_written),
        time(totals.time),
        time(totals.wall)
    )?;
    if totals.lost == 0 {
        writeln!(out, "events lost: 0")?;
    } else {
        let mut places: BTreeMap<&str, u64> = BTreeMap::new();
        let lost = report.losses.iter().filter(|loss| loss.place != FILTERED);
        lost.for_each(|loss| *places.entry(&loss.place).or_default() += loss.count);
        let places: Vec<_> = places.iter().map(|(place, count)| format!("{count} {place}")).collect();
        writeln!(out, "events lost: {} ({}); see docs/reference/losses.md", totals.lost, places.join(", "))?;
    }
    if totals.filtered > 0 {
        let filtered = totals.filtered;
        writeln!(out, "left out by minimum duration or sampling: {}", counted(filtered, "request"))?;
    }
    if totals.interrupted > 0 {
        let interrupted = counted(totals.interrupted, "request");
        writeln!(out, "cut off by the end of their thread or process: {interrupted}")?;
    }
    if totals.times_moved > 0 {
        let moved = counted(totals.times_moved, "event");
        writeln!(out, "with a time that was moved (MOVED in flags, docs/reference/trace.md): {moved}")?;
    }
    if !report.operations.is_empty() {
        writeln!(
            out,
            "\n{:<8}{:<16}{:>10}{:>8}{:>12}{:>10}{:>10}{:>10}{:>10}",
            "layer", "operation", "count", "failed", "bytes", "time", "mean", "p99", "max"
        )?;
        for row in report.operations.iter().take(ROWS) {
            writeln!(
                out,
                "{:<8}{:<16}{:>10}{:>8}{:>12}{:>10}{:>10}{:>10}{:>10}",
                row.layer,
                row.op,
                row.count,
                row.failed,
                if row.bytes == 0 { "-".into() } else { bytes(row.bytes) },
                time(row.time),
                time(row.mean as u64),
                time(row.p99),
                time(row.max)
            )?;
        }
        rest(report.operations.len(), "operations", out)?;
    }
    if !report.files.is_empty() {
        writeln!(out, "\n{:>10}{:>10}{:>12}{:>12}  slowest files", "time", "requests", "read", "written")?;
        for row in report.files.iter().take(ROWS) {
            writeln!(
                out,
                "{:>10}{:>10}{:>12}{:>12}  {}",
                time(row.time),
                row.requests,
                bytes(row.bytes_read),
                bytes(row.bytes_written),
                shortened(&printable(row.path.trim_end()))
            )?;
        }
    }
    Ok(())
}

fn rest(total: usize, what: &str, out: &mut impl Write) -> std::io::Result<()> {
    if total > ROWS {
        writeln!(out, "… and {} more {what}: miot stat DIR --format csv", total - ROWS)
    } else {
        Ok(())
    }
}

fn time(nanoseconds: u64) -> String {
    duration(i64::try_from(nanoseconds).unwrap_or(i64::MAX))
}

/// Formats bytes with three digits and a unit; `--format json` has the exact number.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = None;
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(name);
    }
    unit.map_or_else(|| units::format_bytes(count), |unit| format!("{value:.1} {unit}"))
}

/// Formats a number with its noun: `1 file`, `2 processes`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    let plural = if what.ends_with('s') { "es" } else { "s" };
    format!("{count} {what}{}", if count == 1 { "" } else { plural })
}

/// Returns the end of a path that is too long for a table.
pub(crate) fn shortened(path: &str) -> String {
    let length = path.chars().count();
    if length <= PATH_COLUMNS {
        return path.to_owned();
    }
    let tail: String = path.chars().skip(length - PATH_COLUMNS + 1).collect();
    format!("…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_units() {
        assert_eq!([0, 512, 1536, 3 << 30].map(bytes), ["0 B", "512 B", "1.5 KiB", "3.0 GiB"]);
        assert_eq!(
            (counted(1, "process"), counted(2, "process"), counted(3, "thread")),
            ("1 process".into(), "2 processes".into(), "3 threads".into())
        );
    }

    #[test]
    fn long_path_keeps_its_end() {
        let path = format!("/{}/end", "x".repeat(100));
        let short = shortened(&path);
        assert_eq!(short.chars().count(), PATH_COLUMNS);
        assert!(short.ends_with("/end"));
    }
}
