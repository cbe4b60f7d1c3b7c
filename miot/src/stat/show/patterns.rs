//! File sharing, and order of accesses.

use super::{AnalysisContext, report_left_out};
use crate::numbers;
use crate::summary::shortened;
use miot_trace_analysis::patterns::{FilePattern, Patterns, ProgramPattern};
use miot_trace_events::Format;
use miot_trace_events::print::records;
use miot_trace_events::text::{printable, table};
use miot_trace_results::show;
use serde::Serialize;
use std::io::Write;

pub(super) fn view(asked: &AnalysisContext<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let most = if matches!(asked.format(), Format::Csv) { usize::MAX } else { asked.most() };
    let patterns = show::patterns(&asked.input(), asked.system_files(), most)?;
    match asked.format() {
        Format::Text => {
            asked.report_missing(out)?;
            Ok(text(&patterns, out)?)
        }
        Format::Json => asked.json(out, &patterns),
        Format::Csv => Ok(records(out, Format::Csv, true, patterns.files.iter().map(row))?),
    }
}

/// CSV row of a file.
#[derive(Serialize)]
struct PatternRow<'a> {
    job: Option<&'a str>,
    exe: &'a str,
    file: u64,
    path: &'a str,
    sharing: &'static str,
    members: u64,
    order: &'static str,
    bytes_read: u64,
    bytes_written: u64,
    accesses: u64,
    followed: u64,
    consecutive: u64,
    forward: u64,
    strided: u64,
    backward: u64,
    stride: Option<u64>,
}

fn row(file: &FilePattern) -> PatternRow<'_> {
    PatternRow {
        job: file.job.as_deref(),
        exe: &file.exe,
        file: file.file,
        path: &file.path,
        sharing: file.sharing.name(),
        members: file.members,
        order: file.order.name(),
        bytes_read: file.bytes_read,
        bytes_written: file.bytes_written,
        accesses: file.accesses,
        followed: file.followed,
        consecutive: file.consecutive,
        forward: file.forward,
        strided: file.strided,
        backward: file.backward,
        stride: file.strides.first().map(|stride| stride.bytes),
    }
}

fn text(patterns: &Patterns, out: &mut impl Write) -> std::io::Result<()> {
    if patterns.programs.is_empty() {
        writeln!(out, "no program moved data")?;
        return report_left_out(patterns.system_files_left_out, out);
    }
    let header = ["pattern", "program", "job", "members", "active", "bytes", "because"].map(str::to_owned);
    table(out, header, patterns.programs.iter().map(program).collect())?;
    writeln!(out)?;
    let header = [
        "file",
        "by",
        "bytes",
        "accesses",
        "order",
        "consecutive",
        "strided",
        "forward",
        "backward",
        "stride",
    ]
    .map(str::to_owned);
    table(out, header, patterns.files.iter().map(file).collect())?;
    if patterns.files_left_out > 0 {
        let left_out = patterns.files_left_out;
        writeln!(out, "at least {left_out} more files were not examined: figures are lower bounds")?;
    }
    if patterns.views_unknown > 0 {
        writeln!(out, "{}", super::super::unknown_views(patterns.views_unknown))?;
    }
    if patterns.sharers_left_out > 0 {
        writeln!(out, "shared files have more members than shown")?;
    }
    report_left_out(patterns.system_files_left_out, out)
}

fn program(row: &ProgramPattern) -> [String; 7] {
    [
        row.pattern.name().to_owned(),
        shortened(&printable(&row.program.exe)),
        printable(row.program.job.as_deref().unwrap_or("-")).into_owned(),
        row.program.members.to_string(),
        row.active.to_string(),
        numbers::bytes(row.bytes as f64),
        row.rule.clone(),
    ]
}

fn file(row: &FilePattern) -> [String; 10] {
    let share = |count: u64| match row.followed {
        0 => "-".to_owned(),
        followed => format!("{:.0} %", count as f64 / followed as f64 * 100.0),
    };
    let strides: Vec<_> = row.strides.iter().map(|stride| stride.bytes.to_string()).collect();
    [
        shortened(&printable(&row.path)),
        format!("{} ({})", row.members, row.sharing.name()),
        numbers::bytes(row.bytes_read.saturating_add(row.bytes_written) as f64),
        row.accesses.to_string(),
        row.order.name().to_owned(),
        share(row.consecutive),
        share(row.strided),
        share(row.forward),
        share(row.backward),
        if strides.is_empty() { "-".to_owned() } else { strides.join(", ") },
    ]
}
